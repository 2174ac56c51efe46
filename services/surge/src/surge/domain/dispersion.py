"""How much more than Poisson counts scatter around their forecasts, learnt from the errors."""

from typing import NamedTuple

import numpy as np

from surge.domain.numbers import Floats, Numbers


class Dispersion(NamedTuple):
    """Of the variance m + `linear`·m + `quadratic`·m²; 0 and 0 is Poisson.

    The linear part is noise that comes in groups, such as riders who leave one house together; the quadratic part is
    that of means that are wrong by a factor. Small means show the one, large ones the other.
    """

    linear: float = 0.0
    quadratic: float = 0.0

    def factor(self, mean: Floats) -> Floats:
        """φ of the variance m + φ·m² at these means."""
        result: Floats = self.linear / mean + self.quadratic
        return result


POISSON = Dispersion()


class DispersionLearner(Numbers):
    """Least squares of the squared errors on the mean and its square, each weighted by 1/(1 + m)².

    That is about the inverse of their variance. It is begun with a mild dispersion, which a day of data outweighs.
    """

    LEAST, MOST = POISSON, Dispersion(3.0, 1.0)
    START = Dispersion(0.2, 0.02)
    PRIOR = np.array([[500.0, 2_500.0], [2_500.0, 25_000.0]])
    PARTS = ("_gram", "_moment")

    def __init__(self) -> None:
        self._gram: Floats = self.PRIOR.copy()
        self._moment: Floats = self.PRIOR @ np.array(self.START)

    @property
    def dispersion(self) -> Dispersion:
        """What the errors until now say."""
        (linear_sum, _), (_, quadratic_sum) = self._gram
        linear, quadratic = np.linalg.solve(self._gram, self._moment)
        if linear < 0:
            linear, quadratic = 0.0, self._moment[1] / quadratic_sum
        elif quadratic < 0:
            linear, quadratic = self._moment[0] / linear_sum, 0.0
        bounded = np.clip((linear, quadratic), self.LEAST, self.MOST)
        return Dispersion(*(float(value) for value in bounded))

    def learn(self, predicted: Floats, came: Floats, *, keep: float) -> None:
        """Learn from the forecasts `predicted` what came, after fading what was learnt before to `keep`."""
        views = np.stack([predicted, predicted**2]) / (1 + predicted)
        excess = ((came - predicted) ** 2 - predicted) / (1 + predicted)
        self._gram = self._gram * keep + views @ views.T
        self._moment = self._moment * keep + views @ excess
