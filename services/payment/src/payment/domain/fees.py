"""What a rider owes for a ride that did not take place."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

NO_SHOW: Final = "no_show"
"""The reason of a cancellation whose rider did not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """How a ride was cancelled.

    Attributes:
        by: `rider`, `driver` or `system`.
        reason: Why.
        stage: The state that the ride was in: `requested`, `matched` or `arrived`.
        matched_at: When the driver took the ride; None without a driver.
        at: When it was cancelled.
    """

    by: str
    reason: str
    stage: str
    matched_at: datetime | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Fees:
    """Fees in minor units (cents).

    Attributes:
        cancellation_minor: For a rider who cancels later than `grace` after a driver took the ride.
        grace: How long a rider may cancel for nothing.
        no_show_minor: For a rider who does not come.
    """

    cancellation_minor: int = 500
    grace: timedelta = timedelta(seconds=120)
    no_show_minor: int = 500

    def of(self, cancellation: Cancellation) -> tuple[str, int]:
        """Return the kind of the fee and its amount; `none` and 0 where the cancellation is free."""
        if cancellation.reason == NO_SHOW and cancellation.stage == "arrived" and cancellation.by != "rider":
            return "no_show_fee", self.no_show_minor
        matched_at = cancellation.matched_at
        if (
            cancellation.by == "rider"
            and cancellation.stage in {"matched", "arrived"}
            and matched_at is not None
            and cancellation.at - matched_at > self.grace
        ):
            return "cancellation_fee", self.cancellation_minor
        return "none", 0
