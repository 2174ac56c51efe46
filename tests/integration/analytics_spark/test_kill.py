"""The promise that cannot be tested in one process: a driver that dies by SIGKILL loses and repeats nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from analytics_spark.broker_view import BrokerView
from analytics_spark.control import request_finish
from analytics_spark.locking import lock_holder
from analytics_spark.progress import read_progress
from analytics_spark.verify import verify_lake
from hailbus_broker.testing import ThreadedBroker

from tests.integration.analytics_spark.lake_events import Feed

pytestmark = pytest.mark.spark
# Generous: on two busy cores the JVM alone may take a minute to come up.
START_TIMEOUT_S = 400.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    with ThreadedBroker(data_dir=str(tmp_path_factory.mktemp("broker"))) as running:
        yield running


@pytest.fixture
def sinks(broker: ThreadedBroker, tmp_path: Path) -> Iterator["Callable[..., Sink]"]:
    """Starts sinks on one lake, and leaves none behind."""
    started: list[Sink] = []

    def start(*arguments: str, **settings: object) -> Sink:
        started.append(Sink(tmp_path / "lake", broker.bootstrap, *arguments, **settings))
        return started[-1]

    yield start
    for sink in started:
        if sink.process.poll() is None:
            sink.kill("both")
            sink.wait()


class Sink:
    """lake-sink as its own process, and what tests do to it."""

    def __init__(self, lake: Path, bootstrap: str, *arguments: str, **settings: object) -> None:
        self.lake = lake
        self.arguments = arguments
        self.environment = (
            {name: value for name, value in os.environ.items() if not name.startswith("LAKE_") or name == "LAKE_CACHE"}
            | {"LAKE_BOOTSTRAP_SERVERS": bootstrap, "LAKE_DIR": str(lake), "LAKE_TRIGGER_S": "0.2"}
            | {"LAKE_SILVER_TRIGGER_S": "0.5", "LAKE_GOLD_TRIGGER_S": "3", "LAKE_MAX_OFFSETS_PER_TRIGGER": "400"}
            | {f"LAKE_{name.upper()}": str(value) for name, value in settings.items()}
        )
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "analytics_spark.jobs.sink", *self.arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def restart(self) -> None:
        self.process = self._start()

    def jvm(self) -> int | None:
        """Process id of the JVM: the child that is no Python."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == self.process.pid and b"java" in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                    return int(entry.name)
            except (OSError, IndexError):
                continue
        return None

    def kill(self, victim: str) -> None:
        """Kill the driver, its JVM or both; a driver that is only starting has no JVM yet."""
        jvm = self.jvm() if victim in {"jvm", "both"} else None
        deadline = time.monotonic() + START_TIMEOUT_S
        while victim == "jvm" and jvm is None:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "the driver has started no JVM"
            time.sleep(0.05)
            jvm = self.jvm()
        if victim in {"driver", "both"}:
            self.process.kill()
        if jvm is not None:
            os.kill(jvm, signal.SIGKILL)

    def progress(self) -> dict[str, Any]:
        return read_progress(self.lake / "progress.json") or {"rows": {}, "state": "", "pid": 0}

    def has_done(self, batches: int) -> bool:
        """Whether this process, not one before it, has finished so many batches."""
        progress = self.progress()
        done = sum(int(one["count"]) for one in progress["batches"].values())
        return int(progress["pid"]) == self.process.pid and done >= batches

    def wait_for_rows(self, table: str, at_least: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.progress()["rows"].get(table, 0) < at_least:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, json.dumps(self.progress())
            time.sleep(0.1)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, stderr


@pytest.mark.timeout(1200)
def test_a_killed_driver_loses_and_repeats_nothing(
    broker: ThreadedBroker, sinks: Callable[..., Sink], tmp_path: Path
) -> None:
    feed = Feed(broker.bootstrap)
    feed.rides(800)
    sink = sinks()
    sink.wait_for_rows("bronze.events", 400)
    sink.kill("driver")
    sink.wait()
    feed.rides(200)
    sink.restart()
    # The dead driver's JVM may live a moment longer; its lock keeps the second one out until it is gone.
    request_finish_when_running(sink)
    code, stderr = sink.wait()
    assert code == 0, stderr
    report = verify_lake(tmp_path / "lake", BrokerView(broker.bootstrap))
    assert report.problems == ()
    assert report.rows == feed.count
    assert report.silver is not None
    assert (report.silver.typed, report.silver.unaccounted) == (feed.count, 0)
    assert sink.progress()["state"] == "caught-up"
    assert lock_holder(tmp_path / "lake" / "lock") is None


def request_finish_when_running(sink: Sink) -> None:
    """The file is cleared at the start, so it must come after it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (sink.progress()["pid"] == sink.process.pid and sink.progress()["state"] == "running"):
        assert sink.process.poll() is None, sink.process.communicate()[1]
        assert time.monotonic() < deadline, json.dumps(sink.progress())
        time.sleep(0.1)
    request_finish(sink.lake)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1])
def test_many_kills_at_random_moments(
    broker: ThreadedBroker, sinks: Callable[..., Sink], tmp_path: Path, seed: int
) -> None:
    """Driver, JVM or both, from the first second of the start to the middle of any batch, while events keep coming."""
    kills = int(os.environ.get("HAILBUS_TEST_KILLS", "10"))
    chance = random.Random(seed)
    feed = Feed(broker.bootstrap, first_ride=1_000_000)
    lake = tmp_path / "lake"
    feeding = threading.Event()
    feeder = threading.Thread(target=feed.keep_going, args=(feeding,), kwargs={"per_second": 60})
    feeder.start()
    sink = sinks()
    moments = []
    try:
        for number in range(kills):
            if number % 3 == 0:
                # Somewhere in the start.
                time.sleep(chance.uniform(0.5, 12))
            else:
                wanted = chance.randint(1, 6)
                deadline = time.monotonic() + START_TIMEOUT_S
                while not sink.has_done(wanted):
                    assert sink.process.poll() is None, sink.process.communicate()[1]
                    assert time.monotonic() < deadline, json.dumps(sink.progress())
                    time.sleep(0.05)
                time.sleep(chance.uniform(0, 0.8))
            victim = chance.choice(["driver", "jvm", "both"])
            moments.append((victim, sink.progress()["state"], _logs(lake)))
            sink.kill(victim)
            sink.wait()
            sink.restart()
    finally:
        feeding.set()
        feeder.join()
    request_finish_when_running(sink)
    code, stderr = sink.wait(600)
    assert code == 0, stderr
    ends = feed.ends()
    report = verify_lake(lake, BrokerView(broker.bootstrap))
    print(f"{kills} kills (victim, state, offsets/commits of bronze and silver): {moments}")
    print(f"{report.rows} rows of {sum(ends.values())}, silver {report.silver}")
    assert report.problems == ()
    assert report.rows == sum(ends.values())
    assert report.silver is not None
    assert report.silver.unaccounted == 0


def _logs(lake: Path) -> list[tuple[str, int, int]]:
    def newest(query: str, log: str) -> int:
        return max((int(path.name) for path in (lake / "checkpoints" / query / log).glob("[0-9]*")), default=-1)

    return [(query, newest(query, "offsets"), newest(query, "commits")) for query in ("bronze", "silver")]


@pytest.mark.timeout(900)
def test_a_second_driver_is_shut_out_and_sigterm_ends_in_order(
    broker: ThreadedBroker, sinks: Callable[..., Sink], tmp_path: Path
) -> None:
    feed = Feed(broker.bootstrap, first_ride=2_000_000)
    feed.rides(500)
    sink = sinks(max_offsets_per_trigger=10)
    deadline = time.monotonic() + START_TIMEOUT_S
    while lock_holder(tmp_path / "lake" / "lock") != str(sink.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = sinks(lock_timeout_s=0.5)
    code, stderr = second.wait()
    assert code == 2
    assert f"another lake-sink (process {sink.process.pid}) holds" in stderr
    sink.wait_for_rows("bronze.events", 10)
    sink.process.terminate()
    code, stderr = sink.wait(60)
    assert code == 0, stderr
    assert sink.progress()["state"] == "stopped"
    # It ended the batch in its hands and did not go on to land the backlog, at 10 offsets a batch.
    assert sink.progress()["rows"]["bronze.events"] < feed.count


def test_an_unknown_setting_stops_the_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "analytics_spark.jobs.sink"],
        env=os.environ | {"LAKE_BOOTSTRAP_SERVER": "x"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("lake-sink: unknown setting LAKE_BOOTSTRAP_SERVER; known are")
