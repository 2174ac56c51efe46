"""Logging by structlog to stderr: JSON unless a terminal reads it.

structlog is loaded with the first line that is logged, not with the modules that may log one: a broker serves sooner.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_asked_level: list[str] = []
"""The level given to `configure` that structlog does not have yet; empty in a process that configures structlog."""


class Logger:
    """Stands for `structlog.get_logger()` until somebody logs."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:  # whatever structlog's logger has under that name
        if _asked_level:
            _configure_structlog(_asked_level.pop())
        import structlog

        return getattr(structlog.get_logger(), name)


def get_logger() -> Any:  # a structlog logger is typed so, too
    """A logger for a module."""
    return Logger()


def configure(level: str = "info") -> None:
    """Set the process's logging up, once, at the start.

    Args:
        level: debug, info, warning or error.
    """
    _asked_level[:] = [level]


def _configure_structlog(level: str) -> None:
    # structlog loads rich where that is installed, for coloured tracebacks: more than all the rest of it.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is the import system's word for "not there"
    import structlog

    is_terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not is_terminal:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
