"""What booking decides, written anew from its description: plain dictionaries and a transition table of its own.

It imports no decision of booking's. `Place` and its distance are geometry; everything else is repeated here, the simple
way: all drivers and rides are looked at, and a refused command is undone by a copy of everything.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import cache
from typing import Final

import h3
from booking.domain.place import Place, great_circle_m

NEXT: Final[Mapping[str, Mapping[str, str]]] = {
    "requested": {
        "match": "matched",
        "cancel": "cancelled",
        "give_up": "unmatched",
        "reprice": "requested",
        "pool": "requested",
    },
    "redispatched": {"match": "matched", "cancel": "cancelled", "give_up": "unmatched", "reprice": "redispatched"},
    "matched": {
        "arrive": "arrived",
        "cancel": "cancelled",
        "redispatch": "redispatched",
        "give_up": "unmatched",
        "reprice": "matched",
    },
    "arrived": {
        "start": "in_progress",
        "cancel": "cancelled",
        "redispatch": "redispatched",
        "give_up": "unmatched",
        "reprice": "arrived",
    },
    "in_progress": {"complete": "completed", "reprice": "in_progress"},
    "completed": {},
    "cancelled": {},
    "unmatched": {},
}
TIMER_IN: Final[Mapping[str, str]] = {
    "requested": "match_timeout",
    "redispatched": "match_timeout",
    "matched": "pickup_timeout",
    "arrived": "no_show",
    "in_progress": "ride_timeout",
}
ENDED: Final = frozenset({"completed", "cancelled", "unmatched"})
WITH_DRIVER: Final = frozenset({"matched", "arrived", "in_progress"})

PARTNER_WAIT: Final = timedelta(minutes=2)
QUOTE_TTL: Final = timedelta(minutes=2)
MATCH_TIMEOUT: Final = timedelta(minutes=5)
NO_SHOW: Final = timedelta(minutes=5)
PICKUP_GRACE: Final = timedelta(minutes=10)
RIDE_GRACE: Final = timedelta(hours=4)
SILENT_AFTER: Final = timedelta(seconds=30)
RINGS: Final = 8
REDISPATCHES: Final = 3
POOL_WINDOW: Final = timedelta(minutes=5)
POOL_APART_M: Final = 3_000

Who = tuple[str, str]
"""A role and an id."""


class Refused(Exception):  # noqa: N818 an answer, as booking's
    """The command is refused; the name is that of booking's refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A quote as the model has it."""

    rider: str
    pickup: Place
    dropoff: Place
    route_m: int
    fare: int
    multiplier: float
    offered_at: datetime
    expires_at: datetime
    state: str = "offered"
    seq: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What is known of a ride's payment."""

    seq: int = 0
    state: str = "pending"
    paid: int = 0
    owed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """A ride as the model has it. `had_by` are the drivers who had it and have it no more.

    `wish` and `pool` are other rides, `alone` is the fare without the pool. `is_held`: it waits for a partner, and no
    driver is looked for.
    """

    rider: str
    quote: str
    pickup: Place
    dropoff: Place
    route_m: int
    fare: int
    multiplier: float
    requested_at: datetime
    updated_at: datetime
    state: str = "requested"
    seq: int = 1
    state_seq: int = 1
    driver: str | None = None
    eta_s: int | None = None
    had_by: tuple[str, ...] = ()
    matched_at: datetime | None = None
    arrived_at: datetime | None = None
    started_at: datetime | None = None
    reason: str | None = None
    cancelled_by: str | None = None
    wish: str | None = None
    pool: str | None = None
    alone: int | None = None
    is_held: bool = False
    money: Money = field(default_factory=Money)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A driver as the model has it."""

    status: str
    position: Place | None
    seq: int
    updated_at: datetime
    heard_at: datetime
    ride: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A timer that has not elapsed."""

    seq: int
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An event: its type, key, seq and time, and those of its fields that somebody acts on."""

    type: str
    key: str
    seq: int
    at: datetime
    said: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surge:
    """The last multiplier of a cell."""

    multiplier: float
    version: int
    valid_until: datetime


@dataclass(slots=True, kw_only=True)
class Books:
    """All that a restart preserves."""

    quotes: dict[str, Quote] = field(default_factory=dict)
    rides: dict[str, Ride] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    surge: dict[str, Surge] = field(default_factory=dict)
    timers: dict[tuple[str, str], Timer] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    reported: list[tuple[str, bool]] = field(default_factory=list)
    detour: float = 1.35
    speed: float = 5.0
    trips: int = 0

    def copy(self) -> "Books":
        """Return books that can change alone."""
        return replace(
            self,
            quotes=dict(self.quotes),
            rides=dict(self.rides),
            drivers=dict(self.drivers),
            surge=dict(self.surge),
            timers=dict(self.timers),
            told=list(self.told),
            reported=list(self.reported),
        )


@cache
def ring_of(a: str, b: str) -> int:
    """Return how many rings lie between two cells."""
    return int(h3.grid_distance(a, b))


class Model:
    """Booking as its description has it. Each command is tried by `decide`."""

    def __init__(self) -> None:
        self.books = Books()
        self.now: datetime | None = None

    def decide(self, command: Callable[[], object], *, at: datetime) -> tuple[object, str | None]:
        """Do a command; return its result and None, or None and the refusal. A refusal changes nothing."""
        before, earlier, self.now = self.books.copy(), self.now, at
        try:
            return command(), None
        except Refused as refused:
            self.books = before
            return None, str(refused)
        finally:
            self.now = earlier

    # ---------------------------------------------------------------- who may do what

    def may_read_ride(self, who: Who, ride_id: str) -> bool:
        """Whether the caller may see a ride."""
        ride = self.books.rides[ride_id]
        role, name = who
        return role in {"anyone", "operator"} or who == ("rider", ride.rider) or (role == "driver" and _had(ride, name))

    def may_read_quote(self, who: Who, quote_id: str) -> bool:
        """Whether the caller may see a quote."""
        return who[0] in {"anyone", "operator"} or who == ("rider", self.books.quotes[quote_id].rider)

    def _ride_for_rider(self, who: Who, ride_id: str) -> Ride:
        ride = self.books.rides.get(ride_id)
        if ride is None or (who[0] != "anyone" and who != ("rider", ride.rider)):
            raise Refused("NotFound")
        return ride

    def _ride_for_driver(self, who: Who, ride_id: str, driver_id: str | None) -> Ride:
        self._for_driver(who, driver_id)
        ride = self.books.rides.get(ride_id)
        if ride is None or (who[0] != "anyone" and not _had(ride, driver_id)):
            raise Refused("NotFound")
        if driver_id is None or ride.driver != driver_id:
            raise Refused("NotYourRide")
        return ride

    def _for_driver(self, who: Who, driver_id: str | None) -> None:
        if who[0] not in {"anyone", "fleet"} and who != ("driver", driver_id):
            raise Refused("NotAllowed")

    # ---------------------------------------------------------------- riders

    def offer_quote(self, who: Who, quote_id: str, rider: str, pickup: Place, dropoff: Place) -> None:
        """A rider asks what a ride costs."""
        if who[0] != "anyone" and who != ("rider", rider):
            raise Refused("NotAllowed")
        surge = self.books.surge.get(pickup.cell)
        multiplier = surge.multiplier if surge is not None and self._at < surge.valid_until else 1.0
        route_m = self._way_m(pickup, dropoff)
        quote = Quote(
            rider=rider,
            pickup=pickup,
            dropoff=dropoff,
            route_m=route_m,
            fare=_fare(route_m, self._drive_s(route_m), multiplier),
            multiplier=multiplier,
            offered_at=self._at,
            expires_at=self._at + QUOTE_TTL,
        )
        self.books.quotes[quote_id] = quote
        self._tell("quote.offered", quote_id, 1, self._at, fare=quote.fare, multiplier=multiplier)
        self._set_timer("quote_expiry", quote_id, 1, quote.expires_at)

    def request_ride(self, who: Who, ride_id: str, quote_id: str, *, seeks_partner: bool = False) -> None:
        """A rider accepts a quote, and perhaps waits for a partner first."""
        quote = self.books.quotes.get(quote_id)
        if quote is None or (who[0] != "anyone" and who != ("rider", quote.rider)):
            raise Refused("NotFound")
        if quote.state == "accepted":
            raise Refused("QuoteTaken")
        if quote.state == "expired" or self._at >= quote.expires_at:
            raise Refused("QuoteExpired")
        theirs = [ride for ride in self.books.rides.values() if ride.rider == quote.rider]
        if any(ride.state not in ENDED for ride in theirs):
            raise Refused("RideOpen")
        if any(ride.money.owed for ride in theirs):
            raise Refused("PaymentDue")
        at = max(self._at, quote.offered_at)
        self.books.quotes[quote_id] = replace(quote, state="accepted", seq=quote.seq + 1)
        self._drop_timer("quote_expiry", quote_id)
        self._tell("quote.accepted", quote_id, quote.seq + 1, at, ride_id=ride_id)
        self.books.rides[ride_id] = Ride(
            rider=quote.rider,
            quote=quote_id,
            pickup=quote.pickup,
            dropoff=quote.dropoff,
            route_m=quote.route_m,
            fare=quote.fare,
            multiplier=quote.multiplier,
            requested_at=at,
            updated_at=at,
            is_held=seeks_partner,
        )
        self._tell("ride.requested", ride_id, 1, at, fare=quote.fare, multiplier=quote.multiplier)
        if seeks_partner:
            self._wait(ride_id, at + PARTNER_WAIT)
        else:
            self._find_driver(ride_id)

    def cancel_by_rider(self, who: Who, ride_id: str, reason: str) -> None:
        """A rider wants no ride any more."""
        self._ride_for_rider(who, ride_id)
        self._end(ride_id, "rider", reason)

    def change_destination(self, who: Who, ride_id: str, dropoff: Place) -> None:
        """A rider wants to go elsewhere."""
        ride = self._ride_for_rider(who, ride_id)
        if ride.pool is not None and ride.state not in ENDED:
            raise Refused("RidePooled")
        route_m = self._way_m(ride.pickup, dropoff)
        fare = _fare(route_m, self._drive_s(route_m), ride.multiplier)
        self._step(ride_id, "reprice", dropoff=dropoff, route_m=route_m, fare=fare)
        self._tell_ride("ride.repriced", ride_id, fare=fare, reason="destination_changed")

    def pool_ride(self, who: Who, ride_id: str, partner_id: str) -> None:
        """A rider would share a car with the rider of another ride; with both wishes they do."""
        ride = self._ride_for_rider(who, ride_id)
        if ride.state != "requested":
            raise Refused("WrongState")
        if ride.pool is not None:
            raise Refused("RidePooled")
        if partner_id == ride_id:
            raise Refused("CannotPool")
        self._change_ride(ride_id, wish=partner_id)
        partner = self.books.rides.get(partner_id)
        if partner is None or partner.state != "requested" or partner.wish != ride_id:
            return
        apart = abs(ride.requested_at - partner.requested_at)
        ways = (great_circle_m(ride.pickup, partner.pickup), great_circle_m(ride.dropoff, partner.dropoff))
        if apart > POOL_WINDOW or max(ways) > POOL_APART_M:
            raise Refused("CannotPool")
        ids = self._by_request(ride_id, partner_id)
        for order, (one, other) in enumerate((ids, ids[::-1]), start=1):
            alone = self.books.rides[one].fare
            fare = math.floor(Fraction(alone * 80, 100) + Fraction(1, 2))
            self._step(one, "pool", wish=None, pool=other, alone=alone, fare=fare)
            self._tell_ride("ride.pooled", one, fare=fare, single_fare=alone, partner_ride_id=other, pickup_order=order)
        held = [one for one in (ride_id, partner_id) if self.books.rides[one].is_held]
        for one in held:
            self._let_go(one)
            self._wait(one, self.books.rides[one].updated_at + MATCH_TIMEOUT)
        if held:
            self._find_driver(held[0])

    # ---------------------------------------------------------------- drivers

    def go_online(self, who: Who, driver_id: str, position: Place) -> None:
        """A driver is ready for rides."""
        self._for_driver(who, driver_id)
        driver = self.books.drivers.get(driver_id)
        if driver is not None and driver.status != "offline":
            self._move(driver_id, position, is_reported=True)
            return
        known = driver or Driver(status="offline", position=None, seq=0, updated_at=self._at, heard_at=self._at)
        driver = self.books.drivers[driver_id] = replace(
            known,
            status="free",
            position=position,
            seq=known.seq + 1,
            updated_at=max(self._at, known.updated_at),
            heard_at=max(self._at, known.heard_at),
        )
        self._tell("driver.went_online", driver_id, driver.seq, driver.updated_at, cell=position.cell)
        self._find_rider(driver_id)

    def go_offline(self, who: Who, driver_id: str) -> None:
        """A driver takes no more rides."""
        self._for_driver(who, driver_id)
        driver = self.books.drivers.get(driver_id)
        if driver is None:
            raise Refused("NotFound")
        if driver.status == "busy":
            raise Refused("DriverBusy")
        if driver.status == "free":
            self._change_driver(driver_id, status="offline", position=None)
            after = self.books.drivers[driver_id]
            self._tell("driver.went_offline", driver_id, after.seq, after.updated_at)

    def report_location(self, who: Who, driver_id: str, position: Place) -> None:
        """A driver is elsewhere."""
        self._for_driver(who, driver_id)
        driver = self.books.drivers.get(driver_id)
        if driver is None:
            raise Refused("NotFound")
        if driver.status == "offline":
            raise Refused("DriverOffline")
        self._move(driver_id, position, is_reported=True)

    def hear_position(self, driver_id: str, position: Place) -> bool:
        """A driver's app has published where the driver is."""
        driver = self.books.drivers.get(driver_id)
        if driver is None or driver.status == "offline":
            return False
        return self._move(driver_id, position, is_reported=False)

    def cancel_by_driver(self, who: Who, ride_id: str, driver_id: str | None, reason: str) -> None:
        """A driver does not want the ride, or says that the rider did not come."""
        ride = self._ride_for_driver(who, ride_id, driver_id)
        assert driver_id is not None
        self._hear(driver_id)
        if reason == "no_show" and ride.state == "arrived":
            assert ride.arrived_at is not None
            if self._at < ride.arrived_at + NO_SHOW:
                raise Refused("NoShowTooEarly")
            self._end(ride_id, "driver", reason)
        else:
            self._redispatch(ride_id, reason)

    def arrive(self, who: Who, ride_id: str, driver_id: str | None) -> None:
        """A driver waits at the pickup."""
        self._ride_for_driver(who, ride_id, driver_id)
        assert driver_id is not None
        at = self._step(ride_id, "arrive", is_new_state=True)
        self._change_ride(ride_id, arrived_at=at)
        self._hear(driver_id)
        self._tell_ride("ride.driver_arrived", ride_id, driver_id=driver_id)
        self._wait(ride_id, at + NO_SHOW)

    def start(self, who: Who, ride_id: str, driver_id: str | None) -> None:
        """The rider is on board."""
        ride = self._ride_for_driver(who, ride_id, driver_id)
        assert driver_id is not None
        at = self._step(ride_id, "start", is_new_state=True)
        self._change_ride(ride_id, started_at=at)
        self._hear(driver_id)
        self._tell_ride("ride.started", ride_id, driver_id=driver_id)
        self._wait(ride_id, at + timedelta(seconds=self._drive_s(ride.route_m)) + RIDE_GRACE)

    def complete(self, who: Who, ride_id: str, driver_id: str | None, odometer_m: int) -> None:
        """The rider has arrived."""
        ride = self._ride_for_driver(who, ride_id, driver_id)
        assert driver_id is not None
        if ride.state != "in_progress":
            raise Refused("WrongState")
        self._hear(driver_id)
        metered = _fare(ride.route_m, self._on_board_s(ride), ride.multiplier)
        if ride.pool is None and metered > ride.fare + max(ride.fare * 25 // 100, 300):
            fare = min(metered, 2 * ride.fare)
            self._step(ride_id, "reprice", fare=fare)
            self._tell_ride("ride.repriced", ride_id, fare=fare, reason="took_longer")
        took_s = self._complete(ride_id, odometer_m, None)
        self._learn(ride, odometer_m, took_s)
        self._release(driver_id, ride_id, ride.dropoff)

    def update_drivers(self, who: Who, parts: list[tuple[Callable[[], object], datetime | None]]) -> list[str | None]:
        """A fleet sends many updates: each is done or refused alone."""
        if who[0] not in {"driver", "fleet", "anyone"}:
            raise Refused("NotAllowed")
        return [self.decide(part, at=at or self._at)[1] for part, at in parts]

    def move_clock(self, who: Who) -> None:
        """An operator advances the clock."""
        if who[0] not in {"operator", "anyone"}:
            raise Refused("NotAllowed")

    # ---------------------------------------------------------------- timers and other services

    def elapse(self, kind: str, subject: str, seq: int) -> bool:
        """A timer's event has come, for the first time or again."""
        if kind == "quote_expiry":
            quote = self.books.quotes.get(subject)
            if quote is None or quote.state != "offered":
                return False
            self.books.quotes[subject] = replace(quote, state="expired", seq=quote.seq + 1)
            self._tell("quote.expired", subject, quote.seq + 1, quote.expires_at)
            return True
        ride = self.books.rides.get(subject)
        if ride is None or timer_of(ride) != kind or ride.state_seq != seq:
            return False
        match kind:
            case "partner_wait":
                self._let_go(subject)
                self._find_driver(subject)
            case "match_timeout":
                self._give_up(subject, "timeout")
            case "pickup_timeout":
                self._redispatch(subject, "driver_late")
            case "no_show":
                self._end(subject, "system", "no_show")
            case _:
                assert ride.driver is not None
                self._complete(subject, ride.route_m, "ride_timeout")
                self._release(ride.driver, subject, None)
        return True

    def hear_payment(self, ride_id: str, kind: str, seq: int, amount: int, stage: str, owed: int | None) -> None:
        """Payment has spoken of a ride, in the order of its numbers."""
        ride = self.books.rides.get(ride_id)
        if ride is None:
            raise Refused("NotFound")
        money = ride.money
        is_declined = kind == "failed" and stage in {"authorise", "reauthorise"}
        state, paid, still_owed = money.state, money.paid, money.owed
        match kind:
            case "authorised":
                state = "authorised"
            case "captured":
                state, paid, still_owed = "captured", paid + amount, 0
            case "released":
                state = "released" if paid == 0 else state
            case "refunded":
                state, paid = "refunded", paid - amount
            case _:
                state = "declined" if is_declined else state
                still_owed = still_owed if owed is None else owed
        state = "due" if still_owed else state
        self._change_ride(ride_id, money=Money(seq=seq, state=state, paid=paid, owed=still_owed))
        if is_declined and "cancel" in NEXT[ride.state]:
            self._end(ride_id, "system", "payment_failed")

    def hear_surge(self, cell: str, multiplier: float, version: int, valid_until: datetime) -> bool:
        """Surge has spoken of a cell."""
        known = self.books.surge.get(cell)
        if known is not None and version <= known.version:
            return False
        self.books.surge[cell] = Surge(multiplier=multiplier, version=version, valid_until=valid_until)
        return True

    # ---------------------------------------------------------------- rides and drivers meet

    def _find_driver(self, ride_id: str) -> None:
        ride = self.books.rides[ride_id]
        found: list[tuple[float, str]] = []
        for driver_id, driver in self.books.drivers.items():
            if driver.status == "free" and self._is_heard(driver) and driver_id not in ride.had_by:
                assert driver.position is not None
                if ring_of(ride.pickup.cell, driver.position.cell) <= RINGS:
                    found.append((great_circle_m(driver.position, ride.pickup), driver_id))
        if found:
            self._pair(ride_id, min(found)[1])
        else:
            self._wait(ride_id, ride.updated_at + MATCH_TIMEOUT)

    def _find_rider(self, driver_id: str) -> None:
        driver = self.books.drivers[driver_id]
        if not self._is_heard(driver):
            return
        assert driver.position is not None
        found: list[tuple[int, datetime, str]] = []
        for ride_id, ride in self.books.rides.items():
            if looks_for_driver(ride) and driver_id not in ride.had_by:
                ring = ring_of(ride.pickup.cell, driver.position.cell)
                if ring <= RINGS:
                    found.append((ring, ride.requested_at, ride_id))
        if found:
            self._pair(min(found)[2], driver_id)

    def _pair(self, ride_id: str, driver_id: str) -> None:
        partner_id = self._partner(ride_id)
        ids = (ride_id,) if partner_id is None else self._by_request(ride_id, partner_id)
        where, eta_s = self.books.drivers[driver_id].position, 0
        for one in ids:
            assert where is not None
            pickup = self.books.rides[one].pickup
            eta_s += self._drive_s(self._way_m(where, pickup))
            where = pickup
            at = self._step(one, "match", is_new_state=True, driver=driver_id, eta_s=eta_s)
            self._change_ride(one, matched_at=at)
            self._tell_ride("ride.matched", one, driver_id=driver_id, eta_s=eta_s)
            self._wait(one, at + timedelta(seconds=eta_s) + PICKUP_GRACE)
        self._change_driver(driver_id, status="busy", ride=ids[0])
        self._tell_busy(driver_id)

    def _tell_busy(self, driver_id: str) -> None:
        driver = self.books.drivers[driver_id]
        self._tell("driver.became_busy", driver_id, driver.seq, driver.updated_at, ride_id=driver.ride)

    def _by_request(self, *ride_ids: str) -> tuple[str, ...]:
        return tuple(sorted(ride_ids, key=lambda one: (self.books.rides[one].requested_at, one)))

    def _partner(self, ride_id: str) -> str | None:
        """The open ride that says the same of this one as this one says of it."""
        other_id = self.books.rides[ride_id].pool
        other = self.books.rides.get(other_id or "")
        return other_id if other is not None and other.pool == ride_id and other.state not in ENDED else None

    def _go_alone(self, ride_id: str) -> None:
        self._step(ride_id, "reprice", fare=self.books.rides[ride_id].alone, pool=None, alone=None)
        self._tell_ride("ride.repriced", ride_id, fare=self.books.rides[ride_id].fare, reason="pool_ended")

    def _end_pool(self, partner_id: str | None) -> None:
        if partner_id is not None and self.books.rides[partner_id].state != "in_progress":
            self._go_alone(partner_id)

    def _release(self, driver_id: str, ride_id: str, position: Place | None) -> None:
        """The driver has this ride no more, and is free unless another one is left."""
        driver = self.books.drivers[driver_id]
        for other_id, other in self.books.rides.items():
            if other.driver == driver_id and other.state in WITH_DRIVER and other_id != ride_id:
                if driver.ride != other_id:
                    self._change_driver(driver_id, ride=other_id)
                    self._tell_busy(driver_id)
                return
        self._change_driver(driver_id, status="free", ride=None, position=position or driver.position)
        driver = self.books.drivers[driver_id]
        assert driver.position is not None
        self._tell("driver.became_free", driver_id, driver.seq, driver.updated_at, cell=driver.position.cell)
        self._find_rider(driver_id)

    def _end(self, ride_id: str, by: str, reason: str) -> None:
        before, partner_id = self.books.rides[ride_id], self._partner(ride_id)
        self._step(ride_id, "cancel", cancelled_by=by, reason=reason, is_held=False)
        self._drop_timers(ride_id)
        stage = "requested" if before.state == "redispatched" else before.state
        self._tell_ride("ride.cancelled", ride_id, by=by, reason=reason, stage=stage, driver_id=before.driver)
        self._end_pool(partner_id)
        if before.driver is not None:
            self._release(before.driver, ride_id, None)

    def _redispatch(self, ride_id: str, reason: str) -> None:
        before = self.books.rides[ride_id]
        assert before.driver is not None
        had_by = (*before.had_by, before.driver)
        if len(before.had_by) == REDISPATCHES:
            self._give_up(ride_id, "redispatch_limit")
        else:
            if "redispatch" not in NEXT[before.state]:
                raise Refused("WrongState")
            self._end_pool(self._partner(ride_id))
            if before.pool is not None:
                self._go_alone(ride_id)
            self._step(
                ride_id,
                "redispatch",
                is_new_state=True,
                driver=None,
                eta_s=None,
                matched_at=None,
                arrived_at=None,
                had_by=had_by,
            )
            self._tell_ride("ride.redispatched", ride_id, driver_id=before.driver, attempt=len(had_by), reason=reason)
            self._find_driver(ride_id)
        self._release(before.driver, ride_id, None)

    def _give_up(self, ride_id: str, reason: str) -> None:
        before, partner_id = self.books.rides[ride_id], self._partner(ride_id)
        had_by = (*before.had_by, before.driver) if before.driver is not None else before.had_by
        self._step(ride_id, "give_up", driver=None, reason=reason, had_by=had_by)
        self._drop_timers(ride_id)
        self._tell_ride("ride.unmatched", ride_id, reason=reason)
        self._end_pool(partner_id)

    def _complete(self, ride_id: str, distance_m: int, reason: str | None) -> int:
        took_s = self._on_board_s(self.books.rides[ride_id])
        self._step(ride_id, "complete", reason=reason)
        self._drop_timers(ride_id)
        ride = self.books.rides[ride_id]
        self._tell_ride(
            "ride.completed",
            ride_id,
            fare=ride.fare,
            multiplier=ride.multiplier,
            distance_m=distance_m,
            duration_s=took_s,
            driver_id=ride.driver,
            reason=reason,
        )
        return took_s

    # ---------------------------------------------------------------- small parts

    @property
    def _at(self) -> datetime:
        assert self.now is not None
        return self.now

    def _is_heard(self, driver: Driver) -> bool:
        return driver.heard_at >= self._at - SILENT_AFTER

    def _step(self, ride_id: str, step: str, *, is_new_state: bool = False, **changes: object) -> datetime:
        ride = self.books.rides[ride_id]
        if step not in NEXT[ride.state]:
            raise Refused("WrongState")
        at = max(self._at, ride.updated_at)
        if is_new_state:
            self._drop_timers(ride_id)
            changes["state_seq"] = ride.seq + 1
        self._change_ride(ride_id, state=NEXT[ride.state][step], seq=ride.seq + 1, updated_at=at, **changes)
        return at

    def _change_ride(self, ride_id: str, **changes: object) -> None:
        ride = self.books.rides[ride_id]
        self.books.rides[ride_id] = replace(ride, **changes)  # type: ignore[arg-type]  # it checks the names itself

    def _change_driver(self, driver_id: str, **changes: object) -> None:
        driver = self.books.drivers[driver_id]
        at = max(self._at, driver.updated_at)
        after = replace(driver, seq=driver.seq + 1, updated_at=at, **changes)  # type: ignore[arg-type]  # as above
        self.books.drivers[driver_id] = after

    def _hear(self, driver_id: str) -> None:
        driver = self.books.drivers[driver_id]
        self.books.drivers[driver_id] = replace(driver, heard_at=max(driver.heard_at, self._at))

    def _move(self, driver_id: str, position: Place, *, is_reported: bool) -> bool:
        driver = self.books.drivers[driver_id]
        if self._at < driver.updated_at:
            return False
        self.books.drivers[driver_id] = replace(
            driver, position=position, updated_at=self._at, heard_at=max(self._at, driver.heard_at)
        )
        if driver.status == "free":
            self._find_rider(driver_id)
        if is_reported:
            self.books.reported.append((driver_id, self.books.drivers[driver_id].status == "free"))
        return True

    def _wait(self, ride_id: str, due_at: datetime) -> None:
        ride = self.books.rides[ride_id]
        self._set_timer(timer_of(ride), ride_id, ride.state_seq, due_at)

    def _let_go(self, ride_id: str) -> None:
        """The ride waits for no partner any more."""
        self._change_ride(ride_id, is_held=False)
        self._drop_timer("partner_wait", ride_id)

    def _set_timer(self, kind: str, subject: str, seq: int, due_at: datetime) -> None:
        self.books.timers[kind, subject] = Timer(seq=seq, due_at=due_at)

    def _drop_timer(self, kind: str, subject: str) -> None:
        self.books.timers.pop((kind, subject), None)

    def _drop_timers(self, ride_id: str) -> None:
        for kind in ("partner_wait", *TIMER_IN.values()):
            self._drop_timer(kind, ride_id)

    def _tell(self, kind: str, key: str, seq: int, at: datetime, **said: object) -> None:
        self.books.told.append(Told(type=kind, key=key, seq=seq, at=at, said=tuple(sorted(said.items()))))

    def _tell_ride(self, kind: str, ride_id: str, **said: object) -> None:
        ride = self.books.rides[ride_id]
        self._tell(kind, ride_id, ride.seq, ride.updated_at, **said)

    def _way_m(self, start: Place, end: Place) -> int:
        return round(great_circle_m(start, end) * self.books.detour)

    def _drive_s(self, way_m: int) -> int:
        return round(way_m / self.books.speed)

    def _on_board_s(self, ride: Ride) -> int:
        assert ride.started_at is not None
        return int((max(self._at, ride.updated_at) - ride.started_at).total_seconds())

    def _learn(self, ride: Ride, odometer_m: int, took_s: int) -> None:
        straight_m = great_circle_m(ride.pickup, ride.dropoff)
        if straight_m < 500 or took_s <= 0:
            return
        detour, speed = odometer_m / straight_m, odometer_m / took_s
        if 1 <= detour <= 3 and 1 <= speed <= 40:
            books, weight = self.books, 1 / (min(self.books.trips + 50, 1_000) + 1)
            books.detour += (detour - books.detour) * weight
            books.speed += (speed - books.speed) * weight
            books.trips += 1


def timer_of(ride: Ride) -> str:
    """Return the timer that a ride has; none that has ended has one."""
    return "partner_wait" if ride.is_held else TIMER_IN.get(ride.state, "")


def looks_for_driver(ride: Ride) -> bool:
    """Whether a driver can be matched with a ride."""
    return "match" in NEXT[ride.state] and not ride.is_held


def _had(ride: Ride, driver_id: str | None) -> bool:
    return driver_id is not None and (driver_id == ride.driver or driver_id in ride.had_by)


def _fare(way_m: int, drive_s: int, multiplier: float) -> int:
    """Return 3.00 and 1.34 a kilometre and 0.40 a minute, 8.00 at least, times the multiplier, in cents."""
    metered = 300 + Fraction(134 * way_m, 1_000) + Fraction(40 * drive_s, 60)
    return math.floor(max(metered, Fraction(800)) * Fraction(str(multiplier)) + Fraction(1, 2))
