"""The accounts that the ledger compares, as plain values: each says what one witness knows, and no more."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hailbus_demo.ledger.log import LogAccount, PackedId, Place, pack_id, unpack_id
from hailbus_demo.ledger.model import Consumer, Partition, Unread

OutboxState = Literal["published", "due", "waiting", "cancelled", "failed"]


class BookRide(NamedTuple):
    """What the rider was told of a ride last."""

    state: str
    seq: int
    quote_id: str
    rider_id: str
    driver_id: str | None
    fare_minor: int
    multiplier: float
    distance_m: int | None
    duration_s: int | None


class BookQuote(NamedTuple):
    """What the rider was told of a quote."""

    rider_id: str
    fare_minor: int
    multiplier: float
    surge_version: int | None
    distance_m: int
    duration_s: int


class BookAdvice(NamedTuple):
    """What the rider was recommended, and took: option ids in the order shown, by rank and kind."""

    rider_id: str
    options: tuple[str, ...]
    chosen: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BookAccount:
    """The riders' book: what the simulator was told by HTTP answers, and what it sent.

    Attributes:
        rides: By ride id.
        quotes: By quote id.
        advice: By recommendation id.
        positions: For each position sent, a hash of who was where when; see `log.position_hash`.
        is_whole: Whether every run that wrote the book ended in order, so that no answer can be missing.
    """

    rides: Mapping[str, BookRide]
    quotes: Mapping[str, BookQuote]
    advice: Mapping[str, BookAdvice]
    positions: array[int]
    is_whole: bool


class BookingRide(NamedTuple):
    """A row of `booking_rides`. The last fields are what payment said of the ride's money.

    Attributes:
        reason: Why the ride ended otherwise than planned.
        seeks_partner: Whether the ride waits for a partner before a driver is looked for.
    """

    state: str
    reason: str | None
    seq: int
    timer_seq: int
    quote_id: str
    rider_id: str
    driver_id: str | None
    fare_minor: int
    seeks_partner: bool
    payment: str
    payment_seq: int
    paid_minor: int
    owed_minor: int


class BookingQuote(NamedTuple):
    """A row of `booking_quotes`."""

    state: str
    seq: int
    rider_id: str
    ride_id: str | None
    fare_minor: int
    multiplier: float


class BookingDriver(NamedTuple):
    """A row of `booking_drivers`."""

    status: str
    seq: int
    ride_id: str | None


class BookingMultiplier(NamedTuple):
    """A row of `booking_multipliers`."""

    multiplier: float
    version: int
    valid_until_ms: int


class OutboxRow(NamedTuple):
    """A row of `hailbus_outbox`. `content` is the hash of key, payload and headers; see `log.content_hash`.

    `published_ms` is None where booking's clock is the events' own: the log deletes by the time of day.
    """

    packed_id: PackedId
    topic: str
    type: str
    key: str | None
    state: OutboxState
    partition: int | None
    offset: int | None
    published_ms: int | None
    content: int

    @property
    def id(self) -> str:
        """The event id."""
        return unpack_id(self.packed_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingAccount:
    """Booking's database. `outbox` has every row, in the order of commits."""

    rides: Mapping[str, BookingRide]
    quotes: Mapping[str, BookingQuote]
    drivers: Mapping[str, BookingDriver]
    multipliers: Mapping[str, BookingMultiplier]
    outbox: Sequence[OutboxRow]


class Sums(NamedTuple):
    """What was reserved, charged, freed and paid back, in minor units (cents)."""

    authorised: int = 0
    captured: int = 0
    released: int = 0
    refunded: int = 0

    def __str__(self) -> str:
        """Return the amounts that are not 0."""
        said = [f"{name} {amount}" for name, amount in zip(self._fields, self, strict=True) if amount]
        return ", ".join(said) or "nothing"


class Payment(NamedTuple):
    """A payment of a ride in payment's table of states. `step` is what the provider is being asked for."""

    state: str
    payment_id: str
    rider_id: str
    seq: int
    sums: Sums
    owed: int
    step: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentAccount:
    """Payment's database: payments by ride, and what its outbox has for payments.v1, in the order of commits."""

    payments: Mapping[str, Payment]
    outbox: Sequence[OutboxRow]


class Movement(NamedTuple):
    """A movement of money by the provider's list. `kind` is `authorise`, `capture`, `release` or `refund`."""

    number: int
    authorisation_id: str
    reference: str
    kind: str
    amount: int
    currency: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAccount:
    """The payment provider's database: its list of movements, and authorisation → reference and sums."""

    movements: Sequence[Movement]
    authorisations: Mapping[str, tuple[str, Sums]]


@dataclass(slots=True, kw_only=True)
class _EventColumns:
    """Events with their partition and offset, in columns: a run has millions. `place` is an index of `places`."""

    ids: list[PackedId] = field(default_factory=list)
    places: list[Partition] = field(default_factory=list)
    place: array[int] = field(default_factory=lambda: array("H"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    _index: dict[Partition, int] = field(default_factory=dict)

    def _add_event(self, event_id: str, topic: str, partition: int, offset: int) -> None:
        place = (topic, partition)
        index = self._index.get(place)
        if index is None:
            index = self._index[place] = len(self.places)
            self.places.append(place)
        self.ids.append(pack_id(event_id))
        self.place.append(index)
        self.offset.append(offset)


@dataclass(slots=True, kw_only=True)
class InboxAccount(_EventColumns):
    """What a consumer claimed: one entry per row of its inbox, in columns."""

    consumer: str
    applied_ms: array[int] = field(default_factory=lambda: array("q"))
    seen: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, event_id: str, topic: str, partition: int, offset: int, seen: int, applied_ms: int) -> None:
        """Add a row."""
        self._add_event(event_id, topic, partition, offset)
        self.applied_ms.append(applied_ms)
        self.seen[topic] += seen
        self.rows[topic] += 1


class Answer(NamedTuple):
    """A row of `recommender_answer`. `options` are pairs of option id and rank."""

    rider_id: str
    options: tuple[tuple[str, int], ...]
    chosen: str | None


class Journey(NamedTuple):
    """A row of `recommender_journey`, or what a completed ride makes of it."""

    rider_id: str
    pickup_cell: str
    dropoff_cell: str
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderAccount:
    """The recommender's database. `pruned` says that old answers were removed."""

    answers: Mapping[str, Answer]
    journeys: Mapping[Journey, int]
    open_rides: frozenset[str]
    pruned: bool


@dataclass(slots=True, kw_only=True)
class JournalAccount(_EventColumns):
    """The event logger's file, one entry per line, in columns. `value` is the hash of the data; see `log.value_hash`.

    `keys` has the key of each record of a compacted topic, by place and offset.
    """

    value: array[int] = field(default_factory=lambda: array("q"))
    keys: dict[tuple[str, int, int], str] = field(default_factory=dict)
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, event_id: str, topic: str, partition: int, offset: int, value: int) -> None:
        """Add a line."""
        self._add_event(event_id, topic, partition, offset)
        self.value.append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsAccount:
    """Committed offsets: group → partition → offset, of the partitions that it committed."""

    committed: Mapping[str, Mapping[Partition, int]]


class Letter(NamedTuple):
    """A dead letter: where it is, what it says of its origin, and the place that it names, if it names one."""

    topic: str
    partition: int
    offset: int
    said: str
    origin: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersAccount:
    """The dead-letter topics: topic → records, and the first of them."""

    counts: Mapping[str, int]
    letters: Sequence[Letter] = ()


class PoisonEvent(NamedTuple):
    """A damaged copy of an event that a click wrote: where it is, and the copied event's type, id and JSON."""

    topic: str
    partition: int
    offset: int
    type: str
    id: str
    value: str

    @property
    def place(self) -> Place:
        """Where the copy is."""
        return Place(self.topic, self.partition, self.offset)


class ParkedEvent(NamedTuple):
    """A row of `hailbus_parked`: an event that waits for an earlier one of its key, or could not be applied."""

    group: str
    topic: str
    partition: int
    offset: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedAccount:
    """The parking lots of the services that apply events in the order of their numbers."""

    events: Sequence[ParkedEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAccount:
    """What `lake verify --json` printed."""

    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurgeAccount:
    """What surge keeps in its database.

    Attributes:
        state: Up to when minutes are closed, how many facts came late, and the price of each cell.
        pickups: Slot of five minutes → cell → rides that were requested there.
        drivers: Slot → cell → drivers who were free at its end.
    """

    state: Mapping[str, Any]
    pickups: Mapping[int, Mapping[str, int]]
    drivers: Mapping[int, Mapping[str, int]]

    @property
    def closed_until_ms(self) -> int | None:
        """Up to when its minutes are closed, in Unix milliseconds, `None` before the first one is."""
        closed = self.state.get("closed_until_ms")
        return None if closed is None else int(closed)

    @property
    def late_count(self) -> int:
        """Facts that came after their minutes were closed."""
        return int(self.state.get("late_count", 0))

    @property
    def prices(self) -> Mapping[str, Sequence[float]]:
        """Cell → average, level, multiplier, and until when it is valid, in Unix milliseconds."""
        found: Mapping[str, Sequence[float]] = self.state.get("prices", {})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Everything that was gathered. `None` is not part of this run, `Unread` is and could not be read.

    Attributes:
        consumers: The groups that must apply what they subscribe to.
        inboxes: Group → its inbox.
        ended: Whether every ride was played to its end, so that none may be in flight.
        restarted: Names of processes that were restarted, or whose events a click has repeated: an event of theirs may
            be in the log again. `None` when nobody counted.
        poison: The damaged copies that a click wrote: each consumer must set them aside, and nothing else.
        moved: What changed while the accounts were read, as sentences; empty when everything stood still.
        read_at_ms: Unix milliseconds when the accounts were read: what is older than its topic's retention may be gone.
        so_far: Whether the run is unfinished: lines that only the end decides are shown.
    """

    log: LogAccount | Unread
    book: BookAccount | Unread | None = None
    booking: BookingAccount | Unread | None = None
    payment: PaymentAccount | Unread | None = None
    provider: ProviderAccount | Unread | None = None
    inboxes: Mapping[str, InboxAccount | Unread | None] = field(default_factory=dict)
    consumers: Sequence[Consumer] = ()
    groups: GroupsAccount | Unread | None = None
    recommender: RecommenderAccount | Unread | None = None
    journal: JournalAccount | Unread | None = None
    letters: LettersAccount | Unread | None = None
    parked: ParkedAccount | Unread | None = None
    lake: LakeAccount | Unread | None = None
    surge: SurgeAccount | Unread | None = None
    ended: bool | None = None
    restarted: frozenset[str] | None = None
    poison: Sequence[PoisonEvent] = ()
    moved: tuple[str, ...] = ()
    read_at_ms: int = 0
    so_far: bool = False
