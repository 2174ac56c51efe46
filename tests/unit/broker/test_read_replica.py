"""Which follower a consumer is sent to."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.replication.in_sync import InSyncReplicas
from hailbus_broker.cluster.replication.read_replica import preferred_read_replica

RACKS = {1: "north", 2: "south", 3: "south", 4: "south", 5: None}


def in_sync(**end_offsets: int) -> InSyncReplicas:
    """Return the view of leader 1; replicas 2, 3 and 5 are in sync, and 4 is not."""
    found = InSyncReplicas(
        node_id=1,
        leader_epoch=0,
        epoch_start_offset=0,
        replicas=(1, 2, 3, 4, 5),
        isr=(1, 2, 3, 5),
        partition_epoch=0,
        now_ms=0,
        is_eligible=lambda *_: True,
    )
    for name, end_offset in end_offsets.items():
        found.fetched(int(name.removeprefix("broker")), 1, end_offset, 100, 0)
    return found


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [
        ("north", 0, None),  # the leader's own rack
        ("south", 0, 3),  # the longest log of those in sync
        ("south", 50, 3),
        ("south", 51, None),  # nobody in the rack has so much
        ("west", 0, None),
    ],
)
def test_the_follower_of_the_rack_with_the_longest_log_is_chosen(rack: str, offset: int, expected: int | None) -> None:
    replicas = in_sync(broker2=40, broker3=50, broker4=100, broker5=100)
    assert preferred_read_replica(replicas, rack=rack, offset=offset, rack_of=RACKS.get) == expected


def test_of_equal_logs_the_lowest_id_is_chosen() -> None:
    replicas = in_sync(broker3=50, broker2=50)
    assert preferred_read_replica(replicas, rack="south", offset=0, rack_of=RACKS.get) == 2


def test_a_follower_that_has_not_fetched_is_not_chosen() -> None:
    assert preferred_read_replica(in_sync(), rack="south", offset=0, rack_of=RACKS.get) is None
