"""All that booking knows, in memory: commands decide on it, and the storage writes down what they changed.

One process writes one database, so memory never lies about what is stored: what changed is flushed in one transaction,
and when that fails, the world is thrown away and loaded anew. Things at rest (ended rides, settled quotes, drivers who
are offline) are dropped after the flush and loaded again when a command needs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from hailbus import Event, event_info
from ride_events.timers import RideOverdue, TimerElapsed

from booking.app.policy import Policy
from booking.app.ports import OVERDUE_IN, Command, Multiplier, Needs, Outgoing, TimerKind
from booking.app.story import derived_id
from booking.domain.driver import Driver, DriverStatus
from booking.domain.errors import NotFound, Refusal
from booking.domain.matching import CellIndex, nearest_driver, nearest_waiting
from booking.domain.place import Place
from booking.domain.quote import Quote, QuoteState
from booking.domain.region import Realm
from booking.domain.ride import TERMINAL, Ride
from booking.domain.roads import Roads

A = TypeVar("A")
_MISSING: Final = object()
CITY: Final = "city"
"""The key of the roads: one process serves one city."""


@dataclass(slots=True, kw_only=True)
class Changes:
    """What a flush has to write, in the order of the lists."""

    quotes: dict[str, Quote] = field(default_factory=dict)
    rides: dict[str, Ride] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    multipliers: dict[str, Multiplier] = field(default_factory=dict)
    roads: dict[str, Roads] = field(default_factory=dict)
    outgoing: list[Outgoing] = field(default_factory=list)
    timers: dict[str, Outgoing] = field(default_factory=dict)
    cancelled: dict[str, bool] = field(default_factory=dict)
    reports: list[tuple[Event, datetime]] = field(default_factory=list)

    @property
    def are_of_drivers_only(self) -> bool:
        """Whether nothing has changed but drivers, and nothing is to be published with the change."""
        return not (
            self.quotes
            or self.rides
            or self.multipliers
            or self.roads
            or self.outgoing
            or self.timers
            or self.cancelled
        )


class OpenRides:
    """Which ride each rider has that has not ended. Bounded by the open rides of the city."""

    def __init__(self) -> None:
        self._by_rider: dict[str, str] = {}
        self._rider_of: dict[str, str] = {}

    def put(self, ride: Ride) -> None:
        """Note a ride that has not ended."""
        self._by_rider[ride.rider_id] = ride.ride_id
        self._rider_of[ride.ride_id] = ride.rider_id

    def discard(self, ride_id: str) -> None:
        """Forget a ride: it has ended, or was never requested."""
        rider_id = self._rider_of.pop(ride_id, None)
        if rider_id is not None and self._by_rider.get(rider_id) == ride_id:
            del self._by_rider[rider_id]

    def of(self, rider_id: str) -> str | None:
        """Return the rider's open ride."""
        return self._by_rider.get(rider_id)


class Debts:
    """Who owes money for which rides. Bounded by the rides that are not paid."""

    def __init__(self) -> None:
        self._by_rider: dict[str, dict[str, int]] = {}

    def put(self, ride: Ride) -> None:
        """Note what is owed for a ride."""
        if ride.payment.owed_minor:
            self._by_rider.setdefault(ride.rider_id, {})[ride.ride_id] = ride.payment.owed_minor
        elif (rides := self._by_rider.get(ride.rider_id)) is not None:
            rides.pop(ride.ride_id, None)
            if not rides:
                del self._by_rider[ride.rider_id]

    def of(self, rider_id: str) -> tuple[str, int] | None:
        """Return the first ride that the rider has not paid, and what is owed for it."""
        rides = self._by_rider.get(rider_id)
        return min(rides.items()) if rides else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What other regions say of the riders and drivers of one batch; nothing where there is one region.

    Attributes:
        drivers: Driver → the other region in which the driver is online.
        rides: Rider → the open ride in another region.
        debts: Rider → a ride of another region that is not paid, and what is owed for it.
        seqs: Driver → number of the last event in any region.
    """

    drivers: Mapping[str, str] = field(default_factory=dict)
    rides: Mapping[str, str] = field(default_factory=dict)
    debts: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    seqs: Mapping[str, int] = field(default_factory=dict)


class World:
    """The things at hand, the changes since the last flush, and a journal to undo the command at work.

    It is the `Work` of one command at a time: `begin`, decide, then `accept` or `undo`.
    """

    def __init__(self, policy: Policy, realm: Realm | None = None) -> None:
        self._policy = policy
        self._realm = realm
        self._elsewhere = Elsewhere()
        self._quotes: dict[str, Quote] = {}
        self._rides: dict[str, Ride] = {}
        self._drivers: dict[str, Driver] = {}
        self._multipliers: dict[str, Multiplier] = {}
        self._roads: dict[str, Roads] = {CITY: Roads()}
        self._free: CellIndex[Driver] = CellIndex()
        self._waiting: CellIndex[Ride] = CellIndex()
        self._open = OpenRides()
        self._debts = Debts()
        self._changes = Changes()
        self._journal: list[tuple[dict[str, Any], str, object]] = []  # Any: dictionaries of several kinds
        self._marks = (0, 0)
        self._now: datetime | None = None

    # ---------------------------------------------------------------- the storage's side

    def missing(self, needs: Needs) -> Needs:
        """Return what must be loaded before a command with these needs decides."""
        return Needs(
            quotes=tuple(key for key in needs.quotes if key not in self._quotes),
            rides=tuple(key for key in needs.rides if key not in self._rides),
            drivers=tuple(key for key in needs.drivers if key not in self._drivers),
        )

    def learn(self, thing: Quote | Ride | Driver | Multiplier | Roads) -> None:
        """Take in a thing as it is stored."""
        match thing:
            case Quote():
                self._quotes[thing.quote_id] = thing
            case Ride():
                self._rides[thing.ride_id] = thing
                self._index_ride(thing.ride_id)
            case Driver():
                self._drivers[thing.driver_id] = thing
                self._index_driver(thing.driver_id)
            case Multiplier():
                self._multipliers[thing.cell] = thing
            case Roads():
                self._roads[CITY] = thing

    def learn_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Take in what other regions say, for the commands until the next call."""
        self._elsewhere = elsewhere

    def rider_of(self, quote_id: str) -> str | None:
        """Return the rider of a quote that is at hand and still offered, unless the rider has a ride here."""
        quote = self._quotes.get(quote_id)
        if quote is None or quote.state is not QuoteState.OFFERED or self._open.of(quote.rider_id) is not None:
            return None
        return quote.rider_id

    def is_online(self, driver_id: str) -> bool:
        """Return whether a driver is online here."""
        driver = self._drivers.get(driver_id)
        return driver is not None and driver.status is not DriverStatus.OFFLINE

    def begin(self, now: datetime) -> None:
        """Start a command that happens at `now`."""
        self._now = now
        self._journal.clear()
        self._marks = (len(self._changes.outgoing), len(self._changes.reports))

    def undo(self) -> None:
        """Take back what the command changed: it was refused."""
        self._undo_to((0, *self._marks))

    def _undo_to(self, mark: tuple[int, int, int]) -> None:
        journal, outgoing, reports = mark
        for table, key, before in reversed(self._journal[journal:]):
            if before is _MISSING:
                del table[key]
            else:
                table[key] = before
            if table is self._rides:
                self._index_ride(key)
            elif table is self._drivers:
                self._index_driver(key)
        del self._journal[journal:]
        del self._changes.outgoing[outgoing:]
        del self._changes.reports[reports:]

    def take_changes(self) -> Changes:
        """Return what changed since the last flush, and start afresh."""
        changes, self._changes = self._changes, Changes()
        self._journal.clear()
        return changes

    def forget_settled(self, changes: Changes) -> None:
        """Drop what is at rest after a flush: memory holds what is open, not what ever was."""
        for quote in changes.quotes.values():
            if quote.state is not QuoteState.OFFERED:
                self._quotes.pop(quote.quote_id, None)
        for ride in changes.rides.values():
            if ride.state in TERMINAL:
                self._rides.pop(ride.ride_id, None)
        for driver in changes.drivers.values():
            if driver.status is DriverStatus.OFFLINE:
                self._drivers.pop(driver.driver_id, None)

    def forget_unchanged(self, needs: Needs) -> None:
        """Drop what was loaded for a look only and is at rest."""
        for key in needs.quotes:
            quote = self._quotes.get(key)
            if quote is not None and quote.state is not QuoteState.OFFERED:
                del self._quotes[key]
        for key in needs.rides:
            ride = self._rides.get(key)
            if ride is not None and ride.state in TERMINAL:
                del self._rides[key]
        for key in needs.drivers:
            driver = self._drivers.get(key)
            if driver is not None and driver.status is DriverStatus.OFFLINE:
                del self._drivers[key]

    def counts(self) -> dict[str, int]:
        """Return how many things are at hand, for the log."""
        return {
            "quotes": len(self._quotes),
            "rides": len(self._rides),
            "drivers": len(self._drivers),
            "free_drivers": len(self._free),
            "waiting_rides": len(self._waiting),
            "multipliers": len(self._multipliers),
        }

    # ---------------------------------------------------------------- the commands' side (`Work`)

    @property
    def policy(self) -> Policy:
        """The numbers to decide by."""
        return self._policy

    @property
    def realm(self) -> Realm | None:
        """The region of this process, `None` where one process serves everywhere."""
        return self._realm

    @property
    def now(self) -> datetime:
        """When the command happens."""
        assert self._now is not None, "a command decides between begin() and the next"
        return self._now

    def attempt(self, command: Command[A], *, now: datetime) -> A | Refusal:
        """Do a part of a larger command at a time of its own: a refused part leaves no trace."""
        mark = (len(self._journal), len(self._changes.outgoing), len(self._changes.reports))
        outer, self._now = self._now, now
        try:
            return command.decide(self)
        except Refusal as refusal:
            self._undo_to(mark)
            return refusal
        finally:
            self._now = outer

    def quote(self, quote_id: str) -> Quote:
        """Return a quote, or raise `NotFound`."""
        quote = self._quotes.get(quote_id)
        if quote is None:
            raise NotFound("quote", quote_id)
        return quote

    def ride(self, ride_id: str) -> Ride:
        """Return a ride, or raise `NotFound`."""
        ride = self._rides.get(ride_id)
        if ride is None:
            raise NotFound("ride", ride_id)
        return ride

    def open_ride_by_id(self, ride_id: str) -> Ride | None:
        """Return a ride that has not ended, `None` if there is none of that id."""
        ride = self._rides.get(ride_id)
        return None if ride is None or ride.state in TERMINAL else ride

    def driver(self, driver_id: str) -> Driver | None:
        """Return a driver, `None` if never seen."""
        return self._drivers.get(driver_id)

    def open_ride(self, rider_id: str) -> str | None:
        """Return the id of the rider's ride that has not ended, `None` without one."""
        return self._open.of(rider_id) or self._elsewhere.rides.get(rider_id)

    def online_elsewhere(self, driver_id: str) -> str | None:
        """Return the other region in which a driver is online, `None` for none."""
        return self._elsewhere.drivers.get(driver_id)

    def last_seq(self, driver_id: str) -> int:
        """Return the number of the driver's last event in any region, 0 without one."""
        return self._elsewhere.seqs.get(driver_id, 0)

    def debt(self, rider_id: str) -> tuple[str, int] | None:
        """Return a ride for which the rider owes money and how much, `None` if the rider owes nothing."""
        return self._debts.of(rider_id) or self._elsewhere.debts.get(rider_id)

    def put_quote(self, quote: Quote) -> None:
        """Keep a new or changed quote."""
        self._set(self._quotes, quote.quote_id, quote)
        self._set(self._changes.quotes, quote.quote_id, quote)

    def put_ride(self, ride: Ride) -> None:
        """Keep a new or changed ride."""
        self._set(self._rides, ride.ride_id, ride)
        self._set(self._changes.rides, ride.ride_id, ride)
        self._index_ride(ride.ride_id)

    def put_driver(self, driver: Driver) -> None:
        """Keep a new or changed driver."""
        self._set(self._drivers, driver.driver_id, driver)
        self._set(self._changes.drivers, driver.driver_id, driver)
        self._index_driver(driver.driver_id)

    def nearest_driver(self, pickup: Place, *, allowed: Callable[[Driver], bool]) -> Driver | None:
        """Return the nearest allowed free driver within the policy's rings; silent drivers are left out."""
        return nearest_driver(
            self._free,
            pickup,
            rings=self._policy.match_rings,
            heard_since=self.now - self._policy.silent_after,
            allowed=allowed,
        )

    def nearest_waiting(self, driver: Driver) -> Ride | None:
        """Return the waiting ride that a free driver should take, `None` for a silent driver."""
        return nearest_waiting(
            self._waiting,
            driver,
            rings=self._policy.match_rings,
            heard_since=self.now - self._policy.silent_after,
        )

    def multiplier(self, cell: str) -> Multiplier | None:
        """Return what surge said of a cell last."""
        return self._multipliers.get(cell)

    def put_multiplier(self, multiplier: Multiplier) -> None:
        """Keep what surge says of a cell."""
        self._set(self._multipliers, multiplier.cell, multiplier)
        self._set(self._changes.multipliers, multiplier.cell, multiplier)

    @property
    def roads(self) -> Roads:
        """What ways and drives are estimated by."""
        return self._roads[CITY]

    def put_roads(self, roads: Roads) -> None:
        """Keep what was learnt of the roads."""
        if roads is not self.roads:
            self._set(self._roads, CITY, roads)
            self._set(self._changes.roads, CITY, roads)

    def record(self, event: Event, *, aggregate: str, seq: int, at: datetime, story: str | None = None) -> None:
        """Publish a fact with the change."""
        event_id = derived_id(aggregate, seq, event_info(event).type)
        self._changes.outgoing.append(Outgoing(event=event, id=event_id, time=at, correlation_id=story))

    def report(self, event: Event, *, at: datetime) -> None:
        """Publish a fact at most once, after the commit."""
        self._changes.reports.append((event, at))

    def set_timer(self, kind: TimerKind, subject_id: str, seq: int, due_at: datetime, *, simulated: bool) -> None:
        """Have the timer's event published at `due_at`."""
        event: TimerElapsed | RideOverdue
        if kind == "partner_wait" or kind == "pickup_timeout" or kind == "ride_timeout":  # noqa: PLR1714 mypy narrows a literal by ==
            state = OVERDUE_IN[kind]
            event = RideOverdue(ride_id=subject_id, state=state, seq=seq, due_at=due_at, simulated=simulated)
        else:
            event = TimerElapsed(subject_id=subject_id, kind=kind, seq=seq, due_at=due_at, simulated=simulated)
        schedule_id = f"{kind}:{subject_id}"
        self._set(
            self._changes.timers,
            schedule_id,
            Outgoing(
                event=event,
                id=derived_id(subject_id, seq, kind),
                time=due_at,
                correlation_id=None,
                not_before=due_at,
                schedule_id=schedule_id,
            ),
        )

    def cancel_timer(self, kind: TimerKind, subject_id: str) -> None:
        """Forget a timer: one not flushed yet was never set."""
        schedule_id = f"{kind}:{subject_id}"
        if schedule_id in self._changes.timers:
            self._journal.append((self._changes.timers, schedule_id, self._changes.timers.pop(schedule_id)))
        else:
            self._set(self._changes.cancelled, schedule_id, value=True)

    # ----------------------------------------------------------------

    def _set(self, table: dict[str, Any], key: str, value: object) -> None:  # Any: as the journal
        self._journal.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def _index_ride(self, ride_id: str) -> None:
        ride = self._rides.get(ride_id)
        if ride is not None:
            self._debts.put(ride)  # a ride that was never requested owes nothing
        if ride is not None and ride.state not in TERMINAL:
            self._open.put(ride)
        else:
            self._open.discard(ride_id)
        if ride is not None and ride.waiting:
            self._waiting.put(ride_id, ride.pickup.cell, ride)
        else:
            self._waiting.discard(ride_id)

    def _index_driver(self, driver_id: str) -> None:
        driver = self._drivers.get(driver_id)
        if driver is not None and driver.status is DriverStatus.FREE and driver.position is not None:
            self._free.put(driver_id, driver.position.cell, driver)
        else:
            self._free.discard(driver_id)
