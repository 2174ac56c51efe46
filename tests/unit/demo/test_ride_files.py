"""Readers of recorded rides: every layout, bad rows kept with their reason, order, period, spreading."""

import csv
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hailbus_demo.city.plan import RidePlan, to_datetime, to_ms
from hailbus_demo.city.simulate import Riders
from hailbus_demo.city.table import City
from hailbus_demo.ride_files import RideFileError, RideFiles, reader, recognise

CITY = City()


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def read(path: Path, **options: int) -> tuple[list[RidePlan], RideFiles]:
    files = RideFiles(path, riders=Riders(CITY, 1), rejects=path.parent / "rejects.out", **options)
    return list(files.rides()), files


def rejects(path: Path) -> list[dict[str, str]]:
    with (path.parent / "rejects.out").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_own_pickups_are_spread_inside_their_minute_the_same_way_each_time(tmp_path: Path) -> None:
    path = tmp_path / "rides.parquet"
    times = [datetime(2014, 5, 1, 0, minute) for minute in (0, 0, 0, 1, 1, 2)]  # noqa: DTZ001 wall time, as in the files
    pq.write_table(
        pa.table(
            {
                "pickup_time": pa.array(times, pa.timestamp("ms")),
                "lat": [40.75] * 6,
                "lon": [-73.99] * 6,
                "base": ["B1"] * 6,
            }
        ),
        path,
    )
    first, files = read(path)
    again, _ = read(path)
    assert first == again
    assert [r.asks_at_ms for r in first] == sorted(r.asks_at_ms for r in first)
    assert [to_datetime(r.asks_at_ms).minute for r in first] == [0, 0, 0, 1, 1, 2]
    assert len({r.asks_at_ms for r in first}) == 6
    assert files.counts.taken == files.counts.read == 6
    assert not any(r.simulated for r in first)
    assert {r.fleet for r in first} == {"B1"}


def test_own_trips_keep_their_length_and_places(tmp_path: Path) -> None:
    path = tmp_path / "trips.parquet"
    pq.write_table(
        pa.table(
            {
                "trip_id": [0],
                "pickup_time": pa.array([datetime(2022, 1, 1, 0, 0, 17)], pa.timestamp("ms")),  # noqa: DTZ001 wall time, as in the files
                "dropoff_time": pa.array([datetime(2022, 1, 1, 0, 10, 49)], pa.timestamp("ms")),  # noqa: DTZ001 wall time, as in the files
                "pu_zone": [95], "do_zone": [130], "passengers": [3], "distance_mi": [2.29], "fare_usd": [10.0],
                "total_usd": [11.3], "pu_lat": [40.7171], "pu_lon": [-73.84671],
                "do_lat": [40.7026], "do_lon": [-73.8021],
            }
        ),
        path,
    )  # fmt: skip
    (ride,), _ = read(path)
    assert ride.asks_at_ms == ms("2022-01-01T00:00:17+00:00")
    assert (ride.duration_s, ride.distance_m, ride.passengers) == (632, 3685, 3)
    assert ride.pickup == (40.7171, -73.84671)
    assert ride.dropoff == (40.7026, -73.8021)


FIVE_THIRTY_EIGHT = (
    '"Date/Time","Lat","Lon","Base"\n'
    '"4/1/2014 0:11:00",40.769,-73.9549,"B02512"\n'
    '"4/1/2014 0:17:00",40.7267,-74.0345,"B02512"\n'
)
GREEN_CSV = (
    "VendorID,lpep_pickup_datetime,lpep_dropoff_datetime,store_and_fwd_flag,RatecodeID,PULocationID,DOLocationID,"
    "passenger_count,trip_distance,fare_amount,total_amount\n"
    "2,2018-01-01 00:18:50,2018-01-01 00:24:39,N,1,236,236,5,.70,6,7.3\n"
)
YELLOW_2014_CSV = (
    "vendor_id, pickup_datetime, dropoff_datetime, passenger_count, trip_distance, pickup_longitude, pickup_latitude, "
    "rate_code, store_and_fwd_flag, dropoff_longitude, dropoff_latitude, payment_type, fare_amount\n\n"
    "CMT,2014-01-09 20:45:25,2014-01-09 20:52:31,1,0.7,-73.99477,40.736828,1,N,-73.982227,40.73179,CRD,6.5\n"
)
NOWHERE = YELLOW_2014_CSV.splitlines()[2].replace("-73.99477,40.736828", "0,0")
YELLOW_2009_CSV = (
    "vendor_name,Trip_Pickup_DateTime,Trip_Dropoff_DateTime,Passenger_Count,Trip_Distance,Start_Lon,Start_Lat,Rate_Code,"
    "store_and_forward,End_Lon,End_Lat,Payment_Type,Fare_Amt\n"
    "VTS,2009-01-04 02:52:00,2009-01-04 03:02:00,1,2.63,-73.991957,40.721567,,,-73.993803,40.695922,CASH,8.9\n"
)
FHV_CSV = (
    "dispatching_base_num,pickup_datetime,dropOff_datetime,PUlocationID,DOlocationID,SR_Flag,Affiliated_base_number\n"
    "B00254,2019-01-01 00:33:03,2019-01-01 01:37:24,140,52,,B02356\n"
)
UBER_2015_CSV = (
    "Dispatching_base_num,Pickup_date,Affiliated_base_num,locationID\nB02617,2015-05-17 09:47:00,B02617,141\n"
)


@pytest.mark.parametrize(
    ("text", "rides", "first", "zone"),
    [
        (FIVE_THIRTY_EIGHT, 2, "2014-04-01T00:11", None),
        (GREEN_CSV, 1, "2018-01-01T00:18", 236),
        (YELLOW_2014_CSV, 1, "2014-01-09T20:45", None),
        (YELLOW_2009_CSV, 1, "2009-01-04T02:52", None),
        (FHV_CSV, 1, "2019-01-01T00:33", 140),
        (UBER_2015_CSV, 1, "2015-05-17T09:47", 141),
    ],
    ids=["fivethirtyeight", "green", "yellow 2014", "yellow 2009", "fhv", "uber 2015"],
)
def test_published_csv_layouts(tmp_path: Path, text: str, rides: int, first: str, zone: int | None) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text, encoding="utf-8")
    plans, files = read(path)
    assert len(plans) == rides
    assert not files.counts.rejected
    assert to_datetime(plans[0].asks_at_ms).isoformat()[:16] == first
    if zone is not None:
        assert CITY.zone_of(plans[0].pickup) == zone


def test_high_volume_parquet(tmp_path: Path) -> None:
    path = tmp_path / "fhvhv.parquet"
    pq.write_table(
        pa.table(
            {
                "hvfhs_license_num": ["HV0003"],
                "dispatching_base_num": ["B02764"],
                "request_datetime": pa.array([datetime(2023, 1, 1, 0, 18, 6)], pa.timestamp("us")),  # noqa: DTZ001 wall time, as in the files
                "pickup_datetime": pa.array([datetime(2023, 1, 1, 0, 19, 38)], pa.timestamp("us")),  # noqa: DTZ001 wall time, as in the files
                "dropoff_datetime": pa.array([datetime(2023, 1, 1, 0, 48, 7)], pa.timestamp("us")),  # noqa: DTZ001 wall time, as in the files
                "PULocationID": [48], "DOLocationID": [68], "trip_miles": [0.94], "trip_time": [1709],
            }
        ),
        path,
    )  # fmt: skip
    (ride,), _ = read(path)
    assert (ride.duration_s, ride.distance_m, ride.fleet) == (1709, 1513, "B02764")
    assert (CITY.zone_of(ride.pickup), CITY.zone_of(ride.dropoff)) == (48, 68)


BAD_ROWS = (
    GREEN_CSV
    + "2,not a time,2018-01-01 00:24:39,N,1,236,236,5,.70,6,7.3\n"
    + "2,2018-01-01 00:20:00,2018-01-01 00:10:00,N,1,236,236,5,.70,6,7.3\n"
    + "2,2018-01-01 00:20:00,2018-01-01 00:30:00,N,1,264,236,5,.70,6,7.3\n"
    + "2,2018-01-01 00:20:00,2018-01-01 00:30:00,N,1,,236,5,.70,6,7.3\n"
    + "2,2018-01-01 00:20:00\n"
    + "2,2018-01-01 00:21:00,2018-01-01 00:30:00,N,1,74,265,5,far,6,7.3\n"
    + "2,2018-01-01 00:22:00,2018-01-01 00:30:00,N,1,74,265,5,1.0,6,7.3\n"
)


def test_bad_rows_are_kept_with_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "green.csv"
    path.write_text(BAD_ROWS, encoding="utf-8")
    plans, files = read(path)
    assert len(plans) == 2  # the drop-off in an unknown zone is no reason to forget the ride
    assert files.counts.read == len(plans) + sum(files.counts.rejected.values()) == 8
    kept = [(row["line"], row["reason"]) for row in rejects(path)]
    assert kept == [
        ("3", "pickup time cannot be read: 'not a time'"),
        ("4", "dropoff is not after pickup"),
        ("5", "pickup zone is 'unknown' in the TLC's list: 264"),
        ("6", "no pickup place"),
        ("7", "line has too few fields: 2 of 11"),
        ("8", "distance is no number: 'far'"),
    ]
    assert '"PULocationID": "264"' in rejects(path)[2]["row"]


def test_places_outside_of_the_city_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "yellow.csv"
    path.write_text(YELLOW_2014_CSV + NOWHERE, encoding="utf-8")
    plans, _ = read(path)
    assert len(plans) == 1
    assert rejects(path)[0]["reason"] == "pickup outside of the city: 0, 0"


def test_period_and_limits_of_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(FIVE_THIRTY_EIGHT, encoding="utf-8")
    plans, files = read(path, first_ms=ms("2014-04-01T00:12:00+00:00"), until_ms=ms("2014-04-02T00:00:00+00:00"))
    assert len(plans) == 1
    assert files.counts.outside == 1


def test_an_unsorted_file_is_sorted_through_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "RUN_ROWS", 50)
    path = tmp_path / "f.csv"
    lines = [f'"4/{1 + i * 7 % 28}/2014 {i * 5 % 24}:{i * 13 % 60:02}:00",40.75,-73.99,"B{i}"' for i in range(500)]
    path.write_text('"Date/Time","Lat","Lon","Base"\n' + "\n".join(lines), encoding="utf-8")
    plans, _ = read(path)
    assert len(plans) == 500
    assert [p.asks_at_ms for p in plans] == sorted(p.asks_at_ms for p in plans)
    assert len({p.fleet for p in plans}) == 500


def test_a_folder_is_one_stream_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(FIVE_THIRTY_EIGHT, encoding="utf-8")
    (tmp_path / "a.csv").write_text(GREEN_CSV, encoding="utf-8")
    (tmp_path / "c.csv").write_text(YELLOW_2014_CSV, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no rides", encoding="utf-8")
    files = RideFiles(tmp_path, riders=Riders(CITY, 1))
    years = [to_datetime(ride.asks_at_ms).isoformat()[:7] for ride in files.rides()]
    assert years == ["2014-01", "2014-04", "2014-04", "2018-01"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.csv", None, "does not exist"),
        ("rides.txt", b"x", "neither .parquet nor .csv"),
        ("rides.csv", b"a,b\n1,2\n", "layout that is not known (it begins with: a, b)"),
        ("rides.csv", b"", "layout that is not known (it begins with: no columns)"),
        ("rides.parquet", b"no parquet", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RideFileError) as told:
        RideFiles(path, riders=Riders(CITY, 1))
    assert message in str(told.value)
    assert str(path) in str(told.value)


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(RideFileError, match=r"holds no \.parquet or \.csv file"):
        RideFiles(tmp_path, riders=Riders(CITY, 1))


def test_layout_needs_time_and_place() -> None:
    assert recognise(["pickup_time", "lat"]) is None
    assert recognise(["lat", "lon"]) is None
    found = recognise(['"Date/Time"', "Lat", "Lon", "Base"])
    assert found is not None
    assert found.whole_minutes
