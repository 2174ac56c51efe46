"""Which starts of the machine have written to a data directory: a page cache is worth what its machine's start is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Disk

_REMEMBERED_BOOTS: Final = 3


class Boots:
    """The starts of the machine in which processes have written to the directory since it was last known to be whole.

    Attributes:
        is_cache_older: Whether an earlier process has written in this start of the machine, or that is not known.
        has_restarted: Whether the machine has started again since another process wrote.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk: Final = disk
        self._path: Final = path
        self._written: Final = (disk.read_bytes(path) or b"").decode(errors="replace").split()
        self._current: Final = disk.boot_id()
        self.is_cache_older: Final = not self._current or not self._written or self._current in self._written
        self.has_restarted: Final = bool(self._current) and any(boot != self._current for boot in self._written)

    def begin(self) -> None:
        """Note that a process is about to write. Earlier starts stay: their tails are not repaired yet.

        Raises:
            StorageError: The machine failed.
        """
        if self._current and self._current not in self._written:
            self._write([*self._written[1 - _REMEMBERED_BOOTS :], self._current])

    def finish(self) -> None:
        """Note that everything was repaired and synced.

        Raises:
            StorageError: The machine failed.
        """
        if self._current and self._written != [self._current]:
            self._write([self._current])

    def _write(self, boots: list[str]) -> None:
        self._written[:] = boots
        self._disk.write_whole(self._path, "".join(f"{boot}\n" for boot in boots).encode())
