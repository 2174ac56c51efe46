"""The log itself: nothing lost, nothing invented, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic_core import from_json
from ride_events import TOPICS

from hailbus_demo.ledger.accounts import (
    Accounts,
    BookingAccount,
    GroupsAccount,
    InboxAccount,
    JournalAccount,
    LettersAccount,
    OutboxRow,
    ParkedAccount,
    PaymentAccount,
    PoisonEvent,
)
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import LOG
from hailbus_demo.ledger.log import COMPACTED, POSITIONS, LogAccount, PackedId, Place
from hailbus_demo.ledger.model import Consumer, Findings, Judgement, Partition

OUTBOX: Final = "booking's outbox"
PAYMENT_OUTBOX: Final = "payment's outbox"
SOURCE: Final = "/booking"
PAYMENT_SOURCE: Final = "/payment"
RETENTION_MS: Final[Mapping[str, int]] = {
    topic.name: round(topic.retention.total_seconds() * 1000) for topic in TOPICS if topic.retention is not None
}
PRODUCERS: Final[Mapping[str, str]] = {
    "/booking": "booking",
    "/payment": "payment",
    "/surge": "surge",
    "/recommender": "recommender",
    "/driver-app": "the driver apps",
}
"""Source → the process that publishes under it."""


def _outbox(accounts: Accounts) -> Judgement:
    assert isinstance(accounts.booking, BookingAccount)
    return _published_by(accounts, accounts.booking.outbox, OUTBOX, SOURCE)


def _payment_outbox(accounts: Accounts) -> Judgement:
    assert isinstance(accounts.payment, PaymentAccount)
    return _published_by(accounts, accounts.payment.outbox, PAYMENT_OUTBOX, PAYMENT_SOURCE)


def _published_by(accounts: Accounts, outbox: Sequence[OutboxRow], name: str, source: str) -> Judgement:
    """Compare a service's outbox with the log, both ways."""
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    waiting = sent = 0
    said: set[PackedId] = set()
    keyed = _newest_published(outbox)
    applied = _applied_ms(accounts, log)
    for row in outbox:
        said.add(row.packed_id)
        if row.state == "published":
            sent += 1
            known_ms = applied.get(row.packed_id) if row.published_ms is None else row.published_ms
            is_expired = _is_expired(row.topic, known_ms, accounts.read_at_ms)
            _published(found, log, row, keyed, name=name, is_expired=is_expired)
            continue
        if row.packed_id in reader.rows:
            # Published and not marked yet is a moment of the relay; cancelled or refused, it must not be there.
            if row.state in ("cancelled", "failed", "waiting"):
                what = f"{row.type} is {row.state} by {name} and in {LOG} all the same"
                found.extend([reader.finding(what, reader.rows[row.packed_id])])
            elif row.state == "due":
                found.add(f"{row.type} is in {LOG} and due by {name}", topic=row.topic, id=row.id)
        elif row.state == "due":
            found.add(f"{row.type} is due and not published", topic=row.topic, id=row.id)
        elif row.state == "failed":
            found.add(f"{row.type} could not be published", topic=row.topic, id=row.id)
        elif row.state == "waiting":
            waiting += 1
    for packed, number in reader.rows.items():
        if packed not in said and reader.source_of(number) == source and reader.place_of(number).topic != POSITIONS:
            found.extend([reader.finding(f"{reader.type_of(number)} is in {LOG} and not in {name}", number)])
    later = f"; {waiting:,} wait for their time" if waiting else ""
    return found.judge(f"all {sent:,} published events are in the log as they were written, and no other{later}")


def _newest_published(outbox: Sequence[OutboxRow]) -> dict[tuple[str, int, str], int]:
    """Return topic, partition and key → the highest offset that the outbox published for it."""
    newest: dict[tuple[str, int, str], int] = {}
    for row in outbox:
        if row.topic in COMPACTED and row.partition is not None and row.offset is not None and row.key is not None:
            place = (row.topic, row.partition, row.key)
            newest[place] = max(row.offset, newest.get(place, -1))
    return newest


def _applied_ms(accounts: Accounts, log: LogAccount) -> dict[PackedId, int]:
    """Return event id → when a consumer applied it first; empty where the log has deleted nothing."""
    applied: dict[PackedId, int] = {}
    if not any(log.starts.values()):
        return applied
    for inbox in accounts.inboxes.values():
        if isinstance(inbox, InboxAccount):
            for packed, at_ms in zip(inbox.ids, inbox.applied_ms, strict=True):
                applied[packed] = min(at_ms, applied.get(packed, at_ms))
    return applied


def _is_expired(topic: str, known_ms: int | None, read_at_ms: int) -> bool:
    """Return whether an event that was there at a time of day may have been deleted by its topic's retention."""
    kept_ms = RETENTION_MS.get(topic)
    return kept_ms is not None and known_ms is not None and known_ms + kept_ms <= read_at_ms


def _published(
    found: Findings,
    log: LogAccount,
    row: OutboxRow,
    newest: Mapping[tuple[str, int, str], int],
    *,
    name: str,
    is_expired: bool,
) -> None:
    reader = log.reader
    number = reader.rows.get(row.packed_id)
    if number is None:
        place = (row.topic, -1 if row.partition is None else row.partition)
        offset = -1 if row.offset is None else row.offset
        end, start = log.ends.get(place, 0), log.starts.get(place, 0)
        if offset >= end:
            what = f"{row.type} was acknowledged at or beyond the log's end {end}: the acknowledged tail is lost"
        elif offset < start:
            if is_expired:
                return  # older than its topic keeps it
            what = f"{row.type} was deleted before its time: the log starts at {start}"
        elif row.topic in COMPACTED and row.key is not None:
            if newest[row.topic, place[1], row.key] > offset and reader.newer_of_key(place, row.key.encode(), offset):
                return  # a newer record of the same key replaced it
            what = f"{row.type} is the newest of key {row.key} by {name} and is not in {LOG}"
        else:
            what = f"{row.type} was acknowledged and is not in {LOG}"
        found.add(what, topic=row.topic, partition=row.partition, offset=row.offset, id=row.id)
        return
    at = reader.place_of(number)
    if reader.content_of(number) != row.content:
        found.extend([reader.finding(f"{row.type} is not in {LOG} as {name} wrote it", number)])
    elif at.topic != row.topic or at.partition != row.partition:
        what = f"{row.type} was acknowledged in {row.topic}-{row.partition} and is in {at.topic}-{at.partition}"
        found.extend([reader.finding(what, number)])


def _offsets(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    found = Findings()
    records = 0
    keys = _keys(accounts, log)
    for place, end in sorted(log.ends.items()):
        part = log.partitions[place]
        records += part.records
        topic, partition = place
        markers = list(log.reader.replayed.get(place, ()))
        for first, last in part.gaps:
            if last - first == 1 and markers and markers[0] < first:
                markers.pop(0)  # the end of the transaction in which a dead letter was replayed
            elif topic not in COMPACTED:
                found.add(
                    f"offsets {first} to {last - 1} hold no record, and the topic is not compacted",
                    topic=topic,
                    partition=partition,
                    offset=first,
                )
            else:
                _explain(found, log, place, range(first, last), keys[place])
        if part.next_offset < end:
            found.add(f"was read to {part.next_offset} of {end}", topic=topic, partition=partition, offset=end)
        if part.start > 0 and topic not in COMPACTED:
            kept_ms = RETENTION_MS.get(topic)
            if kept_ms is None:
                found.add("the first offsets are gone and nothing may delete them", topic=topic, partition=partition)
    found.extend(log.reader.broken)
    partitions = len(log.ends)
    return found.judge(f"{records:,} records in {partitions} partitions, each offset once and each an event")


def _explain(found: Findings, log: LogAccount, place: Partition, offsets: range, keys: Mapping[int, str]) -> None:
    """A hole in a compacted topic must have held keys of which the log has something newer."""
    for offset in offsets:
        key = keys.get(offset)
        if key is not None and log.reader.newer_of_key(place, key.encode(), offset):
            continue
        who = "no account says what was there" if key is None else f"nothing newer of key {key} is in the log"
        found.add(f"the record is gone, and {who}", topic=place[0], partition=place[1], offset=offset, id=key)


def _keys(accounts: Accounts, log: LogAccount) -> dict[Partition, dict[int, str]]:
    """Return what other accounts say which key was where, of the compacted partitions that have holes."""
    holes = {place for place, part in log.partitions.items() if part.gaps and place[0] in COMPACTED}
    keys: dict[Partition, dict[int, str]] = {place: {} for place in holes}
    if holes and isinstance(accounts.journal, JournalAccount):
        for (topic, partition, offset), key in accounts.journal.keys.items():
            if (topic, partition) in holes:
                keys[topic, partition][offset] = key
    if holes and isinstance(accounts.booking, BookingAccount):
        for row in accounts.booking.outbox:
            if row.partition is not None and row.offset is not None and row.key is not None:
                place = (row.topic, row.partition)
                if place in holes:
                    keys[place][row.offset] = row.key
    return keys


def _repeats(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    copies = {copy.place for copy in accounts.poison}
    copied = {copy.id: copy for copy in accounts.poison}
    again: dict[str, int] = {}
    replayed = 0
    for row in reader.repeats:
        if reader.place_of(row) in copies:
            continue  # `dead-letters` asks who has set it aside
        event_id = reader.id_of(row)
        first = reader.row_of(event_id)
        assert first is not None
        place, source = reader.place_of(first), reader.source_of(row)
        if event_id in copied and row in reader.changed:
            replayed += 1
            if not _says_the_same(reader.changed[row], copied[event_id].value):
                what = (
                    "a dead letter was replayed, and says something else than the event at "
                    f"{place.topic}-{place.partition} offset {place.offset}"
                )
                found.extend([reader.finding(what, row)])
            continue
        if reader.content_of(row) != reader.content_of(first):
            what = (
                f"the event's id is at {place.topic}-{place.partition} offset {place.offset}, too, with other content"
            )
            found.extend([reader.finding(what, row)])
            continue
        producer = PRODUCERS.get(source, source)
        again[producer] = again.get(producer, 0) + 1
        restarted = accounts.restarted
        if restarted is not None and not restarted & {producer, "broker"}:
            what = (
                f"the event is at {place.topic}-{place.partition} offset {place.offset}, too, "
                f"and neither {producer} nor the broker was restarted"
            )
            found.extend([reader.finding(what, row)])
    mended = f"; {_counted(replayed, 'mended dead letter')} replayed" if replayed else ""
    if not again:
        return found.judge(f"no event is in the log twice{mended}")
    shown = ", ".join(f"{count:,} by {producer}" for producer, count in sorted(again.items()))
    if found.count == 0 and accounts.restarted is None:
        return Judgement(agreement=f"{shown}: nobody counted restarts, after which that is right", shown=True)
    return found.judge(f"{shown}, after a restart or by a click, each word for word{mended}")


def _says_the_same(value: bytes, other: str) -> bool:
    """Return whether two values are the same JSON, however it is written."""
    try:
        return bool(from_json(value) == from_json(other))
    except ValueError:
        return False


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _groups(accounts: Accounts) -> Judgement:
    log, groups = accounts.log, accounts.groups
    assert isinstance(log, LogAccount)
    assert isinstance(groups, GroupsAccount)
    found = Findings()
    behind = 0
    for consumer in accounts.consumers:
        committed = groups.committed.get(consumer.group, {})
        for place, end in sorted(log.ends.items()):
            if place[0] not in consumer.topics:
                continue
            start = log.starts.get(place, 0)
            at = committed.get(place)
            if at is not None and at > end:
                found.add(
                    f"group {consumer.group} committed {at}, beyond the end {end}",
                    topic=place[0],
                    partition=place[1],
                    offset=at,
                    id=consumer.group,
                )
            reached = start if at is None else max(at, start)
            if reached < end and _holds_records(log, place, reached):
                behind += end - reached
                if not accounts.so_far:
                    found.add(
                        f"group {consumer.group} is {end - reached} records behind the end {end}",
                        topic=place[0],
                        partition=place[1],
                        offset=reached,
                        id=consumer.group,
                    )
    if accounts.so_far and not found.count:
        return Judgement(agreement=f"{behind:,} records are still to be read", shown=True)
    return found.judge(f"{len(accounts.consumers)} groups committed the end of every partition")


def _holds_records(log: LogAccount, place: Partition, offset: int) -> bool:
    """Whether a record is at the offset or after it: the end of a compacted partition may hold none."""
    part = log.partitions[place]
    return not any(first <= offset and last >= log.ends[place] for first, last in part.gaps)


def _letters(accounts: Accounts) -> Judgement:
    letters = accounts.letters
    assert isinstance(letters, LettersAccount)
    found = Findings()
    copies = {copy.place for copy in accounts.poison}
    set_aside: set[tuple[str, Place]] = set()
    read = {letter.topic for letter in letters.letters}
    for letter in letters.letters:
        if letter.origin is not None and letter.origin in copies:
            set_aside.add((letter.topic, letter.origin))
        else:
            what = f"a record was set aside: {letter.said}"
            found.add(what, topic=letter.topic, partition=letter.partition, offset=letter.offset)
    for topic, count in letters.counts.items():
        if count and topic not in read:
            found.add(f"{count:,} records were set aside", topic=topic)
    if not accounts.so_far:
        for copy in accounts.poison:
            for consumer in accounts.consumers:
                queue = f"{copy.topic}.{consumer.group}-dlt"
                if _must_set_aside(consumer, copy) and (queue, copy.place) not in set_aside:
                    what = f"{consumer.group} has not set aside the damaged {copy.type}"
                    found.add(what, topic=copy.topic, partition=copy.partition, offset=copy.offset, id=copy.id)
    if not accounts.poison:
        return found.judge(f"{len(letters.counts)} dead-letter topics are empty")
    return found.judge(
        f"{_counted(len(accounts.poison), 'damaged event')} by a click, set aside {len(set_aside):,} times; "
        "no other record was"
    )


def _must_set_aside(consumer: Consumer, copy: PoisonEvent) -> bool:
    return copy.topic in consumer.topics and (consumer.types is None or copy.type in consumer.types)


def _parked(accounts: Accounts) -> Judgement:
    parked = accounts.parked
    assert isinstance(parked, ParkedAccount)
    found = Findings()
    for event in parked.events:
        what = f"an event of {event.key} waits in {event.group}: {event.reason}"
        found.add(what, topic=event.topic, partition=event.partition, offset=event.offset, id=event.key)
    return found.judge("no key is parked")


def _still(accounts: Accounts) -> Judgement:
    if accounts.so_far:
        return Judgement(agreement="the run has not ended", shown=True)
    if accounts.moved:
        return Judgement(unchecked="the accounts are of different moments, as " + "; ".join(accounts.moved))
    return Judgement(agreement="nothing was published, committed or applied while the accounts were read")


LINES: Final = (
    LineSpec(
        id="outbox-log",
        name="what booking published is in the log, and nothing else",
        between=(OUTBOX, LOG),
        needs=("booking", "log"),
        judge=_outbox,
    ),
    LineSpec(
        id="outbox-payment-log",
        name="what payment published is in the log, and nothing else",
        between=(PAYMENT_OUTBOX, LOG),
        needs=("payment", "log"),
        judge=_payment_outbox,
    ),
    LineSpec(
        id="log-offsets",
        name="every offset of the log holds an event",
        between=("the broker's offsets", "the records that were read"),
        needs=("log",),
        judge=_offsets,
    ),
    LineSpec(
        id="log-repeats",
        name="no event is in the log twice without a restart",
        between=(LOG, "the launcher's count of restarts"),
        needs=("log",),
        judge=_repeats,
    ),
    LineSpec(
        id="groups-log",
        name="every group has read everything",
        between=("the groups' committed offsets", LOG),
        needs=("groups", "log"),
        judge=_groups,
    ),
    LineSpec(
        id="dead-letters",
        name="no event was set aside, unless a click has damaged it",
        between=("the dead-letter topics", LOG),
        needs=("letters", "log"),
        judge=_letters,
    ),
    LineSpec(
        id="parked-keys",
        name="no event waits for an earlier one of its key",
        between=("the parked keys of booking and payment", LOG),
        needs=("parked", "log"),
        judge=_parked,
    ),
    LineSpec(
        id="still",
        name="the accounts are of one moment",
        between=("the accounts before", "the accounts after"),
        needs=("log",),
        judge=_still,
    ),
)
