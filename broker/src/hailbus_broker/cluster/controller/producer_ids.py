"""Decides about blocks of producer ids (KIP-730)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.protocol.definitions.allocate_producer_ids_response import AllocateProducerIdsResponse
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.allocate_producer_ids_request import AllocateProducerIdsRequest
    from hailbus_broker.protocol.schema import Message

PRODUCER_ID_BLOCK: Final = 1_000
_LAST_ID: Final = 2**63 - 1


class ProducerIdDecisions(ControllerState):
    """The part of the controller that gives producer ids out."""

    def allocate_producer_ids(self) -> tuple[int, list[Message]]:
        """Take the next block for this node: its first id, and the record that makes it ours."""
        return self._next_block(self._node_id, -1)

    def allocate_producer_ids_for(self, request: AllocateProducerIdsRequest) -> Decision[AllocateProducerIdsResponse]:
        """Take the next block for a broker.

        Raises:
            ApiError: STALE_BROKER_EPOCH, or UNKNOWN_SERVER_ERROR when there are no ids left.
        """
        self.check_broker_epoch(request.broker_id, request.broker_epoch)
        first, records = self._next_block(request.broker_id, request.broker_epoch)
        response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK)
        return Decision(records, response)

    def _next_block(self, broker_id: int, broker_epoch: int) -> tuple[int, list[Message]]:
        first = self.image.next_producer_id
        if first > _LAST_ID - PRODUCER_ID_BLOCK:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
            )
        record = ProducerIdsRecord(
            broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
        )
        return first, [record]
