"""How good the recommender is from coordinates, as a client of its HTTP API sees it, beside the recorded zones.

    python tests/bench/recommender/score_places.py ../shared/data/trips-od.parquet --from 2023-02-01 --until 2023-03-01

Trips are replayed in time order through the service's own parts: events become facts (`facts_of`), facts feed the
models, questions and answers are the JSON of the HTTP API. Only the bus and the database are left out. Each question
holds coordinates; the answers are judged by the zones of the recording.

- `zones`: how many places the service puts into the recorded zone.
- `destinations`: hit rates of the service from coordinates, and of the same model fed with the recorded zones.
- `pairs`: riders who name both places and take the first pooled ride offered, beside a greedy rule that knows every
  trip; once with the recorded zones, once with the zones of the coordinates.
"""

import argparse
import asyncio
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self, cast

import httpx
import polars as pl
from fastapi import FastAPI
from hailbus import Delivery, Event
from recommender.adapters.http.routes import add_routes
from recommender.adapters.streams.facts import facts_of
from recommender.app.city import City
from recommender.app.serving import Served, Serving, Stored, UnknownRecommendationError
from recommender.domain.destinations import DestinationModel
from recommender.domain.metrics import RankMetrics
from recommender.domain.trips import Trip as LearnedTrip
from recommender.zoning import city_areas
from ride_events import LatLng, Money
from ride_events.rides import RideCompleted, RidePooled, RideRequested
from ride_events.zones import zone_at

WINDOW_S: Final = 300
LIMIT: Final = 10
PARTS: Final = ("zones", "destinations", "pairs")
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Trip:
    """A recorded trip. Times are seconds of the city's wall clock."""

    name: str
    started_s: float
    ended_s: float
    pickup: LatLng
    dropoff: LatLng
    zones: tuple[int, int]


class Kept:
    """Keeps no answer: neither database nor bus is measured here."""

    async def keep(self, served: Sequence[Served]) -> Sequence[Served]:
        """Return the answers as they are."""
        return served

    async def find(self, recommendation_id: str) -> Stored | None:
        """Return nothing."""
        raise UnknownRecommendationError(recommendation_id)

    async def answer(self, recommendation_id: str) -> Served | None:
        """Return nothing."""
        raise UnknownRecommendationError(recommendation_id)

    async def choose(self, recommendation_id: str, option_id: str) -> str:
        """Take no choice."""
        raise UnknownRecommendationError(recommendation_id)

    async def served(self, served: Sequence[Served]) -> None:
        """Publish nothing."""

    async def chosen(self, stored: Stored, option_id: str, rank: int, ride_id: str | None, at: datetime) -> None:
        """Publish nothing."""


class Service:
    """The recommender without bus and database."""

    def __init__(self) -> None:
        self.city = City()
        kept = Kept()
        self.serving = Serving(self.city, kept, kept)
        app = FastAPI()
        add_routes(app.router, self.serving, self.city, now=lambda: datetime.now(UTC))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://recommender")

    async def __aenter__(self) -> Self:
        await self.serving.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.serving.stop()

    def take(self, event: Event, at_s: float) -> None:
        """Learn an event."""
        ctx = SimpleNamespace(envelope=SimpleNamespace(time=_time(at_s)))
        for fact in facts_of(cast("Delivery[Event]", SimpleNamespace(event=event, ctx=ctx))):
            self.city.apply(fact)

    async def ask(self, trip: Trip, *, with_destination: bool) -> dict[str, Any]:  # Any: JSON
        """Return the answer to the rider of a trip."""
        body: dict[str, object] = {
            "rider_id": trip.name,
            "origin": {"lat": trip.pickup.lat, "lng": trip.pickup.lng},
            "time": _time(trip.started_s).isoformat(),
            "limit": LIMIT,
        }
        if with_destination:
            body["destination"] = {"lat": trip.dropoff.lat, "lng": trip.dropoff.lng}
        response = await self.client.post("/recommendations", content=json.dumps(body))
        response.raise_for_status()
        answer = response.json()
        assert isinstance(answer, dict)
        return answer


def read(path: Path, until_s: float) -> list[Trip]:
    """Return the trips that start before a time, in the order of their pickups."""
    frame = pl.read_parquet(path).drop_nulls().sort("pickup_time", maintain_order=True)
    started, ended = (
        (frame[name].cast(pl.Datetime("ms")).to_physical() / 1000).to_list() for name in ("pickup_time", "dropoff_time")
    )
    rows = frame.select("trip_id", "pu_lat", "pu_lon", "do_lat", "do_lon", "pu_zone", "do_zone").iter_rows()
    return [
        Trip(
            str(name),
            started_s,
            ended_s,
            LatLng(lat=pickup_lat, lng=pickup_lng),
            LatLng(lat=dropoff_lat, lng=dropoff_lng),
            (pickup_zone, dropoff_zone),
        )
        for started_s, ended_s, (name, pickup_lat, pickup_lng, dropoff_lat, dropoff_lng, pickup_zone, dropoff_zone) in (
            zip(started, ended, rows, strict=True)
        )
        if started_s < until_s
    ]


def oracle(trips: Sequence[Trip], routes: Sequence[tuple[int, int]]) -> set[Pair]:
    """Return the pairs of a greedy rule: each trip takes the first one of its route that is alone and recent enough."""
    alone: dict[tuple[int, int], Trip] = {}
    pairs = set()
    for trip, route in zip(trips, routes, strict=True):
        other = alone.pop(route, None)
        if other is not None and trip.started_s - other.started_s <= WINDOW_S:
            pairs.add((other.name, trip.name))
        else:
            alone[route] = trip
    return pairs


def zones_of(trip: Trip) -> tuple[int, int]:
    """Return the zones of a trip's coordinates; 0 outside the city."""
    found = [zone_at(place.lat, place.lng) for place in (trip.pickup, trip.dropoff)]
    return found[0].zone_id if found[0] else 0, found[1].zone_id if found[1] else 0


def score_zones(trips: Sequence[Trip]) -> None:
    """Print the share of places that the service puts into another zone than the recording."""
    routes = [zones_of(trip) for trip in trips]
    for end, name in enumerate(("pickups", "drop-offs")):
        wrong = sum(trip.zones[end] != route[end] for trip, route in zip(trips, routes, strict=True))
        print(f"{name} in another zone: {wrong:,} of {len(trips):,} ({wrong / len(trips):.2%})")


async def score_destinations(trips: Sequence[Trip], from_s: float) -> None:
    """Print hit rates; an answer knows the trips that were completed before its pickup."""
    areas = city_areas()
    by_zone = DestinationModel(areas)
    metrics = {"from coordinates, over HTTP": RankMetrics(), "from the recorded zones": RankMetrics()}
    from_coordinates, from_zones = metrics.values()
    under_way: list[tuple[float, int]] = []
    async with Service() as service:
        for index, trip in enumerate(trips):
            while under_way and under_way[0][0] < trip.started_s:
                done = trips[heapq.heappop(under_way)[1]]
                service.take(_completed(done), done.ended_s)
                learned = _learned(areas.find, done)
                if learned is not None:
                    by_zone.observe(learned)
            heapq.heappush(under_way, (trip.ended_s, index))
            if trip.started_s < from_s:
                continue
            answer = await service.ask(trip, with_destination=False)
            from_coordinates.add(_rank([option.get("zone_id") for option in answer["destinations"]], trip.zones[1]))
            origin = areas.find(trip.zones[0])
            best = [] if origin is None else by_zone.best(origin, trip.started_s, limit=LIMIT)
            from_zones.add(_rank([areas[area].key for area in best], trip.zones[1]))
    for name, found in metrics.items():
        rates = "/".join(f"{found.hit_rate(at):.4f}" for at in (1, 5, 10))
        print(f"destinations {name}: HR@1/5/10 {rates}, MRR@10 {found.mrr:.4f}, NDCG@10 {found.ndcg:.4f}")


async def score_pairs(trips: Sequence[Trip]) -> None:
    """Print recall and precision of the pairs that riders make, beside both greedy rules."""
    offered: set[Pair] = set()
    async with Service() as service:
        for trip in trips:
            answer = await service.ask(trip, with_destination=True)
            service.take(_requested(trip), trip.started_s)
            if answer["pooled_rides"]:
                partner = answer["pooled_rides"][0]["ride_id"]
                offered.add((partner, trip.name))
                for order, (ride_id, other) in enumerate(((partner, trip.name), (trip.name, partner)), start=1):
                    service.take(_pooled(ride_id, other, order), trip.started_s)
    for name, routes in (
        ("the recorded zones", [trip.zones for trip in trips]),
        ("the zones of the coordinates", [zones_of(trip) for trip in trips]),
    ):
        expected = oracle(trips, routes)
        true = len(offered & expected)
        print(
            f"pairs: {len(offered):,} offered, {len(expected):,} by the greedy rule on {name}: "
            f"recall {true / len(expected):.4f}, precision {true / len(offered):.4f}"
        )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _rank(answer: Sequence[object], truth: int) -> int | None:
    return answer.index(truth) + 1 if truth in answer else None


def _learned(find: Any, trip: Trip) -> LearnedTrip | None:  # Any: `Areas.find`
    origin, destination = find(trip.zones[0]), find(trip.zones[1])
    if origin is None or destination is None:
        return None
    return LearnedTrip(origin=origin, destination=destination, started_s=trip.started_s)


def _completed(trip: Trip) -> RideCompleted:
    return RideCompleted(
        ride_id=trip.name,
        seq=5,
        rider_id=trip.name,
        driver_id="driver",
        pickup=trip.pickup,
        dropoff=trip.dropoff,
        pickup_cell=trip.pickup.cell(),
        dropoff_cell=trip.dropoff.cell(),
        passengers=1,
        requested_at=_time(trip.started_s),
        started_at=_time(trip.started_s),
        distance_m=1_000,
        duration_s=int(trip.ended_s - trip.started_s),
        fare=Money(amount_minor=1_000),
        multiplier=1.0,
    )


def _requested(trip: Trip) -> RideRequested:
    return RideRequested(
        ride_id=trip.name,
        seq=1,
        rider_id=trip.name,
        quote_id="quote",
        pickup=trip.pickup,
        dropoff=trip.dropoff,
        pickup_cell=trip.pickup.cell(),
        dropoff_cell=trip.dropoff.cell(),
        fare=Money(amount_minor=1_000),
        multiplier=1.0,
        surge_version=None,
    )


def _pooled(ride_id: str, partner: str, order: int) -> RidePooled:
    return RidePooled(
        ride_id=ride_id,
        seq=2,
        rider_id=ride_id,
        partner_ride_id=partner,
        pickup_order=order,
        fare=Money(amount_minor=800),
        single_fare=Money(amount_minor=1_000),
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trips", type=Path)
    parser.add_argument("--from", dest="start", type=datetime.fromisoformat, required=True)
    parser.add_argument("--until", type=datetime.fromisoformat, required=True)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    options = parser.parse_args()
    from_s, until_s = (time.replace(tzinfo=UTC).timestamp() for time in (options.start, options.until))
    trips = read(options.trips, until_s)
    judged = [trip for trip in trips if trip.started_s >= from_s]
    print(f"{len(judged):,} trips from {options.start} until {options.until}")
    if "zones" in options.only:
        score_zones(judged)
    if "destinations" in options.only:
        asyncio.run(score_destinations(trips, from_s))
    if "pairs" in options.only:
        asyncio.run(score_pairs(judged))


if __name__ == "__main__":
    main()
