"""Payment on the bus: the saga, and the steps that it has the provider carry out."""

from datetime import timedelta
from typing import Final

from hailbus import (
    AtLeastOnce,
    Backoff,
    Bus,
    Catalogue,
    Context,
    DeliveryError,
    Inbox,
    Outbox,
    ParkingLot,
    Publisher,
    Service,
)
from hailbus.registry import Schemas
from ride_events import CATALOGUE

from payment.adapters.streams import steps
from payment.adapters.streams.saga import Policy, Saga
from payment.adapters.streams.steps import PaymentRefundDue, PaymentRetryDue, PaymentStepDone, PaymentStepDue
from payment.app.names import card_of, derived_id, key_of
from payment.app.ports import Order, Provider, ProviderAwayError
from payment.domain.payment import StepKind

NAME: Final = "payment"
GROUP: Final = "payment-saga"
STEPS_GROUP: Final = "payment-steps"
# A step whose outcome is unknown is repeated until it is known, with the same key: 10,000,000 attempts of at most 10 s
# outlast every outage. Steps of other rides go on meanwhile.
UNTIL_ANSWERED: Final = AtLeastOnce(
    retry=Backoff(
        first=timedelta(milliseconds=200),
        max=timedelta(seconds=10),
        attempts=10_000_000,
        on=(ProviderAwayError, DeliveryError),
    )
)


def build_service(
    bus: Bus,
    *,
    inbox: Inbox,
    outbox: Outbox,
    lot: ParkingLot,
    provider: Provider,
    policy: Policy,
    schemas: Schemas | None = None,
) -> tuple[Service, Saga, Publisher[PaymentRetryDue | PaymentRefundDue]]:
    """Return the service, its saga, and the publisher of what people ask for."""
    service = Service(NAME, bus=bus, catalogue=Catalogue.of(*CATALOGUE, steps), schemas=schemas)
    done: Publisher[PaymentStepDone] = service.publishes(PaymentStepDone)
    asked: Publisher[PaymentRetryDue | PaymentRefundDue] = service.publishes(PaymentRetryDue | PaymentRefundDue)

    @service.on(PaymentStepDue, delivery=UNTIL_ANSWERED, group=STEPS_GROUP)
    async def carry_out(event: PaymentStepDue, ctx: Context) -> None:
        outcome = await provider.carry_out(
            Order(
                key=key_of(event.payment_id, event.number),
                kind=StepKind(event.kind),
                amount_minor=event.amount.amount_minor,
                currency=event.amount.currency,
                card=card_of(event.rider_id),
                reference=event.ride_id,
                authorisation_id=event.authorisation_id,
            )
        )
        await done.publish(
            PaymentStepDone(
                ride_id=event.ride_id,
                number=event.number,
                authorisation_id=outcome.authorisation_id,
                declined=outcome.declined,
            ),
            id=derived_id(event.payment_id, event.number, "step_done"),
            time=ctx.envelope.time,
            cause=ctx,
        )

    saga = Saga(service, inbox=inbox, outbox=outbox, lot=lot, policy=policy)
    return service, saga, asked
