"""The lines of the ledger: one pure function each, which compares two accounts and says what disagrees."""

from hailbus_demo.ledger.lines import (
    advice,
    consumers,
    drivers,
    lake,
    log,
    money,
    pooling,
    positions,
    pricing,
    rides,
    scores,
)
from hailbus_demo.ledger.lines.registry import LineSpec

LINES: tuple[LineSpec, ...] = (
    *rides.LINES,
    *pooling.LINES,
    *money.LINES,
    *drivers.LINES,
    *log.LINES,
    *consumers.LINES,
    *pricing.LINES,
    *scores.LINES,
    *advice.LINES,
    *positions.LINES,
    *lake.LINES,
)
"""Every line, in the order in which they are shown."""

__all__ = ["LINES", "LineSpec"]
