"""A group that changes over from the classic to the consumer protocol and back, request by request (KIP-848)."""

from __future__ import annotations

import struct

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode

from tests.conformance.behaviour import test_classic_groups, test_consumer_groups
from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.wire import Wire
from tests.support import wait_for


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def subscription(topic: str) -> bytes:
    """What a consumer subscribes to: version 1, its topics, no user data, nothing owned."""
    return struct.pack(">hi", 1, 1) + text(topic) + struct.pack(">ii", -1, 0)


def assignment(topic: str, *partitions: int) -> bytes:
    listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 1, 1) + text(topic) + listed + struct.pack(">i", -1)


def assigned(data: bytes) -> list[int]:
    """Partitions of the only topic in an assignment."""
    topics, length = struct.unpack_from(">ih", data, 2)
    if not topics:
        return []
    (count,) = struct.unpack_from(">i", data, 8 + length)
    return sorted(struct.unpack_from(f">{count}i", data, 12 + length))


class Consumer(test_classic_groups.Member):
    """A member of the classic protocol that says what it wants to read."""

    topic = ""

    def ask_to_join(
        self, *, rebalance_ms: int = 10_000, protocols: tuple[str, ...] = ("range",), user_data: str | None = None
    ) -> None:
        assert user_data is None, "a consumer's metadata is its subscription"
        self.wire.ask(
            ApiKey.JOIN_GROUP,
            7,
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[{"name": name, "metadata": subscription(self.topic)} for name in protocols],
        )


def test_a_group_changes_over_and_back_while_its_members_run(
    cluster: Cluster, wire: Wire, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(2)
    old = Consumer(cluster, name)
    old.topic = topic
    new = test_consumer_groups.Member(cluster, name, topic)
    try:
        assert old.join().error_code == 0
        answer = old.sync({old.id: assignment(topic, 0, 1)})
        assert (answer.error_code, assigned(bytes(answer.assignment))) == (0, [0, 1])

        # The first member of the consumer protocol takes the group over, and waits for what the other one has.
        assert new.beat().error_code == 0
        assert new.parts() == []
        assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        answer = old.join()
        assert (answer.error_code, answer.leader, answer.members) == (0, "", [])
        answer = old.sync()
        assert answer.error_code == 0
        (kept,) = assigned(bytes(answer.assignment))
        wait_for("the other partition", lambda: new.beat().error_code == 0 and new.parts() == [1 - kept], 20)
        assert old.beat() == ErrorCode.NONE
        members = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[name]).groups[0].members
        assert {member.member_id: member.member_type for member in members} == {old.id: 0, new.id: 1}

        # The last one of the consumer protocol goes, and the group is classic again.
        new.leave()
        wait_for("the way back", lambda: old.beat() == ErrorCode.REBALANCE_IN_PROGRESS, 20)
        answer = old.join()
        assert (answer.error_code, answer.leader) == (0, old.id)
        assert old.sync({old.id: assignment(topic, 0, 1)}).error_code == 0
        (group,) = wire.call(ApiKey.DESCRIBE_GROUPS, 5, groups=[name]).groups
        assert (group.group_state, [member.member_id for member in group.members]) == ("Stable", [old.id])
    finally:
        old.wire.close()
        new.wire.close()
