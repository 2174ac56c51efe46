"""What a snapshot says about the quorum, compared with a file that Apache Kafka wrote."""

from __future__ import annotations

import base64
import random
from uuid import UUID

import pytest
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, decode_snapshot, encode_snapshot
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet
from hailbus_broker.records import iterate_batches
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.testing.simulation.disk import SimulatedDisk

APACHE_KAFKA = base64.b64decode(
    "AAAAAAAAAAAAAACaAAAAAAJi0qQpACAAAAACAAABogWh/GcAAAGiBaH8Z///////////////////AAAAAyoAAAAIAAAAAxYAAAAAAaIFofwmAAAe"
    "AAACCAAAAAUKAAAAAQAAggEAAAQIAAAABm4AAAIAAAABAp1u0cVGROynzit4RCn0dQILQ09OVFJPTExFUgoxMjcuMC4wLjFNUQAAAAABAAAAAAAA"
    "AAAAAAADAAAAPwAAAAACd7+BOQAgAAAAAAAAAaIFofyvAAABogWh/K///////////////////wAAAAEaAAAACAAAAAQGAAAAAA=="
)
"""`00000000000000000000-0000000000.checkpoint` of Apache Kafka 4.3.1, by `kafka-storage format --standalone`."""
LAST_TIMESTAMP, HEADER_TIMESTAMP, FOOTER_TIMESTAMP = 1795390831654, 1795390831719, 1795390831791
DIRECTORY = UUID("029d6ed1-c546-44ec-a7ce-2b784429f475").bytes
VOTERS = VoterSet([Voter(ReplicaKey(1, DIRECTORY), (Endpoint("CONTROLLER", "127.0.0.1", 19793),), (0, 1))])


def encoded(now_ms: int) -> list[bytes]:
    """The batches of a snapshot without metadata."""
    quorum = control_records.quorum_state(1, VOTERS)
    data = encode_snapshot([], timestamp=LAST_TIMESTAMP, now_ms=now_ms, quorum=quorum)
    return [bytes(batch.data) for batch in iterate_batches(data)]


def test_a_snapshot_names_level_and_voters_byte_for_byte_as_apache_kafka_does() -> None:
    first, last = (bytes(batch.data) for batch in iterate_batches(APACHE_KAFKA))
    assert encoded(HEADER_TIMESTAMP)[0] == first
    assert encoded(FOOTER_TIMESTAMP)[-1] == last


def test_below_level_1_a_snapshot_says_nothing_about_voters() -> None:
    assert control_records.quorum_state(0, VOTERS) == []


@pytest.mark.parametrize("end_offset", [0, 1, 5000])
def test_a_log_that_begins_at_a_snapshot_knows_its_voters(end_offset: int) -> None:
    disk, snapshot = SimulatedDisk(random.Random(0)), SnapshotId(end_offset, 0)
    snapshots = MetadataSnapshots(disk, "/log")
    assert decode_snapshot(APACHE_KAFKA) == []
    snapshots.write(snapshot, APACHE_KAFKA)
    history = VoterHistory(VoterSet([]))
    history.learn(snapshots.changes(snapshot))
    assert (history.kraft_version, history.current) == (1, VOTERS)
    assert history.at(end_offset) == (1, VOTERS), "the next snapshot says it again"
    history.truncate_to(end_offset)
    assert history.current == VOTERS, "a truncation reaches no further than the beginning of the log"
