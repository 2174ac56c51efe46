"""The driver's steps of a ride: arrive at the pickup, start, complete."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ride_events.rides import RideCompleted, RideDriverArrived, RideStarted

from booking.app import story
from booking.app.dispatch import hear_driver, release_driver
from booking.app.ports import Needs, Work
from booking.app.pricing import reprice
from booking.domain.ride import Ride

RIDE_TIMEOUT: Final = "ride_timeout"
"""The reason by which booking ends a ride whose driver does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArrival:
    """The driver waits at the pickup."""

    ride_id: str
    driver_id: str
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride and its driver."""
        return Needs(rides=(self.ride_id,), drivers=(self.driver_id,))

    def decide(self, work: Work) -> Ride:
        """Take the step, or raise `NotFound`, `NotYourRide` or `WrongState`."""
        ride = work.ride(self.ride_id).by_driver(self.driver_id).arrive(at=work.now)
        work.put_ride(ride)
        hear_driver(work, self.driver_id)
        work.cancel_timer("pickup_timeout", ride.ride_id)
        work.record(
            RideDriverArrived(
                ride_id=ride.ride_id,
                seq=ride.seq,
                simulated=story.marked(self.simulated, ride, work.driver(self.driver_id)),
                driver_id=self.driver_id,
            ),
            aggregate=ride.ride_id,
            seq=ride.seq,
            at=ride.updated_at,
            story=ride.quote_id,
        )
        work.set_timer(
            "no_show",
            ride.ride_id,
            ride.seq,
            ride.updated_at + work.policy.no_show_after,
            simulated=ride.simulated,
        )
        return ride


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRide:
    """The rider is on board."""

    ride_id: str
    driver_id: str
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride and its driver."""
        return Needs(rides=(self.ride_id,), drivers=(self.driver_id,))

    def decide(self, work: Work) -> Ride:
        """Take the step, or raise `NotFound`, `NotYourRide` or `WrongState`."""
        ride = work.ride(self.ride_id).by_driver(self.driver_id).start(at=work.now)
        work.put_ride(ride)
        hear_driver(work, self.driver_id)
        work.cancel_timer("no_show", ride.ride_id)
        due_at = ride.updated_at + timedelta(seconds=work.roads.drive_s(ride.route_m)) + work.policy.ride_grace
        work.set_timer("ride_timeout", ride.ride_id, ride.seq, due_at, simulated=ride.simulated)
        work.record(
            RideStarted(
                ride_id=ride.ride_id,
                seq=ride.seq,
                simulated=story.marked(self.simulated, ride),
                driver_id=self.driver_id,
                pickup=story.lat_lng(ride.pickup),
                dropoff=story.lat_lng(ride.dropoff),
            ),
            aggregate=ride.ride_id,
            seq=ride.seq,
            at=ride.updated_at,
            story=ride.quote_id,
        )
        return ride


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRide:
    """The rider reached the destination after `distance_m` metres, as the driver's odometer says."""

    ride_id: str
    driver_id: str
    distance_m: int
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride and its driver."""
        return Needs(rides=(self.ride_id,), drivers=(self.driver_id,))

    def decide(self, work: Work) -> Ride:
        """End the ride and free the driver, or raise as `StartRide`.

        The fare is the one that the rider was shown, unless the ride took much longer than it was priced for.
        """
        ride = work.ride(self.ride_id).by_driver(self.driver_id)
        hear_driver(work, self.driver_id)
        if (fare_minor := _fare_due(work, ride)) != ride.fare_minor:
            ride = reprice(
                work,
                ride,
                dropoff=ride.dropoff,
                route_m=ride.route_m,
                fare_minor=fare_minor,
                reason="took_longer",
                simulated=self.simulated,
            )
        ride = _complete(work, ride, distance_m=self.distance_m, simulated=self.simulated)
        assert ride.duration_s is not None, "a completed ride has a duration"
        work.cancel_timer("ride_timeout", ride.ride_id)
        work.put_roads(work.roads.learn(ride.pickup, ride.dropoff, driven_m=self.distance_m, took_s=ride.duration_s))
        release_driver(work, self.driver_id, ride, position=ride.dropoff)
        return ride


def complete_overdue(work: Work, ride: Ride) -> Ride:
    """Complete a ride that its driver does not end, at the fare as it stands: nobody says how long it really took.

    The driver is free where booking heard of the car last. Nothing is learnt of the roads.
    """
    assert ride.driver_id is not None, f"ride {ride.ride_id} is under way and has no driver"
    ride = _complete(work, ride, distance_m=ride.route_m, simulated=None, reason=RIDE_TIMEOUT)
    assert ride.driver_id is not None, "a completed ride keeps its driver"
    release_driver(work, ride.driver_id, ride)
    return ride


def _complete(work: Work, ride: Ride, *, distance_m: int, simulated: bool | None, reason: str | None = None) -> Ride:
    ride = ride.complete(distance_m=distance_m, at=work.now, reason=reason)
    # These follow from the steps before.
    assert ride.driver_id is not None
    assert ride.started_at is not None
    assert ride.duration_s is not None
    work.put_ride(ride)
    work.record(
        RideCompleted(
            ride_id=ride.ride_id,
            seq=ride.seq,
            simulated=story.marked(simulated, ride),
            rider_id=ride.rider_id,
            driver_id=ride.driver_id,
            pickup=story.lat_lng(ride.pickup),
            dropoff=story.lat_lng(ride.dropoff),
            pickup_cell=ride.pickup.cell,
            dropoff_cell=ride.dropoff.cell,
            passengers=ride.passengers,
            requested_at=ride.requested_at,
            started_at=ride.started_at,
            distance_m=distance_m,
            duration_s=ride.duration_s,
            fare=story.money(ride.fare_minor),
            multiplier=ride.multiplier,
            reason=reason,
        ),
        aggregate=ride.ride_id,
        seq=ride.seq,
        at=ride.updated_at,
        story=ride.quote_id,
    )
    return ride


def _fare_due(work: Work, ride: Ride) -> int:
    """Return what the ride costs if it ends now, in minor units.

    A pooled ride costs what was agreed: the way to the partner's ends is no cost of the rider's.
    """
    if ride.pooled_with is not None:
        return ride.fare_minor
    tariff = work.policy.tariff
    metered_minor = tariff.fare_minor(
        distance_m=ride.route_m, duration_s=ride.driven_s(at=work.now), multiplier=ride.multiplier
    )
    return tariff.final_minor(quoted_minor=ride.fare_minor, metered_minor=metered_minor)
