"""The part of the image that holds the finalised levels of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.zk_migration_state_record import ZkMigrationStateRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.protocol.schema import Message


class FeatureLevels:
    """Finalised level by feature, and the state of a migration from ZooKeeper that a cluster had in its past."""

    def __init__(self) -> None:
        self.levels: Final[dict[str, int]] = {}
        self.zk_migration_state = 0

    def copy(self) -> FeatureLevels:
        """Return the same levels; both change by themselves."""
        other = FeatureLevels()
        other.levels.update(self.levels)
        other.zk_migration_state = self.zk_migration_state
        return other

    def change(self, record: FeatureLevelRecord) -> None:
        """Apply a new level; 0 takes the feature away."""
        if record.feature_level:
            self.levels[record.name] = record.feature_level
        else:
            self.levels.pop(record.name, None)

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same levels from nothing; `metadata.version` is the first, as in Kafka."""
        for name, level in sorted(self.levels.items(), key=lambda item: (item[0] != "metadata.version", item[0])):
            yield FeatureLevelRecord(name=name, feature_level=level)
        if self.zk_migration_state:
            yield ZkMigrationStateRecord(zk_migration_state=self.zk_migration_state)
