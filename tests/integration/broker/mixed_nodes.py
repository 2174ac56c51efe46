"""Nodes of Apache Kafka and of this broker, each a process, that make one cluster together."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hailbus_devtools.tools import apache_kafka

from tests.integration.broker.process import SERVE
from tests.servers import SHORT_LIVED_JVM
from tests.support import free_port, wait_for

if TYPE_CHECKING:
    from types import TracebackType

FEATURES = ("--feature", "share.version=0", "--feature", "streams.version=0")
"""For `kafka-storage format`: a node that does not serve share or streams groups cannot join otherwise."""

DEADLINE_S = 300


@cache
def kafka_script() -> str:
    """Return the script that runs Apache Kafka, and have it fetch the jars."""
    script = str(apache_kafka())
    subprocess.run([script, "fetch"], check=True, capture_output=True)
    return script


def run_tool(tool: str, *arguments: str, check: bool = True) -> str:
    """Run a command-line tool of Apache Kafka, and return what it prints."""
    done = subprocess.run(
        [kafka_script(), "run", tool, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=os.environ | SHORT_LIVED_JVM,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def java_command(properties: str) -> list[str]:
    """Return the command of a node of Apache Kafka."""
    jars = subprocess.run([kafka_script(), "classpath"], check=True, capture_output=True, text=True).stdout.strip()
    log_config = Path(jars.split(":", 1)[0]).with_name("log4j2-broker.properties")
    options = ["-Xms128m", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
    return ["java", *options, f"-Dlog4j2.configurationFile={log_config}", "-cp", jars, "kafka.Kafka", properties]


@dataclass(kw_only=True)
class MixedNode:
    """One node: its settings, its directory and, while it runs, its process.

    Attributes:
        node_id: Of the node.
        home: Folder of its settings, data and log.
        port: Of the listener for clients.
        controller_port: Of the listener of controllers, if it is one.
        settings: By Kafka's names.
        is_ours: Whether this broker's code runs it, or Apache Kafka's.
    """

    node_id: int
    home: Path
    settings: dict[str, str]
    is_ours: bool
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def controller_address(self) -> str:
        """Where the controller listens."""
        return f"127.0.0.1:{self.controller_port}"

    @property
    def voter(self) -> str:
        """The node, as `controller.quorum.voters` names it."""
        return f"{self.node_id}@{self.controller_address}"

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self.home / "data"

    def properties(self) -> Path:
        """Write the properties file, and return its path."""
        self.home.mkdir(exist_ok=True)
        path = self.home / "server.properties"
        roles = self.settings.get("process.roles", "broker").split(",")
        listeners = [
            *([f"PLAINTEXT://{self.address}"] if "broker" in roles else []),
            *([f"CONTROLLER://{self.controller_address}"] if "controller" in roles else []),
        ]
        lines = {
            "node.id": str(self.node_id),
            "listeners": ",".join(listeners),
            "log.dirs": str(self.data),
            **({"controller.listener.names": "CONTROLLER"} if "process.roles" in self.settings else {}),
            **self.settings,
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        return path

    def format(self, cluster_id: str, *more: str) -> str:
        """Format the data directory, and return what the command prints."""
        properties = str(self.properties())
        if not self.is_ours:
            return run_tool("storage", "format", "-t", cluster_id, "-c", properties, *more)
        arguments = ["format", "--config", properties, "--cluster-id", cluster_id, *more]
        done = subprocess.run([sys.executable, "-c", SERVE, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self) -> str:
        """Return what the node has logged, over all its starts."""
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start the node; `until_started` waits for it."""
        properties = str(self.properties())
        if self.is_ours:
            command = [sys.executable, "-c", SERVE, "serve", "--config", properties, "--log-level", "info"]
        else:
            command = java_command(properties)
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def until_started(self) -> None:
        """Wait until the node serves."""
        said = "bootstrap=" if self.is_ours else "Kafka Server started"

        def is_up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()[-4000:]
            return said in self.log()

        wait_for(f"node {self.node_id}", is_up, DEADLINE_S)

    def kill(self) -> None:
        """End the process without a chance to say anything."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None
            (self.home / "log").rename(self.home / "log.before")

    def stop(self) -> int:
        """Ask the process to end, and return its exit status."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(DEADLINE_S)
        self.process = None
        (self.home / "log").rename(self.home / "log.before")
        return code


class MixedCluster:
    """Nodes by id; whatever still runs at the end of the block is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[int, MixedNode] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.kill()
                node.process.wait(DEADLINE_S)

    def add(self, node_id: int, *, is_ours: bool, roles: str = "broker,controller", **settings: str) -> MixedNode:
        """Describe a node; it is neither formatted nor started."""
        home = self.folder / f"node-{node_id}"
        node = MixedNode(
            node_id=node_id,
            home=home,
            is_ours=is_ours,
            settings={"process.roles": roles, **{name.replace("_", "."): value for name, value in settings.items()}},
        )
        self.nodes[node_id] = node
        return node
