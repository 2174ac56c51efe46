"""The saga: one state machine instance per ride, moved by the ride's events and by the provider's outcomes."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final, assert_never

from hailbus import Backoff, EffectivelyOnce, Event, Inbox, Outbox, ParkingLot, ParkKey, Publisher, Service
from hailbus.state_machine import State, StateChangedError, StateMachine
from hailbus.state_machine import Step as Turn
from ride_events import Money
from ride_events.payments import (
    PaymentAuthorised,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    PaymentReleased,
)
from ride_events.rides import (
    RIDES,
    RideCancelled,
    RideCompleted,
    RidePooled,
    RideRepriced,
    RideRequested,
    RideUnmatched,
)
from sqlalchemy.exc import DBAPIError

from payment.adapters.streams.steps import PaymentRefundDue, PaymentRetryDue, PaymentStepDone, PaymentStepDue
from payment.app.names import derived_id, payment_id_of
from payment.domain.fees import Cancellation, Fees
from payment.domain.payment import Ending, Fact, Payment, Refund, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The numbers that the saga depends on.

    Attributes:
        fees: What cancelled rides cost.
        retry_first: When a declined amount that is owed is tried again; the time doubles up to `retry_max`.
        retry_limit: How often it is tried again by itself.
        keeps_event_time: In a replay the fact of a retry gets the time of the ride's end, as the wall means nothing.
    """

    fees: Fees = field(default_factory=Fees)
    retry_first: timedelta = timedelta(hours=1)
    retry_max: timedelta = timedelta(days=1)
    retry_limit: int = 10
    keeps_event_time: bool = False


class PaymentState(State):
    """Base of the states: all of them hold the same payment. `at` is when the ride last changed it."""

    payment: Payment
    at: datetime


class Authorising(PaymentState):
    """The provider is asked to reserve the fare, or what it rose by."""


class Authorised(PaymentState):
    """The fare is reserved; the ride has not ended."""


class Refused(PaymentState):
    """The card was declined, or the provider refused to free an amount; nothing is owed."""


class Capturing(PaymentState):
    """The provider is asked to charge what is due."""


class Due(PaymentState):
    """The ride has ended, and the card was declined: the rider owes money."""


class Releasing(PaymentState):
    """The provider is asked to free what is not needed."""


class Settled(PaymentState):
    """The rider was charged, and nothing is reserved any more."""


class Refunding(PaymentState):
    """The provider is asked to pay an amount back."""


class Closed(PaymentState, is_final=True):
    """Nothing was charged, and nothing is reserved any more."""


MOST_AT_ONCE: Final = 100
"""So many events share a transaction. With one each, the saga was the slowest part of the city."""
_PRICED: Final = (RideRepriced, RidePooled)
_ENDS: Final = (RideCompleted, RideCancelled, RideUnmatched)

TRANSITIONS: Final[Mapping[tuple[type[PaymentState], type[Event]], tuple[type[PaymentState], ...]]] = {
    # While a step is under way, news of the ride waits in the payment.
    **{(Authorising, priced): (Authorising,) for priced in _PRICED},
    **{(Authorising, end): (Authorising,) for end in _ENDS},
    (Authorising, PaymentStepDone): (Authorising, Authorised, Refused, Capturing, Due, Releasing, Closed),
    **{(Authorised, priced): (Authorised, Authorising) for priced in _PRICED},
    (Authorised, RideCompleted): (Capturing, Authorising, Releasing, Closed),
    (Authorised, RideCancelled): (Capturing, Releasing, Closed),
    (Authorised, RideUnmatched): (Releasing, Closed),
    **{(Refused, priced): (Authorising, Authorised) for priced in _PRICED},
    (Refused, RideCompleted): (Authorising, Capturing, Releasing, Closed),
    (Refused, RideCancelled): (Capturing, Releasing, Closed),
    (Refused, RideUnmatched): (Releasing, Closed),
    (Refused, PaymentRetryDue): (Authorising, Releasing),
    (Capturing, PaymentStepDone): (Releasing, Settled, Due),
    (Due, PaymentRetryDue): (Authorising, Capturing),
    (Releasing, PaymentStepDone): (Settled, Closed, Refused, Refunding),
    (Releasing, PaymentRefundDue): (Releasing,),
    (Settled, PaymentRefundDue): (Refunding, Settled),
    (Refunding, PaymentRefundDue): (Refunding,),
    (Refunding, PaymentStepDone): (Refunding, Settled),
}
"""From which state which event leads where. The machine runs on it, a test walks it, the README prints it."""


def state_of(payment: Payment) -> type[PaymentState]:
    """Return the state that a payment is in."""
    if payment.step is not None:
        match payment.step.kind:
            case StepKind.AUTHORISE | StepKind.REAUTHORISE:
                return Authorising
            case StepKind.CAPTURE:
                return Capturing
            case StepKind.RELEASE:
                return Releasing
            case StepKind.REFUND:
                return Refunding
            case _:
                assert_never(payment.step.kind)
    if payment.refused is not None:
        return Due if payment.owed_minor > 0 else Refused
    if payment.ending is None:
        return Authorised
    return Settled if payment.captured_minor else Closed


PaymentFact = PaymentAuthorised | PaymentCaptured | PaymentFailed | PaymentReleased | PaymentRefunded


class Saga:
    """Declares the machine and attaches it to a service.

    Args:
        service: Runs it.
        inbox, outbox: In the database of the states.
        lot: Holds events of a ride that come before their turn: a fare that was passed over would be wrong for ever.
        policy: The numbers to decide by.
    """

    def __init__(self, service: Service, *, inbox: Inbox, outbox: Outbox, lot: ParkingLot, policy: Policy) -> None:
        self._policy = policy
        self._facts: Publisher[PaymentFact] = service.publishes(PaymentFact)
        self._steps: Publisher[PaymentStepDue] = service.publishes(PaymentStepDue)
        self._retries: Publisher[PaymentRetryDue] = service.publishes(PaymentRetryDue)
        # An event and an outcome of the same ride may meet, and the database may be busy: both are worth waiting for.
        patiently = Backoff(max=timedelta(seconds=5), attempts=1_000, on=(StateChangedError, DBAPIError, OSError))
        by_number = EffectivelyOnce(inbox=inbox, retry=patiently, then=ParkKey(lot=lot), sequence="seq")
        self.machine = StateMachine(
            "saga",
            inbox=inbox,
            outbox=outbox,
            retry=patiently,
            deliveries={RIDES: by_number},
            max_items=MOST_AT_ONCE,
        )
        self._declare()
        self.machine.attach(service)

    def _declare(self) -> None:
        self.machine.starts(RideRequested)(self._requested)
        handlers: Mapping[type[Event], Callable[..., Awaitable[PaymentState]]] = {
            RideRepriced: self._repriced,
            RidePooled: self._repriced,
            RideCompleted: self._completed,
            RideCancelled: self._cancelled,
            RideUnmatched: self._unmatched,
            PaymentStepDone: self._step_done,
            PaymentRetryDue: self._retry,
            PaymentRefundDue: self._refund,
        }
        for (source, event), targets in TRANSITIONS.items():
            self.machine.on(source, event)(_leading_to(targets, handlers[event]))

    # ---------------------------------------------------------------- what the ride says

    async def _requested(self, event: RideRequested, turn: Turn) -> Authorising | Authorised:
        payment = Payment(
            payment_id=payment_id_of(event.ride_id),
            ride_id=event.ride_id,
            rider_id=event.rider_id,
            currency=event.fare.currency,
            simulated=event.simulated,
            fare_minor=0,
        ).priced(event.fare.amount_minor)
        after = await self._after(None, payment, (), turn)
        assert isinstance(after, Authorising | Authorised)
        return after

    async def _repriced(self, state: PaymentState, event: RideRepriced | RidePooled, turn: Turn) -> PaymentState:
        return await self._after(state, state.payment.priced(event.fare.amount_minor), (), turn)

    async def _completed(self, state: PaymentState, event: RideCompleted, turn: Turn) -> PaymentState:
        ending = Ending(kind="fare", due_minor=event.fare.amount_minor, reason="fare_was_lower")
        return await self._after(state, state.payment.ended(ending), (), turn)

    async def _cancelled(self, state: PaymentState, event: RideCancelled, turn: Turn) -> PaymentState:
        kind, due_minor = self._policy.fees.of(
            Cancellation(
                by=event.by,
                reason=event.reason,
                stage=event.stage,
                matched_at=event.matched_at,
                at=turn.ctx.envelope.time,
            )
        )
        ending = Ending(kind=kind, due_minor=due_minor, reason=event.reason)
        return await self._after(state, state.payment.ended(ending), (), turn)

    async def _unmatched(self, state: PaymentState, event: RideUnmatched, turn: Turn) -> PaymentState:
        ending = Ending(kind="none", due_minor=0, reason=event.reason)
        return await self._after(state, state.payment.ended(ending), (), turn)

    # ---------------------------------------------------------------- what the provider and people say

    async def _step_done(self, state: PaymentState, event: PaymentStepDone, turn: Turn) -> PaymentState:
        if event.declined is not None:
            payment, facts = state.payment.declined(event.number, reason=event.declined)
        else:
            assert event.authorisation_id is not None, f"step {event.number} of ride {event.ride_id} names nothing"
            payment, facts = state.payment.done(event.number, authorisation_id=event.authorisation_id)
        return await self._after(state, payment, facts, turn)

    async def _retry(self, state: PaymentState, _event: PaymentRetryDue, turn: Turn) -> PaymentState:
        return await self._after(state, state.payment.tried_again(), (), turn)

    async def _refund(self, state: PaymentState, event: PaymentRefundDue, turn: Turn) -> PaymentState:
        payment, facts = state.payment.refund(Refund(amount_minor=event.amount.amount_minor, reason=event.reason))
        return await self._after(state, payment, facts, turn)

    # ----------------------------------------------------------------

    async def _after(
        self, before: PaymentState | None, payment: Payment, facts: tuple[Fact, ...], turn: Turn
    ) -> PaymentState:
        """Publish what happened, and the step that comes next, with the new state."""
        at = self._moment(before, turn)
        for fact in facts:
            event = _event_of(fact, payment)
            await self._facts.publish(
                event,
                id=derived_id(payment.payment_id, fact.seq, fact.kind),
                time=at,
                cause=turn.ctx,
                tx=turn.tx,
            )
        begun = before.payment.steps if before is not None else 0
        if payment.step is not None and payment.step.number > begun:
            await self._steps.publish(
                PaymentStepDue(
                    ride_id=payment.ride_id,
                    payment_id=payment.payment_id,
                    rider_id=payment.rider_id,
                    number=payment.step.number,
                    kind=payment.step.kind.value,
                    amount=Money(amount_minor=payment.step.amount_minor, currency=payment.currency),
                    authorisation_id=payment.authorisation_id,
                ),
                id=derived_id(payment.payment_id, payment.step.number, "step_due"),
                time=at,
                cause=turn.ctx,
                tx=turn.tx,
            )
        after = state_of(payment)(payment=payment, at=at)
        if isinstance(after, Due) and payment.tries <= self._policy.retry_limit:
            delay = min(self._policy.retry_first * 2 ** (payment.tries - 1), self._policy.retry_max)
            await turn.schedule(self._retries, PaymentRetryDue(ride_id=payment.ride_id), after=delay, name="retry")
        else:
            await turn.cancel("retry")
        return after

    def _moment(self, before: PaymentState | None, turn: Turn) -> datetime:
        """Return when the fact happened, never before the fact before it."""
        time = turn.ctx.envelope.time
        if before is None:
            return time
        if self._policy.keeps_event_time and turn.ctx.envelope.type in _BY_THE_WALL:
            return before.at
        return max(before.at, time)


_BY_THE_WALL: Final = frozenset({"payment.retry_due", "payment.refund_due"})


def _event_of(fact: Fact, payment: Payment) -> PaymentFact:
    common: dict[str, Any] = {  # Any: the fields of several events
        "ride_id": payment.ride_id,
        "payment_id": payment.payment_id,
        "rider_id": payment.rider_id,
        "seq": fact.seq,
        "simulated": payment.simulated,
        "amount": _money(fact.amount_minor, payment),
    }
    match fact.kind:
        case "authorised":
            return PaymentAuthorised(**common)
        case "captured":
            assert payment.ending is not None, "nothing is charged before the ride has ended"
            return PaymentCaptured(**common, kind=payment.ending.kind)
        case "released":
            return PaymentReleased(**common, reason=fact.reason)
        case "refunded":
            return PaymentRefunded(**common, reason=fact.reason)
        case "failed":
            owed = _money(fact.owed_minor, payment) if fact.owed_minor > 0 else None
            return PaymentFailed(**common, reason=fact.reason, stage=fact.stage, owed=owed)
        case _:
            assert_never(fact.kind)


def _money(amount_minor: int, payment: Payment) -> Money:
    return Money(amount_minor=amount_minor, currency=payment.currency)


def _leading_to(
    targets: tuple[type[PaymentState], ...], handler: Callable[..., Awaitable[PaymentState]]
) -> Callable[[Any, Any, Turn], Awaitable[State | None]]:  # Any: the state and event of the transition
    """Return the handler with the states that the table names: the machine reads them from the annotation."""

    async def move(state: PaymentState, event: Event, turn: Turn) -> PaymentState:
        after = await handler(state, event, turn)
        assert isinstance(after, targets), (
            f"ride {turn.instance}: {type(state).__name__} became {type(after).__name__} on {type(event).__name__}, "
            "which the transition table does not have"
        )
        return after

    move.__annotations__["return"] = reduce(or_, targets)
    return move
