"""A broker that has lost the state of a producer, as one that acknowledges before it syncs does in a power cut."""

from __future__ import annotations

from contextlib import aclosing

from hailbus import Event, ExactlyOnce, KafkaBus, Service, Topic, bus_reader
from hailbus_broker.testing import ApiKey, ErrorCode, Fault, running_broker


class OrderPlaced(Event, topic=Topic("orders.v1", partitions=1), key="number", type="order.placed"):
    number: int


class OrderBilled(Event, topic=Topic("bills.v1", partitions=1), key="number", type="order.billed"):
    number: int


async def test_exactly_once_continues_with_a_new_producer() -> None:
    shop, till = Service("shop"), Service("till")
    placed, billed = shop.publishes(OrderPlaced), till.publishes(OrderBilled)

    @till.on(delivery=ExactlyOnce())
    async def bill(event: OrderPlaced) -> None:
        await billed.publish(OrderBilled(number=event.number))

    async with running_broker() as broker:
        bus = KafkaBus(bootstrap_servers=broker.bootstrap)
        async with (
            shop.running(bus),
            till.running(bus),
            aclosing(bus_reader(bus, OrderBilled, start="earliest")) as bills,
        ):
            await placed.publish(OrderPlaced(number=1))
            found = [(await anext(bills)).event.number]
            refused = broker.fail(
                Fault(api=ApiKey.PRODUCE, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, client_id="till-orders.v1-0")
            )
            for number in (2, 3):
                await placed.publish(OrderPlaced(number=number))
            found += [(await anext(bills)).event.number for _ in range(2)]
    assert found == [1, 2, 3]
    assert refused.hit_count == 1
