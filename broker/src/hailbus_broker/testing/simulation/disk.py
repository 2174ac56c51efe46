"""A disk in memory that forgets what was not synced, tears what was being written, and fails on request.

What it assumes of a real one: data lasts after `File.sync`, names after `Disk.sync_directory`, those of directories
too; of what was not synced any prefix may have arrived, with any of its sectors missing, and one of them may hold
anything; after a failed sync the data stays readable, counts as written, and is lost with the power unless it is
written again; changes of names in one directory arrive in order. A directory directly below the root lasts at once: the
operator made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import ENOENT, ENOSPC
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
    """The content of a file, and what of it is on stable storage: `data[:kept]` without its holes, then `lost`.

    Attributes:
        holes: Ranges that the system takes for written although a sync has failed to write them.
        rewritten: Ranges that were holes, and that the next sync writes.
    """

    __slots__ = ("data", "holes", "kept", "lost", "modified_ms", "rewritten")

    def __init__(self) -> None:
        self.data = bytearray()
        self.kept = 0
        self.lost = b""
        self.modified_ms = 0
        self.holes: list[tuple[int, int]] = []
        self.rewritten: list[tuple[int, int]] = []

    def without_holes(self, end: int) -> bytearray:
        """The bytes below an end as they are on the disk."""
        found = self.data[:end]
        for start, hole_end in (*self.holes, *self.rewritten):
            found[start:hole_end] = bytes(len(found[start:hole_end]))
        return found

    @property
    def synced(self) -> bytes:
        return bytes(self.without_holes(self.kept)) + self.lost

    def sync(self) -> None:
        self.kept, self.lost = len(self.data), b""
        self.rewritten.clear()

    def fail_sync(self) -> None:
        """Forget that anything has to be written, as Linux does: a second sync reports success and writes nothing."""
        self.holes += self.rewritten
        self.rewritten.clear()
        covered = max([self.kept, *(end for _, end in self.holes)])
        if covered < len(self.data):
            self.holes.append((covered, len(self.data)))

    def rewrite(self, position: int) -> None:
        before, self.holes = self.holes, []
        for start, end in before:
            if start < position:
                self.holes.append((start, min(end, position)))
            if end > position:
                self.rewritten.append((max(start, position), end))

    def truncate(self, size: int) -> None:
        if size < self.kept:
            self.lost = self.synced[size:]
            self.kept = size
        for ranges in (self.holes, self.rewritten):
            ranges[:] = [(start, min(end, size)) for start, end in ranges if start < size]
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name that a directory gets or loses; a directory's own name has a slash at its end."""

    path: str
    inode: _Inode | None

    @property
    def directory(self) -> str:
        return self.path.rstrip("/").rpartition("/")[0]

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.inode is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.inode

    def below(self, source: str, target: str) -> _Entry:
        """The same change after a directory above it was renamed."""
        return _Entry(target + self.path[len(source) :], self.inode)


@dataclass(frozen=True, slots=True)
class _Rename:
    """A file or a directory, with all that was in it, gets another name."""

    source: str
    target: str
    moved: dict[str, _Inode]

    @property
    def directory(self) -> str:
        return self.source.rpartition("/")[0]

    def apply(self, names: dict[str, _Inode]) -> None:
        for path, inode in self.moved.items():
            if names.get(path) is inode:  # else it has not arrived, or another one has taken its name
                names[self.target + path[len(self.source) :]] = names.pop(path)

    def below(self, source: str, target: str) -> _Rename:
        """The same change after a directory above it was renamed."""
        here, there = (target + path[len(source) :] for path in (self.source, self.target))
        return _Rename(here, there, {target + path[len(source) :]: inode for path, inode in self.moved.items()})


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

    def rewrite(self, position: int) -> None:
        """From now on the bytes behind a position are dirty."""
        self._disk.step(self.path, "rewrite")
        self._inode.rewrite(position)

    def sync(self) -> None:
        """From now on the data lasts."""
        try:
            self._disk.step(self.path, "sync")
        except StorageError:
            self._inode.fail_sync()
            self._disk.note("failed sync")
            raise
        if self._disk.is_lying:
            self._disk.note("sync that stores nothing")
        else:
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
        is_lying: Whether syncs report success and store nothing, as on a device whose volatile cache ignores flushes.
        now_ms: What files say they were modified at.
    """

    def __init__(self, chance: random.Random, *, crash_at_step: int | None = None) -> None:
        self.chance: Final = chance
        self.crash_at_step = crash_at_step
        self.step_count = 0
        self.failing: Callable[[str, str], None] | None = None
        self.capacity_bytes = UNLIMITED
        self.is_cold = False
        self.is_lying = False
        self.now_ms = 0
        self.has_crashed = False
        self._names: dict[str, _Inode] = {}
        """By path; a directory has a slash at its end."""
        self._durable_names: dict[str, _Inode] = {}
        self._pending_names: dict[str, list[_Entry | _Rename]] = {}
        self._locks: dict[str, SimulatedLock] = {}
        self._boot_count = 1

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

    def wipe(self) -> None:
        """Lose everything, as a new disk in the place of the old one; nothing may run on it."""
        for names in (self._names, self._durable_names, self._pending_names):
            names.clear()
        self.kill_process()

    def cut_power(self) -> None:
        """What was not synced is gone, or arrived in part, or as garbage."""
        names = dict(self._durable_names)
        for pending in self._pending_names.values():
            arrived = self.chance.randint(0, len(pending))
            if arrived < len(pending):
                self.note("lost directory entry")
            for change in pending[:arrived]:
                change.apply(names)
        self._pending_names.clear()
        for path in [path for path in names if not _has_directories(path, names)]:
            del names[path]
            self.note("lost directory entry")
        for inode in dict.fromkeys([*self._names.values(), *names.values()]):  # in one order in every run
            inode.data = self._after_power_cut(inode)
            inode.holes.clear()
            inode.sync()
        self._names = names
        self._durable_names = dict(names)
        self._boot_count += 1
        self.kill_process()

    def _after_power_cut(self, inode: _Inode) -> bytearray:
        for start, end in inode.rewritten:
            if self.chance.random() < 0.5:
                inode.holes.append((start, end))
        inode.rewritten.clear()
        if inode.holes:
            self.note("lost page of a failed sync")
        current, synced, common = inode.without_holes(len(inode.data)), inode.synced, inode.kept
        if current == synced:
            return current
        if self.chance.random() < 0.3:
            self.note("lost write")
            return bytearray(synced)
        if len(current) <= common:  # a truncation: it happened or it did not
            return bytearray(current if self.chance.random() < 0.5 else synced)
        self.note("torn write")
        left = bytearray(current[: self.chance.randint(common, len(current))])
        sectors = range(common // SECTOR_BYTES, -(-len(left) // SECTOR_BYTES))
        lost = [sector for sector in sectors if self.chance.random() < 0.25] if self.chance.random() < 0.5 else []
        torn = self.chance.choice(sectors) if sectors and self.chance.random() < 0.5 else None
        for sector in sectors:
            start, end = max(sector * SECTOR_BYTES, common), min((sector + 1) * SECTOR_BYTES, len(left))
            if sector in lost:
                left[start:end] = bytes(end - start)  # allocated, never written
                self.note("lost sector" if sector == sectors[-1] else "lost sector before others")
            elif sector == torn:
                left[start:end] = self.chance.randbytes(end - start)
        return left

    # ---- the port

    def boot_id(self) -> str:
        """How often the machine has started."""
        return f"boot-{self._boot_count}"

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
            self._change_names(_Entry(path, inode))
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
        if not self.is_lying:
            inode.sync()
        inode.modified_ms = self.clock_ms()
        self._change_names(_Entry(path, inode))
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
                self._change_names(_Entry(made + "/", _Inode()))
                if end == _FIRST_LEVEL:
                    self._sync_names("")

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory."""
        self.step(source, "rename")
        moved = {path: inode for path, inode in self._names.items() if path == source or path.startswith(source + "/")}
        if not moved:
            raise StorageError("no such file on the simulated disk", path=source, errno=ENOENT)
        # What is pending inside a directory goes with it; another directory may take its name before it is synced.
        inside = [name for name in self._pending_names if name == source or name.startswith(source + "/")]
        for name in inside:
            changes = [change.below(source, target) for change in self._pending_names.pop(name)]
            self._pending_names.setdefault(target + name[len(source) :], []).extend(changes)
        self._change_names(_Rename(source, target, moved))

    def remove(self, path: str) -> None:
        """Remove a file; fine when there is none."""
        self.check(path, "remove")
        if path in self._names:
            self.step(path, "remove")
            self._change_names(_Entry(path, None))

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it."""
        inside = [name for name in self._names if name.startswith(path + "/")]
        for name in sorted(inside, key=lambda name: (name.endswith("/"), -name.count("/"), name)):
            if name.endswith("/"):
                self._change_names(_Entry(name, None))
            else:
                self.remove(name)

    def sync_directory(self, path: str) -> None:
        """From now on the names in a directory last."""
        self.step(path, "sync_directory")
        self._sync_names(path)

    def _change_names(self, change: _Entry | _Rename) -> None:
        change.apply(self._names)
        directory = change.directory
        above = directory.rpartition("/")[0]
        if any(
            isinstance(other, _Rename) and other.source == directory for other in self._pending_names.get(above, [])
        ):
            directory = above  # under its name the disk still has the directory that was renamed
        self._pending_names.setdefault(directory, []).append(change)

    def _sync_names(self, directory: str) -> None:
        if self.is_lying:
            return
        for change in self._pending_names.pop(directory, []):
            change.apply(self._durable_names)


def _has_directories(path: str, names: dict[str, _Inode]) -> bool:
    """Whether all directories above a path are there; the root is."""
    parts = path.rstrip("/").split("/")
    return all("/".join(parts[:end]) + "/" in names for end in range(2, len(parts)))
