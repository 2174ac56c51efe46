"""The part of the image that holds topics and their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.names import (
    INTERNAL_TOPICS,
    NO_LEADER,
    NO_LEADER_CHANGE,
    InconsistentRecordError,
)
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.protocol.definitions.clear_elr_record import ClearElrRecord
    from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
    from hailbus_broker.protocol.schema import Message, Uuid

MIGRATING_DIRECTORY: Final = bytes(16)
"""In place of a directory's id: the broker has chosen one and not said which."""
UNASSIGNED_DIRECTORY: Final = bytes(15) + b"\x01"
"""In place of a directory's id: the broker has not chosen one yet."""
LOST_DIRECTORY: Final = bytes(15) + b"\x02"
"""In place of a directory's id: it is offline."""


class LeaderRecovery(IntEnum):
    """Whether a leader was elected although it may miss committed records, and has not repaired its state yet."""

    NO_CHANGE = -1
    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Replicas and leader of a partition. A change makes another state.

    Attributes:
        replicas: Broker ids. The first one is the preferred leader.
        leader: Broker id, or -1.
        directories: Ids of the log directories, one per replica in the same order.
        adding_replicas: Those that a reassignment adds. They are in `replicas`, too.
        removing_replicas: Those that a reassignment will remove. They are still in `replicas`.
        elr: Eligible leader replicas (KIP-966). They left the ISR while it was smaller than `min.insync.replicas`, so
            they have every committed record.
        last_known_elr: The last leader of a partition that has neither ISR nor ELR.
    """

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[Uuid, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    recovery: LeaderRecovery = LeaderRecovery.RECOVERED

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment of this partition is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def preferred_leader(self) -> int:
        """The first replica, or -1 if there is none."""
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory(self, broker_id: int) -> Uuid:
        """Return the id of the directory that holds a replica; what is not known counts as migrating."""
        position = self.replicas.index(broker_id)
        return self.directories[position] if position < len(self.directories) else MIGRATING_DIRECTORY

    @classmethod
    def from_record(cls, record: PartitionRecord) -> PartitionState:
        """Return the state that a record describes."""
        return cls(
            index=record.partition_id,
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=_directories(record.directories, len(record.replicas)),
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            recovery=LeaderRecovery(record.leader_recovery_state),
        )

    def to_record(self, topic_id: Uuid) -> PartitionRecord:
        """Return the record that describes this state. As in Apache Kafka an empty ELR is left out."""
        return PartitionRecord(
            partition_id=self.index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=int(self.recovery),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.elr) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )

    def merge(self, record: PartitionChangeRecord) -> PartitionState:
        """Return the state after a change. The partition epoch grows with each, the leader epoch with each election."""
        has_election = record.leader != NO_LEADER_CHANGE
        replicas = self.replicas if record.replicas is None else tuple(record.replicas)
        if record.directories is not None:
            directories = _directories(record.directories, len(replicas))
        elif record.replicas is None:
            directories = self.directories
        else:
            by_broker = dict(zip(self.replicas, self.directories, strict=False))
            directories = tuple(by_broker.get(broker_id, MIGRATING_DIRECTORY) for broker_id in replicas)
        recovery = LeaderRecovery(record.leader_recovery_state)
        return replace(
            self,
            replicas=replicas,
            directories=directories,
            isr=_changed(self.isr, record.isr),
            leader=record.leader if has_election else self.leader,
            leader_epoch=self.leader_epoch + has_election,
            partition_epoch=self.partition_epoch + 1,
            adding_replicas=_changed(self.adding_replicas, record.adding_replicas),
            removing_replicas=_changed(self.removing_replicas, record.removing_replicas),
            elr=_changed(self.elr, record.eligible_leader_replicas),
            last_known_elr=_changed(self.last_known_elr, record.last_known_elr),
            recovery=self.recovery if recovery is LeaderRecovery.NO_CHANGE else recovery,
        )


def _changed(before: tuple[int, ...], after: Sequence[int] | None) -> tuple[int, ...]:
    return before if after is None else tuple(after)


def _directories(found: Sequence[Uuid], replica_count: int) -> tuple[Uuid, ...]:
    # Records of old versions have no directories.
    return tuple(bytes(one) for one in found) or (MIGRATING_DIRECTORY,) * replica_count


@dataclass(slots=True, kw_only=True)
class TopicState:
    """A topic and its partitions, which are numbered from 0 without gaps."""

    name: str
    topic_id: Uuid
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is the broker's own."""
        return self.name in INTERNAL_TOPICS


class Topics:
    """All topics. A copy shares the topics with its original; each makes its own of a topic before it changes it.

    Attributes:
        by_name: Every topic. Only the methods here change it.
        by_id: Every topic, too.
        partition_count: Of all topics.
    """

    def __init__(self) -> None:
        self.by_name: Final[dict[str, TopicState]] = {}
        self.by_id: Final[dict[Uuid, TopicState]] = {}
        self.partition_count = 0
        self._own: Final[set[Uuid]] = set()

    def copy(self) -> Topics:
        """Return topics that change by themselves; it costs a reference per topic, not per partition."""
        other = Topics()
        other.by_name.update(self.by_name)
        other.by_id.update(self.by_id)
        other.partition_count = self.partition_count
        self._own.clear()
        return other

    def get(self, topic_id: Uuid, index: int) -> PartitionState | None:
        """Return a partition's state; None if there is no such partition."""
        topic = self.by_id.get(topic_id)
        return None if topic is None or not 0 <= index < len(topic.partitions) else topic.partitions[index]

    def add(self, record: TopicRecord) -> None:
        """Apply a new topic."""
        if record.topic_id in self.by_id or record.name in self.by_name:
            raise InconsistentRecordError(f"a metadata record creates the topic '{record.name}', which exists already")
        topic_id = bytes(record.topic_id)
        self.by_name[record.name] = self.by_id[topic_id] = TopicState(name=record.name, topic_id=topic_id)
        self._own.add(topic_id)

    def add_partition(self, record: PartitionRecord) -> None:
        """Apply a new partition."""
        topic = self._to_change(record.topic_id)
        if record.partition_id != len(topic.partitions):
            raise InconsistentRecordError(
                f"a metadata record creates partition {record.partition_id} of the topic '{topic.name}', "
                f"which has {len(topic.partitions)} partitions"
            )
        self.partition_count += 1
        topic.partitions.append(PartitionState.from_record(record))

    def change_partition(self, record: PartitionChangeRecord) -> None:
        """Apply a change of a partition."""
        topic = self._to_change(record.topic_id)
        if not 0 <= record.partition_id < len(topic.partitions):
            raise InconsistentRecordError(
                f"a metadata record changes partition {record.partition_id} of the topic '{topic.name}', "
                f"which has {len(topic.partitions)} partitions"
            )
        topic.partitions[record.partition_id] = topic.partitions[record.partition_id].merge(record)

    def remove(self, record: RemoveTopicRecord) -> TopicState:
        """Apply the end of a topic, and return it as it was."""
        topic = self.by_id.pop(record.topic_id, None)
        if topic is None:
            raise InconsistentRecordError(f"a metadata record removes the unknown topic {record.topic_id.hex()}")
        self.partition_count -= len(topic.partitions)
        del self.by_name[topic.name]
        self._own.discard(topic.topic_id)
        return topic

    def partitions_with_elr(self, record: ClearElrRecord) -> Iterator[tuple[Uuid, int]]:
        """Return topic id and index of the partitions that a record concerns. An empty name stands for all topics."""
        topics = self.by_name.values() if not record.topic_name else filter(None, [self.by_name.get(record.topic_name)])
        for topic in topics:
            for state in topic.partitions:
                if state.elr or state.last_known_elr:
                    yield topic.topic_id, state.index

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same topics from nothing."""
        for _, topic in sorted(self.by_name.items()):
            yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for state in topic.partitions:
                yield state.to_record(topic.topic_id)

    def _to_change(self, topic_id: Uuid) -> TopicState:
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise InconsistentRecordError(f"a metadata record changes the unknown topic {bytes(topic_id).hex()}")
        if topic.topic_id not in self._own:
            topic = TopicState(name=topic.name, topic_id=topic.topic_id, partitions=list(topic.partitions))
            self.by_name[topic.name] = self.by_id[topic.topic_id] = topic
            self._own.add(topic.topic_id)
        return topic
