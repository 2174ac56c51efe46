"""What `hailbus new` writes, in containers: its image and its compose file, unchanged, with the wheel under test.

Base images that the engine lacks get stand-ins. `python:3.12-slim` is one that also holds the wheel, because pip cannot
find an unpublished release elsewhere. `apache/kafka` is made of the jars that other tests use; the public image's own
program turns its environment variables into properties.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import httpx
import pytest
from docker.errors import ImageNotFound
from docker.models.containers import Container
from hailbus_devtools.release import build, pins
from hailbus_devtools.tools import apache_kafka

from tests.support import free_port, wait_for

pytestmark = [
    pytest.mark.compose,
    pytest.mark.needs("docker engine", "docker compose", "apache kafka"),
    pytest.mark.timeout(900),
]

PROJECT = "hailbus-new-service"
BASE = "python:3.11-slim-bookworm"
"""The image that the project's own Dockerfile starts from, so it is here already."""
KAFKA = "apache/kafka:4.1.0"

PYTHON_IMAGE = f"""
FROM {BASE}
COPY wheels /wheels
ENV PIP_FIND_LINKS=/wheels PIP_CONSTRAINT=/wheels/constraints.txt
"""

KAFKA_IMAGE = f"""
FROM {BASE}
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 1000 appuser \\
 && install -d -o appuser /opt/kafka/config /etc/kafka/docker /mnt/shared/config \\
 && cd /etc/kafka/docker && touch server.properties log4j2.yaml tools-log4j2.yaml
COPY libs /opt/kafka/libs
COPY run /etc/kafka/docker/run
USER appuser
EXPOSE 9092
CMD ["sh", "/etc/kafka/docker/run"]
"""

KAFKA_RUN = """
set -ef
export CLUSTER_ID=${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}
libs=/opt/kafka/libs
kafka="java -Xmx512m -XX:TieredStopAtLevel=1 -cp $libs/* -Dlog4j2.configurationFile=$libs/log4j2-broker.properties"
said=$($kafka kafka.docker.KafkaDockerWrapper setup \\
  -D /etc/kafka/docker -M /mnt/shared/config -F /opt/kafka/config 2>&1) \\
  || echo "$said" | grep -i "already formatted" || { echo "$said"; exit 1; }
exec $kafka kafka.Kafka /opt/kafka/config/server.properties
"""


def run(*command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="module")
def kafka_image(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The broker's image: the public one where the engine has it."""
    try:
        engine.images.get(KAFKA)
        yield
    except ImageNotFound:
        folder = tmp_path_factory.mktemp("kafka-image")
        run(str(apache_kafka()), "fetch", cwd=folder)
        jars = [Path(jar) for jar in run(str(apache_kafka()), "classpath", cwd=folder).strip().split(":")]
        shutil.copytree(jars[0].parent, folder / "libs")
        (folder / "Dockerfile").write_text(KAFKA_IMAGE)
        (folder / "run").write_text(KAFKA_RUN)
        run("docker", "build", "--quiet", "--tag", KAFKA, ".", cwd=folder)
        yield
        engine.images.remove(KAFKA, force=True)  # so that nobody takes it for the public one


@pytest.fixture(scope="module")
def python_image(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A base image in which pip finds the wheel under test."""
    folder = tmp_path_factory.mktemp("python-image")
    (wheel,) = build(folder / "wheels", ["hailbus"])
    (folder / "wheels" / "constraints.txt").write_text(pins() + f"hailbus=={wheel.metadata['Version']}\n")
    (folder / "Dockerfile").write_text(PYTHON_IMAGE)
    name = f"{PROJECT}-base"
    run("docker", "build", "--quiet", "--tag", name, ".", cwd=folder)
    yield name
    engine.images.remove(name, force=True)


class Project:
    """A service that `hailbus new` has written, and its containers."""

    def __init__(self, engine: docker.DockerClient, folder: Path, python_image: str) -> None:
        self.engine = engine
        self.folder = folder
        self.http_port, self.kafka_port = free_port(), free_port()
        self.environment = os.environ | {"HTTP_PORT": str(self.http_port), "KAFKA_PORT": str(self.kafka_port)}
        # The only thing that is not as in the project: where the image of the Dockerfile's first line comes from.
        base = {"build": {"additional_contexts": {"python:3.12-slim": f"docker-image://{python_image}"}}}
        (folder / "compose.override.yaml").write_text(json.dumps({"services": {"shop": base}}))

    def compose(self, *arguments: str) -> str:
        return run(
            "docker", "compose", "--project-name", PROJECT, *arguments, cwd=self.folder, environment=self.environment
        )

    def container(self, service: str) -> Container:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        (found,) = self.engine.containers.list(all=True, filters={"label": labels})
        return found


@pytest.fixture(scope="module")
def project(
    engine: docker.DockerClient, kafka_image: None, python_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("new-service") / "shop"
    run(str(Path(sys.executable).with_name("hailbus")), "new", "shop", "--folder", str(folder), cwd=folder.parent)
    made = Project(engine, folder, python_image)
    made.compose("down", "--volumes", "--remove-orphans")
    try:
        made.compose("up", "--build", "--wait", "--wait-timeout", "180")
        yield made
    finally:
        print(made.compose("logs", "--no-color", "--tail", "60"))
        made.compose("down", "--volumes", "--remove-orphans", "--rmi", "local")


def payments(project: Project) -> str:
    tail = ["tail", "shop.events", "--bootstrap", f"127.0.0.1:{project.kafka_port}", "--start", "earliest"]
    command = [str(Path(sys.executable).with_name("hailbus")), *tail, "--until-end", "--type", "order.paid"]
    return run(*command, cwd=project.folder / "src")


def test_an_order_over_http_is_paid_in_containers(project: Project) -> None:
    url = f"http://127.0.0.1:{project.http_port}"
    assert httpx.get(f"{url}/readyz").json() == {"status": "ok", "lag_seconds": {"shop": 0.0}}
    assert httpx.put(f"{url}/orders/a", json={"amount_cents": 300}).status_code == 202
    wait_for("the payment", lambda: '"order_id": "a"' in payments(project))


def test_the_service_outlives_its_broker(project: Project) -> None:
    url = f"http://127.0.0.1:{project.http_port}"
    project.compose("kill", "broker")

    def status() -> int:
        return httpx.get(f"{url}/readyz").status_code

    wait_for("the outage in /readyz", lambda: status() == 503)
    assert httpx.get(f"{url}/livez").status_code == 200
    project.compose("start", "broker")
    wait_for("the service", lambda: status() == 200)
    assert httpx.put(f"{url}/orders/b", json={"amount_cents": 300}, timeout=60).status_code == 202
    wait_for("the payment", lambda: '"order_id": "b"' in payments(project))


def test_it_runs_without_root_and_stops_in_time(project: Project) -> None:
    container = project.container("shop")
    processes = container.top(ps_args="-eo pid,uid")
    user_at = processes["Titles"].index("UID")
    assert {process[user_at] for process in processes["Processes"]} == {"10001"}
    for service in ("broker", "shop"):
        for bindings in project.container(service).attrs["NetworkSettings"]["Ports"].values():
            assert {binding["HostIp"] for binding in bindings or []} <= {"127.0.0.1"}, service
    project.compose("stop", "shop")
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0, container.logs().decode()[-2000:]
