"""The group coordinator: the shards of `__consumer_offsets` that this node serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, ResourceType
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import NO_PRODUCER_ID, ControlType, read_control_type
from hailbus_broker.runtime.coordinator import Coordinator
from hailbus_broker.runtime.replay import SLICE_MS
from hailbus_broker.runtime.shard_driver import DriverState, ShardDriver

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.coordinator import CoordinatorPorts
    from hailbus_broker.runtime.replica import LeaderReplica

log: Any = get_logger()


class GroupDriver(ShardDriver[GroupShard]):
    """One group shard."""

    def __init__(self, partition: LeaderReplica, shard: GroupShard, *, clock: Clock) -> None:
        super().__init__(partition, shard, clock=clock)
        self._load_started_ms: Final = self.now_ms()
        self._deleted_topics: Final[list[str]] = []
        partition.on_marker = self._marker_appended

    def now_ms(self) -> int:
        """Sessions must not depend on what people do to the clock."""
        return self.clock.now_ms()

    def tick(self) -> Iterator[Outcome]:
        """See `ShardDriver`."""
        return self.shard.tick(self.now_ms(), wall_ms=self.clock.wall_ms())

    def replay_record(self, record: Record, batch: BatchView) -> None:
        """See `Replayed`."""
        assert record.key is not None
        producer_id = batch.header.producer_id if batch.header.is_transactional else NO_PRODUCER_ID
        self.shard.replay(record.key, record.value, now_ms=self._load_started_ms, producer_id=producer_id)

    def replay_marker(self, batch: BatchView) -> None:
        """See `Replayed`."""
        is_commit = read_control_type(batch) is ControlType.COMMIT
        self.shard.replay_end_transaction(batch.header.producer_id, is_commit=is_commit)

    def _marker_appended(self, producer_id: int, is_commit: bool) -> None:
        """Apply the end of a transaction that was appended to the partition."""
        if self.state is DriverState.ACTIVE:  # a load that runs reads the marker from the log
            self.shard.replay_end_transaction(producer_id, is_commit=is_commit)
            self.end_offset = self.partition.log.log_end_offset

    def activated(self) -> None:
        """See `ShardDriver`."""
        self.shard.extend_sessions(self.now_ms() - self._load_started_ms)
        for topic in self._deleted_topics:
            for _ in self.forget_topic(topic):
                pass

    def close(self) -> None:
        """See `ShardDriver`."""
        super().close()
        self.partition.on_marker = None

    def forget_topic(self, topic: str) -> Iterator[None]:
        """Remove the offsets of a topic that was deleted; it yields where other work may have its turn."""
        if self.state is DriverState.LOADING:
            self._deleted_topics.append(topic)
            return
        for outcome in self.shard.forget_topic(topic):
            if outcome.records:
                self.run(outcome)
            yield
            if self.refusal:
                return


class GroupCoordinator(Coordinator[GroupDriver]):
    """All group shards of the node.

    Args:
        config: The broker's settings.
        image: The committed metadata.
        rng: For member ids.
        ports: Of the node.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        image: MetadataImage,
        rng: random.Random,
        ports: CoordinatorPorts,
    ) -> None:
        super().__init__(GROUP_METADATA_TOPIC, self._driver_of, ports)
        self._config: Final = config
        self._image = image
        self._rng: Final = rng
        self._is_expiring = False

    def _driver_of(self, partition: LeaderReplica) -> GroupDriver:
        shard = GroupShard(
            group_config(self._config), image=self._image, group_settings=self._group_settings, rng=self._rng
        )
        return GroupDriver(partition, shard, clock=self._clock)

    def _group_settings(self, group_id: str) -> tuple[int, int]:
        """Session timeout and heartbeat interval of a group: its own, or else the broker's."""
        own, config = self._image.configs(ResourceType.GROUP, group_id), self._config
        session = own.get("consumer.session.timeout.ms", config["group.consumer.session.timeout.ms"])
        heartbeat = own.get("consumer.heartbeat.interval.ms", config["group.consumer.heartbeat.interval.ms"])
        return int(session), int(heartbeat)

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """See `Coordinator`; the offsets of deleted topics are removed, too."""
        if image is not self._image:
            self._image = image
            for driver in self.drivers.values():
                driver.shard.use_image(image)
        await super().apply(delta, image)
        for removed in delta.removed_topics:
            for driver in list(self.drivers.values()):
                if not driver.refusal or driver.state is DriverState.LOADING:
                    for _ in driver.forget_topic(removed.name):
                        await asyncio.sleep(0)

    def refusal_of(self, code: ErrorCode) -> ErrorCode:
        """Return the code for a question about a group that has no driver here, for which `driver` gave this code.

        Before `__consumer_offsets` exists there is no group.
        """
        return ErrorCode.GROUP_ID_NOT_FOUND if self.is_empty else code

    def run(self, group_id: str, decide: Callable[[GroupShard], Outcome]) -> ErrorCode:
        """Let a group's shard decide, and carry it out; or return why this node cannot."""
        driver = self.driver(group_id)
        if isinstance(driver, ErrorCode):
            return driver
        driver.run(decide(driver.shard))
        return ErrorCode.NONE

    def shards(self) -> Iterator[GroupShard]:
        """All shards that are loaded."""
        return (driver.shard for driver in self.active())

    def expire_offsets(self) -> None:
        """Remove the offsets of groups that have had no members for long, in the background."""
        if not self._is_expiring:
            self._is_expiring = True
            self._spawn(self._expire_offsets(), "offset-expiry")

    async def _expire_offsets(self) -> None:
        """Let one group after another expire, so that neither its number of groups nor one that fails harms others."""
        try:
            slice_start_ms = self._clock.now_ms()
            for driver in list(self.active()):
                for group_id in driver.shard.group_ids():
                    try:
                        outcome = driver.shard.expire_group(group_id, wall_ms=self._clock.wall_ms())
                        if outcome.records:
                            driver.run(outcome)
                    except Exception:
                        log.exception("offset_expiry_failed", group=group_id)
                    if self._clock.now_ms() - slice_start_ms >= SLICE_MS:
                        await asyncio.sleep(0)
                        slice_start_ms = self._clock.now_ms()
        finally:
            self._is_expiring = False


def group_config(config: BrokerConfig) -> GroupConfig:
    """The coordinator's part of the broker's settings."""
    return GroupConfig(
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        min_session_timeout_ms=config["group.min.session.timeout.ms"],
        max_session_timeout_ms=config["group.max.session.timeout.ms"],
        max_size=config["group.max.size"],
        offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        consumer_session_timeout_ms=config["group.consumer.session.timeout.ms"],
        consumer_heartbeat_interval_ms=config["group.consumer.heartbeat.interval.ms"],
        consumer_max_size=config["group.consumer.max.size"],
        consumer_migration_policy=config["group.consumer.migration.policy"],
        consumer_assignors=config["group.consumer.assignors"],
    )
