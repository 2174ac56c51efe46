"""The forecast card: what was expected, what came, and how far off surge says that was."""

import pytest
from dashboard.domain.demand import SLOT_MS, Demand, Forecast, Score

START_MS = 1_000 * 3 * SLOT_MS
QUARTER_MS = 3 * SLOT_MS


def forecast(issued_ms: int, median: float) -> Forecast:
    return Forecast(issued_ms=issued_ms, p10=median / 2, p50=median, p90=median * 2)


def requests(demand: Demand, cell: str, start_ms: int, count: int) -> None:
    for number in range(count):
        demand.requested(cell, start_ms + number * QUARTER_MS // count)


def test_a_forecast_is_shown_beside_what_came_and_the_quarter_before() -> None:
    demand = Demand()
    requests(demand, "a", START_MS, 8)  # the naive forecast for the next quarter: 8
    demand.forecast("a", forecast(START_MS + QUARTER_MS, 5.0))
    requests(demand, "a", START_MS + QUARTER_MS, 6)
    (point,) = demand.points("a")
    assert (point.actual, point.naive) == (None, 8)  # requests of that quarter may still be read
    requests(demand, "other", START_MS + 2 * QUARTER_MS, 9)
    (point,) = demand.points("a")
    assert (point.actual, point.naive) == (6, 8)


def test_a_forecast_that_is_read_twice_is_shown_once() -> None:
    demand = Demand()
    for _ in range(2):
        demand.forecast("a", forecast(START_MS + QUARTER_MS, 3.0))
    assert len(demand.points("a")) == 1


def test_what_came_is_known_when_nobody_asks_any_more() -> None:
    demand = Demand()
    requests(demand, "a", START_MS, 4)
    demand.forecast("a", forecast(START_MS + QUARTER_MS, 1.0))
    demand.passed(START_MS + 3 * QUARTER_MS)
    (point,) = demand.points("a")
    assert (point.actual, point.naive) == (0, 4)


def test_nothing_naive_is_shown_whose_quarter_is_not_in_the_log() -> None:
    demand = Demand()
    demand.forecast("a", forecast(START_MS, 3.0))
    requests(demand, "a", START_MS, 3)
    requests(demand, "a", START_MS + 2 * QUARTER_MS, 3)
    (point,) = demand.points("a")
    assert (point.actual, point.naive) == (3, None)


def test_the_scores_of_a_day_are_summed_up_each_once() -> None:
    demand = Demand()
    assert (demand.scores.scored, demand.scores.mae) == (0, None)
    for _ in range(2):  # surge publishes again after a crash
        demand.scores.take(START_MS, Score(forecasts=3, error=3.0, naive_error=9.0))
    demand.scores.take(START_MS + SLOT_MS, Score(forecasts=1, error=3.0, naive_error=1.0))
    assert (demand.scores.scored, demand.scores.mae) == (4, (1.5, 2.5))
    for slot in range(2, 290):
        demand.scores.take(START_MS + slot * SLOT_MS, Score(forecasts=1, error=1.0, naive_error=2.0))
    assert (demand.scores.scored, demand.scores.mae) == (288, (1.0, 2.0))


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
    assert len(demand._slots) == 60
    assert len(demand.points("a")) == 24
