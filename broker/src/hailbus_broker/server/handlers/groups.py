"""The classic group protocol, committed offsets, and what can be seen of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict
from uuid import UUID

from hailbus_broker.cluster.features import GROUP_VERSION
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.log import encode_uuid
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.leave_group_request import MemberIdentity
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hailbus_broker.coordinators.group.shard import GroupShard
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.protocol.definitions.offset_fetch_request import OffsetFetchRequest
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.group_coordinator import GroupDriver
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

UNKNOWN_OFFSET: Final = -1


class Reply:
    """A token for a coordinator: the request, with a last change to the response that its version needs."""

    __slots__ = ("request", "shape")

    def __init__(self, request: Request, shape: Callable[[Any], Any]) -> None:
        self.request = request
        self.shape = shape

    def respond(self, message: Message) -> None:
        """See `Request`."""
        self.request.respond(self.shape(message))

    def respond_error(self, code: ErrorCode) -> None:
        """See `Request`."""
        self.request.respond_error(code)


class Times(TypedDict):
    """The two times of a decision: for deadlines, and for what is recorded."""

    now_ms: int
    wall_ms: int


def _times(dispatcher: Dispatcher) -> Times:
    clock = dispatcher.node.clock
    return {"now_ms": clock.now_ms(), "wall_ms": clock.wall_ms()}


def _run(dispatcher: Dispatcher, request: Request, group_id: str, decide: Callable[[GroupShard], Outcome]) -> None:
    if not dispatcher.node.groups.run(group_id, decide):
        request.respond_error(ErrorCode.NOT_COORDINATOR)


def join_group(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """JoinGroup v0-9."""
    version = request.version

    def shape(response: JoinGroupResponse) -> JoinGroupResponse:
        if version < 7 and response.protocol_name is None:
            response.protocol_name = ""
        return response

    times = _times(dispatcher)
    _run(
        dispatcher,
        request,
        message.group_id,
        lambda shard: shard.join(
            message,
            Reply(request, shape),
            client_id=request.client_id or "",
            client_host=request.client_host,
            requires_known_member=version >= 4,
            can_skip_assignment=version >= 9,
            **times,
        ),
    )


def sync_group(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """SyncGroup v0-5."""
    if request.version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    times = _times(dispatcher)
    _run(dispatcher, request, message.group_id, lambda shard: shard.sync(message, request, **times))


def heartbeat(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """Heartbeat v0-4."""
    now_ms = dispatcher.node.clock.now_ms()
    _run(dispatcher, request, message.group_id, lambda shard: shard.heartbeat(message, request, now_ms=now_ms))


def leave_group(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """LeaveGroup v0-5; before v3 it is one member's and its result the whole answer."""
    is_single = request.version < 3
    members = [MemberIdentity(member_id=message.member_id)] if is_single else message.members

    def shape(response: LeaveGroupResponse) -> LeaveGroupResponse:
        if is_single and response.members:
            response.error_code = response.members[0].error_code
        return response

    times = _times(dispatcher)
    _run(
        dispatcher,
        request,
        message.group_id,
        lambda shard: shard.leave(message, members, Reply(request, shape), **times),
    )


def offset_commit(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """OffsetCommit v2-10; v10 names topics by id."""
    node = dispatcher.node
    uses_ids = request.version >= 10
    entries = []
    for topic in message.topics:
        if uses_ids:
            known = node.image.topics_by_id.get(topic.topic_id)
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            known = node.image.topics.get(topic.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for part in topic.partitions:
            refusal = ErrorCode.NONE
            if known is None:
                refusal = missing
            elif not 0 <= part.partition_index < len(known.partitions):
                refusal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            entries.append(
                OffsetToCommit(
                    topic=topic.name if known is None else known.name,
                    topic_id=topic.topic_id if known is None else known.topic_id,
                    partition=part.partition_index,
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=part.committed_metadata or "",
                    refusal=refusal,
                )
            )
    times = _times(dispatcher)
    _run(
        dispatcher,
        request,
        message.group_id,
        lambda shard: shard.commit(
            message.group_id,
            message.generation_id_or_member_epoch,
            message.member_id,
            message.group_instance_id,
            entries,
            request,
            **times,
        ),
    )


def offset_fetch(dispatcher: Dispatcher, request: Request, message: OffsetFetchRequest) -> None:
    """OffsetFetch v1-10; v8 asks for many groups at once, v10 names topics by id."""
    from hailbus_broker.protocol.definitions.offset_fetch_response import (
        OffsetFetchResponse,
        OffsetFetchResponsePartition,
        OffsetFetchResponseTopic,
    )

    if request.version >= 8:
        _offset_fetch_groups(dispatcher, request, message)
        return
    driver = dispatcher.node.groups.driver(message.group_id)
    if driver is None:
        request.respond_error(ErrorCode.NOT_COORDINATOR)
        return
    shard = driver.shard
    if message.topics is None:
        asked: dict[str, list[int]] = {}
        for topic, partition in sorted(shard.all_committed(message.group_id)):
            asked.setdefault(topic, []).append(partition)
        wanted = list(asked.items())
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in message.topics]
    response = OffsetFetchResponse()
    for name, indexes in wanted:
        answer = OffsetFetchResponseTopic(name=name)
        response.topics.append(answer)
        for index in indexes:
            found = shard.committed(message.group_id, name, index)
            if message.require_stable and shard.is_unstable(message.group_id, name, index):
                answer.partitions.append(
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=UNKNOWN_OFFSET,
                        metadata="",
                        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    )
                )
                continue
            answer.partitions.append(
                OffsetFetchResponsePartition(partition_index=index, committed_offset=UNKNOWN_OFFSET, metadata="")
                if found is None
                else OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=found.offset,
                    committed_leader_epoch=found.leader_epoch,
                    metadata=found.metadata,
                )
            )
    _when_safe([driver], request, response)


def _offset_fetch_groups(dispatcher: Dispatcher, request: Request, message: OffsetFetchRequest) -> None:
    from hailbus_broker.protocol.definitions.offset_fetch_response import (
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartitions,
        OffsetFetchResponseTopics,
    )

    node = dispatcher.node
    uses_ids = request.version >= 10
    response = OffsetFetchResponse()
    drivers = []
    for group in message.groups:
        answer = OffsetFetchResponseGroup(group_id=group.group_id)
        response.groups.append(answer)
        driver = node.groups.driver(group.group_id)
        if driver is None:
            answer.error_code = ErrorCode.NOT_COORDINATOR
            continue
        drivers.append(driver)
        shard = driver.shard
        try:
            shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
        except ApiError as error:
            answer.error_code = error.code
            continue
        wanted: list[tuple[str, bytes, list[int]]]
        if group.topics is None:
            asked: dict[str, list[int]] = {}
            for topic, partition in sorted(shard.all_committed(group.group_id)):
                asked.setdefault(topic, []).append(partition)
            wanted = [
                (name, node.image.topics[name].topic_id if name in node.image.topics else ZERO_UUID, indexes)
                for name, indexes in asked.items()
                if not uses_ids or name in node.image.topics
            ]
        else:
            wanted = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in group.topics]
        for name, topic_id, indexes in wanted:
            part = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
            answer.topics.append(part)
            code = ErrorCode.NONE
            if uses_ids:
                known = node.image.topics_by_id.get(topic_id)
                if known is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    name = known.name  # noqa: PLW2901 - the name that the id stands for
            for index in indexes:
                found = None if code else shard.committed(group.group_id, name, index)
                own_code = code
                if not code and message.require_stable and shard.is_unstable(group.group_id, name, index):
                    found, own_code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
                part.partitions.append(
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=UNKNOWN_OFFSET, metadata="", error_code=own_code
                    )
                    if found is None
                    else OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                    )
                )
    _when_safe(drivers, request, response)


def _when_safe(drivers: Iterable[GroupDriver], request: Request, response: Message) -> None:
    """Answer once the state that was read is durable: it may have been written a moment ago."""
    waiting = {id(driver): driver for driver in drivers}
    left = len(waiting) + 1
    failure: Exception | None = None

    def committed(error: Exception | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if left:
            return
        if failure is None:
            request.respond(response)
        else:
            request.respond_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    for driver in waiting.values():
        driver.partition.when_committed(driver.end_offset, committed)
    committed(None)


def consumer_group_heartbeat(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """ConsumerGroupHeartbeat v0-1 (KIP-848)."""
    if not dispatcher.node.image.features.get(GROUP_VERSION):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    member_id = message.member_id
    if not member_id and request.version == 0 and message.member_epoch == 0:
        member_id = encode_uuid(UUID(bytes=dispatcher.node.chance.randbytes(16), version=4))
    times = _times(dispatcher)
    _run(
        dispatcher,
        request,
        message.group_id,
        lambda shard: shard.consumer_heartbeat(
            message,
            request,
            member_id=member_id,
            client_id=request.client_id or "",
            client_host=request.client_host,
            **times,
        ),
    )


def consumer_group_describe(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """ConsumerGroupDescribe v0-1."""
    from hailbus_broker.protocol.definitions.consumer_group_describe_response import (
        ConsumerGroupDescribeResponse,
        DescribedGroup,
    )

    response = ConsumerGroupDescribeResponse()
    for group_id in message.group_ids:
        groups = dispatcher.node.groups
        driver = groups.driver(group_id)
        found = None if driver is None else driver.shard.describe_consumer(group_id)
        if found is None:
            found = DescribedGroup(
                group_id=group_id,
                error_code=groups.missing_code if driver is None else ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} is not a consumer group.",
            )
        response.groups.append(found)
    return response


def describe_groups(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """DescribeGroups v0-6."""
    from hailbus_broker.protocol.definitions.describe_groups_response import (
        DescribedGroup,
        DescribeGroupsResponse,
    )

    response = DescribeGroupsResponse()
    for group_id in message.groups:
        groups = dispatcher.node.groups
        driver = groups.driver(group_id)
        found = None if driver is None else driver.shard.describe(group_id)
        if found is None:
            found = DescribedGroup(group_id=group_id, group_state="Dead")
            if driver is None and groups.missing_code is ErrorCode.NOT_COORDINATOR:
                found.error_code = ErrorCode.NOT_COORDINATOR
            elif request.version >= 6:
                found.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                found.error_message = f"Group {group_id} not found."
        response.groups.append(found)
    return response


def list_groups(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """ListGroups v0-5, by state and type."""
    from hailbus_broker.protocol.definitions.list_groups_response import ListGroupsResponse

    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    groups = [group for shard in dispatcher.node.groups.shards() for group in shard.list_groups()]
    return ListGroupsResponse(
        groups=[
            group
            for group in sorted(groups, key=lambda group: group.group_id)
            if (not states or group.group_state.lower() in states) and (not types or group.group_type.lower() in types)
        ]
    )


async def delete_groups(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """DeleteGroups v0-2: groups without members, with their offsets."""
    from hailbus_broker.protocol.definitions.delete_groups_response import (
        DeletableGroupResult,
        DeleteGroupsResponse,
    )

    results = []
    for group_id in message.groups_names:
        result = DeletableGroupResult(group_id=group_id)
        results.append(result)
        driver = dispatcher.node.groups.driver(group_id)
        if driver is None:
            result.error_code = dispatcher.node.groups.missing_code
            continue
        try:
            result.error_code = driver.run(driver.shard.delete_group(group_id))
        except ApiError as error:
            result.error_code = error.code
        if not result.error_code:
            await driver.safe()
    return DeleteGroupsResponse(results=results)


async def offset_delete(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """OffsetDelete v0: offsets of topics that no member is subscribed to."""
    from hailbus_broker.protocol.definitions.offset_delete_response import (
        OffsetDeleteResponse,
        OffsetDeleteResponsePartition,
        OffsetDeleteResponseTopic,
    )

    node = dispatcher.node
    driver = node.groups.driver(message.group_id)
    if driver is None:
        return OffsetDeleteResponse(error_code=node.groups.missing_code)
    if not driver.shard.knows(message.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    subscribed = driver.shard.subscribed_topics(message.group_id)
    if subscribed is None:
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
    response = OffsetDeleteResponse()
    chosen = []
    for topic in message.topics:
        answer = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            code = ErrorCode.NONE
            if topic.name in subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif not node.replicas.has(topic.name, part.partition_index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                chosen.append((topic.name, part.partition_index))
            answer.partitions.append(
                OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=code)
            )
    refused = driver.run(driver.shard.delete_offsets(message.group_id, chosen))
    if refused:
        return OffsetDeleteResponse(error_code=refused)
    await driver.safe()
    return response
