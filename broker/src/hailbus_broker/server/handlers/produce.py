"""Produce v3-13 (KIP-98, 360, 467, 516, 890). All acks wait for the disk unless flush.messages says otherwise."""

from __future__ import annotations

from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.controller import is_protected
from hailbus_broker.log import LogError
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.produce_request import ProduceRequest
from hailbus_broker.protocol.definitions.produce_response import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.hot import SingleProduce, read_single_produce, write_single_produced
from hailbus_broker.records import InvalidRecordError, RecordsError
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.server.dispatch import error_code
from hailbus_broker.server.handlers import transactions

if TYPE_CHECKING:
    from hailbus_broker.log import AppendResult
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request

FIRST_VERSION_WITH_IDS: Final = 13
FIRST_VERSION_OF_TRANSACTIONS_V2: Final = 12
FIRST_VERSION_WITH_ABORTABLE: Final = 11

# In the header of a record batch.
ATTRIBUTES_POSITION: Final = 22
TRANSACTIONAL_BIT: Final = 0x10
PRODUCER_POSITION: Final = 43
PRODUCER: Final = Struct(">qh")


class _Produce:
    """A produce request in work. `left` counts what its answer waits for."""

    __slots__ = ("acks", "left", "message", "now_ms", "request", "response")

    def __init__(self, request: Request, message: ProduceRequest, now_ms: int) -> None:
        self.request = request
        self.message = message
        self.acks = message.acks
        self.now_ms = now_ms
        self.response = ProduceResponse()
        self.left = 1

    def append(
        self,
        partition: LeaderReplica,
        records: bytes | memoryview,
        result: PartitionProduceResponse,
        *,
        must_begin_at_zero: bool = False,
    ) -> None:
        """Append one partition's batch; the result is filled in once it is durable."""
        try:
            appended = partition.append(records, now_ms=self.now_ms, must_begin_at_zero=must_begin_at_zero)
        except (LogError, RecordsError) as error:
            fail_with(result, error)
            return
        result.base_offset = appended.base_offset
        result.log_append_time_ms = appended.log_append_time_ms
        result.log_start_offset = appended.log_start_offset
        end_offset = appended.last_offset + 1
        if self.acks and partition.log.high_watermark < end_offset:
            self.left += 1
            partition.when_committed(end_offset, lambda error: self.committed(result, error))

    def committed(self, result: PartitionProduceResponse, error: Exception | None) -> None:
        """What was appended to a partition is safe, or never will be."""
        if error is not None:
            fail_with(result, error)
        self.done()

    def done(self) -> None:
        """One thing less to wait for."""
        self.left -= 1
        if self.left:
            return
        if self.acks:
            self.request.respond(self.response)
            return
        failed = [part for topic in self.response.responses for part in topic.partition_responses if part.error_code]
        if failed:
            # The only way to tell a client that does not listen: it looks at the metadata again when it reconnects.
            name = ErrorCode(failed[0].error_code).name
            self.request.connection.abort(
                f"a Produce with acks=0 from client {self.request.client_id!r} failed: {name}"
            )
        else:
            self.request.respond_nothing()


class UnverifiedBatch:
    """A batch whose transaction the coordinator is still to confirm, and the request that it came in."""

    __slots__ = ("partition", "produce", "records", "result")

    def __init__(
        self, produce: _Produce, partition: LeaderReplica, records: memoryview, result: PartitionProduceResponse
    ) -> None:
        self.produce = produce
        self.partition = partition
        self.records = records
        self.result = result
        produce.left += 1

    def finish(self, code: ErrorCode) -> None:
        """Append the batch, or refuse it as the coordinator has refused the first one."""
        if code:
            fail(self.result, produce_code(code, self.produce.request.version), None)
        elif self.partition.is_deleted:
            fail(self.result, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
        else:
            self.produce.append(self.partition, self.records, self.result, must_begin_at_zero=True)
        self.produce.done()


def handle(dispatcher: Dispatcher, request: Request, _: Any) -> None:
    """Append each partition's batch; answer when all of them are safe."""
    single = read_single_produce(request.frame, request.version, request.position)
    if single is not None and _handle_single(dispatcher, request, single):
        return
    node = dispatcher.node
    message = codec.decode(ProduceRequest, request.frame, request.version, position=request.position)
    uses_ids = request.version >= FIRST_VERSION_WITH_IDS
    produce = _Produce(request, message, node.clock.wall_ms())
    unverified: list[tuple[LeaderReplica, memoryview, PartitionProduceResponse]] = []
    for topic in message.topic_data:
        if uses_ids:
            partitions = node.replicas.topics_by_id.get(topic.topic_id)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            partitions = node.replicas.topics.get(topic.name)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results = []
        for data in topic.partition_data:
            index = data.index
            result = PartitionProduceResponse(index=index)
            results.append(result)
            records = data.records
            if not -1 <= message.acks <= 1:
                fail(result, ErrorCode.INVALID_REQUIRED_ACKS, None)
            elif partitions is None:
                fail(result, unknown, None)
            elif not 0 <= index < len(partitions):
                fail(result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
            elif not records:
                fail(result, ErrorCode.INVALID_RECORD, "no record batch was given")
            elif not isinstance(partition := partitions[index], LeaderReplica):
                fail(result, partition.refusal, None)
            elif refusal := refuse(partition):
                fail(result, *refusal)
            elif not is_transactional(records):
                produce.append(partition, records, result)
            else:
                assert isinstance(records, memoryview)
                producer = producer_of(records)
                behind = dispatcher.unverified.get((partition, *producer))
                if behind is not None:
                    behind.append(UnverifiedBatch(produce, partition, records, result))
                elif partition.log.has_open_transaction(*producer):
                    produce.append(partition, records, result)
                else:
                    unverified.append((partition, records, result))
        response = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)
        produce.response.responses.append(response)
    if unverified:
        _verify(dispatcher, produce, unverified)
    produce.done()


def _handle_single(dispatcher: Dispatcher, request: Request, single: SingleProduce) -> bool:
    """The short way for one batch that is in order; False, with nothing done, for everything else."""
    node = dispatcher.node
    records = single.records
    if request.version >= FIRST_VERSION_WITH_IDS:
        partitions = node.replicas.topics_by_id.get(single.topic)
    else:
        try:
            partitions = node.replicas.topics.get(single.topic.decode())
        except UnicodeDecodeError:
            return False
    if partitions is None or not 0 <= single.partition < len(partitions) or is_transactional(records):
        return False
    partition = partitions[single.partition]
    if not -1 <= single.acks <= 1 or not isinstance(partition, LeaderReplica) or is_protected(partition.topic):
        return False
    try:
        appended = partition.append(records, now_ms=node.clock.wall_ms())
    except (LogError, RecordsError) as error:
        _refuse_single(request, single, error)
        return True
    if not single.acks:
        request.respond_nothing()
        return True
    end_offset = appended.last_offset + 1
    if partition.log.high_watermark >= end_offset:
        _answer_single(request, single, appended)
    else:

        def committed(error: Exception | None) -> None:
            if error is None:
                _answer_single(request, single, appended)
            else:
                _refuse_single(request, single, error)

        partition.when_committed(end_offset, committed)
    return True


def _answer_single(request: Request, single: SingleProduce, appended: AppendResult) -> None:
    head = request.response_head()
    write_single_produced(
        head, request.version, single, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset
    )
    request.respond_parts(head, [], 0)


def _refuse_single(request: Request, single: SingleProduce, error: Exception) -> None:
    """The one batch was refused, or will never be safe: the same answer as on the long way."""
    has_ids = request.version >= FIRST_VERSION_WITH_IDS
    result = PartitionProduceResponse(index=single.partition)
    topic = TopicProduceResponse(partition_responses=[result])
    if has_ids:
        topic.topic_id = single.topic
    else:
        topic.name = single.topic.decode()
    produce = _Produce(request, ProduceRequest(acks=single.acks), 0)
    produce.response.responses.append(topic)
    fail_with(result, error)
    produce.done()


def refuse(partition: LeaderReplica) -> tuple[ErrorCode, str] | None:
    """Why a client may not write to a partition, if it may not. Who it says that it is makes no difference."""
    if is_protected(partition.topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION, "this topic is the broker's own"
    return None


def is_transactional(records: bytes | memoryview) -> bool:
    """Whether a batch says that it belongs to a transaction."""
    return len(records) > PRODUCER_POSITION + PRODUCER.size and bool(records[ATTRIBUTES_POSITION] & TRANSACTIONAL_BIT)


def producer_of(records: bytes | memoryview) -> tuple[int, int]:
    """Producer id and epoch in a batch's header."""
    producer_id, producer_epoch = PRODUCER.unpack_from(records, PRODUCER_POSITION)
    return producer_id, producer_epoch


def _verify(
    dispatcher: Dispatcher,
    produce: _Produce,
    unverified: list[tuple[LeaderReplica, memoryview, PartitionProduceResponse]],
) -> None:
    """Batches that begin a transaction in their partition: the coordinator must know of it (KIP-890)."""
    transactional_id = produce.message.transactional_id
    version = produce.request.version
    if transactional_id is None:
        for _, _, result in unverified:
            fail(result, ErrorCode.INVALID_RECORD, "a transactional batch came without a transactional id")
        return
    if version < FIRST_VERSION_OF_TRANSACTIONS_V2:
        for partition, records, result in unverified:
            place = (partition.topic, partition.index)
            code = transactions.verify(dispatcher, transactional_id, *producer_of(records), place)
            if code:
                fail(result, produce_code(code, version), None)
            else:
                produce.append(partition, records, result)
        return
    by_producer: dict[tuple[int, int], list[UnverifiedBatch]] = {}
    for partition, records, result in unverified:
        batch = UnverifiedBatch(produce, partition, records, result)
        by_producer.setdefault(producer_of(records), []).append(batch)
    for producer, batches in by_producer.items():
        _add_then_append(dispatcher, transactional_id, producer, batches)


def _add_then_append(
    dispatcher: Dispatcher, transactional_id: str, producer: tuple[int, int], batches: list[UnverifiedBatch]
) -> None:
    """Make partitions part of a transaction v2, then append the producer's batches for them.

    Batches that follow for the same partitions wait behind these, so that none overtakes another, and share their fate.
    """
    queues: dict[tuple[LeaderReplica, int, int], list[UnverifiedBatch]] = {
        (batch.partition, *producer): [] for batch in batches
    }
    dispatcher.unverified.update(queues)

    def added(code: ErrorCode) -> None:
        for key in queues:
            del dispatcher.unverified[key]
        for batch in chain(batches, *queues.values()):
            batch.finish(code)

    places = [(partition.topic, partition.index) for partition, _, _ in queues]
    try:
        transactions.add_then(dispatcher, transactional_id, *producer, places, added)
    except ApiError as error:
        added(error.code)


def produce_code(code: ErrorCode, version: int) -> ErrorCode:
    """A transaction coordinator's refusal as a producer of that version understands it."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.INVALID_TXN_STATE if version >= FIRST_VERSION_WITH_ABORTABLE:
            return ErrorCode.TRANSACTION_ABORTABLE
        case ErrorCode.CONCURRENT_TRANSACTIONS if version < FIRST_VERSION_OF_TRANSACTIONS_V2:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS | ErrorCode.NOT_COORDINATOR:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code


def fail_with(result: PartitionProduceResponse, error: Exception) -> None:
    """Write what the log said into a partition's result."""
    if not isinstance(error, (LogError, RecordsError)):
        # The partition is gone: its topic was deleted while the batch waited for the disk.
        fail(result, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
        return
    fail(result, error_code(error), str(error))
    if isinstance(error, InvalidRecordError):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=entry.batch_index, batch_index_error_message=entry.message)
            for entry in error.record_errors
        ]


def fail(result: PartitionProduceResponse, code: ErrorCode, text: str | None) -> None:
    """Write an error into a partition's result."""
    result.error_code = code
    result.error_message = text
    result.base_offset = -1
