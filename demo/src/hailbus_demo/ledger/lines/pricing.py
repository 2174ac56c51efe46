"""Surge: it counted the demand that the log holds, published what came of it, and quotes follow what it published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import h3
from ride_events.geo import ROLL_UP_RESOLUTION

from hailbus_demo.ledger.accounts import Accounts, SurgeAccount
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.repricing import Riders, demand_at, free_drivers, pricing_cell, reprice, riders
from hailbus_demo.ledger.log import LogAccount, LogReader, milliseconds
from hailbus_demo.ledger.model import Findings, Judgement

SURGE_GROUP: Final = "surge"
SURGE_TABLES: Final = "surge's tables"
MINUTE_MS: Final = 60_000
SLOT_MS: Final = 300_000
WINDOW_MS: Final = 5 * MINUTE_MS
LATENESS_MS: Final = 30_000
CAP: Final = 3.0
QUANTUM: Final = 0.1
VALID_MS: Final = 300_000
HORIZONS_MIN: Final = frozenset({5, 15, 30})
EPSILON: Final = 1e-6
DRIVER_TOPICS: Final = ("drivers.v1", "driver-locations.v1")
SOURCES: Final = ("rides.v1", "quotes.v1", *DRIVER_TOPICS)
WINDOWS_OF_A_FACT: Final = WINDOW_MS // MINUTE_MS
"""A rider who asks counts in so many of a cell's windows."""


def surge_of(accounts: Accounts) -> SurgeAccount:
    """Return surge's account, which the line needs."""
    assert isinstance(accounts.surge, SurgeAccount)
    return accounts.surge


def pickups_by_slot(reader: LogReader) -> dict[int, dict[str, list[int]]]:
    """Return slot number → cell → rows of the rides requested there, by pricing cell and by roll-up cell."""
    slots: dict[int, dict[str, list[int]]] = {}
    for steps in reader.rides.values():
        for step in steps:
            if step.type == "ride.requested" and (cell := pricing_cell(step.data["pickup_cell"])) is not None:
                pickup = step.data["pickup"]
                area = str(h3.latlng_to_cell(pickup["lat"], pickup["lng"], ROLL_UP_RESOLUTION))
                cells = slots.setdefault(step.time_ms // SLOT_MS, {})
                for one in (cell, area):
                    cells.setdefault(one, []).append(step.row)
    return slots


def _is_area(cell: str) -> bool:
    return bool(h3.get_resolution(cell) == ROLL_UP_RESOLUTION)


def expected_close_ms(reader: LogReader) -> int | None:
    """Return the end of the last minute that surge must have closed, `None` before the first event."""
    newest = [reader.newest_ms[topic] for topic in SOURCES if topic in reader.newest_ms]
    return (max(newest) - LATENESS_MS) // MINUTE_MS * MINUTE_MS if newest else None


def _slots(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, surge, found = log.reader, surge_of(accounts), Findings()
    closed, expected = surge.closed_until_ms, expected_close_ms(reader)
    late, counted = surge.late_count, surge.pickups
    if expected is not None and not accounts.so_far and (closed is None or closed < expected):
        found.add(
            f"surge has closed the minutes until {closed}, and the log reaches to {expected}: it does not count",
            id=SURGE_GROUP,
        )
    pickups = pickups_by_slot(reader)
    total = 0
    missed = {False: 0, True: 0}  # in pricing cells, in roll-up cells
    oldest = min(counted, default=0)
    for number in sorted(pickups.keys() | counted.keys()):
        if closed is None or (number + 1) * SLOT_MS > closed or number < oldest:
            continue  # not closed yet, or forgotten
        ours, theirs = pickups.get(number, {}), counted.get(number, {})
        for cell in sorted(ours.keys() | theirs.keys()):
            asked, said = len(ours.get(cell, ())), theirs.get(cell, 0)
            total += 0 if _is_area(cell) else said
            missed[_is_area(cell)] += max(0, asked - said)
            if said > asked or (asked > said and missed[_is_area(cell)] > late):
                what = f"{asked} rides were requested in cell {cell} in slot {number} by the log, {said} by surge"
                if asked:
                    first = min(ours[cell], key=reader.place_of)  # partitions are read in any order
                    found.extend([reader.finding(what, first)])
                else:
                    found.add(what, id=cell)
    passed = f"; {late:,} facts came late" if late else ""
    return found.judge(f"{total:,} requested rides were counted in {len(counted):,} slots{passed}")


def _drivers(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    surge = surge_of(accounts)
    closed, late = surge.closed_until_ms, surge.late_count
    if late or any(part.gaps or part.start for (topic, _), part in log.partitions.items() if topic in DRIVER_TOPICS):
        # Facts that came late are in the log and not with surge; of what was deleted from the log it is the reverse.
        return found.judge(f"not compared, because {late:,} facts came late or the log has lost some")
    total = compared = 0
    for number, counted in surge.drivers.items():
        if closed is None or (number + 1) * SLOT_MS > closed:
            continue
        compared += 1
        total += sum(counted.values())
        free = free_drivers(reader, (number + 1) * SLOT_MS)
        for cell in sorted(cell for cell in free.keys() | counted.keys() if free.get(cell, 0) != counted.get(cell, 0)):
            what = f"{free.get(cell, 0)} drivers were free in cell {cell} at the end of slot {number} by the log"
            found.add(f"{what}, {counted.get(cell, 0)} by surge", id=cell)
    return found.judge(f"{total:,} free drivers were counted at the ends of {compared:,} slots")


def _prices(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    prices = surge_of(accounts).prices
    surging = 0
    for cell in sorted(reader.cells.keys() | prices.keys()):
        steps = reader.cells.get(cell)
        held = prices.get(cell)
        multiplier, valid_until = (1.0, 0) if held is None else (float(held[2]), int(held[3]))
        surging += multiplier > 1.0
        if steps is None:
            if multiplier > 1.0:
                found.add(
                    f"cell {cell} costs {multiplier} by {SURGE_TABLES}, never published", topic="surge.v1", id=cell
                )
            continue
        last = max(steps, key=lambda step: step.data["surge_version"])
        said = float(last.data["multiplier"])
        if said != multiplier or (multiplier > 1.0 and milliseconds(last.data["valid_until"]) != valid_until):
            what = f"cell {cell} costs {multiplier} by {SURGE_TABLES}, {said} by the log"
            found.extend([reader.finding(what, last.row)])
    return found.judge(f"{len(reader.cells):,} cells have the price that surge holds, {surging:,} of them above 1.0")


def _demand(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    late = surge_of(accounts).late_count
    asked, quoted = _riders(reader)
    short = updates = 0
    for cell, steps in reader.cells.items():
        before = 0
        for step in steps:
            updates += 1
            data = step.data
            end_ms = milliseconds(data["window_end"])
            version, multiplier = int(data["surge_version"]), float(data["multiplier"])
            wrong = ""
            if not 1.0 <= multiplier <= CAP or abs(round(multiplier / QUANTUM) * QUANTUM - multiplier) > EPSILON:
                wrong = f"multiplier {multiplier} is no tenth between 1.0 and {CAP}"
            elif version != end_ms // MINUTE_MS or end_ms % MINUTE_MS or step.time_ms != end_ms:
                wrong = f"version {version} does not follow from the window's end {data['window_end']}"
            elif version <= before:
                wrong = f"version {version} stands after version {before}"
            elif milliseconds(data["valid_until"]) != end_ms + VALID_MS:
                wrong = f"it is valid until {data['valid_until']}, not {VALID_MS // 60_000} minutes"
            elif float(data["supply"]) < 0:
                wrong = f"supply {data['supply']} is below 0"
            if wrong:
                found.extend([reader.finding(f"cell {cell}: {wrong}", step.row)])
            before = max(before, version)
            demand = demand_at(asked, quoted, cell, end_ms // MINUTE_MS)
            said = float(data["demand"])
            short += said < demand - EPSILON
            if said > demand + EPSILON or (said < demand - EPSILON and short > WINDOWS_OF_A_FACT * late):
                what = f"cell {cell}: demand {said} at {data['window_end']} by surge, {demand:g} by rides and quotes"
                found.extend([reader.finding(what, step.row)])
    return found.judge(f"{updates:,} updates state the demand that rides.v1 and quotes.v1 hold")


def _repriced(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    closed = surge_of(accounts).closed_until_ms
    asked, quoted = _riders(reader)
    due = reprice(reader, asked, quoted, until_ms=closed or 0)
    published = {
        (cell, int(step.data["surge_version"])): step for cell, steps in reader.cells.items() for step in steps
    }
    late = surge_of(accounts).late_count
    if late:
        # Facts that came late are not in surge's prices, for longer than can be told: only silence is judged.
        for update in due:
            if update.multiplier >= LOUD and update.cell not in reader.cells:
                found.add(
                    f"cell {update.cell} had {update.demand:g} riders for {update.supply:g} drivers, and no price was "
                    "published",
                    topic="surge.v1",
                    id=update.cell,
                )
        return found.judge(f"{len(due):,} updates were due, and no busy cell is without; {late:,} facts came late")
    holes = any(part.gaps or part.start for (topic, _), part in log.partitions.items() if topic == "surge.v1")
    for update in due:
        step = published.pop((update.cell, update.version), None)
        if step is None:
            if not holes:
                found.add(
                    f"cell {update.cell} must cost {update.multiplier} from minute {update.version} on, for "
                    f"{update.demand:g} riders and {update.supply:g} drivers, and nothing was published",
                    topic="surge.v1",
                    id=update.cell,
                )
            continue
        said = (step.data["multiplier"], step.data["demand"], step.data["supply"])
        worked_out = (update.multiplier, update.demand, update.supply)
        if any(abs(one - other) > EPSILON for one, other in zip(said, worked_out, strict=True)):
            what = (
                f"cell {update.cell} costs {said[0]} for {said[1]:g} riders and {said[2]:g} drivers by surge, "
                f"{worked_out[0]} for {worked_out[1]:g} and {worked_out[2]:g} by the events that it read"
            )
            found.extend([reader.finding(what, step.row)])
    for (cell, version), step in published.items():
        if closed is not None and version * MINUTE_MS <= closed:
            what = f"cell {cell}: update {version} does not follow from the events that surge read"
            found.extend([reader.finding(what, step.row)])
    return found.judge(f"{len(due):,} updates follow from the rides, quotes and drivers in the log")


LOUD: Final = 1.5
"""A multiplier that a few late facts do not make."""


def _riders(reader: LogReader) -> tuple[Riders, Riders]:
    """Return who requested a ride and who was quoted a fare, by cell and minute."""
    return riders(reader.rides.values(), "ride.requested"), riders(reader.quotes.values(), "quote.offered")


def _forecasts(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    closed = surge_of(accounts).closed_until_ms
    known: dict[str, int] = {}
    pickups = pickups_by_slot(reader)
    for number, cells in sorted(pickups.items()):
        for cell in cells:
            known.setdefault(cell, number)
    made: dict[tuple[str, int, int], int] = {}
    for step in reader.forecasts:
        data = step.data
        cell, horizon, issued = str(data["cell"]), int(data["horizon_min"]), milliseconds(data["issued_at"])
        wrong = ""
        if issued % SLOT_MS or step.time_ms != issued:
            wrong = f"issued at {data['issued_at']}, which ends no slot"
        elif horizon not in HORIZONS_MIN:
            wrong = f"its horizon is {horizon} minutes"
        elif not 0 <= data["p10"] <= data["p50"] <= data["p90"]:
            wrong = f"its quantiles {data['p10']}, {data['p50']}, {data['p90']} do not rise"
        elif not 0 < data["mean"] < float("inf"):
            wrong = f"its mean is {data['mean']}"
        elif cell not in known or known[cell] >= issued // SLOT_MS:
            wrong = "no ride was requested there before"
        elif closed is None or issued > closed:
            wrong = f"issued at {data['issued_at']}, which surge has not closed"
        elif (cell, horizon, issued) in made:
            wrong = f"forecast twice for {data['issued_at']} and {horizon} minutes"
        made[cell, horizon, issued] = step.row
        if wrong:
            found.extend([reader.finding(f"cell {cell}: {wrong}", step.row)])
    issued_at = {issued for _, _, issued in made}
    for issued, (cell, rows) in _busy_intervals(pickups, closed).items():
        if issued not in issued_at:
            what = (
                f"{len(rows)} rides in cell {cell} in the half hour before {issued}, and no forecast was published then"
            )
            found.extend([reader.finding(what, rows[-1])])
    return found.judge(f"{len(made):,} forecasts, each cell and horizon once, none of the busy intervals without")


BUSY_PICKUPS: Final = 10
"""A city with so many pickups in the last half hour in one roll-up cell has some cell with a forecast."""
HALF_HOUR_SLOTS: Final = 6


def _busy_intervals(
    pickups: Mapping[int, Mapping[str, list[int]]], closed: int | None
) -> dict[int, tuple[str, list[int]]]:
    """Return issue time → the busiest roll-up cell and the rows of its pickups, of the intervals that are busy."""
    busy: dict[int, tuple[str, list[int]]] = {}
    for number, cells in pickups.items():
        issued = (number + 1) * SLOT_MS
        if closed is None or issued > closed:
            continue
        for cell in sorted(filter(_is_area, cells)):
            slots = range(number + 1 - HALF_HOUR_SLOTS, number + 1)
            rows = [row for slot in slots for row in pickups.get(slot, {}).get(cell, ())]
            if len(rows) >= max(BUSY_PICKUPS, len(busy[issued][1]) + 1 if issued in busy else 0):
                busy[issued] = (cell, rows)
    return busy


def _quotes(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    published = {
        (cell, int(step.data["surge_version"])): float(step.data["multiplier"])
        for cell, steps in reader.cells.items()
        for step in steps
    }
    holes = any(part.gaps or part.start for (topic, _), part in log.partitions.items() if topic == "surge.v1")
    surged = 0
    for steps in reader.quotes.values():
        step = steps[0]
        if step.type != "quote.offered":
            continue
        version, multiplier = step.data["surge_version"], float(step.data["multiplier"])
        cell = str(step.data["pickup_cell"])
        if version is None:
            if multiplier != 1.0:
                what = f"quoted at {multiplier} in cell {cell} by no update of surge"
                found.extend([reader.finding(what, step.row)])
            continue
        surged += multiplier > 1.0
        said = published.get((cell, int(version)))
        if said is None and holes:
            continue  # the update was compacted away
        if said != multiplier:
            what = f"quoted at {multiplier} in cell {cell} by version {version}, which is {said} in surge.v1"
            found.extend([reader.finding(what, step.row)])
    return found.judge(f"{len(reader.quotes):,} quotes honour what surge published, {surged:,} of them above 1.0")


LINES: Final = (
    LineSpec(
        id="surge-pickups",
        name="surge counted every requested ride",
        between=("rides.v1 in the log", SURGE_TABLES),
        needs=("log", "surge"),
        judge=_slots,
    ),
    LineSpec(
        id="surge-drivers",
        name="surge counted every free driver",
        between=("drivers.v1 and driver-locations.v1 in the log", SURGE_TABLES),
        needs=("log", "surge"),
        judge=_drivers,
    ),
    LineSpec(
        id="surge-prices",
        name="surge published every price that it holds",
        between=(SURGE_TABLES, "surge.v1 in the log"),
        needs=("log", "surge"),
        judge=_prices,
    ),
    LineSpec(
        id="surge-demand",
        name="surge's updates state the demand that there was",
        between=("rides.v1 and quotes.v1 in the log", "surge.v1 in the log"),
        needs=("log", "surge"),
        judge=_demand,
    ),
    LineSpec(
        id="surge-repriced",
        name="surge published every price that the events demand",
        between=("what surge read in the log", "surge.v1 in the log"),
        needs=("log", "surge"),
        judge=_repriced,
    ),
    LineSpec(
        id="forecasts",
        name="demand was forecast in every interval",
        between=("rides.v1 in the log", "forecasts.v1 in the log"),
        needs=("log", "surge"),
        judge=_forecasts,
    ),
    LineSpec(
        id="quotes-surge",
        name="quotes honour what surge published",
        between=("quotes.v1 in the log", "surge.v1 in the log"),
        needs=("log",),
        judge=_quotes,
    ),
)
