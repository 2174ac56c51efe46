"""Reading: one consumer, replaced when it breaks, with partitions paused for any number of reasons."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from hailbus._consuming.failure import reason_of
from hailbus._transport import (
    Bus,
    Consumer,
    RebalanceListener,
    Received,
    Start,
    TopicPartition,
    TransportBrokenError,
)
from hailbus.subscription import SubscriberStats

__all__ = ["Reader", "Reading"]

log = logging.getLogger("hailbus.subscriber")
POLL_TIMEOUT_S = 0.25
RECONNECT_FIRST_S = 0.2
RECONNECT_MAX_S = 5.0
SEEK_PAUSE_S = 0.02


class Reading(Protocol):
    """Who takes what a reader reads."""

    async def room(self) -> int:
        """Wait until records may be read; how many."""
        ...

    async def take(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> None:
        """Take records, and let other tasks run; when this raises, the reader begins again from what is committed."""
        ...

    async def let_go(self) -> None:
        """The consumer is of no more use: finish or cancel what runs, and forget all partitions."""
        ...


class Reader:
    """Keeps one consumer of a group reading."""

    def __init__(
        self,
        group: str,
        start: Start,
        *,
        bus: Bus,
        client_id: str,
        stats: SubscriberStats,
        reading: Reading,
        listener: RebalanceListener,
    ) -> None:
        self._group = group
        self._topics: tuple[str, ...] = ()
        self._start = start
        self._bus = bus
        self._client_id = client_id
        self._stats = stats
        self._reading = reading
        self._listener = listener
        self.consumer: Consumer | None = None
        """None while no consumer can commit."""
        self.joining: Consumer | None = None
        """The consumer that reports assignments, also before its start has returned."""
        self._pauses: dict[TopicPartition, set[str]] = {}
        self._lost_s: float | None = None
        self._failure = ""
        self._is_restart = False

    async def connect(self, topics: Sequence[str]) -> None:
        """Join the group."""
        self._topics = tuple(topics)
        consumer = self._bus.consumer(
            client_id=self._client_id,
            group=self._group,
            topics=self._topics,
            start=self._start,
            listener=self._listener,
        )
        self.joining = consumer
        await consumer.start()
        self.consumer = consumer
        self._lost_s, self._failure = None, ""

    async def stop(self) -> None:
        """Leave the group."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.stop()

    async def run(self) -> None:
        """Read until cancelled. Begins with a new consumer when an earlier run has failed."""
        if self._is_restart:
            # What was polled and not taken lies behind the consumer's position: only a new one reads it again.
            await self._reconnect()
        self._is_restart = True
        delay_s = RECONNECT_FIRST_S
        while True:
            most = await self._reading.room()
            assert self.consumer is not None
            try:
                polled = await self.consumer.poll(timeout_s=POLL_TIMEOUT_S, max_records=most)
            except TransportBrokenError as error:
                log.warning("consumer_replaced: group %s: %s", self._group, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RECONNECT_MAX_S)
                await self._reconnect()
                continue
            if polled:
                delay_s = RECONNECT_FIRST_S
                await self._reading.take(polled)

    async def _reconnect(self) -> None:
        self._stats.reconnects += 1
        self._lost_s = asyncio.get_running_loop().time()
        await self._reading.let_go()
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            with contextlib.suppress(Exception):  # it is given up because it does not work
                await consumer.stop()
        delay_s = RECONNECT_FIRST_S
        is_reported = False
        while True:
            try:
                await self.connect(self._topics)
            except Exception as error:  # noqa: BLE001 whatever it is, there is nothing else to do than to try again
                self._failure = reason_of(error)
                if not is_reported:
                    log.warning("reconnect_failed: group %s tries again: %s", self._group, self._failure)
                    is_reported = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RECONNECT_MAX_S)
            else:
                if is_reported:
                    log.info("reconnected: group %s", self._group)
                return

    # -------------------------------------------------------------------------------------------- pausing

    def pause(self, partition: TopicPartition, why: str) -> None:
        """Read no more of a partition until every reason is gone."""
        reasons = self._pauses.setdefault(partition, set())
        if not reasons and self.consumer is not None:
            self.consumer.pause(partition)
        reasons.add(why)

    def resume(self, partition: TopicPartition, why: str) -> None:
        """One reason to pause is gone."""
        reasons = self._pauses.get(partition)
        if reasons is None:
            return
        reasons.discard(why)
        if not reasons:
            del self._pauses[partition]
            if self.consumer is not None:
                self.consumer.resume(partition)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is gone, and with it all reasons."""
        self._pauses.pop(partition, None)
        if self.consumer is not None:
            self.consumer.resume(partition)

    async def seek_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read records again that cannot be taken yet."""
        consumer = self.consumer
        if consumer is None:
            return
        held = consumer.assignment()
        await consumer.seek({partition: offset for partition, offset in offsets.items() if partition in held})
        await asyncio.sleep(SEEK_PAUSE_S)

    # -------------------------------------------------------------------------------------------- health

    def reasons(self, *, after_s: float) -> list[str]:
        """Why this member is unhealthy: a broker that has not been reached for longer than `after_s`."""
        consumer = self.consumer
        since_s = self._lost_s if consumer is None else consumer.unreachable_since_s
        if since_s is None:
            return []
        silent_s = asyncio.get_running_loop().time() - since_s
        if silent_s < after_s:
            return []
        why = f": {self._failure}" if self._failure else ""
        return [f"group {self._group} has not reached the broker at {self._bus.address} for {silent_s:.0f} s{why}"]
