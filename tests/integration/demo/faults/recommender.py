"""Faults of the recommender and its database."""

from __future__ import annotations

import json
from typing import Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at, everywhere, ride_in
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAULTS: Final = Faults()
_OPEN: Final = "(ride_id, rider_id, pickup_cell, dropoff_cell, requested_s)"


@FAULTS.declare("the recommender's database", "a completed ride was claimed and not learned", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    statement = (
        "DELETE FROM recommender_journey WHERE id = (SELECT min(id) FROM recommender_journey WHERE rider_id = ?)"
    )
    assert run.sql("recommender", statement, data(done)["rider_id"]) == 1
    return Finding(what="the recommender learned nothing from ride", topic="rides.v1")


@FAULTS.declare("the recommender's database", "a completed ride was learned twice", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    columns = "rider_id, pickup_cell, dropoff_cell, started_s"
    run.sql(
        "recommender",
        f"INSERT INTO recommender_journey ({columns}) SELECT {columns} FROM recommender_journey ORDER BY id LIMIT 1",
    )
    rider = run.ask("recommender", "SELECT rider_id FROM recommender_journey ORDER BY id LIMIT 1")[0][0]
    return Finding(what=f"the recommender learned 1 journeys of rider {rider} that are not in the log", id=rider)


@FAULTS.declare("the recommender's database", "a ride that has ended is open for sharing", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("recommender", f"INSERT INTO recommender_open_ride {_OPEN} VALUES (?, 'r', 'a', 'b', 0)", ride_id)
    return Finding(what=f"ride {ride_id} has ended and is open for sharing by the recommender", topic="rides.v1")


@FAULTS.declare("the recommender's database", "an answer is lost", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "DELETE FROM recommender_answer WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name} is in the log and not in the recommender's database")


@FAULTS.declare("the recommender's database", "an answer was kept and not published", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    columns = "rider_id, served_at, model, request, options, simulated"
    run.sql(
        "recommender",
        f"INSERT INTO recommender_answer (recommendation_id, {columns}) SELECT ?, {columns} FROM recommender_answer "
        "ORDER BY number LIMIT 1",
        NEW_ID,
    )
    what = f"recommendation {NEW_ID} is in the recommender's database and was not published"
    return Finding(what=what, topic="recommendations.v1", id=NEW_ID)


@FAULTS.declare("the recommender's database", "an answer names another rider", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "UPDATE recommender_answer SET rider_id = 'other' WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name} was published otherwise than the recommender's database has it")


@FAULTS.declare("the recommender", "two options are served at the same rank", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    options = data(served)["options"]
    kind = options[0]["kind"]
    same = [one for one in options if one["kind"] == kind]
    everywhere(run, with_data(served, options=[*options, {**same[-1], "option_id": "other"}]))
    ranks = [*(one["rank"] for one in same), same[-1]["rank"]]
    return at(served, f"recommendation {data(served)['recommendation_id']} ranks its {kind}s {ranks}")


@FAULTS.declare("the recommender", "an option is taken at a rank at which it was not served", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    told = data(served)
    option = told["options"][0]
    made = with_header(with_header(served, "ce_type", "recommendation.chosen"), "ce_id", NEW_ID)
    made = with_header(made, "ce_dataschema", "hailbus:recommendation.chosen/v1")
    content = {
        "recommendation_id": told["recommendation_id"],
        "rider_id": told["rider_id"],
        "option_id": option["option_id"],
        "rank": 99,
    }
    made = run.append(made._replace(value=json.dumps(content).encode()))
    return at(made, f"recommendation {told['recommendation_id']}: {option['option_id']} at rank 99 was not served")


@FAULTS.declare(
    "the recommender's database", "a ride that is under way is not open for sharing", "recommender-journeys"
)
def _(run: RecordedRun) -> Finding:
    newest = max(
        (r for r in run.all("rides.v1") if header(r, "ce_type") == "ride.requested"), key=lambda r: header(r, "ce_time")
    )
    ride_id = data(newest)["ride_id"]
    for record in [r for r in run.all("rides.v1") if data(r)["ride_id"] == ride_id and r != newest]:
        run.take_out(record)
    return at(
        run.find("ride.requested", ride_id=ride_id),
        f"ride {ride_id} is under way and not open for sharing by the recommender",
    )


@FAULTS.declare("the recommender's database", "a ride that never was is open for sharing", "recommender-journeys")
def _(run: RecordedRun) -> Finding:
    run.sql("recommender", f"INSERT INTO recommender_open_ride {_OPEN} VALUES ('new', 'r', 'a', 'b', 0)")
    return Finding(what="the recommender holds ride new, which is not in the log", id="new")


@FAULTS.declare("the recommender's database", "an answer holds other options", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "UPDATE recommender_answer SET options = '[]' WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name} was published otherwise than the recommender's database has it")


@FAULTS.declare("the recommender's database", "an option is noted as taken that nobody took", "advice-recommender-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.sql("recommender", "UPDATE recommender_answer SET chosen_option_id = 'x' WHERE recommendation_id = ?", name)
    return at(served, f"recommendation {name}: option x was taken by the recommender's database, None by the log")
