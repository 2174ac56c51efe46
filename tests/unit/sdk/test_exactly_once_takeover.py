"""A partition that changes hands: the new member does not repeat what the last transaction before it committed."""

from __future__ import annotations

import asyncio

from hailbus import Context, Event, ExactlyOnce, Service, Topic
from hailbus._transport import TopicPartition
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryProducer

ORDERS = Topic("orders.v1", partitions=1)


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int


class LateCommit(MemoryBus):
    """A bus on which the transaction of the member before commits while the next one registers its producer."""

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> MemoryProducer:
        made = super().producer(client_id=client_id, transactional_id=transactional_id)
        if transactional_id is not None:
            register = made.start

            async def start() -> None:
                await asyncio.sleep(0)  # this member has asked for its offsets by now
                self.group("till").committed[TopicPartition("orders.v1", 0)] = 3
                await register()

            made.start = start  # type: ignore[method-assign]  # a fault
        return made


async def test_what_the_last_member_committed_meanwhile_is_not_handled_again() -> None:
    bus = LateCommit()
    source = Service("source")
    publisher = source.publishes(Placed)
    async with source.running(bus):
        await publisher.publish_many([Placed(order_id="a", number=number) for number in range(5)])
    till = Service("till")
    handled: list[int] = []
    done = asyncio.Event()

    @till.on(Placed, delivery=ExactlyOnce())
    async def add(event: Placed, ctx: Context) -> None:
        handled.append(event.number)
        if event.number == 4:
            done.set()

    async with till.running(bus):
        async with asyncio.timeout(30):
            await done.wait()
    assert handled == [3, 4]
