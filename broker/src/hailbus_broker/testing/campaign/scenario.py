"""A scenario: which clients work, which faults come when. It prints as Python, so that a test can hold it."""

from __future__ import annotations

import json
import random
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from hailbus_broker.testing.campaign.recorder import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

ClientKind: TypeAlias = Literal[
    "idempotent producer",
    "plain producer",
    "loose producer",
    "transactions v1",
    "transactions v2",
    "abandoner",
    "committed reader",
    "uncommitted reader",
    "list reader",
    "auto-commit member",
    "copier v1",
    "copier v2",
    "offset committer",
    "table writer",
    "transactional table writer",
    "table reader",
    "trimmer",
    "topic maker",
    "time lister",
    "prober",
]
GuestKind: TypeAlias = Literal[
    "aiokafka producer",
    "aiokafka transactions",
    "aiokafka copier",
    "aiokafka member",
    "aiokafka reader",
    "shop service",
    "till service",
]
"""Clients that are not part of this package; see `guests.Guests`."""

FaultKind: TypeAlias = Literal[
    "kill",
    "power cut",
    "kill and power cut",
    "crash in a write",
    "crash in a swap",
    "crash in recovery",
    "stop in order",
    "full disk",
    "failing disk",
    "failing sync",
    "slow disk",
    "cold reads",
    "cut",
    "one-way cut",
    "cut from the broker",
    "slow link",
    "reset",
    "clock jump",
    "clock drift",
    "client kill",
    "client pause",
    "flipped bit",
    "store away",
    "store refuses",
    "store keeps silent",
]

ClusterFaultKind: TypeAlias = Literal[
    "node pause",
    "nodes cut",
    "nodes one-way cut",
    "node cut off",
    "node and client cut off",
    "late ISR proposal",
    "nodes split",
    "slow nodes link",
    "nodes reset",
    "power cut of all",
    "contested election",
    "brokers one by one",
    "lost disk",
    "voter change",
    "reassignment",
    "election",
    "unclean election",
]
"""Faults, and orders of an administrator, that there are in a cluster only; see `cluster_operator`."""

BROKER_FAULTS: Final[tuple[FaultKind, ...]] = (
    "kill",
    "power cut",
    "power cut",
    "power cut",
    "kill and power cut",
    "crash in a write",
    "crash in a write",
    "crash in a write",
    "crash in a write",
    "crash in a swap",
    "crash in recovery",
    "stop in order",
    "full disk",
    "failing disk",
    "failing sync",
    "flipped bit",
)
OTHER_FAULTS: Final[tuple[FaultKind, ...]] = (
    "slow disk",
    "cold reads",
    "cut",
    "one-way cut",
    "cut from the broker",
    "slow link",
    "reset",
    "clock jump",
    "clock drift",
    "client kill",
    "client kill",
    "client pause",
)
STORE_FAULTS: Final[tuple[FaultKind, ...]] = ("store away", "store refuses", "store keeps silent")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClient:
    """A client.

    Attributes:
        name: Its name.
        kind: What it does.
        rate: How many times a second it does that, at most.
        rack: `client.rack`: it reads from followers in this rack. Empty for a client that reads from leaders only.
    """

    name: str
    kind: ClientKind | GuestKind
    rate: float = 2.0
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault.

    Attributes:
        at_s: When it begins, in seconds since the clients began.
        kind: What happens.
        duration_s: How long it lasts; a broker that has died stays dead for so long.
        client: Whom it hits, if it hits a client.
        amount: A number whose meaning depends on the kind: steps of the disk, bytes, seconds of a clock.
        path: Which files it hits: those whose path contains this.
        is_power_cut: Whether a crash takes the whole machine, or its process only.
        node: In a cluster, which node it hits, by its number or by its role at that time; see `cluster_operator`.
        other: The other node, where it lies between two.
    """

    at_s: float
    kind: FaultKind | ClusterFaultKind
    duration_s: float = 1.0
    client: str = ""
    amount: float = 0.0
    path: str = ""
    is_power_cut: bool = True
    node: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a cluster.

    Attributes:
        roles: `process.roles` of each node, beginning with node 1.
        factor: Replicas of each partition.
        min_isr: `min.insync.replicas`.
        racks: `broker.rack` of each node, beginning with node 1, empty for a controller. With racks clients may read
            from followers; without any they read from leaders only.
        has_dynamic_voters: Whether `kraft.version` is 1: the log says who votes, and voters come and go.
    """

    roles: tuple[str, ...]
    factor: int
    min_isr: int
    racks: tuple[str, ...] = ()
    has_dynamic_voters: bool = False


CRASH_PATHS: Final = (
    "",
    "",
    ".swap",
    ".swap",
    ".swap",
    ".cleaned",
    ".snapshot",
    ".snapshot",
    ".checkpoint",
    ".checkpoint",
    ".txnindex",
    ".timeindex",
    "__transaction_state",
    "__transaction_state",
    "__consumer_offsets",
    "__cluster_metadata",
    "partition.metadata",
    "checkpoint",
    "trimmed",
    "accounts",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run of a campaign.

    Attributes:
        seed: Decides what the scenario leaves open: delays, the order of processes, what clients do.
        duration_s: How long clients work before everything is healed.
        clients: Who works.
        faults: What goes wrong.
        partition_count: Of the topics.
        segment_bytes: Size of segments: small, so that much happens at their ends.
        checks_every_s: How often the state of the broker is looked at.
        nodes: Of the cluster; None is one broker without a cluster.
    """

    seed: int
    duration_s: float
    clients: tuple[PlannedClient, ...]
    faults: tuple[PlannedFault, ...]
    partition_count: int = 2
    segment_bytes: int = 8_192
    checks_every_s: float = 0.05
    nodes: Nodes | None = None

    def to_python(self) -> str:
        """Return an expression that makes this scenario, formatted as the sources are."""
        return _to_python(self, "")


def _to_python(value: object, indent: str) -> str:
    """Return an expression, one part a line; parts that have their default value are left out."""
    inner = indent + "    "
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case tuple() if value:
            lines = [f"{inner}{_to_python(part, inner)},\n" for part in value]
            return "(\n" + "".join(lines) + indent + ")"
        case Scenario() | PlannedClient() | PlannedFault() | Nodes():
            given = [(part.name, getattr(value, part.name)) for part in fields(value) if _is_given(value, part)]
            lines = [f"{inner}{name}={_to_python(part, inner)},\n" for name, part in given]
            return f"{type(value).__name__}(\n" + "".join(lines) + indent + ")"
        case _:
            return repr(value)


def _is_given(value: object, part: Field[Any]) -> bool:
    return part.default is MISSING or getattr(value, part.name) != part.default


_ALWAYS: Final[tuple[ClientKind, ...]] = (
    "idempotent producer",
    "transactions v1",
    "transactions v2",
    "committed reader",
    "list reader",
)
_SOMETIMES: Final[tuple[ClientKind, ...]] = (
    "plain producer",
    "abandoner",
    "uncommitted reader",
    "auto-commit member",
    "auto-commit member",
    "copier v1",
    "copier v2",
    "offset committer",
    "table writer",
    "transactional table writer",
    "table reader",
    "trimmer",
    "topic maker",
    "time lister",
)
_TOGETHER: Final[tuple[tuple[ClientKind, ClientKind], ...]] = (
    ("copier v1", "copier v1"),
    ("copier v2", "copier v2"),
    ("copier v1", "copier v2"),
    ("auto-commit member", "auto-commit member"),
    ("table writer", "table reader"),
    ("transactional table writer", "table reader"),
)

_WRITERS: Final[dict[str, ClientKind]] = {
    ".swap": "table writer",
    ".cleaned": "table writer",
    ".checkpoint": "topic maker",
    "__consumer_offsets": "offset committer",
    TABLE: "table writer",
    "trimmed": "trimmer",
}
"""Who causes writes to a path: a crash there needs that client."""


GUESTS_EVERY: Final = 7
AIOKAFKA_AT: Final = 3
SERVICES_AT: Final = 5
"""Of seven seeds one has clients of aiokafka, and one services of the SDK, in place of some of our own."""
_BESIDE_AIOKAFKA: Final[tuple[ClientKind | GuestKind, ...]] = (
    "idempotent producer",
    "transactions v2",
    "list reader",
    "aiokafka producer",
    "aiokafka transactions",
    "aiokafka copier",
    "aiokafka member",
    "aiokafka member",
    "aiokafka reader",
)
_BESIDE_SERVICES: Final[tuple[ClientKind | GuestKind, ...]] = (
    "idempotent producer",
    "transactions v1",
    "committed reader",
    "shop service",
    "till service",
)
_TORN: Final[tuple[GuestKind, ...]] = ("aiokafka transactions", "aiokafka copier", "till service")
"""Guests that have something open most of the time, so that a kill is likely to hit it."""
_GUEST_KINDS: Final = frozenset(get_args(GuestKind))


def has_guests(scenario: Scenario) -> bool:
    """Whether clients take part that are not of this package; a seed then needs a fixed hash seed."""
    return any(client.kind in _GUEST_KINDS for client in scenario.clients)


def draw(seed: int) -> Scenario:
    """Draw a scenario."""
    if seed % GUESTS_EVERY == AIOKAFKA_AT:
        return _draw_with_guests(seed, _BESIDE_AIOKAFKA, ())
    if seed % GUESTS_EVERY == SERVICES_AT:
        return _draw_with_guests(seed, _BESIDE_SERVICES, STORE_FAULTS)
    return _draw_without_guests(seed)


def _draw_with_guests(
    seed: int, kinds: tuple[ClientKind | GuestKind, ...], further_faults: tuple[FaultKind, ...]
) -> Scenario:
    rng = random.Random(f"guests/{seed}")
    duration_s = round(rng.uniform(6, 14), 1)
    clients: list[PlannedClient] = []
    for kind in kinds:
        _add_client(rng, clients, kind)
    guests = [client for client in clients if client.kind in _GUEST_KINDS]
    faults = []
    if rng.random() < 0.95:
        drawn = [*rng.choices(BROKER_FAULTS, k=rng.randint(1, 2)), *rng.choices(OTHER_FAULTS, k=rng.randint(1, 3))]
        faults = [_draw_fault(rng, kind, duration_s, clients) for kind in drawn]
        own: list[FaultKind] = ["client kill", *rng.sample(further_faults, min(2, len(further_faults)))]
        faults += [_draw_fault(rng, kind, duration_s, guests) for kind in own]
        faults.append(
            _draw_fault(rng, "client kill", duration_s, [client for client in guests if client.kind in _TORN])
        )
    return Scenario(
        seed=seed,
        duration_s=duration_s,
        clients=tuple(clients),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        partition_count=rng.randint(1, 3),
        segment_bytes=rng.choice((2_048, 4_096, 16_384)),
    )


def _draw_without_guests(seed: int) -> Scenario:
    rng = random.Random(f"scenario/{seed}")
    duration_s = round(rng.uniform(6, 14), 1)
    kinds: list[ClientKind] = list(_ALWAYS)
    for pair in rng.sample(_TOGETHER, 2):
        kinds += pair
    kinds += rng.sample(_SOMETIMES, 3)
    if rng.random() < 0.4:
        kinds.append("prober")
    clients: list[PlannedClient] = []
    for kind in kinds:
        _add_client(rng, clients, kind)
    faults: list[PlannedFault] = []
    if rng.random() < 0.95:  # sometimes nothing goes wrong at all
        drawn = [*rng.choices(BROKER_FAULTS, k=rng.randint(1, 3)), *rng.choices(OTHER_FAULTS, k=rng.randint(1, 5))]
        faults = [_draw_fault(rng, kind, duration_s, clients) for kind in drawn]
    for writer in sorted({_WRITERS[fault.path] for fault in faults if fault.path in _WRITERS}):
        if all(client.kind != writer for client in clients):
            _add_client(rng, clients, writer)
    return Scenario(
        seed=seed,
        duration_s=duration_s,
        clients=tuple(clients),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        partition_count=rng.randint(1, 3),
        segment_bytes=rng.choice((2_048, 4_096, 16_384)),
    )


def _add_client(rng: random.Random, clients: list[PlannedClient], kind: ClientKind | GuestKind) -> None:
    number = sum(client.kind == kind for client in clients) + 1
    name = f"{kind.replace(' ', '-')}-{number}"
    clients.append(PlannedClient(name=name, kind=kind, rate=round(rng.uniform(1.2, 5), 2)))


def _draw_fault(rng: random.Random, kind: FaultKind, duration_s: float, clients: list[PlannedClient]) -> PlannedFault:
    at_s = round(rng.uniform(0.5, duration_s - 1), 2)
    lasts_s = round(rng.choice((0.1, 1.0, 3.0, 6.0)) * rng.uniform(0.3, 1), 2)
    client = path = ""
    amount = 0.0
    match kind:
        case "cut" | "one-way cut" | "cut from the broker" | "slow link" | "reset" | "client kill" | "client pause":
            client = rng.choice(clients).name
        case "store away" | "store refuses" | "store keeps silent":
            client = rng.choice(clients).name
        case "crash in a write":
            path = rng.choice(CRASH_PATHS)
            amount = rng.randint(0, 3 if path else 60)
        case "crash in a swap":
            path = TABLE
            amount = rng.randint(0, 6)
        case "crash in recovery":
            amount = rng.randint(0, 40)
        case "full disk":
            amount = rng.randint(0, 20_000)
        case "failing disk" | "failing sync":
            path = rng.choice(("", "", "rides", "__transaction_state", "__consumer_offsets", "accounts"))
            amount = rng.randint(0, 100)  # which operation
        case "clock jump":
            amount = rng.choice((-600, -30, -2, 2, 30, 600))
        case "clock drift":
            amount = rng.choice((0.9, 1.1))
        case _:
            pass
    return PlannedFault(
        at_s=at_s,
        kind=kind,
        duration_s=lasts_s,
        client=client,
        amount=amount,
        path=path,
        is_power_cut=rng.random() < 0.7,
    )


# ---------------------------------------------------------------------- clusters

_ALWAYS_IN_A_CLUSTER: Final[tuple[ClientKind, ...]] = (
    "idempotent producer",
    "transactions v2",
    "committed reader",
    "loose producer",
)
_SOMETIMES_IN_A_CLUSTER: Final[tuple[ClientKind, ...]] = (
    "plain producer",
    "transactions v1",
    "abandoner",
    "uncommitted reader",
    "list reader",
    "offset committer",
    "time lister",
)
_TOGETHER_IN_A_CLUSTER: Final[tuple[tuple[ClientKind, ClientKind], ...]] = (
    ("copier v1", "copier v2"),
    ("copier v2", "copier v2"),
    ("auto-commit member", "auto-commit member"),
    ("table writer", "table reader"),
    ("transactional table writer", "table reader"),
)
NODE_FAULTS: Final[tuple[FaultKind | ClusterFaultKind, ...]] = (
    "kill",
    "kill",
    "power cut",
    "power cut",
    "kill and power cut",
    "crash in a write",
    "crash in a write",
    "crash in recovery",
    "stop in order",
    "full disk",
    "failing disk",
    "failing sync",
    "node pause",
    "node pause",
    "power cut of all",
    "contested election",
    "contested election",
)
NETWORK_FAULTS: Final[tuple[FaultKind | ClusterFaultKind, ...]] = (
    "nodes cut",
    "nodes one-way cut",
    "node cut off",
    "node cut off",
    "node cut off",
    "nodes split",
    "slow nodes link",
    "nodes reset",
)
FURTHER_FAULTS: Final[tuple[FaultKind | ClusterFaultKind, ...]] = (
    "slow disk",
    "cold reads",
    "cut",
    "one-way cut",
    "cut from the broker",
    "slow link",
    "reset",
    "clock jump",
    "clock drift",
    "client kill",
    "client pause",
)
ORDERS: Final[tuple[ClusterFaultKind, ...]] = ("reassignment", "reassignment", "election", "unclean election")
_TARGETS: Final = (
    "active controller",
    "leader of rides-0",
    "leader of rides-0",
    "follower of rides-0",
    "leader of loose-0",
    "transaction coordinator",
    "group coordinator",
)
_LASTS_IN_A_CLUSTER_S: Final = (0.3, 2.0, 5.0, 8.0)
_MINORITIES: Final[tuple[tuple[ClientKind, str], ...]] = (
    ("loose producer", "leader of loose-0"),
    ("loose producer", "leader of loose-0"),
    ("idempotent producer", "leader of rides-0"),
    ("idempotent producer", "active controller"),
    ("idempotent producer", "active controller"),
)
"""Who writes, and to whom. The loose producer does not wait for replicas, so it writes on when its leader is fenced."""
_MINORITY_PROBABILITY: Final = 0.25
_MINORITY_LASTS_S: Final = (7.0, 10.0)
"""Longer than an election of a controller and a broker's session after it."""
_LEAST_NODES_OF_A_MINORITY: Final = 3
_LATE_PROPOSAL_PROBABILITY: Final = 0.12
_LATE_PROPOSAL_LASTS_S: Final = 9.0
"""A follower has to leave the ISR twice, after `replica.lag.time.max.ms`, and a request to time out in between."""
_LEAST_DYNAMIC_VOTERS: Final = 3
_DYNAMIC_VOTERS_PROBABILITY: Final = 0.35
_LOST_DISKS: Final = (
    "leader of rides-0",
    "leader of rides-0",
    "follower of rides-0",
    "transaction coordinator",
    "group coordinator",
)
_LOST_DISK_PROBABILITY: Final = 0.9
"""Of the scenarios whose controllers are nodes of their own: three of ten in all."""
_LOST_DISK_LASTS_S: Final = 4.0
"""The controller takes a broker out of the ISRs when its session ends, or when it registers again."""
_LEAST_NODES_OF_LOST_DISKS: Final = 2
_LEAST_NODES_WITH_ELIGIBLE: Final = 3
"""With so many brokers two may be down, so that the one that loses its disk is eligible to lead."""
_RACKS: Final = ("north", "south", "west")
_RACKS_PROBABILITY: Final = 0.4
_LEAST_NODES_OF_RACKS: Final = 3
_TWO_REPLICAS_PROBABILITY: Final = 0.35
_READERS_IN_RACKS: Final[frozenset[ClientKind | GuestKind]] = frozenset(
    {
        "committed reader",
        "uncommitted reader",
        "list reader",
        "auto-commit member",
        "copier v1",
        "copier v2",
        "table reader",
    }
)
_CRASH_PATHS_IN_A_CLUSTER: Final = (
    "",
    "",
    "rides",
    "__cluster_metadata",
    "__cluster_metadata",
    "__transaction_state",
    "__consumer_offsets",
    "quorum-state",
    "leader-epoch-checkpoint",
    ".snapshot",
    ".checkpoint",
)


def draw_scenario(seed: int, node_count: int) -> Scenario:
    """Draw a scenario for one broker without a cluster, or for a cluster of several."""
    return draw(seed) if node_count == 1 else draw_cluster(seed, node_count)


def draw_cluster(seed: int, node_count: int) -> Scenario:
    """Draw a scenario for a cluster."""
    rng = random.Random(f"cluster/{node_count}/{seed}")
    duration_s = round(rng.uniform(8, 14), 1)
    kinds: list[ClientKind] = [
        *_ALWAYS_IN_A_CLUSTER,
        *rng.choice(_TOGETHER_IN_A_CLUSTER),
        *rng.sample(_SOMETIMES_IN_A_CLUSTER, 2),
    ]
    clients: list[PlannedClient] = []
    for kind in kinds:
        _add_client(rng, clients, kind)
    roles = _draw_roles(rng, node_count)
    faults: list[PlannedFault] = []
    if rng.random() < 0.97:
        drawn = [
            *rng.choices(NODE_FAULTS, k=rng.randint(1, 3)),
            *rng.choices(NETWORK_FAULTS if node_count > 1 else ("reset",), k=rng.randint(0, 2)),
            *rng.choices(FURTHER_FAULTS, k=rng.randint(0, 2)),
            *rng.choices(ORDERS, k=rng.randint(0, 2)),
        ]
        if len(roles) > node_count and rng.random() < 0.6:  # the quorum lives on without brokers
            drawn.append("brokers one by one")
        faults = [_draw_cluster_fault(rng, kind, duration_s, clients, node_count) for kind in drawn]
        faults += _draw_minority(seed, node_count, duration_s, clients)
        lost = list(_draw_lost_disks(seed, node_count, duration_s, roles))
        if any(fault.amount for fault in lost):
            # It waits until no other fault lasts, so most others would prevent it: those come after it.
            duration_s = round(duration_s + _LOST_DISK_LASTS_S, 1)
            faults = [replace(fault, at_s=round(fault.at_s + _LOST_DISK_LASTS_S, 2)) for fault in faults]
        faults += lost
        late = _draw_late_proposal(seed, node_count)
        if late is not None:
            # It takes its steps one after the other, and most other faults would prevent them: those come after it.
            duration_s = round(duration_s + _LATE_PROPOSAL_LASTS_S, 1)
            faults = [late, *(replace(fault, at_s=round(fault.at_s + _LATE_PROPOSAL_LASTS_S, 2)) for fault in faults)]
    factor = min(node_count, 3)
    scenario = Scenario(
        seed=seed,
        duration_s=duration_s,
        clients=tuple(clients),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        partition_count=rng.randint(1, 2),
        segment_bytes=rng.choice((2_048, 4_096, 16_384)),
        checks_every_s=0.1,
        nodes=Nodes(roles=roles, factor=factor, min_isr=min(factor, rng.choice((2, 2, 2, 1)))),
    )
    return _with_voter_changes(_with_racks(scenario, node_count), node_count)


def _with_racks(scenario: Scenario, node_count: int) -> Scenario:
    """Sometimes spread brokers over racks, and let readers read from followers, by a generator of its own.

    In some of these scenarios partitions have two replicas, so that it matters on which brokers they are placed.
    """
    nodes, rng = scenario.nodes, random.Random(f"racks/{node_count}/{scenario.seed}")
    assert nodes is not None
    if node_count < _LEAST_NODES_OF_RACKS or rng.random() >= _RACKS_PROBABILITY:
        return scenario
    names = _RACKS[: rng.choice((2, 3))]
    brokers = [number for number, roles in enumerate(nodes.roles) if "broker" in roles]
    racks = [""] * len(nodes.roles)
    for number, broker in enumerate(rng.sample(brokers, len(brokers))):
        racks[broker] = names[number % len(names)]
    if rng.random() < _TWO_REPLICAS_PROBABILITY:
        nodes = replace(nodes, factor=2, min_isr=rng.choice((1, 1, 2)))
    clients = [
        replace(client, rack=rng.choice(names)) if client.kind in _READERS_IN_RACKS else client
        for client in scenario.clients
    ]
    return replace(scenario, nodes=replace(nodes, racks=tuple(racks)), clients=tuple(clients))


def _with_voter_changes(scenario: Scenario, node_count: int) -> Scenario:
    """Sometimes let the log say who votes, and remove voters for a while, by a generator of its own."""
    nodes, rng = scenario.nodes, random.Random(f"voters/{node_count}/{scenario.seed}")
    assert nodes is not None
    voters = [number for number, roles in enumerate(nodes.roles, 1) if "controller" in roles]
    if len(voters) < _LEAST_DYNAMIC_VOTERS or rng.random() >= _DYNAMIC_VOTERS_PROBABILITY:
        return scenario
    begins_s = 0.5
    for fault in scenario.faults:  # those that most other faults would prevent come first
        begins_s += _LATE_PROPOSAL_LASTS_S if fault.kind == "late ISR proposal" else 0
        begins_s += _LOST_DISK_LASTS_S if fault.kind == "lost disk" and fault.amount else 0
    changes = [
        PlannedFault(
            at_s=round(rng.uniform(begins_s, scenario.duration_s - 3), 2),
            kind="voter change",
            duration_s=round(rng.uniform(0.2, 5.0), 2),
            node=rng.choice(("active controller", "active controller", *map(str, voters))),
        )
        for _ in range(rng.randint(1, 3))
    ]
    faults = sorted((*scenario.faults, *changes), key=lambda fault: fault.at_s)
    return replace(scenario, nodes=replace(nodes, has_dynamic_voters=True), faults=tuple(faults))


def _draw_minority(
    seed: int, node_count: int, duration_s: float, clients: list[PlannedClient]
) -> Iterator[PlannedFault]:
    """Sometimes cut off a leader together with a client that writes to it, until others lead in its place.

    It has a generator of its own, so that it changes nothing else in a seed.
    """
    rng = random.Random(f"minority/{node_count}/{seed}")
    if node_count < _LEAST_NODES_OF_A_MINORITY or rng.random() >= _MINORITY_PROBABILITY:
        return
    kind, node = rng.choice(_MINORITIES)
    yield PlannedFault(
        at_s=round(rng.uniform(0.5, duration_s - _MINORITY_LASTS_S[0]), 2),
        kind="node and client cut off",
        duration_s=round(rng.uniform(*_MINORITY_LASTS_S), 2),
        client=next(client.name for client in clients if client.kind == kind),
        node=node,
    )


def _draw_lost_disks(seed: int, node_count: int, duration_s: float, roles: tuple[str, ...]) -> Iterator[PlannedFault]:
    """Sometimes give a broker that is no voter an empty disk, by a generator of its own."""
    rng = random.Random(f"lost disk/{node_count}/{seed}")
    if node_count < _LEAST_NODES_OF_LOST_DISKS or "broker" not in roles or rng.random() >= _LOST_DISK_PROBABILITY:
        return
    is_in_sync = rng.random() < 0.5
    yield PlannedFault(
        at_s=round(rng.uniform(0.3, 0.8) if is_in_sync else rng.uniform(0.5, duration_s - 6), 2),
        kind="lost disk",
        duration_s=round(rng.choice((0.2, 1.0, 3.0)) * rng.uniform(0.3, 1), 2),
        amount=int(is_in_sync),
        is_power_cut=rng.random() < 0.3,
        node=rng.choice(_LOST_DISKS),
        other="" if is_in_sync or node_count < _LEAST_NODES_WITH_ELIGIBLE else "any",
    )


def _draw_late_proposal(seed: int, node_count: int) -> PlannedFault | None:
    """Sometimes let a proposal of an ISR arrive after that ISR has come and gone, by a generator of its own."""
    rng = random.Random(f"late proposal/{node_count}/{seed}")
    if node_count < _LEAST_NODES_OF_A_MINORITY or rng.random() >= _LATE_PROPOSAL_PROBABILITY:
        return None
    return PlannedFault(at_s=round(rng.uniform(0.3, 1.0), 2), kind="late ISR proposal")


def _draw_roles(rng: random.Random, node_count: int) -> tuple[str, ...]:
    """Mostly each node is both. Sometimes controllers are apart, beside as many brokers as were asked for."""
    if rng.random() < 0.65:
        return ("broker,controller",) * node_count
    return ("controller",) * rng.choice((1, 3)) + ("broker",) * node_count


def _draw_cluster_fault(
    rng: random.Random,
    kind: FaultKind | ClusterFaultKind,
    duration_s: float,
    clients: list[PlannedClient],
    node_count: int,
) -> PlannedFault:
    at_s = round(rng.uniform(0.5, duration_s - 2), 2)
    lasts_s = round(rng.choice(_LASTS_IN_A_CLUSTER_S) * rng.uniform(0.3, 1), 2)
    client = path = ""
    amount = 0.0
    targets = (*_TARGETS, *(str(number) for number in range(1, node_count + 1)))
    match kind:
        case "cut" | "one-way cut" | "cut from the broker" | "slow link" | "reset" | "client kill" | "client pause":
            client = rng.choice(clients).name
        case "crash in a write":
            path = rng.choice(_CRASH_PATHS_IN_A_CLUSTER)
            amount = rng.randint(0, 3 if path else 60)
        case "crash in recovery":
            amount = rng.randint(0, 40)
        case "full disk":
            amount = rng.randint(0, 20_000)
        case "failing disk" | "failing sync":
            path = rng.choice(("", "rides", "__transaction_state", "__consumer_offsets", "__cluster_metadata"))
            amount = rng.randint(0, 100)
        case "clock jump":
            amount = rng.choice((-600, -30, -2, 2, 30, 600))
        case "clock drift":
            amount = rng.choice((0.9, 1.1))
        case _:
            pass
    return PlannedFault(
        at_s=at_s,
        kind=kind,
        duration_s=lasts_s,
        client=client,
        amount=amount,
        path=path,
        is_power_cut=rng.random() < 0.6,
        node=rng.choice(targets),
        other=rng.choice(targets),
    )
