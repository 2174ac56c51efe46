"""What riders learn of a ride that continues after the run was stopped."""

from typing import Any, cast

from hailbus_demo.replay.book import Book
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import SureClient
from hailbus_demo.replay.world import World

RIDE = {
    "ride_id": "r1",
    "state": "requested",
    "seq": 1,
    "quote_id": "q1",
    "rider_id": "ada",
    "driver_id": None,
    "fare": {"amount_minor": 900, "currency": "USD"},
    "multiplier": 1.0,
    "distance_m": None,
    "duration_s": None,
    "pickup": {"lat": 40.75, "lng": -73.98},
    "dropoff": {"lat": 40.70, "lng": -74.0},
    "requested_at": "2014-05-01T08:00:00Z",
    "passengers": 1,
    "simulated": True,
    "pool_wish": None,
    "pooled_with": None,
}


class Booking:
    """Answers `GET /rides` and `GET /drivers` as booking does."""

    def __init__(self, *rides: dict[str, Any]) -> None:
        self.rides = list(rides)

    async def get(self, path: str) -> dict[str, Any]:
        if path.startswith("/drivers"):
            return {"drivers": [], "next": None}
        asked = [part.removeprefix("ride_id=") for part in path.split("&") if part.startswith("ride_id=")]
        return {"rides": [ride for ride in self.rides if not asked or ride["ride_id"] in asked], "next": None}


async def test_a_rider_learns_that_a_timer_has_ended_the_ride() -> None:
    booking = Booking(RIDE)
    book = Book()
    world = World(stage=Stage(speed=None, limit=1), booking=cast("SureClient", booking), book=book, run="r")
    assert await world.adopt() == 1
    booking.rides = [{**RIDE, "state": "unmatched", "seq": 2}]
    assert book.rides["r1"].state == "requested"
    await world.recheck()
    assert (book.rides["r1"].state, book.rides["r1"].seq) == ("unmatched", 2)
