"""CreateTopics, DeleteTopics, CreatePartitions, as the active controller decides them."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller import MAX_PARTITIONS_PER_REQUEST, is_protected
from hailbus_broker.protocol.definitions.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from hailbus_broker.protocol.definitions.create_topics_response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from hailbus_broker.protocol.definitions.delete_topics_response import DeletableTopicResult, DeleteTopicsResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.server.handlers.configs import TopicConfigs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.cluster.controller import Controller, NewTopic
    from hailbus_broker.protocol.definitions.create_partitions_request import (
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )
    from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
    from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

DECIDED_IN_LOOP: Final = 250
"""A thread decides about more new partitions than this: each takes 15 µs until it is in the controller's image."""


async def create_topics(dispatcher: Dispatcher, _: Request, message: CreateTopicsRequest) -> CreateTopicsResponse:
    """CreateTopics v2-7: each topic succeeds or fails by itself."""
    core = dispatcher.core
    names = Counter(topic.name for topic in message.topics)
    results: list[CreatableTopicResult] = []
    pending = []
    _check_request(_count_of(core, topic) for topic in message.topics)
    of_topics = TopicConfigs(core)
    repeated: set[str] = set()
    for topic in message.topics:
        result = CreatableTopicResult(name=topic.name, error_message=None)
        if names[topic.name] > 1:
            if topic.name in repeated:
                continue
            repeated.add(topic.name)
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "Duplicate topic name."
            results.append(result)
            continue
        results.append(result)
        try:
            if _count_of(core, topic) > DECIDED_IN_LOOP:
                decide = partial(_create, topic, is_written=not message.validate_only)
                new, done = await core.decide_in_thread(decide)
                pending.append(done)
            else:
                new, records = _create(topic, core.controller, is_written=not message.validate_only)
                if records:
                    pending.append(core.write_metadata(records))
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
            continue
        if not message.validate_only:
            result.topic_id = new.topic_id
        result.num_partitions = new.partition_count
        result.replication_factor = new.replication_factor
        result.configs = [
            CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.config_source)
            for entry in of_topics.of(new.configs)
        ]
        await asyncio.sleep(0)  # a request may create thousands of topics: others have their turn in between
    # What was refused may have been refused because of a decision that is not committed yet.
    for done in (*pending, core.metadata.write([])):
        await done
    return CreateTopicsResponse(topics=results)


def _count_of(core: NodeCore, topic: CreatableTopic) -> int:
    default: int = core.config["num.partitions"]
    return len(topic.assignments) or (default if topic.num_partitions == -1 else topic.num_partitions)


def _create(topic: CreatableTopic, controller: Controller, *, is_written: bool) -> tuple[NewTopic, Sequence[Message]]:
    """Return what a controller decides about a new topic, and the records to write."""
    new = controller.create_topic(
        topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=_assignments(topic),
        configs=_configs(topic),
    )
    return new, new.records if is_written else ()


def _check_request(counts: Iterable[int]) -> None:
    """Refuse a request for very many partitions as a whole, as Apache Kafka does."""
    total = sum(count for count in counts if count > 0)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _assignments(topic: CreatableTopic) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in topic.assignments:
        if entry.partition_index in found:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {entry.partition_index}",
            )
        found[entry.partition_index] = entry.broker_ids
    return found


def _configs(topic: CreatableTopic) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in topic.configs}


async def delete_topics(dispatcher: Dispatcher, request: Request, message: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """DeleteTopics v1-6, by name or by id."""
    core = dispatcher.core
    asked: list[tuple[str | None, bytes]]
    if request.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, ZERO_UUID) for name in message.topic_names]
    counts = Counter(asked)
    results = []
    pending = []
    for name, topic_id in counts:
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        try:
            if counts[name, topic_id] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic.")
            if name is not None and topic_id != ZERO_UUID:
                raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
            if name is None:
                topic = core.controller.image.topics_by_id.get(topic_id)
                if topic is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            else:
                topic = core.controller.image.topics.get(name)
                if topic is None:
                    raise ApiError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
                    )
            if is_protected(topic.name):
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own and cannot be deleted."
                )
            records = core.controller.delete_topic(topic)
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
            continue
        result.name, result.topic_id = topic.name, topic.topic_id
        pending.append(core.write_metadata(records))
        await asyncio.sleep(0)
    # What was refused may have been refused because of a decision that is not committed yet.
    for done in (*pending, core.metadata.write([])):
        await done
    return DeleteTopicsResponse(responses=results)


async def create_partitions(
    dispatcher: Dispatcher, _: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """CreatePartitions v0-3: more, never fewer."""
    core = dispatcher.core
    counts = Counter(topic.name for topic in message.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    pending = []
    hosted = {name: len(state.partitions) for name, state in core.controller.image.topics.items()}
    _check_request(topic.count - hosted[topic.name] for topic in message.topics if topic.name in hosted)
    for topic in message.topics:
        result = results.setdefault(topic.name, CreatePartitionsTopicResult(name=topic.name))
        try:
            if counts[topic.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if topic.count - hosted.get(topic.name, 0) > DECIDED_IN_LOOP:
                decide = partial(_add, topic, is_written=not message.validate_only)
                pending.append((await core.decide_in_thread(decide))[1])
                continue
            records = _add(topic, core.controller, is_written=not message.validate_only)[1]
            if records:
                pending.append(core.write_metadata(records))
                await asyncio.sleep(0)
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
            continue
    # What was refused may have been refused because of a decision that is not committed yet.
    for done in (*pending, core.metadata.write([])):
        await done
    return CreatePartitionsResponse(results=list(results.values()))


def _add(topic: CreatePartitionsTopic, controller: Controller, *, is_written: bool) -> tuple[None, Sequence[Message]]:
    """Return the records that give a topic more partitions."""
    assignments = None if topic.assignments is None else [entry.broker_ids for entry in topic.assignments]
    records = controller.create_partitions(topic.name, topic.count, assignments=assignments)
    return None, records if is_written else ()


def report_offline(dispatcher: Dispatcher, response: CreateTopicsResponse) -> None:
    """Mark the created topics that have a replica on this broker whose log could not be made."""
    for result in response.topics:
        failure = None if result.error_code else dispatcher.node.replicas.failure_of(result.topic_id)
        if failure is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            result.error_message = f"The topic was created, but not all of its partitions are online: {failure}"
