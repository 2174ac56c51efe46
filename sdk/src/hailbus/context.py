"""What a handler gets besides the event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from hailbus._transport import Received
from hailbus.adopted import original_of
from hailbus.codec import read_envelope
from hailbus.envelope import Envelope, Headers
from hailbus.event import Event

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["Batch", "Context", "Delivery"]

E_co = TypeVar("E_co", bound=Event, covariant=True)


class Context:
    """The record that an event came in.

    Attributes:
        attempt: 1 for the first call of the handler with this record by this process.
        group: The consumer group, None when reading without one.
        tx: The open database transaction under `EffectivelyOnce`, else None.
    """

    __slots__ = ("_envelope", "attempt", "group", "record", "tx")

    def __init__(self, record: Received, attempt: int = 1, group: str | None = None) -> None:
        self.record = record
        self.attempt = attempt
        self.group = group
        self.tx: AsyncConnection | None = None
        self._envelope: Envelope | None = None

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
    """Deliveries of events and their records; each is made when it is looked at, as many handlers want events only."""

    __slots__ = ("_group", "attempts", "events", "records")

    def __init__(
        self, events: Sequence[E_co], records: Sequence[Received], attempts: Sequence[int], *, group: str
    ) -> None:
        self.events = events
        self.records = records
        self.attempts = attempts
        self._group = group

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, index: int) -> Delivery[E_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery[E_co]]: ...
    def __getitem__(self, index: int | slice) -> Delivery[E_co] | Sequence[Delivery[E_co]]:
        if isinstance(index, slice):
            return Deliveries(self.events[index], self.records[index], self.attempts[index], group=self._group)
        ctx = Context(self.records[index], attempt=self.attempts[index], group=self._group)
        return Delivery(self.events[index], ctx)


class Batch(Generic[E_co]):
    """Several events, in the order in which they were read per partition.

    Attributes:
        items: The deliveries.
        tx: The open database transaction under `EffectivelyOnce`, else None.
    """

    __slots__ = ("items", "tx")

    def __init__(self, items: Sequence[Delivery[E_co]], *, tx: AsyncConnection | None = None) -> None:
        self.items = items
        self.tx = tx

    @property
    def events(self) -> list[E_co]:
        """The events alone."""
        items = self.items
        return list(items.events) if isinstance(items, Deliveries) else [item.event for item in items]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Delivery[E_co]]:
        return iter(self.items)
