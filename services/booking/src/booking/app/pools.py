"""What two pooled rides mean for each other. A part of several use cases, not one of its own."""

from booking.app.ports import Work
from booking.app.pricing import tell_repriced
from booking.domain.ride import Ride, RideState


def partner_of(work: Work, ride: Ride) -> Ride | None:
    """Return the open ride that a ride is pooled with."""
    partner = work.open_ride_by_id(ride.pooled_with) if ride.pooled_with is not None else None
    return partner if partner is not None and partner.pooled_with == ride.ride_id else None


def end_pool(work: Work, ride: Ride) -> None:
    """Turn the partner of a ride back into a single one, unless its rider is on board: then the fare stays."""
    partner = partner_of(work, ride)
    if partner is not None and partner.state is not RideState.IN_PROGRESS:
        leave_pool(work, partner)


def leave_pool(work: Work, ride: Ride) -> Ride:
    """Turn a pooled ride back into a single one, at the fare that it had before."""
    after = ride.leave_pool(at=work.now)
    work.put_ride(after)
    tell_repriced(work, after, reason="pool_ended", simulated=None)
    return after
