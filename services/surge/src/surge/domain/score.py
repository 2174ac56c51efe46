"""How far published forecasts were off, beside the naive forecast.

That is as many pickups as in the same time before, or as many drivers as are there at the beginning.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surge.domain.forecast import HORIZON_SLOTS, LONGEST, Quantity, padded
from surge.domain.numbers import Arrays, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of the forecasts of one horizon (index into `HORIZON_SLOTS`) made at the start of slot `slot`.

    `absolute_error` sums |median − count| over `forecasts` cells, `naive_absolute_error` the same of the naive
    forecast.
    """

    horizon: int
    slot: int
    forecasts: int
    absolute_error: float
    naive_absolute_error: float


class ScoreKeeper:
    """Compares what was published with what came, as soon as that is known.

    Arrays have one column per cell; columns are only ever appended.
    """

    def __init__(self, quantity: Quantity = Quantity.FLOW) -> None:
        self._quantity: Final = quantity
        self._counts: deque[Floats] = deque(maxlen=2 * LONGEST)
        self._waiting: Final = [deque[tuple[int, NDArray[np.intp], Floats]](maxlen=slots) for slots in HORIZON_SLOTS]

    def forget(self) -> None:
        """What was expected cannot be compared: there is a gap in what came."""
        self._counts.clear()
        for waiting in self._waiting:
            waiting.clear()

    def published(self, slot: int, columns: NDArray[np.intp], medians: Floats) -> None:
        """Note the medians, shape (horizons, columns), that were published at the start of a slot."""
        for waiting, row in zip(self._waiting, medians, strict=True):
            waiting.append((slot, columns, row))

    def observe(self, slot: int, counts: Floats) -> list[Score]:
        """Take what a slot brought, shape (cells,); return the scores of the forecasts that ended with it.

        There is no score where the naive forecast is unknown, because too few slots before it were counted.
        """
        self._counts.append(counts)
        scores = []
        for horizon, (length, waiting) in enumerate(zip(HORIZON_SLOTS, self._waiting, strict=True)):
            issued = slot - length + 1
            if not waiting or waiting[0][0] != issued:
                continue
            _, columns, medians = waiting.popleft()
            slots_before = self._quantity.slots_before(length)
            if len(self._counts) < slots_before + length or not len(columns):
                continue
            needed = list(self._counts)[-slots_before - length :]
            known = np.stack([padded(each, len(counts))[columns] for each in needed])
            came = self._quantity.over(known[slots_before:], length)
            naive = self._quantity.over(known[:slots_before], slots_before)
            scores.append(
                Score(
                    horizon=horizon,
                    slot=issued,
                    forecasts=len(columns),
                    absolute_error=float(np.abs(came - medians).sum()),
                    naive_absolute_error=float(np.abs(came - naive).sum()),
                )
            )
        return scores

    def snapshot(self) -> Arrays:
        """All that is waited for, by name; arrays are not copied."""
        arrays = {f"count/{place}": counts for place, counts in enumerate(self._counts)}
        for horizon, waiting in enumerate(self._waiting):
            for slot, columns, medians in waiting:
                arrays[f"waiting/{horizon}/{slot}"] = np.vstack([columns, medians])
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where another one was when `snapshot` was called; nothing may have been observed yet."""
        for name, array in arrays.items():
            kind, *at = name.split("/")
            if kind == "count":
                self._counts.append(array)
            else:
                horizon, slot = map(int, at)
                self._waiting[horizon].append((slot, array[0].astype(np.intp), array[1]))
