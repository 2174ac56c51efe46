"""The compose file, unchanged: built, brought up, fed with rides while parts of it are killed, and audited."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import httpx
import pytest
from docker.models.containers import Container

from tests.support import free_port, wait_for

pytestmark = [pytest.mark.compose, pytest.mark.needs("docker engine", "docker compose"), pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "hailbus-e2e"
PASSWORD = "for-this-test"
PUBLISHED = ("broker", "postgres", "booking", "bike", "recommender", "dashboard")
DATABASES = ("booking", "surge", "recommender", "logger")


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


class System:
    """The running compose project and the ports that it publishes on loopback."""

    def __init__(self, engine: docker.DockerClient) -> None:
        self.engine = engine
        self.ports = {
            name: free_port() for name in ("broker", "postgres", "booking", "bike", "recommender", "dashboard")
        }
        self.environment = os.environ | {f"HAILBUS_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        self.environment |= {"HAILBUS_POSTGRES_PASSWORD": PASSWORD, "HAILBUS_CLOCK": "event"}

    def compose(self, *arguments: str) -> str:
        done = subprocess.run(
            ["docker", "compose", "--project-name", PROJECT, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (
            f"docker compose {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
        return done.stdout

    def container(self, service: str) -> Container:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        (found,) = self.engine.containers.list(all=True, filters={"label": labels})
        return found

    def kill(self, service: str) -> None:
        """Kill the service's process with SIGKILL from outside; the restart policy brings it back."""
        container = self.container(service)
        before = container.attrs["RestartCount"]
        pid = container.attrs["State"]["Pid"]
        os.kill(pid, 9)

        def is_back() -> bool:
            container.reload()
            state = container.attrs["State"]
            healthy = state.get("Health", {}).get("Status", "healthy") == "healthy"
            return bool(container.attrs["RestartCount"] > before and state["Running"] and healthy)

        wait_for(f"{service} to come back", is_back, 180)

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports['broker']}"

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "60")


def demo(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "demo"), *arguments]


@pytest.fixture(scope="module")
def system(engine: docker.DockerClient) -> Iterator[System]:
    running = System(engine)
    running.compose("down", "--volumes", "--remove-orphans")
    running.compose("build", "--quiet")
    running.compose("up", "--wait", "--wait-timeout", "300")
    yield running
    running.compose("down", "--volumes", "--remove-orphans")


def test_every_container_runs_without_root_and_publishes_on_loopback_only(system: System) -> None:
    for container in system.engine.containers.list(filters={"label": f"com.docker.compose.project={PROJECT}"}):
        service = container.labels["com.docker.compose.service"]
        user = container.exec_run(["cat", "/proc/1/status"]).output.decode()
        if service != "postgres":
            assert container.attrs["Config"]["User"] == "hailbus", service
            assert "Uid:\t10001" in user, service
        for bindings in container.attrs["NetworkSettings"]["Ports"].values():
            assert {binding["HostIp"] for binding in bindings or []} <= {"127.0.0.1"}, service


def test_rides_balance_though_the_broker_and_booking_are_killed(system: System, tmp_path: Path) -> None:
    book = tmp_path / "book.json"
    options = ["--bootstrap", system.bootstrap, "--booking-url", system.url("booking")]
    rides = ["--recommender-url", system.url("recommender"), "--limit", "300", "--speed", "60", "--book", str(book)]
    with (tmp_path / "replay.log").open("w") as log:
        replay = subprocess.Popen(demo("replay", *options, *rides), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for("rides under way", lambda: requested(system) > 20, 120)
        system.kill("broker")
        wait_for("rides after the broker's return", lambda: requested(system) > 60, 300)
        system.kill("booking")
        assert replay.wait(900) == 0, (tmp_path / "replay.log").read_text()[-3000:] + system.logs()
    finally:
        if replay.poll() is None:
            replay.kill()
            replay.wait()
    report = tmp_path / "lake.json"
    report.write_text(lake_report(system))
    summary = tmp_path / "summary.json"
    databases = [
        f"--database={name}=postgresql://hailbus:{PASSWORD}@127.0.0.1:{system.ports['postgres']}/{name}"
        for name in DATABASES
    ]
    files = ["--book", str(book), "--lake-report", str(report), "--summary", str(summary)]
    done = subprocess.run(
        demo("ledger", "--bootstrap", system.bootstrap, *databases, *files),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:] + system.logs()
    ledger = json.loads(summary.read_text())
    assert ledger["balanced"] is True
    counted = ledger["rides"]
    assert (
        counted["requested"] == 300 == sum(counted[end] for end in ("completed", "cancelled", "unmatched", "in_flight"))
    )


def requested(system: System) -> int:
    """Count the rides that booking knows, page by page as any client would."""
    count = 0
    page = ""
    while True:
        try:
            answer = httpx.get(f"{system.url('booking')}/rides?limit=500{page}", timeout=5)
        except httpx.TransportError:
            return 0  # it is being restarted
        body = answer.raise_for_status().json()
        count += len(body["rides"])
        if not body["next"]:
            return count
        page = f"&after={body['next']}"


def lake_report(system: System) -> str:
    """Wait until the lake holds all that the broker has, and return its own proof."""
    container = system.container("lake")
    text = errors = ""

    def is_complete() -> bool:
        nonlocal text, errors
        # The sink's own progress costs less to ask for than a proof, and does not count as one.
        code, progress = container.exec_run(["cat", "/var/lib/hailbus/lake/progress.json"])
        if code or json.loads(progress)["lag_records"]:
            return False
        command = ["lake", "verify", "--full", "--bootstrap", "broker:29092", "--json"]
        code, (output, error) = container.exec_run(command, demux=True)
        text, errors = (output or b"").decode(), (error or b"").decode()
        return bool(code == 0)

    try:
        wait_for("the lake to be complete", is_complete, 300)
    except AssertionError as late:
        raise AssertionError(f"{late}: {text[:3000]}\n{errors[-3000:]}") from None
    return text
