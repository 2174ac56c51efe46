"""Compaction in the background: one log at a time, the dirtiest first, in a thread that is idle half of the time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.lookups import answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.log import CompactionTask, LogDirectory, PartitionLog, TopicPartition
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

BYTES_PER_KEY: Final = 200
"""What one remembered key costs in Python objects.

`log.cleaner.dedupe.buffer.size` divided by it bounds their number.
"""

BUSY_SHARE: Final = 0.5
"""At most this share of the time is worked: the thread shares the interpreter with the requests."""


SLICE: Final = 200
"""So many logs are looked at in one turn of the loop."""


class Cleaner:
    """Compacts the logs of a data directory.

    Args:
        logs: The directory.
        threads: Where logs are read and written.
        wall_ms: The time, in milliseconds since 1970 UTC.
        dedupe_buffer_bytes: Memory for the keys of one round.
        names: Held while files are renamed, and while the directory of a partition is.
        report: Told when the machine failed.
        max_bytes_per_second: Read and written together; infinity for as fast as it goes.
    """

    def __init__(
        self,
        logs: LogDirectory,
        *,
        threads: Threads,
        wall_ms: Callable[[], int],
        dedupe_buffer_bytes: int,
        names: threading.Lock | None = None,
        report: Callable[[StorageError], None] = lambda _: None,
        max_bytes_per_second: float = float("inf"),
    ) -> None:
        self._logs: Final = logs
        self._threads: Final = threads
        self._wall_ms: Final = wall_ms
        self._max_keys: Final = max(dedupe_buffer_bytes // BYTES_PER_KEY, 1)
        self._names: Final = names or threading.Lock()
        self._report: Final = report
        self._max_bytes_per_second: Final = max_bytes_per_second
        self._uncleanable: Final[set[TopicPartition]] = set()
        self.round_count = 0

    async def run(self, *, backoff_ms: int) -> None:
        """Compact what needs it, then wait a while, until cancelled."""
        while True:
            if not await self.clean_one():
                await asyncio.sleep(backoff_ms / 1000)

    async def clean_one(self) -> bool:
        """Compact the log that needs it most.

        Returns:
            Whether there was one.
        """
        where, task = await self._choose()
        if where is None or task is None:
            return False
        partition_log = self._logs.logs[where]
        try:
            await self._work(task)
            if not self._is_of(where, partition_log, task):
                with suppress(StorageError):  # gone with its topic
                    await self._threads.run(task.discard)
                return False
            swap = asyncio.ensure_future(self._swap(where, partition_log, task))
            try:
                is_swapped = await asyncio.shield(swap)
            except asyncio.CancelledError:
                # The logs are closed next: not in the middle of a swap.
                await swap
                raise
            if not is_swapped:
                return False
        except (StorageError, RecordsError) as error:
            if not self._is_of(where, partition_log, task):
                return True  # the topic or the segments were deleted meanwhile
            if isinstance(error, StorageError) and error.is_out_of_descriptors:
                self._report(error)
                return False
            # As in Apache Kafka: a damaged log is left as it is, and the others are cleaned.
            self._uncleanable.add(where)
            log.error("compaction_failed", partition=str(where), error=str(error))
            if isinstance(error, StorageError):
                self._report(error)
            return True
        self._logs.cleaned_offsets[where] = task.end_offset
        self.round_count += 1
        log.info(
            "log_compacted",
            partition=str(where),
            read_bytes=task.read_bytes,
            written_bytes=task.written_bytes,
            removed_records=task.removed_record_count,
            end_offset=task.end_offset,
        )
        # No progress means that the first dirty batch has more keys than fit: nothing more can be done for this log.
        return task.end_offset > task.first_dirty_offset

    def _is_of(self, where: TopicPartition, partition_log: PartitionLog, task: CompactionTask) -> bool:
        return self._logs.logs.get(where) is partition_log and partition_log.has_sources_of(task)

    async def _swap(self, where: TopicPartition, partition_log: PartitionLog, task: CompactionTask) -> bool:
        """Put the new files in the place of the old ones, in a thread; False when there is no place any more."""
        if not await answer(self._threads, partial(partition_log.begin_swap, task)):
            await self._threads.run(task.discard)
            return False

        def swap_in() -> StorageError | None:
            with self._names:
                if self._logs.logs.get(where) is not partition_log:
                    return None  # another topic may have the name by now
                try:
                    task.swap_in()
                except StorageError as error:
                    return error
                return None

        error = await self._threads.run(swap_in)
        if self._logs.logs.get(where) is not partition_log:
            return False
        partition_log.end_swap(task, error)
        return True

    async def _choose(self) -> tuple[TopicPartition | None, CompactionTask | None]:
        best: tuple[TopicPartition | None, CompactionTask | None] = (None, None)
        best_ratio = -1.0
        for number, (where, partition_log) in enumerate(list(self._logs.logs.items()), 1):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if not partition_log.config.is_compacted or where in self._uncleanable:
                continue
            task = await answer(self._threads, partial(self._start, where, partition_log))
            if self._logs.logs.get(where) is not partition_log:
                continue  # deleted meanwhile
            if task is not None and task.dirty_ratio > best_ratio:
                best, best_ratio = (where, task), task.dirty_ratio
        return best

    def _start(self, where: TopicPartition, partition_log: PartitionLog, reads: Reads) -> CompactionTask | None:
        return partition_log.start_compaction(
            now_ms=self._wall_ms(),
            first_dirty_offset=self._logs.cleaned_offsets.get(where, 0),
            max_keys=self._max_keys,
            reads=reads,
        )

    async def _work(self, task: CompactionTask) -> None:
        """Drive a task, a step at a time, with pauses in between."""
        loop = asyncio.get_running_loop()
        steps = task.steps()
        while True:
            started_s = loop.time()
            done_bytes = await self._threads.run(lambda: next(steps, None))
            if done_bytes is None:
                return
            busy_s = loop.time() - started_s
            wanted_s = max(busy_s / BUSY_SHARE, done_bytes / self._max_bytes_per_second)
            await asyncio.sleep(wanted_s - busy_s)
