"""Faults of the log."""

from __future__ import annotations

import json
from typing import Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at, last_of
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAULTS: Final = Faults()


@FAULTS.declare("the log", "the acknowledged tail of a partition is lost", "outbox-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "rides.v1")
    run.drop_tail((last.topic, last.partition))
    return at(last, f"{header(last, 'ce_type')} was acknowledged at or beyond the log's end {last.offset}")


@FAULTS.declare("the log", "the acknowledged tail of the payments is lost", "outbox-payment-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "payments.v1")
    run.drop_tail((last.topic, last.partition))
    return at(last, f"{header(last, 'ce_type')} was acknowledged at or beyond the log's end {last.offset}")


@FAULTS.declare("the log", "the tail of a topic without an outbox is lost", "journal-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "forecasts.v1")
    run.drop_tail((last.topic, last.partition))
    return at(last, f"at or beyond the log's end {last.offset}: the log lost it")


@FAULTS.declare("the log", "a group has committed beyond the end", "groups-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "forecasts.v1")
    run.drop_tail((last.topic, last.partition))
    what = f"group event-logger committed {last.offset + 1}, beyond the end {last.offset}"
    return Finding(what=what, topic=last.topic, partition=last.partition, offset=last.offset + 1, id="event-logger")


@FAULTS.declare("the log", "records in the middle are lost", "log-offsets")
def _(run: RecordedRun) -> Finding:
    first = next(r for r in run.all("rides.v1") if len(run.records[r.topic, r.partition]) > r.offset + 3)
    run.hide(first)
    what = f"offsets {first.offset} to {first.offset + 1} hold no record, and the topic is not compacted"
    return Finding(what=what, topic=first.topic, partition=first.partition, offset=first.offset)


@FAULTS.declare("the log", "a compacted topic lost the newest record of a key", "outbox-log")
def _(run: RecordedRun) -> Finding:
    drivers = run.all("drivers.v1")
    newest = {r.key: r.offset for r in drivers}
    first = next(
        r for r in drivers if newest[r.key] == r.offset and r.offset + 1 < len(run.records[r.topic, r.partition])
    )
    run.hide(first)
    assert first.key is not None
    return at(first, f"is the newest of key {first.key.decode()} by booking's outbox and is not in the log")


@FAULTS.declare("the log", "a compacted topic lost a price that nothing newer replaces", "log-offsets")
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


@FAULTS.declare("the log", "an event of a ride is invented", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    made = run.append(with_header(ride, "ce_id", NEW_ID))
    return at(made, "ride.requested is in the log and not in booking's outbox")


@FAULTS.declare("the log", "an event of a ride is in another partition than the others", "order")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "rides.v1")
    run.drop_tail((last.topic, last.partition))
    other = next(part for name, part in sorted(run.records) if name == last.topic and part != last.partition)
    moved = run.append(last._replace(partition=other))
    return at(moved, "its events are in several partitions")


@FAULTS.declare("the log", "an event is there twice", "log-repeats")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    again = run.append(ride)
    what = f"the event is at {ride.topic}-{ride.partition} offset {ride.offset}, too"
    return at(again, what)


@FAULTS.declare("the log", "an event's id carries other content a second time", "log-repeats")
def _(run: RecordedRun) -> Finding:
    run.restarted = frozenset({"booking", "broker"})
    again = run.append(with_data(run.find("ride.matched"), eta_s=1))
    return at(again, "with other content")


@FAULTS.declare("the log", "a dead letter was mended to something else", "log-repeats")
def _(run: RecordedRun) -> Finding:
    event = run.find("ride.requested")
    run.damage(event)
    wrong = {**data(event), "fare": {"amount_minor": 1, "currency": "USD"}}
    replayed = run.replay(event, json.dumps(wrong).encode())
    return at(replayed, "a dead letter was replayed, and says something else than the event")


@FAULTS.declare("the log", "two events of a ride have changed places", "order")
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


@FAULTS.declare("the log", "a fare is altered", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.completed")
    run.put(with_data(ride, fare={"amount_minor": 1, "currency": "USD"}))
    return at(ride, "ride.completed is not in the log as booking's outbox wrote it")


@FAULTS.declare("the log", "a charge is altered", "outbox-payment-log")
def _(run: RecordedRun) -> Finding:
    paid = run.find("payment.captured")
    run.put(with_data(paid, amount={"amount_minor": 1, "currency": "USD"}))
    return at(paid, "payment.captured is not in the log as payment's outbox wrote it")


@FAULTS.declare("the log", "a header is altered", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(with_header(ride, "ce_correlationid", "another"))
    return at(ride, "ride.requested is not in the log as booking's outbox wrote it")


@FAULTS.declare("the log", "bytes of a record without an outbox are altered", "journal-log")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    run.put(with_data(forecast, p90=data(forecast)["p90"] + 1))
    return at(forecast, "demand.forecast_published reads otherwise in the event logger's file")


@FAULTS.declare("the log", "a record is no event any more", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(ride._replace(value=b"{}"))
    return at(ride, "an event of type 'ride.requested' cannot be read")


@FAULTS.declare("the log", "a record has another key than its event", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(ride._replace(key=b"another"))
    return at(ride, "the record's key is 'another'")


@FAULTS.declare("the log", "a position is invented", "positions")
def _(run: RecordedRun) -> Finding:
    seen = run.find("driver.location_reported")
    made = run.append(with_header(with_data(seen, driver_id="driver-99999"), "ce_id", NEW_ID))
    return at(made, "a position that the riders' book did not send, or not so often")


@FAULTS.declare("the log", "a position is there twice under two ids", "positions")
def _(run: RecordedRun) -> Finding:
    seen = run.find("driver.location_reported")
    made = run.append(with_header(seen, "ce_id", NEW_ID))
    return at(made, "a position that the riders' book did not send, or not so often")


@FAULTS.declare("the log", "a record arrives while the accounts are read, again and again", "still")
def _(run: RecordedRun) -> Finding:
    return Finding(what="MOVES")  # the test publishes


@FAULTS.declare("the log", "the first record of a partition is gone before its time", "outbox-log")
def _(run: RecordedRun) -> Finding:
    first = next(r for r in run.all("rides.v1") if r.offset == 0)
    run.starts[first.topic, first.partition] = 1
    return at(first, f"{header(first, 'ce_type')} was deleted before its time: the log starts at 1")


@FAULTS.declare("the log", "an acknowledged event is in another partition", "outbox-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "rides.v1")
    run.drop_tail((last.topic, last.partition))
    other = next(part for name, part in sorted(run.records) if name == last.topic and part != last.partition)
    moved = run.append(last._replace(partition=other))
    what = f"was acknowledged in {last.topic}-{last.partition} and is in {last.topic}-{other}"
    return at(moved, what)


@FAULTS.declare("the log", "a record has lost the header that says its type", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(ride._replace(headers=[(name, value) for name, value in ride.headers if name != "ce_type"]))
    return at(ride, "the record is no event: a CloudEvents header is missing")


@FAULTS.declare("the log", "an event has a schema that nobody published", "log-offsets")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    run.put(with_header(ride, "ce_dataschema", "hailbus:ride.requested/v99"))
    return at(ride, "an event of type 'ride.requested' and schema 'hailbus:ride.requested/v99' is unknown")


@FAULTS.declare("the log", "the acknowledged tail of a partition is lost after it was applied", "inbox-event-logger")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "forecasts.v1")
    run.drop_tail((last.topic, last.partition))
    what = f"event-logger applied an event at or beyond the log's end {last.offset}: the log lost it"
    return at(last, what)
