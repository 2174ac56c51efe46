"""What a history of sends and polls must show, whatever happened to the broker meanwhile.

The names of the checks are Jepsen's. A partition's order is built from the offsets in acks and polls; gaps are
legal, as control records have offsets, too. Every value is unique.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hailbus_broker.testing.history.model import KeyRead, KeyWrite, Listed, Polled, TimeLookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hailbus_broker.testing.history.model import History, Sent

MAX_OFFSET: Final = 2**63 - 1


def committed_sends(history: History) -> Iterator[Sent]:
    """Sends that are there to stay: the sender was told so, or part of a transaction without an answer was read.

    The latter makes a transaction prove that it is atomic: if one of its values is visible, all must be.
    """
    read = {poll.value for poll in (*history.polled, *history.final)}
    shown = {send.transaction for send in history.sent if send.transaction is not None and send.value in read}
    for send in history.sent:
        number = send.transaction
        if send.outcome == "ok" and (
            number is None
            or history.transactions[number] == "ok"
            or (history.transactions[number] == "unknown" and number in shown)
        ):
            yield send


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
    for send in committed_sends(history):
        if send.value not in read and (send.offset or 0) < highest[send.partition]:
            yield f"{send.value}, acked at {send.partition}/{send.offset}, was never read"


def unseen(history: History) -> Iterator[str]:
    """A committed value that the final read, from start to end, does not hold."""
    final = {poll.value for poll in history.final}
    for send in committed_sends(history):
        if send.value not in final:
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


def places(history: History) -> dict[tuple[int, int], int]:
    """Return the place of each record of the final read among those of its partition."""
    order: dict[int, set[int]] = defaultdict(set)
    for poll in history.final:
        order[poll.partition].add(poll.offset)
    return {(p, offset): place for p, offsets in order.items() for place, offset in enumerate(sorted(offsets))}


def vanished_reads(history: History) -> Iterator[str]:
    """A value that was read, acked or not, and that the final read does not hold: it was shown before it was safe."""
    final = {poll.value for poll in history.final}
    for poll in history.polled:
        if poll.value not in final:
            yield f"{poll.value}, read by {poll.process} at {poll.partition}/{poll.offset}"


def incompatible_order(history: History) -> Iterator[str]:
    """A list that the next one of the same process, or the final one, does not begin with."""
    final: dict[int, list[int]] = defaultdict(list)
    for poll in history.final:
        final[poll.partition].append(poll.value)
    readers = sorted({(found.process, found.partition) for found in history.lists})
    ends = [Listed(process=process, partition=number, values=tuple(final[number])) for process, number in readers]
    before: dict[tuple[str, int], tuple[int, ...]] = {}
    for found in (*history.lists, *ends):
        known = before.get((found.process, found.partition), ())
        for index, value in enumerate(known):
            here = found.values[index] if index < len(found.values) else "its end"
            if here != value:
                yield f"{found.process}, partition {found.partition}: {here} stands where {value} stood before"
                break
        before[found.process, found.partition] = found.values


def auto_commit_skips(history: History) -> Iterator[str]:
    """A member of a group that began, or went on, behind records that no member of the group was ever handed."""
    place = places(history)
    done: dict[int, int] = defaultdict(int)
    for poll in history.handed:
        here = place.get((poll.partition, poll.offset))
        if here is None:
            continue
        if here > done[poll.partition]:
            where = f"{poll.process}, life {poll.life}, at {poll.partition}/{poll.offset}"
            yield f"{where}: {here - done[poll.partition]} records before it were never handed over"
        done[poll.partition] = max(done[poll.partition], here + 1)


def poll_order(history: History) -> Iterator[str]:
    """A consumer that jumped back, or over a record of the final read; a subscribed one within a single poll."""
    place = places(history)
    last: dict[tuple[str, int, int, int], Polled] = {}
    for poll in history.polled:
        key = (poll.process, poll.life, poll.partition, poll.op if poll.is_subscribed else -1)
        before = last.get(key)
        if before is not None and poll.offset <= before.offset:
            yield f"nonmonotonic poll: {poll.process} read {poll.partition}/{poll.offset} after {before.offset}"
        here = place.get((poll.partition, poll.offset))
        if before is None and poll.is_subscribed:
            there = None  # it began wherever its group stood
        else:
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


def precommitted_reads(history: History) -> Iterator[str]:
    """A transaction that read, as a reader of committed records, what it had written itself and not yet committed."""
    writer = {send.value: send.transaction for send in history.sent if send.transaction is not None}
    for poll in history.polled:
        if poll.transaction is not None and writer.get(poll.value) == poll.transaction:
            yield f"transaction {poll.transaction} read its own {poll.value}"


def information_cycles(history: History) -> Iterator[str]:
    """G1c: transactions of which each has read what the next has written, in a circle."""
    writer = {send.value: send.transaction for send in history.sent if send.transaction is not None}
    read_from: dict[int, set[int]] = defaultdict(set)
    for poll in history.polled:
        source = writer.get(poll.value)
        if poll.transaction is not None and source is not None and source != poll.transaction:
            read_from[poll.transaction].add(source)
    # Take away what reads from nothing that is left, again and again: what cannot be taken is on or behind a circle.
    left = {number: {source for source in sources if source in read_from} for number, sources in read_from.items()}
    readers: dict[int, set[int]] = defaultdict(set)
    for number, sources in left.items():
        for source in sources:
            readers[source].add(number)
    free = [number for number, sources in left.items() if not sources]
    while free:
        number = free.pop()
        del left[number]
        for reader in readers[number]:
            left[reader].discard(number)
            if not left[reader]:
                free.append(reader)
    if left:
        yield f"transactions that read from each other in a circle: {sorted(left)[:10]}"


def lost_commits(history: History) -> Iterator[str]:
    """A group's offset that was found below one acked before, or at one that nobody committed."""
    acked: dict[tuple[str, int], int] = {}
    asked: dict[tuple[str, int], set[int]] = defaultdict(set)
    for commit in history.offsets:
        key = (commit.group, commit.partition)
        if not commit.is_read:
            asked[key].add(commit.offset)
            if commit.outcome == "ok":
                acked[key] = commit.offset
        elif commit.offset < acked.get(key, -1):
            yield f"{commit.group}, partition {commit.partition}: found {commit.offset} after {acked[key]} was acked"
        elif commit.offset >= 0 and commit.offset not in asked[key]:
            yield f"{commit.group}, partition {commit.partition}: found {commit.offset}, which nobody committed"


def inexact_copies(history: History) -> Iterator[str]:
    """Records that were copied exactly once, and are missing, there twice, or in another order than their source."""
    source: dict[int, list[int]] = defaultdict(list)
    copy: dict[int, list[int]] = defaultdict(list)
    for poll in history.final:
        source[poll.partition].append(poll.value)
    for poll in history.copied:
        copy[poll.partition].append(poll.value)
    for partition, values in sorted(copy.items()):
        if values != source[partition][: len(values)]:
            wrong = next(
                (i for i, (got, want) in enumerate(zip(values, source[partition], strict=False)) if got != want),
                len(source[partition]),
            )
            expected = source[partition][wrong] if wrong < len(source[partition]) else "the end"
            yield f"partition {partition}: copy {wrong} of {len(values)} is {values[wrong]}, expected {expected}"


def broken_sequences(history: History) -> Iterator[str]:
    """A producer whose sequence numbers have a gap or whose epoch fell, in the log of one partition."""
    ahead: dict[tuple[int, int], tuple[int, int]] = {}
    for batch in history.stored:
        if batch.producer_id < 0:
            continue
        key = (batch.partition, batch.producer_id)
        epoch, expected = ahead.get(key, (-1, 0))
        where = f"{batch.partition}/{batch.base_offset}: producer {batch.producer_id}"
        if batch.producer_epoch < epoch:
            yield f"{where} fell from epoch {epoch} to {batch.producer_epoch}"
        if batch.marker is not None:
            # The end of a transaction may raise the epoch, and the next batch then begins at 0.
            ahead[key] = (batch.producer_epoch, expected if batch.producer_epoch == epoch else 0)
            continue
        if batch.producer_epoch > epoch:
            expected = 0
        if batch.base_sequence != expected:
            yield f"{where} has sequence {batch.base_sequence}, expected {expected}"
        ahead[key] = (batch.producer_epoch, batch.base_sequence + batch.last_offset - batch.base_offset + 1)


def missing_markers(history: History) -> Iterator[str]:
    """A transaction's data without a marker behind it although all transactions have ended."""
    open_since: dict[tuple[int, int], int] = {}
    for batch in history.stored:
        key = (batch.partition, batch.producer_id)
        if batch.marker is not None:
            open_since.pop(key, None)
        elif batch.is_transactional:
            open_since.setdefault(key, batch.base_offset)
    for (partition, producer), offset in sorted(open_since.items()):
        yield f"{partition}/{offset}: the transaction of producer {producer} has no marker"


def uncommitted_reads_vanish(history: History) -> Iterator[str]:
    """A record that a reader of uncommitted records was given, and that the log does not hold at that place."""
    if not history.raw:
        return
    found = {(poll.partition, poll.offset): poll.value for poll in history.raw}
    for poll in history.uncommitted:
        value = found.get((poll.partition, poll.offset))
        if value != poll.value:
            yield f"{poll.process} read {poll.value} at {poll.partition}/{poll.offset}, where {value} is at the end"


def changed_by_restart(history: History) -> Iterator[str]:
    """A record that was read after all had ended, and is not the same after one more power cut."""
    if history.again is None:
        return
    before = [(poll.partition, poll.offset, poll.value) for poll in history.final]
    after = [(poll.partition, poll.offset, poll.value) for poll in history.again]
    for lost in sorted(set(before) - set(after)):
        yield f"{lost} is gone after a restart"
    for new in sorted(set(after) - set(before)):
        yield f"{new} appeared by a restart"


def retreating_watermarks(history: History) -> Iterator[str]:
    """A log start, last stable offset or high watermark that fell, or the order of the three that does not hold."""
    floors: dict[tuple[str, int], tuple[int, int, int]] = {}
    answered = sorted(history.watermarks, key=lambda mark: mark.answered_at)
    place = 0
    for mark in sorted(history.watermarks, key=lambda mark: mark.asked_at):
        while place < len(answered) and answered[place].answered_at < mark.asked_at:
            known = answered[place]
            floor = floors.get(known.place, (0, 0, 0))
            floors[known.place] = (
                max(floor[0], known.log_start),
                max(floor[1], known.last_stable),
                max(floor[2], known.high),
            )
            place += 1
        found = (mark.log_start, mark.last_stable, mark.high)
        if not mark.log_start <= mark.last_stable <= mark.high:
            yield f"{mark.place}: log start, last stable offset and high watermark are {found}"
        floor = floors.get(mark.place, (0, 0, 0))
        if any(now < before for now, before in zip(found, floor, strict=True)):
            yield f"{mark.place}: log start, last stable offset and high watermark fell from {floor} to {found}"


def uncovered_acks(history: History) -> Iterator[str]:
    """A record that was acknowledged, and that a high watermark asked for later does not cover."""
    ends: dict[tuple[str, int], int] = {}
    place = 0
    for mark in sorted(history.watermarks, key=lambda mark: mark.asked_at):
        while place < len(history.acked) and history.acked[place].answered_at < mark.asked_at:
            known = history.acked[place]
            ends[known.place] = max(ends.get(known.place, 0), known.last_offset + 1)
            place += 1
        end = ends.get(mark.place, 0)
        if mark.high < end:
            yield f"{mark.place}: the high watermark was {mark.high} after all before {end} was acknowledged"


def deleted_records_return(history: History) -> Iterator[str]:
    """A log start below an offset up to which records were deleted before."""
    for deleted in history.deleted:
        for mark in history.watermarks:
            if mark.place == deleted.place and mark.asked_at > deleted.answered_at and mark.log_start < deleted.offset:
                yield f"{deleted.place} begins at {mark.log_start}, although all before {deleted.offset} was deleted"
                break


def shared_partitions(history: History) -> Iterator[str]:
    """A partition that two members of a group own in one generation."""
    owners: dict[tuple[str, int, int], str] = {}
    for owned in history.owned:
        for partition in owned.partitions:
            owner = owners.setdefault((owned.group, owned.generation, partition), owned.member)
            if owner != owned.member:
                where = f"{owned.group}, generation {owned.generation}, partition {partition}"
                yield f"{where}: owned by {owner} and {owned.member}"


def unordered_times(history: History) -> Iterator[str]:
    """A later timestamp for which ListOffsets found an earlier offset."""
    asked: dict[tuple[int, int], list[TimeLookup]] = defaultdict(list)
    for lookup in history.lookups:
        asked[lookup.op, lookup.partition].append(lookup)
    for (_, partition), lookups in asked.items():
        for before, after in pairwise(sorted(lookups, key=lambda lookup: lookup.timestamp)):
            first, second = (MAX_OFFSET if place.offset < 0 else place.offset for place in (before, after))
            if second < first:
                found = f"{before.timestamp} is at {before.offset}, {after.timestamp} at {after.offset}"
                yield f"partition {partition}: {found}"


def stale_keys(history: History) -> Iterator[str]:
    """A reader of a compacted topic whose last value of a key is older than the last one that was acknowledged."""
    newest: dict[str, KeyWrite] = {}
    sent: set[tuple[str, int | None]] = set()
    refused: set[tuple[str, int | None]] = set()
    for write in history.key_writes:
        if write.outcome == "fail":
            if write.value is not None:
                refused.add((write.key, write.value))
            continue
        sent.add((write.key, write.value))
        known = newest.get(write.key)
        if write.outcome != "ok" or write.offset is None:
            continue
        if known is None or known.offset is None or write.offset > known.offset:
            newest[write.key] = write
    for reader, reads in sorted(history.key_reads.items()):
        view: dict[str, KeyRead] = {}
        last_offsets: dict[int, int] = defaultdict(lambda: -1)
        for read in reads:
            last_offset, last_offsets[read.partition] = last_offsets[read.partition], read.offset
            if read.offset <= last_offset:
                yield f"{reader}: offset {read.offset} of partition {read.partition} came after {last_offset}"
            if (read.key, read.value) in refused:
                yield f"{reader}: {read.key}={read.value} at {read.offset} was aborted"
            elif (read.key, read.value) not in sent:
                yield f"{reader}: nobody wrote {read.key}={read.value}, read at {read.offset}"
            view[read.key] = read
        for key, write in sorted(newest.items()):
            assert write.offset is not None
            found = view.get(key)
            if found is None:
                if write.value is not None:
                    yield f"{reader}: {key} is gone; {write.value} was acked at {write.offset}"
            elif found.offset < write.offset and not (write.value is None and found.value is None):
                yield f"{reader}: {key}={found.value} at {found.offset}; {write.value} was acked at {write.offset}"


def unmatched_markers(history: History) -> Iterator[str]:
    """A partition with more or fewer markers of a producer than its transactions account for."""
    commits: Counter[tuple[int, int]] = Counter()
    markers: Counter[tuple[int, int]] = Counter()
    for batch in history.stored:
        if batch.marker is not None:
            markers[batch.partition, batch.producer_id] += 1
            commits[batch.partition, batch.producer_id] += batch.marker == "commit"
    least: Counter[tuple[int, int]] = Counter()
    most: Counter[tuple[int, int]] = Counter()
    touched: Counter[tuple[int, int]] = Counter()
    for attempt in history.attempted:
        outcome = history.transactions[attempt.number]
        for partition in sorted(attempt.partitions):
            key = (partition, attempt.producer_id)
            touched[key] += 1
            most[key] += outcome != "fail"
            least[key] += outcome == "ok" and partition in attempt.written
    for key in sorted(touched | markers):
        if not history.attempted:
            return
        where = f"partition {key[0]}, producer {key[1]}"
        if not least[key] <= commits[key] <= most[key]:
            yield f"{where}: {commits[key]} commit markers for {least[key]} to {most[key]} committed transactions"
        if markers[key] > touched[key]:
            yield f"{where}: {markers[key]} markers for {touched[key]} transactions"


def shared_producer_ids(history: History) -> Iterator[str]:
    """A producer id that two owners were given: the batches of one would pass for those of the other."""
    owners: dict[int, str] = {}
    for given in history.identified:
        owner = owners.setdefault(given.producer_id, given.owner)
        if owner != given.owner:
            yield f"producer id {given.producer_id} was given to {owner}, then to {given.owner}"


CHECKS: Final = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    unseen,
    aborted_reads,
    torn_transactions,
    never_written,
    vanished_reads,
    incompatible_order,
    auto_commit_skips,
    poll_order,
    nonmonotonic_sends,
    precommitted_reads,
    information_cycles,
    lost_commits,
    inexact_copies,
    broken_sequences,
    missing_markers,
    uncommitted_reads_vanish,
    changed_by_restart,
    retreating_watermarks,
    uncovered_acks,
    deleted_records_return,
    shared_partitions,
    unordered_times,
    stale_keys,
    unmatched_markers,
    shared_producer_ids,
)
"""Not here: G0 and cycles over write-write edges, and `int-send-skip`. They are normal in Kafka, where the writes of
transactions to a partition lie between each other. How often records were read is reported, not judged."""


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


def consume_counts(history: History) -> dict[int, int]:
    """Return how many values were read how often, by all lives of all consumers but the last."""
    times = Counter(poll.value for poll in history.polled)
    return dict(sorted(Counter(times.values()).items()))
