"""Features of the cluster (KIP-584): what this code can do, against which the finalised levels are checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.records import METADATA_LEVEL
from hailbus_broker.cluster.raft.voters import KRAFT_VERSION, SUPPORTED_LEVELS
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"
METADATA_VERSION: Final = "metadata.version"
ELR_VERSION: Final = "eligible.leader.replicas.version"

SUPPORTED: Final[dict[str, tuple[int, int]]] = {
    ELR_VERSION: (0, 1),
    GROUP_VERSION: (0, 1),
    # Records are written in the versions of this level alone, so it is the lowest one, too.
    METADATA_VERSION: (METADATA_LEVEL, METADATA_LEVEL),
    TRANSACTION_VERSION: (0, 2),
}
"""Lowest and highest level by name. Each level listed here is fully supported; a new cluster finalises the highest."""

REGISTERED: Final[dict[str, tuple[int, int]]] = {**SUPPORTED, KRAFT_VERSION: SUPPORTED_LEVELS}
"""What a node says of itself: the level of the quorum is not finalised by a record of the image."""


class UpgradeType(IntEnum):
    """What an update of a feature may do to its level."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """One feature's new level; 0 takes the feature away."""

    name: str
    level: int
    upgrade_type: UpgradeType


def check_level(update: FeatureUpdate, supported: tuple[int, int], *, node_id: int) -> None:
    """Whether this code supports a new level.

    Raises:
        ApiError: INVALID_UPDATE_VERSION.
    """
    low, high = supported
    if not low <= update.level <= high:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {update.level} for feature {update.name}. "
            f"Local controller {node_id} only supports versions {low}-{high}",
        )


def check_update(update: FeatureUpdate, finalized: Mapping[str, int], *, node_id: int) -> None:
    """Whether a feature may change its level.

    Raises:
        ApiError: INVALID_UPDATE_VERSION, with the reason.
    """
    before = f"Invalid update version {update.level} for feature {update.name}."
    supported = SUPPORTED.get(update.name)
    if supported is None:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{before} Local controller {node_id} does not support this feature."
        )
    check_level(update, supported, node_id=node_id)
    current = finalized.get(update.name, 0)
    if update.level < current and update.upgrade_type is UpgradeType.UPGRADE:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{before} Can't downgrade the version of this feature without setting the upgrade type to either safe "
            "or unsafe downgrade.",
        )
    if update.level > current and update.upgrade_type is not UpgradeType.UPGRADE:
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"{before} Can't downgrade to a newer version.")
