"""What the cluster consists of: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.features import REGISTERED
from hailbus_broker.cluster.metadata.image import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.cluster.raft.voters import KRAFT_VERSION
from hailbus_broker.log import StorageError
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.api_versions_response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.definitions.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.server.handlers.live_brokers import LiveBrokers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState, TopicState
    from hailbus_broker.protocol.definitions.describe_cluster_response import DescribeClusterResponse
    from hailbus_broker.protocol.definitions.describe_topic_partitions_request import DescribeTopicPartitionsRequest
    from hailbus_broker.protocol.definitions.describe_topic_partitions_response import DescribeTopicPartitionsResponse
    from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
    from hailbus_broker.protocol.definitions.find_coordinator_response import FindCoordinatorResponse
    from hailbus_broker.protocol.definitions.metadata_request import MetadataRequestTopic
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

METADATA_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Of questions and answers together; a single one takes at most a sixteenth."""
FIRST_VERSION_BY_ID: Final = 12
"""Versions 10 and 11 have a field for the topic's id, but ask by name only: they have no answer without a name."""
MADE_IN_LOOP: Final = 250
"""A thread makes the answer about more topics and partitions than this: each takes 5 µs."""
SLICE: Final = 250
"""So many topics or keys are answered for in one turn of the loop."""
FIRST_VERSION_WITH_LISTENERS: Final = 6
"""Older clients do not know the error LISTENER_NOT_FOUND."""
BROKER_ENDPOINT: Final = 1
CONTROLLER_ENDPOINT: Final = 2
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1


def _versions(dispatcher: Dispatcher) -> list[ApiVersion]:
    found = []
    for key, (first, last) in sorted(dispatcher.ranges.items()):
        # Old librdkafka takes a high lowest version of Produce for an ancient broker: it is listed as 0 (KAFKA-18659).
        found.append(ApiVersion(api_key=key, min_version=0 if key == ApiKey.PRODUCE else first, max_version=last))
    return found


def unsupported_api_versions(dispatcher: Dispatcher) -> ApiVersionsResponse:
    """The answer to a version of ApiVersions that is too new; sent as version 0."""
    versions = [entry for entry in _versions(dispatcher) if entry.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=versions)


def api_versions(dispatcher: Dispatcher, request: Request, message: Any) -> ApiVersionsResponse:
    """ApiVersions v0-4. Features are listed when they are served."""
    if request.version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not (_is_software_name(name) and _is_software_name(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        request.connection.client_software = f"{name} {version}"
    finalized = dict(dispatcher.core.image.features)
    if level := dispatcher.core.metadata.quorum.raft.quorum.history.kraft_version:
        finalized[KRAFT_VERSION] = level
    return ApiVersionsResponse(
        api_keys=_versions(dispatcher),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in sorted(REGISTERED.items())
            # v3 clients cannot read a lowest level of 0 (KAFKA-17011).
            if low > 0 or request.version >= 4
        ],
        finalized_features_epoch=dispatcher.core.image.version,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized.items())
        ],
    )


def _is_software_name(text: str) -> bool:
    return (
        bool(text) and all(char.isalnum() or char in ".-" for char in text) and text[0].isalnum() and text[-1].isalnum()
    )


def metadata(dispatcher: Dispatcher, request: Request, _: Any) -> Any:
    """Metadata v0-13, encoded once per image, listener and question."""
    node = dispatcher.node
    if dispatcher.metadata_cache_version != node.image.version:
        dispatcher.metadata_cache.clear()
        dispatcher.metadata_cache_bytes = 0
        dispatcher.metadata_cache_version = node.image.version
    question = (request.listener.name, request.version, bytes(request.frame[request.position :]))
    body = dispatcher.metadata_cache.get(question)
    if body is None:
        message = codec.decode(MetadataRequest, request.frame, request.version, position=request.position)
        request.message = message
        creations: list[asyncio.Future[None]] = []
        make, is_large, is_final = _metadata(dispatcher, request, message, creations)
        if is_large:
            return _respond_from_thread(dispatcher, request, make, creations, question if is_final else None)
        body = bytes(codec.encode(make(), request.version))
        if creations:
            return _respond_after(creations, request, body)
        if is_final:
            _keep(dispatcher, question, body)
    request.respond_parts(request.response_head(), [body], len(body))
    return None


def _keep(dispatcher: Dispatcher, question: tuple[str, int, bytes], body: bytes) -> None:
    """Keep an answer for those who ask the same, as long as the metadata stays as it is."""
    size = len(question[2]) + len(body)
    if size <= min(METADATA_CACHE_BYTES // 16, METADATA_CACHE_BYTES - dispatcher.metadata_cache_bytes):
        dispatcher.metadata_cache[question] = body
        dispatcher.metadata_cache_bytes += size


async def _respond_from_thread(
    dispatcher: Dispatcher,
    request: Request,
    make: Callable[[], MetadataResponse],
    creations: Iterable[asyncio.Future[None]],
    question: tuple[str, int, bytes] | None,
) -> None:
    """Let a thread make and encode an answer about many topics or partitions."""
    version = dispatcher.node.image.version
    body = await dispatcher.node.threads.run(lambda: bytes(codec.encode(make(), request.version)))
    if question is not None and version == dispatcher.node.image.version == dispatcher.metadata_cache_version:
        _keep(dispatcher, question, body)
    await _respond_after(creations, request, body)


async def _respond_after(creations: Iterable[asyncio.Future[None]], request: Request, body: bytes) -> None:
    """Answer when topics are there that the question has created: the client finds them when it asks again."""
    await asyncio.gather(*creations, return_exceptions=True)  # one that failed is missing when it asks again
    request.respond_parts(request.response_head(), [body], len(body))


def _metadata(
    dispatcher: Dispatcher, request: Request, message: MetadataRequest, creations: list[asyncio.Future[None]]
) -> tuple[Callable[[], MetadataResponse], bool, bool]:
    """Return what makes the answer, whether it is large, and whether it is the same until the metadata changes.

    A large answer is made of a copy of the image, so that any thread may make it.
    """
    image = dispatcher.node.image
    live = LiveBrokers(dispatcher.node.core, request.listener)
    controller_id = _some_broker(dispatcher, live)
    if message.topics is None or (request.version == 0 and not message.topics):
        is_large = image.partition_count > MADE_IN_LOOP or len(image.topics) > MADE_IN_LOOP
        if is_large:
            image = image.copy()
            live = LiveBrokers(dispatcher.node.core, request.listener, image)
        everything = partial(_everything, image, live, request.version)
        return partial(_response, dispatcher.node.cluster_id, controller_id, live, everything), is_large, True
    entries, is_final = _named(dispatcher, request, message.topics, message, creations)
    count = len(entries) + sum(len(entry.partitions) for entry in entries)
    is_large = count > MADE_IN_LOOP
    if is_large:
        image = image.copy()  # the topics that were found change no more: another change makes new ones
        live = LiveBrokers(dispatcher.node.core, request.listener, image)
    found = partial(_of_entries, entries, live, request.version)
    return partial(_response, dispatcher.node.cluster_id, controller_id, live, found), is_large, is_final


def _response(
    cluster_id: str, controller_id: int, live: LiveBrokers, topics: Callable[[], list[MetadataResponseTopic]]
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker_id, host=one.host, port=one.port, rack=one.rack)
            for broker_id, one in live.addresses.items()
        ],
        cluster_id=cluster_id,
        controller_id=controller_id,
        topics=topics(),
    )


def _everything(image: MetadataImage, live: LiveBrokers, version: int) -> list[MetadataResponseTopic]:
    return [_topic(live, image.topics[name], version) for name in sorted(image.topics)]


def _of_entries(
    entries: Iterable[TopicState | MetadataResponseTopic], live: LiveBrokers, version: int
) -> list[MetadataResponseTopic]:
    return [entry if isinstance(entry, MetadataResponseTopic) else _topic(live, entry, version) for entry in entries]


def _named(
    dispatcher: Dispatcher,
    request: Request,
    topics: Iterable[MetadataRequestTopic],
    message: MetadataRequest,
    creations: list[asyncio.Future[None]],
) -> tuple[list[TopicState | MetadataResponseTopic], bool]:
    """Return the topics that were asked for, with an answer for each that is not there, and whether all are there.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    node = dispatcher.node
    image = node.image
    if request.version < FIRST_VERSION_BY_ID and any(
        asked.name is None or asked.topic_id != ZERO_UUID for asked in topics
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    entries: list[TopicState | MetadataResponseTopic] = []
    is_final = True
    for asked in topics:
        if asked.topic_id != ZERO_UUID:
            found = image.topics_by_id.get(asked.topic_id)
            missing = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
            is_final = is_final and found is not None
            entries.append(missing if found is None else found)
            continue
        name = asked.name or ""
        found = image.topics.get(name)
        if found is not None:
            entries.append(found)
            continue
        is_final = False
        creates = (
            message.allow_auto_topic_creation
            and node.config["auto.create.topics.enable"]
            and name != CLUSTER_METADATA_TOPIC
        )
        code = _create(dispatcher, name, creations) if creates else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        entries.append(MetadataResponseTopic(error_code=code, name=name))
    return entries, is_final


def _some_broker(dispatcher: Dispatcher, live: LiveBrokers) -> int:
    """Return a broker that clients take for the controller: each one forwards what the controller decides."""
    if len(live.addresses) <= 1:
        return next(iter(live.addresses), NO_LEADER)
    return dispatcher.core.rng.choice(list(live.addresses))


def _create(dispatcher: Dispatcher, name: str, creations: list[asyncio.Future[None]]) -> ErrorCode:
    """Create a topic because somebody asked for it."""
    node = dispatcher.node
    try:
        creations.append(node.creation.create(name))
    except ApiError as error:
        return error.code
    except StorageError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.LEADER_NOT_AVAILABLE


def _topic(live: LiveBrokers, topic: TopicState, version: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(live, state, version) for state in topic.partitions],
    )


def _partition(live: LiveBrokers, state: PartitionState, version: int) -> MetadataResponsePartition:
    found = MetadataResponsePartition(
        partition_index=state.index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
    )
    if state.leader not in live.addresses:
        found.leader_id = NO_LEADER
        found.error_code = live.why_no_leader(state, knows_listeners=version >= FIRST_VERSION_WITH_LISTENERS)
    if not live.is_alone:
        found.offline_replicas = live.offline_replicas(state)
    return found


def describe_cluster(dispatcher: Dispatcher, request: Request, message: Any) -> DescribeClusterResponse:
    """DescribeCluster v0-2, on brokers' listeners."""
    from hailbus_broker.protocol.definitions.describe_cluster_response import (
        DescribeClusterBroker,
        DescribeClusterResponse,
    )

    core = dispatcher.core
    if message.endpoint_type != BROKER_ENDPOINT:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of the wrong type: this one is a broker's.",
            endpoint_type=BROKER_ENDPOINT,
        )
    live = LiveBrokers(core, request.listener)
    brokers = [
        DescribeClusterBroker(broker_id=broker_id, host=one.host, port=one.port, rack=one.rack)
        for broker_id, one in live.addresses.items()
    ]
    if message.include_fenced_brokers:
        for broker_id, broker in sorted(core.image.brokers.items()):
            endpoint = broker.endpoint(request.listener.name) if broker.fenced else None
            if endpoint is not None:
                brokers.append(
                    DescribeClusterBroker(
                        broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack, is_fenced=True
                    )
                )
    return DescribeClusterResponse(
        cluster_id=core.cluster_id, controller_id=_some_broker(dispatcher, live), brokers=brokers
    )


def describe_controllers(dispatcher: Dispatcher, request: Request, message: Any) -> DescribeClusterResponse:
    """DescribeCluster v0-2, on controllers' listeners (KIP-919)."""
    from hailbus_broker.protocol.definitions.describe_cluster_response import (
        DescribeClusterBroker,
        DescribeClusterResponse,
    )

    core = dispatcher.core
    if message.endpoint_type != CONTROLLER_ENDPOINT:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of the wrong type: this one is a controller's.",
            endpoint_type=CONTROLLER_ENDPOINT,
        )
    quorum = core.metadata.quorum
    return DescribeClusterResponse(
        endpoint_type=CONTROLLER_ENDPOINT,
        cluster_id=core.cluster_id,
        controller_id=NO_LEADER if quorum.leader_id is None else quorum.leader_id,
        brokers=[
            DescribeClusterBroker(broker_id=voter.key.node_id, host=endpoint.host, port=endpoint.port)
            for voter in quorum.raft.quorum.voters
            for endpoint in voter.endpoints
            if endpoint.listener == request.listener.name
        ],
    )


def describe_topic_partitions(
    dispatcher: Dispatcher, request: Request, message: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """DescribeTopicPartitions v0: in pages, by topic name and partition."""
    from hailbus_broker.protocol.definitions.describe_topic_partitions_response import (
        Cursor,
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsResponsePartition,
        DescribeTopicPartitionsResponseTopic,
    )

    image = dispatcher.node.image
    live = LiveBrokers(dispatcher.core, request.listener)
    names = sorted({topic.name for topic in message.topics}) if message.topics else sorted(image.topics)
    cursor = message.cursor
    first_partition = 0
    if cursor is not None:
        if cursor.partition_index < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = cursor.partition_index
    left = max(1, min(message.response_partition_limit, 2_000))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
            )
            continue
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        states = topic.partitions[first_partition : first_partition + left]
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[
                    DescribeTopicPartitionsResponsePartition(
                        partition_index=state.index,
                        leader_id=live.leader(state),
                        leader_epoch=state.leader_epoch,
                        replica_nodes=list(state.replicas),
                        isr_nodes=list(state.isr),
                        eligible_leader_replicas=list(state.elr),
                        last_known_elr=list(state.last_known_elr),
                        offline_replicas=live.offline_replicas(state),
                    )
                    for state in states
                ],
            )
        )
        left -= len(states)
        end = first_partition + len(states)
        first_partition = 0
        if end < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


async def find_coordinator(
    dispatcher: Dispatcher, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """FindCoordinator v0-6; the coordinators' topics are created when they are first asked for."""
    from hailbus_broker.protocol.definitions.find_coordinator_response import (
        Coordinator,
        FindCoordinatorResponse,
    )

    node = dispatcher.node
    code, text = ErrorCode.NONE, ""
    topic = {GROUP_KEY: GROUP_METADATA_TOPIC, TRANSACTION_KEY: TRANSACTION_STATE_TOPIC}.get(message.key_type)
    served = topic == GROUP_METADATA_TOPIC or ApiKey.END_TXN in dispatcher.handlers
    if topic is None or not served:
        code, text = ErrorCode.INVALID_REQUEST, f"There is no coordinator for keys of type {message.key_type}."
    else:
        try:
            done = node.create_internal_topic(topic)
            if done is not None:
                await done
        except (StorageError, ApiError) as error:
            code, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)
    keys = [message.key] if request.version < 4 else message.coordinator_keys
    state = node.image.topics.get(topic or "")
    if state is None and not code:
        code, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The topic {topic} is being created."
    live = LiveBrokers(node.core, request.listener)
    coordinators = []
    for number, key in enumerate(keys, 1):
        found = Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)
        coordinators.append(found)
        if state is not None and not code:
            partition = state.partitions[partition_for(key, len(state.partitions))]
            address = live.addresses.get(partition.leader)
            if address is None:
                found.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                found.error_message = f"No live broker leads {topic}-{partition.index}, the coordinator's partition."
            else:
                found.node_id, found.host, found.port = partition.leader, address.host, address.port
        if number % SLICE == 0:
            await asyncio.sleep(0)
    if request.version >= 4:
        return FindCoordinatorResponse(coordinators=coordinators)
    only = coordinators[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or None,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )
