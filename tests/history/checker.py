"""What a history of sends and polls must show, whatever happened to the broker meanwhile.

The names of the checks are Jepsen's. A partition's order is built from the offsets in acks and polls; gaps are
legal, as control records have offsets, too. Every value is unique.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

End = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send. `ok` has its offset; `fail` is known not to be in the log; `unknown` may be."""

    process: str
    partition: int
    value: int
    outcome: End
    offset: int | None = None
    transaction: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """One record that a consumer with assigned partitions was given. Each `life` of it reads from the log's start."""

    process: str
    life: int
    partition: int
    offset: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that happened: sends in order per process, polls in order per process, how transactions ended."""

    sent: Sequence[Sent]
    polled: Sequence[Polled]
    final: Sequence[Polled]
    """What a last consumer read from the start of each partition to its end, with read_committed."""
    transactions: dict[int, End] = field(default_factory=dict)
    """`ok` is committed, `fail` aborted."""


def is_committed(history: History, send: Sent) -> bool:
    """Whether the sender was told that the record is there to stay."""
    return send.outcome == "ok" and (send.transaction is None or history.transactions[send.transaction] == "ok")


def inconsistent_offsets(history: History) -> Iterator[str]:
    """One offset that shows two values."""
    seen: dict[tuple[int, int], int] = {}
    acks = ((s.partition, s.offset, s.value) for s in history.sent if s.offset is not None)
    polls = ((p.partition, p.offset, p.value) for p in (*history.polled, *history.final))
    for partition, offset, value in (*acks, *polls):
        if seen.setdefault((partition, offset), value) != value:
            yield f"partition {partition}, offset {offset}: {seen[partition, offset]} and {value}"


def duplicates(history: History) -> Iterator[str]:
    """One value at two offsets."""
    where: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for poll in (*history.polled, *history.final):
        where[poll.value].add((poll.partition, poll.offset))
    for value, places in sorted(where.items()):
        if len(places) > 1:
            yield f"{value} stands at {sorted(places)}"


def lost_writes(history: History) -> Iterator[str]:
    """A committed value below the highest offset read that nobody read, in the final read or before."""
    highest: dict[int, int] = defaultdict(lambda: -1)
    for poll in (*history.polled, *history.final):
        highest[poll.partition] = max(highest[poll.partition], poll.offset)
    read = {poll.value for poll in (*history.polled, *history.final)}
    for send in history.sent:
        if is_committed(history, send) and send.value not in read and (send.offset or 0) < highest[send.partition]:
            yield f"{send.value}, acked at {send.partition}/{send.offset}, was never read"


def unseen(history: History) -> Iterator[str]:
    """A committed value that the final read, from start to end, does not hold."""
    final = {poll.value for poll in history.final}
    for send in history.sent:
        if is_committed(history, send) and send.value not in final:
            yield f"{send.value}, acked at {send.partition}/{send.offset}"


def aborted_reads(history: History) -> Iterator[str]:
    """A value that a reader of committed records saw although its send failed or its transaction was aborted."""
    read = {poll.value for poll in (*history.polled, *history.final)}
    for send in history.sent:
        aborted = send.transaction is not None and history.transactions[send.transaction] == "fail"
        if (aborted or send.outcome == "fail") and send.value in read:
            yield f"{send.value} of transaction {send.transaction} ({send.outcome})"


def torn_transactions(history: History) -> Iterator[str]:
    """A transaction whose end nobody knows, of which some acked values were read and others not."""
    final = {poll.value for poll in history.final}
    parts: dict[int, list[Sent]] = defaultdict(list)
    for send in history.sent:
        if send.transaction is not None and send.outcome == "ok":
            parts[send.transaction].append(send)
    for transaction, sends in sorted(parts.items()):
        seen = sum(send.value in final for send in sends)
        if 0 < seen < len(sends):
            yield f"transaction {transaction}: {seen} of {len(sends)} values are visible"


def never_written(history: History) -> Iterator[str]:
    """A value read that nobody sent."""
    sent = {send.value for send in history.sent}
    for poll in (*history.polled, *history.final):
        if poll.value not in sent:
            yield f"{poll.value} at {poll.partition}/{poll.offset}"


def poll_order(history: History) -> Iterator[str]:
    """A consumer with assigned partitions that jumped back, or over a record of the final read."""
    order: dict[int, list[int]] = defaultdict(list)
    for poll in history.final:
        order[poll.partition].append(poll.offset)
    place = {(p, offset): i for p, offsets in order.items() for i, offset in enumerate(sorted(set(offsets)))}
    last: dict[tuple[str, int, int], Polled] = {}
    for poll in history.polled:
        key = (poll.process, poll.life, poll.partition)
        before = last.get(key)
        if before is not None and poll.offset <= before.offset:
            yield f"nonmonotonic poll: {poll.process} read {poll.partition}/{poll.offset} after {before.offset}"
        here = place.get((poll.partition, poll.offset))
        there = -1 if before is None else place.get((before.partition, before.offset))
        if here is not None and there is not None and here > there + 1:
            missed = here - there - 1
            yield f"poll skip: {poll.process} passed over {missed} records before {poll.partition}/{poll.offset}"
        last[key] = poll


def nonmonotonic_sends(history: History) -> Iterator[str]:
    """One process whose sends to a partition went backwards in the log."""
    last: dict[tuple[str, int], Sent] = {}
    for send in history.sent:
        if send.outcome != "ok" or send.offset is None:
            continue
        before = last.get((send.process, send.partition))
        if before is not None and before.offset is not None and send.offset <= before.offset:
            yield f"{send.process}: {send.value} at {send.offset} after {before.value} at {before.offset}"
        last[send.process, send.partition] = send


CHECKS = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    unseen,
    aborted_reads,
    torn_transactions,
    never_written,
    poll_order,
    nonmonotonic_sends,
)


def violations(history: History, *, most: int = 5) -> dict[str, list[str]]:
    """Return what each check found, at the most `most` findings each; empty when all hold."""
    found = {}
    for check in CHECKS:
        lines = first(check(history), most)
        if lines:
            found[check.__name__] = lines
    return found


def first(lines: Iterable[str], most: int) -> list[str]:
    """Return the first `most` lines, and how many more there are."""
    every = list(lines)
    return every[:most] + ([f"and {len(every) - most} more"] if len(every) > most else [])
