"""The coastline is the outline of the zones: without their borders, with its islands."""

import json
import re

import shapely
from hailbus_devtools.derive_coast import TARGET, derive


def zone(*corners: tuple[float, float]) -> dict[str, object]:
    return {"type": "Feature", "geometry": json.loads(shapely.to_geojson(shapely.Polygon(corners)))}


def square(west: float, south: float, size: float = 0.01) -> dict[str, object]:
    return zone((west, south), (west + size, south), (west + size, south + size), (west, south + size))


def test_zones_that_touch_are_one_land_and_a_crack_is_no_water() -> None:
    zones = [
        square(-74.0, 40.7),
        square(-73.99, 40.7),
        square(-73.9797, 40.7),
        square(-73.9, 40.7),
        square(-73.8, 40.7, 1e-4),
    ]
    coast = re.search(r'id="coast"[^>]* d="([^"]*)"', derive(json.dumps({"features": zones})))
    assert coast is not None
    outlines = coast.group(1).removesuffix("z").split("z")
    assert len(outlines) == 2  # three zones in a row with a crack of 0.0003°, an island, and a rock that is left out
    corners = sorted(len(re.findall(r"-?\d+", outline)) // 2 for outline in outlines)
    assert corners == [4, 4]


def test_the_file_in_the_page_is_small_and_has_land_and_water_where_they_are() -> None:
    text = TARGET.read_text(encoding="utf-8")
    assert len(text.encode()) < 15_000
    found = re.search(r'id="coast"[^>]* d="([^"]*)"', text)
    assert found is not None
    coast: shapely.geometry.base.BaseGeometry = shapely.Polygon()
    for outline in found.group(1).removesuffix("z").split("z"):
        numbers = [int(number) for number in re.findall(r"-?\d+", outline)]
        points, (x, y) = [], (0, 0)
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + dx, y + dy
            points.append((x / 1e4, -y / 1e4))
        coast = coast.symmetric_difference(shapely.make_valid(shapely.Polygon(points)))
    land = {"Central Park": (40.7829, -73.9654), "JFK": (40.6446, -73.7797), "Roosevelt Island": (40.7605, -73.951)}
    water = {"Hudson": (40.76, -74.015), "East River": (40.708, -73.995), "Upper Bay": (40.66, -74.04)}
    for name, (lat, lng) in land.items():
        assert coast.contains(shapely.Point(lng, lat)), name
    for name, (lat, lng) in water.items():
        assert not coast.contains(shapely.Point(lng, lat)), name
