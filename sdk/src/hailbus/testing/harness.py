"""Feed and watch services on the memory bus: given, settle, published, redeliver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from hailbus._transport import Received, TopicPartition
from hailbus.catalogue import Catalogue
from hailbus.codec import decode, encode, envelope_for, legible_attributes
from hailbus.context import Context, Delivery
from hailbus.dead_letter import PREFIX, dead_letter_topic, origin
from hailbus.envelope import Headers
from hailbus.errors import ContractError
from hailbus.event import Event, Topic, event_info
from hailbus.plain import adopted_by
from hailbus.testing.memory import MemoryBus
from hailbus.testing.virtual import VirtualLoop

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["Found", "FoundDeadLetter", "FoundDeadLetters", "Harness", "harness"]

E = TypeVar("E", bound=Event)

REAL_LIMIT_S = 10.0
VIRTUAL_LIMIT_S = 3600.0
NAMED_LETTERS = 5


class Found(Sequence[Delivery[E]], Generic[E]):
    """Published events of one class, oldest first per partition."""

    def __init__(self, kind: type[E], deliveries: Sequence[Delivery[E]], *, hint: str = "") -> None:
        self._kind = kind
        self._deliveries = deliveries
        self._hint = hint

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery[E]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[E]]: ...
    def __getitem__(self, index: int | slice) -> Delivery[E] | Sequence[Delivery[E]]:
        return self._deliveries[index]

    def __repr__(self) -> str:
        return f"<{len(self)} published {self._kind.__name__}: {self.events!r}>"

    @property
    def events(self) -> list[E]:
        """The events alone."""
        return [delivery.event for delivery in self._deliveries]

    def one(self) -> E:
        """Return the only event; AssertionError when there are more or none."""
        count = len(self._deliveries)
        assert count == 1, f"{count} {self._kind.__name__} were published, not one{self._hint}"
        return self._deliveries[0].event

    def none(self) -> None:
        """Raise AssertionError when there is any."""
        assert not self._deliveries, f"{len(self._deliveries)} {self._kind.__name__} were published, not none"


class FoundDeadLetter(Generic[E]):
    """A dead letter: the record, and what its headers say of the failure.

    Attributes:
        record: The record in the dead letter topic; key, value and headers include the original ones.
        group: The consumer group that gave up.
        topic, partition, offset: Where the original record is.
        error: Qualified name of the exception's class, without `builtins.`; None when a handler parked the event.
        reason: The exception's text, or the reason that the handler gave.
        attempts: How often the handler was called; 0 when the record could not be decoded.
        by: Who gave up: the handler's name, `decoder` or `inbox`.
        stacktrace: The end of the exception's stack trace; empty without an exception.
    """

    def __init__(
        self,
        record: Received,
        catalogue: Catalogue,
        translated: Callable[[Received, Catalogue], Received] = lambda record, _: record,
    ) -> None:
        self.record = record
        self._translated = translated
        self._catalogue = catalogue
        said = {name: value.decode("utf-8", "replace") for name, value in record.headers if value is not None}
        self.topic, self.partition, self.offset, _ = origin(record)
        self.group = said.get(PREFIX + "original-consumer-group", "")
        error = said.get(PREFIX + "exception-fqcn")
        self.error = error.removeprefix("builtins.") if error is not None else None
        self.reason = said.get(PREFIX + "exception-message", "")
        self.stacktrace = said.get(PREFIX + "exception-stacktrace", "")
        self.attempts = int(_either(said, "attempt") or 0)
        self.by = said.get("hailbus-failed-by", said.get("sdk-parked-by", ""))
        shown: Received = adopted_by(record, catalogue)
        self.type = legible_attributes(shown.headers, record.value).get("type", "")
        """The event's type, as far as the record says so."""

    @property
    def event(self) -> E:
        """The event, in its newest version.

        Raises:
            ContractError: It cannot be decoded, which is then why it is a dead letter.
        """
        read = self._translated(self.record, self._catalogue)
        event: E = decode(read, self._catalogue)[0]  # type: ignore[assignment]  # chosen by its type
        return event

    @property
    def key(self) -> bytes | None:
        """The record key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The raw value."""
        return self.record.value

    @property
    def headers(self) -> Headers:
        """All headers: the original ones, then those of the failure."""
        return list(self.record.headers)

    def __repr__(self) -> str:
        what = f"{self.error}: {self.reason}" if self.error is not None else self.reason
        attempts = f", {self.attempts} attempt{'s' if self.attempts != 1 else ''}"
        return (
            f"<dead letter {self.type or 'without type'} {self.topic}-{self.partition}@{self.offset}{attempts}: {what}>"
        )


def _either(said: dict[str, str], name: str) -> str | None:
    return said.get(f"hailbus-{name}", said.get(f"sdk-{name}"))


class FoundDeadLetters(Sequence[FoundDeadLetter[E]], Generic[E]):
    """Dead letters, oldest first per partition."""

    def __init__(self, letters: Sequence[FoundDeadLetter[E]], what: str) -> None:
        self._letters = letters
        self._what = what

    def __len__(self) -> int:
        return len(self._letters)

    @overload
    def __getitem__(self, index: int) -> FoundDeadLetter[E]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FoundDeadLetter[E]]: ...
    def __getitem__(self, index: int | slice) -> FoundDeadLetter[E] | Sequence[FoundDeadLetter[E]]:
        return self._letters[index]

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._letters))}]"

    @property
    def events(self) -> list[E]:
        """The events alone. Raises `ContractError` when one of them cannot be decoded."""
        return [letter.event for letter in self._letters]

    def one(self) -> FoundDeadLetter[E]:
        """Return the only dead letter; AssertionError when there are more or none."""
        assert len(self._letters) == 1, f"{len(self._letters)} dead letters of {self._what}, not one: {self!r}"
        return self._letters[0]

    def none(self) -> None:
        """Raise AssertionError when there is any."""
        assert not self._letters, f"{len(self._letters)} dead letters of {self._what}, not none: {self!r}"


class Harness:
    """Services under test on a memory bus.

    On leaving, it raises AssertionError for dead letters that the test has neither looked at (`dead_letters`) nor
    announced (`expect_dead_letters`).
    """

    def __init__(self, bus: MemoryBus, services: Sequence[Service]) -> None:
        self.bus = bus
        self.services = tuple(services)
        self._before: dict[TopicPartition, int] = {tp: len(log) for tp, log in bus.logs.items()}
        self._given: list[tuple[str, int, int]] = []
        self._given_places: set[tuple[str, int, int]] = set()
        self._seen_letters: set[tuple[str, int, int]] = set()
        self._expects_letters = False

    async def given(
        self,
        *events: Event,
        id: str | None = None,
        time: datetime | None = None,
        source: str = "/test",
    ) -> list[Received]:
        """Put events on the bus, as another service would have published them; returns their records."""
        records: list[Received] = []
        for event in events:
            topic = event_info(event).topic
            self.bus.create(topic)
            key, value, headers = encode(
                event, envelope_for(event, source=source, id=id, time=time if time is not None else self.bus.clock())
            )
            partition = self.bus.partitioner(topic.name, key, topic.partitions)
            records.append(self._append(topic.name, partition, key, value, headers))
        return records

    async def given_record(
        self,
        topic: Topic | str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
    ) -> Received:
        """Put one raw record on the bus, as a producer that is not hailbus would have written it; returns it."""
        if isinstance(topic, Topic):
            self.bus.create(topic)
        name = topic if isinstance(topic, str) else topic.name
        chosen = partition
        if chosen is None:
            chosen = self.bus.partitioner(name, key, self.bus.partition_count(name))
        return self._append(name, chosen, key, value, list(headers))

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> Received:
        (offset,) = self.bus.append(topic, partition, [(key, value, headers)])
        self._given.append((topic, partition, offset))
        self._given_places.add((topic, partition, offset))
        return self.bus.logs[TopicPartition(topic, partition)][offset]

    async def redeliver_last(self) -> None:
        """Append the record that was given last once more: same id, same bytes, a new offset.

        Raises:
            AssertionError: Nothing was given yet.
        """
        assert self._given, "redeliver_last() needs a record to deliver again: call given(event) before it"
        topic, partition, offset = self._given[-1]
        record = self.bus.logs[TopicPartition(topic, partition)][offset]
        self._append(topic, partition, record.key, record.value, list(record.headers))

    # -------------------------------------------------------------------------------------------- settle

    async def settle(self, *, timeout_s: float | None = None) -> None:
        """Wait until every service has handled and committed all there is, follow-up events included.

        Commits are made at once, without waiting for `commit_interval`. In virtual time, as in a test that uses the
        fixture `bus`, retry delays and other timers pass at once as well.

        Args:
            timeout_s: How long to wait; an hour of virtual time, or ten seconds of real time, unless given.

        Raises:
            AssertionError: The services did not come to rest in time, or a group reads no more.
        """
        loop = asyncio.get_running_loop()
        virtual = loop if isinstance(loop, VirtualLoop) else None
        limit_s = timeout_s if timeout_s is not None else VIRTUAL_LIMIT_S if virtual is not None else REAL_LIMIT_S
        try:
            async with asyncio.timeout(limit_s):
                await (self._settle_virtual(virtual) if virtual is not None else self._settle_real())
        except TimeoutError as error:
            kind = "virtual time" if virtual is not None else "real time"
            message = f"the services did not come to rest within {limit_s:g} s of {kind}: {self._state()}"
            raise AssertionError(message) from error

    async def _settle_virtual(self, loop: VirtualLoop) -> None:
        while True:
            await loop.until_idle()
            await self._hurry()
            await loop.until_idle()
            if not await self._is_busy():
                return
            await loop.until_jump()

    async def _settle_real(self) -> None:
        quiet = 0
        pause_s = 0.0005
        while quiet < 3:
            await self._hurry()
            busy = await self._is_busy()
            quiet = 0 if busy else quiet + 1
            pause_s = min(pause_s * 1.5, 0.1) if busy else 0.0005
            await asyncio.sleep(pause_s)

    async def _hurry(self) -> None:
        """Do now what would be done at the next interval."""
        for service in self.services:
            if service.is_running:
                await service.flush()
            for outbox in service.outboxes:
                outbox.wake()
            for subscriber in service.subscribers:
                await subscriber.commit()

    async def _is_busy(self) -> bool:
        subscribers = [subscriber for service in self.services for subscriber in service.subscribers]
        lagging = [subscriber for subscriber in subscribers if self.bus.lag(subscriber.group)]
        failed = [subscriber for subscriber in lagging if subscriber.failure is not None]
        assert not failed, f"the services cannot come to rest: {self._state()}"
        if lagging or any(subscriber.unsettled_count for subscriber in subscribers):
            return True
        return any([await outbox.due_count() for service in self.services for outbox in service.outboxes])

    def _state(self) -> str:
        groups = {subscriber.group for service in self.services for subscriber in service.subscribers}
        lags = {group: self.bus.lag(group) for group in sorted(groups)}
        reasons = [reason for service in self.services for reason in service.unhealthy_reasons]
        return "; ".join([f"lag {lags}", *reasons])

    # -------------------------------------------------------------------------------------------- looking

    def published(self, kind: type[E]) -> Found[E]:
        """Events of a class that were published since the harness began, other than those given."""
        info = event_info(kind)
        catalogue = Catalogue.of(kind)
        found: list[Delivery[E]] = []
        for record in self.bus.records(info.topic):
            place = (record.topic, record.partition, record.offset)
            if place in self._given_places or record.offset < self._before.get(TopicPartition(*place[:2]), 0):
                continue
            try:
                read = self._translated(record, catalogue)
                event, _ = decode(read, catalogue)
            except ContractError:
                continue
            if isinstance(event, kind):
                found.append(Delivery(event, Context(adopted_by(read, catalogue))))
        letters = self._letters()
        return Found(kind, found, hint=f"; dead letters: {_listed(letters)}" if letters else "")

    @overload
    def dead_letters(self, of: type[E], *, group: str | None = None) -> FoundDeadLetters[E]: ...
    @overload
    def dead_letters(self, of: Topic | str | None = None, *, group: str | None = None) -> FoundDeadLetters[Event]: ...
    def dead_letters(
        self, of: type[Event] | Topic | str | None = None, *, group: str | None = None
    ) -> FoundDeadLetters[Any]:
        """Return the dead letters of the services under test: of an event class, of a topic, or all.

        The test has then looked at them, so they do not fail it when the harness is left.

        Args:
            of: An event class, or the topic that the records came from.
            group: Only those of one consumer group.
        """
        catalogue: Catalogue | None = None
        kind: str | None = None
        topic: str | None
        if isinstance(of, type):
            info = event_info(of)
            kind, topic, catalogue, what = info.type, info.topic.name, Catalogue.of(of), of.__name__
        else:
            topic = of.name if isinstance(of, Topic) else of
            what = topic if topic is not None else "these services"
        found: list[FoundDeadLetter[Event]] = [
            letter
            for letter in self._letters(catalogue)
            if (topic is None or letter.topic == topic)
            and (kind is None or letter.type == kind)
            and (group is None or letter.group == group)
        ]
        self._seen_letters.update(_place(letter.record) for letter in found)
        return FoundDeadLetters(found, what)

    def expect_dead_letters(self) -> None:
        """Say that dead letters belong to this test: it does not fail for those that it does not look at."""
        self._expects_letters = True

    def check_dead_letters(self) -> None:
        """Raise AssertionError for dead letters that the test neither looked at nor announced."""
        if self._expects_letters:
            return
        left = [letter for letter in self._letters() if _place(letter.record) not in self._seen_letters]
        assert not left, (
            f"unexpected dead letters: {_listed(left)}. Look at them with t.dead_letters(...), or call "
            "t.expect_dead_letters() when they belong to this test"
        )

    def _translated(self, record: Received, catalogue: Catalogue) -> Received:
        """The record with a JSON value, where a service under test has written it in another format."""
        for service in self.services:
            if service.schemas is not None:
                record = service.schemas.translated_now(record, catalogue)
        return record

    def _letters(self, catalogue: Catalogue | None = None) -> list[FoundDeadLetter[Event]]:
        """The dead letters of these services' groups since the harness began."""
        topics = {
            dead_letter_topic(event_info(cls).topic, subscription.group): service
            for service in self.services
            for subscription in service.subscriptions
            for cls in subscription.events
        }
        return [
            FoundDeadLetter(record, catalogue if catalogue is not None else service.catalogue, self._translated)
            for topic, service in sorted(topics.items(), key=lambda item: item[0])
            for record in self.bus.records(topic)
            if record.offset >= self._before.get(TopicPartition(record.topic, record.partition), 0)
        ]

    def committed(self, topic: Topic | str, group: str | None = None) -> dict[TopicPartition, int]:
        """Committed offsets of a topic, 0 where there are none; of the first service's group unless one is named."""
        name = topic if isinstance(topic, str) else topic.name
        chosen = group if group is not None else self.services[0].name
        committed = self.bus.committed(chosen)
        return {tp: committed.get(tp, 0) for tp in self.bus.end(name)}

    def end(self, topic: Topic | str) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition gets."""
        return self.bus.end(topic)


def _place(record: Received) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _listed(letters: Sequence[FoundDeadLetter[Event]]) -> str:
    more = f" and {len(letters) - NAMED_LETTERS} more" if len(letters) > NAMED_LETTERS else ""
    return ", ".join(repr(letter) for letter in letters[:NAMED_LETTERS]) + more


@asynccontextmanager
async def harness(bus: MemoryBus, services: Sequence[Service]) -> AsyncIterator[Harness]:
    """Run services on a bus; see `MemoryBus.run`."""
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.running(bus))
        running = Harness(bus, services)
        yield running
    running.check_dead_letters()
