"""What the surge service reads of other services' events."""

import pytest
from hailbus import Event
from hailbus.testing.plugin import NeedsRecorder
from ride_events.drivers import (
    DriverBecameBusy,
    DriverBecameFree,
    DriverLocationReported,
    DriverWentOffline,
    DriverWentOnline,
)
from ride_events.quotes import QuoteOffered
from ride_events.rides import RideRequested
from surge.adapters.streams.records import fact_of

from tests.contract.examples import example


@pytest.mark.parametrize(
    "kind",
    [
        DriverBecameBusy,
        DriverBecameFree,
        DriverLocationReported,
        DriverWentOffline,
        DriverWentOnline,
        QuoteOffered,
        RideRequested,
    ],
)
def test_demand_and_supply(kind: type[Event], needs: NeedsRecorder) -> None:
    assert fact_of(needs("surge", example(kind)), 5) is not None
