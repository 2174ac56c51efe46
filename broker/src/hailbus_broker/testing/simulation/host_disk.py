"""The disk of a simulated host: it survives its processes, takes time, and fails when asked to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from errno import EIO
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import StorageError
from hailbus_broker.testing.simulation.disk import SimulatedDisk, SimulatedLock
from hailbus_broker.testing.simulation.errors import SimulatedCrashError
from hailbus_broker.testing.simulation.process import CURRENT_PROCESS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.process import Host

_NAMED_CUTS: Final = {
    ".swap": "compaction swap cut",
    ".cleaned": "compaction cut",
    ".snapshot": "producer snapshot cut",
    ".checkpoint": "metadata snapshot cut",
    "__transaction_state": "transaction state cut",
    "__consumer_offsets": "group state cut",
}
_SLOW_OPERATIONS: Final = frozenset({"sync", "sync_directory", "write_whole"})


@dataclass(slots=True, kw_only=True)
class DiskFault:
    """Operations that fail.

    Attributes:
        operation: Which: append, read, sync, truncate, create, rename, remove, sync_directory, write_whole, open.
        times: How many; those after succeed.
        errno: Why.
        path: Only files whose path contains this.
    """

    operation: str
    times: int = 1
    errno: int = EIO
    path: str = ""


class HostDisk(SimulatedDisk):
    """The disk of one host.

    Processes that are dead cannot reach it any more. A process that writes is killed in the middle of the operation
    when `crash_at_step` comes.

    Args:
        host: Whose disk it is.
        loop: The world's loop.
        rng: Decides what a power cut leaves, and how long operations take.
        note: Counts what a campaign wants to have seen.

    Attributes:
        sync_s: How long a sync takes, at least and at most.
        max_queue_s: How long work may wait before the disk begins with it.
        faults: Operations that shall fail.
        crash_is_power_cut: Whether the crash at `crash_at_step` takes the whole machine.
        crash_on: Crash at a change of a path that contains this; empty for none.
        crash_when: Whether a change of a path by an operation is one to crash at, beside those of `crash_on`.
        crash_on_after: So many of these changes are let through before.
    """

    def __init__(self, host: Host, loop: SimulatedLoop, rng: random.Random, note: Callable[[str], None]) -> None:
        super().__init__(rng)
        self.sync_s = (0.000_2, 0.004)
        self.max_queue_s = 0.0
        self.faults: Final[list[DiskFault]] = []
        self.crash_is_power_cut = True
        self.crash_on = ""
        self.crash_when: Callable[[str, str], bool] = _never
        self.crash_on_after = 0
        self._host: Final = host
        self._loop: Final = loop
        self._note: Final = note
        self._spent_s = 0.0
        host.when_power_lost.append(self.cut_power)

    def clock_ms(self) -> int:
        """See `SimulatedDisk`."""
        return int(self._host.clock.read_s() * 1_000)

    def note(self, what: str) -> None:
        """See `SimulatedDisk`."""
        self._note(what)

    def queue_s(self) -> float:
        """Return how long work waits for the disk before it takes effect: a crash meanwhile leaves it undone.

        Mostly not long, but some of it is overtaken by much that was asked for later.
        """
        return self.chance.random() ** 4 * self.max_queue_s

    def take_spent_s(self) -> float:
        """Return how long the operations in threads took since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def check(self, path: str, operation: str) -> None:
        """See `SimulatedDisk`; the dead reach no disk."""
        self._refuse_dead()
        if self.faults:
            self._fail(path, operation)
        super().check(path, operation)

    @staticmethod
    def _refuse_dead() -> None:
        process = CURRENT_PROCESS.get(None)
        if process is not None and not process.is_alive:
            raise SimulatedCrashError

    def _fail(self, path: str, operation: str) -> None:
        for fault in self.faults:
            if fault.operation == operation and fault.path in path:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                self._loop.record(self._host.name, f"disk fails {operation} {path}")
                self.note(f"failed {operation}")
                raise StorageError(f"the simulated disk fails to {operation}", path=path, errno=fault.errno)

    def step(self, path: str, operation: str, torn: Callable[[], object] | None = None) -> None:
        """See `SimulatedDisk`."""
        self._refuse_dead()
        if operation in _SLOW_OPERATIONS:
            self._spend()
        self._loop.record(self._host.name, f"disk {operation} {path}")
        if (self.crash_on and self.crash_on in path) or self.crash_when(path, operation):
            self.crash_on_after -= 1
            if self.crash_on_after < 0:
                self.crash_at_step = self.step_count
        try:
            super().step(path, operation, torn)
        except SimulatedCrashError:
            self._crash(path, operation)
            raise

    def _spend(self) -> None:
        least_s, most_s = self.sync_s
        spent_s = least_s + (most_s - least_s) * self.chance.random()
        process = CURRENT_PROCESS.get(None)
        if asyncio._get_running_loop() is None:  # noqa: SLF001 - so it is in threads
            self._spent_s += spent_s
        elif process is not None:
            process.block(spent_s)

    def _crash(self, path: str, operation: str) -> None:
        process = CURRENT_PROCESS.get(None)
        self._loop.record(self._host.name, f"crash in {operation} of {path}")
        self.note(f"crash in {operation}")
        for part, name in _NAMED_CUTS.items():
            if part in path:
                self.note(name)
        self.crash_at_step = None
        self.crash_on = ""
        self.crash_when = _never
        if self.crash_is_power_cut:
            self._loop.network.power_off(self._host)
        elif process is not None:
            process.kill()
        self.has_crashed = False

    def disarm(self) -> None:
        """Crash at no change any more."""
        self.crash_at_step, self.crash_on, self.crash_when = None, "", _never

    def lock(self, directory: str) -> SimulatedLock | None:
        """See `SimulatedDisk`; the lock ends with its process."""
        lock = super().lock(directory)
        process = CURRENT_PROCESS.get(None)
        if lock is not None and process is not None:
            process.when_killed.append(lock.release)
        return lock

    def flip_bit(self, suffix: str = "") -> str | None:
        """Turn around one bit of a file that has any, and whose path ends so; its path, None when there is none."""
        paths = [path for path, inode in sorted(self._names.items()) if inode.data and path.endswith(suffix)]
        if not paths:
            return None
        path = self.chance.choice(paths)
        data = self._names[path].data
        position = self.chance.randrange(len(data))
        data[position] ^= 1 << self.chance.randrange(8)
        self._loop.record(self._host.name, f"disk flips a bit of {path} at {position}")
        self.note("flipped bit")
        return path


def _never(path: str, operation: str) -> bool:  # noqa: ARG001 - what `crash_when` is called with
    return False
