"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage, TopicState
    from hailbus_broker.coordinators.group.offsets import GroupOffsets
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

MADE_IN_LOOP: Final = 250
"""A thread makes the answer about a group of which more offsets are asked for: each takes 3 µs."""


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
    drivers: list[GroupDriver] = []
    parts = [_group_answer(dispatcher, request, group, message, drivers) for group in asked]
    node = dispatcher.node

    def make() -> OffsetFetchResponse:
        answers = [part.make() if isinstance(part, _GroupAnswer) else part for part in parts]
        return _single_group_response(answers[0]) if is_single else OffsetFetchResponse(groups=answers)

    if is_single and not isinstance(parts[0], _GroupAnswer) and parts[0].error_code:
        request.respond_error(ErrorCode(parts[0].error_code))
    elif any(isinstance(part, _GroupAnswer) for part in parts):
        _respond_when_durable(drivers, request, await node.threads.run(make))
    else:
        _respond_when_durable(drivers, request, make())


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupAnswer:
    """What the answer about one group is made of, all of one moment.

    Attributes:
        group: What was asked for.
        offsets: Of the group.
        is_unstable: Tells whether an open transaction may still change the offset of a topic and partition.
        image: The topics that there are.
        uses_ids: Whether topics are named by id.
    """

    group: OffsetFetchRequestGroup
    offsets: GroupOffsets
    is_unstable: Callable[[tuple[str, int]], bool]
    image: MetadataImage
    uses_ids: bool

    def make(self) -> OffsetFetchResponseGroup:
        """Make the answer; in any thread if the parts are copies."""
        from hailbus_broker.protocol.definitions.offset_fetch_response import (
            OffsetFetchResponseGroup,
            OffsetFetchResponsePartitions,
            OffsetFetchResponseTopics,
        )

        answer = OffsetFetchResponseGroup(group_id=self.group.group_id)
        for asked_name, topic_id, indexes in self._wanted():
            name, code = asked_name, ErrorCode.NONE
            if self.uses_ids:
                known = self.image.topics_by_id.get(topic_id)
                if known is None:
                    code = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    name = known.name
            partitions = []
            for index in indexes:
                place = name, index
                found = None if code else self.offsets.get(place)
                own_code = code
                if not code and self.is_unstable(place):
                    found, own_code = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
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
            answer.topics.append(OffsetFetchResponseTopics(name=asked_name, topic_id=topic_id, partitions=partitions))
        return answer

    def _wanted(self) -> Iterator[tuple[str, bytes, Iterable[int]]]:
        """Return name, id and partitions of each topic that is asked for."""
        if self.group.topics is not None:
            for topic in self.group.topics:
                yield topic.name, topic.topic_id, topic.partition_indexes
            return
        asked: dict[str, list[int]] = {}
        for name, partition in sorted(self.offsets):
            asked.setdefault(name, []).append(partition)
        for name, indexes in asked.items():
            known = self.image.topics.get(name)
            if known is not None or not self.uses_ids:
                yield name, ZERO_UUID if known is None else known.topic_id, indexes


def _group_answer(
    dispatcher: Dispatcher,
    request: Request,
    group: OffsetFetchRequestGroup,
    message: OffsetFetchRequest,
    drivers: list[GroupDriver],
) -> OffsetFetchResponseGroup | _GroupAnswer:
    """Return the answer about one group, or what a thread makes it of; note whose state was read."""
    from hailbus_broker.protocol.definitions.offset_fetch_response import OffsetFetchResponseGroup

    driver = dispatcher.node.groups.driver(group.group_id)
    if isinstance(driver, ErrorCode):
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=driver)
    drivers.append(driver)
    shard = driver.shard
    try:
        shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except ApiError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    offsets, image, uses_ids = shard.all_committed(group.group_id), dispatcher.node.image, request.version >= 10
    count = len(offsets) if group.topics is None else sum(len(topic.partition_indexes) for topic in group.topics)
    if count <= MADE_IN_LOOP:

        def is_unstable(place: tuple[str, int]) -> bool:
            return message.require_stable and shard.is_unstable(group.group_id, *place)

        parts = _GroupAnswer(group=group, offsets=offsets, is_unstable=is_unstable, image=image, uses_ids=uses_ids)
        return parts.make()
    unstable = shard.pending_of(group.group_id) if message.require_stable else set()
    return _GroupAnswer(
        group=group,
        offsets=dict(offsets),
        is_unstable=unstable.__contains__,
        image=image.copy(),
        uses_ids=uses_ids,
    )


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
