"""Riders and drivers who act: each plan becomes requests, each answer becomes what its rider or driver does next.

Booking decides who drives whom; the plans decide everything else. Nothing is asked twice under two keys: every request
carries a key made of the run, the ride and the step, so that a repeated one after a crash finds the first one's answer.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol

from hailbus_demo.city.plan import DriverStarts, DriverStops, Place, Plan, RidePlan, to_datetime, to_ms, to_text
from hailbus_demo.replay.book import ENDED, Book
from hailbus_demo.replay.stage import Action, Stage
from hailbus_demo.replay.sure import GaveUpError, SureClient
from hailbus_demo.replay.updates import DriverUpdates

POLL_EVERY_MS = 15_000
"""How often, in event time, riders who wait for a driver look whether they have one."""
POLL_IDS = 100
CLOCK_EVERY_MS = 60_000
"""How far, in event time, booking's clock may fall behind while riders wait and nothing else moves it."""
WAITS_AT_MOST_MS = 6 * 60_000
TIMER_PATIENCE_S = 0.2
QUIETEST_ETA_MS = 20_000
ASKS_AGAIN_MS = 4 * 60_000
"""How long a rider who finds the price too high waits before asking again."""
SEEKS_PARTNER_EVERY_MS = 15_000
"""How often a rider who would share asks for a partner: the other rider may ask for a ride later."""
SEEKS_PARTNER_TIMES = 10
AWAITS_PARTNER_MS = 10_000
"""How often the driver of a pool looks whether the other rider is on board."""
MOVES_SHARE = 0.6
"""Share of drivers who, after a ride, go where riders were last seen."""
ENDS_WITHIN_MS = 30 * 60_000
"""Event time after the last action by which every timer of booking has come due."""

FAST_LOCATIONS_MS = 25_000
"""Event time between two positions when event time flies: surge wants to have seen a driver within 30 s."""
SLOW_LOCATIONS_MS = 4_000
FAST_FROM = 5.0
"""Speed from which positions are reported less often and only by free drivers."""
LATE_AT_MOST_S = 10.0
"""How long, by the machine's clock, a position may take to booking before its driver counts as silent."""
SHORTEST_SILENCE_S = 30
LONGEST_SILENCE_S = 604_800
"""Booking's limit, and what a replay as fast as possible takes: how far positions lag in event time has no bound."""


class Locations(Protocol):
    """Where driver apps send their positions; see `locations.py`."""

    def report(self, driver_id: str, place: Place, *, free: bool, ride_id: str | None, at_ms: int) -> None:
        """Send a position at most once, without waiting."""


class Advice(Protocol):
    """Asks for recommendations and tells which was taken; see `advice.py`."""

    async def ask(self, plan: RidePlan, at_ms: int, key: str) -> Any:
        """Return what was served, to be handed to `chosen`."""

    async def ask_for_partner(self, plan: RidePlan, at_ms: int, key: str) -> Any:
        """Return what was served to a rider who would share, with rides that go the same way as `pooled_rides`."""

    async def chosen(self, served: Any, plan: RidePlan, ride_id: str, at_ms: int, key: str) -> str | None:
        """Report the option that the rider took, if one of them was; return its id."""

    async def take(self, served: Any, option_id: str, ride_id: str, at_ms: int, key: str) -> bool:
        """Report the option that the rider took; say whether the recommender took it."""


@dataclass(slots=True)
class DriverState:
    """A driver as the replay knows it. `leg` is where from and to the car moves, and when.

    `serving` are the rides that the driver has: one, or two that are pooled.
    """

    driver_id: str
    place: Place
    online: bool = False
    serving: list[str] = field(default_factory=list)
    stops: bool = False
    rides: int = 0
    region: str = ""
    leg: tuple[Place, Place, int, int] | None = None

    @property
    def ride_id(self) -> str | None:
        """The ride that the driver has, of two pooled ones the first."""
        return self.serving[0] if self.serving else None

    def position(self, at_ms: int) -> Place:
        """Return the place at an event time: along the leg, or where it ended."""
        if self.leg is None:
            return self.place
        start, end, from_ms, to_ms_ = self.leg
        share = min(max((at_ms - from_ms) / max(to_ms_ - from_ms, 1), 0.0), 1.0)
        return (
            round(start[0] + share * (end[0] - start[0]), 5),
            round(start[1] + share * (end[1] - start[1]), 5),
        )


@dataclass(slots=True)
class RideState:
    """A ride as the replay knows it. `matches` counts its drivers; `step` grows so that stale actions notice.

    `seq` is how much of its story is known: the number of its last event. `due_ms` is when the car comes to the pickup
    or to the end. `wish` and `pooled_with` are other rides, as booking says.
    """

    plan: RidePlan
    quote_id: str | None = None
    ride_id: str | None = None
    state: str = "asking"
    driver_id: str | None = None
    matches: int = 0
    step: int = 0
    asked_again: bool = False
    seq: int = 0
    requested_ms: int = 0
    due_ms: int = 0
    wish: str | None = None
    pooled_with: str | None = None
    matched_at: str | None = None
    served: Any = None


class World:
    """Turns plans into actions on a stage.

    Args:
        stage: Where actions run.
        booking: Booking's API.
        book: Where rides and their ends are noted.
        run: Prefix of every idempotency key: unique per run against the same booking.
        locations: Where positions go, `None` for nowhere.
        location_every_ms: Event time between two positions of one driver.
        busy_locations: Whether drivers with a ride report, too; surge needs the free ones only.
        advice: The recommender, `None` for none.
        region_of: Returns the region of booking that owns a place, `None` where one process serves everywhere. Drivers
            stay in the region in which they went online, and each region has a clock of its own.
    """

    def __init__(
        self,
        *,
        stage: Stage,
        booking: SureClient,
        book: Book,
        run: str,
        locations: Locations | None = None,
        location_every_ms: int = 4_000,
        busy_locations: bool = True,
        advice: Advice | None = None,
        region_of: Callable[[Place], str] | None = None,
    ) -> None:
        self.stage = stage
        self.booking = booking
        self.book = book
        self.run_id = run
        self.updates = DriverUpdates(booking, prefix=run)
        self.locations = locations
        self.location_every_ms = location_every_ms
        self.busy_locations = busy_locations
        self.advice = advice
        self.region_of = region_of
        self.drivers: dict[str, DriverState] = {}
        self.rides: dict[str, RideState] = {}
        """Rides that are not ended, by ride id."""
        self._waiting: dict[str, RideState] = {}
        self._polling = False
        self._driver_steps = 0
        self._clock_ms = 0
        """Where booking's clock stands because of a request that carried a time."""
        self._recent_pickups: list[Place] = []
        self._reporting = False

    async def play(self, plans: Iterator[Plan]) -> None:
        """Act out plans in order of time until all rides have ended, or the stage is stopped."""
        await self.stage.run(plans, self._begin)

    async def adopt(self) -> int:
        """Take over what an earlier run left in booking: rides under way and drivers online; return the rides.

        Rides that the book does not know (a run was killed between a request and its answer) are noted.
        """
        adopted = 0
        serving: dict[str, list[str]] = {}
        async for body in self._pages("/rides", "rides"):
            ride_id, state = body["ride_id"], body["state"]
            known = self.book.rides.get(ride_id)
            if known is None or known.state not in ENDED:
                self.book.note_ride(body)
            if state in ENDED:
                continue
            adopted += 1
            ride = RideState(plan=_plan_of(body), quote_id=body["quote_id"], ride_id=ride_id)
            self.rides[ride_id] = ride
            if body["driver_id"] is not None:
                serving.setdefault(body["driver_id"], []).append(ride_id)
            self.stage.at(_ms(body["requested_at"]), partial(self._resume, ride, body))
        async for body in self._pages("/drivers?status=free&status=busy", "drivers"):
            driver = self._driver(body["driver_id"], _place(body["position"]) or (0.0, 0.0))
            driver.online = True
            driver.serving = serving.get(driver.driver_id, [])
        return adopted

    async def _pages(self, path: str, what: str) -> Any:
        after = None
        while True:
            joined = f"{path}{'&' if '?' in path else '?'}limit=500" + (f"&after={after}" if after else "")
            page = await self.booking.get(joined)
            for body in page[what]:
                yield body
            after = page["next"]
            if after is None:
                return

    async def _resume(self, ride: RideState, body: Any, at_ms: int) -> None:
        await self._on_ride(ride, body, at_ms)
        driver = self.drivers.get(ride.driver_id or "")
        if ride.state == "arrived":
            self._next(ride, at_ms + ride.plan.boards_after_ms, self._start)
        elif ride.state == "in_progress" and driver is not None:
            ride.due_ms = at_ms + ride.plan.duration_s * 1000
            self._next(ride, ride.due_ms, self._complete)

    async def settle(self, *, past_ms: int) -> None:
        """Move booking's clock so far on that its last timers (quotes that nobody accepted) come due."""
        self._driver_steps += 1
        self._clock_ms = max(self._clock_ms, past_ms)
        key = f"{self.run_id}:clock:{self._driver_steps}"
        status, body = await self.booking.post("/clock", {}, key=key, event_time=to_text(past_ms))
        if status != 200:
            raise GaveUpError(f"booking refused to move its clock with {status}: {body}")

    async def recheck(self) -> None:
        """Have every rider whose ride is under way look at it once more.

        When a run is stopped, nobody asks any more, and booking's timers may end a ride without its rider knowing.
        """
        waiting = sorted(self.rides)
        for i in range(0, len(waiting), POLL_IDS):
            ids = "&".join(f"ride_id={ride_id}" for ride_id in waiting[i : i + POLL_IDS])
            for body in (await self.booking.get(f"/rides?limit={POLL_IDS}&{ids}"))["rides"]:
                self.book.note_ride(body)

    def _begin(self, plan: Plan) -> tuple[int, Action]:
        match plan:
            case RidePlan():
                return plan.asks_at_ms, partial(self._ask, RideState(plan=plan))
            case DriverStarts():
                return plan.at_ms, partial(self._online, plan)
            case DriverStops():
                return plan.at_ms, partial(self._offline, plan.driver_id)

    # Riders

    async def _ask(self, ride: RideState, at_ms: int) -> None:
        plan = ride.plan
        if self.region_of is None:  # a request moves the clock of its own region only
            self._clock_ms = max(self._clock_ms, at_ms)
        if len(self._recent_pickups) >= 200:
            self._recent_pickups = self._recent_pickups[100:]
        self._recent_pickups.append(plan.pickup)
        if plan.asks_recommender and self.advice is not None and not ride.asked_again:
            ride.served = await self.advice.ask(plan, at_ms, f"{self.run_id}:{plan.key}:advice")
            self.book.recommendations_asked += 1
            if ride.served is not None:
                self.book.note_advice(plan.rider_id, ride.served)
        body = {
            "rider_id": plan.rider_id,
            "pickup": _as_json(plan.pickup),
            "dropoff": _as_json(plan.dropoff),
            "passengers": plan.passengers,
            "simulated": True,  # no recording holds a quote
        }
        status, quote = await self.booking.post(
            "/quotes",
            body,
            key=f"{self.run_id}:{plan.key}:quote{'-again' if ride.asked_again else ''}",
            event_time=to_text(at_ms),
            by=("rider", plan.rider_id),
        )
        if status != 201:
            self._refused("quote", status, quote)
            return
        self.book.note_quote(quote)
        ride.quote_id = quote["quote_id"]
        if not plan.accepts:
            self.book.quotes_left += 1
            return
        if quote["multiplier"] > plan.max_multiplier and not ride.asked_again:
            self.book.quotes_left += 1  # too dear: ask once more later, then take what it costs
            ride.asked_again = True
            self._next(ride, at_ms + ASKS_AGAIN_MS + plan.accepts_after_ms, self._ask)
            return
        self._next(ride, at_ms + plan.accepts_after_ms, self._accept)

    async def _accept(self, ride: RideState, at_ms: int) -> None:
        plan = ride.plan
        key = f"{self.run_id}:{plan.key}:ride"
        shares = plan.shares and self.advice is not None
        status, body = await self.booking.post(
            "/rides",
            {"quote_id": ride.quote_id, "seeks_partner": shares, "simulated": plan.simulated},
            key=key,
            event_time=to_text(at_ms),
            by=("rider", plan.rider_id),
        )
        if status != 201:
            self.book.quotes_left += 1
            self._refused("ride", status, body)
            return
        ride.ride_id = str(body["ride_id"])
        self.rides[ride.ride_id] = ride
        if ride.served is not None and self.advice is not None:
            taken = await self.advice.chosen(ride.served, plan, ride.ride_id, at_ms, f"{self.run_id}:{plan.key}:chosen")
            if taken is not None:
                self.book.recommendations_chosen += 1
                self.book.note_choice(ride.served["recommendation_id"], taken)
            ride.served = None
        await self._on_ride(ride, body, at_ms)
        if shares:
            self.stage.at(at_ms, partial(self._seek_partner, ride, 1))
        if plan.gives_up == "requested" and ride.state not in ENDED:
            self.stage.at(at_ms + plan.gives_up_after_ms, partial(self._gives_up_waiting, ride))

    async def _gives_up_waiting(self, ride: RideState, at_ms: int) -> None:
        if ride.state in ("requested", "redispatched", "matched"):
            await self._rider_cancels(ride, at_ms)

    async def _rider_cancels(self, ride: RideState, at_ms: int) -> None:
        if ride.state in ENDED:
            return
        status, body = await self.booking.post(
            f"/rides/{ride.ride_id}/cancel",
            {"by": "rider", "reason": "changed_plans"},
            key=f"{self.run_id}:{ride.plan.key}:cancel:{ride.step}",
            event_time=to_text(at_ms),
            by=("rider", ride.plan.rider_id),
        )
        await self._answered(ride, "cancel", status, body, at_ms)

    # Riders who share

    async def _seek_partner(self, ride: RideState, attempt: int, at_ms: int) -> None:
        """Ask for a rider who goes the same way, and agree to share; the other rider does the same."""
        plan = ride.plan
        if self.advice is None or not self._may_pool(ride):
            return
        key = f"{self.run_id}:{plan.key}:partner:{attempt}"
        served = await self.advice.ask_for_partner(plan, at_ms, key)
        self.book.recommendations_asked += 1
        if served is not None:
            self.book.note_advice(plan.rider_id, served)
            options = [option for option in served["pooled_rides"] if self._is_at_hand(ride, option)]
            # Most riders on offer would not share: who has not agreed until now is followed by the next one.
            option = options[(attempt - 1) % len(options)] if options else None
            if option is not None and option["ride_id"] != ride.wish and self._may_pool(ride):
                await self._agree(ride, served, option, at_ms, key)
        if self._may_pool(ride) and attempt < SEEKS_PARTNER_TIMES:
            self.stage.at(at_ms + SEEKS_PARTNER_EVERY_MS, partial(self._seek_partner, ride, attempt + 1))

    async def _agree(self, ride: RideState, served: Any, option: Any, at_ms: int, key: str) -> None:
        """Tell booking with whom the rider would share, and the recommender that its offer was taken."""
        status, body = await self.booking.post(
            f"/rides/{ride.ride_id}/pool",
            {"partner_ride_id": option["ride_id"]},
            key=f"{key}:pool",
            event_time=to_text(at_ms),
            by=("rider", ride.plan.rider_id),
        )
        if status != 200:  # it has a driver by now, or the rides do not fit: the rider goes alone
            self._refused("pool", status, body)
            return
        await self._on_ride(ride, body, at_ms)
        assert self.advice is not None
        assert ride.ride_id is not None
        if await self.advice.take(served, option["option_id"], ride.ride_id, at_ms, f"{key}:chosen"):
            self.book.recommendations_chosen += 1
            self.book.note_choice(served["recommendation_id"], option["option_id"])
        if ride.pooled_with is not None and (other := self.rides.get(ride.pooled_with)) is not None:
            # The other rider's app hears of it, too.
            await self._on_ride(other, await self.booking.get(f"/rides/{other.ride_id}"), at_ms)

    def _may_pool(self, ride: RideState) -> bool:
        return ride.state == "requested" and ride.pooled_with is None

    def _is_at_hand(self, ride: RideState, option: Any) -> bool:
        """Whether the ride of an option is of the same region: booking pools no others."""
        assert ride.ride_id is not None
        return self.region_of is None or _region_in(option["ride_id"]) == _region_in(ride.ride_id)

    def _partner(self, ride: RideState) -> RideState | None:
        """Return the ride that shares the driver of this one, as far as both riders know."""
        other = self.rides.get(ride.pooled_with or "")
        if other is None or other.pooled_with != ride.ride_id or other.driver_id != ride.driver_id:
            return None
        return other

    def _is_picked_up_before(self, ride: RideState, other: RideState) -> bool:
        return (ride.requested_ms, ride.ride_id or "") < (other.requested_ms, other.ride_id or "")

    def _awaits_partner(self, ride: RideState) -> bool:
        """Whether the driver of a pool has the other rider still to pick up, before this ride can take its next step.

        Who asked first is picked up first, and nobody is taken to the end before both are on board.
        """
        other = self._partner(ride)
        if other is None or other.state not in ("matched", "arrived"):
            return False
        return ride.state == "in_progress" or self._is_picked_up_before(other, ride)

    # Rides

    def _next(self, ride: RideState, at_ms: int, action: Callable[[RideState, int], Any]) -> None:
        """Plan the ride's next step; it is void when another step came first."""
        ride.step += 1
        step = ride.step

        async def when_due(now_ms: int) -> None:
            if ride.step == step:
                await action(ride, now_ms)

        self.stage.at(at_ms, when_due)

    async def _on_ride(self, ride: RideState, body: Any, at_ms: int) -> None:
        """Take booking's word on a ride and plan what follows.

        Answers to requests that crossed each other may come in any order: one that tells less than is known is void.
        """
        assert ride.ride_id is not None
        if body["seq"] < ride.seq:
            return
        ride.seq = body["seq"]
        state, driver_id = str(body["state"]), body["driver_id"]
        before, driver_before = ride.state, ride.driver_id
        ride.state = state
        ride.requested_ms = _ms(body["requested_at"])
        ride.wish, ride.pooled_with = body["pool_wish"], body["pooled_with"]
        self.book.note_ride(body)
        if state in ("requested", "redispatched"):
            if before != state or driver_before is not None:
                self._free(ride, at_ms)
            self._waiting[ride.ride_id] = ride
            self._poll_at(at_ms + POLL_EVERY_MS)
            return
        self._waiting.pop(ride.ride_id, None)
        if state in ENDED:
            ride.step += 1
            self._free(ride, at_ms)
            self.rides.pop(ride.ride_id, None)
            return
        if state == "matched" and (driver_before != driver_id or ride.matched_at != body["matched_at"]):
            ride.state = "redispatched" if ride.matched_at is not None else state  # the driver before did not complete
            self._free(ride, at_ms)
            ride.state, ride.matched_at = state, body["matched_at"]
            self._matched(ride, body)
        elif driver_id is not None:
            ride.driver_id = str(driver_id)

    def _matched(self, ride: RideState, body: Any) -> None:
        plan = ride.plan
        ride.driver_id = str(body["driver_id"])
        ride.matches += 1
        matched_ms = _ms(body["matched_at"])
        arrives_ms = matched_ms + max(QUIETEST_ETA_MS, int(body["eta_s"] or 0) * 1000)
        ride.due_ms = arrives_ms
        driver = self._driver(ride.driver_id, plan.pickup)
        assert ride.ride_id is not None
        if ride.pooled_with not in driver.serving:
            driver.serving.clear()
        if ride.ride_id not in driver.serving:
            driver.serving.append(ride.ride_id)
        if not self._awaits_partner(ride):
            self._head_for_next(driver, ride, matched_ms)
        if ride.matches <= plan.driver_cancels:
            self._next(ride, min(matched_ms + plan.driver_cancels_after_ms, arrives_ms - 1), self._driver_cancels)
        elif plan.gives_up == "matched":
            self._next(ride, min(matched_ms + plan.gives_up_after_ms, arrives_ms - 1), self._rider_cancels)
        else:
            self._next(ride, arrives_ms, self._arrive)

    def _head_for_next(self, driver: DriverState, ride: RideState, at_ms: int) -> None:
        """Have the car go to a ride's pickup or, with its rider on board, to its end."""
        place = ride.plan.dropoff if ride.state == "in_progress" else ride.plan.pickup
        driver.leg = (driver.position(at_ms), place, at_ms, max(ride.due_ms, at_ms))
        driver.place = place

    async def _arrive(self, ride: RideState, at_ms: int) -> None:
        if self._awaits_partner(ride):
            self._next(ride, at_ms + AWAITS_PARTNER_MS, self._arrive)
            return
        status, body = await self._update(ride, {"kind": "arrived"}, at_ms)
        if await self._answered(ride, "arrived", status, body, at_ms) and ride.state == "arrived":
            plan = ride.plan
            if plan.gives_up == "arrived":
                self._next(ride, at_ms + min(plan.gives_up_after_ms, plan.boards_after_ms), self._rider_cancels)
            else:
                self._next(ride, at_ms + plan.boards_after_ms, self._start)

    async def _start(self, ride: RideState, at_ms: int) -> None:
        status, body = await self._update(ride, {"kind": "start"}, at_ms)
        if await self._answered(ride, "start", status, body, at_ms) and ride.state == "in_progress":
            ride.due_ms = at_ms + ride.plan.duration_s * 1000
            driver = self.drivers.get(ride.driver_id or "")
            if driver is not None:
                driver.place, driver.leg = ride.plan.pickup, None
                other = self._partner(ride) if self._awaits_partner(ride) else None
                self._head_for_next(driver, other or ride, at_ms)
            self._next(ride, ride.due_ms, self._complete)

    async def _complete(self, ride: RideState, at_ms: int) -> None:
        if self._awaits_partner(ride):
            self._next(ride, at_ms + AWAITS_PARTNER_MS, self._complete)
            return
        plan = ride.plan
        update = {"kind": "complete", "distance_m": plan.distance_m}
        status, body = await self._update(ride, update, at_ms)
        await self._answered(ride, "complete", status, body, at_ms)

    async def _driver_cancels(self, ride: RideState, at_ms: int) -> None:
        status, body = await self._update(ride, {"kind": "cancel", "reason": "vehicle_trouble"}, at_ms)
        await self._answered(ride, "driver_cancel", status, body, at_ms)

    async def _update(self, ride: RideState, update: dict[str, Any], at_ms: int) -> tuple[int, Any]:
        return await self.updates.send({**update, "driver_id": ride.driver_id, "ride_id": ride.ride_id}, at_ms)

    async def _answered(self, ride: RideState, step: str, status: int, body: Any, at_ms: int) -> bool:
        """Take the answer to a step of a ride; after a refusal ask how the ride stands. Say whether it was granted."""
        if status == 200:
            await self._on_ride(ride, body, at_ms)
            return True
        self._refused(step, status, body)
        ride.step += 1
        current = await self.booking.get(f"/rides/{ride.ride_id}")
        ride.matched_at = None  # whatever was planned for this driver is void: plan anew
        await self._resume(ride, current, at_ms)
        return False

    def _refused(self, step: str, status: int, body: Any) -> None:
        kind = str(body.get("type", "")).rsplit("/", 1)[-1] if isinstance(body, dict) else ""
        self.book.refusals[f"{step} {status} {kind}".strip()] += 1

    # Waiting riders

    def _poll_at(self, at_ms: int) -> None:
        if not self._polling:
            self._polling = True
            self.stage.at(at_ms, self._poll)

    async def _poll(self, at_ms: int) -> None:
        self._polling = False
        waiting = list(self._waiting)
        if not waiting:
            return
        if at_ms - self._clock_ms >= CLOCK_EVERY_MS:
            # A booking clock that nobody moves would never let the last riders' waiting time run out.
            await self.settle(past_ms=at_ms)
            if self._overdue(at_ms):  # its timers fire in their own time, event time must not run away from them
                await asyncio.sleep(TIMER_PATIENCE_S)
        for i in range(0, len(waiting), POLL_IDS):
            ids = "&".join(f"ride_id={ride_id}" for ride_id in waiting[i : i + POLL_IDS])
            page = await self.booking.get(f"/rides?limit={POLL_IDS}&{ids}")
            for body in page["rides"]:
                ride = self._waiting.get(body["ride_id"])
                if ride is not None:
                    await self._on_ride(ride, body, at_ms)
        if self._waiting:
            self._poll_at(at_ms + POLL_EVERY_MS)

    def _overdue(self, at_ms: int) -> bool:
        return any(at_ms - ride.plan.asks_at_ms > WAITS_AT_MOST_MS for ride in self._waiting.values())

    # Drivers

    def _driver(self, driver_id: str, place: Place) -> DriverState:
        driver = self.drivers.get(driver_id)
        if driver is None:
            driver = self.drivers[driver_id] = DriverState(driver_id=driver_id, place=place)
        return driver

    async def _online(self, plan: DriverStarts, at_ms: int) -> None:
        driver = self._driver(plan.driver_id, plan.place)
        driver.stops = False
        if driver.online:
            return
        driver.place, driver.leg = plan.place, None
        driver.region = self._region(plan.place)
        self.book.note_position(plan.driver_id, *plan.place, at_ms)  # booking reports it if the driver was online
        status, body = await self.updates.send(
            {"kind": "online", "driver_id": plan.driver_id, "position": _as_json(plan.place), "simulated": True}, at_ms
        )
        if status != 200:
            self._refused("online", status, body)
            return
        driver.online = True
        if self.locations is not None and not self._reporting:
            self._reporting = True
            self.stage.at(at_ms + 1000, self._report, background=True)
        self._saw_driver(body, at_ms)

    async def _offline(self, driver_id: str, at_ms: int) -> None:
        driver = self.drivers.get(driver_id)
        if driver is None or not driver.online:
            return
        if driver.serving:
            driver.stops = True
            return
        driver.online = False
        status, body = await self.updates.send({"kind": "offline", "driver_id": driver_id}, at_ms)
        if status == 409:  # a rider was quicker: the shift ends after that ride
            driver.online, driver.stops = True, True
            self._poll_at(at_ms)
        elif status != 200:
            self._refused("offline", status, body)

    def _free(self, ride: RideState, at_ms: int) -> None:
        """Let the ride's driver go: home when the shift is over, else perhaps to where riders are.

        A driver who still has the other ride of a pool continues with that ride.
        """
        driver_id, ride.driver_id = ride.driver_id, None
        driver = self.drivers.get(driver_id or "")
        if driver is None or ride.ride_id not in driver.serving:
            return
        driver.serving.remove(ride.ride_id)
        if driver.serving:
            if (other := self.rides.get(driver.serving[0])) is not None and other.driver_id == driver_id:
                self._head_for_next(driver, other, at_ms)
            return
        if ride.state != "completed":
            driver.place = driver.position(at_ms)
        driver.leg = None
        driver.rides += 1
        if driver.stops:
            driver.stops = False
            self.stage.at(at_ms, partial(self._offline, driver.driver_id))
        elif self._waiting:
            self._poll_at(at_ms)  # booking may have given the driver to a rider who waits
        random = Random(zlib.crc32(f"{driver.driver_id}:{driver.rides}".encode()))
        moves = random.random() < MOVES_SHARE or self._region(driver.place) != driver.region
        if moves and self._recent_pickups:
            after_ms = 120_000 + int(random.random() * 240_000)
            self.stage.at(at_ms + after_ms, partial(self._move, driver, driver.rides, random), background=True)

    async def _move(self, driver: DriverState, rides: int, random: Random, at_ms: int) -> None:
        if not driver.online or driver.serving or driver.rides != rides:
            return
        pickups = [place for place in self._recent_pickups if self._region(place) == driver.region]
        if not pickups:
            return
        near = pickups[random.randrange(len(pickups))]
        place = (round(near[0] + random.gauss(0, 0.003), 5), round(near[1] + random.gauss(0, 0.004), 5))
        driver.place, driver.leg = place, None
        self.book.note_position(driver.driver_id, *place, at_ms)
        status, body = await self.updates.send(
            {"kind": "location", "driver_id": driver.driver_id, "position": _as_json(place)}, at_ms
        )
        if status == 200:
            self.book.locations_sent += 1
            self._saw_driver(body, at_ms)
        else:
            self._refused("location", status, body)

    def _region(self, place: Place) -> str:
        return "" if self.region_of is None else self.region_of(place)

    def _saw_driver(self, body: Any, at_ms: int) -> None:
        if body.get("status") == "busy" and self._waiting:
            self._poll_at(at_ms)

    async def _report(self, at_ms: int) -> None:
        """Send the positions of one part of the drivers; each has its turn once per `location_every_ms`."""
        assert self.locations is not None
        slots = max(1, self.location_every_ms // 1000)
        slot = (at_ms // 1000) % slots
        for driver in self.drivers.values():
            if not driver.online or zlib.crc32(driver.driver_id.encode()) % slots != slot:
                continue
            if driver.serving and not self.busy_locations:
                continue
            place = driver.position(at_ms)
            self.book.note_position(driver.driver_id, *place, at_ms)
            self.locations.report(
                driver.driver_id,
                place,
                free=not driver.serving,
                ride_id=driver.ride_id,
                at_ms=at_ms,
            )
            self.book.locations_sent += 1
        self.stage.at(at_ms + 1000, self._report, background=True)


def report_every(speed: float | None, asked_s: float | None) -> tuple[int, bool]:
    """Return the event time between two positions of a driver, and whether drivers with a ride report, too."""
    fast = speed is None or speed > FAST_FROM
    every_ms = FAST_LOCATIONS_MS if fast else SLOW_LOCATIONS_MS
    return (every_ms if asked_s is None else max(1000, round(asked_s * 1000))), not fast


def silent_after_s(speed: float | None, asked_s: float | None) -> int:
    """Return the event time after which booking may take a driver for silent: one report and its way to booking."""
    if speed is None:
        return LONGEST_SILENCE_S
    every_ms, _ = report_every(speed, asked_s)
    return min(max(SHORTEST_SILENCE_S, math.ceil(every_ms / 1000 + LATE_AT_MOST_S * speed)), LONGEST_SILENCE_S)


def _plan_of(body: Any) -> RidePlan:
    """Return a plan for a ride that an earlier run left under way: it ends without incident."""
    requested_ms = _ms(body["requested_at"])
    return RidePlan(
        key=f"adopted-{body['ride_id']}",
        asks_at_ms=requested_ms,
        rider_id=body["rider_id"],
        pickup=_place(body["pickup"]) or (0.0, 0.0),
        dropoff=_place(body["dropoff"]) or (0.0, 0.0),
        passengers=body["passengers"],
        distance_m=body["distance_m"] or 3000,
        duration_s=body["duration_s"] or 600,
        fleet="",
        asks_recommender=False,
        shares=False,
        accepts=True,
        accepts_after_ms=0,
        max_multiplier=99.0,
        gives_up=None,
        gives_up_after_ms=0,
        driver_cancels=0,
        driver_cancels_after_ms=0,
        boards_after_ms=30_000,
        simulated=body["simulated"],
    )


def _as_json(place: Place) -> dict[str, float]:
    return {"lat": place[0], "lng": place[1]}


def _place(body: Any) -> Place | None:
    return None if body is None else (float(body["lat"]), float(body["lng"]))


def _region_in(ride_id: str) -> str:
    """Return the region that a ride's id begins with."""
    return ride_id.partition(".")[0]


def _ms(text: str) -> int:
    return to_ms(type(to_datetime(0)).fromisoformat(text))
