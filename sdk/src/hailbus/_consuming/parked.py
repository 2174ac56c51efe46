"""Parked keys of a group: loaded at assignment, released in order."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hailbus._consuming.calling import Caller, ends_task
from hailbus._consuming.failure import (
    Kind,
    RetryAfter,
    SetAside,
    Stage,
    StageError,
    classify,
    decide,
    decide_retry,
    origin_of,
    reason_of,
)
from hailbus._consuming.outages import Outages
from hailbus._consuming.path import STORE_TIMEOUT_S, Parked
from hailbus._consuming.progress import Heads
from hailbus._consuming.routing import Router
from hailbus._consuming.sequenced import Numbering
from hailbus._consuming.work import Early, Item, Route
from hailbus._transport import TopicPartition
from hailbus.context import Context, Deliveries
from hailbus.delivery import ParkKey, Reject, Retry, Verdict
from hailbus.errors import UnknownEventError
from hailbus.event import Event
from hailbus.subscription import SubscriberStats

if TYPE_CHECKING:
    from hailbus.parking import ParkedRecord, ParkingLot

__all__ = ["ParkedKeys"]

log = logging.getLogger("hailbus.subscriber")
T = TypeVar("T")
RESOURCE = "the parking lot's database"
MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A parked event of a numbered topic."""

    record: ParkedRecord
    route: Route
    event: Event
    number: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a parked event could not be applied, and how often its handler was called."""

    reason: str
    attempts: int


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
        rng: random.Random,
        heads: Heads,
        numbered: Mapping[str, Numbering] | None = None,
    ) -> None:
        self.places: Parked = {}
        self._numbered = numbered if numbered is not None else {}
        self.lots = {policy.lot: policy for policy in policies}
        self._group = group
        self._router = router
        self._caller = caller
        self._outages = outages
        self._stats = stats
        self._rng = rng
        self._heads = heads
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
        numbered = self._numbered.get(topic)
        try:
            if numbered is not None:
                async with numbered.turn:
                    await self.follow(item.partition, key, is_released=True)
                return
            while records := await self._ask(
                [place[0]], lambda: lot.records(self._group, topic, key, limit=MOST_AT_ONCE)
            ):
                for record in records:
                    failure = await self._try_record(record)
                    if failure is not None:
                        hold = partial(lot.hold, reason=failure.reason, attempts=failure.attempts)
                        await self._ask([place[0]], partial(hold, self._group, topic, key))
                        log.warning("key_parked_again: %r on %s: %s", key, topic, failure.reason)
                        return
                    await self._ask([place[0]], partial(lot.remove, [record.position]))
                    self._stats.settled += 1
            self.places.pop(place, None)
            log.info("key_released: %r on %s", key, topic)
        finally:
            self._releasing.discard(place)

    async def follow(self, partition: TopicPartition, key: bytes | None, *, is_released: bool = False) -> None:
        """Apply the parked events of a numbered topic whose turn has come, by their numbers; the others wait on.

        Nobody else may add or apply events of the key meanwhile.

        Args:
            partition: Where they were read.
            key: Theirs.
            is_released: Whether somebody has released the key: a gap that was accepted is then passed over.
        """
        lot = self.places.get((partition, key)) if key is not None else None
        if lot is None or key is None:
            return
        numbered, topic, held = self._numbered[partition.topic], partition.topic, [partition]

        async def keep(reason: str, *, attempts: int) -> None:
            if is_released:
                await self._ask(held, partial(lot.hold, self._group, topic, key))
                log.warning("key_parked_again: %r on %s: %s", key, topic, reason)
            await self._ask(held, partial(lot.explain, self._group, topic, key, reason=reason, attempts=attempts))

        due, accepts_gap = await self._ask(held, partial(numbered.due, key, topic))
        try:
            waiting = await self._waiting(lot, partition, key, numbered)
        except StageError as error:
            await keep(reason_of(error.error), attempts=0)
            return
        for found in waiting:
            is_early = due is not None and found.number > due
            if is_early and not (is_released and accepts_gap):
                await keep(numbered.reason(found.number, due), attempts=0)
                return
            failure = await self._try(found.record, found.route, found.event, may_skip=is_early)
            if failure is not None:
                await keep(failure.reason, attempts=failure.attempts)
                return
            await self._ask(held, partial(lot.remove, [found.record.position]))
            self._stats.settled += 1
            due = found.number + 1 if due is None else max(due, found.number + 1)
            accepts_gap = accepts_gap and not is_early
        self.places.pop((partition, key), None)
        log.info("key_released: %r on %s", key, topic)

    async def _waiting(
        self, lot: ParkingLot, partition: TopicPartition, key: bytes, numbered: Numbering
    ) -> list[_Waiting]:
        """Read the parked events of a key, in the order of their numbers; those without a number are dropped.

        Raises:
            StageError: One can no longer be read.
        """
        found: list[_Waiting] = []
        position = 0
        while records := await self._ask(
            [partition],
            partial(lot.records, self._group, partition.topic, key, limit=MOST_AT_ONCE, after=position),
        ):
            position = records[-1].position
            for record in records:
                route, event = self._read(record, numbered)
                if event is None:  # corrected by hand into something that has no place here
                    await self._ask([partition], partial(lot.remove, [record.position]))
                else:
                    number = numbered.number_of(event)
                    found.append(_Waiting(record=record, route=route, event=event, number=number))
        return sorted(found, key=lambda one: one.number)

    def _read(self, record: ParkedRecord, numbered: Numbering) -> tuple[Route, Event | None]:
        try:
            route = self._router.route_for(record)
        except StageError as failure:
            if not isinstance(failure.error, UnknownEventError):
                raise
            route = None
        if route is None:
            return numbered.passing, numbered.unhandled(record)
        return route, self._router.event_of(route, record, structured=True)

    async def _ask(self, partitions: Collection[TopicPartition], step: Callable[[], Awaitable[T]]) -> T:
        async def ask() -> T:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    return await step()
            except Exception as error:
                raise StageError(Stage.PARK, error) from error

        return await self._outages.reach(RESOURCE, partitions, ask)

    async def _try_record(self, record: ParkedRecord) -> _Failure | None:
        """Decode a parked record and apply it; why that failed, or None."""
        try:
            route = self._router.route_for(record)
            if route is None or route.handler is None:
                return None  # no longer handled here: nothing to wait for
            event = self._router.event_of(route, record, structured=True)
        except StageError as error:
            return _Failure(reason_of(error.error), attempts=1)
        return None if event is None else await self._try(record, route, event)

    async def _try(
        self, record: ParkedRecord, route: Route, event: Event, *, may_skip: bool = False
    ) -> _Failure | None:
        """Call the handler with a parked event, as often as its policy says; why it failed, or None."""
        delivery = route.subscription.delivery if route.subscription is not None else None
        attempt = 0
        while True:
            attempt += 1
            try:
                verdict = await self._call(record, route, event, attempt, may_skip=may_skip)
            except BaseException as error:  # whatever a handler raises keeps the key parked
                if ends_task(error):
                    raise
                stage, cause = origin_of(error)
                kind = classify(stage, cause)
                if kind is Kind.HANDLER_FAILED:
                    self._stats.count_failure(cause)
                decision = decide(kind, cause, delivery, attempt=attempt, tries=attempt - 1, rng=self._rng)
                reason = decision.reason if isinstance(decision, SetAside) else reason_of(cause)
            else:
                match verdict:
                    case Retry():
                        assert delivery is not None
                        decision = decide_retry(verdict, delivery, attempt=attempt)
                        reason = decision.reason if isinstance(decision, SetAside) else ""
                    case Reject(reason) | Early(reason):
                        return _Failure(reason, attempt)
                    case _:
                        return None
            if not isinstance(decision, RetryAfter):
                return _Failure(reason, attempt)
            self._stats.retried += 1
            self._heads.follower_attempted(TopicPartition(record.topic, record.partition), decision.delay_s)
            await self._outages.sleep(decision.delay_s)

    async def _call(
        self, record: ParkedRecord, route: Route, event: Event, attempt: int, *, may_skip: bool
    ) -> Verdict | Early | None:
        partition = TopicPartition(record.topic, record.partition)
        attempt += record.attempts
        if route.handler is not None:
            ctx = Context(record, attempt=attempt, group=self._group)
            return await self._caller.single(route, partition, event, ctx, may_skip=may_skip)
        assert route.subscription is not None
        verdicts = await self._caller.batch(
            route.subscription,
            route.inbox,
            [partition],
            Deliveries([event], [record], [attempt], group=self._group),
            numbered=route.numbered,
            may_skip=may_skip,
        )
        return verdicts[0] if verdicts is not None else None
