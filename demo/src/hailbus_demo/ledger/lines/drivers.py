"""Drivers: each has one ride at a time, or two that are pooled, and everybody agrees which."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookingAccount
from hailbus_demo.ledger.lines.pooling import are_partners, pools_of
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOKING, ENDED, LOG, driver_of, state_of
from hailbus_demo.ledger.log import LogAccount, LogReader
from hailbus_demo.ledger.model import Findings, Judgement

WITH_DRIVER: Final = frozenset({"matched", "arrived", "in_progress"})
STATUS: Final = {
    "driver.went_online": "free",
    "driver.became_free": "free",
    "driver.became_busy": "busy",
    "driver.went_offline": "offline",
}
MAY_FOLLOW: Final = {
    "driver.went_online": frozenset({"offline"}),
    "driver.became_busy": frozenset({"free"}),
    "driver.became_free": frozenset({"busy"}),
    "driver.went_offline": frozenset({"free"}),
}


def _one_ride(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    taken: Counter[tuple[str, str]] = Counter()
    whole = _whole_topics(log)
    for driver_id, steps in reader.drivers.items():
        status, ride, before = "offline", None, 0
        for step in sorted(steps, key=lambda step: step.seq):
            known = step.seq == before + 1  # a compacted topic may lack what was between
            carries_on = (
                step.type == "driver.became_busy"
                and ride is not None
                and are_partners(reader, ride, str(step.data["ride_id"]))
            )
            if known and status not in MAY_FOLLOW.get(step.type, ()) and not carries_on:
                doing = f"busy with ride {ride}" if status == "busy" else status
                what = f"driver {driver_id} is {doing}, and then {step.type}"
                if step.type == "driver.became_busy":
                    what += f" with ride {step.data['ride_id']}: two rides at once"
                found.extend([reader.finding(what, step.row)])
            if step.type == "driver.became_busy":
                ride = str(step.data["ride_id"])
                taken[driver_id, ride] += 1
            status, before = STATUS.get(step.type, status), step.seq
    _match(found, reader, taken, whole=whole)
    open_rides: dict[str, str] = {}
    for ride_id, steps in reader.rides.items():
        if state_of(steps) in WITH_DRIVER and (driver := driver_of(steps)) is not None:
            other = open_rides.setdefault(driver, ride_id)
            if other != ride_id and not are_partners(reader, other, ride_id):
                last = max(steps, key=lambda step: step.seq)
                what = f"driver {driver} is with ride {other} and with ride {ride_id} at once"
                found.extend([reader.finding(what, last.row)])
    return found.judge(f"{len(reader.drivers):,} drivers took {len(taken):,} rides, one at a time or a pooled pair")


def _whole_topics(log: LogAccount) -> bool:
    """Whether drivers.v1 holds every record that it ever had."""
    return not any(part.gaps or part.start for (topic, _), part in log.partitions.items() if topic == "drivers.v1")


def _match(found: Findings, reader: LogReader, taken: Counter[tuple[str, str]], *, whole: bool) -> None:
    """Compare who took which ride by the rides' events and by the drivers'."""
    matched: Counter[tuple[str, str]] = Counter()
    rows: dict[tuple[str, str], int] = {}
    for ride_id, steps in reader.rides.items():
        for step in steps:
            if step.type == "ride.matched":
                pair = (str(step.data["driver_id"]), ride_id)
                matched[pair] += 1
                rows[pair] = step.row
    for pair in matched.keys() | taken.keys():
        driver_id, ride_id = pair
        pooled = [pool.partner for pool in pools_of(reader.rides.get(ride_id, ())) if pool.driver == driver_id]
        if matched[pair] > taken[pair] + sum(taken[driver_id, other] for other in pooled) and whole:
            what = f"ride {ride_id} was matched with driver {driver_id}, who did not become busy with it in drivers.v1"
            found.extend([reader.finding(what, rows[pair])])
        elif taken[pair] > matched[pair]:
            found.add(
                f"driver {driver_id} became busy with ride {ride_id}, which rides.v1 does not match with that driver",
                topic="drivers.v1",
                id=driver_id,
            )


def _booking_log(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    reader, found = log.reader, Findings()
    for driver_id in sorted(reader.drivers.keys() | booking.drivers.keys()):
        steps, stored = reader.drivers.get(driver_id), booking.drivers.get(driver_id)
        if steps is None:
            found.add(f"driver {driver_id} is in {BOOKING} and not in {LOG}", topic="drivers.v1", id=driver_id)
            continue
        last = max(steps, key=lambda step: step.seq)
        if stored is None:
            found.extend([reader.finding(f"driver {driver_id} is in {LOG} and not in {BOOKING}", last.row)])
            continue
        ride = str(last.data["ride_id"]) if last.type == "driver.became_busy" else None
        ours, theirs = (stored.status, stored.seq, stored.ride_id), (STATUS.get(last.type), last.seq, ride)
        if ours != theirs:
            what = f"driver {driver_id} is {_doing(*ours)} by {BOOKING}, {_doing(*theirs)} by {LOG}"
            found.extend([reader.finding(what, last.row)])
    with_ride: dict[str, str] = {}
    for ride_id, ride_row in booking.rides.items():
        if ride_row.state not in WITH_DRIVER or ride_row.driver_id is None:
            continue
        other = with_ride.setdefault(ride_row.driver_id, ride_id)
        if other != ride_id and not are_partners(reader, other, ride_id):
            found.add(
                f"driver {ride_row.driver_id} has rides {other} and {ride_id} by {BOOKING}", id=ride_row.driver_id
            )
        driver = booking.drivers.get(ride_row.driver_id)
        theirs_now = None if driver is None else driver.ride_id
        if theirs_now != ride_id and not (theirs_now is not None and are_partners(reader, theirs_now, ride_id)):
            found.add(
                f"ride {ride_id} is with driver {ride_row.driver_id}, who has "
                f"{'no ride' if driver is None or driver.ride_id is None else f'ride {driver.ride_id}'} by {BOOKING}",
                id=ride_id,
            )
    for driver_id, driver in booking.drivers.items():
        theirs_ride = booking.rides.get(driver.ride_id or "")
        if driver.status == "busy" and (theirs_ride is None or theirs_ride.state in ENDED):
            found.add(f"driver {driver_id} is busy with ride {driver.ride_id}, which has ended", id=driver_id)
    return found.judge(f"{len(booking.drivers):,} drivers, {len(with_ride):,} of them with a ride")


def _doing(status: str | None, seq: int, ride: str | None) -> str:
    return f"{status}{'' if ride is None else f' with ride {ride}'} after event {seq}"


LINES: Final = (
    LineSpec(
        id="drivers-rides",
        name="no driver has two rides at once that are not pooled",
        between=("rides.v1 in the log", "drivers.v1 in the log"),
        needs=("log",),
        judge=_one_ride,
    ),
    LineSpec(
        id="drivers-booking-log",
        name="the log tells every driver as booking stores it",
        between=(BOOKING, LOG),
        needs=("booking", "log"),
        judge=_booking_log,
    ),
)
