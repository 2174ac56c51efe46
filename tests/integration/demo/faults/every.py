"""Every fault that is put into a recorded run, each with the line of the ledger that must find it.

`python -m tests.integration.demo.faults.every` prints the table that `demo/README.md` holds.
"""

from __future__ import annotations

from typing import Final

from hailbus_demo.ledger.lines import LINES

from tests.integration.demo.faults import book, booking, consumers, lake, log, money, recommender, surge
from tests.integration.demo.faults.declared import Fault

_DECLARED: Final = (
    *log.FAULTS,
    *booking.FAULTS,
    *money.FAULTS,
    *consumers.FAULTS,
    *surge.FAULTS,
    *recommender.FAULTS,
    *book.FAULTS,
    *lake.FAULTS,
)
_PLACES: Final = list(dict.fromkeys(fault.place for fault in _DECLARED))
FAULTS: Final[list[Fault]] = sorted(_DECLARED, key=lambda fault: _PLACES.index(fault.place))


def table() -> list[str]:
    """Return the rows of the README's table: where, fault, and the line that finds it."""
    names = {spec.id: spec.name for spec in LINES}
    return [f"| {one.place} | {one.what} | {names[one.line]} |" for one in FAULTS]


if __name__ == "__main__":
    print("| Where | Fault | Line that finds it |\n|---|---|---|", *table(), sep="\n")
