"""FastAPI, health, metrics and traces."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
from fastapi import Depends, FastAPI
from hailbus import Context, Event, Publisher, Service, SubscriberSettings, Topic
from hailbus.testing import MemoryBus, VirtualClock, run_virtual

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
        pub: Publisher[OrderPlaced] = Depends(orders),  # noqa: FAST002, B008 - Annotated would be postponed
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
            assert "has made no progress on orders.v1-" in svc.unhealthy_reasons[0]
            await t.settle(timeout_s=100)
            assert svc.unhealthy_reasons == []

    run_virtual(main())
