"""Pooled-ride matches and pickup spots."""

from datetime import UTC, datetime

import h3
import pytest
from recommender.domain.pooling import OpenRide, OpenRides
from recommender.domain.spots import PickupSpots
from recommender.domain.trips import wall_seconds

NOON = wall_seconds(datetime(2023, 3, 1, 12, 0, tzinfo=UTC))
A, NEAR_A, B, FAR = range(4)


def ride(ride_id: str, origin: int, destination: int, at_s: float, rider_id: str = "other") -> OpenRide:
    return OpenRide(ride_id=ride_id, rider_id=rider_id, origin=origin, destination=destination, requested_s=at_s)


def test_only_equal_routes_are_offered_and_who_waits_longest_comes_first() -> None:
    open_rides = OpenRides()
    open_rides.open(ride("first", A, B, NOON))
    open_rides.open(ride("near", NEAR_A, B, NOON))
    open_rides.open(ride("second", A, B, NOON + 60))
    open_rides.open(ride("elsewhere", A, FAR, NOON + 60))
    found = open_rides.matches(A, B, NOON + 120)
    assert [(match.ride.ride_id, match.apart_s) for match in found] == [("first", 120), ("second", 60)]


@pytest.mark.parametrize(("later_s", "count"), [(300, 1), (301, 0)])
def test_five_minutes_are_the_limit(later_s: int, count: int) -> None:
    open_rides = OpenRides()
    open_rides.open(ride("one", A, B, NOON))
    assert len(open_rides.matches(A, B, NOON + later_s)) == count


def test_nobody_is_pooled_with_oneself_or_with_a_closed_ride() -> None:
    open_rides = OpenRides()
    open_rides.open(ride("mine", A, B, NOON, rider_id="me"))
    open_rides.open(ride("closed", A, B, NOON))
    open_rides.close("closed")
    open_rides.close("never seen")
    assert open_rides.matches(A, B, NOON, rider_id="me") == []


def test_old_requests_leave_by_themselves() -> None:
    open_rides = OpenRides()
    for minute in range(60):
        open_rides.open(ride(str(minute), A, B, NOON + 60 * minute))
    assert len(open_rides) == 11


def test_spots_are_ranked_by_pickups_at_this_time_of_day() -> None:
    block = h3.latlng_to_cell(40.758, -73.9855, 9)
    corner, gate, *_ = sorted(h3.cell_to_children(block, 11))
    spots = PickupSpots()
    assert spots.rank(block, NOON) == []
    for _ in range(3):
        spots.observe(corner, NOON)
        spots.observe(h3.cell_to_center_child(gate, 15), NOON + 10 * 3600)
    spots.observe(gate, NOON + 10 * 3600)
    by_day, by_night = spots.rank(block, NOON), spots.rank(block, NOON + 10 * 3600)
    assert [spot.cell for spot in by_day] == [corner, gate]
    assert [spot.cell for spot in by_night] == [gate, corner]
    assert sum(spot.share for spot in by_day) == pytest.approx(1.0)
