"""A driver goes online, moves, takes rides and goes offline; `seq` counts the driver's events."""

from datetime import UTC, datetime, timedelta

import pytest
from booking.domain.driver import Driver, DriverStatus
from booking.domain.errors import DriverBusy, DriverOffline
from booking.domain.place import Place

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")
THERE = Place(lat=40.65, lng=-73.78, cell="882a103b0dfffff")


def driver(status: DriverStatus) -> Driver:
    return Driver(
        driver_id="d",
        status=status,
        position=None if status is DriverStatus.OFFLINE else HERE,
        seq=4,
        updated_at=NOW,
        heard_at=NOW,
        simulated=False,
        ride_id="ride" if status is DriverStatus.BUSY else None,
    )


def test_going_online_is_an_event_for_an_offline_driver_only() -> None:
    online = driver(DriverStatus.OFFLINE).go_online(THERE, at=LATER)
    assert (online.status, online.position, online.seq, online.updated_at) == (DriverStatus.FREE, THERE, 5, LATER)
    for status in (DriverStatus.FREE, DriverStatus.BUSY):
        moved = driver(status).go_online(THERE, at=LATER)
        assert (moved.status, moved.position, moved.seq, moved.updated_at) == (status, THERE, 4, LATER)


def test_an_offline_driver_has_no_position_to_report() -> None:
    with pytest.raises(DriverOffline) as refused:
        driver(DriverStatus.OFFLINE).move(THERE, at=LATER)
    assert refused.value.driver_id == "d"
    assert driver(DriverStatus.BUSY).move(THERE, at=LATER).position == THERE


def test_a_driver_takes_a_ride_and_is_released_where_it_ends() -> None:
    busy = driver(DriverStatus.FREE).take("ride", at=LATER)
    assert (busy.status, busy.ride_id, busy.seq, busy.position) == (DriverStatus.BUSY, "ride", 5, HERE)
    free = busy.release(THERE, at=LATER)
    assert (free.status, free.ride_id, free.seq, free.position) == (DriverStatus.FREE, None, 6, THERE)
    assert busy.release(None, at=LATER).position == HERE


def test_a_driver_goes_offline_once_and_never_during_a_ride() -> None:
    offline = driver(DriverStatus.FREE).go_offline(at=LATER)
    assert (offline.status, offline.position, offline.seq) == (DriverStatus.OFFLINE, None, 5)
    assert offline.go_offline(at=LATER + timedelta(minutes=1)) == offline
    with pytest.raises(DriverBusy) as refused:
        driver(DriverStatus.BUSY).go_offline(at=LATER)
    assert (refused.value.driver_id, refused.value.ride_id) == ("d", "ride")


def test_a_driver_never_goes_back_in_time() -> None:
    earlier = NOW - timedelta(minutes=1)
    assert driver(DriverStatus.OFFLINE).go_online(HERE, at=earlier).updated_at == NOW
    known = driver(DriverStatus.FREE)
    assert known.move(THERE, at=earlier) is known, "a newer position is known"
    assert driver(DriverStatus.FREE).take("ride", at=earlier).updated_at == NOW
    assert driver(DriverStatus.BUSY).release(None, at=earlier).updated_at == NOW
    assert driver(DriverStatus.FREE).go_offline(at=earlier).updated_at == NOW


def test_only_what_the_driver_does_is_a_sign_of_life() -> None:
    free, busy = driver(DriverStatus.FREE), driver(DriverStatus.BUSY)
    assert free.move(THERE, at=LATER).heard_at == LATER
    assert free.go_online(THERE, at=LATER).heard_at == LATER
    assert driver(DriverStatus.OFFLINE).go_online(THERE, at=LATER).heard_at == LATER
    assert busy.hear(at=LATER).heard_at == LATER
    assert free.take("ride", at=LATER).heard_at == NOW, "a rider asked"
    assert busy.release(None, at=LATER).heard_at == NOW, "perhaps a rider cancelled, or a timer elapsed"


def test_an_earlier_sign_of_life_changes_nothing() -> None:
    known = driver(DriverStatus.BUSY)
    assert known.hear(at=NOW) is known
    assert known.hear(at=NOW - timedelta(seconds=1)) is known
    heard = known.hear(at=LATER)
    assert heard.updated_at == NOW, "the position is as old as before"
    assert heard.move(THERE, at=NOW).heard_at == LATER
    assert driver(DriverStatus.OFFLINE).hear(at=LATER).go_online(HERE, at=NOW).heard_at == LATER
