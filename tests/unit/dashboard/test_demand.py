"""The forecast card: what was expected, what came, and the errors of both forecasts."""

import pytest
from dashboard.domain.demand import SLOT_MS, Demand, Forecast

START_MS = 1_000 * 3 * SLOT_MS
QUARTER_MS = 3 * SLOT_MS


def forecast(issued_ms: int, median: float) -> Forecast:
    return Forecast(issued_ms=issued_ms, p10=median / 2, p50=median, p90=median * 2)


def requests(demand: Demand, cell: str, start_ms: int, count: int) -> None:
    for number in range(count):
        demand.requested(cell, start_ms + number * QUARTER_MS // count)


def test_a_forecast_is_compared_with_what_came_and_with_the_quarter_before() -> None:
    demand = Demand()
    requests(demand, "a", START_MS, 8)  # the naive forecast for the next quarter: 8
    demand.forecast("a", forecast(START_MS + QUARTER_MS, 5.0))
    requests(demand, "a", START_MS + QUARTER_MS, 6)
    (point,) = demand.points("a")
    assert (point.actual, point.naive, demand.mae) == (None, 8, None)  # requests of that quarter may still be read
    demand.settle()
    assert demand.scored == 0
    requests(demand, "other", START_MS + 2 * QUARTER_MS, 9)
    demand.settle()
    (point,) = demand.points("a")
    assert (point.actual, point.naive) == (6, 8)
    assert (demand.scored, demand.mae) == (1, (1.0, 2.0))


def test_a_forecast_that_is_read_twice_counts_once() -> None:
    demand = Demand()
    requests(demand, "a", START_MS, 3)
    for _ in range(2):
        demand.forecast("a", forecast(START_MS + QUARTER_MS, 3.0))
    requests(demand, "a", START_MS + QUARTER_MS, 3)
    requests(demand, "a", START_MS + 2 * QUARTER_MS, 3)
    demand.settle()
    assert (demand.scored, len(demand.points("a"))) == (1, 1)


def test_a_forecast_is_compared_when_nobody_asks_any_more() -> None:
    demand = Demand()
    requests(demand, "a", START_MS, 4)
    demand.forecast("a", forecast(START_MS + QUARTER_MS, 1.0))
    demand.passed(START_MS + 3 * QUARTER_MS)
    demand.settle()
    assert demand.mae == (1.0, 4.0)
    assert demand.points("a")[0].actual == 0


def test_nothing_is_scored_whose_quarter_before_is_not_in_the_log() -> None:
    demand = Demand()
    demand.forecast("a", forecast(START_MS, 3.0))
    requests(demand, "a", START_MS, 3)
    requests(demand, "a", START_MS + 2 * QUARTER_MS, 3)
    demand.settle()
    assert demand.scored == 0
    assert demand.mae is None


def test_the_busiest_cell_is_shown_and_does_not_jump() -> None:
    demand = Demand()
    assert demand.shown() is None
    for issued, (of_a, of_b, shown) in enumerate([(4, 2, "a"), (4, 5, "a"), (4, 7, "b"), (4, 3, "b")]):
        demand.forecast("a", forecast(START_MS + issued * SLOT_MS, of_a))
        demand.forecast("b", forecast(START_MS + issued * SLOT_MS, of_b))
        assert demand.shown() == shown


@pytest.mark.parametrize("days", [3])
def test_what_is_kept_is_bounded(days: int) -> None:
    demand = Demand()
    for slot in range(days * 288):
        demand.requested("a", START_MS + slot * SLOT_MS)
        demand.forecast("a", forecast(START_MS + slot * SLOT_MS, 1.0))
        demand.settle()
    assert len(demand._slots) == 60
    assert len(demand.points("a")) == 24
    assert len(demand._waiting) < 10
