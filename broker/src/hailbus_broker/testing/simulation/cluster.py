"""A cluster of nodes in a simulated world, with the faults that a test asks for."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS, Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.log import LogDirectory, MetaProperties, draw_uuid
from hailbus_broker.log.log_directory import METADATA_LOG
from hailbus_broker.runtime.controller_node import ControllerNode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.runtime.node import Node
from hailbus_broker.server.listener import ControllerServer, Server
from hailbus_broker.testing.broker import TEST_SETTINGS
from hailbus_broker.testing.simulation.broker import run_start
from hailbus_broker.testing.simulation.errors import SimulationError
from hailbus_broker.testing.simulation.loop import SimulatedLoop
from hailbus_broker.testing.simulation.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from uuid import UUID

    from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState
    from hailbus_broker.cluster.metadata.topics import TopicState
    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.testing.simulation.process import SimulatedProcess
    from hailbus_broker.testing.simulation.world import World

T = TypeVar("T")

CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
_DATA: Final = "/data"
_NO_RACKS: Final[Mapping[int, str]] = MappingProxyType({})
_LEADER: Final = re.compile(r"leader of (?P<topic>.+)-(?P<index>\d+)")
_COORDINATOR: Final = re.compile(r"coordinator of (?P<kind>group|transactional id) (?P<name>.+)")
_COORDINATOR_TOPICS: Final = {"group": "__consumer_offsets", "transactional id": "__transaction_state"}


class SimulatedNode:
    """A node of the cluster: its host, what its disk keeps, and the process that runs.

    Args:
        world: Where it runs.
        node_id: Of the node; its host is `node1` for node 1.
        settings: Options by Kafka's names.
        host: Where it runs; None is the host of its id.

    Attributes:
        disk: What survives the processes; its attributes make it full, slow, lying or failing.
        clock: The wall clock of the host: it jumps and drifts. Sessions and elections go by another clock.
        process: The process that runs, or ran last.
        server: What runs in it; None until it has started.
        directory_id: Of its data directory, since it was formatted last.
    """

    def __init__(self, world: World, node_id: int, settings: Mapping[str, str], *, host: str | None = None) -> None:
        self.world: Final = world
        self.node_id: Final = node_id
        self.name: Final = host or host_of(node_id)
        self.disk: Final = world.disk(self.name)
        self.clock: Final = world.host(self.name).clock
        self.process: SimulatedProcess = world.process(self.name)
        self.server: Server | ControllerServer | None = None
        self._settings: Final = dict(settings)
        self._ids: Final = world.rng(f"directory/{self.name}")
        self.directory_id: UUID | None = None

    @property
    def is_broker(self) -> bool:
        """Whether the node has the role of a broker."""
        return "broker" in self._settings["process.roles"]

    @property
    def is_controller(self) -> bool:
        """Whether the node has the role of a controller."""
        return "controller" in self._settings["process.roles"]

    @property
    def is_up(self) -> bool:
        """Whether its process runs, and has begun to serve."""
        return self.process.is_alive and self.server is not None

    @property
    def core(self) -> NodeCore:
        """Of the node that runs, or ran last."""
        assert self.server is not None, f"node {self.node_id} has not started"
        return self.server.node.core

    @property
    def broker(self) -> Node:
        """The node as a broker."""
        assert isinstance(self.server, Server), f"node {self.node_id} is no broker, or has not started"
        return self.server.node

    @property
    def replica_key(self) -> ReplicaKey:
        """The node as a replica of the metadata, with the directory that it was formatted with last."""
        assert self.directory_id is not None
        return ReplicaKey(self.node_id, self.directory_id.bytes)

    @property
    def controller_endpoint(self) -> Endpoint:
        """Where its controller listens."""
        return Endpoint("CONTROLLER", self.name, CONTROLLER_PORT)

    def format(self, cluster_id: str = CLUSTER_ID) -> None:
        """Make its data directory, with an id of its own."""
        self.directory_id = draw_uuid(self._ids)
        meta = MetaProperties(cluster_id=cluster_id, node_id=self.node_id, directory_id=self.directory_id)
        LogDirectory.open(self.disk, _DATA, new_meta=meta)

    def wipe(self) -> None:
        """Kill the node and take everything from its disk; `format` makes a new data directory."""
        self.process.kill()
        self.disk.wipe()

    async def start(self) -> None:
        """Start the node on what its disk has, and wait until it serves: a broker, until it is unfenced.

        Raises:
            StartError: It refuses to start.
        """
        if not self.process.is_alive:
            self.process = self.world.process(self.name)
        self.server = None
        await run_start(self.process, self._serve(self.process))

    async def _serve(self, process: SimulatedProcess) -> None:
        machine = machine_of(process, self.disk, self.world.loop)
        config = BrokerConfig(self._settings)
        server: Server | ControllerServer
        if self.is_broker:
            server = Server(Node(config, machine=machine))
        else:
            server = ControllerServer(ControllerNode(config, machine=machine))
        server.node.core.when_unfit = process.kill
        await server.start()
        self.server = server

    def kill(self, *, power_cut: bool = False) -> None:
        """End the node at once.

        Args:
            power_cut: The whole machine stops: the disk keeps what was synced, and connections stay half-open.
        """
        if power_cut:
            self.world.network.power_off(self.process.host)
        else:
            self.process.kill()

    async def stop(self) -> None:
        """Stop the node as SIGTERM does: its leaderships move first."""
        if self.is_up:
            assert self.server is not None
            await self.process.start(self.server.stop())
        self.process.kill()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as the node's process."""
        return await self.process.start(coroutine)


class ClusterWorld:
    """A world with a cluster, for tests of clients; the clients run on the host `main`.

    Args:
        world: Hosts, network, trace and virtual time.
        roles: `process.roles` of each node, by node id.
        settings: Options by Kafka's names, for all nodes.
        racks: `broker.rack` by node id.
        has_dynamic_voters: Whether the log says who votes, and not the settings (KIP-853); see `write_voters`.

    Attributes:
        world: The world.
        nodes: By node id.
        voters: `controller.quorum.voters` of all of them.
    """

    def __init__(
        self,
        world: World,
        roles: Mapping[int, str],
        settings: Mapping[str, str],
        racks: Mapping[int, str] = _NO_RACKS,
        *,
        has_dynamic_voters: bool = False,
    ) -> None:
        self.world: Final = world
        self.voters: Final = ",".join(
            f"{node_id}@{host_of(node_id)}:{CONTROLLER_PORT}" for node_id, role in roles.items() if "controller" in role
        )
        quorum = {"controller.quorum.voters": self.voters}
        if has_dynamic_voters:
            servers = ",".join(voter.partition("@")[2] for voter in self.voters.split(","))
            quorum = {"controller.quorum.bootstrap.servers": servers}
        self.nodes: Final = {
            node_id: SimulatedNode(
                world,
                node_id,
                {
                    **TEST_SETTINGS,
                    **settings,
                    **_settings_of(node_id, role),
                    **({"broker.rack": racks[node_id]} if node_id in racks else {}),
                    **quorum,
                },
            )
            for node_id, role in roles.items()
        }

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of each broker, for clients."""
        return ",".join(f"{node.name}:{CLIENT_PORT}" for node in self.nodes.values() if node.is_broker)

    def write_voters(self) -> None:
        """Write all controllers, which are formatted, as the first voters: what `format --initial-controllers` does."""
        controllers = [node for node in self.nodes.values() if node.is_controller]
        voters = VoterSet(Voter(node.replica_key, (node.controller_endpoint,)) for node in controllers)
        data = encode_snapshot([], timestamp=0, now_ms=0, quorum=control_records.quorum_state(DYNAMIC_VOTERS, voters))
        for node in controllers:
            MetadataSnapshots(node.disk, f"{_DATA}/{METADATA_LOG}").write(SnapshotId(0, 0), data)

    # ------------------------------------------------------------------ who does what

    @property
    def active(self) -> SimulatedNode | None:
        """The node whose controller is active; of two that believe it, the one of the newer epoch."""
        found = [node for node in self.nodes.values() if node.is_up and node.core.metadata.is_active]
        return max(found, key=lambda node: node.core.metadata.quorum.epoch, default=None)

    @property
    def image(self) -> MetadataImage:
        """The committed metadata, of the node that knows most of it."""
        running = [node.core for node in self.nodes.values() if node.is_up]
        return max(running, key=lambda core: core.publisher.end_offset).image

    def state_of(self, topic: str, index: int = 0) -> PartitionState:
        """Return leader, replicas and in-sync replicas of a partition."""
        return self.image.topics[topic].partitions[index]

    def node(self, who: int | str) -> SimulatedNode:
        """Return a node by its id, or by what it does.

        Args:
            who: A node id, `"leader of TOPIC-INDEX"`, `"active controller"`, `"coordinator of group GROUP"` or
                `"coordinator of transactional id ID"`.

        Raises:
            SimulationError: There is none.
        """
        if isinstance(who, int):
            return self.nodes[who]
        if who == "active controller":
            if self.active is None:
                raise SimulationError("no controller is active")
            return self.active
        if match := _LEADER.fullmatch(who):
            return self._leader_of(match["topic"], int(match["index"]))
        if match := _COORDINATOR.fullmatch(who):
            topic = self._partitions(_COORDINATOR_TOPICS[match["kind"]])
            return self._leader_of(topic.name, partition_for(match["name"], len(topic.partitions)))
        raise SimulationError(
            f"{who!r} is no node: give a node id, 'leader of TOPIC-INDEX', 'active controller', "
            "'coordinator of group GROUP' or 'coordinator of transactional id ID'"
        )

    def _partitions(self, topic: str) -> TopicState:
        found = self.image.topics.get(topic)
        if found is None:
            raise SimulationError(f"the cluster has no topic {topic}")
        return found

    def _leader_of(self, topic: str, index: int) -> SimulatedNode:
        partitions = self._partitions(topic).partitions
        if index >= len(partitions):
            raise SimulationError(f"topic {topic} has {len(partitions)} partitions; there is no partition {index}")
        leader = partitions[index].leader
        if leader not in self.nodes:
            raise SimulationError(f"nobody leads {topic}-{index}")
        return self.nodes[leader]

    # ------------------------------------------------------------------ faults

    def kill(self, who: int | str, *, power_cut: bool = False) -> SimulatedNode:
        """Kill a node, and return it; see `node` and `SimulatedNode.kill`."""
        found = self.node(who)
        found.kill(power_cut=power_cut)
        return found

    async def start(self, *node_ids: int) -> None:
        """Start nodes side by side, and wait until they serve; without ids, all that do not run."""
        chosen = [self.nodes[node_id] for node_id in node_ids] or [
            node for node in self.nodes.values() if not node.is_up
        ]
        await asyncio.gather(*(node.start() for node in chosen))

    async def stop(self, who: int | str) -> SimulatedNode:
        """Stop a node as SIGTERM does, and return it; see `node`."""
        found = self.node(who)
        await found.stop()
        return found

    def partition(self, *groups: Iterable[int | str]) -> None:
        """Cut the network between groups of nodes, and of other hosts, by their names; see `heal` and `node`."""
        names = [[self._host_of(member) for member in group] for group in groups]
        for number, group in enumerate(names):
            for other in names[number + 1 :]:
                for left in group:
                    for right in other:
                        self.world.network.cut(left, right)

    def _host_of(self, member: int | str) -> str:
        if isinstance(member, str) and member in self.world.network.hosts:
            return member
        return self.node(member).name

    def heal(self) -> None:
        """End all cuts of the network."""
        self.world.network.heal_all()

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        await self.world.sleep(seconds)

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 60) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: It has not come true in so many virtual seconds.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 looks at other processes
                await asyncio.sleep(0.01)


def host_of(node_id: int) -> str:
    """Return the name of a node's host."""
    return f"node{node_id}"


def _settings_of(node_id: int, roles: str) -> dict[str, str]:
    host = host_of(node_id)
    listeners = []
    if "broker" in roles:
        listeners.append(f"PLAINTEXT://{host}:{CLIENT_PORT}")
    if "controller" in roles:
        listeners.append(f"CONTROLLER://{host}:{CONTROLLER_PORT}")
    return {
        "process.roles": roles,
        "node.id": str(node_id),
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": _DATA,
    }


@asynccontextmanager
async def simulated_cluster(
    settings: Mapping[str, str] | None = None,
    *,
    nodes: int = 3,
    roles: Sequence[str] | None = None,
    racks: Sequence[str] = (),
    seed: int | None = None,
) -> AsyncIterator[ClusterWorld]:
    """Run a cluster in the world of the running event loop.

    Args:
        settings: Options by Kafka's names, over `TEST_SETTINGS`, for all nodes.
        nodes: How many nodes there are: each is broker and controller.
        roles: In place of `nodes`: `process.roles` of each node, beginning with node 1.
        racks: `broker.rack` of each node, beginning with node 1.
        seed: Decides everything that is left to chance; None keeps the world's.

    Raises:
        SimulationError: The event loop is not a simulated one.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        raise SimulationError("simulated_cluster needs a simulated event loop: put @simulated above the test")
    world = loop.world
    if seed is not None:
        world.reseed(seed)
    chosen = ["broker,controller"] * nodes if roles is None else roles
    cluster = ClusterWorld(world, dict(enumerate(chosen, 1)), settings or {}, dict(enumerate(racks, 1)))
    for node in cluster.nodes.values():
        node.format()
    await cluster.start()
    yield cluster
