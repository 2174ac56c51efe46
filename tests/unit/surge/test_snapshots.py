"""Files of what the forecasts have learnt: the right one is read, and one that cannot be used is passed over."""

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from surge.adapters.snapshots import Snapshots

ARRAYS = {"8/next_slot": np.array(7), "8/cells": np.array(["a", "b"]), "8/levels": np.arange(6.0).reshape(2, 3)}


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path, history="one", calendar="UTC")


def test_what_was_written_is_read(snapshots: Snapshots) -> None:
    snapshots.write(7, ARRAYS)
    found = snapshots.read(until_slot=7, since_slot=None)
    assert found is not None
    slot, arrays = found
    assert slot == 7
    assert arrays.keys() == ARRAYS.keys()
    assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    assert arrays["8/levels"].dtype == np.float64


def test_the_two_newest_stay_and_none_is_read_that_knows_more_than_the_state(
    snapshots: Snapshots, tmp_path: Path
) -> None:
    for slot in (90, 100, 1_000):
        snapshots.write(slot, ARRAYS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forecasts-100.npz", "forecasts-1000.npz"]
    for until, since, expected in [(2_000, None, 1_000), (999, None, 100), (99, None, None), (999, 101, None)]:
        found = snapshots.read(until_slot=until, since_slot=since)
        assert (found and found[0]) == expected


@pytest.mark.parametrize(("history", "calendar"), [("other", "UTC"), ("one", "America/New_York US")])
def test_a_snapshot_of_another_history_or_calendar_is_passed_over(
    snapshots: Snapshots, tmp_path: Path, history: str, calendar: str
) -> None:
    snapshots.write(7, ARRAYS)
    Snapshots(tmp_path, history=history, calendar=calendar).write(8, ARRAYS)
    with capture_logs() as lines:
        found = snapshots.read(until_slot=9, since_slot=None)
    assert found is not None
    assert found[0] == 7
    assert [line["event"] for line in lines] == ["snapshot_of_another_history"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_reported_and_an_older_one_is_read(snapshots: Snapshots, tmp_path: Path, damage: str) -> None:
    snapshots.write(7, ARRAYS)
    snapshots.write(8, ARRAYS)
    file = tmp_path / "forecasts-8.npz"
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[content.index(np.arange(6.0).tobytes()[8:16])] ^= 1
    file.write_bytes({"cut": bytes(content[:-30]), "flip": bytes(content), "empty": b""}[damage])
    with capture_logs() as lines:
        found = snapshots.read(until_slot=9, since_slot=None)
    assert found is not None
    assert found[0] == 7
    assert [(line["event"], line["file"]) for line in lines] == [("snapshot_unreadable", str(file))]


def test_a_file_that_was_not_finished_counts_for_nothing(snapshots: Snapshots, tmp_path: Path) -> None:
    (tmp_path / "forecasts-8.unfinished").write_bytes(b"half")
    assert snapshots.read(until_slot=9, since_slot=None) is None
