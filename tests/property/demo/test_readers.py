"""Any table of rows: each is a ride or a reject, in order, whatever is in it."""

import csv
import tempfile
from pathlib import Path

from hailbus_demo.city.simulate import Riders
from hailbus_demo.city.table import City
from hailbus_demo.ride_files import RideFiles
from hypothesis import given, settings
from hypothesis import strategies as st

RIDERS = Riders(City(), 1)
times = st.one_of(
    st.datetimes().map(lambda t: t.strftime("%Y-%m-%d %H:%M:%S")),
    st.text(max_size=12),
    st.sampled_from(["", "2014-05-01"]),
)
numbers = st.one_of(
    st.floats().map(str),
    st.integers(-10, 400).map(str),
    st.text(max_size=5),
    st.sampled_from(["", "138", "264", "1.0"]),
)
rows = st.lists(st.tuples(times, times, numbers, numbers, numbers), max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_every_row_is_a_ride_or_a_reject(table: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rides.csv"
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["tpep_pickup_datetime", "tpep_dropoff_datetime", "PULocationID", "DOLocationID", "trip_distance"]
            )
            writer.writerows(table)
        files = RideFiles(path, riders=RIDERS, rejects=Path(folder) / "rejects.csv")
        rides = list(files.rides())
        counts = files.counts
        assert counts.read == counts.taken + sum(counts.rejected.values())
        assert counts.taken == len(rides)
        assert [r.asks_at_ms for r in rides] == sorted(r.asks_at_ms for r in rides)
        assert all(r.duration_s > 0 and r.distance_m >= 0 for r in rides)
        if counts.rejected:
            with (Path(folder) / "rejects.csv").open(encoding="utf-8", newline="") as file:
                assert len(list(csv.DictReader(file))) == sum(counts.rejected.values())
