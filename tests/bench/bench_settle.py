"""How long `settle()` takes in a test that uses the fixture `bus`: by the wall, in milliseconds.

python tests/bench/bench_settle.py
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

from hailbus import Context, Event, Service, Topic
from hailbus.testing import MemoryBus, VirtualLoop

ORDERS = Topic("orders.v1", partitions=3)
ROUNDS = 200


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


def service(*, fails: bool) -> Service:
    svc = Service("till")
    paid = svc.publishes(OrderPaid)

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        if fails:
            raise ValueError("no money")
        await paid.publish(OrderPaid(order_id=event.order_id), cause=ctx)

    return svc


async def settles(*, fails: bool) -> list[float]:
    """Milliseconds of each settle."""
    found = []
    async with MemoryBus().run(service(fails=fails)) as t:
        t.expect_dead_letters()
        for number in range(ROUNDS):
            await t.given(OrderPlaced(order_id=str(number)))
            began_s = time.perf_counter()
            await t.settle()
            found.append((time.perf_counter() - began_s) * 1000)
    return found


def show(what: str, main: Callable[[], Coroutine[Any, Any, list[float]]], *, virtual: bool) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop if virtual else None) as runner:
        found = runner.run(main())
    print(f"{what:60} median {statistics.median(found):6.2f} ms   p99 {sorted(found)[ROUNDS * 99 // 100]:6.2f} ms")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    show("one event, handled and committed", lambda: settles(fails=False), virtual=True)
    show("one event, five attempts with backoff, dead-lettered", lambda: settles(fails=True), virtual=True)
    show("one event in real time", lambda: settles(fails=False), virtual=False)
