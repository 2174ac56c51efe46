"""Bringing rides and drivers together. A part of several use cases, not one of its own."""

from datetime import timedelta

from booking.app import story
from booking.app.pools import partner_of
from booking.app.ports import Work
from booking.domain.driver import Driver
from booking.domain.place import Place
from booking.domain.pool import in_pickup_order
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
    wait_for_driver(work, ride)
    return ride


def wait_for_driver(work: Work, ride: Ride) -> None:
    """Have a ride that waits for a driver given up after the match timeout."""
    work.set_timer(
        "match_timeout",
        ride.ride_id,
        ride.timer_seq,
        ride.updated_at + work.policy.match_timeout,
        simulated=ride.simulated,
    )


def seek_ride(work: Work, driver: Driver) -> Driver:
    """Give a free driver the waiting ride nearby, if there is one."""
    ride = work.nearest_waiting(driver)
    if ride is None:
        return driver
    return _pair(work, ride, driver)[1]


def release_driver(work: Work, driver_id: str, ride: Ride, *, position: Place | None = None) -> Driver:
    """Make the driver of a ride free, and look for the next ride at once.

    A driver who still has the other ride of a pool stays busy with that one.
    """
    driver = work.driver(driver_id)
    assert driver is not None, f"driver {driver_id} of ride {ride.ride_id} is unknown"
    other = work.open_ride_by_id(ride.pooled_with) if ride.pooled_with is not None else None
    if other is not None and other.driver_id == driver_id:
        if driver.ride_id != other.ride_id:
            driver = driver.carry_on(other.ride_id, at=work.now)
            work.put_driver(driver)
            story.tell_busy(work, driver, other)
        return driver
    driver = driver.release(position, at=work.now)
    work.put_driver(driver)
    story.tell_free(work, driver, ride.quote_id)
    return seek_ride(work, driver)


def _pair(work: Work, ride: Ride, driver: Driver) -> tuple[Ride, Driver]:
    """Give a driver a waiting ride, and the one that it is pooled with: the driver goes from pickup to pickup."""
    place = driver.position
    assert place is not None, f"driver {driver.driver_id} is free and has no position"
    partner = partner_of(work, ride)
    rides = (ride,) if partner is None else in_pickup_order(ride, partner)
    driver = driver.take(rides[0].ride_id, at=work.now)
    work.put_driver(driver)
    eta_s = 0
    for one in rides:
        work.cancel_timer("match_timeout", one.ride_id)
        eta_s += work.roads.drive_s(work.roads.way_m(place, one.pickup))
        place = one.pickup
        matched = one.match(driver.driver_id, eta_s=eta_s, at=work.now)
        work.put_ride(matched)
        story.tell_matched(work, matched, driver)
        due_at = matched.updated_at + timedelta(seconds=eta_s) + work.policy.pickup_grace
        work.set_timer("pickup_timeout", matched.ride_id, matched.seq, due_at, simulated=matched.simulated)
    story.tell_busy(work, driver, rides[0])
    return work.ride(ride.ride_id), driver
