"""A service's process: settings, log, event loop, and one sentence in place of a traceback when it cannot start.

Only `main` functions call this. Nothing else in the SDK configures logging. Needs `hailbus[service]`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from hailbus._garbage import freeze_imports
from hailbus.errors import BrokerUnreachableError, ConfigurationError, ServiceFailedError
from hailbus.settings import describe_settings, read_settings

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

__all__ = ["log_to_stderr", "run_process"]

S = TypeVar("S", bound="BaseSettings")
QUIET = ("aiokafka", "uvicorn", "aiosqlite", "asyncio", "faust", "mode")
"""Libraries of which only warnings are shown."""


def run_process(
    name: str,
    settings: type[S],
    serve: Callable[[S], Awaitable[None]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a service until it has stopped. `--help` prints its settings instead.

    Exit code 0 then; 1 when a part of it has ended and only a restart helps; 2 when it cannot start as told. In the
    last two cases a sentence on stderr says why.

    What is imported by now is kept from the garbage collector, which would stop the event loop to look at it again.

    Args:
        name: Stands before the sentence.
        settings: Read from the environment; its `log_level`, if it has one, says how much is logged to stderr, and its
            `listen` and `database_url` are named in the sentence when they are what does not work.
        serve: The service.
        arguments: Of the command line; those of this process unless given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given:
        _explain(name, settings, given)
    prefix = settings.model_config.get("env_prefix", "")
    freeze_imports()
    try:
        found = read_settings(settings)
        log_to_stderr(getattr(found, "log_level", "info"))
        _run(name, serve(found))
    except (ConfigurationError, BrokerUnreachableError) as error:
        _end(name, str(error))
    except OSError as error:
        listen = getattr(found, "listen", None)
        reason = error.strerror or str(error)
        if listen is None:
            _end(name, f"{error.filename}: {reason}" if error.filename else reason)
        _end(name, f"cannot listen at {listen}: {reason}; set {prefix}LISTEN to a free address")
    except Exception as error:
        if not _is_database_error(error):
            raise
        reason = str(getattr(error, "orig", None) or error)
        _end(name, f"the database cannot be opened: {reason}; check {prefix}DATABASE_URL")


def _explain(name: str, settings: type[BaseSettings], given: Sequence[str]) -> NoReturn:
    """Print how the command is used, and end the process."""
    usage = (
        f"usage: {name}\n\nIt takes no arguments and is set by environment variables. NAME_FILE may name a file that "
        f"holds the value of NAME.\n\n{describe_settings(settings)}"
    )
    if given in (["--help"], ["-h"]):
        print(usage)
        raise SystemExit(0)
    print(f"{name}: unknown argument {given[0]!r}\n{usage}", file=sys.stderr)
    raise SystemExit(2)


def log_to_stderr(level: str) -> None:
    """Log to stderr, what structlog and what the standard library logs: lines for a terminal, JSON otherwise."""
    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _run(name: str, work: Awaitable[None]) -> None:
    import uvloop

    async def main() -> None:
        try:
            await work
        except ServiceFailedError as error:
            print(f"{name}: {error}", file=sys.stderr)
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            # Not SystemExit: the interpreter would wait for tasks and threads, and what has failed may hang.
            os._exit(1)

    uvloop.run(main())


def _is_database_error(error: Exception) -> bool:
    """Whether SQLAlchemy raised it; a service without a database need not import SQLAlchemy to tell."""
    module = sys.modules.get("sqlalchemy.exc")
    return module is not None and isinstance(error, module.SQLAlchemyError)


def _end(name: str, sentence: str) -> None:
    print(f"{name}: {sentence}", file=sys.stderr)
    raise SystemExit(2) from None
