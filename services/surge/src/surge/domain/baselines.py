"""The models that a forecast must beat. Each sees one slot of counts after the other, and forecasts before each."""

from collections import deque
from typing import Protocol

import numpy as np

from surge.domain.calendar import SLOT_S, SLOTS_PER_WEEK
from surge.domain.forecast import HORIZON_SLOTS, LONGEST, UTC_CALENDAR
from surge.domain.numbers import Floats
from surge.domain.profile import Profile


class Model(Protocol):
    """Forecasts shape (horizons, cells) before each slot, then learns what the slot brought."""

    def mean(self) -> Floats:
        """Expected pickups from the start of the next slot on."""

    def observe(self, counts: Floats) -> None:
        """The next slot brought these pickups."""

    def skip(self, slots: int) -> None:
        """Nothing is known of the next `slots` slots: not even that they were quiet."""


class LastValue:
    """What the window of the same length before brought."""

    def __init__(self, cells: int) -> None:
        self._recent: deque[Floats] = deque([np.zeros(cells)] * LONGEST, maxlen=LONGEST)

    def mean(self) -> Floats:
        """See `Model`."""
        recent = list(self._recent)
        return np.stack([np.sum(recent[-length:], axis=0) for length in HORIZON_SLOTS])

    def observe(self, counts: Floats) -> None:
        """See `Model`."""
        self._recent.append(counts)

    def skip(self, slots: int) -> None:
        """See `Model`."""
        self._recent.extend([np.zeros_like(self._recent[0])] * min(slots, LONGEST))


class SeasonalNaive:
    """What the same window brought a week ago; in the first week, nothing."""

    def __init__(self, cells: int) -> None:
        self._week: deque[Floats] = deque([np.zeros(cells)] * SLOTS_PER_WEEK, maxlen=SLOTS_PER_WEEK)

    def mean(self) -> Floats:
        """See `Model`."""
        then = [self._week[index] for index in range(LONGEST)]
        return np.stack([np.sum(then[:length], axis=0) for length in HORIZON_SLOTS])

    def observe(self, counts: Floats) -> None:
        """See `Model`."""
        self._week.append(counts)

    def skip(self, slots: int) -> None:
        """See `Model`."""
        self._week.extend([np.zeros_like(self._week[0])] * min(slots, SLOTS_PER_WEEK))


class HourOfWeekAverage:
    """The smoothed, weekly fading average of this time of the week."""

    def __init__(self, cells: int, *, first_slot: int) -> None:
        self._profile = Profile(cells, UTC_CALENDAR)
        self._slot = first_slot

    def mean(self) -> Floats:
        """See `Model`."""
        week = UTC_CALENDAR.slots_of_the_week(np.arange(self._slot, self._slot + LONGEST))
        usual = self._profile.by_week(week)
        return np.stack([usual[:length].sum(axis=0) for length in HORIZON_SLOTS])

    def observe(self, counts: Floats) -> None:
        """See `Model`."""
        self._profile.observe(self._slot, counts)
        self._slot += 1

    def skip(self, slots: int) -> None:
        """See `Model`."""
        self._slot += slots


class Ewma:
    """The exponential average of the pickups per slot, half-life 10 minutes."""

    HALF_LIFE_S = 600.0

    def __init__(self, cells: int) -> None:
        self._keep = 0.5 ** (SLOT_S / self.HALF_LIFE_S)
        self._rate = np.zeros(cells)

    def mean(self) -> Floats:
        """See `Model`."""
        return np.stack([self._rate * length for length in HORIZON_SLOTS])

    def observe(self, counts: Floats) -> None:
        """See `Model`."""
        self._rate = self._rate * self._keep + counts * (1 - self._keep)

    def skip(self, slots: int) -> None:
        """See `Model`."""
