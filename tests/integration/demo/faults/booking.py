"""Faults of booking, its database and its outbox."""

from __future__ import annotations

import json
from typing import Final

from hailbus_demo.ledger.log import LogRecord
from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at, everywhere, last_of, ride_in
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAULTS: Final = Faults()


@FAULTS.declare("booking", "a driver has two rides at once", "drivers-rides")
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


@FAULTS.declare("booking", "a rider has two rides at once", "riders-rides")
def _(run: RecordedRun) -> Finding:
    requests = [one for one in run.all("rides.v1") if header(one, "ce_type") == "ride.requested"]
    first, *_, last = sorted(requests, key=lambda one: header(one, "ce_time"))
    rider_id, ride_id = data(first)["rider_id"], data(last)["ride_id"]
    everywhere(run, with_data(last, rider_id=rider_id))
    run.sql("booking", "UPDATE booking_rides SET rider_id = ? WHERE ride_id = ?", rider_id, ride_id)
    return at(last, f"rider {rider_id} requested ride {ride_id} during ride {data(first)['ride_id']}")


@FAULTS.declare("booking", "a quote is offered at a price that surge never published", "quotes-surge")
def _(run: RecordedRun) -> Finding:
    offered = run.find("quote.offered", surge_version=None)
    everywhere(run, with_data(offered, multiplier=2.0))
    return at(offered, f"quoted at 2.0 in cell {data(offered)['pickup_cell']} by no update of surge")


@FAULTS.declare("booking's database", "a ride is lost", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "DELETE FROM booking_rides WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is in the riders' book and not in booking's database", id=ride_id)


@FAULTS.declare("booking's database", "a ride is invented", "rides-booking-log")
def _(run: RecordedRun) -> Finding:
    columns = [row[1] for row in run.ask("booking", "PRAGMA table_info(booking_rides)")]
    others = ", ".join(column for column in columns if column != "ride_id")
    run.sql(
        "booking", f"INSERT INTO booking_rides (ride_id, {others}) SELECT 'new', {others} FROM booking_rides LIMIT 1"
    )
    return Finding(
        what="ride new is in booking's database and no event of it is in the log", topic="rides.v1", id="new"
    )


@FAULTS.declare("booking's database", "a ride is in a state that does not exist", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "UPDATE booking_rides SET state = 'banana' WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is 'banana' by booking's database, which is no state of a ride", id=ride_id)


@FAULTS.declare("booking's database", "a ride has another driver than the log tells", "rides-booking-log")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id = data(done)["ride_id"]
    run.sql("booking", "UPDATE booking_rides SET driver_id = 'nobody' WHERE ride_id = ?", ride_id)
    return at(done, f"ride {ride_id}: driver is nobody by booking's database")


@FAULTS.declare("booking's database", "a ride has more events than the log", "order")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id, seq = data(done)["ride_id"], data(done)["seq"]
    run.sql("booking", "UPDATE booking_rides SET seq = seq + 1 WHERE ride_id = ?", ride_id)
    return at(done, f"ride {ride_id}: booking's database has {seq + 1} events, the log ends with {seq}")


@FAULTS.declare("booking's database", "a driver is busy with a ride that has ended", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    driver_id = run.ask("booking", "SELECT min(driver_id) FROM booking_drivers")[0][0]
    run.sql(
        "booking", "UPDATE booking_drivers SET status = 'busy', ride_id = ? WHERE driver_id = ?", ride_id, driver_id
    )
    return Finding(what=f"driver {driver_id} is busy with ride {ride_id}, which has ended", id=driver_id)


@FAULTS.declare("booking's database", "a multiplier is not surge's latest", "booking-multipliers")
def _(run: RecordedRun) -> Finding:
    cell = run.ask("booking", "SELECT min(cell) FROM booking_multipliers")[0][0]
    run.sql("booking", "UPDATE booking_multipliers SET version = version - 1 WHERE cell = ?", cell)
    last = max((r for r in run.all("surge.v1") if data(r)["cell"] == cell), key=lambda r: data(r)["surge_version"])
    return at(last, f"cell {cell} costs")


@FAULTS.declare("booking's database", "a multiplier is there that surge never published", "booking-multipliers")
def _(run: RecordedRun) -> Finding:
    cell = run.ask("booking", "SELECT min(cell) FROM booking_multipliers")[0][0]
    run.sql("booking", "UPDATE booking_multipliers SET cell = '88ffffffffffff' WHERE cell = ?", cell)
    what = "cell 88ffffffffffff has a multiplier by booking's database and none in the log"
    return Finding(what=what, topic="surge.v1", id="88ffffffffffff")


@FAULTS.declare("booking's database", "a timer was claimed and nothing came of it", "booking-timers")
def _(run: RecordedRun) -> Finding:
    timer = run.find("booking.timer_elapsed", kind="quote_expiry")
    quote_id = data(timer)["subject_id"]
    run.sql("booking", "UPDATE booking_quotes SET state = 'offered' WHERE quote_id = ?", quote_id)
    return at(timer, f"the time of quote {quote_id} is over, and it is still offered")


@FAULTS.declare("booking's outbox", "a published event is lost", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.sql("booking", "DELETE FROM hailbus_outbox WHERE id = ?", header(ride, "ce_id"))
    return at(ride, "ride.matched is in the log and not in booking's outbox")


@FAULTS.declare("booking's outbox", "an event is invented", "outbox-log")
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


@FAULTS.declare("booking's outbox", "an event is due and was not published", "outbox-log")
def _(run: RecordedRun) -> Finding:
    run.outbox(with_header(run.find("ride.matched"), "ce_id", NEW_ID))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL WHERE id = ?", NEW_ID)
    return Finding(what="ride.matched is due and not published", topic="rides.v1", id=NEW_ID)


@FAULTS.declare("booking's outbox", "an event was refused by the broker", "outbox-log")
def _(run: RecordedRun) -> Finding:
    run.outbox(with_header(run.find("ride.matched"), "ce_id", NEW_ID))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL, failed_at = 1 WHERE id = ?", NEW_ID)
    return Finding(what="ride.matched could not be published", topic="rides.v1", id=NEW_ID)


@FAULTS.declare("booking's outbox", "an event that was cancelled is in the log", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    statement = "UPDATE hailbus_outbox SET published_at = NULL, cancelled_at = 1 WHERE id = ?"
    run.sql("booking", statement, header(ride, "ce_id"))
    return at(ride, "ride.matched is cancelled by booking's outbox and in the log all the same")


@FAULTS.declare("the log", "a ride is matched a second time instead of started", "order")
def _(run: RecordedRun) -> Finding:
    started = run.find("ride.started")
    wrong = with_header(started, "ce_type", "ride.matched")
    wrong = with_header(wrong, "ce_dataschema", "hailbus:ride.matched/v1")
    matched = run.find("ride.matched", ride_id=data(started)["ride_id"])
    wrong = wrong._replace(value=with_data(matched, seq=data(started)["seq"]).value)
    run.put(wrong)
    return at(wrong, f"ride {data(started)['ride_id']}: ride.matched follows the state 'arrived'")


@FAULTS.declare("the log", "an event of a ride is missing between two others", "order")
def _(run: RecordedRun) -> Finding:
    arrived = run.find("ride.driver_arrived")
    ride_id, seq = data(arrived)["ride_id"], data(arrived)["seq"]
    after = run.find("ride.started", ride_id=ride_id)
    run.take_out(arrived)
    moved = run.find("ride.started", ride_id=ride_id)
    assert header(moved, "ce_id") == header(after, "ce_id")
    return at(moved, f"ride {ride_id}: event {seq + 1} follows event {seq - 1}")


@FAULTS.declare("the log", "two rides are under way with the same driver", "drivers-rides")
def _(run: RecordedRun) -> Finding:
    rides = [data(r)["ride_id"] for r in run.all("rides.v1") if header(r, "ce_type") == "ride.completed"][:2]
    driver = data(run.find("ride.matched", ride_id=rides[0]))["driver_id"]
    for ride_id in rides:
        run.take_out(run.find("ride.completed", ride_id=ride_id))
    run.put(with_data(run.find("ride.matched", ride_id=rides[1]), driver_id=driver))
    last = run.find("ride.started", ride_id=rides[1])
    return Finding(what=f"driver {driver} is with ride ", topic=last.topic)


@FAULTS.declare("the log", "the driver of a matched ride never became busy with it", "drivers-rides")
def _(run: RecordedRun) -> Finding:
    matched = run.find("ride.matched")
    ride_id, driver_id = data(matched)["ride_id"], data(matched)["driver_id"]
    busy = run.find("driver.became_busy", ride_id=ride_id)
    run.put(with_data(busy, ride_id="another"))
    what = f"ride {ride_id} was matched with driver {driver_id}, who did not become busy with it in drivers.v1"
    return at(matched, what)


@FAULTS.declare("the log", "a driver became busy with a ride that was not matched", "drivers-rides")
def _(run: RecordedRun) -> Finding:
    busy = run.find("driver.became_busy")
    run.put(with_data(busy, ride_id="another"))
    driver_id = data(busy)["driver_id"]
    what = f"driver {driver_id} became busy with ride another, which rides.v1 does not match with that driver"
    return Finding(what=what, topic="drivers.v1", id=driver_id)


@FAULTS.declare("booking", "a quote names an update that surge never published", "quotes-surge")
def _(run: RecordedRun) -> Finding:
    offered = run.find("quote.offered")
    everywhere(run, with_data(offered, surge_version=7, multiplier=1.5))
    return at(offered, f"quoted at 1.5 in cell {data(offered)['pickup_cell']} by version 7, which is None in surge.v1")


@FAULTS.declare("booking", "a quote honours another multiplier than the update that it names", "quotes-surge")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    told = data(update)
    offered = run.find("quote.offered", pickup_cell=told["cell"])
    everywhere(run, with_data(offered, surge_version=told["surge_version"], multiplier=told["multiplier"] + 0.1))
    what = f"in cell {told['cell']} by version {told['surge_version']}, which is {told['multiplier']} in surge.v1"
    return at(offered, what)


@FAULTS.declare(
    "booking's database", "a driver did not arrive and the ride still waits for that driver", "booking-timers"
)
def _(run: RecordedRun) -> Finding:
    ride_id, seq = run.ask("booking", "SELECT ride_id, timer_seq FROM booking_rides ORDER BY ride_id LIMIT 1")[0]
    run.sql("booking", "UPDATE booking_rides SET state = 'matched' WHERE ride_id = ?", ride_id)
    overdue = _overdue(run, ride_id, "matched", seq)
    return at(overdue, f"the time of ride {ride_id} in state matched is over, and it is still so by booking's database")


@FAULTS.declare("booking's database", "a ride waits for a partner after its time", "booking-timers")
def _(run: RecordedRun) -> Finding:
    ride_id, seq = run.ask("booking", "SELECT ride_id, timer_seq FROM booking_rides ORDER BY ride_id LIMIT 1")[0]
    run.sql("booking", "UPDATE booking_rides SET seeks_partner = 1 WHERE ride_id = ?", ride_id)
    overdue = _overdue(run, ride_id, "seeking_partner", seq)
    return at(overdue, f"the time of ride {ride_id} in state seeking_partner is over, and it is still so")


def _overdue(run: RecordedRun, ride_id: str, state: str, seq: int) -> LogRecord:
    """Put the timer of a ride's state in place of another one."""
    timer = run.find("booking.timer_elapsed")
    body = {"ride_id": ride_id, "state": state, "seq": seq, "due_at": data(timer)["due_at"], "simulated": True}
    overdue = timer._replace(value=json.dumps(body, separators=(",", ":")).encode(), key=ride_id.encode())
    overdue = with_header(with_header(overdue, "ce_type", "booking.ride_overdue"), "ce_subject", ride_id)
    overdue = with_header(overdue, "ce_dataschema", "hailbus:booking.ride_overdue/v1")
    run.put(overdue)
    return overdue


@FAULTS.declare("booking's database", "a rider has two open rides", "riders-rides")
def _(run: RecordedRun) -> Finding:
    rides = run.ask("booking", "SELECT ride_id, rider_id FROM booking_rides ORDER BY ride_id LIMIT 2")
    ((first, rider_id), (second, _)) = rides
    for ride_id in (first, second):
        statement = "UPDATE booking_rides SET state = 'requested', rider_id = ? WHERE ride_id = ?"
        run.sql("booking", statement, rider_id, ride_id)
    return Finding(what=f"rider {rider_id} has rides {first} and {second} by booking's database", id=second)


@FAULTS.declare("booking's database", "a ride is lost that the log tells", "rides-booking-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    ride_id = data(ride)["ride_id"]
    run.sql("booking", "DELETE FROM booking_rides WHERE ride_id = ?", ride_id)
    return at(ride, f"ride {ride_id} is in the log and not in booking's database")


@FAULTS.declare("booking's database", "a ride is there of which the log has no event", "order")
def _(run: RecordedRun) -> Finding:
    columns = [row[1] for row in run.ask("booking", "PRAGMA table_info(booking_rides)")]
    others = ", ".join(column for column in columns if column != "ride_id")
    run.sql(
        "booking", f"INSERT INTO booking_rides (ride_id, {others}) SELECT 'new', {others} FROM booking_rides LIMIT 1"
    )
    seq = run.ask("booking", "SELECT seq FROM booking_rides WHERE ride_id = 'new'")[0][0]
    return Finding(what=f"ride new has {seq} events by booking's database, none is in the log", id="new")


@FAULTS.declare("booking's database", "a driver is lost", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "drivers.v1")
    driver_id = data(last)["driver_id"]
    run.sql("booking", "DELETE FROM booking_drivers WHERE driver_id = ?", driver_id)
    return at(last, f"driver {driver_id} is in the log and not in booking's database")


@FAULTS.declare("booking's database", "a driver is invented", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    run.sql("booking", "UPDATE booking_drivers SET driver_id = 'new' WHERE status = 'free'")
    return Finding(what="driver new is in booking's database and not in the log", topic="drivers.v1", id="new")


@FAULTS.declare("booking's database", "a driver is in another state than the log tells", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    last = last_of(run, "drivers.v1")
    driver_id, seq = data(last)["driver_id"], data(last)["seq"]
    run.sql("booking", "UPDATE booking_drivers SET seq = seq + 1 WHERE driver_id = ?", driver_id)
    what = f"after event {seq + 1} by booking's database, offline after event {seq} by the log"
    return at(last, what)


@FAULTS.declare("booking's database", "a driver has two rides", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    rides = [row[0] for row in run.ask("booking", "SELECT ride_id FROM booking_rides ORDER BY ride_id LIMIT 2")]
    for ride_id in rides:
        run.sql("booking", "UPDATE booking_rides SET state = 'matched', driver_id = 'd' WHERE ride_id = ?", ride_id)
    return Finding(what="driver d has rides", id="d")


@FAULTS.declare("booking's database", "a ride is with a driver who has another ride", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    driver_id = run.ask("booking", "SELECT min(driver_id) FROM booking_drivers")[0][0]
    run.sql(
        "booking", "UPDATE booking_rides SET state = 'matched', driver_id = ? WHERE ride_id = ?", driver_id, ride_id
    )
    run.sql("booking", "UPDATE booking_drivers SET ride_id = 'other' WHERE driver_id = ?", driver_id)
    what = f"ride {ride_id} is with driver {driver_id}, who has ride other by booking's database"
    return Finding(what=what, id=ride_id)


@FAULTS.declare("booking's database", "a ride is with a driver who has none", "drivers-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id = run.ask("booking", "SELECT min(ride_id) FROM booking_rides")[0][0]
    run.sql("booking", "UPDATE booking_rides SET state = 'matched', driver_id = 'd' WHERE ride_id = ?", ride_id)
    return Finding(what=f"ride {ride_id} is with driver d, who has no ride by booking's database", id=ride_id)


@FAULTS.declare("booking's database", "a ride waits for a driver after its time", "booking-timers")
def _(run: RecordedRun) -> Finding:
    timer = run.find("booking.timer_elapsed", kind="match_timeout")
    ride_id, seq = data(timer)["subject_id"], data(timer)["seq"]
    run.sql("booking", "UPDATE booking_rides SET state = 'requested', timer_seq = ? WHERE ride_id = ?", seq, ride_id)
    return at(timer, f"the time of ride {ride_id} for match_timeout is over, and it is still requested")


@FAULTS.declare("booking's database", "a timer has elapsed of a ride that is lost", "booking-timers")
def _(run: RecordedRun) -> Finding:
    timer = run.find("booking.timer_elapsed", kind="match_timeout")
    ride_id = data(timer)["subject_id"]
    run.sql("booking", "DELETE FROM booking_rides WHERE ride_id = ?", ride_id)
    return at(timer, f"the time of ride {ride_id} for match_timeout is over, and it is still unknown")


@FAULTS.declare("booking's database", "a timer has elapsed of a quote that is lost", "booking-timers")
def _(run: RecordedRun) -> Finding:
    timer = run.find("booking.timer_elapsed", kind="quote_expiry")
    quote_id = data(timer)["subject_id"]
    run.sql("booking", "DELETE FROM booking_quotes WHERE quote_id = ?", quote_id)
    return at(timer, f"the time of quote {quote_id} is over, and it is still unknown")


@FAULTS.declare("booking's database", "a multiplier is lost", "booking-multipliers")
def _(run: RecordedRun) -> Finding:
    cell = data(run.find("surge.updated"))["cell"]
    run.sql("booking", "DELETE FROM booking_multipliers WHERE cell = ?", cell)
    last = max((r for r in run.all("surge.v1") if data(r)["cell"] == cell), key=lambda r: data(r)["surge_version"])
    return at(last, f"cell {cell} costs nothing by booking's database")


@FAULTS.declare("booking's outbox", "an event that is in the log is still due", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL WHERE id = ?", header(ride, "ce_id"))
    what = "ride.matched is in the log and due by booking's outbox"
    return Finding(what=what, topic="rides.v1", id=header(ride, "ce_id"))


@FAULTS.declare("booking's outbox", "an event that waits for its time is in the log", "outbox-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.matched")
    statement = "UPDATE hailbus_outbox SET published_at = NULL, not_before = ? WHERE id = ?"
    run.sql("booking", statement, 2**62, header(ride, "ce_id"))
    return at(ride, "ride.matched is waiting by booking's outbox and in the log all the same")


def pooled(run: RecordedRun, partner_id: str, *, fare_minor: int) -> LogRecord:
    """Have booking pool a waiting ride that found no driver, of 10.00; return the record."""
    ended = run.find("ride.unmatched")
    said = data(ended)
    body = {
        **{name: said[name] for name in ("ride_id", "seq", "simulated", "rider_id")},
        "partner_ride_id": partner_id,
        "pickup_order": 1,
        "fare": {"amount_minor": fare_minor, "currency": "USD"},
        "single_fare": data(run.find("ride.requested", ride_id=said["ride_id"]))["fare"],
    }
    record = ended._replace(value=json.dumps(body, separators=(",", ":")).encode())
    record = with_header(with_header(record, "ce_type", "ride.pooled"), "ce_dataschema", "hailbus:ride.pooled/v1")
    everywhere(run, record)
    return record


@FAULTS.declare("booking", "a ride is pooled with one that is not pooled with it", "rides-pooled")
def _(run: RecordedRun) -> Finding:
    partner_id = data(run.find("ride.completed"))["ride_id"]
    record = pooled(run, partner_id, fare_minor=0)
    what = f"ride {data(record)['ride_id']} is pooled with ride {partner_id}, which is not pooled with it"
    return at(record, what)


@FAULTS.declare("booking", "a pooled ride does not cost four fifths", "rides-pooled")
def _(run: RecordedRun) -> Finding:
    record = pooled(run, NEW_ID, fare_minor=1)
    return at(record, f"ride {data(record)['ride_id']} is pooled at 1, which is not 80 % of ")
