"""Derive the coastline that the city page draws, from the public TLC zone polygons.

    python -m hailbus_devtools.derive_coast --data ../shared/data

The result is an SVG with two paths: `coast`, the outline of all zones without their borders, and `bridges`. One unit is
1/10,000 of a degree, x to the east and y to the south.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import shapely
import typer

TARGET: Final = Path(__file__).parents[3] / "services/dashboard/src/dashboard/static/city.svg"
UNITS: Final = 10_000
GAP_DEG: Final = 0.0004
"""What is narrower is no water, but a crack between two simplified borders: about 40 m."""
TOLERANCE_DEG: Final = 0.0004
LEAST_AREA_DEG2: Final = 2e-6
"""Islands and ponds below this are left out: about 0.02 km²."""
BRIDGES: Final = (
    ((40.7088, -73.9997), (40.7038, -73.9931)),  # Brooklyn
    ((40.7109, -73.9938), (40.7034, -73.9878)),  # Manhattan
    ((40.7157, -73.9795), (40.7110, -73.9650)),  # Williamsburg
    ((40.7597, -73.9617), (40.7536, -73.9471)),  # Queensboro
    ((40.8005, -73.9300), (40.7975, -73.9235)),  # Robert F. Kennedy, from Manhattan
    ((40.7866, -73.9250), (40.7790, -73.9215)),  # its span to Queens
    ((40.8005, -73.9215), (40.8045, -73.9210)),  # its span to the Bronx
    ((40.8083, -73.8310), (40.7950, -73.8290)),  # Bronx–Whitestone
    ((40.8110, -73.7960), (40.7925, -73.7905)),  # Throgs Neck
    ((40.6035, -74.0560), (40.6098, -74.0340)),  # Verrazzano-Narrows
    ((40.5835, -73.8855), (40.5690, -73.8850)),  # Marine Parkway
    ((40.5965, -73.8215), (40.5875, -73.8160)),  # Cross Bay
    ((40.8760, -73.9225), (40.8808, -73.9213)),  # Henry Hudson
)
"""The ends of the bridges, as latitude and longitude."""


def derive(features: str) -> str:
    """Return the SVG.

    In: a GeoJSON collection of polygons, in degrees.
    """
    zones = [shapely.from_geojson(json.dumps(found["geometry"])) for found in json.loads(features)["features"]]
    city = shapely.union_all([shapely.make_valid(zone) for zone in zones])
    outline = city.buffer(GAP_DEG).buffer(-GAP_DEG).simplify(TOLERANCE_DEG)
    rings = [
        ring
        for part in shapely.get_parts(outline)
        for ring in shapely.get_rings(part)
        if shapely.Polygon(ring).area > LEAST_AREA_DEG2
    ]
    west, south, east, north = (round(bound * UNITS) for bound in outline.bounds)
    coast = "".join(_ring(shapely.get_coordinates(ring).tolist()) for ring in rings)
    bridges = "".join(
        f"M{round(lng * UNITS)} {round(-lat * UNITS)}L{round(lng_2 * UNITS)} {round(-lat_2 * UNITS)}"
        for (lat, lng), (lat_2, lng_2) in BRIDGES
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{west} {-north} {east - west} {north - south}">\n'
        "<!-- Outline of the taxi zones: NYC Taxi & Limousine Commission, NYC Open Data. -->\n"
        f'<path id="coast" fill="#1e2b39" fill-rule="evenodd" d="{coast}"/>\n'
        f'<path id="bridges" fill="none" stroke="#1e2b39" stroke-width="12" d="{bridges}"/>\n'
        "</svg>\n"
    )


def _ring(coordinates: list[list[float]]) -> str:
    """A closed path of relative lines; the last point is the first."""
    points = [(round(lng * UNITS), round(-lat * UNITS)) for lng, lat in coordinates[:-1]]
    steps = (f"{x - x0} {y - y0}" for (x0, y0), (x, y) in pairwise(points))
    return f"M{points[0][0]} {points[0][1]}l" + " ".join(steps).replace(" -", "-") + "z"


def main(
    data: Annotated[Path, typer.Option(help="Folder with zones.geojson.")],
    out: Annotated[Path, typer.Option(help="The SVG to write.")] = TARGET,
) -> None:
    """Write the coastline."""
    file = data / "zones.geojson"
    if not file.is_file():
        raise typer.BadParameter(f"{file} is not there: give the folder that holds it", param_hint="--data")
    text = derive(file.read_text(encoding="utf-8"))
    out.write_text(text, encoding="utf-8")
    typer.echo(f"{out}: {len(text.encode())} bytes")


if __name__ == "__main__":
    typer.run(main)
