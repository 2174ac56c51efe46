"""Decides about the levels of features, over all brokers and controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.features import ELR_VERSION, FeatureUpdate, check_update
from hailbus_broker.cluster.metadata.names import ResourceType
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.brokers import FeatureRanges
    from hailbus_broker.protocol.schema import Message

MINIMUM: Final = "min.insync.replicas"


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
        records: list[Message] = []
        for update in updates:
            if self.image.features.get(update.name, 0) != update.level:
                records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
                if update.name == ELR_VERSION and update.level:
                    records += self.minimum_of_elr()
        return records

    def minimum_of_elr(self) -> list[Message]:
        """Return the records that give all brokers one `min.insync.replicas`.

        Who is eligible depends on the minimum, so it must be the same for each controller that decides.
        """
        records: list[Message] = []
        if MINIMUM not in self.image.configs(ResourceType.BROKER, ""):
            records.append(
                ConfigRecord(
                    resource_type=ResourceType.BROKER,
                    resource_name="",
                    name=MINIMUM,
                    value=str(self._config[MINIMUM]),
                )
            )
        records += [
            ConfigRecord(resource_type=ResourceType.BROKER, resource_name=str(broker_id), name=MINIMUM, value=None)
            for broker_id in sorted(self.image.brokers)
            if MINIMUM in self.image.configs(ResourceType.BROKER, str(broker_id))
        ]
        return records

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
