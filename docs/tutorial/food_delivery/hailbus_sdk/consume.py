"""Print the orders that this member of a group receives, until Ctrl-C: `python consume.py HOST:PORT GROUP`."""

import asyncio
import sys

from events import OrderStatusChanged
from hailbus import AtLeastOnce, Context, KafkaBus, Service

bootstrap, group = sys.argv[1:]
app = Service(group, source="/food/board", bus=KafkaBus(bootstrap_servers=bootstrap))


@app.on(OrderStatusChanged, delivery=AtLeastOnce())
async def show(order: OrderStatusChanged, ctx: Context) -> None:
    print(f"Partition:{ctx.partition} {order.city}: order {order.order_id} is {order.status}", flush=True)


asyncio.run(app.run())
