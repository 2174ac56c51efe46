"""One handler with its settings, and the bounds within which a group member works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from hailbus._transport import Start
from hailbus.context import Batch, Context
from hailbus.delivery import EffectivelyOnce, ExactlyOnce, ParkKey, Promise, Verdict, checked_count, checked_duration
from hailbus.durations import Durations
from hailbus.errors import ConfigurationError, HandlerDeadlineError
from hailbus.event import Event, event_info
from hailbus.upcasting import newest

__all__ = ["BatchHandler", "Handler", "OnUnknown", "SubscriberSettings", "SubscriberStats", "Subscription"]

Handler = Callable[[Any, Context], Awaitable[Verdict | None]]  # Any: the event class is checked where it is registered
BatchHandler = Callable[[Batch[Any]], Awaitable[Sequence[Verdict] | None]]
OnUnknown = Literal["skip", "dead-letter", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One handler, its events and its promise.

    Raises:
        ConfigurationError: The settings contradict each other, or cannot work.
    """

    name: str
    events: tuple[type[Event], ...]
    group: str
    delivery: Promise
    start: Start
    handler: Handler | None = None
    batch_handler: BatchHandler | None = None
    max_items: int = 500
    max_wait: timedelta = timedelta(milliseconds=100)
    max_bytes: int = 16 * 1024 * 1024
    deadline: timedelta | None = None

    def __post_init__(self) -> None:
        if not self.events:
            message = f"{self.name} subscribes to no event; name an event class in on(...)"
            raise ConfigurationError(message)
        for cls in self.events:
            event_info(cls)
            if newest(cls) is not cls:
                message = (
                    f"{self.name} subscribes to {cls.__name__}, which has an upcaster; subscribe to "
                    f"{newest(cls).__name__}, the old records come as that"
                )
                raise ConfigurationError(message)
        if self.start not in get_args(Start):
            message = f"{self.name}: start={self.start!r} is neither 'earliest' nor 'latest'"
            raise ConfigurationError(message)
        if self.deadline is not None:
            checked_duration(f"{self.name}: deadline", self.deadline)
        if self.sequence is not None:
            self._check_sequence(self.sequence)
        if self.batch_handler is None:
            if isinstance(self.delivery, EffectivelyOnce) and self.delivery.own_transaction:
                message = (
                    f"{self.name} takes single events, own_transaction=True is for handlers of batches: on_batch(...)"
                )
                raise ConfigurationError(message)
            return
        checked_count(f"{self.name}: max_items", self.max_items)
        checked_count(f"{self.name}: max_bytes", self.max_bytes)
        checked_duration(f"{self.name}: max_wait", self.max_wait, zero=True)
        if isinstance(getattr(self.delivery, "then", None), ParkKey) and self.sequence is None:
            message = (
                f"{self.name} takes batches, ParkKey is for handlers of single events; use DeadLetter(), or number the "
                "events and give EffectivelyOnce(sequence=...)"
            )
            raise ConfigurationError(message)
        if isinstance(self.delivery, ExactlyOnce):
            message = f"{self.name} takes batches, ExactlyOnce is for handlers of single events"
            raise ConfigurationError(message)

    @property
    def sequence(self) -> str | None:
        """The field with the events' numbers, None when they are not checked."""
        return self.delivery.sequence if isinstance(self.delivery, EffectivelyOnce) else None

    def _check_sequence(self, field: str) -> None:
        assert isinstance(self.delivery, EffectivelyOnce)
        if self.start == "latest" and self.delivery.first_number is not None:
            message = (
                f"{self.name} starts at the end of its topics, where keys are past number "
                f"{self.delivery.first_number}; give EffectivelyOnce(first_number=None)"
            )
            raise ConfigurationError(message)
        for cls in self.events:
            info = event_info(cls)
            if field not in cls.model_fields or cls.model_fields[field].annotation is not int:
                message = (
                    f"{self.name}: sequence={field!r} is no field of {cls.__name__} with the type int; give events "
                    "without a number a handler of their own"
                )
                raise ConfigurationError(message)
            if info.key_field is None:
                message = f"{self.name}: {cls.__name__} has no key, so sequence={field!r} says nothing of its order"
                raise ConfigurationError(message)
            if info.topic.cleanup_policy != "delete":
                message = (
                    f"{self.name}: topic {info.topic.name!r} is compacted, which leaves gaps in sequence={field!r}; "
                    "take its events without sequence"
                )
                raise ConfigurationError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings:
    """Bounds of a group member.

    Args:
        max_buffered: Records read and not settled, over all partitions; reading pauses there.
        max_spread: Records of one partition held back from commit by its first unsettled one; that partition pauses.
        commit_interval: Settled records are committed at least this often while there are some.
        commit_every: ... and whenever this many have settled since.
        revoke_grace: How long running handlers may continue when their partition is taken away.
        drain_timeout: How long running handlers may continue when the service stops.
        grace_period: What the platform waits between SIGTERM and SIGKILL, where it is known; a drain timeout that is
            not shorter is refused at start.
        stall_after: Unhealthy when the first unsettled record of a partition has made no progress for this long.
        outage_after: Unhealthy when the broker, a database or an offset commit has failed for this long.
        unknown_event: What happens to a type that the service's catalogue does not know: `skip` it, `dead-letter` it,
            or `fail`: stop reading and be unhealthy until a newer release knows it.
        unknown_version: The same for an unknown version of a known type.
        poll_records: Records per read at most: few enough to be still in the CPU's cache when they are handled. Four
            times as many under `AtMostOnce`, which commits each read.

    Raises:
        ConfigurationError: A setting cannot work.
    """

    max_buffered: int = 5_000
    max_spread: int = 20_000
    commit_interval: timedelta = timedelta(milliseconds=500)
    commit_every: int = 5_000
    revoke_grace: timedelta = timedelta(seconds=5)
    drain_timeout: timedelta = timedelta(seconds=20)
    grace_period: timedelta | None = None
    stall_after: timedelta = timedelta(seconds=60)
    outage_after: timedelta = timedelta(seconds=5)
    unknown_event: OnUnknown = "skip"
    unknown_version: OnUnknown = "dead-letter"
    poll_records: int = 500

    def __post_init__(self) -> None:
        for count in ("max_buffered", "max_spread", "commit_every", "poll_records"):
            checked_count(f"SubscriberSettings({count})", getattr(self, count))
        for duration in ("commit_interval", "stall_after", "outage_after"):
            checked_duration(f"SubscriberSettings({duration})", getattr(self, duration))
        for duration in ("revoke_grace", "drain_timeout"):
            checked_duration(f"SubscriberSettings({duration})", getattr(self, duration), zero=True)
        if self.grace_period is not None:
            checked_duration("SubscriberSettings(grace_period)", self.grace_period)
        for policy in ("unknown_event", "unknown_version"):
            if getattr(self, policy) not in get_args(OnUnknown):
                message = (
                    f"SubscriberSettings({policy}={getattr(self, policy)!r}) is not one of 'skip', 'dead-letter' and "
                    "'fail'"
                )
                raise ConfigurationError(message)


@dataclass(slots=True)
class SubscriberStats:
    """Counters since the start. Read-only for others.

    Every record that was read ends in exactly one of `settled`, `skipped`, `dropped`, `dead_lettered`, `parked` and
    `retried_later`.
    """

    received: int = 0
    settled: int = 0
    skipped: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    parked: int = 0
    retried_later: int = 0
    retried: int = 0
    failed: int = 0
    deadlines_exceeded: int = 0
    outages: int = 0
    committed: int = 0
    rebalances: int = 0
    reconnects: int = 0
    durations: Durations | None = None
    """How long handlers took, by topic and error; None when nobody reads it."""

    def count_failure(self, error: BaseException) -> None:
        """Count a call of a handler that failed."""
        self.failed += 1
        if isinstance(error, HandlerDeadlineError):
            self.deadlines_exceeded += 1

    @property
    def done(self) -> int:
        """Records that have ended, however."""
        return self.settled + self.skipped + self.dropped + self.dead_lettered + self.parked + self.retried_later
