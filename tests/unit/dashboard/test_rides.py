"""Rides by the log: each is counted once and by its end, whatever is repeated or missing."""

from typing import Any

import pytest
from dashboard.domain.rides import RideBook
from ride_events import LatLng, Money
from ride_events.rides import (
    RideCancelled,
    RideCompleted,
    RideDriverArrived,
    RideMatched,
    RideRedispatched,
    RideRequested,
    RideStarted,
    RideUnmatched,
)

A, B, C = LatLng(lat=40.70, lng=-74.0), LatLng(lat=40.80, lng=-73.9), LatLng(lat=40.71, lng=-74.0)
CELL = A.cell()
NOON = 1_400_000_000_000


def requested(ride_id: str = "r") -> RideRequested:
    return RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id="rider",
        quote_id="q",
        pickup=A,
        dropoff=B,
        pickup_cell=CELL,
        dropoff_cell=B.cell(),
        fare=Money(amount_minor=1000),
        multiplier=1.0,
        surge_version=None,
    )


def matched(seq: int = 2) -> RideMatched:
    return RideMatched(ride_id="r", seq=seq, driver_id="d", driver_position=C, pickup_cell=CELL, eta_s=120)


def completed(ride_id: str = "r", seq: int = 5) -> RideCompleted:
    values: dict[str, Any] = requested(ride_id).model_dump() | {
        "seq": seq,
        "driver_id": "d",
        "requested_at": "2014-05-01T12:00:00Z",
        "started_at": "2014-05-01T12:05:00Z",
        "distance_m": 1,
        "duration_s": 1,
    }
    return RideCompleted.model_validate(values)


def cancelled(seq: int = 2) -> RideCancelled:
    return RideCancelled(
        ride_id="r",
        seq=seq,
        rider_id="rider",
        driver_id=None,
        pickup_cell=CELL,
        by="rider",
        reason="x",
        stage="requested",
    )


def test_a_ride_is_drawn_on_its_way_and_leaves() -> None:
    book = RideBook()
    book.apply(requested(), NOON, duration_s=600)
    ride = book.open["r"]
    assert (ride.phase, ride.start, ride.end) == ("requested", A, A)
    book.apply(matched(), NOON + 1000)
    assert (ride.phase, ride.start, ride.end, ride.t0_ms, ride.t1_ms) == ("matched", C, A, NOON + 1000, NOON + 121_000)
    book.apply(RideDriverArrived(ride_id="r", seq=3, driver_id="d"), NOON + 60_000)
    assert (ride.phase, ride.start) == ("arrived", A)
    book.apply(RideStarted(ride_id="r", seq=4, driver_id="d", pickup=A, dropoff=B), NOON + 90_000)
    assert (ride.phase, ride.end, ride.t1_ms - ride.t0_ms) == ("riding", B, 600_000)
    book.apply(completed(), NOON + 700_000)
    assert (book.open, book.ended, book.counts.completed) == ({}, [("r", "completed")], 1)


def test_without_a_quote_the_way_tells_how_long_a_ride_may_take() -> None:
    book = RideBook()
    book.apply(requested(), NOON)
    assert book.open["r"].duration_ms == pytest.approx(3_484_000, rel=0.001)  # 13.95 km × 1.35 at 5.5 m/s, and a minute


@pytest.mark.parametrize(
    "end",
    [completed(), cancelled(), RideUnmatched(ride_id="r", seq=2, rider_id="x", pickup_cell=CELL, reason="timeout")],
)
def test_every_event_may_come_twice(end: RideCompleted | RideCancelled | RideUnmatched) -> None:
    book = RideBook()
    for _ in range(2):
        book.apply(requested(), NOON)
    for _ in range(2):
        book.apply(end, NOON)
    book.apply(requested(), NOON)
    counts = book.counts
    assert (counts.requested, counts.completed + counts.cancelled + counts.unmatched, counts.repeated) == (1, 1, 3)
    assert book.open == {}


def test_an_older_event_changes_nothing() -> None:
    book = RideBook()
    book.apply(requested(), NOON)
    book.apply(matched(seq=2), NOON)
    book.apply(RideRedispatched(ride_id="r", seq=3, driver_id="d", pickup_cell=CELL, attempt=1, reason="x"), NOON)
    book.apply(matched(seq=2), NOON)
    assert (book.open["r"].phase, book.counts.repeated) == ("requested", 1)


def test_an_end_without_a_request_is_outside_of_the_sum() -> None:
    book = RideBook()
    for _ in range(2):
        book.apply(completed("older"), NOON)
    assert (book.counts.unknown, book.counts.repeated, book.counts.completed) == (1, 1, 0)
