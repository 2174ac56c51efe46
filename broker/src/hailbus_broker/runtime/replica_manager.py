"""The replicas of this node: made, changed and removed as the committed metadata says."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from hailbus_broker.cluster.metadata.image import MetadataImage, ResourceType
from hailbus_broker.cluster.options import topic_value
from hailbus_broker.cluster.replication.in_sync import UNKNOWN, InSyncReplicas
from hailbus_broker.cluster.replication.read_replica import RACK_AWARE_SELECTOR
from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.followers import Followers, IsrChanges, ReplicationSettings
from hailbus_broker.runtime.log_settings import flush_settings, log_config
from hailbus_broker.runtime.replica import (
    FollowerReplica,
    HostedReplica,
    LeaderReplica,
    OfflineReplica,
    RemoteReplica,
    Replica,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta, PartitionState, TopicState
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.cluster.replication.in_sync import Proposal
    from hailbus_broker.log import LogConfig, PartitionLog
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.data_directory import DataDirectory
    from hailbus_broker.runtime.group_sync import GroupSync
    from hailbus_broker.runtime.log_settings import FlushSettings
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.replica import Hosting
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

SLICE: Final = 50
"""So many directories are made or renamed by a thread before the loop has its turn."""


class _TopicSettings(NamedTuple):
    """The same for all replicas of a topic."""

    log: LogConfig
    flush: FlushSettings
    min_isr: int


class Fetchers(Protocol):
    """What brings the records of other brokers' partitions."""

    def follow(self, replica: FollowerReplica) -> None:
        """Begin to fetch for a replica from its leader."""
        ...

    def leave(self, replica: FollowerReplica) -> None:
        """Stop to fetch for a replica: its log belongs to another role from now on."""
        ...


class ReplicaManager:
    """All replicas of the node.

    Args:
        node_id: Of the node: it leads the partitions whose leader it is.
        config: The broker's settings.
        machine: What the node runs on.
        data: Where the logs are.
        sync: Brings the logs to the disk.
        threads: Where directories are made and renamed.
        report: Told when the machine failed.
        remove_later: Removes renamed directories in the background.
        checkpoint: Writes down how far all logs have come.

    Attributes:
        topics: The replicas of each topic, by the index of their partitions.
        topics_by_id: The same, by the topic's id.
        touched_topics: Those of which the last change made, changed or removed a replica.
        count: How many replicas this node has.
        isr_changes: Of the partitions that this node leads.
        fetchers: Told which replicas follow; None as long as nothing can be fetched.
        submit_isr: Sends the controller an ISR that a leader proposes; set before the first partition is hosted.
    """

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        machine: Machine,
        data: DataDirectory,
        sync: GroupSync,
        threads: Threads,
        report: Callable[[StorageError], None],
        remove_later: Callable[[Sequence[str]], object],
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        self._node_id: Final = node_id
        self._config: Final = config
        self._machine: Final = machine
        self._data: Final = data
        self._sync: Final = sync
        self._threads: Final = threads
        self._report: Final = report
        self._remove_later: Final = remove_later
        self._checkpoint: Final = checkpoint
        self.topics: Final[dict[str, list[Replica]]] = {}
        self.topics_by_id: Final[dict[Uuid, list[Replica]]] = {}
        self.touched_topics: Final[dict[str, None]] = {}
        self.count = 0
        self._offline: Final[dict[tuple[Uuid, int], None]] = {}
        self._image = MetadataImage()
        self.isr_changes: Final = IsrChanges()
        self._settings: Final = ReplicationSettings(
            max_lag_ms=config["replica.lag.time.max.ms"],
            serves_racks=config["replica.selector.class"] == RACK_AWARE_SELECTOR,
        )
        self.fetchers: Fetchers | None = None
        self.submit_isr: Callable[[LeaderReplica, Proposal], None] = lambda *_: None

    # ------------------------------------------------------------------ look-ups

    def leader(self, topic: str, index: int) -> LeaderReplica | ErrorCode:
        """The replica that leads a partition, or the error code for clients that ask for it."""
        replicas = self.topics.get(topic)
        if replicas is None or not 0 <= index < len(replicas):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        replica = replicas[index]
        return replica if isinstance(replica, LeaderReplica) else replica.refusal

    def has(self, topic: str, index: int) -> bool:
        """Whether there is such a partition, whatever the role of its replica."""
        return 0 <= index < len(self.topics.get(topic, ()))

    def is_hosted(self, topic_id: Uuid, index: int) -> bool:
        """Whether this node has the log of a partition."""
        replicas = self.topics_by_id.get(topic_id, ())
        return index < len(replicas) and isinstance(replicas[index], HostedReplica)

    def leaders(self) -> Iterator[LeaderReplica]:
        """All replicas that lead their partition."""
        for replicas in self.topics.values():
            for replica in replicas:
                if isinstance(replica, LeaderReplica):
                    yield replica

    def hosted(self) -> Iterator[HostedReplica]:
        """All replicas of this node that have a log."""
        for replicas in self.topics.values():
            for replica in replicas:
                if isinstance(replica, HostedReplica):
                    yield replica

    def refuse(self, error: StorageError) -> None:
        """Take no more records, since the data directory is offline."""
        for replica in self.hosted():
            replica.refuse(error)
            if isinstance(replica, FollowerReplica) and self.fetchers is not None:
                self.fetchers.leave(replica)

    def check_in_sync(self) -> None:
        """Propose to the controller that followers leave the ISR which have been behind for too long."""
        for replica in self.leaders():
            replica.recount()

    def failure_of(self, topic_id: Uuid) -> StorageError | None:
        """Why a topic has replicas that stay offline until the next start, if it has."""
        for replica in self.topics_by_id.get(topic_id, ()):
            if isinstance(replica, OfflineReplica) and (topic_id, replica.index) not in self._offline:
                return replica.error
        return None

    def check_room(self, new_count: int) -> None:
        """Refuse partitions for which there are not enough file descriptors.

        Raises:
            ApiError: With a sentence that says what to do.
        """
        if not new_count:
            return
        hosted_count = self.count
        descriptors = self._machine.descriptors
        if new_count <= descriptors.room_for_partitions(hosted_count):
            return
        self._data.release_closed_segments()
        room = descriptors.room_for_partitions(hosted_count)
        if new_count > room:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"This broker has {hosted_count} partitions and may open {descriptors.limit} files: there is room "
                f"for {room} more partitions, not for {new_count}. Raise the limit of open files (ulimit -n), "
                "or delete topics.",
            )

    # ------------------------------------------------------------------ metadata

    def open_all(self, image: MetadataImage) -> None:
        """Host what the image has, from the logs that the data directory has loaded; at the start.

        Raises:
            StorageError: The machine failed.
        """
        self._image = image
        for topic in image.topics.values():
            settings = self._settings_of(topic.name, image)
            states = [state for state in topic.partitions if self._node_id in state.replicas]
            indexes = [state.index for state in states]
            found = self._data.host(topic.name, indexes, topic.topic_id, now_ms=self._machine.clock.wall_ms())
            self._add(topic, topic.partitions, dict(zip(indexes, found, strict=True)), settings)

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Act on committed changes, one delta after another."""
        self.touched_topics.clear()
        self._image = image
        for topic in delta.removed_topics:
            await self._remove(topic)
        for topic_id, indexes in delta.new_partitions.items():
            topic = image.topics_by_id[topic_id]
            for start in range(0, len(indexes), SLICE):
                await self._make(topic, [topic.partitions[index] for index in indexes[start : start + SLICE]], image)
        for topic_id, indexes in delta.changed_partitions.items():
            topic = image.topics_by_id[topic_id]
            settings = self._settings_of(topic.name, image)
            for index in indexes:
                await self._change(topic, topic.partitions[index], settings, image)
        touched = [name for kind, name in delta.configs if kind == ResourceType.TOPIC]
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs):
            self._settings.max_lag_ms = self._config["replica.lag.time.max.ms"]
            touched = list(self.topics)
        for name in touched:
            self._configure(name, image)
        if not delta.new_partitions:
            await self._retry_offline(image)

    @property
    def has_retriable(self) -> bool:
        """Whether there are replicas whose logs may be made as soon as there are file descriptors again."""
        return bool(self._offline)

    async def _retry_offline(self, image: MetadataImage) -> None:
        for topic_id, index in list(self._offline)[:SLICE]:
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                del self._offline[topic_id, index]
            else:
                await self._make(topic, [topic.partitions[index]], image)

    async def _make(self, topic: TopicState, states: Sequence[PartitionState], image: MetadataImage) -> None:
        """Make the logs of this node's new replicas; what cannot be made is offline."""
        indexes = [state.index for state in states if self._node_id in state.replicas]
        now_ms = self._machine.clock.wall_ms()
        settings = self._settings_of(topic.name, image)
        logs: list[PartitionLog | StorageError] = []
        if indexes:
            try:
                if any(self._data.is_noted(topic.name, index) for index in indexes):
                    await self._checkpoint()  # else a crash gives the new logs the offsets of what had their names
                logs = await self._threads.run(
                    partial(self._data.make, topic.name, indexes, topic.topic_id, settings.log, now_ms=now_ms)
                )
            except StorageError as error:
                logs = [error] * len(indexes)
        for made in logs:
            if isinstance(made, StorageError):
                self._report(made)
                break
        self._add(topic, states, dict(zip(indexes, logs, strict=True)), settings)

    def _settings_of(self, topic: str, image: MetadataImage) -> _TopicSettings:
        overrides = image.configs(ResourceType.TOPIC, topic)
        return _TopicSettings(
            log_config(overrides, self._config),
            flush_settings(topic, overrides, self._config),
            topic_value(overrides, self._config, "min.insync.replicas"),
        )

    def _add(
        self,
        topic: TopicState,
        states: Sequence[PartitionState],
        logs: Mapping[int, PartitionLog | StorageError],
        settings: _TopicSettings,
    ) -> None:
        """Take in partitions, with the logs of those that have a replica on this node, by index."""
        replicas = self.topics_by_id.get(topic.topic_id)
        if replicas is None:
            replicas = self.topics[topic.name] = self.topics_by_id[topic.topic_id] = []
        self.touched_topics[topic.name] = None
        for state in states:
            made = logs.get(state.index)
            replica: Replica
            self._offline.pop((topic.topic_id, state.index), None)
            if made is None:
                replica = RemoteReplica(topic=topic.name, topic_id=topic.topic_id, index=state.index)
            elif isinstance(made, StorageError):
                replica = OfflineReplica(topic=topic.name, topic_id=topic.topic_id, index=state.index, error=made)
                if made.is_out_of_descriptors:
                    self._offline[topic.topic_id, state.index] = None
            else:
                self._data.add(topic.name, state.index, topic.topic_id, made)
                replica = self._replica(topic, state, made, settings)
            if state.index < len(replicas):
                self.count += isinstance(replicas[state.index], RemoteReplica) - (made is None)
                replicas[state.index] = replica
            else:
                assert state.index == len(replicas), (topic.name, state.index, len(replicas))
                replicas.append(replica)
                self.count += made is not None

    def _replica(
        self, topic: TopicState, state: PartitionState, partition_log: PartitionLog, settings: _TopicSettings
    ) -> Replica:
        partition_log.config = settings.log
        if len(state.replicas) == 1:
            # nobody else has records that this replica might have to give up
            partition_log.advance_high_watermark(partition_log.log_end_offset)
        hosting: Hosting = {
            "topic": topic.name,
            "topic_id": topic.topic_id,
            "index": state.index,
            "leader_epoch": state.leader_epoch,
            "log": partition_log,
            "sync": self._sync,
            "report": self._report,
            "flush_messages": settings.flush.messages,
            "flush_ms": settings.flush.ms,
        }
        if state.leader != self._node_id:
            follower = FollowerReplica(leader_id=state.leader, **hosting)
            if self.fetchers is not None:
                self.fetchers.follow(follower)
            return follower
        leader = LeaderReplica(followers=self._followers(state, partition_log, settings), **hosting)
        if leader.followers is not None:
            partition_log.begin_leader_epoch(state.leader_epoch)
            leader.flush()  # and count then what is on the disk
        return leader

    def _followers(
        self, state: PartitionState, partition_log: PartitionLog, settings: _TopicSettings
    ) -> Followers | None:
        if len(state.replicas) == 1:
            return None
        in_sync = InSyncReplicas(
            node_id=self._node_id,
            leader_epoch=state.leader_epoch,
            epoch_start_offset=partition_log.log_end_offset,
            replicas=state.replicas,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            now_ms=self._machine.clock.now_ms(),
            is_eligible=self._is_eligible,
        )
        return Followers(
            in_sync,
            clock=self._machine.clock,
            settings=self._settings,
            min_isr=settings.min_isr,
            submit=self.submit_isr,
            is_alive=self._is_alive,
            isr_changes=self.isr_changes,
        )

    def _is_alive(self, node_id: int) -> bool:
        """Whether a broker is registered and not fenced."""
        broker = self._image.brokers.get(node_id)
        return broker is not None and not broker.fenced

    def _is_eligible(self, node_id: int, broker_epoch: int) -> bool:
        """Whether a broker may join an ISR: the controller would refuse another one."""
        broker = self._image.brokers.get(node_id)
        return broker is not None and broker.is_active and broker_epoch in {UNKNOWN, broker.broker_epoch}

    async def _change(
        self, topic: TopicState, state: PartitionState, settings: _TopicSettings, image: MetadataImage
    ) -> None:
        replicas = self.topics_by_id[topic.topic_id]
        before = replicas[state.index]
        self.touched_topics[topic.name] = None
        if self._node_id not in state.replicas:
            if not isinstance(before, RemoteReplica):
                replicas[state.index] = RemoteReplica(topic=topic.name, topic_id=topic.topic_id, index=state.index)
                self.count -= 1
                self._take_out(topic, [before])
                await self._delete(topic, [before])
        elif isinstance(before, RemoteReplica):
            await self._make(topic, [state], image)
        elif isinstance(before, LeaderReplica) and state.leader == self._node_id:
            self._lead_on(before, state, settings)
        elif isinstance(before, HostedReplica):
            if isinstance(before, FollowerReplica):
                if (before.leader_id, before.leader_epoch) == (state.leader, state.leader_epoch):
                    return
                if self.fetchers is not None:
                    self.fetchers.leave(before)
            before.resign()
            replicas[state.index] = self._replica(topic, state, before.log, settings)

    def _lead_on(self, leader: LeaderReplica, state: PartitionState, settings: _TopicSettings) -> None:
        """Act on a change of a partition that this node leads before and after it."""
        followers = leader.followers
        if followers is None or len(state.replicas) == 1 or state.leader_epoch != leader.leader_epoch:
            if followers is not None:
                self.isr_changes.note(followers.in_sync.isr, state.isr)
            leader.follow_up(self._followers(state, leader.log, settings), state.leader_epoch)
            return
        followers.committed(state.replicas, state.isr, state.partition_epoch)
        leader.recount()

    def _configure(self, name: str, image: MetadataImage) -> None:
        settings = self._settings_of(name, image)
        for replica in self.topics.get(name, ()):
            if not isinstance(replica, HostedReplica):
                continue
            replica.log.config = settings.log
            replica.flush_messages, replica.flush_ms = settings.flush
            if isinstance(replica, LeaderReplica) and replica.followers is not None:
                replica.followers.min_isr = settings.min_isr
                replica.recount()

    async def _remove(self, topic: TopicState) -> None:
        """Take a topic's replicas away; its directories are renamed before another topic may have the name."""
        replicas = self.topics_by_id.pop(topic.topic_id, None)
        if replicas is None:
            return
        del self.topics[topic.name]
        self.touched_topics[topic.name] = None
        for start in range(0, len(replicas), SLICE):
            self._take_out(topic, replicas[start : start + SLICE])
            await asyncio.sleep(0)
        self.count -= sum(not isinstance(replica, RemoteReplica) for replica in replicas)
        await self._delete(topic, replicas)

    async def _delete(self, topic: TopicState, replicas: list[Replica]) -> None:
        """Rename the directories of replicas that were taken out, and remove them later."""
        while replicas:
            part, replicas[:SLICE] = replicas[:SLICE], []
            indexes = [replica.index for replica in part if isinstance(replica, HostedReplica)]
            rename = self._data.prepare_removal(topic.name, indexes)
            try:
                folders = await self._threads.run(partial(_rename_and_close, rename, part))
            except StorageError as error:
                self._report(error)
                return
            self._remove_later(folders)

    def _take_out(self, topic: TopicState, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            if isinstance(replica, HostedReplica):
                if isinstance(replica, FollowerReplica) and self.fetchers is not None:
                    self.fetchers.leave(replica)
                replica.delete()
                self._data.take_out(topic.name, replica.index)


def _rename_and_close(rename: Callable[[], list[str]], replicas: list[Replica]) -> list[str]:
    """Rename directories, then let go of their replicas: closing files that are deleted may wait for the disk."""
    folders = rename()
    replicas.clear()
    return folders
