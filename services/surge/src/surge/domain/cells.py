"""H3 cells as surge needs them: who is next to whom, and the roll-up cell that sparse cells are summed up to."""

from functools import lru_cache

import h3

PRICING_RESOLUTION = 8
ROLL_UP_RESOLUTION = 7


@lru_cache(maxsize=200_000)
def ring(cell: str) -> tuple[str, ...]:
    """The neighbours of a cell, sorted: six, or five around a pentagon."""
    return tuple(sorted(str(other) for other in h3.grid_ring(cell, 1)))


@lru_cache(maxsize=200_000)
def parent(cell: str, resolution: int = ROLL_UP_RESOLUTION) -> str:
    """The cell of a coarser resolution that holds this one."""
    return str(h3.cell_to_parent(cell, resolution))


@lru_cache(maxsize=200_000)
def resolution_of(cell: str) -> int:
    """The H3 resolution of a cell."""
    return int(h3.get_resolution(cell))


@lru_cache(maxsize=200_000)
def pricing_cell(cell: str) -> str | None:
    """The cell that is priced for a cell of the same or a finer resolution; None for one that is too coarse."""
    resolution = h3.get_resolution(cell)
    if resolution < PRICING_RESOLUTION:
        return None
    return cell if resolution == PRICING_RESOLUTION else str(h3.cell_to_parent(cell, PRICING_RESOLUTION))
