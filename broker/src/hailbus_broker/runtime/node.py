"""A broker without its network: it makes the parts, connects them, and starts and stops them in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.controller import PRODUCER_ID_BLOCK, Controller
from hailbus_broker.cluster.metadata.image import (
    GROUP_METADATA_TOPIC,
    MetadataImage,
    ResourceType,
)
from hailbus_broker.cluster.raft.voters import ReplicaKey, Voter, VoterSet
from hailbus_broker.log import DiskReadNeededError, Lookup, StorageError, TailCache
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.errors import ApiError, ProtocolError
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.data_directory import DataDirectory
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.group_coordinator import GroupCoordinator
from hailbus_broker.runtime.group_sync import LANES, GroupSync
from hailbus_broker.runtime.log_settings import log_config
from hailbus_broker.runtime.lookups import answer
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.markers import LocalMarkers
from hailbus_broker.runtime.metadata import Metadata, QuorumSettings, open_metadata
from hailbus_broker.runtime.replica_manager import ReplicaManager
from hailbus_broker.runtime.transaction_coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.log import PendingRemoval
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.replica import LeaderReplica

log: Any = get_logger()

TAIL_CACHE_BYTES: Final = 32 * 1024 * 1024
RETRY_OFFLINE_MS: Final = 1_000
WORK_THREADS: Final = 6
"""For what waits for the disk and is not a sync: reads of cold segments, checkpoints, compaction, removals."""
LOADING_THREADS: Final = 16
WARNING_INTERVAL_MS: Final = 10_000
RETENTION_SLICE: Final = 200
"""So many logs are looked at in one turn of the loop."""
RECORDS_PER_BATCH: Final = 5_000
"""Of metadata that a start writes: a batch of so many is far below the largest that a log takes."""


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
        self.rng = self.machine.random
        self.node_id: int = config["node.id"] if "node.id" in config.given else config["broker.id"]
        self.listeners: list[Listener] = []
        self.broker_epoch = 0
        self._next_producer_id = 0
        self._last_producer_id = 0
        self._reservation: asyncio.Future[None] | None = None
        self._background: dict[asyncio.Task[Any], None] = {}
        self.failure: StorageError | None = None
        """Why the data directory is offline: nothing is written to it before the next start."""
        self.reason_to_stop: Exception | None = None
        """Why the node must not go on; `when_unfit` is called then."""
        self.when_unfit: Callable[[], object] = lambda: None
        self._is_open = False
        self._parts: Metadata | None = None
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
            self.disk, self.config["log.dirs"], node_id=self.node_id, rng=self.rng, tail_cache=self.tail_cache
        )
        try:
            await self._open_metadata()
            self._open()
            await self.groups.start(self.image)
            await self.transactions.start(self.image)
        except BaseException:
            await self._abandon()
            raise
        self.every(self.config["offsets.retention.check.interval.ms"], self.groups.expire_offsets)
        self.every(RETRY_OFFLINE_MS, self._retry_offline)
        self.every(self.config["log.flush.offset.checkpoint.interval.ms"], self._checkpoint)
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

    async def _open_metadata(self) -> None:
        """Take part in the quorum of the metadata, until this node knows all that is committed and has registered.

        Raises:
            StartError: The metadata is damaged, or cannot be written.
        """
        self.cluster_id = self.data.cluster_id

        def controller_of(image: MetadataImage) -> Controller:
            self.controller = Controller(
                image, self.config, node_id=self.node_id, directory_id=self.data.directory_id, chance=self.rng
            )
            return self.controller

        parts = open_metadata(
            QuorumSettings(voters=VoterSet([Voter(ReplicaKey(self.node_id), ())])),
            node_id=self.node_id,
            data=self.data,
            machine=self.machine,
            sync=self.sync,
            threads=self.threads,
            controller_of=controller_of,
            report=self.take_offline,
            stop=self._become_unfit,
        )
        self._parts = parts
        self.metadata, self.publisher = parts.log, parts.publisher
        self.spawn(self.publisher.run(), "metadata-publisher")
        try:
            parts.quorum.start(self.metadata)
            await self.metadata.until_active()
            self._refresh_config(self.image)
            await self._register()
        except StorageError as error:
            raise StartError(f"cannot write the cluster's metadata: {error}") from error
        except RecordsError as error:
            raise StartError(f"cannot read the cluster's metadata: {error}; restore the file from a backup") from error
        except ProtocolError as error:
            raise StartError(f"cannot read the cluster's metadata: {error}") from error

    async def _register(self) -> None:
        """Write down that this node runs, before anything else: partitions without metadata are a sign of damage."""
        self.broker_epoch = self.metadata.quorum.log.log_end_offset
        records = self.controller.register_broker(
            broker_epoch=self.broker_epoch, was_clean=self.data.logs.was_clean, incarnation_id=self.rng.randbytes(16)
        )
        for start in range(0, len(records), RECORDS_PER_BATCH):
            await self.metadata.write(records[start : start + RECORDS_PER_BATCH])

    def _open(self) -> None:
        """Open all else that is in the data directory.

        Raises:
            StartError: It is damaged.
        """
        image = self.image
        topics = list(image.topics.values())
        known = {(topic.name, state.index): topic.topic_id for topic in topics for state in topic.partitions}
        self.data.restore_deleted(known)
        loading = self.machine.start_threads(LOADING_THREADS, "load")
        try:
            self.data.load(
                lambda topic: log_config(image.configs(ResourceType.TOPIC, topic), self.config),
                loading,
                now_ms=self.clock.wall_ms(),
            )
        finally:
            loading.close()
        self.data.set_strays_aside(known)
        self.replicas = ReplicaManager(
            node_id=self.node_id,
            config=self.config,
            machine=self.machine,
            data=self.data,
            sync=self.sync,
            threads=self.threads,
            report=self.take_offline,
            remove_later=lambda folders: self.spawn(self._remove_folders(folders), "removal"),
        )
        self.replicas.open_all(image)
        self.groups = GroupCoordinator(
            config=self.config,
            image=image,
            rng=self.rng,
            replicas=self.replicas,
            clock=self.clock,
            threads=self.threads,
            spawn=self.spawn,
        )
        self.transactions = TransactionCoordinator(
            config=self.config,
            marker_sender=LocalMarkers(self.replicas, self.clock),
            replicas=self.replicas,
            clock=self.clock,
            threads=self.threads,
            spawn=self.spawn,
        )
        self.publisher.subscribe(self, self.replicas, self.groups, self.transactions)
        self._is_open = True

    async def stop(self) -> None:
        """Sync and close all logs and mark the directory as cleanly left."""
        self._is_stopping = True
        await self._end_background()
        self.groups.close()
        self.transactions.close()
        await self.sync.drain()
        if self._parts is not None:
            await self._parts.close()
        self._close_threads()
        for error in self.data.close(self.metadata.quorum.log, now_ms=self.clock.wall_ms(), failure=self.failure):
            log.error("log_not_closed", error=str(error))

    async def _abandon(self) -> None:
        """Give everything back after a start that failed."""
        self._is_stopping = True
        await self._end_background()
        if self._parts is not None:
            await self._parts.close()
        self.data.release()
        self._close_threads()

    async def _end_background(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _close_threads(self) -> None:
        self.sync.close()
        self.threads.close()

    def _become_unfit(self, error: Exception) -> None:
        """Stop as soon as possible: what this node would do on from here, others would have to undo."""
        if self.reason_to_stop is None:
            self.reason_to_stop = error
            log.critical("node_unfit", error=str(error), advice="keep its data directory, and restore it from a backup")
            self.when_unfit()

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
        self.metadata.refuse(error)
        if self._is_open:
            for replica in self.replicas.leaders():
                replica.refuse(error)

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

    # ------------------------------------------------------------------ metadata

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.publisher.image

    def write_metadata(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append the controller's records; see `MetadataLog.write`.

        Raises:
            StorageError: The machine failed, or did before; nothing has changed then.
            ApiError: There is no room for new partitions; nothing has changed.
        """
        if records and self.failure is not None:
            raise StorageError(f"the log directory is offline: {self.failure}")
        try:
            self.replicas.check_room(sum(isinstance(record, PartitionRecord) for record in records))
        except ApiError as error:
            self.warn_of_descriptors(error.message or "")
            raise
        return self.metadata.write(records)

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Act on changed settings of brokers, and on a log that has grown; see `metadata_publisher.Subscriber`."""
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs):
            self._refresh_config(image)
        self._maybe_snapshot_metadata()

    def _refresh_config(self, image: MetadataImage) -> None:
        cluster_wide = image.configs(ResourceType.BROKER, "")
        own = image.configs(ResourceType.BROKER, str(self.node_id))
        self.config.refresh({**cluster_wide, **own})

    def _retry_offline(self) -> None:
        if self.replicas.has_retriable and self.failure is None:
            self.publisher.publish([], self.publisher.end_offset, lambda: None)

    def create_internal_topic(self, name: str) -> asyncio.Future[None] | None:
        """Create the coordinators' topic if it is missing; None when it is there."""
        if name in self.image.topics:
            return None
        if name in self.controller.image.topics:
            return self.metadata.write([])
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
        self.groups.run_due()
        self.transactions.run_due()
        for _ in self._retention():
            pass

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
        if self.failure is None and self.metadata.quorum.log.size_bytes() > limit and not is_busy:
            self.spawn(self._snapshot_metadata_in_time(), "metadata-snapshot")

    async def _snapshot_metadata_in_time(self) -> None:
        try:
            await self.metadata.snapshot()
        except StorageError as error:
            self.take_offline(error)

    def _apply_retention(self) -> None:
        if not any(task.get_name() == "retention" for task in self._background):
            self.spawn(self._retain_in_slices(), "retention")

    async def _retain_in_slices(self) -> None:
        for _ in self._retention():
            await asyncio.sleep(0)

    def _retention(self) -> Iterator[None]:
        """Let go of what is too old or too much; it yields where other work may have its turn."""
        for number, partition in enumerate(list(self.replicas.leaders()), 1):
            if number % RETENTION_SLICE == 0:
                yield
            if partition.error is not None:
                continue
            partition.log.expire_producers(now_ms=self.clock.wall_ms())
            try:
                # on a compacted topic, too: deleted records leave segments below the log start
                removal = partition.log.start_retention(now_ms=self.clock.wall_ms(), reads=Lookup())
            except DiskReadNeededError:
                self.spawn(self._retain_cold(partition), "cold-retention")
            except StorageError as error:
                self.take_offline(error)
                return
            else:
                self._remove_later(partition, removal)

    async def _retain_cold(self, partition: LeaderReplica) -> None:
        """Apply retention to a log whose indexes a thread has to read."""

        def start(reads: Reads) -> PendingRemoval | None:
            if partition.error is not None:
                return None
            return partition.log.start_retention(now_ms=self.clock.wall_ms(), reads=reads)

        try:
            self._remove_later(partition, await answer(self.threads, start))
        except StorageError as error:
            self.take_offline(error)

    def _remove_later(self, partition: LeaderReplica, removal: PendingRemoval | None) -> None:
        if removal is not None:
            log.info("segments_deleted", partition=partition.name, segments=removal.segment_count)
            self.spawn(self._remove(removal), "removal")

    async def _remove(self, removal: PendingRemoval) -> None:
        try:
            await self.threads.run(removal.run)
        except StorageError as error:
            self.take_offline(error)

    async def _remove_folders(self, folders: Sequence[str]) -> None:
        for folder in folders:
            try:
                await self.threads.run(partial(self.disk.remove_tree, folder))
            except StorageError as error:
                log.warning("folder_not_removed", path=folder, error=str(error), effect="the next start removes it")
