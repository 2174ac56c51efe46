"""Create the topics that the events declare: `python admin.py HOST:PORT`."""

import asyncio
import sys

from events import COURIER_LOCATION, ORDER_STATUS
from hailbus import ClusterAdmin


async def main(bootstrap: str) -> None:
    async with ClusterAdmin(bootstrap) as admin:
        await admin.provision([ORDER_STATUS, COURIER_LOCATION])
    print("order-status and courier-location exist, two partitions each")


asyncio.run(main(sys.argv[1]))
