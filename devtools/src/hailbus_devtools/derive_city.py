"""Derive the demo's city from recorded rides: a small table of aggregate statistics, and nothing about single rides.

    derive-city ../shared/data demo/src/hailbus_demo/city/data

Reads the records that the folder's README describes and writes, as plain CSV so that a diff can be read:

* `zones.csv`   zone, name, borough, a point inside, its H3 cells of resolution 8, pickups and drop-offs counted there
* `pickups.csv` H3 cell of resolution 8, its zone, and pickups in each of the 168 hours of the week (Monday 00:00 first)
* `spots.csv`   where in a cell riders were picked up: its most used cells of resolution 11 with their counts
* `flows.csv`   origin zone, destination zone, trips
* `distances.csv` per bucket of straight-line kilometres: metered miles, minutes and fare as p10, p50 and p90
* `hours.csv`   per hour of the week: days counted, and how much faster (> 1) or slower than usual a mile is driven
* `fleets.csv`  share of each dispatch base

Cells and flows that hold fewer records than `KEEP_…_FROM` are left out: no single trip can be read from them.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import h3
import polars as pl
import typer

KEEP_CELLS_FROM = 20
"""Pickups in two months below which a cell has no row of its own."""
KEEP_FLOWS_FROM = 5
"""Trips in fifteen months below which an origin and destination have no row of their own."""
SPOTS_PER_CELL = 6
EARTH_RADIUS_KM = 6371.0
KILOMETRE_BUCKETS = (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 35)
"""Inclusive upper ends; the last bucket is open."""
SOURCE_NOTE = """# Where these tables come from

Aggregate statistics of New York rides; no row stands for fewer than {cells} pickups or {flows} trips. Written by
`derive-city` (`devtools/src/hailbus_devtools/derive_city.py`), never by hand.

* Pickups by hour of week and H3 cell, pickup spots and dispatch bases: {pickups:,} Uber pickups of April and May 2014,
  trip records of the NYC Taxi & Limousine Commission (TLC), released to FiveThirtyEight under a Freedom of Information
  Law request (`fivethirtyeight/uber-tlc-foil-response`; public records, published there without a licence file).
* Flows, distances, durations and fares: {trips:,} green-taxi trips of January 2022 to March 2023, TLC Trip Record
  Data, published as open data by the City of New York. TLC makes no representation as to the accuracy of these data.
* Zones and their names: TLC taxi zones (NYC Open Data), named here by whole H3 cells.

The records hold no person, driver or vehicle identity; the demo's riders, drivers, quotes and cancellations are
invented.
"""


def kilometres(lat1: pl.Expr, lng1: pl.Expr, lat2: pl.Expr, lng2: pl.Expr) -> pl.Expr:
    """Return the great-circle distance of two places in degrees, in kilometres (haversine)."""
    d_lat, d_lng = (lat2 - lat1).radians() / 2, (lng2 - lng1).radians() / 2
    a = d_lat.sin() ** 2 + lat1.radians().cos() * lat2.radians().cos() * d_lng.sin() ** 2
    return 2 * EARTH_RADIUS_KM * a.sqrt().arcsin()


def with_cells(points: pl.DataFrame, resolutions: Sequence[int]) -> pl.DataFrame:
    """Add a column `h3_<resolution>` for each resolution to a frame with `lat` and `lon`."""
    places = points.select("lat", "lon").unique(maintain_order=True)
    finest = max(resolutions)
    cells = [
        h3.latlng_to_cell(lat, lon, finest)
        for lat, lon in zip(places["lat"].to_list(), places["lon"].to_list(), strict=True)
    ]
    columns = [
        pl.Series(f"h3_{r}", cells if r == finest else [h3.cell_to_parent(c, r) for c in cells]) for r in resolutions
    ]
    return points.join(places.with_columns(columns), on=["lat", "lon"], how="left", maintain_order="left")


def hour_of_week(column: str) -> pl.Expr:
    """Return 0 for Monday 00:00–00:59 to 167 for Sunday 23:00–23:59."""
    time = pl.col(column)
    return (time.dt.weekday().cast(pl.Int32) - 1) * 24 + time.dt.hour().cast(pl.Int32)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write one table with Unix line ends."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def cells_of_zones(named: pl.DataFrame) -> dict[str, int]:
    """Return resolution-8 cell → zone: the zone that most of the cell's resolution-9 children lie in."""
    votes: dict[str, Counter[int]] = {}
    for child, zone in named.select("h3_9", "zone_id").iter_rows():
        votes.setdefault(h3.cell_to_parent(child, 8), Counter())[zone] += 1
    return {
        cell: min(counts, key=lambda zone: (-counts[zone], zone))
        for cell, counts in sorted(votes.items())
        for counts in [counts]
    }


def derive(records: Path, target: Path) -> dict[str, int]:
    """Write all tables; return file name → bytes."""
    pickups = pl.concat(
        [
            pl.read_parquet(path).select("pickup_time", "lat", "lon", pl.col("base").cast(pl.String))
            for path in sorted(records.glob("rides-*.parquet"))
        ]
    )
    trips = pl.read_parquet(records / "trips-od.parquet").filter(
        (pl.col("dropoff_time") > pl.col("pickup_time")) & (pl.col("distance_mi") > 0.1) & (pl.col("fare_usd") > 2)
    )
    zones = pl.read_csv(records / "zones.csv")
    zone_of = cells_of_zones(pl.read_parquet(records / "h3_9-zone.parquet"))
    target.mkdir(parents=True, exist_ok=True)

    located = with_cells(pickups, (8, 11)).with_columns(hour_of_week("pickup_time").alias("hour"))
    totals = (
        located.group_by("h3_8")
        .len("pickups")
        .filter(pl.col("pickups") >= KEEP_CELLS_FROM)
        .sort(["pickups", "h3_8"], descending=[True, False])
    )
    kept = located.join(totals, on="h3_8", how="semi")
    hours = {(cell, hour): n for cell, hour, n in kept.group_by("h3_8", "hour").len().iter_rows()}
    zone_points = list(zones.select("zone_id", "lat", "lon").iter_rows())

    def zone_for(cell: str) -> int:
        if cell in zone_of:
            return zone_of[cell]
        lat, lng = h3.cell_to_latlng(cell)  # outside the zones: the nearest one lends its name
        nearest: tuple[int, float, float] = min(
            zone_points, key=lambda z: ((z[1] - lat) ** 2 + ((z[2] - lng) * math.cos(math.radians(lat))) ** 2, z[0])
        )
        return nearest[0]

    write_csv(
        target / "pickups.csv",
        ("cell", "zone_id", "by_hour"),
        ((cell, zone_for(cell), " ".join(str(hours.get((cell, h), 0)) for h in range(168))) for cell in totals["h3_8"]),
    )
    spots: dict[str, list[tuple[str, int]]] = {}
    for cell, spot, n in (
        kept.group_by("h3_8", "h3_11").len().sort(["len", "h3_11"], descending=[True, False]).iter_rows()
    ):
        chosen = spots.setdefault(cell, [])
        if len(chosen) < SPOTS_PER_CELL and n >= KEEP_FLOWS_FROM:
            chosen.append((spot, n))
    write_csv(
        target / "spots.csv",
        ("cell", "spots"),
        ((cell, " ".join(f"{spot}:{n}" for spot, n in spots[cell])) for cell in totals["h3_8"] if spots.get(cell)),
    )
    uber_by_zone = Counter(dict.fromkeys(zones["zone_id"], 0))
    for cell, n in totals.iter_rows():
        uber_by_zone[zone_for(cell)] += n
    dropoffs = dict(trips.group_by("do_zone").len().iter_rows())
    cells_by_zone: dict[int, list[str]] = {}
    for cell, zone in zone_of.items():
        cells_by_zone.setdefault(zone, []).append(cell)
    write_csv(
        target / "zones.csv",
        ("zone_id", "name", "borough", "lat", "lng", "pickups", "dropoffs", "cells"),
        (
            (
                zone,
                name,
                borough,
                lat,
                lng,
                uber_by_zone[zone],
                dropoffs.get(zone, 0),
                " ".join(cells_by_zone.get(zone, [])),
            )
            for zone, name, borough, lat, lng in zones.select("zone_id", "name", "borough", "lat", "lon")
            .sort("zone_id")
            .iter_rows()
        ),
    )
    timed = trips.with_columns(
        ((pl.col("dropoff_time") - pl.col("pickup_time")).dt.total_seconds() / 60).alias("minutes"),
        hour_of_week("pickup_time").alias("hour"),
        kilometres(pl.col("pu_lat"), pl.col("pu_lon"), pl.col("do_lat"), pl.col("do_lon")).alias("km"),
    ).filter(pl.col("minutes").is_between(1, 180))
    flows = (
        timed.group_by("pu_zone", "do_zone")
        .agg(pl.len())
        .filter(pl.col("len") >= KEEP_FLOWS_FROM)
        .sort("pu_zone", "do_zone")
    )
    write_csv(
        target / "flows.csv",
        ("from_zone", "to_zone", "trips"),
        flows.iter_rows(),
    )
    bucket_of = pl.col("km").cut(list(KILOMETRE_BUCKETS), labels=[str(i) for i in range(len(KILOMETRE_BUCKETS) + 1)])
    buckets = timed.with_columns(bucket_of.cast(pl.String).cast(pl.Int32).alias("bucket"))
    percentiles = (
        buckets.group_by("bucket")
        .agg(
            pl.len(),
            *(
                pl.col(column).quantile(q).alias(f"{column}_{round(q * 100)}")
                for column in ("distance_mi", "minutes", "fare_usd")
                for q in (0.1, 0.5, 0.9)
            ),
        )
        .sort("bucket")
    )
    write_csv(
        target / "distances.csv",
        ("km_up_to", "trips", *(f"{c}_p{q}" for c in ("miles", "minutes", "fare_usd") for q in (10, 50, 90))),
        (
            ("" if bucket == len(KILOMETRE_BUCKETS) else KILOMETRE_BUCKETS[bucket], n, *(round(v, 2) for v in values))
            for bucket, n, *values in percentiles.iter_rows()
        ),
    )
    pace = timed.filter(pl.col("distance_mi") >= 1).with_columns(
        (pl.col("minutes") / pl.col("distance_mi")).alias("pace")
    )
    usual = float(pace["pace"].median())  # type: ignore[arg-type]  # a float column's median is a float
    paces = dict(pace.group_by("hour").agg(pl.col("pace").median()).iter_rows())
    days = Counter(d.weekday() for d in pickups.select(pl.col("pickup_time").dt.date()).unique().to_series())
    write_csv(
        target / "hours.csv",
        ("hour", "days", "speed"),
        ((h, days[h // 24], round(usual / paces.get(h, usual), 3)) for h in range(168)),
    )
    bases = pickups.group_by("base").len().sort("base")
    write_csv(
        target / "fleets.csv", ("base", "share"), ((b, round(n / pickups.height, 4)) for b, n in bases.iter_rows())
    )
    (target / "README.md").write_text(
        SOURCE_NOTE.format(cells=KEEP_CELLS_FROM, flows=KEEP_FLOWS_FROM, pickups=pickups.height, trips=trips.height),
        encoding="utf-8",
    )
    return {path.name: path.stat().st_size for path in sorted(target.iterdir()) if path.is_file()}


def main() -> None:
    """Run the command line."""

    def command(
        records: Annotated[
            Path, typer.Argument(help="Folder with rides-*.parquet, trips-od.parquet, zones.csv, h3_9-zone.parquet")
        ],
        target: Annotated[Path, typer.Argument(help="Folder to write the tables to")] = Path(
            "demo/src/hailbus_demo/city/data"
        ),
    ) -> None:
        """Derive the demo's city tables from recorded rides."""
        missing = [n for n in ("trips-od.parquet", "zones.csv", "h3_9-zone.parquet") if not (records / n).is_file()]
        if missing or not list(records.glob("rides-*.parquet")):
            names = ", ".join(missing or ["rides-*.parquet"])
            typer.echo(f"{records} holds no {names}: name the folder with the recorded rides", err=True)
            raise typer.Exit(2)
        for name, size in derive(records, target).items():
            print(f"{size:>9,}  {target / name}")

    typer.run(command)
