"""Committed offsets: durable in OffsetCommitValue records, one per group, topic and partition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.classic_protocol import known_member
from hailbus_broker.coordinators.group.decision import GroupDecision
from hailbus_broker.coordinators.outcome import CoordinatorRecord, PreparedRecords
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
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, RecordToWrite, build_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
    from hailbus_broker.protocol.schema import Message, Uuid

OFFSET_COMMIT_VERSION: Final = 4
OFFSET_KEY_TYPES: Final[dict[int, type[Message]]] = {0: OffsetCommitKey, 1: OffsetCommitKey}


class CommittedOffset(NamedTuple):
    """Where a group would resume."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: Uuid
    order: int = 0
    """Number of its record among all of the partition: the end of a transaction does not replace a later commit."""


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


class CommittedOffsets:
    """The committed offsets of all groups of a partition.

    Attributes:
        by_group: Offsets that are in force.
        pending: By producer id: offsets of transactions that are open, by group, topic and partition.
    """

    def __init__(self, state: GroupState) -> None:
        self._state: Final = state
        self._config: Final = state.config
        self.by_group: Final[dict[str, GroupOffsets]] = {}
        self.pending: Final[dict[int, dict[tuple[str, str, int], CommittedOffset]]] = {}
        self._replay_count = 0

    # ------------------------------------------------------------------ commit

    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        entries: Sequence[OffsetToCommit],
        token: Token[OffsetCommitResponse],
        *,
        now_ms: int,
        wall_ms: int,
        prepared: PreparedRecords | None = None,
    ) -> GroupDecision:
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
            prepared: The records of these entries, if `prepare` has made them.
        """
        decision = GroupDecision(self._state, now_ms=now_ms, wall_ms=wall_ms, request=token)
        decision.is_atomic = True
        code = ErrorCode.NONE
        try:
            self._check_member(group_id, generation, member_id, group_instance_id, decision)
        except ApiError as error:
            code = error.code
        if prepared is not None and not code:
            decision.prepared = prepared
            assert isinstance(prepared.response, OffsetCommitResponse)
            decision.reply(token, prepared.response)
            return decision
        results = [code or self._refusal(entry) for entry in entries]
        self._add_records(group_id, entries, results, decision)
        decision.reply(token, commit_response(entries, results))
        return decision

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        entries: Sequence[OffsetToCommit],
        token: Token[TxnOffsetCommitResponse],
        *,
        now_ms: int,
        wall_ms: int,
        prepared: PreparedRecords | None = None,
    ) -> GroupDecision:
        """Remember offsets when a transaction commits.

        Args:
            request: The client's request. The caller has checked that this partition is part of its transaction.
            entries: What to commit.
            token: Of the request.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC, from which on the offsets age.
            prepared: The records of these entries, if `prepare` has made them.
        """
        decision = GroupDecision(self._state, now_ms=now_ms, wall_ms=wall_ms, request=token)
        decision.is_atomic = True
        decision.producer = request.producer_id, request.producer_epoch
        code = ErrorCode.NONE
        try:
            if request.generation_id >= 0 or request.member_id or request.group_instance_id is not None:
                self._check_member(
                    request.group_id,
                    request.generation_id,
                    request.member_id,
                    request.group_instance_id,
                    decision,
                    is_transactional=True,
                )
        except ApiError as error:
            # Producers know only the classic protocol's word for it.
            code = ErrorCode.ILLEGAL_GENERATION if error.code is ErrorCode.STALE_MEMBER_EPOCH else error.code
        if prepared is not None and not code:
            decision.prepared = prepared
            assert isinstance(prepared.response, TxnOffsetCommitResponse)
            decision.reply(token, prepared.response)
            return decision
        results = [code or self._refusal(entry) for entry in entries]
        self._add_records(request.group_id, entries, results, decision)
        decision.reply(token, transactional_response(entries, results))
        return decision

    def _add_records(
        self, group_id: str, entries: Sequence[OffsetToCommit], results: Sequence[ErrorCode], decision: GroupDecision
    ) -> None:
        decision.records += [
            offset_record(group_id, entry, decision.wall_ms)
            for entry, result in zip(entries, results, strict=True)
            if not result
        ]

    def prepare(
        self,
        group_id: str,
        entries: Sequence[OffsetToCommit],
        *,
        wall_ms: int,
        producer: tuple[int, int] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH),
    ) -> PreparedRecords | None:
        """Make the records of a commit of many offsets, for a decision that comes later; it may run in any thread.

        Args:
            group_id: As for the commit.
            entries: What to commit.
            wall_ms: Milliseconds since 1970 UTC, from which on the offsets age.
            producer: Id and epoch of the producer, if the commit is part of its transaction.

        Returns:
            The records; None if there is nothing to write.
        """
        results = [self._refusal(entry) for entry in entries]
        accepted = [entry for entry, result in zip(entries, results, strict=True) if not result]
        if not accepted:
            return None
        records = [offset_record(group_id, entry, wall_ms) for entry in accepted]
        producer_id, producer_epoch = producer
        batch = build_batch(
            [
                RecordToWrite(key=record.encode_key(), value=record.encode_value(), timestamp=wall_ms)
                for record in records
            ],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=producer_id != NO_PRODUCER_ID,
        )
        places = [(entry.topic, entry.partition) for entry in accepted]
        values = [
            (entry.offset, entry.leader_epoch, entry.metadata, wall_ms, entry.topic_id or ZERO_UUID)
            for entry in accepted
        ]
        is_transactional = producer_id != NO_PRODUCER_ID
        response = transactional_response(entries, results) if is_transactional else commit_response(entries, results)
        return PreparedRecords(batch, partial(self._replay_many, group_id, places, values), response)

    def _refusal(self, entry: OffsetToCommit) -> ErrorCode:
        """Return what is wrong with one offset, for every kind of commit."""
        if not entry.refusal and len(entry.metadata) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return entry.refusal

    def _check_member(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None,
        decision: GroupDecision,
        *,
        is_transactional: bool = False,
    ) -> None:
        consumer_group = self._state.consumer_groups.get(group_id)
        if consumer_group is not None:
            check_member_epoch(consumer_group, member_id, generation)
            return
        group = self._state.groups.get(group_id)
        if group is None or group.state is ClassicState.DEAD:
            if generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            return
        if generation < 0 and group.state is ClassicState.EMPTY:
            return
        if generation >= 0 or member_id or group_instance_id is not None:
            member = known_member(group, member_id, group_instance_id)
            if generation != group.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            decision.touch(group, member)
        elif group.state is not ClassicState.EMPTY:
            # A commit from outside would be undone by the members' next one.
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is ClassicState.COMPLETING_REBALANCE and not is_transactional:
            # A consumer rejoins and commits again. A producer takes the code for the end of its transaction.
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    # ------------------------------------------------------------------ fetch

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Whether a member of a consumer group may read offsets.

        Raises:
            ApiError: It is unknown, or its epoch is not its present one.
        """
        consumer_group = self._state.consumer_groups.get(group_id)
        if consumer_group is not None and (member_id or member_epoch >= 0):
            check_member_epoch(consumer_group, member_id or "", member_epoch)

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """A group's offset for one partition."""
        offsets = self.by_group.get(group_id)
        return None if offsets is None else offsets.get((topic, partition))

    def all_committed(self, group_id: str) -> GroupOffsets:
        """All offsets of a group."""
        return self.by_group.get(group_id, {})

    def pending_of(self, group_id: str) -> set[tuple[str, int]]:
        """Return the partitions whose offset open transactions may still change."""
        return {
            (topic, partition)
            for of_producer in self.pending.values()
            for pending_id, topic, partition in of_producer
            if pending_id == group_id
        }

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change a group's offset."""
        return any((group_id, topic, partition) in pending for pending in self.pending.values())

    # ------------------------------------------------------------------ replay

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int) -> None:
        """Apply a commit or its removal; a commit in a transaction takes effect at its end."""
        self._replay_count += 1
        if value is None:
            offsets = self.by_group.get(key.group)
            if offsets is not None:
                offsets.pop((key.topic, key.partition), None)
                if not offsets:
                    del self.by_group[key.group]
            return
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.topic_id,
            self._replay_count,
        )
        if producer_id >= 0:
            pending = self.pending.setdefault(producer_id, {})
            pending[key.group, key.topic, key.partition] = committed
        else:
            self.by_group.setdefault(key.group, {})[key.topic, key.partition] = committed

    def _replay_many(
        self,
        group_id: str,
        places: Sequence[tuple[str, int]],
        values: Sequence[tuple[int, int, str, int, Uuid]],
        producer_id: int,
    ) -> None:
        """Apply the records of a commit as `replay` does; they have one number, because they are one batch."""
        self._replay_count += 1
        last = (self._replay_count,)
        make = CommittedOffset._make
        committed = [make(value + last) for value in values]
        if producer_id == NO_PRODUCER_ID:
            self.by_group.setdefault(group_id, {}).update(zip(places, committed, strict=True))
            return
        pending = self.pending.setdefault(producer_id, {})
        for (topic, partition), offset in zip(places, committed, strict=True):
            pending[group_id, topic, partition] = offset

    def replay_end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply a transaction's marker: its offsets take effect, or are dropped."""
        pending = self.pending.pop(producer_id, {})
        if not is_commit:
            return
        for (group_id, topic, partition), committed in pending.items():
            offsets = self.by_group.setdefault(group_id, {})
            known = offsets.get((topic, partition))
            if known is None or known.order < committed.order:
                offsets[topic, partition] = committed


def check_member_epoch(group: ConsumerGroup, member_id: str, member_epoch: int) -> None:
    """Check that a member of a consumer group may commit and read offsets.

    Raises:
        ApiError: It is unknown, or its epoch is not its present one.
    """
    if member_epoch < 0 and not group.members:
        return
    member = group.members.get(member_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if member_epoch != member.member_epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)


def commit_response(entries: Sequence[OffsetToCommit], results: Sequence[ErrorCode]) -> OffsetCommitResponse:
    """Return the response to OffsetCommit with a result for each entry."""
    topics: dict[tuple[str, Uuid], OffsetCommitResponseTopic] = {}
    for entry, result in zip(entries, results, strict=True):
        topic = topics.get((entry.topic, entry.topic_id))
        if topic is None:
            topic = OffsetCommitResponseTopic(name=entry.topic, topic_id=entry.topic_id)
            topics[entry.topic, entry.topic_id] = topic
        topic.partitions.append(OffsetCommitResponsePartition(partition_index=entry.partition, error_code=result))
    return OffsetCommitResponse(topics=list(topics.values()))


def transactional_response(entries: Sequence[OffsetToCommit], results: Sequence[ErrorCode]) -> TxnOffsetCommitResponse:
    """Return the response to TxnOffsetCommit with a result for each entry."""
    topics: dict[str, TxnOffsetCommitResponseTopic] = {}
    for entry, result in zip(entries, results, strict=True):
        topic = topics.get(entry.topic)
        if topic is None:
            topic = topics[entry.topic] = TxnOffsetCommitResponseTopic(name=entry.topic)
        topic.partitions.append(TxnOffsetCommitResponsePartition(partition_index=entry.partition, error_code=result))
    return TxnOffsetCommitResponse(topics=list(topics.values()))


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
