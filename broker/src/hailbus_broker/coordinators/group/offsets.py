"""Committed offsets: durable in OffsetCommitValue records, one per group, topic and partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicGroup, ClassicState, Member
from hailbus_broker.coordinators.outcome import CoordinatorRecord, Outcome
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.definitions.group_metadata_key import GroupMetadataKey
from hailbus_broker.protocol.definitions.offset_commit_key import OffsetCommitKey
from hailbus_broker.protocol.definitions.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from hailbus_broker.protocol.definitions.offset_commit_value import OffsetCommitValue
from hailbus_broker.protocol.definitions.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
    from hailbus_broker.protocol.schema import Uuid

OFFSET_COMMIT_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Where a group would resume."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: Uuid
    order: int = 0
    """Of its record among all records of the partition: a later commit stands against an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of a commit. `refusal` is what the server found wrong with it already."""

    topic: str
    topic_id: Uuid
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    refusal: ErrorCode = ErrorCode.NONE


GroupOffsets = dict[tuple[str, int], CommittedOffset]


class OffsetsMixin:
    """The part of a group shard that deals with offsets."""

    config: GroupConfig
    groups: dict[str, ClassicGroup]
    offsets: dict[str, GroupOffsets]
    consumer_groups: dict[str, ConsumerGroup]
    pending_offsets: dict[int, dict[tuple[str, str, int], CommittedOffset]]
    replay_count: int

    def check_consumer_commit(self, group: ConsumerGroup, member_id: str, member_epoch: int) -> None:
        """See `ConsumerGroupsMixin`."""
        raise NotImplementedError

    def consumer_group_removal(self, group: ConsumerGroup) -> list[CoordinatorRecord]:
        """See `ConsumerGroupsMixin`."""
        raise NotImplementedError

    def _known_member(self, group: ClassicGroup, member_id: str, group_instance_id: str | None) -> Member:
        raise NotImplementedError

    def _touch(self, group: ClassicGroup, member: Member, now_ms: int, *, timeout_ms: int | None = None) -> None:
        raise NotImplementedError

    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        entries: Sequence[OffsetToCommit],
        token: object,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Outcome:
        """Remember offsets for a group.

        Args:
            group_id: Any name; a group that has no members can be committed to without joining it.
            generation: Of the member, or -1.
            member_id: Of the member, or empty.
            group_instance_id: Of a static member.
            entries: What to commit.
            token: Of the request.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC, from which on the offsets age.
        """
        out = Outcome(is_atomic=True)
        code = ErrorCode.NONE
        try:
            self._check_commit(group_id, generation, member_id, group_instance_id, now_ms)
        except ApiError as error:
            code = error.code
        topics: dict[tuple[str, Uuid], OffsetCommitResponseTopic] = {}
        for entry in entries:
            topic = topics.setdefault(
                (entry.topic, entry.topic_id), OffsetCommitResponseTopic(name=entry.topic, topic_id=entry.topic_id)
            )
            result = code or entry.refusal
            if not result and len(entry.metadata) > self.config.offset_metadata_max_bytes:
                result = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not result:
                out.records.append(offset_record(group_id, entry, wall_ms))
            topic.partitions.append(OffsetCommitResponsePartition(partition_index=entry.partition, error_code=result))
        out.replies.append((token, OffsetCommitResponse(topics=list(topics.values()))))
        return out

    def _check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            self.check_consumer_commit(consumer_group, member_id, generation)
            return
        group = self.groups.get(group_id)
        if group is None or group.state is ClassicState.DEAD:
            if generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            return
        if generation < 0 and group.state is ClassicState.EMPTY:
            return
        if generation >= 0 or member_id or group_instance_id is not None:
            member = self._known_member(group, member_id, group_instance_id)
            if generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            self._touch(group, member, now_ms)
        elif group.state is not ClassicState.EMPTY:
            # A commit from outside would be undone by the members' next one.
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is ClassicState.COMPLETING_REBALANCE and not is_transactional:
            # A consumer rejoins and commits again. A producer takes the code for the end of its transaction.
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Whether a member of a consumer group may read offsets.

        Raises:
            ApiError: It is unknown, or its epoch is not its present one.
        """
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None and (member_id or member_epoch >= 0):
            self.check_consumer_commit(consumer_group, member_id or "", member_epoch)

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """A group's offset for one partition."""
        offsets = self.offsets.get(group_id)
        return None if offsets is None else offsets.get((topic, partition))

    def all_committed(self, group_id: str) -> GroupOffsets:
        """All offsets of a group."""
        return self.offsets.get(group_id, {})

    def replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int) -> None:
        """Take in a commit or its removal; one in a transaction waits for its end."""
        self.replay_count += 1
        if value is None:
            offsets = self.offsets.get(key.group)
            if offsets is not None:
                offsets.pop((key.topic, key.partition), None)
                if not offsets:
                    del self.offsets[key.group]
            return
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.topic_id,
            self.replay_count,
        )
        if producer_id >= 0:
            pending = self.pending_offsets.setdefault(producer_id, {})
            pending[key.group, key.topic, key.partition] = committed
        else:
            self.offsets.setdefault(key.group, {})[key.topic, key.partition] = committed

    def replay_end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take in a transaction's marker: its offsets count now, or never."""
        pending = self.pending_offsets.pop(producer_id, {})
        if not is_commit:
            return
        for (group_id, topic, partition), committed in pending.items():
            offsets = self.offsets.setdefault(group_id, {})
            known = offsets.get((topic, partition))
            if known is None or known.order < committed.order:
                offsets[topic, partition] = committed

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change a group's offset."""
        return any((group_id, topic, partition) in pending for pending in self.pending_offsets.values())

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        entries: Sequence[OffsetToCommit],
        token: object,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Outcome:
        """Remember offsets when a transaction commits.

        Args:
            request: As it came; that its transaction has this partition was checked.
            entries: What to commit.
            token: Of the request.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC, from which on the offsets age.
        """
        out = Outcome(producer=(request.producer_id, request.producer_epoch), is_atomic=True)
        code = ErrorCode.NONE
        try:
            if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
                self._check_commit(
                    request.group_id,
                    request.generation_id,
                    request.member_id,
                    request.group_instance_id,
                    now_ms,
                    is_transactional=True,
                )
        except ApiError as error:
            # Producers know only the classic protocol's word for it.
            code = ErrorCode.ILLEGAL_GENERATION if error.code is ErrorCode.STALE_MEMBER_EPOCH else error.code
        topics: dict[str, TxnOffsetCommitResponseTopic] = {}
        for entry in entries:
            result = code or entry.refusal
            if not result and len(entry.metadata) > self.config.offset_metadata_max_bytes:
                result = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not result:
                out.records.append(offset_record(request.group_id, entry, wall_ms))
            topic = topics.setdefault(entry.topic, TxnOffsetCommitResponseTopic(name=entry.topic))
            topic.partitions.append(
                TxnOffsetCommitResponsePartition(partition_index=entry.partition, error_code=result)
            )
        out.replies.append((token, TxnOffsetCommitResponse(topics=list(topics.values()))))
        return out

    def delete_group(self, group_id: str) -> Outcome:
        """Forget a group and its offsets.

        Raises:
            ApiError: It has members, or there is no such group.
        """
        group = self.groups.get(group_id)
        consumer_group = self.consumer_groups.get(group_id)
        if not self.knows(group_id):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if (group is not None and group.state is not ClassicState.EMPTY) or (
            consumer_group is not None and consumer_group.members
        ):
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members.")
        out = Outcome()
        out.records += [
            CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in sorted(self.offsets.get(group_id, {}))
        ]
        if consumer_group is not None:
            out.records += self.consumer_group_removal(consumer_group)
        else:
            out.records.append(CoordinatorRecord(GroupMetadataKey(group=group_id), None))
        return out

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> Outcome:
        """Forget some offsets of a group."""
        out = Outcome()
        known = self.offsets.get(group_id, {})
        out.records = [
            CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
            for topic, partition in partitions
            if (topic, partition) in known
        ]
        return out

    def knows(self, group_id: str) -> bool:
        """Whether there is such a group, with members or only with offsets."""
        return group_id in self.groups or group_id in self.offsets or group_id in self.consumer_groups

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics that members of a group want; None if that cannot be known because they do not consume."""
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            return frozenset().union(
                *(
                    member.subscribed_topics | consumer_group.regex_topics.get(member.subscribed_regex, frozenset())
                    for member in consumer_group.members.values()
                )
            )
        group = self.groups.get(group_id)
        if group is None or not group.members:
            return frozenset()
        if group.protocol_type != "consumer":
            return None
        topics: set[str] = set()
        for member in group.members.values():
            for _, metadata in member.protocols:
                topics.update(subscription_topics(metadata))
        return frozenset(topics)

    def expire_offsets(self, *, wall_ms: int) -> Outcome:
        """Forget offsets not needed for `offsets.retention.minutes`, and groups that have none left (KIP-211).

        A group without members and offsets goes at once, unless an open transaction may still commit offsets for it.

        Offsets of a group with members stay while it is subscribed to their topic; otherwise they count from the
        moment at which the group became empty, or from their commit, whichever is later.
        """
        out = Outcome()
        pending = {key for of_producer in self.pending_offsets.values() for key in of_producer}
        in_transactions = {group_id for group_id, _, _ in pending}
        limit_ms = wall_ms - self.config.offsets_retention_ms
        for group_id in sorted(self.offsets):
            subscribed = self.subscribed_topics(group_id)
            if subscribed is None:
                continue
            group = self.groups.get(group_id)
            consumer_group = self.consumer_groups.get(group_id)
            has_members = any(other is not None and other.members for other in (group, consumer_group))
            empty_since_ms = group.state_since_ms if group is not None and not has_members else 0
            expired = [
                (topic, partition)
                for (topic, partition), committed in sorted(self.offsets[group_id].items())
                if topic not in subscribed
                and max(committed.commit_timestamp_ms, empty_since_ms) <= limit_ms
                and (group_id, topic, partition) not in pending
            ]
            out.records += [
                CoordinatorRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
                for topic, partition in expired
            ]
            if len(expired) == len(self.offsets[group_id]) and not has_members and group_id not in in_transactions:
                if consumer_group is not None:
                    out.records += self.consumer_group_removal(consumer_group)
                elif group is not None:
                    out.records.append(CoordinatorRecord(GroupMetadataKey(group=group_id), None))
            if expired:
                out.facts.append(("offsets_expired", {"group": group_id, "count": len(expired)}))
        for group_id, group in sorted(self.groups.items()):
            is_free = group_id not in self.offsets and group_id not in in_transactions
            if group.state is ClassicState.EMPTY and not group.pending and is_free:
                out.records.append(CoordinatorRecord(GroupMetadataKey(group=group_id), None))
        for group_id, consumer_group in sorted(self.consumer_groups.items()):
            is_free = group_id not in self.offsets and group_id not in in_transactions
            if not consumer_group.members and is_free:
                out.records += self.consumer_group_removal(consumer_group)
        return out

    def forget_topic(self, topic: str) -> Outcome:
        """A topic was deleted: its offsets go, or a topic of the same name would inherit them."""
        out = Outcome()
        for group_id in sorted(self.offsets):
            out.records += [
                CoordinatorRecord(OffsetCommitKey(group=group_id, topic=name, partition=partition), None)
                for name, partition in sorted(self.offsets[group_id])
                if name == topic
            ]
        return out


def subscription_topics(metadata: bytes) -> list[str]:
    """The topics in a consumer's subscription; none if it is not one."""
    if len(metadata) < 2:
        return []
    version = min(int.from_bytes(metadata[:2], "big", signed=True), 3)
    try:
        return codec.decode(ConsumerProtocolSubscription, metadata, version, position=2).topics
    except ProtocolError:
        return []


def offset_record(group_id: str, entry: OffsetToCommit, wall_ms: int) -> CoordinatorRecord:
    """The record that makes a commit durable."""
    value = OffsetCommitValue(
        offset=entry.offset,
        leader_epoch=entry.leader_epoch,
        metadata=entry.metadata,
        commit_timestamp=wall_ms,
        topic_id=entry.topic_id or ZERO_UUID,
    )
    key = OffsetCommitKey(group=group_id, topic=entry.topic, partition=entry.partition)
    return CoordinatorRecord(key, value, OFFSET_COMMIT_VERSION)
