"""Derive the table of taxi zones that `ride_events.zones` ships, from the public TLC zone files.

    python -m hailbus_devtools.derive_zones --data ../shared/data

The result holds no ride: zone numbers, names, boroughs, a point inside, the H3 cells that the zone covers, and its
outline.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import h3
import polars as pl
import typer

Place = tuple[float, float]
"""Latitude and longitude in WGS-84 degrees."""

TARGET: Final = Path(__file__).parents[3] / "services/events/src/ride_events/data/zones.json"
UNITS_PER_DEGREE: Final = 100_000
SOURCE: Final = (
    "NYC Taxi & Limousine Commission (TLC) taxi zones, NYC Open Data. Cells are H3 res 9, compacted "
    "(h3.compact_cells), each named after the zone that holds its centre or is nearest to it. "
    "Rings are outlines, simplified to about 30 m, in the steps that ride_events.outlines.decode_ring reads."
)


def outlines(collection: Mapping[str, Any]) -> dict[int, list[list[Place]]]:  # Any: JSON
    """Return the rings of each zone of a GeoJSON collection, without the corner that closes a ring.

    Raises:
        ValueError: A zone is no polygon.
    """
    rings: dict[int, list[list[Place]]] = {}
    for feature in collection["features"]:
        zone_id = int(feature["properties"]["zone_id"])
        rings.setdefault(zone_id, []).extend(
            [(float(lat), float(lng)) for lng, lat in ring[:-1]] for ring in _rings(zone_id, feature["geometry"])
        )
    return rings


def _rings(zone_id: int, geometry: Mapping[str, Any]) -> Iterator[Sequence[Sequence[float]]]:  # Any: JSON
    match geometry["type"]:
        case "Polygon":
            yield from geometry["coordinates"]
        case "MultiPolygon":
            for part in geometry["coordinates"]:
                yield from part
        case other:
            raise ValueError(f"zone {zone_id} is a {other}: give Polygon or MultiPolygon")


def steps(ring: Sequence[Place]) -> list[int]:
    """Return a ring as `ride_events.outlines.decode_ring` reads it: its first corner, then each corner's difference."""
    found: list[int] = []
    lat = lng = 0
    for corner in ring:
        next_lat, next_lng = round(corner[0] * UNITS_PER_DEGREE), round(corner[1] * UNITS_PER_DEGREE)
        found += (next_lat - lat, next_lng - lng)
        lat, lng = next_lat, next_lng
    return found


def derive(zones: pl.DataFrame, cells: pl.DataFrame, rings: Mapping[int, Sequence[Sequence[Place]]]) -> str:
    """Return the zone table as JSON, one zone a line.

    In: `zones` with zone_id, name, borough, lat, lon (degrees); `cells` with h3_9 (hexadecimal digits) and zone_id;
    `rings` with the outline of each zone.
    """
    of_zone: dict[int, list[str]] = {}
    for cell, zone_id in cells.select("h3_9", "zone_id").iter_rows():
        of_zone.setdefault(int(zone_id), []).append(str(cell))
    lines = []
    for row in zones.sort("zone_id").iter_rows(named=True):
        zone_id = int(row["zone_id"])
        zone = {
            "zone_id": zone_id,
            "name": row["name"],
            "borough": row["borough"],
            "lat": round(float(row["lat"]), 5),
            "lng": round(float(row["lon"]), 5),
            "cells": sorted(h3.compact_cells(of_zone.get(zone_id, []))),
            "rings": [steps(ring) for ring in rings[zone_id]],
        }
        lines.append(json.dumps(zone, ensure_ascii=False, separators=(",", ":")))
    body = ",\n".join(lines)
    return f'{{"source":{json.dumps(SOURCE)},\n"zones":[\n{body}\n]}}\n'


def main(
    data: Annotated[Path, typer.Option(help="Folder with zones.csv, zones.geojson and h3_9-zone.parquet.")],
    out: Annotated[Path, typer.Option(help="The table to write.")] = TARGET,
) -> None:
    """Write the zone table."""
    for name in ("zones.csv", "zones.geojson", "h3_9-zone.parquet"):
        if not (data / name).is_file():
            raise typer.BadParameter(f"{data / name} is not there: give the folder that holds it", param_hint="--data")
    collection = json.loads((data / "zones.geojson").read_text(encoding="utf-8"))
    text = derive(pl.read_csv(data / "zones.csv"), pl.read_parquet(data / "h3_9-zone.parquet"), outlines(collection))
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: {len(text.encode())} bytes")


if __name__ == "__main__":
    typer.run(main)
