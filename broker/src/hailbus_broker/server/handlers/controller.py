"""What a cluster's controller is asked: elections, reassignments, its quorum, the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.controller.reassignment import list_reassignments
from hailbus_broker.cluster.features import FeatureUpdate, UpgradeType
from hailbus_broker.cluster.metadata.image import CLUSTER_METADATA_TOPIC
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.describe_quorum_response import ReplicaState
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


async def elect_leaders(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """ElectLeaders v0-2, preferred and unclean."""
    node = dispatcher.node
    decision = node.controller.elect_leaders(message, version=request.version)
    await node.write_metadata(decision.records)
    return decision.response


async def alter_partition_reassignments(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """AlterPartitionReassignments v0-1."""
    node = dispatcher.node
    decision = node.controller.alter_reassignments(message)
    await node.write_metadata(decision.records)
    return decision.response


def list_partition_reassignments(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """ListPartitionReassignments v0: those that are committed."""
    return list_reassignments(dispatcher.node.image, message)


def describe_quorum(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """DescribeQuorum v0-2: this node leads `__cluster_metadata` and is its only voter."""
    from hailbus_broker.protocol.definitions.describe_quorum_response import (
        DescribeQuorumResponse,
        Listener,
        PartitionData,
        TopicData,
    )
    from hailbus_broker.protocol.definitions.describe_quorum_response import Node as QuorumNode

    node = dispatcher.node
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
                continue
            result.leader_id = node.node_id
            result.leader_epoch = node.metadata.quorum.epoch
            result.high_watermark = node.metadata.quorum.high_watermark
            result.current_voters = [_own_state(node)]
    response.nodes = [
        QuorumNode(
            node_id=node.node_id,
            listeners=[
                Listener(name=listener.name, host=listener.advertised_host, port=listener.advertised_port)
                for listener in node.listeners
            ],
        )
    ]
    return response


def _own_state(node: Node) -> ReplicaState:
    from hailbus_broker.protocol.definitions.describe_quorum_response import ReplicaState

    now_ms = node.clock.wall_ms()
    return ReplicaState(
        replica_id=node.node_id,
        replica_directory_id=node.data.directory_id,
        log_end_offset=node.metadata.quorum.log.log_end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


async def update_features(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """UpdateFeatures v0-2: all of them or, when one cannot be, none."""
    from hailbus_broker.protocol.definitions.update_features_response import (
        UpdatableFeatureResult,
        UpdateFeaturesResponse,
    )

    node = dispatcher.node
    try:
        records = node.controller.update_features(
            [
                FeatureUpdate(
                    name=update.feature,
                    level=update.max_version_level,
                    upgrade_type=_upgrade_type(request.version, update),
                )
                for update in message.feature_updates
            ]
        )
    except ApiError as error:
        return UpdateFeaturesResponse(
            error_code=error.code,
            error_message="The update failed for all features since the following feature had an error: "
            f"{error.message}",
        )
    if not message.validate_only:
        await node.write_metadata(records)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.feature, error_message=None) for update in message.feature_updates
        ],
    )


def _upgrade_type(version: int, update: Any) -> UpgradeType:
    if version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    try:
        return UpgradeType(update.upgrade_type)
    except ValueError:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{update.feature} has the unknown upgrade type {update.upgrade_type}."
        ) from None
