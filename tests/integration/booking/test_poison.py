"""Events that fit their class and are nonsense: set aside with a reason, and nothing waits for them."""

from datetime import UTC, datetime, timedelta

import pytest
from booking.app.apply_surge import ApplySurge
from booking.app.ports import Work
from hailbus import Service
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from ride_events.pricing import SurgeUpdated
from ride_events.timers import RideOverdue, TimerElapsed
from sqlalchemy import text

from tests.integration.booking.conftest import StartBooking
from tests.integration.conftest import eventually

pytestmark = pytest.mark.timeout(60)
NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)


async def test_nonsense_is_parked_and_the_next_event_is_applied(start_booking: StartBooking, bus: MemoryBus) -> None:
    surge = Service("surge", bus=bus)
    publisher = surge.publishes(SurgeUpdated | TimerElapsed | RideOverdue)
    async with start_booking(clock="event") as booking, surge.running():
        cell = (await booking.quote(at=NOW.isoformat()))["pickup_cell"]

        async def say(
            multiplier: float, version: int, *, valid_until: datetime = NOW + timedelta(1), **more: str
        ) -> None:
            event = SurgeUpdated(
                cell=cell,
                multiplier=multiplier,
                surge_version=version,
                window_end=NOW,
                demand=1.0,
                supply=1.0,
                valid_until=valid_until,
            )
            await publisher.publish(event, time=NOW, id=more.get("id"))

        await say(0.0, 2)
        await say(1_000.0, 3)
        await say(1.5, 2**70)
        await say(1.5, 4, valid_until=datetime(9999, 12, 31, tzinfo=UTC))
        await say(1.5, 5, id="n" * 300)
        await say(1.5, 6, id="a\x00b")
        await publisher.publish(TimerElapsed(subject_id="a\x00b", kind="no_show", seq=1, due_at=NOW), time=NOW)
        await publisher.publish(TimerElapsed(subject_id="unknown", kind="no_show", seq=1, due_at=NOW), time=NOW)
        overdue = RideOverdue(ride_id="unknown", state="matched", seq=1, due_at=NOW)
        await publisher.publish(overdue, time=NOW)
        await publisher.publish(overdue.model_copy(update={"state": "completed"}), time=NOW)
        await publisher.publish(overdue.model_copy(update={"ride_id": "a\x00b"}), time=NOW)
        await say(1.3, 1)

        async def applied() -> bool:
            return bool((await booking.quote())["multiplier"] == 1.3)

        await eventually(applied)

        async def parked() -> bool:
            return (
                len(bus.records("surge.v1.booking-dlt")) == 6 and len(bus.records("booking-timers.v1.booking-dlt")) == 3
            )

        await eventually(parked)


async def test_an_event_that_breaks_a_decision_takes_nobody_along(
    start_booking: StartBooking, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    decide = ApplySurge.decide

    def breaks_at_two(self: ApplySurge, work: Work) -> bool:
        done = decide(self, work)
        if self.multiplier.version == 2:
            raise RuntimeError("our mistake")
        return done

    monkeypatch.setattr(ApplySurge, "decide", breaks_at_two)
    surge = Service("surge", bus=bus)
    publisher = surge.publishes(SurgeUpdated)
    async with start_booking(clock="event") as booking, surge.running():
        cell = (await booking.quote(at=NOW.isoformat()))["pickup_cell"]
        for version, multiplier in ((2, 2.0), (1, 1.2)):
            event = SurgeUpdated(
                cell=cell,
                multiplier=multiplier,
                surge_version=version,
                window_end=NOW,
                demand=1.0,
                supply=1.0,
                valid_until=NOW + timedelta(1),
            )
            await publisher.publish(event, time=NOW, id=f"version-{version}")

        async def applied() -> bool:
            return bool((await booking.quote())["multiplier"] == 1.2)

        await eventually(applied)

        async def parked() -> bool:
            return len(bus.records("surge.v1.booking-dlt")) == 1

        await eventually(parked)
    engine = create_engine(database_url)
    async with engine.connect() as connection:
        known = (await connection.execute(text("SELECT event_id FROM hailbus_inbox"))).scalars().all()
    await engine.dispose()
    assert known == ["version-1"]  # so that the dead letter can be replayed when the mistake is mended
