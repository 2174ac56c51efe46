"""Lets the faults of a scenario happen to the nodes of a cluster, and undoes them all at the end.

A fault names its node by number ("2"), or by what it does at that time: "active controller", "leader of rides-0",
"follower of rides-0", "transaction coordinator", "group coordinator".
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import RefusedError, UnreachableError
from hailbus_broker.cluster.metadata.names import NO_LEADER, TRANSACTION_STATE_TOPIC
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.add_raft_voter_request import AddRaftVoterRequest, Listener
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from hailbus_broker.protocol.definitions.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from hailbus_broker.protocol.definitions.remove_raft_voter_request import RemoveRaftVoterRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.testing.campaign.disk_faults import (
    QUEUE_S,
    SLOW_QUEUE_S,
    SLOW_SYNC_S,
    SYNC_S,
    fail_disk,
    until_dead,
)
from hailbus_broker.testing.campaign.lost_disks import DiskLosses
from hailbus_broker.testing.campaign.recorder import COPY, LOOSE, MAIN
from hailbus_broker.testing.campaign.routing import client_for
from hailbus_broker.testing.simulation.cluster import CLIENT_PORT, CLUSTER_ID
from hailbus_broker.testing.simulation.disk import UNLIMITED
from hailbus_broker.testing.simulation.errors import SimulatedCrashError, SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.testing.campaign.invariants import ClusterInvariants
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import PlannedFault
    from hailbus_broker.testing.campaign.subject import Clients
    from hailbus_broker.testing.simulation.cluster import ClusterWorld, SimulatedNode

CRASH_DEADLINE_S: Final = 4.0
"""How long a crash in a write may wait for that write."""
START_DEADLINE_S: Final = 60.0
"""How long after the heal nodes may take until all serve."""
RETRY_AFTER_S: Final = 6.0
"""A node whose disk failed while it started does not run until it is started again."""
STEP_DEADLINE_S: Final = 5.0
"""How long a step of a fault waits for what should follow from it."""
CALM_DEADLINE_S: Final = 12.0
"""How long the loss of a disk waits until every other replica is in sync, and no other fault lasts."""
HARMLESS: Final = frozenset(
    {
        "lost disk",
        "slow disk",
        "cold reads",
        "clock jump",
        "clock drift",
        "client kill",
        "client pause",
        "cut",
        "one-way cut",
        "cut from the broker",
        "slow link",
        "reset",
    }
)
"""Faults that take no broker out of an ISR: they may come while a broker that has lost its disk still counts."""
VOTER_ATTEMPTS: Final = 5
HEALED_ATTEMPTS: Final = 40
PREFERRED: Final = 0
UNCLEAN: Final = 1


class ClusterOperator:
    """Has its hands on the nodes, their disks and the network.

    Args:
        cluster: The nodes.
        recorder: Gets what must not happen.
        clients: Whom faults hit, too.
        invariants: Know the committed metadata.
    """

    def __init__(
        self, cluster: ClusterWorld, recorder: Recorder, clients: Clients, invariants: ClusterInvariants
    ) -> None:
        self._cluster: Final = cluster
        self._world: Final = cluster.world
        self._recorder: Final = recorder
        self._clients: Final = clients
        self._invariants: Final = invariants
        self._rng: Final = cluster.world.rng("operator")
        self._locks: Final = {node_id: asyncio.Lock() for node_id in cluster.nodes}
        self._starts: Final[dict[int, asyncio.Task[None]]] = {}
        self._failing_disks: Final[set[int]] = set()
        """Nodes whose disk has a fault now, or has had one: a start may fail for that."""
        self._stops: Final[dict[asyncio.Task[None], SimulatedNode]] = {}
        self._is_healed = False
        self._losses: Final = DiskLosses(cluster, invariants)
        self._is_exposed = False
        """Whether a broker counts as in sync although its disk is lost; see `DiskLosses.may_strike`."""
        self._harmful_count = 0
        self._removed_voters: Final[dict[int, SimulatedNode]] = {}

    # ------------------------------------------------------------------ who

    def _node(self, who: str) -> SimulatedNode:
        """Return the node that a fault hits; any, if nobody does what it says."""
        cluster = self._cluster
        try:
            if who.isdigit():
                return cluster.nodes[int(who)]
            if who == "active controller":
                return cluster.node(who)
            if who == "transaction coordinator":
                return cluster.node("leader of __transaction_state-0")
            if who == "group coordinator":
                return cluster.node("leader of __consumer_offsets-0")
            kind, _, place = who.partition(" of ")
            if kind == "leader":
                return cluster.node(who)
            topic, _, index = place.rpartition("-")
            state = self._invariants.image.topics[topic].partitions[int(index)]
            followers = [node_id for node_id in state.replicas if node_id != state.leader]
            return cluster.nodes[self._rng.choice(followers)]
        except (SimulationError, KeyError, IndexError, ValueError):
            return self._rng.choice(list(cluster.nodes.values()))

    def _others(self, node: SimulatedNode) -> list[SimulatedNode]:
        return [other for other in self._cluster.nodes.values() if other is not node]

    # ------------------------------------------------------------------ faults

    async def apply(self, fault: PlannedFault) -> None:
        """Wait for a fault's time, and let it happen."""
        await asyncio.sleep(fault.at_s)
        while self._is_exposed and fault.kind not in HARMLESS:  # noqa: ASYNC110 looks at other nodes
            await asyncio.sleep(0.05)
        if self._is_healed:
            return
        self._harmful_count += fault.kind not in HARMLESS
        try:
            await self._strike(fault)
        finally:
            self._harmful_count -= fault.kind not in HARMLESS

    async def _strike(self, fault: PlannedFault) -> None:
        node = self._node(fault.node)
        self._world.loop.record("operator", f"{fault.kind} {node.name} {fault.other} {fault.client}")
        self._world.note(f"fault: {fault.kind}")
        if fault.node in {"active controller", "transaction coordinator", "group coordinator"}:
            self._world.note(f"fault of the {fault.node}")
        match fault.kind:
            case "kill" | "power cut" | "stop in order" | "kill and power cut":
                async with self._locks[node.node_id]:
                    await self._end(node, fault)
            case "crash in a write" | "crash in a swap":
                async with self._locks[node.node_id]:
                    await self._crash_in_write(node, fault)
            case "crash in recovery":
                async with self._locks[node.node_id]:
                    await self._crash_in_recovery(node, fault)
            case "full disk" | "failing disk" | "failing sync":
                async with self._locks[node.node_id]:
                    await self._fail_disk(node, fault)
            case "slow disk":
                node.disk.sync_s, node.disk.max_queue_s = SLOW_SYNC_S, SLOW_QUEUE_S
                await asyncio.sleep(fault.duration_s)
                self._speed_up(node)
            case "cold reads":
                node.disk.is_cold = True
                await asyncio.sleep(fault.duration_s)
                node.disk.is_cold = False
            case "clock jump":
                node.process.host.clock.jump(fault.amount)
            case "clock drift":
                node.process.host.clock.drift(fault.amount)
                await asyncio.sleep(fault.duration_s)
                node.process.host.clock.drift(1.0)
            case "node pause":
                process = node.process
                process.pause()
                await asyncio.sleep(fault.duration_s)
                process.resume()
            case "power cut of all":
                await self._cut_power_of_all(fault)
            case "brokers one by one":
                await self._end_brokers(fault)
            case "lost disk":
                if node not in self._losses.candidates():
                    node = self._rng.choice(self._losses.candidates())
                async with self._locks[node.node_id]:
                    await self._lose_disk(node, fault)
            case "voter change":
                await self._change_voters(node, fault)
            case "contested election":
                await self._contest_election(fault)
            case "late ISR proposal":
                await self._delay_proposal(fault)
            case "client kill":
                self._clients.crash(fault.client, fault.duration_s)
            case "client pause":
                process = self._clients.process_of(fault.client)
                process.pause()
                await asyncio.sleep(fault.duration_s)
                process.resume()
            case "reassignment" | "election" | "unclean election":
                await self._order(fault)
            case _:
                await self._trouble_network(node, fault)

    async def _trouble_network(self, node: SimulatedNode, fault: PlannedFault) -> None:
        network = self._world.network
        pairs: list[tuple[str, str]]
        is_one_way = False
        match fault.kind:
            case "cut":
                pairs = [(fault.client, node.name)]
            case "one-way cut":
                pairs, is_one_way = [(fault.client, node.name)], True
            case "cut from the broker":
                pairs, is_one_way = [(node.name, fault.client)], True
            case "nodes cut":
                pairs = [(node.name, self._other(node, fault).name)]
            case "nodes one-way cut":
                pairs, is_one_way = [(node.name, self._other(node, fault).name)], True
            case "node cut off":
                pairs = [(node.name, other.name) for other in self._others(node)]
            case "node and client cut off":
                pairs = [(name, other.name) for other in self._others(node) for name in (node.name, fault.client)]
            case "nodes split":
                nodes = list(self._cluster.nodes.values())
                self._rng.shuffle(nodes)
                size = self._rng.randint(1, max(len(nodes) - 1, 1))
                pairs = [(left.name, right.name) for left in nodes[:size] for right in nodes[size:]]
            case "slow link":
                await self._slow_down_link(node.name, fault.client, fault.duration_s)
                return
            case "slow nodes link":
                await self._slow_down_link(node.name, self._other(node, fault).name, fault.duration_s)
                return
            case "reset":
                network.reset(fault.client, node.name)
                return
            case "nodes reset":
                network.reset(self._other(node, fault).name, node.name)
                return
            case _:
                raise ValueError(f"{fault.kind!r} is no fault of a cluster")
        for source, target in pairs:
            network.cut(source, target, is_one_way=is_one_way)
        if fault.kind == "node and client cut off":
            await self._order_of_minority(node)
        await asyncio.sleep(fault.duration_s)
        for source, target in pairs:
            network.heal(source, target, is_one_way=is_one_way)

    def _other(self, node: SimulatedNode, fault: PlannedFault) -> SimulatedNode:
        found = self._node(fault.other)
        others = self._others(node)
        return self._rng.choice(others) if found is node and others else found

    async def _slow_down_link(self, source: str, target: str, seconds: float) -> None:
        network = self._world.network
        network.change(source, target, max_delay_s=0.8, bytes_per_second=20_000, spike_probability=0.1)
        await asyncio.sleep(seconds)
        quality = network.quality
        network.change(
            source,
            target,
            max_delay_s=quality.max_delay_s,
            bytes_per_second=None,
            spike_probability=quality.spike_probability,
        )

    # ------------------------------------------------------------------ the life of a node

    def _speed_up(self, node: SimulatedNode) -> None:
        node.disk.sync_s, node.disk.max_queue_s = SYNC_S, QUEUE_S

    async def _end(self, node: SimulatedNode, fault: PlannedFault) -> None:
        if fault.kind == "stop in order":
            stopping = self._stopping(node)
            await asyncio.wait([stopping], timeout=20)
            node.kill()
            await asyncio.sleep(fault.duration_s)
            self.start(node)
            return
        if fault.kind != "kill":
            # Most acknowledgements of this moment wait for a sync: one that did not would be seen to be lost.
            node.disk.sync_s, node.disk.max_queue_s = SLOW_SYNC_S, SLOW_QUEUE_S
            await asyncio.sleep(self._rng.uniform(0.3, 1.5))
        node.kill(power_cut=fault.kind == "power cut")
        self._speed_up(node)
        await asyncio.sleep(fault.duration_s)
        self.start(node)
        if fault.kind == "kill and power cut":
            await asyncio.sleep(fault.duration_s)
            node.kill(power_cut=True)
            self.start(node)

    async def _end_brokers(self, fault: PlannedFault) -> None:
        """Let brokers die one after the other: the last one has records that nobody else has. Then they return."""
        brokers = [node for node in self._cluster.nodes.values() if node.is_broker]
        self._rng.shuffle(brokers)
        for node in brokers:
            if fault.is_power_cut:
                node.kill(power_cut=True)
            else:
                # After a stop in order it is still eligible to lead.
                await asyncio.wait([self._stopping(node)], timeout=5)
                node.kill()
            await asyncio.sleep(self._rng.uniform(0.2, 1.5))
        self._rng.shuffle(brokers)
        for node in brokers:
            self.start(node)
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))

    async def _lose_disk(self, node: SimulatedNode, fault: PlannedFault) -> None:
        """Let a broker come back with an empty disk, whose directory has another id.

        With an `amount` it loses the disk while it serves. Otherwise another broker dies, and then this one. It loses
        the disk when the controller has noticed: it may be eligible to lead until it registers again.
        """
        if fault.amount:
            if not await self._until(lambda: self._is_calm() and self._losses.may_strike(node), CALM_DEADLINE_S):
                return
            self._is_exposed = True
            self._world.note("disk of an in-sync broker lost")
            self._replace_disk(node, fault)
            back = asyncio.ensure_future(asyncio.sleep(fault.duration_s))
            back.add_done_callback(lambda ended: None if ended.cancelled() else self.start(node))
            try:
                while not self._losses.is_out(node):  # noqa: ASYNC110 looks at other nodes
                    await asyncio.sleep(0.05)
                self._is_exposed = False
                await back
            finally:
                self._is_exposed = False
                back.cancel()
            return
        others = [other for other in self._losses.candidates() if other is not node] if fault.other else []
        first = self._rng.choice(others) if others else None
        if first is not None:
            first.kill(power_cut=fault.is_power_cut)
            await self._until(lambda: self._losses.is_out(first))
        node.kill(power_cut=fault.is_power_cut)
        if await self._until(lambda: self._losses.may_strike_outside(node), CALM_DEADLINE_S):
            self._world.note("disk of a fenced broker lost")
            self._replace_disk(node, fault)
            await asyncio.sleep(fault.duration_s)
        self.start(node)
        if first is not None:
            await asyncio.sleep(fault.duration_s)
            self.start(first)

    def _is_calm(self) -> bool:
        return not self._harmful_count and not self._is_exposed

    def _replace_disk(self, node: SimulatedNode, fault: PlannedFault) -> None:
        node.kill(power_cut=fault.is_power_cut)
        node.disk.wipe()
        node.format()
        self._invariants.disk_lost(node)

    async def _contest_election(self, fault: PlannedFault) -> None:
        """Kill the active controller while messages between nodes take long, and a voter starts anew meanwhile.

        Otherwise one candidate is nearly always so early that nobody else becomes one in its epoch.
        """
        nodes = list(self._cluster.nodes.values())
        pairs = [(left.name, right.name) for number, left in enumerate(nodes) for right in nodes[number + 1 :]]
        slow = [asyncio.ensure_future(self._slow_down_link(*pair, fault.duration_s)) for pair in pairs]
        active = self._node("active controller")
        active.kill()
        await asyncio.sleep(self._rng.uniform(0.1, 2.5))
        voter = self._rng.choice(self._others(active) or [active])
        voter.kill(power_cut=fault.is_power_cut)
        self.start(voter)
        if slow:
            await asyncio.wait(slow)
        self.start(active)

    async def _delay_proposal(self, fault: PlannedFault) -> None:
        """Let a leader's proposal arrive after the ISR that it asks for has come and gone.

        A follower is cut from its leader until it leaves the ISR. As it returns, the packets of the connection over
        which the leader proposes that are lost. The leader gives that connection up, and proposes over another one.
        The follower leaves once more, records are committed without it, and then the first proposal arrives.
        """
        found = self._partition_led_beside_the_controller()
        if found is None:
            return
        controller, topic, index = found
        network = self._world.network
        state = self._invariants.image.topics[topic].partitions[index]
        leader = self._cluster.nodes[state.leader]
        follower = self._cluster.nodes[
            next(one for one in state.isr if one not in {leader.node_id, controller.node_id})
        ]

        def is_in_sync() -> bool:
            return follower.node_id in self._invariants.image.topics[topic].partitions[index].isr

        network.cut(leader.name, follower.name)
        await self._until(lambda: not is_in_sync())
        network.hold_back(leader.name, controller.name, _is_proposal)
        network.heal(leader.name, follower.name)
        await self._until(is_in_sync)
        network.cut(leader.name, follower.name)
        await self._until(lambda: not is_in_sync())
        await asyncio.sleep(self._rng.uniform(0.3, 1.0))
        self._world.note("ISR proposal arrives late")
        network.release(leader.name, controller.name)
        await asyncio.sleep(fault.duration_s)
        network.heal(leader.name, follower.name)

    def _partition_led_beside_the_controller(self) -> tuple[SimulatedNode, str, int] | None:
        """Return the active controller, and a partition with three nodes of their own: it, a leader and a follower."""
        controller = self._cluster.active
        topics = self._invariants.image.topics
        if controller is None:
            return None
        for name in (MAIN, COPY, TRANSACTION_STATE_TOPIC):
            for state in topics[name].partitions if name in topics else ():
                if state.leader in {controller.node_id, NO_LEADER}:
                    continue
                if set(state.isr) - {state.leader, controller.node_id}:
                    return controller, name, state.index
        return None

    async def _until(self, condition: Callable[[], bool], timeout_s: float = STEP_DEADLINE_S) -> bool:
        """Wait for what should follow from a step of a fault; return whether it did, as other faults may prevent it."""
        with suppress(TimeoutError):
            await self._cluster.until(condition, timeout_s=timeout_s)
            return True
        return False

    async def _cut_power_of_all(self, fault: PlannedFault) -> None:
        for node in self._cluster.nodes.values():
            node.kill(power_cut=True)
        await asyncio.sleep(fault.duration_s)
        for node in self._cluster.nodes.values():
            self.start(node)
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 1.0)))

    async def _crash_in_write(self, node: SimulatedNode, fault: PlannedFault) -> None:
        disk = node.disk
        disk.crash_is_power_cut = fault.is_power_cut
        if fault.path:
            disk.crash_on, disk.crash_on_after = fault.path, int(fault.amount)
        else:
            disk.crash_at_step = disk.step_count + int(fault.amount)
        await until_dead(self._world, node, CRASH_DEADLINE_S)
        disk.disarm()
        node.kill(power_cut=fault.is_power_cut)
        await asyncio.sleep(fault.duration_s)
        self.start(node)

    async def _crash_in_recovery(self, node: SimulatedNode, fault: PlannedFault) -> None:
        disk = node.disk
        node.kill(power_cut=fault.is_power_cut)
        disk.crash_is_power_cut = fault.is_power_cut
        disk.crash_at_step = disk.step_count + int(fault.amount)
        self.start(node)
        await until_dead(self._world, node, 1.0)
        if not node.process.is_alive:
            self._world.note("crash while starting")
        disk.crash_at_step = None
        self.start(node)

    async def _fail_disk(self, node: SimulatedNode, fault: PlannedFault) -> None:
        self._failing_disks.add(node.node_id)
        await fail_disk(node.disk, fault)
        # The node writes again after its next start only.
        node.kill(power_cut=fault.is_power_cut)
        await asyncio.sleep(0)
        self._failing_disks.discard(node.node_id)
        self.start(node)

    def _stopping(self, node: SimulatedNode) -> asyncio.Task[None]:
        """Begin to stop a node in order."""
        task = asyncio.ensure_future(node.stop())
        self._stops[task] = node
        task.add_done_callback(lambda ended: self._stops.pop(ended, None))
        return task

    def start(self, node: SimulatedNode) -> None:
        """Begin to start a node, unless it runs or starts already. It serves as soon as the others let it."""
        running = self._starts.get(node.node_id)
        if (running is not None and not running.done()) or (node.process.is_alive and node.is_up):
            return
        node.kill()
        task = self._starts[node.node_id] = asyncio.ensure_future(node.start())
        task.add_done_callback(partial(self._started, node))
        self._world.note("node restarted")

    def _started(self, node: SimulatedNode, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None or isinstance(error, SimulatedCrashError):
            return  # it serves, or a fault that waited for its start has ended it
        if isinstance(error, StartError) and node.node_id in self._failing_disks:
            node.kill()
            return
        self._recorder.fail(f"{node.name} does not start: {error!r}")

    async def heal(self) -> None:
        """Undo all faults, and wait until all nodes serve."""
        self._is_healed = True
        self._world.network.heal_all()
        for stop, node in list(self._stops.items()):  # else it would end the node later
            stop.cancel()
            node.kill()
        for node in self._cluster.nodes.values():
            disk = node.disk
            disk.disarm()
            disk.faults.clear()
            disk.capacity_bytes = UNLIMITED
            disk.is_cold = False
            self._speed_up(node)
            node.process.host.clock.drift(1.0)
            node.process.resume()
            self.start(node)
        await self._until_all_serve("after the last fault")
        for node in list(self._removed_voters.values()):
            if not await self._add_voter(node, attempts=HEALED_ATTEMPTS):
                self._recorder.fail(f"{node.name} cannot become a voter again")

    async def _until_all_serve(self, when: str) -> None:
        nodes = list(self._cluster.nodes.values())
        began_s = self._world.loop.now_s
        has_retried = False
        while not all(node.is_up for node in nodes):
            waited_s = self._world.loop.now_s - began_s
            if waited_s > START_DEADLINE_S:
                for node in nodes:
                    if not node.is_up:
                        self._recorder.fail(f"{node.name} did not serve within {START_DEADLINE_S:.0f} s {when}")
                return
            if waited_s > RETRY_AFTER_S and not has_retried:
                has_retried = True
                for node in nodes:
                    if not node.is_up:
                        self._world.note("node started again after the heal")
                        node.kill()
                        self.start(node)
            for node in nodes:
                if not node.process.is_alive:
                    self.start(node)
            await asyncio.sleep(0.1)

    async def cut_power(self) -> None:
        """Cut the power of all nodes, and start them again."""
        for node in self._cluster.nodes.values():
            node.kill(power_cut=True)
        for node in self._cluster.nodes.values():
            self.start(node)
        await self._until_all_serve("after the power cut at the end")

    # ------------------------------------------------------------------ orders of an administrator

    async def _order(self, fault: PlannedFault) -> None:
        topic = self._rng.choice((MAIN, COPY, LOOSE)) if fault.kind == "reassignment" else MAIN
        if fault.kind == "unclean election":
            topic = LOOSE
        known = self._invariants.image.topics.get(topic)
        if known is None:
            return
        partition = self._rng.randrange(len(known.partitions))
        if fault.kind != "reassignment":
            await self._ask(ApiKey.ELECT_LEADERS, 2, self._election(fault, topic, partition))
            return
        brokers = [node_id for node_id, node in self._cluster.nodes.items() if node.is_broker]
        size = min(len(known.partitions[partition].replicas), len(brokers))
        wanted = self._rng.sample(brokers, size)
        if size == len(brokers) > 1:  # there is nobody to move to: one replica leaves, and returns
            await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, _reassignment(topic, partition, wanted[:-1]))
            await asyncio.sleep(0.5)
        await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, _reassignment(topic, partition, wanted))

    async def _change_voters(self, node: SimulatedNode, fault: PlannedFault) -> None:
        """Remove a voter, which may be the active controller, and add it again while other faults go on."""
        if not node.is_controller or self._removed_voters:
            return
        self._removed_voters[node.node_id] = node  # it may be removed even if no answer comes
        is_active = node is self._cluster.active
        key = node.replica_key
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=node.node_id, voter_directory_id=key.directory_id or b""
        )
        code = await self._change_voter(
            ApiKey.REMOVE_RAFT_VOTER, request, {ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND}, attempts=VOTER_ATTEMPTS
        )
        if code is not None:
            self._world.note("active controller removed from the voters" if is_active else "voter removed")
        await asyncio.sleep(fault.duration_s)
        await self._add_voter(node, attempts=VOTER_ATTEMPTS)

    async def _add_voter(self, node: SimulatedNode, *, attempts: int) -> bool:
        """Make a controller a voter again, and return whether it is one."""
        endpoint, key = node.controller_endpoint, node.replica_key
        request = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=1_500,
            voter_id=node.node_id,
            voter_directory_id=key.directory_id or b"",
            listeners=[Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)],
        )
        code = await self._change_voter(
            ApiKey.ADD_RAFT_VOTER, request, {ErrorCode.NONE, ErrorCode.DUPLICATE_VOTER}, attempts=attempts
        )
        if code is None:
            return False
        self._removed_voters.pop(node.node_id, None)
        if code is ErrorCode.NONE:
            self._world.note("voter added again")
        return True

    async def _change_voter(
        self, key: ApiKey, request: Message, done: Collection[ErrorCode], *, attempts: int
    ) -> ErrorCode | None:
        """Ask for a change of the voters until it is made; None if it is not known to be made."""
        client = client_for(self._cluster.bootstrap, "operator", timeout_s=3.0, rng=self._rng)
        try:
            for _ in range(attempts):
                try:
                    code = ErrorCode((await client.ask(key, 0, request)).error_code)
                except (UnreachableError, RefusedError):
                    pass
                else:
                    if code in done:
                        return code
                await asyncio.sleep(0.3)
        finally:
            client.close()
        return None

    async def _order_of_minority(self, node: SimulatedNode) -> None:
        """Order a reassignment from a node that was cut off; an active controller appends it and cannot commit it."""
        known = self._invariants.image.topics.get(LOOSE)
        if known is None or not node.is_broker:
            return
        replicas = list(known.partitions[0].replicas)
        order = _reassignment(LOOSE, 0, replicas[1:] + replicas[:1])
        await self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, order, bootstrap=f"{node.name}:{CLIENT_PORT}", attempts=1
        )

    async def _ask(
        self, key: ApiKey, version: int, request: Message, *, bootstrap: str = "", attempts: int = 3
    ) -> None:
        client = client_for(bootstrap or self._cluster.bootstrap, "operator", timeout_s=2.0, rng=self._rng)
        for _ in range(attempts):
            try:
                await client.ask(key, version, request)
            except (UnreachableError, RefusedError):
                await asyncio.sleep(0.3)
            else:
                break
        client.close()

    @staticmethod
    def _election(fault: PlannedFault, topic: str, partition: int) -> Message:
        return ElectLeadersRequest(
            election_type=UNCLEAN if fault.kind == "unclean election" else PREFERRED,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])],
            timeout_ms=2_000,
        )


def _is_proposal(frame: bytes) -> bool:
    """Return whether a frame is an AlterPartition request: the API key follows the size."""
    return frame[4:6] == int(ApiKey.ALTER_PARTITION).to_bytes(2, "big")


def _reassignment(topic: str, partition: int, replicas: list[int]) -> Message:
    asked = ReassignablePartition(partition_index=partition, replicas=replicas)
    return AlterPartitionReassignmentsRequest(
        timeout_ms=2_000, topics=[ReassignableTopic(name=topic, partitions=[asked])]
    )
