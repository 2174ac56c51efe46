"""Typed publishers: they turn events into records and hand them to the service's buffer or to an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, repeat
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic_core import PydanticSerializationError

from hailbus._transport import Bus, Outgoing
from hailbus.clock import Clock
from hailbus.codec import (
    check_numbers,
    encode,
    envelope_for,
    may_hold_numbers_beyond_json,
    not_json,
    plain_floats,
)
from hailbus.context import Context
from hailbus.envelope import CONTENT_TYPE, SPECVERSION, Envelope, Headers, new_id, time_text
from hailbus.errors import ConfigurationError, DeliveryError, MissingKeyError, NotInContractError
from hailbus.event import ContentMode, Event, event_info
from hailbus.publish_buffer import PublishBuffer, PublisherSettings, Receipt
from hailbus.transaction import current_transaction

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from hailbus.event import Topic
    from hailbus.outbox import Outbox, OutboxRow
    from hailbus.tracing import Tracing

__all__ = ["Publisher", "PublisherSettings", "Receipt"]

E_contra = TypeVar("E_contra", bound=Event, contravariant=True)


_Mark = tuple[str | None, str | None]
"""Id and traceparent that an event is to get, where they are known before."""
_NO_MARK: _Mark = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fixed:
    """What is the same for all events of one class from one service."""

    topic: str
    source: tuple[str, bytes]
    event_type: tuple[str, bytes]
    schema: tuple[str, bytes]
    write: Callable[[Event], tuple[bytes | None, bytes]]
    mode: ContentMode


_CONTENT_TYPE = ("content-type", CONTENT_TYPE)
_SPECVERSION = ("ce_specversion", SPECVERSION)


class Publisher(Generic[E_contra]):
    """What a service may publish: `Publisher[RideRequested | RideCompleted]` takes these two and nothing else.

    Made by `Service.publishes`. As a FastAPI dependency: `Annotated[Publisher[...], Depends(pub)]`.
    """

    def __init__(
        self,
        events: Sequence[type[Event]],
        *,
        source: str,
        clock: Clock,
        buffer: Callable[[], PublishBuffer],
        bus: Callable[[], Bus],
        outbox: Callable[[], Outbox | None],
        tracing: Tracing | None = None,
        content_mode: Callable[[Topic], ContentMode],
    ) -> None:
        self.events = tuple(events)
        """The event classes that this publisher declares."""
        self._source = source
        self._clock = clock
        self._buffer = buffer
        self._bus = bus
        self._outbox = outbox
        self._tracing = tracing
        self._fixed: dict[type[Event], _Fixed] = {}
        for cls in events:
            info = event_info(cls)
            self._fixed[cls] = _Fixed(
                topic=info.topic.name,
                source=("ce_source", source.encode()),
                event_type=("ce_type", info.type.encode()),
                schema=("ce_dataschema", info.dataschema.encode()),
                write=_writer(cls),
                mode=content_mode(info.topic),
            )
        self._topics = {fixed.topic for fixed in self._fixed.values()}

    @property
    def content_modes(self) -> set[ContentMode]:
        """The content modes in which it writes its events."""
        return {fixed.mode for fixed in self._fixed.values()}

    def __call__(self) -> Publisher[E_contra]:
        """Itself, so that FastAPI's `Depends(pub)` works."""
        return self

    async def publish(
        self,
        event: E_contra,
        *,
        id: str | None = None,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        traceparent: str | None = None,
        tx: AsyncSession | AsyncConnection | None = None,
        not_before: datetime | None = None,
        schedule_id: str | None = None,
    ) -> Receipt:
        """Publish one event and wait for its acknowledgement; with `tx`, store it in the outbox instead.

        Args:
            event: What happened.
            id: Stable id where there is one, so that a repetition can be recognised; else a random UUID.
            time: Event time, with a time zone; else now.
            cause: What led to it: the handler's context.
            headers: Further record headers; names with `ce_` are refused.
            partition: An explicit partition in place of the partitioner's.
            traceparent: W3C trace context of the creation; else the cause's.
            tx: The caller's database transaction. The relay publishes the event after its commit, and only then.
            not_before: Only with `tx`: the relay holds the event back until then. With a time zone.
            schedule_id: Only with `tx`: a name by which `Outbox.cancel` finds the event again.

        Raises:
            NotInContractError: This publisher did not declare the event's class.
            MissingKeyError: The key field is empty.
            InvalidPayloadError: A field holds what JSON cannot: NaN, an infinity, or bytes that are not UTF-8.
            ConfigurationError: `time` has no time zone, or `tx` is given and the service relays no outbox.
            DeliveryTimeoutError: No acknowledgement in time; the record may be in the log.
            DeliveryError: It was refused.
        """
        tracing = self._tracing
        if tracing is None or traceparent is not None:
            return await self._publish(
                event, id, time, cause, headers, partition, traceparent, tx, not_before, schedule_id
            )
        event_id = id if id is not None else new_id()
        caused_by = None if cause is None else _envelope(cause)
        span, found = tracing.begin_send(self._declared(event).topic, event_id, event, caused_by)
        sent = self._publish(event, event_id, time, cause, headers, partition, found, tx, not_before, schedule_id)
        if span is None:
            return await sent
        with tracing.current(span):
            return await sent

    async def _publish(
        self,
        event: E_contra,
        id_: str | None,
        time: datetime | None,
        cause: Context | Envelope | None,
        headers: Iterable[tuple[str, bytes]] | None,
        partition: int | None,
        traceparent: str | None,
        tx: AsyncSession | AsyncConnection | None,
        not_before: datetime | None,
        schedule_id: str | None,
    ) -> Receipt:
        if tx is not None:
            receipts = await self._store(
                tx,
                [event],
                marks=[(id_, traceparent)],
                time=time,
                cause=cause,
                headers=headers,
                partition=partition,
                not_before=not_before,
                schedule_id=schedule_id,
            )
            return receipts[0]
        if not_before is not None or schedule_id is not None:
            message = "not_before and schedule_id need the outbox: give tx= as well"
            raise ConfigurationError(message)
        future = await self._enqueue(event, id_, time, cause, headers, partition, traceparent)
        return await future

    async def enqueue(
        self,
        event: E_contra,
        *,
        id: str | None = None,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        traceparent: str | None = None,
    ) -> asyncio.Future[Receipt]:
        """Hand one event to the buffer, waiting for room in it. The future gives the receipt or the error.

        Events of one key that are enqueued one after the other are written in that order. Arguments and errors are
        those of `publish`; errors of delivery come out of the future.
        """
        tracing = self._tracing
        if tracing is None or traceparent is not None:
            return await self._enqueue(event, id, time, cause, headers, partition, traceparent)
        event_id = id if id is not None else new_id()
        span, found = tracing.begin_send(self._declared(event).topic, event_id, event, _envelope(cause))
        if span is None:
            return await self._enqueue(event, event_id, time, cause, headers, partition, found)
        try:
            future = await self._enqueue(event, event_id, time, cause, headers, partition, found)
        except BaseException as error:
            tracing.end_send(span, error)
            raise
        future.add_done_callback(lambda done: tracing.end_send(span, None if done.cancelled() else done.exception()))
        return future

    async def _enqueue(
        self,
        event: E_contra,
        id_: str | None,
        time: datetime | None,
        cause: Context | Envelope | None,
        headers: Iterable[tuple[str, bytes]] | None,
        partition: int | None,
        traceparent: str | None,
    ) -> asyncio.Future[Receipt]:
        buffer = self._buffer()
        if buffer.must_wait:
            await buffer.until_room()
        fixed = self._declared(event)
        if buffer.producer.known_partition_count(fixed.topic) is None:
            await buffer.producer.partition_count(fixed.topic)
        future: asyncio.Future[Receipt] = buffer.loop.create_future()
        place, record, event_id = self._record(event, fixed, id_, time, cause, headers, partition, traceparent, buffer)
        transaction = current_transaction.get()
        if transaction is not None:
            transaction.add(fixed.topic, place, record)
            future.set_result(Receipt(event_id, fixed.topic, place, None))
        else:
            buffer.add(fixed.topic, place, record, event_id, _settle_future, future)
        return future

    async def publish_many(
        self,
        events: Iterable[E_contra],
        *,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        tx: AsyncSession | AsyncConnection | None = None,
    ) -> list[Receipt]:
        """Publish events and wait until all are acknowledged; receipts in the order of the events.

        With `tx` they are stored in the outbox by one statement, as `publish` does one by one.

        Raises:
            DeliveryError: The first that failed, when all are decided; the others may have been written.
        """
        tracing = self._tracing
        if tracing is None:
            return await self._publish_many(events, repeat(_NO_MARK), time, cause, headers, tx)
        topics = self._topics
        if len(topics) > 1:  # else they need not be looked at before they are written
            events = list(events)
            topics = {self._declared(event).topic for event in events}
        marks: Iterable[_Mark]
        created: list[SpanContext] = []
        if tracing.granularity == "per_event":
            events, marks = list(events), []
            for event in events:
                event_id = new_id()
                context = tracing.created(self._declared(event).topic, event_id, event)
                created.append(context)
                marks.append((event_id, tracing.traceparent(context, cause=_envelope(cause))))
        with tracing.sending_batch(topics, created) as span:
            if isinstance(events, Sized):
                span.set_attribute("messaging.batch.message_count", len(events))
            if tracing.granularity == "per_batch":
                marks = repeat((None, tracing.traceparent(span.get_span_context(), cause=_envelope(cause))))
            receipts = await self._publish_many(events, marks, time, cause, headers, tx)
            span.set_attribute("messaging.batch.message_count", len(receipts))
            return receipts

    async def _publish_many(
        self,
        events: Iterable[E_contra],
        marks: Iterable[_Mark],
        time: datetime | None,
        cause: Context | Envelope | None,
        headers: Iterable[tuple[str, bytes]] | None,
        tx: AsyncSession | AsyncConnection | None,
    ) -> list[Receipt]:
        if tx is not None:
            return await self._store(tx, events, marks=marks, time=time, cause=cause, headers=headers)
        buffer = self._buffer()
        more = _checked(headers)
        caused_by = None if cause is None else _envelope(cause)
        transaction = current_transaction.get()
        decided: list[Receipt | DeliveryError | None] = []
        places: dict[tuple[str, int], None] = {}
        partition_counts: dict[str, int] = {}
        partitioner = self._bus().partitioner
        pairs = zip(events, marks, strict=False)  # endless marks where nobody traces
        while True:
            await buffer.until_room()
            stamp = self._stamp(time)  # one for those that are built in one go
            groups: dict[tuple[str, int], list[tuple[Outgoing, str, object]]] = {}
            # One event at a time: those that a generator makes are gone before the garbage collector looks at them.
            for index, (event, (id_, traceparent)) in enumerate(islice(pairs, buffer.room()), len(decided)):
                fixed = self._declared(event)
                topic = fixed.topic
                count = partition_counts.get(topic)
                if count is None:
                    producer = buffer.producer
                    count = producer.known_partition_count(topic) or await producer.partition_count(topic)
                    partition_counts[topic] = count
                if fixed.mode == "binary":
                    event_id = id_ if id_ is not None else new_id()
                    key, body = fixed.write(event)
                    all_headers = self._headers(fixed, event_id, stamp, key, caused_by, traceparent)
                    if more:
                        all_headers += more
                    place = (topic, partitioner(topic, key, count))
                    record: Outgoing = (key, body, all_headers)
                else:
                    partition, record, event_id = self._record(
                        event, fixed, id_, time, cause, more, None, traceparent, buffer
                    )
                    place = (topic, partition)
                group = groups.get(place)
                if group is None:
                    groups[place] = [(record, event_id, index)]
                else:
                    group.append((record, event_id, index))
            if not groups:
                break
            decided += [None] * sum(map(len, groups.values()))
            for (topic, partition), entries in groups.items():
                if transaction is None:
                    buffer.add_all(topic, partition, entries, decided.__setitem__)
                    places[topic, partition] = None
                    continue
                for record, event_id, token in entries:
                    transaction.add(topic, partition, record)
                    decided[cast("int", token)] = Receipt(event_id, topic, partition, None)
        for topic, partition in places:
            await buffer.until_decided(topic, partition)
        receipts = [outcome for outcome in decided if isinstance(outcome, Receipt)]
        for outcome in decided if len(receipts) < len(decided) else ():
            if isinstance(outcome, DeliveryError):
                raise outcome
        return receipts

    async def tombstone(
        self,
        event: type[E_contra],
        key: str,
        *,
        id: str | None = None,
        time: datetime | None = None,
    ) -> Receipt:
        """Delete a key from a compacted topic: a record of the event's type without value.

        Raises:
            ConfigurationError: The topic is not compacted, or the publisher writes it in structured mode.
        """
        if event not in self._fixed:
            raise NotInContractError(event=event, allowed=self.events)
        info = event_info(event)
        if "compact" not in info.topic.cleanup_policy:
            message = f"topic {info.topic.name!r} is not compacted, so a tombstone on it deletes nothing"
            raise ConfigurationError(message)
        if self._fixed[event].mode == "structured":
            message = (
                f"a structured CloudEvent is never a tombstone; delete keys of {info.topic.name!r} by a publisher of "
                'its own: svc.publishes(..., content_mode="binary")'
            )
            raise ConfigurationError(message)
        buffer = self._buffer()
        await buffer.until_room()
        event_id = id if id is not None else new_id()
        raw = key.encode()
        fixed = self._fixed[event]
        headers = [] if fixed.mode == "plain" else self._headers(fixed, event_id, self._stamp(time), raw, None, None)
        topic = info.topic.name
        place = self._bus().partitioner(topic, raw, await buffer.producer.partition_count(topic))
        future: asyncio.Future[Receipt] = buffer.loop.create_future()
        buffer.add(topic, place, (raw, None, headers), event_id, _settle_future, future)
        return await future

    async def _store(
        self,
        tx: AsyncSession | AsyncConnection,
        events: Iterable[Event],
        *,
        marks: Iterable[_Mark],
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        not_before: datetime | None = None,
        schedule_id: str | None = None,
    ) -> list[Receipt]:
        """Insert events into the outbox in the caller's transaction."""
        from hailbus.outbox import store

        outbox = self._outbox()
        if outbox is None:
            message = (
                f"tx= stores events in an outbox, but no relay would publish them: the service with source "
                f"{self._source!r} knows no outbox. Call svc.relays(Outbox(engine)); when another process runs the "
                "relay, svc.relays(outbox, elsewhere=True)"
            )
            raise ConfigurationError(message)
        rows = self.outbox_rows(
            events,
            marks=marks,
            time=time,
            cause=cause,
            headers=headers,
            partition=partition,
            not_before=not_before,
            schedule_id=schedule_id,
        )
        if rows:
            await store(tx, rows, outbox=outbox)
        return [Receipt(row.id, row.topic, None, None) for row in rows]

    def outbox_rows(
        self,
        events: Iterable[Event],
        *,
        marks: Iterable[_Mark] = repeat((None, None)),
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        not_before: datetime | None = None,
        schedule_id: str | None = None,
    ) -> list[OutboxRow]:
        """Build the outbox rows of events; `hailbus.outbox` stores them. Arguments and errors as for `publish`."""
        from hailbus.outbox import OutboxRow

        if not_before is not None and not_before.utcoffset() is None:
            message = f"not_before={not_before.isoformat()} has no time zone; give an aware datetime, as in UTC"
            raise ConfigurationError(message)
        now = self._clock()
        more = _checked(headers)
        rows = []
        for event, (id_, traceparent) in zip(events, marks, strict=False):
            if type(event) not in self._fixed:
                raise NotInContractError(event=type(event), allowed=self.events)
            envelope = envelope_for(
                event,
                source=self._source,
                id=id_,
                time=time if time is not None else now,
                cause=_envelope(cause),
                traceparent=traceparent,
            )
            key, value, all_headers = encode(event, envelope, self._fixed[type(event)].mode)
            rows.append(
                OutboxRow(
                    topic=event_info(event).topic.name,
                    key=key,
                    type=envelope.type,
                    id=envelope.id,
                    value=value,
                    headers=[*all_headers, *more],
                    partition=partition,
                    not_before=not_before,
                    schedule_id=schedule_id,
                    created_at=now,
                )
            )
        return rows

    async def flush(self) -> None:
        """Wait until everything that this service has enqueued so far is acknowledged or has failed."""
        await self._buffer().flush()

    def _declared(self, event: Event) -> _Fixed:
        fixed = self._fixed.get(type(event))
        if fixed is None:
            raise NotInContractError(event=type(event), allowed=self.events)
        return fixed

    def _record(
        self,
        event: Event,
        fixed: _Fixed,
        id_: str | None,
        time: datetime | None,
        cause: Context | Envelope | None,
        headers: Iterable[tuple[str, bytes]] | None,
        partition: int | None,
        traceparent: str | None,
        buffer: PublishBuffer,
    ) -> tuple[int, Outgoing, str]:
        """Partition, record and id of an event whose topic's partition count is known."""
        event_id = id_ if id_ is not None else new_id()
        caused_by = None if cause is None else _envelope(cause)
        key: bytes | None = None
        if fixed.mode == "binary":
            key, body = fixed.write(event)
            all_headers = self._headers(fixed, event_id, self._stamp(time), key, caused_by, traceparent)
        else:
            envelope = envelope_for(
                event,
                source=self._source,
                id=event_id,
                time=time if time is not None else self._clock(),
                cause=caused_by,
                traceparent=traceparent,
            )
            key, body, all_headers = encode(event, envelope, fixed.mode)
        if headers is not None:
            all_headers.extend(_checked(headers))
        count = buffer.producer.known_partition_count(fixed.topic)
        assert count is not None
        if partition is None:
            partition = self._bus().partitioner(fixed.topic, key, count)
        elif not 0 <= partition < count:
            message = f"topic {fixed.topic!r} has partitions 0 to {count - 1}, not {partition}"
            raise ConfigurationError(message)
        return partition, (key, body, all_headers), event_id

    def _stamp(self, time: datetime | None) -> tuple[str, bytes]:
        return ("ce_time", time_text(time if time is not None else self._clock()).encode())

    @staticmethod
    def _headers(
        fixed: _Fixed,
        event_id: str,
        stamp: tuple[str, bytes],
        key: bytes | None,
        cause: Envelope | None,
        traceparent: str | None,
    ) -> Headers:
        # The same bytes as `headers_of`, without building an envelope: this runs for every event.
        headers: Headers = [
            _SPECVERSION,
            ("ce_id", event_id.encode()),
            fixed.source,
            fixed.event_type,
            stamp,
            fixed.schema,
            _CONTENT_TYPE,
        ]
        if key is not None:
            headers.append(("ce_subject", key))
        if cause is not None:
            headers.append(("ce_correlationid", (cause.correlation_id or cause.id).encode()))
            headers.append(("ce_causationid", cause.id.encode()))
            traceparent = traceparent if traceparent is not None else cause.traceparent
        if traceparent is not None:
            headers.append(("ce_traceparent", traceparent.encode()))
        return headers


def _writer(cls: type[Event]) -> Callable[[Event], tuple[bytes | None, bytes]]:
    """How to write events of a class in binary mode: a function that gives an event's record key and value."""
    to_json = cls.__pydantic_serializer__.to_json
    info = event_info(cls)
    key_field = info.key_field
    floats = plain_floats(cls) if may_hold_numbers_beyond_json(cls) else ()

    def write(event: Event) -> tuple[bytes | None, bytes]:
        try:
            body = to_json(event)
        except PydanticSerializationError as error:
            raise not_json(event, error) from error
        if floats is None:
            check_numbers(event, body)
        else:
            for name in floats:
                number = getattr(event, name)
                if number.__class__ is float and not isfinite(number):
                    check_numbers(event, body)
        if key_field is None:
            return None, body
        value = getattr(event, key_field)
        text = value if type(value) is str else "" if value is None else str(value)
        if not text:
            raise MissingKeyError(type=info.type, field=key_field)
        return text.encode(), body

    return write


def _settle_future(future: asyncio.Future[Receipt], outcome: Receipt | DeliveryError) -> None:
    if future.done():  # its caller has given up
        return
    if isinstance(outcome, Receipt):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _envelope(cause: Context | Envelope | None) -> Envelope | None:
    return cause.envelope if isinstance(cause, Context) else cause


def _checked(headers: Iterable[Any] | None) -> Headers:  # Any: callers without a type checker pass dicts
    pairs: list[Any] = list(headers or ())
    for pair in pairs:
        if (
            not isinstance(pair, tuple)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not isinstance(pair[1], bytes)
        ):
            message = f"record headers are pairs of str and bytes, not {pair!r}"
            raise ConfigurationError(message)
        if pair[0].startswith("ce_") or pair[0] == "content-type":
            message = f"header {pair[0]!r} belongs to the envelope; set it by publish's own arguments"
            raise ConfigurationError(message)
    return pairs
