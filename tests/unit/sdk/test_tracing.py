"""Spans as OpenTelemetry's SDK receives them: names, attributes, and links that survive whatever happens on the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    DeliveryError,
    Envelope,
    Event,
    ExactlyOnce,
    NotInContractError,
    Outbox,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus._transport import Received
from hailbus.codec import read_envelope
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.testing import MemoryBus
from hailbus.tracing import Granularity, Tracing, context_of, traceparent_of
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, ParentBased, Sampler
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

ORDERS = Topic("orders.v1", partitions=2)
TILLS = Topic("tills.v1", partitions=1)
QUICKLY = AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class TillOpened(Event, topic=TILLS, type="till.opened"):
    till: int


class Spans:
    """A service whose spans are kept."""

    def __init__(
        self, name: str = "shop", *, sampler: Sampler = DEFAULT_ON, granularity: Granularity = "per_batch"
    ) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False, sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.service = Service(
            name, tracing=granularity, subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=5))
        )
        self.service._tracing = Tracing(client_id=name, tracer=self.tracer, granularity=granularity)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def finished(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def traceparent_in(record: Received) -> str | None:
    return read_envelope(record).traceparent


def ids(*spans: ReadableSpan) -> list[int]:
    return [span.context.span_id for span in spans if span.context is not None]


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


async def test_process_links_to_send_and_its_own_sends_are_its_children(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced | TillOpened)

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        await pub.publish(TillOpened(till=1), cause=ctx)

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a"), id="x")
        await t.settle()
    send, process, follow_up = spans.one("send orders.v1"), spans.one("process orders.v1"), spans.one("send tills.v1")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert linked(process) == ids(send)
    assert process.parent is None
    assert follow_up.parent == process.context
    (record,) = bus.records(ORDERS)
    assert dict(send.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders.v1",
        "messaging.client.id": "shop",
        "messaging.message.id": "x",
        "messaging.kafka.message.key": "a",
    }
    assert dict(process.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders.v1",
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": "shop",
        "messaging.client.id": "shop",
        "messaging.message.id": "x",
        "messaging.kafka.message.key": "a",
        "hailbus.attempt": 1,
    }
    assert process.status.status_code is StatusCode.UNSET


async def test_enqueue_makes_a_span_that_ends_with_the_receipt(bus: MemoryBus) -> None:
    spans = Spans()
    pub = spans.service.publishes(OrderPlaced)
    async with bus.run(spans.service):
        future = await pub.enqueue(OrderPlaced(order_id="a"), id="x")
        assert spans.named("send orders.v1") == []
        await future
        bus.fail_sends(DeliveryError("too large", topic=ORDERS.name, partition=0))
        refused = await pub.enqueue(OrderPlaced(order_id="b"))
        with pytest.raises(DeliveryError):
            await refused
        with pytest.raises(NotInContractError):
            await pub.enqueue(TillOpened(till=1))  # type: ignore[arg-type]  # the point of the test
    good, bad = spans.named("send orders.v1")
    (record,) = bus.records(ORDERS)
    assert ids(good) == [getattr(context_of(read_envelope(record).traceparent), "span_id", None)]
    assert (good.attributes or {})["messaging.message.id"] == "x"
    assert (bad.attributes or {})["error.type"] == "DeliveryError"
    assert bad.status.status_code is StatusCode.ERROR


async def test_publish_many_is_one_span_whose_context_all_events_carry(bus: MemoryBus) -> None:
    spans = Spans()
    pub = spans.service.publishes(OrderPlaced | TillOpened)
    only = spans.service.publishes(OrderPlaced)
    async with bus.run(spans.service):
        await only.publish_many(OrderPlaced(order_id=key) for key in "ab")
        await pub.publish_many([OrderPlaced(order_id="c"), TillOpened(till=1)])
        bus.fail_sends(DeliveryError("too large", topic=ORDERS.name, partition=0))
        with pytest.raises(DeliveryError):
            await pub.publish_many([OrderPlaced(order_id="d")])
    send, failed = spans.named("send orders.v1")
    mixed = spans.one("send")
    assert [span.kind for span in (send, failed, mixed)] == [SpanKind.PRODUCER] * 3
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in (send, mixed, failed)] == [2, 2, 1]
    assert [(span.attributes or {}).get("error.type") for span in (send, failed)] == [None, "DeliveryError"]
    assert "messaging.destination.name" not in (mixed.attributes or {})
    written = {traceparent_in(record) for record in (*bus.records(ORDERS), *bus.records(TILLS))}
    assert written == {traceparent_of(span.context) for span in (send, mixed) if span.context is not None}
    assert spans.named("create orders.v1") == []


async def test_per_event_creates_each_and_sends_all(bus: MemoryBus) -> None:
    spans = Spans(granularity="per_event")
    pub = spans.service.publishes(OrderPlaced | TillOpened)
    async with bus.run(spans.service):
        receipts = await pub.publish_many([OrderPlaced(order_id="a"), OrderPlaced(order_id="b")])
        await pub.publish_many([OrderPlaced(order_id="c"), TillOpened(till=1)])
    first, second, third = spans.named("create orders.v1")
    send, mixed = spans.one("send orders.v1"), spans.one("send")
    assert (first.kind, send.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert [(span.attributes or {})["messaging.message.id"] for span in (first, second)] == [r.id for r in receipts]
    assert (first.attributes or {})["messaging.operation.type"] == "create"
    assert (send.attributes or {})["messaging.batch.message_count"] == 2
    assert linked(send) == ids(first, second)
    assert linked(mixed) == ids(third, spans.one("create tills.v1"))
    assert "messaging.destination.name" not in (mixed.attributes or {})
    written = [context_of(traceparent_in(record)) for record in bus.records(ORDERS)]
    assert {found.span_id for found in written if found is not None} == set(ids(first, second, third))


async def test_a_batch_is_one_span_linked_to_every_creation(bus: MemoryBus) -> None:
    spans = Spans("till", granularity="per_event")
    svc = spans.service
    pub = svc.publishes(TillOpened)
    calls: list[int] = []

    @svc.on_batch(TillOpened, max_items=3, max_wait=timedelta(seconds=5), delivery=QUICKLY)
    async def opened(batch: Batch[TillOpened]) -> None:
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError("no")

    async with bus.run(svc) as t:
        await pub.publish_many([TillOpened(till=1), TillOpened(till=2)])
        await pub.publish(TillOpened(till=3))
        await t.settle()
    failed, done = spans.named("process tills.v1")
    for span in (failed, done):
        assert span.kind is SpanKind.CONSUMER
        assert linked(span) == ids(*spans.named("create tills.v1"), *spans.named("send tills.v1")[1:])
        attributes = dict(span.attributes or {})
        assert attributes["messaging.batch.message_count"] == 3
        assert attributes["messaging.consumer.group.name"] == "till"
        assert attributes["messaging.destination.partition.id"] == "0"
        assert "messaging.message.id" not in attributes
    assert [(span.attributes or {}).get("error.type") for span in (failed, done)] == ["ValueError", None]
    assert [(span.attributes or {})["hailbus.attempt"] for span in (failed, done)] == [1, 2]


async def test_links_survive_retry_dead_letter_and_replay(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced, delivery=QUICKLY)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        if len(spans.named("process orders.v1")) < 2:
            raise ValueError("no")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await pub.publish(OrderPlaced(order_id="a"), id="x")
        await t.settle()
        await DeadLetterQueue(bus, dead_letter_topic(ORDERS, "shop")).replay()
        await t.settle()
    send = spans.one("send orders.v1")
    process = spans.named("process orders.v1")
    assert [linked(span) for span in process] == [ids(send)] * 3
    assert [(span.attributes or {}).get("error.type") for span in process] == ["ValueError", "ValueError", None]
    assert process[0].status.description == "no"


async def test_links_survive_retry_topics(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced)
    later = AtLeastOnce(retry=Backoff(attempts=1), then=RetryTopics(timedelta(milliseconds=5)))

    @svc.on(OrderPlaced, delivery=later)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        if ctx.topic == ORDERS.name:
            raise ValueError("no")

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a"))
        await t.settle()
    send = spans.one("send orders.v1")
    assert linked(spans.one("process orders.v1")) == ids(send)
    assert linked(spans.one("process orders.v1.shop-retry-5")) == ids(send)


async def test_links_survive_the_outbox(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(engine)
    await outbox.create_tables()
    spans = Spans(granularity="per_event")
    svc = spans.service
    svc.relays(outbox)
    pub = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        async with engine.begin() as tx:
            await pub.publish(OrderPlaced(order_id="a"), tx=tx)
            await pub.publish_many([OrderPlaced(order_id="a"), OrderPlaced(order_id="a")], tx=tx)
        await t.settle()
    await engine.dispose()
    created = [spans.named("send orders.v1")[0], *spans.named("create orders.v1")]
    assert [linked(span) for span in spans.named("process orders.v1")] == [ids(span) for span in created]


async def test_exactly_once_is_traced_too(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced | TillOpened)

    @svc.on(OrderPlaced, delivery=ExactlyOnce())
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        await pub.publish(TillOpened(till=1), cause=ctx)

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a"))
        await t.settle()
    process = spans.one("process orders.v1")
    assert linked(process) == ids(spans.one("send orders.v1"))
    assert spans.one("send tills.v1").parent == process.context


async def test_what_follows_an_event_that_was_not_sampled_is_not_sampled(bus: MemoryBus) -> None:
    spans = Spans(sampler=ParentBased(ALWAYS_OFF))
    svc = spans.service
    pub = svc.publishes(OrderPlaced | TillOpened)
    seen: list[str | None] = []

    @svc.on(OrderPlaced, deadline=timedelta(seconds=5))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append(traceparent_of(trace.get_current_span().get_span_context()))
        await pub.publish(TillOpened(till=int(event.order_id)), cause=ctx)

    async with bus.run(svc) as t:
        await pub.publish_many([OrderPlaced(order_id="1"), OrderPlaced(order_id="2")])
        await pub.publish(OrderPlaced(order_id="3"))
        await t.settle()
    created = [traceparent_in(record) for record in bus.records(ORDERS)]
    assert len(set(created)) == 2
    assert {int(text[-2:], 16) & TraceFlags.SAMPLED for text in created if text is not None} == {0}
    assert sorted(filter(None, seen)) == sorted(filter(None, created))
    assert sorted(filter(None, map(traceparent_in, bus.records(TILLS)))) == sorted(filter(None, created))
    assert not trace.get_current_span().get_span_context().is_valid
    assert spans.finished() == []


@pytest.mark.parametrize(("sampler", "count"), [(DEFAULT_ON, 0), (ALWAYS_ON, 3)])
async def test_the_sampler_decides_about_events_that_were_not_sampled(
    bus: MemoryBus, sampler: Sampler, count: int
) -> None:
    spans = Spans(sampler=sampler)
    svc = spans.service
    pub = svc.publishes(OrderPlaced)

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced) -> None: ...

    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    async with bus.run(svc) as t:
        for key in "aab":
            await pub.publish(OrderPlaced(order_id=key), traceparent=text)
        await t.settle()
    assert len(spans.named("process orders.v1")) == count
    assert all(len(span.links) == 1 and span.parent is None for span in spans.finished())


async def test_sampled_and_other_events_take_turns(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced)
    seen: list[tuple[str, str | None]] = []

    @svc.on(OrderPlaced, delivery=AtLeastOnce(order="partition", retry=Backoff(attempts=1)))
    async def placed(event: OrderPlaced) -> None:
        context = trace.get_current_span().get_span_context()
        seen.append((event.order_id, traceparent_of(context)))
        if event.order_id == "bad":
            raise ValueError("no")

    texts = [f"00-{trace_id:032x}-{1:016x}-{flags}" for trace_id, flags in ((1, "00"), (2, "01"), (1, "00"))]
    malformed = "00-" + "x" * 32 + "-" + "0" * 16 + "-00"
    async with bus.run(svc) as t:
        t.expect_dead_letters()
        for key, text in zip(("a", "bad", "c", "d"), (*texts, malformed), strict=True):
            await pub.publish(OrderPlaced(order_id=key), traceparent=text, partition=0)
        await t.settle()
    (process,) = spans.named("process orders.v1")
    assert process.context is not None
    assert (process.attributes or {})["error.type"] == "ValueError"
    assert seen == [("a", texts[0]), ("bad", traceparent_of(process.context)), ("c", texts[0]), ("d", None)]


async def test_a_span_is_published_within_the_span_that_is_current(bus: MemoryBus) -> None:
    spans = Spans()
    pub = spans.service.publishes(OrderPlaced)
    unsampled = SpanContext(trace_id=7, span_id=8, is_remote=True, trace_flags=TraceFlags(0))
    async with bus.run(spans.service):
        with spans.tracer.start_as_current_span("request") as request:
            await pub.publish(OrderPlaced(order_id="a"))
        with trace.use_span(NonRecordingSpan(unsampled)):
            await pub.publish(OrderPlaced(order_id="a"))
            await (await pub.enqueue(OrderPlaced(order_id="a")))
    send = spans.one("send orders.v1")
    assert send.parent == request.get_span_context()
    texts = [traceparent_in(record) for record in bus.records(ORDERS)]
    assert texts == [traceparent_of(found) for found in (send.context, unsampled, unsampled) if found is not None]


async def test_structured_events_are_linked_by_what_their_body_says(bus: MemoryBus) -> None:
    spans = Spans()
    svc = spans.service
    pub = svc.publishes(OrderPlaced, content_mode="structured")

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced) -> None: ...

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a"), id="x")
        await t.settle()
    process = spans.one("process orders.v1")
    assert linked(process) == ids(spans.one("send orders.v1"))
    assert (process.attributes or {})["messaging.message.id"] == "x"


async def test_without_an_sdk_the_causes_context_goes_on(bus: MemoryBus) -> None:
    svc = Service("shop", tracing=True)
    pub = svc.publishes(TillOpened)
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    cause = Envelope(id="1", source="/s", type="a.b", version=1, time=bus.clock(), traceparent=text)
    async with bus.run(svc):
        await pub.publish(TillOpened(till=1), cause=cause)
        await (await pub.enqueue(TillOpened(till=2), cause=cause))
        await pub.publish_many([TillOpened(till=3)], cause=cause)
        await pub.publish(TillOpened(till=4))
    found: Sequence[str | None] = [read_envelope(record).traceparent for record in bus.records(TILLS)]
    assert found == [text, text, text, None]


@pytest.mark.parametrize("text", [None, "", "garbage", "00-xyz-abc-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_broken_traceparents_are_ignored(text: str | None) -> None:
    assert context_of(text) is None


def test_traceparent_round_trip() -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = context_of(text)
    assert found is not None
    assert traceparent_of(found) == text


@pytest.mark.parametrize("tracing", [False, "per_batch", "per_event"])
def test_the_half_of_a_service_that_only_publishes_traces_alike(tracing: bool | Granularity) -> None:
    half = Service("shop", tracing=tracing)._without_handlers()
    assert (False if half._tracing is None else half._tracing.granularity) == tracing
