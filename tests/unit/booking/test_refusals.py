"""A refusal says what happened and what to do; events that make no sense are refused with a reason."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from booking.adapters.streams.service import fault_of
from booking.domain.errors import (
    CannotPool,
    DriverBusy,
    DriverElsewhere,
    DriverOffline,
    Misdirected,
    NoShowTooEarly,
    NotAllowed,
    NotFound,
    NotYourRide,
    PaymentDue,
    QuoteExpired,
    QuoteTaken,
    Refusal,
    RideOpen,
    RidePooled,
    WrongState,
)
from ride_events.pricing import SurgeUpdated

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)


def test_a_refusal_says_what_happened() -> None:
    refusals = {
        NotAllowed("rider 'r1' may not act for rider 'r2'"): "rider 'r1' may not act for rider 'r2'",
        NotFound("ride", "r1"): "there is no ride 'r1'",
        Misdirected("ride outer.1", owner="outer", address="http://h:1"): "ride outer.1 belongs to region outer: send "
        "the request to http://h:1",
        DriverElsewhere("d1", "outer"): "driver d1 is online in region outer: go offline there first",
        QuoteExpired("q1", NOW): "quote q1 was good until 2014-05-01T08:00:00+00:00; ask for a new one",
        QuoteTaken("q1", "r1"): "quote q1 was accepted before, as ride r1; ask for a new one",
        RideOpen("r1", "a"): "rider r1 has ride a, which has not ended; complete or cancel it first",
        PaymentDue("r1", "a", 1_250): "rider r1 owes 12.50 USD for ride a; pay that first, then request a ride",
        WrongState("r1", "completed", "be_matched"): "ride r1 is completed: it cannot be matched now",
        NotYourRide("r1", "d1"): "ride r1 is not with driver d1",
        RidePooled("r1", "r2"): "ride r1 is pooled with ride r2: it can change neither destination nor partner; cancel "
        "it and request another one",
        CannotPool("r1", "r2", "it is the same ride"): "ride r1 cannot be pooled with ride r2: it is the same ride",
        NoShowTooEarly("r1", NOW): "the rider of ride r1 has until 2014-05-01T08:00:00+00:00 to come",
        DriverBusy("d1", "r1"): "driver d1 is on ride r1; complete or cancel it first",
        DriverOffline("d1"): "driver d1 is offline; go online first",
    }
    assert {type(refusal) for refusal in refusals} == set(Refusal.__subclasses__())
    for refusal, says in refusals.items():
        assert str(refusal) == says


@pytest.mark.parametrize(
    ("multiplier", "sensible"),
    [(0.49, False), (0.5, True), (20.0, True), (20.1, False), (float("nan"), False)],
)
def test_a_multiplier_is_between_half_and_twenty(multiplier: float, *, sensible: bool) -> None:
    event = SurgeUpdated(
        cell="882a100d29fffff",
        multiplier=multiplier,
        surge_version=1,
        window_end=NOW,
        demand=1.0,
        supply=1.0,
        valid_until=NOW + timedelta(minutes=5),
    )
    # Any: of the context, only the envelope's time is looked at.
    item: Any = SimpleNamespace(event=event, ctx=SimpleNamespace(envelope=SimpleNamespace(time=NOW)))
    assert (fault_of(item) is None) == sensible
