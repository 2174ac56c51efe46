"""The city's taxi zones: which zone a place or a cell is in, what it is called, and which cells are land.

The table is `data/zones.json`, derived from the public TLC zone files by `hailbus_devtools.derive_zones`. It is read
once, at the first call (about 25 ms of CPU). Cells are H3, in hexadecimal digits.

Use `zone_at` wherever the coordinates of a place are known. A cell lies in several zones where they meet, and
`zone_of_cell` names only one of them.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

import h3

from ride_events.geo import LatLng
from ride_events.outlines import Outlines, Place, decode_ring

ZONE_RESOLUTION: Final = 9
"""H3 resolution of the table: 0.105 km² on average."""
SHORE_M: Final = 30.0
"""A place outside all outlines belongs to the nearest zone within this distance. Outlines are simplified by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One taxi zone. `centre` lies inside it; `cells` are its res-9 cells, sorted, and may be empty for an islet.

    `rings` are its outline: parts and holes alike, each a sequence of corners.
    """

    zone_id: int
    name: str
    borough: str
    centre: LatLng
    cells: tuple[str, ...]
    rings: tuple[tuple[Place, ...], ...]


@cache
def zones() -> Mapping[int, Zone]:
    """Return every zone by its number, in rising order."""
    table = json.loads(files("ride_events").joinpath("data/zones.json").read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            row["zone_id"]: Zone(
                zone_id=row["zone_id"],
                name=row["name"],
                borough=row["borough"],
                centre=LatLng(lat=row["lat"], lng=row["lng"]),
                cells=tuple(sorted(h3.uncompact_cells(row["cells"], ZONE_RESOLUTION))),
                rings=tuple(tuple(decode_ring(ring)) for ring in row["rings"]),
            )
            for row in table["zones"]
        }
    )


@cache
def _zone_by_cell() -> Mapping[str, int]:
    return {cell: zone.zone_id for zone in zones().values() for cell in zone.cells}


@cache
def _outlines() -> Outlines:
    return Outlines({zone.zone_id: zone.rings for zone in zones().values()}, reach_m=SHORE_M)


@cache
def _zone_by_large_cell(resolution: int) -> Mapping[str, int]:
    """Return the zone with most land of each cell that is larger than the table's; ties go to the lower number."""
    votes: dict[str, Counter[int]] = {}
    for cell, zone_id in _zone_by_cell().items():
        votes.setdefault(h3.cell_to_parent(cell, resolution), Counter())[zone_id] += 1
    return {cell: min(votes[cell].items(), key=lambda item: (-item[1], item[0]))[0] for cell in votes}


def zone_of_cell(cell: str) -> Zone | None:
    """Return the zone of a cell of any resolution, `None` outside the city.

    A cell larger than res 9 belongs to the zone that has most of its land.
    """
    resolution = h3.get_resolution(cell)
    if resolution >= ZONE_RESOLUTION:
        found = _zone_by_cell().get(cell if resolution == ZONE_RESOLUTION else h3.cell_to_parent(cell, ZONE_RESOLUTION))
    else:
        found = _zone_by_large_cell(resolution).get(cell)
    return None if found is None else zones()[found]


def zone_at(lat: float, lng: float) -> Zone | None:
    """Return the zone at a place in WGS-84 degrees, `None` outside the city.

    The outline that holds the place decides, else the nearest one within `SHORE_M`, else its res-9 cell: that names
    piers and shores which the outlines cut off.
    """
    found = _outlines().find(lat, lng)
    if found is None:
        found = _zone_by_cell().get(h3.latlng_to_cell(lat, lng, ZONE_RESOLUTION))
    return None if found is None else zones()[found]


@cache
def land_cells(resolution: int = 8) -> tuple[str, ...]:
    """Return the cells of `resolution` (0 to 9) that hold land of the city, sorted.

    Raises:
        ValueError: The resolution is finer than the table's.
    """
    if not 0 <= resolution <= ZONE_RESOLUTION:
        raise ValueError(f"land is known at H3 resolutions 0 to {ZONE_RESOLUTION}, not {resolution}")
    if resolution == ZONE_RESOLUTION:
        return tuple(sorted(_zone_by_cell()))
    return tuple(sorted(_zone_by_large_cell(resolution)))


__all__ = ["SHORE_M", "ZONE_RESOLUTION", "Zone", "land_cells", "zone_at", "zone_of_cell", "zones"]
