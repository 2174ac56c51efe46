"""What the recommender reads of other services' events."""

import pytest
from hailbus import Context, Delivery, Event
from hailbus.testing import MemoryBus
from hailbus.testing.plugin import NeedsRecorder
from recommender.adapters.streams.facts import facts_of
from ride_events.rides import RideCancelled, RideCompleted, RidePooled, RideRequested, RideUnmatched

from tests.contract.examples import example

SEQUENCE = "seq"
"""Where hailbus finds the number of an event."""


@pytest.mark.parametrize("kind", [RideCancelled, RideCompleted, RidePooled, RideRequested, RideUnmatched])
async def test_journeys_and_open_rides(kind: type[Event], bus: MemoryBus, needs: NeedsRecorder) -> None:
    event = example(kind)
    async with bus.run() as t:
        (record,) = await t.given(event)
    watched = needs("recommender", event)
    assert facts_of(Delivery(watched, Context(record)))
    assert getattr(watched, SEQUENCE) == getattr(event, SEQUENCE)
