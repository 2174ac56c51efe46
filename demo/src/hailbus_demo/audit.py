"""Waits until every reader has read everything, then draws up the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hailbus import Bus, ClusterAdmin

from hailbus_demo.errors import RunFailedError
from hailbus_demo.figures import Figures
from hailbus_demo.ledger import checks, gather
from hailbus_demo.ledger.model import Check, Consumer, LogContent, five
from hailbus_demo.replay.sure import GaveUpError, SureClient
from hailbus_demo.services import AT_MOST_ONCE, COMPACTED, TOPIC_NAMES
from hailbus_demo.watch import Watch

STILL_FOR_S = 5.0
"""Nothing may have been behind or published for so long before the readers count as caught up. Surge ends a minute
of event time up to three seconds after the last record, and then publishes what came of it."""
DEAD_LETTER_SUFFIX = "-dlt"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What the ledger compares.

    Args:
        bus: The cluster.
        bootstrap: Its address.
        booking: Booking's API.
        databases: Service → SQLAlchemy URL; a service that is not named is not checked, and the ledger says so.
        consumers: The groups.
        lake_dir: The lake's folder, `None` where there is none to look into.
        lake_problems: What `lake verify` found, and the rows it compared, where it was run already.
        deadline_s: How long readers may go without any progress before they have caught up.
    """

    bus: Bus
    bootstrap: str
    booking: SureClient
    databases: Mapping[str, str]
    consumers: tuple[Consumer, ...]
    lake_dir: Path | None
    deadline_s: float
    lake_problems: tuple[list[str], int] | None = None


async def catch_up(plan: AuditPlan, watch: Watch) -> tuple[dict[str, int], float]:
    """Wait until every reader has read all and booking owes nothing, and nothing more comes for some seconds.

    Returns:
        Reader → records that it is behind, and when all had caught up by the monotonic clock: the seconds that showed
        that nothing more comes are no work of the chain.
    """
    deadline = time.monotonic() + plan.deadline_s
    best: object = None
    still_since: float | None = None
    last_ends: dict[tuple[str, int], int] = {}
    owed = 0
    while True:
        looked = await watch.look()
        late = {name: n for name, n in watch.behind().items() if n}
        if looked and not late:
            owed = await _owed(plan)
            if owed:
                late["booking's outbox"] = owed
        now = time.monotonic()
        if looked and not late and watch.ends == last_ends:
            if still_since is None:
                still_since = now
            if now - still_since >= STILL_FOR_S:
                return watch.behind(), still_since
        else:
            still_since = None
        last_ends = dict(watch.ends)
        state = (dict(watch.ends), watch.behind(), owed, watch.lake.stamp)
        if state != best:  # somebody gets on: patience begins anew
            best, deadline = state, now + plan.deadline_s
        if now > deadline:
            return late or ({} if looked else {"the cluster, which does not answer,": 1}), now
        await asyncio.sleep(0.5)


async def _owed(plan: AuditPlan) -> int:
    url = plan.databases.get("booking")
    if url is None:
        return 0
    try:
        return await gather.count_owed(url, now_ms=await _clock_ms(plan.booking))
    except RunFailedError:
        return 0  # the ledger will say so


async def _clock_ms(booking: SureClient) -> int | None:
    from datetime import datetime

    from hailbus_demo.city.plan import to_ms

    now = (await booking.get("/clock"))["now"]
    return None if now is None else to_ms(datetime.fromisoformat(now))


async def draw_up(plan: AuditPlan, figures: Figures, *, behind: Mapping[str, int], replayed: bool) -> list[Check]:
    """Compare everything and fill the figures with what was found.

    Args:
        plan: What to compare.
        figures: Get accounts, groups, checks and the verdict.
        behind: Who had not caught up.
        replayed: Whether this process played the rides, so that its book is an account of its own.
    """
    found: list[Check] = [checks.all_caught_up(behind)]
    async with ClusterAdmin(plan.bus, client_id="ledger-admin") as admin:
        existing = await admin.topics(None)
        topics = [name for name in TOPIC_NAMES if name in existing]
        log = await gather.read_log(plan.bus, topics, counted_only=AT_MOST_ONCE)
        found += await _rides(plan, figures, log, replayed=replayed)
        found.append(checks.ride_trails(log))
        found.append(checks.broker_counts(log, compacted=COMPACTED))
        seen: dict[str, dict[str, int]] = {topic: {} for topic in AT_MOST_ONCE}
        found += await _groups(plan, figures, log, seen)
        if plan.lake_dir is not None or plan.lake_problems is not None:
            if plan.lake_problems is not None:
                problems, rows = plan.lake_problems
            else:
                assert plan.lake_dir is not None
                problems, rows = await gather.lake_report(plan.lake_dir, plan.bootstrap)
            found.append(checks.lake_is_log(problems, rows, sum(log.records.values()), len(log.ends)))
        letters = sorted(name for name in existing if name.endswith(DEAD_LETTER_SUFFIX))
        ends = await admin.end_offsets(letters) if letters else {}
        counts = dict.fromkeys(letters, 0)
        for tp, end in ends.items():
            counts[tp.topic] += end
        found.append(checks.dead_letters(counts))
        for topic in sorted(AT_MOST_ONCE & set(topics)):
            in_log = sum(n for place, n in log.records.items() if place[0] == topic)
            found.append(checks.at_most_once(topic, sent=figures.book.locations_sent, in_log=in_log, seen=seen[topic]))
        if log.repeated:
            words = ", ".join(f"{n:,} in {topic}" for topic, n in sorted(log.repeated.items()))
            found.append(
                Check(name="published again", ok=None, detail=f"{words}: after a crash; applied once all the same")
            )
        if log.unreadable:
            words = ", ".join(f"{n:,} in {topic}" for topic, n in sorted(log.unreadable.items()))
            found.append(Check(name="records are events", ok=False, detail=f"without CloudEvents headers: {words}"))
        after = {(tp.topic, tp.partition): end for tp, end in (await admin.end_offsets(topics)).items()}
    found.append(checks.nothing_moved(log.ends, after))
    figures.checks = found
    figures.balanced = all(check.ok is not False for check in found)
    return found


async def _rides(plan: AuditPlan, figures: Figures, log: LogContent, *, replayed: bool) -> list[Check]:
    accounts: dict[str, Mapping[str, str]] = {}
    if replayed:
        accounts["replay"] = figures.book.states
    trouble: list[Check] = []
    try:
        accounts["booking"] = await gather.booking_rides(plan.booking)
    except GaveUpError as error:
        trouble.append(Check(name="rides by booking", ok=False, detail=str(error)))
    accounts["log"] = {ride_id: trail.state for ride_id, trail in log.rides.items()}
    figures.accounts = {name: five(states) for name, states in accounts.items()}
    return trouble + checks.rides_add_up(accounts)


async def _groups(plan: AuditPlan, figures: Figures, log: LogContent, seen: dict[str, dict[str, int]]) -> list[Check]:
    found: list[Check] = []
    if "booking" in plan.databases:
        try:
            outbox = await gather.read_outbox(
                plan.databases["booking"], now_ms=await _clock_ms(plan.booking), ends=log.ends
            )
            found.append(checks.outbox_is_log("booking", outbox, log, source="/booking", exempt=AT_MOST_ONCE))
        except (RunFailedError, GaveUpError) as error:
            found.append(Check(name="outbox of booking = log", ok=False, detail=str(error)))
    for consumer in plan.consumers:
        url = plan.databases.get(consumer.database)
        name = f"group {consumer.group}"
        if url is None:
            found.append(Check(name=name, ok=None, detail="its database was not named: not checked"))
            continue
        try:
            inbox = await gather.read_inbox(url, consumer.group, ends=log.ends)
        except RunFailedError as error:
            found.append(Check(name=name, ok=False, detail=str(error)))
            continue
        for topic, by_group in seen.items():
            if topic in consumer.topics:
                by_group[consumer.group] = len(inbox.applied.get(topic, ()))
        wanted = checks.expected_ids(consumer, log)
        expected = sum(len(ids) for topic, ids in wanted.items() if topic not in AT_MOST_ONCE)
        _, rows, deliveries = inbox.judged(AT_MOST_ONCE)
        figures.groups[consumer.group] = {"expected": expected, "seen": deliveries, "applied": rows}
        found.append(checks.applied_once(consumer, inbox, log, exempt=AT_MOST_ONCE))
    return found
