"""What a ride costs by the published rules, as the ledger states them anew."""

from typing import Any

import pytest
from hailbus_demo.ledger.accounts import BookQuote
from hailbus_demo.ledger.lines.money import due_fare, due_of
from hailbus_demo.ledger.log import Step

MATCHED_AT = "2014-05-02T17:00:00.000000Z"
MATCHED_MS = 1_399_050_000_000


def quote(fare_minor: int) -> BookQuote:
    """A quote of a ride that goes nowhere: the fare follows from the time alone, 300 and 40 a minute."""
    return BookQuote("rider", fare_minor, 1.0, None, 0, 600)


@pytest.mark.parametrize(
    ("quoted", "duration_s", "cents"),
    [
        (4_000, 7_050, 4_000),  # 5,000 by the meter: a quarter above the quote
        (4_000, 7_051, 5_001),
        (800, 1_200, 800),  # 1,100 by the meter: 3.00 above the quote, which is more than a quarter
        (800, 1_201, 1_101),
        (800, 100, 800),  # never below the quote
        (4_000, 11_550, 8_000),  # 8,000 by the meter: twice the quote
        (4_000, 11_552, 8_000),
        (4_000, 99_999, 8_000),
    ],
)
def test_a_quote_is_honoured_within_bounds_and_doubled_at_most(quoted: int, duration_s: int, cents: int) -> None:
    assert due_fare(quote(quoted), duration_s=duration_s) == cents


def step(kind: str, seq: int, **data: Any) -> Step:
    return Step(kind, seq, seq, data.pop("time_ms", MATCHED_MS), data)


def cancelled(*, by: str, reason: str, stage: str, after_ms: int = 0, matched_at: str | None = MATCHED_AT) -> Step:
    return step(
        "ride.cancelled",
        3,
        by=by,
        reason=reason,
        stage=stage,
        matched_at=matched_at,
        time_ms=MATCHED_MS + after_ms,
    )


REQUESTED = step("ride.requested", 1)
NOTHING = ("none", 0)


@pytest.mark.parametrize(
    ("last", "due"),
    [
        (step("ride.completed", 3, fare={"amount_minor": 1_234, "currency": "USD"}), ("fare", 1_234)),
        (step("ride.started", 3), None),
        (step("ride.unmatched", 3), NOTHING),
        (cancelled(by="system", reason="no_show", stage="arrived"), ("no_show_fee", 500)),
        (cancelled(by="driver", reason="no_show", stage="arrived"), ("no_show_fee", 500)),
        (cancelled(by="rider", reason="no_show", stage="arrived"), NOTHING),
        (cancelled(by="driver", reason="no_show", stage="matched"), NOTHING),
        (cancelled(by="rider", reason="late", stage="matched", after_ms=120_001), ("cancellation_fee", 500)),
        (cancelled(by="rider", reason="late", stage="arrived", after_ms=120_001), ("cancellation_fee", 500)),
        (cancelled(by="rider", reason="late", stage="matched", after_ms=120_000), NOTHING),
        (cancelled(by="driver", reason="late", stage="matched", after_ms=999_999), NOTHING),
        (cancelled(by="rider", reason="late", stage="requested", after_ms=999_999, matched_at=None), NOTHING),
    ],
)
def test_what_is_due_after_the_last_event_of_a_ride(last: Step, due: tuple[str, int] | None) -> None:
    assert due_of([last, REQUESTED], is_reserved=True) == due


def test_no_fee_is_due_where_nothing_was_reserved_and_a_fare_is() -> None:
    late = cancelled(by="rider", reason="late", stage="matched", after_ms=120_001)
    assert due_of([REQUESTED, late], is_reserved=False) == NOTHING
    completed = step("ride.completed", 3, fare={"amount_minor": 900, "currency": "USD"})
    assert due_of([REQUESTED, completed], is_reserved=False) == ("fare", 900)
