"""The ports of a broker that runs as a simulated process."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.runtime.descriptors import Descriptors
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.threads import wait_for_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hailbus_broker.testing.simulation.host_disk import HostDisk
    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.process import SimulatedProcess

S = TypeVar("S")
T = TypeVar("T")

_DESCRIPTOR_LIMIT: Final = 4_096


class ProcessClock:
    """The clocks of a simulated process; see `runtime.clock.Clock`."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process: Final = process
        self._offset_ms: Final = process.wall_ns() // 1_000_000 - int(process.monotonic_s() * 1_000)

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._process.wall_ns() // 1_000_000

    def now_ms(self) -> int:
        """See `Clock`."""
        return int(self._process.monotonic_s() * 1_000) + self._offset_ms


class ProcessThreads:
    """A pool of simulated threads: each piece of work runs as a whole, later, and takes as long as its disk.

    Args:
        loop: The world's loop.
        disk: Says how long the work took.
        count: At most so many pieces of work at a time.
        name: Ignored.
    """

    def __init__(self, loop: SimulatedLoop, disk: HostDisk, count: int, name: str) -> None:
        self._loop: Final = loop
        self._disk: Final = disk
        self._count: Final = count
        self._busy_count = 0
        self._queue: Final[deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]]] = deque()
        del name

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """See `Threads`."""
        self._queue.append((work, done))
        self._start()

    def _start(self) -> None:
        while self._queue and self._busy_count < self._count:
            self._busy_count += 1
            work, done = self._queue.popleft()
            self._loop.run_in_thread(
                partial(self._work, work),
                partial(self._finish, done),
                delay_s=self._loop.thread_delay_s() + self._disk.queue_s(),
                duration_s=self._disk.take_spent_s,
            )

    def _work(self, work: Callable[[], T]) -> T:
        self._disk.take_spent_s()  # by other threads, which nobody has asked for
        return work()

    def _finish(self, done: Callable[[Any, BaseException | None], object], result: Any, error: Any) -> None:
        self._busy_count -= 1
        self._start()
        done(result, error)

    async def run(self, work: Callable[[], T]) -> T:
        """See `Threads`."""
        return await wait_for_work(self, work)

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """See `Threads`."""
        return map(function, items)

    def close(self) -> None:
        """There is nothing to end."""


def machine_of(process: SimulatedProcess, disk: HostDisk, loop: SimulatedLoop) -> Machine:
    """Return the ports of a broker that runs as a process."""
    return Machine(
        clock=ProcessClock(process),
        disk=disk,
        random=process.rng,
        descriptors=Descriptors(_DESCRIPTOR_LIMIT, lambda: len(process.transports)),
        start_threads=partial(ProcessThreads, loop, disk),
        can_send_files=False,
    )
