"""Demand or supply in the next 5, 15 and 30 minutes per cell, learnt online from counts in slots of five minutes.

Demand is what comes in the minutes ahead, pickups in sum; supply is what is there when they are over, free drivers. The
model is the same (`Quantity` is the difference), and what is said of pickups here holds for drivers.

The model knows three things of a cell: how many pickups this time of the week and this kind of day usually bring
(`Profile`), how far the last minutes and hours lie from that, over several half-lives, for the cell, its neighbours and
the whole city (`Levels`), and how much each of these views was worth lately (`Blend`: a ridge regression that runs on,
shared by all cells). Around the mean it puts negative binomial quantiles whose dispersion it estimates from its own
errors.

All arrays have one column per cell; columns are only ever appended. The model is a deterministic function of the counts
it was given, so the owner of the counts can rebuild it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surge.domain.calendar import SLOT_S, SLOTS_PER_WEEK, Calendar
from surge.domain.cells import ring
from surge.domain.dispersion import Dispersion, DispersionLearner
from surge.domain.numbers import Arrays, Floats, Numbers
from surge.domain.profile import Profile
from surge.domain.quantiles import quantiles

HORIZONS_MIN: Final = (5, 15, 30)
HORIZON_SLOTS: Final = tuple(minutes * 60 // SLOT_S for minutes in HORIZONS_MIN)
LONGEST: Final = max(HORIZON_SLOTS)
MODEL: Final = "week-profile-blend-3"
"""Name of this model in what is published, and in its snapshots: one of another name is not read."""
UTC_CALENDAR: Final = Calendar()


class Quantity(Enum):
    """What the counts of a slot are, and so what a forecast for some slots is about."""

    FLOW = "what came in the slot: the forecast is the sum over the slots"
    STOCK = "what was there at the slot's end: the forecast is what is there at the end of the last one"

    def over(self, per_slot: Floats, length: int) -> Floats:
        """What a forecast for `length` slots is about, given each slot's share, shape (slots ≥ `length`, cells)."""
        result: Floats = per_slot[:length].sum(axis=0) if self is Quantity.FLOW else per_slot[length - 1]
        return result

    def slots_before(self, length: int) -> int:
        """How many slots before a forecast for `length` slots the naive one is taken from."""
        return length if self is Quantity.FLOW else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Pickups expected in the `HORIZONS_MIN` minutes from a moment on, or drivers at their end, per horizon and cell.

    `mean` has shape (horizons, cells), `quantiles` (horizons, levels, cells). `dispersion` is that of each horizon.
    """

    mean: Floats
    quantiles: Floats
    dispersion: tuple[Dispersion, ...]


class Neighbours:
    """Which columns are the cells around a cell: `table` has shape (6, cells), −1 where no column is."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self.table: NDArray[np.intp] = np.empty((6, 0), dtype=np.intp)

    def grow(self, cells: Sequence[str]) -> None:
        """Append columns for these cells."""
        for cell in cells:
            self._columns[cell] = len(self._columns)
        self.table = np.hstack([self.table, np.full((6, len(cells)), -1, dtype=np.intp)])
        for cell in cells:
            column = self._columns[cell]
            for place, other in enumerate(ring(cell)):
                known = self._columns.get(other)
                if known is not None:
                    self.table[place, column] = known
                    self.table[ring(other).index(cell), known] = column

    def sums(self, rows: Floats) -> Floats:
        """Of each row, shape (rows, cells), the sum over the cells around each cell."""
        known = np.hstack([rows, np.zeros((len(rows), 1))])  # −1 points to the last column
        found = np.zeros_like(rows)
        for index, row in enumerate(known):
            for columns in self.table:
                found[index] += row[columns]  # six gathers of a row are several times faster than one of all
        return found


class Levels(Numbers):
    """How the recent past compares with the profile, over several half-lives.

    A cell's ratio of counted to usual pickups is shrunk to the city's, and the city's to 1.
    """

    HALF_LIVES_SLOTS = np.array([2.0, 6.0, 18.0, 54.0, 288.0])
    RING_HALF_LIVES = 3
    """The ring around a cell is looked at over so many of them, from the shortest on."""
    CELL_PRIOR = 4.0
    RING_PRIOR = 8.0
    CITY_PRIOR = 100.0
    PARTS = ("_counted", "_usual", "_city_counted", "_city_usual", "_weight")

    def __init__(self, cells: int) -> None:
        self._keep: Floats = (0.5 ** (1.0 / self.HALF_LIVES_SLOTS))[:, None]
        rows = len(self.HALF_LIVES_SLOTS)
        self._counted: Floats = np.zeros((rows, cells))
        self._usual: Floats = np.zeros((rows, cells))
        self._city_counted: Floats = np.zeros((rows, 1))
        self._city_usual: Floats = np.zeros((rows, 1))
        self._weight: Floats = np.zeros((rows, 1))

    def grow(self, cells: int) -> None:
        """Append columns of cells that were quiet so far."""
        rows = len(self.HALF_LIVES_SLOTS)
        self._counted = np.hstack([self._counted, np.zeros((rows, cells))])
        self._usual = np.hstack([self._usual, np.zeros((rows, cells))])

    def forget(self) -> None:
        """Nothing is known of the recent past any more."""
        for array in (self._counted, self._usual, self._city_counted, self._city_usual, self._weight):
            array[:] = 0.0

    def city(self) -> Floats:
        """Ratio of the whole city per half-life, shape (half-lives, 1)."""
        result: Floats = (self._city_counted + self.CITY_PRIOR) / (self._city_usual + self.CITY_PRIOR)
        return result

    def cells(self) -> Floats:
        """Ratio per half-life and cell."""
        result: Floats = (self._counted + self.CELL_PRIOR * self.city()) / (self._usual + self.CELL_PRIOR)
        return result

    def rings(self, neighbours: Neighbours) -> Floats:
        """Ratio of the cells around each cell, shape (`RING_HALF_LIVES`, cells)."""
        counted, usual = (neighbours.sums(sums[: self.RING_HALF_LIVES]) for sums in (self._counted, self._usual))
        city = self.city()[: self.RING_HALF_LIVES]
        result: Floats = (counted + self.RING_PRIOR * city) / (usual + self.RING_PRIOR)
        return result

    def rates(self) -> Floats:
        """Plain exponential averages of the pickups per slot, per half-life and cell."""
        result: Floats = self._counted / np.maximum(self._weight, 1e-9)
        return result

    def recent(self) -> Floats:
        """Pickups per cell, fading over the longest half-life."""
        result: Floats = self._counted[-1]
        return result

    def observe(self, counts: Floats, usual: Floats) -> None:
        """Learn what a slot brought, and what it usually brings."""
        self._counted = self._counted * self._keep + counts
        self._usual = self._usual * self._keep + usual
        self._city_counted = self._city_counted * self._keep + counts.sum()
        self._city_usual = self._city_usual * self._keep + usual.sum()
        self._weight = self._weight * self._keep + 1.0


class Blend(Numbers):
    """Weights of the views for one horizon: ridge regression on what came, fading over weeks, shared by all cells.

    Errors are weighted by the forecast to the power −0.6: between −1, the variance of counts, and 0, which is what
    the absolute error asks for.
    """

    HALF_LIFE_SLOTS = SLOTS_PER_WEEK * 2 / 3
    RIDGE = 200.0
    SOLVE_EVERY = 12
    ERROR_POWER = 0.6
    FLOOR = 0.01
    PARTS = ("_gram", "_moment", "_seen", "weights")

    def __init__(self, start: Floats) -> None:
        self._start = start
        self._gram: Floats = np.eye(len(start)) * self.RIDGE
        self._moment: Floats = self._gram @ start
        self._seen = 0
        self.weights: Floats = start.copy()
        self.spread: Final = DispersionLearner()

    def predict(self, views: Floats) -> Floats:
        """The mean, from views of shape (views, cells)."""
        result: Floats = np.maximum(self.weights @ views, self.FLOOR)
        return result

    def learn(self, views: Floats, predicted: Floats, came: Floats) -> None:
        """What `views` had led to, and what came."""
        keep = 0.5 ** (1.0 / self.HALF_LIFE_SLOTS)
        weighted = views / np.maximum(predicted, 0.05) ** self.ERROR_POWER
        self._gram *= keep
        self._gram += weighted @ views.T
        self._gram[np.diag_indices(len(self._start))] += self.RIDGE * (1 - keep)
        self._moment *= keep
        self._moment += weighted @ came
        self._moment += self.RIDGE * (1 - keep) * self._start
        self.spread.learn(predicted, came, keep=keep)
        self._seen += 1
        if self._seen % self.SOLVE_EVERY == 0:
            self.weights = np.linalg.solve(self._gram, self._moment).astype(np.float64)


class CountModel:
    """Online forecasts for a growing set of cells: `forecast`, then `observe` the slot that followed, and so on.

    `next_slot` is the slot (five-minute intervals since the epoch) that the next `observe` is about, None before the
    first.
    """

    def __init__(
        self,
        cells: Sequence[str] = (),
        *,
        quantity: Quantity = Quantity.FLOW,
        calendar: Calendar = UTC_CALENDAR,
    ) -> None:
        self._quantity: Final = quantity
        self._calendar = calendar
        self.cells = 0
        self.next_slot: int | None = None
        self._profile = Profile(0, calendar)
        self._levels = Levels(0)
        self._neighbours = Neighbours()
        start = np.zeros(3 * len(Levels.HALF_LIVES_SLOTS) + Levels.RING_HALF_LIVES + 3)
        if quantity is Quantity.FLOW:
            start[1], start[2] = 0.7, 0.3  # the hour and the three hours behind, before anything is learnt
        else:
            start = np.append(start, 1.0)  # what is there now
        self._blends = [Blend(start) for _ in HORIZON_SLOTS]
        self._views: list[deque[tuple[int, Floats, Floats]]] = [deque(maxlen=slots) for slots in HORIZON_SLOTS]
        self._recent: deque[tuple[int, Floats]] = deque(maxlen=LONGEST)
        self.grow(cells)

    def grow(self, cells: Sequence[str]) -> None:
        """Append columns of H3 cells that were quiet so far."""
        if not cells:
            return
        if self.next_slot is not None:
            self.mean()  # made before these cells were known, whether somebody asked for it or not
        self.cells += len(cells)
        self._profile.grow(len(cells))
        self._levels.grow(len(cells))
        self._neighbours.grow(cells)

    def snapshot(self) -> Arrays:
        """All that the model knows besides its cells, by name; arrays are not copied."""
        assert self.next_slot is not None, "start_at comes first"
        arrays: Arrays = {"next_slot": np.array(self.next_slot), "recent": np.array([slot for slot, _ in self._recent])}
        for name, numbers in self._numbers():
            arrays |= {f"{name}/{part}": array for part, array in numbers.take_out().items()}
        for place, (_, counts) in enumerate(self._recent):
            arrays[f"recent/{place}"] = counts
        for index, past in enumerate(self._views):
            arrays[f"past/{index}"] = np.array([slot for slot, _, _ in past])
            for place, (_, views, predicted) in enumerate(past):
                arrays[f"past/{index}/{place}"] = np.vstack([views, predicted])
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where the model with the same cells was when `snapshot` was called."""
        self.next_slot = int(arrays["next_slot"])
        for name, numbers in self._numbers():
            numbers.put_back({part: arrays[f"{name}/{part}"] for part in numbers.PARTS})
        self._recent.clear()
        self._recent.extend((int(slot), arrays[f"recent/{place}"]) for place, slot in enumerate(arrays["recent"]))
        for index, past in enumerate(self._views):
            past.clear()
            for place, slot in enumerate(arrays[f"past/{index}"]):
                *views, predicted = arrays[f"past/{index}/{place}"]
                past.append((int(slot), np.array(views), predicted))

    def _numbers(self) -> Iterator[tuple[str, Numbers]]:
        yield from self._profile.rhythms.items()
        yield "levels", self._levels
        for index, blend in enumerate(self._blends):
            yield f"blend/{index}", blend
            yield f"spread/{index}", blend.spread

    def start_at(self, slot: int) -> None:
        """The next slot is this one. A gap behind is unknown, not quiet: levels are forgotten, the profile stays."""
        if self.next_slot is not None and slot != self.next_slot:
            self._levels.forget()
            self._recent.clear()
            for views in self._views:
                views.clear()
        self.next_slot = slot

    def usual(self) -> Floats:
        """What the next slot usually brings, per cell."""
        assert self.next_slot is not None, "start_at comes first"
        week = self._calendar.slots_of_the_week(np.array([self.next_slot]))
        result: Floats = self._profile.by_week(week)[0]
        return result

    def mean(self) -> Floats:
        """Expected pickups from the start of the next slot on, shape (horizons, cells)."""
        slot = self.next_slot
        assert slot is not None, "start_at comes first"
        week = self._calendar.slots_of_the_week(np.arange(slot, slot + LONGEST))
        usual, by_kind, by_day = (
            of(week) for of in (self._profile.by_week, self._profile.by_kind, self._profile.by_day)
        )
        city, cells, rates = self._levels.city(), self._levels.cells(), self._levels.rates()
        rings = self._levels.rings(self._neighbours)
        now = []
        if self._quantity is Quantity.STOCK:
            now.append(padded(self._recent[-1][1] if self._recent else np.zeros(0), self.cells))
        means = np.empty((len(HORIZON_SLOTS), self.cells))
        for index, (length, blend) in enumerate(zip(HORIZON_SLOTS, self._blends, strict=True)):
            base, *days = (self._quantity.over(per_slot, length) for per_slot in (usual, by_kind, by_day))
            average = rates * length if self._quantity is Quantity.FLOW else rates
            views = np.vstack([base * cells, base * city, average, base * rings, base, *days, *now])
            means[index] = blend.predict(views)
            past = self._views[index]
            if not past or past[-1][0] != slot:  # asked twice: what is learnt later does not change
                past.append((slot, views, means[index].copy()))
        return means

    def forecast(self) -> Forecast:
        """Mean and quantiles from the start of the next slot on."""
        mean = self.mean()
        dispersion = tuple(blend.spread.dispersion for blend in self._blends)
        spread = [quantiles(row, known) for row, known in zip(mean, dispersion, strict=True)]
        return Forecast(mean=mean, quantiles=np.stack(spread), dispersion=dispersion)

    def recent_counts(self) -> Floats:
        """Pickups per cell so far, or drivers at all slots' ends; each counts half as much a day later."""
        return self._levels.recent()

    def level_only(self) -> Floats:
        """The first model: usual pickups times the cell's level over the last half hour or so, as `mean`'s shape."""
        assert self.next_slot is not None, "start_at comes first"
        week = self._calendar.slots_of_the_week(np.arange(self.next_slot, self.next_slot + LONGEST))
        usual = self._profile.by_week(week)
        level = self._levels.cells()[1]
        return np.stack([self._quantity.over(usual, length) * level for length in HORIZON_SLOTS])

    def observe(self, counts: Floats) -> None:
        """Learn what the next slot brought, shape (cells,), and move on to the one after."""
        slot = self.next_slot
        assert slot is not None, "start_at comes first"
        assert counts.shape == (self.cells,), f"{counts.shape} counts for {self.cells} cells"
        if not self._views[0] or self._views[0][-1][0] != slot:
            self.mean()  # nobody asked for this forecast, but its error teaches
        usual = self.usual()
        self._recent.append((slot, counts))
        for length, blend, past in zip(HORIZON_SLOTS, self._blends, self._views, strict=True):
            # The forecast made at the start of the slot `length − 1` ago now knows all that came.
            if past and past[0][0] == slot - length + 1 and len(self._recent) >= length:
                _, views, predicted = past.popleft()
                known = views.shape[1]
                came = np.stack([padded(recent, known) for _, recent in list(self._recent)[-length:]])
                blend.learn(views, predicted, self._quantity.over(came, length))
        self._levels.observe(counts, usual)
        self._profile.observe(slot, counts)
        self.next_slot = slot + 1


def padded(counts: Floats, cells: int) -> Floats:
    """The counts of the first `cells` cells; those that were not known yet had none."""
    return counts[:cells] if len(counts) >= cells else np.pad(counts, (0, cells - len(counts)))
