"""What a fault is, how it is declared, and how it is put into several accounts at once.

A fault is lost, invented, doubled, reordered or altered data in one place. Where a service itself is wrong, what it
publishes agrees with what it stores: such faults are put into both, and into the lake.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.recorded import RecordedRun, header, lake_report_of

NEW_ID: Final = "11111111-2222-4333-8444-555555555555"
Inject = Callable[[RecordedRun], Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        place: Which account is wrong.
        what: The fault, in the words of the README's table.
        line: The id of the line that must find it.
        inject: Puts it into a run; returns where the ledger must point to (`what` holds words of the sentence).
    """

    place: str
    what: str
    line: str
    inject: Inject

    @property
    def name(self) -> str:
        """The test's name."""
        return f"{self.place}: {self.what}".replace(" ", "_")


class Faults(list[Fault]):
    """The faults of some accounts."""

    def declare(self, place: str, what: str, line: str) -> Callable[[Inject], Inject]:
        """Declare a fault."""

        def declared(inject: Inject) -> Inject:
            self.append(Fault(place=place, what=what, line=line, inject=inject))
            return inject

        return declared


def at(record: Any, what: str) -> Finding:
    """Return the finding about a record: its topic, partition, offset and event id."""
    return Finding(
        what=what, topic=record.topic, partition=record.partition, offset=record.offset, id=header(record, "ce_id")
    )


def ride_in(run: RecordedRun, state: str) -> tuple[str, Any]:
    """Return a ride of booking's in a state: its id and its payment's captured or released record."""
    ride_id = run.ask("booking", "SELECT ride_id FROM booking_rides WHERE state = ? ORDER BY ride_id", state)[0][0]
    kind = "payment.captured" if state == "completed" else "payment.released"
    return ride_id, run.find(kind, ride_id=ride_id)


def last_of(run: RecordedRun, topic: str) -> Any:
    return next(records[-1] for (name, _), records in sorted(run.records.items()) if name == topic and records)


def everywhere(run: RecordedRun, record: Any) -> None:
    """Change a record in the log, the outbox, the event logger's file and the lake: its producer was wrong."""
    run.put(record)
    if header(record, "ce_source") in ("/booking", "/payment") and record.topic != "driver-locations.v1":
        run.outbox(record)
    lines = []
    for line in run.journal_lines():
        head, _, _ = line.partition(',"data":')
        mine = json.loads(head + "}")["id"] == header(record, "ce_id")
        lines.append(f'{head},"data":{record.value.decode()}}}' if mine else line)
    run.write_journal(lines)
    run.lake = lake_report_of(run.records)
