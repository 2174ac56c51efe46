"""What a city has decided to publish, as a row.

It is kept before it is published. A process that is killed in between publishes it after its restart, and a process
that is killed later publishes it again, word for word. To decide anew would be to say something else under the same
ids, as soon as an event has come meanwhile that was late before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from surge.app.city import CellForecast, ForecastScore, PriceChange, Row

D = TypeVar("D", PriceChange, CellForecast, ForecastScore)


@dataclass(frozen=True, slots=True)
class Decided:
    """Prices, forecasts and scores of minutes that were closed together."""

    prices: tuple[PriceChange, ...] = ()
    forecasts: tuple[CellForecast, ...] = ()
    scores: tuple[ForecastScore, ...] = ()

    def row(self) -> Row:
        """The same as JSON."""
        return {
            "prices": [list(asdict(price).values()) for price in self.prices],
            "forecasts": [list(asdict(forecast).values()) for forecast in self.forecasts],
            "scores": [list(asdict(score).values()) for score in self.scores],
        }

    @classmethod
    def of(cls, row: Row | None) -> Decided:
        """What a row was made from; nothing for no row."""
        if row is None:
            return cls()
        return cls(
            prices=_made(PriceChange, row["prices"]),
            forecasts=_made(CellForecast, row["forecasts"]),
            scores=_made(ForecastScore, row.get("scores", [])),  # a row of a version that scored nothing has none
        )


def _made(cls: type[D], rows: list[list[Any]]) -> tuple[D, ...]:
    names = tuple(cls.__dataclass_fields__)
    return tuple(cls(**dict(zip(names, values, strict=True))) for values in rows)
