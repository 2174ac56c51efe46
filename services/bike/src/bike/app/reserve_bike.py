"""Reserve a bike for a while."""

from ride_events.bikes import BikeReservationLapsed, BikeReserved

from bike.app.facts import lat_lng
from bike.app.ports import Work
from bike.domain.hire import Hire, HireState


async def reserve_bike(work: Work, *, hire_id: str, bike_id: str, rider_id: str, simulated: bool) -> Hire:
    """Reserve a bike. Raises `NotFound` or `BikeTaken`."""
    bike = await work.bike(bike_id)
    holder = await work.hire(bike.hire_id) if bike.hire_id is not None else None
    await work.put_bike(bike.give_to(hire_id, holder=holder, now=work.now))
    hire = Hire(
        hire_id=hire_id,
        bike_id=bike_id,
        rider_id=rider_id,
        state=HireState.RESERVED,
        seq=1,
        pickup=bike.place,
        reserved_at=work.now,
        expires_at=work.now + work.policy.reservation_ttl,
        simulated=simulated,
    )
    await work.put_hire(hire)
    await work.record(
        BikeReserved(
            hire_id=hire.hire_id,
            bike_id=hire.bike_id,
            rider_id=hire.rider_id,
            seq=hire.seq,
            simulated=hire.simulated,
            position=lat_lng(hire.pickup),
            cell=hire.pickup.cell,
            expires_at=hire.expires_at,
        ),
        at=hire.reserved_at,
    )
    # The timeout is this event itself, held back by the outbox until then: no timer, no sleep, no consumer.
    await work.schedule(
        BikeReservationLapsed(
            hire_id=hire.hire_id,
            bike_id=hire.bike_id,
            rider_id=hire.rider_id,
            seq=hire.seq + 1,
            simulated=hire.simulated,
            cell=hire.pickup.cell,
        ),
        at=hire.expires_at,
    )
    return hire
