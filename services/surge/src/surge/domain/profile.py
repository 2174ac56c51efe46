"""What each time of the week, of a kind of day and of the day usually brings."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surge.domain.calendar import SLOTS_PER_DAY, SLOTS_PER_WEEK, Calendar
from surge.domain.numbers import Floats, Numbers

KINDS_OF_DAY: Final = np.array([0, 0, 0, 0, 1, 2, 3])
"""From Monday on: Monday to Thursday are alike, and each other day is a kind of its own."""


class Rhythm(Numbers):
    """Sums per phase of a cycle. A phase fades to `keep` each time that it comes round.

    `sums` has shape (phases, cells), `weights` (phases,).
    """

    PARTS = ("sums", "weights")

    def __init__(self, phases: int, cells: int, *, keep: float) -> None:
        self._keep = keep
        self.sums: Floats = np.zeros((phases, cells))
        self.weights: Floats = np.zeros(phases)

    def grow(self, cells: int) -> None:
        """Append columns of cells that were quiet so far."""
        self.sums = np.hstack([self.sums, np.zeros((len(self.sums), cells))])

    def observe(self, phases: NDArray[np.intp], kernel: Floats, counts: Floats) -> None:
        """Spread the counts of a slot over neighbouring phases; the last of them has just come round."""
        leading = phases[-1]
        self.sums[leading] *= self._keep
        self.weights[leading] *= self._keep
        busy = np.flatnonzero(counts)  # most cells have none in five minutes
        self.sums[np.ix_(phases, busy)] += kernel[:, None] * counts[busy]
        self.weights[phases] += kernel


class Profile:
    """Usual pickups per slot: sums that fade from week to week, spread over the neighbouring slots.

    A slot of the week, or of a kind of day, that was never seen falls back on the same time of other days.
    """

    WEEK_KEEP = 0.9
    KIND_KEEP = 0.9
    DAY_KEEP = 0.8
    SPREAD_SLOTS = 4.0
    DAY_WEIGHT = 0.5

    def __init__(self, cells: int, calendar: Calendar) -> None:
        self._calendar = calendar
        reach = int(3 * self.SPREAD_SLOTS)
        offsets = np.arange(-reach, reach + 1)
        kernel = np.exp(-0.5 * (offsets / self.SPREAD_SLOTS) ** 2)
        self._offsets = offsets
        self._kernel: Floats = kernel / kernel.sum()
        self._week = Rhythm(SLOTS_PER_WEEK, cells, keep=self.WEEK_KEEP)
        self._kind = Rhythm(len(set(KINDS_OF_DAY)) * SLOTS_PER_DAY, cells, keep=self.KIND_KEEP)
        self._day = Rhythm(SLOTS_PER_DAY, cells, keep=self.DAY_KEEP)
        self.rhythms: Final = {"week": self._week, "kind": self._kind, "day": self._day}

    def grow(self, cells: int) -> None:
        """Append columns of cells that were quiet so far."""
        for rhythm in self.rhythms.values():
            rhythm.grow(cells)

    def by_day(self, week: NDArray[np.intp]) -> Floats:
        """Usual pickups at these slots of the week by time of day alone, shape (slots, cells)."""
        day = week % SLOTS_PER_DAY
        result: Floats = (self._day.sums[day] + 0.02) / (self._day.weights[day] + 0.2)[:, None]
        return result

    def by_kind(self, week: NDArray[np.intp]) -> Floats:
        """Usual pickups at these slots of the week on this kind of day, shape (slots, cells)."""
        return self._with_day(self._kind, _phase_of_kind(week), week)

    def by_week(self, week: NDArray[np.intp]) -> Floats:
        """Usual pickups at these slots of the week, shape (slots, cells)."""
        return self._with_day(self._week, week, week)

    def _with_day(self, rhythm: Rhythm, phases: NDArray[np.intp], week: NDArray[np.intp]) -> Floats:
        weights = rhythm.weights[phases] + self.DAY_WEIGHT
        result: Floats = (rhythm.sums[phases] + self.DAY_WEIGHT * self.by_day(week)) / weights[:, None]
        return result

    def observe(self, slot: int, counts: Floats) -> None:
        """Learn what slot number `slot` (since the epoch) brought."""
        week = self._calendar.slots_of_the_week(slot + self._offsets)
        self._week.observe(week, self._kernel, counts)
        self._kind.observe(_phase_of_kind(week), self._kernel, counts)
        self._day.observe(week % SLOTS_PER_DAY, self._kernel, counts)


def _phase_of_kind(week: NDArray[np.intp]) -> NDArray[np.intp]:
    """The time of day within its kind of day."""
    result: NDArray[np.intp] = KINDS_OF_DAY[week // SLOTS_PER_DAY] * SLOTS_PER_DAY + week % SLOTS_PER_DAY
    return result
