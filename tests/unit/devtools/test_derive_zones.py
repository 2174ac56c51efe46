"""The zone table in the package is the one that the script derives."""

import json

import h3
import polars as pl
from hailbus_devtools.derive_zones import derive


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
    table = json.loads(derive(zones, pl.DataFrame({"h3_9": children, "zone_id": [1] * 7})))
    assert table["zones"] == [
        {"zone_id": 1, "name": "Alpha", "borough": "M", "lat": 40.0, "lng": -73.5, "cells": ["882a100d25fffff"]},
        {"zone_id": 2, "name": "Béta", "borough": "Q", "lat": 40.12346, "lng": -74.0, "cells": []},
    ]
