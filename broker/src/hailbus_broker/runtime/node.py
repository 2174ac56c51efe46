"""A broker without its network: the logs, the metadata, the coordinators, and what connects them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.controller import PRODUCER_ID_BLOCK, Controller
from hailbus_broker.cluster.features import SUPPORTED
from hailbus_broker.cluster.metadata.image import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
    ResourceType,
    TopicState,
)
from hailbus_broker.cluster.metadata.records import decode_record, encode_record
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.cluster.options import BrokerConfig, topic_value
from hailbus_broker.log import CleanupPolicy, LogConfig, Origin, StorageError, TailCache
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.records import (
    Compression,
    CorruptBatchError,
    RecordToWrite,
    TimestampType,
    build_batch,
)
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.data_directory import DataDirectory
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.group_coordinator import GroupCoordinator
from hailbus_broker.runtime.group_sync import LANES, GroupSync
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.runtime.partition import Partition
from hailbus_broker.runtime.replay import read_records
from hailbus_broker.runtime.transaction_coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hailbus_broker.cluster.metadata.image import PartitionState
    from hailbus_broker.log import PartitionLog, PendingRemoval
    from hailbus_broker.protocol.schema import Message, Uuid

log: Any = get_logger()

TAIL_CACHE_BYTES: Final = 32 * 1024 * 1024
CHECKPOINT_INTERVAL_MS: Final = 60_000
WORK_THREADS: Final = 6
"""For what waits for the disk and is not a sync: reads of cold segments, checkpoints, compaction, removals."""
LOADING_THREADS: Final = 16
WARNING_INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that this node listens on, and the one that it advertises to clients."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int


class Node:
    """One broker.

    Args:
        config: Its settings.
        machine: What it runs on; None is the process's own.
    """

    def __init__(self, config: BrokerConfig, *, machine: Machine | None = None) -> None:
        self.config = config
        self.machine = machine or Machine()
        self.clock = self.machine.clock
        self.disk = self.machine.disk
        self.chance = self.machine.random
        self.node_id: int = config["node.id"] if "node.id" in config.given else config["broker.id"]
        self.image = MetadataImage()
        self.listeners: list[Listener] = []
        self.partitions: dict[str, list[Partition]] = {}
        self.partitions_by_id: dict[Uuid, list[Partition]] = {}
        self.broker_epoch = 0
        self._next_producer_id = 0
        self._last_producer_id = 0
        self._reservation: asyncio.Future[None] | None = None
        self._background: dict[asyncio.Task[Any], None] = {}
        self.failure: StorageError | None = None
        """Why the data directory is offline: nothing is written to it before the next start."""
        self._is_stopping = False
        self._checkpointing = asyncio.Lock()
        self._last_warning_ms: int | None = None

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Open the data directory, replay the metadata and the coordinators' topics.

        Raises:
            StartError: The directory cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self.threads = self.machine.start_threads(WORK_THREADS, "work")
        self.sync = GroupSync(self.loop, self.machine.start_threads(LANES, "sync"))
        self.tail_cache = TailCache(TAIL_CACHE_BYTES)
        self.data = DataDirectory(
            self.disk, self.config["log.dirs"], node_id=self.node_id, chance=self.chance, tail_cache=self.tail_cache
        )
        try:
            is_new = self._open()
            if is_new:
                # Before the first partition is made: partitions without metadata are then a sign of damage.
                await self.metadata.committed()
        except BaseException:
            self.data.release()
            self._close_threads()
            raise
        self.every(self.config["offsets.retention.check.interval.ms"], self.groups.expire_offsets)
        self.every(CHECKPOINT_INTERVAL_MS, self._checkpoint)
        self.every(CHECKPOINT_INTERVAL_MS, self._maybe_snapshot_metadata)
        self.every(self.config["log.retention.check.interval.ms"], self._apply_retention)
        if self.config["log.cleaner.enable"]:
            cleaner = Cleaner(
                self.data.logs,
                threads=self.threads,
                wall_ms=self.clock.wall_ms,
                dedupe_buffer_bytes=self.config["log.cleaner.dedupe.buffer.size"],
                names=self.data.names,
                report=self.take_offline,
            )
            self.spawn(cleaner.run(backoff_ms=self.config["log.cleaner.backoff.ms"]), "cleaner")

    def _open(self) -> bool:
        """Open everything in the data directory.

        Returns:
            Whether the cluster is a new one.

        Raises:
            StartError: It is damaged.
        """
        self.cluster_id = self.data.cluster_id
        self._snapshots = MetadataSnapshots(self.disk, self.data.metadata_path)
        snapshot = self._snapshots.newest()
        if snapshot is not None:
            for message in self._snapshots.read(snapshot):
                self.image.replay(message)
            self.image.version = snapshot.end_offset
        metadata_log = self.data.open_metadata(
            LogConfig(retention_ms=-1),
            log_start_offset=0 if snapshot is None else snapshot.end_offset,
            now_ms=self.clock.wall_ms(),
        )
        is_new = not metadata_log.log_end_offset
        self.metadata = Partition(
            topic=CLUSTER_METADATA_TOPIC,
            topic_id=ZERO_UUID,
            index=0,
            leader_epoch=0,
            log=metadata_log,
            sync=self.sync,
            report=self.take_offline,
        )
        try:
            for record in read_records(metadata_log):
                assert record.value is not None
                self.image.replay(decode_record(record.value))
        except CorruptBatchError as error:
            raise StartError(f"cannot read the cluster's metadata: {error}; restore the file from a backup") from error
        self._refresh_broker_config()
        self.controller = Controller(
            self.image, self.config, node_id=self.node_id, directory_id=self.data.directory_id, chance=self.chance
        )
        topics = list(self.image.topics.values())
        known = {(topic.name, state.index): topic.topic_id for topic in topics for state in topic.partitions}
        self.data.restore_deleted(known)
        loading = self.machine.start_threads(LOADING_THREADS, "load")
        try:
            self.data.load(self.log_config, loading, now_ms=self.clock.wall_ms())
        finally:
            loading.close()
        self.data.set_strays_aside(known)
        for topic in topics:
            self._host_all(topic, topic.partitions)
        self.groups = GroupCoordinator(self)
        self.groups.load()
        self.transactions = TransactionCoordinator(self)
        self.transactions.load()
        self._finalise_features()
        self.broker_epoch = self.metadata.log.log_end_offset
        self.write_metadata(
            [
                RegisterBrokerRecord(
                    broker_id=self.node_id,
                    incarnation_id=self.chance.randbytes(16),
                    broker_epoch=self.broker_epoch,
                    fenced=False,
                    rack=None,
                    log_dirs=[self.data.directory_id],
                )
            ]
        )
        return is_new

    async def stop(self) -> None:
        """Sync and close all logs and mark the directory as cleanly left."""
        self._is_stopping = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self.groups.close()
        self.transactions.close()
        await self.sync.drain()
        self._close_threads()
        for error in self.data.close(self.metadata.log, now_ms=self.clock.wall_ms(), failure=self.failure):
            log.error("log_not_closed", error=str(error))

    def _close_threads(self) -> None:
        self.sync.close()
        self.threads.close()

    def take_offline(self, error: StorageError) -> None:
        """The machine failed: nothing is written to the data directory any more, until the next start looks at it.

        As in Apache Kafka one failure takes the whole directory: what the system does after one is unknown, and a
        retried sync may report success for pages that are lost. Apache Kafka then stops, having no other directory;
        here everything that was committed can still be read.
        """
        if error.is_out_of_descriptors:
            self.data.release_closed_segments()
            self.warn_of_descriptors(str(error))
            return
        if self.failure is not None or self._is_stopping:
            return
        self.failure = error
        log.error(
            "log_directory_offline",
            path=self.data.path,
            error=str(error),
            advice="nothing is lost that was acknowledged: make room or mend the disk, then restart the broker",
        )
        for partition in (self.metadata, *self.all_partitions()):
            partition.refuse(error)

    def warn_of_descriptors(self, reason: str) -> None:
        """Log that something was refused or put off because too many files are open; once in a while."""
        now_ms = self.clock.now_ms()
        if self._last_warning_ms is None or now_ms - self._last_warning_ms >= WARNING_INTERVAL_MS:
            self._last_warning_ms = now_ms
            log.warning(
                "too_many_open_files",
                reason=reason,
                limit=self.machine.descriptors.limit,
                advice="raise the limit of open files (ulimit -n), or have fewer partitions or connections",
            )

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        """Run something beside the requests until it ends or the node stops."""
        task = self.loop.create_task(coroutine, name=name)
        self._background[task] = None
        task.add_done_callback(self._background.pop)
        return task

    def every(self, interval_ms: int, work: Any) -> None:
        """Do something at intervals, until the node stops."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    work()
                except Exception:
                    log.exception("periodic_work_failed", work=work.__name__)

        self.spawn(repeat(), work.__name__)

    # ------------------------------------------------------------------ partitions

    def all_partitions(self) -> Iterator[Partition]:
        """All partitions of all topics."""
        for partitions in self.partitions.values():
            yield from partitions

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition by its topic's name."""
        partitions = self.partitions.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def _host_all(self, topic: TopicState, states: Sequence[PartitionState]) -> None:
        config, settings = self.log_config(topic.name), self._partition_settings(topic.name)
        indexes = [state.index for state in states]
        logs = self.data.host(topic.name, indexes, topic.topic_id, config, now_ms=self.clock.wall_ms())
        for state, partition_log in zip(states, logs, strict=True):
            self._host(topic, state, partition_log, settings)

    def _host(
        self, topic: TopicState, state: PartitionState, partition_log: PartitionLog, settings: Mapping[str, int]
    ) -> None:
        partition = Partition(
            topic=topic.name,
            topic_id=topic.topic_id,
            index=state.index,
            leader_epoch=state.leader_epoch,
            log=partition_log,
            sync=self.sync,
            report=self.take_offline,
            **settings,
        )
        partitions = self.partitions.setdefault(topic.name, [])
        assert len(partitions) == state.index, (topic.name, state.index)
        partitions.append(partition)
        self.partitions_by_id[topic.topic_id] = partitions

    def _drop(self, topic: TopicState) -> list[str]:
        """Take a topic's partitions away; their folders are to be removed when the deletion is durable."""
        partitions = self.partitions.pop(topic.name)
        del self.partitions_by_id[topic.topic_id]
        folders = []
        for partition in partitions:
            partition.delete(TopicDeletedError(topic.name))
            folders.append(self.data.delete(topic.name, partition.index))
        return folders

    def _overrides(self, topic: str) -> Mapping[str, str]:
        return self.image.configs(ResourceType.TOPIC, topic)

    def _partition_settings(self, topic: str) -> dict[str, int]:
        overrides = self._overrides(topic)
        # What a coordinator or a transaction relies on is never only in memory.
        is_internal = topic in {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC}
        return {
            "flush_messages": 1 if is_internal else topic_value(overrides, self.config, "flush.messages"),
            "flush_ms": topic_value(overrides, self.config, "flush.ms"),
        }

    def log_config(self, topic: str) -> LogConfig:
        """What a topic's logs act on: its overrides over the broker's defaults."""
        overrides = self._overrides(topic)

        def value(name: str) -> Any:
            return topic_value(overrides, self.config, name)

        codec = value("compression.type")
        compression = None if codec == "producer" else Compression.from_name(codec)
        level = None
        if compression in {Compression.GZIP, Compression.LZ4, Compression.ZSTD}:
            level = value(f"compression.{compression.name.lower()}.level")
            if compression is Compression.GZIP and level == -1:
                level = None
        timestamp_type = (
            TimestampType.LOG_APPEND_TIME
            if value("message.timestamp.type") == "LogAppendTime"
            else TimestampType.CREATE_TIME
        )
        return LogConfig(
            cleanup_policy=frozenset(CleanupPolicy(item) for item in value("cleanup.policy")),
            compression_type=compression,
            compression_level=level,
            delete_retention_ms=value("delete.retention.ms"),
            file_delete_delay_ms=value("file.delete.delay.ms"),
            index_interval_bytes=value("index.interval.bytes"),
            max_compaction_lag_ms=value("max.compaction.lag.ms"),
            max_message_bytes=value("max.message.bytes"),
            message_timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
            message_timestamp_type=timestamp_type,
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            producer_id_expiration_ms=self.config["producer.id.expiration.ms"],
            retention_bytes=value("retention.bytes"),
            retention_ms=value("retention.ms"),
            segment_bytes=value("segment.bytes"),
            segment_index_bytes=value("segment.index.bytes"),
            segment_jitter_ms=value("segment.jitter.ms"),
            segment_ms=value("segment.ms"),
        )

    # ------------------------------------------------------------------ metadata

    def _finalise_features(self) -> None:
        """A new cluster finalises all features; later UpdateFeatures decides."""
        if not self.image.brokers:
            self.write_metadata(
                [FeatureLevelRecord(name=name, feature_level=last) for name, (_, last) in sorted(SUPPORTED.items())]
            )

    def write_metadata(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append records to the metadata log and act on them.

        Returns:
            Done when they are durable; no client may see them earlier.

        Raises:
            StorageError: The machine failed, or did before; nothing has changed then.
            ApiError: There is no room for new partitions; nothing has changed.
        """
        done: asyncio.Future[None] = self.loop.create_future()

        def finish(error: Exception | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
                done.exception()  # not everybody waits for it

        if not records:
            done.set_result(None)
            return done
        now_ms = self.clock.wall_ms()
        batch = build_batch(
            [RecordToWrite(key=None, value=encode_record(record), timestamp=now_ms) for record in records]
        )
        made = self._make_logs(records)
        try:
            result = self.metadata.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR)
        except StorageError:
            self._discard_logs(made)
            raise
        created, folders = self._apply(records)

        def settle(error: Exception | None) -> None:
            # Only now: until the record is durable, a power cut takes creations back, and deletions.
            if error is None:
                for partition in created:
                    partition.release()
                for folder in folders:
                    self.spawn(self._remove_folder(folder), "removal")
            finish(error)

        self.metadata.when_committed(result.last_offset + 1, settle)
        return done

    def _make_logs(self, records: Sequence[Message]) -> list[tuple[str, int]]:
        """Make the logs of new partitions, before anybody may know of them: what fails then is only the request."""
        self._check_room(sum(isinstance(record, PartitionRecord) for record in records))
        names = {record.topic_id: record.name for record in records if isinstance(record, TopicRecord)}
        wanted: dict[Uuid, list[int]] = {}
        for record in records:
            if isinstance(record, PartitionRecord):
                wanted.setdefault(record.topic_id, []).append(record.partition_id)
        made: list[tuple[str, int]] = []
        for topic_id, indexes in wanted.items():
            topic = names.get(topic_id) or self.image.topics_by_id[topic_id].name
            hosted = len(self.partitions_by_id.get(topic_id, ()))
            new = [index for index in indexes if index >= hosted]
            made += [(topic, index) for index in new]
            try:
                if self.failure is not None:
                    raise StorageError(f"the log directory is offline: {self.failure}")
                self.data.host(topic, new, topic_id, LogConfig(), now_ms=self.clock.wall_ms())
            except StorageError as error:
                self.take_offline(error)
                self._discard_logs(made)
                if error.is_out_of_descriptors:
                    raise ApiError(ErrorCode.POLICY_VIOLATION, f"Too many files are open: {error}.") from error
                raise
        return made

    def _check_room(self, new_count: int) -> None:
        """Refuse partitions for which there are not enough file descriptors.

        Raises:
            ApiError: With a sentence that says what to do.
        """
        if not new_count:
            return
        hosted_count = sum(map(len, self.partitions.values()))
        descriptors = self.machine.descriptors
        if new_count > descriptors.room_for_partitions(hosted_count):
            self.data.release_closed_segments()
            room = descriptors.room_for_partitions(hosted_count)
            if new_count > room:
                sentence = (
                    f"This broker has {hosted_count} partitions and may open {descriptors.limit} files: there is room "
                    f"for {room} more partitions, not for {new_count}. Raise the limit of open files (ulimit -n), "
                    "or delete topics."
                )
                self.warn_of_descriptors(sentence)
                raise ApiError(ErrorCode.POLICY_VIOLATION, sentence)

    def _discard_logs(self, made: Sequence[tuple[str, int]]) -> None:
        for topic, index in made:
            with suppress(StorageError):  # else the next start sets it aside
                self.data.disk.remove_tree(self.data.delete(topic, index))

    def _apply(self, records: Sequence[Message]) -> tuple[list[Partition], list[str]]:
        """Act on metadata records.

        Returns:
            New partitions, held until the records are durable, and folders to be removed then.
        """
        created_partitions: list[Partition] = []
        folders: list[str] = []
        before = dict(self.image.topics_by_id)
        touched: set[str] = set()
        is_broker_touched = False
        for record in records:
            self.image.replay(record)
            match getattr(record, "resource_type", None):
                case ResourceType.TOPIC:
                    touched.add(record.resource_name)  # type: ignore[attr-defined]  # a ConfigRecord
                case ResourceType.BROKER:
                    is_broker_touched = True
                case _:
                    pass
        if is_broker_touched:
            self._refresh_broker_config()
            touched.update(self.image.topics)
        for topic_id, topic in before.items():
            if topic_id not in self.image.topics_by_id:
                folders += self._drop(topic)
                self.groups.forget_topic(topic.name)
        for record in records:
            created: Uuid | None = getattr(record, "topic_id", None)
            if created in self.image.topics_by_id:
                state = self.image.topics_by_id[created]
                hosted = len(self.partitions_by_id.get(created, ()))
                self._host_all(state, state.partitions[hosted:])
                new = self.partitions_by_id[created][hosted:]
                for partition in new:
                    partition.hold()
                created_partitions += new
        created_names = {record.name for record in records if isinstance(record, TopicRecord)}
        if GROUP_METADATA_TOPIC in created_names:
            self.groups.load()
        if TRANSACTION_STATE_TOPIC in created_names:
            self.transactions.load()
        for name in touched:
            for partition in self.partitions.get(name, ()):
                partition.log.config = self.log_config(name)
                for setting, value in self._partition_settings(name).items():
                    setattr(partition, setting, value)
        return created_partitions, folders

    def _refresh_broker_config(self) -> None:
        cluster_wide = self.image.configs(ResourceType.BROKER, "")
        own = self.image.configs(ResourceType.BROKER, str(self.node_id))
        self.config.refresh({**cluster_wide, **own})

    def create_internal_topic(self, name: str) -> asyncio.Future[None] | None:
        """Create the coordinators' topic if it is missing; None when it is there."""
        if name in self.image.topics:
            return None
        option = "offsets.topic" if name == GROUP_METADATA_TOPIC else "transaction.state.log"
        count = self.config[f"{option}.num.partitions"]
        new = self.controller.create_topic(name, partition_count=count, replication_factor=1, is_internal=True)
        return self.write_metadata(new.records)

    # ------------------------------------------------------------------ producer ids

    async def reserve_producer_id(self) -> None:
        """Make sure that `next_producer_id` has one: blocks are taken in the metadata log, ahead of their use."""
        while self._next_producer_id >= self._last_producer_id:
            if self._reservation is None or self._reservation.done():
                first, records = self.controller.allocate_producer_ids()
                self._reservation = asyncio.ensure_future(self._take_block(first, records))
            await asyncio.shield(self._reservation)

    async def _take_block(self, first: int, records: list[Message]) -> None:
        last = first + PRODUCER_ID_BLOCK
        await self.write_metadata(records)
        self._next_producer_id, self._last_producer_id = first, last

    def next_producer_id(self) -> int:
        """A producer id that nobody has; one was reserved before."""
        assert self._next_producer_id < self._last_producer_id, "no producer id was reserved"
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # ------------------------------------------------------------------ housekeeping

    def catch_up(self) -> None:
        """Do at once what the clock says is due; a test calls it when it has turned the clock."""
        self.groups.expire_offsets()
        self.groups.ring()
        self.transactions.ring()
        self._apply_retention()
        self._maybe_snapshot_metadata()

    async def checkpoint(self) -> None:
        """Write down how far the logs have come.

        Raises:
            StorageError: The machine failed.
        """
        async with self._checkpointing:  # two at once would write the same temporary files
            await self.threads.run(self.data.logs.prepare_checkpoint().run)

    def _checkpoint(self) -> None:
        if self.failure is None:
            self.spawn(self._checkpoint_in_time(), "checkpoint")

    async def _checkpoint_in_time(self) -> None:
        try:
            await self.checkpoint()
        except StorageError as error:
            self.take_offline(error)

    def _maybe_snapshot_metadata(self) -> None:
        limit = self.config["metadata.log.max.record.bytes.between.snapshots"]
        is_busy = any(task.get_name() == "metadata-snapshot" for task in self._background)
        if self.failure is None and self.metadata.log.size_bytes() > limit and not is_busy:
            self.spawn(self._snapshot_metadata_in_time(), "metadata-snapshot")

    async def _snapshot_metadata_in_time(self) -> None:
        try:
            await self.snapshot_metadata()
        except StorageError as error:
            self.take_offline(error)

    async def snapshot_metadata(self) -> None:
        """Write down what the metadata log adds up to, and let go of the log before that.

        Raises:
            StorageError: The machine failed.
        """
        # A segment that is not whole, before one that is, would be damage to the next start.
        await self.metadata.committed()
        now_ms = self.clock.wall_ms()
        log_ = self.metadata.log
        covered = SnapshotId(end_offset=log_.log_end_offset, leader_epoch=self.metadata.leader_epoch)
        records = self.image.to_records()
        log_.roll(now_ms=now_ms)
        # With this record the new segment and all that the snapshot covers are safe, before the old segments go.
        await self.write_metadata([NoOpRecord()])
        data = encode_snapshot(records, timestamp=now_ms)
        await self.threads.run(partial(self._snapshots.write, covered, data))
        log_.delete_records(covered.end_offset)
        removal = log_.start_retention(now_ms=now_ms)
        if removal is not None:
            await self.threads.run(removal.run)
        log.info("metadata_snapshot_written", end_offset=covered.end_offset, records=len(records), bytes=len(data))

    def _apply_retention(self) -> None:
        now_ms = self.clock.wall_ms()
        for partition in list(self.all_partitions()):
            if partition.error is not None:
                continue
            partition.log.expire_producers(now_ms=now_ms)
            # on a compacted topic, too: deleted records leave segments below the log start
            try:
                removal = partition.log.start_retention(now_ms=now_ms)
            except StorageError as error:
                self.take_offline(error)
                return
            if removal is not None:
                log.info("segments_deleted", partition=partition.name, segments=removal.segment_count)
                self.spawn(self._remove(removal), "removal")

    async def _remove(self, removal: PendingRemoval) -> None:
        try:
            await self.threads.run(removal.run)
        except StorageError as error:
            self.take_offline(error)

    async def _remove_folder(self, folder: str) -> None:
        try:
            await self.threads.run(partial(self.disk.remove_tree, folder))
        except StorageError as error:
            log.warning("folder_not_removed", path=folder, error=str(error), effect="the next start removes it")


class TopicDeletedError(Exception):
    """The topic went away while somebody waited for it."""
