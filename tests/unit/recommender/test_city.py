"""The models of a city know the zones of exact places, also where a res-9 cell lies in several zones."""

from datetime import UTC, datetime

import h3
from recommender.app.city import City, Option, Request
from recommender.app.facts import Journey, Opened
from recommender.domain.spots import BLOCK_RESOLUTION, SPOT_RESOLUTION
from recommender.domain.trips import wall_seconds
from recommender.zoning import zone_id_at
from ride_events.zones import zones

MORNING = datetime(2023, 3, 1, 8, 0, tzinfo=UTC)
TIMES_SQUARE, MIDTOWN_NORTH = (40.76343, -73.98152), (40.76375, -73.98136)
"""Two places of one res-9 cell, 40 m apart, on both sides of the border of their zones."""
AIRPORT = (40.6437, -73.7820)


def opened(ride_id: str, start: tuple[float, float], end: tuple[float, float]) -> Opened:
    return Opened(
        ride_id=ride_id,
        rider_id=f"rider-of-{ride_id}",
        pickup_cell=h3.latlng_to_cell(*start, BLOCK_RESOLUTION),
        pickup_zone=zone_id_at(*start),
        dropoff_cell=h3.latlng_to_cell(*end, BLOCK_RESOLUTION),
        dropoff_zone=zone_id_at(*end),
        requested_s=wall_seconds(MORNING) - 60,
    )


def journey(start: tuple[float, float], end: tuple[float, float]) -> Journey:
    return Journey(
        rider_id="earlier",
        pickup_cell=h3.latlng_to_cell(*start, SPOT_RESOLUTION),
        pickup_zone=zone_id_at(*start),
        dropoff_cell=h3.latlng_to_cell(*end, BLOCK_RESOLUTION),
        dropoff_zone=zone_id_at(*end),
        started_s=wall_seconds(MORNING) - 3600,
    )


def pooled(city: City, start: tuple[float, float], end: tuple[float, float]) -> list[str | None]:
    request = Request(rider_id="r", at=MORNING, lat=start[0], lng=start[1], to_lat=end[0], to_lng=end[1])
    return [option.ride_id for option in city.recommend(request) if option.kind == "pooled_ride"]


def destinations(city: City, start: tuple[float, float]) -> list[Option]:
    request = Request(rider_id="r", at=MORNING, lat=start[0], lng=start[1], destinations=len(zones()))
    return [option for option in city.recommend(request) if option.kind == "destination"]


def test_the_places_lie_in_one_cell_and_two_zones() -> None:
    assert h3.latlng_to_cell(*TIMES_SQUARE, BLOCK_RESOLUTION) == h3.latlng_to_cell(*MIDTOWN_NORTH, BLOCK_RESOLUTION)
    assert (zone_id_at(*TIMES_SQUARE), zone_id_at(*MIDTOWN_NORTH)) == (230, 163)


def test_only_rides_from_the_same_zone_are_shared_where_a_border_divides_a_cell() -> None:
    city = City()
    city.apply(opened("south", TIMES_SQUARE, AIRPORT))
    city.apply(opened("north", MIDTOWN_NORTH, AIRPORT))
    assert pooled(city, TIMES_SQUARE, AIRPORT) == ["south"]
    assert pooled(city, MIDTOWN_NORTH, AIRPORT) == ["north"]


def test_only_rides_to_the_same_zone_are_shared_where_a_border_divides_a_cell() -> None:
    city = City()
    city.apply(opened("south", AIRPORT, TIMES_SQUARE))
    city.apply(opened("north", AIRPORT, MIDTOWN_NORTH))
    assert pooled(city, AIRPORT, TIMES_SQUARE) == ["south"]
    assert pooled(city, AIRPORT, MIDTOWN_NORTH) == ["north"]


def test_every_recommended_destination_lies_in_its_zone() -> None:
    city = City()
    for _ in range(5):
        city.apply(journey(AIRPORT, TIMES_SQUARE))
        city.apply(journey(AIRPORT, MIDTOWN_NORTH))
    found = destinations(city, AIRPORT)
    assert {option.zone_id for option in found} == set(zones())
    assert [option.zone_id for option in found if zone_id_at(option.lat, option.lng) != option.zone_id] == []
