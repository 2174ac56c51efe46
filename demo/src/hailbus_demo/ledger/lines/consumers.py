"""Consumers: each event was claimed once, and what it must change is changed."""

from __future__ import annotations

from collections import Counter
from typing import Final

import h3

from hailbus_demo.ledger.accounts import (
    Accounts,
    BookingAccount,
    BookingMultiplier,
    InboxAccount,
    JournalAccount,
    Journey,
    RecommenderAccount,
)
from hailbus_demo.ledger.lines.log import RETENTION_MS
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOKING, ENDED, LOG, state_of
from hailbus_demo.ledger.log import COMPACTED, TOPIC_NAMES, LogAccount, LogReader, milliseconds, unpack_id
from hailbus_demo.ledger.model import Consumer, Findings, Judgement

GROUPS: Final = ("booking", "payment-saga", "surge", "recommender", "event-logger")
SPOT_RESOLUTION: Final = 11
BLOCK_RESOLUTION: Final = 9
"""H3 resolutions in which the recommender keeps where journeys begin and end."""
OPEN_FOR_S: Final = 900.0
"""Seconds of event time after which the recommender forgets a ride that nobody ended."""


def _inbox(group: str) -> LineSpec:
    def judge(accounts: Accounts) -> Judgement:
        log, inbox = accounts.log, accounts.inboxes[group]
        assert isinstance(log, LogAccount)
        assert isinstance(inbox, InboxAccount)
        consumer = next(one for one in accounts.consumers if one.group == group)
        return claimed(consumer, log, inbox, read_at_ms=accounts.read_at_ms)

    return LineSpec(
        id=f"inbox-{group}",
        name=f"{group} applied every event once",
        between=(LOG, f"the inbox of {group}"),
        needs=("log",),
        inbox=group,
        judge=judge,
    )


def wants(consumer: Consumer, reader: LogReader, row: int) -> bool:
    """Return whether a consumer must apply an event."""
    if consumer.types is not None and reader.type_of(row) not in consumer.types:
        return False
    return reader.place_of(row).topic in consumer.topics


def claimed(consumer: Consumer, log: LogAccount, inbox: InboxAccount, *, read_at_ms: int) -> Judgement:
    """Compare a consumer's inbox with the log, both ways."""
    reader, found = log.reader, Findings()
    times = Counter(inbox.ids)
    expected = 0
    for packed, row in reader.rows.items():
        if not wants(consumer, reader, row):
            continue
        expected += 1
        count = times.get(packed, 0)
        if count == 0:
            found.extend([reader.finding(f"{reader.type_of(row)} was not applied by {consumer.group}", row)])
        elif count > 1:
            found.extend([reader.finding(f"{reader.type_of(row)} was claimed {count} times by {consumer.group}", row)])
    for index, packed in enumerate(inbox.ids):
        place, offset = inbox.places[inbox.place[index]], inbox.offset[index]
        known = reader.rows.get(packed)
        if known is not None:
            if not wants(consumer, reader, known):
                what = f"{consumer.group} applied {reader.type_of(known)}, which it does not subscribe to"
                found.extend([reader.finding(what, known)])
            elif reader.place_of(known)[:2] != place:
                found.extend([reader.finding(f"{consumer.group} applied it from {place[0]}-{place[1]}", known)])
            continue
        if place[0] not in TOPIC_NAMES:
            continue  # a topic of the service's own, which the ledger does not read
        end, start = log.ends.get(place, 0), log.starts.get(place, 0)
        if offset >= end:
            what = f"{consumer.group} applied an event at or beyond the log's end {end}: the log lost it"
        elif offset < start and inbox.applied_ms[index] + RETENTION_MS.get(place[0], read_at_ms) <= read_at_ms:
            continue  # older than its topic keeps it
        elif place[0] in COMPACTED and log.partitions[place].hides(offset):
            continue  # `log-offsets` asks why it is gone
        else:
            what = f"{consumer.group} applied an event that is not in the log"
        found.add(what, topic=place[0], partition=place[1], offset=offset, id=unpack_id(packed))
    again = sum(inbox.seen.values()) - sum(inbox.rows.values())
    if again < 0:
        found.add(f"{-again} events were applied without being seen", id=consumer.group)
    repeated = f"; {again:,} were delivered again and passed over" if again > 0 else ""
    return found.judge(f"{expected:,} events, each applied once{repeated}")


def _timers(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    reader, found = log.reader, Findings()
    for timer in reader.timers:
        kind, subject, seq = timer.data["kind"], str(timer.data["subject_id"]), timer.seq
        if kind == "quote_expiry":
            quote = booking.quotes.get(subject)
            if quote is None or quote.state == "offered":
                state = "unknown" if quote is None else quote.state
                what = f"the time of quote {subject} is over, and it is still {state} by {BOOKING}"
                found.extend([reader.finding(what, timer.row)])
            continue
        ride = booking.rides.get(subject)
        waiting = ("requested", "redispatched") if kind == "match_timeout" else ("arrived",)
        if ride is None or (ride.state in waiting and ride.timer_seq == seq):
            state = "unknown" if ride is None else ride.state
            what = f"the time of ride {subject} for {kind} is over, and it is still {state} by {BOOKING}"
            found.extend([reader.finding(what, timer.row)])
    for timer in reader.overdue:
        subject, state = str(timer.data["ride_id"]), str(timer.data["state"])
        ride = booking.rides.get(subject)
        still_so = ride is not None and (ride.seeks_partner if state == "seeking_partner" else ride.state == state)
        if ride is None or (still_so and ride.timer_seq == timer.seq):
            what = f"the time of ride {subject} in state {state} is over, and it is still so by {BOOKING}"
            found.extend(
                [reader.finding(what if ride else f"overdue ride {subject} is unknown by {BOOKING}", timer.row)]
            )
    count = len(reader.timers) + len(reader.overdue)
    return found.judge(f"{count:,} timers have elapsed, and none is pending")


def _multipliers(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    reader, found = log.reader, Findings()
    for cell, steps in reader.cells.items():
        last = max(steps, key=lambda step: step.data["surge_version"])
        theirs = BookingMultiplier(
            last.data["multiplier"], last.data["surge_version"], milliseconds(last.data["valid_until"])
        )
        ours = booking.multipliers.get(cell)
        if ours != theirs:
            said = "nothing" if ours is None else f"{ours.multiplier} of version {ours.version}"
            what = f"cell {cell} costs {said} by {BOOKING}, {theirs.multiplier} of version {theirs.version} by {LOG}"
            found.extend([reader.finding(what, last.row)])
    for cell in booking.multipliers.keys() - reader.cells.keys():
        found.add(f"cell {cell} has a multiplier by {BOOKING} and none in {LOG}", topic="surge.v1", id=cell)
    return found.judge(f"{len(reader.cells):,} cells have the multiplier that surge published last")


def _journeys(accounts: Accounts) -> Judgement:
    log, recommender = accounts.log, accounts.recommender
    assert isinstance(log, LogAccount)
    assert isinstance(recommender, RecommenderAccount)
    reader, found = log.reader, Findings()
    learned = Counter(recommender.journeys)
    count = 0
    newest_s, opened = 0.0, {}
    for ride_id, steps in reader.rides.items():
        for step in steps:
            if step.type == "ride.requested":
                opened[ride_id] = step.time_ms / 1000
                newest_s = max(newest_s, opened[ride_id])
            if step.type != "ride.completed":
                continue
            count += 1
            pickup, dropoff = step.data["pickup"], step.data["dropoff"]
            journey = Journey(
                step.data["rider_id"],
                h3.latlng_to_cell(pickup["lat"], pickup["lng"], SPOT_RESOLUTION),
                h3.latlng_to_cell(dropoff["lat"], dropoff["lng"], BLOCK_RESOLUTION),
                milliseconds(step.data["started_at"]) / 1000,
            )
            if learned[journey] <= 0:
                found.extend([reader.finding(f"the recommender learned nothing from ride {ride_id}", step.row)])
            learned[journey] -= 1
    for journey, surplus in learned.items():
        if surplus > 0:
            what = f"the recommender learned {surplus} journeys of rider {journey.rider_id} that are not in {LOG}"
            found.add(what, id=journey.rider_id)
    for ride_id, steps in reader.rides.items():
        ended = state_of(steps) in ENDED
        is_pooled = any(step.type == "ride.pooled" for step in steps)
        if (ended or is_pooled) and ride_id in recommender.open_rides:
            done = "has ended" if ended else "is pooled"
            what = f"ride {ride_id} {done} and is open for sharing by the recommender"
            found.extend([reader.finding(what, steps[-1].row)])
        elif (
            not (ended or is_pooled)
            and ride_id not in recommender.open_rides
            and opened.get(ride_id, 0.0) >= newest_s - OPEN_FOR_S
        ):
            what = f"ride {ride_id} is under way and not open for sharing by the recommender"
            found.extend([reader.finding(what, steps[0].row)])
    for ride_id in recommender.open_rides - reader.rides.keys():
        found.add(f"the recommender holds ride {ride_id}, which is not in {LOG}", id=ride_id)
    return found.judge(f"{count:,} completed rides were learned once each")


def _journal(accounts: Accounts) -> Judgement:
    log, journal = accounts.log, accounts.journal
    assert isinstance(log, LogAccount)
    assert isinstance(journal, JournalAccount)
    reader, found = log.reader, Findings()
    for number, what in journal.broken:
        found.add(f"line {number} of the event logger's file: {what}")
    times = Counter(journal.ids)
    for packed, row in reader.rows.items():
        count = times.get(packed, 0)
        if count != 1:
            said = "is not in the event logger's file" if count == 0 else f"is {count} times in the event logger's file"
            found.extend([reader.finding(f"{reader.type_of(row)} {said}", row)])
    for index, packed in enumerate(journal.ids):
        place, offset = journal.places[journal.place[index]], journal.offset[index]
        known = reader.rows.get(packed)
        if known is not None:
            at = reader.place_of(known)
            if at[:2] != place or journal.value[index] != reader.value_of(known):
                what = f"{reader.type_of(known)} reads otherwise in the event logger's file ({place[0]}-{place[1]})"
                found.extend([reader.finding(what, known)])
            continue
        end, start = log.ends.get(place, 0), log.starts.get(place, 0)
        if offset >= end:
            what = f"the event logger wrote an event at or beyond the log's end {end}: the log lost it"
        elif offset < start and place[0] in RETENTION_MS:
            continue  # `outbox-log` and the inboxes judge by the time whether it may be gone
        elif place[0] in COMPACTED and log.partitions[place].hides(offset):
            continue  # `log-offsets` asks why it is gone
        else:
            what = "the event logger wrote an event that is not in the log"
        found.add(what, topic=place[0], partition=place[1], offset=offset, id=unpack_id(packed))
    return found.judge(f"{len(journal.ids):,} lines, one per event, with the bytes of the log")


LINES: Final = (
    *(_inbox(group) for group in GROUPS),
    LineSpec(
        id="booking-timers",
        name="booking acted on every timer",
        between=("booking-timers.v1 in the log", BOOKING),
        needs=("log", "booking"),
        judge=_timers,
    ),
    LineSpec(
        id="booking-multipliers",
        name="booking quotes at the latest multiplier",
        between=("surge.v1 in the log", "the multipliers in booking's database"),
        needs=("log", "booking"),
        judge=_multipliers,
    ),
    LineSpec(
        id="recommender-journeys",
        name="the recommender learned every completed ride once",
        between=("rides.v1 in the log", "the recommender's journeys"),
        needs=("log", "recommender"),
        judge=_journeys,
    ),
    LineSpec(
        id="journal-log",
        name="the event logger wrote every event once",
        between=(LOG, "the event logger's file"),
        needs=("log", "journal"),
        judge=_journal,
    ),
)
