"""The part of the image that holds which producer ids were given out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.names import InconsistentRecordError
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.protocol.schema import Message


@dataclass(slots=True)
class ProducerIds:
    """The next block of producer ids begins at `next_id`. The other two say who got the last block."""

    next_id: int = 0
    broker_id: int = -1
    broker_epoch: int = -1

    def copy(self) -> ProducerIds:
        """Return the same; both change by themselves."""
        return ProducerIds(self.next_id, self.broker_id, self.broker_epoch)

    def change(self, record: ProducerIdsRecord) -> None:
        """Apply a new block. An id is never given out twice."""
        if record.next_producer_id < self.next_id:
            raise InconsistentRecordError(
                f"a metadata record gives producer ids below {record.next_producer_id} out, "
                f"and those below {self.next_id} are taken"
            )
        self.next_id = record.next_producer_id
        self.broker_id = record.broker_id
        self.broker_epoch = record.broker_epoch

    def to_records(self) -> Iterator[Message]:
        """Return the record that makes the same from nothing, if any id was given out."""
        if self.next_id:
            yield ProducerIdsRecord(
                broker_id=self.broker_id, broker_epoch=self.broker_epoch, next_producer_id=self.next_id
            )
