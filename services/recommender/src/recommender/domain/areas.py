"""Areas: what the models count in. A named zone where the city has one, a large cell elsewhere."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KM_PER_DEGREE = 111.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One area: its key outside the models (a zone number or a cell) and its centre in WGS-84 degrees."""

    key: Hashable
    lat: float
    lng: float


class Areas:
    """Dense indices for areas, so that counts can live in arrays.

    Areas met later get the next index until `capacity` is reached; then an unknown one is taken for the nearest known.
    """

    def __init__(self, areas: Iterable[Area] = (), *, capacity: int = 320) -> None:
        self.capacity = capacity
        self._areas: list[Area] = []
        self._index: dict[Hashable, int] = {}
        self.distance_km: NDArray[np.float64] = np.zeros((capacity, capacity))
        for area in areas:
            self.index_of(area)

    def __len__(self) -> int:
        return len(self._areas)

    def __getitem__(self, index: int) -> Area:
        return self._areas[index]

    def find(self, key: Hashable) -> int | None:
        """Return the index of a known area."""
        return self._index.get(key)

    def index_of(self, area: Area) -> int:
        """Return the area's index; a new area gets one."""
        known = self._index.get(area.key)
        if known is not None:
            return known
        distances = self._distances(area)
        if len(self._areas) == self.capacity:
            index = int(distances.argmin())
        else:
            index = len(self._areas)
            self._areas.append(area)
            self.distance_km[index, :index] = distances
            self.distance_km[:index, index] = distances
        self._index[area.key] = index
        return index

    def _distances(self, area: Area) -> NDArray[np.float64]:
        places = np.array([(known.lat, known.lng) for known in self._areas]).reshape(-1, 2)
        north = (places[:, 0] - area.lat) * KM_PER_DEGREE
        east = (places[:, 1] - area.lng) * KM_PER_DEGREE * np.cos(np.radians(area.lat))
        return np.asarray(np.hypot(north, east))


__all__ = ["Area", "Areas"]
