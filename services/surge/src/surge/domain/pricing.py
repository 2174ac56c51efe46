"""From demand and supply to a price multiplier: the formula, and what keeps it calm."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from surge.domain.windows import Activity

EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingRules:
    """Constants of the formula. Multipliers are plain factors, times are seconds.

    Attributes:
        alpha: Added to demand and supply: how much one rider more or less means in a cell with few of both.
        beta: Rise of the multiplier per unit of the ratio above `calm_ratio`.
        calm_ratio: The ratio of demand to supply up to which there is no surcharge; at least 1, so that an empty
            cell is calm.
        cap: The highest multiplier.
        half_life_s: Of the exponential average over time.
        ring_share: Weight of the neighbours' mean in a cell's own average.
        step_per_min: The most that a multiplier moves in one minute.
        hysteresis: How far the smoothed value must leave the published one before that changes.
        quantum: Published multipliers are multiples of this.
        valid_s: How long a published multiplier holds; after it the multiplier is 1.0.
        refresh_s: A multiplier above 1.0 that stays is published again when less than this is left of its time.
    """

    alpha: float = 3.0
    beta: float = 0.5
    calm_ratio: float = 1.0
    cap: float = 3.0
    half_life_s: float = 180.0
    ring_share: float = 0.25
    step_per_min: float = 0.3
    hysteresis: float = 0.1
    quantum: float = 0.1
    valid_s: int = 300
    refresh_s: int = 60

    def __post_init__(self) -> None:
        if self.alpha <= 0 or self.beta < 0 or self.calm_ratio < 1 or self.cap < 1:
            raise ValueError("alpha must be above 0, beta at least 0, calm_ratio and cap at least 1")
        if not 0 <= self.ring_share < 1 or self.step_per_min <= 0 or self.quantum <= 0 or self.half_life_s <= 0:
            raise ValueError("ring_share must be in [0, 1); step_per_min, quantum and half_life_s above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPrice:
    """What a cell's next price is computed from.

    `average` is the exponential average of the raw multiplier, `level` the ring-smoothed and step-limited one,
    `multiplier` what riders see. `valid_until_ms` is 0 for a price that was never published.
    """

    average: float = 1.0
    level: float = 1.0
    multiplier: float = 1.0
    valid_until_ms: int = 0


CALM = CellPrice()


def raw_multiplier(activity: Activity, rules: PricingRules) -> float:
    """clip(1 + β·max(0, (D+α)/(S+α) − r₀), 1, cap)."""
    ratio = (activity.demand + rules.alpha) / (activity.supply + rules.alpha)
    return min(rules.cap, 1.0 + rules.beta * max(0.0, ratio - rules.calm_ratio))


def quantised(level: float, published: float, rules: PricingRules) -> float:
    """The multiplier to publish for a smoothed value, given the one that stands.

    It stays until `level` is a full hysteresis away, and is then rounded towards the one that stands: so it moves by
    no more than the level did, and noise narrower than the hysteresis never shows. Two decimals of `level` count, or
    an average that only ever comes nearer to 1.0 or to the cap would never arrive.
    """
    level = round(level, 2)
    if level >= published + rules.hysteresis - EPSILON:
        units = math.floor(level / rules.quantum + EPSILON)
    elif level <= published - rules.hysteresis + EPSILON:
        units = math.ceil(level / rules.quantum - EPSILON)
    else:
        return published
    # Rounded once more because 12 × 0.1 is 1.2000000000000002.
    return round(units * rules.quantum, 6)


def reprice(
    prices: Mapping[str, CellPrice],
    activity: Mapping[str, Activity],
    *,
    ring: Callable[[str], Sequence[str]],
    elapsed_s: float,
    rules: PricingRules,
) -> dict[str, CellPrice]:
    """The prices `elapsed_s` after `prices`, for a city in which `activity` is what was counted.

    A cell that is in neither mapping is calm. The result leaves out cells that have come to rest at 1.0, and keeps
    `valid_until_ms` as it was: publishing is decided elsewhere.
    """
    keep = 0.5 ** (elapsed_s / rules.half_life_s)
    step = rules.step_per_min * elapsed_s / 60.0
    averages: dict[str, float] = {}
    for cell in prices.keys() | activity.keys():
        counted = activity.get(cell)
        raw = 1.0 if counted is None else raw_multiplier(counted, rules)
        averages[cell] = raw + (prices.get(cell, CALM).average - raw) * keep
    # A rise spreads to the ring around it, also where nobody asked yet.
    reached = set(averages)
    for cell, average in averages.items():
        if average > 1.0 + EPSILON:
            reached.update(ring(cell))
    result: dict[str, CellPrice] = {}
    for cell in sorted(reached):
        before = prices.get(cell, CALM)
        average = averages.get(cell, 1.0)
        around = ring(cell)
        smoothed = (1 - rules.ring_share) * average
        smoothed += rules.ring_share * sum(averages.get(other, 1.0) for other in around) / len(around)
        level = min(max(smoothed, before.level - step), before.level + step)
        after = CellPrice(
            average=average,
            level=level,
            multiplier=quantised(level, before.multiplier, rules),
            valid_until_ms=before.valid_until_ms,
        )
        if not at_rest(after) or before.multiplier != after.multiplier:
            result[cell] = after
    return result


def at_rest(price: CellPrice) -> bool:
    """Whether a price is so near to calm that forgetting it changes nothing that shows."""
    return price.multiplier == 1.0 and price.average < 1.005 and price.level < 1.005
