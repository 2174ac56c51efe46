"""Return a bike: the hire ends and costs something."""

from ride_events import Money
from ride_events.bikes import BikeReturned

from bike.app.facts import lat_lng
from bike.app.ports import Work
from bike.domain.hire import Hire, Place


async def return_bike(work: Work, *, hire_id: str, place: Place, distance_m: int) -> Hire:
    """End a hire after `distance_m` metres. Raises `NotFound` or `WrongState`."""
    hire = (await work.hire(hire_id)).bring_back(place, distance_m=distance_m, tariff=work.policy.tariff, at=work.now)
    await work.put_hire(hire)
    bike = await work.bike(hire.bike_id)
    await work.put_bike(bike.stand_at(place))
    assert hire.started_at is not None and hire.returned_at is not None  # noqa: PT018 both follow from the return
    assert hire.duration_s is not None and hire.fare_minor is not None  # noqa: PT018 both follow from the return
    await work.record(
        BikeReturned(
            hire_id=hire.hire_id,
            bike_id=hire.bike_id,
            rider_id=hire.rider_id,
            seq=hire.seq,
            simulated=hire.simulated,
            pickup=lat_lng(hire.pickup),
            dropoff=lat_lng(place),
            pickup_cell=hire.pickup.cell,
            dropoff_cell=place.cell,
            started_at=hire.started_at,
            distance_m=distance_m,
            duration_s=hire.duration_s,
            fare=Money(amount_minor=hire.fare_minor),
        ),
        at=hire.returned_at,
    )
    return hire
