"""A quote is accepted once, before it expires."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from booking.domain.errors import QuoteExpired, QuoteTaken
from booking.domain.place import Place
from booking.domain.quote import Quote, QuoteState

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
EXPIRES = NOW + timedelta(minutes=2)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")
OFFERED = Quote(
    quote_id="q",
    rider_id="r",
    pickup=HERE,
    dropoff=HERE,
    passengers=1,
    distance_m=1,
    duration_s=1,
    fare_minor=800,
    multiplier=1.0,
    surge_version=None,
    offered_at=NOW,
    expires_at=EXPIRES,
    simulated=False,
)


def test_an_accepted_quote_names_its_ride_and_is_not_accepted_again() -> None:
    accepted = OFFERED.accept("ride", at=EXPIRES - timedelta(microseconds=1))
    assert (accepted.state, accepted.seq, accepted.ride_id) == (QuoteState.ACCEPTED, 2, "ride")
    with pytest.raises(QuoteTaken) as refused:
        accepted.accept("another", at=NOW)
    assert (refused.value.quote_id, refused.value.ride_id) == ("q", "ride")


def test_a_quote_expires_at_its_moment_with_or_without_the_timer() -> None:
    with pytest.raises(QuoteExpired) as refused:
        OFFERED.accept("ride", at=EXPIRES)
    assert (refused.value.quote_id, refused.value.expired_at) == ("q", EXPIRES)
    with pytest.raises(QuoteExpired):
        replace(OFFERED, state=QuoteState.EXPIRED).accept("ride", at=NOW)


def test_only_an_offered_quote_expires() -> None:
    expired = OFFERED.expire()
    assert expired is not None
    assert (expired.state, expired.seq) == (QuoteState.EXPIRED, 2)
    assert expired.expire() is None
    assert OFFERED.accept("ride", at=NOW).expire() is None
