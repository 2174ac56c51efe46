"""What a city has decided to publish, as a row.

It is kept before it is published. A process that is killed in between publishes it after its restart, and a process
that is killed later publishes it again, word for word. To decide anew would be to say something else under the same
ids, as soon as an event has come meanwhile that was late before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from surge.app.city import CellForecast, PriceChange, Row


@dataclass(frozen=True, slots=True)
class Decided:
    """Prices and forecasts of minutes that were closed together."""

    prices: tuple[PriceChange, ...] = ()
    forecasts: tuple[CellForecast, ...] = ()

    def row(self) -> Row:
        """The same as JSON."""
        return {
            "prices": [list(asdict(price).values()) for price in self.prices],
            "forecasts": [list(asdict(forecast).values()) for forecast in self.forecasts],
        }

    @classmethod
    def of(cls, row: Row | None) -> Decided:
        """What a row was made from; nothing for no row."""
        if row is None:
            return cls()
        names = tuple(PriceChange.__dataclass_fields__), tuple(CellForecast.__dataclass_fields__)
        return cls(
            prices=tuple(PriceChange(**dict(zip(names[0], values, strict=True))) for values in row["prices"]),
            forecasts=tuple(CellForecast(**dict(zip(names[1], values, strict=True))) for values in row["forecasts"]),
        )
