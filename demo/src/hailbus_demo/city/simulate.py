"""The seeded simulator: riders from the city's table, and drivers for any stream of rides.

Plain arithmetic in event time: no clock, no I/O. Each ride draws from its own generator, seeded by the run's seed and
the ride's number. A ride's plan depends on other rides in one thing only: its rider has no other ride at that time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from random import Random
from typing import Literal

import h3

from hailbus_demo.city.plan import (
    HOUR_MS,
    HOURS_PER_WEEK,
    DriverStarts,
    DriverStops,
    Place,
    Plan,
    RidePlan,
    hour_of_week,
)
from hailbus_demo.city.table import City, Weighted

MINUTE_MS = 60_000
ACCEPTED_SHARE = 0.8
"""Share of quotes that are accepted at the usual price."""
RIDER_CANCELS_SHARE = 0.06
DRIVER_CANCELS_SHARE = 0.03
ASKS_RECOMMENDER_SHARE = 0.25
COMPANION_SHARE = 0.04
"""Companions for each other rider: a companion asks within a minute after a rider and goes the same way. Both would
share a car."""
COMPANION_AFTER_MS = (5_000, 60_000)
SHARE_SEATS = 2
"""Passengers at most of a rider who would share: a car has four seats."""
RIDERS_PER_ZONE = 400
BOOKED_MS = 60 * MINUTE_MS
"""How long a rider who takes a ride is not drawn again, beside the trip itself: the wait for a quote and a driver."""
HABIT_SHARE = 0.6
"""Share of a rider's trips that go to one of the rider's two usual zones."""
PASSENGERS = Weighted((1, 2, 3, 4), (80, 12, 5, 3))
BLOCK_MS = 20 * MINUTE_MS
"""Rides are looked at in blocks of this length to decide how many drivers are needed and where."""
BLOCK_RIDES = 20_000
"""A block ends early at so many rides: the bound of what is held in memory."""
DRIVER_OVERHEAD_MS = 7 * MINUTE_MS
"""Time of a driver per ride beside the trip itself: the way to the rider and the wait."""
SUPPLY = 1.3
"""Drivers per ride that is under way, averaged over this block and the one before: short when demand rises fast."""
MIN_DRIVERS = 8
THERE_AT_FIRST = 0.4
"""Share of the first block's drivers who are there before its first rider; the others come while rides begin."""
LAST_DRIVERS_MS = 5 * MINUTE_MS
"""How long after the last rider all drivers who are free go home."""
LEAVES_AT = 1.25
"""Drivers go home, the earliest first, while more than this share of the wanted number is online."""


class Riders:
    """Draws what a rider does, given when and where the wish arises."""

    def __init__(self, city: City, seed: int) -> None:
        self.city = city
        self.seed = seed
        self._booked_until: dict[str, int] = {}
        """Bound: the riders of every zone."""
        self._guests: Counter[int] = Counter()

    def rider(self, zone_id: int, random: Random, at_ms: int) -> str:
        """Return one of the riders who live in a zone and have no ride at a time; a guest when all of them have."""
        drawn = random.randrange(RIDERS_PER_ZONE)
        for number in (*range(drawn, RIDERS_PER_ZONE), *range(drawn)):
            rider_id = f"rider-{zone_id:03d}-{number:03d}"
            if self._booked_until.get(rider_id, at_ms) <= at_ms:
                return rider_id
        self._guests[zone_id] += 1
        return f"guest-{zone_id:03d}-{self._guests[zone_id]}"

    def destination(self, rider_id: str, zone_id: int, hour: int, random: Random) -> Place:
        """Return where the rider goes: often one of two usual zones, one before noon and one after."""
        target = self.city.destination_zone(zone_id, random)
        if random.random() < HABIT_SHARE:
            habit = Random(f"{self.seed}:{rider_id}:{'am' if hour % 24 < 12 else 'pm'}")
            target = self.city.destination_zone(zone_id, habit)
        return self.city.place_in_zone(target, random)

    def plan(
        self,
        *,
        key: str,
        at_ms: int,
        pickup: Place,
        random: Random,
        dropoff: Place | None = None,
        fleet: str | None = None,
        passengers: int | None = None,
        distance_m: int | None = None,
        duration_s: int | None = None,
        recorded: bool = False,
        accepts: bool | None = None,
        gives_up: bool | None = None,
        shares: bool = False,
    ) -> RidePlan:
        """Return one rider's plan; what is not given is drawn. A recorded ride took place: nobody cancels it."""
        hour = hour_of_week(at_ms)
        zone = self.city.zone_of(pickup)
        rider_id = self.rider(zone, random, at_ms)
        target = dropoff or self.destination(rider_id, zone, hour, random)
        drawn_m, drawn_s = self.city.trip(pickup, target, hour, random)
        drawn_passengers = min(PASSENGERS.draw(random), SHARE_SEATS if shares else 4)
        drawn_fleet = self.city.table.fleets.draw(random)
        drawn_accepts = random.random() < ACCEPTED_SHARE
        cancels = random.random() < RIDER_CANCELS_SHARE
        stages: tuple[Literal["requested", "matched", "arrived"], ...] = ("requested", "matched", "arrived")
        stage = stages[min(int(random.random() * 5) // 2, 2)]  # 40 % waiting for a driver, 40 % on its way, 20 % there
        driver_cancels = min(int(random.expovariate(1) * 1.3), 4) if random.random() < DRIVER_CANCELS_SHARE else 0
        takes_s = duration_s if duration_s is not None else drawn_s
        willing = True if recorded else drawn_accepts if accepts is None else accepts
        if willing and not rider_id.startswith("guest"):
            self._booked_until[rider_id] = at_ms + BOOKED_MS + takes_s * 1000
        return RidePlan(
            key=key,
            asks_at_ms=at_ms,
            rider_id=rider_id,
            pickup=pickup,
            dropoff=target,
            passengers=passengers if passengers is not None else drawn_passengers,
            distance_m=distance_m if distance_m is not None else drawn_m,
            duration_s=takes_s,
            fleet=fleet or drawn_fleet,
            asks_recommender=random.random() < ASKS_RECOMMENDER_SHARE,
            shares=shares,
            accepts=willing,
            accepts_after_ms=2000 + int(random.random() * 18_000),
            max_multiplier=99.0 if recorded else round(1.3 + random.expovariate(1.0), 2),
            gives_up=stage if (cancels if gives_up is None else gives_up) and not recorded else None,
            gives_up_after_ms=10_000 + int(random.random() * 80_000),
            driver_cancels=0 if recorded else driver_cancels,
            driver_cancels_after_ms=15_000 + int(random.random() * 60_000),
            boards_after_ms=20_000 + int(random.random() * 100_000),
            simulated=not recorded,
        )

    def companion(self, first: RidePlan, random: Random) -> RidePlan:
        """Return the plan of another rider who goes the same way a little later, and who would share."""
        earliest, latest = COMPANION_AFTER_MS
        return self.plan(
            key=f"{first.key}-companion",
            at_ms=first.asks_at_ms + earliest + int(random.random() * (latest - earliest)),
            pickup=self.city.place_near(first.pickup, random),
            dropoff=self.city.place_near(first.dropoff, random),
            random=random,
            shares=True,
        )


class Simulator:
    """Riders of the whole city: a thinned Poisson process by hour of week and cell.

    Args:
        city: Whose table to follow.
        seed: Equal seeds and arguments give equal plans.
        rides_per_minute: Mean over the week of riders who ask for a quote; `None` for as many as recorded rides need.
        cells: How many cells riders come from: the busiest ones of the table; beyond its end, rings of further cells
            around them, each as busy as the table's last.
    """

    def __init__(
        self, city: City, *, seed: int, rides_per_minute: float | None = None, cells: int | None = None
    ) -> None:
        self.city = city
        self.seed = seed
        table = city.table
        wanted = list(table.pickups)[: cells or None]
        rates = [list(table.pickups[cell]) for cell in wanted]
        if cells is not None and cells > len(wanted):
            quietest = rates[-1]
            for cell in _more_cells(wanted, cells - len(wanted)):
                wanted.append(cell)
                rates.append(quietest)
        hourly = [sum(rate[h] for rate in rates) for h in range(HOURS_PER_WEEK)]
        mean_per_minute = sum(hourly) / HOURS_PER_WEEK / 60
        factor = (rides_per_minute or mean_per_minute / ACCEPTED_SHARE) / mean_per_minute / (1 + COMPANION_SHARE)
        self.cells = tuple(wanted)
        # Riders without their companions.
        self.per_ms = tuple(factor * n / HOUR_MS for n in hourly)
        self._by_hour = [list(accumulate(rate[h] for rate in rates)) for h in range(HOURS_PER_WEEK)]

    def rides(self, start_ms: int, until_ms: int | None = None) -> Iterator[RidePlan]:
        """Yield plans in order of time, without end unless `until_ms` is given."""
        arrivals = Random(f"{self.seed}:arrivals:{start_ms}")
        riders = Riders(self.city, self.seed)
        peak = max(self.per_ms)
        now, number = float(start_ms), 0
        companions: list[tuple[int, str, RidePlan]] = []  # bound: those of a minute
        while True:
            now += arrivals.expovariate(peak)
            keep = arrivals.random()
            at_ms = int(now)
            while companions and companions[0][0] <= at_ms:
                companion = heapq.heappop(companions)[2]
                if until_ms is None or companion.asks_at_ms < until_ms:
                    yield companion
            if until_ms is not None and at_ms >= until_ms:
                return
            hour = hour_of_week(at_ms)
            if keep * peak >= self.per_ms[hour]:  # thinning: what a busier hour would have brought
                continue
            number += 1
            key = f"s{self.seed}-{start_ms // 1000}-{number}"
            random = Random(f"{self.seed}:{start_ms}:{number}")
            sums = self._by_hour[hour]
            cell = self.cells[bisect_right(sums, random.random() * sums[-1], 0, len(sums) - 1)]
            pickup = self.city.place_in_cell(cell, random)
            shares = random.random() < COMPANION_SHARE
            plan = riders.plan(key=key, at_ms=at_ms, pickup=pickup, random=random, shares=shares)
            yield plan
            if shares:
                companion = riders.companion(plan, random)
                heapq.heappush(companions, (companion.asks_at_ms, companion.key, companion))


def _more_cells(known: list[str], count: int) -> Iterator[str]:
    """Yield cells that are not known, ring after ring around the busiest one."""
    seen, ring = set(known), 1
    while count > 0:
        for cell in sorted(h3.grid_ring(known[0], ring)):
            if cell not in seen and count > 0:
                seen.add(cell)
                count -= 1
                yield cell
        ring += 1


def with_company(recorded: Iterable[RidePlan], riders: Riders) -> Iterator[RidePlan]:
    """Add the riders of whom no recording tells: those who only looked at a quote and those who cancelled.

    Each is drawn from the recorded ride before, starts near it in place and time, and is marked as simulated.
    """
    held: list[tuple[int, str, RidePlan]] = []  # bound: the company of the last two minutes
    for ride in recorded:
        while held and held[0][0] <= ride.asks_at_ms:
            yield heapq.heappop(held)[2]
        yield ride
        random = Random(f"{riders.seed}:company:{ride.key}")
        for kind, share in (("looks", 1 / ACCEPTED_SHARE - 1), ("cancels", RIDER_CANCELS_SHARE)):
            if random.random() >= share:
                continue
            at_ms = ride.asks_at_ms + int(random.random() * 120_000)
            cell = random.choice(sorted(h3.grid_disk(h3.latlng_to_cell(*ride.pickup, 8), 1)))
            extra = riders.plan(
                key=f"{ride.key}-{kind}",
                at_ms=at_ms,
                pickup=riders.city.place_in_cell(cell, random),
                random=random,
                fleet=ride.fleet,
                accepts=kind == "cancels",
                gives_up=kind == "cancels",
            )
            heapq.heappush(held, (at_ms, extra.key, extra))
    while held:
        yield heapq.heappop(held)[2]


def with_drivers(rides: Iterable[RidePlan], *, seed: int, supply: float = SUPPLY) -> Iterator[Plan]:
    """Add the drivers: as many as the rides of the next block and the last one keep busy, and some more.

    Drivers start where the block's riders wait. A shift lasts two to eight hours and ends earlier when the city calms
    down. Memory: the rides of one block.
    """
    random = Random(f"{seed}:drivers")
    online: dict[str, int] = {}  # driver → end of the shift
    at_home: list[str] = []
    known, needed_before, end = 0, None, 0
    for block in _blocks(rides):
        start, end = block[0].asks_at_ms, block[-1].asks_at_ms
        length = max(end - start, MINUTE_MS) if len(block) >= BLOCK_RIDES else BLOCK_MS
        busy_ms = sum(r.duration_s * 1000 + DRIVER_OVERHEAD_MS for r in block if r.accepts and r.gives_up is None)
        needed = busy_ms / length
        wanted = max(MIN_DRIVERS, round(supply * (needed + (needed if needed_before is None else needed_before)) / 2))
        needed_before = needed
        changes: list[Plan] = []
        over = sorted(online, key=lambda d: (online[d], d))
        leaving = [d for d in over if online[d] <= start]
        spare = len(online) - len(leaving) - round(LEAVES_AT * wanted)
        if spare > 0:
            leaving += over[len(leaving) : len(leaving) + spare]
        for driver_id in leaving:
            del online[driver_id]
            heapq.heappush(at_home, driver_id)
            changes.append(DriverStops(at_ms=start, driver_id=driver_id))
        starting: list[Plan] = []
        first = known == 0
        while len(online) < wanted:
            resting = set(leaving)
            if at_home and at_home[0] not in resting:
                driver_id = heapq.heappop(at_home)
            else:
                known += 1
                driver_id = f"driver-{known:05d}"
            if first and len(online) < wanted * THERE_AT_FIRST:
                at_ms = start - 30_000
            else:
                at_ms = start + int(random.random() * (length if first else length / 4))
            online[driver_id] = at_ms + 2 * HOUR_MS + int(random.random() * 6 * HOUR_MS)
            near = block[random.randrange(len(block))].pickup
            place = (round(near[0] + random.gauss(0, 0.004), 5), round(near[1] + random.gauss(0, 0.005), 5))
            starting.append(DriverStarts(at_ms=at_ms, driver_id=driver_id, place=place))
        changes += sorted(starting, key=lambda p: (p.at_ms, _driver(p)))
        yield from heapq.merge(changes, block, key=lambda p: p.at_ms)
    for driver_id in sorted(online):
        yield DriverStops(at_ms=end + LAST_DRIVERS_MS, driver_id=driver_id)


def _driver(plan: Plan) -> str:
    return plan.key if isinstance(plan, RidePlan) else plan.driver_id


def _blocks(rides: Iterable[RidePlan]) -> Iterator[list[RidePlan]]:
    block: list[RidePlan] = []
    for ride in rides:
        if block and (ride.asks_at_ms - block[0].asks_at_ms >= BLOCK_MS or len(block) >= BLOCK_RIDES):
            yield block
            block = []
        block.append(ride)
    if block:
        yield block
