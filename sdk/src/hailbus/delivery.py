"""Delivery promises of a subscription, failure policies, and the verdicts that a handler may return."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from hailbus.errors import ConfigurationError

if TYPE_CHECKING:
    from hailbus.inbox import Inbox
    from hailbus.parking import ParkingLot

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "Backoff",
    "DeadLetter",
    "Done",
    "EffectivelyOnce",
    "ExactlyOnce",
    "ParkKey",
    "Promise",
    "Reject",
    "Retry",
    "RetryTopics",
    "Skip",
    "Verdict",
    "checked_duration",
]


def checked_duration(name: str, value: object, *, zero: bool = False) -> float:
    """The seconds of a duration setting.

    Raises:
        ConfigurationError: It is not a `timedelta`, or negative, or zero where that is not allowed.
    """
    if not isinstance(value, timedelta):
        message = f"{name}={value!r} is not a duration; give a timedelta, for example timedelta(seconds=1)"
        raise ConfigurationError(message)
    seconds = value.total_seconds()
    if seconds < 0 or (seconds == 0 and not zero):
        message = f"{name} is {seconds:g} s; give {'zero or ' if zero else ''}a positive duration"
        raise ConfigurationError(message)
    return seconds


def checked_count(name: str, value: object) -> None:
    """Check a setting that counts something.

    Raises:
        ConfigurationError: It is not a whole number from 1 up.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        message = f"{name}={value!r} must be a whole number of at least 1"
        raise ConfigurationError(message)


# ------------------------------------------------------------------------------------------------ verdicts


@dataclass(frozen=True, slots=True)
class Done:
    """The event was handled. Returning None says the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Call the handler again with this event after a delay. Later events of the same key wait; other keys continue.

    The call counts as an attempt of the subscription's policy: after `Backoff.attempts` calls the event goes to `then`.
    A handler that polls for something outside may raise that bound with `limit`.

    Args:
        after: Delay before the next call.
        limit: Calls of the handler with this event at most, the first one included; None for the policy's `attempts`.
    """

    after: timedelta = timedelta(seconds=1)
    limit: int | None = None

    def __post_init__(self) -> None:
        checked_duration("Retry(after)", self.after, zero=True)
        if self.limit is not None:
            checked_count("Retry(limit)", self.limit)


@dataclass(frozen=True, slots=True)
class Reject:
    """The event cannot be handled, now or later: it becomes a dead letter with this reason, or parks its key."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """The event does not concern this handler: it counts as skipped."""

    reason: str = ""


Verdict = Done | Retry | Reject | Skip


# ------------------------------------------------------------------------------------------------ failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Blocking retry of one key: the delay grows from `first` by `factor` up to `max`.

    Args:
        first: Delay before the second attempt.
        factor: Growth per attempt, at least 1.
        max: Upper bound of one delay.
        attempts: How often the handler is called at most, the first time included.
        jitter: Share of the delay that is random, 0 to 1.
        on: Exceptions worth another attempt; all others go to `then` at once.
    """

    first: timedelta = timedelta(milliseconds=200)
    factor: float = 2.0
    max: timedelta = timedelta(seconds=30)
    attempts: int = 5
    jitter: float = 0.2
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or isinstance(self.attempts, bool) or self.attempts < 1:
            message = f"Backoff needs at least one attempt, not {self.attempts!r}"
            raise ConfigurationError(message)
        checked_duration("Backoff(first)", self.first)
        checked_duration("Backoff(max)", self.max)
        if not isinstance(self.factor, (int, float)) or not self.factor >= 1:
            message = f"Backoff(factor={self.factor!r}) would shrink the delay; give a factor of at least 1"
            raise ConfigurationError(message)
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            message = f"Backoff(jitter={self.jitter!r}) is a share of the delay; give a number from 0 to 1"
            raise ConfigurationError(message)
        if not isinstance(self.on, tuple) or not all(isinstance(e, type) and issubclass(e, Exception) for e in self.on):
            message = f"Backoff(on={self.on!r}) must be a tuple of exception classes, for example on=(TimeoutError,)"
            raise ConfigurationError(message)

    @property
    def longest(self) -> timedelta:
        """The longest delay between two attempts, jitter included."""
        if self.attempts == 1:
            return timedelta(0)
        grown_s = min(self.first.total_seconds() * self.factor ** min(self.attempts - 2, 60), self.max.total_seconds())
        return timedelta(seconds=grown_s * (1 + self.jitter / 2))

    def delay_s(self, attempt: int, chance: random.Random) -> float:
        """Seconds to wait after attempt number `attempt`, counted from 1."""
        # The exponent is bounded: 2.0 ** 1100 would overflow after a long outage.
        grown = self.first.total_seconds() * self.factor ** min(attempt - 1, 60)
        return min(grown, self.max.total_seconds()) * (1 + self.jitter * (chance.random() - 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Write the raw record to `<topic>.<group>-dlt` with the failure as headers, then continue."""


@dataclass(frozen=True, slots=True, init=False)
class RetryTopics:
    """Write the record to `<topic>.<group>-retry-<delay in ms>`, from which the group reads it after the delay.

    No other event waits meanwhile, so later events of the key overtake it: use `ParkKey` where order matters. When the
    handler fails again the next delay follows, and after the last one `then`.

    Args:
        delays: Each is a retry topic; equal ones share one.
        then: After the last.
    """

    delays: tuple[timedelta, ...]
    then: DeadLetter

    def __init__(self, *delays: timedelta, then: DeadLetter | None = None) -> None:
        if not delays:
            message = "RetryTopics needs at least one delay, for example RetryTopics(timedelta(seconds=5))"
            raise ConfigurationError(message)
        for delay in delays:
            checked_duration("a delay of RetryTopics, which needs at least one delay longer than zero,", delay)
        last: object = then
        if last is not None and not isinstance(last, DeadLetter):
            message = f"RetryTopics(then={then!r}): only DeadLetter() can follow the last retry topic"
            raise ConfigurationError(message)
        object.__setattr__(self, "delays", delays)
        object.__setattr__(self, "then", then if then is not None else DeadLetter())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkKey:
    """Park the event in the database; later events of its key wait behind it, in order, until the key is released.

    Other keys continue. Events without a key become dead letters.

    Args:
        lot: Where parked records are kept.
        look_every: How soon a release is noticed.
    """

    lot: ParkingLot
    look_every: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        checked_duration("ParkKey(look_every)", self.look_every)


Order = Literal["key", "partition", "none"]


# ------------------------------------------------------------------------------------------------ promises


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMostOnce:
    """Commit first, then handle: an event may be lost, none is handled twice. Failures are logged and counted."""

    order: Order = "key"
    max_in_flight: int = 256

    def __post_init__(self) -> None:
        _check(self.order, self.max_in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeastOnce:
    """Handle first, then commit: no event is lost, some are handled twice after a crash or a rebalance.

    Args:
        retry: What happens when the handler raises.
        then: What happens after the last attempt.
        order: `key`: events of one key one after the other, keys in parallel; records without key go by partition.
            `partition`: one after the other. `none`: all in parallel.
        max_in_flight: Handlers that run at once.
    """

    retry: Backoff = Backoff()
    then: DeadLetter | RetryTopics | ParkKey = DeadLetter()
    order: Order = "key"
    max_in_flight: int = 256

    def __post_init__(self) -> None:
        _check(self.order, self.max_in_flight)
        _check_retry(self.retry)
        _check_then(self.then, self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivelyOnce:
    """At least once, with the effect applied once: inbox row and effects are committed together, or not at all.

    Before the handler is called the event is claimed in the inbox, in a transaction that the handler gets as `ctx.tx`
    (in batches `batch.tx`): write to the database and publish with `tx=ctx.tx`. An event that was applied before is
    skipped without calling the handler; in batches it is left out. When the handler raises, or returns `Retry` or
    `Reject`, the transaction is rolled back.

    While the inbox's database is unavailable the partition is paused. It resumes by itself, and no event becomes a dead
    letter meanwhile.

    With `sequence` the numbers of the events are checked as well, per topic and key, whatever the type of the event.
    The number of the last applied event is committed with the effects. An event with that number or a lower one is
    skipped. An event that comes before its turn is parked; when the missing event has been applied, the parked ones
    follow by themselves. Events of the topic that have no handler here count, too, so their numbers leave no gap.

    Args:
        inbox: In the same database as the effects.
        retry, then, order, max_in_flight: As for `AtLeastOnce`.
        sequence: The field with the number of an event, which counts up by one per key: `sequence="seq"`. Needs
            `then=ParkKey(...)`.
        first_number: The number with which every key begins. None: the first event that comes begins its key; for a
            group that starts at the end of a topic, or after the topic has forgotten the beginning of its keys.
        own_transaction: The handler, of batches, commits in a transaction of its own: it claims the events there by
            `await batch.claim(tx)`, and says by `claim.refuse(...)` which of them it does not apply. For a service that
            commits events together with other work.
    """

    inbox: Inbox
    retry: Backoff = Backoff()
    then: DeadLetter | RetryTopics | ParkKey = DeadLetter()
    order: Order = "key"
    max_in_flight: int = 16
    sequence: str | None = None
    first_number: int | None = 1
    own_transaction: bool = False

    def __post_init__(self) -> None:
        _check(self.order, self.max_in_flight)
        _check_retry(self.retry)
        _check_then(self.then, self.order)
        if isinstance(self.inbox, type) or not hasattr(self.inbox, "claim"):
            message = f"inbox={self.inbox!r} is not an Inbox; give Inbox(engine, consumer)"
            raise ConfigurationError(message)
        if self.sequence is None:
            return
        if not isinstance(self.sequence, str) or not self.sequence:
            message = f"sequence={self.sequence!r} is not the name of a field, for example sequence='seq'"
            raise ConfigurationError(message)
        if not isinstance(self.then, ParkKey):
            message = f"sequence={self.sequence!r} parks events that come before their turn; give then=ParkKey(lot=...)"
            raise ConfigurationError(message)
        first: object = self.first_number
        if first is not None and (not isinstance(first, int) or isinstance(first, bool)):
            message = f"first_number={first!r} is neither a whole number nor None"
            raise ConfigurationError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """From Kafka to Kafka: what the handler publishes and the consumed offsets are committed in one Kafka transaction.

    Nothing else is covered: a database write or an HTTP call in the handler may happen twice. Events are handled one
    after the other per partition; inside the handler `publish` returns before anything is written.

    Args:
        retry: What happens when the handler raises; then a dead letter, in the same transaction.
        max_items: Records per transaction at most.
        order, max_in_flight: `partition` and 1; nothing else is possible inside one transaction.
    """

    retry: Backoff = Backoff()
    max_items: int = 500
    order: Order = "partition"
    max_in_flight: int = 1

    def __post_init__(self) -> None:
        _check_retry(self.retry)
        checked_count("max_items", self.max_items)
        if self.order != "partition" or self.max_in_flight != 1:
            message = (
                f"ExactlyOnce(order={self.order!r}, max_in_flight={self.max_in_flight!r}): one transaction handles the "
                "events of a partition one after the other; leave both settings out"
            )
            raise ConfigurationError(message)


Promise = AtMostOnce | AtLeastOnce | EffectivelyOnce | ExactlyOnce


def _check_retry(retry: object) -> None:
    if not isinstance(retry, Backoff):
        message = f"retry={retry!r} is not a retry policy; give a Backoff, for example Backoff(attempts=5)"
        raise ConfigurationError(message)


def _check_then(then: object, order: Order) -> None:
    if isinstance(then, type):
        message = f"then={then.__name__} is a class; give a policy, for example then={then.__name__}()"
        raise ConfigurationError(message)
    if not isinstance(then, (DeadLetter, RetryTopics, ParkKey)):
        message = f"then={then!r} is not a policy; give DeadLetter(), RetryTopics(...) or ParkKey(lot=...)"
        raise ConfigurationError(message)
    if isinstance(then, ParkKey) and order != "key":
        message = f"ParkKey keeps the order of keys, so it needs order='key', not {order!r}"
        raise ConfigurationError(message)


def _check(order: object, max_in_flight: object) -> None:
    if order not in {"key", "partition", "none"}:
        message = f"order={order!r} is not one of 'key', 'partition' and 'none'"
        raise ConfigurationError(message)
    checked_count("max_in_flight", max_in_flight)
