"""Reading a whole log: the metadata at the start, a coordinator's partition when this node begins to lead it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.log import Isolation, StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import CorruptBatchError, RecordsError, iterate_batches, iterate_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.log import PartitionLog
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica import LeaderReplica
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

READ_BYTES: Final = 1024 * 1024
SLICE_MS: Final = 4
"""How long a replay keeps the event loop busy before other work has its turn."""
RECORDS_PER_CHECK: Final = 32
LOGGED_RECORDS: Final = 10
"""How many unreadable records of a partition have a line in the log each; the rest are counted."""


def read_batches(partition_log: PartitionLog) -> Iterator[BatchView]:
    """All batches of a log, in order, after a look at their CRC.

    Raises:
        CorruptBatchError: One is not what was written.
    """
    offset = partition_log.log_start_offset
    while offset < partition_log.log_end_offset:
        data = partition_log.read(offset, READ_BYTES, isolation=Isolation.LOG_END).to_bytes()
        before = offset
        for batch in iterate_batches(data, whole=False):
            batch.check_crc(path=partition_log.directory)
            yield batch
            offset = batch.header.next_offset
        if offset == before:
            if data:
                raise CorruptBatchError(f"what lies at offset {offset} is no batch", path=partition_log.directory)
            return  # compaction has left nothing before the log end


class Replayed(Protocol):
    """What a coordinator's partition is replayed into."""

    def replay_record(self, record: Record, batch: BatchView) -> None:
        """Apply a record that has a key.

        Raises:
            ProtocolError: The coordinator writes no such records.
        """
        ...

    def replay_marker(self, batch: BatchView) -> None:
        """Apply the end of a transaction."""
        ...


async def replay_coordinator(
    partition: LeaderReplica, target: Replayed, *, threads: Threads, clock: Clock, is_wanted: Callable[[], bool]
) -> bool:
    """Replay a coordinator's partition, up to its present end.

    A thread reads the log, and other work of the event loop has its turn after a few milliseconds.

    A record that is intact and says nothing that the coordinator could have written came from somebody else, or from a
    newer broker. It is skipped and logged; its key keeps the state from before. A damaged batch, or one that recovery
    has set aside, may have been any acknowledged change: then the partition must not be served.

    Args:
        partition: Of the coordinator's topic.
        target: Takes in the records.
        threads: Where the log is read.
        clock: Measures how long the event loop has been busy.
        is_wanted: Whether the replay is still wanted; it ends early when it is not.

    Returns:
        Whether the coordinator may serve this partition.
    """
    skipped = _Skipped(partition)
    partition_log = partition.log
    try:
        for path in partition_log.damaged_paths():
            raise CorruptBatchError("recovery has found damage", path=path)
        slice_start_ms = clock.now_ms()
        offset = partition_log.log_start_offset
        while offset < partition_log.log_end_offset and is_wanted():
            found = partition_log.read(offset, READ_BYTES, isolation=Isolation.LOG_END)
            data = await threads.run(found.to_bytes)
            before = offset
            for batch in iterate_batches(data, whole=False):
                batch.check_crc(path=partition_log.directory)
                for count, _ in enumerate(_replay_batch(batch, target, skipped)):
                    if count % RECORDS_PER_CHECK == 0 and clock.now_ms() - slice_start_ms >= SLICE_MS:
                        await asyncio.sleep(0)
                        slice_start_ms = clock.now_ms()
                offset = batch.header.next_offset
            if offset == before:
                if data:
                    raise CorruptBatchError(f"what lies at offset {offset} is no batch", path=partition_log.directory)
                break  # compaction has left nothing before the log end
    except (CorruptBatchError, StorageError) as error:
        log.error(
            "coordinator_not_loaded",
            partition=partition.name,
            error=str(error),
            advice="the groups or transactional ids of this partition are not served: restore its folder from a copy, "
            "or accept the loss by removing the damaged file or the folder; then restart the broker",
        )
        return False
    if skipped.count > LOGGED_RECORDS:
        log.error("coordinator_records_skipped", partition=partition.name, records=skipped.count)
    return is_wanted()


def _replay_batch(batch: BatchView, target: Replayed, skipped: _Skipped) -> Iterator[None]:
    """Apply one batch, and yield after each record."""
    try:
        if batch.header.is_control:
            target.replay_marker(batch)
            yield
            return
        for record in iterate_records(batch):
            try:
                if record.key is None:
                    raise ProtocolError("a coordinator's record without a key")
                target.replay_record(record, batch)
            except ProtocolError as error:
                skipped.add(record.offset, record.key, error)
            yield
    except RecordsError as error:  # its CRC is right: this was written so
        skipped.add(batch.header.base_offset, None, error)


class _Skipped:
    """Counts the records that cannot be read, and logs the first of them."""

    def __init__(self, partition: LeaderReplica) -> None:
        self._partition: Final = partition
        self.count = 0

    def add(self, offset: int, key: bytes | None, error: Exception) -> None:
        """Note a record that was skipped."""
        self.count += 1
        if self.count <= LOGGED_RECORDS:
            shown = None if key is None else bytes(key[:100]).decode("utf-8", "backslashreplace")
            log.error(
                "coordinator_record_skipped",
                partition=self._partition.name,
                offset=offset,
                key=shown,
                error=str(error),
            )
