"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage, TopicState
    from hailbus_broker.coordinators.outcome import PreparedRecords
    from hailbus_broker.protocol.definitions.offset_commit_request import OffsetCommitRequest
    from hailbus_broker.protocol.definitions.offset_delete_request import OffsetDeleteRequest
    from hailbus_broker.protocol.definitions.offset_delete_response import OffsetDeleteResponse
    from hailbus_broker.protocol.definitions.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestGroup
    from hailbus_broker.protocol.definitions.offset_fetch_response import (
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
    )
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.group_coordinator import GroupDriver
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

UNKNOWN_OFFSET: Final = -1

PREPARED_IN_THREAD: Final = 250
"""A thread prepares commits of more offsets: each takes 15 µs until it is in a batch."""

SLICE: Final = 500
"""So many offsets are answered for in one turn of the loop."""


def offset_commit(dispatcher: Dispatcher, request: Request, message: OffsetCommitRequest) -> Awaitable[None] | None:
    """OffsetCommit v2-10; v10 names topics by id."""
    node = dispatcher.node
    uses_ids = request.version >= 10
    by_id, by_name = node.image.topics_by_id, node.image.topics
    topics = [(by_id.get(topic.topic_id) if uses_ids else by_name.get(topic.name)) for topic in message.topics]
    if sum(len(topic.partitions) for topic in message.topics) > PREPARED_IN_THREAD:
        return _commit_many(dispatcher, request, message, topics)
    _commit(dispatcher, request, message, _to_commit(message, topics, uses_ids=uses_ids), None)
    return None


async def _commit_many(
    dispatcher: Dispatcher, request: Request, message: OffsetCommitRequest, topics: Sequence[TopicState | None]
) -> None:
    """Let a thread prepare what is committed; the group's state is looked at after that, and changed in one turn."""
    node = dispatcher.node
    driver = node.groups.driver(message.group_id)
    if isinstance(driver, ErrorCode):
        raise ApiError(driver)
    wall_ms = node.clock.wall_ms()

    def prepare() -> tuple[list[OffsetToCommit], PreparedRecords | None]:
        entries = _to_commit(message, topics, uses_ids=request.version >= 10)
        return entries, driver.shard.prepare_commit(message.group_id, entries, wall_ms=wall_ms)

    _commit(dispatcher, request, message, *await node.threads.run(prepare))


def _to_commit(
    message: OffsetCommitRequest, topics: Sequence[TopicState | None], *, uses_ids: bool
) -> list[OffsetToCommit]:
    """Return the partitions of a commit, those that do not exist with a refusal."""
    missing = ErrorCode.UNKNOWN_TOPIC_ID if uses_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    entries = []
    for topic, known in zip(message.topics, topics, strict=True):
        for part in topic.partitions:
            problem = ErrorCode.NONE
            if known is None:
                problem = missing
            elif not 0 <= part.partition_index < len(known.partitions):
                problem = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            entries.append(
                OffsetToCommit(
                    topic=topic.name if known is None else known.name,
                    topic_id=topic.topic_id if known is None else known.topic_id,
                    partition=part.partition_index,
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=part.committed_metadata or "",
                    refusal=problem,
                )
            )
    return entries


def _commit(
    dispatcher: Dispatcher,
    request: Request,
    message: OffsetCommitRequest,
    entries: Sequence[OffsetToCommit],
    prepared: PreparedRecords | None,
) -> None:
    clock = dispatcher.node.clock
    refusal = dispatcher.node.groups.run(
        message.group_id,
        lambda shard: shard.commit(
            message.group_id,
            message.generation_id_or_member_epoch,
            message.member_id,
            message.group_instance_id,
            entries,
            request,
            now_ms=clock.now_ms(),
            wall_ms=clock.wall_ms(),
            prepared=prepared,
        ),
    )
    if refusal:
        request.respond_error(refusal)


async def offset_fetch(dispatcher: Dispatcher, request: Request, message: OffsetFetchRequest) -> None:
    """OffsetFetch v1-10; v8 asks for many groups at once, v10 names topics by id."""
    from hailbus_broker.protocol.definitions.offset_fetch_request import (
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopics,
    )
    from hailbus_broker.protocol.definitions.offset_fetch_response import OffsetFetchResponse

    is_single = request.version < 8
    asked = message.groups
    if is_single:
        topics = None
        if message.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in message.topics
            ]
        asked = [OffsetFetchRequestGroup(group_id=message.group_id, topics=topics)]
    answers, drivers = [], []
    for group in asked:
        driver = dispatcher.node.groups.driver(group.group_id)
        if not isinstance(driver, ErrorCode):
            drivers.append(driver)
        uses_ids = request.version >= 10
        is_stable = message.require_stable
        answers.append(
            await _committed_offsets(dispatcher.node.image, driver, group, uses_ids=uses_ids, require_stable=is_stable)
        )
    if not is_single:
        _respond_when_durable(drivers, request, OffsetFetchResponse(groups=answers))
    elif answers[0].error_code:
        request.respond_error(ErrorCode(answers[0].error_code))
    else:
        _respond_when_durable(drivers, request, _single_group_response(answers[0]))


async def _committed_offsets(
    image: MetadataImage,
    driver: GroupDriver | ErrorCode,
    group: OffsetFetchRequestGroup,
    *,
    uses_ids: bool,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """The offsets of one group, for the partitions that the request names or for all."""
    from hailbus_broker.protocol.definitions.offset_fetch_response import (
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartitions,
        OffsetFetchResponseTopics,
    )

    answer = OffsetFetchResponseGroup(group_id=group.group_id)
    if isinstance(driver, ErrorCode):
        answer.error_code = driver
        return answer
    shard = driver.shard
    try:
        shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except ApiError as error:
        answer.error_code = error.code
        return answer
    wanted: list[tuple[str, bytes, list[int]]]
    if group.topics is None:
        asked: dict[str, list[int]] = {}
        for topic, partition in sorted(shard.all_committed(group.group_id)):
            asked.setdefault(topic, []).append(partition)
        wanted = [
            (name, image.topics[name].topic_id if name in image.topics else ZERO_UUID, indexes)
            for name, indexes in asked.items()
            if not uses_ids or name in image.topics
        ]
    else:
        wanted = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in group.topics]
    rows = []
    for name, topic_id, indexes in wanted:
        part = OffsetFetchResponseTopics(name=name, topic_id=topic_id)
        answer.topics.append(part)
        code = ErrorCode.NONE
        if uses_ids:
            known = image.topics_by_id.get(topic_id)
            if known is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                name = known.name  # noqa: PLW2901 - the name that the id stands for
        for index in indexes:
            found = None if code else shard.committed(group.group_id, name, index)
            own_code = code
            if not code and require_stable and shard.is_unstable(group.group_id, name, index):
                found, own_code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
            rows.append((part.partitions, index, found, own_code))
    # All offsets are of one moment. Only their answers are made in slices.
    for number, (partitions, index, found, own_code) in enumerate(rows, 1):
        partitions.append(
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=UNKNOWN_OFFSET, metadata="", error_code=own_code
            )
            if found is None
            else OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
            )
        )
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return answer


def _single_group_response(answer: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The response of versions before 8, which has no list of groups."""
    from hailbus_broker.protocol.definitions.offset_fetch_response import (
        OffsetFetchResponse,
        OffsetFetchResponsePartition,
        OffsetFetchResponseTopic,
    )

    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in answer.topics
        ]
    )


def _respond_when_durable(drivers: Iterable[GroupDriver], request: Request, response: Message) -> None:
    """Answer once the state that was read is durable: it may have been written a moment ago."""
    waiting = {id(driver): driver for driver in drivers}
    left = len(waiting) + 1
    failure: Exception | None = None

    def committed(error: Exception | None) -> None:
        nonlocal left, failure
        left -= 1
        failure = failure or error
        if left:
            return
        if failure is None:
            request.respond(response)
        else:
            request.respond_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    for driver in waiting.values():
        driver.partition.when_committed(driver.end_offset, committed)
    committed(None)


async def offset_delete(dispatcher: Dispatcher, _: Request, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """OffsetDelete v0: offsets of topics that no member is subscribed to."""
    from hailbus_broker.protocol.definitions.offset_delete_response import (
        OffsetDeleteResponse,
        OffsetDeleteResponsePartition,
        OffsetDeleteResponseTopic,
    )

    node = dispatcher.node
    driver = node.groups.driver(message.group_id)
    if isinstance(driver, ErrorCode):
        return OffsetDeleteResponse(error_code=node.groups.refusal_of(driver))
    if not driver.shard.knows(message.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    subscribed = driver.shard.subscribed_topics(message.group_id)
    if subscribed is None:
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
    response = OffsetDeleteResponse()
    chosen = []
    for topic in message.topics:
        answer = OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            code = ErrorCode.NONE
            if topic.name in subscribed:
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif not node.replicas.has(topic.name, part.partition_index):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                chosen.append((topic.name, part.partition_index))
            answer.partitions.append(
                OffsetDeleteResponsePartition(partition_index=part.partition_index, error_code=code)
            )
    refused = driver.run(driver.shard.delete_offsets(message.group_id, chosen))
    if refused:
        return OffsetDeleteResponse(error_code=refused)
    await driver.committed()
    return response
