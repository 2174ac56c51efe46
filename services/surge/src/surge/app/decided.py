"""What a city has decided to publish, as a row.

It is kept before it is published. A process that is killed in between publishes it after its restart, and a process
that is killed later publishes it again, word for word. To decide anew would be to say something else under the same
ids, as soon as an event has come meanwhile that was late before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from surge.app.city import CellForecast, ForecastScore, MinuteClosed, Outlook, PriceChange, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NOTHING: Final = Outlook()

D = TypeVar("D", PriceChange, CellForecast, ForecastScore)


@dataclass(frozen=True, slots=True)
class Decided:
    """Prices, forecasts and scores of minutes that were closed together."""

    prices: tuple[PriceChange, ...] = ()
    demand: Outlook = NOTHING
    supply: Outlook = NOTHING

    @classmethod
    def at_end_of(cls, minutes: Sequence[MinuteClosed]) -> Decided:
        """All that these minutes brought."""
        return cls(
            prices=tuple(price for minute in minutes for price in minute.prices),
            demand=_joined(minute.demand for minute in minutes),
            supply=_joined(minute.supply for minute in minutes),
        )

    def row(self) -> Row:
        """The same as JSON."""
        return {
            "prices": _values(self.prices),
            "forecasts": _values(self.demand.forecasts),
            "scores": _values(self.demand.scores),
            "supply_forecasts": _values(self.supply.forecasts),
            "supply_scores": _values(self.supply.scores),
        }

    @classmethod
    def of(cls, row: Row | None) -> Decided:
        """What a row was made from, whatever version has made it; nothing for no row."""
        if row is None:
            return cls()
        return cls(
            prices=_made(PriceChange, row["prices"]),
            demand=Outlook(_made(CellForecast, row["forecasts"]), _made(ForecastScore, row.get("scores", []))),
            supply=Outlook(
                _made(CellForecast, row.get("supply_forecasts", [])), _made(ForecastScore, row.get("supply_scores", []))
            ),
        )


def _joined(outlooks: Iterable[Outlook]) -> Outlook:
    all_of_them = tuple(outlooks)
    return Outlook(
        tuple(forecast for outlook in all_of_them for forecast in outlook.forecasts),
        tuple(score for outlook in all_of_them for score in outlook.scores),
    )


def _values(decided: Iterable[PriceChange | CellForecast | ForecastScore]) -> list[list[Any]]:
    return [list(asdict(each).values()) for each in decided]


def _made(cls: type[D], rows: list[list[Any]]) -> tuple[D, ...]:
    names = tuple(cls.__dataclass_fields__)
    return tuple(cls(**dict(zip(names, values, strict=True))) for values in rows)
