"""The one command, as a user runs it: short runs that must balance, and everything that can be mistyped."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hailbus_demo.sabotage.faults import FAULTS

DEMO = str(Path(sys.executable).parent / "demo")
QUIET = ["--no-browser", "--exit-when-done", "--speed", "max"]
DEADLINE_S = 280
OPTIONS = [
    "--rides",
    "--day",
    "--from",
    "--until",
    "--limit",
    "--duration",
    "--speed",
    "--seed",
    "--rate",
    "--cells",
    "--data-dir",
    "--fresh",
    "--port",
    "--bootstrap",
    "--no-spark",
    "--no-browser",
    "--exit-when-done",
    "--summary",
    "--chaos",
    "--sabotage",
    "--supply",
    "--location-every",
    "--declines",
    "--outage",
    "--regions",
    "--catch-up",
]


def demo(*arguments: str, within_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=within_s, check=False)


def summary_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def rides_in_database(data: Path) -> int:
    """Count the rides in booking's database, without the ledger's help."""
    with closing(sqlite3.connect(data / "db" / "booking.sqlite")) as database:
        (count,) = database.execute("SELECT count(*) FROM booking_rides").fetchone()
    return int(count)


def wait_for(what: str, found: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.1)


def assert_balanced(done: subprocess.CompletedProcess[str], summary: Path, *, requested: int) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    state = summary_of(summary)
    assert state["balanced"] is True
    assert {line["verdict"] for line in state["lines"]} <= {"agrees", "shown"}
    rides = state["rides"]
    assert rides["requested"] == requested
    assert rides["requested"] == sum(rides[end] for end in ("completed", "cancelled", "unmatched", "in_flight"))
    assert state["accounts"]["booking"] == state["accounts"]["log"] == state["accounts"]["replay"] == rides
    groups = {group["group"]: group for group in state["groups"]}
    assert set(groups) == {"booking", "payment-saga", "surge", "recommender", "event-logger"}
    for group in groups.values():
        assert group["applied"] <= group["seen"]
        assert group["lag_records"] == 0
    assert groups["event-logger"]["applied"] == groups["event-logger"]["expected"]
    return state


def paid(data: Path) -> dict[str, int]:
    """Count the payments by their states in payment's database, without the ledger's help."""
    with closing(sqlite3.connect(data / "db" / "payment.sqlite")) as database:
        return dict(database.execute("SELECT state, count(*) FROM hailbus_state GROUP BY state").fetchall())


@pytest.mark.slow  # payment's own tests have declined cards and outages
@pytest.mark.timeout(900)
def test_declined_cards_and_an_outage_leave_the_accounts_balanced_and_a_published_file_goes_on_from_there(
    tmp_path: Path,
) -> None:
    summary, data = tmp_path / "summary.json", tmp_path / "data"
    options = ["--no-browser", "--exit-when-done", "--no-spark", "--data-dir", str(data), "--summary", str(summary)]
    # Slow enough that booking hears of a declined card before the rider boards.
    first = demo(*options, "--speed", "60", "--limit", "60", "--seed", "19", "--declines", "25", "--outage", "refuse")
    state = assert_balanced(first, summary, requested=60)
    assert state["run"] == 1
    assert state["recommendations_served"] > 0
    assert state["figures"]["first_event_s"] > state["figures"]["rides_begin_s"]
    assert state["figures"]["rides_begin_s"] < state["figures"]["services_ready_s"]
    assert state["figures"]["rides_pooled"] > 0
    (pooled,) = [line["detail"] for line in state["lines"] if line["id"] == "rides-pooled"]
    assert not pooled.startswith("0 rides")
    assert "Ledger: balanced" in first.stdout
    said = "the payment provider is"
    assert 0 < first.stdout.find(f"{said} away (refuse)") < first.stdout.find(f"{said} back")
    verdicts = {line["id"]: line["verdict"] for line in state["lines"] if line["id"].startswith("money-")}
    assert set(verdicts.values()) == {"agrees"}
    assert len(verdicts) == 5
    with closing(sqlite3.connect(data / "db" / "booking.sqlite")) as database:
        reasons = dict(database.execute("SELECT reason, count(*) FROM booking_rides GROUP BY reason").fetchall())
    assert reasons["payment_failed"] > 0
    assert sum(paid(data).values()) == 60
    assert paid(data).keys() <= {"Settled", "Closed", "Due"}

    options += ["--speed", "max"]
    too_early = demo(*options, "--from", "2014-05-02T17:00")
    assert too_early.returncode == 2
    assert "start a new city with --fresh, or choose a later --from" in too_early.stderr
    rides = tmp_path / "uber.csv"
    rows = [f'"5/2/2014 20:{i // 4:02}:00",40.7{i % 10}1,-73.98{i % 7},"B02512"' for i in range(40)]
    rides.write_text('"Date/Time","Lat","Lon","Base"\n' + "\n".join([*rows, '"5/2/2014 20:30:00",0,0,"B02512"']))
    again = demo(*options, "--rides", str(rides))
    requested = rides_in_database(data)
    assert requested >= 100  # and those who cancelled, of whom no record tells
    assert assert_balanced(again, summary, requested=requested)["run"] == 2
    assert "41 rows were read: 1 rejected (1 pickup outside of the city)" in again.stdout
    assert "pickup outside of the city: 0, 0" in (data / "rejects.csv").read_text()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_processes_come_back_and_the_accounts_balance_with_the_lake(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    data = ["--data-dir", str(tmp_path / "data"), "--summary", str(summary)]
    done = demo(*QUIET, "--chaos", "--limit", "80", *data, within_s=800)
    state = assert_balanced(done, summary, requested=80)
    for name in ("broker", "registry", "booking", "payment", "payment-provider", "surge", "recommender", "lake"):
        assert f"chaos: kill -9 {name}" in done.stdout
        assert next(p for p in state["processes"] if p["name"] == name)["restarts"] >= 1
    assert state["lake_rows"] == sum(topic["records"] for topic in state["topics"])
    verdicts = {line["id"]: line["verdict"] for line in state["lines"]}
    assert [verdicts[name] for name in ("lake-bronze", "lake-silver", "lake-gold")] == ["agrees"] * 3
    assert state["left_out"] == []


@pytest.mark.slow  # the check kills the leader of three brokers in containers
@pytest.mark.timeout(600)
def test_a_city_on_three_brokers_balances_though_whoever_leads_is_killed(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    data = ["--data-dir", str(tmp_path / "data"), "--summary", str(summary)]
    done = demo(*QUIET, "--no-spark", "--brokers", "3", "--chaos", "--limit", "80", *data, within_s=500)
    state = assert_balanced(done, summary, requested=80)
    killed = re.findall(r"chaos: kill -9 (broker-\d), (.+?) \(process", done.stdout)
    assert [role for _, role in killed] == ["leader of rides.v1-0", "active controller", "coordinator of surge"]
    restarts = {process["name"]: process["restarts"] for process in state["processes"]}
    assert sum(restarts[f"broker-{number}"] for number in (1, 2, 3)) == 3
    other = demo(*QUIET, "--no-spark", *data)
    assert other.returncode == 2
    assert "belongs to a run on in-house, 3 brokers, not on in-house: start anew with --fresh" in other.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--brokers", "2"], "--brokers 2: choose 1, 3 or 5"),
        (["--brokers", "3", "--bootstrap", "127.0.0.1:1"], "--brokers counts in-house brokers"),
    ],
)
def test_numbers_of_brokers_that_make_no_sense_are_refused(options: list[str], sentence: str) -> None:
    refused = demo(*options)
    assert refused.returncode == 2
    assert sentence in refused.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    [
        "lost-tail",
        pytest.param("double-payment", marks=pytest.mark.slow),
        pytest.param("altered", marks=pytest.mark.slow),
        pytest.param("idle-consumer", marks=pytest.mark.slow),
    ],
)
def test_a_sabotage_is_found_and_named(tmp_path: Path, fault: str) -> None:
    summary = tmp_path / "summary.json"
    data = ["--data-dir", str(tmp_path / "data"), "--summary", str(summary), "--catch-up", "60"]
    done = demo(*QUIET, "--no-spark", "--sabotage", fault, "--limit", "60", *data, within_s=800)
    assert done.returncode == 1, done.stdout[-6000:] + done.stderr[-3000:]
    assert "Ledger: not balanced" in done.stdout
    state = summary_of(summary)
    assert (state["balanced"], state["so_far"]) == (False, False)
    line = next(line for line in state["lines"] if line["id"] == FAULTS[fault].line)
    assert line["verdict"] == "disagrees"
    sabotage = state["sabotage"]
    assert sabotage["fault"] == fault
    assert line["name"] in sabotage["found_by"]
    assert f"sabotage: {fault}: {sabotage['sentence']}" in done.stdout
    assert f"sabotage: {fault} was found by: {'; '.join(sabotage['found_by'])}" in done.stdout


def test_the_faults_are_listed_one_a_line() -> None:
    done = demo("--sabotage", "list", within_s=60)
    assert done.returncode == 0
    names = done.stdout.split("\n")
    assert names.pop() == ""
    assert {"lost-tail", "invented", "reordered", "altered", "double-apply", "double-payment"} <= set(names)
    assert {"idle-consumer", "lake-row-missing"} <= set(names)
    assert done.stderr == ""


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    options = ["--no-browser", "--speed", "60", "--data-dir", str(tmp_path / "data")]
    if "spark" not in request.keywords:
        options.append("--no-spark")
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            [DEMO, *options, "--summary", str(tmp_path / "summary.json")], stdout=out, stderr=out, text=True
        )
    try:
        yield process, tmp_path
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ledger_shows(folder: Path, found: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        return found(summary_of(folder / "data" / "ledger.json"))
    except FileNotFoundError:
        return False


def pids_of(folder: Path) -> list[int]:
    processes = summary_of(folder / "data" / "ledger.json")["processes"]
    return [process["pid"] for process in processes if process["pid"] is not None]


def click_on_fault(folder: Path, fault_id: str) -> None:
    """Begin a fault as the page does."""
    said = re.search(r"dashboard: (http\S+)", (folder / "out.txt").read_text())
    assert said is not None

    own_page = {"Sec-Fetch-Site": "same-origin"}
    answer = httpx.post(f"{said[1]}/api/faults/{fault_id}", headers=own_page, timeout=30).raise_for_status()
    (begun,) = [fault for fault in answer.json()["faults"] if fault["id"] == fault_id]
    assert begun["state"] == "running"


def restarts_of(state: dict[str, Any], name: str) -> int:
    (found,) = [process["restarts"] for process in state["processes"] if process["name"] == name]
    return int(found)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "running", ["without lake", pytest.param("with lake", marks=[pytest.mark.spark, pytest.mark.slow])], indirect=True
)
def test_after_a_fault_by_a_click_control_c_ends_with_a_ledger_and_leaves_nothing_behind(
    running: tuple[subprocess.Popen[str], Path], request: pytest.FixtureRequest
) -> None:
    process, folder = running
    # Rides come sooner than Spark's session is up: the lake is part of the ledger all the same.
    wait_for("rides", lambda: ledger_shows(folder, lambda state: state["rides"]["requested"] >= 10), 120)
    if "spark" not in request.keywords:
        # How long the city takes to recover is the machine's; the ledger judges at the end.
        click_on_fault(folder, "kill-recommender")
        wait_for("its return", lambda: ledger_shows(folder, lambda state: restarts_of(state, "recommender") == 1), 120)
    children = pids_of(folder)
    assert len(children) >= 6
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0, (folder / "out.txt").read_text()[-5000:]
    assert "stopping: no new ride begins" in (folder / "out.txt").read_text()
    state = summary_of(folder / "summary.json")
    assert state["balanced"] is True
    assert restarts_of(state, "recommender") == (0 if "spark" in request.keywords else 1)
    if "spark" in request.keywords:
        assert state["lake_rows"] == sum(topic["records"] for topic in state["topics"])
    assert state["rides"]["in_flight"] > 0
    assert not any(psutil.pid_exists(pid) for pid in children)


@pytest.mark.timeout(400)
def test_a_killed_demo_leaves_nothing_behind(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = running
    wait_for("rides", lambda: ledger_shows(folder, lambda state: state["rides"]["requested"] >= 5), 120)
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert set(pids_of(folder)) < set(children)  # the auditor is one more
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    def gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for("the end of all children", lambda: all(gone(pid) for pid in children), 10)


def test_what_is_mistyped_is_told_in_one_sentence(tmp_path: Path) -> None:
    recorded = tmp_path / "rides.csv"
    recorded.write_text("Date/Time,Lat,Lon,Base\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        wrong = {
            ("--speed", "fast"): "--speed fast is no speed: give a number above 0, such as 60, or max",
            ("--sped", "9"): "`demo --help` lists the options",
            ("--limit", "0"): "Invalid value for '--limit'",
            ("--rides", str(tmp_path / "none.csv")): "does not exist: name a file or folder with recorded rides",
            ("--port", port): f"port {port} on 127.0.0.1 is taken: stop who listens there, or give --port another port",
            ("--bootstrap", "127.0.0.1:1"): "nobody answers at 127.0.0.1:1: start the cluster, or correct --bootstrap",
            ("--bootstrap", "kafka"): "--bootstrap kafka is no address: write it as HOST:PORT",
            ("--summary", str(tmp_path / "no" / "s.json")): "the folder does not exist, make it or choose another",
            ("--rides", str(recorded), "--rate", "3"): "--rate is for the simulator: leave it out with --rides",
            ("--sabotage", "lost-tale"): "--sabotage lost-tale is no fault: choose one of lost-tail, ",
            ("--sabotage", "lake-row-missing"): "--sabotage lake-row-missing needs the lake: leave out --no-spark",
            ("--sabotage", "invented", "--chaos"): "--sabotage does not go with --chaos",
            ("--outage", "refuse", "--chaos"): "--outage goes neither with --chaos nor with --sabotage",
            ("--kills", "3"): "--kills goes with --chaos",
            ("--kills", "3", "--chaos"): "--kills draws moments of a run whose end is known: give --limit, ",
            ("--outage", "away"): "Invalid value for '--outage'",
            ("--declines", "101"): "Invalid value for '--declines'",
        }
        for arguments, sentence in wrong.items():
            done = demo("--no-spark", "--no-browser", "--data-dir", str(tmp_path / "data"), *arguments, within_s=60)
            assert done.returncode == 2, (arguments, done.stdout, done.stderr)
            assert sentence in done.stderr, (arguments, done.stderr)
            assert done.stderr.startswith("demo: ")
            assert len(done.stderr.splitlines()) == 1, done.stderr


def test_help_explains_every_option() -> None:
    done = subprocess.run(
        [DEMO, "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )
    assert done.returncode == 0
    for option in OPTIONS:
        assert option in done.stdout, option
