"""Which replica a client of a campaign reads from, and what it reports of leaders that name the wrong one."""

from __future__ import annotations

from collections import Counter

from hailbus_broker.protocol.definitions.fetch_response import PartitionData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.campaign.read_replicas import LASTS_S, ReadReplicas
from hailbus_broker.testing.campaign.recorder import Recorder

TOPIC = "rides"
RACKS = {1: "north", 2: "south", 3: "south"}


class Reader:
    """A client in the rack south."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        self.recorder = Recorder(lambda what: self.notes.update([what]))
        self.returned: list[tuple[str, int, int]] = []
        self.recorder.when_returned = lambda *returned: self.returned.append(returned)
        self.replicas = ReadReplicas("south", self.recorder)

    def hear(self, named: int, *, records: bytes | None = None, now_s: float = 0.0) -> bool:
        """Take in an answer of the leader."""
        data = PartitionData(partition_index=0, preferred_read_replica=named, records=records)
        return self.replicas.leader_answered(TOPIC, data, RACKS, now_s=now_s)

    def follower(self, now_s: float) -> int | None:
        return self.replicas.follower_of(TOPIC, 0, now_s=now_s)


def test_a_reader_stays_with_the_follower_until_its_time_is_over() -> None:
    reader = Reader()
    assert reader.follower(0.0) is None
    assert reader.hear(2, now_s=0.0)
    assert reader.follower(LASTS_S - 0.1) == 2
    assert reader.follower(LASTS_S) is None
    reader.hear(-1)
    assert reader.returned == [(TOPIC, 0, 2)]
    assert reader.recorder.failures == []


def test_a_reader_that_is_sent_to_the_follower_again_has_not_returned() -> None:
    reader = Reader()
    reader.hear(2)
    reader.replicas.forget(TOPIC, 0)
    reader.hear(2)
    assert reader.returned == []


def test_a_follower_that_lags_is_no_reason_to_reset_the_offset() -> None:
    reader = Reader()
    reader.hear(2)
    ahead = PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert not reader.replicas.follower_answered(TOPIC, ahead)
    assert reader.follower(0.0) is None
    reader.hear(3)
    moved = PartitionData(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert reader.replicas.follower_answered(TOPIC, moved)
    assert reader.follower(0.0) is None


def test_a_broker_that_the_reader_does_not_know_is_not_asked() -> None:
    reader = Reader()
    assert not reader.hear(4)
    assert reader.follower(0.0) is None
    assert reader.recorder.failures == []


def test_a_leader_that_names_the_wrong_follower_is_a_finding() -> None:
    reader = Reader()
    reader.hear(1)
    reader.hear(2, records=b"records")
    assert len(reader.recorder.failures) == 2
