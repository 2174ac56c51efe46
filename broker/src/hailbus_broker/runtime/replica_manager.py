"""The replicas of this node: made, changed and removed as the committed metadata says."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hailbus_broker.cluster.metadata.image import MetadataImage, ResourceType
from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.log_settings import flush_settings, log_config
from hailbus_broker.runtime.replica import FollowerReplica, LeaderReplica, OfflineReplica, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta, PartitionState, TopicState
    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.log import LogConfig, PartitionLog
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.data_directory import DataDirectory
    from hailbus_broker.runtime.group_sync import GroupSync
    from hailbus_broker.runtime.log_settings import FlushSettings
    from hailbus_broker.runtime.machine import Machine
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

SLICE: Final = 50
"""So many directories are made or renamed by a thread before the loop has its turn."""


class _TopicSettings(NamedTuple):
    """The same for all replicas of a topic."""

    log: LogConfig
    flush: FlushSettings


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

    Attributes:
        topics: The replicas of each topic, by the index of their partitions.
        topics_by_id: The same, by the topic's id.
        touched_topics: Those of which the last change made, changed or removed a replica.
        count: How many replicas there are.
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
    ) -> None:
        self._node_id: Final = node_id
        self._config: Final = config
        self._machine: Final = machine
        self._data: Final = data
        self._sync: Final = sync
        self._threads: Final = threads
        self._report: Final = report
        self._remove_later: Final = remove_later
        self.topics: Final[dict[str, list[Replica]]] = {}
        self.topics_by_id: Final[dict[Uuid, list[Replica]]] = {}
        self.touched_topics: Final[dict[str, None]] = {}
        self.count = 0
        self._offline: Final[dict[tuple[Uuid, int], None]] = {}

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

    def leaders(self) -> Iterator[LeaderReplica]:
        """All replicas that lead their partition."""
        for replicas in self.topics.values():
            for replica in replicas:
                if isinstance(replica, LeaderReplica):
                    yield replica

    def refuse(self, error: StorageError) -> None:
        """Take no more records, since the data directory is offline."""
        for replica in self.leaders():
            replica.refuse(error)

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
        for topic in image.topics.values():
            indexes = [state.index for state in topic.partitions]
            logs = self._data.host(topic.name, indexes, topic.topic_id, now_ms=self._machine.clock.wall_ms())
            self._add(topic, topic.partitions, logs, self._settings_of(topic.name, image))

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Act on committed changes, one delta after another."""
        self.touched_topics.clear()
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
                self._change(topic, topic.partitions[index], settings)
        touched = [name for kind, name in delta.configs if kind == ResourceType.TOPIC]
        if any(kind == ResourceType.BROKER for kind, _ in delta.configs):
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
        """Make the logs of new partitions; what cannot be made is offline."""
        indexes = [state.index for state in states]
        now_ms = self._machine.clock.wall_ms()
        settings = self._settings_of(topic.name, image)
        logs = await self._threads.run(
            partial(self._data.make, topic.name, indexes, topic.topic_id, settings.log, now_ms=now_ms)
        )
        for made in logs:
            if isinstance(made, StorageError):
                self._report(made)
                break
        self._add(topic, states, logs, settings)

    def _settings_of(self, topic: str, image: MetadataImage) -> _TopicSettings:
        overrides = image.configs(ResourceType.TOPIC, topic)
        return _TopicSettings(log_config(overrides, self._config), flush_settings(topic, overrides, self._config))

    def _add(
        self,
        topic: TopicState,
        states: Sequence[PartitionState],
        logs: Sequence[PartitionLog | StorageError],
        settings: _TopicSettings,
    ) -> None:
        replicas = self.topics_by_id.get(topic.topic_id)
        if replicas is None:
            replicas = self.topics[topic.name] = self.topics_by_id[topic.topic_id] = []
        self.touched_topics[topic.name] = None
        for state, made in zip(states, logs, strict=True):
            replica: Replica
            self._offline.pop((topic.topic_id, state.index), None)
            if isinstance(made, StorageError):
                replica = OfflineReplica(topic=topic.name, topic_id=topic.topic_id, index=state.index, error=made)
                if made.is_out_of_descriptors:
                    self._offline[topic.topic_id, state.index] = None
            else:
                self._data.add(topic.name, state.index, topic.topic_id, made)
                replica = self._replica(topic, state, made, settings)
            if state.index < len(replicas):
                replicas[state.index] = replica
            else:
                assert state.index == len(replicas), (topic.name, state.index, len(replicas))
                replicas.append(replica)
                self.count += 1

    def _replica(
        self, topic: TopicState, state: PartitionState, partition_log: PartitionLog, settings: _TopicSettings
    ) -> Replica:
        partition_log.config = settings.log
        if state.leader != self._node_id:
            return FollowerReplica(
                topic=topic.name,
                topic_id=topic.topic_id,
                index=state.index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                log=partition_log,
            )
        return LeaderReplica(
            topic=topic.name,
            topic_id=topic.topic_id,
            index=state.index,
            leader_epoch=state.leader_epoch,
            log=partition_log,
            sync=self._sync,
            report=self._report,
            flush_messages=settings.flush.messages,
            flush_ms=settings.flush.ms,
        )

    def _change(self, topic: TopicState, state: PartitionState, settings: _TopicSettings) -> None:
        replicas = self.topics_by_id[topic.topic_id]
        before = replicas[state.index]
        self.touched_topics[topic.name] = None
        if isinstance(before, OfflineReplica):
            return
        if isinstance(before, LeaderReplica):
            if state.leader == self._node_id:
                before.leader_epoch = state.leader_epoch
                before.wake_readers()
                return
            before.resign()
        replicas[state.index] = self._replica(topic, state, before.log, settings)

    def _configure(self, name: str, image: MetadataImage) -> None:
        settings = self._settings_of(name, image)
        for replica in self.topics.get(name, ()):
            if isinstance(replica, OfflineReplica):
                continue
            replica.log.config = settings.log
            if isinstance(replica, LeaderReplica):
                replica.flush_messages, replica.flush_ms = settings.flush

    async def _remove(self, topic: TopicState) -> None:
        """Take a topic's replicas away; its directories are renamed before another topic may have the name."""
        replicas = self.topics_by_id.pop(topic.topic_id, None)
        if replicas is None:
            return
        del self.topics[topic.name]
        self.touched_topics[topic.name] = None
        self.count -= len(replicas)
        for start in range(0, len(replicas), SLICE):
            self._take_out(topic, replicas[start : start + SLICE])
            await asyncio.sleep(0)
        while replicas:
            part, replicas[:SLICE] = replicas[:SLICE], []
            indexes = [replica.index for replica in part if not isinstance(replica, OfflineReplica)]
            rename = self._data.prepare_removal(topic.name, indexes)
            try:
                folders = await self._threads.run(partial(_rename_and_close, rename, part))
            except StorageError as error:
                self._report(error)
                return
            self._remove_later(folders)

    def _take_out(self, topic: TopicState, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            if isinstance(replica, LeaderReplica):
                replica.delete()
            if not isinstance(replica, OfflineReplica):
                self._data.take_out(topic.name, replica.index)


def _rename_and_close(rename: Callable[[], list[str]], replicas: list[Replica]) -> list[str]:
    """Rename directories, then let go of their replicas: closing files that are deleted may wait for the disk."""
    folders = rename()
    replicas.clear()
    return folders
