"""Faults of inboxes, committed offsets, dead-letter topics and the event logger's file."""

from __future__ import annotations

from typing import Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at
from tests.integration.demo.recorded import RecordedRun, header

FAULTS: Final = Faults()


_INBOXES: Final = {
    "booking": ("booking", "booking.timer_elapsed"),
    "payment-saga": ("payment", "ride.requested"),
    "surge": ("surge", "ride.requested"),
    "recommender": ("recommender", "ride.completed"),
    "event-logger": ("logger", "ride.matched"),
}


def _declare_inboxes() -> None:
    for group, (database, kind) in _INBOXES.items():

        def lost(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            event = run.find(kind)
            assert run.sql(database, "DELETE FROM hailbus_inbox WHERE event_id = ?", header(event, "ce_id")) == 1
            return at(event, f"{kind} was not applied by {group}")

        def invented(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            event = run.find(kind)
            values = (group, NEW_ID, event.topic, event.partition, event.offset)
            statement = 'INSERT INTO hailbus_inbox VALUES (?, "/booking", ?, ?, ?, ?, 1, 1)'
            run.sql(database, statement.replace('"/booking"', "'/booking'"), *values)
            what = f"{group} applied an event that is not in the log"
            return Finding(what=what, topic=event.topic, partition=event.partition, offset=event.offset, id=NEW_ID)

        def of_another(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            run.sql(database, "UPDATE hailbus_inbox SET consumer = 'another'")
            return at(run.find(kind), f"{kind} was not applied by {group}")

        def twice(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            event = run.find(kind)
            columns = "event_id, topic, partition, offset_, seen_count, applied_at"
            statement = (
                f"INSERT INTO hailbus_inbox (consumer, source, {columns}) SELECT consumer, '/other', {columns} "
                "FROM hailbus_inbox WHERE event_id = ?"
            )
            run.sql(database, statement, header(event, "ce_id"))
            return at(event, f"{kind} was claimed 2 times by {group}")

        def of_another_partition(
            run: RecordedRun, group: str = group, database: str = database, kind: str = kind
        ) -> Finding:
            event = run.find(kind)
            statement = 'UPDATE hailbus_inbox SET "partition" = 99 WHERE event_id = ?'
            assert run.sql(database, statement, header(event, "ce_id")) == 1
            return at(event, f"{group} applied it from {event.topic}-99")

        def unseen(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            run.sql(
                database, "UPDATE hailbus_inbox SET seen_count = 0 WHERE event_id = ?", header(run.find(kind), "ce_id")
            )
            return Finding(what="1 events were applied without being seen", id=group)

        def of_another_topic(
            run: RecordedRun, group: str = group, database: str = database, kind: str = kind
        ) -> Finding:
            # The event logger subscribes to every topic.
            event = run.find("recommendation.served")
            values = (group, header(event, "ce_id"), event.topic, event.partition, event.offset)
            run.sql(database, "INSERT INTO hailbus_inbox VALUES (?, '/booking', ?, ?, ?, ?, 1, 1)", *values)
            return at(event, f"{group} applied recommendation.served, which it does not subscribe to")

        place = f"the inbox of {group}"
        FAULTS.declare(place, "an event was not applied", f"inbox-{group}")(lost)
        FAULTS.declare(place, "an event was applied from another partition", f"inbox-{group}")(of_another_partition)
        FAULTS.declare(place, "an event was applied that is not in the log", f"inbox-{group}")(invented)
        FAULTS.declare(place, "an event was applied twice", f"inbox-{group}")(twice)
        FAULTS.declare(place, "an event was applied and never seen", f"inbox-{group}")(unseen)
        if group != "event-logger":
            FAULTS.declare(place, "an event was applied that the group does not read", f"inbox-{group}")(
                of_another_topic
            )
        FAULTS.declare(place, "the rows are another consumer's", f"inbox-{group}")(of_another)


_declare_inboxes()


@FAULTS.declare("the groups' offsets", "a group has not read to the end", "groups-log")
def _(run: RecordedRun) -> Finding:
    place = next(iter(sorted(place for place in run.committed["booking"] if run.records[place])))
    end = len(run.records[place])
    run.committed["booking"][place] = end - 1
    what = f"group booking is 1 records behind the end {end}"
    return Finding(what=what, topic=place[0], partition=place[1], offset=end - 1, id="booking")


@FAULTS.declare("the dead-letter topics", "an event was set aside", "dead-letters")
def _(run: RecordedRun) -> Finding:
    topic = "rides.v1.surge-dlt"
    run.letters[topic] = [run.find("ride.matched")._replace(topic=topic, partition=0, offset=0)]
    return Finding(what="a record was set aside", topic=topic, partition=0, offset=0)


@FAULTS.declare("the dead-letter topics", "a group has not set a damaged event aside", "dead-letters")
def _(run: RecordedRun) -> Finding:
    copy = run.damage(run.find("ride.requested"))
    for group in ("payment-saga", "recommender", "event-logger"):
        run.set_aside(copy, by=group)
    return at(copy, "surge has not set aside the damaged ride.requested")


def _declare_parked() -> None:
    for group, database, kind in (
        ("booking", "booking", "payment.captured"),
        ("payment-saga", "payment", "ride.started"),
    ):

        def parked(run: RecordedRun, group: str = group, database: str = database, kind: str = kind) -> Finding:
            event = run.find(kind)
            assert event.key is not None
            key, reason = event.key.decode(), "seq 3 came where 2 was due"
            run.sql(
                database,
                'INSERT INTO hailbus_parked (consumer, topic, "partition", offset_, record_timestamp, key, value, '
                "headers, reason, attempts, parked_at) VALUES (?, ?, ?, ?, 1, ?, ?, '[]', ?, 0, 1)",
                *(group, event.topic, event.partition, event.offset, event.key, event.value, reason),
            )
            what = f"an event of {key} waits in {group}: {reason}"
            return Finding(what=what, topic=event.topic, partition=event.partition, offset=event.offset, id=key)

        FAULTS.declare(f"{database}'s parking lot", "an event waits for one that never came", "parked-keys")(parked)


_declare_parked()


@FAULTS.declare("the event logger's file", "a line is lost", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.write_journal([line for line in run.journal_lines() if f'"id":"{header(ride, "ce_id")}"' not in line])
    return at(ride, "ride.matched is not in the event logger's file")


@FAULTS.declare("the event logger's file", "a line is there twice", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    lines = run.journal_lines()
    run.write_journal([*lines, *(line for line in lines if f'"id":"{header(ride, "ce_id")}"' in line)])
    return at(ride, "ride.matched is 2 times in the event logger's file")


@FAULTS.declare("the event logger's file", "a line is altered", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    mark = f'"id":"{header(ride, "ce_id")}"'
    run.write_journal([line.replace('"eta_s":', '"eta_s":9') if mark in line else line for line in run.journal_lines()])
    return at(ride, "ride.matched reads otherwise in the event logger's file")


@FAULTS.declare("the event logger's file", "a line is torn", "journal-log")
def _(run: RecordedRun) -> Finding:
    lines = run.journal_lines()
    run.write_journal([*lines[:-1], lines[-1][: len(lines[-1]) // 2]])
    return Finding(what=f"line {len(lines)} of the event logger's file: the line is torn")


@FAULTS.declare("the event logger's file", "a line is invented", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    mine = next(line for line in run.journal_lines() if f'"id":"{header(ride, "ce_id")}"' in line)
    run.write_journal([*run.journal_lines(), mine.replace(header(ride, "ce_id"), NEW_ID)])
    return Finding(
        what="the event logger wrote an event that is not in the log",
        topic=ride.topic,
        partition=ride.partition,
        offset=ride.offset,
        id=NEW_ID,
    )


@FAULTS.declare("the dead-letter topics", "more events were set aside than can be shown", "dead-letters")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    for topic in ("rides.v1.booking-dlt", "rides.v1.surge-dlt"):
        run.letters[topic] = [ride._replace(topic=topic, partition=0, offset=offset) for offset in range(1_000)]
    return Finding(what="1,000 records were set aside", topic="rides.v1.surge-dlt")


@FAULTS.declare("the event logger's file", "a line names no offset", "journal-log")
def _(run: RecordedRun) -> Finding:
    lines = run.journal_lines()
    run.write_journal([lines[0].replace('"offset":', '"place":', 1), *lines[1:]])
    return Finding(what="line 1 of the event logger's file: the line cannot be read: 'offset'")


@FAULTS.declare("the event logger's file", "a line names another partition", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    mark = f'"id":"{header(ride, "ce_id")}"'
    lines = run.journal_lines()
    assert any(mark in line and f'"partition":{ride.partition}' in line for line in lines)
    run.write_journal(
        [line.replace(f'"partition":{ride.partition}', '"partition":99') if mark in line else line for line in lines]
    )
    return at(ride, "ride.matched reads otherwise in the event logger's file (rides.v1-99)")
