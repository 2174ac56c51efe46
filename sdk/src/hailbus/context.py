"""What a handler is told about an event besides the event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from hailbus._transport import Received
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

    def __init__(self, record: Received, *, attempt: int = 1, group: str | None = None) -> None:
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
        return list(self.record.headers)

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
        return [item.event for item in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Delivery[E_co]]:
        return iter(self.items)
