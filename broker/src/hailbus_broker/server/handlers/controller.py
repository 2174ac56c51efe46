"""ElectLeaders, reassignments and UpdateFeatures, as the active controller decides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.controller.reassignment import list_reassignments
from hailbus_broker.cluster.features import FeatureUpdate, UpgradeType, check_level
from hailbus_broker.cluster.raft.voters import KRAFT_VERSION, SUPPORTED_LEVELS
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


async def elect_leaders(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """ElectLeaders v0-2, preferred and unclean."""
    core = dispatcher.core
    decision = core.controller.elect_leaders(message, version=request.version)
    await core.write_metadata(decision.records)
    return decision.response


async def alter_partition_reassignments(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """AlterPartitionReassignments v0-1."""
    core = dispatcher.core
    decision = core.controller.alter_reassignments(message)
    await core.write_metadata(decision.records)
    return decision.response


def list_partition_reassignments(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """ListPartitionReassignments v0: those that are committed."""
    return list_reassignments(dispatcher.core.image, message)


async def update_features(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """UpdateFeatures v0-2: all of them or, when one cannot be, none."""
    from hailbus_broker.protocol.definitions.update_features_response import (
        UpdatableFeatureResult,
        UpdateFeaturesResponse,
    )

    core = dispatcher.core
    try:
        updates = [
            FeatureUpdate(
                name=update.feature,
                level=update.max_version_level,
                upgrade_type=_upgrade_type(request.version, update),
            )
            for update in message.feature_updates
        ]
        # The level of the quorum itself is a record of the quorum, not of the image.
        of_quorum = [update for update in updates if update.name == KRAFT_VERSION]
        for update in of_quorum:
            check_level(update, SUPPORTED_LEVELS, node_id=core.node_id)
            core.metadata.quorum.upgrade_kraft_version(update.level, is_only_checked=True)
        records = core.controller.update_features([update for update in updates if update.name != KRAFT_VERSION])
    except ApiError as error:
        return UpdateFeaturesResponse(
            error_code=error.code,
            error_message="The update failed for all features since the following feature had an error: "
            f"{error.message}",
        )
    if not message.validate_only:
        for update in of_quorum:
            core.metadata.upgrade_kraft_version(update.level)
        await core.write_metadata(records)
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
