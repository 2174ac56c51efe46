"""OpenTelemetry traces with the names of the messaging conventions. A consumer links to the producer, it is no child.

One event is a span `send`. Several that are published by one call are one span `send`, whose context all of them carry,
or a span `create` each and a `send` linked to them when `per_event` is chosen. A call of a handler is a span `process`,
linked to the spans that created its events.

The context of the creation travels in `ce_traceparent` and never changes per hop: it is in the record's headers, so
retry topics, dead letters, replays and the outbox keep it. Without an OpenTelemetry SDK all this does nothing.

A span that the sampler drops must cost little, because most are dropped. Attributes and links are therefore added once
a span is known to be recorded. Where the sampler always drops the children of contexts that are not sampled, as
parent-based samplers do, no span is started for such a context: it becomes the current one as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from hailbus._extras import extra

with extra("otel"):
    from opentelemetry import trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import (
        INVALID_SPAN_CONTEXT,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        TraceState,
    )

from hailbus._transport import Received
from hailbus.codec import STRUCTURED_PREFIX
from hailbus.context import Context
from hailbus.envelope import Envelope
from hailbus.errors import ContractError
from hailbus.event import Event, key_of

__all__ = ["Granularity", "Processing", "Tracing", "context_of", "traceparent_of"]

Granularity = Literal["per_batch", "per_event"]
"""What `publish_many` makes: one span for the call, or one for each event as well."""

_ROOT = TraceContext()
_TRACEPARENT = "ce_traceparent"
_TRACEPARENT_BYTES = 55
_NOT_SAMPLED = frozenset(b"02468aceACE")
"""The last digit of a traceparent's flags when the lowest bit, "sampled", is not set."""
_UNSAMPLED_PARENT = SpanContext(trace_id=1, span_id=1, is_remote=True, trace_flags=TraceFlags(0))


def traceparent_of(context: SpanContext) -> str | None:
    """The W3C text of a span context, None for an invalid one."""
    if not context.is_valid:
        return None
    # Bytes are formatted three times as fast as text, and this runs for every event that is published alone.
    return (b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)).decode()


def context_of(traceparent: str | None) -> SpanContext | None:
    """The span context of a W3C text, None when it is none."""
    parts = (traceparent or "").split("-")
    if len(parts) < 4 or (len(parts[1]), len(parts[2])) != (32, 16):
        return None
    try:
        found = SpanContext(
            trace_id=int(parts[1], 16),
            span_id=int(parts[2], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(parts[3], 16)),
            trace_state=TraceState(),
        )
    except ValueError:
        return None
    return found if found.is_valid else None


class _Unsampled(NonRecordingSpan):
    """The span that created an event, when it was not sampled. Its text is parsed when somebody asks for it."""

    def __init__(self, traceparent: bytes) -> None:
        self.traceparent = traceparent

    def get_span_context(self) -> SpanContext:
        return _context_of(self.traceparent) or INVALID_SPAN_CONTEXT


class Tracing:
    """Makes the spans of one service.

    Args:
        tracer: From the application's tracer provider; the global one when None.
        client_id: For `messaging.client.id`.
        granularity: Spans of `publish_many`.
    """

    def __init__(self, *, client_id: str, tracer: Tracer | None = None, granularity: Granularity = "per_batch") -> None:
        self.granularity = granularity
        self._client_id = client_id
        self._is_global = tracer is None
        self._tracer = tracer if tracer is not None else trace.get_tracer("hailbus")
        self._sampling: object = None
        """What `_drops_unsampled` was found for: the tracer, or the global provider."""
        self._drops_unsampled = False
        self._producing: dict[tuple[str, str], dict[str, str | int]] = {}
        self._processing: dict[tuple[str, int, str | None], dict[str, str | int]] = {}

    # -------------------------------------------------------------------------------------------- publishing

    def begin_send(
        self, topic: str, event_id: str, event: Event, cause: Envelope | None
    ) -> tuple[Span | None, str | None]:
        """Begin the span `send <topic>` of one event.

        Returns:
            The span, None when it is not recorded, and the trace context to write into the event.
        """
        current = trace.get_current_span()
        if current is not trace.INVALID_SPAN and self.drops_unsampled:
            if type(current) is _Unsampled:
                return None, current.traceparent.decode("ascii", "replace")
            found = current.get_span_context()
            if not found.trace_flags & TraceFlags.SAMPLED and (traceparent := traceparent_of(found)) is not None:
                return None, traceparent
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=self._attributes_of_producer("send", topic)
        )
        traceparent = self.traceparent(span.get_span_context(), cause=cause)
        if not span.is_recording():
            return None, traceparent
        _name_event(span, event_id, key_of(event))
        return span, traceparent

    def end_send(self, span: Span, error: BaseException | None) -> None:
        """End a span of `begin_send`."""
        if error is not None:
            _failed(span, error)
        span.end()

    @staticmethod
    def current(span: Span) -> AbstractContextManager[None]:
        """Make a span the current one until the block ends, and end it."""
        return _current(span)

    def created(self, topic: str, event_id: str, event: Event) -> SpanContext:
        """A span `create <topic>` for one event of several that are sent together; its context goes into the event."""
        span = self._tracer.start_span(
            f"create {topic}", kind=SpanKind.PRODUCER, attributes=self._attributes_of_producer("create", topic)
        )
        if span.is_recording():
            _name_event(span, event_id, key_of(event))
            span.end()
        return span.get_span_context()

    @contextmanager
    def sending_batch(self, topics: Collection[str], created: Iterable[SpanContext] = ()) -> Iterator[Span]:
        """One span `send` around several events, linked to those that `created` made."""
        # Where spans `create` are the producer's, this one is the client's.
        kind = SpanKind.CLIENT if self.granularity == "per_event" else SpanKind.PRODUCER
        span = self._tracer.start_span(_name("send", topics), kind=kind, attributes=self._attributes("send", topics))
        if span.is_recording():
            _link(span, created)
        with _current(span):
            yield span

    @staticmethod
    def traceparent(created: SpanContext, *, cause: Envelope | None) -> str | None:
        """What to write into an event: the span's context, or the cause's where no OpenTelemetry SDK makes spans."""
        found = traceparent_of(created)
        return found if found is not None or cause is None else cause.traceparent

    # -------------------------------------------------------------------------------------------- processing

    def calls(self) -> Processing:
        """The spans around the handler calls of one task."""
        return Processing(self)

    @contextmanager
    def processing(self, ctx: Context) -> Iterator[None]:
        """A span `process <topic>` around one handler call, linked to the span that created the event."""
        spans = self.calls()
        spans.begin(ctx)
        try:
            yield
        except Exception as error:
            spans.end(error)
            raise
        finally:
            spans.close()

    @contextmanager
    def processing_batch(self, records: Sequence[Received], attempt: int, *, group: str) -> Iterator[None]:
        """One span `process` around one call of a batch handler, linked to the spans that created its events."""
        topics = {record.topic for record in records}
        attributes = self._attributes("process", topics) | {
            "messaging.batch.message_count": len(records),
            "messaging.consumer.group.name": group,
            "hailbus.attempt": attempt,
        }
        span = self._tracer.start_span(
            _name("process", topics), context=_ROOT, kind=SpanKind.CONSUMER, attributes=attributes
        )
        if span.is_recording():
            if len({(record.topic, record.partition) for record in records}) == 1:
                span.set_attribute("messaging.destination.partition.id", str(records[0].partition))
            _link(span, map(_context_of, dict.fromkeys(map(_creation_of, records))))
        with _current(span):
            yield

    def start_process(self, ctx: Context, creation: bytes | None) -> Span:
        """Start a span `process <topic>` for one call of a handler, linked to the creation of the event."""
        record, group = ctx.record, ctx.group
        place = (record.topic, record.partition, group)
        attributes = self._processing.get(place)
        if attributes is None:
            attributes = self._processing[place] = self._attributes("process", {record.topic}) | {
                "messaging.destination.partition.id": str(record.partition)
            }
            if group is not None:
                attributes["messaging.consumer.group.name"] = group
        span = self._tracer.start_span(
            f"process {record.topic}", context=_ROOT, kind=SpanKind.CONSUMER, attributes=attributes
        )
        if span.is_recording():
            _link(span, [_context_of(creation)])
            more: dict[str, str | int] = {"messaging.kafka.offset": record.offset, "hailbus.attempt": ctx.attempt}
            if record.key is not None:
                more["messaging.kafka.message.key"] = record.key.decode("utf-8", "replace")
            more.update(_names_of(ctx))
            span.set_attributes(more)
        return span

    # -------------------------------------------------------------------------------------------- both

    @property
    def drops_unsampled(self) -> bool:
        """Whether the sampler drops every span whose parent was not sampled, as parent-based samplers do."""
        sampling: object = trace.get_tracer_provider() if self._is_global else self._tracer
        if sampling is not self._sampling:
            self._sampling = sampling
            sampler = getattr(sampling, "sampler", None)  # the SDK's; other implementations are asked for each span
            self._drops_unsampled = False
            if sampler is not None:
                parent = trace.set_span_in_context(NonRecordingSpan(_UNSAMPLED_PARENT), _ROOT)
                found = sampler.should_sample(parent, _UNSAMPLED_PARENT.trace_id, "process", SpanKind.CONSUMER, {}, ())
                self._drops_unsampled = not found.decision.is_sampled()
        return self._drops_unsampled

    def _attributes_of_producer(self, operation: str, topic: str) -> dict[str, str | int]:
        found = self._producing.get((operation, topic))
        if found is None:
            found = self._producing[operation, topic] = self._attributes(operation, {topic})
        return found

    def _attributes(self, operation: str, topics: Collection[str]) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.client.id": self._client_id,
        }
        if len(topics) == 1:  # else there is no one destination to tell
            attributes["messaging.destination.name"] = next(iter(topics))
        return attributes


class Processing:
    """The spans around the handler calls of one task: `begin` and `end` take turns, `close` comes last.

    The context of a creation that was not sampled stays the current one between calls: events that were published
    together share it, and making a context current costs as much as half a handler call.
    """

    __slots__ = ("_token", "_tracing", "_unsampled", "span")

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self.span: Span | None = None
        """The span of the call in progress, when it may be recorded; without one, `end` has nothing to do."""
        self._unsampled: bytes | None = None
        """The creation whose context is the current one."""
        self._token: object = None

    def begin(self, ctx: Context) -> None:
        """Begin the span of one call, if it may be recorded, and make its context the current one."""
        if self._unsampled is not None:  # the usual case, without a further call
            headers = ctx.record.headers
            if headers and headers[-1] == (_TRACEPARENT, self._unsampled):
                return
        creation = _creation_of(ctx.record)
        if creation is not None:
            if creation == self._unsampled:
                return
            if len(creation) == _TRACEPARENT_BYTES and creation[-1] in _NOT_SAMPLED and self._tracing.drops_unsampled:
                self._unsampled = creation
                self._make_current(_Unsampled(creation))
                return
        self._unsampled = None
        self.span = self._tracing.start_process(ctx, creation)
        self._make_current(self.span)

    def end(self, error: BaseException | None = None) -> None:
        """End the span of the call that `begin` began."""
        span, self.span = self.span, None
        if span is not None:
            if isinstance(error, Exception):  # else this task is being cancelled
                _failed(span, error)
            span.end()

    def close(self) -> None:
        """Make the context current that was the current one before the first call."""
        self.end()
        token, self._token, self._unsampled = self._token, None, None
        if token is not None:
            detach(token)  # type: ignore[arg-type]  # a token of `attach`

    def _make_current(self, span: Span) -> None:
        token = attach(trace.set_span_in_context(span, _ROOT))
        if self._token is None:
            self._token = token


def _creation_of(record: Received) -> bytes | None:
    """The trace context in which an event was created."""
    headers = record.headers
    if headers and headers[-1][0] == _TRACEPARENT:  # where hailbus writes it
        return headers[-1][1]
    for name, value in headers:
        if name == _TRACEPARENT:
            return value
        if name == "content-type" and value is not None and value.startswith(STRUCTURED_PREFIX):
            envelope = _envelope_of(Context(record))
            return envelope.traceparent.encode() if envelope is not None and envelope.traceparent is not None else None
    return None


def _context_of(creation: bytes | None) -> SpanContext | None:
    return None if creation is None else context_of(creation.decode("ascii", "replace"))


def _name(operation: str, topics: Collection[str]) -> str:
    return f"{operation} {next(iter(topics))}" if len(topics) == 1 else operation


def _name_event(span: Span, event_id: str, key: bytes | None) -> None:
    span.set_attribute("messaging.message.id", event_id)
    if key is not None:
        span.set_attribute("messaging.kafka.message.key", key.decode("utf-8", "replace"))


def _link(span: Span, contexts: Iterable[SpanContext | None]) -> None:
    """One link per trace context; events that were created by one span need no more than one."""
    found = {(context.trace_id, context.span_id): context for context in contexts if context is not None}
    for context in found.values():
        if context.is_valid:
            span.add_link(context)


def _names_of(ctx: Context) -> Iterator[tuple[str, str]]:
    """The attributes that name an event, from its headers; reading the whole envelope costs as much as a span."""
    is_binary = False
    for name, value in ctx.record.headers:
        if name == "ce_id" and value is not None:
            is_binary = True
            yield "messaging.message.id", value.decode("utf-8", "replace")
        elif name == "ce_correlationid" and value is not None:
            yield "messaging.message.conversation_id", value.decode("utf-8", "replace")
    envelope = None if is_binary else _envelope_of(ctx)
    if envelope is not None:
        yield "messaging.message.id", envelope.id
        if envelope.correlation_id is not None:
            yield "messaging.message.conversation_id", envelope.correlation_id


def _envelope_of(ctx: Context) -> Envelope | None:
    try:
        return ctx.envelope
    except ContractError:
        return None


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """The span as the current one, until the block ends; an exception is told to it, and goes on."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            _failed(span, error)
            raise


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
