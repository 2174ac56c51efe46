"""Keep the latest multiplier of a cell for the quotes to come."""

from dataclasses import dataclass

from booking.app.ports import Multiplier, Needs, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySurge:
    """Surge has spoken of a cell."""

    multiplier: Multiplier

    def needs(self) -> Needs:
        """Nothing: multipliers are always at hand."""
        return Needs()

    def decide(self, work: Work) -> bool:
        """Keep it; return False when a newer one is known (events may repeat and arrive out of order)."""
        known = work.multiplier(self.multiplier.cell)
        if known is not None and known.version >= self.multiplier.version:
            return False
        work.put_multiplier(self.multiplier)
        return True
