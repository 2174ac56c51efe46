"""Supply that is expected: the newest forecast of each cell, and how surge scored all of them."""

from typing import Final

from dashboard.domain.demand import Forecast, Scores


class Supply:
    """Free drivers expected per pricing cell in 15 minutes."""

    def __init__(self) -> None:
        self._forecasts: dict[str, Forecast] = {}
        self.scores: Final = Scores()

    def forecast(self, cell: str, forecast: Forecast) -> None:
        """Take a forecast; an older one does not come back."""
        known = self._forecasts.get(cell)
        if known is None or forecast.issued_ms > known.issued_ms:
            self._forecasts[cell] = forecast

    def expected(self, cell: str, issued_ms: int) -> Forecast | None:
        """Return what was expected of a cell at this moment, if that is the newest that is known."""
        known = self._forecasts.get(cell)
        return known if known is not None and known.issued_ms == issued_ms else None
