"""The processes of the city: their commands, environment, ports and what "ready" means for each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from hailbus import Bus, ClusterAdmin
from ride_events import TOPICS
from ride_events.drivers import DRIVER_LOCATIONS

from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.model import Consumer
from hailbus_demo.regions import ROUTER, process_of
from hailbus_demo.replay.http import HttpClient, UnreachableError
from hailbus_demo.replay.tokens import Tokens
from hailbus_demo.supervise.ports import HOST, accepts
from hailbus_demo.supervise.processes import ProcessSpec, command
from hailbus_demo.supervise.state import DataDir
from hailbus_demo.tray.server import Access

AT_MOST_ONCE = frozenset({DRIVER_LOCATIONS.name})
"""Topics that may lose events by design."""
TOPIC_NAMES = tuple(topic.name for topic in TOPICS)
COMPACTED = frozenset(topic.name for topic in TOPICS if "compact" in topic.cleanup_policy)

DATABASES = ("booking", "payment", "provider", "surge", "recommender", "logger")
"""Services with a database, as `--database` names them."""

CONSUMERS = (
    Consumer(
        group="booking",
        database="booking",
        topics=("booking-timers.v1", "surge.v1", "payments.v1"),
    ),
    Consumer(
        group="payment-saga",
        database="payment",
        topics=("rides.v1",),
        types=frozenset(
            {
                "ride.requested",
                "ride.repriced",
                "ride.pooled",
                "ride.completed",
                "ride.cancelled",
                "ride.unmatched",
            }
        ),
    ),
    Consumer(
        group="surge",
        database="surge",
        topics=("rides.v1", "quotes.v1", "drivers.v1", *AT_MOST_ONCE),
    ),
    Consumer(
        group="recommender",
        database="recommender",
        topics=("rides.v1",),
        types=frozenset({"ride.requested", "ride.pooled", "ride.completed", "ride.cancelled", "ride.unmatched"}),
    ),
    Consumer(group="event-logger", database="logger", topics=TOPIC_NAMES),
)
"""Who must apply what, once: the groups with an inbox."""


def consumers_of(regions: Sequence[str]) -> tuple[Consumer, ...]:
    """Return the consumers of a city whose booking has regions, none where one process serves everywhere."""
    return tuple(replace(one, regions=tuple(regions)) if one.group == "booking" else one for one in CONSUMERS)


DECLINES_PERCENT = 3.0
"""How many of a hundred authorisations and captures the payment provider declines unless told otherwise."""
ASK_WITHIN_S = 2.0
"""How long a start waits at most for the members of a group."""
RETRY_FIRST_S = 15.0
"""How long after a declined charge payment tries it again in a run: nobody waits for an hour to see it."""
RETRY_LIMIT = 2
"""How often: after 15 s and 30 s more. The audit waits for both; what is declined then is owed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where each server listens on loopback."""

    broker: int | None
    booking: int
    recommender: int
    dashboard: int
    payment: int
    payment_provider: int
    registry: int
    postgresql: int | None = None
    regions: Mapping[str, int] = field(default_factory=dict)
    """Of the booking processes, by region; `booking` is the router's then."""

    def url(self, name: str) -> str:
        """Return the base URL of an HTTP service."""
        return f"http://{HOST}:{getattr(self, name.replace('-', '_'))}"


ONE_MEMBER_A_GROUP = {"group.initial.rebalance.delay.ms": "0"}
"""Each group of the city has one member: a new group need not wait for more."""


def broker_spec(data_dir: DataDir, port: int) -> ProcessSpec:
    """Return the in-house broker's process."""

    async def ready() -> bool:
        return accepts(HOST, port)

    return ProcessSpec(
        name="broker",
        argv=(
            command("hailbus-broker"),
            *("serve", "--listen", f"{HOST}:{port}", "--data-dir", str(data_dir.broker)),
            *(f"--set={name}={value}" for name, value in ONE_MEMBER_A_GROUP.items()),
        ),
        env={},
        log=data_dir.logs / "broker.log",
        ready=ready,
    )


BROKER_SETTINGS = ONE_MEMBER_A_GROUP | {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
"""Of a cluster: each record is on three brokers, and acknowledged when it is safe on two."""


async def cluster_specs(data_dir: DataDir, port: int, count: int) -> tuple[str, list[ProcessSpec]]:
    """Return the address of a cluster of in-house brokers, and its processes, one a broker.

    Raises:
        RunFailedError: Their directories cannot be made.
    """
    arguments = ["cluster", "--only-prepare", "--nodes", str(count), "--listen", f"{HOST}:{port}"]
    arguments += ["--data-dir", str(data_dir.broker), *(f"--set={k}={v}" for k, v in BROKER_SETTINGS.items())]
    process = await asyncio.create_subprocess_exec(
        command("hailbus-broker"), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RunFailedError(f"the brokers cannot be set up: {err.decode().strip()}")
    lines = [line.partition("=") for line in out.decode().splitlines()]
    (bootstrap,) = [value for name, _, value in lines if name == "bootstrap"]
    configs = [value for name, _, value in lines if name == "config"]

    def ready(address: str) -> Callable[[], Awaitable[bool]]:
        host, _, number = address.rpartition(":")

        async def is_ready() -> bool:
            return accepts(host, int(number))

        return is_ready

    return bootstrap, [
        ProcessSpec(
            name=f"broker-{number}",
            argv=(command("hailbus-broker"), "serve", "--config", config),
            env={},
            log=data_dir.logs / f"broker-{number}.log",
            ready=ready(address),
        )
        for number, (config, address) in enumerate(zip(configs, bootstrap.split(","), strict=True), start=1)
    ]


def registry_spec(data_dir: DataDir, *, bootstrap: str, ports: Ports) -> ProcessSpec:
    """Return the schema registry's process. Services that name schemas wait for it at their very first start."""
    return ProcessSpec(
        name="registry",
        argv=(
            *(command("hailbus-registry"), "serve", "--bootstrap-server", bootstrap),
            *("--listen", f"{HOST}:{ports.registry}"),
        ),
        env={},
        log=data_dir.logs / "registry.log",
        ready=_says_ready(ports.registry),
    )


def is_broker(name: str) -> bool:
    """Return whether a process is a broker, the only one or one of several."""
    return name == "broker" or name.startswith("broker-")


DASHBOARD_FILE = "dashboard-token"
DASHBOARD_LASTS = timedelta(days=30)


async def make_keys(data_dir: DataDir) -> Tokens:
    """Make the key pair of this run and the dashboard's token; return what signs the other tokens.

    Raises:
        RunFailedError: The keys cannot be made.
    """
    shutil.rmtree(data_dir.keys, ignore_errors=True)
    process = await asyncio.create_subprocess_exec(
        command("booking-token"),
        "keys",
        str(data_dir.keys),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    if process.returncode:
        raise RunFailedError(f"the keys for booking's tokens cannot be made: {err.decode().strip()}")
    tokens = Tokens.read(data_dir.keys / "signing-key.json", option="the run's")
    path = data_dir.keys / DASHBOARD_FILE
    path.touch(mode=0o600)
    path.write_text(tokens.sign(("operator", "dashboard"), lasts=DASHBOARD_LASTS), encoding="utf-8")
    return tokens


def service_specs(
    data_dir: DataDir,
    *,
    bootstrap: str,
    bus: Bus,
    ports: Ports,
    silent_after_s: int,
    declines_percent: float = DECLINES_PERCENT,
    faults: Access | None = None,
    booking_database: str | None = None,
) -> tuple[list[ProcessSpec], list[ProcessSpec]]:
    """Return the processes that a ride begins with, and those that hear of it.

    A ride needs booking, payment, the schema registry and the stand-in for the payment provider. The others may start
    later: what was published before waits for them in the topics.

    Args:
        data_dir: Where databases, logs and keys are.
        bootstrap: The cluster, as `HOST:PORT`.
        bus: The same cluster.
        ports: Where the services listen.
        silent_after_s: Event time after which booking matches a driver no more who has reported nothing.
        declines_percent: How many of a hundred charges the provider declines.
        faults: How the dashboard reaches the faults of the run; None for no tray on its page.
        booking_database: The URL of the database that booking's regions share; None for SQLite.
    """
    event_time = "event"
    provider = _http(
        "payment-provider",
        data_dir,
        port=ports.payment_provider,
        env={
            "PROVIDER_DATABASE_URL": data_dir.database_url("provider"),
            "PROVIDER_DECLINE_PERCENT": f"{declines_percent:g}",
        },
        prefix="PROVIDER",
    )
    payment = _http(
        "payment",
        data_dir,
        port=ports.payment,
        env={
            "PAYMENT_BOOTSTRAP_SERVERS": bootstrap,
            "PAYMENT_DATABASE_URL": data_dir.database_url("payment"),
            "PAYMENT_PROVIDER_URL": ports.url("payment-provider"),
            "PAYMENT_SCHEMA_REGISTRY_URL": ports.url("registry"),
            "PAYMENT_SCHEMA_CACHE": str((data_dir.root / "schemas").absolute()),
            "PAYMENT_CLOCK": event_time,
            "PAYMENT_RETRY_FIRST_S": f"{RETRY_FIRST_S:g}",
            "PAYMENT_RETRY_LIMIT": str(RETRY_LIMIT),
        },
    )
    booking = booking_specs(
        data_dir,
        ports=ports,
        env={
            "BOOKING_BOOTSTRAP_SERVERS": bootstrap,
            "BOOKING_DATABASE_URL": booking_database or data_dir.database_url("booking"),
            "BOOKING_CLOCK": event_time,
            "BOOKING_AUTH_KEYS": str((data_dir.keys / "keys.json").absolute()),
            "BOOKING_SILENT_AFTER_S": str(silent_after_s),
        },
    )
    recommender = _http(
        "recommender",
        data_dir,
        port=ports.recommender,
        env={
            "RECOMMENDER_BOOTSTRAP_SERVERS": bootstrap,
            "RECOMMENDER_DATABASE_URL": data_dir.database_url("recommender"),
        },
    )
    dashboard = _http(
        "dashboard",
        data_dir,
        port=ports.dashboard,
        env={
            "DASHBOARD_BOOTSTRAP_SERVERS": bootstrap,
            "DASHBOARD_BOOKING_URL": ports.url("booking"),
            "DASHBOARD_BOOKING_TOKEN_FILE": str((data_dir.keys / DASHBOARD_FILE).absolute()),
            "DASHBOARD_LEDGER_FILE": str(data_dir.ledger.absolute()),
            "DASHBOARD_LAKE_FILE": str((data_dir.lake / "progress.json").absolute()),
            "DASHBOARD_LETTERS": "replay",
            **({} if faults is None else {"DASHBOARD_FAULTS_URL": faults.url, "DASHBOARD_FAULTS_TOKEN": faults.token}),
        },
    )
    surge_probe, logger_probe = GroupProbe(bus, "surge"), GroupProbe(bus, "event-logger")
    surge = ProcessSpec(
        name="surge",
        argv=(command("surge"),),
        env={
            "SURGE_BOOTSTRAP_SERVERS": bootstrap,
            "SURGE_DATABASE_URL": data_dir.database_url("surge"),
            "SURGE_HOLIDAYS": "US-NY",
            "SURGE_STATE_DIR": str((data_dir.root / "surge").absolute()),
            "SURGE_CLOCK": event_time,
        },
        log=data_dir.logs / "surge.log",
        ready=surge_probe.ready,
        before_restart=surge_probe.before_restart,
    )
    logger = ProcessSpec(
        name="event-logger",
        argv=(command("event-logger"),),
        env={
            "LOGGER_BOOTSTRAP_SERVERS": bootstrap,
            "LOGGER_DATABASE_URL": data_dir.database_url("logger"),
            "LOGGER_FILE": str(data_dir.journal.absolute()),
        },
        log=data_dir.logs / "event-logger.log",
        ready=logger_probe.ready,
        before_restart=logger_probe.before_restart,
    )
    registry = registry_spec(data_dir, bootstrap=bootstrap, ports=ports)
    return [registry, provider, payment, *booking], [recommender, dashboard, surge, logger]


def booking_specs(data_dir: DataDir, *, ports: Ports, env: dict[str, str]) -> list[ProcessSpec]:
    """Return booking's process, or one for each region and the router in front of them."""
    if not ports.regions:
        return [_http("booking", data_dir, port=ports.booking, env=env)]
    file = str(data_dir.regions.absolute())
    router = _http(ROUTER, data_dir, port=ports.booking, env={"ROUTER_REGIONS": file}, prefix="ROUTER")
    processes = [
        _http(
            process_of(region),
            data_dir,
            port=port,
            env={**env, "BOOKING_REGION": region, "BOOKING_REGIONS": file},
            prefix="BOOKING",
            program="booking",
        )
        for region, port in ports.regions.items()
    ]
    return [*processes, router]


def lake_spec(data_dir: DataDir, *, bootstrap: str) -> ProcessSpec:
    """Return the Spark job's process. It is ready when its streams run, some seconds after its JVM."""

    async def ready() -> bool:
        return lake_state(data_dir.lake) in ("running", "finishing", "caught-up")

    return ProcessSpec(
        name="lake",
        argv=(command("lake-sink"),),
        env={"LAKE_BOOTSTRAP_SERVERS": bootstrap, "LAKE_DIR": str(data_dir.lake.absolute())},
        log=data_dir.logs / "lake.log",
        ready=ready,
        ready_within_s=180.0,
        grace_s=45.0,
    )


def lake_state(lake_dir: Path) -> str:
    """Return what the lake sink that runs now says of itself, `absent` if none does."""
    try:
        progress = json.loads((lake_dir / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "absent"
    alive = Path(f"/proc/{progress['pid']}").exists() or not Path("/proc").exists()
    return str(progress["state"]) if alive else "absent"


def _http(
    name: str,
    data_dir: DataDir,
    *,
    port: int,
    env: dict[str, str],
    prefix: str | None = None,
    program: str | None = None,
) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        argv=(command(program or name),),
        env={**env, f"{prefix or name.upper()}_LISTEN": f"{HOST}:{port}"},
        log=data_dir.logs / f"{name}.log",
        ready=_says_ready(port),
    )


def _says_ready(port: int) -> Callable[[], Awaitable[bool]]:
    """Return what asks a process on loopback whether it is ready."""

    async def ready() -> bool:
        client = HttpClient(f"http://{HOST}:{port}", connections=1)
        try:
            return (await client.request("GET", "/readyz", within_s=2.0)).status == 200
        except UnreachableError:
            return False
        finally:
            await client.close()

    return ready


class GroupProbe:
    """Asks whether the process that runs now consumes in its group.

    Its predecessor, if it was killed, is a member until its session ends: that one must not count.

    Args:
        bus: The cluster.
        group: The group, which no other process is in.
    """

    def __init__(self, bus: Bus, group: str) -> None:
        self._bus = bus
        self._group = group
        self._seen: frozenset[str] = frozenset()
        self._former: frozenset[str] = frozenset()

    async def before_restart(self) -> None:
        """Note whose places in the group do not count for the process that is to be started again."""
        with contextlib.suppress(Exception):  # the broker may be away just now: who was seen before is all we know
            async with asyncio.timeout(ASK_WITHIN_S), self._admin() as admin:
                self._seen |= await admin.members(self._group)
        self._former = self._seen

    async def ready(self) -> bool:
        """Whether the process consumes."""
        try:
            async with self._admin() as admin:
                self._seen |= await admin.members(self._group)
                return await admin.consumes(self._group, former=self._former)
        except Exception:  # noqa: BLE001  # the broker may be away just now: not ready
            return False

    def _admin(self) -> ClusterAdmin:
        return ClusterAdmin(self._bus, client_id="demo-ready")


def names(specs: Sequence[ProcessSpec]) -> list[str]:
    """Return the names of processes."""
    return [spec.name for spec in specs]
