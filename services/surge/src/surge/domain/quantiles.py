"""Quantiles of counts whose mean is forecast: Poisson, and negative binomial where counts scatter more than that."""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEVELS: Final = (0.1, 0.5, 0.9)
"""The quantiles that every forecast carries."""

_STEPS = 700
_LOWEST, _HIGHEST = 0.005, 600.0
_GRID = np.exp(np.linspace(np.log(_LOWEST), np.log(_HIGHEST), _STEPS))
_BLOCKS = 28
"""Of the grid: means of one block are alike, so none of them is looked at far beyond its quantiles."""
_LOG_STEP = float(np.log(_HIGHEST / _LOWEST) / (_STEPS - 1))
_NORMAL: Final = {0.1: -1.2815515655446004, 0.5: 0.0, 0.9: 1.2815515655446004}

Floats = NDArray[np.float64]


@lru_cache(maxsize=16)
def _table(dispersion: float) -> Floats:
    """Quantiles by level and grid mean, shape (levels, means)."""
    return np.concatenate([_block(means, dispersion) for means in np.array_split(_GRID, _BLOCKS)], axis=1)


def _block(means: Floats, dispersion: float) -> Floats:
    """The part of the table for some means in ascending order."""
    # By Cantelli's inequality no more than 1 in 10 counts lies three standard deviations above the mean.
    top = int(means[-1] + 3 * np.sqrt(means[-1] + max(0.0, dispersion) * means[-1] ** 2)) + 2
    mean = means[:, None]
    count = np.arange(1, top)
    if dispersion <= 0:
        first = -mean
        steps = np.log(mean) - np.log(count)
    else:
        # Negative binomial with variance m + φ·m²: P(k+1)/P(k) = (k+r)/(k+1) · m/(m+r), r = 1/φ.
        r = 1.0 / dispersion
        first = -r * np.log1p(mean / r)
        steps = np.log(count - 1 + r) - np.log(count) + np.log(mean / (mean + r))
    below = np.cumsum(np.exp(np.concatenate([first, first + np.cumsum(steps, axis=1)], axis=1)), axis=1)
    return np.stack([(below < level).sum(axis=1) for level in LEVELS]).astype(np.float64)


def quantiles(mean: Floats, dispersion: float = 0.0) -> Floats:
    """The `LEVELS` quantiles of counts with these means.

    Args:
        mean: Shape (n,), each above 0.
        dispersion: φ of the variance m + φ·m²; 0 is Poisson. Used to three decimals.

    Returns:
        Shape (levels, n): whole numbers, but for means above 600, where the normal approximation is as good.
    """
    table = _table(round(max(0.0, dispersion), 3))
    nearest = np.rint((np.log(np.maximum(mean, _LOWEST)) - np.log(_LOWEST)) / _LOG_STEP).astype(np.intp)
    result: Floats = table[:, np.minimum(nearest, _STEPS - 1)]
    large = mean > _HIGHEST
    if large.any():
        spread = np.sqrt(mean[large] + dispersion * mean[large] ** 2)
        result[:, large] = np.stack([mean[large] + _NORMAL[level] * spread for level in LEVELS])
    return result
