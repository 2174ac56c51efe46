"""How soon riders are fetched, on the demo's simulated city.

`uv run python -m tests.bench.booking.matching` plays seeded riders and drivers through booking's decisions, in memory
and in event time. The same seeds give the same riders at every commit, so two commits can be compared. Riders give up
and drivers cancel as in the demo. Drivers are never silent here, and a car needs just as long as booking estimates.
"""

import argparse
import heapq
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import h3
from booking.app.cancel_ride import CancelRide
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.elapse import Elapse
from booking.app.offer_quote import OfferQuote
from booking.app.policy import Policy
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.world import World
from booking.domain.driver import DriverStatus
from booking.domain.errors import Refusal
from booking.domain.place import Place
from booking.domain.ride import Ride, RideState
from hailbus_demo.city.plan import DriverStarts, DriverStops, Plan, RidePlan
from hailbus_demo.city.simulate import Simulator, with_drivers
from hailbus_demo.city.table import City
from ride_events.rides import RideMatched
from ride_events.timers import RideOverdue, TimerElapsed

from tests.bench.report import Run

MOVES_SHARE = 0.6
"""Share of drivers who, after a ride, go where riders were last seen; as in the demo."""
QUIETEST_ETA_S = 20
SILENCE = timedelta(days=1)


def place(lat_lng: tuple[float, float]) -> Place:
    lat, lng = lat_lng
    return Place(lat=lat, lng=lng, cell=h3.latlng_to_cell(lat, lng, 8))


def moment(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


@dataclass(slots=True)
class Found:
    """What came of the rides that were requested."""

    requested: int = 0
    unmatched: int = 0
    arrival_s: list[float] = field(default_factory=list)
    """For each match, how long the driver is estimated to need."""
    fetched_s: list[float] = field(default_factory=list)
    """For each ride that was matched, from the request to the estimated arrival of its first driver."""
    waited_s: list[float] = field(default_factory=list)
    """The part of it before the match."""


class Play:
    """One run of the plans."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.world = World(policy)
        self.found = Found()
        self.random = Random(f"{seed}:moves")
        self.turns = itertools.count()
        self.heap: list[tuple[int, int, Callable[[int], None]]] = []
        self.timers: dict[str, int] = {}
        self.plans: dict[str, RidePlan] = {}
        self.matches: dict[str, int] = {}
        self.leaving: set[str] = set()
        self.recent: list[Place] = []

    def at(self, at_ms: int, action: Callable[[int], None]) -> None:
        heapq.heappush(self.heap, (at_ms, next(self.turns), action))

    def run(self, plans: Iterator[Plan]) -> Found:
        upcoming = next(plans, None)
        while self.heap or upcoming is not None:
            if upcoming is not None:
                due_ms = upcoming.asks_at_ms if isinstance(upcoming, RidePlan) else upcoming.at_ms
                if not self.heap or due_ms <= self.heap[0][0]:
                    self.begin(upcoming, due_ms)
                    upcoming = next(plans, None)
                    continue
            at_ms, _, action = heapq.heappop(self.heap)
            action(at_ms)
        return self.found

    def begin(self, plan: Plan, at_ms: int) -> None:
        match plan:
            case RidePlan():
                if plan.accepts:
                    self.at(at_ms + plan.accepts_after_ms, lambda now: self.request(plan, now))
            case DriverStarts():
                self.leaving.discard(plan.driver_id)
                self.do(GoOnline(driver_id=plan.driver_id, position=place(plan.place)), at_ms)
            case DriverStops():
                self.leaving.add(plan.driver_id)
                self.leave(plan.driver_id, at_ms)

    def do(self, command: Command[object], at_ms: int) -> bool:
        self.world.begin(moment(at_ms))
        try:
            command.decide(self.world)
        except Refusal:
            self.world.undo()
            return False
        changes = self.world.take_changes()
        for name in changes.cancelled:
            self.timers.pop(name, None)
        for name, item in changes.timers.items():
            number = next(self.turns)
            self.timers[name] = number
            assert isinstance(item.event, TimerElapsed | RideOverdue)
            self.at(ms(item.event.due_at), self.elapse(name, number, item.event))
        for one in changes.outgoing:
            if isinstance(one.event, RideMatched):
                self.matched(changes.rides[one.event.ride_id], one.event)
        for ride in changes.rides.values():
            self.found.unmatched += ride.state is RideState.UNMATCHED
        self.world.forget_settled(changes)
        return True

    def elapse(self, name: str, number: int, event: TimerElapsed | RideOverdue) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            if self.timers.get(name) != number:
                return
            del self.timers[name]
            subject = event.subject_id if isinstance(event, TimerElapsed) else event.ride_id
            kind = name.partition(":")[0]
            # type: ignore: the name begins with a kind of timer
            self.do(Elapse(kind=kind, subject_id=subject, seq=event.seq, due_at=event.due_at), now_ms)  # type: ignore[arg-type]

        return when_due

    # Riders

    def request(self, plan: RidePlan, at_ms: int) -> None:
        pickup = place(plan.pickup)
        self.recent = [*self.recent[-199:], pickup]
        quote_id, ride_id = f"q-{plan.key}", plan.key
        self.plans[ride_id] = plan
        self.do(OfferQuote(quote_id=quote_id, rider_id=plan.key, pickup=pickup, dropoff=place(plan.dropoff)), at_ms)
        self.found.requested += 1
        self.do(RequestRide(ride_id=ride_id, quote_id=quote_id), at_ms)
        if plan.gives_up == "requested":
            self.at(at_ms + plan.gives_up_after_ms, self.rider_cancels(ride_id, None))

    def rider_cancels(self, ride_id: str, driver_id: str | None) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            if driver_id is None or self.is_with(ride_id, driver_id):
                self.do(CancelRide(ride_id=ride_id, by="rider", reason="changed_plans"), now_ms)
                if driver_id is not None:
                    self.leave(driver_id, now_ms)

        return when_due

    def ride(self, ride_id: str) -> Ride | None:
        try:
            return self.world.ride(ride_id)
        except Refusal:
            return None

    def is_with(self, ride_id: str, driver_id: str) -> bool:
        ride = self.ride(ride_id)
        return ride is not None and ride.driver_id == driver_id

    # Drivers

    def matched(self, ride: Ride, event: RideMatched) -> None:
        plan, driver_id, ride_id = self.plans[event.ride_id], event.driver_id, event.ride_id
        count = self.matches[ride_id] = self.matches.get(ride_id, 0) + 1
        assert ride.matched_at is not None
        self.found.arrival_s.append(event.eta_s)
        if count == 1:
            waited_s = (ride.matched_at - ride.requested_at).total_seconds()
            self.found.waited_s.append(waited_s)
            self.found.fetched_s.append(waited_s + event.eta_s)
        matched_ms = ms(ride.matched_at)
        arrives_ms = matched_ms + max(QUIETEST_ETA_S, event.eta_s) * 1000
        if count <= plan.driver_cancels:
            leaves_ms = min(matched_ms + plan.driver_cancels_after_ms, arrives_ms - 1)
            self.at(leaves_ms, self.driver_cancels(ride_id, driver_id))
        elif plan.gives_up == "matched":
            self.at(min(matched_ms + plan.gives_up_after_ms, arrives_ms - 1), self.rider_cancels(ride_id, driver_id))
        else:
            self.at(arrives_ms, self.arrives(ride_id, driver_id))

    def driver_cancels(self, ride_id: str, driver_id: str) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            command = CancelRide(ride_id=ride_id, by="driver", driver_id=driver_id, reason="vehicle_trouble")
            if self.is_with(ride_id, driver_id) and self.do(command, now_ms):
                self.leave(driver_id, now_ms)

        return when_due

    def arrives(self, ride_id: str, driver_id: str) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            if not self.is_with(ride_id, driver_id):
                return
            self.do(ReportArrival(ride_id=ride_id, driver_id=driver_id), now_ms)
            plan = self.plans[ride_id]
            if plan.gives_up == "arrived":
                leaves_ms = now_ms + min(plan.gives_up_after_ms, plan.boards_after_ms)
                self.at(leaves_ms, self.rider_cancels(ride_id, driver_id))
            else:
                self.at(now_ms + plan.boards_after_ms, self.starts(ride_id, driver_id))

        return when_due

    def starts(self, ride_id: str, driver_id: str) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            if self.do(StartRide(ride_id=ride_id, driver_id=driver_id), now_ms):
                self.at(now_ms + self.plans[ride_id].duration_s * 1000, self.completes(ride_id, driver_id))

        return when_due

    def completes(self, ride_id: str, driver_id: str) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            distance_m = self.plans[ride_id].distance_m
            self.do(CompleteRide(ride_id=ride_id, driver_id=driver_id, distance_m=distance_m), now_ms)
            self.leave(driver_id, now_ms)
            if self.random.random() < MOVES_SHARE:
                self.at(now_ms + 120_000 + int(self.random.random() * 240_000), self.moves(driver_id))

        return when_due

    def moves(self, driver_id: str) -> Callable[[int], None]:
        def when_due(now_ms: int) -> None:
            driver = self.world.driver(driver_id)
            near = self.recent[self.random.randrange(len(self.recent))]
            to = place((near.lat + self.random.gauss(0, 0.003), near.lng + self.random.gauss(0, 0.004)))
            if driver is not None and driver.status is DriverStatus.FREE:
                self.do(ReportLocation(driver_id=driver_id, position=to), now_ms)

        return when_due

    def leave(self, driver_id: str, at_ms: int) -> None:
        """Go home when the shift is over and no rider was quicker."""
        driver = self.world.driver(driver_id)
        if driver_id in self.leaving and driver is not None and driver.status is DriverStatus.FREE:
            self.leaving.discard(driver_id)
            self.do(GoOffline(driver_id=driver_id), at_ms)


def p90(values: list[float]) -> float:
    return sorted(values)[len(values) * 9 // 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=0.5, help="how long riders ask, from Friday, 2 May 2014, 17:00")
    parser.add_argument("--rides-per-minute", type=float, nargs="+", default=[20.0, 60.0])
    parser.add_argument("--supply", type=float, nargs="+", default=[1.3, 1.0])
    options = parser.parse_args()
    run = Run(f"uv run python -m tests.bench.booking.matching --seeds {options.seeds}", rounds=options.seeds)
    city = City()
    start_ms = ms(datetime(2014, 5, 2, 17, tzinfo=UTC))
    for per_minute, supply in itertools.product(options.rides_per_minute, options.supply):
        results: list[Found] = []
        for seed in range(1, options.seeds + 1):
            simulator = Simulator(city, seed=seed, rides_per_minute=per_minute)
            rides = simulator.rides(start_ms, start_ms + int(options.hours * 3_600_000))
            results.append(Play(Policy(silent_after=SILENCE), seed).run(with_drivers(rides, seed=seed, supply=supply)))
        asked = statistics.mean(one.requested for one in results)
        run.table(
            f"{per_minute:g} riders a minute over the week, supply {supply:g}",
            condition=f"{asked:,.0f} requests a seed, median of {options.seeds} seeds",
            columns=["booking"],
        )
        run.add("estimated arrival, mean", "s", [statistics.mean(one.arrival_s) for one in results])
        run.add("estimated arrival, p90", "s", [p90(one.arrival_s) for one in results])
        run.add("request to estimated arrival, mean", "s", [statistics.mean(one.fetched_s) for one in results])
        run.add("request to estimated arrival, p90", "s", [p90(one.fetched_s) for one in results])
        run.add("request to match, mean", "s", [statistics.mean(one.waited_s) for one in results])
        run.add("unmatched", "%", [100 * one.unmatched / one.requested for one in results])


if __name__ == "__main__":
    os.nice(10)
    main()
