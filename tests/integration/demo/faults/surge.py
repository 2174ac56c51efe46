"""Faults of surge and its tables."""

from __future__ import annotations

from typing import Any, Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at, everywhere
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAULTS: Final = Faults()


@FAULTS.declare("surge's tables", "requested rides are not counted", "surge-pickups")
def _(run: RecordedRun) -> Finding:
    for name in run.surge_rows("slots"):
        if name.isdigit():
            run.put_surge_row("slots", name, {})
    first = min(run.all("rides.v1"), key=lambda r: (r.timestamp_ms, r.partition, r.offset))
    assert header(first, "ce_type") == "ride.requested"
    return Finding(what="rides were requested in cell", topic="rides.v1")


@FAULTS.declare("surge's tables", "a driver is counted who is not there", "surge-drivers")
def _(run: RecordedRun) -> Finding:
    cell, slot = "882a100d25fffff", 1_399_050_000_000 // 300_000
    name = f"{slot}/drivers"
    run.put_surge_row("slots", name, {**run.surge_rows("slots")[name], cell: 99})
    return Finding(
        what=f"0 drivers were free in cell {cell} at the end of slot {slot} by the log, 99 by surge", id=cell
    )


@FAULTS.declare("surge's tables", "surge claims events and closes no minute", "surge-pickups")
def _(run: RecordedRun) -> Finding:
    run.change_surge_state(closed_until_ms=0)
    return Finding(what="surge has closed the minutes until 0", id="surge")


@FAULTS.declare("surge's tables", "a price is held that was never published", "surge-prices")
def _(run: RecordedRun) -> Finding:
    cell = "882a100d25fffff"
    run.change_surge_state(prices={cell: [2.0, 2.0, 2.0, 1]})
    return Finding(what=f"cell {cell} costs 2.0 by surge's tables", id=None)


def _forget(run: RecordedRun, topic: str, key: str) -> None:
    """Take every record of a key out of the log, as if it had never been published; later ones move up."""
    for place in [place for place in run.records if place[0] == topic]:
        kept = [record for record in run.records[place] if record is not None and record.key != key.encode()]
        run.records[place] = [record._replace(offset=offset) for offset, record in enumerate(kept)]


@FAULTS.declare("surge", "an update states demand that was not there", "surge-demand")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    everywhere(run, with_data(update, demand=99.0))
    return at(update, f"cell {data(update)['cell']}: demand 99.0 at")


@FAULTS.declare("surge", "a multiplier beyond the cap is published", "surge-demand")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    everywhere(run, with_data(update, multiplier=17.0))
    return at(update, f"cell {data(update)['cell']}: multiplier 17.0 is no tenth between 1.0 and 3.0")


@FAULTS.declare("surge", "a price that is due is not published", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    # Surge forgot one cell altogether: neither its table nor booking knows a price of it.
    cell = data(run.find("surge.updated"))["cell"]
    _forget(run, "surge.v1", cell)
    run.sql("booking", "DELETE FROM booking_multipliers WHERE cell = ?", cell)
    return Finding(what=f"cell {cell} must cost", topic="surge.v1", id=cell)


@FAULTS.declare("surge", "an update is published for supply that was not there", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    update = run.find("surge.updated")
    everywhere(run, with_data(update, supply=50.0))
    return at(update, f"cell {data(update)['cell']} costs")


@FAULTS.declare("surge", "no forecast is published in a busy interval", "forecasts")
def _(run: RecordedRun) -> Finding:
    for place in [place for place in run.records if place[0] == "forecasts.v1"]:
        run.records[place] = []
        for offsets in run.committed.values():
            offsets.pop(place, None)
    return Finding(what="and no forecast was published then", topic="rides.v1")


@FAULTS.declare("surge", "a forecast's quantiles fall", "forecasts")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    everywhere(run, with_data(forecast, p10=9.0, p50=1.0))
    return at(forecast, f"cell {data(forecast)['cell']}: its quantiles 9.0, 1.0")


@FAULTS.declare("surge", "a cell is forecast in which nobody ever asked", "forecasts")
def _(run: RecordedRun) -> Finding:
    forecast = run.find("demand.forecast_published")
    made = forecast._replace(key=b"882a100001fffff")
    made = with_header(with_data(made, cell="882a100001fffff"), "ce_subject", "882a100001fffff")
    run.put(made)
    return at(made, "cell 882a100001fffff: no ride was requested there before")


def _update(run: RecordedRun, **fields: Any) -> Any:
    """Have surge publish one update that says something else; return it."""
    update = run.find("surge.updated", nth=3)
    everywhere(run, with_data(update, **fields))
    return update


@FAULTS.declare("surge", "a version does not follow from its window", "surge-demand")
def _(run: RecordedRun) -> Finding:
    version = data(run.find("surge.updated", nth=3))["surge_version"] + 1
    return at(_update(run, surge_version=version), f"version {version} does not follow from the window's end")


@FAULTS.declare("surge", "a version goes backwards", "surge-demand")
def _(run: RecordedRun) -> Finding:
    first, second = run.find("surge.updated"), run.find("surge.updated", nth=1)
    assert first.partition == second.partition
    assert data(first)["cell"] == data(second)["cell"]
    run.put(second._replace(offset=first.offset))
    run.put(first._replace(offset=second.offset))
    versions = data(first)["surge_version"], data(second)["surge_version"]
    return at(first._replace(offset=second.offset), f"version {versions[0]} stands after version {versions[1]}")


@FAULTS.declare("surge", "an update is valid for another time than five minutes", "surge-demand")
def _(run: RecordedRun) -> Finding:
    until = data(run.find("surge.updated", nth=3))["window_end"]
    return at(_update(run, valid_until=until), f"it is valid until {until}, not 5 minutes")


@FAULTS.declare("surge", "a multiplier is no tenth", "surge-demand")
def _(run: RecordedRun) -> Finding:
    return at(_update(run, multiplier=1.25), "multiplier 1.25 is no tenth between 1.0 and 3.0")


@FAULTS.declare("surge", "an update is published that the events do not demand", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    last = [r for r in run.all("surge.v1") if data(r)["cell"] == data(run.find("surge.updated"))["cell"]][-1]
    told = data(last)
    version = told["surge_version"] + 1
    made = with_header(with_data(last, surge_version=version), "ce_id", "33333333-2222-4333-8444-555555555555")
    made = run.append(made)
    return at(made, f"cell {told['cell']}: update {version} does not follow from the events that surge read")


@FAULTS.declare("surge", "an update has another multiplier than the events demand", "surge-repriced")
def _(run: RecordedRun) -> Finding:
    told = data(run.find("surge.updated", nth=3))
    update = _update(run, multiplier=told["multiplier"] + 0.1)
    return at(update, f"cell {told['cell']} costs {told['multiplier'] + 0.1} for")


@FAULTS.declare("surge's tables", "a ride is counted that was not requested", "surge-pickups")
def _(run: RecordedRun) -> Finding:
    cell, slot = "882a100d25fffff", 1_399_050_000_000 // 300_000
    run.put_surge_row("slots", str(slot), {cell: 99})
    what = f"rides were requested in cell {cell} in slot {slot} by the log, 99 by surge"
    return Finding(what=what, id=None)


@FAULTS.declare("surge's tables", "a price is held otherwise than it was published", "surge-prices")
def _(run: RecordedRun) -> Finding:
    cell = data(run.find("surge.updated"))["cell"]
    last = max((r for r in run.all("surge.v1") if data(r)["cell"] == cell), key=lambda r: data(r)["surge_version"])
    run.change_surge_state(prices={cell: [2.0, 2.0, 2.0, 1]})
    return at(last, f"cell {cell} costs 2.0 by surge's tables, {data(last)['multiplier']} by the log")


def _forecast(run: RecordedRun, **fields: Any) -> Any:
    """Have surge publish one forecast that says something else; return it."""
    forecast = run.find("demand.forecast_published", nth=3)
    everywhere(run, with_data(forecast, **fields))
    return forecast


@FAULTS.declare("surge", "a forecast is issued within an interval", "forecasts")
def _(run: RecordedRun) -> Finding:
    issued = "2014-05-02T17:06:00Z"
    return at(_forecast(run, issued_at=issued), f"issued at {issued}, which ends no slot")


@FAULTS.declare("surge", "a forecast has a horizon that nobody asked for", "forecasts")
def _(run: RecordedRun) -> Finding:
    return at(_forecast(run, horizon_min=45), "its horizon is 45 minutes")


@FAULTS.declare("surge", "a forecast is published of next to nothing", "forecasts")
def _(run: RecordedRun) -> Finding:
    return at(_forecast(run, p10=0.0, p50=0.0, mean=0.0), "its mean is 0.0")


@FAULTS.declare("surge", "a forecast is published before its interval has ended", "forecasts")
def _(run: RecordedRun) -> Finding:
    forecast = with_data(run.find("demand.forecast_published"), issued_at="2014-05-02T23:00:00Z")
    forecast = with_header(forecast, "ce_time", "2014-05-02T23:00:00.000000Z")
    run.put(forecast)
    return at(forecast, "issued at 2014-05-02T23:00:00Z, which surge has not closed")


@FAULTS.declare("surge", "a cell is forecast twice for the same time", "forecasts")
def _(run: RecordedRun) -> Finding:
    made = run.append(with_header(run.find("demand.forecast_published"), "ce_id", NEW_ID))
    return at(made, "forecast twice for")


def _score(run: RecordedRun, **fields: Any) -> Any:
    """Have surge publish one score of demand that says something else; return it."""
    score = run.find("demand.forecast_scored")
    everywhere(run, with_data(score, **fields))
    return score


@FAULTS.declare("surge", "a score makes its forecasts look better than they were", "forecast-scores")
def _(run: RecordedRun) -> Finding:
    score = run.find("demand.forecast_scored")
    off = data(score)["absolute_error"]
    return at(_score(run, absolute_error=off - 0.5), f"was off by {off - 0.5:g} by its score, by {off:g} by counts")


@FAULTS.declare("surge", "a score makes the naive forecast look worse than it was", "forecast-scores")
def _(run: RecordedRun) -> Finding:
    off = data(run.find("demand.forecast_scored"))["naive_absolute_error"]
    return at(_score(run, naive_absolute_error=off + 1), f"was naively off by {off + 1:g} by its score, by {off:g}")


@FAULTS.declare("surge", "a score leaves a forecast out", "forecast-scores")
def _(run: RecordedRun) -> Finding:
    made = data(run.find("demand.forecast_scored"))["forecasts"]
    score = _score(run, forecasts=made - 1)
    return at(score, f"{made - 1} forecasts of {data(score)['issued_at']} are scored, {made} published")


@FAULTS.declare("surge", "forecasts are scored twice", "forecast-scores")
def _(run: RecordedRun) -> Finding:
    made = run.append(with_header(run.find("demand.forecast_scored"), "ce_id", NEW_ID))
    return at(made, f"is scored twice for {data(made)['issued_at']}")


@FAULTS.declare("surge", "the forecasts of supply are never scored", "forecast-scores")
def _(run: RecordedRun) -> Finding:
    while scores := [r for r in run.all("forecasts.v1") if header(r, "ce_type") == "supply.forecast_scored"]:
        run.take_out(scores[0])
    return Finding(what="were never scored", topic="forecasts.v1")
