"""Areas from places: the zone where the city has one, a res-7 cell elsewhere."""

from dataclasses import dataclass

import h3
from ride_events.zones import zone_at, zones

from recommender.domain.areas import Area, Areas

OUTSIDE_RESOLUTION = 7


def city_areas() -> Areas:
    """Return areas that know every zone of the city."""
    return Areas(Area(key=zone.zone_id, lat=zone.centre.lat, lng=zone.centre.lng) for zone in zones().values())


def zone_id_at(lat: float, lng: float) -> int | None:
    """Return the number of the zone at a place, `None` outside the city."""
    zone = zone_at(lat, lng)
    return None if zone is None else zone.zone_id


def area_of(areas: Areas, zone_id: int | None, cell: str) -> int:
    """Return the area of a place: its zone, or the res-7 cell around `cell` for a place that is in no zone."""
    known = areas.find(zone_id) if zone_id is not None else None
    if known is not None:
        return known
    key = h3.cell_to_parent(cell, OUTSIDE_RESOLUTION) if h3.get_resolution(cell) > OUTSIDE_RESOLUTION else cell
    known = areas.find(key)
    if known is not None:
        return known
    lat, lng = h3.cell_to_latlng(key)
    return areas.index_of(Area(key=key, lat=lat, lng=lng))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an area is called and where it is: `cell` is its centre's res-9 cell, `zone_id` that of a named zone."""

    name: str
    zone_id: int | None
    cell: str
    lat: float
    lng: float


def place_of(areas: Areas, index: int) -> Place:
    """Return the place of an area."""
    area = areas[index]
    cell = h3.latlng_to_cell(area.lat, area.lng, 9)
    if isinstance(area.key, int):
        return Place(name=zones()[area.key].name, zone_id=area.key, cell=cell, lat=area.lat, lng=area.lng)
    nearest = int(areas.distance_km[index, : len(zones())].argmin())  # the zones come first, see `city_areas`
    return Place(
        name=f"near {zones()[_zone_id(areas, nearest)].name}", zone_id=None, cell=cell, lat=area.lat, lng=area.lng
    )


def _zone_id(areas: Areas, index: int) -> int:
    key = areas[index].key
    assert isinstance(key, int), f"area {index} is {key!r}, no zone"
    return key


__all__ = ["OUTSIDE_RESOLUTION", "Place", "area_of", "city_areas", "place_of", "zone_id_at"]
