"""Places and distances."""

import math
from dataclasses import dataclass

EARTH_RADIUS_M = 6_371_000
DETOUR = 1.35
"""Length of the way through a street grid, over the great circle: between 1 and √2, nearer to √2 in Manhattan."""
CITY_SPEED_M_PER_S = 5.0
"""18 km/h: a car in a busy city, stops included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point in WGS-84 degrees and the H3 cell (resolution 8) that holds it."""

    lat: float
    lng: float
    cell: str


def great_circle_m(a: Place, b: Place) -> float:
    """Return the distance over ground in metres, by the haversine formula."""
    lat_a, lat_b = math.radians(a.lat), math.radians(b.lat)
    half_lat = (lat_b - lat_a) / 2
    half_lng = math.radians(b.lng - a.lng) / 2
    h = math.sin(half_lat) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half_lng) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(h)))


def route_m(a: Place, b: Place) -> int:
    """Estimate the way by street in metres."""
    return round(great_circle_m(a, b) * DETOUR)


def drive_s(distance_m: float) -> int:
    """Estimate how long a car takes for a way by street, in seconds."""
    return round(distance_m / CITY_SPEED_M_PER_S)
