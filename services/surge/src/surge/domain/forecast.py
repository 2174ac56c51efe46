"""Demand in the next 15 and 30 minutes per cell, learnt online from pickups counted in slots of five minutes.

The model knows three things of a cell: how many pickups this time of the week usually brings (`Profile`), how far the
last minutes and hours lie from that, over several half-lives, for the cell and for the whole city (`Levels`), and how
much each of these views was worth lately (`Blend`: a ridge regression that runs on, shared by all cells). Around the
mean it puts negative binomial quantiles whose dispersion it estimates from its own errors.

All arrays have one column per cell; columns are only ever appended. The model is a deterministic function of the counts
it was given, so the owner of the counts can rebuild it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from surge.domain.quantiles import Floats, quantiles

SLOT_S: Final = 300
SLOTS_PER_DAY: Final = 86_400 // SLOT_S
SLOTS_PER_WEEK: Final = 7 * SLOTS_PER_DAY
HORIZONS_MIN: Final = (15, 30)
HORIZON_SLOTS: Final = tuple(minutes * 60 // SLOT_S for minutes in HORIZONS_MIN)
LONGEST: Final = max(HORIZON_SLOTS)
MODEL: Final = "week-profile-blend-1"
"""Name of this model in what is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Pickups expected in the `HORIZONS_MIN` minutes from a moment on, per horizon and cell.

    `mean` has shape (horizons, cells), `quantiles` (horizons, levels, cells).
    """

    mean: Floats
    quantiles: Floats


class Profile:
    """Usual pickups per slot of the week: sums that fade from week to week, spread over the neighbouring slots.

    A slot of the week that was never seen falls back on the same time of other days.
    """

    WEEK_KEEP = 0.8
    DAY_KEEP = 0.8
    SPREAD_SLOTS = 4.0
    DAY_WEIGHT = 0.5

    def __init__(self, cells: int) -> None:
        reach = int(3 * self.SPREAD_SLOTS)
        offsets = np.arange(-reach, reach + 1)
        kernel = np.exp(-0.5 * (offsets / self.SPREAD_SLOTS) ** 2)
        self._offsets = offsets
        self._kernel: Floats = kernel / kernel.sum()
        self._week: Floats = np.zeros((SLOTS_PER_WEEK, cells))
        self._week_weight: Floats = np.zeros(SLOTS_PER_WEEK)
        self._day: Floats = np.zeros((SLOTS_PER_DAY, cells))
        self._day_weight: Floats = np.zeros(SLOTS_PER_DAY)

    def grow(self, cells: int) -> None:
        """Append columns of cells that were quiet so far."""
        self._week = np.hstack([self._week, np.zeros((SLOTS_PER_WEEK, cells))])
        self._day = np.hstack([self._day, np.zeros((SLOTS_PER_DAY, cells))])

    def by_day(self, slots: np.ndarray) -> Floats:
        """Usual pickups at these slots by time of day alone, shape (slots, cells)."""
        day = slots % SLOTS_PER_DAY
        result: Floats = (self._day[day] + 0.02) / (self._day_weight[day] + 0.2)[:, None]
        return result

    def by_week(self, slots: np.ndarray) -> Floats:
        """Usual pickups at these slots, shape (slots, cells)."""
        week = slots % SLOTS_PER_WEEK
        weight = self._week_weight[week] + self.DAY_WEIGHT
        result: Floats = (self._week[week] + self.DAY_WEIGHT * self.by_day(slots)) / weight[:, None]
        return result

    def observe(self, slot: int, counts: Floats) -> None:
        """Learn what slot number `slot` (since the epoch) brought."""
        spread = self._kernel[:, None] * counts
        # Each slot fades once per week, when the leading edge of the kernel first reaches it.
        leading = (slot + self._offsets[-1]) % SLOTS_PER_WEEK
        self._week[leading] *= self.WEEK_KEEP
        self._week_weight[leading] *= self.WEEK_KEEP
        week = (slot + self._offsets) % SLOTS_PER_WEEK
        self._week[week] += spread
        self._week_weight[week] += self._kernel
        leading = (slot + self._offsets[-1]) % SLOTS_PER_DAY
        self._day[leading] *= self.DAY_KEEP
        self._day_weight[leading] *= self.DAY_KEEP
        day = (slot + self._offsets) % SLOTS_PER_DAY
        self._day[day] += spread
        self._day_weight[day] += self._kernel


class Levels:
    """How the recent past compares with the profile, over several half-lives.

    A cell's ratio of counted to usual pickups is shrunk to the city's, and the city's to 1.
    """

    HALF_LIVES_SLOTS = np.array([2.0, 6.0, 18.0, 54.0, 288.0])
    CELL_PRIOR = 4.0
    CITY_PRIOR = 100.0

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

    def rates(self) -> Floats:
        """Plain exponential averages of the pickups per slot, per half-life and cell."""
        result: Floats = self._counted / np.maximum(self._weight, 1e-9)
        return result

    def observe(self, counts: Floats, usual: Floats) -> None:
        """Learn what a slot brought, and what it usually brings."""
        self._counted = self._counted * self._keep + counts
        self._usual = self._usual * self._keep + usual
        self._city_counted = self._city_counted * self._keep + counts.sum()
        self._city_usual = self._city_usual * self._keep + usual.sum()
        self._weight = self._weight * self._keep + 1.0


class Blend:
    """Weights of the views for one horizon: ridge regression on what came, fading over weeks, shared by all cells.

    Errors are weighted by the forecast to the power −0.6: between −1, the variance of counts, and 0, which is what
    the absolute error asks for.
    """

    HALF_LIFE_SLOTS = float(SLOTS_PER_WEEK)
    RIDGE = 200.0
    SOLVE_EVERY = 12
    ERROR_POWER = 0.6
    FLOOR = 0.01

    def __init__(self, start: Floats) -> None:
        self._start = start
        self._gram: Floats = np.eye(len(start)) * self.RIDGE
        self._moment: Floats = self._gram @ start
        self._seen = 0
        self.weights: Floats = start.copy()
        # φ as a quotient, begun with a mild over-dispersion that a day of data outweighs.
        self._excess, self._square = 1.5, 50.0

    @property
    def dispersion(self) -> float:
        """φ of the variance m + φ·m², from the errors made so far."""
        return min(1.0, max(0.0, self._excess / self._square))

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
        self._excess = self._excess * keep + float(((came - predicted) ** 2 - predicted).sum())
        self._square = self._square * keep + float((predicted**2).sum())
        self._seen += 1
        if self._seen % self.SOLVE_EVERY == 0:
            self.weights = np.linalg.solve(self._gram, self._moment).astype(np.float64)


class DemandModel:
    """Online forecasts for a growing set of cells: `forecast`, then `observe` the slot that followed, and so on.

    `next_slot` is the slot (five-minute intervals since the epoch) that the next `observe` is about, None before the
    first.
    """

    def __init__(self, cells: int = 0) -> None:
        self.cells = cells
        self.next_slot: int | None = None
        self._profile = Profile(cells)
        self._levels = Levels(cells)
        start = np.zeros(3 * len(Levels.HALF_LIVES_SLOTS) + 2)
        start[1], start[2] = 0.7, 0.3  # the hour and the three hours behind, before anything is learnt
        self._blends = [Blend(start) for _ in HORIZON_SLOTS]
        self._views: list[deque[tuple[int, Floats, Floats]]] = [deque(maxlen=slots) for slots in HORIZON_SLOTS]
        self._recent: deque[tuple[int, Floats]] = deque(maxlen=LONGEST)

    def grow(self, cells: int) -> None:
        """Append columns of cells that were quiet so far."""
        if cells <= 0:
            return
        self.cells += cells
        self._profile.grow(cells)
        self._levels.grow(cells)

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
        result: Floats = self._profile.by_week(np.array([self.next_slot]))[0]
        return result

    def mean(self) -> Floats:
        """Expected pickups from the start of the next slot on, shape (horizons, cells)."""
        slot = self.next_slot
        assert slot is not None, "start_at comes first"
        slots = np.arange(slot, slot + LONGEST)
        usual, by_day = self._profile.by_week(slots), self._profile.by_day(slots)
        city, cells, rates = self._levels.city(), self._levels.cells(), self._levels.rates()
        means = np.empty((len(HORIZON_SLOTS), self.cells))
        for index, (length, blend) in enumerate(zip(HORIZON_SLOTS, self._blends, strict=True)):
            base = usual[:length].sum(axis=0)
            views = np.vstack([base * cells, base * city, rates * length, base, by_day[:length].sum(axis=0)])
            means[index] = blend.predict(views)
            past = self._views[index]
            if not past or past[-1][0] != slot:  # asked twice: what is learnt later does not change
                past.append((slot, views, means[index].copy()))
        return means

    def forecast(self) -> Forecast:
        """Mean and quantiles from the start of the next slot on."""
        mean = self.mean()
        spread = [quantiles(row, blend.dispersion) for row, blend in zip(mean, self._blends, strict=True)]
        return Forecast(mean=mean, quantiles=np.stack(spread))

    def level_only(self) -> Floats:
        """The first model: usual pickups times the cell's level over the last half hour or so, as `mean`'s shape."""
        assert self.next_slot is not None, "start_at comes first"
        usual = self._profile.by_week(np.arange(self.next_slot, self.next_slot + LONGEST))
        level = self._levels.cells()[1]
        return np.stack([usual[:length].sum(axis=0) * level for length in HORIZON_SLOTS])

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
                came = np.zeros(known)
                for _, recent in list(self._recent)[-length:]:
                    came += recent[:known] if len(recent) >= known else np.pad(recent, (0, known - len(recent)))
                blend.learn(views, predicted, came)
        self._levels.observe(counts, usual)
        self._profile.observe(slot, counts)
        self.next_slot = slot + 1
