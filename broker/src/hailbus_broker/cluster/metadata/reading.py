"""From the batches of the metadata log to the records that an image applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.records import decode_record
from hailbus_broker.cluster.metadata.transactions import TransactionReplay
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import BatchView, Offset


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The records of a batch with their offsets; none of a control batch."""

    records: Sequence[tuple[Offset, Message]]
    end_offset: Offset


def decode_batch(batch: BatchView, *, start_offset: Offset) -> DecodedBatch:
    """Decode a batch of the metadata log, but for the records below an offset.

    Raises:
        UnknownRecordError: As `MetadataReader.read`.
        ProtocolError: A value is no metadata record.
    """
    records = []
    if not batch.header.is_control:
        for record in iterate_records(batch):
            if record.offset < start_offset:
                continue
            if record.value is None:
                raise ProtocolError(f"the metadata record at offset {record.offset} has no value")
            records.append((record.offset, decode_record(record.value, offset=record.offset)))
    return DecodedBatch(records, batch.header.next_offset)


class MetadataReader:
    """Reads committed batches in the order of the log. Control records of the quorum are not its concern.

    Args:
        next_offset: Of the first record to read: the end of the snapshot, or 0.

    Attributes:
        next_offset: Everything below it was read.
        transactions: Holds back the records of an open metadata transaction.
    """

    def __init__(self, next_offset: Offset = 0) -> None:
        self.next_offset = next_offset
        self.transactions: Final = TransactionReplay()

    @property
    def snapshot_offset(self) -> Offset:
        """End offset of a snapshot of what was read: an open transaction is not in the image yet."""
        start = self.transactions.start_offset
        return self.next_offset if start is None else start

    def read(self, batches: Iterable[BatchView]) -> list[Message]:
        """Return the records to apply now. Records below `next_offset` are skipped: they were read before.

        Raises:
            UnknownRecordError: A record is of a type or version that this broker does not know. The node must stop.
            ProtocolError: A value is no metadata record, or a transaction has no beginning. The node must stop.
        """
        found: list[Message] = []
        for batch in batches:
            found += self.take_decoded(decode_batch(batch, start_offset=self.next_offset))
        return found

    def take_decoded(self, batch: DecodedBatch) -> list[Message]:
        """Return the records to apply now; see `read`.

        Raises:
            ProtocolError: A transaction has no beginning. The node must stop.
        """
        self.next_offset = max(self.next_offset, batch.end_offset)
        return self.transactions.take(batch.records)

    def take(self, records: Sequence[Message], end_offset: Offset) -> list[Message]:
        """Return the records to apply now, where the next batch is at hand as it was before its encoding.

        Args:
            records: Of the batch; none if it is a control batch.
            end_offset: Of the batch.

        Raises:
            ProtocolError: A transaction has no beginning. The node must stop.
        """
        start_offset = self.next_offset
        self.next_offset = end_offset
        return self.transactions.take(enumerate(records, start_offset))
