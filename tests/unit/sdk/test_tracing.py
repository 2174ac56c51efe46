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
from hailbus.codec import read_envelope
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.testing import MemoryBus
from hailbus.tracing import Tracing, context_of, traceparent_of
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

ORDERS = Topic("orders.v1", partitions=2)
TILLS = Topic("tills.v1", partitions=1)
QUICKLY = AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class TillOpened(Event, topic=TILLS, type="till.opened"):
    till: int


class Spans:
    """A service whose spans are kept."""

    def __init__(self, name: str = "shop") -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.service = Service(
            name, tracing=True, subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=5))
        )
        self.service._tracing = Tracing(client_id=name, tracer=provider.get_tracer("test"))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


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


async def test_publish_many_creates_each_and_sends_all(bus: MemoryBus) -> None:
    spans = Spans()
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
    written = [context_of(read_envelope(record).traceparent) for record in bus.records(ORDERS)]
    assert {found.span_id for found in written if found is not None} == set(ids(first, second, third))


async def test_a_batch_is_one_span_linked_to_every_creation(bus: MemoryBus) -> None:
    spans = Spans("till")
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
    spans = Spans()
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
