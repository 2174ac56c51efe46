"""OpenTelemetry traces with the names of the messaging conventions. A consumer links to the producer, it is no child.

One event is a span `send`. Several that are published by one call are a span `create` each, and one `send` linked to
them; a batch handler's call is one span `process` linked to all of its events' creations.

The context of the creation travels in `ce_traceparent` and never changes per hop: it is in the record's headers, so
retry topics, dead letters, replays and the outbox keep it. Without an OpenTelemetry SDK all this does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hailbus._extras import extra

with extra("otel"):
    from opentelemetry import trace
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        TraceState,
    )

from hailbus.context import Context
from hailbus.envelope import Envelope
from hailbus.errors import ContractError

__all__ = ["Tracing", "context_of", "traceparent_of"]


def traceparent_of(context: SpanContext) -> str | None:
    """The W3C text of a span context, None for an invalid one."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


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


class Tracing:
    """Makes the spans of one service.

    Args:
        tracer: From the application's tracer provider; the global one when None.
        client_id: For `messaging.client.id`.
    """

    def __init__(self, *, client_id: str, tracer: Tracer | None = None) -> None:
        self._client_id = client_id
        self._tracer = tracer if tracer is not None else trace.get_tracer("hailbus")

    @contextmanager
    def sending(self, topic: str, event_id: str, key: bytes | None) -> Iterator[SpanContext]:
        """A span `send <topic>` around one publication; gives its context, which goes into the event."""
        span = self._producer_span("send", topic, event_id, key)
        with _current(span):
            yield span.get_span_context()

    def enqueued(self, topic: str, event_id: str, key: bytes | None) -> Span:
        """A span `send <topic>` for an event that is acknowledged later; `ended` ends it."""
        return self._producer_span("send", topic, event_id, key)

    def ended(self, span: Span, error: BaseException | None) -> None:
        """End a span of `enqueued`."""
        if error is not None:
            _failed(span, error)
        span.end()

    def created(self, topic: str, event_id: str, key: bytes | None) -> SpanContext:
        """A span `create <topic>` for one event of several that are sent together; its context goes into the event."""
        span = self._producer_span("create", topic, event_id, key)
        span.end()
        return span.get_span_context()

    @contextmanager
    def sending_batch(self, topics: Collection[str], created: Sequence[SpanContext]) -> Iterator[None]:
        """One span `send` around several events, linked to those that `created` made."""
        attributes = self._attributes("send", "send", topics) | {"messaging.batch.message_count": len(created)}
        # The creation is the producer's span, so this one is the client's.
        with _current(
            self._tracer.start_span(
                _name("send", topics), kind=SpanKind.CLIENT, attributes=attributes, links=_links(created)
            )
        ):
            yield

    @contextmanager
    def processing(self, ctx: Context) -> Iterator[None]:
        """A span `process <topic>` around one handler call, linked to the span that created the event."""
        attributes = self._attributes("process", "process", {ctx.topic}) | {
            "messaging.destination.partition.id": str(ctx.partition),
            "messaging.kafka.offset": ctx.offset,
            "hailbus.attempt": ctx.attempt,
        }
        if ctx.group is not None:
            attributes["messaging.consumer.group.name"] = ctx.group
        if ctx.key is not None:
            attributes["messaging.kafka.message.key"] = ctx.key.decode("utf-8", "replace")
        envelope = _envelope_of(ctx)
        if envelope is not None:
            attributes["messaging.message.id"] = envelope.id
            if envelope.correlation_id is not None:
                attributes["messaging.message.conversation_id"] = envelope.correlation_id
        with _current(
            self._tracer.start_span(
                _name("process", {ctx.topic}),
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=_links([context_of(envelope.traceparent) if envelope is not None else None]),
            )
        ):
            yield

    @contextmanager
    def processing_batch(self, contexts: Sequence[Context], *, group: str) -> Iterator[None]:
        """One span `process` around one call of a batch handler, linked to the spans that created its events."""
        topics = {ctx.topic for ctx in contexts}
        attributes = self._attributes("process", "process", topics) | {
            "messaging.batch.message_count": len(contexts),
            "messaging.consumer.group.name": group,
            "hailbus.attempt": max(ctx.attempt for ctx in contexts),
        }
        partitions = {(ctx.topic, ctx.partition) for ctx in contexts}
        if len(partitions) == 1:
            attributes["messaging.destination.partition.id"] = str(contexts[0].partition)
        envelopes = [_envelope_of(ctx) for ctx in contexts]
        producers = [context_of(envelope.traceparent) for envelope in envelopes if envelope is not None]
        with _current(
            self._tracer.start_span(
                _name("process", topics), kind=SpanKind.CONSUMER, attributes=attributes, links=_links(producers)
            )
        ):
            yield

    @staticmethod
    def traceparent(created: SpanContext, *, cause: Envelope | None) -> str | None:
        """What to write into an event; without an OpenTelemetry SDK there is no span, then the cause's goes on."""
        found = traceparent_of(created)
        return found if found is not None or cause is None else cause.traceparent

    def _attributes(self, name: str, kind: str, topics: Collection[str]) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.client.id": self._client_id,
        }
        if len(topics) == 1:  # else there is no one destination to tell
            attributes["messaging.destination.name"] = next(iter(topics))
        return attributes

    def _producer_span(self, operation: str, topic: str, event_id: str, key: bytes | None) -> Span:
        attributes = self._attributes(operation, operation, {topic}) | {"messaging.message.id": event_id}
        if key is not None:
            attributes["messaging.kafka.message.key"] = key.decode("utf-8", "replace")
        return self._tracer.start_span(_name(operation, {topic}), kind=SpanKind.PRODUCER, attributes=attributes)


def _name(operation: str, topics: Collection[str]) -> str:
    return f"{operation} {next(iter(topics))}" if len(topics) == 1 else operation


def _links(contexts: Iterable[SpanContext | None]) -> list[Link]:
    """One link per trace context; events that were created by one span need no more than one."""
    found = {(context.trace_id, context.span_id): context for context in contexts if context is not None}
    return [Link(context) for context in found.values() if context.is_valid]


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
