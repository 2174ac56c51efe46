"""What the use cases need of the world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from hailbus import Event

from booking.app.policy import Policy
from booking.domain.driver import Driver
from booking.domain.errors import Refusal
from booking.domain.place import Place
from booking.domain.quote import Quote
from booking.domain.region import Realm
from booking.domain.ride import Ride
from booking.domain.roads import Roads

TimerKind = Literal["quote_expiry", "match_timeout", "no_show", "partner_wait", "pickup_timeout", "ride_timeout"]
OVERDUE_IN: Final[Mapping[Literal["partner_wait", "pickup_timeout", "ride_timeout"], str]] = {
    "partner_wait": "seeking_partner",
    "pickup_timeout": "matched",
    "ride_timeout": "in_progress",
}
"""The state that a ride may not stay in for longer than a timer of this kind. A ride that seeks a partner is requested,
and no driver is looked for yet."""
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """The latest surge multiplier of a cell, as surge said it. After `valid_until` it is 1.0 again."""

    cell: str
    multiplier: float
    version: int
    valid_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An event to be published with the change that it tells of.

    Attributes:
        event: The fact.
        id: Stable: uuid5 of aggregate, seq and type.
        time: When it happened (event time).
        correlation_id: The quote or driver whose story this belongs to.
        not_before: For timers: when to publish it.
        schedule_id: For timers: what to cancel it by.
    """

    event: Event
    id: str
    time: datetime
    correlation_id: str | None = None
    not_before: datetime | None = None
    schedule_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The things that a command looks at, so that the storage can load them for many commands at once.

    With several regions, `online` are drivers who are to go online, and `riders_of` are quotes whose riders are to get
    a ride: no other region may do the same for them until the command is stored.
    """

    quotes: tuple[str, ...] = ()
    rides: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    online: tuple[str, ...] = ()
    riders_of: tuple[str, ...] = ()


class Work(Protocol):
    """One command's view of the world: it sees its own changes, and they all come true or none does."""

    @property
    def policy(self) -> Policy:
        """The numbers to decide by."""
        ...

    @property
    def realm(self) -> Realm | None:
        """The region of this process, `None` where one process serves everywhere."""
        ...

    @property
    def now(self) -> datetime:
        """When the command happens (event time)."""
        ...

    def attempt(self, command: "Command[A]", *, now: datetime) -> "A | Refusal":
        """Do a part of a larger command at a time of its own: a refused part leaves no trace."""
        ...

    def quote(self, quote_id: str) -> Quote:
        """Return a quote, or raise `NotFound`."""
        ...

    def ride(self, ride_id: str) -> Ride:
        """Return a ride, or raise `NotFound`."""
        ...

    def open_ride_by_id(self, ride_id: str) -> Ride | None:
        """Return a ride that has not ended, `None` if there is none of that id. Such rides are always at hand."""
        ...

    def driver(self, driver_id: str) -> Driver | None:
        """Return a driver, `None` if never seen."""
        ...

    def online_elsewhere(self, driver_id: str) -> str | None:
        """Return the other region in which a driver is online, `None` for none."""
        ...

    def last_seq(self, driver_id: str) -> int:
        """Return the number of the driver's last event in any region, 0 without one."""
        ...

    def open_ride(self, rider_id: str) -> str | None:
        """Return the id of the rider's ride that has not ended, `None` without one."""
        ...

    def debt(self, rider_id: str) -> tuple[str, int] | None:
        """Return a ride for which the rider owes money and how much, `None` if the rider owes nothing."""
        ...

    def put_quote(self, quote: Quote) -> None:
        """Keep a new or changed quote."""
        ...

    def put_ride(self, ride: Ride) -> None:
        """Keep a new or changed ride."""
        ...

    def put_driver(self, driver: Driver) -> None:
        """Keep a new or changed driver."""
        ...

    def nearest_driver(self, pickup: Place, *, allowed: Callable[[Driver], bool]) -> Driver | None:
        """Return the nearest allowed free driver within the policy's rings; silent drivers are left out."""
        ...

    def nearest_waiting(self, driver: Driver) -> Ride | None:
        """Return the waiting ride that a free driver should take, `None` for a silent driver."""
        ...

    def multiplier(self, cell: str) -> Multiplier | None:
        """Return what surge said of a cell last."""
        ...

    @property
    def roads(self) -> Roads:
        """What ways and drives are estimated by."""
        ...

    def put_roads(self, roads: Roads) -> None:
        """Keep what was learnt of the roads."""
        ...

    def put_multiplier(self, multiplier: Multiplier) -> None:
        """Keep what surge says of a cell."""
        ...

    def record(self, event: Event, *, aggregate: str, seq: int, at: datetime, story: str | None = None) -> None:
        """Publish a fact with the change: in the outbox, in the same transaction."""
        ...

    def report(self, event: Event, *, at: datetime) -> None:
        """Publish a fact at most once, after the commit."""
        ...

    def set_timer(self, kind: TimerKind, subject_id: str, seq: int, due_at: datetime, *, simulated: bool) -> None:
        """Have the timer's event published at `due_at`."""
        ...

    def cancel_timer(self, kind: TimerKind, subject_id: str) -> None:
        """Forget a timer, if it has not elapsed."""
        ...


class Command(Protocol[A_co]):
    """An order. It says what it needs, and decides without touching the world."""

    def needs(self) -> Needs:
        """Say what `decide` will look at."""
        ...

    def decide(self, work: Work) -> A_co:
        """Do it, or raise a `Refusal`."""
        ...


Presented = tuple[int, bytes]
"""An answer's HTTP status and JSON."""


class Presenter(Protocol):
    """Makes answers of results and refusals, to be stored under the idempotency key and sent."""

    def result(self, result: Any) -> Presented:  # Any: each command has its own
        """Present what the command gave."""
        ...

    def refusal(self, refusal: Exception) -> Presented:
        """Present why the command was refused."""
        ...
