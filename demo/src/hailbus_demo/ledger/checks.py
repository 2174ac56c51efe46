"""The ledger's decisions: pure functions from what was gathered to checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hailbus_demo.ledger.model import (
    Check,
    Consumer,
    InboxContent,
    LogContent,
    OutboxContent,
    Partition,
    five,
    some,
)

ACCOUNT_NAMES = {"replay": "the replay's book", "booking": "booking", "log": "the log"}


def rides_add_up(accounts: Mapping[str, Mapping[str, str]]) -> list[Check]:
    """Each account of the rides adds up, and all accounts agree ride by ride.

    Args:
        accounts: Name → ride id → state.
    """
    checks = []
    for name, states in accounts.items():
        sums = five(states)
        total = sums["completed"] + sums["cancelled"] + sums["unmatched"] + sums["in_flight"]
        checks.append(
            Check(
                name=f"rides by {ACCOUNT_NAMES.get(name, name)}",
                ok=sums["requested"] == total,
                detail=(
                    f"{sums['requested']:,} requested = {sums['completed']:,} completed + "
                    f"{sums['cancelled']:,} cancelled + {sums['unmatched']:,} unmatched + "
                    f"{sums['in_flight']:,} in flight"
                ),
            )
        )
    names = list(accounts)
    pairs = [(first, second) for i, first in enumerate(names) for second in names[i + 1 :]]
    return checks + [_same_rides(first, accounts[first], second, accounts[second]) for first, second in pairs]


def _same_rides(first: str, ours: Mapping[str, str], second: str, theirs: Mapping[str, str]) -> Check:
    a, b = ACCOUNT_NAMES.get(first, first), ACCOUNT_NAMES.get(second, second)
    problems = []
    if only := set(ours) - set(theirs):
        problems.append(f"{len(only):,} rides are known to {a} only: {some(only)}")
    if only := set(theirs) - set(ours):
        problems.append(f"{len(only):,} rides are known to {b} only: {some(only)}")
    differing = {ride for ride in set(ours) & set(theirs) if _coarse(ours[ride]) != _coarse(theirs[ride])}
    if differing:
        one = min(differing)
        problems.append(
            f"{len(differing):,} rides ended differently, as {one}: "
            f"{_coarse(ours[one])} by {a}, {_coarse(theirs[one])} by {b}"
        )
    return Check(
        name=f"{a} = {b}",
        ok=not problems,
        detail="; ".join(problems) or f"all {len(ours):,} rides stand alike",
    )


def _coarse(state: str) -> str:
    return state if state in ("completed", "cancelled", "unmatched") else "in_flight"


def ride_trails(log: LogContent) -> Check:
    """Each ride's events count 1, 2, 3… without gap or repetition, begin with the request and have at most one end."""
    bad: dict[str, str] = {}
    for ride_id, trail in log.rides.items():
        ends = [t for t in trail.types if t in ("ride.completed", "ride.cancelled", "ride.unmatched")]
        if sorted(trail.seqs) != list(range(1, len(trail.seqs) + 1)):
            bad[ride_id] = f"its events are numbered {sorted(trail.seqs)}"
        elif "ride.requested" not in trail.types:
            bad[ride_id] = "it was never requested"
        elif len(ends) > 1:
            bad[ride_id] = f"it ended {len(ends)} times"
    if bad:
        one = min(bad)
        return Check(name="ride events", ok=False, detail=f"{len(bad):,} rides are not whole, as {one}: {bad[one]}")
    events = sum(len(trail.seqs) for trail in log.rides.values())
    return Check(
        name="ride events", ok=True, detail=f"{events:,} events of {len(log.rides):,} rides, each numbered 1, 2, 3…"
    )


def outbox_is_log(name: str, outbox: OutboxContent, log: LogContent, *, source: str, exempt: Collection[str]) -> Check:
    """Every event that the outbox published is in the log, and every event of its source in the log is in the outbox.

    Args:
        name: The service.
        outbox: What its outbox says.
        log: What the log holds.
        source: CloudEvents source of the service.
        exempt: Topics that are sent at most once, past the outbox.
    """
    problems = []
    shortened = log.shortened
    sent: set[str] = set()
    due: set[str] = set()
    for topic, ids in outbox.published.items():
        sent |= ids
        if topic not in shortened:  # what the broker compacted away was there
            due |= ids
    logged: set[str] = set()
    total: set[str] = set()
    for (topic, kind), ids in log.ids.items():
        if topic in exempt:
            continue
        total |= ids
        if log.sources[topic, kind][source]:
            logged |= ids
    if lost := due - total:
        problems.append(f"{len(lost):,} published events are not in the log: {some(lost)}")
    if invented := logged - sent:
        problems.append(f"{len(invented):,} events in the log are not in the outbox: {some(invented)}")
    if outbox.owed:
        problems.append(f"{outbox.owed:,} events are due and not published")
    if outbox.failed:
        problems.append(f"{outbox.failed:,} events could not be published")
    waiting = f"; {outbox.waiting:,} wait for their time" if outbox.waiting else ""
    return Check(
        name=f"outbox of {name} = log",
        ok=not problems,
        detail="; ".join(problems) or f"all {len(sent):,} events are in the log, and no other{waiting}",
    )


def expected_ids(consumer: Consumer, log: LogContent) -> dict[str, set[str]]:
    """Return the event ids per topic that a consumer must have applied."""
    wanted: dict[str, set[str]] = {}
    for (topic, kind), ids in log.ids.items():
        if topic in consumer.topics and (consumer.types is None or kind in consumer.types):
            wanted.setdefault(topic, set()).update(ids)
    return wanted


def applied_once(consumer: Consumer, inbox: InboxContent, log: LogContent, *, exempt: Collection[str]) -> Check:
    """Every event that the group handles was seen once or more and applied once, and nothing else was applied.

    The inbox's primary key (consumer, source, event id) is what makes "once" true; here it is counted again.
    """
    wanted = expected_ids(consumer, log)
    problems = []
    count = 0
    for topic in sorted(set(wanted) | set(inbox.applied)):
        if topic in exempt:
            continue
        want, have = wanted.get(topic, set()), inbox.applied.get(topic, set())
        count += len(want)
        if missing := want - have:
            problems.append(f"{topic}: {len(missing):,} events were not applied: {some(missing)}")
        if topic not in log.shortened and (surplus := have - want):
            problems.append(f"{topic}: {len(surplus):,} applied events are not in the log: {some(surplus)}")
    distinct, rows, seen = inbox.judged(exempt)
    if distinct != rows:
        problems.append(f"{rows - distinct:,} events were applied twice")
    if seen < rows:
        problems.append(f"{rows - seen:,} events were applied without being seen")
    again = seen - rows
    return Check(
        name=f"group {consumer.group}",
        ok=not problems,
        detail="; ".join(problems)
        or f"all {count:,} events applied once" + (f" ({again:,} were seen again and passed over)" if again else ""),
    )


def broker_counts(log: LogContent, *, compacted: Collection[str]) -> Check:
    """What was read from each partition is as many records as its offsets say; a compacted topic may have fewer."""
    problems = []
    for partition, end in sorted(log.ends.items()):
        offsets = end - log.starts.get(partition, 0)
        read = log.records[partition]
        if read != offsets and not (partition[0] in compacted and read < offsets):
            problems.append(f"{partition[0]}-{partition[1]}: {read:,} records in {offsets:,} offsets")
    if problems:
        return Check(name="log is readable", ok=False, detail="; ".join(problems[:3]))
    return Check(name="log is readable", ok=True, detail=f"{sum(log.records.values()):,} records in as many offsets")


def lake_is_log(problems: Collection[str], rows: int, records: int, partitions: int) -> Check:
    """Per partition the lake's offsets go from the broker's start to its end, without gap and duplicate."""
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        return Check(name="lake = log", ok=False, detail="; ".join(list(problems)[:3]) + more)
    return Check(
        name="lake = log",
        ok=True,
        detail=f"{rows:,} rows for {records:,} records in {partitions} partitions: no gap, no duplicate",
    )


def all_caught_up(behind: Mapping[str, int]) -> Check:
    """Every reader reached the end within the deadline.

    Args:
        behind: Reader → records that it is behind.
    """
    late = {name: n for name, n in behind.items() if n}
    if late:
        shown = ", ".join(f"{name} by {n:,}" for name, n in sorted(late.items()))
        return Check(name="caught up", ok=False, detail=f"still behind at the deadline: {shown}")
    return Check(name="caught up", ok=True, detail=f"{', '.join(sorted(behind)) or 'nobody'} read everything there is")


def at_most_once(topic: str, *, sent: int, in_log: int, seen: Mapping[str, int]) -> Check:
    """Show a topic that may lose events: what was sent, what arrived, and what each group saw of it."""
    words = [
        f"{sent:,} sent",
        f"{in_log:,} in the log",
        *(f"{n:,} seen by {group}" for group, n in sorted(seen.items())),
    ]
    return Check(name=f"{topic} (at most once)", ok=None, detail=", ".join(words))


def dead_letters(counts: Mapping[str, int]) -> Check:
    """No event was set aside.

    Args:
        counts: Dead-letter topic → records.
    """
    full = {topic: n for topic, n in counts.items() if n}
    if full:
        return Check(
            name="dead letters", ok=False, detail="; ".join(f"{n:,} in {topic}" for topic, n in sorted(full.items()))
        )
    return Check(name="dead letters", ok=True, detail="none")


def nothing_moved(before: Mapping[Partition, int], after: Mapping[Partition, int]) -> Check:
    """Nobody published while the ledger was drawn up; otherwise its accounts are of different moments."""
    moved = {p: after[p] - before.get(p, 0) for p in after if after[p] != before.get(p, 0)}
    if moved:
        topic, _ = min(moved)
        return Check(
            name="log stood still",
            ok=None,
            detail=f"{sum(moved.values()):,} records came while it was checked (first in {topic}): they are not judged",
        )
    return Check(name="log stood still", ok=True, detail="nothing was published while it was checked")
