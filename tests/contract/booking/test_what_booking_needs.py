"""What booking reads of other services' events."""

from booking.adapters.streams.service import _command, fault_of, fault_of_position, position_of
from hailbus import Context, Delivery
from hailbus.testing import MemoryBus
from hailbus.testing.plugin import NeedsRecorder
from ride_events.drivers import DriverLocationReported
from ride_events.payments import (
    PaymentAuthorised,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    PaymentReleased,
)
from ride_events.pricing import SurgeUpdated
from ride_events.timers import RideOverdue, TimerElapsed

from tests.contract.examples import example


async def test_prices_and_timers(bus: MemoryBus, needs: NeedsRecorder) -> None:
    for event in (example(SurgeUpdated), example(TimerElapsed), example(RideOverdue)):
        async with bus.run() as t:
            (record,) = await t.given(event)
        watched = needs("booking", event)
        assert fault_of(Delivery(watched, Context(record))) is None
        assert _command(watched) is not None


async def test_payments(bus: MemoryBus, needs: NeedsRecorder) -> None:
    for event in (
        example(PaymentAuthorised),
        example(PaymentCaptured),
        example(PaymentFailed),
        example(PaymentReleased),
        example(PaymentRefunded),
    ):
        async with bus.run() as t:
            (record,) = await t.given(event)
        watched = needs("booking", event)
        assert fault_of(Delivery(watched, Context(record))) is None
        assert _command(watched) is not None


async def test_positions(bus: MemoryBus, needs: NeedsRecorder) -> None:
    event = example(DriverLocationReported)
    async with bus.run() as t:
        (record,) = await t.given(event)
    watched = needs("booking", event)
    assert fault_of_position(Delivery(watched, Context(record))) is None
    assert position_of(watched).driver_id == event.driver_id
