"""Reading a whole log, at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.log import Isolation
from hailbus_broker.records import iterate_batches, iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.log import PartitionLog
    from hailbus_broker.records import BatchView, Record

READ_BYTES: Final = 1024 * 1024


def read_batches(log: PartitionLog) -> Iterator[BatchView]:
    """All batches of a log, in order."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, READ_BYTES, isolation=Isolation.LOG_END).to_bytes()
        before = offset
        for batch in iterate_batches(data, whole=False):
            yield batch
            offset = batch.header.next_offset
        if offset == before:
            return


def read_records(log: PartitionLog) -> Iterator[Record]:
    """All records of a log, without markers."""
    for batch in read_batches(log):
        if not batch.header.is_control:
            yield from iterate_records(batch)
