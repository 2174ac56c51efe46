"""What the controller finalises, and what follows from a level."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.features import ELR_VERSION, METADATA_VERSION, SUPPORTED, FeatureUpdate, UpgradeType
from hailbus_broker.cluster.metadata.names import ResourceType
from hailbus_broker.cluster.metadata.records import METADATA_LEVEL
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers

MINIMUM = "min.insync.replicas"
BROKER = ResourceType.BROKER


def test_a_log_without_a_metadata_level_gets_one() -> None:
    cluster = Brokers()
    cluster.write([FeatureLevelRecord(name="group.version", feature_level=1)])
    records = cluster.controller.activate(next_offset=cluster.offset, now_ms=0, has_open_transaction=False)
    assert records == [FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_LEVEL)]
    cluster.write(records)
    assert cluster.controller.activate(next_offset=cluster.offset, now_ms=0, has_open_transaction=False) == []


def test_a_single_node_finalises_all_but_the_levels_of_replicas() -> None:
    records = Brokers().controller.register_broker(broker_epoch=1, was_clean=True, incarnation_id=bytes(16))
    levels = [(one.name, one.feature_level) for one in records if isinstance(one, FeatureLevelRecord)]
    assert levels[0] == (METADATA_VERSION, METADATA_LEVEL)
    assert dict(levels) == {name: last for name, (_, last) in SUPPORTED.items() if name != ELR_VERSION}


def test_eligible_replicas_bring_one_minimum_for_all_brokers() -> None:
    cluster = Brokers(1, 2, settings={MINIMUM: "2"})
    cluster.write(cluster.controller.alter_configs(BROKER, "2", {MINIMUM: "1"}))
    update = FeatureUpdate(name=ELR_VERSION, level=1, upgrade_type=UpgradeType.UPGRADE)
    records = cluster.controller.update_features([update])
    assert records == [
        FeatureLevelRecord(name=ELR_VERSION, feature_level=1),
        ConfigRecord(resource_type=BROKER, resource_name="", name=MINIMUM, value="2"),
        ConfigRecord(resource_type=BROKER, resource_name="2", name=MINIMUM, value=None),
    ]
    cluster.write(records)
    assert cluster.controller.update_features([update]) == []
    cluster.write(cluster.controller.alter_configs(BROKER, "", {MINIMUM: "3"}))
    assert cluster.image.configs(BROKER, "") == {MINIMUM: "3"}


@pytest.mark.parametrize(("broker", "value"), [("1", "2"), ("1", None), ("", None)])
def test_the_minimum_stays_the_same_for_all_brokers(broker: str, value: str | None) -> None:
    cluster = Brokers(1, has_elr=True)
    with pytest.raises(ApiError, match="while ELR is enabled") as refused:
        cluster.controller.alter_configs(BROKER, broker, {MINIMUM: value})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
