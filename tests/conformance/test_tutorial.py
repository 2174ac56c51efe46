"""Every step of docs/tutorial, with Apache Kafka's tools and with ours, against both brokers."""

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hailbus_devtools.tools import apache_kafka

from tests.needs import need
from tests.servers import SHORT_LIVED_JVM
from tests.support import wait_for

from .conftest import NODES, ROOT, Cluster, hailbus_cluster

TUTORIAL = ROOT / "docs" / "tutorial"
TOOLS = {
    "kafka-topics": ("topics", "topics"),
    "kafka-console-producer": ("console-producer", "produce"),
    "kafka-console-consumer": ("console-consumer", "consume"),
    "kafka-consumer-groups": ("consumer-groups", "groups"),
}
"""What the tutorial calls: its name for Apache's starter and its name in the `hailbus` command."""

JVM = {"KAFKA_HEAP_OPTS": "-Xmx128m"} | SHORT_LIVED_JVM


def steps() -> list[tuple[str, str]]:
    """Return each command of the tutorial with the output that is shown below it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", (TUTORIAL / "README.md").read_text(), re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = on_nodes(step).partition("\n")
            found.append((command, shown))
    return found


def on_nodes(step: str) -> str:
    """Return a step as it is on a cluster of several nodes: every topic has as many replicas as there are nodes."""
    for written, meant in (
        ("--replication-factor 3", f"--replication-factor {NODES + 2}"),
        ("--replication-factor 1", f"--replication-factor {NODES}"),
        ("ReplicationFactor: 1", f"ReplicationFactor: {NODES}"),
    ):
        step = step.replace(written, meant)
    return step


def as_pattern(shown: str) -> str:
    """Return a regular expression: `…` stands for anything in a line, a line of its own for any lines."""
    lines = []
    for line in shown.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            parts = (r"[ \t]+".join(map(re.escape, re.split(r"[ \t]+", part))) for part in line.split("…"))
            lines.append(".*".join(parts) + r"[ \t]*\n")
    return r"\s*" + "".join(lines) + r"\s*"


@pytest.fixture
def shell(tools: str, cluster: Cluster) -> Callable[[str], str]:
    if tools == "apache-tools":
        need("apache kafka")
        subprocess.run([apache_kafka(), "fetch"], check=True, capture_output=True)
    hailbus = Path(sys.executable).parent / "hailbus"
    functions = ""
    for name, (apache, ours) in TOOLS.items():
        words = f"{apache_kafka()} run {apache}" if tools == "apache-tools" else f"{hailbus} {ours}"
        functions += f'{name}() {{ {words} "$@"; }}\n'
    prefix = f"{tools}-{cluster.kind}-"

    def run(command: str) -> str:
        for name in (
            "first_topic_1",
            "too_many",
            "created_by_writing",
            "readers",
        ):  # the two kinds of tools share a broker
            command = command.replace(name, prefix.replace("-", "_") + name)
        done = subprocess.run(
            ["bash", "-c", functions + command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | JVM | {"B": cluster.bootstrap},
        )
        return done.stdout.replace(prefix.replace("-", "_"), "")

    return run


@pytest.mark.parametrize(
    ("cluster", "tools"),
    [
        ("hailbus", "hailbus-tools"),
        ("hailbus", "apache-tools"),
        pytest.param("apache", "apache-tools", marks=pytest.mark.slow),
    ],
    indirect=["cluster"],
)
def test_the_commands_print_what_the_tutorial_shows(shell: Callable[[str], str]) -> None:
    for command, shown in steps():
        printed = shell(command)
        assert re.fullmatch(as_pattern(shown), printed + "\n"), f"$ {command}\n{printed}\ninstead of\n{shown}"


class Program:
    """A running part of the food-delivery app whose lines can be waited for."""

    def __init__(self, app: str, script: str, *arguments: str, log: Path) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, TUTORIAL / "food_delivery" / app / script, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("Partition:")]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


@pytest.fixture(params=["hailbus_sdk", "bare_client"])
def app(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def programs(app: str, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(script: str, *arguments: str) -> Program:
        started.append(Program(app, script, *arguments, log=tmp_path / f"{len(started)}.log"))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()


CITIES = ["Berlin", "Hamburg", "Munich", "Cologne", "Leipzig", "Dresden"]


def order(app: str, bootstrap: str, status: str) -> dict[str, int]:
    """Order once in each city and return the partition of each."""
    answers = "".join(f"{number}\n{status}\n{city}\n" for number, city in enumerate(CITIES, 1)) + "\n"
    done = subprocess.run(
        [sys.executable, TUTORIAL / "food_delivery" / app / "produce.py", bootstrap],
        input=answers,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {city: int(number) for city, number in re.findall(r"(\w+) is in partition (\d+), offset \d+", done.stdout)}


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """A broker of its own for each form of the app, as both use the same topics."""
    for cluster in hailbus_cluster(tmp_path):
        yield cluster.bootstrap


def test_the_food_delivery_app(app: str, bootstrap: str, programs: Callable[..., Program]) -> None:
    admin = programs("admin.py", bootstrap)
    assert admin.process.wait(60) == 0, admin.log.read_text()
    one = programs("consume.py", bootstrap, "board")
    two = programs("consume.py", bootstrap, "board")
    everything = programs("consume.py", bootstrap, "archive")
    homes: dict[str, int] = {}

    def both_work() -> bool:
        homes.update(order(app, bootstrap, "placed"))
        return bool(one.lines()) and bool(two.lines())

    def in_all_cities(status: str, *members: Program) -> bool:
        lines = [line for member in members for line in member.lines() if line.endswith(status)]
        return sorted(line.split()[1].removesuffix(":") for line in lines) == sorted(CITIES)

    wait_for("each member of the group has a partition", both_work)
    assert set(homes) == set(CITIES)
    assert set(homes.values()) == {0, 1}
    order(app, bootstrap, "cooking")
    wait_for("the two share the cities", lambda: in_all_cities("cooking", one, two))
    two.stop()
    order(app, bootstrap, "ready")
    wait_for("the other takes over", lambda: in_all_cities("ready", one))
    one.stop()
    order(app, bootstrap, "delivered")
    again = programs("consume.py", bootstrap, "board")
    wait_for("it resumes where it was", lambda: in_all_cities("delivered", again))
    assert len(again.lines()) == len(CITIES)
    for status in ("cooking", "ready", "delivered"):
        wait_for(f"the archive has all {status}", functools.partial(in_all_cities, status, everything))
