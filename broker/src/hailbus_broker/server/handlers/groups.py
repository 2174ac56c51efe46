"""Consumer groups: both protocols, and DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypedDict

from hailbus_broker.cluster.features import GROUP_VERSION
from hailbus_broker.log import draw_uuid, encode_uuid
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.leave_group_request import MemberIdentity
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.server.handlers.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.coordinators.group.shard import GroupShard
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.protocol.definitions.consumer_group_describe_request import ConsumerGroupDescribeRequest
    from hailbus_broker.protocol.definitions.consumer_group_describe_response import ConsumerGroupDescribeResponse
    from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
    from hailbus_broker.protocol.definitions.delete_groups_request import DeleteGroupsRequest
    from hailbus_broker.protocol.definitions.delete_groups_response import DeleteGroupsResponse
    from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
    from hailbus_broker.protocol.definitions.describe_groups_response import DescribeGroupsResponse
    from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest
    from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest
    from hailbus_broker.protocol.definitions.list_groups_request import ListGroupsRequest
    from hailbus_broker.protocol.definitions.list_groups_response import ListGroupsResponse
    from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


SLICE: Final = 50
"""So many groups are described in one turn of the loop, or one with as many members."""


class Times(TypedDict):
    """The two times of a decision: for deadlines, and for what is recorded."""

    now_ms: int
    wall_ms: int


def _times(dispatcher: Dispatcher) -> Times:
    clock = dispatcher.node.clock
    return {"now_ms": clock.now_ms(), "wall_ms": clock.wall_ms()}


def _run(dispatcher: Dispatcher, request: Request, group_id: str, decide: Callable[[GroupShard], Outcome]) -> None:
    refusal = dispatcher.node.groups.run(group_id, decide)
    if refusal:
        request.respond_error(refusal)


def join_group(dispatcher: Dispatcher, request: Request, message: JoinGroupRequest) -> None:
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


def sync_group(dispatcher: Dispatcher, request: Request, message: SyncGroupRequest) -> None:
    """SyncGroup v0-5."""
    if request.version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    times = _times(dispatcher)
    _run(dispatcher, request, message.group_id, lambda shard: shard.sync(message, request, **times))


def heartbeat(dispatcher: Dispatcher, request: Request, message: HeartbeatRequest) -> None:
    """Heartbeat v0-4.

    While the coordinator loads the group the answer is NONE, as of Apache Kafka: clients expect no other refusal than
    those that make them join again, and the consumer of aiokafka would end.
    """
    from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse

    now_ms = dispatcher.node.clock.now_ms()
    groups = dispatcher.node.groups
    refusal = groups.run(message.group_id, lambda shard: shard.heartbeat(message, request, now_ms=now_ms))
    if refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        request.respond(HeartbeatResponse())
    elif refusal:
        request.respond_error(refusal)


def leave_group(dispatcher: Dispatcher, request: Request, message: LeaveGroupRequest) -> None:
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


def consumer_group_heartbeat(dispatcher: Dispatcher, request: Request, message: ConsumerGroupHeartbeatRequest) -> None:
    """ConsumerGroupHeartbeat v0-1 (KIP-848)."""
    if not dispatcher.node.image.features.get(GROUP_VERSION):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    member_id = message.member_id
    if not member_id and request.version == 0 and message.member_epoch == 0:
        member_id = encode_uuid(draw_uuid(dispatcher.node.rng))
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


async def consumer_group_describe(
    dispatcher: Dispatcher, _: Request, message: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """ConsumerGroupDescribe v0-1."""
    from hailbus_broker.protocol.definitions.consumer_group_describe_response import (
        ConsumerGroupDescribeResponse,
        DescribedGroup,
    )

    response = ConsumerGroupDescribeResponse()
    for group_id in message.group_ids:
        groups = dispatcher.node.groups
        driver = groups.driver(group_id)
        found = None if isinstance(driver, ErrorCode) else driver.shard.describe_consumer(group_id)
        if found is None:
            found = DescribedGroup(
                group_id=group_id,
                error_code=groups.refusal_of(driver) if isinstance(driver, ErrorCode) else ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} is not a consumer group.",
            )
        response.groups.append(found)
        if len(found.members) + len(response.groups) % SLICE >= SLICE - 1:
            await asyncio.sleep(0)
    return response


async def describe_groups(
    dispatcher: Dispatcher, request: Request, message: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """DescribeGroups v0-6."""
    from hailbus_broker.protocol.definitions.describe_groups_response import (
        DescribedGroup,
        DescribeGroupsResponse,
    )

    response = DescribeGroupsResponse()
    for group_id in message.groups:
        groups = dispatcher.node.groups
        driver = groups.driver(group_id)
        found = None if isinstance(driver, ErrorCode) else driver.shard.describe(group_id)
        if found is None:
            found = DescribedGroup(group_id=group_id, group_state="Dead")
            if isinstance(driver, ErrorCode) and not groups.is_empty:
                found.error_code = driver
            elif request.version >= 6:
                found.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                found.error_message = f"Group {group_id} not found."
        response.groups.append(found)
        if len(found.members) + len(response.groups) % SLICE >= SLICE - 1:
            await asyncio.sleep(0)
    return response


async def list_groups(dispatcher: Dispatcher, _: Request, message: ListGroupsRequest) -> ListGroupsResponse:
    """ListGroups v0-5, by state and type."""
    from hailbus_broker.protocol.definitions.list_groups_response import ListGroupsResponse

    if dispatcher.node.groups.is_loading:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    groups = []
    for shard in list(dispatcher.node.groups.shards()):
        groups += shard.list_groups()
        await asyncio.sleep(0)
    return ListGroupsResponse(
        groups=[
            group
            for group in sorted(groups, key=lambda group: group.group_id)
            if (not states or group.group_state.lower() in states) and (not types or group.group_type.lower() in types)
        ]
    )


async def delete_groups(dispatcher: Dispatcher, _: Request, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
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
        if isinstance(driver, ErrorCode):
            result.error_code = dispatcher.node.groups.refusal_of(driver)
            continue
        try:
            result.error_code = driver.run(driver.shard.delete_group(group_id))
        except ApiError as error:
            result.error_code = error.code
        if not result.error_code:
            await driver.committed()
    return DeleteGroupsResponse(results=results)
