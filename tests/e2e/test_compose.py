"""The compose file, unchanged: built and brought up; rides come while brokers fail in three ways; then it is audited.

One start of the system serves all tests, in their order: the ledger at the end judges what the slow ones did, too.
"""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import docker
import httpx
import pytest
from confluent_kafka import Consumer
from docker.models.containers import Container
from hailbus.schema_id import schema_id_of
from hailbus_demo.ledger.databases import count_under_way

from tests.support import free_port, wait_for

pytestmark = [pytest.mark.compose, pytest.mark.needs("docker engine", "docker compose"), pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "hailbus-e2e"
BROKERS = ("broker-1", "broker-2", "broker-3")
DATABASES = ("booking", "payment", "provider", "surge", "recommender", "logger")
SERVERS = ("postgres", "registry", "booking", "payment", "payment-provider", "bike", "recommender", "dashboard")
PUBLISHED = BROKERS + SERVERS
PAYING = ("payment-saga", "booking")
"""These groups still publish or apply payments after the last ride. The lake must contain those, too."""
LED = "rides.v1"
"""Each fault strikes the broker that leads partition 0 of this topic."""


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


class System:
    """The running compose project and the ports that it publishes on loopback."""

    def __init__(self, engine: docker.DockerClient, secrets: Path) -> None:
        self.engine = engine
        self.secrets = secrets
        self.ports = {name: free_port() for name in PUBLISHED}
        variables = {f"HAILBUS_{name.upper().replace('-', '_')}_PORT": str(port) for name, port in self.ports.items()}
        variables |= {"HAILBUS_SECRETS": str(secrets), "HAILBUS_SPEED": "30", "HAILBUS_RIDES_PER_MINUTE": "3"}
        variables["HAILBUS_PAYMENT_RETRY_S"] = "86400"  # a declined card is not charged again while the audit reads
        self.environment = os.environ | variables

    def compose(self, *arguments: str, codes: frozenset[int] = frozenset({0})) -> str:
        done = subprocess.run(
            ["docker", "compose", "--project-name", PROJECT, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in codes, (
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
        os.kill(container.attrs["State"]["Pid"], 9)

        def is_back() -> bool:
            container.reload()
            state = container.attrs["State"]
            healthy = state.get("Health", {}).get("Status", "healthy") == "healthy"
            return bool(container.attrs["RestartCount"] > before and state["Running"] and healthy)

        wait_for(f"{service} to come back", is_back, 180)

    def cut_off(self, service: str) -> None:
        """Take a container off the network of the project."""
        self.engine.networks.get(f"{PROJECT}_default").disconnect(self.container(service))

    def reconnect(self, service: str) -> None:
        """Undo `cut_off`."""
        self.engine.networks.get(f"{PROJECT}_default").connect(self.container(service), aliases=[service])

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[broker]}" for broker in BROKERS)

    def page(self, path: str) -> Any:  # Any: JSON
        """The state that the page shows."""
        return httpx.get(f"{self.url('dashboard')}/api/{path}", timeout=10).raise_for_status().json()

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "60")


def demo(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "demo"), *arguments]


@pytest.fixture(scope="module")
def system(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    secrets = tmp_path_factory.mktemp("secrets")
    for default in (ROOT / "compose" / "secrets").iterdir():
        text = default.read_text().replace("on-this-machine", "for-this-test")
        (secrets / default.name).write_text(text)
    for folder in (secrets, *secrets.parents[:2]):
        folder.chmod(0o755)  # the services run as a user of their own
    running = System(engine, secrets)
    running.compose("down", "--volumes", "--remove-orphans")
    running.compose("build", "--quiet")
    try:
        running.compose("up", "--wait", "--wait-timeout", "600")
        yield running
    finally:
        running.compose("down", "--volumes", "--remove-orphans", "--timeout", "2")


def test_every_container_is_confined_healthy_and_published_on_loopback_only(system: System) -> None:
    containers = system.engine.containers.list(all=True, filters={"label": f"com.docker.compose.project={PROJECT}"})
    assert len(containers) == 17
    passwords = [line.split(":")[2].split("@")[0] for line in secrets_of(system)]
    for container in containers:
        service = container.labels["com.docker.compose.service"]
        host = container.attrs["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert host["SecurityOpt"] == ["no-new-privileges:true"], service
        assert host["Memory"] > 0, service
        assert host["PidsLimit"] > 0, service
        told = json.dumps([container.attrs["Config"]["Env"], container.attrs["Config"]["Cmd"]])
        assert not [password for password in passwords if password in told], service
        for bindings in container.attrs["NetworkSettings"]["Ports"].values():
            assert {binding["HostIp"] for binding in bindings or []} <= {"127.0.0.1"}, service
        if container.attrs["State"]["Status"] == "exited":
            assert service in {"directories", "topics"}
            assert container.attrs["State"]["ExitCode"] == 0, service
            continue
        assert container.attrs["State"]["Health"]["Status"] == "healthy", service
        if service != "postgres":
            processes = container.top(ps_args="-eo pid,uid")
            user_at = processes["Titles"].index("UID")
            assert container.attrs["Config"]["User"] == "hailbus", service
            assert {process[user_at] for process in processes["Processes"]} == {"10001"}, service


def test_a_service_opens_its_own_database_and_no_other(system: System) -> None:
    async def connect(url: str) -> None:
        await (await asyncpg.connect(url)).close()

    def connects(role: str, database: str) -> bool:
        own = databases_of(system)[role]
        try:
            asyncio.run(connect(f"{own.rpartition('/')[0]}/{database}"))
        except asyncpg.InsufficientPrivilegeError:
            return False
        return True

    assert connects("booking", "booking")
    assert connects("bike", "bike")
    assert not connects("booking", "surge")
    assert not connects("bike", "booking")
    assert not connects("bike", "hailbus")


def test_rides_come_by_themselves_and_the_page_shows_them_and_the_brokers(system: System) -> None:
    def is_full() -> bool:
        state = system.page("state")
        return bool(state["rides"] and state["cells"] and state["drivers"][0] and state["groups"] and state["cluster"])

    wait_for("the page to be full", is_full, 120)
    wait_for("all replicas in sync", lambda: not not_in_sync(system), 60)
    cluster = system.page("cluster")["cluster"]
    assert [(broker["id"], broker["address"], broker["up"]) for broker in cluster["brokers"]] == [
        (number, f"broker-{number}:29092", True) for number in (1, 2, 3)
    ]
    assert sum(broker["controller"] for broker in cluster["brokers"]) == 1
    for topic, partitions in cluster["topics"]:
        assert all(sorted(replicas) == [1, 2, 3] for _, _, replicas, _ in partitions), topic
        assert all(leader in isr for _, leader, _, isr in partitions), topic


def test_records_of_payments_name_schemas_that_the_registry_has(system: System) -> None:
    subjects = httpx.get(f"{system.url('registry')}/subjects", timeout=10).raise_for_status().json()
    assert any(subject.startswith("payments.v1") for subject in subjects), subjects
    consumer = Consumer({"bootstrap.servers": system.bootstrap, "group.id": "schemas", "auto.offset.reset": "earliest"})
    consumer.subscribe(["payments.v1"])
    try:
        record = consumer.poll(60)
    finally:
        consumer.close()
    assert record is not None
    assert record.error() is None
    headers = [(name, value) for name, value in dict(record.headers() or {}).items() if isinstance(value, bytes)]
    named = schema_id_of(headers, None)
    assert named is not None
    known = httpx.get(f"{system.url('registry')}/schemas/guids/{named.guid}", timeout=10).raise_for_status().json()
    assert json.loads(known["schema"])["$id"].startswith("hailbus:payment.")


@pytest.mark.slow
def test_rides_go_on_while_a_broker_is_paused_and_cut_off(system: System) -> None:
    with told_by_logs(system):
        fail_and_return(
            system,
            lambda broker: system.container(broker).pause(),
            lambda broker: system.container(broker).unpause(),
        )
        fail_and_return(system, system.cut_off, system.reconnect)


def test_nothing_is_lost_though_a_broker_and_booking_are_killed(system: System, tmp_path: Path) -> None:
    with told_by_logs(system):
        fail_and_return(system, system.kill, None)
        known = requested(system)
        system.kill("booking")
        wait_for("rides after booking's return", lambda: requested(system) > known, 120)
    system.compose("stop", "simulator")
    assert system.container("simulator").attrs["State"]["ExitCode"] == 0
    ledger = audited(system, tmp_path)
    assert ledger["balanced"] is True
    counted = ledger["rides"]
    ends = sum(counted[end] for end in ("completed", "cancelled", "unmatched", "in_flight"))
    assert counted["requested"] == ends == requested(system)
    assert counted["completed"] > 0


@contextlib.contextmanager
def told_by_logs(system: System) -> Iterator[None]:
    """Add the containers' logs to what fails."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{system.logs()}") from error


def fail_and_return(system: System, fail: Callable[[str], None], mend: Callable[[str], None] | None) -> None:
    """Make the broker that leads fail while rides come; without `mend` it returns by itself."""
    victim = partitions_of(system, LED)[0][1]
    known = requested(system)
    fail(f"broker-{victim}")
    if mend is not None:

        def is_noticed() -> bool:
            brokers = system.page("cluster")["cluster"]["brokers"]
            away = [broker["id"] for broker in brokers if not broker["up"]]
            return away == [victim] and victim in not_in_sync(system) and victim not in leaders(system)

        wait_for(f"the page to miss broker {victim}", is_noticed, 60)
    wait_for("rides without the broker", lambda: requested(system) > known + 10, 120)
    if mend is not None:
        mend(f"broker-{victim}")
    wait_for(f"broker {victim} to be in sync again", lambda: not not_in_sync(system), 120)


def partitions_of(system: System, topic: str) -> list[tuple[int, int, list[int], list[int]]]:
    """Number, leader, replicas and in-sync replicas of each partition, as the page shows them."""
    return [tuple(found) for found in dict(system.page("cluster")["cluster"]["topics"])[topic]]


def not_in_sync(system: System) -> set[int]:
    """The brokers that are missing from the in-sync replicas of some partition."""
    topics = system.page("cluster")["cluster"]["topics"]
    return {broker for _, found in topics for _, _, replicas, isr in found for broker in replicas if broker not in isr}


def leaders(system: System) -> set[int]:
    """The brokers that lead some partition; -1 stands for none."""
    return {leader for _, found in system.page("cluster")["cluster"]["topics"] for _, leader, _, _ in found}


def audited(system: System, folder: Path) -> Any:  # Any: JSON
    """Draw up the ledger of all that can be known from outside the containers, and return its summary."""
    for name in ("book.jsonl", "book.jsonl.positions"):
        chunks, _ = system.container("simulator").get_archive(f"/var/lib/hailbus/{name}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(folder, filter="data")
    urls = databases_of(system)
    databases = [f"--database={name}={urls[name]}" for name in DATABASES]

    def is_settled() -> bool:
        behind = {group["group"]: group["records"] for group in system.page("lag")["groups"]}
        return not any(behind[group] for group in PAYING) and asyncio.run(count_under_way(urls["payment"])) == 0

    wait_for("every payment to have an outcome that booking knows", is_settled, 300)
    report = folder / "lake.json"
    report.write_text(lake_report(system))
    summary = folder / "summary.json"
    files = ["--book", str(folder / "book.jsonl"), "--lake-report", str(report), "--summary", str(summary)]
    done = subprocess.run(
        demo("ledger", "--bootstrap", system.bootstrap, *databases, *files),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:] + system.logs()
    return json.loads(summary.read_text())


def databases_of(system: System) -> dict[str, str]:
    """The published address of each database; a service, its role and its database have one name."""
    here = f"@127.0.0.1:{system.ports['postgres']}"
    return {
        url.rpartition("/")[2]: url.replace("+asyncpg", "").replace("@postgres", here) for url in secrets_of(system)
    }


def secrets_of(system: System) -> list[str]:
    """The services' database URLs."""
    return [path.read_text().strip() for path in sorted(system.secrets.glob("*_database_url"))]


def requested(system: System) -> int:
    """Count the rides that booking knows, page by page as any client would."""
    count = 0
    page = ""
    token = (system.secrets / "dashboard_booking_token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    while True:
        try:
            answer = httpx.get(f"{system.url('booking')}/rides?limit=500{page}", headers=headers, timeout=5)
        except httpx.TransportError:
            return 0  # it is being restarted
        body = answer.raise_for_status().json()
        count += len(body["rides"])
        if not body["next"]:
            return count
        page = f"&after={body['next']}"


def lake_report(system: System) -> str:
    """Have the lake land everything, through gold, and return its own proof.

    The sink ends when it has done so, and the restart policy starts another.
    """
    lake = system.container("lake")
    before = lake.attrs["RestartCount"]

    def has_ended() -> bool:
        lake.reload()
        if lake.attrs["RestartCount"] > before:
            return True
        # Again and again: a sink that is only starting, because a broker was away, removes the file.
        with contextlib.suppress(docker.errors.APIError):  # it ends or starts at this moment
            lake.exec_run(["touch", "/var/lib/hailbus/lake/finish"])
        time.sleep(2)
        return False

    wait_for("the lake to land everything", has_ended, 1200)
    inside = ",".join(f"{broker}:29092" for broker in BROKERS)
    command = ["run", "--rm", "--no-deps", "-T", "lake", "lake", "verify", "--full", "--bootstrap", inside, "--json"]
    return system.compose(*command, codes=frozenset({0, 1}))  # the ledger says what disagrees
