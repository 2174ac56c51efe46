"""The demand model on made-up cities, where the answer is known."""

import copy
import math

import numpy as np
import pytest
from surge.domain.calendar import SLOTS_PER_DAY
from surge.domain.cells import ring
from surge.domain.dispersion import POISSON, Dispersion
from surge.domain.forecast import HORIZON_SLOTS, HORIZONS_MIN, UTC_CALENDAR, CountModel, Neighbours, Quantity
from surge.domain.numbers import Floats
from surge.domain.profile import Profile
from surge.domain.quantiles import LEVELS, quantiles

CELLS = ("882a100d63fffff", "882a100d67fffff", "882a10725bfffff")
"""The first two are neighbours, the third is far from both."""


def city(days: int, seed: int = 1) -> Floats:
    """Poisson pickups of three cells with a daily wave, shape (slots, cells)."""
    slots = np.arange(days * SLOTS_PER_DAY)
    wave = 1 + 0.8 * np.sin(2 * np.pi * slots / SLOTS_PER_DAY)
    rates: Floats = wave[:, None] * np.array([6.0, 1.5, 0.2])
    return np.random.default_rng(seed).poisson(rates).astype(np.float64)


def run(counts: Floats, model: CountModel | None = None) -> tuple[CountModel, Floats]:
    model = model or CountModel(CELLS[: counts.shape[1]])
    if model.next_slot is None:
        model.start_at(0)
    means = []
    for row in counts:
        means.append(model.mean())
        model.observe(row)
    return model, np.array(means)


def test_it_comes_near_the_noise_of_a_regular_city() -> None:
    counts = city(21)
    _, means = run(counts)
    totals = np.vstack([np.zeros((1, 3)), np.cumsum(counts, axis=0)])
    wave = 1 + 0.8 * np.sin(2 * np.pi * np.arange(len(counts) + 6) / SLOTS_PER_DAY)
    for index, length in enumerate(HORIZON_SLOTS):
        rows = np.arange(14 * SLOTS_PER_DAY, len(counts) - length)
        came = totals[rows + length] - totals[rows]
        truth = np.array([wave[row : row + length].sum() for row in rows])[:, None] * np.array([6.0, 1.5, 0.2])
        error = np.abs(came - means[rows, index]).mean()
        assert error < 1.06 * np.abs(came - truth).mean()


def test_it_knows_nothing_of_the_slots_to_come() -> None:
    counts = city(3)
    changed = counts.copy()
    changed[500:] += 50
    assert np.array_equal(run(counts)[1][:501], run(changed)[1][:501])


def test_the_same_counts_give_the_same_forecasts() -> None:
    counts = city(3)
    assert np.array_equal(run(counts)[1], run(counts)[1])


def test_asking_twice_or_never_changes_nothing() -> None:
    counts = city(2)
    once, _ = run(counts)
    twice, never = CountModel(CELLS), CountModel(CELLS)
    twice.start_at(0)
    never.start_at(0)
    for slot, row in enumerate(counts):
        if abs(slot - SLOTS_PER_DAY) < 50:  # around midnight; to ask takes five milliseconds
            twice.forecast()
            twice.forecast()
        twice.observe(row)
        never.observe(row)
    assert np.array_equal(once.mean(), twice.mean())
    assert np.array_equal(once.mean(), never.mean())


def test_a_cell_that_appears_later_was_quiet_before() -> None:
    counts = city(2)
    counts[:200, 2] = 0
    whole, _ = run(counts)
    growing, _ = run(counts[:200, :2])
    growing.grow(CELLS[2:])
    run(counts[200:], growing)
    # The one that knew the quiet cell expected a little of it all the while, so they agree only nearly.
    assert growing.mean()[:, :2] == pytest.approx(whole.mean()[:, :2], rel=0.05)
    assert growing.mean()[:, 2] == pytest.approx(whole.mean()[:, 2], abs=0.3)


def test_cells_that_appear_make_no_difference_to_whether_somebody_asked() -> None:
    """A model that is built anew from its counts learns all of them, and nobody asks for the forecasts in between."""
    counts = city(2)
    asked, built_anew = CountModel(CELLS[:1]), CountModel(CELLS[:1])
    asked.start_at(0)
    built_anew.start_at(0)
    asked.forecast()
    for slot, row in enumerate(counts):
        for model in (asked, built_anew):
            if slot in (100, 200):
                model.grow([CELLS[model.cells]])
            model.observe(row[: model.cells])
        asked.mean()
    assert np.array_equal(asked.mean(), built_anew.mean())


def test_a_model_that_is_restored_goes_on_as_the_one_before() -> None:
    counts = city(9)
    before, _ = run(counts[:-SLOTS_PER_DAY, :2])
    before.grow(CELLS[2:])
    before.forecast()
    kept = {name: array.copy() for name, array in before.snapshot().items()}
    again = CountModel(CELLS)
    again.restore(kept)
    assert again.snapshot().keys() == kept.keys()
    assert all(np.array_equal(again.snapshot()[name], kept[name]) for name in kept)
    rest = counts[-SLOTS_PER_DAY:]
    assert np.array_equal(run(rest, again)[1], run(rest, before)[1])
    assert np.array_equal(again.forecast().quantiles, before.forecast().quantiles)
    assert np.array_equal(again.recent_counts(), before.recent_counts())
    assert np.array_equal(again.usual(), before.usual())


def test_columns_know_their_neighbours_whenever_they_appear() -> None:
    centre = CELLS[0]
    around = ring(centre)
    at_once, later = Neighbours(), Neighbours()
    at_once.grow([centre, *around])
    for cell in (centre, *around):
        later.grow([cell])
    assert at_once.table.tolist() == later.table.tolist()
    assert sorted(at_once.table[:, 0]) == [1, 2, 3, 4, 5, 6]
    counts = np.array([[100.0, 1, 2, 3, 4, 5, 6], [0.0, 1, 1, 1, 1, 1, 1]])
    sums = at_once.sums(counts)
    assert sums[:, 0].tolist() == [21, 6]
    for column, cell in enumerate(around, start=1):
        beside = {place for place in at_once.table[:, column].tolist() if place >= 0}
        assert beside == {index for index, other in enumerate((centre, *around)) if other in ring(cell)}
        assert sums[:, column].tolist() == counts[:, sorted(beside)].sum(axis=1).tolist()


def test_a_rise_around_a_cell_raises_its_forecast() -> None:
    """Neighbours rise together and an hour before the others: the model learns to look at them."""
    around = ring(CELLS[0])
    cells, chance = (CELLS[0], *around), np.random.default_rng(5)
    quiet = CountModel(cells)
    quiet.start_at(0)
    level = 1.0
    for _ in range(14 * SLOTS_PER_DAY):
        level = float(np.clip(level * np.exp(chance.normal(0, 0.15)), 0.3, 3.0))
        quiet.observe(chance.poisson(2.0 * level, len(cells)).astype(np.float64))
    busy = copy.deepcopy(quiet)
    for _ in range(4):
        quiet.observe(np.full(len(cells), 2.0))
        busy.observe(np.array([2.0, *[8.0] * 6]))
    assert busy.mean()[0, 0] > 1.2 * quiet.mean()[0, 0]


def test_a_kind_of_day_has_its_own_times() -> None:
    """Saturdays differ from working days, and a working day that the week has not seen yet is like the others."""
    profile = Profile(1, UTC_CALENDAR)
    monday = 4 * SLOTS_PER_DAY  # day 4 since the epoch
    for day in range(3):
        for slot in range(SLOTS_PER_DAY):
            profile.observe(monday + day * SLOTS_PER_DAY + slot, np.array([4.0]))
    for slot in range(SLOTS_PER_DAY):
        profile.observe(monday + 5 * SLOTS_PER_DAY + slot, np.array([20.0]))
    noon = SLOTS_PER_DAY // 2
    thursday, saturday = (np.array([day * SLOTS_PER_DAY + noon]) for day in (3, 5))
    assert profile.by_kind(thursday)[0, 0] == pytest.approx(4, rel=0.25)
    assert profile.by_kind(saturday)[0, 0] > 14
    assert profile.by_day(thursday)[0, 0] > 7


def test_a_gap_is_unknown_not_quiet() -> None:
    counts = city(8)
    model, _ = run(counts)
    model.start_at(10 * SLOTS_PER_DAY)
    # Same time of day as slot 0, when the wave stands at 1: 15 minutes are 3 slots of 6, 1.5 and 0.2 pickups.
    assert model.mean()[HORIZONS_MIN.index(15)] == pytest.approx([19, 4.7, 0.6], rel=0.25)


def test_forecasts_carry_ordered_whole_quantiles() -> None:
    model, _ = run(city(3))
    forecast = model.forecast()
    assert forecast.mean.shape == (3, 3)
    assert forecast.quantiles.shape == (3, 3, 3)
    assert (np.diff(forecast.quantiles, axis=1) >= 0).all()
    assert (forecast.quantiles == np.round(forecast.quantiles)).all()


def test_poisson_quantiles_are_those_of_the_textbook() -> None:
    # P(X ≤ 1 | 3) = 0.199, P(X ≤ 0) = 0.050; P(X ≤ 3) = 0.647, P(X ≤ 2) = 0.423; P(X ≤ 5) = 0.916, P(X ≤ 4) = 0.815
    assert quantiles(np.array([3.0])).ravel().tolist() == [1, 3, 5]


def test_dispersion_widens_the_quantiles_and_large_means_stay_sane() -> None:
    narrow, wide = quantiles(np.array([20.0])), quantiles(np.array([20.0]), Dispersion(0.4, 0.18))
    assert wide[0, 0] < narrow[0, 0] < narrow[2, 0] < wide[2, 0]
    assert quantiles(np.array([1000.0]))[:, 0] == pytest.approx([959.5, 1000, 1040.5], abs=0.1)


def queues(days: int, seed: int = 1) -> Floats:
    """Drivers who wait in two cells: each stays for another slot with a chance of 0.9, and more come with a wave."""
    chance = np.random.default_rng(seed)
    slots = np.arange(days * SLOTS_PER_DAY)
    arrivals = chance.poisson((1 + 0.8 * np.sin(2 * np.pi * slots / SLOTS_PER_DAY))[:, None] * np.array([0.8, 0.2]))
    waiting = np.zeros(2, dtype=np.int64)
    counts = np.empty((len(slots), 2))
    for slot, arrived in enumerate(arrivals):
        waiting = chance.binomial(waiting, 0.9) + arrived
        counts[slot] = waiting
    return counts


def test_a_stock_is_forecast_for_the_end_of_the_horizon_and_better_than_by_what_is_there_now() -> None:
    counts = queues(14)
    _, means = run(counts, CountModel(CELLS[:2], quantity=Quantity.STOCK))
    for index, length in enumerate(HORIZON_SLOTS):
        rows = np.arange(7 * SLOTS_PER_DAY, len(counts) - length)
        came = counts[rows + length - 1]
        naive = ((came - counts[rows - 1]) ** 2).mean()
        assert ((came - means[rows, index]) ** 2).mean() < naive * (0.99, 0.9, 0.8)[index]


def test_a_stock_is_taken_to_stay_before_anything_is_learnt() -> None:
    model = CountModel(CELLS[:1], quantity=Quantity.STOCK)
    model.start_at(0)
    for _ in range(3):
        model.observe(np.array([7.0]))
    assert np.allclose(model.mean(), 7.0)


@pytest.mark.parametrize("dispersion", [POISSON, (0, 0.004), (0, 0.05), (0.3, 0.1), (2.0, 1.0), (0.7, 0)])
@pytest.mark.parametrize("mean", [0.0051, 0.3, 2.0, 17.0, 150.0, 599.0])
def test_quantiles_are_the_least_counts_whose_probabilities_add_up_to_the_level(
    mean: float, dispersion: tuple[float, float]
) -> None:
    linear, quadratic = dispersion

    def probability(count: int) -> float:
        if not linear + quadratic:
            return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        r = 1 / (linear / mean + quadratic)
        ways = math.lgamma(count + r) - math.lgamma(r) - math.lgamma(count + 1)
        return math.exp(ways + r * math.log(r / (r + mean)) + count * math.log(mean / (r + mean)))

    for level, found in zip(LEVELS, quantiles(np.array([mean]), Dispersion(linear, quadratic))[:, 0], strict=True):
        below = sum(map(probability, range(int(found))))
        # The table is that of a mean up to 1 % beside: the sum up to a quantile may lie as little beside the level.
        assert below < level + 0.01 * (1 + mean) * probability(int(found) or 1)
        assert below + probability(int(found)) > level - 0.01 * (1 + mean) * probability(int(found))
