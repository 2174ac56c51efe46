"""The regions of `--regions`: parts of the city with about as many pickups each, from south to north."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import h3
from ride_events import cell

from hailbus_demo.city.plan import Place
from hailbus_demo.city.table import city_table
from hailbus_demo.supervise.state import write_whole

NAMES: Final[Mapping[int, tuple[str, ...]]] = {
    1: (),
    2: ("south", "north"),
    3: ("south", "middle", "north"),
    4: ("south", "lower", "upper", "north"),
}
"""By the number of regions. One process that serves everywhere is no region."""
ROUTER: Final = "booking-router"


def process_of(region: str) -> str:
    """Return the name of a region's booking process, which is also its consumer group."""
    return f"booking-{region}"


def is_booking(name: str) -> bool:
    """Return whether a process is booking, the only one or that of a region."""
    return name == "booking" or (name.startswith("booking-") and name != ROUTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """What a region owns: H3 cells of resolution 8, None for every place that is in no other region."""

    name: str
    cells: frozenset[str] | None


def split_city(count: int) -> Sequence[Area]:
    """Return so many areas, none for 1. The last one owns the rest of the world."""
    names = NAMES[count]
    if not names:
        return ()
    table = city_table()
    southern = sorted(table.zone_of, key=lambda name: (h3.cell_to_latlng(name)[0], name))
    total = sum(sum(hours) for hours in table.pickups.values())
    parts: list[set[str]] = [set() for _ in names]
    seen = 0.0
    for name in southern:
        parts[min(int(seen / total * len(names)), len(names) - 1)].add(name)
        seen += sum(table.pickups.get(name, ()))
    return [
        Area(name=name, cells=None if name == names[-1] else frozenset(part))
        for name, part in zip(names, parts, strict=True)
    ]


def region_at(place: Place, areas: Sequence[Area]) -> str:
    """Return the region of a place; empty where one process serves everywhere."""
    here = cell(*place)
    return next((area.name for area in areas if area.cells is None or here in area.cells), "")


def write_regions(path: Path, areas: Sequence[Area], addresses: Mapping[str, str]) -> None:
    """Write the file that `BOOKING_REGIONS` and `ROUTER_REGIONS` name."""
    parts = []
    for area in areas:
        # JSON's strings and lists are TOML's as well.
        owns = "rest = true" if area.cells is None else f"cells = {json.dumps(sorted(h3.compact_cells(area.cells)))}"
        parts.append(f"[{area.name}]\naddress = {json.dumps(addresses[area.name])}\n{owns}\n")
    write_whole(path, "\n".join(parts))


__all__ = ["NAMES", "ROUTER", "Area", "is_booking", "process_of", "region_at", "split_city", "write_regions"]
