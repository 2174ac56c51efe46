"""Chooses the moment of a fault, stops and starts what has to stand still for it, and tells what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hailbus import Bus, record_reader

from hailbus_demo.errors import RunFailedError
from hailbus_demo.moment import wait_for_share
from hailbus_demo.sabotage import deeds
from hailbus_demo.sabotage.deeds import Deed, RideEvent
from hailbus_demo.sabotage.faults import Fault
from hailbus_demo.sabotage.segments import LogFiles
from hailbus_demo.supervise.processes import Supervisor

SHARE = 0.5
"""How much of the run is over when the fault is done."""
PAUSE_S = 30.0
"""How long to wait where the run's length is not known."""
LOOK_EVERY_S = 0.5
GIVES_UP_AFTER_S = 60.0
"""How long to look for a victim once the rides are over."""
LAKE_GIVES_UP_AFTER_S = 240.0
ENOUGH_PAYMENTS = 10
"""Captured payments that the log holds before its files are edited."""
RECOMMENDER = "recommender"
LOGGER = "event-logger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the saboteur can reach.

    Args:
        bus: The cluster.
        bootstrap: Its address.
        log_files: The in-house broker's log directory, `None` on a cluster of several brokers or another one.
        databases: The folder of the services' databases.
        lake_dir: The lake's folder, `None` without a lake.
        supervisor: Of the processes.
        event_time: Returns the event time of the moment.
    """

    bus: Bus
    bootstrap: str
    log_files: Path | None
    databases: Path
    lake_dir: Path | None
    supervisor: Supervisor
    event_time: Callable[[], datetime]

    def database(self, name: str) -> Path:
        """Return the file of a service's database."""
        return self.databases / f"{name}.sqlite"


class Saboteur:
    """Does one fault, once.

    Args:
        fault: Which one.
        scene: Where.
        share_done: Returns how much of the run is over, 0 to 1, or None where it has no end.
        say: Told what was done, in a sentence.
        done: Told what was done.
    """

    def __init__(
        self,
        fault: Fault,
        scene: Scene,
        *,
        share_done: Callable[[], float | None],
        say: Callable[[str], None],
        done: Callable[[Deed], None],
    ) -> None:
        self.fault = fault
        self.scene = scene
        self.share_done = share_done
        self.say = say
        self.done = done
        self.hurry = asyncio.Event()
        """Set when the rides are over: a fault that was not done yet is done now."""

    async def run(self) -> None:
        """Wait for the moment, do the fault and say so.

        Raises:
            RunFailedError: Nothing was found that the fault could be done to.
        """
        await wait_for_share(
            SHARE, share_done=self.share_done, hurry=self.hurry, pause_s=PAUSE_S, look_every_s=LOOK_EVERY_S
        )
        loop = asyncio.get_running_loop()
        gives_up_at: float | None = None
        patience_s = LAKE_GIVES_UP_AFTER_S if self.fault.name == "lake-row-missing" else GIVES_UP_AFTER_S
        while True:
            deed = await self._act()
            if deed is not None:
                self.done(deed)
                self.say(f"sabotage: {self.fault.name}: {deed.sentence}")
                return
            if self.hurry.is_set():
                gives_up_at = gives_up_at or loop.time() + patience_s
                if loop.time() >= gives_up_at:
                    raise RunFailedError(
                        f"--sabotage {self.fault.name} found nothing to do its fault to: play more rides, by a "
                        "larger --limit or --duration"
                    )
            await asyncio.sleep(LOOK_EVERY_S)

    async def _act(self) -> Deed | None:
        scene = self.scene
        match self.fault.name:
            case "lost-tail":
                # A power cut takes the log's readers as well: they come back with a position behind the log's end.
                return await self._edit_log(
                    lambda files: deeds.lose_tail(
                        files, acknowledged=deeds.published_ids(scene.database("payment"), deeds.PAYMENTS)
                    ),
                    LOGGER,
                    "booking",
                )
            case "lost-record":
                return await self._edit_log(deeds.lose_record)
            case "reordered":
                return await self._edit_log(deeds.reorder)
            case "altered":
                return await self._edit_log(deeds.alter)
            case "invented":
                return await asyncio.to_thread(deeds.invent, scene.bootstrap, event_time=scene.event_time())
            case "double-apply":
                events = await self._ride_events()
                return await asyncio.to_thread(deeds.apply_twice, scene.database(RECOMMENDER), events)
            case "lost-effect":
                events = await self._ride_events()
                return await asyncio.to_thread(deeds.lose_effect, scene.database(RECOMMENDER), events)
            case "idle-consumer":
                return await self._while_stopped(self._claim, LOGGER)
            case "double-payment":
                return await asyncio.to_thread(deeds.pay_twice, scene.database("payment"))
            case "lake-row-missing":
                assert scene.lake_dir is not None, "without a lake the fault is refused"
                return await asyncio.to_thread(deeds.delete_lake_row, scene.lake_dir)
            case name:
                raise AssertionError(f"no code does {name}")

    async def _edit_log(self, edit: Callable[[LogFiles], Deed | None], *readers: str) -> Deed | None:
        scene = self.scene
        assert scene.log_files is not None, "on another cluster the fault is refused"
        paid = await asyncio.to_thread(deeds.published_count, scene.database("payment"), "payment.captured")
        if paid < ENOUGH_PAYMENTS and not self.hurry.is_set():
            return None
        files = LogFiles(scene.log_files)
        return await self._while_stopped(lambda: asyncio.to_thread(edit, files), "broker", *readers)

    async def _while_stopped(self, act: Callable[[], Awaitable[Deed | None]], *names: str) -> Deed | None:
        """Do something while some processes are stopped, and start them again whatever comes of it."""
        supervisor = self.scene.supervisor
        self.say(f"sabotage: {self.fault.name}: stops {' and '.join(names)}")
        for name in reversed(names):
            await supervisor.stop(name)
        try:
            return await act()
        finally:
            for name in names:
                await supervisor.start_again(name)
                await supervisor.wait_ready(name)

    async def _claim(self) -> Deed | None:
        """Claim what comes for the consumer while it is stopped."""
        deadline = asyncio.get_running_loop().time() + GIVES_UP_AFTER_S
        database = self.scene.database("logger")
        while True:
            events = await self._ride_events()
            deed = await asyncio.to_thread(deeds.claim_unapplied, database, LOGGER, events)
            if deed is not None or asyncio.get_running_loop().time() >= deadline:
                return deed
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ride_events(self) -> list[RideEvent]:
        """Read every event of rides that the log has now."""
        return [
            RideEvent.of(record.topic, record.partition, record.offset, record.headers, record.value)
            async for record in record_reader(
                self.scene.bus, [deeds.RIDES], start="earliest", until_end=True, client_id="saboteur"
            )
        ]
