"""Drives the group shards: appends what they decide, replays it, and sends their answers when these are safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, ResourceType
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import NO_PRODUCER_ID, ControlType, read_control_type
from hailbus_broker.runtime.replay import replay_coordinator
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.runtime.shard_driver import ShardDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.node import Node


class GroupDriver(ShardDriver):
    """One group shard."""

    shard: GroupShard

    def now_ms(self) -> int:
        """Sessions must not depend on what people do to the clock."""
        return self.node.clock.now_ms()

    def tick(self) -> Iterator[Outcome]:
        """See `ShardDriver`."""
        return self.shard.tick(self.now_ms(), wall_ms=self.node.clock.wall_ms())


class GroupCoordinator:
    """All group shards of the node: with one node, all there are."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.drivers: list[GroupDriver] = []

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """See `metadata_publisher.Subscriber`."""
        for removed in delta.removed_topics:
            self.forget_topic(removed.name)
        topic = image.topics.get(GROUP_METADATA_TOPIC)
        if topic is not None and topic.topic_id in delta.new_partitions:
            self.load()

    def load(self) -> None:
        """Replay the partitions of `__consumer_offsets`, if they exist."""
        now_ms = self.node.clock.now_ms()
        partitions = self.node.replicas.topics.get(GROUP_METADATA_TOPIC, [])
        for partition in partitions[len(self.drivers) :]:
            if not isinstance(partition, LeaderReplica):
                return  # those behind it are loaded when it can be
            shard = GroupShard(
                group_config(self.node.config),
                image=self.node.image,
                group_settings=self._group_settings,
                rng=self.node.chance,
            )
            driver = GroupDriver(self.node, partition, shard)
            self.drivers.append(driver)
            driver.is_loaded = replay_groups(shard, partition, now_ms=now_ms)
            if driver.is_loaded:
                driver.arm()

    def _group_settings(self, group_id: str) -> tuple[int, int]:
        """Session timeout and heartbeat interval of a group: its own, or else the broker's."""
        own = self.node.image.configs(ResourceType.GROUP, group_id)
        config = self.node.config
        session = own.get("consumer.session.timeout.ms", config["group.consumer.session.timeout.ms"])
        heartbeat = own.get("consumer.heartbeat.interval.ms", config["group.consumer.heartbeat.interval.ms"])
        return int(session), int(heartbeat)

    def driver(self, group_id: str) -> GroupDriver | None:
        """Who is responsible for a group; None before `__consumer_offsets` exists, or when the partition is damaged."""
        if not self.drivers:
            return None
        driver = self.drivers[partition_for(group_id, len(self.drivers))]
        return driver if driver.is_loaded else None

    @property
    def missing_code(self) -> ErrorCode:
        """What to say of a group that no driver is responsible for: there is no such group, or it cannot be read."""
        return ErrorCode.NOT_COORDINATOR if self.drivers else ErrorCode.GROUP_ID_NOT_FOUND

    def run(self, group_id: str, decide: Callable[[GroupShard], Outcome]) -> bool:
        """Let a group's shard decide, and carry it out. False: there is no coordinator yet."""
        driver = self.driver(group_id)
        if driver is None:
            return False
        driver.run(decide(driver.shard))
        return True

    def shards(self) -> Iterator[GroupShard]:
        """All shards."""
        return (driver.shard for driver in self.loaded())

    def loaded(self) -> Iterator[GroupDriver]:
        """All drivers that may decide something."""
        return (driver for driver in self.drivers if driver.is_loaded)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for driver in self.loaded():
            outcome = driver.shard.forget_topic(topic)
            if outcome.records:
                driver.run(outcome)

    def expire_offsets(self) -> None:
        """Forget the offsets of groups that have had no members for long."""
        for driver in self.loaded():
            outcome = driver.shard.expire_offsets(wall_ms=self.node.clock.wall_ms())
            if outcome.records:
                driver.run(outcome)

    def ring(self) -> None:
        """Let all shards do what is due."""
        for driver in self.loaded():
            driver.ring()

    def transaction_ended(self, index: int, producer_id: int, *, is_commit: bool) -> None:
        """A marker was written to a partition of `__consumer_offsets`."""
        if index < len(self.drivers):
            self.drivers[index].shard.replay_end_transaction(producer_id, is_commit=is_commit)

    def close(self) -> None:
        """Stop all timers."""
        for driver in self.drivers:
            driver.close()


def replay_groups(shard: GroupShard, partition: LeaderReplica, *, now_ms: int) -> bool:
    """Take all records of a partition into its shard, at the start; False if the partition is damaged."""

    def take_record(record: Record, batch: BatchView) -> None:
        assert record.key is not None
        producer_id = batch.header.producer_id if batch.header.is_transactional else NO_PRODUCER_ID
        shard.replay(record.key, record.value, now_ms=now_ms, producer_id=producer_id)

    def take_marker(batch: BatchView) -> None:
        is_commit = read_control_type(batch) is ControlType.COMMIT
        shard.replay_end_transaction(batch.header.producer_id, is_commit=is_commit)

    return replay_coordinator(partition, take_record, take_marker)


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


def partition_for(key: str, count: int) -> int:
    """Which partition of a coordinator's topic a name belongs to: Java's string hash, as Kafka has it."""
    data = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value >= 0x80000000:
        value = 0x100000000 - value
    return (value & 0x7FFFFFFF) % count
