"""A broker without its network: it makes the parts, connects them, and starts and stops them in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.controller import PRODUCER_ID_BLOCK
from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, ResourceType
from hailbus_broker.cluster.raft.voters import ReplicaKey, Voter, VoterSet
from hailbus_broker.log import DiskReadNeededError, Lookup, StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.coordinator import CoordinatorPorts
from hailbus_broker.runtime.group_coordinator import GroupCoordinator
from hailbus_broker.runtime.log_settings import log_config
from hailbus_broker.runtime.lookups import answer
from hailbus_broker.runtime.markers import LocalMarkers
from hailbus_broker.runtime.metadata import QuorumSettings
from hailbus_broker.runtime.node_core import NodeCore, metadata_error
from hailbus_broker.runtime.replica_manager import ReplicaManager
from hailbus_broker.runtime.transaction_coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.log import PendingRemoval
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.replica import LeaderReplica

log: Any = get_logger()

RETRY_OFFLINE_MS: Final = 1_000
LOADING_THREADS: Final = 16
RETENTION_SLICE: Final = 200
"""So many logs are looked at in one turn of the loop."""
RECORDS_PER_BATCH: Final = 5_000
"""Of metadata that a start writes: a batch of so many is far below the largest that a log takes."""


class Node:
    """One broker.

    Args:
        config: Its settings.
        machine: What it runs on; None is the process's own.
    """

    def __init__(self, config: BrokerConfig, *, machine: Machine | None = None) -> None:
        self.core: Final = NodeCore(config, machine=machine)
        self.config: Final = config
        self.machine: Final = self.core.machine
        self.clock: Final = self.core.clock
        self.disk: Final = self.core.disk
        self.rng: Final = self.core.rng
        self.node_id: Final = self.core.node_id
        self.listeners: Final = self.core.listeners
        self.broker_epoch = 0
        self._next_producer_id = 0
        self._last_producer_id = 0
        self._reservation: asyncio.Future[None] | None = None
        self._checkpointing = asyncio.Lock()

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Open the data directory, replay the metadata and the coordinators' topics.

        Raises:
            StartError: The directory cannot be used.
        """
        core = self.core
        core.open()
        self.loop, self.threads, self.sync, self.data = core.loop, core.threads, core.sync, core.data
        self.spawn, self.every, self.take_offline = core.spawn, core.every, core.take_offline
        try:
            core.join_quorum(QuorumSettings(voters=VoterSet([Voter(ReplicaKey(self.node_id), ())])))
            await core.until_active()
            self.metadata, self.controller = core.metadata, core.controller
            core.refresh_config(self.image)
            await self._register()
            self._open()
            await self.groups.start(self.image)
            await self.transactions.start(self.image)
        except BaseException:
            await core.stop(is_clean=False)
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

    async def _register(self) -> None:
        """Write down that this node runs, before anything else: partitions without metadata are a sign of damage.

        Raises:
            StartError: The metadata cannot be written.
        """
        self.broker_epoch = self.metadata.quorum.log.log_end_offset
        records = self.controller.register_broker(
            broker_epoch=self.broker_epoch, was_clean=self.data.logs.was_clean, incarnation_id=self.rng.randbytes(16)
        )
        try:
            for start in range(0, len(records), RECORDS_PER_BATCH):
                await self.metadata.write(records[start : start + RECORDS_PER_BATCH])
        except StorageError as error:
            raise metadata_error(error) from error

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
        ports = CoordinatorPorts(replicas=self.replicas, clock=self.clock, threads=self.threads, spawn=self.spawn)
        self.groups = GroupCoordinator(
            config=self.config,
            image=image,
            rng=self.rng,
            ports=ports,
        )
        self.transactions = TransactionCoordinator(
            config=self.config,
            marker_sender=LocalMarkers(self.replicas, self.clock),
            ports=ports,
        )
        self.core.publisher.subscribe(self.core, self.replicas, self.groups, self.transactions)
        self.core.when_offline = self.replicas.refuse

    async def stop(self) -> None:
        """Sync and close all logs and mark the directory as cleanly left."""
        await self.core.end_background()
        self.groups.close()
        self.transactions.close()
        await self.core.stop()

    # ------------------------------------------------------------------ metadata

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.core.image

    @property
    def cluster_id(self) -> str:
        """Of the cluster that the node belongs to."""
        return self.core.cluster_id

    @property
    def failure(self) -> StorageError | None:
        """Why the data directory is offline."""
        return self.core.failure

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
            self.core.warn_of_descriptors(error.message or "")
            raise
        return self.metadata.write(records)

    def _retry_offline(self) -> None:
        if self.replicas.has_retriable and self.failure is None:
            publisher = self.core.publisher
            publisher.publish([], publisher.end_offset, lambda: None)

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

    def _apply_retention(self) -> None:
        if not self.core.is_running("retention"):
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
