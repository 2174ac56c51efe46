"""Demand and its forecasts: what was expected of a cell in 15 minutes, what came, and how surge scored all of them."""

from collections import deque
from dataclasses import dataclass
from typing import Final

SLOT_MS: Final = 300_000
SLOTS: Final = 3
"""Of a forecast: 15 minutes."""
HORIZON_MIN: Final = 15
_KEPT_SLOTS: Final = 60
_FORECASTS_PER_CELL: Final = 24
_SCORES: Final = 24 * 12
"""Of a day: there is one for each slot."""
_LATE_MS: Final = 120_000
"""How long after its end a forecast is shown with what came: partitions are read side by side, so some is late."""
_STAYS: Final = 1.5
"""Another cell is shown once this much more is expected of it: otherwise the card would jump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Requests expected in a cell in the 15 minutes after `issued_ms`, or drivers who are free at their end."""

    issued_ms: int
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A forecast beside what came, and beside the naive one: what came in the 15 minutes before.

    `actual` is `None` before all of it is known, `naive` where the log begins too late.
    """

    forecast: Forecast
    actual: int | None
    naive: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Sums of the absolute errors of so many forecasts, and of the naive ones for the same cells and time."""

    forecasts: int
    error: float
    naive_error: float


class Scores:
    """The scores of the last day."""

    def __init__(self) -> None:
        self._scores: dict[int, Score] = {}

    def take(self, issued_ms: int, score: Score) -> None:
        """Take the score of the forecasts made at a moment."""
        self._scores[issued_ms] = score
        if len(self._scores) > _SCORES:
            del self._scores[min(self._scores)]

    @property
    def scored(self) -> int:
        """How many forecasts were scored."""
        return sum(score.forecasts for score in self._scores.values())

    @property
    def mae(self) -> tuple[float, float] | None:
        """The mean absolute error of the medians, and that of the naive forecast for the same cells and times."""
        scored = self.scored
        if not scored:
            return None
        error = sum(score.error for score in self._scores.values())
        return error / scored, sum(score.naive_error for score in self._scores.values()) / scored


class Demand:
    """Requests per pricing cell and slot of five minutes in the last five hours of event time, and their forecasts."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, int]] = {}
        self._first_ms: int | None = None
        self._newest_ms = 0
        self._forecasts: dict[str, deque[Forecast]] = {}
        self.scores: Final = Scores()
        self._shown: str | None = None

    def requested(self, cell: str, at_ms: int) -> None:
        """Count a request."""
        slot = at_ms // SLOT_MS
        self._first_ms = at_ms if self._first_ms is None else min(self._first_ms, at_ms)
        counts = self._slots.setdefault(slot, {})
        counts[cell] = counts.get(cell, 0) + 1
        self.passed(at_ms)
        if len(self._slots) > _KEPT_SLOTS:
            oldest = self._newest_ms // SLOT_MS - _KEPT_SLOTS
            for old in [known for known in self._slots if known <= oldest]:
                del self._slots[old]

    def passed(self, at_ms: int) -> None:
        """Note that event time has come so far: where nobody asks any more, forecasts end all the same."""
        self._newest_ms = max(self._newest_ms, at_ms)

    def forecast(self, cell: str, forecast: Forecast) -> None:
        """Take a forecast; one that was read before is not counted twice."""
        known = self._forecasts.setdefault(cell, deque(maxlen=_FORECASTS_PER_CELL))
        if known and forecast.issued_ms <= known[-1].issued_ms:
            return
        known.append(forecast)

    def shown(self) -> str | None:
        """Return the cell of which most is expected; `None` before there is a forecast."""
        newest = max((known[-1].issued_ms for known in self._forecasts.values()), default=0)
        current = {cell: known[-1].p50 for cell, known in self._forecasts.items() if known[-1].issued_ms == newest}
        best = max(current, key=lambda cell: (current[cell], cell), default=None)
        held = current.get(self._shown or "", 0.0)
        if best is not None and current[best] > held * _STAYS:
            self._shown = best
        return self._shown

    def points(self, cell: str) -> list[Point]:
        """Return the last two hours of a cell, oldest first."""
        return [
            Point(
                forecast=forecast,
                actual=self._came(cell, forecast.issued_ms) if self._is_over(forecast.issued_ms) else None,
                naive=self._naive(cell, forecast.issued_ms),
            )
            for forecast in self._forecasts.get(cell, ())
        ]

    def _is_over(self, issued_ms: int) -> bool:
        return issued_ms + SLOTS * SLOT_MS + _LATE_MS <= self._newest_ms

    def _naive(self, cell: str, issued_ms: int) -> int | None:
        start_ms = issued_ms - SLOTS * SLOT_MS
        if self._first_ms is None or self._first_ms > start_ms + SLOT_MS:
            return None
        return self._came(cell, start_ms)

    def _came(self, cell: str, start_ms: int) -> int:
        first = start_ms // SLOT_MS
        return sum(self._slots.get(slot, {}).get(cell, 0) for slot in range(first, first + SLOTS))


__all__ = ["HORIZON_MIN", "SLOT_MS", "Demand", "Forecast", "Point", "Score", "Scores"]
