"""Put a bike on the street, or elsewhere on the street."""

from bike.app.ports import Work
from bike.domain.errors import BikeTaken, NotFound
from bike.domain.hire import Bike, HireState, Place


async def place_bike(work: Work, *, bike_id: str, place: Place) -> Bike:
    """Place a bike. Raises `BikeTaken` while a rider has it."""
    try:
        bike = await work.bike(bike_id)
    except NotFound:
        bike = Bike(bike_id=bike_id, place=place)
    if bike.hire_id is not None:
        holder = (await work.hire(bike.hire_id)).as_of(work.now)
        if holder.state in {HireState.RESERVED, HireState.IN_USE}:
            raise BikeTaken(bike_id)
    bike = bike.stand_at(place)
    await work.put_bike(bike)
    return bike
