"""The broker through clients of other languages: each scenario is a run of a small program."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import APACHE_KAFKA, Cluster, apache_kafka_missing

CLIENTS = Path(__file__).parent / "clients"
FRANZ_GO = [
    "acks",
    "admin",
    "codecs",
    "commit_metadata",
    "copy_exactly_once",
    "delete_records",
    "group_takes_over",
    "headers_and_nulls",
    "keys_keep_their_partition",
    "message_too_large",
    "mid_batch_offset",
    "next_generation_group",
    "offset_out_of_range",
    "offsets_for_times",
    "transactions_read_committed",
]
KAFKAJS = [
    "admin",
    "group_takes_over",
    "headers_and_nulls",
    "idempotent",
    "offsets_for_times",
    "produce_and_consume",
    "resumes_where_it_was",
    "transactions",
]
JAVA = [
    "admin",
    "classic_group_cooperative",
    "classic_group_range",
    "classic_group_static_members",
    "codecs",
    "consumer_group_range",
    "consumer_group_uniform",
    "list_offsets",
    "message_too_large",
    "producer_is_fenced",
    "transactional_copy",
    "transactions",
]


def run(command: list[Any], *, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def franz_go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if not shutil.which("go"):
        pytest.skip("franz-go needs the Go toolchain, and there is none")
    program = tmp_path_factory.mktemp("franz-go") / "conformance"
    run(["go", "build", "-o", program, "."], cwd=CLIENTS / "franz-go")
    return [str(program)]


@pytest.fixture(scope="session")
def kafkajs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if not shutil.which("npm"):
        pytest.skip("kafkajs needs Node.js with npm, and there is none")
    folder = tmp_path_factory.mktemp("kafkajs")
    for name in ("package.json", "package-lock.json", "conformance.mjs"):
        shutil.copy(CLIENTS / "kafkajs" / name, folder)
    run(["npm", "ci", "--silent"], cwd=folder)
    return ["node", str(folder / "conformance.mjs")]


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    reason = apache_kafka_missing() or (
        None if shutil.which("javac") else "the Java clients need a JDK, and there is none"
    )
    if reason:
        pytest.skip(reason)
    run([APACHE_KAFKA, "fetch"])
    classes = tmp_path_factory.mktemp("java")
    jars = run([APACHE_KAFKA, "classpath"]).strip()
    run(["javac", "-cp", jars, "-d", classes, CLIENTS / "java" / "Conformance.java"])
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{jars}{os.pathsep}{classes}", "Conformance"]


@pytest.mark.parametrize("scenario", FRANZ_GO)
def test_franz_go(cluster: Cluster, franz_go: list[str], scenario: str) -> None:
    run([*franz_go, cluster.bootstrap, scenario])


@pytest.mark.parametrize("scenario", KAFKAJS)
def test_kafkajs(cluster: Cluster, kafkajs: list[str], scenario: str) -> None:
    run([*kafkajs, cluster.bootstrap, scenario])


@pytest.mark.parametrize("scenario", JAVA)
def test_java(cluster: Cluster, java: list[str], scenario: str) -> None:
    run([*java, cluster.bootstrap, scenario])


def test_every_scenario_is_run(franz_go: list[str], kafkajs: list[str], java: list[str]) -> None:
    for program, listed in ((franz_go, FRANZ_GO), (kafkajs, KAFKAJS), (java, JAVA)):
        assert run([*program, "list"]).split() == listed
