"""The trace of a run: one line per step, and a running hash of all lines."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

_LINES_PER_UPDATE: Final = 512


class Trace:
    """Collects lines and hashes them, so that two runs can be compared by one string.

    Args:
        keep: How many of the newest lines to keep; None keeps all.
    """

    def __init__(self, *, keep: int | None = 1_000) -> None:
        self._kept: Final[deque[str]] = deque(maxlen=keep)
        self._pending: list[str] = []
        self._hash: Final = hashlib.sha256()
        self._line_count = 0

    def add(self, line: str) -> None:
        """Add one line, without a line break."""
        self._pending.append(line)
        if len(self._pending) >= _LINES_PER_UPDATE:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._hash.update(("\n".join(self._pending) + "\n").encode())
            self._kept.extend(self._pending)
            self._line_count += len(self._pending)
            self._pending.clear()

    @property
    def line_count(self) -> int:
        """Lines so far."""
        return self._line_count + len(self._pending)

    @property
    def lines(self) -> list[str]:
        """The newest lines, oldest first."""
        self._flush()
        return list(self._kept)

    @property
    def digest(self) -> str:
        """SHA-256 of all lines so far, in hexadecimal."""
        self._flush()
        return self._hash.hexdigest()
