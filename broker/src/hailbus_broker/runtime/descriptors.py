"""How many files and connections the process may still open, and what is refused before there are too many.

A process that has no file descriptor left cannot begin a segment or sync a directory. So new connections and new
partitions are refused while a reserve is left, and those that are open already stay served.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_RESERVE: Final = 64
RESERVE_SHARE: Final = 8
"""The reserve is this part of the limit, and at least `LEAST_RESERVE`."""


class Descriptors:
    """The process's descriptors: the last ones are kept for segments, indexes and syncs of what is served already.

    Attributes:
        limit: How many there may be (`ulimit -n`).

    Args:
        limit: See above.
        open_count: Counts those that are in use.
    """

    def __init__(self, limit: int, open_count: Callable[[], int] = lambda: 0) -> None:
        self.limit: Final = limit
        self._open_count: Final = open_count
        self._reserve: Final = min(max(limit // RESERVE_SHARE, LEAST_RESERVE), limit // 3)

    @classmethod
    def of_process(cls) -> Descriptors:
        """Raise the process's limit as far as it may, and take that."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return cls(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _open_count)

    def has_room_for_connection(self, descriptor: int) -> bool:
        """Whether a connection may stay. The system gives the lowest free number: all below it are in use."""
        return descriptor < self.limit - self._reserve

    def room_for_partitions(self, hosted_count: int) -> int:
        """How many partitions may be added: an open file each, and connections must stay possible besides.

        Args:
            hosted_count: Partitions that there are.
        """
        by_open_files = self.limit - self._reserve - self._open_count()
        return max(min(by_open_files, self.limit - 2 * self._reserve - hosted_count), 0)


def _open_count() -> int:
    # Linux 6.2 and newer keep the number; a listing takes milliseconds when thousands of files are open.
    with suppress(OSError):
        if count := os.stat("/proc/self/fd").st_size:  # noqa: PTH116 - as below
            return count
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - a Path per descriptor is much more work
