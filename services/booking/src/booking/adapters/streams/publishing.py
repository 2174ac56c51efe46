"""Events on their way out: the outbox, and positions at most once."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from hailbus import Context, DeliveryError, Envelope, Event, Inbox, Outbox, Publisher, Receipt, event_info
from hailbus.clock import Clock
from hailbus.codec import encode
from hailbus.inbox import inbox_table
from hailbus.outbox import outbox_table
from ride_events.drivers import DriverLocationReported
from sqlalchemy import bindparam, delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from booking.app.ports import Outgoing

WAKE_LINGER_S: Final = 0.01
REPORT_LIMIT: Final = 10_000
"""Positions that wait for the producer; the oldest gives way, as a newer one replaces it anyway."""

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking.publishing")


class OutboxRows:
    """The writer's outbox: all events of a batch in one statement, and all cancelled timers in another."""

    def __init__(self, outbox: Outbox, *, source: str, clock: Clock) -> None:
        self._outbox = outbox
        self._source = source
        self._clock = clock
        self._wake_timer: asyncio.TimerHandle | None = None

    async def add(self, connection: AsyncConnection, outgoing: Sequence[Outgoing]) -> None:
        """Insert rows, in order."""
        created_at = micros(self._clock())
        await connection.execute(_INSERT, [self._row(item, created_at) for item in outgoing])

    def _row(self, item: Outgoing, created_at: int) -> dict[str, object]:
        info = event_info(item.event)
        key, value, headers = encode(
            item.event,
            Envelope(
                id=item.id,
                source=self._source,
                type=info.type,
                version=info.version,
                time=item.time,
                subject=getattr(item.event, info.key_field) if info.key_field else None,
                correlation_id=item.correlation_id,
            ),
        )
        return {
            "id": item.id,
            "aggregatetype": info.topic.name,
            "aggregateid": key.decode() if key is not None else None,
            "type": info.type,
            "payload": value.decode(),
            "headers": json.dumps([(name, content.decode()) for name, content in headers], separators=(",", ":")),
            "created_at": created_at,
            "not_before": micros(item.not_before) if item.not_before is not None else None,
            "schedule_id": item.schedule_id,
        }

    async def cancel(self, connection: AsyncConnection, schedule_ids: Sequence[str]) -> None:
        """Withdraw timers that have not been published."""
        await connection.execute(_CANCEL, {"ids": list(schedule_ids), "now": micros(self._clock())})

    def wake(self) -> None:
        """Have the relay look, a little later: under load one look then serves several commits."""
        if self._wake_timer is None:
            self._wake_timer = asyncio.get_running_loop().call_later(WAKE_LINGER_S, self._wake_now)

    def _wake_now(self) -> None:
        self._wake_timer = None
        self._outbox.wake()

    @property
    def turn(self) -> asyncio.Lock:
        """Held by whoever writes to the database in this process, the relay included."""
        return self._outbox.turn


def micros(moment: datetime) -> int:
    """Return microseconds since the epoch, as the outbox keeps times."""
    return (moment - _EPOCH) // _MICROSECOND


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_c = outbox_table.c
_INSERT: Final = insert(outbox_table)
_CANCEL: Final = (
    update(outbox_table)
    .where(
        _c.schedule_id.in_(bindparam("ids", expanding=True)),
        _c.published_at.is_(None),
        _c.cancelled_at.is_(None),
        _c.failed_at.is_(None),
    )
    .values(cancelled_at=bindparam("now"))
)


class InboxRows:
    """What booking has applied, and what it could not."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def claim(self, connection: AsyncConnection, contexts: Sequence[Context]) -> set[str]:
        """Record events as applied; return the ids of those that had not been."""
        return await self._inbox.claim(connection, contexts)

    async def release(self, connection: AsyncConnection, contexts: Sequence[Context]) -> None:
        """Forget that events were applied, so that their dead letters can be replayed."""
        column = inbox_table.c
        for ctx in contexts:
            await connection.execute(
                delete(inbox_table).where(
                    column.consumer == self._inbox.consumer,
                    column.source == ctx.envelope.source,
                    column.event_id == ctx.envelope.id,
                )
            )


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
