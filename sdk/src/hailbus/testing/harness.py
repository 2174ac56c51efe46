"""Feed and watch services on the memory bus: given, settle, published, redeliver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from hailbus._transport import Received, TopicPartition
from hailbus.codec import decode, encode, envelope_for
from hailbus.context import Context, Delivery
from hailbus.dead_letter import dead_letter_topic
from hailbus.errors import ContractError
from hailbus.event import Event, Topic, event_info
from hailbus.testing.memory import MemoryBus

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["Found", "Harness", "harness"]

E = TypeVar("E", bound=Event)


class Found(Sequence[Delivery[E]], Generic[E]):
    """Published events of one class, oldest first per partition."""

    def __init__(self, kind: type[E], deliveries: Sequence[Delivery[E]]) -> None:
        self._kind = kind
        self._deliveries = deliveries

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery[E]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[E]]: ...
    def __getitem__(self, index: int | slice) -> Delivery[E] | Sequence[Delivery[E]]:
        return self._deliveries[index]

    @property
    def events(self) -> list[E]:
        """The events alone."""
        return [delivery.event for delivery in self._deliveries]

    def one(self) -> E:
        """The only event; AssertionError when there are more or none."""
        assert len(self._deliveries) == 1, f"{len(self._deliveries)} {self._kind.__name__} were published, not one"
        return self._deliveries[0].event

    def none(self) -> None:
        """AssertionError when there is any."""
        assert not self._deliveries, f"{len(self._deliveries)} {self._kind.__name__} were published, not none"


class Harness:
    """Services under test on a memory bus."""

    def __init__(self, bus: MemoryBus, services: Sequence[Service]) -> None:
        self.bus = bus
        self.services = tuple(services)
        self._given: list[tuple[str, int]] = []
        self._before: dict[TopicPartition, int] = {tp: len(log) for tp, log in bus.logs.items()}
        self._given_places: set[tuple[str, int, int]] = set()

    async def given(
        self,
        *events: Event,
        id: str | None = None,  # noqa: A002 CloudEvents' own word
        time: datetime | None = None,
        source: str = "/test",
    ) -> list[Received]:
        """Put events on the bus, as another service would have published them."""
        records: list[Received] = []
        for event in events:
            topic = event_info(event).topic
            self.bus.create(topic)
            key, value, headers = encode(
                event, envelope_for(event, source=source, id=id, time=time if time is not None else self.bus.clock())
            )
            partition = self.bus.partitioner(topic.name, key, topic.partitions)
            (offset,) = self.bus.append(topic.name, partition, [(key, value, headers)])
            self._given_places.add((topic.name, partition, offset))
            records.append(self.bus.logs[TopicPartition(topic.name, partition)][offset])
        return records

    async def redeliver_last(self) -> None:
        """Append the last given record once more: same id, same bytes, a new offset."""
        topic, partition, offset = max(
            self._given_places, key=lambda place: (self.bus.logs[TopicPartition(*place[:2])][place[2]].timestamp, place)
        )
        record = self.bus.logs[TopicPartition(topic, partition)][offset]
        (again,) = self.bus.append(topic, partition, [(record.key, record.value, record.headers)])
        self._given_places.add((topic, partition, again))

    async def settle(self, *, timeout_s: float = 10.0) -> None:
        """Wait until every service has settled and committed all there is, follow-up events included.

        Raises:
            AssertionError: It did not come to rest in time.
        """
        groups = [(service, subscriber.group) for service in self.services for subscriber in service.subscribers]
        try:
            async with asyncio.timeout(timeout_s):
                quiet = 0
                pause_s = 0.002
                while quiet < 3:
                    for service in self.services:
                        if service.is_running:
                            await service.flush()
                    waiting = await self._waiting()
                    busy = waiting or any(self.bus.lag(group) for _, group in groups)
                    quiet = 0 if busy else quiet + 1
                    pause_s = min(pause_s * 1.5, 0.5) if busy else 0.005
                    await asyncio.sleep(pause_s)
        except TimeoutError as error:
            lags = {group: self.bus.lag(group) for _, group in groups}
            reasons = [reason for service in self.services for reason in service.unhealthy_reasons]
            message = f"the services did not come to rest within {timeout_s:g} s: lag {lags} {'; '.join(reasons)}"
            raise AssertionError(message) from error

    async def _waiting(self) -> bool:
        return any([await outbox.due_count() for service in self.services for outbox in service.outboxes])

    def published(self, kind: type[E]) -> Found[E]:
        """Events of a class that were published since the harness began, other than those given."""
        from hailbus.catalogue import Catalogue

        info = event_info(kind)
        catalogue = Catalogue.of(kind)
        found: list[Delivery[E]] = []
        for record in self.bus.records(info.topic):
            place = (record.topic, record.partition, record.offset)
            if place in self._given_places or record.offset < self._before.get(TopicPartition(*place[:2]), 0):
                continue
            try:
                event, _ = decode(record, catalogue)
            except ContractError:
                continue
            assert isinstance(event, kind)
            found.append(Delivery(event, Context(record)))
        return Found(kind, found)

    def dead_letters(self, topic: Topic | str, group: str) -> list[Received]:
        """Dead letters of a group from a topic."""
        return list(self.bus.records(dead_letter_topic(topic, group)))

    def committed(self, topic: Topic | str, group: str | None = None) -> dict[TopicPartition, int]:
        """Committed offsets of a topic, 0 where there are none; of the first service's group unless one is named."""
        name = topic if isinstance(topic, str) else topic.name
        chosen = group if group is not None else self.services[0].name
        committed = self.bus.committed(chosen)
        return {tp: committed.get(tp, 0) for tp in self.bus.end(name)}

    def end(self, topic: Topic | str) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition gets."""
        return self.bus.end(topic)


@asynccontextmanager
async def harness(bus: MemoryBus, services: Sequence[Service]) -> AsyncIterator[Harness]:
    """Run services on a bus; see `MemoryBus.run`."""
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.running(bus))
        yield Harness(bus, services)
