"""Derive the table of taxi zones that `ride_events.zones` ships, from the public TLC zone files.

    python -m hailbus_devtools.derive_zones --data ../shared/data

The result holds no ride: zone numbers, names, boroughs, a point inside, and the H3 cells that the zone covers.
"""

import json
from pathlib import Path
from typing import Annotated, Final

import h3
import polars as pl
import typer

TARGET: Final = Path(__file__).parents[3] / "services/events/src/ride_events/data/zones.json"
SOURCE: Final = (
    "NYC Taxi & Limousine Commission (TLC) taxi zones, NYC Open Data. Cells are H3 res 9, compacted "
    "(h3.compact_cells), each named after the zone that holds its centre or is nearest to it."
)


def derive(zones: pl.DataFrame, cells: pl.DataFrame) -> str:
    """Return the zone table as JSON, one zone a line.

    In: `zones` with zone_id, name, borough, lat, lon (degrees); `cells` with h3_9 (hexadecimal digits) and zone_id.
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
        }
        lines.append(json.dumps(zone, ensure_ascii=False, separators=(",", ":")))
    body = ",\n".join(lines)
    return f'{{"source":{json.dumps(SOURCE)},\n"zones":[\n{body}\n]}}\n'


def main(
    data: Annotated[Path, typer.Option(help="Folder with zones.csv and h3_9-zone.parquet.")],
    out: Annotated[Path, typer.Option(help="The table to write.")] = TARGET,
) -> None:
    """Write the zone table."""
    for name in ("zones.csv", "h3_9-zone.parquet"):
        if not (data / name).is_file():
            raise typer.BadParameter(f"{data / name} is not there: give the folder that holds it", param_hint="--data")
    text = derive(pl.read_csv(data / "zones.csv"), pl.read_parquet(data / "h3_9-zone.parquet"))
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: {len(text.encode())} bytes")


if __name__ == "__main__":
    typer.run(main)
