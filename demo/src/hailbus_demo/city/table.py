"""The aggregate table of the city: where and when rides begin, where they go and how long they take.

Read once from `data/` (about 30 ms). Everything is immutable; chance arrives as a seeded `random.Random`.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate
from random import Random
from typing import Generic, TypeVar

import h3
from ride_events.zones import zone_at, zones

from hailbus_demo.city.plan import HOURS_PER_WEEK, Place

T = TypeVar("T")

FLOWS_ENOUGH = 200
"""Trips recorded from a zone from which its own destinations are trusted; below, attraction and distance decide."""
DECAY_KM = 4.0
"""Distance over which the wish to go somewhere falls by e: about the mean length of the recorded trips."""
SPOT_SHARE = 0.7
"""Share of pickups at a cell's most used spots; the others are spread over the cell."""
METRES_PER_MILE = 1609.344
PLACE_TRIES = 8
"""Cells reach over the borders of zones: so often a place is drawn again until it lies in the zone."""
FINE_RESOLUTION = 12
"""Resolution at which a random place in a cell is named: 307 m² on average."""


def kilometres(a: Place, b: Place) -> float:
    """Return the distance of two places in kilometres (flat earth: right to 0.1 % within a city)."""
    x = math.radians(b[1] - a[1]) * math.cos(math.radians((a[0] + b[0]) / 2))
    return 6371.0 * math.hypot(x, math.radians(b[0] - a[0]))


class Weighted(Generic[T]):
    """Items that are drawn in proportion to their weights, which are ≥ 0 and not all 0."""

    __slots__ = ("_sums", "items")

    def __init__(self, items: Sequence[T], weights: Sequence[float]) -> None:
        self.items = tuple(items)
        self._sums = list(accumulate(weights))
        assert len(self.items) == len(self._sums) > 0, (len(self.items), len(self._sums))
        assert self._sums[-1] > 0, "all weights are 0"

    def draw(self, random: Random) -> T:
        """Return one item."""
        return self.items[bisect_right(self._sums, random.random() * self._sums[-1], 0, len(self._sums) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A TLC taxi zone: its name, a point inside, its H3 cells of resolution 8 and the rides counted there."""

    zone_id: int
    name: str
    borough: str
    centre: Place
    pickups: int
    dropoffs: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceBucket:
    """Trips of about the same straight-line length: metered miles and minutes, as 10th, 50th and 90th percentile."""

    km: float
    miles: tuple[float, float, float]
    minutes: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CityTable:
    """What the records say of the city, as counts, shares and percentiles.

    `pickups` holds for each cell the pickups expected in each hour of the week (Monday 00:00 first), busiest first.
    """

    zones: Mapping[int, Zone]
    pickups: Mapping[str, tuple[float, ...]]
    zone_of: Mapping[str, int]
    spots: Mapping[str, Weighted[str]]
    flows: Mapping[int, Mapping[int, int]]
    distances: tuple[DistanceBucket, ...]
    speed: tuple[float, ...]
    fleets: Weighted[str]

    def rides_per_hour(self) -> tuple[float, ...]:
        """Return the pickups of the whole city expected in each hour of the week."""
        return tuple(sum(hours[h] for hours in self.pickups.values()) for h in range(HOURS_PER_WEEK))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with files("hailbus_demo.city").joinpath("data", name).open("r", encoding="utf-8") as file:
        yield from csv.DictReader(file)


@cache
def city_table() -> CityTable:
    """Return the table that is part of the package."""
    hours = list(_rows("hours.csv"))
    days = [int(row["days"]) for row in hours]
    pickups: dict[str, tuple[float, ...]] = {}
    zone_of: dict[str, int] = {}
    zones: dict[int, Zone] = {}
    for row in _rows("zones.csv"):
        zone = Zone(
            zone_id=int(row["zone_id"]),
            name=row["name"],
            borough=row["borough"],
            centre=(float(row["lat"]), float(row["lng"])),
            pickups=int(row["pickups"]),
            dropoffs=int(row["dropoffs"]),
            cells=tuple(row["cells"].split()),
        )
        zones[zone.zone_id] = zone
        zone_of |= dict.fromkeys(zone.cells, zone.zone_id)
    for row in _rows("pickups.csv"):
        counts = [int(n) for n in row["by_hour"].split()]
        pickups[row["cell"]] = tuple(n / d for n, d in zip(counts, days, strict=True))
        zone_of[row["cell"]] = int(row["zone_id"])
    spots = {}
    for row in _rows("spots.csv"):
        pairs = [pair.split(":") for pair in row["spots"].split()]
        spots[row["cell"]] = Weighted([cell for cell, _ in pairs], [int(n) for _, n in pairs])
    flows: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in _rows("flows.csv"):
        flows[int(row["from_zone"])][int(row["to_zone"])] = int(row["trips"])
    buckets, lower = [], 0.0
    for row in _rows("distances.csv"):
        upper = float(row["km_up_to"] or 45)
        p = [[float(row[f"{what}_p{q}"]) for q in (10, 50, 90)] for what in ("miles", "minutes")]
        buckets.append(
            DistanceBucket(
                km=(lower + upper) / 2, miles=(p[0][0], p[0][1], p[0][2]), minutes=(p[1][0], p[1][1], p[1][2])
            )
        )
        lower = upper
    fleets = list(_rows("fleets.csv"))
    return CityTable(
        zones=zones,
        pickups=pickups,
        zone_of=zone_of,
        spots=spots,
        flows=dict(flows),
        distances=tuple(buckets),
        speed=tuple(float(row["speed"]) for row in hours),
        fleets=Weighted([row["base"] for row in fleets], [float(row["share"]) for row in fleets]),
    )


class City:
    """Draws places, destinations and trip lengths from a table. Chance arrives as a `random.Random`."""

    def __init__(self, table: CityTable | None = None) -> None:
        self.table = table or city_table()
        self._destinations: dict[int, Weighted[int]] = {}
        self._places: dict[int, Weighted[str]] = {}

    def zone_of(self, place: Place) -> int:
        """Return the zone of a place; outside all zones that of its cell, or the nearest one."""
        zone = zone_at(*place)
        if zone is not None:
            return zone.zone_id
        found = self.table.zone_of.get(h3.latlng_to_cell(*place, 8))
        if found is None:
            found = min(self.table.zones.values(), key=lambda z: (kilometres(z.centre, place), z.zone_id)).zone_id
        return found

    def place_in_cell(self, cell: str, random: Random) -> Place:
        """Return a place in a cell: mostly one of its used pickup spots, else anywhere in it. Five decimals (1 m)."""
        spots = self.table.spots.get(cell)
        parent = spots.draw(random) if spots is not None and random.random() < SPOT_SHARE else cell
        size = h3.cell_to_children_size(parent, FINE_RESOLUTION)
        child = h3.child_pos_to_cell(parent, FINE_RESOLUTION, random.randrange(size))
        lat, lng = h3.cell_to_latlng(child)
        return round(lat, 5), round(lng, 5)

    def place_in_zone(self, zone_id: int, random: Random) -> Place:
        """Return a place in a zone, where its pickups are; in a zone that has none, anywhere in it."""
        cells = self._places.get(zone_id)
        if cells is None:
            if not zones()[zone_id].cells:  # an islet smaller than a cell
                return self.table.zones[zone_id].centre
            share = Counter(h3.cell_to_parent(cell, 8) for cell in zones()[zone_id].cells)
            weights = [n * sum(self.table.pickups.get(cell, (0.01,))) for cell, n in share.items()]
            cells = self._places[zone_id] = Weighted(list(share), weights)
        for _ in range(PLACE_TRIES):
            place = self.place_in_cell(cells.draw(random), random)
            if self.zone_of(place) == zone_id:
                return place
        small = zones()[zone_id].cells
        lat, lng = h3.cell_to_latlng(small[random.randrange(len(small))])
        return round(lat, 5), round(lng, 5)

    def place_near(self, place: Place, random: Random) -> Place:
        """Return a place in the same zone and cell (about 1 km wide), so in the same region of booking."""
        cell, zone_id = h3.latlng_to_cell(*place, 8), self.zone_of(place)
        for _ in range(PLACE_TRIES):
            near = self.place_in_cell(cell, random)
            if h3.latlng_to_cell(*near, 8) == cell and self.zone_of(near) == zone_id:
                return near
        return place

    def destination_zone(self, zone_id: int, random: Random) -> int:
        """Return where a rider from this zone goes: by the flows recorded there, else by attraction and distance."""
        known = self._destinations.get(zone_id)
        if known is None:
            known = self._destinations[zone_id] = self._destinations_of(zone_id)
        return known.draw(random)

    def _destinations_of(self, zone_id: int) -> Weighted[int]:
        flows = self.table.flows.get(zone_id, {})
        if sum(flows.values()) >= FLOWS_ENOUGH:
            return Weighted(list(flows), list(flows.values()))
        zones = list(self.table.zones.values())
        pickups, dropoffs = sum(z.pickups for z in zones), sum(z.dropoffs for z in zones)
        here = self.table.zones[zone_id].centre
        pull = [
            (z.pickups / pickups + z.dropoffs / dropoffs + 1e-6) * math.exp(-kilometres(here, z.centre) / DECAY_KM)
            for z in zones
        ]
        return Weighted([z.zone_id for z in zones], pull)

    def trip(self, start: Place, end: Place, hour: int, random: Random) -> tuple[int, int]:
        """Return a trip's metered length in metres and its time in seconds, at an hour of the week (0–167)."""
        km = kilometres(start, end)
        buckets = self.table.distances
        i = min(max(bisect_left([b.km for b in buckets], km), 1), len(buckets) - 1)
        low, high = buckets[i - 1], buckets[i]
        share = min(max((km - low.km) / (high.km - low.km), 0.0), 1.0)

        def percentile(of_low: tuple[float, float, float], of_high: tuple[float, float, float], z: float) -> float:
            """Return the value `z` standard normals from the median; 1.2816 of them reach p10 and p90."""
            p10, p50, p90 = ((1 - share) * a + share * b for a, b in zip(of_low, of_high, strict=True))
            return float(p50 * ((p90 / p50) if z > 0 else (p50 / p10)) ** (z / 1.2816))

        z = min(max(random.gauss(0, 1), -2.0), 2.0)
        metres = max(percentile(low.miles, high.miles, z) * METRES_PER_MILE, km * 1000)
        both = 0.8 * z + 0.6 * min(max(random.gauss(0, 1), -2.0), 2.0)  # a long way round also takes long
        seconds = percentile(low.minutes, high.minutes, both) * 60 / self.table.speed[hour]
        return round(metres), max(60, round(seconds))
