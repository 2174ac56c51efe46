"""Bringing rides and drivers together. A part of several use cases, not one of its own."""

from datetime import timedelta

from booking.app import story
from booking.app.ports import Work
from booking.domain.driver import Driver
from booking.domain.place import Place
from booking.domain.ride import Ride


def hear_driver(work: Work, driver_id: str) -> None:
    """Note that the driver of a ride has just done something: the driver is not silent."""
    driver = work.driver(driver_id)
    if driver is not None and (heard := driver.hear(at=work.now)) is not driver:
        work.put_driver(heard)


def seek_driver(work: Work, ride: Ride) -> Ride:
    """Match a waiting ride with the nearest free driver, or let it wait until the match timeout."""
    driver = work.nearest_driver(ride.pickup, allowed=lambda candidate: candidate.driver_id not in ride.declined)
    if driver is not None:
        return _pair(work, ride, driver)[0]
    work.set_timer(
        "match_timeout",
        ride.ride_id,
        ride.seq,
        ride.updated_at + work.policy.match_timeout,
        simulated=ride.simulated,
    )
    return ride


def seek_ride(work: Work, driver: Driver) -> Driver:
    """Give a free driver the waiting ride nearby, if there is one."""
    ride = work.nearest_waiting(driver)
    if ride is None:
        return driver
    work.cancel_timer("match_timeout", ride.ride_id)
    return _pair(work, ride, driver)[1]


def release_driver(work: Work, driver_id: str, ride: Ride, *, position: Place | None = None) -> Driver:
    """Make the driver of a ride free, and look for the next ride at once."""
    driver = work.driver(driver_id)
    assert driver is not None, f"driver {driver_id} of ride {ride.ride_id} is unknown"
    driver = driver.release(position, at=work.now)
    work.put_driver(driver)
    story.tell_free(work, driver, ride.quote_id)
    return seek_ride(work, driver)


def _pair(work: Work, ride: Ride, driver: Driver) -> tuple[Ride, Driver]:
    assert driver.position is not None, f"driver {driver.driver_id} is free and has no position"
    eta_s = work.roads.drive_s(work.roads.way_m(driver.position, ride.pickup))
    ride = ride.match(driver.driver_id, eta_s=eta_s, at=work.now)
    driver = driver.take(ride.ride_id, at=work.now)
    work.put_ride(ride)
    work.put_driver(driver)
    story.tell_matched(work, ride, driver)
    due_at = ride.updated_at + timedelta(seconds=eta_s) + work.policy.pickup_grace
    work.set_timer("pickup_timeout", ride.ride_id, ride.seq, due_at, simulated=ride.simulated)
    return ride, driver
