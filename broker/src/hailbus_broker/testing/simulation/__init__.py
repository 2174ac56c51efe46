"""A seeded world for whole programs: virtual time, a network, disks and clocks that fail, processes that are killed.

async def main(world: World) -> None:
    server = world.process("server")
    server.start(serve())
    client = world.process("client").start(talk("server", 9092))
    await world.sleep(10)
    server.kill()

World(seed=7).run(main)
"""

from hailbus_broker.testing.simulation.broker import BrokerWorld, SimulatedBroker, simulated_broker
from hailbus_broker.testing.simulation.cluster import ClusterWorld, SimulatedNode, simulated_cluster
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hailbus_broker.testing.simulation.errors import (
    DeadlockError,
    EscapedError,
    SimulatedCrashError,
    SimulationError,
)
from hailbus_broker.testing.simulation.hash_seed import pin_hash_seed
from hailbus_broker.testing.simulation.host_disk import DiskFault, HostDisk
from hailbus_broker.testing.simulation.link import LinkQuality
from hailbus_broker.testing.simulation.network import Network
from hailbus_broker.testing.simulation.process import Host, SimulatedProcess
from hailbus_broker.testing.simulation.world import World, simulated

__all__ = [
    "BrokerWorld",
    "ClusterWorld",
    "DeadlockError",
    "DiskFault",
    "EscapedError",
    "Host",
    "HostDisk",
    "LinkQuality",
    "Network",
    "SimulatedBroker",
    "SimulatedCrashError",
    "SimulatedDisk",
    "SimulatedNode",
    "SimulatedProcess",
    "SimulationError",
    "World",
    "pin_hash_seed",
    "simulated",
    "simulated_broker",
    "simulated_cluster",
]
