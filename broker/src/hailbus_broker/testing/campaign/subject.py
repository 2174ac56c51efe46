"""What a campaign runs against: the port between the clients' side of a campaign and its brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.testing.campaign.recorder import COPY, MAIN, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.guests import Guests
    from hailbus_broker.testing.campaign.scenario import PlannedFault

SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "500",
    "log.cleaner.backoff.ms": "400",
    "log.cleaner.dedupe.buffer.size": "1000",  # so few keys that compaction takes several rounds
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.delete.retention.ms": "7200000",  # longer than any clock jumps
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "log.index.interval.bytes": "256",
    "log.retention.check.interval.ms": "1500",
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
    "metadata.log.max.record.bytes.between.snapshots": "800",
    "offsets.topic.segment.bytes": "4096",
}
OBSERVED: Final = frozenset({MAIN, COPY, TABLE})
"""Topics whose log start never moves. That of others may fall back in a crash, until DeleteRecords is answered."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients' side of a campaign, as far as faults concern it.

    Attributes:
        crash: Kills a client's process, and starts it again after some seconds.
        process_of: Returns a client's process.
        guests: Have stores with faults of their own.
    """

    crash: Callable[[str, float], None]
    process_of: Callable[[str], Any]
    guests: Guests | None


class Subject(Protocol):
    """One broker, or a cluster of them."""

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the brokers, separated by commas."""
        ...

    async def start(self) -> None:
        """Start all, and wait until they serve."""
        ...

    async def create_topic(self, client: Client, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        """Create a topic before anything goes wrong."""
        ...

    async def apply(self, fault: PlannedFault) -> None:
        """Wait for a fault's time, and let it happen."""
        ...

    async def heal(self) -> None:
        """Undo all faults, and see to it that all brokers run."""
        ...

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take in what a broker has logged."""
        ...

    def look(self) -> None:
        """Look at what the brokers themselves know, and report what must not be."""
        ...

    def acked(self, topic: str, partition: int) -> None:
        """Look at a partition of which a batch was acknowledged a moment ago."""
        ...

    def ended(self, transactional_id: str, producer_id: int, written: Mapping[tuple[str, int], int]) -> None:
        """Look at the partitions of a transaction whose end was answered a moment ago."""
        ...

    async def check(self) -> None:
        """Report what must not be, when all clients have ended and everything is read."""
        ...

    async def cut_power(self) -> None:
        """Cut the power of all, and start them again."""
        ...

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic."""
        ...
