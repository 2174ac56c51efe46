"""Group fsync: one fdatasync per dirty file and round, whatever the number of appends it covers.

The appends of one turn of the loop, and all that come while a sync runs, share the next sync. Files are spread over a
few lanes, each with one sync round at a time, so that a slow file holds up its own lane only.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from hailbus_broker.log import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hailbus_broker.log import PartitionLog, PendingSync
    from hailbus_broker.runtime.threads import Threads

    Rounds: TypeAlias = "list[tuple[SyncedReplica, PendingSync]]"
    Results: TypeAlias = "list[tuple[SyncedReplica, PendingSync, StorageError | None]]"

LANES: Final = 4
SLICE: Final = 100
"""One turn of the loop reports the sync to so many partitions."""
ROUND: Final = 200
"""A round has at most so many partitions: 10 µs each to begin it. The others are synced in the next one."""


class SyncedReplica(Protocol):
    """A replica whose log is synced here."""

    @property
    def lane(self) -> int:
        """In which it is synced."""
        ...

    @property
    def log(self) -> PartitionLog:
        """The log."""
        ...

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def synced(self, pending: PendingSync | None, error: StorageError | None = None) -> None:
        """A sync has ended, in the loop; None says that there was nothing to sync."""
        ...


class GroupSync:
    """Syncs what was marked as dirty, and tells each partition when it is safe.

    Args:
        loop: Where appends happen and results arrive.
        threads: At least one for each lane.
        interval_s: Pause before a round, so that it covers more; 0 is the next turn of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Threads, *, interval_s: float = 0.0) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._threads = threads
        self._dirty: list[dict[int, SyncedReplica]] = [{} for _ in range(LANES)]
        self._is_busy = [False] * LANES
        self._idle_callbacks: list[Callable[[], None]] = []
        self.round_count = 0

    def mark(self, partition: SyncedReplica) -> None:
        """Sync a partition's log in the next round."""
        lane = partition.lane
        self._dirty[lane][id(partition)] = partition
        if not self._is_busy[lane]:
            self._is_busy[lane] = True
            if self._interval_s:
                self._loop.call_later(self._interval_s, self._start, lane)
            else:
                self._loop.call_soon(self._start, lane)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after a while."""
        return self._loop.call_later(delay_s, function)

    def new_future(self) -> asyncio.Future[None]:
        """Something to wait for in the loop."""
        return self._loop.create_future()

    def _start(self, lane: int) -> None:
        dirty = self._dirty[lane]
        rounds: Rounds = []
        # A replica that took the log over from one of this round learns in the next round what the sync has covered.
        covered: list[SyncedReplica] = []
        for key in list(islice(dirty, ROUND)):
            partition = dirty.pop(key)
            pending = partition.log.start_sync()
            if pending is not None:
                rounds.append((partition, pending))
            elif partition.log.is_syncing:
                covered.append(partition)
            else:
                partition.synced(None)
        dirty.update((id(partition), partition) for partition in covered)
        if not rounds:
            if dirty:
                self._loop.call_soon(self._start, lane)
                return
            self._is_busy[lane] = False
            self._tell_idle()
            return
        self.round_count += 1
        self._threads.submit(partial(_run, rounds), partial(self._finish, lane))

    def _finish(self, lane: int, results: Results | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        assert results is not None
        self._account(lane, results, 0)

    def _account(self, lane: int, results: Results, start: int) -> None:
        """Tell the partitions of a round that they are synced, some in each turn of the loop."""
        end = start + SLICE
        for partition, pending, failure in results[start:end]:
            partition.synced(pending, failure)
        if end < len(results):
            self._loop.call_soon(self._account, lane, results, end)
            return
        if self._dirty[lane]:
            self._start(lane)
        else:
            self._is_busy[lane] = False
            self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle_callbacks and not any(self._is_busy):
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            for callback in callbacks:
                callback()

    async def drain(self) -> None:
        """Wait until nothing is dirty."""
        if any(self._is_busy):
            done = self._loop.create_future()
            self._idle_callbacks.append(lambda: None if done.done() else done.set_result(None))
            await done

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def _run(rounds: Rounds) -> Results:
    """Sync the logs of one round; in a thread."""
    results: Results = []
    for partition, pending in rounds:
        try:
            pending.run()
        except StorageError as error:
            results.append((partition, pending, error))
        except Exception as error:  # noqa: BLE001 - a defect: those who wait for this sync must hear of it
            failure = StorageError(f"a sync ended in {error!r}", path=partition.name)
            results.append((partition, pending, failure))
        else:
            results.append((partition, pending, None))
    return results
