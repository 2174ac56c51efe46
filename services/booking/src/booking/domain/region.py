"""Regions: which booking process owns a place, a quote and a ride.

A region owns the pickups in its H3 cells. One region takes the rest of the world, so each place has exactly one owner.
The ids of quotes and rides begin with their region's name, so every process knows the owner of an id without a look-up,
also after the borders have changed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import h3

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,19}\Z")
"""Names become part of ids and of PostgreSQL schemas."""
SEPARATOR: Final = "."
PLACE_RESOLUTION: Final = 8
"""H3 resolution of the cells of places."""


class RegionsError(ValueError):
    """The regions leave a place without an owner, or give it two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region.

    Attributes:
        name: What ids begin with.
        address: Base URL of its process.
        cells: H3 cells whose pickups it owns, of any resolution up to that of places.
        takes_rest: Whether it owns every place that is in no region's cells.
    """

    name: str
    address: str
    cells: frozenset[str] = frozenset()
    takes_rest: bool = False


@dataclass(frozen=True, slots=True)
class Regions:
    """All regions of the system: each place and each id has exactly one owner.

    Raises:
        RegionsError: A name is no name, a cell is no cell or lies in another one, or not exactly one takes the rest.
    """

    all: Sequence[Region]
    _by_name: Mapping[str, Region] = field(init=False)
    _by_cell: Mapping[str, Region] = field(init=False)
    _resolutions: Sequence[int] = field(init=False)
    _rest: Region = field(init=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Region] = {}
        by_cell: dict[str, Region] = {}
        for region in self.all:
            if not NAME.match(region.name):
                message = f"region {region.name!r} is no name: write up to 20 of a-z, 0-9 and _, a letter first"
                raise RegionsError(message)
            if region.name in by_name:
                message = f"region {region.name} is there twice"
                raise RegionsError(message)
            by_name[region.name] = region
            for cell in sorted(region.cells):
                if not h3.is_valid_cell(cell) or h3.get_resolution(cell) > PLACE_RESOLUTION:
                    message = (
                        f"region {region.name}: {cell!r} is no H3 cell of a resolution up to {PLACE_RESOLUTION}, such "
                        "as '862a1072fffffff'"
                    )
                    raise RegionsError(message)
                if cell in by_cell:
                    message = f"cell {cell} is in the regions {by_cell[cell].name} and {region.name}"
                    raise RegionsError(message)
                by_cell[cell] = region
        for cell, region in by_cell.items():
            for resolution in range(h3.get_resolution(cell)):
                outer = h3.cell_to_parent(cell, resolution)
                if outer in by_cell:
                    message = f"cell {cell} of region {region.name} lies in {outer} of region {by_cell[outer].name}"
                    raise RegionsError(message)
        rest = [region for region in self.all if region.takes_rest]
        if len(rest) != 1:
            named = ", ".join(region.name for region in rest) or "none"
            message = f"one region must take the rest of the world, and {named} has `rest = true`"
            raise RegionsError(message)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_by_cell", by_cell)
        object.__setattr__(self, "_resolutions", sorted({h3.get_resolution(cell) for cell in by_cell}))
        object.__setattr__(self, "_rest", rest[0])

    @property
    def rest(self) -> Region:
        """The owner of every place that is in no region's cells."""
        return self._rest

    def named(self, name: str) -> Region | None:
        """Return a region by its name."""
        return self._by_name.get(name)

    def of_cell(self, cell: str) -> Region:
        """Return the owner of a place, by its cell of the resolution of places."""
        for resolution in self._resolutions:
            if resolution > h3.get_resolution(cell):
                break  # coarser than a place: an event said so
            found = self._by_cell.get(h3.cell_to_parent(cell, resolution))
            if found is not None:
                return found
        return self._rest

    def of_id(self, key: str) -> Region:
        """Return the owner of a quote or ride. An id without a region is from before there were any: the rest's."""
        name, separator, _ = key.partition(SEPARATOR)
        return self._by_name.get(name, self._rest) if separator else self._rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Realm:
    """The region of this process among all regions."""

    own: Region
    regions: Regions

    def new_id(self) -> str:
        """Return the id of a new quote or ride of this region."""
        return f"{self.own.name}{SEPARATOR}{uuid4()}"

    def owns_cell(self, cell: str) -> bool:
        """Return whether a place is of this region."""
        return self.regions.of_cell(cell) is self.own

    def owns_id(self, key: str) -> bool:
        """Return whether a quote or ride is of this region."""
        return self.regions.of_id(key) is self.own
