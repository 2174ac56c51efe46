"""The quorum of the metadata: what its nodes ask each other on a controller's listener, and what others ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.metadata.image import CLUSTER_METADATA_TOPIC
from hailbus_broker.cluster.raft.leader import UNKNOWN, Leader
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.leader import Progress
    from hailbus_broker.protocol.definitions.describe_quorum_response import PartitionData
    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


def receive(dispatcher: Dispatcher, request: Request, message: Any) -> None:
    """Vote v0-2, BeginQuorumEpoch v0-1, EndQuorumEpoch v0-1, Fetch v4-18 and FetchSnapshot v0-1 of the metadata."""
    dispatcher.core.metadata.quorum.receive(message, request.respond)


async def change_voters(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """AddRaftVoter v0-1, RemoveRaftVoter v0 and UpdateRaftVoter v0: the leader answers once the change is committed."""
    core = dispatcher.core
    answered: asyncio.Future[Any] = core.loop.create_future()

    def respond(response: Any) -> None:
        if not answered.done():
            answered.set_result(response)

    core.metadata.quorum.receive(message, respond)
    return await answered


def describe_quorum(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """DescribeQuorum v0-2: the leader knows how far the other replicas are."""
    from hailbus_broker.protocol.definitions.describe_quorum_response import (
        DescribeQuorumResponse,
        Listener,
        Node,
        PartitionData,
        TopicData,
    )

    core = dispatcher.core
    response = DescribeQuorumResponse(error_message=None)
    for topic in message.topics:
        answer = TopicData(topic_name=topic.topic_name)
        response.topics.append(answer)
        for asked in topic.partitions:
            result = PartitionData(partition_index=asked.partition_index, error_message=None)
            answer.partitions.append(result)
            if topic.topic_name != CLUSTER_METADATA_TOPIC or asked.partition_index != 0:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = f"Only {CLUSTER_METADATA_TOPIC}-0 has a quorum."
            else:
                _describe(core, result)
    listeners = [
        Listener(name=listener.name, host=listener.advertised_host, port=listener.advertised_port)
        for listener in core.listeners
    ]
    for voter in core.metadata.quorum.raft.quorum.voters:
        known = [Listener(name=one.listener, host=one.host, port=one.port) for one in voter.endpoints]
        response.nodes.append(Node(node_id=voter.key.node_id, listeners=known or listeners))
    return response


def _describe(core: NodeCore, result: PartitionData) -> None:
    from hailbus_broker.protocol.definitions.describe_quorum_response import ReplicaState

    quorum, clock = core.metadata.quorum, core.clock
    leader = quorum.raft.quorum.role
    result.leader_id = UNKNOWN if quorum.leader_id is None else quorum.leader_id
    result.leader_epoch = quorum.epoch
    if not isinstance(leader, Leader):
        result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return
    result.high_watermark = quorum.high_watermark
    now_ms = clock.now_ms()

    def wall(time_ms: int) -> int:
        return UNKNOWN if time_ms == UNKNOWN else clock.wall_ms() - (now_ms - time_ms)

    def state_of(progress: Progress) -> ReplicaState:
        is_own = progress.key.node_id == core.node_id
        return ReplicaState(
            replica_id=progress.key.node_id,
            replica_directory_id=core.data.directory_id if is_own else progress.key.directory_id or ZERO_UUID,
            log_end_offset=quorum.log.log_end_offset if is_own else progress.end_offset,
            last_fetch_timestamp=wall(now_ms if is_own else progress.last_fetch_ms),
            last_caught_up_timestamp=wall(now_ms if is_own else progress.last_caught_up_ms),
        )

    result.current_voters = [state_of(progress) for progress in leader.voters.values()]
    result.observers = [state_of(progress) for progress in leader.observers.values()]
