"""Offsets of a partition's log: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from hailbus_broker.cluster.controller import is_protected
from hailbus_broker.log import CleanupPolicy, DiskReadNeededError, LogError, Lookup
from hailbus_broker.protocol.definitions.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.replica import LeaderReplica, NotLeaderError
from hailbus_broker.server.dispatch import error_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from hailbus_broker.protocol.definitions.delete_records_request import DeleteRecordsRequest
    from hailbus_broker.protocol.definitions.delete_records_response import (
        DeleteRecordsPartitionResult,
        DeleteRecordsResponse,
    )
    from hailbus_broker.protocol.definitions.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest
    from hailbus_broker.protocol.definitions.offset_for_leader_epoch_request import OffsetForLeaderEpochRequest
    from hailbus_broker.protocol.definitions.offset_for_leader_epoch_response import OffsetForLeaderEpochResponse
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

    Asked: TypeAlias = tuple[str, ListOffsetsPartition]

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5

SLICE: Final = 25
"""So many partitions are answered for in one turn of the loop: a search by time takes about 0.1 ms."""

# Which version brought each special time: an older one may not ask for it.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def leader_epoch_error(partition: LeaderReplica, current_leader_epoch: int) -> ErrorCode:
    """Whether a client's idea of the leader epoch is ours (KIP-320)."""
    if current_leader_epoch < 0 or current_leader_epoch == partition.leader_epoch:
        return ErrorCode.NONE
    return (
        ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch < partition.leader_epoch
        else ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def list_offsets(
    dispatcher: Dispatcher, request: Request, message: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """ListOffsets v1-11: by time, earliest, latest, greatest timestamp. Tiered storage does not exist here."""
    asked = [(topic.name, partition) for topic in message.topics for partition in topic.partitions]
    lookup = Lookup()
    if len(asked) <= SLICE:
        results = _list_slice(dispatcher, request, message, asked, lookup)
        if not lookup.is_incomplete:
            return _list_response(message, results)
    return _list_in_slices(dispatcher, request, message, asked)


async def _list_in_slices(
    dispatcher: Dispatcher, request: Request, message: ListOffsetsRequest, asked: Sequence[Asked]
) -> ListOffsetsResponse:
    """Answer for some partitions in a turn of the loop; a thread reads what is not in memory."""
    results: list[ListOffsetsPartitionResponse] = []
    for start in range(0, len(asked), SLICE):
        part = asked[start : start + SLICE]
        lookup = Lookup()
        found = _list_slice(dispatcher, request, message, part, lookup)
        while lookup.is_incomplete:
            lookup.add(await dispatcher.node.threads.run(lookup.take()))
            found = _list_slice(dispatcher, request, message, part, lookup)
        results += found
        await asyncio.sleep(0)
    return _list_response(message, results)


def _list_response(message: ListOffsetsRequest, results: Sequence[ListOffsetsPartitionResponse]) -> ListOffsetsResponse:
    rest = iter(results)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(name=topic.name, partitions=list(islice(rest, len(topic.partitions))))
            for topic in message.topics
        ]
    )


def _list_slice(
    dispatcher: Dispatcher, request: Request, message: ListOffsetsRequest, part: Sequence[Asked], lookup: Lookup
) -> list[ListOffsetsPartitionResponse]:
    """The results for some partitions, as far as the lookup knows what they need."""
    results = []
    for topic, asked in part:
        partition = dispatcher.node.replicas.leader(topic, asked.partition_index)
        result = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        results.append(result)
        if not isinstance(partition, LeaderReplica):
            result.error_code = partition
        elif code := leader_epoch_error(partition, asked.current_leader_epoch):
            result.error_code = code
        elif message.replica_id < 0 and asked.timestamp == LATEST and not partition.knows_committed:
            # as long as consumers could be given an offset that they have seen a higher one of (KIP-207)
            is_known = request.version >= FIRST_WITH_OFFSET_NOT_AVAILABLE
            result.error_code = ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
        elif asked.timestamp < 0 and request.version < _SINCE.get(asked.timestamp, 2**15):
            result.error_code = ErrorCode.UNSUPPORTED_VERSION
        else:
            try:
                _list(partition, asked, result, lookup, _end_offset(partition, message))
            except DiskReadNeededError:
                continue  # and collect what the other partitions lack
            except LogError as error:
                result.error_code = error_code(error)
    return results


def _end_offset(partition: LeaderReplica, message: ListOffsetsRequest) -> int:
    """The end of the log for the one that asks: a follower sees all of it."""
    if message.replica_id >= 0:
        return partition.log.log_end_offset
    return partition.log.last_stable_offset if message.isolation_level == 1 else partition.log.high_watermark


def _list(
    partition: LeaderReplica,
    asked: ListOffsetsPartition,
    result: ListOffsetsPartitionResponse,
    lookup: Lookup,
    end: int,
) -> None:
    log = partition.log
    match asked.timestamp:
        case -1:
            result.offset, result.leader_epoch = end, partition.leader_epoch
        case -2 | -4:
            result.offset, result.leader_epoch = log.log_start_offset, partition.epoch_at(log.log_start_offset)
        case -5 | -6:
            pass
        case -3:
            found = log.max_timestamp(lookup)
            if found is not None and found.offset < end:
                result.timestamp, result.offset, result.leader_epoch = found
        case timestamp:
            found = log.offset_for_timestamp(timestamp, lookup)
            if found is not None and found.offset < end:
                result.timestamp, result.offset, result.leader_epoch = found


def offset_for_leader_epoch(
    dispatcher: Dispatcher, _: Request, message: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """OffsetForLeaderEpoch v2-4: where an epoch ended, for clients that look for truncation."""
    from hailbus_broker.protocol.definitions.offset_for_leader_epoch_response import (
        EpochEndOffset,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderTopicResult,
    )

    response = OffsetForLeaderEpochResponse()
    for topic in message.topics:
        answer = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        for asked in topic.partitions:
            partition = dispatcher.node.replicas.leader(topic.topic, asked.partition)
            result = EpochEndOffset(partition=asked.partition)
            answer.partitions.append(result)
            if not isinstance(partition, LeaderReplica):
                result.error_code = partition
            elif code := leader_epoch_error(partition, asked.current_leader_epoch):
                result.error_code = code
            else:
                result.leader_epoch, result.end_offset = partition.end_offset_for_epoch(asked.leader_epoch)
    return response


async def delete_records(dispatcher: Dispatcher, _: Request, message: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """DeleteRecords v0-2: moves the log start; -1 means the high watermark.

    The answer waits until the followers whose brokers are alive have moved theirs: another leader brings nothing back.
    """
    from hailbus_broker.protocol.definitions.delete_records_response import (
        DeleteRecordsPartitionResult,
        DeleteRecordsResponse,
        DeleteRecordsTopicResult,
    )

    response = DeleteRecordsResponse()
    deletions: list[_Deletion] = []
    for topic in message.topics:
        answer = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answer)
        for asked in topic.partitions:
            partition = dispatcher.node.replicas.leader(topic.name, asked.partition_index)
            result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            answer.partitions.append(result)
            if not isinstance(partition, LeaderReplica):
                result.error_code = partition
                continue
            if partition.error is not None:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                continue
            if is_protected(topic.name):
                result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
                continue
            if CleanupPolicy.DELETE not in partition.log.config.cleanup_policy:
                result.error_code = ErrorCode.POLICY_VIOLATION
                continue
            offset = partition.log.high_watermark if asked.offset == -1 else asked.offset
            if not 0 <= offset <= partition.log.high_watermark:
                result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                continue
            try:
                result.low_watermark = partition.log.delete_records(offset)
            except LogError as error:
                result.error_code = error_code(error)
            else:
                deletions.append(_Deletion(partition, offset, result))
    # The log start is only in a checkpoint: until that is written a crash would bring the records back.
    await dispatcher.node.checkpoint()
    await _until_followers_deleted(deletions, timeout_ms=message.timeout_ms)
    return response


class _Deletion(NamedTuple):
    """Records that the leader has deleted."""

    partition: LeaderReplica
    before_offset: int
    result: DeleteRecordsPartitionResult

    def is_over(self) -> bool:
        """Whether all replicas have deleted the records, or this one leads no more; the result says which."""
        partition, result = self.partition, self.result
        if partition.error is not None:
            result.low_watermark = -1
            result.error_code = _refusal(partition)
            return True
        result.low_watermark = partition.low_watermark
        return result.low_watermark >= self.before_offset


def _refusal(partition: LeaderReplica) -> ErrorCode:
    if partition.is_deleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(partition.error, NotLeaderError):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.KAFKA_STORAGE_ERROR


async def _until_followers_deleted(deletions: list[_Deletion], *, timeout_ms: int) -> None:
    """Wait until no follower has the records; what takes too long gets REQUEST_TIMED_OUT."""
    pending = [deletion for deletion in deletions if not deletion.is_over()]
    if not pending:
        return
    changed = asyncio.Event()
    for deletion in pending:
        deletion.partition.start_watchers[id(changed)] = changed.set
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1_000):
            while pending:
                await changed.wait()
                changed.clear()
                pending = [deletion for deletion in pending if not deletion.is_over()]
    except TimeoutError:
        for deletion in pending:
            deletion.result.error_code = ErrorCode.REQUEST_TIMED_OUT
    finally:
        for deletion in deletions:
            deletion.partition.start_watchers.pop(id(changed), None)
