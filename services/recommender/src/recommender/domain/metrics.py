"""How rankings are judged: hit rates, reciprocal rank and discounted gain of the one true answer in the first ten."""

from dataclasses import dataclass
from math import log2


@dataclass(slots=True)
class RankMetrics:
    """Sums over answers; every property is a mean, 0 to 1, and 0 without answers."""

    count: int = 0
    _hits: tuple[int, int, int] = (0, 0, 0)
    _reciprocal: float = 0.0
    _gain: float = 0.0

    def add(self, rank: int | None) -> None:
        """Count one answer. `rank` of the truth counts from 1; `None` where it was not among those given."""
        self.count += 1
        if rank is not None and rank <= 10:
            one, five, ten = self._hits
            self._hits = (one + (rank <= 1), five + (rank <= 5), ten + 1)
            self._reciprocal += 1 / rank
            self._gain += 1 / log2(rank + 1)

    def hit_rate(self, at: int) -> float:
        """Return the share of answers whose truth was among the first 1, 5 or 10."""
        return self._hits[(1, 5, 10).index(at)] / self.count if self.count else 0.0

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank within the first ten."""
        return self._reciprocal / self.count if self.count else 0.0

    @property
    def ndcg(self) -> float:
        """Discounted cumulative gain within the first ten; the ideal is 1, as there is one truth."""
        return self._gain / self.count if self.count else 0.0


__all__ = ["RankMetrics"]
