"""Which column means what: one table of names for all layouts, compared without case, quotes and blanks.

| Layout | Pickup time | Where |
|---|---|---|
| this project's pickups | `pickup_time` (minutes) | `lat`, `lon` |
| this project's trips | `pickup_time`, `dropoff_time` | `pu_lat`, `pu_lon`, `do_lat`, `do_lon`, `pu_zone`, `do_zone` |
| FiveThirtyEight's Uber files | `Date/Time` (minutes) or `Pickup_date` | `Lat`, `Lon`, or `locationID` |
| TLC yellow | `tpep_pickup_datetime` | `PULocationID`, `DOLocationID` |
| TLC yellow, older | `pickup_datetime`, `Trip_Pickup_DateTime` | `pickup_longitude`, `Start_Lon` … |
| TLC green | `lpep_pickup_datetime` | `PULocationID`, `DOLocationID`, older `Pickup_longitude` … |
| TLC for-hire vehicles | `pickup_datetime`, older `Pickup_date` | `PUlocationID`, `DOlocationID`, older `locationID` |
| TLC high-volume for-hire | `pickup_datetime` | `PULocationID`, `DOLocationID`, `trip_miles` |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NAMES: dict[str, tuple[str, ...]] = {
    "pickup_time": (
        "pickup_time",
        "date/time",
        "lpep_pickup_datetime",
        "tpep_pickup_datetime",
        "pickup_datetime",
        "trip_pickup_datetime",
        "pickup_date",
    ),
    "dropoff_time": (
        "dropoff_time",
        "lpep_dropoff_datetime",
        "tpep_dropoff_datetime",
        "dropoff_datetime",
        "trip_dropoff_datetime",
    ),
    "pickup_lat": ("lat", "pu_lat", "pickup_latitude", "start_lat"),
    "pickup_lng": ("lon", "pu_lon", "pickup_longitude", "start_lon"),
    "dropoff_lat": ("do_lat", "dropoff_latitude", "end_lat"),
    "dropoff_lng": ("do_lon", "dropoff_longitude", "end_lon"),
    "pickup_zone": ("pu_zone", "pulocationid", "locationid"),
    "dropoff_zone": ("do_zone", "dolocationid"),
    "passengers": ("passengers", "passenger_count"),
    "miles": ("distance_mi", "trip_distance", "trip_miles"),
    "base": ("base", "dispatching_base_num", "hvfhs_license_num", "vendorid", "vendor_id", "vendor_name"),
}
"""Our name → the names that files use, best first."""

MINUTE_NAMES = frozenset({"date/time", "pickup_date"})
"""Columns that hold whole minutes by their publisher's account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The file's own name of each column that is used; `None` for those it lacks."""

    pickup_time: str
    dropoff_time: str | None
    pickup_lat: str | None
    pickup_lng: str | None
    dropoff_lat: str | None
    dropoff_lng: str | None
    pickup_zone: str | None
    dropoff_zone: str | None
    passengers: str | None
    miles: str | None
    base: str | None

    def used(self) -> tuple[str, ...]:
        """Return the file's columns that are read."""
        return tuple(v for name in NAMES if (v := getattr(self, name)) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A recognised layout. `whole_minutes`: times have a resolution of one minute and are spread inside it."""

    columns: Columns
    whole_minutes: bool


def recognise(columns: Iterable[str]) -> Layout | None:
    """Return the layout of a file with these columns; `None` if it has no pickup time or no pickup place."""
    theirs = {name.strip().strip('"\ufeff').strip().lower(): name for name in columns}
    found = {ours: next((theirs[n] for n in names if n in theirs), None) for ours, names in NAMES.items()}
    time = found.pop("pickup_time")
    if time is None:
        return None
    if (found["pickup_lat"] is None or found["pickup_lng"] is None) and found["pickup_zone"] is None:
        return None
    plain = time.strip().strip('"\ufeff').strip().lower()
    own_pickups = plain == "pickup_time" and found["dropoff_time"] is None
    return Layout(columns=Columns(pickup_time=time, **found), whole_minutes=plain in MINUTE_NAMES or own_pickups)
