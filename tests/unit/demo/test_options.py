"""What is written on the command line, and the one sentence for each mistake."""

from pathlib import Path

import pytest
from hailbus_demo.city.plan import HOUR_MS
from hailbus_demo.errors import UsageError
from hailbus_demo.options import parse_address, parse_duration, parse_period, parse_speed
from hailbus_demo.supervise.state import DataDir, RunState


def test_speed() -> None:
    assert parse_speed("60") == 60
    assert parse_speed("max") is None
    for wrong in ("0", "-3", "fast", "inf", "nan"):
        with pytest.raises(UsageError, match="give a number above 0"):
            parse_speed(wrong)


def test_duration() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "5m", "1.5h")] == [90, 90, 300, 5400]
    for wrong in ("", "5d", "-1s", "m"):
        with pytest.raises(UsageError, match="write it as 90s, 5m or 1h"):
            parse_duration(wrong)


def test_period() -> None:
    first, until = parse_period("2014-05-01", None, None)
    assert first is not None
    assert until == first + 24 * HOUR_MS
    assert parse_period(None, "2014-05-01T00:00", None) == (first, None)
    with pytest.raises(UsageError, match="leave out --from and --until"):
        parse_period("2014-05-01", "2014-05-01", None)
    with pytest.raises(UsageError, match="is not after"):
        parse_period(None, "2014-05-02", "2014-05-01")
    with pytest.raises(UsageError, match="--day yesterday is no time"):
        parse_period("yesterday", None, None)


def test_address() -> None:
    assert parse_address("127.0.0.1:9092", option="--bootstrap") == ("127.0.0.1", 9092)
    for wrong in ("localhost", "host:port", ":9092", "host:70000"):
        with pytest.raises(UsageError, match="write it as HOST:PORT"):
            parse_address(wrong, option="--bootstrap")


def test_state_is_kept_and_other_states_are_refused(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path)
    assert data_dir.load() is None
    state = RunState(cluster="in-house", run=3, clock_ms=17)
    data_dir.save(state)
    assert data_dir.load() == state
    data_dir.save(RunState(cluster="in-house", run=3, clock_ms=17, format=99))
    with pytest.raises(UsageError, match="left by another version"):
        data_dir.load()
    (tmp_path / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read"):
        data_dir.load()


def test_data_without_a_state_is_refused_and_fresh_removes_it(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with pytest.raises(UsageError, match="start anew with --fresh"):
        DataDir(tmp_path).load()
    DataDir(tmp_path).wipe()
    assert list(tmp_path.iterdir()) == []


def test_fresh_removes_nothing_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years", encoding="utf-8")
    with pytest.raises(UsageError, match="nothing was removed"):
        DataDir(tmp_path).wipe()
    assert (tmp_path / "thesis.txt").exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with DataDir(tmp_path).lock(), pytest.raises(UsageError, match="another demo runs"):
        DataDir(tmp_path).lock()
    DataDir(tmp_path).lock().close()
