"""The zone table: names, cells, and what is land."""

import h3
import pytest
from ride_events.zones import land_cells, zone_at, zone_of_cell, zones


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
    assert zone_of_cell(fine) == zone_at(40.7580, -73.9855)


def test_land_is_counted_once_at_every_resolution() -> None:
    assert len(land_cells(9)) == sum(len(zone.cells) for zone in zones().values()) == 7518
    assert set(land_cells(8)) == {h3.cell_to_parent(cell, 8) for cell in land_cells(9)}
    assert all(zone_of_cell(cell) is not None for cell in land_cells(7))


def test_a_finer_resolution_than_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="resolutions 0 to 9, not 10"):
        land_cells(10)
