"""Concurrent clients over real sockets while the broker is killed with SIGKILL and restarted, again and again.

`HAILBUS_HISTORY_SECONDS` sets how long (default 40; `just history` takes 600), `HAILBUS_SEED` replays the same kills.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.history.workload import SECONDS, Workload, create_topics, has_resumed
from tests.support import free_port

SETTINGS = [
    "--set=group.initial.rebalance.delay.ms=0",
    # A life of the broker is shorter than the shortest session by default: no dead member would ever be missed.
    "--set=group.min.session.timeout.ms=500",
]


class Broker:
    """The in-house broker on one port and data directory, through many lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.lives = 0
        self.slowest_start_s = 0.0
        self.start()

    def start(self) -> None:
        began = time.monotonic()
        command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "serve", "--listen", self.address]
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--data-dir", self.directory / "data", *SETTINGS],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap="), (self.directory / "broker.log").read_text()[-3000:]
        self.address = line.strip().removeprefix("bootstrap=")
        self.lives += 1
        self.slowest_start_s = max(self.slowest_start_s, time.monotonic() - began)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path)
    yield running
    running.stop()


@pytest.mark.timeout(SECONDS + 300)
def test_no_promise_is_broken_while_the_broker_is_killed(broker: Broker) -> None:
    seed = int(os.environ.get("HAILBUS_SEED", random.SystemRandom().randrange(1 << 32)))
    chance = random.Random(seed)
    create_topics(broker.address)
    work = Workload(broker.address)
    work.start_all(seed)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends and not work.failures:
        threading.Event().wait(chance.uniform(0.5, 4))  # how long this life of the broker lasts
        broker.kill()
        broker.start()
    # On a busy machine no life of the broker may have been long enough for a commit.
    latest = time.monotonic() + 180
    while not (work.copies and has_resumed(work.handed)) and time.monotonic() < latest and not work.failures:
        threading.Event().wait(0.2)
    work.stop_all(seed)
    ran = f"{broker.lives} lives, slowest start {broker.slowest_start_s:.2f} s"
    work.check(work.history(), seed=seed, ran=ran)
