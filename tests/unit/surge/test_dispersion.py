"""The dispersion of made-up counts, whose own is known."""

import math

import numpy as np
import pytest
from surge.domain.dispersion import POISSON, Dispersion, DispersionLearner
from surge.domain.numbers import Floats
from surge.domain.quantiles import randomised_pit


def learnt(linear: float, quadratic: float, *, slots: int = 2_000, seed: int = 3) -> Dispersion:
    """What is learnt from negative binomial counts of means from 0.02 to 60."""
    chance, learner = np.random.default_rng(seed), DispersionLearner()
    means = np.exp(np.linspace(np.log(0.02), np.log(60), 60))
    for _ in range(slots):
        if linear + quadratic:
            r = 1 / (linear / means + quadratic)
            came = chance.negative_binomial(r, r / (r + means))
        else:
            came = chance.poisson(means)
        learner.learn(means, came.astype(np.float64), keep=0.9997)
    return learner.dispersion


@pytest.mark.parametrize(("linear", "quadratic"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.03), (0.5, 0.03), (1.5, 0.2)])
def test_both_parts_of_the_dispersion_are_found(linear: float, quadratic: float) -> None:
    found = learnt(linear, quadratic)
    assert found.linear == pytest.approx(linear, rel=0.1, abs=0.05)
    assert found.quadratic == pytest.approx(quadratic, rel=0.1, abs=0.005)


def test_counts_that_scatter_less_than_poisson_are_taken_for_poisson() -> None:
    learner, means = DispersionLearner(), np.array([1.0, 20.0])
    for _ in range(1_000):
        learner.learn(means, means, keep=1.0)
    assert learner.dispersion == Dispersion(0.0, 0.0)


def test_before_anything_is_learnt_the_dispersion_is_mild() -> None:
    assert DispersionLearner().dispersion == pytest.approx(DispersionLearner.START)


def tenths(mean: float, of: Dispersion, told: Dispersion) -> Floats:
    """The shares of counts with the dispersion `of` in the tenths of the distributions that were `told`."""
    chance = np.random.default_rng(11)
    means = np.full(40_000, mean)
    r = 1 / of.factor(means)
    places = randomised_pit(chance.negative_binomial(r, r / (r + means)).astype(np.float64), means, told, chance)
    shares: Floats = np.histogram(places, bins=10, range=(0, 1))[0] / len(places)
    return shares


@pytest.mark.parametrize("mean", [0.05, 1.0, 30.0])
def test_counts_of_the_right_distribution_lie_anywhere_in_it(mean: float) -> None:
    true = Dispersion(0.6, 0.1)
    assert tenths(mean, true, true) == pytest.approx(np.full(10, 0.1), abs=0.006)


def test_counts_of_too_narrow_a_distribution_lie_at_its_ends() -> None:
    shares = tenths(10.0, Dispersion(0.6, 0.1), POISSON)
    assert min(shares[0], shares[-1]) > 0.15
    assert shares[3:7].max() < 0.09


@pytest.mark.parametrize("dispersion", [POISSON, Dispersion(0.4, 0.1)])
def test_a_count_lies_within_its_own_probability(dispersion: Dispersion) -> None:
    mean = 4.0
    r = 1 / (dispersion.linear / mean + dispersion.quadratic) if dispersion != POISSON else 1e9  # as good as Poisson

    def probability(count: int) -> float:
        ways = math.lgamma(count + r) - math.lgamma(r) - math.lgamma(count + 1)
        return math.exp(ways + r * math.log(r / (r + mean)) + count * math.log(mean / (r + mean)))

    for count in (0, 1, 4, 15):
        places = randomised_pit(np.full(500, count), np.full(500, mean), dispersion, np.random.default_rng(count))
        below = sum(map(probability, range(count)))
        assert below - 1e-5 <= places.min()
        assert places.max() <= below + probability(count) + 1e-5
        assert places.max() - places.min() > 0.95 * probability(count)
