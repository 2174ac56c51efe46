"""Reading a whole log, at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.log import Isolation
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import CorruptBatchError, RecordsError, iterate_batches, iterate_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.log import PartitionLog
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.replica import LeaderReplica

log: Any = get_logger()

READ_BYTES: Final = 1024 * 1024
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


def read_records(partition_log: PartitionLog) -> Iterator[Record]:
    """All records of a log, without markers."""
    for batch in read_batches(partition_log):
        if not batch.header.is_control:
            yield from iterate_records(batch)


def replay_coordinator(
    partition: LeaderReplica, take_record: Callable[[Record, BatchView], None], take_marker: Callable[[BatchView], None]
) -> bool:
    """Replay a coordinator's partition.

    A record that is intact and says nothing that the coordinator could have written came from somebody else, or from a
    newer broker. It is skipped and logged; its key keeps the state from before. A damaged batch, or one that recovery
    has set aside, may have been any acknowledged change: then the partition must not be served.

    Args:
        partition: Of the coordinator's topic.
        take_record: Takes in a record with a key; raises ProtocolError for one that cannot be read.
        take_marker: Takes in the end of a transaction.

    Returns:
        Whether the coordinator may serve this partition.
    """
    skipped = 0

    def skip(offset: int, key: bytes | None, error: Exception) -> None:
        nonlocal skipped
        skipped += 1
        if skipped <= LOGGED_RECORDS:
            shown = None if key is None else bytes(key[:100]).decode("utf-8", "backslashreplace")
            log.error(
                "coordinator_record_skipped", partition=partition.name, offset=offset, key=shown, error=str(error)
            )

    try:
        for path in partition.log.damaged_paths():
            raise CorruptBatchError("recovery has found damage", path=path)
        for batch in read_batches(partition.log):
            try:
                if batch.header.is_control:
                    take_marker(batch)
                    continue
                for record in iterate_records(batch):
                    try:
                        if record.key is None:
                            raise ProtocolError("a coordinator's record without a key")
                        take_record(record, batch)
                    except ProtocolError as error:
                        skip(record.offset, record.key, error)
            except RecordsError as error:  # its CRC is right: this was written so
                skip(batch.header.base_offset, None, error)
    except CorruptBatchError as error:
        log.error(
            "coordinator_not_loaded",
            partition=partition.name,
            error=str(error),
            advice="the groups or transactional ids of this partition are not served: restore its folder from a copy, "
            "or accept the loss by removing the damaged file or the folder; then restart the broker",
        )
        return False
    if skipped > LOGGED_RECORDS:
        log.error("coordinator_records_skipped", partition=partition.name, records=skipped)
    return True
