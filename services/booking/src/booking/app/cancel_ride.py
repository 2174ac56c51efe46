"""Cancel a ride: by the rider, by the driver (another one is looked for), or as a no-show."""

from dataclasses import dataclass
from typing import Literal

from ride_events.rides import RideCancelled, RideRedispatched, RideUnmatched

from booking.app import story
from booking.app.dispatch import hear_driver, release_driver, seek_driver
from booking.app.pools import end_pool, leave_pool
from booking.app.ports import Needs, Work
from booking.domain.errors import NoShowTooEarly, NotYourRide
from booking.domain.ride import Party, Ride, RideState

NO_SHOW = "no_show"
"""The reason by which a driver ends a ride whose rider did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRide:
    """Rider or driver cancels. A driver says who it is."""

    ride_id: str
    by: Literal["rider", "driver"]
    reason: str
    driver_id: str | None = None
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride and its driver."""
        return Needs(rides=(self.ride_id,), drivers=(self.driver_id,) if self.driver_id else ())

    def decide(self, work: Work) -> Ride:
        """End or redispatch the ride, or raise `NotFound`, `NotYourRide`, `NoShowTooEarly` or `WrongState`."""
        ride = work.ride(self.ride_id)
        if self.by == "rider":
            return end(work, ride, by="rider", reason=self.reason, simulated=self.simulated)
        if self.driver_id is None:
            raise NotYourRide(self.ride_id, "")
        ride = ride.by_driver(self.driver_id)
        hear_driver(work, self.driver_id)
        if self.reason == NO_SHOW and ride.state is RideState.ARRIVED:
            assert ride.arrived_at is not None
            waits_until = ride.arrived_at + work.policy.no_show_after
            if work.now < waits_until:
                raise NoShowTooEarly(ride.ride_id, waits_until)
            return end(work, ride, by="driver", reason=NO_SHOW, simulated=self.simulated)
        return redispatch(work, ride, self.driver_id, reason=self.reason, simulated=self.simulated)


def redispatch(work: Work, ride: Ride, driver_id: str, *, reason: str, simulated: bool | None = None) -> Ride:
    """Take the ride from its driver and look for another, or give up when that was done as often as the policy allows.

    Raises:
        WrongState: The ride has not been matched, or its rider is on board.
    """
    stage = ride.state
    simulated = story.marked(simulated, ride, work.driver(driver_id))
    end_pool(work, ride)
    if len(ride.declined) >= work.policy.max_redispatches:
        after = ride.give_up(reason="redispatch_limit", at=work.now)
        work.put_ride(after)
        tell_unmatched(work, after, "redispatch_limit")
    else:
        after = (leave_pool(work, ride) if ride.pooled_with is not None else ride).redispatch(at=work.now)
        work.put_ride(after)
        work.record(
            RideRedispatched(
                ride_id=after.ride_id,
                seq=after.seq,
                simulated=simulated,
                driver_id=driver_id,
                pickup_cell=after.pickup.cell,
                attempt=len(after.declined),
                reason=reason,
            ),
            aggregate=after.ride_id,
            seq=after.seq,
            at=after.updated_at,
            story=after.quote_id,
        )
    _cancel_timer_of(work, ride.ride_id, stage)
    # First the rider finds a driver, then the driver who left finds a rider: never each other again.
    if after.waiting:
        after = seek_driver(work, after)
    release_driver(work, driver_id, ride)
    return after


def end(work: Work, ride: Ride, *, by: Party, reason: str, simulated: bool | None = None) -> Ride:
    """End a ride before its start and free its driver."""
    before = ride
    driver = work.driver(before.driver_id) if before.driver_id else None
    ride = ride.cancel(by=by, reason=reason, at=work.now)
    work.put_ride(ride)
    end_pool(work, ride)
    work.record(
        RideCancelled(
            ride_id=ride.ride_id,
            seq=ride.seq,
            simulated=story.marked(simulated, ride, driver if by == "driver" else None),
            rider_id=ride.rider_id,
            driver_id=before.driver_id,
            pickup_cell=ride.pickup.cell,
            by=by,
            reason=reason,
            stage=before.stage,
            matched_at=before.matched_at,
        ),
        aggregate=ride.ride_id,
        seq=ride.seq,
        at=ride.updated_at,
        story=ride.quote_id,
    )
    if before.seeks_partner:
        work.cancel_timer("partner_wait", ride.ride_id)
    elif before.waiting:
        work.cancel_timer("match_timeout", ride.ride_id)
    _cancel_timer_of(work, ride.ride_id, before.state)
    if before.driver_id is not None:
        release_driver(work, before.driver_id, ride)
    return ride


def _cancel_timer_of(work: Work, ride_id: str, stage: RideState) -> None:
    """Cancel the timer of a ride that had a driver and leaves this state."""
    if stage is RideState.MATCHED:
        work.cancel_timer("pickup_timeout", ride_id)
    elif stage is RideState.ARRIVED:
        work.cancel_timer("no_show", ride_id)


def tell_unmatched(work: Work, ride: Ride, reason: Literal["timeout", "redispatch_limit"]) -> None:
    """Tell that no driver was found."""
    work.record(
        RideUnmatched(
            ride_id=ride.ride_id,
            seq=ride.seq,
            simulated=ride.simulated,
            rider_id=ride.rider_id,
            pickup_cell=ride.pickup.cell,
            reason=reason,
        ),
        aggregate=ride.ride_id,
        seq=ride.seq,
        at=ride.updated_at,
        story=ride.quote_id,
    )
