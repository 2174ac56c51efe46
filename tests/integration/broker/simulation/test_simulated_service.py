"""A service of the SDK in a simulated world: killed, and served by a broker that loses power."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
from hailbus import Event, KafkaBus, Service, Topic, bus_reader
from hailbus_broker.testing.simulation import World, simulated_broker

ORDERS = 40


class OrderPlaced(Event, topic=Topic("orders.v1", partitions=3), key="order_id", type="order.placed"):
    order_id: str


class OrderPaid(Event, topic=Topic("orders.v1", partitions=3), key="order_id", type="order.paid"):
    order_id: str


async def run_till(bootstrap: str) -> None:
    svc = Service("till")
    paid = svc.publishes(OrderPaid)

    @svc.on
    async def take_money(event: OrderPlaced) -> None:
        await asyncio.sleep(random.uniform(0.001, 0.2))
        await paid.publish(OrderPaid(order_id=event.order_id))

    async with svc.running(KafkaBus(bootstrap_servers=bootstrap)):
        await asyncio.Event().wait()


async def order(bootstrap: str) -> set[str]:
    svc = Service("shop")
    placed = svc.publishes(OrderPlaced)
    bus = KafkaBus(bootstrap_servers=bootstrap)
    seen: set[str] = set()
    async with svc.running(bus), aclosing(bus_reader(bus, OrderPlaced, OrderPaid, start="earliest")) as events:
        for number in range(ORDERS):
            await placed.publish(OrderPlaced(order_id=str(number)))
            await asyncio.sleep(random.uniform(0, 0.2))
        async for found in events:
            if isinstance(found.event, OrderPaid):
                seen.add(found.event.order_id)
                if len(seen) == ORDERS:
                    break
    return seen


async def main(world: World) -> set[str]:
    rng = world.rng("faults")
    async with simulated_broker() as simulation:
        till = world.process("till")
        till.start(run_till(simulation.bootstrap))
        ordering = world.process("shop").start(order(simulation.bootstrap))
        await simulation.advance(rng.uniform(0.5, 2))
        till.kill()
        await simulation.advance(rng.uniform(0, 1))
        simulation.kill(power_cut=True)
        await simulation.advance(rng.uniform(0, 1))
        await simulation.restart()
        world.process("till").start(run_till(simulation.bootstrap))
        async with asyncio.timeout(600):
            return await ordering


@pytest.mark.parametrize("seed", range(3))
def test_every_order_is_paid_although_service_and_broker_die(seed: int) -> None:
    world = World(seed)
    assert world.run(main) == {str(number) for number in range(ORDERS)}
    again = World(seed)
    again.run(main)
    assert again.trace.digest == world.trace.digest
