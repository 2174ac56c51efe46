"""A disk in memory that forgets what was not synced, tears what was being written, and fails on request.

What it assumes of a real one: data lasts after `File.sync`, names after `Disk.sync_directory`, those of directories
too; of what was not synced any prefix may have arrived, and the last sectors of it may hold anything; changes of names
in one directory arrive in order. A directory directly below the root lasts at once: the operator made it.
"""

from __future__ import annotations

from errno import ENOENT, ENOSPC
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import StorageError
from hailbus_broker.testing.simulation.errors import SimulatedCrashError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hailbus_broker.log.disk import Buffer

SECTOR_BYTES: Final = 512
_FIRST_LEVEL: Final = 2
UNLIMITED: Final = 2**62


class _Inode:
    """The content of a file, and what of it is on stable storage: `data[:kept]`, then `lost`."""

    __slots__ = ("data", "has_failed", "kept", "lost", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.kept = 0
        self.lost = b""
        self.modified_ms = 0
        self.has_failed = False

    @property
    def synced(self) -> bytes:
        return bytes(memoryview(self.data)[: self.kept]) + self.lost

    def sync(self) -> None:
        # A system forgets that a page is dirty when it fails to write it: a second sync reports success for nothing.
        if not self.has_failed:
            self.kept, self.lost = len(self.data), b""

    def truncate(self, size: int) -> None:
        if size < self.kept:
            self.lost = bytes(memoryview(self.data)[size : self.kept]) + self.lost
            self.kept = size
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))


class SimulatedFile:
    """A file of a `SimulatedDisk`; see `log.disk.File`."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode) -> None:
        self._disk: Final = disk
        self.path: Final = path
        self._inode: Final = inode

    def fileno(self) -> int:
        """There is no descriptor to send from."""
        raise NotImplementedError("a simulated file has no descriptor: read it")

    def size(self) -> int:
        """Bytes in the file."""
        return len(self._inode.data)

    def append(self, data: Buffer) -> None:
        """Write at the end; a crash or a full disk leaves any part of it."""
        inode, disk = self._inode, self._disk
        written = bytes(data)
        if disk.capacity_bytes != UNLIMITED:
            room = max(disk.capacity_bytes - disk.used_bytes(), 0)
            if len(written) > room:
                inode.data += written[:room]
                disk.note("full disk")
                raise StorageError("no space left on the simulated disk", path=self.path, errno=ENOSPC)
        try:
            disk.step(self.path, "append", torn=lambda: inode.data.extend(written[: disk.cut(len(written))]))
        except StorageError:
            inode.data += written[: disk.cut(len(written))]
            raise
        inode.data += written
        inode.modified_ms = disk.clock_ms()

    def append_all(self, buffers: Sequence[Buffer]) -> None:
        """As one append."""
        self.append(b"".join(buffers))

    def read(self, position: int, length: int) -> bytes:
        """The bytes from a position."""
        self._disk.check(self.path, "read")
        return bytes(memoryview(self._inode.data)[position : position + length])

    def read_cached(self, position: int, length: int) -> bytes | None:
        """Everything is in memory, unless the disk is cold."""
        return self.read(position, length) if self.is_cached(position, length) else None

    def is_cached(self, position: int, length: int) -> bool:  # noqa: ARG002 - the port's signature
        """Everything is in memory, unless the disk is cold."""
        if not self._disk.is_cold:
            return True
        self._disk.note("cold read")
        return False

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._disk.step(self.path, "truncate")
        self._inode.truncate(size)

    def sync(self) -> None:
        """From now on the data lasts."""
        try:
            self._disk.step(self.path, "sync")
        except StorageError:
            self._inode.has_failed = True
            self._disk.note("failed sync")
            raise
        self._inode.sync()


class SimulatedLock:
    """A directory that a process owns; see `log.disk.DirectoryLock`."""

    def __init__(self, locks: dict[str, SimulatedLock], directory: str) -> None:
        self._locks: Final = locks
        self._directory: Final = directory

    def release(self) -> None:
        """Give it back, unless another life of the process has it."""
        if self._locks.get(self._directory) is self:
            del self._locks[self._directory]


class SimulatedDisk:
    """Files in memory; see `log.disk.Disk`.

    Args:
        chance: Decides what a crash leaves.
        crash_at_step: The disk stops before its n-th change, counted from 0; None never.

    Attributes:
        step_count: Changes so far.
        failing: Called with path and operation before each; may raise a StorageError.
        capacity_bytes: Writing beyond it fails with ENOSPC.
        is_cold: Whether the system has nothing in memory.
        torn_sectors: Of the last so many sectors that arrive, one may hold anything.
        now_ms: What files say they were modified at.
    """

    def __init__(self, chance: random.Random, *, crash_at_step: int | None = None) -> None:
        self.chance: Final = chance
        self.crash_at_step = crash_at_step
        self.step_count = 0
        self.failing: Callable[[str, str], None] | None = None
        self.capacity_bytes = UNLIMITED
        self.is_cold = False
        self.torn_sectors = 5
        self.now_ms = 0
        self.has_crashed = False
        self._names: dict[str, _Inode] = {}
        """By path; a directory has a slash at its end."""
        self._durable_names: dict[str, _Inode] = {}
        self._pending_names: dict[str, list[Callable[[dict[str, _Inode]], None]]] = {}
        self._locks: dict[str, SimulatedLock] = {}

    # ---- what a world adds

    def clock_ms(self) -> int:
        """What the clock shows, in ms since 1970."""
        return self.now_ms

    def note(self, what: str) -> None:
        """Count something that a campaign wants to have seen."""

    # ---- faults

    def check(self, path: str, operation: str) -> None:
        """Fail if this operation is to fail."""
        if self.has_crashed:
            raise SimulatedCrashError
        if self.failing is not None:
            self.failing(path, operation)

    def step(self, path: str, operation: str, torn: Callable[[], object] | None = None) -> None:
        """One change of the disk: fails or crashes here when it is its turn."""
        self.check(path, operation)
        if self.step_count == self.crash_at_step:
            if torn is not None:
                torn()
            self.has_crashed = True
            raise SimulatedCrashError
        self.step_count += 1

    def cut(self, length: int) -> int:
        """How much of a write has arrived."""
        return self.chance.randint(0, length)

    def paths(self) -> tuple[str, ...]:
        """All files."""
        return tuple(sorted(path for path in self._names if not path.endswith("/")))

    def used_bytes(self) -> int:
        """Bytes in all files."""
        return sum(len(inode.data) for inode in self._names.values())

    def kill_process(self) -> None:
        """SIGKILL: what was written stays, in the page cache of the system."""
        self.has_crashed = False
        self.crash_at_step = None
        self._locks.clear()

    def cut_power(self) -> None:
        """What was not synced is gone, or arrived in part, or as garbage."""
        names = dict(self._durable_names)
        for pending in self._pending_names.values():
            arrived = self.chance.randint(0, len(pending))
            if arrived < len(pending):
                self.note("lost directory entry")
            for change in pending[:arrived]:
                change(names)
        self._pending_names.clear()
        for path in [path for path in names if not _has_directories(path, names)]:
            del names[path]
            self.note("lost directory entry")
        for inode in dict.fromkeys([*self._names.values(), *names.values()]):  # in one order in every run
            inode.data = self._after_power_cut(inode)
            inode.has_failed = False
            inode.sync()
        self._names = names
        self._durable_names = dict(names)
        self.kill_process()

    def _after_power_cut(self, inode: _Inode) -> bytearray:
        current, synced, common = inode.data, inode.synced, inode.kept
        if current == synced:
            return current
        if self.chance.random() < 0.3:
            self.note("lost write")
            return bytearray(synced)
        if len(current) <= common:  # a truncation: it happened or it did not
            return bytearray(current if self.chance.random() < 0.5 else synced)
        self.note("torn write")
        left = bytearray(current[: self.chance.randint(common, len(current))])
        sector = (
            max(len(left) - 1 - self.chance.randint(0, (self.torn_sectors - 1) * SECTOR_BYTES), common)
            // SECTOR_BYTES
            * SECTOR_BYTES
        )
        start, end = max(sector, common), min(sector + SECTOR_BYTES, len(left))
        match self.chance.randint(0, 2):
            case 0 if end > start:
                left[start:end] = bytes(end - start)  # allocated, never written
            case 1 if end > start:
                left[start:end] = self.chance.randbytes(end - start)
            case _:
                pass
        return left

    # ---- the port

    def lock(self, directory: str) -> SimulatedLock | None:
        """Take a directory; the lock ends with the process, like that of the system."""
        self.check(directory, "lock")
        if directory in self._locks:
            return None
        lock = self._locks[directory] = SimulatedLock(self._locks, directory)
        return lock

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        """Open a file."""
        self.check(path, "open")
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise StorageError("no such file on the simulated disk", path=path, errno=ENOENT)
            self.step(path, "create")
            inode = _Inode()
            inode.modified_ms = self.clock_ms()
            made = inode
            self._change_names(path, lambda names: names.__setitem__(path, made))
        return SimulatedFile(self, path, inode)

    def read_bytes(self, path: str) -> bytes | None:
        """A whole file."""
        self.check(path, "read")
        inode = self._names.get(path)
        return None if inode is None else bytes(inode.data)

    def write_whole(self, path: str, data: bytes) -> None:
        """Replace a file at once."""
        self.step(path, "write_whole")
        inode = _Inode()
        inode.data = bytearray(data)
        inode.sync()
        inode.modified_ms = self.clock_ms()
        self._change_names(path, lambda names: names.__setitem__(path, inode))
        self._sync_names(path.rpartition("/")[0])

    def list(self, directory: str) -> list[str]:
        """Names in a directory."""
        self.check(directory, "list")
        start = directory + "/"
        found = {path[len(start) :].partition("/")[0] for path in self._names if path.startswith(start)}
        return sorted(found - {""})

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        self.check(path, "exists")
        return path in self._names or path + "/" in self._names

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        """When a file was last written."""
        self.open(path)
        return self._names[path].modified_ms

    def make_directory(self, path: str) -> None:
        """Create a directory, and those above it that are missing."""
        self.check(path, "make_directory")
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            made = "/".join(parts[:end])
            if made + "/" not in self._names:
                self.step(made, "make_directory")
                inode = _Inode()
                self._change_names(made, partial(_set, path=made + "/", inode=inode))
                if end == _FIRST_LEVEL:
                    self._sync_names("")

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory."""
        self.step(source, "rename")
        moved = [path for path in self._names if path == source or path.startswith(source + "/")]
        if not moved:
            raise StorageError("no such file on the simulated disk", path=source, errno=ENOENT)

        def change(names: dict[str, _Inode]) -> None:
            for path in moved:
                if path in names:
                    names[target + path[len(source) :]] = names.pop(path)

        self._change_names(source, change)

    def remove(self, path: str) -> None:
        """Remove a file; fine when there is none."""
        self.check(path, "remove")
        if path in self._names:
            self.step(path, "remove")
            self._change_names(path, lambda names: names.pop(path, None))

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it."""
        inside = [name for name in self._names if name.startswith(path + "/")]
        for name in sorted(inside, key=lambda name: (name.endswith("/"), -name.count("/"), name)):
            if name.endswith("/"):
                self._change_names(name[:-1], partial(_drop, path=name))
            else:
                self.remove(name)

    def sync_directory(self, path: str) -> None:
        """From now on the names in a directory last."""
        self.step(path, "sync_directory")
        self._sync_names(path)

    def _change_names(self, path: str, change: Callable[[dict[str, _Inode]], object]) -> None:
        def apply(names: dict[str, _Inode]) -> None:
            change(names)

        apply(self._names)
        self._pending_names.setdefault(path.rpartition("/")[0], []).append(apply)

    def _sync_names(self, directory: str) -> None:
        for change in self._pending_names.pop(directory, []):
            change(self._durable_names)


def _set(names: dict[str, _Inode], *, path: str, inode: _Inode) -> None:
    names[path] = inode


def _drop(names: dict[str, _Inode], *, path: str) -> None:
    names.pop(path, None)


def _has_directories(path: str, names: dict[str, _Inode]) -> bool:
    """Whether all directories above a path are there; the root is."""
    parts = path.rstrip("/").split("/")
    return all("/".join(parts[:end]) + "/" in names for end in range(2, len(parts)))
