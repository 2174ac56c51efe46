"""Fetch v4-18: long poll, sessions (KIP-227), isolation levels, byte limits (KIP-74), leader epochs (KIP-320).

Followers fetch with it, too: they read up to the log end, and acknowledge by the offset everything before it.

A consumer may read from a follower, and with `replica.selector.class` the leader names the one in its rack (KIP-392).
A follower of a partition without a leader refuses: its log may be that of a wiped directory. Apache Kafka's answers.

Deviations: no tiered storage, so its fields keep their defaults. Selectors are Kafka's two, not classes of the user's.
A broker whose session with the controller is over answers NOT_LEADER_OR_FOLLOWER, not OFFSET_OUT_OF_RANGE, to a client
that is ahead of its log: that client has read from the next leader, and must not reset its position.
"""

from __future__ import annotations

import asyncio
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.replication.read_replica import preferred_read_replica
from hailbus_broker.log import (
    DiskReadNeededError,
    Isolation,
    LogError,
    Lookup,
    OffsetOutOfRangeError,
    ReadResult,
    StorageError,
)
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.codec import write_uvarint
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.replica import FollowerReplica, LeaderReplica, NotLeaderError
from hailbus_broker.server.dispatch import DECODED_IN_LOOP_BYTES, error_code
from hailbus_broker.server.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchEntry, FetchSession

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hailbus_broker.log import FileSlice
    from hailbus_broker.protocol.definitions.fetch_request import FetchTopic
    from hailbus_broker.runtime.replica import HostedReplica, Replica
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Part, Request

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_IDS: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_RACKS: Final = 11

COPIED_BYTES: Final = 2 * 1024 * 1024
"""So much of one answer is copied out of the page cache: up to some MiB that costs half the CPU time of sendfile, which
handles each page. Beyond it memory counts."""

SLICE: Final = 400
"""So many partitions are read in one turn of the loop, 6 µs each. A thread encodes an answer of more."""

COLD_COPIED_BYTES: Final = 64 * 1024
"""Smaller slices that have to come from the disk are read by a thread, larger ones sent by it."""

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_PARTITION_V4: Final = Struct(">ihqq")
_PARTITION_V5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_LEADER: Final = -1
"""In place of a preferred replica."""


class _Answer:
    """What one partition answers."""

    __slots__ = ("code", "diverging", "entry", "log_start", "partition", "preferred", "read")

    def __init__(self, entry: FetchEntry, partition: Replica | None) -> None:
        self.entry = entry
        self.partition = partition
        self.code = ErrorCode.NONE
        self.read: ReadResult | None = None
        self.log_start = -1
        self.diverging: tuple[int, int] | None = None
        self.preferred = _LEADER


class _Reading:
    """What was read so far.

    Attributes:
        answers: One for each partition, in the order of the fetch.
        left: How many more bytes the answer may have.
        size: Bytes of the records in the answers.
        must_answer: Whether the answers must be sent whatever their size.
    """

    __slots__ = ("answers", "left", "must_answer", "size")

    def __init__(self, max_bytes: int) -> None:
        self.answers: list[_Answer] = []
        self.left = max_bytes
        self.size = 0
        self.must_answer = False


class ParkedFetch:
    """A fetch that waits for more bytes or for its time to be over."""

    __slots__ = (
        "broker_epoch",
        "dispatcher",
        "entries",
        "follower_id",
        "has_changed",
        "is_due",
        "is_full",
        "is_over",
        "is_reading",
        "is_scheduled",
        "isolation",
        "lookup",
        "max_bytes",
        "message",
        "min_bytes",
        "partitions",
        "rack",
        "reads_followers",
        "request",
        "session",
        "sessions_error",
        "strangers",
        "timer",
    )

    def __init__(self, dispatcher: Dispatcher, request: Request, message: FetchRequest) -> None:
        self.dispatcher = dispatcher
        self.request = request
        self.message = message
        self.max_bytes: int = min(message.max_bytes, dispatcher.node.config["fetch.max.bytes"])
        self.min_bytes = min(message.min_bytes, self.max_bytes)
        self.session: FetchSession | None = None
        self.is_full = True
        self.entries: list[FetchEntry] = []
        self.partitions: list[Replica | None] = []
        self.isolation = Isolation.READ_COMMITTED if message.isolation_level == 1 else Isolation.READ_UNCOMMITTED
        state = message.replica_state
        self.follower_id = state.replica_id if request.version >= FIRST_WITH_REPLICA_STATE else message.replica_id
        self.broker_epoch = state.replica_epoch if request.version >= FIRST_WITH_REPLICA_STATE else -1
        self.reads_followers = self.follower_id < 0 and request.version >= FIRST_WITH_RACKS
        self.rack: str = message.rack_id if self.reads_followers else ""
        if self.follower_id >= 0:
            self.isolation = Isolation.LOG_END
        self.strangers: dict[int, None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.lookup = Lookup()
        self.is_scheduled = False
        self.is_reading = False
        self.has_changed = False
        self.is_due = False
        self.is_over = False

    def start(self) -> None:
        """Answer at once if there is enough, else wait."""
        self.is_due = self.message.max_wait_ms <= 0 or not self.entries
        if self.follower_id >= 0:
            self.note_progress()
        self.proceed()

    def note_progress(self) -> None:
        """Note that a follower has stored everything before the offsets that it fetches from, where its log agrees."""
        for entry, partition in zip(self.entries, self.partitions, strict=True):
            if (
                not isinstance(partition, LeaderReplica)
                or (entry.current_leader_epoch >= 0 and entry.current_leader_epoch != partition.leader_epoch)
                or not partition.log.log_start_offset <= entry.offset <= partition.log.log_end_offset
                or _diverging(entry, partition) is not None
            ):
                continue
            if not partition.fetched(
                self.follower_id, self.broker_epoch, entry.offset, entry.follower_log_start_offset
            ):
                if self.strangers is None:
                    self.strangers = {}
                self.strangers[id(partition)] = None

    def proceed(self) -> None:
        """Answer if there is enough, or if the time is over; else wait for more, or first for what is on the disk."""
        if self.is_over:
            return
        if self.is_reading:
            self.has_changed = True
            return
        if len(self.entries) > SLICE:
            self.is_reading = True
            self.dispatcher.node.spawn(self.read_in_slices(), "fetch")
            return
        reading = _Reading(self.max_bytes)
        self.read(reading, 0, len(self.entries))
        self.has_read_all(reading)

    async def read_in_slices(self) -> None:
        """Read very many partitions, some in each turn of the loop, and again if one has changed meanwhile."""
        self.watch()
        while True:
            self.has_changed = False
            reading = _Reading(self.max_bytes)
            for start in range(0, len(self.entries), SLICE):
                self.read(reading, start, start + SLICE)
                await asyncio.sleep(0)
                if self.is_over:
                    return
            if reading.must_answer or self.is_due or reading.size >= self.min_bytes or not self.has_changed:
                break
        self.is_reading = False
        self.has_read_all(reading)

    def has_read_all(self, reading: _Reading) -> None:
        """Answer, wait for more, or let a thread read what is not in memory."""
        if self.lookup.is_incomplete:
            self.is_reading = True
            self.request.on_disconnect = self.cancel
            self.dispatcher.node.threads.submit(self.lookup.take(), self.has_read)
        elif reading.must_answer or self.is_due or reading.size >= self.min_bytes:
            self.cancel()
            self.answer(reading.answers)
        elif self.timer is None:
            self.park()

    def has_read(self, results: Any, error: BaseException | None) -> None:
        """A thread has read what was not in memory."""
        if error is not None:
            raise error
        self.is_reading = False
        self.lookup.add(results)
        self.proceed()

    def park(self) -> None:
        """Wait for a partition to have more, or for the time to be over."""
        self.lookup = Lookup()
        self.watch()
        self.timer = self.dispatcher.node.loop.call_later(self.message.max_wait_ms / 1000, self.expire)

    def watch(self) -> None:
        """Be notified when a partition has more, and when the client is gone."""
        for partition in self.partitions:
            if isinstance(partition, LeaderReplica):
                (partition.readers if self.follower_id < 0 else partition.follower_readers)[id(self)] = self
            elif self.reads_followers and isinstance(partition, FollowerReplica):
                partition.readers[id(self)] = self
        self.request.on_disconnect = self.cancel

    def notify(self) -> None:
        """A partition has more: look once, after this turn of the loop."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self.dispatcher.node.loop.call_soon(self.look)

    def look(self) -> None:
        """Answer if there is enough now."""
        self.is_scheduled = False
        self.proceed()

    def expire(self) -> None:
        """The time is over: answer with what there is."""
        self.is_due = True
        self.proceed()

    def cancel(self) -> None:
        """Stop waiting: there is an answer, or nobody who wants one."""
        self.is_over = True
        self.request.on_disconnect = None  # it refers to this object, and this one to the request
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        elif len(self.entries) <= SLICE:
            return  # it watches nothing
        key = id(self)
        for partition in self.partitions:
            if isinstance(partition, LeaderReplica):
                (partition.readers if self.follower_id < 0 else partition.follower_readers).pop(key, None)
            elif isinstance(partition, FollowerReplica):
                partition.readers.pop(key, None)

    def read(self, reading: _Reading, start: int, end: int) -> None:
        """Read what some of the partitions have."""
        left, total, must_answer, answers = reading.left, reading.size, reading.must_answer, reading.answers
        strangers = self.strangers
        for entry, partition in zip(self.entries[start:end], self.partitions[start:end], strict=True):
            answer = _Answer(entry, partition)
            answers.append(answer)
            if partition is None:
                answer.code = self._unknown()
                must_answer = True
                continue
            if not isinstance(partition, LeaderReplica) and not (
                self.reads_followers and isinstance(partition, FollowerReplica) and partition.leader_id >= 0
            ):
                answer.code = partition.refusal
                must_answer = True
                continue
            try:
                if entry.current_leader_epoch >= 0 and entry.current_leader_epoch != partition.leader_epoch:
                    is_older = entry.current_leader_epoch < partition.leader_epoch
                    answer.code = ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH
                    must_answer = True
                    continue
                if partition.is_deleted:
                    answer.code = self._unknown()
                    must_answer = True
                    continue
                if partition.error is not None and isinstance(partition.error, NotLeaderError):
                    answer.code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # since this fetch began
                    must_answer = True
                    continue
                if strangers is not None and id(partition) in strangers:
                    answer.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    must_answer = True
                    continue
                if self.rack and isinstance(partition, LeaderReplica):
                    answer.preferred = self._preferred(entry, partition)
                    must_answer = must_answer or answer.preferred != _LEADER
                if entry.last_fetched_epoch >= 0:
                    answer.diverging = _diverging(entry, partition)
                    if answer.diverging is not None:
                        must_answer = True
                        continue
                read = partition.log.read(
                    entry.offset,
                    max(0, min(entry.max_bytes, left)) if answer.preferred == _LEADER else 0,
                    isolation=self.isolation,
                    min_one_batch=total == 0 and answer.preferred == _LEADER,
                    reads=self.lookup,
                )
            except DiskReadNeededError:
                continue  # all partitions are read again
            except (LogError, RecordsError) as error:
                if isinstance(error, StorageError):
                    self.dispatcher.node.take_offline(error)
                answer.code = self._code_of(error)
                answer.log_start = partition.log.log_start_offset
                must_answer = True
                continue
            answer.read = read
            total += read.length
            left -= read.length
            if self.follower_id >= 0 and not self.is_full and entry.high_watermark != read.high_watermark:
                # Consumers of the follower wait for what is committed by now.
                must_answer = must_answer or (isinstance(partition, LeaderReplica) and partition.serves_racks)
        reading.left, reading.size, reading.must_answer = left, total, must_answer

    def _preferred(self, entry: FetchEntry, leader: LeaderReplica) -> int:
        """Return the follower in the consumer's rack that it should read from; -1 for the leader."""
        if not leader.serves_racks:
            return _LEADER
        assert leader.followers is not None
        brokers = self.dispatcher.node.image.brokers

        def rack_of(node_id: int) -> str | None:
            broker = brokers.get(node_id)
            return broker.rack if broker is not None and broker.is_active else None

        found = preferred_read_replica(leader.followers.in_sync, rack=self.rack, offset=entry.offset, rack_of=rack_of)
        return _LEADER if found is None else found

    def _code_of(self, error: LogError | RecordsError) -> ErrorCode:
        """Return what to answer where the log cannot be read."""
        membership = self.dispatcher.node.membership
        if (
            isinstance(error, OffsetOutOfRangeError)
            and error.offset > error.end_offset
            and membership is not None
            and membership.may_be_deposed
        ):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # the client may have read this far from the next leader
        return error_code(error)

    def _unknown(self) -> ErrorCode:
        return (
            ErrorCode.UNKNOWN_TOPIC_ID
            if self.request.version >= FIRST_WITH_IDS
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def answer(self, answers: list[_Answer]) -> None:
        """Send the answers. Nothing waits for the disk here: what is not in the page cache is left to a thread."""
        if not self.is_full:
            answers = [answer for answer in answers if _has_news(answer)]
        if self.session is not None:
            for answer in answers:
                _remember(answer)
            if not self.is_full:
                self.session.rotate([answer.entry for answer in answers if answer.read and answer.read.length])
        cold: dict[int, FileSlice] = {}
        blocks: dict[int, Part] = {}
        node = self.dispatcher.node
        left = COPIED_BYTES
        for number, answer in enumerate(answers):
            piece = answer.read.file_slice if answer.read is not None else None
            if piece is None:
                continue
            if piece.length <= left and (block := piece.file.read_cached(piece.position, piece.length)) is not None:
                blocks[number] = block
                left -= piece.length
            elif piece.length >= COLD_COPIED_BYTES and node.machine.can_send_files:
                blocks[number] = piece
                self.request.has_files = True
            else:
                cold[number] = piece
        if not cold:
            self._send(answers, blocks)
            return

        def done(result: dict[int, bytes | StorageError] | None, error: BaseException | None) -> None:
            if result is None:
                raise error or AssertionError("nothing was read")
            for number, found in result.items():
                if isinstance(found, StorageError):
                    node.take_offline(found)
                    answers[number].read = None
                    answers[number].code = ErrorCode.KAFKA_STORAGE_ERROR
                elif cold[number].is_cut:  # by a new leader, which the client looks for now
                    answers[number].read = None
                    answers[number].code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                else:
                    blocks[number] = found
            self._send(answers, blocks)

        node.threads.submit(partial(_read_all, cold), done)

    def _send(self, answers: list[_Answer], blocks: dict[int, Part]) -> None:
        request = self.request
        session_id = 0 if self.session is None else self.session.session_id
        encode = partial(encode_response, request.version, ErrorCode.NONE, session_id, answers, blocks)
        if len(answers) <= SLICE:
            request.respond_parts(request.response_head(), *encode())
            return

        def done(encoded: tuple[list[Part], int] | None, error: BaseException | None) -> None:
            if encoded is None:
                request.connection.close()
                raise error or AssertionError("nothing was encoded")
            request.respond_parts(request.response_head(), *encoded)

        request.connection.in_thread(encode, done)


def _diverging(entry: FetchEntry, partition: HostedReplica) -> tuple[int, int] | None:
    """Where the log of the one that fetches parts from the leader's: epoch and end offset; None if it does not."""
    if entry.last_fetched_epoch < 0:
        return None
    epoch, end = partition.log.end_offset_for_epoch(entry.last_fetched_epoch)
    if end >= 0 and (epoch < entry.last_fetched_epoch or end < entry.offset):
        return epoch, end
    return None


def _read_all(slices: dict[int, FileSlice]) -> dict[int, bytes | StorageError]:
    """Read slices of files, in a thread: they are not in the page cache."""
    found: dict[int, bytes | StorageError] = {}
    for number, piece in slices.items():
        try:
            found[number] = piece.file.read(piece.position, piece.length)
        except StorageError as error:
            found[number] = error
    return found


def handle(dispatcher: Dispatcher, request: Request, _: Any) -> Awaitable[None] | None:
    """Answer with what there is, or wait for it."""
    if len(request.frame) > DECODED_IN_LOOP_BYTES:
        return _handle_large(dispatcher, request)
    _start(dispatcher, request, *_decode(request))
    return None


async def _handle_large(dispatcher: Dispatcher, request: Request) -> None:
    """Let a thread decode a request for very many partitions."""
    _start(dispatcher, request, *await dispatcher.node.threads.run(partial(_decode, request)))


def _decode(request: Request) -> tuple[FetchRequest, list[FetchEntry]]:
    message = codec.decode(FetchRequest, request.frame, request.version, position=request.position)
    return message, [entry for topic in message.topics for entry in _entries(topic)]


def _start(dispatcher: Dispatcher, request: Request, message: FetchRequest, entries: list[FetchEntry]) -> None:
    fetch = ParkedFetch(dispatcher, request, message)
    code = _resolve(dispatcher, request, message, entries, fetch)
    if code:
        parts, size = encode_response(request.version, code, 0, [], {})
        request.respond_parts(request.response_head(), parts, size)
        return
    node = dispatcher.node
    if request.version >= FIRST_WITH_IDS:
        by_id = node.replicas.topics_by_id
        for entry in fetch.entries:
            partitions = by_id.get(entry.topic_id, ())
            fetch.partitions.append(partitions[entry.index] if 0 <= entry.index < len(partitions) else None)
    else:
        by_name = node.replicas.topics
        for entry in fetch.entries:
            replicas = by_name.get(entry.topic, ())
            fetch.partitions.append(replicas[entry.index] if 0 <= entry.index < len(replicas) else None)
    fetch.start()


def _resolve(
    dispatcher: Dispatcher, request: Request, message: FetchRequest, entries: list[FetchEntry], fetch: ParkedFetch
) -> ErrorCode:
    """Find out what is fetched: the request's partitions, or a session's with the request's changes."""
    if request.version < FIRST_WITH_SESSIONS:
        fetch.entries = entries
        return ErrorCode.NONE
    sessions = dispatcher.fetch_sessions
    uses_ids = request.version >= FIRST_WITH_IDS
    if message.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
        if message.session_id:
            sessions.close(message.session_id)
        fetch.entries = entries
        if message.session_epoch == INITIAL_EPOCH:
            is_broker = fetch.follower_id in dispatcher.node.image.brokers
            fetch.session = sessions.open(
                entries, uses_ids=uses_ids, follower_id=fetch.follower_id if is_broker else -1
            )
        return ErrorCode.NONE
    session = sessions.get(message.session_id)
    if session is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if session.uses_ids != uses_ids:
        return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    if session.epoch != message.session_epoch:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
    for entry in entries:
        key = (entry.topic, entry.topic_id, entry.index)
        old = session.entries.get(key)
        if old is None:
            session.entries[key] = entry
        else:
            old.offset = entry.offset
            old.max_bytes = entry.max_bytes
            old.current_leader_epoch = entry.current_leader_epoch
            old.last_fetched_epoch = entry.last_fetched_epoch
            old.follower_log_start_offset = entry.follower_log_start_offset
    for forgotten in message.forgotten_topics_data:
        for index in forgotten.partitions:
            session.entries.pop((forgotten.topic, forgotten.topic_id, index), None)
    fetch.session = session
    fetch.is_full = False
    fetch.entries = list(session.entries.values())
    return ErrorCode.NONE


def _entries(topic: FetchTopic) -> list[FetchEntry]:
    name, topic_id = topic.topic, topic.topic_id
    return [
        FetchEntry(
            name,
            topic_id,
            data.partition,
            data.fetch_offset,
            data.partition_max_bytes,
            data.current_leader_epoch,
            data.last_fetched_epoch,
            data.log_start_offset,
        )
        for data in topic.partitions
    ]


def _has_news(answer: _Answer) -> bool:
    entry, read = answer.entry, answer.read
    if read is None or read.length or answer.code or entry.had_error:
        return True
    return (
        entry.high_watermark != read.high_watermark
        or entry.last_stable_offset != read.last_stable_offset
        or entry.log_start_offset != read.log_start_offset
    )


def _remember(answer: _Answer) -> None:
    entry, read = answer.entry, answer.read
    entry.had_error = bool(answer.code)
    if read is not None:
        entry.high_watermark = read.high_watermark
        entry.last_stable_offset = read.last_stable_offset
        entry.log_start_offset = read.log_start_offset


def encode_response(
    version: int, code: int, session_id: int, answers: list[_Answer], blocks: dict[int, Part]
) -> tuple[list[Part], int]:
    """The body as parts to be written one after another, and their bytes in all.

    Written out by hand: records must not be copied, and nothing is sent more often.
    """
    is_flexible = version >= FIRST_FLEXIBLE
    parts: list[Part] = []
    size = 0
    out = bytearray(4)  # throttle time
    if version >= FIRST_WITH_SESSIONS:
        out += _SHORT.pack(code)
        out += _INT.pack(session_id)
    topics: dict[tuple[str, bytes], list[int]] = {}
    for number, answer in enumerate(answers):
        topics.setdefault((answer.entry.topic, answer.entry.topic_id), []).append(number)
    _write_count(len(topics), out, is_flexible=is_flexible)
    for (topic, topic_id), numbers in topics.items():
        if version >= FIRST_WITH_IDS:
            out += topic_id or ZERO_UUID
        else:
            name = topic.encode()
            if is_flexible:
                write_uvarint(len(name) + 1, out)
            else:
                out += _SHORT.pack(len(name))
            out += name
        _write_count(len(numbers), out, is_flexible=is_flexible)
        for number in numbers:
            answer = answers[number]
            read = answer.read
            if read is None:
                high_watermark = last_stable = -1
                log_start, aborted, length = answer.log_start, None, 0
            else:
                _, _, length, high_watermark, last_stable, log_start, aborted = read
            if version >= 5:
                out += _PARTITION_V5.pack(answer.entry.index, answer.code, high_watermark, last_stable, log_start)
            else:
                out += _PARTITION_V4.pack(answer.entry.index, answer.code, high_watermark, last_stable)
            if aborted is None:
                if is_flexible:
                    out.append(0)
                else:
                    out += b"\xff\xff\xff\xff"
            else:
                _write_count(len(aborted), out, is_flexible=is_flexible)
                for transaction in aborted:
                    out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
                    if is_flexible:
                        out.append(0)
            if version >= 11:
                out += _INT.pack(answer.preferred)
            if is_flexible:
                write_uvarint(length + 1, out)
            else:
                out += _INT.pack(length)
            if length:
                assert read is not None
                parts.append(out)
                size += len(out) + length
                if read.file_slice is not None:
                    parts.append(blocks[number])
                else:
                    parts += read.buffers
                out = bytearray()
            if is_flexible:
                if answer.diverging is None:
                    out.append(0)
                else:
                    epoch, end = answer.diverging
                    out += b"\x01\x00\x0d" + _INT.pack(epoch) + end.to_bytes(8, "big", signed=True) + b"\x00"
        if is_flexible:
            out.append(0)
    if is_flexible:
        out.append(0)
    parts.append(out)
    return parts, size + len(out)


def _write_count(count: int, out: bytearray, *, is_flexible: bool) -> None:
    if is_flexible:
        write_uvarint(count + 1, out)
    else:
        out += _INT.pack(count)
