"""Places and distances."""

import math
from dataclasses import dataclass

EARTH_RADIUS_M = 6_371_000


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
