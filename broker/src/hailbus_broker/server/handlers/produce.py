"""Produce v3-13 (KIP-98, 360, 467, 516, 890).

acks=1 waits until the leader has stored the batch, acks=all until all in-sync replicas have. Stored means on the disk,
unless flush.messages says otherwise.
"""

from __future__ import annotations

import asyncio
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hailbus_broker.cluster.controller import is_protected
from hailbus_broker.log import AppendResult, LogError
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.produce_request import ProduceRequest
from hailbus_broker.protocol.definitions.produce_response import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.hot import (
    SingleProduce,
    has_many_batches,
    read_single_produce,
    write_single_produced,
)
from hailbus_broker.records import InvalidRecordError, RecordsError
from hailbus_broker.runtime.replica import LeaderReplica, NotLeaderError, TopicDeletedError
from hailbus_broker.server.dispatch import error_code
from hailbus_broker.server.handlers import transactions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.records import RecordError
    from hailbus_broker.runtime.replica import Replica
    from hailbus_broker.server.dispatch import Dispatcher, WaitingBatch
    from hailbus_broker.server.request import Request

    Records: TypeAlias = bytes | memoryview
    Topics: TypeAlias = list[tuple[str | Uuid, list["ProducedBatch"]]]

SLICE: Final = 100
"""So many batches are appended in one turn of the loop; a thread decodes requests that have more."""
SMALL_BATCH_BYTES: Final = 64
"""The smallest batches with what comes before them. Requests of fewer bytes cannot have many."""

FIRST_VERSION_WITH_IDS: Final = 13
FIRST_VERSION_OF_TRANSACTIONS_V2: Final = 12
FIRST_VERSION_WITH_ABORTABLE: Final = 11

ACKS_ALL: Final = -1
TIMED_OUT: Final = (
    "not all in-sync replicas have stored the batch within {} ms, so it may be in the log or not: bring their brokers "
    "back, or a majority of the controllers"
)
NOT_ENOUGH_REPLICAS: Final = "fewer replicas of {} are in sync than min.insync.replicas says: bring its brokers back"
NONE_WAITING: Final[dict[ProducedBatch, None]] = {}
"""Shared by the requests that wait for no followers, which never change it."""

# In the header of a record batch.
ATTRIBUTES_POSITION: Final = 22
TRANSACTIONAL_BIT: Final = 0x10
PRODUCER_POSITION: Final = 43
PRODUCER: Final = Struct(">qh")
PRODUCER_END: Final = PRODUCER_POSITION + PRODUCER.size


class Refusal(NamedTuple):
    """Why a batch was not appended, or is lost."""

    code: ErrorCode
    text: str | None = None
    record_errors: Sequence[RecordError] = ()


class ProducedBatch:
    """The batch for one partition in a request, and what became of it.

    Attributes:
        produce: The request.
        index: Of the partition.
        records: The batch, until it is appended.
        outcome: Where it was appended, or why not.
    """

    __slots__ = ("index", "outcome", "produce", "records")

    def __init__(self, produce: Produce, index: int, records: Records | None) -> None:
        self.produce = produce
        self.index = index
        self.records = records
        self.outcome: AppendResult | Refusal | None = None

    def begin(self, dispatcher: Dispatcher, replicas: Sequence[Replica] | None) -> None:
        """Append the batch to one of a topic's partitions, or refuse it."""
        produce, index, records = self.produce, self.index, self.records
        if not -1 <= produce.acks <= 1:
            self.outcome = Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
        elif replicas is None:
            has_ids = produce.request.version >= FIRST_VERSION_WITH_IDS
            self.outcome = Refusal(ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not 0 <= index < len(replicas):
            self.outcome = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not records:
            self.outcome = Refusal(ErrorCode.INVALID_RECORD, "no record batch was given")
        elif not isinstance(partition := replicas[index], LeaderReplica):
            self.outcome = Refusal(partition.refusal)
        elif is_protected(partition.topic):
            # Who the client says that it is makes no difference.
            self.outcome = Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, "this topic is the broker's own")
        elif len(records) <= PRODUCER_END or not records[ATTRIBUTES_POSITION] & TRANSACTIONAL_BIT:
            self.append(partition)
        else:
            producer = producer_of(records)
            behind = dispatcher.unverified.get((partition, *producer))
            if behind is not None:
                produce.open_count += 1
                behind.append(self)
            elif partition.log.has_open_transaction(*producer):
                self.append(partition)
            else:
                if produce.unverified is None:
                    produce.unverified = []
                produce.unverified.append((partition, self))

    def append(self, partition: LeaderReplica, *, must_begin_at_zero: bool = False) -> None:
        """Append the batch; the request waits until it is durable, unless its client does not."""
        produce, records = self.produce, self.records
        assert records is not None
        if partition.followers is not None:
            self.append_replicated(partition, records, must_begin_at_zero=must_begin_at_zero)
            return
        try:
            appended = partition.append(records, now_ms=produce.now_ms, must_begin_at_zero=must_begin_at_zero)
        except (LogError, RecordsError) as error:
            self.outcome = refusal_for(error)
            return
        self.outcome, self.records = appended, None
        end_offset = appended.last_offset + 1
        if produce.acks and partition.log.high_watermark < end_offset:
            produce.open_count += 1
            partition.when_committed(end_offset, self.committed)

    def append_replicated(
        self, partition: LeaderReplica, records: Records, *, must_begin_at_zero: bool = False
    ) -> None:
        """Append the batch to a partition with followers; with acks=all the request waits for those in sync."""
        produce = self.produce
        waits_for_all = produce.acks == ACKS_ALL
        if waits_for_all and not partition.has_min_isr:
            self.outcome = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS.format(partition.name))
            return
        try:
            appended = partition.append(records, now_ms=produce.now_ms, must_begin_at_zero=must_begin_at_zero)
        except (LogError, RecordsError) as error:
            self.outcome = refusal_for(error)
            return
        self.outcome, self.records = appended, None
        end_offset = appended.last_offset + 1
        if waits_for_all:
            produce.open_count += 1
            produce.wait_for(self, partition)
            partition.when_committed(end_offset, partial(self.replicated, partition))
        elif produce.acks:
            produce.open_count += 1
            partition.when_stored(end_offset, self.committed)

    def committed(self, error: Exception | None) -> None:
        """The batch is safe, or never will be."""
        if error is not None:
            self.outcome = refusal_for(error)
        self.produce.done()

    def replicated(self, partition: LeaderReplica, error: Exception | None) -> None:
        """All in-sync replicas have the batch, or never will; unless its time was over before that."""
        if self not in self.produce.waiting:
            return
        del self.produce.waiting[self]
        if error is None and not partition.has_min_isr:
            self.outcome = Refusal(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_ENOUGH_REPLICAS.format(partition.name)
            )
        self.committed(error)

    def verified(self, partition: LeaderReplica, code: ErrorCode) -> None:
        """Append the batch, or refuse it as the coordinator has refused the first one of its transaction."""
        if code:
            self.outcome = Refusal(produce_code(code, self.produce.request.version))
        elif isinstance(partition.error, (NotLeaderError, TopicDeletedError)):
            self.outcome = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            is_v2 = self.produce.request.version >= FIRST_VERSION_OF_TRANSACTIONS_V2
            self.append(partition, must_begin_at_zero=is_v2)
        self.produce.done()

    def to_response(self) -> PartitionProduceResponse:
        """The partition's part of the answer."""
        match self.outcome:
            case AppendResult(base_offset, _, log_append_time_ms, log_start_offset):
                return PartitionProduceResponse(
                    index=self.index,
                    base_offset=base_offset,
                    log_append_time_ms=log_append_time_ms,
                    log_start_offset=log_start_offset,
                )
            case Refusal(code, text, record_errors):
                return PartitionProduceResponse(
                    index=self.index,
                    error_code=code,
                    error_message=text,
                    base_offset=-1,
                    record_errors=[
                        BatchIndexAndErrorMessage(
                            batch_index=entry.batch_index, batch_index_error_message=entry.message
                        )
                        for entry in record_errors
                    ],
                )
            case None:
                raise AssertionError(f"the batch for partition {self.index} was never begun")


class Produce:
    """A produce request in work; it is answered when nothing of it is open any more.

    Attributes:
        request: To be answered.
        acks: What the client waits for: nothing (0), or that its batches are safe (1, -1).
        single: The request, if it is of the usual kind: its answer is written by hand.
        now_ms: Milliseconds since 1970 UTC.
        open_count: How much the answer waits for; 1 for the request itself until all its batches are begun.
        topics: The topics in the order of the request, by id or name, each with its batches.
        unverified: Batches whose transaction the coordinator is still to confirm.
        waiting: Batches that followers are still to store; refused when `timeout_ms` has passed.
        timeout_ms: How long the client wants to wait for followers.
    """

    __slots__ = (
        "acks",
        "now_ms",
        "open_count",
        "request",
        "single",
        "timeout_ms",
        "timer",
        "topics",
        "unverified",
        "waiting",
    )

    def __init__(self, request: Request, acks: int, single: SingleProduce | None, now_ms: int, timeout_ms: int) -> None:
        self.request = request
        self.acks = acks
        self.single = single
        self.now_ms = now_ms
        self.open_count = 1
        self.topics: Topics = []
        self.unverified: list[tuple[LeaderReplica, ProducedBatch]] | None = None
        self.waiting: dict[ProducedBatch, None] = NONE_WAITING
        self.timeout_ms = timeout_ms
        self.timer: asyncio.TimerHandle | None = None

    def wait_for(self, batch: ProducedBatch, partition: LeaderReplica) -> None:
        """Wait until followers have stored a batch, but no longer than the client wants to."""
        if self.waiting is NONE_WAITING:
            self.waiting = {}
        self.waiting[batch] = None
        if self.timer is None:
            self.timer = partition.call_later(max(0, self.timeout_ms) / 1000, self.expire)

    def expire(self) -> None:
        """The time is over: answer for what followers have not stored that it may be in the log or not."""
        self.timer = None
        waiting, self.waiting = list(self.waiting), {}
        for batch in waiting:
            batch.outcome = Refusal(ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT.format(max(0, self.timeout_ms)))
            self.done()

    def done(self) -> None:
        """One thing less to wait for."""
        self.open_count -= 1
        if self.open_count:
            return
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        # The batches refer to this object: without the cycle the request's memory is free at once.
        topics, self.topics = self.topics, []
        if self.acks:
            self.answer(topics)
            return
        refusals = [batch.outcome for _, batches in topics for batch in batches if isinstance(batch.outcome, Refusal)]
        if refusals:
            # The only way to tell a client that does not listen: it looks at the metadata again when it reconnects.
            self.request.connection.abort(
                f"a Produce with acks=0 from client {self.request.client_id!r} failed: {refusals[0].code.name}"
            )
        else:
            self.request.respond_nothing()

    def answer(self, topics: Topics) -> None:
        """Send the answer."""
        request, single = self.request, self.single
        if single is not None:
            outcome = topics[0][1][0].outcome
            if isinstance(outcome, AppendResult):
                out = request.response_head()
                base_offset, _, log_append_time_ms, log_start_offset, _ = outcome
                write_single_produced(out, request.version, single, base_offset, log_append_time_ms, log_start_offset)
                request.respond_encoded(out)
                return
        if _count(topics) > SLICE:
            request.respond_from_thread(partial(_response, topics))
        else:
            request.respond(_response(topics))


def _count(topics: Topics) -> int:
    return sum(len(batches) for _, batches in topics)


def _response(topics: Topics) -> ProduceResponse:
    response = ProduceResponse()
    for topic, batches in topics:
        results = [batch.to_response() for batch in batches]
        if isinstance(topic, str):
            response.responses.append(TopicProduceResponse(name=topic, partition_responses=results))
        else:
            response.responses.append(TopicProduceResponse(topic_id=topic, partition_responses=results))
    return response


def handle(dispatcher: Dispatcher, request: Request, _: Any) -> Awaitable[None] | None:
    """Append each partition's batch; answer when all of them are safe."""
    replicas = dispatcher.node.replicas
    now_ms = dispatcher.node.clock.wall_ms()
    has_ids = request.version >= FIRST_VERSION_WITH_IDS
    usual = read_single_produce(request.frame, request.version, request.position)
    if usual is not None:
        single, records = usual
        _, topic, index, _ = single
        produce = Produce(request, single.acks, single, now_ms, single.timeout_ms)
        batch = ProducedBatch(produce, index, records)
        if has_ids:
            produce.topics = [(topic, [batch])]
            batch.begin(dispatcher, replicas.topics_by_id.get(topic))
        else:
            name = topic.decode()
            produce.topics = [(name, [batch])]
            batch.begin(dispatcher, replicas.topics.get(name))
        transactional_id = None
    elif len(request.frame) > SLICE * SMALL_BATCH_BYTES and has_many_batches(
        request.frame, request.version, request.position, SLICE
    ):
        request.connection.hold()
        return _begin_in_slices(dispatcher, request, now_ms)
    else:
        produce, transactional_id = _decoded(request, now_ms)
        for name_or_id, batches in produce.topics:
            hosted = _replicas_of(dispatcher, name_or_id)
            for batch in batches:
                batch.begin(dispatcher, hosted)
    _all_begun(dispatcher, produce, transactional_id)
    return None


def _replicas_of(dispatcher: Dispatcher, topic: str | Uuid) -> Sequence[Replica] | None:
    replicas = dispatcher.node.replicas
    return replicas.topics.get(topic) if isinstance(topic, str) else replicas.topics_by_id.get(topic)


def _decoded(request: Request, now_ms: int) -> tuple[Produce, str | None]:
    """Return a request and its transactional id, in any thread."""
    message = codec.decode(ProduceRequest, request.frame, request.version, position=request.position)
    has_ids = request.version >= FIRST_VERSION_WITH_IDS
    produce = Produce(request, message.acks, None, now_ms, message.timeout_ms)
    for data in message.topic_data:
        batches = [ProducedBatch(produce, part.index, part.records) for part in data.partition_data]
        produce.topics.append((data.topic_id if has_ids else data.name, batches))
    return produce, message.transactional_id


async def _begin_in_slices(dispatcher: Dispatcher, request: Request, now_ms: int) -> None:
    """Let a thread decode batches for very many partitions, and append them in slices.

    Other connections have their turn in between, this one waits.
    """
    try:
        produce, transactional_id = await dispatcher.node.threads.run(partial(_decoded, request, now_ms))
        count = 0
        for topic, batches in produce.topics:
            for batch in batches:
                batch.begin(dispatcher, _replicas_of(dispatcher, topic))
                count += 1
                if count % SLICE == 0:
                    await asyncio.sleep(0)
        _all_begun(dispatcher, produce, transactional_id)
    finally:
        produce.request.connection.release()


def _all_begun(dispatcher: Dispatcher, produce: Produce, transactional_id: str | None) -> None:
    if produce.unverified is not None:
        unverified, produce.unverified = produce.unverified, None
        _verify(dispatcher, produce, transactional_id, unverified)
    produce.done()
    # While followers store the batches, a client with many requests in flight would hold the memory of all of them.
    produce.request.release_frame()


def producer_of(records: Records) -> tuple[int, int]:
    """Producer id and epoch in a batch's header."""
    producer_id, producer_epoch = PRODUCER.unpack_from(records, PRODUCER_POSITION)
    return producer_id, producer_epoch


def _verify(
    dispatcher: Dispatcher,
    produce: Produce,
    transactional_id: str | None,
    unverified: list[tuple[LeaderReplica, ProducedBatch]],
) -> None:
    """Batches that begin a transaction in their partition: the coordinator must know of it (KIP-890)."""
    if transactional_id is None:
        for _, batch in unverified:
            batch.outcome = Refusal(ErrorCode.INVALID_RECORD, "a transactional batch came without a transactional id")
        return
    by_producer: dict[tuple[int, int], list[tuple[LeaderReplica, ProducedBatch]]] = {}
    for partition, batch in unverified:
        assert batch.records is not None
        produce.open_count += 1
        by_producer.setdefault(producer_of(batch.records), []).append((partition, batch))
    for producer, first in by_producer.items():
        _ask_then_append(dispatcher, transactional_id, producer, first)


def _ask_then_append(
    dispatcher: Dispatcher,
    transactional_id: str,
    producer: tuple[int, int],
    first: list[tuple[LeaderReplica, ProducedBatch]],
) -> None:
    """Have the coordinator verify a transaction v1, or make partitions part of one of v2, then append the batches.

    Batches that follow for the same partitions wait behind these, so that none overtakes another, and share their fate.
    """
    queues: dict[tuple[LeaderReplica, int, int], list[WaitingBatch]] = {
        (partition, *producer): [] for partition, _ in first
    }
    dispatcher.unverified.update(queues)

    places = [(partition.topic, partition.index) for partition, _, _ in queues]

    def answered(codes: Mapping[TopicPartition, ErrorCode]) -> None:
        for key in queues:
            del dispatcher.unverified[key]
        for partition, batch in first:
            batch.verified(partition, codes[partition.topic, partition.index])
        for (partition, _, _), behind in queues.items():
            for waiting in behind:
                waiting.verified(partition, codes[partition.topic, partition.index])

    def added(code: ErrorCode) -> None:
        answered(dict.fromkeys(places, code))

    if first[0][1].produce.request.version < FIRST_VERSION_OF_TRANSACTIONS_V2:
        transactions.verify_then(dispatcher, transactional_id, *producer, places, answered)
        return
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


def refusal_for(error: Exception) -> Refusal:
    """What the log has said about a batch, for its client."""
    if not isinstance(error, (LogError, RecordsError)):
        # The partition is gone: its topic was deleted while the batch waited for the disk.
        return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    record_errors = error.record_errors if isinstance(error, InvalidRecordError) else ()
    return Refusal(error_code(error), str(error), record_errors)
