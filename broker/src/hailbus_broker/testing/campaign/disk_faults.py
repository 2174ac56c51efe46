"""Faults that an operator brings about on the disk of a node, with one broker and with several."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from hailbus_broker.testing.simulation.disk import UNLIMITED
from hailbus_broker.testing.simulation.host_disk import DiskFault

if TYPE_CHECKING:
    from hailbus_broker.testing.campaign.scenario import PlannedFault
    from hailbus_broker.testing.simulation.host_disk import HostDisk
    from hailbus_broker.testing.simulation.process import SimulatedProcess
    from hailbus_broker.testing.simulation.world import World

SYNC_S: Final = (0.000_2, 0.004)
QUEUE_S: Final = 0.01
SLOW_SYNC_S: Final = (0.02, 0.4)
SLOW_QUEUE_S: Final = 2.0
_OPERATIONS: Final = ("append", "append", "create", "truncate", "rename", "remove", "sync_directory", "write_whole")


class HasProcess(Protocol):
    """A node, whose process may be another one after a start."""

    @property
    def process(self) -> SimulatedProcess:
        """The process that runs, or ran last."""
        ...


async def fail_disk(disk: HostDisk, fault: PlannedFault) -> None:
    """Fill a disk, or fail its operations, for the duration of a fault; then mend it."""
    if fault.kind == "full disk":
        disk.capacity_bytes = disk.used_bytes() + int(fault.amount)
    elif fault.kind == "failing sync":
        disk.faults.append(DiskFault(operation="sync", path=fault.path))
    else:
        operation = _OPERATIONS[int(fault.amount) % len(_OPERATIONS)]
        disk.faults.append(DiskFault(operation=operation, path=fault.path))
    await asyncio.sleep(fault.duration_s + 0.5)
    disk.capacity_bytes = UNLIMITED
    disk.faults.clear()


async def until_dead(world: World, node: HasProcess, seconds: float) -> None:
    """Wait until the process of a node has died, or the time is over."""
    end_s = world.loop.now_s + seconds
    while node.process.is_alive and world.loop.now_s < end_s:  # noqa: ASYNC110 - a death announces nothing
        await asyncio.sleep(0.02)
