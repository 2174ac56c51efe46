"""What a client library logs at each attempt, limited to once while the reason lasts."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

__all__ = ["RepeatedLines", "aiokafka_lines"]

log = logging.getLogger("hailbus.transport")
QUIET_S = 60.0
"""A line that was not logged for this long is logged again."""
MAX_LINES = 256
"""Lines that are remembered, over all loggers."""

Key = tuple[str, int, str, str]


@dataclass(slots=True)
class _Line:
    last_s: float
    suppressed: int = 0


class RepeatedLines(logging.Filter):
    """Lets the first of several warnings or errors pass that have their text in common, before their arguments.

    The others are counted. The count is logged when a broker is reached again, or with the next such line after a
    minute of silence. Records below WARNING always pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lines: dict[Key, _Line] = {}

    def install(self, library: str) -> None:
        """Filter the loggers of a library that exist: of a logger alone, its children would pass by."""
        for name in (library, *logging.root.manager.loggerDict):
            if name == library or name.startswith(f"{library}."):
                logging.getLogger(name).addFilter(self)  # which adds it once

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if record.levelno < logging.WARNING:
            return True
        raised = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        key = (record.name, record.levelno, str(record.msg), raised)
        with self._lock:
            line = self._lines.pop(key, None)
            repeats = line is not None and record.created - line.last_s < QUIET_S
            self._lines[key] = _Line(record.created, line.suppressed + 1 if line is not None and repeats else 0)
            if len(self._lines) > MAX_LINES:
                del self._lines[next(iter(self._lines))]
        if line is not None and line.suppressed and not repeats:
            record.msg = f"{record.msg} (and {line.suppressed} such lines before)"
        return not repeats

    def reached(self) -> None:
        """Log how many lines were held back, now that a broker is reached again; from here on lines are new."""
        with self._lock:
            lines, self._lines = self._lines, {}
        for (name, _, text, _), line in lines.items():
            if line.suppressed:
                log.info("client_log_repeated: %s: %r %d times more", name, text, line.suppressed)


aiokafka_lines = RepeatedLines()
"""Of all clients in this process, whose lines do not say which client they are of."""
