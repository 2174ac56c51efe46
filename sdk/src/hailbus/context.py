"""What a handler gets besides the event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from hailbus._transport import Received
from hailbus.adopted import original_of
from hailbus.codec import read_envelope
from hailbus.envelope import Envelope, Headers
from hailbus.errors import ConfigurationError
from hailbus.event import Event

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

__all__ = ["Batch", "Claim", "Context", "Delivery"]

E_co = TypeVar("E_co", bound=Event, covariant=True)


class Context:
    """The record that an event came in.

    Args:
        record: As it was read.
        attempt: Which call of the handler it is for.
        group: Consumer group.
        envelope: Of the record; it is read when somebody asks for it, unless it is given.

    Attributes:
        attempt: 1 for the first call of the handler with this record by this process.
        group: The consumer group, None when reading without one.
        tx: The open database transaction under `EffectivelyOnce`, else None.
    """

    __slots__ = ("_envelope", "attempt", "group", "record", "tx")

    def __init__(
        self, record: Received, attempt: int = 1, group: str | None = None, *, envelope: Envelope | None = None
    ) -> None:
        self.record = record
        self.attempt = attempt
        self.group = group
        self.tx: AsyncConnection | None = None
        self._envelope = envelope

    @property
    def envelope(self) -> Envelope:
        """The CloudEvents attributes."""
        if self._envelope is None:  # most handlers never look: read on demand
            self._envelope = read_envelope(self.record)
        return self._envelope

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition that it was read from."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """Its offset in that partition."""
        return self.record.offset

    @property
    def timestamp(self) -> datetime:
        """The record timestamp, UTC: when it was published. Event time is `envelope.time`."""
        return datetime.fromtimestamp(self.record.timestamp / 1000, UTC)

    @property
    def key(self) -> bytes | None:
        """The raw record key."""
        return self.record.key

    @property
    def headers(self) -> Headers:
        """All record headers, raw, in order; names may repeat."""
        return list(original_of(self.record).headers)

    def __repr__(self) -> str:
        return f"<Context {self.topic}-{self.partition}@{self.offset} attempt {self.attempt}>"


class Delivery(Generic[E_co]):
    """One event with its context."""

    __slots__ = ("ctx", "event")

    def __init__(self, event: E_co, ctx: Context) -> None:
        self.event = event
        self.ctx = ctx

    def __repr__(self) -> str:
        return f"<Delivery {self.event!r} {self.ctx!r}>"


class Deliveries(Sequence[Delivery[E_co]], Generic[E_co]):
    """Deliveries of events and their records; each is made when it is looked at, as many handlers want events only.

    Args:
        events: The events.
        records: That they came in.
        attempts: Which call of the handler it is for each.
        group: Consumer group.
        contexts: Of the records, where somebody has made them and read their envelopes already.
    """

    __slots__ = ("_contexts", "_group", "attempts", "events", "records")

    def __init__(
        self,
        events: Sequence[E_co],
        records: Sequence[Received],
        attempts: Sequence[int],
        *,
        group: str,
        contexts: Sequence[Context] | None = None,
    ) -> None:
        self.events = events
        self.records = records
        self.attempts = attempts
        self._group = group
        self._contexts = contexts

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, index: int) -> Delivery[E_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[E_co]]: ...
    def __getitem__(self, index: int | slice) -> Delivery[E_co] | Sequence[Delivery[E_co]]:
        contexts = self._contexts
        if isinstance(index, slice):
            return Deliveries(
                self.events[index],
                self.records[index],
                self.attempts[index],
                group=self._group,
                contexts=None if contexts is None else contexts[index],
            )
        if contexts is not None:
            return Delivery(self.events[index], contexts[index])
        return Delivery(
            self.events[index], Context(self.records[index], attempt=self.attempts[index], group=self._group)
        )

    def __iter__(self) -> Iterator[Delivery[E_co]]:
        if self._contexts is not None:
            return map(Delivery, self.events, self._contexts)
        return super().__iter__()


class Claim(Protocol):
    """Which events of a batch a handler applies in a transaction of its own; `Batch.claim` makes it.

    ::

        async with engine.begin() as tx:
            claim = await batch.claim(tx)
            for item in batch:
                if item in claim:
                    ...                                   # apply it, or claim.refuse(item, "there is no such ride")
            await claim.store()
    """

    def __contains__(self, delivery: Delivery[Any], /) -> bool:
        """Whether the event is applied now: it is new, its number is due, and nothing before it was refused."""
        ...

    def refuse(self, delivery: Delivery[Any], reason: str) -> None:
        """Do not apply an event: it becomes a dead letter, or its key is parked, as the delivery's `then` says.

        Later events of its key in a numbered topic are no longer in the claim, so refuse in the order of the batch.
        """
        ...

    async def store(self) -> None:
        """Write which events are applied; the last thing before the transaction is committed."""
        ...


Claimer = Callable[["AsyncConnection | AsyncSession", Callable[[Context], bool] | None], Awaitable[Claim]]


class Batch(Generic[E_co]):
    """Several events, in the order in which they were read per partition.

    Attributes:
        items: The deliveries. With `own_transaction=True` there may be none, when only the numbers of events without a
            handler are to be claimed.
        tx: The open database transaction under `EffectivelyOnce`, else None.
    """

    __slots__ = ("_claiming", "items", "tx")

    def __init__(
        self,
        items: Sequence[Delivery[E_co]],
        *,
        tx: AsyncConnection | None = None,
        claiming: Claimer | None = None,
    ) -> None:
        self.items = items
        self.tx = tx
        self._claiming = claiming

    async def claim(self, tx: AsyncConnection | AsyncSession, *, of: Callable[[Context], bool] | None = None) -> Claim:
        """Claim the events in the handler's own transaction, under `EffectivelyOnce(own_transaction=True)`.

        When that transaction is rolled back, claim again in the next one: the last claim that was stored counts.

        Args:
            tx: In the database of the inbox.
            of: Which events are for this process; the others are skipped. All of them unless given.

        Raises:
            ConfigurationError: hailbus has claimed the events already, or the delivery has no inbox.
        """
        if self._claiming is None:
            message = (
                "batch.claim(tx) is for EffectivelyOnce(own_transaction=True); elsewhere there is nothing to claim"
            )
            raise ConfigurationError(message)
        return await self._claiming(tx, of)

    @property
    def events(self) -> list[E_co]:
        """The events alone."""
        items = self.items
        return list(items.events) if isinstance(items, Deliveries) else [item.event for item in items]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Delivery[E_co]]:
        return iter(self.items)
