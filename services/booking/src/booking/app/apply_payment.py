"""Keep what payment says of a ride's money. A declined authorisation cancels a ride whose rider is not on board."""

from dataclasses import dataclass, replace
from typing import Final

from booking.app.cancel_ride import end
from booking.app.ports import Needs, Work
from booking.domain.payment import PaymentNews
from booking.domain.ride import TRANSITIONS, Step

PAYMENT_FAILED: Final = "payment_failed"
"""The reason by which booking cancels a ride that the rider's card does not pay for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPayment:
    """Payment has spoken of a ride."""

    ride_id: str
    news: PaymentNews

    def needs(self) -> Needs:
        """The ride."""
        return Needs(rides=(self.ride_id,))

    def decide(self, work: Work) -> None:
        """Keep it; may raise `NotFound`.

        A rider on board is taken to the destination whatever the card says, and owes the fare afterwards.
        """
        ride = work.ride(self.ride_id)
        ride = replace(ride, payment=ride.payment.heard(self.news))
        work.put_ride(ride)
        if self.news.is_declined_authorisation and (ride.state, Step.CANCEL) in TRANSITIONS:
            end(work, ride, by="system", reason=PAYMENT_FAILED)
