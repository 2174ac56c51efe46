"""Chooses the replica from which a consumer reads (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.cluster.replication.in_sync import InSyncReplicas
    from hailbus_broker.records import Offset

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SELECTORS: Final = (LEADER_SELECTOR, RACK_AWARE_SELECTOR)
"""Values of `replica.selector.class`: a selector of the user's own is Java."""


def preferred_read_replica(
    in_sync: InSyncReplicas, *, rack: str, offset: Offset, rack_of: Callable[[int], str | None]
) -> int | None:
    """Return the follower that a consumer should read from; None if it should read from the leader.

    A follower is eligible if it is in sync, has the consumer's rack, and has everything before the offset. Of several
    the one with the longest log is chosen, and of these the lowest id.

    Args:
        in_sync: The replicas, as the leader sees them.
        rack: Of the consumer.
        offset: From which it fetches.
        rack_of: Returns the rack of a broker that is alive; None for one that is not, or that has none.
    """
    if rack_of(in_sync.node_id) == rack:
        return None
    found = [
        (-progress.end_offset, node_id)
        for node_id, progress in in_sync.followers.items()
        if node_id in in_sync.isr and progress.end_offset >= offset and rack_of(node_id) == rack
    ]
    return min(found)[1] if found else None
