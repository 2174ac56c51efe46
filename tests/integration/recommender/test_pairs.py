"""Pooled rides as riders are offered them over HTTP, beside an oracle that knows every trip and its zones."""

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from ride_events import LatLng, Money
from ride_events.rides import RidePooled, RideRequested
from ride_events.zones import zone_at, zones

from tests.integration.recommender.test_service import MORNING, Running, running

WINDOW_S = 300


class Trip(NamedTuple):
    """A trip between the centres of two zones."""

    name: str
    at_s: int
    origin: int
    destination: int


def trips_of(seed: int, count: int) -> list[Trip]:
    """Return ten minutes of trips between four zones of Manhattan, so that many go the same way."""
    rng = random.Random(seed)
    known = [
        zone.zone_id
        for zone in zones().values()
        if zone.borough == "Manhattan" and zone_at(zone.centre.lat, zone.centre.lng) == zone
    ][:4]
    times = sorted(rng.randrange(2 * WINDOW_S) for _ in range(count))
    return [Trip(f"ride-{n}", at_s, rng.choice(known), rng.choice(known)) for n, at_s in enumerate(times)]


def oracle(trips: Sequence[Trip]) -> set[tuple[str, str]]:
    """Return the pairs of a greedy rule: each trip takes the first one of its route that is alone and recent enough."""
    alone: dict[tuple[int, int], Trip] = {}
    pairs = set()
    for trip in trips:
        route = (trip.origin, trip.destination)
        other = alone.pop(route, None)
        if other is not None and trip.at_s - other.at_s <= WINDOW_S:
            pairs.add((other.name, trip.name))
        else:
            alone[route] = trip
    return pairs


def request_of(trip: Trip, centre: dict[int, LatLng]) -> RideRequested:
    pickup, dropoff = centre[trip.origin], centre[trip.destination]
    return RideRequested(
        ride_id=trip.name,
        seq=1,
        rider_id=f"rider-of-{trip.name}",
        quote_id="quote",
        pickup=pickup,
        dropoff=dropoff,
        pickup_cell=pickup.cell(),
        dropoff_cell=dropoff.cell(),
        fare=Money(amount_minor=1_000),
        multiplier=1.0,
        surge_version=None,
    )


async def pool(service: Running, ride_id: str, partner: str, trip: Trip, order: int) -> None:
    event = RidePooled(
        ride_id=ride_id,
        seq=2,
        rider_id=f"rider-of-{ride_id}",
        partner_ride_id=partner,
        pickup_order=order,
        fare=Money(amount_minor=800),
        single_fare=Money(amount_minor=1_000),
    )
    await service.publish(event, time=MORNING + timedelta(seconds=trip.at_s))


async def test_riders_who_take_what_they_are_offered_are_the_pairs_of_the_oracle(tmp_path: Path) -> None:
    trips = trips_of(7, 90)
    centre = {zone_id: zones()[zone_id].centre for trip in trips for zone_id in (trip.origin, trip.destination)}
    offered: set[tuple[str, str]] = set()
    alone: set[str] = set()
    async with running(tmp_path) as service:
        for trip in trips:
            at = MORNING + timedelta(seconds=trip.at_s)
            answer = await service.ask(
                rider_id=f"rider-of-{trip.name}",
                origin=centre[trip.origin].model_dump(),
                destination=centre[trip.destination].model_dump(),
                time=at.isoformat(),
            )
            await service.publish(request_of(trip, centre), time=at)
            alone.add(trip.name)
            await service.until(open_rides=len(alone))
            if answer["pooled_rides"]:
                partner = answer["pooled_rides"][0]["ride_id"]
                offered.add((partner, trip.name))
                for order, (ride_id, other) in enumerate(((partner, trip.name), (trip.name, partner)), start=1):
                    await pool(service, ride_id, other, trip, order)
                    alone.remove(ride_id)
                await service.until(open_rides=len(alone))
    expected = oracle(trips)
    assert len(expected) > 25, "the trips must hold pairs"
    true = offered & expected
    assert len(true) == len(offered), "precision is 1"
    assert len(true) >= 0.95 * len(expected), f"{len(true)} of {len(expected)}"
