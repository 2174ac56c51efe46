"""The one command with two regions of booking: one is killed in the middle, and the accounts balance over both."""

import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.demo.test_demo import DEMO, click_on_fault, demo, ledger_shows, restarts_of, summary_of, wait_for

REGIONS = ("south", "north")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter, as pytest's are not for one who is not root."""
    made = Path(tempfile.mkdtemp(prefix="hailbus-regions-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def lives(process: psutil.Process) -> bool:
    """Return whether a process runs, though another one may have its id by now: PostgreSQL's come and go."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.needs("postgresql")
@pytest.mark.timeout(400)
def test_a_city_of_two_regions_balances_though_one_is_killed(folder: Path) -> None:
    arguments = ["--regions", "2", "--no-browser", "--no-spark", "--exit-when-done", "--limit", "60", "--speed", "200"]
    where = ["--data-dir", str(folder / "data"), "--summary", str(folder / "summary.json")]
    with (folder / "out.txt").open("w") as out:
        process = subprocess.Popen([DEMO, *arguments, *where], stdout=out, stderr=out, text=True)
    try:
        wait_for(
            "rides",
            lambda: process.poll() is not None or ledger_shows(folder, lambda s: s["rides"]["requested"] >= 15),
            180,
        )
        assert process.poll() is None, (folder / "out.txt").read_text()[-6000:]
        click_on_fault(folder, "kill-booking-south")
        children = psutil.Process(process.pid).children(recursive=True)
        code = process.wait(300)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    said = (folder / "out.txt").read_text()
    assert code == 0, said[-6000:]
    assert "2 regions of booking: south, north; one router" in said
    state = summary_of(folder / "summary.json")
    assert state["balanced"] is True
    assert {line["verdict"] for line in state["lines"]} <= {"agrees", "shown"}
    assert [restarts_of(state, name) for name in ("booking-south", "booking-north", "booking-router")] == [1, 0, 0]
    rides = state["rides"]
    assert rides["requested"] == 60
    assert state["accounts"]["booking"] == state["accounts"]["log"] == state["accounts"]["replay"] == rides
    lags = {group["group"]: group["lag_records"] for group in state["groups"]}
    assert lags.keys() >= {"booking-south", "booking-north"}
    assert set(lags.values()) == {0}
    lines = (folder / "data" / "book.jsonl").read_text().splitlines()
    ended = Counter(
        (entry["ride_id"].partition(".")[0], entry["state"])
        for entry in map(json.loads, lines)
        if entry["kind"] == "ride"
    )
    assert all(ended[region, "completed"] > 0 for region in REGIONS), ended
    wait_for("the end of all children", lambda: not any(map(lives, children)), 10)
    other = demo("--no-spark", *where)
    assert other.returncode == 2
    assert "belongs to a run on in-house, 2 regions, not on in-house: start anew with --fresh" in other.stderr


@pytest.mark.needs("postgresql")
@pytest.mark.slow  # the check kills one region by a click
@pytest.mark.timeout(600)
def test_a_city_of_two_regions_balances_though_their_database_is_killed_under_load(folder: Path) -> None:
    done = demo(
        *("--regions", "2", "--chaos", "--kills", "14", "--seed", "4", "--limit", "300", "--speed", "120"),
        *("--no-browser", "--no-spark", "--exit-when-done"),
        *("--data-dir", str(folder / "data"), "--summary", str(folder / "summary.json")),
        within_s=500,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    state = summary_of(folder / "summary.json")
    assert state["balanced"] is True
    assert restarts_of(state, "postgresql") == 2
    assert state["rides"]["requested"] == 300


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--regions", "5"], "Invalid value for '--regions'"),
        (["--regions", "2", "--sabotage", "altered", "--no-spark"], "--regions does not go with --sabotage"),
    ],
)
def test_regions_that_make_no_sense_are_refused(options: list[str], sentence: str) -> None:
    refused = demo(*options)
    assert refused.returncode == 2
    assert sentence in refused.stderr
