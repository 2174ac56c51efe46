"""Waits until every reader has read everything, then draws up the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hailbus_demo.errors import RunFailedError
from hailbus_demo.figures import Figures
from hailbus_demo.ledger import draw
from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, InboxAccount, SurgeAccount
from hailbus_demo.ledger.databases import count_due, count_under_way
from hailbus_demo.ledger.draw import Ledger
from hailbus_demo.ledger.gather import Gatherer, Sources
from hailbus_demo.ledger.lines.consumers import wants
from hailbus_demo.ledger.lines.rides import state_of
from hailbus_demo.ledger.log import LogAccount
from hailbus_demo.replay.book import count_states
from hailbus_demo.watch import Watch

STILL_FOR_S: Final = 5.0
"""Nothing may have been behind or published for so long before the readers count as caught up. Surge ends a minute
of event time up to three seconds after the last record, and then publishes what came of it."""
ATTEMPTS: Final = 5
"""How often the accounts are read again when something moved meanwhile."""
SURGE_CLOSES_WITHIN_S: Final = 60.0
"""How long surge may take to close one more of the minutes that event time has passed, once nothing else happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What the ledger compares, and how long readers may go without any progress before they count as stuck."""

    sources: Sources
    deadline_s: float


async def catch_up(plan: AuditPlan, watch: Watch) -> tuple[dict[str, int], float]:
    """Wait until every reader has read all, every payment has an outcome, and nothing more comes for some seconds.

    Returns:
        Reader → records that it is behind, and when all had caught up by the monotonic clock: the seconds that showed
        that nothing more comes are no work of the chain.
    """
    deadline = time.monotonic() + plan.deadline_s
    best: object = None
    still_since: float | None = None
    last_ends: dict[tuple[str, int], int] = {}
    due: dict[str, int] = {}
    while True:
        looked = await watch.look()
        late = {name: n for name, n in watch.behind().items() if n}
        if looked and not late:
            due = await _due(plan)
            late |= due
        now = time.monotonic()
        if looked and not late and watch.ends == last_ends:
            if still_since is None:
                still_since = now
            if now - still_since >= STILL_FOR_S:
                return watch.behind(), still_since
        else:
            still_since = None
        last_ends = dict(watch.ends)
        state = (dict(watch.ends), watch.behind(), dict(due), watch.lake.stamp)
        if state != best:  # a reader makes progress: patience begins anew
            best, deadline = state, now + plan.deadline_s
        if now > deadline:
            return late or ({} if looked else {"the cluster, which does not answer,": 1}), now
        await asyncio.sleep(0.5)


async def _due(plan: AuditPlan) -> dict[str, int]:
    """Return what the services have yet to do or to publish though every reader has read everything."""
    counts: dict[str, int] = {}
    for database, what, count in (
        ("booking", "booking's outbox", count_due),
        ("payment", "the payments under way", count_under_way),
    ):
        url = plan.sources.databases.get(database)
        with contextlib.suppress(RunFailedError):  # the ledger says so
            if url is not None and (due := await count(url)):
                counts[what] = due
    return counts


async def draw_up(plan: AuditPlan, figures: Figures) -> Ledger:
    """Read all accounts of one moment, compare them, and fill the figures with the lines and the verdict."""
    gatherer = Gatherer(plan.sources)
    try:
        await _let_surge_close(gatherer)
        for attempt in range(1, ATTEMPTS + 1):
            accounts = await gatherer.gather()
            if not accounts.moved or attempt == ATTEMPTS:
                break
            await asyncio.sleep(attempt)
        ledger = await asyncio.to_thread(draw.draw_up, accounts)
    finally:
        await gatherer.close()
    figures.ledger, figures.so_far = ledger, False
    figures.accounts, figures.groups = account_counts(accounts), group_counts(accounts)
    return ledger


async def _let_surge_close(gatherer: Gatherer) -> None:
    """Wait until surge has closed the minutes that event time has passed; what it does not close, a line finds."""
    closed, deadline = None, time.monotonic() + SURGE_CLOSES_WITHIN_S
    while True:
        log, surge = await gatherer.gather_log(), await gatherer.gather_surge()
        if not isinstance(log, LogAccount) or not isinstance(surge, SurgeAccount):
            return
        if not gatherer.is_behind(surge) or time.monotonic() > deadline:
            return
        if surge.closed_until_ms != closed:  # it makes progress: patience begins anew
            closed, deadline = surge.closed_until_ms, time.monotonic() + SURGE_CLOSES_WITHIN_S
        await asyncio.sleep(0.5)


def account_counts(accounts: Accounts) -> dict[str, dict[str, int]]:
    """Return account → rides by their ends."""
    counts: dict[str, dict[str, int]] = {}
    if isinstance(accounts.book, BookAccount):
        counts["replay"] = count_states(ride.state for ride in accounts.book.rides.values())
    if isinstance(accounts.booking, BookingAccount):
        counts["booking"] = count_states(ride.state for ride in accounts.booking.rides.values())
    if isinstance(accounts.log, LogAccount):
        counts["log"] = count_states(state_of(steps) for steps in accounts.log.reader.rides.values())
    return counts


def group_counts(accounts: Accounts) -> dict[str, Mapping[str, int]]:
    """Return group → events expected, deliveries seen and events applied."""
    counts: dict[str, Mapping[str, int]] = {}
    log = accounts.log
    if not isinstance(log, LogAccount):
        return counts
    for consumer in accounts.consumers:
        inbox = accounts.inboxes.get(consumer.group)
        if isinstance(inbox, InboxAccount):
            expected = sum(wants(consumer, log.reader, row) for row in log.reader.events())
            counts[consumer.group] = {
                "expected": expected,
                "seen": Counter(inbox.seen).total(),
                "applied": Counter(inbox.rows).total(),
            }
    return counts
