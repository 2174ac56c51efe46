"""The scoring command on small recordings."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import h3
import polars as pl
import pytest
from surge.scoring import main

CELL = "882a100d25fffff"
LAT, LNG = 40.7484, -73.9857


def rides(path: Path, days: int = 10, hole_days: int = 0) -> Path:
    start = dt.datetime(2014, 4, 1, tzinfo=dt.UTC)
    times = [start + dt.timedelta(minutes=15 * index) for index in range(days * 96)]
    times = [when if when.day < 5 else when + dt.timedelta(days=hole_days) for when in times]
    pl.DataFrame(
        {
            "pickup_time": [when.replace(tzinfo=None) for when in times],
            "lat": [LAT] * len(times),
            "lon": [LNG] * len(times),
        },
        schema_overrides={"pickup_time": pl.Datetime("ms"), "lat": pl.Float32, "lon": pl.Float32},
    ).write_parquet(path)
    return path


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    path = tmp_path / "cells.txt"
    path.write_text(f"{h3.latlng_to_cell(LAT, LNG, 8)}\n{CELL}\n")
    return path


def test_it_prints_the_table_and_writes_predictions(
    tmp_path: Path, cells: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "p.parquet"
    arguments = [str(rides(tmp_path / "r.parquet")), "--cells", str(cells), "--res", "8", "--from", "2014-04-09"]
    assert main([*arguments, "--until", "2014-04-10", "--predictions", str(target)]) == 0
    out = capsys.readouterr().out
    errors = next(line for line in out.splitlines() if line.startswith("| last value |")).split("|")[2].split("/")
    # One ride every 15 minutes: any window of 15 or 30 equals the one before, and two of three of 5 do not.
    assert [float(error) for error in errors] == pytest.approx([1 / 3, 0, 0], abs=0.01)
    tenths = [line.split("|")[2:-1] for line in out.splitlines() if line.startswith("| blend") and ", mean, " in line]
    assert [sum(map(float, shares)) for shares in tenths] == pytest.approx([1, 1, 1], abs=0.01)
    frame = pl.read_parquet(target)
    assert frame.columns == ["ts", "cell", "horizon_min", "pred", "q10", "q50", "q90", "multiplier"]
    assert len(frame) == 288 * 2 * 3
    assert frame["ts"].min() == int(dt.datetime(2014, 4, 9, tzinfo=dt.UTC).timestamp())
    busy = frame.filter(pl.col("cell") != CELL, pl.col("horizon_min") == 15)
    assert busy["pred"].mean() == pytest.approx(1, abs=0.1)
    assert frame.filter(pl.col("cell") == CELL)["pred"].max() == 0


def test_jsonl_and_mean(tmp_path: Path, cells: Path) -> None:
    target = tmp_path / "p.jsonl"
    arguments = [str(rides(tmp_path / "r.parquet")), "--cells", str(cells), "--res", "8", "--from", "2014-04-10T20:00"]
    assert main([*arguments, "--predictions", str(target), "--point", "mean"]) == 0
    frame = pl.read_ndjson(target)
    assert (frame["pred"] != frame["q50"]).any()


def test_a_hole_in_the_recording_is_not_taken_for_quiet(
    tmp_path: Path, cells: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rides(tmp_path / "r.parquet", days=8, hole_days=60)
    assert main([str(path), "--cells", str(cells), "--res", "8", "--from", "2014-06-06"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "hour-of-week average" in line)
    assert float(row.split("|")[2].split("/")[1]) < 0.2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: [*a, "--cells", "missing.txt"], "give a text file of one H3 cell per line"),
        (lambda a: [*a, "--predictions", "x.csv"], "neither .parquet nor .jsonl"),
        (lambda a: [*a, "--from", "2020-01-01"], "the rides run from 2014-04-01 00:00"),
        (lambda a: [*a[:-1], "7"], "no H3 cell of resolution 7"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, cells: Path, capsys: pytest.CaptureFixture[str], change: Callable[[list[str]], list[str]], said: str
) -> None:
    arguments = [str(rides(tmp_path / "r.parquet")), "--cells", str(cells), "--res", "8"]
    assert main(change(arguments)) == 2
    assert said in capsys.readouterr().err
