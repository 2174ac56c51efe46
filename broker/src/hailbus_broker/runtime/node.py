"""A broker without its network: it makes the parts, connects them, and starts and stops them in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.controller import PRODUCER_ID_BLOCK
from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.cluster.raft.voters import Endpoint
from hailbus_broker.log import DiskReadNeededError, Lookup, StorageError, TopicPartition
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.allocate_producer_ids_request import AllocateProducerIdsRequest
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.cluster_markers import ClusterMarkers
from hailbus_broker.runtime.controller_channel import ControllerChannel
from hailbus_broker.runtime.coordinator import CoordinatorPorts
from hailbus_broker.runtime.directory_assignments import DirectoryAssignments
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.group_coordinator import GroupCoordinator
from hailbus_broker.runtime.isr_proposals import IsrProposals
from hailbus_broker.runtime.log_settings import log_config
from hailbus_broker.runtime.lookups import answer
from hailbus_broker.runtime.markers import LocalMarkers
from hailbus_broker.runtime.node_core import NodeCore, metadata_error
from hailbus_broker.runtime.peers import SOFTWARE_VERSION, Peers
from hailbus_broker.runtime.producer_ids import ProducerIds
from hailbus_broker.runtime.remote_coordinators import RemoteCoordinators
from hailbus_broker.runtime.replica_fetchers import ReplicaFetchers
from hailbus_broker.runtime.replica_manager import ReplicaManager
from hailbus_broker.runtime.topic_creation import TopicCreation
from hailbus_broker.runtime.transaction_coordinator import TransactionCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.log import PendingCheckpoint, PendingRemoval
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.protocol.schema import Message, Uuid
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.markers import MarkerSender
    from hailbus_broker.runtime.membership import Membership
    from hailbus_broker.runtime.metadata_publisher import Subscriber
    from hailbus_broker.runtime.replica import FollowerReplica, HostedReplica

log: Any = get_logger()

RETRY_OFFLINE_MS: Final = 1_000
PRODUCER_IDS_TIMEOUT_MS: Final = 5_000
CONNECT_TIMEOUT_S: Final = 2.0
"""Of a connection to another broker."""
ISR_TIMEOUT_S: Final = 5.0
"""How long the controller is looked for before a proposed ISR is checked again."""
DIRECTORIES_TIMEOUT_S: Final = 5.0
"""How long the controller is looked for before an assignment is checked again."""
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
        self.channel: Final = ControllerChannel(self.core, "requests")
        self.creation: Final = TopicCreation(self.core, self.channel)
        self.producer_ids: Final = ProducerIds(self._allocate_producer_ids, self.core.spawn)
        self.membership: Membership | None = None
        self._is_open = False
        self._checkpointing = asyncio.Lock()

    # ------------------------------------------------------------------ start and stop

    async def open(self) -> None:
        """Open the data directory, and take part in the quorum.

        Raises:
            StartError: The directory cannot be used.
        """
        core = self.core
        core.open()
        self._is_open = True
        self.loop, self.threads, self.sync, self.data = core.loop, core.threads, core.sync, core.data
        self.spawn, self.every, self.take_offline = core.spawn, core.every, core.take_offline
        try:
            core.join_quorum(core.roles.quorum)
        except BaseException:
            await core.stop(is_clean=False)
            raise
        self.metadata, self.controller = core.metadata, core.controller
        if core.roles.is_controller and not core.roles.is_standalone:
            from hailbus_broker.runtime.controller_role import ControllerRole

            core.controller_role = ControllerRole(core)
            core.controller_role.start()

    async def start(self) -> None:
        """Open the data directory, replay the metadata and the coordinators' topics.

        Raises:
            StartError: The directory cannot be used.
        """
        core = self.core
        if not self._is_open:
            await self.open()
        try:
            if core.roles.is_standalone:
                await core.until_active()
                core.refresh_config(self.image)
                await self._register()
            else:
                await self._join_cluster()
            await self._load()
            try:
                self._host()
            except StorageError as error:
                raise StartError(f"cannot open the logs: {error}") from error
            await self.groups.start(self.image)
            await self.transactions.start(self.image)
        except BaseException:
            await core.stop(is_clean=False)
            raise
        self.every(self.config["offsets.retention.check.interval.ms"], self.groups.expire_offsets)
        self.every(RETRY_OFFLINE_MS, self._retry_offline)
        self.every(self.config["log.flush.offset.checkpoint.interval.ms"], self._checkpoint)
        self.every(self.config["log.retention.check.interval.ms"], self._apply_retention)
        self.every(max(1, self.config["replica.lag.time.max.ms"] // 2), self.replicas.check_in_sync)
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

    async def _join_cluster(self) -> None:
        """Register with the controller, and wait until the metadata on this node has the registration.

        Raises:
            StartError: The controller refuses it, or none answers.
        """
        from hailbus_broker.runtime.membership import Membership

        self.membership = Membership(self.core)
        self.membership.start()
        await self.membership.until_caught_up()
        self.core.broker_epoch = self.membership.broker_epoch
        self.core.refresh_config(self.image)

    async def _register(self) -> None:
        """Write down that this node runs, before anything else: partitions without metadata are a sign of damage.

        Raises:
            StartError: The metadata cannot be written.
        """
        self.core.broker_epoch = self.metadata.quorum.log.log_end_offset
        records = self.controller.register_broker(
            broker_epoch=self.core.broker_epoch,
            was_clean=self.data.logs.was_clean,
            incarnation_id=self.rng.randbytes(16),
        )
        try:
            for start in range(0, len(records), RECORDS_PER_BATCH):
                await self.metadata.write(records[start : start + RECORDS_PER_BATCH])
        except StorageError as error:
            raise metadata_error(error) from error

    def _own_partitions(self) -> dict[tuple[str, int], Uuid]:
        """Return the ids of the topics of which this node has replicas, by partition."""
        return {
            (topic.name, state.index): topic.topic_id
            for topic in self.image.topics.values()
            for state in topic.partitions
            if self.node_id in state.replicas
        }

    async def _load(self) -> None:
        """Open the logs in the data directory, in threads: heartbeats go on meanwhile.

        Raises:
            StartError: One is damaged.
        """
        image = self.image.copy()  # the publisher changes its own meanwhile
        self.data.restore_deleted(self._own_partitions())
        loading = self.machine.start_threads(LOADING_THREADS, "load")
        load = partial(
            self.data.load,
            lambda topic: log_config(image.configs(ResourceType.TOPIC, topic), self.config),
            loading,
            now_ms=self.clock.wall_ms(),
        )
        try:
            await self.threads.run(load)
        finally:
            loading.close()

    def _host(self) -> None:
        """Make the parts that act on the metadata, from the image as it is now; they follow it from here on.

        Raises:
            StorageError: The machine failed.
        """
        image = self.image
        self.core.refresh_config(image)  # what has changed since they were read
        self.data.set_strays_aside(self._own_partitions())
        self.replicas = ReplicaManager(
            node_id=self.node_id,
            config=self.config,
            machine=self.machine,
            data=self.data,
            sync=self.sync,
            threads=self.threads,
            report=self.take_offline,
            remove_later=lambda folders: self.spawn(self._remove_folders(folders), "removal"),
            checkpoint=self.checkpoint,
        )
        self._replicate()
        self.replicas.open_all(image)
        ports = CoordinatorPorts(
            replicas=self.replicas,
            clock=self.clock,
            threads=self.threads,
            spawn=self.spawn,
            is_standalone=self.core.roles.is_standalone,
        )
        self.groups = GroupCoordinator(
            config=self.config,
            image=image,
            rng=self.rng,
            ports=ports,
        )
        self.transactions = TransactionCoordinator(
            config=self.config,
            marker_sender=self._marker_sender(),
            ports=ports,
        )
        subscribers: list[Subscriber] = [self.core, self.replicas, self.groups, self.transactions]
        if not self.core.roles.is_standalone:
            subscribers.append(self._assign_directories(image))
        self.core.publisher.subscribe(*subscribers)
        self.core.when_offline = self.replicas.refuse
        self.core.check_room = self._check_room

    def _assign_directories(self, image: MetadataImage) -> DirectoryAssignments:
        """Begin to report where replicas are, if the metadata says otherwise."""
        assignments = DirectoryAssignments(
            node_id=self.node_id,
            directory_id=self.data.directory_id,
            broker_epoch=lambda: self.broker_epoch,
            is_hosted=self.replicas.is_hosted,
            ask=partial(self.channel.ask, ApiKey.ASSIGN_REPLICAS_TO_DIRS, timeout_s=DIRECTORIES_TIMEOUT_S),
            spawn=self.spawn,
        )
        assignments.compare_all(image)
        return assignments

    def _replicate(self) -> None:
        """Connect the replicas with those of other brokers, and with the controller that decides who is in sync."""
        self._isr_channel = ControllerChannel(self.core, "isr")
        self._fetch_peers = Peers(
            f"broker-{self.node_id}-fetcher", software_version=SOFTWARE_VERSION, timeout_s=CONNECT_TIMEOUT_S
        )
        proposals = IsrProposals(
            node_id=self.node_id,
            broker_epoch=lambda: self.broker_epoch,
            ask=partial(self._isr_channel.ask, ApiKey.ALTER_PARTITION, timeout_s=ISR_TIMEOUT_S),
            spawn=self.spawn,
        )
        self.replicas.submit_isr = proposals.submit
        self.replicas.fetchers = ReplicaFetchers(
            node_id=self.node_id,
            config=self.config,
            peers=self._fetch_peers,
            endpoint_of=self._endpoint_of,
            broker_epoch=lambda: self.broker_epoch,
            clock=self.clock,
            truncate=self._truncate,
            checkpoint=self._checkpoint_in_time,
            spawn=self.spawn,
        )

    def _marker_sender(self) -> MarkerSender:
        """Connect the transaction coordinator with partitions, and with coordinators on other brokers."""
        self._marker_peers = self._peers("markers")
        self._check_peers = self._peers("partition-checks")
        self.remote_coordinators = RemoteCoordinators(
            endpoint_of=self._endpoint_of, peers=self._check_peers, spawn=self.spawn
        )
        local = LocalMarkers(self.replicas, self.clock, self._has_partition)
        if self.core.roles.is_standalone:
            return local
        return ClusterMarkers(
            node_id=self.node_id,
            image=lambda: self.image,
            local=local,
            endpoint_of=self._endpoint_of,
            peers=self._marker_peers,
            spawn=self.spawn,
        )

    def _has_partition(self, topic: str, index: int) -> bool:
        return self.image.has_partition(topic, index)

    def _peers(self, name: str) -> Peers:
        """Return connections to other brokers that no other part of the broker uses."""
        return Peers(f"broker-{self.node_id}-{name}", software_version=SOFTWARE_VERSION, timeout_s=CONNECT_TIMEOUT_S)

    def _endpoint_of(self, node_id: int) -> Endpoint | None:
        """Where another broker listens for brokers; None if it is not registered."""
        broker = self.image.brokers.get(node_id)
        found = None if broker is None else broker.endpoint(self.core.roles.inter_broker_listener)
        if found is None:
            return None
        return Endpoint(found.name, found.host, found.port)

    async def _truncate(self, replica: FollowerReplica, offset: int) -> None:
        """Cut a follower's log, and write down that its recovery point is not above its end, before it grows again.

        Raises:
            StorageError: The machine failed.
            SwapRunningError: Compaction is renaming the log's files.
        """
        async with self._checkpointing:
            if replica.error is None:
                pending = self.data.logs.truncate(TopicPartition(replica.topic, replica.index), offset)
                await self.threads.run(pending.run)

    async def until_unfenced(self) -> None:
        """Wait until the controller lets this broker lead; clients can connect already.

        Raises:
            StartError: Another broker has taken its place.
        """
        if self.membership is not None:
            await self.membership.until_unfenced()

    async def leave(self) -> None:
        """Wait until other brokers lead what this one did: a controlled shutdown."""
        if self.membership is not None and self.config["controlled.shutdown.enable"]:
            await self.membership.leave()

    async def stop(self) -> None:
        """Sync and close all logs and mark the directory as cleanly left."""
        if self.membership is not None:
            await self.membership.close()
        if self.core.controller_role is not None:
            self.core.controller_role.resign()
        await self.core.end_background()
        await self._isr_channel.close()
        await self._fetch_peers.close()
        self.groups.close()
        self.transactions.close()
        await self.channel.close()
        await self._marker_peers.close()
        await self._check_peers.close()
        await self.core.stop()

    # ------------------------------------------------------------------ metadata

    @property
    def broker_epoch(self) -> int:
        """Of this node as a broker, as the controller has given it."""
        return self.core.broker_epoch

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
        """See `NodeCore`."""
        return self.core.write_metadata(records)

    def _check_room(self, records: Sequence[Message]) -> None:
        """Refuse new partitions that this node would host and has no file descriptors for.

        Raises:
            ApiError: POLICY_VIOLATION.
        """
        try:
            self.replicas.check_room(
                sum(isinstance(record, PartitionRecord) and self.node_id in record.replicas for record in records)
            )
        except ApiError as error:
            self.core.warn_of_descriptors(error.message or "")
            raise

    def _retry_offline(self) -> None:
        if self.replicas.has_retriable and self.failure is None:
            publisher = self.core.publisher
            publisher.publish([], publisher.end_offset, lambda: None)

    def create_internal_topic(self, name: str) -> asyncio.Future[None] | None:
        """Create the coordinators' topic if it is missing; None when it is there."""
        return None if name in self.image.topics else self.creation.create(name)

    # ------------------------------------------------------------------ producer ids

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        """Take a block of producer ids; return its first id and its length.

        Raises:
            ApiError: The controller refuses, or none answers.
            StorageError: The metadata log failed.
        """
        if self.core.roles.is_standalone:
            first, records = self.controller.allocate_producer_ids()
            await self.write_metadata(records)
            return first, PRODUCER_ID_BLOCK
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        try:
            response = await self.channel.ask(
                ApiKey.ALLOCATE_PRODUCER_IDS, request, timeout_s=PRODUCER_IDS_TIMEOUT_MS / 1_000
            )
        except UnreachableError as error:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        if response.error_code:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"The controller gives out no producer ids: {ErrorCode(response.error_code).name}",
            )
        return response.producer_id_start, response.producer_id_len

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
            slices = self.data.logs.checkpoint_in_slices()
            while True:
                try:
                    next(slices)
                except StopIteration as end:
                    pending: PendingCheckpoint = end.value
                    break
                await asyncio.sleep(0)
            await self.threads.run(pending.run)

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
        for number, partition in enumerate(list(self.replicas.hosted()), 1):
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

    async def _retain_cold(self, partition: HostedReplica) -> None:
        """Apply retention to a log whose indexes a thread has to read."""

        def start(reads: Reads) -> PendingRemoval | None:
            if partition.error is not None:
                return None
            return partition.log.start_retention(now_ms=self.clock.wall_ms(), reads=reads)

        try:
            self._remove_later(partition, await answer(self.threads, start))
        except StorageError as error:
            self.take_offline(error)

    def _remove_later(self, partition: HostedReplica, removal: PendingRemoval | None) -> None:
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
                await self.threads.run(partial(self.data.remove_folder, folder))
            except StorageError as error:
                log.warning("folder_not_removed", path=folder, error=str(error), effect="the next start removes it")
