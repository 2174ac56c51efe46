"""A group that changes over from the classic to the consumer protocol and back, while its members run."""

from __future__ import annotations

import random

import pytest
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.migration import read_assignment, write_assignment
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.coordinators.outcome import Outcome
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse
from hailbus_broker.protocol.definitions.offset_commit_response import OffsetCommitResponse
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import Message

from tests.unit.broker.tokens import Token

GROUP = "surge"
RIDES = b"R" * 16
WALL_AHEAD_MS = 1_700_000_000_000


def subscription(version: int = 1) -> bytes:
    message = ConsumerProtocolSubscription(topics=["rides"])
    return bytes(codec.encode(message, version, bytearray(version.to_bytes(2, "big"))))


class World:
    """A shard with its log, and clients of both protocols that behave as theirs do."""

    def __init__(self, policy: str = "bidirectional") -> None:
        self.image = MetadataImage()
        self.image.replay(TopicRecord(name="rides", topic_id=RIDES))
        for index in range(4):
            self.image.replay(PartitionRecord(partition_id=index, topic_id=RIDES, replicas=[1], isr=[1], leader=1))
        self.now_ms = 1_000
        self.is_refusing = False
        self.config = GroupConfig(initial_rebalance_delay_ms=0, consumer_migration_policy=policy)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[object, Message] = {}
        self.restart()

    def restart(self) -> None:
        self.shard = GroupShard(
            self.config, image=self.image, group_settings=lambda _: (45_000, 5_000), rng=random.Random(7)
        )
        for key, value in self.log:
            self.shard.replay(key, value, now_ms=self.now_ms)

    @property
    def wall_ms(self) -> int:
        return WALL_AHEAD_MS + self.now_ms

    def run(self, outcome: Outcome) -> None:
        if self.is_refusing and outcome.records:
            self.is_refusing = False
            assert outcome.on_refused is None
            return
        outcome.install()
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.log.append((key, value))
            self.shard.replay(key, value, now_ms=self.now_ms)
        for token, message in outcome.replies:
            assert token not in self.answers
            self.answers[token] = message

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for outcome in self.shard.tick(self.now_ms, wall_ms=self.wall_ms):
            self.run(outcome)

    def owners(self) -> list[tuple[str, int]]:
        group = self.shard.consumer_groups[GROUP]
        return sorted(
            (member.member_id, index)
            for member in group.members.values()
            for partitions in (member.assigned, member.pending_revocation)
            for indexes in partitions.values()
            for index in indexes
        )


class Classic:
    """An eager consumer of the classic protocol: it gives everything up before it joins again."""

    def __init__(self, world: World, *, instance: str | None = None) -> None:
        self.world = world
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.partitions: set[int] = set()

    def ask_to_join(self, token: str) -> None:
        self.partitions = set()
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription())],
        )
        self.world.run(
            self.world.shard.join(
                request,
                Token(token),
                client_id="classic",
                client_host="/h",
                requires_known_member=False,
                can_skip_assignment=True,
                now_ms=self.world.now_ms,
                wall_ms=self.world.wall_ms,
            )
        )

    def join(self) -> JoinGroupResponse:
        token = Token.new()
        self.ask_to_join(token)
        answer = self.world.answers.pop(token)
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, assignments: dict[str, bytes] | None = None) -> ErrorCode:
        token = Token.new()
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=key, assignment=data) for key, data in (assignments or {}).items()
            ],
        )
        self.world.run(self.world.shard.sync(request, token, now_ms=self.world.now_ms, wall_ms=self.world.wall_ms))
        answer = self.world.answers.pop(token)
        assert isinstance(answer, SyncGroupResponse)
        if not answer.error_code:
            self.partitions = set(read_assignment(bytes(answer.assignment), self.world.image).get(RIDES, ()))
        return ErrorCode(answer.error_code)

    def beat(self) -> ErrorCode:
        token = Token.new()
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id, group_instance_id=self.instance
        )
        self.world.run(self.world.shard.heartbeat(request, token, now_ms=self.world.now_ms))
        answer = self.world.answers.pop(token)
        assert isinstance(answer, HeartbeatResponse)
        return ErrorCode(answer.error_code)

    def commit(self) -> ErrorCode:
        entry = OffsetToCommit(topic="rides", topic_id=RIDES, partition=0, offset=1, leader_epoch=0, metadata="")
        token = Token.new()
        self.world.run(
            self.world.shard.commit(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                [entry],
                token,
                now_ms=self.world.now_ms,
                wall_ms=self.world.wall_ms,
            )
        )
        answer = self.world.answers.pop(token)
        assert isinstance(answer, OffsetCommitResponse)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def live(self) -> None:
        """One round of what a client does."""
        if self.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            self.sync()

    def leave(self) -> None:
        members = [MemberIdentity(member_id=self.member_id)]
        request = LeaveGroupRequest(group_id=GROUP, members=members)
        times = {"now_ms": self.world.now_ms, "wall_ms": self.world.wall_ms}
        self.world.run(self.world.shard.leave(request, members, Token.new(), **times))


class Consumer:
    """A consumer of the new protocol."""

    def __init__(self, world: World, name: str, *, instance: str | None = None) -> None:
        self.world = world
        self.member_id = name
        self.instance = instance
        self.epoch = 0
        self.partitions: set[int] = set()

    def beat(self, epoch: int | None = None, *, regex: str | None = None) -> ErrorCode:
        token = Token.new()
        is_joining = self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=60_000 if is_joining else -1,
            subscribed_topic_names=["rides"] if is_joining else None,
            subscribed_topic_regex=regex,
            topic_partitions=[TopicPartitions(topic_id=RIDES, partitions=sorted(self.partitions))]
            if self.partitions
            else [],
        )
        self.world.run(
            self.world.shard.consumer_heartbeat(
                request,
                token,
                member_id=self.member_id,
                client_id="new",
                client_host="/h",
                now_ms=self.world.now_ms,
                wall_ms=self.world.wall_ms,
            )
        )
        answer = self.world.answers.pop(token)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if not answer.error_code and epoch is None:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.partitions = {index for entry in answer.assignment.topic_partitions for index in entry.partitions}
        return ErrorCode(answer.error_code)


def stable(world: World, *, instance: str | None = None) -> Classic:
    """A classic group with one member that has everything."""
    member = Classic(world, instance=instance)
    member.join()
    everything = write_assignment({RIDES: frozenset(range(4))}, world.image, like=subscription())
    assert member.sync({member.member_id: everything}) is ErrorCode.NONE
    assert member.partitions == {0, 1, 2, 3}
    return member


def settle(*members: Classic | Consumer) -> None:
    for _ in range(6):
        for member in members:
            if isinstance(member, Classic):
                member.live()
            else:
                assert member.beat() is ErrorCode.NONE


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_changes_over_and_back_while_its_members_run(restarts: bool) -> None:
    world = World()
    old = stable(world)
    new = Consumer(world, "new")
    assert new.beat() is ErrorCode.NONE
    # Nobody takes what the old member still reads.
    assert (old.partitions, new.partitions) == ({0, 1, 2, 3}, set())
    assert GROUP not in world.shard.groups
    if restarts:
        world.restart()
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    settle(old, new)
    assert len(old.partitions) == len(new.partitions) == 2
    assert old.partitions | new.partitions == {0, 1, 2, 3}
    described = world.shard.describe_consumer(GROUP)
    assert described is not None
    assert (described.group_state, [member.member_type for member in described.members]) == ("Stable", [0, 1])
    if restarts:
        world.restart()
        settle(old, new)
    # The last member of the consumer protocol goes: the group is classic again, and its members stay.
    assert new.beat(-1) is ErrorCode.NONE
    assert GROUP not in world.shard.consumer_groups
    group = world.shard.groups[GROUP]
    assert (group.state, group.protocol_type, set(group.members)) == (ClassicState.STABLE, "consumer", {old.member_id})
    if restarts:
        world.restart()
        group = world.shard.groups[GROUP]
        assert group.state is ClassicState.STABLE
        return
    assert old.beat() is ErrorCode.NONE
    world.advance(1)
    group = world.shard.groups[GROUP]
    assert "changed over" in group.rebalances.last_reason
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    joined = old.join()
    assert joined.leader == old.member_id


def test_classic_members_may_join_a_group_that_has_changed_over() -> None:
    world = World()
    first, new = stable(world), Consumer(world, "new")
    new.beat()
    settle(first, new)
    second = Classic(world)
    second.join()
    second.sync()
    settle(first, new, second)
    parts = [first.partitions, new.partitions, second.partitions]
    assert sorted(index for part in parts for index in part) == [0, 1, 2, 3]
    assert sorted(map(len, parts)) == [1, 1, 2]
    second.leave()
    settle(first, new)
    assert first.partitions | new.partitions == {0, 1, 2, 3}


def test_who_waits_in_a_rebalance_begins_it_again() -> None:
    world = World()
    stable(world)
    late = Classic(world)
    late.ask_to_join("waits")
    assert "waits" not in world.answers
    new = Consumer(world, "new")
    assert new.beat() is ErrorCode.NONE
    answer = world.answers["waits"]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_refused_heartbeat_leaves_the_classic_group_as_it_was() -> None:
    world = World()
    old = stable(world)
    late = Classic(world)
    late.ask_to_join("waits")
    new = Consumer(world, "new")
    assert new.beat(regex="(") is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "waits" not in world.answers
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(world.shard.groups) == {GROUP}
    assert world.shard.consumer_groups == {}


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_may_forbid_the_change(policy: str) -> None:
    world = World(policy)
    old, new = stable(world), Consumer(world, "new")
    assert new.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert old.beat() is ErrorCode.NONE


def test_without_a_way_back_the_group_stays_with_the_consumer_protocol() -> None:
    world = World("upgrade")
    old, new = stable(world), Consumer(world, "new")
    new.beat()
    settle(old, new)
    new.beat(-1)
    settle(old)
    assert old.partitions == {0, 1, 2, 3}
    assert list(world.shard.consumer_groups) == [GROUP]


def test_a_static_member_comes_back_with_the_other_protocol_and_nobody_moves() -> None:
    world = World()
    one, two = stable(world, instance="one"), Consumer(world, "two")
    two.beat()
    settle(one, two)
    had = one.partitions
    back = Consumer(world, "one-again", instance="one")
    assert back.beat() is ErrorCode.NONE
    assert (back.partitions, two.partitions) == (had, {0, 1, 2, 3} - had)
    assert one.beat() is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("silent_for_ms", [10_001, 61_000])
def test_a_classic_member_that_does_not_come_is_out(silent_for_ms: int) -> None:
    world = World()
    old, new = stable(world), Consumer(world, "new")
    new.beat()
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(silent_for_ms // 1_000):
        world.advance(1_000)
        new.beat()
        if silent_for_ms > 60_000 and old.member_id in world.shard.consumer_groups[GROUP].members:
            old.beat()  # it lives, and does not rejoin
    world.advance(1_000)
    new.beat()
    assert new.partitions == {0, 1, 2, 3}
    assert old.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_generations_are_checked() -> None:
    world = World()
    old, new = stable(world), Consumer(world, "new")
    new.beat()
    present = old.generation
    for wrong in (present - 1, present + 7):
        old.generation = wrong
        assert old.beat() is ErrorCode.ILLEGAL_GENERATION
        assert old.sync() is ErrorCode.ILLEGAL_GENERATION
        assert old.commit() is ErrorCode.ILLEGAL_GENERATION
    old.generation = present
    assert old.commit() is ErrorCode.NONE
    assert old.sync() is ErrorCode.REBALANCE_IN_PROGRESS
    stranger = Classic(world)
    stranger.member_id, stranger.generation = "nobody", 1
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    stranger.member_id, stranger.generation = new.member_id, new.epoch  # a member, and not of the classic protocol
    assert stranger.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.sync() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_change_that_cannot_be_recorded_has_not_been_one() -> None:
    world = World()
    old = stable(world)
    new = Consumer(world, "new")
    world.is_refusing = True
    with pytest.raises(KeyError):
        new.beat()
    assert GROUP not in world.shard.consumer_groups
    assert old.beat() is ErrorCode.NONE
    assert new.beat() is ErrorCode.NONE
    settle(old, new)
    assert old.partitions | new.partitions == {0, 1, 2, 3}
    # And back: the classic group that could not be recorded is not there.
    world.is_refusing = True
    with pytest.raises(KeyError):
        new.beat(-1)
    assert GROUP not in world.shard.groups
    settle(old, new)
    assert old.partitions | new.partitions == {0, 1, 2, 3}
    assert new.beat(-1) is ErrorCode.NONE
    assert set(world.shard.groups[GROUP].members) == {old.member_id}


def test_a_return_that_is_refused_changes_nothing_of_a_static_member() -> None:
    world = World()
    old, new = stable(world, instance="driver"), Consumer(world, "new")
    new.beat()
    settle(old, new)
    records = len(world.log)
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        group_instance_id="driver",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"no subscription")],
    )
    world.run(
        world.shard.join(
            request,
            Token("return"),
            client_id="classic",
            client_host="/h",
            requires_known_member=False,
            can_skip_assignment=True,
            now_ms=world.now_ms,
            wall_ms=world.wall_ms,
        )
    )
    answer = world.answers["return"]
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(world.log) == records
    settle(old, new)
    assert old.partitions | new.partitions == {0, 1, 2, 3}


def test_members_of_both_protocols_leave_in_one_request() -> None:
    """An administrator removes the last member of the consumer protocol together with one of the classic protocol."""
    world = World()
    stays, new, goes = stable(world), Consumer(world, "new"), Classic(world)
    assert new.beat() is ErrorCode.NONE
    goes.join()
    members = [MemberIdentity(member_id=name) for name in ("new", goes.member_id, goes.member_id)]
    request = LeaveGroupRequest(group_id=GROUP, members=members)
    world.run(world.shard.leave(request, members, Token("leave"), now_ms=world.now_ms, wall_ms=world.wall_ms))
    answer = world.answers["leave"]
    assert isinstance(answer, LeaveGroupResponse)
    codes = [result.error_code for result in answer.members]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert GROUP not in world.shard.consumer_groups
    assert set(world.shard.groups[GROUP].members) == {stays.member_id}


def test_a_static_member_that_gives_its_instance_up_does_not_hold_it_for_ever() -> None:
    world = World()
    Consumer(world, "new").beat()
    old = Classic(world, instance="driver")
    old.join()
    old.instance = None
    old.join()
    old.leave()
    assert "driver" not in world.shard.consumer_groups[GROUP].static_members
    returned = Classic(world, instance="driver")
    returned.join()
    assert set(world.shard.consumer_groups[GROUP].members) == {"new", returned.member_id}
