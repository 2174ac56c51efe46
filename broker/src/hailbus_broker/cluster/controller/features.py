"""Decides about the levels of features, over all brokers and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.features import FeatureUpdate, check_update
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.brokers import FeatureRanges
    from hailbus_broker.protocol.schema import Message


class FeatureDecisions(ControllerState):
    """The part of the controller that finalises levels of features."""

    def update_features(self, updates: Sequence[FeatureUpdate]) -> list[Message]:
        """Decide about new levels of features.

        Raises:
            ApiError: One of them cannot be, and so none is changed.
        """
        names = [update.name for update in updates]
        for update in updates:
            if names.count(update.name) > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"The request names the feature {update.name} twice.")
            check_update(update, self.image.features, node_id=self._node_id)
            self._check_nodes(update)
        return [
            FeatureLevelRecord(name=update.name, feature_level=update.level)
            for update in updates
            if self.image.features.get(update.name, 0) != update.level
        ]

    def _check_nodes(self, update: FeatureUpdate) -> None:
        for broker_id, broker in sorted(self.image.brokers.items()):
            _check_ranges(update, f"Broker {broker_id}", broker.features)
        for controller_id, controller in sorted(self.image.controllers.items()):
            if controller_id != self._node_id:
                _check_ranges(update, f"Controller {controller_id}", controller.features)


def _check_ranges(update: FeatureUpdate, who: str, features: FeatureRanges) -> None:
    low, high = features.get(update.name, (0, 0))
    if low <= update.level <= high:
        return
    supports = f"only supports versions {low}-{high}" if high else "does not support this feature."
    raise ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}. {who} {supports}",
    )
