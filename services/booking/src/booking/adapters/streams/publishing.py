"""Positions on their way out, at most once."""

import asyncio
from collections import deque
from datetime import datetime
from typing import Final

import structlog
from hailbus import DeliveryError, Event, Publisher, Receipt
from ride_events.drivers import DriverLocationReported

REPORT_LIMIT: Final = 10_000
"""Positions that wait for the producer; the oldest gives way, as a newer one replaces it anyway."""

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking.publishing")


class LocationReports:
    """Sends positions at most once: nobody waits for them, and what finds no room is dropped and counted."""

    def __init__(self, publisher: Publisher[DriverLocationReported]) -> None:
        self._publisher = publisher
        self._queue: deque[tuple[DriverLocationReported, datetime]] = deque(maxlen=REPORT_LIMIT)
        self._waiting = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.dropped_count = 0

    def report(self, event: Event, at: datetime) -> None:
        """Send a position some time soon, or never."""
        assert isinstance(event, DriverLocationReported), f"{type(event).__name__} must not get lost: use the outbox"
        if len(self._queue) == REPORT_LIMIT:
            self.dropped_count += 1
        self._queue.append((event, at))
        self._waiting.set()

    def start(self) -> None:
        """Begin sending; the publisher's service runs."""
        self._task = asyncio.create_task(self._send(), name="booking-location-reports")

    async def stop(self) -> None:
        """Stop sending; what waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.dropped_count:
            log.info("locations_dropped", dropped=self.dropped_count)

    async def _send(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while self._queue:
                event, at = self._queue.popleft()
                try:
                    future = await self._publisher.enqueue(event, time=at)
                except DeliveryError:
                    self.dropped_count += 1
                else:
                    future.add_done_callback(self._count_loss)

    def _count_loss(self, future: "asyncio.Future[Receipt]") -> None:
        if future.cancelled() or future.exception() is not None:
            self.dropped_count += 1
