"""Clusters to test against: Apache Kafka from the folder beside the clone, and the in-house broker."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.conn import AIOKafkaConnection

from tests.support import free_port

STARTED_IN_S = 60.0


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class ApacheKafka:
    """One node, by the script in the shared folder."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self.port = free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        properties = self._folder / "test.properties"
        properties.write_text(
            "group.initial.rebalance.delay.ms=0\nauto.create.topics.enable=false\n"
            "transaction.state.log.min.isr=1\ntransaction.state.log.replication.factor=1\n"
        )
        command = ["start", "--port", str(self.port), "--dir", str(self._folder), "--properties", str(properties)]
        done = subprocess.run(
            [str(self._script), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * STARTED_IN_S,
            env=os.environ | {"KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"},
        )
        assert "bootstrap=" in done.stdout, done.stdout + done.stderr

    def kill(self) -> None:
        pid = int((self._folder / "node-1" / "pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        (self._folder / "node-1" / "pid").unlink()
        # The process counts as dead before the last of its threads has let go of the sockets.
        while any(_answers(port) for port in (self.port, self.port + 10)):
            time.sleep(0.01)

    def stop(self) -> None:
        subprocess.run([str(self._script), "stop", "--dir", str(self._folder)], capture_output=True, check=False)


class InHouse:
    """One process of the in-house broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        log = (self._folder / "broker.log").open("a")
        self._process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("hailbus-broker")),
                "serve",
                "--listen",
                self.bootstrap,
                "--data-dir",
                str(self._folder / "data"),
                "--set",
                "group.initial.rebalance.delay.ms=0",
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("bootstrap="), (self._folder / "broker.log").read_text()[-2000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


Cluster = ApacheKafka | InHouse


def shared_folder() -> Path | None:
    named = os.environ.get("HAILBUS_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[4] / "shared"
    return folder if (folder / "apache-kafka" / "kafka").exists() else None


@pytest.fixture(scope="session", params=["inhouse", "apache"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hailbus-sdk-") as name:
        found: Cluster
        if request.param == "apache":
            shared = shared_folder()
            if shared is None:
                pytest.skip("no Apache Kafka: set HAILBUS_SHARED to the folder that holds apache-kafka/kafka")
            found = ApacheKafka(shared / "apache-kafka" / "kafka", Path(name))
        else:
            found = InHouse(Path(name))
        try:
            found.start()
            yield found
        finally:
            found.stop()


async def until(condition: object, *, seconds: float = 30.0) -> None:
    """Wait for a condition, sync or async, with a deadline."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while True:
            answer = condition()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.02)


def open_connections() -> list[AIOKafkaConnection]:
    """Those that aiokafka has in this event loop."""
    loop = asyncio.get_running_loop()
    every = [found for found in gc.get_objects() if isinstance(found, AIOKafkaConnection)]
    return [found for found in every if found.connected() and found._loop is loop]


@pytest.fixture(name="open_connections")
def open_connections_fixture() -> Callable[[], list[AIOKafkaConnection]]:
    return open_connections


@pytest.fixture(name="until")
def until_fixture() -> object:
    return until
