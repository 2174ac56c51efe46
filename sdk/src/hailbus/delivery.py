"""What a subscription promises, and what a handler says about one event."""

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
    "Park",
    "ParkKey",
    "Promise",
    "Retry",
    "RetryTopics",
    "Skip",
    "Verdict",
]


# ------------------------------------------------------------------------------------------------ verdicts


@dataclass(frozen=True, slots=True)
class Done:
    """The event is dealt with. Returning None says the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Call again with this event after a while; later events of the same key wait, other keys go on."""

    after: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Park:
    """Set the event aside as a dead letter with this reason, and go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """The event is of no concern here; settled, and counted with its reason."""

    reason: str = ""


Verdict = Done | Retry | Park | Skip


# ------------------------------------------------------------------------------------------------ failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Blocking retry of one key: the delay grows from `first` by `factor` up to `max`.

    Args:
        first: Delay before the second attempt.
        factor: Growth per attempt.
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
        if self.attempts < 1:
            message = f"Backoff needs at least one attempt, not {self.attempts}"
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
    """Write the raw record, with what went wrong as headers, to `<topic>.<group>-dlt`, and go on."""


@dataclass(frozen=True, slots=True, init=False)
class RetryTopics:
    """Write the record to `<topic>.<group>-retry-<delay in ms>`, from which the group reads it after the delay.

    Nothing waits meanwhile, so later events of the key overtake it: where order matters take `ParkKey`. When the
    handler fails again the next delay follows, and after the last one `then`.

    Args:
        delays: Each a retry topic of its own; equal ones share one.
        then: After the last.
    """

    delays: tuple[timedelta, ...]
    then: DeadLetter

    def __init__(self, *delays: timedelta, then: DeadLetter | None = None) -> None:
        if not delays or any(delay <= timedelta(0) for delay in delays):
            message = "RetryTopics needs at least one delay, all longer than nothing"
            raise ConfigurationError(message)
        object.__setattr__(self, "delays", delays)
        object.__setattr__(self, "then", then if then is not None else DeadLetter())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkKey:
    """Set the event aside and let later events of its key wait behind it, in order, until someone releases the key.

    Other keys go on. Events without a key become dead letters.

    Args:
        lot: Where parked records are kept.
        look_every: How soon a release is noticed.
    """

    lot: ParkingLot
    look_every: timedelta = timedelta(seconds=1)


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
        _check_then(self.then, self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivelyOnce:
    """At least once, with the effect applied once: inbox row and effects are committed together, or not at all.

    Before the handler is called the event is claimed in the inbox, in a transaction that the handler gets as `ctx.tx`
    (in batches `batch.tx`): write to the database and publish with `tx=ctx.tx`. An event that was applied before is
    settled without calling the handler; in batches it is left out. When the handler raises, or asks for `Retry` or
    `Park`, the transaction is rolled back.

    Args:
        inbox: In the same database as the effects.
        retry, then, order, max_in_flight: As for `AtLeastOnce`.
    """

    inbox: Inbox
    retry: Backoff = Backoff()
    then: DeadLetter | RetryTopics | ParkKey = DeadLetter()
    order: Order = "key"
    max_in_flight: int = 16

    def __post_init__(self) -> None:
        _check(self.order, self.max_in_flight)
        _check_then(self.then, self.order)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """From Kafka to Kafka: what the handler publishes and the consumed offsets are committed in one Kafka transaction.

    Nothing else is covered: a database write or an HTTP call in the handler may happen twice. Events are handled one
    after the other per partition; inside the handler `publish` returns before anything is written.

    Args:
        retry: What happens when the handler raises; then a dead letter, in the same transaction.
        max_items: Records per transaction at most.
    """

    retry: Backoff = Backoff()
    max_items: int = 500
    order: Order = "partition"
    max_in_flight: int = 1

    def __post_init__(self) -> None:
        _check(self.order, self.max_in_flight)
        if self.max_items < 1:
            message = f"max_items={self.max_items} must be at least 1"
            raise ConfigurationError(message)


Promise = AtMostOnce | AtLeastOnce | EffectivelyOnce | ExactlyOnce


def _check_then(then: object, order: Order) -> None:
    if isinstance(then, ParkKey) and order != "key":
        message = f"ParkKey keeps the order of keys, so it needs order='key', not {order!r}"
        raise ConfigurationError(message)


def _check(order: str, max_in_flight: int) -> None:
    if order not in {"key", "partition", "none"}:
        message = f"order={order!r} is not one of 'key', 'partition' and 'none'"
        raise ConfigurationError(message)
    if max_in_flight < 1:
        message = f"max_in_flight={max_in_flight} must be at least 1"
        raise ConfigurationError(message)
