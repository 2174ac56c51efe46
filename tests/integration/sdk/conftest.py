"""Clusters to test against: Apache Kafka and the in-house broker."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
from aiokafka.conn import AIOKafkaConnection

from tests.servers import APACHE_PROPERTIES, free_apache_port, shared_apache_kafka, start_apache_kafka
from tests.support import free_port


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Keep what Typer builds of an application: it builds all commands anew for each call, in 50 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command))
        yield


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class SharedApacheKafka:
    """The Apache Kafka that all tests of a run share."""

    def __init__(self) -> None:
        self.bootstrap = shared_apache_kafka()

    def stop(self) -> None:
        """The run stops it."""


class ApacheKafka:
    """One node of Apache Kafka that a test may kill and start again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_apache_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        self._started = start_apache_kafka(self._folder, APACHE_PROPERTIES, port=self._port)

    def kill(self) -> None:
        file = self._folder / "data" / "node-1" / "pid"
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
        file.unlink()
        # The process counts as dead before the last of its threads has let go of the sockets.
        while any(_answers(port) for port in (self._port, self._port + 10)):
            time.sleep(0.01)

    def stop(self) -> None:
        subprocess.run(self._started.stop, shell=True, capture_output=True, check=False)  # noqa: S602 our own words


class InHouse:
    """One process of the in-house broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None
        self.start()

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


@pytest.fixture(params=["aiokafka", "librdkafka"])
def client(request: pytest.FixtureRequest) -> str:
    """Each client library that `KafkaBus` can use."""
    name: str = request.param
    return name


Cluster = SharedApacheKafka | InHouse
OwnCluster = ApacheKafka | InHouse


@pytest.fixture(scope="session", params=["inhouse", "apache"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of each kind that other tests use, too: nobody kills it."""
    found: Cluster = SharedApacheKafka() if request.param == "apache" else InHouse(tmp_path_factory.mktemp("inhouse"))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session", params=["inhouse", "apache"])
def own_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    """A broker of each kind for tests that kill it and start it again."""
    folder = tmp_path_factory.mktemp(request.param)
    found: OwnCluster = ApacheKafka(folder) if request.param == "apache" else InHouse(folder)
    try:
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
