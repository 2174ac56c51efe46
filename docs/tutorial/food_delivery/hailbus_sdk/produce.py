"""Ask for orders on the command line and publish them: `python produce.py HOST:PORT`. An empty id ends it."""

import asyncio
import sys

from events import OrderStatusChanged
from hailbus import KafkaBus, Publisher, Service

app = Service("food-orders", source="/food/orders")
orders: Publisher[OrderStatusChanged] = app.publishes(OrderStatusChanged)


async def main(bootstrap: str) -> None:
    async with app.running(KafkaBus(bootstrap_servers=bootstrap)):
        while order_id := (await asyncio.to_thread(input, "order id: ")).strip():
            status = await asyncio.to_thread(input, "status: ")
            city = await asyncio.to_thread(input, "city: ")
            receipt = await orders.publish(OrderStatusChanged(order_id=order_id, status=status, city=city))
            print(f"{city} is in partition {receipt.partition}, offset {receipt.offset}", flush=True)


asyncio.run(main(sys.argv[1]))
