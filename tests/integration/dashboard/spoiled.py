"""A consumer that sets spoiled records aside, for the tests of the dead letters."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from hailbus import AtLeastOnce, Backoff, Context, Service
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryRecord
from ride_events import CATALOGUE
from ride_events.rides import RIDES, RideRequested

RETRY = Backoff(attempts=2, first=timedelta(milliseconds=1))
QUEUE = "rides.v1.surge-dlt"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


class Surge:
    """Takes requested rides, except those of a rider that it cannot bear."""

    def __init__(self, bus: MemoryBus, group: str) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.hates = "rider-13"
        self.service = Service(group, bus=bus, catalogue=CATALOGUE)

        @self.service.on(
            RideRequested, delivery=AtLeastOnce(retry=Backoff(attempts=2, first=timedelta(milliseconds=1)))
        )
        async def take(event: RideRequested, ctx: Context) -> None:
            if event.rider_id == self.hates:
                raise RuntimeError(f"no cell has room for <b>{event.rider_id}</b>")
            self.seen.append((event.ride_id, ctx.envelope.id))


@asynccontextmanager
async def surge(bus: MemoryBus, group: str = "surge") -> AsyncIterator[Surge]:
    """Run a consumer of requested rides."""
    found = Surge(bus, group)
    async with found.service.running():
        yield found


def requested(bus: MemoryBus, ride_id: str) -> MemoryRecord:
    """Return the record by which a ride was requested."""
    return next(
        record
        for record in bus.records(RIDES)
        if record.key == ride_id.encode() and dict(record.headers)["ce_type"] == b"ride.requested"
    )


def spoil(
    bus: MemoryBus,
    ride_id: str,
    change: Callable[[dict[str, Any]], object] = lambda value: value.pop("fare"),
    *,
    value: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> int:
    """Write a damaged copy of the record by which a ride was requested; return its offset."""
    good = requested(bus, ride_id)
    document = json.loads(good.value or b"")
    change(document)
    changed = [(name, (headers or {}).get(name, found)) for name, found in good.headers]
    body = value if value is not None else json.dumps(document, separators=(",", ":")).encode()
    (offset,) = bus.append(RIDES.name, good.partition, [(good.key, body, changed)])
    return offset


async def until_letters(bus: MemoryBus, count: int, queue: str = QUEUE) -> list[MemoryRecord]:
    """Wait until a dead letter topic has so many letters."""
    deadline = monotonic() + 15
    while True:
        found = [record for tp, log in bus.logs.items() if tp.topic == queue for record in log]
        if len(found) >= count:
            return found
        assert monotonic() < deadline, f"still {len(found)} letters"
        await asyncio.sleep(0.02)


__all__ = ["OWN_PAGE", "QUEUE", "Surge", "requested", "spoil", "surge", "until_letters"]
