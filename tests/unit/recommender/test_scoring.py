"""The scoring command: what it may know, its figures on a small case, its refusals."""

import io
import json
from datetime import UTC, datetime
from math import log2
from pathlib import Path

import polars as pl
import pytest
from recommender.domain.metrics import RankMetrics
from recommender.domain.trips import Trip, wall_seconds
from recommender.scoring import RecordedTrip, main, score_trips
from recommender.zoning import city_areas

MARCH = wall_seconds(datetime(2023, 3, 1, tzinfo=UTC))
HOUR = 3600.0


def wall(month: int, day: int) -> datetime:
    """Eight o'clock on a day of 2023, without a zone, as in the files."""
    return datetime(2023, month, day, 8, tzinfo=UTC).replace(tzinfo=None)


ONLINE = "the same, updated online"


def recorded(number: int, origin: int, destination: int, hours: float, *, lasts_hours: float = 0.25) -> RecordedTrip:
    areas = city_areas()
    started_s = MARCH + hours * HOUR
    start, end = areas.find(origin), areas.find(destination)
    assert start is not None
    assert end is not None
    trip = Trip(origin=start, destination=end, started_s=started_s)
    return RecordedTrip(trip_id=number, completed_s=started_s + lasts_hours * HOUR, trip=trip)


def test_metrics_of_ranks_1_4_and_none() -> None:
    metrics = RankMetrics()
    for rank in (1, 4, None, 11):
        metrics.add(rank)
    assert [metrics.hit_rate(at) for at in (1, 5, 10)] == [0.25, 0.5, 0.5]
    assert metrics.mrr == pytest.approx((1 + 1 / 4) / 4)
    assert metrics.ndcg == pytest.approx((1 + 1 / log2(5)) / 4)


def test_only_trips_completed_before_the_pickup_are_known() -> None:
    records = [recorded(n, 74, 263, -24 + n / 100) for n in range(50)]
    records.append(recorded(50, 74, 10, 0.0, lasts_hours=2))
    lines = io.StringIO()
    score = score_trips(records, city_areas(), train_until_s=MARCH, test_until_s=MARCH + HOUR, predictions=lines)
    (line,) = [json.loads(text) for text in lines.getvalue().splitlines()]
    assert line["trip_id"] == 50
    assert line["recs"][0] == 263
    assert len(line["recs"]) == len(set(line["recs"])) == 10
    assert line["us"] > 0
    assert score.metrics[ONLINE].hit_rate(1) == 0.0


def test_a_trip_under_way_is_not_learned_before_it_ends() -> None:
    crowd = [recorded(n, 74, 10, 0.0, lasts_hours=1) for n in range(30)]
    early, late = recorded(98, 74, 10, 0.9), recorded(99, 74, 10, 1.1)
    lines = io.StringIO()
    score_trips(
        [*crowd, early, late],
        city_areas(),
        train_until_s=MARCH + 0.5 * HOUR,
        test_until_s=MARCH + 9 * HOUR,
        predictions=lines,
    )
    before, after = (json.loads(text)["recs"] for text in lines.getvalue().splitlines())
    assert before[0] != 10
    assert after[0] == 10


def test_pairs_of_equal_zones_within_five_minutes_are_counted() -> None:
    records = [
        recorded(0, 74, 263, 0),
        recorded(1, 74, 263, 0.05),
        recorded(2, 74, 263, 0.5),
        recorded(3, 74, 10, 0.51),
    ]
    pooling = score_trips(records, city_areas(), train_until_s=MARCH, test_until_s=MARCH + HOUR).pooling
    assert (pooling.pairs, pooling.trips) == (1, 1)


def test_the_command_prints_the_columns_and_writes_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [wall(2, 1 + n % 28) for n in range(100)] + [wall(3, 1), wall(4, 1)]
    frame = pl.DataFrame(
        {
            "trip_id": range(102),
            "pickup_time": times,
            "dropoff_time": times,
            "pu_zone": [74] * 102,
            "do_zone": [75] * 102,
        }
    )
    trips, out = tmp_path / "trips.parquet", tmp_path / "p.jsonl"
    frame.write_parquet(trips)
    main([str(trips), "--train-until", "2023-03-01", "--test-until", "2023-04-01", "--predictions", str(out)])
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == ["model", "HR@1", "HR@5", "HR@10", "MRR@10", "NDCG@10"]
    assert f"{ONLINE:<48}  1.000  1.000  1.000   1.000    1.000" in printed
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["recs"][0] == 75


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{}/none.parquet", "--train-until", "2023-03-01"], "none.parquet is not there: give a Parquet file"),
        (["{}/text.parquet", "--train-until", "2023-03-01"], "is no Parquet file that can be read"),
        (["{}/narrow.parquet", "--train-until", "2023-03-01"], "has no column do_zone: give a file with"),
        (["{}/narrow.parquet", "--train-until", "yesterday"], "'yesterday' is no time: write it as 2023-03-01"),
        (["{}/narrow.parquet", "--train-util", "2023-03-01"], "--train-until"),
    ],
)
def test_wrong_input_gets_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    times = [wall(2, 1)]
    columns = {"trip_id": [1], "pickup_time": times, "dropoff_time": times, "pu_zone": [74]}
    pl.DataFrame(columns).write_parquet(tmp_path / "narrow.parquet")
    with pytest.raises(SystemExit) as caught:
        main([argument.format(tmp_path) for argument in arguments])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
