"""Driver apps that report positions through the SDK, at most once: what cannot be sent soon is dropped and counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta

import h3
from hailbus import Bus, PublisherSettings, Receipt, Service
from ride_events import LatLng
from ride_events.drivers import DriverLocationReported
from ride_events.geo import PRICING_RESOLUTION

from hailbus_demo.city.plan import Place, to_datetime

LARGEST_QUEUE = 5_000
"""Positions that wait to be sent; a newer one is worth more than an old one, so the oldest is dropped."""


def driver_app() -> Service:
    """Return the service that stands for all driver apps. It gives a late position up after five seconds."""
    return Service(
        "driver-app",
        source="/driver-app",
        provision=False,
        publishing=PublisherSettings(delivery_timeout=timedelta(seconds=5), max_buffered_records=LARGEST_QUEUE),
    )


class LocationFeed:
    """Sends positions in the background. The service must run; see `driver_app`."""

    def __init__(self, service: Service) -> None:
        self._publisher = service.publishes(DriverLocationReported)
        self._queue: deque[tuple[DriverLocationReported, int]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self.sent = 0
        self.dropped = 0

    def report(self, driver_id: str, place: Place, *, free: bool, ride_id: str | None, at_ms: int) -> None:
        """Queue a position; never waits."""
        event = DriverLocationReported(
            driver_id=driver_id,
            position=LatLng(lat=place[0], lng=place[1]),
            cell=h3.latlng_to_cell(place[0], place[1], PRICING_RESOLUTION),
            free=free,
            ride_id=ride_id,
            simulated=True,
        )
        if len(self._queue) >= LARGEST_QUEUE:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append((event, at_ms))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._queue:
            event, at_ms = self._queue.popleft()
            answer = await self._publisher.enqueue(event, time=to_datetime(at_ms))
            answer.add_done_callback(self._done)

    def _done(self, answer: asyncio.Future[Receipt]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self.dropped += 1
        else:
            self.sent += 1

    async def close(self) -> None:
        """Forget what is queued."""
        self._queue.clear()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)


@contextlib.asynccontextmanager
async def driver_apps(bus: Bus) -> AsyncIterator[LocationFeed]:
    """Run the driver apps' service on a bus."""
    service = driver_app()
    feed = LocationFeed(service)
    async with service.running(bus):
        try:
            yield feed
        finally:
            await feed.close()
