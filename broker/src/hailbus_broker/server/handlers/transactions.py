"""Transactions: what producers ask of their coordinator, and what can be seen of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.patterns import PatternError
from hailbus_broker.log import LogError, StorageError
from hailbus_broker.protocol.api import APIS
from hailbus_broker.protocol.definitions.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.markers import Marker, append_marker
from hailbus_broker.runtime.remote_coordinators import PartitionCheck
from hailbus_broker.runtime.replica import LeaderReplica, NotLeaderError, TopicDeletedError
from hailbus_broker.server.dispatch import error_code
from hailbus_broker.server.handlers.offsets import PREPARED_IN_THREAD
from hailbus_broker.server.handlers.replies import CodeReply, Reply, code_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hailbus_broker.coordinators.transaction.shard import TransactionShard
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.protocol.definitions.add_offsets_to_txn_request import AddOffsetsToTxnRequest
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import AddPartitionsToTxnRequest
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_response import AddPartitionsToTxnTopicResult
    from hailbus_broker.protocol.definitions.describe_transactions_request import DescribeTransactionsRequest
    from hailbus_broker.protocol.definitions.describe_transactions_response import DescribeTransactionsResponse
    from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
    from hailbus_broker.protocol.definitions.end_txn_response import EndTxnResponse
    from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
    from hailbus_broker.protocol.definitions.init_producer_id_response import InitProducerIdResponse
    from hailbus_broker.protocol.definitions.list_transactions_request import ListTransactionsRequest
    from hailbus_broker.protocol.definitions.list_transactions_response import ListTransactionsResponse
    from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
    from hailbus_broker.protocol.definitions.write_txn_markers_request import WriteTxnMarkersRequest
    from hailbus_broker.protocol.definitions.write_txn_markers_response import WriteTxnMarkersResponse
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.runtime.transaction_coordinator import TransactionDriver
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


FencingResponse = TypeVar("FencingResponse", "InitProducerIdResponse", "AddOffsetsToTxnResponse", "EndTxnResponse")


def _driver(dispatcher: Dispatcher, transactional_id: str) -> TransactionDriver:
    driver = dispatcher.node.transactions.driver(transactional_id)
    if isinstance(driver, ErrorCode):
        raise ApiError(driver)
    return driver


async def _reserve_producer_id(node: Node) -> None:
    """Make sure that there is a producer id.

    Raises:
        ApiError: The metadata log failed. Clients retry this code of Apache Kafka, and give up on KAFKA_STORAGE_ERROR.
    """
    try:
        await node.producer_ids.reserve()
    except StorageError as error:
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error


def _is_late(request: Request, driver: TransactionDriver, identity: tuple[str, int, int]) -> bool:
    """Refuse what a producer of transactions v1 sent over a connection that it has given up since.

    The connection is closed: nobody waits for its answers, and should somebody do, it connects again and is heard.
    """
    if not driver.shard.is_late(*identity, request.connection.number):
        return False
    request.connection.abort(
        f"{APIS[request.api_key].name} for the transactional id {identity[0]!r} came late: "
        "its producer has gone on over a newer connection"
    )
    return True


def _older(request: Request, since: int) -> Callable[[FencingResponse], FencingResponse]:
    """PRODUCER_FENCED came with some version; before that the code is INVALID_PRODUCER_EPOCH (KIP-588)."""

    def shape(response: FencingResponse) -> FencingResponse:
        if request.version < since and response.error_code == ErrorCode.PRODUCER_FENCED:
            response.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
        return response

    return shape


async def init_producer_id(
    dispatcher: Dispatcher, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse | None:
    """InitProducerId v0-6.

    Two-phase commit (v6, KIP-939) is refused as by an Apache Kafka with `transaction.two.phase.commit.enable=false`.
    """
    from hailbus_broker.protocol.definitions.init_producer_id_response import InitProducerIdResponse

    if message.enable2_pc:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if message.keep_prepared_txn:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    node = dispatcher.node
    await _reserve_producer_id(node)
    if message.transactional_id is None:
        return InitProducerIdResponse(producer_id=node.producer_ids.take(), producer_epoch=0)
    driver = _driver(dispatcher, message.transactional_id)
    driver.run(
        driver.shard.init_producer_id(
            message.transactional_id,
            message.transaction_timeout_ms,
            message.producer_id,
            message.producer_epoch,
            Reply(request, _older(request, 4)),
            new_producer_id=node.producer_ids.take,
            wall_ms=driver.wall_ms(),
        )
    )
    return None


def add_partitions_to_txn(dispatcher: Dispatcher, request: Request, message: AddPartitionsToTxnRequest) -> None:
    """AddPartitionsToTxn v0-5: up to v3 one transaction, as clients send it; from v4 on many, as brokers do."""
    if request.version <= 3:
        _add_partitions_of_client(dispatcher, request, message)
    else:
        _add_partitions_of_brokers(dispatcher, request, message)


def _add_partitions_of_client(dispatcher: Dispatcher, request: Request, message: AddPartitionsToTxnRequest) -> None:
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_response import AddPartitionsToTxnResponse

    asked = [(topic.name, index) for topic in message.v3_and_below_topics for index in topic.partitions]
    identity = (
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
    )
    known = dispatcher.node.transactions.driver(identity[0])
    if not isinstance(known, ErrorCode) and _is_late(request, known, identity):
        return

    def respond(codes: Mapping[TopicPartition, ErrorCode]) -> None:
        if request.version < 2:
            codes = {
                place: ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
                for place, code in codes.items()
            }
        request.respond(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(asked, codes)))

    _add_partitions(dispatcher, *identity, asked, respond)


def _add_partitions_of_brokers(dispatcher: Dispatcher, request: Request, message: AddPartitionsToTxnRequest) -> None:
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_response import (
        AddPartitionsToTxnResponse,
        AddPartitionsToTxnResult,
    )

    results: list[AddPartitionsToTxnResult] = []
    waiting = len(message.transactions)

    def finished() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            request.respond(AddPartitionsToTxnResponse(results_by_transaction=results))

    if not waiting:
        request.respond(AddPartitionsToTxnResponse())
    for transaction in message.transactions:
        result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id)
        results.append(result)
        asked = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        identity = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)

        def respond(
            codes: Mapping[TopicPartition, ErrorCode],
            result: AddPartitionsToTxnResult = result,
            asked: list[TopicPartition] = asked,
        ) -> None:
            result.topic_results = _topic_results(asked, codes)
            finished()

        if transaction.verify_only:
            # v5 has an error code for "abort and continue"; older clients treat it as fatal.
            absent = ErrorCode.TRANSACTION_ABORTABLE if request.version >= 5 else ErrorCode.INVALID_TXN_STATE
            codes = {place: _verify(dispatcher, *identity, place) for place in asked}
            respond({place: absent if code is ErrorCode.INVALID_TXN_STATE else code for place, code in codes.items()})
        else:
            _add_partitions(dispatcher, *identity, asked, respond, is_v2=True)


def _add_partitions(
    dispatcher: Dispatcher,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    asked: Sequence[TopicPartition],
    respond: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    *,
    is_v2: bool = False,
) -> None:
    """Make partitions part of a transaction, all or none."""
    missing = {place for place in asked if not dispatcher.node.image.has_partition(*place)}
    driver = dispatcher.node.transactions.driver(transactional_id)
    if missing or isinstance(driver, ErrorCode):
        code = ErrorCode.OPERATION_NOT_ATTEMPTED if missing or not isinstance(driver, ErrorCode) else driver
        respond({place: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if place in missing else code for place in asked})
        return
    driver.run(
        driver.shard.add_partitions(
            transactional_id,
            producer_id,
            producer_epoch,
            asked,
            CodeReply(lambda code: respond(dict.fromkeys(asked, code))),
            code_response,
            is_v2=is_v2,
            wall_ms=driver.wall_ms(),
        )
    )


def _topic_results(
    asked: Iterable[TopicPartition], codes: Mapping[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_response import (
        AddPartitionsToTxnPartitionResult,
        AddPartitionsToTxnTopicResult,
    )

    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for name, index in asked:
        topics.setdefault(name, AddPartitionsToTxnTopicResult(name=name)).results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[name, index])
        )
    return list(topics.values())


async def write_txn_markers(
    dispatcher: Dispatcher, _: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """WriteTxnMarkers v1-2, from coordinators on other brokers and from administrators (KIP-664).

    The answer comes when all markers are committed, or cannot be any more.
    """
    from hailbus_broker.protocol.definitions.write_txn_markers_response import (
        WritableTxnMarkerPartitionResult,
        WritableTxnMarkerResult,
        WritableTxnMarkerTopicResult,
        WriteTxnMarkersResponse,
    )

    node = dispatcher.node
    response = WriteTxnMarkersResponse()
    waiting = 1
    all_done = node.core.loop.create_future()

    def done(result: WritableTxnMarkerPartitionResult, error: Exception | None) -> None:
        nonlocal waiting
        if error is not None:
            result.error_code = _marker_code(error)
        waiting -= 1
        if not waiting and not all_done.done():
            all_done.set_result(None)

    for asked in message.markers:
        of_producer = WritableTxnMarkerResult(producer_id=asked.producer_id)
        response.markers.append(of_producer)
        marker = Marker(
            producer_id=asked.producer_id,
            producer_epoch=asked.producer_epoch,
            coordinator_epoch=asked.coordinator_epoch,
            is_commit=asked.transaction_result,
            must_be_newer=asked.transaction_version >= 2,
        )
        for topic in asked.topics:
            answer = WritableTxnMarkerTopicResult(name=topic.name)
            of_producer.topics.append(answer)
            for index in topic.partition_indexes:
                result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=ErrorCode.NONE)
                answer.partitions.append(result)
                partition = node.replicas.leader(topic.name, index)
                if not isinstance(partition, LeaderReplica):
                    result.error_code = partition
                else:
                    try:
                        # A coordinator that got no answer sends its markers again; the first request may have arrived.
                        if not partition.log.has_marker(marker.producer_id, marker.producer_epoch):
                            append_marker(partition, marker, now_ms=node.clock.wall_ms())
                    except LogError as error:
                        result.error_code = _marker_code(error)
                    else:
                        waiting += 1
                        partition.when_committed(partition.log.log_end_offset, partial(done, result))
    waiting -= 1
    if waiting:
        await all_done
    return response


def _marker_code(error: Exception) -> ErrorCode:
    """Return the code for a marker that was not appended, or may not be committed."""
    if isinstance(error, TopicDeletedError):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, NotLeaderError) else error_code(error)


async def add_offsets_to_txn(
    dispatcher: Dispatcher, request: Request, message: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | None:
    """AddOffsetsToTxn v0-4: the group's partition of `__consumer_offsets` becomes part of the transaction."""
    if not message.group_id:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    place = await _offsets_partition(dispatcher, message.group_id)
    driver = _driver(dispatcher, message.transactional_id)
    if _is_late(request, driver, (message.transactional_id, message.producer_id, message.producer_epoch)):
        return None
    driver.run(
        driver.shard.add_partitions(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            [place],
            Reply(request, _older(request, 2)),
            code_response,
            wall_ms=driver.wall_ms(),
        )
    )
    return None


async def _offsets_partition(dispatcher: Dispatcher, group_id: str) -> tuple[str, int]:
    node = dispatcher.node
    try:
        created = node.create_internal_topic(GROUP_METADATA_TOPIC)
        if created is not None:
            await created
    except (StorageError, ApiError) as error:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
    if not node.groups.partition_count:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # created, but this broker does not know it yet
    return GROUP_METADATA_TOPIC, partition_for(group_id, node.groups.partition_count)


async def end_txn(dispatcher: Dispatcher, request: Request, message: EndTxnRequest) -> None:
    """EndTxn v0-5; from v5 on the answer holds the epoch of the next transaction (KIP-890).

    Deviations: the answer waits until the markers are written; up to v4 a request over a connection that its producer
    has given up is refused, which Apache Kafka takes for one of the next transaction.
    """
    node = dispatcher.node
    driver = _driver(dispatcher, message.transactional_id)
    transaction = driver.shard.transactions.get(message.transactional_id)
    if transaction is not None and transaction.is_epoch_exhausted:
        await _reserve_producer_id(node)
        driver = _driver(dispatcher, message.transactional_id)
    is_v2 = request.version >= 5
    identity = (message.transactional_id, message.producer_id, message.producer_epoch)
    if not is_v2 and _is_late(request, driver, identity):
        return
    driver.run(
        driver.shard.end(
            message.transactional_id,
            message.producer_id,
            message.producer_epoch,
            message.committed,
            Reply(request, _older(request, 2)),
            is_v2=is_v2,
            new_producer_id=node.producer_ids.take,
            wall_ms=driver.wall_ms(),
        )
    )


async def txn_offset_commit(dispatcher: Dispatcher, request: Request, message: TxnOffsetCommitRequest) -> None:
    """TxnOffsetCommit v0-5; v5 makes the offsets part of the transaction by itself."""
    node = dispatcher.node
    entries = []
    for topic in message.topics:
        known = node.image.topics.get(topic.name)
        for part in topic.partitions:
            is_known = known is not None and 0 <= part.partition_index < len(known.partitions)
            entries.append(
                OffsetToCommit(
                    topic=topic.name,
                    topic_id=b"" if known is None else known.topic_id,
                    partition=part.partition_index,
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=part.committed_metadata or "",
                    refusal=ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )
            )
    if not message.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    place = await _offsets_partition(dispatcher, message.group_id)
    groups = node.groups.driver(message.group_id)
    if isinstance(groups, ErrorCode):
        raise ApiError(groups)
    prepared = None
    if len(entries) > PREPARED_IN_THREAD:
        producer = message.producer_id, message.producer_epoch
        wall_ms = node.clock.wall_ms()
        prepare = partial(groups.shard.prepare_commit, message.group_id, entries, wall_ms=wall_ms, producer=producer)
        prepared = await node.threads.run(prepare)

    def commit(code: ErrorCode) -> None:
        if code:
            request.respond_error(code)
        else:
            groups.run(
                groups.shard.commit_in_transaction(
                    message,
                    entries,
                    request,
                    now_ms=groups.now_ms(),
                    wall_ms=node.clock.wall_ms(),
                    prepared=prepared,
                )
            )

    if request.version >= 5:
        add_then(dispatcher, message.transactional_id, message.producer_id, message.producer_epoch, [place], commit)
        return
    if groups.partition.log.has_open_transaction(message.producer_id, message.producer_epoch):
        commit(ErrorCode.NONE)
        return

    def verified(codes: Mapping[TopicPartition, ErrorCode]) -> None:
        code = codes[place]
        commit(ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code)

    verify_then(dispatcher, message.transactional_id, message.producer_id, message.producer_epoch, [place], verified)


def add_then(
    dispatcher: Dispatcher,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    places: Iterable[tuple[str, int]],
    callback: Callable[[ErrorCode], None],
) -> None:
    """Make partitions part of a transaction v2, then call back: no data may be written before that is safe."""
    places = list(places)
    coordinator = _remote_coordinator(dispatcher, transactional_id)
    if coordinator is not None:
        dispatcher.node.remote_coordinators.check(
            coordinator,
            PartitionCheck(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=places,
                verify_only=False,
                answer=lambda codes: callback(_first_error(codes.values())),
            ),
        )
        return
    driver = _driver(dispatcher, transactional_id)
    driver.run(
        driver.shard.add_partitions(
            transactional_id,
            producer_id,
            producer_epoch,
            places,
            CodeReply(callback),
            code_response,
            is_v2=True,
            wall_ms=driver.wall_ms(),
        )
    )


def verify_then(
    dispatcher: Dispatcher,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    places: Sequence[TopicPartition],
    callback: Callable[[Mapping[TopicPartition, ErrorCode]], None],
) -> None:
    """Ask the coordinator whether partitions are part of a transaction v1, then call back (KIP-890, part 1).

    If the coordinator is on this broker, the call comes before this function returns.
    """
    coordinator = _remote_coordinator(dispatcher, transactional_id)
    if coordinator is not None:
        dispatcher.node.remote_coordinators.check(
            coordinator,
            PartitionCheck(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=places,
                verify_only=True,
                answer=callback,
            ),
        )
        return
    callback({place: _verify(dispatcher, transactional_id, producer_id, producer_epoch, place) for place in places})


def _first_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """Return why partitions did not become part of a transaction: all do, or none."""
    errors = [code for code in codes if code]
    causes = [code for code in errors if code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (causes or errors or [ErrorCode.NONE])[0]


def _remote_coordinator(dispatcher: Dispatcher, transactional_id: str) -> int | None:
    """Return the other broker that coordinates a transactional id; None if it is this one, or there is none."""
    node = dispatcher.node
    if node.core.roles.is_standalone:
        return None
    topic = node.image.topics.get(TRANSACTION_STATE_TOPIC)
    if topic is None:
        return None
    leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
    return None if leader in {node.node_id, NO_LEADER} else leader


def _verify(
    dispatcher: Dispatcher, transactional_id: str, producer_id: int, producer_epoch: int, place: tuple[str, int]
) -> ErrorCode:
    """Whether a partition is part of a transaction v1 whose coordinator is on this broker."""
    driver = dispatcher.node.transactions.driver(transactional_id)
    if isinstance(driver, ErrorCode):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if dispatcher.node.transactions.is_empty else driver
    return driver.shard.verify(transactional_id, producer_id, producer_epoch, *place)


def describe_transactions(
    dispatcher: Dispatcher, _: Request, message: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """DescribeTransactions v0."""
    from hailbus_broker.protocol.definitions.describe_transactions_response import (
        DescribeTransactionsResponse,
        TransactionState,
    )

    node = dispatcher.node
    states = []
    for transactional_id in message.transactional_ids:
        driver = node.transactions.driver(transactional_id)
        states.append(
            TransactionState(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if node.transactions.is_empty else driver,
                transactional_id=transactional_id,
            )
            if isinstance(driver, ErrorCode)
            else driver.shard.describe(transactional_id)
        )
    return DescribeTransactionsResponse(transaction_states=states)


def list_transactions(dispatcher: Dispatcher, _: Request, message: ListTransactionsRequest) -> ListTransactionsResponse:
    """ListTransactions v0-2."""
    from hailbus_broker.coordinators.transaction.state import State
    from hailbus_broker.protocol.definitions.list_transactions_response import ListTransactionsResponse

    known = {state.label for state in State}
    unknown = [state for state in message.state_filters if state not in known]
    states = [state for state in message.state_filters if state in known]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if message.state_filters and not states:
        return response
    if dispatcher.node.transactions.is_loading:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return response
    wall_ms = dispatcher.node.clock.wall_ms()
    shards: Iterable[TransactionShard] = dispatcher.node.transactions.shards()
    try:
        response.transaction_states = [
            entry
            for shard in shards
            for entry in shard.list(
                states,
                message.producer_id_filters,
                message.duration_filter,
                message.transactional_id_pattern,
                wall_ms=wall_ms,
            )
        ]
    except PatternError:
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
    return response
