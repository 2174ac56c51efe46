"""The brokers and partitions of the committed image as clients of one listener see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState
    from hailbus_broker.runtime.node_core import Listener, NodeCore


class Address(NamedTuple):
    """Where clients reach a broker."""

    host: str
    port: int
    rack: str | None


class LiveBrokers:
    """The brokers that are not fenced and have a listener of the same name as the one that the client uses.

    Args:
        core: Of this node.
        listener: That the client uses.
        image: A copy of the committed image; None for itself.

    Attributes:
        addresses: By broker id, ascending.
        is_alone: Whether this broker is the whole cluster, so that every partition is here.
    """

    __slots__ = ("_image", "addresses", "is_alone")

    def __init__(self, core: NodeCore, listener: Listener, image: MetadataImage | None = None) -> None:
        self._image: Final = image or core.image
        registered = self._image.brokers
        self.is_alone = len(registered) == 1 and core.roles.is_standalone
        self.addresses: dict[int, Address] = {}
        for broker_id, broker in sorted(registered.items()):
            if broker.fenced:
                continue
            endpoint = broker.endpoint(listener.name)
            if endpoint is not None:
                self.addresses[broker_id] = Address(endpoint.host, endpoint.port, broker.rack)
            elif broker_id == core.node_id:  # a broker that is alone registers no addresses
                self.addresses[broker_id] = Address(listener.advertised_host, listener.advertised_port, broker.rack)

    def leader(self, state: PartitionState) -> int:
        """Return the leader of a partition, or -1 if clients of this listener cannot reach it."""
        return state.leader if state.leader in self.addresses else NO_LEADER

    def why_no_leader(self, state: PartitionState, *, knows_listeners: bool) -> ErrorCode:
        """Return the error code for a partition whose leader cannot be reached.

        Args:
            state: Of the partition.
            knows_listeners: Whether the client knows LISTENER_NOT_FOUND.
        """
        if knows_listeners and state.leader in self._image.brokers:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def offline_replicas(self, state: PartitionState) -> list[int]:
        """Return the replicas on brokers, or in directories, that are not online."""
        return [
            broker_id
            for broker_id in state.replicas
            if broker_id not in self.addresses
            or not self._image.brokers[broker_id].has_online_directory(state.directory(broker_id))
        ]
