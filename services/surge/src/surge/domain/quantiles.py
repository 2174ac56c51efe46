"""Quantiles of counts whose mean is forecast: Poisson, and negative binomial where counts scatter more than that."""

from functools import lru_cache
from typing import Final

import numpy as np

from surge.domain.dispersion import POISSON, Dispersion
from surge.domain.numbers import Floats

LEVELS: Final = (0.1, 0.5, 0.9)
"""The quantiles that every forecast carries."""

_STEPS = 700
_LOWEST, _HIGHEST = 0.005, 600.0
_GRID = np.exp(np.linspace(np.log(_LOWEST), np.log(_HIGHEST), _STEPS))
_BLOCKS = 28
"""Of the grid: means of one block are alike, so none of them is looked at far beyond its quantiles."""
_LOG_STEP = float(np.log(_HIGHEST / _LOWEST) / (_STEPS - 1))
_NORMAL: Final = {0.1: -1.2815515655446004, 0.5: 0.0, 0.9: 1.2815515655446004}


@lru_cache(maxsize=16)
def _table(dispersion: Dispersion) -> Floats:
    """Quantiles by level and grid mean, shape (levels, means)."""
    return np.concatenate([_block(means, dispersion) for means in np.array_split(_GRID, _BLOCKS)], axis=1)


def _block(means: Floats, dispersion: Dispersion) -> Floats:
    """The part of the table for some means in ascending order."""
    factor = dispersion.factor(means)[:, None]
    # By Cantelli's inequality no more than 1 in 10 counts lies three standard deviations above the mean.
    top = int(means[-1] + 3 * np.sqrt(means[-1] + factor[-1, 0] * means[-1] ** 2)) + 2
    mean = means[:, None]
    count = np.arange(1, top)
    if dispersion == POISSON:
        first = -mean
        steps = np.log(mean) - np.log(count)
    else:
        # Negative binomial with variance m + φ·m²: P(k+1)/P(k) = (k+r)/(k+1) · m/(m+r), r = 1/φ.
        r = 1.0 / factor
        first = -r * np.log1p(mean / r)
        steps = np.log(count - 1 + r) - np.log(count) + np.log(mean / (mean + r))
    below = np.cumsum(np.exp(np.concatenate([first, first + np.cumsum(steps, axis=1)], axis=1)), axis=1)
    return np.stack([(below < level).sum(axis=1) for level in LEVELS]).astype(np.float64)


def quantiles(mean: Floats, dispersion: Dispersion = POISSON) -> Floats:
    """The `LEVELS` quantiles of counts with these means.

    Args:
        mean: Shape (n,), each above 0.
        dispersion: Not negative. Used to two significant digits, so that few tables serve for many slots.

    Returns:
        Shape (levels, n): whole numbers, but for means above 600, where the normal approximation is as good.
    """
    table = _table(Dispersion(*(float(f"{value:.2g}") for value in dispersion)))
    nearest = np.rint((np.log(np.maximum(mean, _LOWEST)) - np.log(_LOWEST)) / _LOG_STEP).astype(np.intp)
    result: Floats = table[:, np.minimum(nearest, _STEPS - 1)]
    large = mean > _HIGHEST
    if large.any():
        spread = np.sqrt(mean[large] + dispersion.factor(mean[large]) * mean[large] ** 2)
        result[:, large] = np.stack([mean[large] + _NORMAL[level] * spread for level in LEVELS])
    return result


def randomised_pit(came: Floats, mean: Floats, dispersion: Dispersion, chance: np.random.Generator) -> Floats:
    """Where in their forecast distributions the counts lie that came: the randomised probability integral transform.

    Evenly spread between 0 and 1 if the distributions are right; towards both ends if they are too narrow. A count
    takes a random place within its own probability. Source: Czado, Gneiting and Held, Biometrics 65 (2009).

    Args:
        came: Whole numbers.
        mean: As `came`'s shape, each above 0.
        dispersion: Of the forecast distributions.
        chance: Where the random places come from.
    """
    factor = dispersion.factor(mean)
    is_poisson = dispersion == POISSON
    r = 1.0 / np.maximum(factor, 1e-12)
    probability = np.exp(-mean) if is_poisson else np.exp(-r * np.log1p(mean / r))
    below = np.zeros_like(mean)
    for count in range(int(came.max(initial=0.0))):
        is_above = came > count
        below += np.where(is_above, probability, 0.0)
        step = mean / (count + 1) if is_poisson else (count + r) / (count + 1) * mean / (mean + r)
        probability = np.where(is_above, probability * step, probability)
    result: Floats = below + chance.random(mean.shape) * probability
    return result
