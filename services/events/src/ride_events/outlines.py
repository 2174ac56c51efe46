"""Outlines of areas, and which of them holds a place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import cos, hypot, radians
from typing import Final, NamedTuple

import h3

LOOK_UP_RESOLUTION: Final = 9
"""H3 resolution of the cells that remember the edges near them: 0.105 km² on average."""

Place = tuple[float, float]
"""Latitude and longitude in WGS-84 degrees."""

_UNITS_PER_DEGREE: Final = 100_000
_METRES_PER_DEGREE: Final = 111_195.0
_MARGIN_DEGREES: Final = 1e-5  # a cell's sides are arcs, which leave the box of their corners by less than this


class _Edge(NamedTuple):
    """One side of an outline, and how far its longitude moves per degree of latitude."""

    lat: float
    lng: float
    to_lat: float
    to_lng: float
    slope: float


class _Box(NamedTuple):
    south: float
    west: float
    north: float
    east: float

    def meets(self, other: "_Box") -> bool:
        """Return whether the boxes share a place."""
        return (
            self.south <= other.north
            and other.south <= self.north
            and self.west <= other.east
            and other.west <= self.east
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An area that holds a part of a cell. `eastward`: the edges that a ray from the cell to the east can cross."""

    area: int
    eastward: tuple[_Edge, ...]
    touching: tuple[_Edge, ...]


@dataclass(frozen=True, slots=True)
class _Area:
    area: int
    box: _Box
    edges: tuple[tuple[_Edge, _Box], ...]


def decode_ring(steps: Sequence[int]) -> list[Place]:
    """Return the corners of a ring from its steps.

    The steps are latitude, longitude, latitude, longitude and so on in units of 0.00001 degrees (1.1 m): the first
    pair is the first corner, each following pair the difference from the corner before.
    """
    lats, lngs = accumulate(steps[::2]), accumulate(steps[1::2])
    return [(lat / _UNITS_PER_DEGREE, lng / _UNITS_PER_DEGREE) for lat, lng in zip(lats, lngs, strict=True)]


class Outlines:
    """Finds the area that holds a place.

    The first place in an H3 cell collects the edges near the cell; further places in it are tested against these only.
    A cell that no edge touches is stored with its area: a place in it costs one dictionary lookup. Memory is bounded by
    the number of cells in the box around all areas.

    Args:
        rings: For each area its rings: parts and holes alike, each a sequence of corners. The last corner is joined to
            the first one.
        reach_m: A place outside all outlines belongs to the nearest outline if it is at most this far away.
    """

    def __init__(self, rings: Mapping[int, Iterable[Sequence[Place]]], *, reach_m: float) -> None:
        self._areas = [_area(area, of_area) for area, of_area in rings.items()]
        self._reach_m = reach_m
        reach_degrees = 2 * reach_m / _METRES_PER_DEGREE
        boxes = [known.box for known in self._areas]
        self._box = _Box(
            min(box.south for box in boxes) - reach_degrees,
            min(box.west for box in boxes) - reach_degrees,
            max(box.north for box in boxes) + reach_degrees,
            max(box.east for box in boxes) + reach_degrees,
        )
        self._near: dict[str, int | tuple[_Candidate, ...] | None] = {}

    def find(self, lat: float, lng: float) -> int | None:
        """Return the area that holds a place, else the nearest one within reach, else `None`."""
        box = self._box
        if not (box.south <= lat <= box.north and box.west <= lng <= box.east):
            return None
        cell = h3.latlng_to_cell(lat, lng, LOOK_UP_RESOLUTION)
        try:
            near = self._near[cell]
        except KeyError:
            near = self._near[cell] = self._collect(cell)
        if not isinstance(near, tuple):
            return near
        for candidate in near:
            if _holds(candidate.eastward, lat, lng):
                return candidate.area
        return self._nearest(near, lat, lng)

    def _collect(self, cell: str) -> int | tuple[_Candidate, ...] | None:
        """Return the area of a whole cell, or the areas that the cell may be divided between, with their edges."""
        corners = h3.cell_to_boundary(cell)
        margin = _MARGIN_DEGREES + 2 * self._reach_m / _METRES_PER_DEGREE
        box = _Box(
            min(lat for lat, _ in corners) - margin,
            min(lng for _, lng in corners) - margin,
            max(lat for lat, _ in corners) + margin,
            max(lng for _, lng in corners) + margin,
        )
        lat, lng = corners[0]
        found: list[_Candidate] = []
        whole: int | None = None
        for known in self._areas:
            if not known.box.meets(box):
                continue
            eastward = tuple(edge for edge, of_edge in known.edges if _may_be_crossed(of_edge, box))
            touching = tuple(edge for edge, of_edge in known.edges if of_edge.meets(box))
            if touching:
                found.append(_Candidate(known.area, eastward, touching))
            elif whole is None and _holds(eastward, lat, lng):
                whole = known.area
        if whole is not None:
            return whole
        return tuple(found) or None

    def _nearest(self, candidates: Iterable[_Candidate], lat: float, lng: float) -> int | None:
        best, area = self._reach_m, None
        for candidate in candidates:
            metres = min(_metres(edge, lat, lng) for edge in candidate.touching)
            if metres < best:
                best, area = metres, candidate.area
        return area


def _area(area: int, rings: Iterable[Sequence[Place]]) -> _Area:
    edges = [edge for ring in rings for edge in _edges(ring)]
    return _Area(
        area,
        _Box(
            min(edge.lat for edge in edges),
            min(edge.lng for edge in edges),
            max(edge.lat for edge in edges),
            max(edge.lng for edge in edges),
        ),
        tuple((edge, _box(edge)) for edge in edges),
    )


def _edges(ring: Sequence[Place]) -> Iterator[_Edge]:
    for (lat, lng), (to_lat, to_lng) in pairwise((*ring, ring[0])):
        slope = (to_lng - lng) / (to_lat - lat) if to_lat != lat else 0.0  # a level edge is never crossed
        yield _Edge(lat, lng, to_lat, to_lng, slope)


def _box(edge: _Edge) -> _Box:
    return _Box(
        min(edge.lat, edge.to_lat), min(edge.lng, edge.to_lng), max(edge.lat, edge.to_lat), max(edge.lng, edge.to_lng)
    )


def _may_be_crossed(edge: _Box, cell: _Box) -> bool:
    return edge.south <= cell.north and cell.south <= edge.north and cell.west <= edge.east


def _holds(eastward: Iterable[_Edge], lat: float, lng: float) -> bool:
    """Return whether a ray to the east crosses the outline an odd number of times (the even-odd rule)."""
    inside = False
    for from_lat, from_lng, to_lat, _, slope in eastward:
        if (from_lat > lat) != (to_lat > lat) and lng < from_lng + (lat - from_lat) * slope:
            inside = not inside
    return inside


def _metres(edge: _Edge, lat: float, lng: float) -> float:
    """Return the distance of a place from an edge, on a flat earth."""
    narrowing = cos(radians(lat))
    x, y = (lng - edge.lng) * narrowing, lat - edge.lat
    along_x, along_y = (edge.to_lng - edge.lng) * narrowing, edge.to_lat - edge.lat
    length_squared = along_x * along_x + along_y * along_y
    share = 0.0
    if length_squared > 0:
        share = min(1.0, max(0.0, (x * along_x + y * along_y) / length_squared))
    return _METRES_PER_DEGREE * hypot(x - share * along_x, y - share * along_y)


__all__ = ["LOOK_UP_RESOLUTION", "Outlines", "Place", "decode_ring"]
