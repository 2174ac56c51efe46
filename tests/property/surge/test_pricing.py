"""The promises of the price formula: monotone in demand, antitone in supply, bounded, calm under noise."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from surge.domain.cells import ring
from surge.domain.pricing import CellPrice, PricingRules, quantised, raw_multiplier, reprice
from surge.domain.windows import Activity

RULES = PricingRules()
CENTRE = "882a100d25fffff"
CELLS = (CENTRE, *ring(CENTRE))

City = list[list[tuple[float, float]]]

counts = st.floats(min_value=0, max_value=500, allow_nan=False)
minutes = st.lists(
    st.lists(st.tuples(counts, counts), min_size=len(CELLS), max_size=len(CELLS)), min_size=1, max_size=12
)


def run(city: City) -> list[dict[str, CellPrice]]:
    """Prices after each minute of demand and supply per cell."""
    prices: dict[str, CellPrice] = {}
    history = []
    for minute in city:
        activity = {
            cell: Activity(demand=demand, supply=supply) for cell, (demand, supply) in zip(CELLS, minute, strict=True)
        }
        prices = reprice(prices, activity, ring=ring, elapsed_s=60, rules=RULES)
        history.append(prices)
    return history


def multiplier(prices: dict[str, CellPrice], cell: str) -> float:
    return prices[cell].multiplier if cell in prices else 1.0


@given(minutes, st.data())
def test_more_demand_never_lowers_a_price(city: City, data: st.DataObject) -> None:
    extra = data.draw(st.lists(counts, min_size=len(city) * len(CELLS), max_size=len(city) * len(CELLS)))
    more = [
        [(demand + extra[row * len(CELLS) + column], supply) for column, (demand, supply) in enumerate(minute)]
        for row, minute in enumerate(city)
    ]
    for calm, busy in zip(run(city), run(more), strict=True):
        for cell in calm.keys() | busy.keys():
            assert multiplier(busy, cell) >= multiplier(calm, cell)


@given(minutes, st.data())
def test_more_supply_never_raises_a_price(city: City, data: st.DataObject) -> None:
    extra = data.draw(st.lists(counts, min_size=len(city) * len(CELLS), max_size=len(city) * len(CELLS)))
    more = [
        [(demand, supply + extra[row * len(CELLS) + column]) for column, (demand, supply) in enumerate(minute)]
        for row, minute in enumerate(city)
    ]
    for scarce, plenty in zip(run(city), run(more), strict=True):
        for cell in scarce.keys() | plenty.keys():
            assert multiplier(plenty, cell) <= multiplier(scarce, cell)


@given(minutes)
def test_prices_stay_within_bounds_and_move_in_small_steps(city: City) -> None:
    before: dict[str, CellPrice] = {}
    for prices in run(city):
        for cell in prices.keys() | before.keys():
            now, then = multiplier(prices, cell), multiplier(before, cell)
            assert 1.0 <= now <= RULES.cap
            assert abs(now - then) <= RULES.step_per_min + 1e-9
            assert abs(now * 10 - round(now * 10)) < 1e-9
        before = prices


def turns(demand: float, supply: float, noise: float, seed: int) -> int:
    """How often the centre's price changes its direction in 80 minutes of a demand that is `noise` riders unsure."""
    chance = random.Random(seed)
    noisy = [[(max(0.0, demand + chance.uniform(-noise, noise)), supply)] * len(CELLS) for _ in range(120)]
    shown = [multiplier(prices, CENTRE) for prices in run(noisy)][40:]  # the first minutes are the rise
    moves = [now - then for then, now in itertools.pairwise(shown) if now != then]
    return sum(1 for then, now in itertools.pairwise(moves) if then * now < 0)


@given(st.floats(min_value=0, max_value=60), st.floats(min_value=0, max_value=40), st.integers(0, 2**32))
@settings(max_examples=50)
def test_noise_narrower_than_the_hysteresis_never_turns_a_price(demand: float, supply: float, seed: int) -> None:
    # β·2·noise/(S+α) is the width of the raw multiplier's band; 0.01 is what two decimals of the level may add.
    noise = (RULES.hysteresis - 0.01) * (supply + RULES.alpha) / (2 * RULES.beta)
    assert turns(demand, supply, noise, seed) == 0


def test_noise_of_one_rider_hardly_ever_makes_a_price_flap() -> None:
    # The worst places: nearly no driver, so that one rider more or less moves the raw multiplier by β/α = 1/6.
    flapping = [seed for seed in range(400) if turns(seed % 6, 0.5 * (seed % 2), 1.0, seed) > 1]
    assert len(flapping) <= 40, flapping


@given(st.floats(min_value=1, max_value=3), st.integers(min_value=10, max_value=30))
def test_a_level_inside_the_hysteresis_keeps_the_published_price(level: float, tenths: int) -> None:
    published = tenths / 10
    after = quantised(level, published, RULES)
    if abs(level - published) < RULES.hysteresis - 0.005:  # two decimals of the level count
        assert after == published
    # Rounded towards what stood: never beyond the level, never on the other side of the old price.
    assert min(level, published) - 0.006 <= after <= max(level, published) + 0.006


@given(counts, counts)
def test_the_raw_multiplier_is_the_formula(demand: float, supply: float) -> None:
    ratio = (demand + RULES.alpha) / (supply + RULES.alpha)
    expected = min(max(1 + RULES.beta * max(0, ratio - RULES.calm_ratio), 1), RULES.cap)
    assert raw_multiplier(Activity(demand=demand, supply=supply), RULES) == expected


def test_a_city_without_demand_comes_to_rest_and_is_forgotten() -> None:
    history = run([[(60.0, 0.0)] * len(CELLS)] * 40 + [[(0.0, 0.0)] * len(CELLS)] * 60)
    assert multiplier(history[39], CENTRE) == RULES.cap
    assert history[-1] == {}
