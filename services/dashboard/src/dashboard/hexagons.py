"""The city's hexagons as shapes: computed here, so that the page needs no H3."""

import json
from functools import cache
from typing import Any, Final

import h3
from ride_events.zones import land_cells, zone_of_cell

RESOLUTION: Final = 8
_DIGITS: Final = 5


def shape(cell: str) -> dict[str, Any]:  # Any: JSON
    """Return a cell's boundary as [lat, lng, lat, lng, …] and what the place is called."""
    zone = zone_of_cell(cell)
    boundary = [round(degrees, _DIGITS) for corner in h3.cell_to_boundary(cell) for degrees in corner]
    return {
        "id": cell,
        "name": name_of(cell),
        "borough": zone.borough if zone else "",
        "boundary": boundary,
    }


def name_of(cell: str) -> str:
    """Return what people call the place of a cell."""
    zone = zone_of_cell(cell)
    return zone.name if zone else "outside the city"


@cache
def land() -> bytes:
    """Return all land cells as JSON, computed once (about 20 ms)."""
    return json.dumps([shape(cell) for cell in land_cells(RESOLUTION)], separators=(",", ":")).encode()


def is_land(cell: str) -> bool:
    """Return whether the page has the cell's shape already."""
    return cell in _land()


@cache
def _land() -> frozenset[str]:
    return frozenset(land_cells(RESOLUTION))


__all__ = ["RESOLUTION", "is_land", "land", "name_of", "shape"]
