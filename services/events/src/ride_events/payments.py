"""What was paid for rides. Owner: payment."""

from datetime import timedelta

from hailbus import Event, Topic

from ride_events.money import Money

PAYMENTS = Topic("payments.v1", partitions=6, retention=timedelta(days=90), description="Money of every ride")


class PaymentEvent(Event, topic=PAYMENTS, key="ride_id"):
    """A fact about the payment of one ride. `seq` counts 1, 2, 3… per payment."""

    ride_id: str
    payment_id: str
    rider_id: str
    seq: int
    simulated: bool = False


class PaymentAuthorised(PaymentEvent, type="payment.authorised", version=1):
    """The fare, or what it rose by since, is reserved on the rider's means of payment."""

    amount: Money


class PaymentCaptured(PaymentEvent, type="payment.captured", version=1):
    """The rider was charged.

    `kind` says for what: `fare`, `cancellation_fee` or `no_show_fee`; readers must expect more of them.
    """

    amount: Money
    kind: str = "fare"


class PaymentFailed(PaymentEvent, type="payment.failed", version=1):
    """The means of payment was refused, for the reason that the provider gives.

    `stage` says what failed: `authorise`, `reauthorise`, `capture`, `release` or `refund`; readers must expect more of
    them. `owed` is what the rider owes for a ride that has ended; None when nothing is owed.
    """

    amount: Money
    reason: str
    stage: str = "authorise"
    owed: Money | None = None


class PaymentReleased(PaymentEvent, type="payment.released", version=1):
    """What was reserved and not charged is free again."""

    amount: Money
    reason: str


class PaymentRefunded(PaymentEvent, type="payment.refunded", version=1):
    """What was reserved or charged went back to the rider."""

    amount: Money
    reason: str
