"""The zone table in the package is the one that the script derives."""

import json

import h3
import polars as pl
import pytest
from hailbus_devtools.derive_zones import derive, outlines, steps
from ride_events.outlines import decode_ring

TRIANGLE = [(40.0, -73.5), (40.00123, -73.5), (40.0, -73.49999)]


def test_derive_writes_each_zone_once_with_its_cells() -> None:
    children = list(h3.cell_to_children("882a100d25fffff", 9))
    zones = pl.DataFrame(
        {
            "zone_id": [2, 1],
            "name": ["Béta", "Alpha"],
            "borough": ["Q", "M"],
            "lat": [40.1234567, 40.0],
            "lon": [-74.0, -73.5],
        }
    )
    rings = {1: [TRIANGLE], 2: [TRIANGLE, TRIANGLE]}
    table = json.loads(derive(zones, pl.DataFrame({"h3_9": children, "zone_id": [1] * 7}), rings))
    ring = [4_000_000, -7_350_000, 123, 0, -123, 1]
    assert table["zones"] == [
        {
            "zone_id": 1,
            "name": "Alpha",
            "borough": "M",
            "lat": 40.0,
            "lng": -73.5,
            "cells": ["882a100d25fffff"],
            "rings": [ring],
        },
        {
            "zone_id": 2,
            "name": "Béta",
            "borough": "Q",
            "lat": 40.12346,
            "lng": -74.0,
            "cells": [],
            "rings": [ring, ring],
        },
    ]


def test_a_ring_is_read_as_it_was_written() -> None:
    assert decode_ring(steps(TRIANGLE)) == TRIANGLE


def test_outlines_are_the_rings_of_all_parts_without_their_closing_corner() -> None:
    closed = [[lng, lat] for lat, lng in (*TRIANGLE, TRIANGLE[0])]
    collection = {
        "features": [
            {"properties": {"zone_id": 1}, "geometry": {"type": "Polygon", "coordinates": [closed, closed]}},
            {"properties": {"zone_id": 2}, "geometry": {"type": "MultiPolygon", "coordinates": [[closed], [closed]]}},
        ]
    }
    assert outlines(collection) == {1: [TRIANGLE, TRIANGLE], 2: [TRIANGLE, TRIANGLE]}


def test_a_zone_that_is_no_polygon_is_refused() -> None:
    collection = {"features": [{"properties": {"zone_id": 7}, "geometry": {"type": "Point", "coordinates": [0, 0]}}]}
    with pytest.raises(ValueError, match="zone 7 is a Point: give Polygon or MultiPolygon"):
        outlines(collection)
