"""Which outline holds a place."""

from random import Random

import h3
import pytest
import shapely
from ride_events.outlines import LOOK_UP_RESOLUTION, Outlines, decode_ring
from ride_events.zones import SHORE_M, zones

SOUTH, WEST = 40.70, -74.00
SIDE = 0.02
"""Two squares side by side; the western one has a square hole."""


def square(south: float, west: float, side: float) -> list[tuple[float, float]]:
    return [(south, west), (south, west + side), (south + side, west + side), (south + side, west)]


@pytest.fixture
def outlines() -> Outlines:
    hole = square(SOUTH + 0.008, WEST + 0.008, 0.004)
    return Outlines(
        {1: [square(SOUTH, WEST, SIDE), hole], 2: [square(SOUTH, WEST + SIDE, SIDE)]},
        reach_m=50,
    )


def test_the_outline_around_a_place_is_found(outlines: Outlines) -> None:
    assert outlines.find(SOUTH + 0.004, WEST + 0.004) == 1
    assert outlines.find(SOUTH + 0.01, WEST + SIDE + 0.01) == 2


def test_a_cell_on_a_border_is_divided_where_the_border_is(outlines: Outlines) -> None:
    lat, border = SOUTH + 0.01, WEST + SIDE
    west, east = (lat, border - 0.00001), (lat, border + 0.00001)
    assert h3.latlng_to_cell(*west, LOOK_UP_RESOLUTION) == h3.latlng_to_cell(*east, LOOK_UP_RESOLUTION)
    assert (outlines.find(*west), outlines.find(*east)) == (1, 2)


def test_the_order_of_questions_changes_no_answer(outlines: Outlines) -> None:
    places = [(SOUTH + 0.0007 * i, WEST - 0.01 + 0.0007 * j) for i in range(-20, 50) for j in range(90)]
    forwards = [outlines.find(*place) for place in places]
    assert [outlines.find(*place) for place in reversed(places)] == forwards[::-1]


def test_every_place_has_the_answer_of_the_plain_definition(outlines: Outlines) -> None:
    for i in range(-3, 24):
        for j in range(-3, 44):
            lat, lng = SOUTH + 0.001 * i + 0.0003, WEST + 0.001 * j + 0.0003
            in_hole = 0.008 < lat - SOUTH < 0.012 and 0.008 < lng - WEST < 0.012
            if 0 < lat - SOUTH < SIDE and 0 < lng - WEST < 2 * SIDE and not in_hole:
                assert outlines.find(lat, lng) == (1 if lng < WEST + SIDE else 2), (lat, lng)


def test_a_hole_is_outside_beyond_the_reach(outlines: Outlines) -> None:
    assert outlines.find(SOUTH + 0.01, WEST + 0.01) is None


def test_a_place_just_outside_belongs_to_the_nearest_outline(outlines: Outlines) -> None:
    metres = 1 / 111_195
    assert outlines.find(SOUTH - 40 * metres, WEST + 0.005) == 1
    assert outlines.find(SOUTH - 40 * metres, WEST + SIDE + 0.005) == 2
    assert outlines.find(SOUTH - 60 * metres, WEST + 0.005) is None


def test_far_places_are_in_no_outline_and_are_not_remembered(outlines: Outlines) -> None:
    assert outlines.find(0.0, 0.0) is None
    assert outlines.find(-90.0, 180.0) is None
    assert not outlines._near


def test_a_ring_is_read_from_its_steps() -> None:
    assert decode_ring([4_070_000, -7_400_000, 0, 2_000, 2_000, 0]) == [(40.7, -74.0), (40.7, -73.98), (40.72, -73.98)]


def test_the_citys_outlines_agree_with_shapely() -> None:
    outlines = Outlines({zone.zone_id: zone.rings for zone in zones().values()}, reach_m=SHORE_M)
    polygons = {}
    for zone in zones().values():
        shape: shapely.geometry.base.BaseGeometry = shapely.Polygon()
        for ring in zone.rings:
            shape = shape.symmetric_difference(shapely.Polygon([(lng, lat) for lat, lng in ring]))
        polygons[zone.zone_id] = shape
    numbers, tree = list(polygons), shapely.STRtree(list(polygons.values()))
    rng = Random(20230201)
    inside = 0
    for _ in range(5_000):
        lat, lng = rng.uniform(40.49, 40.92), rng.uniform(-74.26, -73.70)
        holding = {numbers[index] for index in tree.query(shapely.Point(lng, lat), predicate="intersects")}
        found = outlines.find(lat, lng)
        if holding:
            assert found in holding, (lat, lng)
            inside += 1
        elif found is not None:
            metres = 111_195 * shapely.distance(polygons[found], shapely.Point(lng, lat))
            assert metres < 1.4 * SHORE_M, (lat, lng)  # a degree of longitude is shorter than one of latitude
    assert inside > 1_500
