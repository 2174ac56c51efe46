"""The consumer protocol of KIP-848, heartbeat by heartbeat: the coordinator assigns, members reconcile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode

from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.wire import RETRIED, Wire
from tests.support import wait_for


class Member:
    """A member that tells what it owns and takes what it is given, one heartbeat at a time."""

    def __init__(
        self, cluster: Cluster, group: str, *topics: str, instance: str | None = None, assignor: str | None = None
    ) -> None:
        self.wire = Wire(cluster.bootstrap)
        self.group, self.topics, self.instance, self.assignor = group, list(topics), instance, assignor
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.wire.find_coordinator(group)

    def beat(self, **more: Any) -> Any:
        """Beat once; take over what the answer assigns."""
        joins = self.epoch <= 0
        fields: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rebalance_timeout_ms": 10_000 if joins else -1,
            "subscribed_topic_names": self.topics if joins else None,
            "server_assignor": self.assignor if joins else None,
            "topic_partitions": [{"topic_id": key, "partitions": parts} for key, parts in self.owned.items()],
        }
        while True:
            answer = self.wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **(fields | more))
            if answer.error_code not in RETRIED:
                break
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {part.topic_id: sorted(part.partitions) for part in answer.assignment.topic_partitions}
        return answer

    def leave(self, epoch: int = -1) -> None:
        self.epoch = epoch
        assert self.beat(topic_partitions=[]).error_code == 0
        self.owned = {}

    def parts(self) -> list[int]:
        return sorted(part for parts in self.owned.values() for part in parts)


NewMember = Callable[..., Member]


@pytest.fixture
def new_member(cluster: Cluster, name: str) -> Iterator[NewMember]:
    members: list[Member] = []

    def make(*topics: str, **more: Any) -> Member:
        members.append(Member(cluster, name, *topics, **more))
        return members[-1]

    yield make
    for member in members:
        member.wire.close()


def settle(shares: Callable[[], bool], *members: Member) -> None:
    """Let the members beat in turn until they own what they should, and all are in one epoch."""
    deadline = time.monotonic() + 20
    while True:
        for member in members:
            assert member.beat().error_code == 0
        if shares() and len({member.epoch for member in members}) == 1:
            return
        assert time.monotonic() < deadline, [(member.epoch, member.owned) for member in members]


def share_all(count: int, *members: Member) -> Callable[[], bool]:
    """Whether each partition of a topic has one owner, and the shares differ by one at the most."""

    def check() -> bool:
        sizes = [len(member.parts()) for member in members]
        return (
            sorted(part for member in members for part in member.parts()) == list(range(count))
            and max(sizes) - min(sizes) <= 1
        )

    return check


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_as_they_come_and_go(
    new_member: NewMember, make_topic: MakeTopic, assignor: str
) -> None:
    topic = make_topic(5)
    first = new_member(topic, assignor=assignor)
    settle(share_all(5, first), first)
    second = new_member(topic, assignor=assignor)
    settle(share_all(5, first, second), first, second)
    third = new_member(topic, assignor=assignor)
    settle(share_all(5, first, second, third), first, second, third)
    before = first.epoch
    second.leave()
    settle(share_all(5, first, third), first, third)
    assert first.epoch > before


def test_a_partition_is_given_only_when_it_was_given_up(new_member: NewMember, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    first, second = new_member(topic), new_member(topic)
    settle(share_all(2, first), first)
    owned = first.owned
    second.beat()
    assert second.parts() == []
    # The first is asked to give one up; as long as it says that it owns both, the second gets nothing.
    wait_for("the first is asked to give one up", lambda: first.beat(topic_partitions=None).assignment is not None)
    assert len(first.parts()) == 1
    first_wants, first.owned = first.owned, owned
    first.beat()
    second.beat()
    assert second.parts() == []
    first.owned = first_wants
    settle(share_all(2, first, second), first, second)


def test_a_member_epoch_that_is_not_current_is_fenced(new_member: NewMember, topic: str) -> None:
    first, second = new_member(topic), new_member(topic)
    settle(share_all(1, first, second), first, second)
    epoch = first.epoch
    first.epoch = epoch + 5
    assert first.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    first.epoch = epoch
    first.id = str(uuid.uuid4())
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_with_a_stale_epoch_is_refused(wire: Wire, new_member: NewMember, topic: str, name: str) -> None:
    member = new_member(topic)
    settle(share_all(1, member), member)

    def commit(epoch: int, member_id: str) -> int:
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        answer = wire.call(
            ApiKey.OFFSET_COMMIT,
            9,
            group_id=name,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[{"name": topic, "partitions": [part]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    assert commit(member.epoch, member.id) == 0
    assert commit(member.epoch - 1, member.id) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(member.epoch, "stranger") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_loses_its_partitions(
    new_member: NewMember, make_topic: MakeTopic, wire: Wire, name: str
) -> None:
    topic = make_topic(2)
    change = [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "1500"}]
    answer = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": 32, "resource_name": name, "configs": change}],
    )
    assert answer.responses[0].error_code == 0, answer
    silent, alive = new_member(topic), new_member(topic)
    settle(share_all(2, silent, alive), silent, alive)
    settle(lambda: alive.parts() == [0, 1], alive)
    assert silent.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_to_its_partitions(new_member: NewMember, make_topic: MakeTopic) -> None:
    topic = make_topic(4)
    static, other = new_member(topic, instance="static"), new_member(topic)
    settle(share_all(4, static, other), static, other)
    mine, before = static.parts(), other.epoch
    twin = new_member(topic, instance="static")
    assert twin.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    static.leave(epoch=-2)  # for a while
    other.beat()
    assert len(other.parts()) == 2
    back = new_member(topic, instance="static")
    settle(lambda: back.parts() == mine, back, other)
    assert other.epoch == before


def test_what_makes_no_sense_is_refused(new_member: NewMember, topic: str) -> None:
    member = new_member(topic, assignor="random")
    assert member.beat().error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert new_member(topic).beat(rebalance_timeout_ms=-1).error_code == ErrorCode.INVALID_REQUEST
    assert new_member(topic).beat(member_id="").error_code == ErrorCode.INVALID_REQUEST
    assert new_member(topic).beat(subscribed_topic_names=None).error_code == ErrorCode.INVALID_REQUEST


def test_topics_are_subscribed_by_pattern(new_member: NewMember, make_topic: MakeTopic, name: str) -> None:
    make_topic(2)
    member = new_member()
    member.beat(subscribed_topic_names=[], subscribed_topic_regex=f"{name}-.*")
    settle(share_all(2, member), member)
    for bad in ("(", "(?=ahead).*"):  # RE2 has no look-ahead
        answer = new_member().beat(subscribed_topic_names=[], subscribed_topic_regex=bad)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_matches_the_brokers_own_topics_too(new_member: NewMember, topic: str) -> None:
    member = new_member()
    member.beat(subscribed_topic_names=[], subscribed_topic_regex=f"__consumer_offs.*|{topic}")
    wait_for("it has partitions of both topics", lambda: member.beat().error_code == 0 and len(member.owned) == 2)


def test_an_away_static_member_whose_return_is_refused_is_out_after_its_session(
    wire: Wire, new_member: NewMember, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(2)
    change = [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "1500"}]
    answer = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": 32, "resource_name": name, "configs": change}],
    )
    assert answer.responses[0].error_code == 0, answer
    static, other = new_member(topic, instance="static"), new_member(topic)
    settle(share_all(2, static, other), static, other)
    static.leave(epoch=-2)
    back = new_member(instance="static")
    refused = back.beat(subscribed_topic_names=[], subscribed_topic_regex="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    settle(lambda: other.parts() == [0, 1], other)


def test_a_group_is_described_with_its_assignment(
    wire: Wire, new_member: NewMember, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(2)
    member = new_member(topic)
    settle(share_all(2, member), member)
    group = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[name]).groups[0]
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "uniform")
    assert group.group_epoch == group.assignment_epoch == member.epoch
    (listed,) = group.members
    assert (listed.member_id, listed.subscribed_topic_names, listed.client_id) == (member.id, [topic], "wire")
    (assigned,) = listed.assignment.topic_partitions
    assert (assigned.topic_name, sorted(assigned.partitions)) == (topic, [0, 1])
    missing = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[f"{name}-nobody"]).groups[0]
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    answer = wire.call(ApiKey.LIST_GROUPS, 5, types_filter=["consumer"])
    assert [entry.group_state for entry in answer.groups if entry.group_id == name] == ["Stable"]


def test_the_two_protocols_do_not_mix_in_a_group_with_members(
    wire: Wire, new_member: NewMember, topic: str, name: str
) -> None:
    member = new_member(topic)
    settle(share_all(1, member), member)
    answer = wire.call(
        ApiKey.JOIN_GROUP,
        3,
        group_id=name,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="connect",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
