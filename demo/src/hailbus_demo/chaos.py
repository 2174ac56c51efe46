"""The proof by force: processes are killed with SIGKILL, each once and spread over the run, or by a random plan."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient
from ride_events.rides import RIDES

from hailbus_demo.moment import wait_for_share
from hailbus_demo.options import Outage
from hailbus_demo.outage import LOOK_EVERY_S, OutageOfProvider
from hailbus_demo.supervise.processes import Supervisor, command

VICTIMS = (
    *("recommender", "surge", "payment", "booking", "payment-provider", "registry", "postgresql", "broker", "lake"),
)
LEADER = f"leader of {RIDES.name}-0"
CONTROLLER = "active controller"
COORDINATOR = "coordinator of surge"
CLUSTER_VICTIMS = (LEADER, CONTROLLER, COORDINATOR)
"""In place of the only broker: whichever broker is it at that moment."""
PAUSE_S = 8.0
"""Least time between two kills where the run's length is not known."""
ASK_AGAIN_S = 0.25
ANSWERS_WITHIN_S = 10.0


KILLS_AN_OUTAGE = 10
"""A random plan has an outage of the payment provider for so many kills, rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What dies when, and when the payment provider is away: moments are shares of the run, 0 to 1, in order."""

    kills: tuple[tuple[float, str], ...]
    outages: tuple[tuple[float, float, Outage], ...]

    @classmethod
    def draw(cls, victims: Sequence[str], *, kills: int, seed: int) -> Plan:
        """Draw a plan; the same arguments give the same one."""
        rng = random.Random(f"chaos-{seed}")
        moments = sorted(round(rng.uniform(0.02, 0.95), 3) for _ in range(kills))
        count = -(-kills // KILLS_AN_OUTAGE)
        outages = []
        for number in range(count):
            begins = (number + rng.uniform(0.1, 0.4)) / count
            ends = begins + rng.uniform(0.2, 0.5) / count
            outages.append((round(begins, 3), round(ends, 3), rng.choice(list(Outage))))
        return cls(kills=tuple((moment, rng.choice(victims)) for moment in moments), outages=tuple(outages))

    def __str__(self) -> str:
        kills = ", ".join(f"{victim} at {moment:.1%}" for moment, victim in self.kills)
        away = ", ".join(f"{kind.value} {begins:.1%} to {ends:.1%}" for begins, ends, kind in self.outages)
        return f"{len(self.kills)} kills: {kills}; payment provider away: {away}"


@dataclass(slots=True, kw_only=True)
class Kill:
    """One death.

    Attributes:
        process: Which one died.
        role: What it was at that moment, as a broker; else its own name.
        at_s: When, as monotonic seconds.
        back_after_s: How long it took until it served again, in seconds; None until it does.
    """

    process: str
    role: str
    at_s: float
    back_after_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what is shown of it as JSON values."""
        after_s = self.back_after_s
        return {
            "process": self.process,
            "role": self.role,
            "back_after_s": None if after_s is None else round(after_s, 1),
        }


class BrokersByRole:
    """Finds the broker that leads, controls or coordinates at this moment.

    Args:
        bootstrap: Address of the cluster.
        supervisor: Of its processes, which are named `broker-1`, `broker-2` and so on by node id.
    """

    def __init__(self, bootstrap: str, supervisor: Supervisor) -> None:
        self._bootstrap = bootstrap
        self._supervisor = supervisor

    async def find(self, role: str) -> str:
        """Return the name of the process that has a role; ask until the cluster knows."""
        ask = {LEADER: self._leader, COORDINATOR: self._coordinator}.get(role)
        while True:
            node_id = await (self._controller() if ask is None else asyncio.to_thread(ask))
            name = f"broker-{node_id}"
            if name in self._supervisor.children:
                return name
            await asyncio.sleep(ASK_AGAIN_S)

    def _leader(self) -> int | None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        partitions = admin.list_topics(RIDES.name, timeout=ANSWERS_WITHIN_S).topics[RIDES.name].partitions
        return int(partitions[0].leader) if 0 in partitions else None

    def _coordinator(self) -> int | None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        found = admin.describe_consumer_groups(["surge"], request_timeout=ANSWERS_WITHIN_S)["surge"].result()
        return None if found.coordinator is None else int(found.coordinator.id)

    async def _controller(self) -> int | None:
        arguments = ("quorum", "describe", "--status", "--json", "--bootstrap-server", self._bootstrap)
        process = await asyncio.create_subprocess_exec(
            command("hailbus"), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        out, _ = await process.communicate()
        return None if process.returncode else int(json.loads(out)["LeaderId"])


class Chaos:
    """Kills processes.

    Args:
        supervisor: Whose processes.
        victims: Their names, or roles of brokers, in the order of their deaths.
        brokers: Finds the broker that has a role; None where there is one broker.
        lake: Starts the lake beside the run, so it may not be there yet; None without a lake.
        share_done: Returns how much of the run is over, 0 to 1, or None where it has no end.
        say: Told of each kill.
        moments: When each victim dies, as shares of the run; None for evenly spread.
        overlaps: Whether one may die while another is not back yet.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        victims: Sequence[str],
        *,
        brokers: BrokersByRole | None = None,
        lake: asyncio.Future[None] | None = None,
        share_done: Callable[[], float | None],
        say: Callable[[str], None],
        moments: Sequence[float] | None = None,
        overlaps: bool = False,
    ) -> None:
        self.moments = moments or [(i + 1) / (len(victims) + 1) for i in range(len(victims))]
        self.overlaps = overlaps
        self.supervisor = supervisor
        self.victims = tuple(victims)
        self.brokers = brokers
        self.lake = lake
        self.share_done = share_done
        self.say = say
        self.kills: list[Kill] = []
        self.hurry = asyncio.Event()
        """Set when the rides are over: what is still to be killed is killed now."""

    async def run(self) -> None:
        """Kill each victim, once the others are well again unless kills overlap; return when all are back."""
        for moment, victim in zip(self.moments, self.victims, strict=True):
            await wait_for_share(
                moment, share_done=self.share_done, hurry=self.hurry, pause_s=PAUSE_S, look_every_s=LOOK_EVERY_S
            )
            if victim == "lake" and self.lake is not None:
                await asyncio.shield(self.lake)
            if not self.overlaps:
                # The lake takes long to come up, and nobody needs it to live through another's death.
                alive = (name for name in self.supervisor.children if name != "lake" or victim == "lake")
                await self.supervisor.wait_ready(*alive)
            name = victim
            if self.brokers is not None and victim in CLUSTER_VICTIMS:
                name = await self.brokers.find(victim)
            if self.overlaps:
                await self.supervisor.wait_ready(name)
            whom = f"{name}, {victim}" if name != victim else name
            self.say(f"chaos: kill -9 {whom} (process {self.supervisor.children[name].pid})")
            self.note_returns()  # before the same process dies again
            self.kills.append(Kill(process=name, role=victim, at_s=time.monotonic()))
            await self.supervisor.kill(name)
        await self.supervisor.wait_ready(*self.supervisor.children)

    def note_returns(self) -> Sequence[Kill]:
        """Note which processes serve again, and return all kills."""
        for kill in self.kills:
            ready_at = self.supervisor.children[kill.process].ready_at
            if kill.back_after_s is None and ready_at is not None and ready_at > kill.at_s:
                kill.back_after_s = ready_at - kill.at_s
        return self.kills


class ChaosWithOutages:
    """Carries out a random plan: kills that may overlap, and outages of the payment provider beside them."""

    def __init__(self, chaos: Chaos, outages: Sequence[OutageOfProvider]) -> None:
        self.chaos = chaos
        self.outages = outages
        self.hurry = chaos.hurry
        for outage in outages:
            outage.hurry = self.hurry

    async def run(self) -> None:
        """Do both; return when all processes are back."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.chaos.run())
            group.create_task(self._outages())

    async def _outages(self) -> None:
        for outage in self.outages:
            await outage.run()
