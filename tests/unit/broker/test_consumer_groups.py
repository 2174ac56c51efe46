"""The consumer protocol (KIP-848), driven without a loop; members behave as clients do."""

from __future__ import annotations

import random

import pytest
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.coordinators.group.assignors import ASSIGNORS
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.consumer import ConsumerGroup
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.coordinators.outcome import Outcome
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from hailbus_broker.protocol.definitions.offset_commit_response import OffsetCommitResponse
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
from hailbus_broker.protocol.definitions.txn_offset_commit_response import TxnOffsetCommitResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.tokens import Token

GROUP = "surge"
RIDES = b"R" * 16
BIKES = b"B" * 16
WALL_AHEAD_MS = 1_700_000_000_000


def image_with(**partition_counts: int) -> MetadataImage:
    image = MetadataImage()
    for name, count in partition_counts.items():
        topic_id = name[0].upper().encode() * 16
        if topic_id in image.topics_by_id:
            topic_id = topic_id[1:] + b"'"
        image.replay(TopicRecord(name=name, topic_id=topic_id))
        for index in range(count):
            image.replay(PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1))
    return image


class Coordinator:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.now_ms = 1_000
        self.is_refusing = False
        self.records: list[tuple[bytes, bytes | None]] = []
        self.shard = self.make()

    def make(self) -> GroupShard:
        return GroupShard(
            GroupConfig(), image=self.image, group_settings=lambda _: (45_000, 5_000), rng=random.Random(7)
        )

    @property
    def wall_ms(self) -> int:
        return WALL_AHEAD_MS + self.now_ms

    def run(self, outcome: Outcome) -> list[object]:
        """Write and replay the records and return the replies; none if the log refuses the records."""
        if self.is_refusing and outcome.records:
            if outcome.on_refused is not None:
                assert outcome.on_refused(ErrorCode.UNKNOWN_SERVER_ERROR) is None
            return []
        outcome.install()
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.records.append((key, value))
            self.shard.replay(key, value, now_ms=self.now_ms)
        return [message for _, message in outcome.replies]

    def restart(self) -> None:
        self.shard = self.make()
        for key, value in self.records:
            self.shard.replay(key, value, now_ms=self.now_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for outcome in self.shard.tick(self.now_ms, wall_ms=self.wall_ms):
            self.run(outcome)

    def commit(self, offset: int, member_id: str, epoch: int) -> int:
        """OffsetCommit by a member; its error code."""
        entry = OffsetToCommit(topic="rides", topic_id=RIDES, partition=0, offset=offset, leader_epoch=0, metadata="")
        (answer,) = self.run(
            self.shard.commit(
                GROUP, epoch, member_id, None, [entry], Token("token"), now_ms=self.now_ms, wall_ms=self.wall_ms
            )
        )
        assert isinstance(answer, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def commit_in_transaction(self, member_id: str, epoch: int) -> int:
        """The error code of TxnOffsetCommit by a member; what it left is not looked at."""
        entry = OffsetToCommit(topic="rides", topic_id=RIDES, partition=0, offset=0, leader_epoch=0, metadata="")
        request = TxnOffsetCommitRequest(group_id=GROUP, producer_id=9, generation_id=epoch, member_id=member_id)
        outcome = self.shard.commit_in_transaction(
            request, [entry], Token("token"), now_ms=self.now_ms, wall_ms=self.wall_ms
        )
        ((_, answer),) = outcome.replies
        assert isinstance(answer, TxnOffsetCommitResponse)
        assert bool(outcome.records) == (not answer.topics[0].partitions[0].error_code)
        return answer.topics[0].partitions[0].error_code

    def fetch(self, member_id: str | None, epoch: int) -> int:
        """The error code of OffsetFetch by a member."""
        try:
            self.shard.check_fetch(GROUP, member_id, epoch)
        except ApiError as refused:
            return refused.code
        return ErrorCode.NONE

    def committed(self) -> int | None:
        """The group's offset."""
        found = self.shard.committed(GROUP, "rides", 0)
        return None if found is None else found.offset

    def group(self) -> ConsumerGroup:
        return self.shard.consumer_groups[GROUP]


class Member:
    """What a client keeps: its epoch, and the partitions that it has."""

    def __init__(self, coordinator: Coordinator, name: str, **first: object) -> None:
        self.coordinator = coordinator
        self.name = name
        self.first: dict[str, object] = {"subscribed_topic_names": ["rides"], "rebalance_timeout_ms": 60_000} | first
        self.epoch = 0
        self.owned: dict[bytes, set[int]] = {}
        self.told: dict[bytes, set[int]] | None = None
        self.must_say_all = False
        """After a request without an answer: the next one says everything, and is told everything."""

    def beat(self, **changes: object) -> ConsumerGroupHeartbeatResponse:
        owned = [TopicPartitions(topic_id=topic, partitions=sorted(own)) for topic, own in sorted(self.owned.items())]
        values: dict[str, object] = {
            "group_id": GROUP,
            "member_id": self.name,
            "member_epoch": self.epoch,
            "topic_partitions": owned if self.epoch else [],
        }
        if self.epoch == 0 or self.must_say_all:
            values |= self.first
            self.must_say_all = False
        request = ConsumerGroupHeartbeatRequest(**(values | changes))  # type: ignore[arg-type]  # values of many types
        (answer,) = self.coordinator.run(
            self.coordinator.shard.consumer_heartbeat(
                request,
                Token("token"),
                member_id=request.member_id,
                client_id="client",
                client_host="/10.0.0.1",
                now_ms=self.coordinator.now_ms,
                wall_ms=self.coordinator.wall_ms,
            )
        )
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if not answer.error_code and answer.member_epoch >= 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.told = {entry.topic_id: set(entry.partitions) for entry in answer.assignment.topic_partitions}
                self.owned = self.told
        return answer

    def has(self) -> dict[bytes, set[int]]:
        return self.owned


def settle(*members: Member) -> None:
    """Heartbeats until nobody learns anything new."""
    for _ in range(10):
        before = [(member.epoch, dict(member.owned)) for member in members]
        for member in members:
            assert member.beat().error_code == 0
        if before == [(member.epoch, dict(member.owned)) for member in members]:
            return
    raise AssertionError("the group does not settle")


def test_the_only_member_gets_everything_at_once() -> None:
    member = Member(Coordinator(image_with(rides=3)), "a")
    answer = member.beat()
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval_ms) == (0, 1, 5_000)
    assert member.has() == {RIDES: {0, 1, 2}}
    assert member.beat(topic_partitions=None).assignment is None
    assert member.coordinator.group().state() == "Stable"


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize(("members", "shares"), [(1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (4, [0, 1, 1, 1])])
def test_partitions_are_shared_out_evenly(assignor: str, members: int, shares: list[int]) -> None:
    coordinator = Coordinator(image_with(rides=3))
    all_of_them = [Member(coordinator, f"m{number}", server_assignor=assignor) for number in range(members)]
    for member in all_of_them:
        member.beat()
    settle(*all_of_them)
    assert sorted(len(member.has().get(RIDES, ())) for member in all_of_them) == shares
    owned = [partition for member in all_of_them for partition in member.has().get(RIDES, ())]
    assert sorted(owned) == [0, 1, 2]


def test_a_partition_is_given_up_before_another_member_gets_it() -> None:
    coordinator = Coordinator(image_with(rides=2))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    kept = dict(first.has())
    second.beat()
    assert second.has() == {}
    # The first one is asked to give one up; as long as it has not, the second one waits.
    first.beat(topic_partitions=[TopicPartitions(topic_id=RIDES, partitions=sorted(kept[RIDES]))])
    first_told = first.has()
    assert len(first_told[RIDES]) == 1
    second.beat()
    assert second.has() == {}
    first.beat()
    second.beat()
    assert first.has()[RIDES] | second.has()[RIDES] == {0, 1}
    assert not first.has()[RIDES] & second.has()[RIDES]


def test_a_member_that_does_not_give_up_in_time_is_out() -> None:
    coordinator = Coordinator(image_with(rides=2))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    everything = [TopicPartitions(topic_id=RIDES, partitions=[0, 1])]
    second.beat()
    first.beat(topic_partitions=everything)
    for _ in range(7):
        coordinator.advance(10_000)
        if "a" not in coordinator.group().members:
            break
        first.beat(topic_partitions=everything)
        second.beat()
    assert "did not give its partitions up" in coordinator.group().rebalances.last_reason
    settle(second)
    assert second.has() == {RIDES: {0, 1}}


def test_a_silent_member_is_out_and_the_others_take_over() -> None:
    coordinator = Coordinator(image_with(rides=2))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    settle(first, second)
    coordinator.advance(40_000)
    second.beat()
    coordinator.advance(10_000)
    settle(second)
    assert second.has() == {RIDES: {0, 1}}
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_gives_the_partitions_to_the_rest() -> None:
    coordinator = Coordinator(image_with(rides=2))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    settle(first, second)
    assert first.beat(member_epoch=-1).member_epoch == -1
    settle(second)
    assert second.has() == {RIDES: {0, 1}}
    second.beat(member_epoch=-1)
    assert coordinator.group().state() == "Empty"


def test_no_pattern_takes_more_time_than_its_text_is_long() -> None:
    # An engine that goes back and tries again needs 2**60 steps for this.
    coordinator = Coordinator(image_with(**{"r" * 60 + "-": 1, "rrr": 1}))
    member = Member(coordinator, "a", subscribed_topic_names=None, subscribed_topic_regex="(r+)+")
    member.beat()
    assert coordinator.group().regex_topics == {"(r+)+": frozenset({"rrr"})}


def test_new_partitions_and_topics_are_noticed_at_the_next_heartbeat() -> None:
    coordinator = Coordinator(image_with(rides=1))
    member = Member(coordinator, "a", subscribed_topic_names=None, subscribed_topic_regex="(rides|bikes)")
    member.beat()
    assert member.has() == {RIDES: {0}}
    for record in (
        PartitionRecord(partition_id=1, topic_id=RIDES, replicas=[1], isr=[1], leader=1),
        TopicRecord(name="bikes", topic_id=BIKES),
        PartitionRecord(partition_id=0, topic_id=BIKES, replicas=[1], isr=[1], leader=1),
    ):
        coordinator.image.replay(record)
    settle(member)
    assert member.has() == {RIDES: {0, 1}, BIKES: {0}}
    assert "topics" in coordinator.group().rebalances.last_reason


def test_a_static_member_gets_back_what_it_had() -> None:
    coordinator = Coordinator(image_with(rides=4))
    first, second = Member(coordinator, "a", instance_id="car-1"), Member(coordinator, "b")
    first.beat()
    second.beat()
    settle(first, second)
    had, epoch = dict(first.has()), coordinator.group().group_epoch
    assert Member(coordinator, "z", instance_id="car-1").beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert first.beat(member_epoch=-2, instance_id="car-1").error_code == 0
    back = Member(coordinator, "c", instance_id="car-1")
    back.beat()
    assert back.has() == had
    assert coordinator.group().group_epoch == epoch
    assert first.beat(instance_id="car-1").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_restart_keeps_the_group() -> None:
    coordinator = Coordinator(image_with(rides=3))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    settle(first, second)
    before = coordinator.group()
    coordinator.restart()
    after = coordinator.group()
    assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, before.assignment_epoch)
    assert (after.members, after.target) == (before.members, before.target)
    assert first.beat().assignment is None
    coordinator.advance(45_001)
    assert coordinator.group().members == {}


def test_epochs_fence() -> None:
    coordinator = Coordinator(image_with(rides=3))
    member = Member(coordinator, "a")
    member.beat()
    assert member.beat(member_epoch=member.epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    other = Member(coordinator, "b")
    other.beat()
    settle(member, other)
    assert member.epoch == 2
    assert member.beat(member_epoch=1, topic_partitions=None).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    # The answer that raised the epoch may have been lost: the epoch before it is good, with nothing but what it has.
    everything = [TopicPartitions(topic_id=RIDES, partitions=[0, 1, 2])]
    assert member.beat(member_epoch=1, topic_partitions=everything).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert member.beat(member_epoch=1).error_code == 0
    third = Member(coordinator, "c")
    third.beat()
    settle(member, other, third)
    assert member.epoch == 3
    assert member.beat(member_epoch=1, topic_partitions=[]).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert Member(coordinator, "d").beat(member_epoch=3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    coordinator = Coordinator(image_with(rides=3))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    assert second.has() == {}  # it waits for what the first one has
    before, writes = coordinator.group().members["b"], len(coordinator.records)
    assert second.beat().error_code == 0
    assert coordinator.group().members["b"] == before
    assert len(coordinator.records) == writes


@pytest.mark.parametrize(
    ("name", "epoch", "code"),
    [
        ("a", 2, ErrorCode.NONE),
        ("a", 1, ErrorCode.STALE_MEMBER_EPOCH),  # which a heartbeat may still have, and a commit not
        ("a", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", -1, ErrorCode.STALE_MEMBER_EPOCH),
        ("", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("nobody", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_offsets_are_for_members_of_the_present_epoch(name: str, epoch: int, code: ErrorCode) -> None:
    coordinator = Coordinator(image_with(rides=3))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    settle(first, second)
    assert first.epoch == 2
    member = coordinator.group().members["a"]
    assert member.previous_member_epoch == 1
    assert coordinator.commit(5, name, epoch) == code
    assert coordinator.committed() == (None if code else 5)
    assert coordinator.fetch(name, epoch) == code
    # Producers know only the classic protocol's word for it.
    in_transaction = ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else code
    assert coordinator.commit_in_transaction(name, epoch) == in_transaction


def test_offsets_of_a_member_that_has_yet_to_give_up() -> None:
    coordinator = Coordinator(image_with(rides=3))
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.beat()
    second.beat()
    assert coordinator.group().group_epoch == 2
    # The group has gone on; what it reads is still its own, and it commits with its own epoch.
    assert first.epoch == 1
    assert coordinator.commit(5, "a", 1) == ErrorCode.NONE
    assert coordinator.commit(6, "a", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert coordinator.committed() == 5


def test_offsets_without_a_member() -> None:
    coordinator = Coordinator(image_with(rides=3))
    member = Member(coordinator, "a")
    member.beat()
    assert coordinator.commit(5, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch(None, -1) == ErrorCode.NONE  # an administrator looks
    member.beat(member_epoch=-1, topic_partitions=[])
    assert coordinator.commit(5, "a", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(5, "", -1) == ErrorCode.NONE
    assert coordinator.committed() == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(r)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "r" * 1_001}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "((((r{100}){100}){100}){100})"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_heartbeats_that_are_refused(changes: dict[str, object], code: ErrorCode) -> None:
    coordinator = Coordinator(image_with(rides=1))
    assert Member(coordinator, "a").beat(**changes).error_code == code
    assert coordinator.records == []


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_assignors_give_every_partition_to_one_subscribed_member(assignor: str) -> None:
    chance = random.Random(11)
    for _ in range(50):
        topics = [bytes([number]) * 16 for number in range(chance.randint(1, 4))]
        counts = {topic: chance.randint(0, 7) for topic in topics}
        members = {
            f"m{number}": frozenset(chance.sample(topics, chance.randint(1, len(topics))))
            for number in range(chance.randint(1, 5))
        }
        names = {member: member for member in members}
        first = ASSIGNORS[assignor](members, counts, {}, names)
        again = ASSIGNORS[assignor](members, counts, first, names)
        assert first == again, "nothing changed, so nothing may move"
        given = [
            (topic, partition)
            for assignment in first.values()
            for topic, partitions in assignment.items()
            for partition in partitions
        ]
        wanted = {topic for subscribed in members.values() for topic in subscribed}
        assert sorted(given) == sorted((topic, index) for topic in wanted for index in range(counts[topic]))
        for member, assignment in first.items():
            assert set(assignment) <= members[member]


def test_an_away_static_member_whose_return_is_refused_is_out_after_its_session() -> None:
    coordinator = Coordinator(image_with(rides=2))
    Member(coordinator, "a", instance_id="driver").beat()
    assert Member(coordinator, "a").beat(member_epoch=-2, instance_id="driver").error_code == ErrorCode.NONE
    refused = Member(coordinator, "b", instance_id="driver", subscribed_topic_regex="(").beat()
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    coordinator.advance(45_000)
    assert not coordinator.group().members


def test_each_demand_to_give_partitions_up_has_its_own_deadline() -> None:
    coordinator = Coordinator(image_with(rides=4))
    first, second, third = (Member(coordinator, name) for name in "abc")
    first.beat()
    everything = dict(first.owned)
    second.beat()
    first.beat(topic_partitions=[TopicPartitions(topic_id=RIDES, partitions=sorted(everything[RIDES]))])
    assert len(first.owned[RIDES]) == 2
    for _ in range(59):
        coordinator.advance(1_000)
        for member in (second, third):
            member.beat()
        first.beat(topic_partitions=None)
    assert first.beat().error_code == ErrorCode.NONE  # it has given up what it had to
    assert len(first.owned[RIDES]) == 1, "the third one has joined meanwhile: there is more to give up"
    kept = first.owned
    for _ in range(59):
        coordinator.advance(1_000)
        assert first.beat(topic_partitions=None).error_code == ErrorCode.NONE
        for member in (second, third):
            member.beat()
    coordinator.advance(1_000)
    assert first.beat(topic_partitions=None).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert kept


def test_an_empty_group_without_offsets_is_forgotten() -> None:
    coordinator = Coordinator(image_with(rides=1))
    member = Member(coordinator, "a")
    member.beat()
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms))
    assert GROUP in coordinator.shard.consumer_groups
    member.beat(member_epoch=-1)
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms))
    assert GROUP not in coordinator.shard.consumer_groups
    coordinator.restart()
    assert not coordinator.shard.knows(GROUP)


def test_an_empty_group_for_which_a_transaction_may_commit_is_kept() -> None:
    coordinator = Coordinator(image_with(rides=1))
    member = Member(coordinator, "a")
    member.beat()
    entry = OffsetToCommit(topic="rides", topic_id=RIDES, partition=0, offset=5, leader_epoch=0, metadata="")
    request = TxnOffsetCommitRequest(group_id=GROUP, producer_id=9, generation_id=member.epoch, member_id="a")
    outcome = coordinator.shard.commit_in_transaction(
        request, [entry], Token("t"), now_ms=1, wall_ms=coordinator.wall_ms
    )
    for record in outcome.records:
        coordinator.shard.replay(record.encode_key(), record.encode_value(), now_ms=1, producer_id=9)
    member.beat(member_epoch=-1)
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms))
    assert GROUP in coordinator.shard.consumer_groups
    coordinator.shard.replay_end_transaction(9, is_commit=True)
    assert coordinator.committed() == 5


def refuse(coordinator: Coordinator, member: Member, **changes: object) -> None:
    """A heartbeat whose records the log refuses."""
    coordinator.is_refusing = True
    with pytest.raises(ValueError, match="not enough values"):
        member.beat(**changes)
    coordinator.is_refusing = False


def test_a_group_that_cannot_be_recorded_is_not_there() -> None:
    coordinator = Coordinator(image_with(rides=1))
    refuse(coordinator, Member(coordinator, "a"))
    assert not coordinator.shard.knows(GROUP)
    coordinator.advance(100_000)
    member = Member(coordinator, "a")
    assert member.beat().error_code == ErrorCode.NONE
    coordinator.advance(45_000)
    assert not coordinator.group().members, "its session has to end as if nothing had been before"


def test_a_pattern_is_looked_up_again_when_what_it_matched_could_not_be_recorded() -> None:
    coordinator = Coordinator(image_with(rides=1))
    member = Member(coordinator, "a", subscribed_topic_names=[], subscribed_topic_regex=".*s")
    member.beat()
    coordinator.image.replay(TopicRecord(name="bikes", topic_id=BIKES))
    coordinator.image.replay(
        PartitionRecord(partition_id=0, topic_id=BIKES, replicas=[1], isr=[1], leader=1, leader_epoch=0)
    )
    refuse(coordinator, member)
    settle(member)
    assert member.owned == {RIDES: {0}, BIKES: {0}}


def test_a_member_whose_removal_cannot_be_recorded_is_removed_a_second_later() -> None:
    coordinator = Coordinator(image_with(rides=1))
    Member(coordinator, "a").beat()
    coordinator.is_refusing = True
    coordinator.advance(45_000)
    assert coordinator.group().members
    coordinator.is_refusing = False
    coordinator.advance(1_000)
    assert not coordinator.group().members
