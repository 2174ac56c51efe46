"""Controllers of one quorum, each on a simulated host of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.log import LogDirectory, MetaProperties
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.runtime.controller_node import ControllerNode
from hailbus_broker.runtime.metadata import QuorumSettings
from hailbus_broker.server.listener import ControllerServer
from hailbus_broker.testing.simulation.loop import SimulatedLoop
from hailbus_broker.testing.simulation.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.testing.simulation.process import SimulatedProcess
    from hailbus_broker.testing.simulation.world import World

PORT = 9093
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


class SimulatedController:
    """A controller: its host, what its disk keeps, and the process that runs."""

    def __init__(self, world: World, node_id: int, voters: VoterSet, settings: Mapping[str, str]) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"controller{node_id}"
        self.disk = world.disk(self.name)
        self.process: SimulatedProcess = world.process(self.name)
        self.server: ControllerServer | None = None
        self._settings = {
            "node.id": str(node_id),
            "listeners": f"CONTROLLER://{self.name}:{PORT}",
            "log.dirs": "/data",
            **settings,
        }
        self._quorum = QuorumSettings(voters=voters, endpoints=(endpoint_of(node_id),))
        directory_id = UUID(int=node_id, version=4)
        meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=node_id, directory_id=directory_id)
        LogDirectory.open(self.disk, "/data", new_meta=meta)

    @property
    def core(self) -> NodeCore:
        assert self.server is not None
        return self.server.node.core

    @property
    def is_active(self) -> bool:
        return self.process.is_alive and self.server is not None and self.core.metadata.is_active

    async def start(self) -> None:
        if not self.process.is_alive:
            self.process = self.world.process(self.name)
        await self.process.start(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        machine = machine_of(self.process, self.disk, loop)
        server = ControllerServer(ControllerNode(BrokerConfig(self._settings), self._quorum, machine=machine))
        await server.start()
        self.server = server

    def kill(self, *, power_cut: bool = False) -> None:
        if power_cut:
            self.world.network.power_off(self.process.host)
        else:
            self.process.kill()

    async def stop(self) -> None:
        assert self.server is not None
        await self.process.start(self.server.stop())
        self.process.kill()

    async def set_group_config(self, name: str, value: str) -> None:
        """Have a decision written, and wait until it is committed and published here."""
        await self.process.start(self._set_group_config(name, value))

    async def _set_group_config(self, name: str, value: str) -> None:
        core = self.core
        changes = {"consumer.session.timeout.ms": value}
        await core.metadata.write(core.controller.alter_configs(ResourceType.GROUP, name, changes))

    def groups(self) -> dict[str, str]:
        """What the committed image has."""
        image = self.core.image
        names = image.config_resources(ResourceType.GROUP)
        return {name: image.configs(ResourceType.GROUP, name)["consumer.session.timeout.ms"] for name in names}


def endpoint_of(node_id: int) -> Endpoint:
    return Endpoint("CONTROLLER", f"controller{node_id}", PORT)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 looks at other processes
            await asyncio.sleep(0.01)


class Controllers:
    """All of them."""

    def __init__(self, world: World, count: int, settings: Mapping[str, str] | None = None) -> None:
        self.world = world
        voters = VoterSet(Voter(ReplicaKey(node_id), (endpoint_of(node_id),)) for node_id in range(1, count + 1))
        self.all = [SimulatedController(world, node_id, voters, settings or {}) for node_id in range(1, count + 1)]

    async def start(self) -> None:
        for controller in self.all:
            await controller.start()

    async def until_one_is_active(self, *, among: list[SimulatedController] | None = None) -> SimulatedController:
        """Wait for an active controller, and return it."""
        async with asyncio.timeout(60):
            while True:
                active = [controller for controller in among or self.all if controller.is_active]
                if active:
                    assert len(active) == 1 or len({one.core.metadata.quorum.epoch for one in active}) == len(active)
                    return max(active, key=lambda one: one.core.metadata.quorum.epoch)
                await asyncio.sleep(0.01)

    async def until_all_have(self, expected: Mapping[str, str]) -> None:
        """Wait until the committed images of all that run are equal to what is expected."""
        await until(lambda: all(one.groups() == expected for one in self.all if one.process.is_alive))

    async def write(self, name: str, value: str) -> None:
        """Ask the active controller for a decision, and ask again until one commits it, as a client does."""
        async with asyncio.timeout(60):
            while True:
                active = await self.until_one_is_active()
                try:
                    await active.set_group_config(name, value)
                except ApiError:
                    await asyncio.sleep(0.05)
                else:
                    return
