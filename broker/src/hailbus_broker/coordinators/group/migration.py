"""Groups that change over between the classic and the consumer protocol while their members run (KIP-848).

A classic group becomes a consumer group when the first member of the consumer protocol joins. Its other members keep
using JoinGroup, SyncGroup and Heartbeat, which are answered from the consumer group's state. The group becomes classic
again when the last member of the consumer protocol leaves. `group.consumer.migration.policy` says which way is allowed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicGroup, Member, Protocols
from hailbus_broker.coordinators.group.consumer import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    held,
    without_empty,
)
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.coordinators.group.assignors import Assignment
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest

CONSUMER_PROTOCOL: Final = "consumer"
_LAST_CLIENT_VERSION: Final = 3
_VERSION_BYTES: Final = 2


class NotConsumerProtocolError(Exception):
    """A member's metadata is not what consumers send."""


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """What a consumer of the classic protocol subscribes to.

    Raises:
        NotConsumerProtocolError: The bytes are something else.
    """
    version = min(int.from_bytes(metadata[:_VERSION_BYTES], "big", signed=True), _LAST_CLIENT_VERSION)
    try:
        return codec.decode(ConsumerProtocolSubscription, metadata, version, position=_VERSION_BYTES)
    except ProtocolError as error:
        raise NotConsumerProtocolError(str(error)) from error


def read_assignment(data: bytes, image: MetadataImage) -> Assignment:
    """What a classic leader has assigned; topics that are gone are left out.

    Raises:
        NotConsumerProtocolError: The bytes are something else.
    """
    if not data:
        return {}
    version = min(int.from_bytes(data[:_VERSION_BYTES], "big", signed=True), _LAST_CLIENT_VERSION)
    try:
        decoded = codec.decode(ConsumerProtocolAssignment, data, version, position=_VERSION_BYTES)
    except ProtocolError as error:
        raise NotConsumerProtocolError(str(error)) from error
    return _by_id(decoded.assigned_partitions, image)


def write_assignment(assignment: Assignment, image: MetadataImage, *, like: bytes) -> bytes:
    """An assignment as a consumer of the classic protocol reads it, in the version of its subscription."""
    version = min(int.from_bytes(like[:_VERSION_BYTES], "big", signed=True), _LAST_CLIENT_VERSION)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=image.topics_by_id[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in sorted(assignment.items())
            if topic_id in image.topics_by_id
        ]
    )
    return bytes(codec.encode(message, version, bytearray(version.to_bytes(_VERSION_BYTES, "big"))))


def _by_id(entries: Iterable[object], image: MetadataImage) -> Assignment:
    found: dict[bytes, frozenset[int]] = {}
    for entry in entries:
        topic = image.topics.get(entry.topic)  # type: ignore[attr-defined]  # of both client messages
        if topic is not None:
            found[topic.topic_id] = frozenset(entry.partitions)  # type: ignore[attr-defined]  # as above
    return without_empty(found)


def from_classic(group: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """The consumer group that a classic one becomes: the same members with the same partitions.

    Raises:
        ApiError: Its members are no consumers.
    """
    epoch = max(group.generation, 1)
    made = ConsumerGroup(
        group_id=group.group_id, group_epoch=epoch, assignment_epoch=epoch, rebalances=group.rebalances
    )
    try:
        if group.protocol_type != CONSUMER_PROTOCOL:
            raise NotConsumerProtocolError(f"they speak {group.protocol_type}")
        for member in group.members.values():
            subscription = read_subscription(member.metadata(group.protocol) or member.protocols.entries[0][1])
            assigned = read_assignment(member.assignment, image)
            made.members[member.member_id] = ConsumerMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscribed_topics=frozenset(subscription.topics),
                member_epoch=epoch,
                previous_member_epoch=epoch,
                assigned=assigned,
                classic_session_timeout_ms=member.session_timeout_ms,
                classic_protocols=member.protocols.entries,
            )
            made.target[member.member_id] = assigned
            if member.group_instance_id is not None:
                made.static_members[member.group_instance_id] = member.member_id
    except NotConsumerProtocolError as error:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group.group_id} cannot change over to the consumer protocol: its members do not consume, {error}.",
        ) from error
    return made


def to_classic(group: ConsumerGroup, members: Iterable[ConsumerMember], image: MetadataImage) -> ClassicGroup:
    """The classic group that a consumer group becomes when all its members are of the classic protocol."""
    made = ClassicGroup(
        group_id=group.group_id,
        protocol_type=CONSUMER_PROTOCOL,
        generation=group.group_epoch,
        rebalances=group.rebalances,
    )
    for member in members:
        assert member.classic_session_timeout_ms is not None
        made.add(
            Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic_session_timeout_ms,
                protocols=Protocols(member.classic_protocols),
                assignment=write_assignment(member.assigned, image, like=member.classic_protocols[0][1]),
            )
        )
    made.protocol = made.select_protocol()
    return made


def classic_update(
    member: ConsumerMember, request: JoinGroupRequest, client_id: str, client_host: str
) -> ConsumerMember:
    """A member as its JoinGroup describes it.

    Raises:
        NotConsumerProtocolError: Its metadata is not a consumer's.
    """
    protocols = tuple((entry.name, bytes(entry.metadata)) for entry in request.protocols)
    subscription = read_subscription(protocols[0][1])
    has_timeout = request.rebalance_timeout_ms >= 0
    return replace(
        member,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
        subscribed_topics=frozenset(subscription.topics),
        subscribed_regex="",
        server_assignor=None,
        classic_session_timeout_ms=request.session_timeout_ms,
        classic_protocols=protocols,
    )


def owned_by(request: JoinGroupRequest, image: MetadataImage) -> Assignment:
    """What a member of the classic protocol says that it still has; one that revokes before it joins says nothing."""
    return _by_id(read_subscription(bytes(request.protocols[0].metadata)).owned_partitions, image)


def has_to_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether there is something new for a member of the classic protocol, which it can only get by joining again."""
    if member.member_epoch < group.group_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    others = [other for other in group.members.values() if other.member_id != member.member_id]
    waits_for = group.target.get(member.member_id, {})
    return not any(
        held(others, topic, indexes - member.assigned.get(topic, frozenset())) for topic, indexes in waits_for.items()
    )
