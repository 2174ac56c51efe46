"""The payment of a ride as booking knows it: what payment has published, and nothing more."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, assert_never


class PaymentState(StrEnum):
    """Where the money of a ride is.

    Attributes:
        PENDING: Nothing is known yet.
        AUTHORISED: The fare is reserved.
        DECLINED: The card was declined, and nothing is owed.
        CAPTURED: The rider has paid.
        DUE: The ride has ended, the card was declined, and the rider owes money.
        RELEASED: Nothing was charged, and what was reserved is free again.
        REFUNDED: A part of what the rider paid, or all of it, was paid back.
    """

    PENDING = "pending"
    AUTHORISED = "authorised"
    DECLINED = "declined"
    CAPTURED = "captured"
    DUE = "due"
    RELEASED = "released"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentNews:
    """An event of a payment.

    Attributes:
        stage: The step that failed.
        owed_minor: What the rider owes from now on; None if that has not changed.
    """

    kind: Literal["authorised", "captured", "failed", "released", "refunded"]
    seq: int
    amount_minor: int
    stage: str = ""
    owed_minor: int | None = None

    @property
    def is_declined_authorisation(self) -> bool:
        """Whether the card was declined for an amount that should be reserved."""
        return self.kind == "failed" and self.stage in {"authorise", "reauthorise"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RidePayment:
    """The payment of one ride. Amounts are minor units (cents).

    Attributes:
        seq: The number of the payment's last event, 0 before the first.
        paid_minor: What the rider was charged, less what was paid back.
        owed_minor: What the rider owes.
    """

    state: PaymentState = PaymentState.PENDING
    seq: int = 0
    paid_minor: int = 0
    owed_minor: int = 0

    def heard(self, news: PaymentNews) -> "RidePayment":
        """Return the payment after its next event: they come in the order of their numbers, each once."""
        paid_minor, owed_minor = self.paid_minor, self.owed_minor
        state = self.state
        match news.kind:
            case "authorised":
                state = PaymentState.AUTHORISED
            case "captured":
                state, paid_minor, owed_minor = PaymentState.CAPTURED, paid_minor + news.amount_minor, 0
            case "failed":
                owed_minor = owed_minor if news.owed_minor is None else news.owed_minor
                if news.is_declined_authorisation:
                    state = PaymentState.DECLINED
            case "released":
                state = state if paid_minor else PaymentState.RELEASED
            case "refunded":
                state, paid_minor = PaymentState.REFUNDED, paid_minor - news.amount_minor
            case _:
                assert_never(news.kind)
        if owed_minor:
            state = PaymentState.DUE
        return replace(self, state=state, seq=news.seq, paid_minor=paid_minor, owed_minor=owed_minor)


NOTHING_HEARD: Final = RidePayment()
"""The payment of a ride that was just requested."""
