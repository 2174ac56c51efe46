"""Records that come twice, as a producer without idempotence may write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from hailbus import Bus
from hailbus._transport import Outgoing
from hailbus.reader import record_reader

from hailbus_demo.ledger.log import Place

__all__ = ["repeat_records"]

AT_ONCE = 500


async def repeat_records(bus: Bus, topic: str, *, since: datetime, without: Collection[Place] = ()) -> int:
    """Write the records of a topic again, each with the same key, value and headers to the same partition.

    Args:
        bus: Where the topic is.
        topic: Its name.
        since: The log's time of the oldest record to repeat.
        without: Records that are not repeated.

    Returns:
        How many were repeated.

    Raises:
        DeliveryError: A record was not acknowledged; others may be.
    """
    found: dict[int, list[Outgoing]] = defaultdict(list)
    async for record in record_reader(bus, [topic], start=since, until_end=True, client_id="demo-repeat"):
        if (record.topic, record.partition, record.offset) not in without:
            found[record.partition].append((record.key, record.value, record.headers))
    producer = bus.producer(client_id="demo-repeat")
    await producer.start()
    try:
        for partition, records in found.items():
            for start in range(0, len(records), AT_ONCE):
                await producer.send(topic, partition, records[start : start + AT_ONCE])
    finally:
        await producer.stop()
    return sum(map(len, found.values()))
