"""Brings the markers of transactions to the leaders of their partitions, on this broker and on others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.broker_queues import BrokerQueues

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.protocol.definitions.write_txn_markers_request import WritableTxnMarker
    from hailbus_broker.runtime.coordinator import Spawn
    from hailbus_broker.runtime.markers import MarkerSender
    from hailbus_broker.runtime.peers import Peers

log: Any = get_logger()

MARKERS_PER_REQUEST: Final = 500
TIMEOUT_S: Final = 5.0
"""Of one request. A partition that has the markers already takes them again after it."""
TRANSACTION_V2: Final = 2

_WRITTEN: Final = {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH}
"""With INVALID_PRODUCER_EPOCH the partition has a newer marker of the producer, so it has this one, too."""


@dataclass(frozen=True, slots=True)
class _Item:
    """Markers of one transaction for the partitions that one broker leads."""

    markers: MarkersToWrite
    partitions: Sequence[TopicPartition]
    done: Callable[[list[TopicPartition]], None]


class ClusterMarkers:
    """Writes markers for partitions of this broker, and sends the others to the brokers that lead them.

    A partition fails when its leader is unknown, cannot be reached or refuses. The coordinator sends its markers again
    after a while, and the leader is looked up anew then.

    Args:
        node_id: Of this broker.
        image: Returns the committed metadata.
        local: Writes the markers of partitions that this broker leads.
        endpoint_of: Returns where a broker listens for others; None if that is not known.
        peers: Connections that are used for nothing else.
        spawn: Runs the sending beside the requests.
    """

    def __init__(
        self,
        *,
        node_id: int,
        image: Callable[[], MetadataImage],
        local: MarkerSender,
        endpoint_of: Callable[[int], Endpoint | None],
        peers: Peers,
        spawn: Spawn,
    ) -> None:
        self._node_id: Final = node_id
        self._image: Final = image
        self._local: Final = local
        self._endpoint_of: Final = endpoint_of
        self._peers: Final = peers
        self._queues: Final = BrokerQueues[_Item](self._send_to, spawn, "markers")

    def send(self, markers: MarkersToWrite, done: Callable[[list[TopicPartition]], None]) -> None:
        """See `MarkerSender`."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for topic, index in markers.partitions:
            leader = self._leader(topic, index)
            if leader is not None:  # else it was deleted meanwhile, and the transaction's records with it
                by_leader.setdefault(leader, []).append((topic, index))
        failed = by_leader.pop(NO_LEADER, [])
        if list(by_leader) == [self._node_id] and not failed:
            self._local.send(replace(markers, partitions=tuple(by_leader[self._node_id])), done)
            return
        waiting = len(by_leader) + 1

        def part_done(failed_there: list[TopicPartition]) -> None:
            nonlocal waiting
            failed.extend(failed_there)
            waiting -= 1
            if not waiting:
                done(failed)

        for leader, partitions in sorted(by_leader.items()):
            if leader == self._node_id:
                self._local.send(replace(markers, partitions=tuple(partitions)), part_done)
            else:
                self._queues.put(leader, _Item(markers, partitions, part_done))
        part_done([])

    def _leader(self, topic: str, index: int) -> int | None:
        """Return the leader of a partition, -1 if there is none now; None if there is no such partition."""
        found = self._image().topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index].leader

    async def _send_to(self, broker_id: int, queue: deque[_Item]) -> None:
        from hailbus_broker.protocol.definitions.write_txn_markers_request import WriteTxnMarkersRequest

        items = [queue.popleft() for _ in range(min(len(queue), MARKERS_PER_REQUEST))]
        request = WriteTxnMarkersRequest(markers=[_to_marker(item) for item in items])
        endpoint = self._endpoint_of(broker_id)
        codes: dict[tuple[int, str, int], int] = {}
        error = "its address is not known"
        if endpoint is not None:
            try:
                response = await self._peers.ask(endpoint, ApiKey.WRITE_TXN_MARKERS, request, timeout_s=TIMEOUT_S)
            except UnreachableError as unreachable:
                error = str(unreachable)
            else:
                error = ""
                for marker in response.markers:
                    for topic in marker.topics:
                        for part in topic.partitions:
                            codes[marker.producer_id, topic.name, part.partition_index] = part.error_code
        if error:
            log.warning("markers_not_sent", broker=broker_id, error=error)
        for item in items:
            failed = [
                (topic, index)
                for topic, index in item.partitions
                if codes.get((item.markers.producer_id, topic, index), ErrorCode.UNKNOWN_SERVER_ERROR) not in _WRITTEN
            ]
            try:
                item.done(failed)
            except Exception:  # it must not keep the markers of other transactions
                log.exception("marker_callback_failed", transactional_id=item.markers.transactional_id)


def _to_marker(item: _Item) -> WritableTxnMarker:
    from hailbus_broker.protocol.definitions.write_txn_markers_request import WritableTxnMarker, WritableTxnMarkerTopic

    topics: dict[str, WritableTxnMarkerTopic] = {}
    for topic, index in item.partitions:
        topics.setdefault(topic, WritableTxnMarkerTopic(name=topic)).partition_indexes.append(index)
    markers = item.markers
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.is_commit,
        topics=list(topics.values()),
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=TRANSACTION_V2 if markers.must_be_newer else 0,
    )
