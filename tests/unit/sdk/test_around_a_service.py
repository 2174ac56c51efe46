"""FastAPI, health, metrics and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from hailbus import AtLeastOnce, Backoff, Context, Event, Publisher, Service, SubscriberSettings, Topic
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from hailbus.tracing import Tracing, context_of, traceparent_of
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

ORDERS = Topic("orders.v1", partitions=2)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int = 0


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def test_fastapi_lifespan_dependency_override_health_and_metrics(bus: MemoryBus) -> None:
    svc = Service("shop", bus=bus, subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=5)))
    orders: Publisher[OrderPlaced] = svc.publishes(OrderPlaced)
    seen: list[str] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append(event.order_id)

    app = FastAPI(lifespan=svc.lifespan)
    app.include_router(svc.health())

    @app.post("/orders/{order_id}")
    async def place(  # the dependency is a local name, which a postponed annotation could not find
        order_id: str,
        pub: Publisher[OrderPlaced] = Depends(orders),  # noqa: FAST002, B008
    ) -> dict[str, Any]:
        receipt = await pub.publish(OrderPlaced(order_id=order_id))
        return {"offset": receipt.offset}

    async with client(app) as http:
        before = await http.get("/readyz")
        assert (before.status_code, before.json()["status"]) == (503, "starting")
        async with app.router.lifespan_context(app):
            assert (await http.post("/orders/a")).json() == {"offset": 0}
            async with asyncio.timeout(5):
                while not seen:  # noqa: ASYNC110 waits for the handler
                    await asyncio.sleep(0.002)
            assert (await http.get("/livez")).json() == {"status": "ok"}
            assert (await http.get("/readyz")).json() == {"status": "ok", "lag_seconds": {"shop": 0.0}}
            text = (await http.get("/metrics")).text
            assert 'hailbus_settled_total{group="shop",service="shop"} 1.0' in text
            assert 'hailbus_healthy{group="shop",service="shop"} 1.0' in text

            class Recorded:
                events: list[OrderPlaced] = []  # noqa: RUF012 lives for one test

                async def publish(self, event: OrderPlaced) -> Any:
                    self.events.append(event)
                    return type("Receipt", (), {"offset": 99})

            app.dependency_overrides[orders] = Recorded
            assert (await http.post("/orders/b")).json() == {"offset": 99}
    assert not svc.is_running


def test_unhealthy_when_events_wait_and_nothing_settles() -> None:
    async def main() -> None:
        bus = MemoryBus(clock=VirtualClock())
        svc = Service("shop", subscribing=SubscriberSettings(stall_after=timedelta(seconds=30)))

        @svc.on(OrderPlaced)
        async def placed(event: OrderPlaced, ctx: Context) -> None:
            await asyncio.sleep(45)

        async with bus.run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await asyncio.sleep(20)
            assert svc.unhealthy_reasons == []
            await asyncio.sleep(20)
            assert "has 1 events waiting and settled none" in svc.unhealthy_reasons[0]
            await t.settle(timeout_s=100)
            assert svc.unhealthy_reasons == []

    run_virtual(main())


@dataclass
class Span(NonRecordingSpan):
    name: str
    context: SpanContext
    attributes: dict[str, Any]
    links: list[Any]
    ended: list[str] = field(default_factory=list)

    def get_span_context(self) -> SpanContext:
        return self.context

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value


class Tracer:
    """Stands for the OpenTelemetry SDK's tracer: numbers its spans and keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def start_as_current_span(self, name: str, *, attributes: Any, links: Any = (), **_: Any) -> Iterator[Span]:
        number = len(self.spans) + 1
        context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(1))
        span = Span(name, context, dict(attributes), list(links))
        self.spans.append(span)
        with use_span(span):
            yield span


async def test_spans_link_to_the_producer_through_retry_and_dead_letter(bus: MemoryBus) -> None:
    tracer = Tracer()
    svc = Service("shop", tracing=True, subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=5)))
    svc._tracing = Tracing(client_id="shop", tracer=tracer)  # type: ignore[arg-type]  # a stand-in
    pub = svc.publishes(OrderPlaced, OrderPaid)

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2)))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        raise ValueError("no")

    async with bus.run(svc) as t:
        await pub.publish(OrderPlaced(order_id="a"), id="x")
        await t.settle()
    send, *process = tracer.spans
    assert send.name == "send orders.v1"
    assert [span.name for span in process] == ["process orders.v1"] * 2
    for span in process:
        assert [link.context.span_id for link in span.links] == [send.context.span_id]
        assert span.attributes["messaging.message.id"] == "x"
        assert span.attributes["messaging.consumer.group.name"] == "shop"
        assert span.attributes["error.type"] == "ValueError"
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    assert dict(letter.headers)["ce_traceparent"] == (traceparent_of(send.context) or "").encode()


@pytest.mark.parametrize("text", [None, "", "garbage", "00-xyz-abc-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_broken_traceparents_are_ignored(text: str | None) -> None:
    assert context_of(text) is None


def test_traceparent_round_trip() -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = context_of(text)
    assert found is not None
    assert traceparent_of(found) == text
