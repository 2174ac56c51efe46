"""What the ledger allows surge to publish and to hold, and where it begins to disagree."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import h3
import pytest
from hailbus_demo.ledger.accounts import Accounts
from hailbus_demo.ledger.lines import pricing
from hailbus_demo.ledger.log import LogReader, milliseconds
from ride_events.geo import ROLL_UP_RESOLUTION

from tests.integration.demo.accounts import accounts_of, line, log_of, surge_of
from tests.integration.demo.recorded import RecordedRun, data, with_data, with_header


async def test_rides_that_came_late_are_allowed_as_far_as_surge_counted_them(run: RecordedRun) -> None:
    slot, counted = next((name, row) for name, row in run.surge_rows("slots").items() if row and "/" not in name)
    cell = max(counted, key=lambda one: counted[one])
    run.put_surge_row("slots", slot, {**counted, cell: counted[cell] - 1})
    assert line(await accounts_of(run), "surge-pickups").verdict == "disagrees"
    run.change_surge_state(late_count=1)
    found = line(await accounts_of(run), "surge-pickups")
    assert found.verdict == "agrees"
    assert found.detail.endswith("; 1 facts came late")


async def test_late_facts_excuse_demand_that_is_too_small_and_never_too_large(run: RecordedRun) -> None:
    update = run.find("surge.updated", nth=3)
    demand = data(update)["demand"]
    for said, late, verdict in (
        (demand - 0.3, 0, "disagrees"),
        (demand - 0.3, 1, "agrees"),
        (demand + 0.3, 9, "disagrees"),
    ):
        run.put(with_data(update, demand=said))
        run.change_surge_state(late_count=late)
        assert line(await accounts_of(run), "surge-demand").verdict == verdict


async def test_one_late_fact_excuses_as_many_updates_as_a_window_has_minutes(run: RecordedRun) -> None:
    run.change_surge_state(late_count=1)
    updates = [record for record in run.all("surge.v1") if data(record)["demand"] > 0]
    for count, record in enumerate(updates[:6], start=1):
        run.put(with_data(record, demand=data(record)["demand"] - 0.3))
        assert len(line(await accounts_of(run), "surge-demand").findings) == max(0, count - 5)


async def test_after_late_facts_a_busy_cell_without_any_price_is_found(run: RecordedRun) -> None:
    run.change_surge_state(late_count=1)
    # Other prices than the events demand: nobody can tell, after late facts.
    run.put(with_data(run.find("surge.updated"), supply=9.0))
    assert line(await accounts_of(run), "surge-repriced").verdict == "agrees"
    loud = next(data(r)["cell"] for r in run.all("surge.v1") if data(r)["multiplier"] == 1.5)
    quiet = next(data(r)["cell"] for r in run.all("surge.v1") if data(r)["cell"] != loud)
    for cell, verdict in ((quiet, "agrees"), (loud, "disagrees")):
        for place in [place for place in run.records if place[0] == "surge.v1"]:
            run.records[place] = [r if r is None or data(r)["cell"] != cell else None for r in run.records[place]]
        found = line(await accounts_of(run), "surge-repriced")
        assert found.verdict == verdict
    assert f"cell {loud} had " in found.detail
    assert found.findings[0].id == loud


async def test_updates_of_a_compacted_topic_may_be_gone(run: RecordedRun) -> None:
    gone = run.find("surge.updated")
    offered = run.find("quote.offered", pickup_cell=data(gone)["cell"])
    run.put(with_data(offered, surge_version=data(gone)["surge_version"], multiplier=data(gone)["multiplier"]))
    assert line(await accounts_of(run), "quotes-surge").verdict == "agrees"
    run.hide(gone)
    accounts = await accounts_of(run)
    assert line(accounts, "quotes-surge").verdict == "agrees"
    assert line(accounts, "surge-repriced").verdict == "agrees"


async def test_a_price_of_one_needs_no_update(run: RecordedRun) -> None:
    cell = "882a100d25fffff"
    for multiplier, verdict in ((1.0, "agrees"), (1.1, "disagrees")):
        run.change_surge_state(prices={cell: [multiplier, multiplier, multiplier, 1]})
        assert line(await accounts_of(run), "surge-prices").verdict == verdict


async def test_a_held_price_is_valid_as_long_as_it_was_published(run: RecordedRun) -> None:
    cells = {data(record)["cell"]: record for record in run.all("surge.v1")}
    cell, last = next(iter(cells.items()))
    run.put(with_data(last, multiplier=1.1))
    until_ms = milliseconds(data(last)["valid_until"])
    for more_ms, verdict in ((0, "agrees"), (1, "disagrees")):
        run.change_surge_state(prices={cell: [1.1, 1.1, 1.1, until_ms + more_ms]})
        assert line(await accounts_of(run), "surge-prices").verdict == verdict


async def test_surge_must_close_a_minute_half_a_minute_after_its_end(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    closed = surge_of(accounts).closed_until_ms
    assert closed is not None
    for topic in pricing.SOURCES:
        reader.newest_ms[topic] = closed
    for newest_ms, verdict in ((closed + 89_999, "agrees"), (closed + 90_000, "disagrees")):
        reader.newest_ms["rides.v1"] = newest_ms
        assert line(accounts, "surge-pickups").verdict == verdict
        assert line(replace(accounts, so_far=True), "surge-pickups").verdict == "agrees"
    reader.newest_ms.clear()
    assert pricing.expected_close_ms(reader) is None
    assert line(accounts, "surge-pickups").verdict == "agrees"


async def test_forecasts_are_due_after_ten_rides_in_half_an_hour_and_never_twice(run: RecordedRun) -> None:
    for place in [place for place in run.records if place[0] == "forecasts.v1"]:
        run.records[place] = []
    accounts = await accounts_of(run)
    whole = line(accounts, "forecasts")
    assert whole.verdict == "disagrees"
    reader = log_of(accounts).reader
    rides = list(reader.rides.items())
    for count in range(len(rides), 0, -1):
        reader.rides = dict(rides[:count])
        most = busiest(reader, surge_of(accounts).closed_until_ms or 0)
        found = line(accounts, "forecasts")
        assert found.verdict == ("disagrees" if most >= 10 else "agrees")


def area_of(place: dict[str, float]) -> str:
    return str(h3.latlng_to_cell(place["lat"], place["lng"], ROLL_UP_RESOLUTION))


def busiest(reader: LogReader, closed: int) -> int:
    """Return the most rides that were requested in half an hour in one cell of the next larger kind."""
    asked = [(steps[0].time_ms // 300_000, area_of(steps[0].data["pickup"])) for steps in reader.rides.values()]
    return max(
        (
            sum(1 for slot, area in asked if area == mine and end - 6 < slot <= end)
            for end in {slot for slot, _ in asked}
            for _, mine in asked
            if (end + 1) * 300_000 <= closed
        ),
        default=0,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"multiplier": 3.0}, None),
        ({"multiplier": 1.0}, None),
        ({"multiplier": 3.1}, "multiplier 3.1 is no tenth between 1.0 and 3.0"),
        ({"multiplier": 0.9}, "multiplier 0.9 is no tenth"),
        ({"multiplier": 1.05}, "multiplier 1.05 is no tenth"),
        ({"multiplier": 1.1000000001}, None),
        ({"supply": 0.0}, None),
        ({"supply": -0.5}, "supply -0.5 is below 0"),
    ],
)
async def test_what_an_update_of_surge_may_say(run: RecordedRun, fields: dict[str, float], words: str | None) -> None:
    run.put(with_data(run.find("surge.updated", nth=3), **fields))
    found = line(await accounts_of(run), "surge-demand")
    assert [words in one.what for one in found.findings if words is not None] == ([] if words is None else [True])
    assert found.verdict == ("agrees" if words is None else "disagrees")


@pytest.mark.parametrize("more_s", [1, 60])
async def test_the_version_the_window_and_the_time_of_an_update_belong_together(run: RecordedRun, more_s: int) -> None:
    update = run.find("surge.updated", nth=3)
    end_ms = milliseconds(data(update)["window_end"]) + more_s * 1000
    later = datetime.fromtimestamp(end_ms / 1000, UTC).isoformat()
    until = datetime.fromtimestamp(end_ms / 1000 + 300, UTC).isoformat()
    for change in (
        with_data(update, window_end=later, valid_until=until),
        with_header(update, "ce_time", later),
        with_data(update, surge_version=data(update)["surge_version"] + more_s),
        with_header(with_data(update, window_end=later, valid_until=until), "ce_time", later),
    ):
        run.put(change)
        found = line(await accounts_of(run), "surge-demand")
        assert "does not follow from the window's end" in found.detail


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"p10": 2.0, "p50": 2.0, "p90": 2.0}, None),
        ({"p10": 0.0, "p50": 0.0, "p90": 0.0}, None),
        ({"p10": 3.0, "p50": 2.0, "p90": 4.0}, "do not rise"),
        ({"p10": 1.0, "p50": 5.0, "p90": 4.0}, "do not rise"),
        ({"mean": 0.5}, None),
        ({"mean": 0.0001}, None),
        ({"mean": 0.0}, "its mean is 0.0"),
        ({"horizon_min": 45}, "its horizon is 45 minutes"),
    ],
)
async def test_what_a_forecast_may_say(run: RecordedRun, fields: dict[str, float], words: str | None) -> None:
    run.put(with_data(run.find("demand.forecast_published", nth=3), **fields))
    found = line(await accounts_of(run), "forecasts")
    assert [words in one.what for one in found.findings if words is not None] == ([] if words is None else [True])
    assert found.verdict == ("agrees" if words is None else "disagrees")


async def test_a_forecast_follows_a_request_in_an_interval_that_has_ended(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    last_ms = max(milliseconds(step.data["issued_at"]) for step in reader.forecasts)
    first = min(reader.forecasts, key=lambda step: step.time_ms)
    for less_ms, verdict in ((0, "agrees"), (1, "disagrees")):
        assert line(told(accounts, closed_until_ms=last_ms - less_ms), "forecasts").verdict == verdict
    at = datetime.fromtimestamp(first.time_ms / 1000 - 300, UTC).isoformat()
    reader.forecasts[reader.forecasts.index(first)] = first._replace(
        time_ms=first.time_ms - 300_000, data={**first.data, "issued_at": at}
    )
    assert [one.what for one in line(accounts, "forecasts").findings if "requested there before" in one.what] == [
        f"cell {first.data['cell']}: no ride was requested there before"
    ]


def told(accounts: Accounts, **fields: Any) -> Accounts:
    """Return the accounts with other fields of surge's state."""
    surge = surge_of(accounts)
    return replace(accounts, surge=replace(surge, state={**surge.state, **fields}))


async def test_slots_that_are_open_or_forgotten_are_not_counted(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    surge = surge_of(accounts)
    (asked,) = (number for number, cells in surge.pickups.items() if cells)
    later = {number: cells for number, cells in surge.pickups.items() if number > asked}
    older: dict[int, dict[str, int]] = {asked - 1: {}}
    oldest: dict[int, dict[str, int]] = {asked: {}}
    # With an older slot none is forgotten, and the oldest is counted, too.
    for left, verdict in ((later, "agrees"), (later | older, "disagrees"), (later | oldest, "disagrees")):
        accounts = replace(accounts, surge=replace(surge, pickups=left))
        assert line(accounts, "surge-pickups").verdict == verdict
    end_ms = (asked + 1) * 300_000
    for closed_ms, verdict in ((end_ms, "disagrees"), (end_ms - 1, "agrees")):
        assert line(replace(told(accounts, closed_until_ms=closed_ms), so_far=True), "surge-pickups").verdict == verdict


async def test_updates_of_minutes_that_surge_has_not_closed_are_not_judged(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    last = max(int(step.data["surge_version"]) for steps in reader.cells.values() for step in steps)
    assert line(told(accounts, closed_until_ms=last * 60_000 - 1), "surge-repriced").verdict == "agrees"


async def test_free_drivers_are_compared_where_no_fact_came_late_and_nothing_is_gone(run: RecordedRun) -> None:
    name = next(name for name, row in run.surge_rows("slots").items() if row and "/" in name)
    run.put_surge_row("slots", name, {})
    accounts = await accounts_of(run)
    assert line(accounts, "surge-drivers").verdict == "disagrees"
    found = line(told(accounts, late_count=1), "surge-drivers")
    assert found.detail == "not compared, because 1 facts came late or the log has lost some"
    found = line(told(accounts, closed_until_ms=0), "surge-drivers")
    assert found.detail == "0 free drivers were counted at the ends of 0 slots"


@pytest.mark.parametrize(("kind", "name"), [("city", "state"), ("slots", None)])
async def test_a_row_that_cannot_be_read_leaves_its_lines_unchecked(
    run: RecordedRun, kind: str, name: str | None
) -> None:
    name = name or next(iter(run.surge_rows(kind)))
    run.put_surge_row(kind, name, [1])
    found = line(await accounts_of(run), "surge-pickups")
    assert found.verdict == "not_checked"
    assert f"surge's row {kind} {name} cannot be read" in found.detail
