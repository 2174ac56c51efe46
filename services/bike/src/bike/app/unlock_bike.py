"""Unlock a reserved bike: the hire begins."""

from ride_events.bikes import BikeUnlocked

from bike.app.facts import lat_lng
from bike.app.ports import Work
from bike.domain.errors import WrongState
from bike.domain.hire import Hire, HireState, Step


async def unlock_bike(work: Work, *, hire_id: str) -> Hire:
    """Begin a hire. Raises `NotFound` or `WrongState`."""
    hire = (await work.hire(hire_id)).unlock(at=work.now)
    if not await work.withdraw(hire_id):  # the news of the lapse is out: it counts
        raise WrongState(hire_id, HireState.LAPSED, Step.UNLOCK)
    await work.put_hire(hire)
    assert hire.started_at is not None
    await work.record(
        BikeUnlocked(
            hire_id=hire.hire_id,
            bike_id=hire.bike_id,
            rider_id=hire.rider_id,
            seq=hire.seq,
            simulated=hire.simulated,
            position=lat_lng(hire.pickup),
            cell=hire.pickup.cell,
        ),
        at=hire.started_at,
    )
    return hire
