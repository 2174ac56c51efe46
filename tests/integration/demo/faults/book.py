"""Faults of the riders' book."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import Faults, at, ride_in
from tests.integration.demo.recorded import RecordedRun, data

FAULTS: Final = Faults()


def _book(run: RecordedRun, kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in run.book_lines() if line["kind"] == kind)


@FAULTS.declare("the riders' book", "a ride is lost", "rides-book-log")
def _(run: RecordedRun) -> Finding:
    ride = run.find("ride.requested")
    ride_id = data(ride)["ride_id"]
    run.write_book([line for line in run.book_lines() if line.get("ride_id") != ride_id])
    return at(ride, f"ride {ride_id} is in the log and not in the riders' book")


@FAULTS.declare("the riders' book", "a ride is invented", "rides-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "ride")), "ride_id": "new"}])
    return Finding(what="ride new is in the riders' book and no event of it is in the log", topic="rides.v1", id="new")


@FAULTS.declare("the riders' book", "a rider was told another end of the ride", "rides-book-booking")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "unmatched")
    lines = run.book_lines()
    for line in lines:
        if line.get("ride_id") == ride_id and line["state"] == "unmatched":
            line["state"] = "cancelled"
    run.write_book(lines)
    what = f"ride {ride_id}: state is cancelled by the riders' book, unmatched by booking's database"
    return Finding(what=what, id=ride_id)


@FAULTS.declare("the riders' book", "a ride is under way after the end", "rides-ended")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id = data(done)["ride_id"]
    run.write_book(
        [line for line in run.book_lines() if line.get("ride_id") != ride_id or line["state"] != "completed"]
    )
    return at(done, f"ride {ride_id} is under way after the end: completed by the log")


@FAULTS.declare("the riders' book", "a quote was shown at another fare", "quotes-book-log")
def _(run: RecordedRun) -> Finding:
    lines = run.book_lines()
    quote = next(line for line in lines if line["kind"] == "quote")
    quote["fare_minor"] += 1
    run.write_book(lines)
    offered = run.find("quote.offered", quote_id=quote["quote_id"])
    return at(offered, f"quote {quote['quote_id']}: fare is {quote['fare_minor']} by the riders' book")


@FAULTS.declare("the riders' book", "a quote was shown that is not in the log", "quotes-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "quote")), "quote_id": "new"}])
    return Finding(what="quote new is in the riders' book and was not offered by the log", topic="quotes.v1", id="new")


@FAULTS.declare("the riders' book", "a fare does not follow from the price list", "money-book-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    lines = run.book_lines()
    for line in lines:
        if line.get("ride_id") == ride_id and line["state"] == "completed":
            line["duration_s"] += 36_000
    run.write_book(lines)
    return Finding(what=f"ride {ride_id}:", id=ride_id)


@FAULTS.declare("the riders' book", "a quoted fare does not follow from its distance", "money-book-log")
def _(run: RecordedRun) -> Finding:
    lines = run.book_lines()
    quote = next(line for line in lines if line["kind"] == "quote")
    quote["distance_m"] += 10_000
    run.write_book(lines)
    return Finding(what=f"quote {quote['quote_id']}:", id=quote["quote_id"])


def _not_taken(run: RecordedRun) -> dict[str, Any]:
    """Return the book's line of a recommendation that was served, and not taken."""
    taken = {line["recommendation_id"] for line in _book(run, "advice") if line["chosen"] is not None}
    return next(line for line in _book(run, "advice") if line["recommendation_id"] not in taken)


@FAULTS.declare("the riders' book", "a recommendation was served that is not in the log", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    run.write_book([*run.book_lines(), {**next(_book(run, "advice")), "recommendation_id": "new"}])
    what = "recommendation new was served by the riders' book and is not in the log"
    return Finding(what=what, topic="recommendations.v1", id="new")


@FAULTS.declare("the riders' book", "a recommendation was taken that is not in the log", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    advice = _not_taken(run)
    run.write_book([*run.book_lines(), {**advice, "chosen": advice["options"][0]}])
    served = run.find("recommendation.served", recommendation_id=advice["recommendation_id"])
    return at(served, f"recommendation {advice['recommendation_id']}: option {advice['options'][0]} was taken by")


@FAULTS.declare("the riders' book", "a position was not sent", "positions")
def _(run: RecordedRun) -> Finding:
    path = run.folder / "book.jsonl.positions"
    path.write_bytes(path.read_bytes()[: 8 * 3])
    return Finding(what="a position that the riders' book did not send", topic="driver-locations.v1")


@FAULTS.declare(
    "the riders' book", "a rider was told more events of a ride under way than booking has", "rides-book-booking"
)
def _(run: RecordedRun) -> Finding:
    ride_id, seq = _under_way(run, "rides-book-booking")
    return Finding(what=f"the rider was told event {seq} of ride {ride_id}, booking has {seq - 1}", id=ride_id)


@FAULTS.declare(
    "the riders' book", "a rider was told more events of a ride under way than the log has", "rides-book-log"
)
def _(run: RecordedRun) -> Finding:
    ride_id, seq = _under_way(run, "rides-book-log")
    what = f"the rider was told event {seq} of ride {ride_id}, the log ends with {seq - 1}"
    return Finding(what=what, topic="rides.v1")


def _under_way(run: RecordedRun, line: str) -> tuple[str, int]:
    """Have a ride be matched for all accounts, and its rider be told one event more."""
    done = run.find("ride.completed")
    ride_id = data(done)["ride_id"]
    last = run.find("ride.matched", ride_id=ride_id)
    seq = data(last)["seq"]
    if line == "rides-book-log":
        for kind in ("ride.completed", "ride.started", "ride.driver_arrived"):
            run.take_out(run.find(kind, ride_id=ride_id))
    run.sql("booking", "UPDATE booking_rides SET state = 'matched', seq = ? WHERE ride_id = ?", seq, ride_id)
    lines = [one for one in run.book_lines() if one.get("ride_id") != ride_id or one["state"] == "matched"]
    for one in lines:
        if one.get("ride_id") == ride_id:
            one["seq"] = seq + 1
    run.write_book(lines)
    return ride_id, seq + 1


@FAULTS.declare("the riders' book", "a rider was told another end of the ride than the log", "rides-book-log")
def _(run: RecordedRun) -> Finding:
    done = run.find("ride.completed")
    ride_id, seq = data(done)["ride_id"], data(done)["seq"]
    lines = run.book_lines()
    for line in lines:
        if line.get("ride_id") == ride_id and line["state"] == "completed":
            line["state"] = "cancelled"
    run.write_book(lines)
    what = f"ride {ride_id} is cancelled after event {seq} by the riders' book, completed after event {seq} by the log"
    return at(done, what)


@FAULTS.declare("the riders' book", "a quote in the log was shown to nobody", "quotes-book-log")
def _(run: RecordedRun) -> Finding:
    offered = run.find("quote.offered")
    quote_id = data(offered)["quote_id"]
    run.write_book([line for line in run.book_lines() if line["kind"] != "quote" or line["quote_id"] != quote_id])
    return at(offered, f"quote {quote_id} is in the log and not in the riders' book")


@FAULTS.declare("the riders' book", "a recommendation in the log was asked for by nobody", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    served = run.find("recommendation.served")
    name = data(served)["recommendation_id"]
    run.write_book([line for line in run.book_lines() if line.get("recommendation_id") != name])
    return at(served, f"recommendation {name} is in the log, and nobody asked for it by the riders' book")


@FAULTS.declare("the riders' book", "a recommendation was shown with other options", "advice-book-log")
def _(run: RecordedRun) -> Finding:
    advice = _not_taken(run)
    name = advice["recommendation_id"]
    run.write_book([*run.book_lines(), {**advice, "options": advice["options"][1:]}])
    served = run.find("recommendation.served", recommendation_id=name)
    return at(served, f"recommendation {name} was served otherwise by the riders' book")
