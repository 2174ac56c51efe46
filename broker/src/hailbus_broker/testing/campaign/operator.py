"""Lets the faults of a scenario happen, and undoes them all at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, assert_never

from hailbus_broker.coordinators.outcome import decode_value
from hailbus_broker.protocol.definitions.transaction_log_value import TransactionLogValue
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import RecordsError, iterate_batches, iterate_records
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.testing.campaign.disk_faults import (
    QUEUE_S,
    SLOW_QUEUE_S,
    SLOW_SYNC_S,
    SYNC_S,
    fail_disk,
    until_dead,
)
from hailbus_broker.testing.campaign.recorder import TABLE
from hailbus_broker.testing.campaign.segments import has_replaced_segments, overlapping_segments
from hailbus_broker.testing.simulation.disk import UNLIMITED
from hailbus_broker.testing.simulation.errors import SimulatedCrashError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.testing.campaign.guests import Guests
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import PlannedFault
    from hailbus_broker.testing.simulation.broker import SimulatedBroker
    from hailbus_broker.testing.simulation.world import World

CRASH_DEADLINE_S: Final = 4.0
"""How long a crash in a write may wait for that write."""
PREPARED: Final = frozenset({2, 3})


class Operator:
    """Has its hands on the broker, its disk and the network.

    Args:
        world: The world.
        broker: The broker.
        recorder: Gets what must not happen.
        crash_client: Kills a client's process, and starts it again after some seconds.
        process_of: Returns a client's process.
        guests: Have stores with faults of their own.
    """

    def __init__(
        self,
        world: World,
        broker: SimulatedBroker,
        recorder: Recorder,
        crash_client: Callable[[str, float], None],
        process_of: Callable[[str], Any],
        guests: Guests | None = None,
    ) -> None:
        self._world: Final = world
        self._broker: Final = broker
        self._recorder: Final = recorder
        self._crash_client: Final = crash_client
        self._process_of: Final = process_of
        self._guests: Final = guests
        self._lifecycle: Final = asyncio.Lock()
        self._rng: Final = world.rng("operator")
        self._is_healed = False

    async def apply(self, fault: PlannedFault) -> None:
        """Wait for a fault's time, and let it happen."""
        await asyncio.sleep(fault.at_s)
        if self._is_healed:
            return
        self._world.loop.record("operator", f"{fault.kind} {fault.client}")
        self._world.note(f"fault: {fault.kind}")
        match fault.kind:
            case "kill" | "power cut" | "stop in order" | "flipped bit":
                async with self._lifecycle:
                    await self._end(fault)
                    await asyncio.sleep(fault.duration_s)
                    await self.start()
                    await asyncio.sleep(0.5)
                    self._speed_up()
            case "kill and power cut":
                async with self._lifecycle:
                    await self._end(fault)
                    await self.start()
                    await asyncio.sleep(fault.duration_s)
                    self._broker.kill(power_cut=True)
                    self._speed_up()
                    self._look_at_disk()
                    await self.start()
            case "crash in a write" | "crash in a swap":
                async with self._lifecycle:
                    await self._crash_in_write(fault)
            case "crash in recovery":
                async with self._lifecycle:
                    await self._crash_in_recovery(fault)
            case "full disk" | "failing disk" | "failing sync":
                async with self._lifecycle:
                    await self._fail_disk(fault)
            case "slow disk":
                self._slow_down()
                await asyncio.sleep(fault.duration_s)
                self._speed_up()
            case "cold reads":
                self._broker.disk.is_cold = True
                await asyncio.sleep(fault.duration_s)
                self._broker.disk.is_cold = False
            case "cut" | "one-way cut" | "cut from the broker":
                await self._cut(fault)
            case "slow link":
                network, name = self._world.network, self._broker.name
                network.change(fault.client, name, max_delay_s=0.8, bytes_per_second=20_000, spike_probability=0.1)
                await asyncio.sleep(fault.duration_s)
                quality = network.quality
                network.change(
                    fault.client,
                    name,
                    max_delay_s=quality.max_delay_s,
                    bytes_per_second=None,
                    spike_probability=quality.spike_probability,
                )
            case "reset":
                self._world.network.reset(fault.client, self._broker.name)
            case "clock jump":
                self._broker.process.host.clock.jump(fault.amount)
            case "clock drift":
                self._broker.process.host.clock.drift(fault.amount)
                await asyncio.sleep(fault.duration_s)
                self._broker.process.host.clock.drift(1.0)
            case "client kill":
                self._crash_client(fault.client, fault.duration_s)
            case "client pause":
                process = self._process_of(fault.client)
                process.pause()
                await asyncio.sleep(fault.duration_s)
                process.resume()
            case "store away" | "store refuses" | "store keeps silent":
                assert self._guests is not None
                await self._guests.apply(fault)
            case (
                "node pause"
                | "nodes cut"
                | "nodes one-way cut"
                | "node cut off"
                | "node and client cut off"
                | "late ISR proposal"
                | "nodes split"
                | "slow nodes link"
                | "nodes reset"
                | "power cut of all"
                | "contested election"
                | "brokers one by one"
                | "lost disk"
                | "voter change"
                | "reassignment"
                | "election"
                | "unclean election"
            ):
                raise ValueError(f"{fault.kind!r} needs a cluster: give the scenario nodes")
            case _:
                assert_never(fault.kind)

    async def _cut(self, fault: PlannedFault) -> None:
        source, target = fault.client, self._broker.name
        is_one_way = fault.kind != "cut"
        if fault.kind == "cut from the broker":
            source, target = target, source
        self._world.network.cut(source, target, is_one_way=is_one_way)
        await asyncio.sleep(fault.duration_s)
        self._world.network.heal(source, target, is_one_way=is_one_way)

    # ------------------------------------------------------------------ the broker's life

    async def _end(self, fault: PlannedFault) -> None:
        if not self._broker.process.is_alive:
            return
        if fault.kind == "stop in order":
            await self._broker.stop()
            return
        if fault.kind in ("power cut", "kill and power cut"):
            # Most acknowledgements of this moment wait for a sync: one that did not would be seen to be lost. The disk
            # stays slow for the start, so that clients see the state between recovery and its first syncs.
            self._slow_down()
            await asyncio.sleep(self._rng.uniform(0.3, 2.5))
        self._broker.kill(power_cut=fault.kind == "power cut")
        self._look_at_disk()
        if fault.kind == "flipped bit":
            self._broker.disk.flip_bit(".snapshot")  # of a producer state: it has a CRC, and only saves work

    def _slow_down(self) -> None:
        self._broker.disk.sync_s, self._broker.disk.max_queue_s = SLOW_SYNC_S, SLOW_QUEUE_S

    def _speed_up(self) -> None:
        self._broker.disk.sync_s, self._broker.disk.max_queue_s = SYNC_S, QUEUE_S

    async def _crash_in_write(self, fault: PlannedFault) -> None:
        disk = self._broker.disk
        if fault.path.startswith("__"):  # much of other files must wait for the disk when it comes
            self._slow_down()
        disk.crash_is_power_cut = fault.is_power_cut
        if fault.kind == "crash in a swap":
            disk.crash_when, disk.crash_on_after = self._is_swapping_several, int(fault.amount)
        elif fault.path:
            disk.crash_on, disk.crash_on_after = fault.path, int(fault.amount)
        else:
            disk.crash_at_step = disk.step_count + int(fault.amount)
        await until_dead(self._world, self._broker, CRASH_DEADLINE_S)
        disk.disarm()
        self._speed_up()
        self._broker.kill(power_cut=fault.is_power_cut)
        self._look_at_disk()
        await asyncio.sleep(fault.duration_s)
        await self.start()

    def _is_swapping_several(self, path: str, operation: str) -> bool:
        """Whether a compaction puts one segment in the place of several, and has not removed all of them."""
        return operation == "remove" and TABLE in path and has_replaced_segments(self._broker.disk)

    async def _crash_in_recovery(self, fault: PlannedFault) -> None:
        disk = self._broker.disk
        self._broker.kill(power_cut=fault.is_power_cut)
        self._look_at_disk()
        disk.crash_is_power_cut = fault.is_power_cut
        disk.crash_at_step = disk.step_count + int(fault.amount)
        await self.start()
        await until_dead(self._world, self._broker, 1.0)
        if not self._broker.process.is_alive:
            self._world.note("crash while starting")
        disk.crash_at_step = None
        await self.start()

    async def _fail_disk(self, fault: PlannedFault) -> None:
        await fail_disk(self._broker.disk, fault)
        # The broker writes again after its next start only.
        self._broker.kill(power_cut=fault.is_power_cut)
        self._look_at_disk()
        await self.start()

    async def start(self) -> None:
        """Start the broker unless it runs; a broker that refuses its disk is a finding."""
        if self._broker.process.is_alive and self._broker.server is not None and self._is_serving():
            return
        try:
            await self._broker.restart()
        except SimulatedCrashError:
            return  # by a fault that waited for it
        except StartError as error:
            self._recorder.fail(f"the broker does not start: {error}")
        self._world.note("broker restarted")

    def _is_serving(self) -> bool:
        return self._broker.process.host.listeners != {}

    async def heal(self) -> None:
        """Undo all faults, and see to it that the broker runs."""
        self._is_healed = True
        async with self._lifecycle:
            broker, disk = self._broker, self._broker.disk
            disk.disarm()
            disk.faults.clear()
            disk.capacity_bytes = UNLIMITED
            disk.is_cold = False
            self._speed_up()
            self._world.network.heal_all()
            broker.process.host.clock.drift(1.0)
            if broker.process.is_alive and self._is_serving() and broker.node.failure is None:
                return
            broker.kill()
            await self.start()

    async def cut_power(self) -> None:
        """Cut the broker's power and start it again."""
        async with self._lifecycle:
            self._broker.kill(power_cut=True)
            await self.start()

    # ------------------------------------------------------------------ what a crash has left

    def look_at_segments(self) -> None:
        """Report segments that overlap."""
        for found in overlapping_segments(self._broker.disk):
            self._recorder.fail(found)

    def _look_at_disk(self) -> None:
        """Count what kinds of half-finished work the broker finds at its next start."""
        self.look_at_segments()
        disk = self._broker.disk
        paths = disk.paths()
        if has_replaced_segments(disk):
            self._world.note("swap for several segments cut")
        for part, name in (
            (".swap", "swap files left"),
            (".cleaned", "cleaned files left"),
            ("-delete", "deletion left"),
        ):
            if any(part in path for path in paths):
                self._world.note(name)
        status: dict[bytes | None, int] = {}
        for path in paths:
            if "__transaction_state" not in path or not path.endswith(".log"):
                continue
            try:
                for batch in iterate_batches(disk.read_bytes(path) or b"", whole=False):
                    batch.check_crc()
                    for record in iterate_records(batch):
                        if record.value is not None:
                            value = decode_value(record.value, TransactionLogValue)
                            assert isinstance(value, TransactionLogValue)
                            status[record.key] = value.transaction_status
            except (RecordsError, ProtocolError):
                continue  # a torn tail
        if PREPARED & set(status.values()):
            self._world.note("crash between PREPARE and its markers")
        if any(number == 1 for number in status.values()):
            self._world.note("crash in an open transaction")
