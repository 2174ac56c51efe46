"""The broker through clients of other languages: a small program of each runs its scenarios at the same time."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hailbus_devtools.tools import apache_kafka

from tests.needs import need

from .conftest import Cluster

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
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def built(request: pytest.FixtureRequest, name: str, sources: list[Path], build: Callable[[Path], None]) -> Path:
    """Return a folder with what `build` makes of the sources; it is kept in pytest's cache until they change."""
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = request.config.cache.mkdir(f"conformance-{name}-{state}")
    done = folder / "done"
    if not done.exists():
        build(folder)
        done.touch()
    return folder


@pytest.fixture(scope="session")
def franz_go(request: pytest.FixtureRequest) -> list[str]:
    need("go")
    where = CLIENTS / "franz-go"

    def build(folder: Path) -> None:
        run(["go", "build", "-o", folder / "conformance", "."], cwd=where)

    folder = built(request, "franz-go", [where / name for name in ("go.mod", "go.sum", "main.go")], build)
    return [str(folder / "conformance")]


@pytest.fixture(scope="session")
def kafkajs(request: pytest.FixtureRequest) -> list[str]:
    need("node.js")
    sources = [CLIENTS / "kafkajs" / name for name in ("package.json", "package-lock.json", "conformance.mjs")]

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        run(["npm", "ci", "--silent"], cwd=folder)

    return ["node", str(built(request, "kafkajs", sources, build) / "conformance.mjs")]


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest) -> list[str]:
    need("apache kafka", "javac")
    run([apache_kafka(), "fetch"])
    jars = run([apache_kafka(), "classpath"]).strip()
    source = CLIENTS / "java" / "Conformance.java"

    def build(folder: Path) -> None:
        run(["javac", "-cp", jars, "-d", folder, source])

    folder = built(request, "java", [source], build)
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{jars}{os.pathsep}{folder}", "Conformance"]


def outcomes(program: list[str], cluster: Cluster) -> dict[str, str]:
    """Run all scenarios, which takes as long as the longest, and return how each ended."""
    return dict(line.split(" ", 1) for line in run([*program, cluster.first]).splitlines() if " " in line)


@pytest.fixture(scope="session")
def franz_go_outcomes(cluster: Cluster, franz_go: list[str]) -> dict[str, str]:
    return outcomes(franz_go, cluster)


@pytest.fixture(scope="session")
def kafkajs_outcomes(cluster: Cluster, kafkajs: list[str]) -> dict[str, str]:
    return outcomes(kafkajs, cluster)


@pytest.fixture(scope="session")
def java_outcomes(cluster: Cluster, java: list[str]) -> dict[str, str]:
    return outcomes(java, cluster)


@pytest.mark.slow_with("fixture")
@pytest.mark.parametrize("scenario", FRANZ_GO)
def test_franz_go(franz_go_outcomes: dict[str, str], scenario: str) -> None:
    assert franz_go_outcomes[scenario] == "ok"


@pytest.mark.slow_with("fixture")
@pytest.mark.parametrize("scenario", KAFKAJS)
def test_kafkajs(kafkajs_outcomes: dict[str, str], scenario: str) -> None:
    assert kafkajs_outcomes[scenario] == "ok"


@pytest.mark.slow_with("fixture")
@pytest.mark.parametrize("scenario", JAVA)
def test_java(java_outcomes: dict[str, str], scenario: str) -> None:
    assert java_outcomes[scenario] == "ok"


def test_every_scenario_is_run(franz_go: list[str], kafkajs: list[str], java: list[str]) -> None:
    for program, listed in ((franz_go, FRANZ_GO), (kafkajs, KAFKAJS), (java, JAVA)):
        assert run([*program, "list"]).split() == listed
