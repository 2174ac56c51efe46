"""One broker as the subject of a campaign, and what its own state must show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.testing.campaign.operator import Operator
from hailbus_broker.testing.campaign.subject import OBSERVED, SETTINGS
from hailbus_broker.testing.campaign.writers import create_topic
from hailbus_broker.testing.history import Watermark
from hailbus_broker.testing.simulation.broker import SimulatedBroker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.client import Client
    from hailbus_broker.log import PartitionLog
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import PlannedFault, Scenario
    from hailbus_broker.testing.campaign.subject import Clients
    from hailbus_broker.testing.simulation.world import World

PRODUCERS_EVERY: Final = 8
"""Open transactions are looked at every so many times that the offsets are."""


class SingleBroker:
    """A broker that is a cluster of its own.

    Args:
        world: Where it runs.
        scenario: What happens.
        recorder: Gets what must not happen.
        clients: Whom faults hit, too.
    """

    def __init__(self, world: World, scenario: Scenario, recorder: Recorder, clients: Clients) -> None:
        settings = {**SETTINGS, "log.segment.bytes": str(scenario.segment_bytes)}
        self._broker: Final = SimulatedBroker(world, settings, name="broker")
        self._recorder: Final = recorder
        self._operator: Final = Operator(
            world, self._broker, recorder, clients.crash, clients.process_of, clients.guests
        )
        self._look_count = 0
        self._seen: Final[dict[tuple[str, int], tuple[int, int, int]]] = {}
        self._judged: Final[dict[PartitionLog, tuple[int, ...]]] = {}
        """The offsets of each log that were found right last, while clients could see them."""

    @property
    def bootstrap(self) -> str:
        """See `Subject`."""
        return self._broker.bootstrap

    async def start(self) -> None:
        """See `Subject`."""
        await self._broker.start()

    async def create_topic(self, client: Client, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        """See `Subject`."""
        await create_topic(client, name, partition_count, configs)

    async def apply(self, fault: PlannedFault) -> None:
        """See `Subject`."""
        await self._operator.apply(fault)

    async def heal(self) -> None:
        """See `Subject`."""
        await self._operator.heal()

    def heard(self, event: Mapping[str, Any]) -> None:
        """See `Subject`."""

    async def check(self) -> None:
        """See `Subject`."""
        self._operator.look_at_segments()

    async def cut_power(self) -> None:
        """See `Subject`."""
        await self._operator.cut_power()

    def has_topic(self, name: str) -> bool:
        """See `Subject`."""
        return name in self._broker.node.image.topics

    # ------------------------------------------------------------------ the state of the broker

    def look(self) -> None:
        """See `Subject`."""
        server = self._broker.server
        if server is not None and self._broker.process.is_alive and server.node is self._broker.node:
            self._look()

    def _look(self) -> None:
        self._look_count += 1
        is_serving = bool(self._broker.process.host.listeners)
        looks_at_producers = self._look_count % PRODUCERS_EVERY == 0
        for replica in self._broker.node.replicas.leaders():
            log = replica.log
            stable = log.last_stable_offset
            offsets = log.log_start_offset, stable, log.high_watermark, log.log_end_offset, log.synced_end_offset
            if looks_at_producers:
                self._look_at_producers(replica)
            if self._judged.get(log) == offsets:
                continue
            if is_serving:
                self._judged[log] = offsets
            if not log.log_start_offset <= stable <= log.high_watermark <= log.log_end_offset:
                self._recorder.fail(
                    f"{replica.name}: log start {log.log_start_offset}, last stable offset {stable}, "
                    f"high watermark {log.high_watermark}, log end {log.log_end_offset}"
                )
            self._observe(replica.topic, replica.index, log)
            if log.high_watermark > log.synced_end_offset:
                self._recorder.fail(
                    f"{replica.name}: high watermark {log.high_watermark}, but synced up to {log.synced_end_offset}"
                )

    def _look_at_producers(self, replica: LeaderReplica) -> None:
        log = replica.log
        stable = log.last_stable_offset
        for producer in log.producers():
            first = producer.current_transaction_start_offset
            if 0 <= first < stable and first >= log.log_start_offset:
                self._recorder.fail(
                    f"{replica.name}: last stable offset {stable}, but producer {producer.producer_id} has a "
                    f"transaction open since {first}"
                )

    def acked(self, topic: str, partition: int) -> None:
        """See `Subject`."""
        server = self._broker.server
        if server is None or not self._broker.process.is_alive or server.node is not self._broker.node:
            return
        replica = self._broker.node.replicas.leader(topic, partition)
        if isinstance(replica, LeaderReplica):
            self._observe(topic, partition, replica.log, is_ack=True)

    def ended(self, transactional_id: str, producer_id: int, written: Mapping[tuple[str, int], int]) -> None:
        """See `Subject`: the watermarks and the history show what becomes of a transaction."""

    def _observe(self, topic: str, partition: int, log: PartitionLog, *, is_ack: bool = False) -> None:
        """Note the offsets that a client would see now; after an acknowledgement also those that were seen before."""
        place = topic, partition
        seen = log.log_start_offset, log.last_stable_offset, log.high_watermark
        is_known = self._seen.get(place) == seen and not is_ack
        if topic not in OBSERVED or is_known or not self._broker.process.host.listeners:
            return
        self._seen[place] = seen
        event = self._recorder.event()
        log_start, last_stable, high = seen
        self._recorder.watermarks.append(
            Watermark(
                place=place,
                asked_at=event,
                answered_at=event,
                log_start=log_start,
                last_stable=last_stable,
                high=high,
            )
        )
