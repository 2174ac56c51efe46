"""Who is near."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import h3
import pytest
from booking.domain.driver import Driver, DriverStatus
from booking.domain.matching import CellIndex, nearest_driver, nearest_waiting
from booking.domain.place import Place
from booking.domain.ride import Ride

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
CENTRE = "882a100d29fffff"


def place(cell: str) -> Place:
    lat, lng = h3.cell_to_latlng(cell)
    return Place(lat=lat, lng=lng, cell=cell)


def driver(driver_id: str, cell: str) -> Driver:
    return Driver(
        driver_id=driver_id,
        status=DriverStatus.FREE,
        position=place(cell),
        seq=1,
        updated_at=NOW,
        heard_at=NOW,
        simulated=True,
    )


def ride(ride_id: str, cell: str, *, waited_s: int = 0, declined: tuple[str, ...] = ()) -> Ride:
    at = NOW - timedelta(seconds=waited_s)
    return Ride(
        ride_id=ride_id,
        quote_id="q",
        rider_id="r",
        pickup=place(cell),
        dropoff=place(cell),
        passengers=1,
        route_m=1,
        fare_minor=1,
        multiplier=1.0,
        surge_version=None,
        requested_at=at,
        updated_at=at,
        simulated=False,
        declined=declined,
    )


def free(*drivers: Driver, crowd: int = 0) -> CellIndex[Driver]:
    index: CellIndex[Driver] = CellIndex()
    for one in drivers:
        assert one.position is not None
        index.put(one.driver_id, one.position.cell, one)
    # A crowd far away makes the index walk rings instead of measuring to each taken cell.
    for number, cell in enumerate(sorted(h3.grid_disk(h3.latlng_to_cell(0, 0, 8), 10))[:crowd]):
        index.put(f"far-{number}", cell, driver(f"far-{number}", cell))
    return index


@pytest.mark.parametrize("crowd", [0, 200])
def test_the_shortest_distance_wins_then_the_id(crowd: int) -> None:
    ring_1 = sorted(h3.grid_ring(CENTRE, 1))
    ring_2 = sorted(h3.grid_ring(CENTRE, 2))
    index = free(driver("b", ring_2[0]), driver("c", ring_1[0]), driver("a", ring_1[0]), crowd=crowd)
    found = nearest_driver(index, place(CENTRE), rings=3, heard_since=NOW, allowed=lambda _: True)
    assert found is not None
    assert found.driver_id == "a"


@pytest.mark.parametrize("crowd", [0, 200])
def test_a_driver_beyond_the_border_of_the_cell_may_be_the_first_to_arrive(crowd: int) -> None:
    cell, neighbour = CENTRE, min(h3.grid_ring(CENTRE, 1))
    (lat, lng), (there_lat, there_lng) = h3.cell_to_latlng(cell), h3.cell_to_latlng(neighbour)

    def between(share: float) -> Place:
        lat_lng = (lat + share * (there_lat - lat), lng + share * (there_lng - lng))
        return Place(lat=lat_lng[0], lng=lat_lng[1], cell=h3.latlng_to_cell(*lat_lng, 8))

    pickup, near, far = between(0.45), between(0.55), between(-0.3)
    assert (pickup.cell, near.cell, far.cell) == (cell, neighbour, cell)
    index = free(
        replace(driver("near", neighbour), position=near), replace(driver("far", cell), position=far), crowd=crowd
    )
    found = nearest_driver(index, pickup, rings=2, heard_since=NOW, allowed=lambda _: True)
    assert found is not None
    assert found.driver_id == "near"


@pytest.mark.parametrize("crowd", [0, 200])
def test_nobody_beyond_the_rings_and_nobody_who_is_not_allowed(crowd: int) -> None:
    index = free(driver("a", min(h3.grid_ring(CENTRE, 3))), crowd=crowd)
    assert nearest_driver(index, place(CENTRE), rings=2, heard_since=NOW, allowed=lambda _: True) is None
    assert (
        nearest_driver(index, place(CENTRE), rings=3, heard_since=NOW, allowed=lambda one: one.driver_id != "a") is None
    )
    assert nearest_driver(index, place(CENTRE), rings=3, heard_since=NOW, allowed=lambda _: True) is not None


def test_a_free_driver_takes_who_waits_longest_in_the_nearest_ring() -> None:
    index: CellIndex[Ride] = CellIndex()
    near = min(h3.grid_ring(CENTRE, 1))
    for one in (ride("new", near), ride("old", near, waited_s=60), ride("far", CENTRE, waited_s=0)):
        index.put(one.ride_id, one.pickup.cell, one)
    found = nearest_waiting(index, driver("d", near), rings=4, heard_since=NOW)
    assert found is not None
    assert found.ride_id == "old"


def test_a_driver_does_not_get_a_ride_again_that_it_left() -> None:
    index: CellIndex[Ride] = CellIndex()
    index.put("left", CENTRE, ride("left", CENTRE, declined=("d",)))
    assert nearest_waiting(index, driver("d", CENTRE), rings=4, heard_since=NOW) is None
    assert nearest_waiting(index, driver("e", CENTRE), rings=4, heard_since=NOW) is not None


def test_an_index_forgets_what_moved_away() -> None:
    index: CellIndex[int] = CellIndex()
    other = min(h3.grid_ring(CENTRE, 1))
    index.put("a", CENTRE, 1)
    index.put("a", other, 2)
    assert [thing for found in index.rings(CENTRE, 0) for thing in found] == []
    assert [thing for found in index.rings(other, 0) for thing in found] == [2]
    index.discard("a")
    index.discard("a")
    assert len(index) == 0


@pytest.mark.parametrize("crowd", [0, 200])
def test_every_ring_is_looked_at_once_whichever_way_it_is_found(crowd: int) -> None:
    near, next_to = CENTRE, min(h3.grid_ring(CENTRE, 1))
    index = free(driver("a", next_to), driver("b", near), driver("c", near), crowd=crowd)
    found = [sorted(one.driver_id for one in at_distance) for at_distance in index.rings(CENTRE, 2)]
    assert found == [["b", "c"], ["a"]]


def test_an_index_keeps_no_empty_cells() -> None:
    index: CellIndex[int] = CellIndex()
    for number, cell in enumerate(sorted(h3.grid_disk(CENTRE, 3))):
        index.put("a", cell, number)
    index.discard("a")
    assert index._by_cell == {}


def test_a_cell_that_cannot_be_measured_to_is_not_near() -> None:
    pentagon = h3.get_pentagons(8)[0]
    with pytest.raises(h3.H3BaseException):
        h3.grid_distance(CENTRE, pentagon)
    index = free(driver("beyond", pentagon))
    assert nearest_driver(index, place(CENTRE), rings=3, heard_since=NOW, allowed=lambda _: True) is None


def test_who_comes_first_is_decided_by_the_id_when_the_distance_is_the_same() -> None:
    for ids in (("a", "b"), ("b", "a")):
        found = nearest_driver(
            free(*(driver(one, CENTRE) for one in ids)), place(CENTRE), rings=0, heard_since=NOW, allowed=lambda _: True
        )
        assert found is not None
        assert found.driver_id == "a"


def test_a_driver_without_a_position_gets_no_ride() -> None:
    index: CellIndex[Ride] = CellIndex()
    index.put("waiting", CENTRE, ride("waiting", CENTRE))
    assert nearest_waiting(index, replace(driver("d", CENTRE), position=None), rings=4, heard_since=NOW) is None


def test_a_driver_who_was_not_heard_of_since_then_is_passed_over() -> None:
    silent, near = driver("silent", CENTRE), min(h3.grid_ring(CENTRE, 1))
    index = free(replace(silent, heard_at=NOW - timedelta(microseconds=1)), driver("heard", near))
    found = nearest_driver(index, place(CENTRE), rings=2, heard_since=NOW, allowed=lambda _: True)
    assert found is not None
    assert found.driver_id == "heard"


def test_a_driver_who_was_not_heard_of_since_then_gets_no_waiting_ride() -> None:
    index: CellIndex[Ride] = CellIndex()
    index.put("waiting", CENTRE, ride("waiting", CENTRE))
    silent = replace(driver("d", CENTRE), heard_at=NOW - timedelta(microseconds=1))
    assert nearest_waiting(index, silent, rings=4, heard_since=NOW) is None
    assert nearest_waiting(index, silent, rings=4, heard_since=silent.heard_at) is not None
