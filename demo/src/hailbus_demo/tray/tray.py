"""Causes the faults and watches the city recover. The decisions are the desk's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from hailbus import Bus
from hailbus.clock import utc_now
from ride_events.rides import RIDES

from hailbus_demo.chaos import LEADER, BrokersByRole
from hailbus_demo.city.demand import LEAST_FACTOR, MOST_FACTOR, Demand
from hailbus_demo.errors import RunFailedError
from hailbus_demo.options import Outage
from hailbus_demo.outage import set_outage
from hailbus_demo.regions import ROUTER, process_of
from hailbus_demo.supervise.processes import Supervisor
from hailbus_demo.tray.desk import FaultDesk, FaultRefusedError, Look, Offer
from hailbus_demo.tray.poison import PoisonBook, poison
from hailbus_demo.tray.repeat import repeat_records
from hailbus_demo.tray.server import Access, FaultServer
from hailbus_demo.watch import Watch

LOOK_EVERY_S: Final = 0.25
OUTAGE_S: Final = 10.0
REGISTRY_AWAY_S: Final = 10.0
SLOW_S: Final = 8.0
"""Longer than the bound of the health strip (5 s), shorter than a member's session (10 s)."""
STORM_S: Final = 60.0
LOOKS_BACK_S: Final = 300.0
"""How old a request for a ride may be of which a damaged copy is made."""
CROWD: Final = 40
Deed = Callable[[], Awaitable[None]]

KILL_BOOKING: Final = Offer(
    id="kill-booking",
    label="Kill booking",
    expected="requests are repeated; none is lost or done twice",
    processes=("booking",),
)
KILL_ROUTER: Final = Offer(
    id=f"kill-{ROUTER}",
    label="Kill the router",
    expected="nobody reaches booking until it is back; it keeps nothing, so nothing is lost",
    processes=(ROUTER,),
)
KILLS: Final = (
    Offer(
        id="kill-recommender",
        label="Kill recommender",
        expected="suggestions stop, rides go on; the ledger balances",
        processes=("recommender",),
    ),
    Offer(
        id="kill-surge",
        label="Kill surge",
        expected="prices pause for a while; the ledger stays balanced",
        processes=("surge",),
    ),
    KILL_BOOKING,
)
KILL_BROKER: Final = Offer(
    id="kill-broker",
    label="Kill the broker",
    expected="every service waits for it; no acknowledged record is lost",
    processes=("broker",),
)
KILL_LEADER: Final = Offer(
    id="kill-leader",
    label="Kill the leader",
    expected="another broker leads rides.v1-0; no acknowledged record is lost",
)
OUTAGE: Final = Offer(
    id="provider-outage",
    label="Provider off",
    expected=f"for {OUTAGE_S:.0f} s charges wait, and each is made once; rides go on",
    processes=("payment", "payment-provider"),
)
REGISTRY: Final = Offer(
    id="registry-down",
    label="Registry off",
    expected=f"away for {REGISTRY_AWAY_S:.0f} s: payment is killed and starts from its cache",
    processes=("payment", "registry"),
)
SLOW: Final = Offer(
    id="slow-handler",
    label="Slow handler",
    expected=f"the logger stops for {SLOW_S:.0f} s and catches up; nobody waits",
    processes=("event-logger",),
)
STORM: Final = Offer(
    id="duplicate-storm",
    label="Duplicate storm",
    expected=f"{STORM_S:.0f} s of ride events come twice; the ledger stays balanced",
)
POISON: Final = Offer(
    id="poison-event",
    label="Poison event",
    expected="readers set a damaged copy aside and go on; see Letters",
)
SHOCK: Final = Offer(
    id="demand-shock",
    label="Demand shock",
    expected=f"{CROWD} riders ask at Times Square; the price rises",
)


class FaultTray:
    """The faults of one run, and its load.

    Args:
        supervisor: Of the processes.
        say: Told when a fault begins, and how it ended.
        provider_url: The payment provider's address.
        bus: Of the city, on which events are repeated and damaged.
        poison: Where damaged copies are noted.
        demand: What the slider and the crowd change.
        brokers: Finds the leader; None where there is one broker, or where the cluster is not ours.
        regions: Of booking; none where one process serves everywhere.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        say: Callable[[str], None],
        provider_url: str,
        bus: Bus,
        poison: PoisonBook,
        demand: Demand,
        brokers: BrokersByRole | None = None,
        regions: Sequence[str] = (),
    ) -> None:
        self.supervisor = supervisor
        self.say = say
        self._provider_url = provider_url
        self._bus = bus
        self._poison = poison
        self._demand = demand
        self._brokers = brokers
        self._regions = regions
        self._watch: Watch | None = None
        self.has_repeated = False
        """Whether booking's events may be in the log twice, because a click repeated them."""
        self._hurry = asyncio.Event()
        self._deed_over = asyncio.Event()
        self._deed_over.set()
        self._running: asyncio.Task[None] | None = None
        offered = self._offered()
        self._deeds = {offer.id: deed for offer, deed in offered}
        self.desk = FaultDesk([offer for offer, _ in offered])
        self.server = FaultServer(show=self._show, begin=self.begin, load=self.load)

    async def serve(self) -> Access:
        """Listen; no fault can begin before `open`."""
        return await self.server.start()

    def open(self, watch: Watch) -> None:
        """Let faults begin."""
        self._watch = watch
        self.desk.open()

    def begin(self, fault_id: str) -> None:
        """Begin a fault.

        Raises:
            UnknownFaultError: There is none of that id.
            FaultRefusedError: It cannot begin now.
        """
        offer = self.desk.begin(fault_id, self._look(), now_s=time.monotonic())
        self.say(f"fault: {offer.label}, by a click on the page")
        self._deed_over.clear()
        self._running = asyncio.create_task(self._run(offer))

    def load(self, factor: float) -> None:
        """Have so many riders for each that the source has.

        Raises:
            FaultRefusedError: There can be no such factor, or no further ride.
        """
        if self.desk.closed is not None:
            raise FaultRefusedError(self.desk.closed)
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise FaultRefusedError(f"{factor} is no load: choose one from {LEAST_FACTOR:g} to {MOST_FACTOR:g}")
        self._demand.factor = factor
        self.say(f"load: {factor:g} riders for each of the plan, by the slider on the page")

    def close(self) -> None:
        """Let no further fault begin, and end one that lasts now: the rides are over."""
        self.desk.close("the rides are over: faults are possible only while the city runs")
        self._hurry.set()

    async def finish(self) -> None:
        """Wait until the fault that runs, if any, is over and every process but the lake serves again."""
        if self.desk.running is None:
            return
        await self._deed_over.wait()
        await self.supervisor.wait_ready(*(name for name in self.supervisor.children if name != "lake"))

    async def end(self) -> None:
        """Judge no more, as nobody watches the cluster any longer. A fault that still runs has failed."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self.desk.running is not None:
            self.desk.fail("the run ended before the city had recovered", now_s=time.monotonic())

    async def stop(self) -> None:
        """Stop serving and watching."""
        await self.end()
        await self.server.stop()

    def _offered(self) -> list[tuple[Offer, Deed]]:
        offered: list[tuple[Offer, Deed]] = []
        for offer in [one for kill in KILLS for one in self._of_regions(kill)]:
            (name,) = offer.processes
            offered.append((offer, self._killer(name)))
        if self._brokers is not None:
            offered.append((KILL_LEADER, self._kill_leader))
        elif "broker" in self.supervisor.children:
            offered.append((KILL_BROKER, self._killer("broker")))
        offered += [
            (SLOW, self._slow_down),
            (OUTAGE, self._take_provider_away),
            (REGISTRY, self._take_registry_away),
            (STORM, self._repeat_rides),
            (POISON, self._damage),
            (SHOCK, self._gather),
        ]
        return offered

    def _of_regions(self, offer: Offer) -> Sequence[Offer]:
        """Return one kill of booking for each region, and one of their router."""
        if offer.id != KILL_BOOKING.id or not self._regions:
            return [offer]
        kills = [
            Offer(
                id=f"kill-{process_of(region)}",
                label=f"Kill booking {region}",
                expected=f"rides of the other regions go on; requests for {region} are repeated until it answers",
                processes=(process_of(region),),
            )
            for region in self._regions
        ]
        return [*kills, KILL_ROUTER]

    def _killer(self, name: str) -> Deed:
        async def kill() -> None:
            await self.supervisor.kill(name)

        return kill

    async def _kill_leader(self) -> None:
        assert self._brokers is not None
        name = await self._brokers.find(LEADER)
        self.say(f"fault: {name} is the {LEADER}")
        await self.supervisor.kill(name)

    async def _take_provider_away(self) -> None:
        await set_outage(self._provider_url, Outage.REFUSE.value)
        try:
            await self._last(OUTAGE_S)
        finally:
            await set_outage(self._provider_url, "none")

    async def _take_registry_away(self) -> None:
        await self.supervisor.stop("registry")
        try:
            await self.supervisor.kill("payment")
            await self._last(REGISTRY_AWAY_S)
            await self.supervisor.wait_ready("payment")
            self.say("fault: payment is back though no schema registry answers")
        finally:
            await self.supervisor.start_again("registry")

    async def _slow_down(self) -> None:
        with self.supervisor.suspended("event-logger"):
            await self._last(SLOW_S)

    async def _last(self, seconds: float) -> None:
        """Let a fault last so long, or until the rides are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _repeat_rides(self) -> None:
        self.has_repeated = True
        count = await repeat_records(
            self._bus,
            RIDES.name,
            since=utc_now() - timedelta(seconds=STORM_S),
            without={copy.place for copy in self._poison.copies},
        )
        self.say(f"fault: {count:,} records of {RIDES.name} came a second time")

    async def _damage(self) -> None:
        copy = await poison(self._bus, since=utc_now() - timedelta(seconds=LOOKS_BACK_S))
        self._poison.note(copy)
        self.say(
            f"fault: {copy.topic}-{copy.partition} offset {copy.offset} is a damaged copy of {copy.type} {copy.id}"
        )

    async def _gather(self) -> None:
        self._demand.gather(CROWD)
        while self._demand.gathering and not self._hurry.is_set():  # noqa: ASYNC110  # the generator of plans sets no event
            await asyncio.sleep(LOOK_EVERY_S)

    async def _run(self, offer: Offer) -> None:
        try:
            await self._deeds[offer.id]()
        except RunFailedError as error:
            self.desk.fail(str(error), now_s=time.monotonic())
        except Exception as error:  # noqa: BLE001  # whatever broke is told on the page: a click must have an outcome
            self.desk.fail(f"it could not be done: {error!r}", now_s=time.monotonic())
        else:
            self.desk.done(now_s=time.monotonic())
        finally:
            self._deed_over.set()
        while self.desk.running is not None:
            self.desk.judge(self._look(), now_s=time.monotonic())
            await asyncio.sleep(LOOK_EVERY_S)
        (found,) = [fault for fault in self._show()["faults"] if fault["id"] == offer.id]
        outcome = "recovered" if found["state"] == "recovered" else f"not recovered, {found['words']},"
        self.say(f"fault: {offer.label}: {outcome} after {found['took_s']:.1f} s")

    def _look(self) -> Look:
        children = self.supervisor.children
        # A kill clears `became_ready` at once; the state follows when the process is seen to have ended. The lake
        # takes long to come up, and no fault needs it.
        away = {
            name: "restarting" if child.state == "ready" else child.state
            for name, child in children.items()
            if name != "lake" and not (child.state == "ready" and child.became_ready.is_set())
        }
        watch = self._watch
        if watch is None:
            return Look(at_s=0.0, away=away, behind_s={})
        return Look(
            at_s=watch.looked_at, away=away, behind_s={name: group.seconds for name, group in watch.groups.items()}
        )

    def _show(self) -> dict[str, Any]:  # Any: JSON
        load = {"factor": self._demand.factor, "least": LEAST_FACTOR, "most": MOST_FACTOR}
        return {**self.desk.as_json(now_s=time.monotonic()), "load": load}


__all__ = ["FaultTray"]
