"""Surge's scores: each says how far its published forecasts were from what surge counted, and none is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import h3

from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.lines.pricing import MINUTE_MS, SLOT_MS, SURGE_TABLES, surge_of
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.log import LogAccount, Step, milliseconds
from hailbus_demo.ledger.model import Findings, Judgement

FORECASTS: Final = "forecasts.v1"
ROUNDING: Final = 1e-6

Counted = Mapping[int, Mapping[str, int]]
"""Slot → cell → count."""


class Scored(NamedTuple):
    """Which forecasts a score is about: those that a slot's beginning issued for so many slots."""

    quantity: str
    resolution: int
    slot: int
    length: int

    @property
    def before(self) -> int:
        """How many slots before the first one the naive forecast is taken from."""
        return self.length if self.quantity == "demand" else 1

    @property
    def slots(self) -> range:
        """The slots whose counts a score needs."""
        return range(self.slot - self.before, self.slot + self.length)

    def errors(self, medians: Mapping[str, float], counted: Counted) -> tuple[float, float]:
        """Return how far the medians were off in sum, and how far the naive forecast was."""
        ours = naive = 0.0
        for cell, median in medians.items():
            if self.quantity == "demand":
                came = sum(counted[self.slot + ahead].get(cell, 0) for ahead in range(self.length))
                before = sum(counted[self.slot - back].get(cell, 0) for back in range(1, self.length + 1))
            else:
                came = counted[self.slot + self.length - 1].get(cell, 0)
                before = counted[self.slot - 1].get(cell, 0)
            ours += abs(came - median)
            naive += abs(came - before)
        return ours, naive


def _scored(step: Step, resolution: int) -> Scored:
    return Scored(
        quantity=step.type.partition(".")[0],
        resolution=resolution,
        slot=milliseconds(step.data["issued_at"]) // SLOT_MS,
        length=int(step.data["horizon_min"]) * MINUTE_MS // SLOT_MS,
    )


def _medians(steps: Iterable[Step]) -> dict[Scored, dict[str, float]]:
    """Return the published medians by cell, by what scores them."""
    made: dict[Scored, dict[str, float]] = defaultdict(dict)
    for step in steps:
        cell = str(step.data["cell"])
        made[_scored(step, h3.get_resolution(cell))][cell] = float(step.data["p50"])
    return made


def _scores(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    if any(part.gaps or part.start for (topic, _), part in log.partitions.items() if topic == FORECASTS):
        return found.judge("not compared, because the log has lost forecasts")
    surge = surge_of(accounts)
    counted: Mapping[str, Counted] = {"demand": surge.pickups, "supply": surge.drivers}
    made = _medians([*reader.forecasts, *reader.supplies])
    said: dict[Scored, Step] = {}
    total, naive_total = 0.0, 0.0
    for step in reader.scores:
        data = step.data
        scored = _scored(step, int(data["resolution"]))
        medians = made.get(scored, {})
        name = f"the {scored.quantity} for {data['horizon_min']} minutes, resolution {scored.resolution}"
        wrong = ""
        if scored in said:
            wrong = f"{name}, is scored twice for {data['issued_at']}"
        elif len(medians) != data["forecasts"]:
            wrong = f"{name}: {data['forecasts']} forecasts of {data['issued_at']} are scored, {len(medians)} published"
        elif not all(slot in counted[scored.quantity] for slot in scored.slots):
            wrong = f"{name}, is scored for {data['issued_at']}, and surge has not counted all of its slots"
        else:
            ours, naive = scored.errors(medians, counted[scored.quantity])
            for kind, one, other in (
                ("", float(data["absolute_error"]), ours),
                ("naively ", float(data["naive_absolute_error"]), naive),
            ):
                if abs(one - other) > ROUNDING:
                    wrong = (
                        f"{name}, of {data['issued_at']}, was {kind}off by {one:g} by its score, by {other:g} by counts"
                    )
            total, naive_total = total + ours, naive_total + naive
        said[scored] = step
        if wrong:
            found.extend([reader.finding(wrong, step.row)])
    closed = surge.closed_until_ms
    for scored, medians in made.items():
        is_over = closed is not None and (scored.slot + scored.length) * SLOT_MS <= closed
        is_known = all(slot in counted[scored.quantity] for slot in scored.slots)
        if is_over and is_known and scored not in said and not accounts.so_far:
            found.add(
                f"{len(medians)} forecasts of the {scored.quantity} from slot {scored.slot} on, {scored.length} slots, "
                f"resolution {scored.resolution}, were never scored",
                topic=FORECASTS,
            )
    return found.judge(
        f"{len(said):,} scores follow from forecasts and counts: off by {total:,.0f}, naively by {naive_total:,.0f}"
    )


LINES: Final = (
    LineSpec(
        id="forecast-scores",
        name="surge scored its forecasts as they came true",
        between=(FORECASTS + " in the log", SURGE_TABLES),
        needs=("log", "surge"),
        judge=_scores,
    ),
)
