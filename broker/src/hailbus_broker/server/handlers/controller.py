"""What a cluster's controller is asked: elections, reassignments, the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.controller.reassignment import list_reassignments
from hailbus_broker.cluster.features import FeatureUpdate, UpgradeType
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
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
