"""Faults that are put into a recorded run, each with the line of the ledger that must find it.

A fault is lost, invented, doubled, reordered or altered data in one place. Where a service itself is wrong, what it
publishes agrees with what it stores: such faults are put into both, and into the lake.

`python -m tests.integration.demo.faults` prints the table that `demo/README.md` holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.model import Finding

from tests.integration.demo.recorded import (
    RecordedRun,
    data,
    header,
    lake_report_of,
    with_data,
    with_header,
)

NEW_ID: Final = "11111111-2222-4333-8444-555555555555"
Inject = Callable[[RecordedRun], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        place: Which account is wrong.
        what: The fault, in the words of the README's table.
        line: The id of the line that must find it.
        inject: Puts it into a run; returns where the ledger must point to (`what` holds words of the sentence).
    """

    place: str
    what: str
    line: str
    inject: Inject

    @property
    def name(self) -> str:
        """The test's name."""
        return f"{self.place}: {self.what}".replace(" ", "_")


FAULTS: Final[list[Fault]] = []


def fault(place: str, what: str, line: str) -> Callable[[Inject], Inject]:
    """Declare a fault."""

    def declare(inject: Inject) -> Inject:
        FAULTS.append(Fault(place=place, what=what, line=line, inject=inject))
        return inject

    return declare


def at(record: Any, what: str) -> Finding:
    """Return the finding about a record: its topic, partition, offset and event id."""
    return Finding(
        what=what, topic=record.topic, partition=record.partition, offset=record.offset, id=header(record, "ce_id")
    )


def _ride(run: RecordedRun, state: str) -> tuple[str, Any]:
    """Return a ride of booking's in a state: its id and its payment's captured or refunded record."""
    ride_id = run.ask("booking", "SELECT ride_id FROM booking_rides WHERE state = ? ORDER BY ride_id", state)[0][0]
    kind = "payment.captured" if state == "completed" else "payment.refunded"
    return ride_id, run.find(kind, ride_id=ride_id)


def _last_of(run: RecordedRun, topic: str) -> Any:
    return next(records[-1] for (name, _), records in sorted(run.records.items()) if name == topic and records)


def _everywhere(run: RecordedRun, record: Any) -> None:
    """Change a record in the log, the outbox, the event logger's file and the lake: its producer was wrong."""
    run.put(record)
    if header(record, "ce_source") == "/booking" and record.topic != "driver-locations.v1":
        run.outbox(record)
    lines = []
    for line in run.journal_lines():
        head, _, _ = line.partition(',"data":')
        mine = json.loads(head + "}")["id"] == header(record, "ce_id")
        lines.append(f'{head},"data":{record.value.decode()}}}' if mine else line)
    run.write_journal(lines)
    run.lake = lake_report_of(run.records)


# ------------------------------------------------------------------------------------------------ the log


@fault("the log", "the acknowledged tail of a partition is lost", "outbox-log")
def _(run: RecordedRun) -> Finding:
    last = _last_of(run, "payments.v1")
    run.drop_tail((last.topic, last.partition))
    return at(last, f"{header(last, 'ce_type')} was acknowledged at or beyond the log's end {last.offset}")


@fault("the log", "the tail of a topic without an outbox is lost", "journal-log")
def _(run: RecordedRun) -> Finding:
    last = _last_of(run, "forecasts.v1")
    run.drop_tail((last.topic, last.partition))
    return at(last, f"at or beyond the log's end {last.offset}: the log lost it")


@fault("the log", "a group has committed beyond the end", "groups-log")
def _(run: RecordedRun) -> Finding:
    last = _last_of(run, "forecasts.v1")
    run.drop_tail((last.topic, last.partition))
    what = f"group event-logger committed {last.offset + 1}, beyond the end {last.offset}"
    return Finding(what=what, topic=last.topic, partition=last.partition, offset=last.offset + 1, id="event-logger")


@fault("the log", "records in the middle are lost", "log-offsets")
def _(run: RecordedRun) -> Finding:
    first = next(r for r in run.all("rides.v1") if len(run.records[r.topic, r.partition]) > r.offset + 3)
    run.hide(first)
    what = f"offsets {first.offset} to {first.offset + 1} hold no record, and the topic is not compacted"
    return Finding(what=what, topic=first.topic, partition=first.partition, offset=first.offset)


@fault("the log", "a compacted topic lost the newest record of a key", "outbox-log")
def _(run: RecordedRun) -> Finding:
    drivers = run.all("drivers.v1")
    newest = {r.key: r.offset for r in drivers}
    first = next(
        r for r in drivers if newest[r.key] == r.offset and r.offset + 1 < len(run.records[r.topic, r.partition])
    )
    run.hide(first)
    assert first.key is not None
    return at(first, f"is the newest of key {first.key.decode()} by booking's outbox and is not in the log")


@fault("the log", "a compacted topic lost a price that nothing newer replaces", "log-offsets")
def _(run: RecordedRun) -> Finding:
    updates = run.all("surge.v1")
    newest = {r.key: r.offset for r in updates}
    first = next(
        r for r in updates if newest[r.key] == r.offset and r.offset + 1 < len(run.records[r.topic, r.partition])
    )
    run.hide(first)
    assert first.key is not None
    cell = first.key.decode()
    return Finding(
        what=f"the record is gone, and nothing newer of key {cell} is in the log",
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
        id=cell,
    )


@fault("the log", "an event of a ride is invented", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    made = run.append(with_header(ride, "ce_id", NEW_ID))
    return at(made, "ride.requested is in the log and not in booking's outbox")


@fault("the log", "an event of a ride is in another partition than the others", "order")
def _(run: RecordedRun) -> Finding:
    last = _last_of(run, "rides.v1")
    run.drop_tail((last.topic, last.partition))
    other = next(part for name, part in sorted(run.records) if name == last.topic and part != last.partition)
    moved = run.append(last._replace(partition=other))
    return at(moved, "its events are in several partitions")


@fault("the log", "an event is there twice", "log-repeats")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    again = run.append(ride)
    what = f"the event is at {ride.topic}-{ride.partition} offset {ride.offset}, too"
    return at(again, what)


@fault("the log", "an event's id carries other content a second time", "log-repeats")
def _(run: RecordedRun) -> Finding:
    run.restarted = frozenset({"booking", "broker"})
    again = run.append(with_data(run.find("ride.matched"), eta_s=1))
    return at(again, "with other content")


@fault("the log", "two events of a ride have changed places", "order")
def _(run: RecordedRun) -> Finding:
    for first in run.all("rides.v1"):
        later = [r for r in run.all("rides.v1") if r.key == first.key and r.offset > first.offset]
        if later:
            second = later[0]
            moved = second._replace(offset=first.offset), first._replace(offset=second.offset)
            for record in moved:
                run.put(record)
                run.outbox(record)
            assert first.key is not None
            return at(moved[1], f"ride {first.key.decode()}: event {data(first)['seq']} stands after event")
    raise AssertionError("no ride has two events")


@fault("the log", "a fare is altered", "outbox-log")
def _(run: RecordedRun) -> Finding:
    paid = run.find("payment.captured")
    run.put(with_data(paid, amount={"amount_minor": 1, "currency": "USD"}))
    return at(paid, "payment.captured is not in the log as booking's outbox wrote it")


@fault("the log", "a header is altered", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(with_header(ride, "ce_correlationid", "another"))
    return at(ride, "ride.requested is not in the log as booking's outbox wrote it")


@fault("the log", "bytes of a record without an outbox are altered", "journal-log")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    run.put(with_data(forecast, p90=data(forecast)["p90"] + 1))
    return at(forecast, "demand.forecast_published reads otherwise in the event logger's file")


@fault("the log", "a record is no event any more", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(ride._replace(value=b"{}"))
    return at(ride, "an event of type 'ride.requested' cannot be read")


@fault("the log", "a record has another key than its event", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(ride._replace(key=b"another"))
    return at(ride, "the record's key is 'another'")


@fault("the log", "a position is invented", "positions")
def _(run: RecordedRun) -> Finding:
    seen = run.find("driver.location_reported")
    made = run.append(with_header(with_data(seen, driver_id="driver-99999"), "ce_id", NEW_ID))
    return at(made, "a position that the riders' book did not send, or not so often")


@fault("the log", "a position is there twice under two ids", "positions")
def _(run: RecordedRun) -> Finding:
    seen = run.find("driver.location_reported")
    made = run.append(with_header(seen, "ce_id", NEW_ID))
    return at(made, "a position that the riders' book did not send, or not so often")


@fault("the log", "a record arrives while the accounts are read, again and again", "still")
def _(run: RecordedRun) -> Finding:
    return Finding(what="MOVES")  # the test publishes


# ------------------------------------------------------------------------------------------------ booking is wrong


@fault("booking", "a payment is captured a second time under an id of its own", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = _ride(run, "completed")
    made = run.append(with_header(with_data(paid, seq=3), "ce_id", NEW_ID))
    run.outbox(made)
    return at(made, f"ride {ride_id}: payment.captured a second time")


@fault("booking", "a rider is charged another fare than the ride's", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = _ride(run, "completed")
    _everywhere(run, with_data(paid, amount={"amount_minor": 191_900, "currency": "USD"}))
    return at(paid, f"ride {ride_id}: payment.captured of 191900, its ride.completed says")


@fault("booking", "a rider is charged more than was told, everywhere in booking", "money-book-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = _ride(run, "completed")
    fare = {"amount_minor": 191_900, "currency": "USD"}
    _everywhere(run, with_data(paid, amount=fare))
    _everywhere(run, with_data(run.find("ride.completed", ride_id=ride_id), fare=fare))
    run.sql("booking", "UPDATE booking_rides SET fare_minor = 191900 WHERE ride_id = ?", ride_id)
    return at(paid, f"ride {ride_id}: charged 191900 by the log")


@fault("booking", "the money of a ride without a driver is not given back", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, refund = _ride(run, "unmatched")
    held = run.records[refund.topic, refund.partition]
    last = held[-1]
    assert last is not None
    # The refund never was: another rider's event is where it would have been.
    run.sql("booking", "DELETE FROM hailbus_outbox WHERE id = ?", header(refund, "ce_id"))
    run.put(last._replace(offset=refund.offset))
    run.drop_tail((refund.topic, refund.partition))
    return Finding(what=f"ride {ride_id} is unmatched: payment.refunded of", topic="payments.v1", id=ride_id)


@fault("booking", "a refund of another amount than was reserved", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, refund = _ride(run, "unmatched")
    _everywhere(run, with_data(refund, amount={"amount_minor": 5, "currency": "USD"}))
    return at(refund, f"ride {ride_id}: 5 given back of")


@fault("booking", "a driver has two rides at once", "drivers-rides")
def _(run: RecordedRun) -> Finding:
    free = run.find("driver.became_free")
    other = run.find("ride.requested", nth=1)
    changed = {name: data(free)[name] for name in ("driver_id", "seq", "simulated")}
    body = json.dumps({**changed, "ride_id": data(other)["ride_id"]}, separators=(",", ":")).encode()
    record = with_header(free._replace(value=body), "ce_type", "driver.became_busy")
    record = with_header(record, "ce_dataschema", "hailbus:driver.became_busy/v1")
    run.put(record)
    run.outbox(record)
    return at(record, f"driver {data(free)['driver_id']} is busy with ride")


@fault("booking", "a quote is offered at a price that surge never published", "quotes-surge")
def _(run: RecordedRun) -> Finding:
    offered = run.find("quote.offered", surge_version=None)
    _everywhere(run, with_data(offered, multiplier=2.0))
    return at(offered, f"quoted at 2.0 in cell {data(offered)['pickup_cell']} by no update of surge")


@fault("booking's database", "a ride is lost", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "DELETE FROM booking_rides WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is in the riders' book and not in booking's database", id=ride_id)


@fault("booking's database", "a ride is invented", "rides-booking-log")
def _(run: RecordedRun) -> Finding:
    columns = [row[1] for row in run.ask("booking", "PRAGMA table_info(booking_rides)")]
    others = ", ".join(column for column in columns if column != "ride_id")
    run.sql(
        "booking", f"INSERT INTO booking_rides (ride_id, {others}) SELECT 'new', {others} FROM booking_rides LIMIT 1"
    )
    return Finding(
        what="ride new is in booking's database and no event of it is in the log", topic="rides.v1", id="new"
    )


@fault("booking's database", "a ride is in a state that does not exist", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "UPDATE booking_rides SET state = 'banana' WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is 'banana' by booking's database, which is no state of a ride", id=ride_id)


@fault("booking's database", "a ride has another driver than the log tells", "rides-booking-log")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id = data(done)["ride_id"]
    run.sql("booking", "UPDATE booking_rides SET driver_id = 'nobody' WHERE ride_id = ?", ride_id)
    return at(done, f"ride {ride_id}: driver is nobody by booking's database")


@fault("booking's database", "a ride has more events than the log", "order")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id, seq = data(done)["ride_id"], data(done)["seq"]
    run.sql("booking", "UPDATE booking_rides SET seq = seq + 1 WHERE ride_id = ?", ride_id)
    return at(done, f"ride {ride_id}: booking's database has {seq + 1} events, the log ends with {seq}")


@fault("booking's database", "a payment is in another state than its ride", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = _ride(run, "completed")
    run.sql("booking", "UPDATE booking_rides SET payment = 'authorised' WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is completed and its payment 'authorised'", id=ride_id)


@fault("booking's database", "a driver is busy with a ride that has ended", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = _ride(run, "completed")
    driver_id = run.ask("booking", "SELECT min(driver_id) FROM booking_drivers")[0][0]
    run.sql(
        "booking", "UPDATE booking_drivers SET status = 'busy', ride_id = ? WHERE driver_id = ?", ride_id, driver_id
    )
    return Finding(what=f"driver {driver_id} is busy with ride {ride_id}, which has ended", id=driver_id)


@fault("booking's database", "a multiplier is not surge's latest", "booking-multipliers")
def _(run: RecordedRun) -> Finding:
    cell = run.ask("booking", "SELECT min(cell) FROM booking_multipliers")[0][0]
    run.sql("booking", "UPDATE booking_multipliers SET version = version - 1 WHERE cell = ?", cell)
    last = max((r for r in run.all("surge.v1") if data(r)["cell"] == cell), key=lambda r: data(r)["surge_version"])
    return at(last, f"cell {cell} costs")


@fault("booking's database", "a multiplier is there that surge never published", "booking-multipliers")
def _(run: RecordedRun) -> Finding:
    cell = run.ask("booking", "SELECT min(cell) FROM booking_multipliers")[0][0]
    run.sql("booking", "UPDATE booking_multipliers SET cell = '88ffffffffffff' WHERE cell = ?", cell)
    what = "cell 88ffffffffffff has a multiplier by booking's database and none in the log"
    return Finding(what=what, topic="surge.v1", id="88ffffffffffff")


@fault("booking's database", "a timer was claimed and nothing came of it", "booking-timers")
def _(run: RecordedRun) -> Finding:
    timer = run.find("booking.timer_elapsed", kind="quote_expiry")
    quote_id = data(timer)["subject_id"]
    run.sql("booking", "UPDATE booking_quotes SET state = 'offered' WHERE quote_id = ?", quote_id)
    return at(timer, f"the time of quote {quote_id} is over, and it is still offered")


@fault("booking's outbox", "a published event is lost", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.sql("booking", "DELETE FROM hailbus_outbox WHERE id = ?", header(ride, "ce_id"))
    return at(ride, "ride.matched is in the log and not in booking's outbox")


@fault("booking's outbox", "an event is invented", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.outbox(with_header(ride, "ce_id", NEW_ID))
    return Finding(
        what="ride.matched was acknowledged and is not in the log",
        topic=ride.topic,
        partition=ride.partition,
        offset=ride.offset,
        id=NEW_ID,
    )


@fault("booking's outbox", "an event is due and was not published", "outbox-log")
def _(run: RecordedRun) -> Finding:
    run.outbox(with_header(run.find("ride.matched"), "ce_id", NEW_ID))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL WHERE id = ?", NEW_ID)
    return Finding(what="ride.matched is due and not published", topic="rides.v1", id=NEW_ID)


@fault("booking's outbox", "an event was refused by the broker", "outbox-log")
def _(run: RecordedRun) -> Finding:
    run.outbox(with_header(run.find("ride.matched"), "ce_id", NEW_ID))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL, failed_at = 1 WHERE id = ?", NEW_ID)
    return Finding(what="ride.matched could not be published", topic="rides.v1", id=NEW_ID)


@fault("booking's outbox", "an event that was cancelled is in the log", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    statement = "UPDATE hailbus_outbox SET published_at = NULL, cancelled_at = 1 WHERE id = ?"
    run.sql("booking", statement, header(ride, "ce_id"))
    return at(ride, "ride.matched is cancelled by booking's outbox and in the log all the same")


# ------------------------------------------------------------------------------------------------ consumers

_INBOXES: Final = {
    "booking": ("booking", "booking.timer_elapsed"),
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

        place = f"the inbox of {group}"
        fault(place, "an event was not applied", f"inbox-{group}")(lost)
        fault(place, "an event was applied from another partition", f"inbox-{group}")(of_another_partition)
        fault(place, "an event was applied that is not in the log", f"inbox-{group}")(invented)
        fault(place, "an event was applied twice", f"inbox-{group}")(twice)
        fault(place, "the rows are another consumer's", f"inbox-{group}")(of_another)


_declare_inboxes()


@fault("the groups' offsets", "a group has not read to the end", "groups-log")
def _(run: RecordedRun) -> Finding:
    place = next(iter(sorted(place for place in run.committed["booking"] if run.records[place])))
    end = len(run.records[place])
    run.committed["booking"][place] = end - 1
    what = f"group booking is 1 records behind the end {end}"
    return Finding(what=what, topic=place[0], partition=place[1], offset=end - 1, id="booking")


@fault("the dead-letter topics", "an event was set aside", "dead-letters")
def _(run: RecordedRun) -> Finding:
    topic = "rides.v1.surge-dlt"
    run.letters[topic] = [run.find("ride.matched")._replace(topic=topic, partition=0, offset=0)]
    return Finding(what="a record was set aside", topic=topic, partition=0, offset=0)


def _table(run: RecordedRun, topic: str, change: Callable[[str, Any], Any]) -> None:
    """Append a changed copy of the latest row of each key that `change` changes to a changelog of surge's."""
    latest = {r.key: r for r in run.all(topic)}
    for record in latest.values():
        changed = change(json.loads(record.key or b'""'), json.loads(record.value or b"null"))
        if changed is not None:
            run.append(record._replace(value=json.dumps(changed).encode()))


@fault("surge's tables", "requested rides are not counted", "surge-pickups")
def _(run: RecordedRun) -> Finding:
    _table(run, "surge-slots-changelog", lambda _, row: {} if row else None)
    first = min(run.all("rides.v1"), key=lambda r: (r.timestamp_ms, r.partition, r.offset))
    assert header(first, "ce_type") == "ride.requested"
    return Finding(what="rides were requested in cell", topic="rides.v1")


@fault("surge's tables", "surge claims events and closes no minute", "surge-pickups")
def _(run: RecordedRun) -> Finding:
    _table(run, "surge-city-changelog", lambda key, row: {**row, "closed_until_ms": 0} if key == "state" else None)
    return Finding(what="surge has closed the minutes until 0", id="surge")


@fault("surge's tables", "a price is held that was never published", "surge-prices")
def _(run: RecordedRun) -> Finding:
    cell = "882a100d25fffff"
    _table(
        run,
        "surge-city-changelog",
        lambda key, row: {**row, "prices": {cell: [2.0, 2.0, 2.0, 1]}} if key == "state" else None,
    )
    return Finding(what=f"cell {cell} costs 2.0 by surge's tables", id=None)


def _forget(run: RecordedRun, topic: str, key: str) -> None:
    """Take every record of a key out of the log, as if it had never been published; later ones move up."""
    for place in [place for place in run.records if place[0] == topic]:
        kept = [record for record in run.records[place] if record is not None and record.key != key.encode()]
        run.records[place] = [record._replace(offset=offset) for offset, record in enumerate(kept)]


@fault("surge", "an update states demand that was not there", "surge-demand")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    _everywhere(run, with_data(update, demand=99.0))
    return at(update, f"cell {data(update)['cell']}: demand 99.0 at")


@fault("surge", "a multiplier beyond the cap is published", "surge-demand")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    _everywhere(run, with_data(update, multiplier=17.0))
    return at(update, f"cell {data(update)['cell']}: multiplier 17.0 is no tenth between 1.0 and 3.0")


@fault("surge", "a price that is due is not published", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    # Surge forgot one cell altogether: neither its table nor booking knows a price of it.
    cell = data(run.find("surge.updated"))["cell"]
    _forget(run, "surge.v1", cell)
    run.sql("booking", "DELETE FROM booking_multipliers WHERE cell = ?", cell)
    return Finding(what=f"cell {cell} must cost", topic="surge.v1", id=cell)


@fault("surge", "an update is published for supply that was not there", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    _everywhere(run, with_data(update, supply=50.0))
    return at(update, f"cell {data(update)['cell']} costs")


@fault("surge", "no forecast is published in a busy interval", "forecasts")
def _(run: RecordedRun) -> Finding:
    for place in [place for place in run.records if place[0] == "forecasts.v1"]:
        run.records[place] = []
        for offsets in run.committed.values():
            offsets.pop(place, None)
    return Finding(what="and no forecast was published then", topic="rides.v1")


@fault("surge", "a forecast's quantiles fall", "forecasts")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    _everywhere(run, with_data(forecast, p10=9.0, p50=1.0))
    return at(forecast, f"cell {data(forecast)['cell']}: its quantiles 9.0, 1.0")


@fault("surge", "a cell is forecast in which nobody ever asked", "forecasts")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    made = forecast._replace(key=b"882a100001fffff")
    made = with_header(with_data(made, cell="882a100001fffff"), "ce_subject", "882a100001fffff")
    run.put(made)
    return at(made, "cell 882a100001fffff: no ride was requested there before")


@fault("the recommender's database", "a completed ride was claimed and not learned", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    statement = (
        "DELETE FROM recommender_journey WHERE id = (SELECT min(id) FROM recommender_journey WHERE rider_id = ?)"
    )
    assert run.sql("recommender", statement, data(done)["rider_id"]) == 1
    return Finding(what="the recommender learned nothing from ride", topic="rides.v1")


@fault("the recommender's database", "a completed ride was learned twice", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    columns = "rider_id, pickup_cell, dropoff_cell, started_s"
    run.sql(
        "recommender",
        f"INSERT INTO recommender_journey ({columns}) SELECT {columns} FROM recommender_journey ORDER BY id LIMIT 1",
    )
    rider = run.ask("recommender", "SELECT rider_id FROM recommender_journey ORDER BY id LIMIT 1")[0][0]
    return Finding(what=f"the recommender learned 1 journeys of rider {rider} that are not in the log", id=rider)


@fault("the recommender's database", "a ride that has ended is open for sharing", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = _ride(run, "completed")
    run.sql("recommender", "INSERT INTO recommender_open_ride VALUES (?, 'r', 'a', 'b', 0)", ride_id)
    return Finding(what=f"ride {ride_id} has ended and is open for sharing by the recommender", topic="rides.v1")


@fault("the recommender's database", "an answer is lost", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "DELETE FROM recommender_answer WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name} is in the log and not in the recommender's database")


@fault("the recommender's database", "an answer was kept and not published", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    columns = "rider_id, served_at, model, request, options, simulated"
    run.sql(
        "recommender",
        f"INSERT INTO recommender_answer (recommendation_id, {columns}) SELECT ?, {columns} FROM recommender_answer "
        "ORDER BY number LIMIT 1",
        NEW_ID,
    )
    what = f"recommendation {NEW_ID} is in the recommender's database and was not published"
    return Finding(what=what, topic="recommendations.v1", id=NEW_ID)


@fault("the recommender's database", "an answer names another rider", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "UPDATE recommender_answer SET rider_id = 'other' WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name} was published otherwise than the recommender's database has it")


@fault("the recommender", "two options are served at the same rank", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    options = data(served)["options"]
    kind = options[0]["kind"]
    same = [one for one in options if one["kind"] == kind]
    _everywhere(run, with_data(served, options=[*options, {**same[-1], "option_id": "other"}]))
    ranks = [*(one["rank"] for one in same), same[-1]["rank"]]
    return at(served, f"recommendation {data(served)['recommendation_id']} ranks its {kind}s {ranks}")


@fault("the recommender", "an option is taken at a rank at which it was not served", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    told = data(served)
    option = told["options"][0]
    made = with_header(with_header(served, "ce_type", "recommendation.chosen"), "ce_id", NEW_ID)
    made = with_header(made, "ce_dataschema", "hailbus:recommendation.chosen/v1")
    content = {
        "recommendation_id": told["recommendation_id"],
        "rider_id": told["rider_id"],
        "option_id": option["option_id"],
        "rank": 99,
    }
    made = run.append(made._replace(value=json.dumps(content).encode()))
    return at(made, f"recommendation {told['recommendation_id']}: {option['option_id']} at rank 99 was not served")


@fault("the event logger's file", "a line is lost", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.write_journal([line for line in run.journal_lines() if f'"id":"{header(ride, "ce_id")}"' not in line])
    return at(ride, "ride.matched is not in the event logger's file")


@fault("the event logger's file", "a line is there twice", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    lines = run.journal_lines()
    run.write_journal([*lines, *(line for line in lines if f'"id":"{header(ride, "ce_id")}"' in line)])
    return at(ride, "ride.matched is 2 times in the event logger's file")


@fault("the event logger's file", "a line is altered", "journal-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    mark = f'"id":"{header(ride, "ce_id")}"'
    run.write_journal([line.replace('"eta_s":', '"eta_s":9') if mark in line else line for line in run.journal_lines()])
    return at(ride, "ride.matched reads otherwise in the event logger's file")


@fault("the event logger's file", "a line is torn", "journal-log")
def _(run: RecordedRun) -> Finding:
    lines = run.journal_lines()
    run.write_journal([*lines[:-1], lines[-1][: len(lines[-1]) // 2]])
    return Finding(what=f"line {len(lines)} of the event logger's file: the line is torn")


@fault("the event logger's file", "a line is invented", "journal-log")
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


# ------------------------------------------------------------------------------------------------ the riders' book


def _book(run: RecordedRun, kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in run.book_lines() if line["kind"] == kind)


@fault("the riders' book", "a ride is lost", "rides-book-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    ride_id = data(ride)["ride_id"]
    run.write_book([line for line in run.book_lines() if line.get("ride_id") != ride_id])
    return at(ride, f"ride {ride_id} is in the log and not in the riders' book")


@fault("the riders' book", "a ride is invented", "rides-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "ride")), "ride_id": "new"}])
    return Finding(what="ride new is in the riders' book and no event of it is in the log", topic="rides.v1", id="new")


@fault("the riders' book", "a rider was told another end of the ride", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = _ride(run, "unmatched")
    lines = run.book_lines()
    for line in lines:
        if line.get("ride_id") == ride_id and line["state"] == "unmatched":
            line["state"] = "cancelled"
    run.write_book(lines)
    what = f"ride {ride_id}: state is cancelled by the riders' book, unmatched by booking's database"
    return Finding(what=what, id=ride_id)


@fault("the riders' book", "a ride is under way after the end", "rides-ended")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id = data(done)["ride_id"]
    run.write_book(
        [line for line in run.book_lines() if line.get("ride_id") != ride_id or line["state"] != "completed"]
    )
    return at(done, f"ride {ride_id} is under way after the end: completed by the log")


@fault("the riders' book", "a quote was shown at another fare", "quotes-book-log")
def _(run: RecordedRun) -> Finding:
    lines = run.book_lines()
    quote = next(line for line in lines if line["kind"] == "quote")
    quote["fare_minor"] += 1
    run.write_book(lines)
    offered = run.find("quote.offered", quote_id=quote["quote_id"])
    return at(offered, f"quote {quote['quote_id']}: fare is {quote['fare_minor']} by the riders' book")


@fault("the riders' book", "a quote was shown that is not in the log", "quotes-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "quote")), "quote_id": "new"}])
    return Finding(what="quote new is in the riders' book and was not offered by the log", topic="quotes.v1", id="new")


@fault("the riders' book", "a fare does not follow from the price list", "money-book-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = _ride(run, "completed")
    lines = run.book_lines()
    for line in lines:
        if line.get("ride_id") == ride_id and line["state"] == "completed":
            line["distance_m"] += 10_000
    run.write_book(lines)
    return Finding(what=f"ride {ride_id}:", id=ride_id)


@fault("the riders' book", "a recommendation was served that is not in the log", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "advice")), "recommendation_id": "new"}])
    what = "recommendation new was served by the riders' book and is not in the log"
    return Finding(what=what, topic="recommendations.v1", id="new")


@fault("the riders' book", "a recommendation was taken that is not in the log", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    advice = next(line for line in _book(run, "advice") if line["chosen"] is None)
    chosen = {line["recommendation_id"] for line in _book(run, "advice") if line["chosen"] is not None}
    assert advice["recommendation_id"] not in chosen
    run.write_book([*run.book_lines(), {**advice, "chosen": advice["options"][0]}])
    served = run.find("recommendation.served", recommendation_id=advice["recommendation_id"])
    return at(served, f"recommendation {advice['recommendation_id']}: option {advice['options'][0]} was taken by")


@fault("the riders' book", "a position was not sent", "positions")
def _(run: RecordedRun) -> Finding:
    path = run.folder / "book.jsonl.positions"
    path.write_bytes(path.read_bytes()[: 8 * 3])
    return Finding(what="a position that the riders' book did not send", topic="driver-locations.v1")


# ------------------------------------------------------------------------------------------------ the lake


@fault("the lake", "a row of bronze is missing", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    part = next(one for one in run.lake["partitions"] if one["log_records"])
    part["lake_records"] -= 1
    records = part["log_records"]
    return Finding(
        what=f"{records:,} records with checksum", topic=part["topic"], partition=part["partition"], offset=0
    )


@fault("the lake", "bytes of bronze are altered", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    part = next(one for one in run.lake["partitions"] if one["log_records"])
    part["lake_checksum"] = "0123456789abcdef"
    return Finding(what="0123456789abcdef in the lake", topic=part["topic"], partition=part["partition"], offset=0)


@fault("the lake", "a topic was left out of the comparison", "lake-bronze")
def _(run: RecordedRun) -> Finding:
    run.lake["partitions"] = [one for one in run.lake["partitions"] if one["topic"] != "payments.v1"]
    return Finding(what="records are in the log, and the lake was not asked for them", topic="payments.v1")


def _told(run: RecordedRun, number: int) -> Finding:
    found = {"message": "a row is altered", "topic": "rides.v1", "partition": 1, "offset": 2, "id": NEW_ID}
    run.lake["lines"][number] |= {"verdict": "disagrees", "findings": [found]}
    return Finding(what="a row is altered", topic="rides.v1", partition=1, offset=2, id=NEW_ID)


@fault("the lake", "a row of silver is altered", "lake-silver")
def _(run: RecordedRun) -> Finding:
    return _told(run, 1)


@fault("the lake", "a row of gold is altered", "lake-gold")
def _(run: RecordedRun) -> Finding:
    return _told(run, 2)


def table() -> list[str]:
    """Return the rows of the README's table: where, fault, and the line that finds it."""
    names = {spec.id: spec.name for spec in LINES}
    return [f"| {one.place} | {one.what} | {names[one.line]} |" for one in FAULTS]


if __name__ == "__main__":
    print("| Where | Fault | Line that finds it |\n|---|---|---|", *table(), sep="\n")
