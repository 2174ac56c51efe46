"""Every command, in every state, by every caller, in any order: booking decides as its description says.

Hypothesis draws the commands, and `Model` (`model.py`) says for each what must come of it: a refusal, or states,
events, timers and money. Commands are decided one by one or several in one commit; a restart loses what was not
committed.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import h3
import pytest
from booking.app.apply_payment import ApplyPayment
from booking.app.apply_surge import ApplySurge
from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, HearPosition, ReportLocation
from booking.app.elapse import Elapse
from booking.app.offer_quote import OfferQuote
from booking.app.permissions import ByCaller, check_sees_driver, may_see
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command, Multiplier, Needs, Outgoing, TimerKind
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import MoveClock, UpdateDrivers
from booking.app.world import Changes
from booking.domain.caller import Caller, Role
from booking.domain.driver import Driver
from booking.domain.errors import NotAllowed, NotFound, Refusal
from booking.domain.payment import PaymentNews
from booking.domain.place import Place
from booking.domain.quote import Quote
from booking.domain.ride import Ride
from hailbus import event_info
from hypothesis import settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ride_events import Money
from ride_events.drivers import DriverLocationReported

from tests.property.booking import model as expected
from tests.property.booking.model import ENDED, TIMER_IN, WITH_DRIVER, Model, Told, Who, looks_for_driver
from tests.property.booking.stored import START, Stored, elapsed, prepare


def _place(lat: float, lng: float) -> Place:
    return Place(lat=lat, lng=lng, cell=h3.latlng_to_cell(lat, lng, 8))


# Two in one cell, one in the next ring, one some rings away, and one out of reach of the first three.
PLACES: Final = (
    _place(40.7500, -73.9800),
    _place(40.7510, -73.9805),
    _place(40.7590, -73.9800),
    _place(40.7200, -73.9900),
    _place(40.6000, -73.9800),
)
RIDERS: Final = ("r1", "r2", "r3")
POOLED_PAIR: Final = 2
"""Rides that a driver has at once at most."""
DRIVERS: Final = ("d1", "d2", "d3", "d4", "r1")
"""One driver has a rider's id: a role is a part of who one is."""
TIMER_KINDS: Final[tuple[TimerKind, ...]] = (
    "partner_wait",
    "match_timeout",
    "pickup_timeout",
    "no_show",
    "ride_timeout",
)
RIGHT: Final = ("right", "")
"""Stands for the caller whom the command is for."""
AFTER: Final[Mapping[str, frozenset[str]]] = {
    "quote.offered": frozenset({""}),
    "quote.accepted": frozenset({"quote.offered"}),
    "quote.expired": frozenset({"quote.offered"}),
    "driver.went_online": frozenset({"", "driver.went_offline"}),
    "driver.went_offline": frozenset({"driver.went_online", "driver.became_free"}),
    "driver.became_busy": frozenset({"driver.went_online", "driver.became_free", "driver.became_busy"}),
    "driver.became_free": frozenset({"driver.became_busy"}),
    "ride.requested": frozenset({""}),
    "ride.matched": frozenset({"ride.requested", "ride.redispatched"}),
    "ride.driver_arrived": frozenset({"ride.matched"}),
    "ride.started": frozenset({"ride.driver_arrived"}),
    "ride.completed": frozenset({"ride.started"}),
    "ride.redispatched": frozenset({"ride.matched", "ride.driver_arrived"}),
    "ride.cancelled": frozenset({"ride.requested", "ride.redispatched", "ride.matched", "ride.driver_arrived"}),
    "ride.unmatched": frozenset({"ride.requested", "ride.redispatched", "ride.matched", "ride.driver_arrived"}),
}
"""Which events of one quote, driver or ride may come before which; `ride.repriced` may come between any two, and
`ride.pooled` while a ride waits for its first driver."""


@dataclass(frozen=True, slots=True)
class Deed:
    """A command and what the model does for it."""

    command: Command[object]
    expected: Callable[[], object]


ANYBODY = st.sampled_from(
    [
        *[RIGHT] * 30,
        *(("rider", name) for name in RIDERS),
        *(("driver", name) for name in DRIVERS),
        ("fleet", "fleet"),
        ("operator", "r1"),
        ("operator", "d1"),
        ("anyone", ""),
    ]
)
LATER_S = st.sampled_from([0, 0, 0, 1, 1, 1, 4, 4, 4, 20, 20, 31, 130, 400, 3_000, -5, -40])
"""How long after the clock a command happens; requests may overtake each other."""
PLACE = st.sampled_from(PLACES)
OF_DRIVER = st.sampled_from(["the ride's"] * 6 + [*DRIVERS, "nobody", ""])
ODOMETER_M = st.sampled_from([0, 1_000, 5_000, 12_000])
RIDE: st.SearchStrategy[str] = st.runner().flatmap(lambda machine: st.sampled_from(machine.ride_ids()))
RIDE_OF_ANY_STATE: st.SearchStrategy[str] = st.runner().flatmap(
    lambda machine: st.sampled_from([*reversed(machine.model.books.rides), "none"])
)
QUOTE: st.SearchStrategy[str] = st.runner().flatmap(lambda machine: st.sampled_from(machine.quote_ids()))


class Booking(RuleBasedStateMachine):
    """Booking's decisions beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored()
        self.world = self.stored.load()
        self.model = Model()
        self.committed = self.model.books.copy()
        self.clock = START
        self.number = 0
        self.batch = self.batch_left = 1
        self.is_pending = False
        self.needs: list[Needs] = []
        self.elapsed: list[Elapse] = []
        self.last: dict[str, tuple[str, int]] = {}
        self.ids: set[str] = set()

    # ---------------------------------------------------------------- what there is

    def ride_ids(self) -> list[str]:
        """The rides to choose from: mostly the open ones, and the latest of those first."""
        rides = self.model.books.rides
        open_rides = [ride_id for ride_id in reversed(rides) if rides[ride_id].state not in ENDED]
        return [*open_rides * 8, *rides, "none"]

    def quote_ids(self) -> list[str]:
        """The quotes to choose from: mostly those that are not accepted."""
        quotes = self.model.books.quotes
        offered = [quote_id for quote_id in reversed(quotes) if quotes[quote_id].state == "offered"]
        return [*offered * 4, *quotes, "none"]

    def rider_of(self, ride_id: str) -> Who:
        ride = self.model.books.rides.get(ride_id)
        return "rider", RIDERS[0] if ride is None else ride.rider

    def driver_of(self, ride_id: str, said: str) -> str | None:
        """The driver whom a command names: mostly that of the ride."""
        if said != "the ride's":
            return said or None
        ride = self.model.books.rides.get(ride_id)
        return DRIVERS[0] if ride is None or ride.driver is None else ride.driver

    # ---------------------------------------------------------------- doing

    def by(self, said: Who, right: Who, after_s: int, deed: Callable[[Who], Deed]) -> None:
        """Do something as a caller, over HTTP."""
        who = right if said == RIGHT else said
        chosen = deed(who)
        self.do(ByCaller(caller=_caller(who), command=chosen.command), chosen.expected, self._time(after_s))

    def do(self, command: Command[object], expect: Callable[[], object], at: datetime) -> None:
        """Do a command and compare the result, and what changed if the commit ends with it."""
        prepare(self.world, self.stored, command)
        self.needs.append(command.needs())
        self._attempt(command, expect, at)
        self.batch_left -= 1
        self.is_pending = True
        if self.batch_left == 0:
            self.commit()

    def probe(self, command: Command[object], expect: Callable[[], object]) -> None:
        """Compare what a command would do, and take it back: nothing changes."""
        prepare(self.world, self.stored, command)
        self.needs.append(command.needs())
        rides, quotes, books = list(self.model.books.rides), list(self.model.books.quotes), self.model.books.copy()
        before = self._held(rides, quotes)
        self._attempt(command, expect, self.clock)
        self.world.undo()
        self.model.books = books
        assert self._held(rides, quotes) == before, "what is taken back leaves no trace"

    def _attempt(self, command: Command[object], expect: Callable[[], object], at: datetime) -> None:
        rides, quotes = list(self.model.books.rides), list(self.model.books.quotes)
        before = self._held(rides, quotes)
        should, should_refuse = self.model.decide(expect, at=at)
        self.world.begin(at)
        result: object = None
        refusal: Refusal | None = None
        try:
            result = command.decide(self.world)
        except Refusal as error:
            self.world.undo()
            refusal = error
            assert self._held(rides, quotes) == before, "a refusal changes nothing"
        assert (type(refusal).__name__ if refusal is not None else None) == should_refuse, refusal
        self._compare_result(result, should)

    def commit(self) -> None:
        """Write what was decided, and compare all of it."""
        self.batch_left, self.is_pending = self.batch, False
        changes = self.world.take_changes()
        self._check_order(changes.outgoing)
        self._compare_changes(changes)
        self.stored.flush(changes)
        for needs in self.needs:
            self.world.forget_unchanged(needs)
        self.world.forget_settled(changes)
        self.needs.clear()
        self.committed = self.model.books.copy()
        self._compare_timers()

    def _time(self, after_s: int) -> datetime:
        at = self.clock + timedelta(seconds=after_s)
        self.clock = max(self.clock, at)
        return at

    # ---------------------------------------------------------------- comparing

    def quote(self, quote_id: str) -> Quote:
        """A quote as the next command sees it."""
        try:
            return self.world.quote(quote_id)
        except NotFound:
            return self.stored.quotes[quote_id]

    def ride(self, ride_id: str) -> Ride:
        """A ride as the next command sees it."""
        try:
            return self.world.ride(ride_id)
        except NotFound:
            return self.stored.rides[ride_id]

    def driver(self, driver_id: str) -> Driver:
        """A driver as the next command sees it."""
        return self.world.driver(driver_id) or self.stored.drivers[driver_id]

    def _held(self, rides: Sequence[str], quotes: Sequence[str]) -> tuple[object, ...]:
        return (
            self.world.counts(),
            self.world.roads,
            [self.world.driver(driver_id) for driver_id in DRIVERS],
            [self.world.multiplier(place.cell) for place in PLACES],
            [self.ride(ride_id) for ride_id in rides],
            [self.quote(quote_id) for quote_id in quotes],
            [(self.world.open_ride(rider), self.world.debt(rider)) for rider in RIDERS],
        )

    def _compare_result(self, result: object, should: object) -> None:
        books = self.model.books
        match result:
            case Ride():
                assert _of_ride(result) == books.rides[result.ride_id]
            case Driver():
                assert _of_driver(result) == books.drivers[result.driver_id]
            case Quote():
                assert _of_quote(result) == books.quotes[result.quote_id]
            case list():
                refused = [type(part).__name__ if isinstance(part, Refusal) else None for part in result]
                assert refused == should
            case bool():
                assert result == should

    def _compare_changes(self, changes: Changes) -> None:
        told, should = _by_key(_told(item) for item in changes.outgoing), self.model.books.told
        assert told == _by_key(should[len(self.committed.told) :])
        reported: list[tuple[str, bool]] = []
        for event, _ in changes.reports:
            assert isinstance(event, DriverLocationReported)
            reported.append((event.driver_id, event.free))
        assert reported == self.model.books.reported[len(self.committed.reported) :]

    def _compare_timers(self) -> None:
        timers = {}
        for name, item in self.stored.timers.items():
            command = elapsed(item)
            assert name == f"{command.kind}:{command.subject_id}"
            assert item.not_before == command.due_at == item.time
            timers[command.kind, command.subject_id] = expected.Timer(seq=command.seq, due_at=command.due_at)
        assert timers == self.model.books.timers

    @invariant()
    def state_is_as_described(self) -> None:
        books = self.model.books
        assert {ride_id: _of_ride(self.ride(ride_id)) for ride_id in books.rides} == books.rides
        assert {driver_id: _of_driver(self.driver(driver_id)) for driver_id in books.drivers} == books.drivers
        assert {quote_id: _of_quote(self.quote(quote_id)) for quote_id in books.quotes} == books.quotes
        roads = self.world.roads
        assert (roads.detour, roads.speed_m_per_s, roads.trips) == (books.detour, books.speed, books.trips)
        counts = self.world.counts()
        assert counts["free_drivers"] == sum(driver.status == "free" for driver in books.drivers.values())
        assert counts["waiting_rides"] == sum(map(looks_for_driver, books.rides.values()))

    # ---------------------------------------------------------------- what holds whatever the model says

    @invariant()
    def a_driver_has_one_ride_or_a_pooled_pair_and_a_rider_one_open_ride(self) -> None:
        rides = {ride_id: self.ride(ride_id) for ride_id in self.model.books.rides}
        riders = [ride.rider_id for ride in rides.values() if ride.state not in ENDED]
        assert len(set(riders)) == len(riders)
        having: dict[str | None, set[str]] = defaultdict(set)
        for ride_id, ride in rides.items():
            if ride.state in WITH_DRIVER:
                having[ride.driver_id].add(ride_id)
        drivers = {driver_id: self.driver(driver_id) for driver_id in self.model.books.drivers}
        assert {driver_id for driver_id, one in drivers.items() if one.status == "busy"} == set(having)
        for driver_id, theirs in having.items():
            assert driver_id is not None
            assert drivers[driver_id].ride_id in theirs
            if len(theirs) > 1:
                assert len(theirs) == POOLED_PAIR
                assert {rides[one].pooled_with for one in theirs} == theirs, "only pooled rides share a driver"
        assert all(one.ride_id is None for one in drivers.values() if one.status != "busy")

    @invariant()
    def pooled_rides_share_everything_until_one_is_on_board(self) -> None:
        rides = {ride_id: self.ride(ride_id) for ride_id in self.model.books.rides}
        for ride_id, ride in rides.items():
            assert (ride.pooled_with is None) == (ride.single_fare_minor is None)
            if ride.pooled_with is None:
                continue
            assert ride.single_fare_minor is not None
            assert 0 <= ride.single_fare_minor * 4 / 5 - ride.fare_minor + 0.5 <= 1, "a fifth off, to the cent"
            partner = rides[ride.pooled_with]
            if ride.state not in ENDED and ride.state != "in_progress" and partner.state not in ENDED:
                assert partner.pooled_with == ride_id
                assert partner.driver_id == ride.driver_id

    @invariant()
    def money_is_whole_cents_and_never_negative(self) -> None:
        amounts: list[int] = []
        for ride in map(self.ride, self.model.books.rides):
            amounts += [ride.fare_minor, ride.payment.paid_minor, ride.payment.owed_minor]
        amounts += [quote.fare_minor for quote in map(self.quote, self.model.books.quotes)]
        assert all(type(amount) is int and amount >= 0 for amount in amounts)

    def _check_order(self, outgoing: Sequence[Outgoing]) -> None:
        """Events of one quote, driver or ride are numbered without gaps, and none comes before it may."""
        for item in outgoing:
            told = _told(item)
            key = f"{told.type.partition('.')[0]} {told.key}"
            before, seq = self.last.get(key, ("", 0))
            assert told.seq == seq + 1
            if told.type == "ride.pooled":
                assert before == "ride.requested"
                self.last[key] = (before, told.seq)
            elif told.type == "ride.repriced":
                assert before not in {"", "ride.completed", "ride.cancelled", "ride.unmatched"}
                self.last[key] = (before, told.seq)
            else:
                assert before in AFTER[told.type]
                self.last[key] = (told.type, told.seq)
            assert item.id not in self.ids
            self.ids.add(item.id)

    @invariant()
    def every_open_ride_has_the_timer_of_its_state(self) -> None:
        due = {(timer.kind, timer.subject_id, timer.seq) for timer in self.elapsed}
        for ride_id, ride in self.stored.rides.items():
            timers = [elapsed(item) for name, item in self.stored.timers.items() if name.endswith(f":{ride_id}")]
            assert len(timers) <= (ride.state not in ENDED)
            if ride.state not in ENDED:
                due_or_set = due | {(timer.kind, timer.subject_id, timer.seq) for timer in timers}
                kind = "partner_wait" if ride.seeks_partner else TIMER_IN[ride.state]
                assert (kind, ride_id, ride.timer_seq) in due_or_set

    def teardown(self) -> None:
        rides = self.model.books.rides.values()
        target(float(max((ride.seq for ride in rides), default=0)), label="events of a ride")

    # ---------------------------------------------------------------- riders

    @initialize(
        online=st.sampled_from([3, 1, 2, 4, 0]),
        where=PLACE,
        batch=st.sampled_from([1, 1, 2, 5]),
        rides=st.integers(0, 2),
        is_pooled=st.booleans(),
    )
    def begin(self, online: int, where: Place, batch: int, rides: int, *, is_pooled: bool) -> None:
        """Most runs begin with drivers and rides, often two pooled ones. Some decide several commands at once."""
        self.batch = self.batch_left = batch
        if is_pooled:
            self.share(list(RIDERS), where, PLACES[3], 1, None, [])
        for driver_id in DRIVERS[:online]:
            self.go_online(RIGHT, driver_id, where, 0)
        for rider in RIDERS[:rides]:
            self.book(rider, where, PLACES[3])

    @rule(who=ANYBODY, rider=st.sampled_from(RIDERS), pickup=PLACE, dropoff=PLACE, after_s=LATER_S)
    def offer_quote(self, who: Who, rider: str, pickup: Place, dropoff: Place, after_s: int) -> None:
        self.number += 1
        quote_id = f"q{self.number}"
        command = OfferQuote(quote_id=quote_id, rider_id=rider, pickup=pickup, dropoff=dropoff)
        self.by(
            who,
            ("rider", rider),
            after_s,
            lambda who: Deed(command, lambda: self.model.offer_quote(who, quote_id, rider, pickup, dropoff)),
        )

    @rule(who=ANYBODY, quote_id=QUOTE, after_s=LATER_S, seeks_partner=st.sampled_from([False, False, True]))
    def request_ride(self, who: Who, quote_id: str, after_s: int, *, seeks_partner: bool = False) -> None:
        self.number += 1
        ride_id = f"ride{self.number}"
        quote = self.model.books.quotes.get(quote_id)
        command = RequestRide(ride_id=ride_id, quote_id=quote_id, seeks_partner=seeks_partner)
        self.by(
            who,
            ("rider", RIDERS[0] if quote is None else quote.rider),
            after_s,
            lambda who: Deed(
                command, lambda: self.model.request_ride(who, ride_id, quote_id, seeks_partner=seeks_partner)
            ),
        )

    @rule(rider=st.sampled_from(RIDERS), pickup=PLACE, dropoff=PLACE)
    def book(self, rider: str, pickup: Place, dropoff: Place) -> None:
        """A quote that is accepted, so that most runs have rides."""
        self.offer_quote(RIGHT, rider, pickup, dropoff, 0)
        self.request_ride(RIGHT, f"q{self.number}", 1)

    @precondition(lambda self: self.model.books.rides)
    @rule(who=ANYBODY, ride_id=RIDE, reason=st.sampled_from(["late", "no_show"]), after_s=LATER_S)
    def cancel_by_rider(self, who: Who, ride_id: str, reason: str, after_s: int) -> None:
        command = CancelRide(ride_id=ride_id, by="rider", reason=reason)
        self.by(
            who,
            self.rider_of(ride_id),
            after_s,
            lambda who: Deed(command, lambda: self.model.cancel_by_rider(who, ride_id, reason)),
        )

    @precondition(lambda self: self.model.books.rides)
    @rule(who=ANYBODY, ride_id=RIDE, dropoff=PLACE, after_s=LATER_S)
    def change_destination(self, who: Who, ride_id: str, dropoff: Place, after_s: int) -> None:
        command = ChangeDestination(ride_id=ride_id, dropoff=dropoff)
        self.by(
            who,
            self.rider_of(ride_id),
            after_s,
            lambda who: Deed(command, lambda: self.model.change_destination(who, ride_id, dropoff)),
        )

    @precondition(lambda self: self.model.books.rides)
    @rule(who=ANYBODY, ride_id=RIDE, partner_id=RIDE, after_s=LATER_S)
    def pool_ride(self, who: Who, ride_id: str, partner_id: str, after_s: int) -> None:
        self.by(who, self.rider_of(ride_id), after_s, lambda who: self._pool_ride(who, ride_id, partner_id))

    def _pool_ride(self, who: Who, ride_id: str, partner_id: str) -> Deed:
        command = PoolRide(ride_id=ride_id, partner_ride_id=partner_id)
        return Deed(command, lambda: self.model.pool_ride(who, ride_id, partner_id))

    @rule(
        riders=st.permutations(RIDERS),
        pickup=st.sampled_from(PLACES[2:]),
        dropoff=PLACE,
        apart_s=st.sampled_from([1, 1, 20, 400]),
        driver_id=st.sampled_from([None, *DRIVERS]),
        steps=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=2),
        seek=st.tuples(st.booleans(), st.booleans()),
    )
    def share(
        self,
        riders: list[str],
        pickup: Place,
        dropoff: Place,
        apart_s: int,
        driver_id: str | None,
        steps: list[tuple[bool, int]],
        seek: tuple[bool, bool] = (False, False),
    ) -> None:
        """Two riders agree to share a car, and perhaps a driver comes and drives on: so that many runs have pools."""
        pair: list[str] = []
        for rider, seeks_partner in zip(riders, seek, strict=False):
            self.offer_quote(RIGHT, rider, pickup, dropoff, apart_s)
            self.request_ride(RIGHT, f"q{self.number}", 0, seeks_partner=seeks_partner)
            pair.append(f"ride{self.number}")
        self.pool_ride(RIGHT, pair[0], pair[1], 1)
        self.pool_ride(RIGHT, pair[1], pair[0], 1)
        if driver_id is not None:
            self.go_online(RIGHT, driver_id, pickup, 1)
        for is_second, count in steps:
            self.drive_on(pair[is_second], count, 20, all_try=False)

    # ---------------------------------------------------------------- drivers

    @rule(who=ANYBODY, driver_id=st.sampled_from(DRIVERS), position=PLACE, after_s=LATER_S)
    def go_online(self, who: Who, driver_id: str, position: Place, after_s: int) -> None:
        self.by(who, ("driver", driver_id), after_s, lambda who: self._go_online(who, driver_id, position))

    def _go_online(self, who: Who, driver_id: str, position: Place) -> Deed:
        command = GoOnline(driver_id=driver_id, position=position)
        return Deed(command, lambda: self.model.go_online(who, driver_id, position))

    @rule(who=ANYBODY, driver_id=st.sampled_from([*DRIVERS, "nobody"]), after_s=LATER_S)
    def go_offline(self, who: Who, driver_id: str, after_s: int) -> None:
        command = GoOffline(driver_id=driver_id)
        self.by(
            who,
            ("driver", driver_id),
            after_s,
            lambda who: Deed(command, lambda: self.model.go_offline(who, driver_id)),
        )

    @rule(who=ANYBODY, driver_id=st.sampled_from([*DRIVERS, "nobody"]), position=PLACE, after_s=LATER_S)
    def report_location(self, who: Who, driver_id: str, position: Place, after_s: int) -> None:
        self.by(who, ("driver", driver_id), after_s, lambda who: self._report_location(who, driver_id, position))

    def _report_location(self, who: Who, driver_id: str, position: Place) -> Deed:
        command = ReportLocation(driver_id=driver_id, position=position)
        return Deed(command, lambda: self.model.report_location(who, driver_id, position))

    @rule(driver_id=st.sampled_from([*DRIVERS, "nobody"]), position=PLACE, after_s=LATER_S)
    def hear_position(self, driver_id: str, position: Place, after_s: int) -> None:
        self.do(
            HearPosition(driver_id=driver_id, position=position),
            lambda: self.model.hear_position(driver_id, position),
            self._time(after_s),
        )

    @precondition(lambda self: self.model.books.rides)
    @rule(who=ANYBODY, ride_id=RIDE, said=OF_DRIVER, reason=st.sampled_from(["flat tyre", "no_show"]), after_s=LATER_S)
    def cancel_by_driver(self, who: Who, ride_id: str, said: str, reason: str, after_s: int) -> None:
        driver_id = self.driver_of(ride_id, said)
        self.by(
            who,
            ("driver", driver_id or DRIVERS[0]),
            after_s,
            lambda who: self._cancel_by_driver(who, ride_id, driver_id, reason),
        )

    def _cancel_by_driver(self, who: Who, ride_id: str, driver_id: str | None, reason: str) -> Deed:
        command = CancelRide(ride_id=ride_id, by="driver", driver_id=driver_id, reason=reason)
        return Deed(command, lambda: self.model.cancel_by_driver(who, ride_id, driver_id, reason))

    @precondition(lambda self: self.model.books.rides)
    @rule(
        who=ANYBODY,
        kind=st.sampled_from(["arrive", "start", "complete"]),
        ride_id=RIDE,
        said=OF_DRIVER,
        odometer_m=ODOMETER_M,
        after_s=LATER_S,
    )
    def drive(self, who: Who, kind: str, ride_id: str, said: str, odometer_m: int, after_s: int) -> None:
        driver_id = self.driver_of(ride_id, said) or DRIVERS[0]
        deeds: Mapping[str, Callable[[Who], Deed]] = {
            "arrive": lambda who: self._arrive(who, ride_id, driver_id),
            "start": lambda who: self._start(who, ride_id, driver_id),
            "complete": lambda who: self._complete(who, ride_id, driver_id, odometer_m),
        }
        self.by(who, ("driver", driver_id), after_s, deeds[kind])

    @precondition(lambda self: self.model.books.rides)
    @rule(
        ride_id=RIDE,
        steps=st.integers(1, 3),
        after_s=st.sampled_from([20, 0, 1, 400, 3_000]),
        all_try=st.sampled_from([False, False, False, True]),
    )
    def drive_on(self, ride_id: str, steps: int, after_s: int, *, all_try: bool) -> None:
        """The next steps of a ride by its driver, so that many rides come to their end."""
        for _ in range(steps):
            ride = self.model.books.rides.get(ride_id)
            kind = {"matched": "arrive", "arrived": "start"}.get(ride.state if ride is not None else "", "complete")
            self.drive(RIGHT, kind, ride_id, "the ride's", 5_000, after_s)
            if all_try:
                self.everybody_tries_everything(ride_id, "none", 0)

    @precondition(lambda self: self.model.books.rides)
    @rule(ride_id=RIDE, drivers=st.integers(2, 5))
    def drivers_leave(self, ride_id: str, drivers: int) -> None:
        """One driver after the other comes, gets the ride perhaps, and leaves it."""
        for driver_id in DRIVERS[:drivers]:
            ride = self.model.books.rides.get(ride_id)
            self.go_online(RIGHT, driver_id, PLACES[0] if ride is None else ride.pickup, 1)
            self.cancel_by_driver(RIGHT, ride_id, "the ride's", "flat tyre", 1)

    def _arrive(self, who: Who, ride_id: str, driver_id: str) -> Deed:
        command = ReportArrival(ride_id=ride_id, driver_id=driver_id)
        return Deed(command, lambda: self.model.arrive(who, ride_id, driver_id))

    def _start(self, who: Who, ride_id: str, driver_id: str) -> Deed:
        command = StartRide(ride_id=ride_id, driver_id=driver_id)
        return Deed(command, lambda: self.model.start(who, ride_id, driver_id))

    def _complete(self, who: Who, ride_id: str, driver_id: str, odometer_m: int) -> Deed:
        command = CompleteRide(ride_id=ride_id, driver_id=driver_id, distance_m=odometer_m)
        return Deed(command, lambda: self.model.complete(who, ride_id, driver_id, odometer_m))

    @rule(
        who=st.one_of(st.just(("fleet", "fleet")), ANYBODY),
        ride_id=RIDE,
        said=OF_DRIVER,
        kinds=st.lists(
            st.sampled_from(["online", "location", "arrive", "start", "complete", "cancel"]), min_size=1, max_size=4
        ),
        position=PLACE,
        apart_s=st.sampled_from([None, 0, 4, -5]),
        after_s=LATER_S,
    )
    def update_drivers(
        self,
        who: Who,
        ride_id: str,
        said: str,
        kinds: list[str],
        position: Place,
        apart_s: int | None,
        after_s: int,
    ) -> None:
        driver_id = self.driver_of(ride_id, said) or DRIVERS[0]
        deeds: Mapping[str, Callable[[Who], Deed]] = {
            "online": lambda who: self._go_online(who, driver_id, position),
            "location": lambda who: self._report_location(who, driver_id, position),
            "arrive": lambda who: self._arrive(who, ride_id, driver_id),
            "start": lambda who: self._start(who, ride_id, driver_id),
            "complete": lambda who: self._complete(who, ride_id, driver_id, 1_000),
            "cancel": lambda who: self._cancel_by_driver(who, ride_id, driver_id, "flat tyre"),
        }
        base = self._time(after_s)

        def all_of(who: Who) -> Deed:
            parts = [deeds[kind](who) for kind in kinds]
            times = [
                None if apart_s is None else base + timedelta(seconds=apart_s * turn) for turn in range(len(kinds))
            ]
            # Any: the parts give drivers and rides, each wrapped by itself as the route does it
            updates: list[Any] = [
                (ByCaller(caller=_caller(who), command=part.command), at) for part, at in zip(parts, times, strict=True)
            ]
            should = [(part.expected, at) for part, at in zip(parts, times, strict=True)]
            return Deed(UpdateDrivers(updates=updates), lambda: self.model.update_drivers(who, should))

        self.by(who, ("driver", driver_id), min(0, after_s), all_of)

    @rule(who=ANYBODY, after_s=LATER_S)
    def move_clock(self, who: Who, after_s: int) -> None:
        self.by(who, ("operator", "clock"), after_s, lambda who: Deed(MoveClock(), lambda: self.model.move_clock(who)))

    # ---------------------------------------------------------------- timers and other services

    @precondition(lambda self: self.stored.timers and not self.is_pending)
    @rule(data=st.data(), delivered=st.sampled_from([True, True, False]))
    def elapse(self, data: st.DataObject, *, delivered: bool) -> None:
        """The relay publishes a timer that is due; booking may read it late."""
        names = sorted(self.stored.timers)
        of_rides = [name for name in names if not name.startswith("quote_expiry")]
        name = data.draw(st.sampled_from([*of_rides * 5, *names]))
        command = elapsed(self.stored.timers.pop(name))
        for books in (self.model.books, self.committed):
            del books.timers[command.kind, command.subject_id]
        self.clock = max(self.clock, command.due_at)
        self.elapsed.append(command)
        if delivered:
            self._deliver(command)

    @precondition(lambda self: self.elapsed)
    @rule(data=st.data())
    def elapse_late_or_again(self, data: st.DataObject) -> None:
        self._deliver(data.draw(st.sampled_from(self.elapsed)))

    def _deliver(self, command: Elapse) -> None:
        self.do(command, lambda: self.model.elapse(command.kind, command.subject_id, command.seq), command.due_at)

    @precondition(lambda self: self.model.books.rides)
    @rule(
        ride_id=RIDE_OF_ANY_STATE,
        kind=st.sampled_from(["authorised", "captured", "failed", "failed", "released", "refunded"]),
        stage=st.sampled_from(["authorise", "reauthorise", "capture"]),
        amount=st.sampled_from([0, 500, 800]),
        owes=st.booleans(),
    )
    def hear_payment(self, ride_id: str, kind: str, stage: str, amount: int, *, owes: bool) -> None:
        """Payment gives back no more than was paid; hailbus hands its events over in the order of their numbers."""
        ride = self.model.books.rides.get(ride_id)
        seq, paid, state = (0, 0, "") if ride is None else (ride.money.seq, ride.money.paid, ride.state)
        number = seq + 1
        said_amount = min(amount, paid) if kind == "refunded" else amount
        owed = 700 if owes and kind == "failed" and state in ENDED else None
        said: Any = kind  # Any: mypy takes a drawn text for any text
        news = PaymentNews(kind=said, seq=number, amount_minor=said_amount, stage=stage, owed_minor=owed)
        self.do(
            ApplyPayment(ride_id=ride_id, news=news),
            lambda: self.model.hear_payment(ride_id, kind, number, said_amount, stage, owed),
            self.clock,
        )
        if ride is not None and owed is not None:
            self.book(ride.rider, ride.pickup, ride.dropoff)  # who owes money asks for another ride

    @rule(
        where=PLACE,
        multiplier=st.sampled_from([1.0, 1.3, 2.5]),
        ahead=st.sampled_from([1, 1, 0, -1]),
        valid_s=st.sampled_from([600, 60, -1]),
    )
    def hear_surge(self, where: Place, multiplier: float, ahead: int, valid_s: int) -> None:
        known = self.model.books.surge.get(where.cell)
        version = (1 if known is None else known.version) + ahead
        valid_until = self.clock + timedelta(seconds=valid_s)
        said = Multiplier(cell=where.cell, multiplier=multiplier, version=version, valid_until=valid_until)
        self.do(
            ApplySurge(multiplier=said),
            lambda: self.model.hear_surge(where.cell, multiplier, version, valid_until),
            self.clock,
        )

    @rule(who=ANYBODY.filter(lambda who: who not in {RIGHT, ("anyone", "")}), ride_id=RIDE, driver_id=OF_DRIVER)
    def nobody_speaks_for_the_system(self, who: Who, ride_id: str, driver_id: str) -> None:
        """What comes from timers, payment, surge and driver apps is no caller's command; and callers read their own."""
        commands: Sequence[Command[object]] = (
            Elapse(kind="no_show", subject_id=ride_id, seq=1, due_at=self.clock),
            ApplyPayment(ride_id=ride_id, news=PaymentNews(kind="captured", seq=1, amount_minor=1)),
            ApplySurge(multiplier=Multiplier(cell="c", multiplier=2.0, version=9, valid_until=self.clock)),
            HearPosition(driver_id=driver_id, position=PLACES[0]),
        )
        for command in commands:
            self.do(ByCaller(caller=_caller(who), command=command), _not_allowed, self.clock)
        self._read(who)
        self._read(("anyone", ""))

    def _read(self, who: Who) -> None:
        """Callers read what is theirs."""
        caller = _caller(who)
        for ride_id in self.model.books.rides:
            assert may_see(caller, self.ride(ride_id)) == self.model.may_read_ride(who, ride_id)
        for quote_id in self.model.books.quotes:
            assert may_see(caller, self.quote(quote_id)) == self.model.may_read_quote(who, quote_id)
        if who[0] == "driver":
            refused: set[str] = set()
            for driver_id in DRIVERS:
                try:
                    check_sees_driver(caller, driver_id)
                except NotAllowed:
                    refused.add(driver_id)
            assert refused == set(DRIVERS) - {who[1]}

    @precondition(lambda self: self.model.books.rides)
    @rule(ride_id=RIDE_OF_ANY_STATE, quote_id=QUOTE, after_s=st.sampled_from([0, 0, 31, 400]))
    def everybody_tries_everything(self, ride_id: str, quote_id: str, after_s: int) -> None:
        """All commands by all kinds of callers in the present state, each taken back."""
        self._time(after_s)
        driver_id = self.driver_of(ride_id, "the ride's")
        assert driver_id is not None
        others = [("rider", name) for name in RIDERS] + [("driver", name) for name in DRIVERS]
        for who in [*others, ("fleet", "fleet"), ("operator", "r1"), ("anyone", "")]:
            named = who[1] if who[0] == "driver" else driver_id
            others_rides = [other for other in self.model.books.rides if other != ride_id]
            partner_id = others_rides[-1] if others_rides else ride_id
            for deed in [*self._all_deeds(who, ride_id, named, quote_id), self._pool_ride(who, ride_id, partner_id)]:
                self.probe(ByCaller(caller=_caller(who), command=deed.command), deed.expected)
        ride = self.model.books.rides.get(ride_id)
        if ride is None:
            return
        for kind, seq in itertools.product(TIMER_KINDS, (ride.state_seq, ride.state_seq - 1)):
            timer = Elapse(kind=kind, subject_id=ride_id, seq=seq, due_at=self.clock)
            self.probe(timer, partial(self.model.elapse, kind, ride_id, seq))
        for stage in ("authorise", "capture"):
            seq = ride.money.seq + 1
            news = PaymentNews(kind="failed", seq=seq, amount_minor=800, stage=stage, owed_minor=None)
            self.probe(
                ApplyPayment(ride_id=ride_id, news=news),
                partial(self.model.hear_payment, ride_id, "failed", seq, 800, stage, None),
            )

    def _all_deeds(self, who: Who, ride_id: str, driver_id: str, quote_id: str) -> list[Deed]:
        model, place = self.model, PLACES[1]
        rider = who[1] if who[0] == "rider" else RIDERS[0]
        return [
            self._arrive(who, ride_id, driver_id),
            self._start(who, ride_id, driver_id),
            self._complete(who, ride_id, driver_id, 5_000),
            self._cancel_by_driver(who, ride_id, driver_id, "flat tyre"),
            self._cancel_by_driver(who, ride_id, driver_id, "no_show"),
            self._go_online(who, driver_id, place),
            self._report_location(who, driver_id, place),
            Deed(GoOffline(driver_id=driver_id), lambda: model.go_offline(who, driver_id)),
            Deed(
                CancelRide(ride_id=ride_id, by="rider", reason="late"),
                lambda: model.cancel_by_rider(who, ride_id, "late"),
            ),
            Deed(
                ChangeDestination(ride_id=ride_id, dropoff=place),
                lambda: model.change_destination(who, ride_id, place),
            ),
            Deed(
                RequestRide(ride_id="probed", quote_id=quote_id),
                lambda: model.request_ride(who, "probed", quote_id),
            ),
            Deed(
                OfferQuote(quote_id="probed", rider_id=rider, pickup=place, dropoff=PLACES[0]),
                lambda: model.offer_quote(who, "probed", rider, place, PLACES[0]),
            ),
        ]

    # ---------------------------------------------------------------- commits and restarts

    @rule()
    def restart(self) -> None:
        """The process is killed: what was not committed never happened."""
        self.world = self.stored.load()
        self.model.books = self.committed.copy()
        self.batch_left, self.is_pending = self.batch, False
        self.needs.clear()
        self._compare_timers()


def _not_allowed() -> object:
    raise expected.Refused("NotAllowed")


def _caller(who: Who) -> Caller:
    return Caller(role=Role(who[0]), subject=who[1])


def _told(item: Outgoing) -> Told:
    """An event as the model says it, with every field that the model has for its type."""
    info = event_info(item.event)
    key = getattr(item.event, info.key_field or "")
    seq: int = getattr(item.event, "seq")  # noqa: B009 mypy knows no seq on Event
    said = {name: _plain(getattr(item.event, name)) for name in SAID.get(info.type, ())}
    return Told(type=info.type, key=key, seq=seq, at=item.time, said=tuple(sorted(said.items())))


SAID: Final[Mapping[str, tuple[str, ...]]] = {
    "quote.offered": ("fare", "multiplier"),
    "quote.accepted": ("ride_id",),
    "ride.requested": ("fare", "multiplier"),
    "ride.matched": ("driver_id", "eta_s"),
    "ride.driver_arrived": ("driver_id",),
    "ride.started": ("driver_id",),
    "ride.completed": ("fare", "multiplier", "distance_m", "duration_s", "driver_id", "reason"),
    "ride.cancelled": ("by", "reason", "stage", "driver_id"),
    "ride.unmatched": ("reason",),
    "ride.redispatched": ("driver_id", "attempt", "reason"),
    "ride.repriced": ("fare", "reason"),
    "ride.pooled": ("fare", "single_fare", "partner_ride_id", "pickup_order"),
    "driver.went_online": ("cell",),
    "driver.became_busy": ("ride_id",),
    "driver.became_free": ("cell",),
}
"""The fields that are compared."""


def _plain(value: object) -> object:
    return value.amount_minor if isinstance(value, Money) else value


def _by_key(told: Any) -> dict[tuple[str, str], list[Told]]:  # Any: a list or a generator
    """Events of one key keep their order; those of different keys have none."""
    found: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for one in told:
        found[one.type.partition(".")[0], one.key].append(one)
    return dict(found)


def _of_ride(ride: Ride) -> expected.Ride:
    payment = ride.payment
    return expected.Ride(
        rider=ride.rider_id,
        quote=ride.quote_id,
        pickup=ride.pickup,
        dropoff=ride.dropoff,
        route_m=ride.route_m,
        fare=ride.fare_minor,
        multiplier=ride.multiplier,
        requested_at=ride.requested_at,
        updated_at=ride.updated_at,
        state=ride.state.value,
        seq=ride.seq,
        state_seq=ride.timer_seq,
        driver=ride.driver_id,
        eta_s=ride.eta_s,
        had_by=ride.declined,
        matched_at=ride.matched_at,
        arrived_at=ride.arrived_at,
        started_at=ride.started_at,
        reason=ride.reason,
        cancelled_by=ride.cancelled_by,
        wish=ride.pool_wish,
        pool=ride.pooled_with,
        is_held=ride.seeks_partner,
        alone=ride.single_fare_minor,
        money=expected.Money(
            seq=payment.seq, state=payment.state.value, paid=payment.paid_minor, owed=payment.owed_minor
        ),
    )


def _of_driver(driver: Driver) -> expected.Driver:
    return expected.Driver(
        status=driver.status.value,
        position=driver.position,
        seq=driver.seq,
        updated_at=driver.updated_at,
        heard_at=driver.heard_at,
        ride=driver.ride_id,
    )


def _of_quote(quote: Quote) -> expected.Quote:
    return expected.Quote(
        rider=quote.rider_id,
        pickup=quote.pickup,
        dropoff=quote.dropoff,
        route_m=quote.distance_m,
        fare=quote.fare_minor,
        multiplier=quote.multiplier,
        offered_at=quote.offered_at,
        expires_at=quote.expires_at,
        state=quote.state.value,
        seq=quote.seq,
    )


TestBooking = Booking.TestCase
TestBooking.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,  # to shrink one takes a minute
)
TestBooking.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]  # Hypothesis shrinks for 300 s at most
