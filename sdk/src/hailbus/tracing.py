"""OpenTelemetry traces with the names of the messaging conventions. A consumer links to the producer, it is no child.

The context of the creation travels in `ce_traceparent` and never changes per hop: it is in the record's headers, so
retry topics, dead letters, replays and the outbox keep it. Without an OpenTelemetry SDK all this does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer, TraceState

from hailbus.context import Context
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
    def sending(self, topic: str, event_id: str, key: bytes | None) -> Iterator[str | None]:
        """A span `send <topic>`; gives the traceparent to write, that of the span."""
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.client.id": self._client_id,
            "messaging.message.id": event_id,
        }
        if key is not None:
            attributes["messaging.kafka.message.key"] = key.decode("utf-8", "replace")
        with self._tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes) as span:
            try:
                yield traceparent_of(span.get_span_context())
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    @contextmanager
    def processing(self, ctx: Context) -> Iterator[None]:
        """A span `process <topic>`, linked to the span that created the event."""
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": ctx.topic,
            "messaging.destination.partition.id": str(ctx.partition),
            "messaging.kafka.offset": ctx.offset,
            "messaging.client.id": self._client_id,
            "hailbus.attempt": ctx.attempt,
        }
        if ctx.group is not None:
            attributes["messaging.consumer.group.name"] = ctx.group
        if ctx.key is not None:
            attributes["messaging.kafka.message.key"] = ctx.key.decode("utf-8", "replace")
        links: list[Link] = []
        try:
            envelope = ctx.envelope
        except ContractError:
            pass
        else:
            attributes["messaging.message.id"] = envelope.id
            if envelope.correlation_id is not None:
                attributes["messaging.message.conversation_id"] = envelope.correlation_id
            producer = context_of(envelope.traceparent)
            if producer is not None:
                links.append(Link(producer))
        with self._tracer.start_as_current_span(
            f"process {ctx.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise
