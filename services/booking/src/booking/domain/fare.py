"""What a ride costs: a fare that is quoted, and when it is honoured."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

MULTIPLIER_RANGE: Final = (0.5, 20.0)
"""The multipliers that are accepted; any other is the sender's mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Prices in minor units (cents) of one currency.

    The defaults are of the order of New York's: 3.00 to get in, 1.34 a kilometre, 0.40 a minute, 8.00 at least.

    Attributes:
        tolerance_percent: How far a ride may run over its quoted fare before it is priced anew.
        tolerance_minor: The same as an amount; the larger of the two counts.
        ceiling_percent: What a ride costs at most, of its quoted fare.
        pooled_percent: What a pooled ride costs, of its fare without the pool.
    """

    base_minor: int = 300
    per_km_minor: int = 134
    per_minute_minor: int = 40
    minimum_minor: int = 800
    tolerance_percent: int = 25
    tolerance_minor: int = 300
    ceiling_percent: int = 200
    pooled_percent: int = 80

    def fare_minor(self, *, distance_m: int, duration_s: int, multiplier: float) -> int:
        """Return the fare of a ride in minor units, rounded half up once, at the end."""
        metered = (
            self.base_minor
            + Decimal(self.per_km_minor * distance_m) / 1000
            + Decimal(self.per_minute_minor * duration_s) / 60
        )
        # The multiplier has one decimal: by way of text it stays the number that the rider was shown.
        fare = max(metered, Decimal(self.minimum_minor)) * Decimal(str(multiplier))
        return int(fare.quantize(Decimal(1), rounding=ROUND_HALF_UP))

    def pooled_minor(self, single_minor: int) -> int:
        """Return what a ride costs that shares its driver, in minor units, rounded half up."""
        return (single_minor * self.pooled_percent + 50) // 100

    def final_minor(self, *, quoted_minor: int, metered_minor: int) -> int:
        """Return what a rider pays at the end, in minor units.

        The quoted fare is honoured while the metered one, by booking's own distance and clock, is at most a quarter and
        at least 3.00 above it. Beyond that the metered fare is due, but never more than twice the quoted one: a driver
        who forgets to end a ride is not the rider's cost.
        """
        bound = quoted_minor + max(quoted_minor * self.tolerance_percent // 100, self.tolerance_minor)
        if metered_minor <= bound:
            return quoted_minor
        return min(metered_minor, quoted_minor * self.ceiling_percent // 100)
