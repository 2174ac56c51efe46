"""Records between reading and settling: chunks of a read, single items, parts of batches, and their routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hailbus._transport import Received, TopicPartition
from hailbus.delivery import EffectivelyOnce
from hailbus.event import Event
from hailbus.settlement import Names, SettledPrefix
from hailbus.subscription import Subscription
from hailbus.upcasting import newest

if TYPE_CHECKING:
    from hailbus._consuming.sequenced import Numbering

__all__ = ["BatchSink", "Chunk", "Early", "Ending", "Item", "Outcome", "Part", "ReleaseMark", "Route", "Usual"]


class Ending(Enum):
    """How a record ended; the value is the name of its counter in `SubscriberStats`."""

    SETTLED = "settled"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    DEAD_LETTERED = "dead_lettered"
    PARKED = "parked"
    RETRIED_LATER = "retried_later"


Outcome = Ending | float
"""What became of a record: how it ended, or the seconds after which it must be tried again."""


@dataclass(frozen=True, slots=True)
class Early:
    """A verdict of ours: an event before this one has not been applied, so this one is parked."""

    reason: str


class Chunk:
    """Records of one read of one partition that no handler has seen, newest first: the next one is popped."""

    __slots__ = ("names", "partition", "prefix", "records")

    def __init__(
        self, partition: TopicPartition, prefix: SettledPrefix, names: Names[Item], records: list[Received]
    ) -> None:
        self.partition = partition
        self.prefix = prefix
        self.names = names
        self.records = records


class Usual(NamedTuple):
    """The headers by which the last record's route was found: the next record mostly has the same."""

    kind: tuple[str, bytes] | None
    schema: tuple[str, bytes] | None
    route: Route


class Item:
    """A record between reading and settling, where it must wait or be retried."""

    __slots__ = (
        "attempt",
        "before",
        "defects",
        "is_release",
        "number",
        "partition",
        "prefix",
        "record",
        "route",
        "was_resolved",
    )

    def __init__(self, partition: TopicPartition, prefix: SettledPrefix, record: Received, route: Route) -> None:
        self.partition = partition
        self.record = record
        self.prefix = prefix
        self.route = route
        self.attempt = 0
        self.before = 0
        """Attempts before the record came to a retry topic."""
        self.number: int | None = None
        """That of its event in a numbered topic, once it is known."""
        self.defects = 0
        """How often a defect of hailbus was met while it was handled."""
        self.was_resolved = False
        """Its type was not among its headers: it is in structured mode, or named by its schema."""
        self.is_release = False
        """No record: from here on the parked records of this lane's key are handled."""


class BatchSink(Protocol):
    """Takes the records of a batch subscription."""

    def push(self, part: Part) -> None:
        """Queue records behind those that wait."""
        ...


class Part:
    """Records of one read, one partition and one route on their way into batches: one object for many records."""

    __slots__ = ("attempt", "partition", "prefix", "records", "route", "size_bytes", "was_resolved")

    def __init__(
        self, partition: TopicPartition, prefix: SettledPrefix, records: Sequence[Received], route: Route
    ) -> None:
        self.partition = partition
        self.prefix = prefix
        self.records = records
        self.route = route
        self.size_bytes = sum([len(record.value or b"") for record in records])
        self.attempt = 0
        self.was_resolved = False
        """The types were not among the headers: the records are in structured mode."""

    def only(self, records: Sequence[Received]) -> Part:
        """The same with some of the records."""
        part = Part(self.partition, self.prefix, records, self.route)
        part.attempt, part.was_resolved = self.attempt, self.was_resolved
        return part

    def head(self, most: int, most_bytes: int) -> Part:
        """The first records, up to so many and until so many bytes are reached; itself when it is all of them."""
        if len(self.records) <= most and self.size_bytes <= most_bytes:
            return self
        count = size_bytes = 0
        for record in self.records[:most]:
            if size_bytes >= most_bytes:
                break
            size_bytes += len(record.value or b"")
            count += 1
        return self if count == len(self.records) else self.only(self.records[:count])

    def item_of(self, record: Received) -> Item:
        """One of the records, to be judged by itself."""
        item = Item(self.partition, self.prefix, record, self.route)
        item.attempt, item.was_resolved = self.attempt, self.was_resolved
        return item


class Route:
    """Where records of one type and version go; `cls` is None when they must be decoded to find out.

    `error` is why every record of this type is refused.
    """

    __slots__ = (
        "batch",
        "cls",
        "deadline_s",
        "error",
        "handler",
        "inbox",
        "is_direct",
        "is_newest",
        "name",
        "numbered",
        "order",
        "passes",
        "subscription",
        "validate",
    )

    def __init__(
        self,
        subscription: Subscription | None,
        cls: type[Event] | None,
        *,
        batch: BatchSink | None = None,
        error: BaseException | None = None,
        numbered: Numbering | None = None,
    ) -> None:
        self.subscription = subscription
        self.cls = cls
        self.batch = batch
        self.error = error
        self.numbered = numbered
        self.passes = numbered is not None and cls is None
        """No handler here wants the records, whose numbers count all the same."""
        self.handler = subscription.handler if subscription else None
        self.name = subscription.name if subscription else "hailbus"
        deadline = subscription.deadline if subscription else None
        self.deadline_s = deadline.total_seconds() if deadline is not None else None
        self.order = subscription.delivery.order if subscription else "none"
        self.is_newest = cls is None or newest(cls) is cls
        self.inbox = (
            subscription.delivery.inbox
            if subscription is not None and isinstance(subscription.delivery, EffectivelyOnce)
            else None
        )
        self.validate = cls.__pydantic_validator__.validate_json if cls is not None else None
        self.is_direct = self.handler is not None and self.is_newest and self.inbox is None
        """Nothing stands between the bytes and the handler but validation."""


@dataclass(frozen=True, slots=True)
class ReleaseMark:
    """Stands in a lane where the release of its key begins; has the shape of a record and is none."""

    place: TopicPartition
    key: bytes
    offset: int = -1
    timestamp: int = 0
    timestamp_type: int = 0
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def topic(self) -> str:
        return self.place.topic

    @property
    def partition(self) -> int:
        return self.place.partition
