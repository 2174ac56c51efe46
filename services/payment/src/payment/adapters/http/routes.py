"""Routes: look at a payment, ask for a refund, ask for another try of what was declined."""

from collections.abc import Callable
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from hailbus import Outbox, Publisher
from hailbus.database import READ_ONLY
from hailbus.fastapi import IdempotencyKey, ProblemError, ProblemKind, Problems, reply_to
from hailbus.idempotency import Answer, AnswerBook, StoredAnswer, fingerprint
from pydantic import BaseModel, ConfigDict, Field
from ride_events import Money
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from payment.adapters.streams.saga import PaymentState, Refunding, Releasing, Saga, Settled
from payment.adapters.streams.steps import PaymentRefundDue, PaymentRetryDue

PROBLEMS: Final = Problems(
    {
        "too-much": ProblemKind(
            status=409, title="Amount above what was charged", advice="GET the payment, and refund less."
        ),
        "nothing-declined": ProblemKind(
            status=409, title="Nothing to try again", advice="GET the payment; only what was declined is tried again."
        ),
    }
)
_REFUNDABLE: Final = (Settled, Releasing, Refunding)
documented: Final = PROBLEMS.documented
RideId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class PaymentView(BaseModel):
    """The payment of a ride. Amounts are minor units of `currency`, as the provider has confirmed them."""

    ride_id: str
    payment_id: str
    rider_id: str
    state: str
    currency: str
    fare_minor: int
    authorised_minor: int
    captured_minor: int
    released_minor: int
    refunded_minor: int
    owed_minor: int
    refused: str | None

    @classmethod
    def of(cls, state: PaymentState) -> "PaymentView":
        """Show a payment."""
        payment = state.payment
        return cls(
            ride_id=payment.ride_id,
            payment_id=payment.payment_id,
            rider_id=payment.rider_id,
            state=type(state).__name__.lower(),
            currency=payment.currency,
            fare_minor=payment.fare_minor,
            authorised_minor=payment.authorised_minor,
            captured_minor=payment.captured_minor,
            released_minor=payment.released_minor,
            refunded_minor=payment.refunded_minor,
            owed_minor=max(payment.owed_minor, 0),
            refused=payment.refused,
        )


class NewRefund(BaseModel):
    """Pay a part of what was charged back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount_minor: int = Field(gt=0, lt=2**53)
    reason: str = Field(min_length=1, max_length=200)


class Desk:
    """Keeps what people ask for: the event that asks and the answer under its key are one commit.

    Args:
        engine, outbox: The saga's database.
        saga: Knows the payments.
        asked: Publishes what people ask for.
        answers: In the same database.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        outbox: Outbox,
        saga: Saga,
        asked: Publisher[PaymentRetryDue | PaymentRefundDue],
        answers: AnswerBook,
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._saga = saga
        self._asked = asked
        self._answers = answers

    async def payment(self, ride_id: str) -> PaymentState:
        """Return the payment of a ride.

        Raises:
            ProblemError: There is none.
        """
        async with self._engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            return await self._state(connection, ride_id)

    async def once(
        self,
        path: str,
        ride_id: str,
        body: BaseModel | None,
        *,
        key: str,
        ask: Callable[[PaymentState], PaymentRetryDue | PaymentRefundDue],
    ) -> Answer:
        """Publish what `ask` makes of the payment, once per key; a refusal of `ask` leaves nothing behind.

        Raises:
            KeyReusedError: The key was used for another request.
            ProblemError: There is no payment, or `ask` refuses.
        """
        content = fingerprint(path, body.model_dump_json().encode() if body is not None else b"")
        async with self._outbox.turn, self._engine.begin() as connection:
            known = (await self._answers.find(connection, [key])).get(key)
            if known is not None:
                return known.replay(content)
            state = await self._state(connection, ride_id)
            await self._asked.publish(ask(state), tx=connection)
            said = PaymentView.of(state).model_dump_json().encode()
            stored = StoredAnswer(key=key, fingerprint=content, status=202, body=said)
            await self._answers.add(connection, [stored])
        self._outbox.wake()
        return stored.answer()

    async def _state(self, connection: AsyncConnection, ride_id: str) -> PaymentState:
        state = await self._saga.machine.state(connection, ride_id)
        if state is None:
            raise ProblemError("not-found", f"there is no payment of ride {ride_id!r}")
        assert isinstance(state, PaymentState)
        return state


def add_routes(api: APIRouter, desk: Desk) -> None:
    """Add the routes to the application's own router."""

    @api.get(
        "/payments/{ride_id}",
        tags=["payments"],
        summary="Look at the payment of a ride",
        response_model=PaymentView,
        responses=documented("not-found", "invalid"),
    )
    async def get_payment(ride_id: RideId) -> Response:
        return _json(PaymentView.of(await desk.payment(ride_id)))

    @api.post(
        "/payments/{ride_id}/refunds",
        status_code=202,
        tags=["payments"],
        summary="Ask for a refund",
        description="The refund is under way; `payment.refunded` or `payment.failed` tells how it ended.",
        response_model=PaymentView,
        responses=documented("malformed", "not-found", "invalid", "too-much", "idempotency-key-reused"),
    )
    async def ask_for_refund(request: Request, ride_id: RideId, body: NewRefund, key: IdempotencyKey) -> Response:
        def ask(state: PaymentState) -> PaymentRefundDue:
            left_minor = state.payment.refundable_minor if isinstance(state, _REFUNDABLE) else 0
            if body.amount_minor > left_minor:
                detail = f"{left_minor} can be refunded for ride {ride_id} now, not {body.amount_minor}"
                raise ProblemError("too-much", detail)
            amount = Money(amount_minor=body.amount_minor, currency=state.payment.currency)
            return PaymentRefundDue(ride_id=ride_id, amount=amount, reason=body.reason)

        return reply_to(await desk.once(request.url.path, ride_id, body, key=key, ask=ask))

    @api.post(
        "/payments/{ride_id}/retry",
        status_code=202,
        tags=["payments"],
        summary="Try again what was declined",
        response_model=PaymentView,
        responses=documented("malformed", "not-found", "nothing-declined", "idempotency-key-reused"),
    )
    async def retry(request: Request, ride_id: RideId, key: IdempotencyKey) -> Response:
        def ask(state: PaymentState) -> PaymentRetryDue:
            if state.payment.refused is None:
                raise ProblemError("nothing-declined", f"nothing of the payment of ride {ride_id} is declined now")
            return PaymentRetryDue(ride_id=ride_id)

        return reply_to(await desk.once(request.url.path, ride_id, None, key=key, ask=ask))


def _json(view: BaseModel) -> Response:
    return Response(view.model_dump_json(), media_type="application/json")
