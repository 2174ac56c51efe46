"""The zone table: names, cells, and what is land."""

import h3
import pytest
from ride_events.zones import ZONE_RESOLUTION, land_cells, zone_at, zone_of_cell, zones

CENTRAL_PARK = 43


def test_a_place_has_a_zone_with_its_name() -> None:
    zone = zone_at(40.7580, -73.9855)
    assert zone is not None
    assert (zone.zone_id, zone.name, zone.borough) == (230, "Times Sq/Theatre District", "Manhattan")


def test_the_ocean_has_no_zone() -> None:
    assert zone_at(40.3, -73.2) is None
    assert zone_of_cell(h3.latlng_to_cell(40.3, -73.2, 8)) is None


def test_every_cell_of_a_zone_leads_back_to_it() -> None:
    for zone in zones().values():
        for cell in zone.cells:
            assert zone_of_cell(cell) == zone


def test_a_fine_cell_belongs_to_its_parents_zone() -> None:
    fine = h3.latlng_to_cell(40.7580, -73.9855, 11)
    assert zone_of_cell(fine) == zone_of_cell(h3.cell_to_parent(fine, 9))


def test_the_centre_of_each_zone_is_in_it() -> None:
    for zone in zones().values():
        assert zone_at(zone.centre.lat, zone.centre.lng) == zone


@pytest.mark.parametrize(
    ("lat", "lng", "zone_id"),
    [
        (40.76343, -73.98152, 230),  # Times Square, 20 m from the border
        (40.76375, -73.98136, 163),  # Midtown North, on the other side
    ],
)
def test_a_cell_on_a_border_is_divided_by_the_outlines(lat: float, lng: float, zone_id: int) -> None:
    assert h3.latlng_to_cell(lat, lng, ZONE_RESOLUTION) == "892a100d657ffff"
    zone = zone_at(lat, lng)
    assert zone is not None
    assert zone.zone_id == zone_id


def test_places_of_one_cell_have_different_zones() -> None:
    """Where zones meet, a res-9 cell has places of several; a cell inside one zone has places of that zone only."""
    divided = whole = 0
    for cell in zones()[CENTRAL_PARK].cells:
        found = {zone_at(*h3.cell_to_latlng(child)) for child in h3.cell_to_children(cell, 12)}
        divided += len(found) > 1
        whole += found == {zones()[CENTRAL_PARK]}
    assert divided > 0
    assert whole > 0


@pytest.mark.parametrize(
    ("lat", "lng"),
    [
        (40.66, -74.05),  # Upper Bay
        (40.55, -73.75),  # the Atlantic off the Rockaways
        (40.85, -73.75),  # Long Island Sound
    ],
)
def test_open_water_has_no_zone(lat: float, lng: float) -> None:
    assert zone_at(lat, lng) is None


def test_a_pier_belongs_to_the_zone_that_it_leaves_from() -> None:
    zone = zone_at(40.74850, -74.00990)  # Chelsea Piers
    assert zone is not None
    assert zone.name == "West Chelsea/Hudson Yards"


def test_land_is_counted_once_at_every_resolution() -> None:
    assert len(land_cells(9)) == sum(len(zone.cells) for zone in zones().values()) == 7518
    assert set(land_cells(8)) == {h3.cell_to_parent(cell, 8) for cell in land_cells(9)}
    assert all(zone_of_cell(cell) is not None for cell in land_cells(7))


def test_a_finer_resolution_than_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="resolutions 0 to 9, not 10"):
        land_cells(10)
