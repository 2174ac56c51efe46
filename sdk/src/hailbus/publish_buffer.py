"""The buffer between publishers and the producer: bounded, one queue and one pump per partition, in order."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from hailbus._transport import Bus, Outgoing, Producer
from hailbus.durations import BOUNDS_S as DURATION_BOUNDS_S
from hailbus.errors import ConfigurationError, DeliveryError, DeliveryTimeoutError

__all__ = ["PublishBuffer", "PublishStats", "PublisherSettings", "Receipt"]

log = logging.getLogger("hailbus.publisher")
YIELD_EVERY = 500  # events built in a row before the event loop gets its turn


class Receipt(NamedTuple):
    """Where an event went.

    Attributes:
        id: The event's id (`ce_id`).
        topic: Its topic.
        partition: Its partition; None when it was stored in the outbox.
        offset: Its offset; None when it was stored in the outbox or waits for the end of a transaction.
    """

    id: str
    topic: str
    partition: int | None
    offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSettings:
    """Bounds of a service's publishing.

    Args:
        delivery_timeout: From the call to the acknowledgement; then `DeliveryTimeoutError`, outcome unknown.
        max_buffered_records, max_buffered_bytes: When reached, publishing waits.
        max_batch_records: At most so many records go into one send.
    """

    delivery_timeout: timedelta = timedelta(seconds=120)
    max_buffered_records: int = 10_000
    max_buffered_bytes: int = 64 * 1024 * 1024
    max_batch_records: int = 500

    def __post_init__(self) -> None:
        if self.delivery_timeout <= timedelta(0):
            message = f"delivery_timeout={self.delivery_timeout} must be longer than nothing"
            raise ConfigurationError(message)
        for name in ("max_buffered_records", "max_buffered_bytes", "max_batch_records"):
            if getattr(self, name) < 1:
                message = f"{name}={getattr(self, name)} must be at least 1"
                raise ConfigurationError(message)


@dataclass(slots=True)
class PublishStats:
    """What became of a service's records.

    Attributes:
        published: Records acknowledged.
        failed: Records refused, timed out or given up.
        duration_counts: How many of them took how long from the call to the decision, by `DURATION_BOUNDS_S`.
        duration_sum_s: Sum of these durations.
    """

    published: int = 0
    failed: int = 0
    duration_counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    duration_sum_s: float = 0.0

    def took(self, first_s: float, last_s: float, count: int) -> None:
        """Count records of one send; the durations of the first and the last bound those between."""
        self.duration_sum_s += (first_s + last_s) / 2 * count
        longest, shortest = bisect_left(DURATION_BOUNDS_S, first_s), bisect_left(DURATION_BOUNDS_S, last_s)
        if longest == shortest:
            self.duration_counts[longest] += count
            return
        step_s = (last_s - first_s) / max(count - 1, 1)
        for index in range(count):
            self.duration_counts[bisect_left(DURATION_BOUNDS_S, first_s + index * step_s)] += 1


_new = tuple.__new__  # makes a named tuple twice as fast as its class does
Sent = Callable[[str, int, float, DeliveryError | None], None]
"""Told the topic of one send, its number of records, its duration in seconds and its first error."""

Settled = Callable[[Any, "Receipt | DeliveryError"], None]  # Any: the token given to `PublishBuffer.add`
"""Told the token of one record and what became of it."""

_Pending = tuple[Outgoing, str, Settled, Any, float, int]
"""A record, the event's id, whom to tell with which token, its deadline, and its size in bytes. A bare tuple: there is
one per event, and the garbage collector visits each of them."""


class PublishBuffer:
    """Records on their way to the broker. Each partition has one queue, one pump, and one send in flight."""

    def __init__(self, bus: Bus, settings: PublisherSettings, *, client_id: str, sent: Sent | None = None) -> None:
        self.stats = PublishStats()
        self._bus = bus
        self._settings = settings
        self._client_id = client_id
        self._sent = sent
        self._timeout_s = settings.delivery_timeout.total_seconds()
        self._producer: Producer | None = None
        self._queues: dict[tuple[str, int], deque[_Pending]] = {}
        self._pumps: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._buffered_records = 0
        self._buffered_bytes = 0
        self._flying: dict[tuple[str, int], int] = {}
        self._decided: dict[tuple[str, int], int] = {}
        self._markers: dict[tuple[str, int], deque[tuple[int, asyncio.Future[None]]]] = {}
        self._streak = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Connect."""
        self._loop = asyncio.get_running_loop()
        producer = self._bus.producer(client_id=self._client_id)
        await producer.start()
        self._producer = producer

    async def stop(self, *, flush_timeout_s: float) -> bool:
        """Send what is buffered, within a time, and disconnect; False when records had to be given up."""
        if self._producer is None:
            return True
        flushed = True
        try:
            async with asyncio.timeout(flush_timeout_s):
                await self.flush()
        except TimeoutError:
            flushed = False
        producer, self._producer = self._producer, None  # from here on nothing can be added
        pumps = tuple(self._pumps.values())
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for place, queue in self._queues.items():
            self._give_up(place, queue)  # a pump that was cancelled before its first step has settled nothing
            queue.clear()
        while self._room:
            self._wake(self._room.popleft())
        await producer.stop()
        return flushed

    @property
    def producer(self) -> Producer:
        """The started producer.

        Raises:
            ConfigurationError: The service does not run.
        """
        if self._producer is None:
            message = "nothing can be published before the service runs; enter svc.running(bus) or its lifespan first"
            raise ConfigurationError(message)
        return self._producer

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that this buffer runs in."""
        assert self._loop is not None
        return self._loop

    @property
    def buffered_count(self) -> int:
        """Records accepted and not decided."""
        return self._buffered_records

    @property
    def full(self) -> bool:
        """Whether publishing must wait."""
        settings = self._settings
        return (
            self._buffered_records >= settings.max_buffered_records
            or self._buffered_bytes >= settings.max_buffered_bytes
        )

    @property
    def must_wait(self) -> bool:
        """Whether to call `until_room` first: the buffer is full, or the event loop should get its turn."""
        return self._streak >= YIELD_EVERY or self.full

    async def until_room(self) -> None:
        """Wait until the buffer takes another record; first come, first served."""
        if self._streak >= YIELD_EVERY:
            self._streak = 0
            await asyncio.sleep(0)  # what has been added goes out while the rest is being built
        while self.full:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._room.append(waiter)
            await waiter

    def room(self) -> int:
        """How many records may be built before the next `until_room`; at least one."""
        return max(min(self._settings.max_buffered_records - self._buffered_records, YIELD_EVERY), 1)

    async def flush(self) -> None:
        """Wait until everything accepted so far is acknowledged or has failed."""
        if self._buffered_records:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._idle.append(waiter)
            await waiter

    def add(self, topic: str, partition: int, record: Outgoing, event_id: str, settled: Settled, token: object) -> None:
        """Take one record. `settled` is called once, from the event loop, with the token.

        Raises:
            ConfigurationError: The buffer has stopped.
        """
        self.add_all(topic, partition, ((record, event_id, token),), settled)

    def add_all(
        self, topic: str, partition: int, records: Sequence[tuple[Outgoing, str, object]], settled: Settled
    ) -> None:
        """Take several records of one partition, each with the event's id and its token. See `add`."""
        if self._producer is None:
            _ = self.producer  # raises
        place = (topic, partition)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = deque()
        deadline_s = self.loop.time() + self._timeout_s
        size_bytes = 0
        append = queue.append
        for record, event_id, token in records:
            value = record[1]
            size = 64 + len(value) if value is not None else 64
            size_bytes += size
            append((record, event_id, settled, token, deadline_s, size))
        self._buffered_records += len(records)
        self._buffered_bytes += size_bytes
        self._streak += len(records)
        if place not in self._pumps:
            self._pumps[place] = self.loop.create_task(
                self._pump(place, queue), name=f"hailbus-pump-{topic}-{partition}"
            )

    def until_decided(self, topic: str, partition: int) -> asyncio.Future[None]:
        """Done when every record that was added to a partition so far is acknowledged or has failed."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        place = (topic, partition)
        if place not in self._pumps:
            waiter.set_result(None)
        else:
            last = self._decided.get(place, 0) + len(self._queues[place]) + self._flying.get(place, 0)
            self._markers.setdefault(place, deque()).append((last, waiter))
        return waiter

    async def _pump(self, place: tuple[str, int], queue: deque[_Pending]) -> None:
        most = self._settings.max_batch_records
        batch: list[_Pending] = []
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), most))]
                self._flying[place] = len(batch)
                outcomes = await self._outcomes(place, batch)
                self._settle(place, batch, outcomes)
                batch = []
        except asyncio.CancelledError:
            self._give_up(place, batch)
            self._give_up(place, queue)
            queue.clear()
            raise
        finally:
            self._pumps.pop(place, None)

    async def _outcomes(self, place: tuple[str, int], batch: Sequence[_Pending]) -> Sequence[int | DeliveryError]:
        topic, partition = place
        began_s = self.loop.time()
        outcomes: Sequence[int | DeliveryError]
        failure: DeliveryError | None = None
        try:
            async with asyncio.timeout(max(batch[0][4] - began_s, 0.0)):
                outcomes = await self.producer.send_each(topic, partition, [pending[0] for pending in batch])
        except TimeoutError:
            failure = DeliveryTimeoutError(topic=topic, partition=partition, timeout_s=self._timeout_s)
            outcomes = [failure] * len(batch)
        except DeliveryError as error:
            failure = error
            outcomes = [error] * len(batch)
        except Exception as error:  # noqa: BLE001 a defect must reach the callers, not hang them
            failure = DeliveryError(f"publishing failed: {error!r}", topic=topic, partition=partition)
            failure.__cause__ = error
            outcomes = [failure] * len(batch)
        if self._sent is not None:
            if failure is None:
                failure = next((outcome for outcome in outcomes if isinstance(outcome, DeliveryError)), None)
            self._sent(topic, len(batch), self.loop.time() - began_s, failure)
        return outcomes

    def _give_up(self, place: tuple[str, int], records: Sequence[_Pending]) -> None:
        if records:
            topic, partition = place
            error = DeliveryError("publishing was cancelled", topic=topic, partition=partition, retriable=True)
            self._settle(place, tuple(records), [error] * len(records))

    def _settle(
        self, place: tuple[str, int], batch: Sequence[_Pending], outcomes: Sequence[int | DeliveryError]
    ) -> None:
        topic, partition = place
        failed = 0
        size_bytes = 0
        for (_, event_id, settled, token, _, size), outcome in zip(batch, outcomes, strict=True):
            size_bytes += size
            if isinstance(outcome, DeliveryError):
                failed += 1
                settled(token, outcome)
            else:
                settled(token, _new(Receipt, (event_id, topic, partition, outcome)))
        self.stats.published += len(batch) - failed
        self.stats.failed += failed
        added_by_s = self.loop.time() + self._timeout_s  # a deadline is the time of the call and the time-out
        self.stats.took(added_by_s - batch[0][4], added_by_s - batch[-1][4], len(batch))
        self._buffered_records -= len(batch)
        self._buffered_bytes -= size_bytes
        self._flying[place] = 0
        decided = self._decided[place] = self._decided.get(place, 0) + len(batch)
        markers = self._markers.get(place)
        while markers and markers[0][0] <= decided:
            self._wake(markers.popleft()[1])
        self._let_in()
        if not self._buffered_records:
            while self._idle:
                self._wake(self._idle.popleft())

    def _let_in(self) -> None:
        while self._room and not self.full:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break  # one at a time: the one woken adds its record before the next is looked at
        if self._room and not self.full:
            self.loop.call_soon(self._let_in)

    @staticmethod
    def _wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)
