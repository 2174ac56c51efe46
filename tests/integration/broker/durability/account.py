"""What a broker was asked for and what it has promised, read from the bytes on its sockets.

Independent of the broker's state and of the clients': whatever an answer says, must hold after a power cut from the
moment on at which the answer was given to the socket.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, ApiKey, header_versions, request_class, response_class
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.records import BatchView, iterate_records

if TYPE_CHECKING:
    from tests.integration.broker.durability.machine import Event

OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record of a Produce request; `transaction` names the producer's n-th transaction, None outside of one."""

    key: bytes | None
    value: bytes | None
    transaction: tuple[int, int, int] | None


@dataclass(slots=True)
class Account:
    """What was asked for (before any answer) and what was acknowledged.

    Attributes:
        sent: Records by topic and partition, in any request that has arrived.
        acked: Records by topic, partition and offset.
        readable: The highest high watermark that a reader was told, by topic and partition.
        topics_asked: Names that somebody has tried to create.
        topics: Partition counts of topics whose creation was acknowledged; None after an acknowledged deletion.
        deletions_asked: Topics that may be gone.
        commits_asked: Offsets that may be committed, by group, topic and partition.
        commits: Offsets of acknowledged commits, the newest.
        log_starts_asked: Highest offset up to which records may be deleted.
        log_starts: Highest acknowledged low watermark.
        transactions: Acknowledged ends of transactions: whether they were committed.
        ends_asked: What was asked for of a transaction that may have ended.
        producer_ids: Ids that were given away.
    """

    sent: dict[tuple[str, int], list[SentRecord]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[tuple[str, int], dict[int, SentRecord]] = field(default_factory=lambda: defaultdict(dict))
    readable: dict[tuple[str, int], int] = field(default_factory=dict)
    topics_asked: set[str] = field(default_factory=set)
    topics: dict[str, int | None] = field(default_factory=dict)
    deletions_asked: set[str] = field(default_factory=set)
    commits_asked: dict[tuple[str, str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    commits: dict[tuple[str, str, int], int] = field(default_factory=dict)
    log_starts_asked: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    transactions: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    ends_asked: dict[tuple[int, int, int], bool] = field(default_factory=dict)
    producer_ids: set[int] = field(default_factory=set)
    acknowledgements: int = 0


@dataclass(slots=True)
class _Pending:
    key: ApiKey
    version: int
    request: Any
    transaction: tuple[int, int, int] | None = None


class Bookkeeper:
    """Keeps the account while the bytes of all connections pass."""

    def __init__(self) -> None:
        self.account: Final = Account()
        self._received: dict[str, bytearray] = {}
        self._sent: dict[str, bytearray] = {}
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._topic_names: dict[bytes, str] = {}
        self._transaction_numbers: dict[tuple[int, int], int] = defaultdict(int)
        self._offsets_in: dict[tuple[int, int, int], dict[tuple[str, str, int], int]] = defaultdict(dict)

    def forget_connections(self) -> None:
        """The process has ended: answers that were not sent never will be."""
        self._received.clear()
        self._sent.clear()
        self._pending.clear()

    def note(self, event: Event) -> bool:
        """Take in what was received or sent.

        Returns:
            Whether something was promised.
        """
        before = self.account.acknowledgements
        if event.kind == "received":
            for frame in _frames(self._received.setdefault(event.path, bytearray()), event.data):
                self._asked(event.path, frame)
        elif event.kind == "sent":
            for frame in _frames(self._sent.setdefault(event.path, bytearray()), event.data):
                self._answered(event.path, frame)
        return self.account.acknowledgements != before

    def _name(self, name: str, topic_id: bytes) -> str:
        return name if topic_id == ZERO_UUID else self._topic_names.get(topic_id, "")

    def _transaction(self, producer_id: int, producer_epoch: int) -> tuple[int, int, int]:
        return producer_id, producer_epoch, self._transaction_numbers[producer_id, producer_epoch]

    # ---- requests

    def _asked(self, connection: str, frame: bytes) -> None:
        key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        if key == ApiKey.API_VERSIONS:
            return
        header, position = codec.decode_with_end(RequestHeader, frame, header_versions(key, version)[0])
        request: Any = codec.decode(request_class(key), frame, version, position=position)
        pending = _Pending(ApiKey(key), version, request)
        self._pending[connection, header.correlation_id] = pending
        account = self.account
        match ApiKey(key):
            case ApiKey.PRODUCE:
                for topic, partition, records in self._produced(request):
                    account.sent[topic, partition] += records
            case ApiKey.CREATE_TOPICS:
                account.topics_asked |= {topic.name for topic in request.topics}
            case ApiKey.METADATA:
                account.topics_asked |= {topic.name for topic in request.topics or () if topic.name}
            case ApiKey.DELETE_TOPICS:
                names = request.topic_names or [self._name(topic.name, topic.topic_id) for topic in request.topics]
                account.deletions_asked |= set(names)
            case ApiKey.OFFSET_COMMIT:
                for commit, offset in self._offsets(request).items():
                    account.commits_asked[commit].add(offset)
            case ApiKey.TXN_OFFSET_COMMIT:
                transaction = self._transaction(request.producer_id, request.producer_epoch)
                self._offsets_in[transaction] |= self._offsets(request)
            case ApiKey.END_TXN:
                pending.transaction = self._transaction(request.producer_id, request.producer_epoch)
                account.ends_asked[pending.transaction] = request.committed
                if request.committed:
                    for commit, offset in self._offsets_in[pending.transaction].items():
                        account.commits_asked[commit].add(offset)
                self._transaction_numbers[request.producer_id, request.producer_epoch] += 1
            case ApiKey.DELETE_RECORDS:
                for topic in request.topics:
                    for part in topic.partitions:
                        where = topic.name, part.partition_index
                        account.log_starts_asked[where] = max(account.log_starts_asked.get(where, 0), part.offset)
            case _:
                pass

    def _produced(self, request: Any) -> list[tuple[str, int, list[SentRecord]]]:
        found = []
        for topic in request.topic_data:
            for part in topic.partition_data:
                batch = BatchView(memoryview(bytes(part.records)))
                header = batch.header
                transaction = (
                    self._transaction(header.producer_id, header.producer_epoch) if header.is_transactional else None
                )
                records = [SentRecord(record.key, record.value, transaction) for record in iterate_records(batch)]
                found.append((self._name(topic.name, topic.topic_id), part.index, records))
        return found

    def _offsets(self, request: Any) -> dict[tuple[str, str, int], int]:
        return {
            (request.group_id, self._name(topic.name, getattr(topic, "topic_id", ZERO_UUID)), part.partition_index): (
                part.committed_offset
            )
            for topic in request.topics
            for part in topic.partitions
        }

    # ---- answers

    def _answered(self, connection: str, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        pending = self._pending.pop((connection, correlation_id), None)
        if pending is None:
            return  # ApiVersions
        key, version, request = pending.key, pending.version, pending.request
        _, position = codec.decode_with_end(ResponseHeader, frame, header_versions(key, version)[1])
        response: Any = codec.decode(response_class(key), frame, version, position=position)
        account = self.account
        account.acknowledgements += 1
        match key:
            case ApiKey.PRODUCE:
                answers = {
                    (self._name(topic.name, topic.topic_id), part.index): part
                    for topic in response.responses
                    for part in topic.partition_responses
                }
                for topic, partition, records in self._produced(request):
                    answer = answers[topic, partition]
                    if not answer.error_code:
                        offsets = range(answer.base_offset, answer.base_offset + len(records))
                        account.acked[topic, partition] |= dict(zip(offsets, records, strict=True))
            case ApiKey.FETCH:
                for topic in response.responses:
                    for part in topic.partitions:
                        where = self._name(topic.topic, topic.topic_id), part.partition_index
                        if not part.error_code and where[0]:
                            account.readable[where] = max(account.readable.get(where, 0), part.high_watermark)
            case ApiKey.METADATA:
                for topic in response.topics:
                    if topic.name and getattr(topic, "topic_id", ZERO_UUID) != ZERO_UUID:
                        self._topic_names[bytes(topic.topic_id)] = topic.name
            case ApiKey.CREATE_TOPICS:
                counts = {topic.name: topic.num_partitions for topic in request.topics}
                for topic in response.topics:
                    if not topic.error_code:
                        account.topics[topic.name] = counts[topic.name]
                        account.deletions_asked.discard(topic.name)
            case ApiKey.CREATE_PARTITIONS:
                counts = {topic.name: topic.count for topic in request.topics}
                account.topics |= {topic.name: counts[topic.name] for topic in response.results if not topic.error_code}
            case ApiKey.DELETE_TOPICS:
                for topic in response.responses:
                    if not topic.error_code:
                        name = self._name(topic.name or "", topic.topic_id)
                        account.topics[name] = None
                        for table in (account.acked, account.readable, account.log_starts, account.sent):
                            for where in [where for where in table if where[0] == name]:
                                del table[where]
                        for group in [group for group in account.commits if group[1] == name]:
                            del account.commits[group]
            case ApiKey.OFFSET_COMMIT:
                failed = {
                    (self._name(topic.name, topic.topic_id), part.partition_index)
                    for topic in response.topics
                    for part in topic.partitions
                    if part.error_code
                }
                for commit, offset in self._offsets(request).items():
                    if commit[1:] not in failed:
                        account.commits[commit] = offset
                        account.commits_asked[commit] = {offset}
            case ApiKey.END_TXN:
                if not response.error_code and pending.transaction is not None:
                    account.transactions[pending.transaction] = request.committed
                    if request.committed:
                        for commit, offset in self._offsets_in.pop(pending.transaction, {}).items():
                            account.commits[commit] = offset
                            account.commits_asked[commit] = {offset}
            case ApiKey.DELETE_RECORDS:
                for topic in response.topics:
                    for part in topic.partitions:
                        if not part.error_code:
                            where = topic.name, part.partition_index
                            account.log_starts[where] = max(account.log_starts.get(where, 0), part.low_watermark)
            case ApiKey.INIT_PRODUCER_ID:
                if not response.error_code:
                    account.producer_ids.add(response.producer_id)
            case _:
                account.acknowledgements -= 1
        assert key in APIS


def _frames(buffer: bytearray, data: bytes) -> list[bytes]:
    """Whole frames, as soon as their last byte is there."""
    buffer += data
    found = []
    while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
        found.append(bytes(buffer[4:size]))
        del buffer[:size]
    return found
