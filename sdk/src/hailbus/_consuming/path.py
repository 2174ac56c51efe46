"""The one place where what follows a failure or a verdict is carried out: counted, logged, set aside.

`failure.decide` says what follows; lanes, batches and transactions all come here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, assert_never

from hailbus._consuming.failure import (
    Drop,
    Kind,
    Pause,
    RetryAfter,
    SetAside,
    Stage,
    StageError,
    classify,
    decide,
    decide_retry,
    is_too_large,
    origin_of,
    reason_of,
)
from hailbus._consuming.outages import Outages
from hailbus._consuming.progress import Heads
from hailbus._consuming.work import Early, Ending, Item, Outcome
from hailbus._transport import Outgoing, Producer, TopicPartition
from hailbus.clock import Clock
from hailbus.dead_letter import dead_letter_forms, dead_letter_topic, first_place, retry_letter, retry_topic
from hailbus.delivery import AtLeastOnce, Done, EffectivelyOnce, ParkKey, Reject, Retry, RetryTopics, Skip
from hailbus.errors import VerdictError
from hailbus.subscription import SubscriberStats, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus.parking import ParkingLot

__all__ = ["FailurePath", "Outlet", "ProducerOutlet", "checked_verdict"]

log = logging.getLogger("hailbus.subscriber")
STORE_TIMEOUT_S = 30.0
"""A database that has not answered for so long is asked again on another connection."""
SLOW_AFTER_S = 5.0
NO_MORE = 2**31

Parked = dict[tuple[TopicPartition, bytes], "ParkingLot"]
"""Keys that are parked, of the partitions that this member holds."""


def checked_verdict(verdict: object, handler: str) -> Done | Retry | Reject | Skip | None:
    """The verdict of a handler, if it is one.

    Raises:
        VerdictError: It is something else.
    """
    if verdict is None or isinstance(verdict, (Done, Retry, Reject, Skip)):
        return verdict
    raise VerdictError(handler=handler, problem=f"returned {_shown(verdict)}, which is not a verdict")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 a user's value whose __repr__ raises
        text = type(value).__qualname__
    return text if len(text) <= 200 else text[:200] + "…"


class Outlet(Protocol):
    """Where letters are written to."""

    async def write(self, topic: str, partition: int, forms: Iterator[Outgoing]) -> None:
        """Write the first form that the topic takes.

        Raises:
            StageError: None could be written.
        """
        ...


class ProducerOutlet:
    """Writes letters at once."""

    def __init__(self, producer: Callable[[], Producer]) -> None:
        self._producer = producer

    async def write(self, topic: str, partition: int, forms: Iterator[Outgoing]) -> None:
        try:
            producer = self._producer()
            count = await producer.partition_count(topic)
            while True:
                form = next(forms, None)
                try:
                    if form is not None:
                        await producer.send(topic, partition % count, [form])
                except Exception as error:
                    if not is_too_large(error):
                        raise
                    refusal = error
                else:
                    if form is None:
                        raise refusal
                    return
        except Exception as error:
            raise StageError(Stage.LETTER, error) from error


class FailurePath:
    """Carries out what follows verdicts and failures of one group.

    Args:
        group: The consumer group.
        stats: Counters of calls; how records end is counted where they end.
        clock: Gives the times in letters.
        rng: For the jitter of delays.
        outages: Waits for what is away.
        outlet: Writes letters.
        retries: The step of each retry topic that the group reads.
        parked: Keys that are parked; added to here.
        heads: Told of records that will be tried again.
    """

    def __init__(
        self,
        group: str,
        *,
        stats: SubscriberStats,
        clock: Clock,
        rng: random.Random,
        outages: Outages,
        outlet: Outlet,
        retries: Mapping[str, tuple[RetryTopics, int]],
        parked: Parked,
        heads: Heads,
    ) -> None:
        self.stats = stats
        self._group = group
        self._clock = clock
        self._rng = rng
        self._outages = outages
        self._outlet = outlet
        self._retries = retries
        self._parked = parked
        self._heads = heads

    # -------------------------------------------------------------------------------------------- verdicts

    async def judged(self, item: Item, verdict: object) -> Outcome:
        """Carry out what a handler returned."""
        subscription = item.route.subscription
        assert subscription is not None
        match verdict:
            case None | Done():
                return Ending.SETTLED
            case Early(reason):
                policy = subscription.delivery.then if isinstance(subscription.delivery, EffectivelyOnce) else None
                assert isinstance(policy, ParkKey)
                return await self.park(item, policy.lot, reason=reason, attempts=0)
            case Skip(reason):
                log.debug("event_skipped: %s at %s: %s", subscription.name, _place(item), reason)
                return Ending.SKIPPED
            case Reject(reason):
                return await self._set_aside(item, None, reason, may_retry=False, by=subscription.name)
            case Retry():
                decision = decide_retry(verdict, subscription.delivery, attempt=item.attempt)
                if isinstance(decision, RetryAfter):
                    if item.attempt == 1:
                        log.info("retry_asked: %s at %s, in %.2f s", subscription.name, _place(item), decision.delay_s)
                    return self._again(item, decision.delay_s)
                if isinstance(decision, Drop):
                    log.error("retry_refused: %s at %s, at most once", subscription.name, _place(item))
                    return Ending.DROPPED
                assert isinstance(decision, SetAside)
                log.error("handler_gave_up: %s at %s: %s", subscription.name, _place(item), decision.reason)
                return await self._set_aside(item, None, decision.reason, may_retry=True, by=subscription.name)
            case _:
                try:
                    checked_verdict(verdict, subscription.name)
                except VerdictError as error:
                    return await self.failed(item, StageError(Stage.VERDICT, error))
                raise AssertionError(verdict)

    # -------------------------------------------------------------------------------------------- failures

    async def failed(self, item: Item, failure: BaseException, *, is_last: bool = False) -> Outcome:
        """Carry out what follows a failure.

        Args:
            item: The record.
            failure: A `StageError`, or what the handler raised.
            is_last: Whether the record is not to be tried again, whatever the policy says.
        """
        stage, error = origin_of(failure)
        kind = classify(stage, error)
        subscription = item.route.subscription
        if kind is Kind.HANDLER_FAILED:
            self.stats.count_failure(error)
        decision = decide(
            kind,
            error,
            subscription.delivery if subscription is not None else None,
            attempt=NO_MORE if is_last else item.attempt,
            tries=NO_MORE if is_last else item.defects,
            rng=self._rng,
        )
        match decision:
            case RetryAfter(delay_s):
                if kind is Kind.OUR_DEFECT:
                    item.defects += 1
                    log.error(
                        "record_met_a_defect: %s while %s, next try in %.1f s", _place(item), stage.value, delay_s,
                        exc_info=error,
                    )  # fmt: skip
                elif item.attempt == 1:
                    log.warning(
                        "handler_retried: %s at %s, first of %d attempts, next in %.2f s: %s",
                        _name(subscription),
                        _place(item),
                        _attempts(subscription),
                        delay_s,
                        reason_of(error),
                    )
                return self._again(item, delay_s)
            case Drop():
                log.error(
                    "handler_failed: %s at %s, at most once, not repeated", _name(subscription), _place(item),
                    exc_info=error,
                )  # fmt: skip
                return Ending.DROPPED
            case SetAside(reason, may_retry):
                if kind is Kind.HANDLER_FAILED:
                    log.error(
                        "handler_gave_up: %s at %s after %d attempts", _name(subscription), _place(item), item.attempt,
                        exc_info=error,
                    )  # fmt: skip
                by = {Stage.DECODE: "decoder", Stage.IDENTIFY: "decoder", Stage.CLAIM: "inbox"}.get(
                    stage, _name(subscription)
                )
                if kind is Kind.HANDLER_FAILED:
                    return await self._set_aside(item, error, reason, may_retry=may_retry, by=by)
                return await self._dead_letter(item, error, reason, by=by)
            case Pause():
                await self._outages.wait(stage.value, [item.partition], error)
                return 0.0
            case _:
                assert_never(decision)

    def _again(self, item: Item, delay_s: float) -> float:
        self.stats.retried += 1
        self._heads.attempted(item.partition, item.record.offset, delay_s)
        return delay_s

    # -------------------------------------------------------------------------------------------- setting aside

    async def _set_aside(
        self, item: Item, error: BaseException | None, reason: str, *, may_retry: bool, by: str
    ) -> Outcome:
        """What follows the last attempt, by the subscription's policy: dead letter, retry topic, or parked key."""
        subscription = item.route.subscription
        delivery = subscription.delivery if subscription is not None else None
        then = delivery.then if isinstance(delivery, (AtLeastOnce, EffectivelyOnce)) else None
        record = item.record
        if isinstance(then, ParkKey) and record.key is not None:
            attempts = item.attempt + item.before
            return await self.park(item, then.lot, reason=reason, attempts=attempts, was_due=True)
        if isinstance(then, RetryTopics) and may_retry:
            step = self._retries[record.topic][1] + 1 if record.topic in self._retries else 0
            if step < len(then.delays):
                delay = then.delays[step]
                letter = retry_letter(
                    record,
                    group=self._group,
                    error=error if error is not None else TimeoutError(reason),
                    attempt=item.attempt + item.before,
                    due=self._clock() + delay,
                )
                try:
                    await self._write(item, retry_topic(first_place(record)[0], self._group, delay), iter([letter]))
                except StageError as failure:
                    if not is_too_large(failure.error):
                        raise
                else:
                    return Ending.RETRIED_LATER
        return await self._dead_letter(item, error, reason, by=by)

    async def park(self, item: Item, lot: ParkingLot, *, reason: str, attempts: int, was_due: bool = False) -> Outcome:
        """Park a record behind those of its key; one whose number was due is the next that may be applied."""
        record, numbered, number = item.record, item.route.numbered, item.number
        assert record.key is not None

        async def add() -> None:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    if was_due and numbered is not None and number is not None:
                        await numbered.begin(record, number)
                    await lot.add(self._group, record, reason=reason, attempts=attempts)
            except Exception as error:
                raise StageError(Stage.PARK, error) from error

        try:
            await self._outages.reach("the parking lot's database", [item.partition], add)
        except StageError as failure:
            return await self._dead_letter(item, failure.error, reason_of(failure), by="parking lot")
        place = TopicPartition(record.topic, record.partition), record.key
        if place not in self._parked:
            self._parked[place] = lot
            log.warning("key_parked: %r on %s: %s", record.key, record.topic, reason)
        return Ending.PARKED

    async def _dead_letter(self, item: Item, error: BaseException | None, reason: str, *, by: str) -> Outcome:
        record = item.record
        topic = dead_letter_topic(first_place(record)[0], self._group)
        forms = [
            *dead_letter_forms(
                record,
                group=self._group,
                error=error,
                reason=reason,
                attempt=item.attempt + item.before,
                now=self._clock(),
                by=by,
            )
        ]
        while True:
            try:
                await self._write(item, topic, iter(forms))
            except StageError as failure:
                # Settling without the letter would lose the record: the partition waits, and health says why.
                await self._outages.wait(f"a place for the failed record {_place(item)}", [item.partition], failure)
            else:
                self._outages.over(f"a place for the failed record {_place(item)}")
                log.warning("dead_lettered: %s to %s: %s", _place(item), topic, reason)
                return Ending.DEAD_LETTERED

    async def _write(self, item: Item, topic: str, forms: Iterator[Outgoing]) -> None:
        letters = list(forms)
        await self._outages.reach(
            f"topic {topic}",
            [item.partition],
            lambda: self._outlet.write(topic, item.record.partition, iter(letters)),
            slow_after_s=SLOW_AFTER_S,
        )


def _place(item: Item) -> str:
    record = item.record
    return f"{record.topic}-{record.partition}@{record.offset}"


def _name(subscription: Subscription | None) -> str:
    return subscription.name if subscription is not None else "hailbus"


def _attempts(subscription: Subscription | None) -> int:
    retry = getattr(subscription.delivery, "retry", None) if subscription is not None else None
    return retry.attempts if retry is not None else 1
