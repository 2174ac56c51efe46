"""A broker in a simulated world, with the faults that a test asks for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.runtime.node import Node
from hailbus_broker.server.listener import Server
from hailbus_broker.testing.broker import TEST_SETTINGS
from hailbus_broker.testing.simulation.errors import SimulationError
from hailbus_broker.testing.simulation.loop import SimulatedLoop
from hailbus_broker.testing.simulation.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from hailbus_broker.testing.simulation.process import SimulatedProcess
    from hailbus_broker.testing.simulation.world import World

_PORT: Final = 9092
_DATA: Final = "/data"


class SimulatedBroker:
    """A broker on a host of its own.

    Args:
        world: Where it runs.
        settings: Options by Kafka's names, over those of test brokers.
        name: Of its host and its processes.

    Attributes:
        world: The world.
        name: The host's name.
        disk: What survives the processes.
        process: The process that runs, or ran last.
        server: What runs in it; None until it has started.
    """

    def __init__(self, world: World, settings: Mapping[str, str] | None = None, *, name: str = "broker") -> None:
        self.world: Final = world
        self.name: Final = name
        self.disk: Final = world.disk(name)
        self.process: SimulatedProcess = world.process(name)
        self.server: Server | None = None
        self._settings: Final = {
            "listeners": f"PLAINTEXT://{name}:{_PORT}",
            **TEST_SETTINGS,
            **(settings or {}),
            "log.dirs": _DATA,
        }

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.name}:{_PORT}"

    @property
    def node(self) -> Node:
        """The broker itself, of the process that runs."""
        assert self.server is not None
        return self.server.node

    async def start(self) -> None:
        """Start the broker in its process, and wait until it serves.

        Raises:
            StartError: It refuses what is on its disk.
            SimulatedCrashError: A fault has ended the process before.
        """
        await run_start(self.process, self._serve(self.process))

    async def _serve(self, process: SimulatedProcess) -> None:
        node = Node(BrokerConfig(self._settings), machine=machine_of(process, self.disk, self.world.loop))
        server = Server(node)
        await server.start()
        self.server = server

    def kill(self, *, power_cut: bool = False) -> None:
        """End the broker at once.

        Args:
            power_cut: The whole machine stops: the disk keeps what was synced, and connections stay half-open.
        """
        if power_cut:
            self.world.network.power_off(self.process.host)
        else:
            self.process.kill()

    async def restart(self) -> None:
        """Kill the broker if it runs, and start it again on what the disk has."""
        self.process.kill()
        self.process = self.world.process(self.name)
        await self.start()

    async def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        if self.server is not None and self.process.is_alive:
            await self.process.start(self.server.stop())
            self.process.kill()


async def run_start(process: SimulatedProcess, start: Coroutine[Any, Any, None]) -> None:
    """Run the start of a server as a process, until the server has started or the process has ended.

    Raises:
        StartError: The server refuses to start.
    """
    ended = asyncio.get_running_loop().create_future()
    process.when_killed.append(lambda: None if ended.done() else ended.set_result(None))
    task = process.start(start, name=f"{process.name}-start")
    await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()


class BrokerWorld:
    """A world with one broker, for tests of clients; the clients run on the host `main`.

    Attributes:
        world: Hosts, network, trace and virtual time.
        broker: The broker.
    """

    def __init__(self, world: World, broker: SimulatedBroker) -> None:
        self.world: Final = world
        self.broker: Final = broker

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return self.broker.bootstrap

    def kill(self, *, power_cut: bool = False) -> None:
        """See `SimulatedBroker.kill`."""
        self.broker.kill(power_cut=power_cut)

    async def restart(self) -> None:
        """See `SimulatedBroker.restart`."""
        await self.broker.restart()

    def cut(self, client: str = "main", *, is_one_way: bool = False) -> None:
        """Cut the network between a client's host and the broker; one way: from the client to the broker."""
        self.world.network.cut(client, self.broker.name, is_one_way=is_one_way)

    def heal(self) -> None:
        """End all cuts."""
        self.world.network.heal_all()

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        await self.world.sleep(seconds)


@asynccontextmanager
async def simulated_broker(
    settings: Mapping[str, str] | None = None, *, seed: int | None = None
) -> AsyncIterator[BrokerWorld]:
    """Run a broker in the world of the running event loop.

    Args:
        settings: Options by Kafka's names, over `TEST_SETTINGS`.
        seed: Decides everything that is left to chance; None keeps the world's.

    Raises:
        SimulationError: The event loop is not a simulated one.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        raise SimulationError("simulated_broker needs a simulated event loop: put @simulated above the test")
    world = loop.world
    if seed is not None:
        world.reseed(seed)
    broker = SimulatedBroker(world, settings)
    await broker.start()
    yield BrokerWorld(world, broker)
