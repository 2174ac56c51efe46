"""Brokers to test: every test of behaviour runs against ours and against Apache Kafka."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import free_port

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("HAILBUS_SHARED", ROOT.parent / "shared"))
APACHE_KAFKA = SHARED / "apache-kafka" / "kafka"
APACHE_PROPERTIES = "group.initial.rebalance.delay.ms=0\noffsets.topic.num.partitions=4\n"
"""What both brokers are started with, so that no test waits for more members of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running broker. `kind` is `hailbus` or `apache`."""

    kind: str
    bootstrap: str


def apache_kafka_missing() -> str | None:
    """Say why Apache Kafka cannot be started here, or nothing if it can."""
    if not APACHE_KAFKA.exists():
        return "Apache Kafka is compared with where its start script stands beside the clone, and it does not"
    if not shutil.which("java"):
        return "Apache Kafka needs Java 17 or newer, and there is none"
    return None


def hailbus_cluster(directory: Path) -> Iterator[Cluster]:
    command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "serve", "--listen", "127.0.0.1:0"]
    settings = [f"--set={line}" for line in APACHE_PROPERTIES.splitlines()]
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", directory / "data", *settings], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("bootstrap="), (directory / "broker.log").read_text()[-2000:]
        yield Cluster(kind="hailbus", bootstrap=line.strip().removeprefix("bootstrap="))
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def apache_cluster(directory: Path) -> Iterator[Cluster]:
    reason = apache_kafka_missing()
    if reason:
        pytest.skip(reason)
    properties = directory / "more.properties"
    properties.write_text(APACHE_PROPERTIES)
    where = ["--dir", str(directory / "data")]
    port = free_port()
    subprocess.run([APACHE_KAFKA, "fetch"], check=True, capture_output=True)
    subprocess.run(
        [APACHE_KAFKA, "start", "--port", str(port), *where, "--properties", str(properties)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"},
    )
    try:
        yield Cluster(kind="apache", bootstrap=f"127.0.0.1:{port}")
    finally:
        subprocess.run([APACHE_KAFKA, "stop", *where], check=True, capture_output=True)


@pytest.fixture(scope="session", params=["hailbus", "apache"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of each kind, started once for all tests."""
    directory = tmp_path_factory.mktemp(request.param)
    yield from (hailbus_cluster if request.param == "hailbus" else apache_cluster)(directory)
