"""Silent drivers over HTTP and on the bus: booking hears of drivers by requests, and by what their apps publish."""

from datetime import UTC, datetime, timedelta

import pytest
from booking.adapters.storage import writer
from booking.app.drivers import HearPosition
from booking.app.ports import Work
from hailbus import Service
from hailbus.testing import MemoryBus
from ride_events import LatLng
from ride_events.drivers import DriverLocationReported

from tests.integration.booking.conftest import DROPOFF, FAR_AWAY, PICKUP, StartBooking
from tests.integration.conftest import eventually

pytestmark = pytest.mark.timeout(120)
START = datetime(2014, 5, 1, 8, tzinfo=UTC)


def at(after_s: float) -> str:
    return (START + timedelta(seconds=after_s)).isoformat()


async def test_a_silent_driver_is_not_matched_until_the_next_report(start_booking: StartBooking) -> None:
    async with start_booking(clock="event") as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=at(0))
        assert (await booking.get("/drivers/d1"))["heard_at"] == "2014-05-01T08:00:00Z"
        first = await booking.ride(at=at(31))
        assert (first["state"], first["driver_id"]) == ("requested", None)
        await booking.post("/drivers/d1/location", {"position": PICKUP}, at=at(40))
        assert (await booking.get(f"/rides/{first['ride_id']}"))["driver_id"] == "d1"


async def test_silence_is_kept_across_a_restart(start_booking: StartBooking) -> None:
    async with start_booking(clock="event") as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=at(0))
        await booking.post("/drivers/d2/online", {"position": PICKUP}, at=at(20))
    async with start_booking(clock="event") as booking:
        assert (await booking.ride(at=at(50)))["driver_id"] == "d2"
        assert (await booking.ride(at=at(51)))["driver_id"] is None


async def test_the_setting_says_how_long(start_booking: StartBooking) -> None:
    async with start_booking(clock="event", silent_after_s=600) as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=at(0))
        assert (await booking.ride(at=at(600)))["driver_id"] == "d1"


async def test_a_position_that_a_driver_app_publishes_is_a_report(start_booking: StartBooking, bus: MemoryBus) -> None:
    app = Service("driver-app", source="/driver-app", bus=bus)
    positions = app.publishes(DriverLocationReported)

    async with start_booking(clock="event") as booking, app.running():
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=at(0))
        ride = await booking.ride(at=at(100))
        assert ride["driver_id"] is None
        place = LatLng(**DROPOFF)
        for driver_id, moment in (("nobody", START), ("d\x00", START), ("d1", START + timedelta(seconds=101))):
            event = DriverLocationReported(driver_id=driver_id, position=place, cell=place.cell(), free=True)
            await positions.publish(event, time=moment)

        async def matched() -> bool:
            return bool((await booking.get(f"/rides/{ride['ride_id']}"))["driver_id"] == "d1")

        await eventually(matched)
        driver = await booking.get("/drivers/d1")
        assert (driver["position"], driver["heard_at"]) == (DROPOFF, "2014-05-01T08:01:41Z")
        assert (await booking.get("/clock"))["now"] == "2014-05-01T08:01:40Z", "published positions move no clock"
        assert booking.types("driver-locations.v1") == ["driver.location_reported"] * 3, "none is published again"

        async def parked() -> bool:
            return len(bus.records("driver-locations.v1.booking-dlt")) == 1

        await eventually(parked)


async def test_the_wall_clock_bounds_what_a_driver_app_says(start_booking: StartBooking, bus: MemoryBus) -> None:
    """An app whose clock is fast would never be silent again, and its next positions would be old ones."""
    app = Service("driver-app", source="/driver-app", bus=bus)
    positions = app.publishes(DriverLocationReported)
    async with start_booking() as booking, app.running():
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        place = LatLng(**DROPOFF)
        event = DriverLocationReported(driver_id="d1", position=place, cell=place.cell(), free=True)
        await positions.publish(event, time=datetime(2090, 1, 1, tzinfo=UTC))

        async def moved() -> bool:
            return bool((await booking.get("/drivers/d1"))["position"] == DROPOFF)

        await eventually(moved)
        heard_at = datetime.fromisoformat((await booking.get("/drivers/d1"))["heard_at"])
        assert heard_at <= datetime.now(UTC)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drivers whose positions booking has heard."""
    found: list[str] = []
    decide = HearPosition.decide

    def listen(self: HearPosition, work: Work) -> bool:
        found.append(self.driver_id)
        return decide(self, work)

    monkeypatch.setattr(HearPosition, "decide", listen)
    return found


@pytest.mark.parametrize("ends", ["with a commit", "with the process", "after a time"])
async def test_heard_positions_wait_for_a_commit(
    start_booking: StartBooking, bus: MemoryBus, heard: list[str], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(writer, "POSITIONS_WAIT_S", 0.3 if ends == "after a time" else 3600)
    app = Service("driver-app", source="/driver-app", bus=bus)
    positions = app.publishes(DriverLocationReported)
    async with start_booking(clock="event") as booking, app.running():
        await booking.post("/drivers/d1/online", {"position": PICKUP}, at=at(0))

        async def publish(where: dict[str, float], after_s: float) -> None:
            place = LatLng(**where)
            event = DriverLocationReported(driver_id="d1", position=place, cell=place.cell(), free=True)
            await positions.publish(event, time=START + timedelta(seconds=after_s))

            async def is_heard() -> bool:
                return len(heard) == after_s

            await eventually(is_heard)

        async def is_at(where: dict[str, float]) -> bool:
            return bool((await booking.get("/drivers/d1"))["position"] == where)

        await publish(FAR_AWAY, 1)
        if ends == "after a time":
            await eventually(lambda: is_at(FAR_AWAY))
            return
        await publish(DROPOFF, 2)
        assert await is_at(PICKUP)
        if ends == "with a commit":
            await booking.post("/drivers/d2/online", {"position": PICKUP}, at=at(3))
            assert await is_at(DROPOFF)
    async with start_booking(clock="event") as booking:
        assert await is_at(DROPOFF)


async def test_a_position_that_booking_published_is_not_heard_again(
    start_booking: StartBooking, bus: MemoryBus, heard: list[str]
) -> None:
    app = Service("driver-app", source="/driver-app", bus=bus)
    positions = app.publishes(DriverLocationReported)
    async with start_booking() as booking, app.running():
        for driver_id in ("d1", "d2"):
            await booking.post(f"/drivers/{driver_id}/online", {"position": PICKUP})
        await booking.post("/drivers/d1/location", {"position": DROPOFF})

        async def published() -> bool:
            return booking.types("driver-locations.v1") == ["driver.location_reported"]

        await eventually(published)
        place = LatLng(**DROPOFF)
        for driver_id in ("d1", "d2"):  # the same partition as booking's own, and another one
            event = DriverLocationReported(driver_id=driver_id, position=place, cell=place.cell(), free=True)
            await positions.publish(event, time=datetime.now(UTC))

        async def both() -> bool:
            return len(heard) >= 2

        await eventually(both)
    assert sorted(heard) == ["d1", "d2"]
