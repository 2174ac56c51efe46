"""The service's own events: steps to carry out and their outcomes. Nobody else reads this topic."""

from datetime import timedelta
from typing import Final

from hailbus import Event, Topic
from ride_events import Money

STEPS: Final = Topic(
    "payment-steps.v1",
    partitions=6,
    retention=timedelta(days=7),
    description="Requests to the payment provider and their outcomes; private to payment",
)


class PaymentStepDue(Event, topic=STEPS, key="ride_id", type="payment.step_due", version=1):
    """The provider is to be asked. `number` counts the steps of a payment and makes the idempotency key."""

    ride_id: str
    payment_id: str
    rider_id: str
    number: int
    kind: str
    amount: Money
    authorisation_id: str | None


class PaymentStepDone(Event, topic=STEPS, key="ride_id", type="payment.step_done", version=1):
    """The provider has answered. `declined` is its reason where it did nothing."""

    ride_id: str
    number: int
    authorisation_id: str | None
    declined: str | None


class PaymentRetryDue(Event, topic=STEPS, key="ride_id", type="payment.retry_due", version=1):
    """A declined step is to be tried again: its time has come, or somebody asked for it."""

    ride_id: str


class PaymentRefundDue(Event, topic=STEPS, key="ride_id", type="payment.refund_due", version=1):
    """Somebody asked for a refund."""

    ride_id: str
    amount: Money
    reason: str
