"""What a service says of one handler, and the bounds within which a group member works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from hailbus._transport import Start
from hailbus.context import Batch, Context
from hailbus.delivery import Promise, Verdict
from hailbus.event import Event

__all__ = ["BatchHandler", "Handler", "OnUnknown", "SubscriberSettings", "SubscriberStats", "Subscription"]

Handler = Callable[[Any, Context], Awaitable[Verdict | None]]  # Any: the event class is checked where it is registered
BatchHandler = Callable[[Batch[Any]], Awaitable[Sequence[Verdict] | None]]
OnUnknown = Literal["skip", "park", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One handler and what it promises."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings:
    """Bounds of a group member.

    Args:
        max_buffered: Records read and not settled, over all partitions; reading pauses there.
        max_spread: Records of one partition held back from commit by its first unsettled one; that partition pauses.
        commit_interval: Settled records are committed at least this often while there are some.
        commit_every: ... and whenever this many have settled since.
        revoke_grace: How long running handlers may go on when their partition is taken away.
        drain_timeout: How long running handlers may go on when the service stops.
        grace_period: What the platform waits between SIGTERM and SIGKILL, where it is known; a drain timeout that is
            not shorter is refused at start.
        stall_after: Unhealthy when records wait and nothing has settled for so long.
        unknown_event: What happens to a type that the service's catalogue does not know: `skip` it, `park` it as a dead
            letter, or `fail`: read no more and be unhealthy, until a newer release knows it.
        unknown_version: The same for an unknown version of a known type.
        poll_records: At most so many records per read: few enough to be still in the CPU's cache when they are handled.
    """

    max_buffered: int = 5_000
    max_spread: int = 20_000
    commit_interval: timedelta = timedelta(milliseconds=500)
    commit_every: int = 5_000
    revoke_grace: timedelta = timedelta(seconds=5)
    drain_timeout: timedelta = timedelta(seconds=20)
    grace_period: timedelta | None = None
    stall_after: timedelta = timedelta(seconds=60)
    unknown_event: OnUnknown = "skip"
    unknown_version: OnUnknown = "park"
    poll_records: int = 250


@dataclass(slots=True)
class SubscriberStats:
    """Counters since the start. Read-only for others."""

    received: int = 0
    settled: int = 0
    skipped: int = 0
    retried: int = 0
    failed: int = 0
    dead_lettered: int = 0
    parked: int = 0
    committed: int = 0
    rebalances: int = 0
    reconnects: int = 0
