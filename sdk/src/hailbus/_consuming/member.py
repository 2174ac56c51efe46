"""What every member of a group has, whatever it promises: reading, routing, the failure path, outages and health."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hailbus._consuming.calling import Caller
from hailbus._consuming.outages import Outages
from hailbus._consuming.progress import Heads
from hailbus._consuming.reading import Reader
from hailbus._consuming.routing import Router
from hailbus._consuming.sequenced import numbered_topics
from hailbus._consuming.supervision import Supervisor
from hailbus._consuming.work import BatchSink, Route
from hailbus._transport import Bus, Received, TopicPartition
from hailbus.catalogue import Catalogue
from hailbus.clock import Clock
from hailbus.errors import ConfigurationError
from hailbus.event import Event, event_info
from hailbus.subscription import SubscriberSettings, SubscriberStats, Subscription

if TYPE_CHECKING:
    from hailbus.registry.schemas import Schemas
    from hailbus.tracing import Tracing

__all__ = ["Member", "Surroundings", "ended"]

log = logging.getLogger("hailbus.subscriber")
COMMIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a service gives to each of its members, whatever their group and promise."""

    bus: Bus
    catalogue: Catalogue
    settings: SubscriberSettings
    clock: Clock
    client_id: str
    failed: Callable[[str], None]
    """Called with the reason when a member ends by itself."""
    tracing: Tracing | None = None
    schemas: Schemas | None = None


class Member(ABC):
    """One member of one group."""

    def __init__(self, group: str, subscriptions: Sequence[Subscription], around: Surroundings) -> None:
        self.group = group
        self.subscriptions = tuple(subscriptions)
        self.stats = SubscriberStats()
        self.failure: BaseException | None = None
        """What ended this member, when it was not `stop`."""
        starts = {s.start for s in subscriptions}
        if len(starts) > 1:
            message = f"group {group!r} has subscriptions that start at both ends; give one of them another group"
            raise ConfigurationError(message)
        self._settings = around.settings
        self._clock = around.clock
        self._bus = around.bus
        self._client_id = around.client_id
        self._failed = around.failed
        self._rng = random.Random()
        self._is_stopping = False
        self._outages = Outages(group, stats=self.stats, rng=self._rng, hold=self._hold, release=self._release)
        self._caller = Caller(group, tracing=around.tracing, outages=self._outages, stats=self.stats)
        self._supervisor = Supervisor(group, fail=self._fail)
        self._by_class: dict[type[Event], Route] = {}
        self._numbered = numbered_topics(group, subscriptions)
        self._router = Router(
            self._by_class, catalogue=around.catalogue, settings=around.settings, schemas=around.schemas
        )
        self.topics = tuple(sorted({event_info(cls).topic.name for s in subscriptions for cls in s.events}))
        self._reader = Reader(
            group,
            starts.pop(),
            bus=around.bus,
            client_id=around.client_id,
            stats=self.stats,
            reading=self,
            listener=self,
        )

    def _route(self, subscription: Subscription, batch: BatchSink | None = None) -> None:
        """Send the events of a subscription to its handler.

        Raises:
            ConfigurationError: One of them has a handler already.
        """
        for cls in subscription.events:
            if cls in self._by_class:
                message = (
                    f"group {self.group!r} has two handlers for {cls.__name__}; "
                    "give one of them another group, or call both from one"
                )
                raise ConfigurationError(message)
            numbered = self._numbered.get(event_info(cls).topic.name)
            if numbered is not None:
                numbered.passing = Route(subscription, None, batch=batch, numbered=numbered)
            self._by_class[cls] = Route(subscription, cls, batch=batch, numbered=numbered)
            if subscription.delivery.order == "partition":
                self._router.partition_ordered.add(event_info(cls).topic.name)

    # -------------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Join the group and begin to read."""
        await self._prepare()
        await self._reader.connect(self.topics)
        self._supervisor.run("read", self._reader.run)
        for name, work in self._tasks():
            self._supervisor.run(name, work)

    @abstractmethod
    async def _prepare(self) -> None:
        """What must be done before joining."""

    @abstractmethod
    def _tasks(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        """Further tasks to keep running, by name."""

    def _fail(self, error: BaseException) -> None:
        """Read and hand out no more, say so, be unhealthy. Nothing is skipped: what was read stays unsettled."""
        if self.failure is None:
            self.failure = error
            log.error("subscriber_failed: group %s stops reading", self.group, exc_info=error)
            self._failed(f"group {self.group} reads no more: {error}")

    @abstractmethod
    async def stop(self) -> None:
        """Drain and leave the group."""

    # -------------------------------------------------------------------------------------------- reading

    @abstractmethod
    async def room(self) -> int:
        """See `Reading`."""

    @abstractmethod
    async def take(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> None:
        """See `Reading`."""

    @abstractmethod
    async def let_go(self) -> None:
        """See `Reading`."""

    @abstractmethod
    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener`."""

    @abstractmethod
    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """See `RebalanceListener`."""

    @abstractmethod
    def _hold(self, partition: TopicPartition) -> None:
        """Handle and read no more of a partition."""

    @abstractmethod
    def _release(self, partition: TopicPartition) -> None:
        """Undo `_hold`."""

    # -------------------------------------------------------------------------------------------- health

    @property
    @abstractmethod
    def _heads(self) -> Heads:
        """Progress of each partition, as of this moment."""

    def _further_reasons(self, *, after_s: float) -> list[str]:  # noqa: ARG002 for those that have some
        """More reasons to be unhealthy."""
        return []

    @property
    def unhealthy_reasons(self) -> list[str]:
        """Why this member is unhealthy; empty when it is well."""
        if self.failure is not None:
            return [f"group {self.group} reads no more: {self.failure}"]
        after_s = self._settings.outage_after.total_seconds()
        found = [*self._reader.reasons(after_s=after_s), *self._outages.reasons(after_s=after_s)]
        found += self._further_reasons(after_s=after_s)
        for partition, offset, stalled_s in self._heads.stalled(self._settings.stall_after.total_seconds()):
            if not self._outages.is_held(partition):
                found.append(
                    f"group {self.group} has made no progress on {partition.topic}-{partition.partition} for "
                    f"{stalled_s:.0f} s: offset {offset} and those after it wait, {self.unsettled_count} events in all"
                )
        return found

    @property
    def unhealthy_reason(self) -> str | None:
        """The first of `unhealthy_reasons`."""
        return next(iter(self.unhealthy_reasons), None)

    @property
    @abstractmethod
    def unsettled_count(self) -> int:
        """Records read and not settled."""

    @property
    @abstractmethod
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not settled, in seconds; 0 when there is none."""

    @property
    @abstractmethod
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds."""

    @property
    def lanes_in_use(self) -> int:
        """Handlers of single events that run now, each in a lane of its own."""
        return 0

    @property
    def parked_keys(self) -> int:
        """Parked keys on the partitions that this member holds."""
        return 0


async def ended(event: asyncio.Event, left_s: float) -> bool:
    """Wait for an event within a time; whether it came."""
    try:
        async with asyncio.timeout(max(left_s, 0.0)):
            await event.wait()
    except TimeoutError:
        return False
    return True
