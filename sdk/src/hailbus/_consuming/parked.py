"""Parked keys of a group: loaded at assignment, released in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hailbus._consuming.calling import Caller
from hailbus._consuming.failure import Stage, StageError, is_fatal, reason_of
from hailbus._consuming.outages import Outages
from hailbus._consuming.path import STORE_TIMEOUT_S, Parked
from hailbus._consuming.routing import Router
from hailbus._consuming.work import Item
from hailbus._transport import TopicPartition
from hailbus.context import Context
from hailbus.delivery import ParkKey, Reject, Retry
from hailbus.subscription import SubscriberStats

if TYPE_CHECKING:
    from hailbus.parking import ParkedRecord

__all__ = ["ParkedKeys"]

log = logging.getLogger("hailbus.subscriber")
T = TypeVar("T")
RESOURCE = "the parking lot's database"
MOST_AT_ONCE = 100


class ParkedKeys:
    """The parked keys on the partitions that a member holds."""

    def __init__(
        self,
        group: str,
        policies: Iterable[ParkKey],
        *,
        router: Router,
        caller: Caller,
        outages: Outages,
        stats: SubscriberStats,
    ) -> None:
        self.places: Parked = {}
        self.lots = {policy.lot: policy for policy in policies}
        self._group = group
        self._router = router
        self._caller = caller
        self._outages = outages
        self._stats = stats
        self._releasing: set[tuple[TopicPartition, bytes]] = set()

    async def create_tables(self) -> None:
        """Create the tables of all lots."""
        for lot in self.lots:
            await lot.create_tables()

    async def load(self, partitions: Collection[TopicPartition]) -> None:
        """Learn which keys of these partitions are parked; waits for a database that is away."""
        for lot in self.lots:
            for found in await self._ask(partitions, partial(lot.keys, self._group, partitions)):
                self.places[TopicPartition(found.topic, found.partition), found.key] = lot

    def forget(self, partition: TopicPartition) -> None:
        """The partition is gone."""
        for place in [place for place in self.places if place[0] == partition]:
            del self.places[place]

    async def watch(
        self,
        policy: ParkKey,
        held: Callable[[], Collection[TopicPartition]],
        queue: Callable[[TopicPartition, bytes], None],
    ) -> None:
        """Queue keys that someone has released, until cancelled."""
        is_away = False
        while True:
            await asyncio.sleep(policy.look_every.total_seconds() * (10 if is_away else 1))
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    found = await policy.lot.keys(self._group, held())
            except Exception as error:  # noqa: BLE001 a database that is away comes back
                if not is_away:
                    log.warning("parking_lot_unreachable: group %s: %s", self._group, reason_of(error))
                is_away = True
                continue
            is_away = False
            for key in found:
                place = (TopicPartition(key.topic, key.partition), key.key)
                if key.is_released and place not in self._releasing and place[0] in held():
                    self.places.setdefault(place, policy.lot)
                    self._releasing.add(place)
                    queue(*place)

    async def release(self, item: Item) -> None:
        """Handle the waiting records of a released key in order; at the first that fails the key stays parked."""
        key = item.record.key
        assert key is not None
        topic = item.partition.topic
        place = (item.partition, key)
        lot = self.places.get(place)
        if lot is None:
            self._releasing.discard(place)
            return
        try:
            while records := await self._ask(
                [place[0]], lambda: lot.records(self._group, topic, key, limit=MOST_AT_ONCE)
            ):
                for record in records:
                    reason = await self._try(record)
                    if reason is not None:
                        await self._ask([place[0]], partial(lot.hold, self._group, topic, key, reason=reason))
                        log.warning("key_parked_again: %r on %s: %s", key, topic, reason)
                        return
                    await self._ask([place[0]], partial(lot.remove, [record.position]))
                    self._stats.settled += 1
            self.places.pop(place, None)
            log.info("key_released: %r on %s", key, topic)
        finally:
            self._releasing.discard(place)

    async def _ask(self, partitions: Collection[TopicPartition], step: Callable[[], Awaitable[T]]) -> T:
        async def ask() -> T:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    return await step()
            except Exception as error:
                raise StageError(Stage.PARK, error) from error

        return await self._outages.reach(RESOURCE, partitions, ask)

    async def _try(self, record: ParkedRecord) -> str | None:
        """Call the handler once with a parked record; why it failed, or None."""
        partition = TopicPartition(record.topic, record.partition)
        try:
            route = self._router.route_for(record)
            if route is None or route.handler is None:
                return None  # no longer handled here: nothing to wait for
            event = self._router.event_of(route, record, structured=True)
            if event is None:
                return None
            ctx = Context(record, attempt=record.attempts + 1, group=self._group)
            verdict = await self._caller.single(route, partition, event, ctx)
        except StageError as failure:
            return reason_of(failure.error)
        except BaseException as error:  # whatever a handler raises keeps the key parked
            task = asyncio.current_task()
            if is_fatal(error) or (
                isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
            ):
                raise
            return reason_of(error)
        match verdict:
            case Retry():
                return "the handler asks to retry"
            case Reject(reason):
                return reason
            case _:
                return None
