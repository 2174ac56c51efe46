"""Random lives of a payment, beside a provider that keeps books of its own."""

import random
from dataclasses import dataclass, field
from functools import cache

from hailbus import Event
from payment.adapters.streams.saga import PaymentState, state_of
from payment.adapters.streams.steps import PaymentRefundDue, PaymentRetryDue, PaymentStepDone
from payment.domain.payment import Ending, Fact, Payment, Refund, StepKind
from payment_provider.domain.authorisation import Authorisation
from payment_provider.domain.errors import TooMuch
from ride_events.rides import RideCancelled, RideCompleted, RidePooled, RideRepriced, RideUnmatched

ENDS: tuple[type[Event], ...] = (RideCompleted, RideCancelled, RideUnmatched)
Move = tuple[type[PaymentState], type[Event], type[PaymentState]]


def payment_of(fare_minor: int = 1_840) -> Payment:
    return Payment(
        payment_id="p1", ride_id="ride-1", rider_id="r1", currency="USD", simulated=False, fare_minor=0
    ).priced(fare_minor)


@dataclass
class Life:
    """One ride's payment. The provider declines by chance."""

    rng: random.Random
    decline: float
    payment: Payment = field(default_factory=payment_of)
    books: Authorisation | None = None
    facts: list[Fact] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def state(self) -> type[PaymentState]:
        return state_of(self.payment)

    def step(self) -> None:
        """Apply one random event: an answer of the provider, a step of the ride, a refund or a retry."""
        choices: list[type[Event]] = []
        if self.payment.step is not None:
            choices += [PaymentStepDone] * 3
        if self.payment.ending is None:
            priced: list[type[Event]] = [RideRepriced, RidePooled]
            choices += [self.rng.choice(priced), *ENDS]
        if self.payment.refused is not None:
            choices += [PaymentRetryDue]
        if self.state.__name__ in {"Settled", "Releasing", "Refunding"} and len(self.facts) < 20:
            choices += [PaymentRefundDue]
        if choices:
            self.do(self.rng.choice(choices))

    def do(self, event: type[Event]) -> None:
        before, facts = self.state, tuple[Fact, ...]()
        rng, payment = self.rng, self.payment
        if event is PaymentStepDone:
            facts = self._answer()
        elif event in {RideRepriced, RidePooled}:
            self.payment = payment.priced(rng.choice([0, 800, 1_840, 2_500, 4_000]))
        elif event is RideCompleted:
            fare_minor = payment.fare_minor if rng.random() < 0.7 else rng.choice([0, 500, 1_000, 5_000])
            self.payment = payment.ended(Ending(kind="fare", due_minor=fare_minor, reason="fare_was_lower"))
        elif event is RideCancelled:
            kind, due_minor = rng.choice([("none", 0), ("cancellation_fee", 500), ("no_show_fee", 3_000)])
            self.payment = payment.ended(Ending(kind=kind, due_minor=due_minor, reason="changed_plans"))
        elif event is RideUnmatched:
            self.payment = payment.ended(Ending(kind="none", due_minor=0, reason="timeout"))
        elif event is PaymentRetryDue:
            self.payment = payment.tried_again()
        elif event is PaymentRefundDue:
            self.payment, facts = payment.refund(Refund(amount_minor=rng.choice([1, 300, 5_000]), reason="complaint"))
        self.facts += facts
        self.moves.append((before, event, self.state))

    def _answer(self) -> tuple[Fact, ...]:
        """Have the provider carry the step out, or decline it."""
        step = self.payment.step
        assert step is not None
        may_decline = step.kind is not StepKind.RELEASE or self.rng.random() < 0.3
        if may_decline and self.rng.random() < self.decline:
            self.payment, facts = self.payment.declined(step.number, reason="insufficient_funds")
            return facts
        books = self.books
        try:
            if books is None:
                assert step.kind is StepKind.AUTHORISE, f"the first step is {step.kind}"
                books = Authorisation(
                    authorisation_id="a1",
                    reference="ride-1",
                    card="c1",
                    currency="USD",
                    authorised_minor=step.amount_minor,
                )
            else:
                move = {
                    StepKind.REAUTHORISE: books.increment,
                    StepKind.CAPTURE: books.capture,
                    StepKind.RELEASE: books.release,
                    StepKind.REFUND: books.refund,
                }[step.kind]
                books = move(step.amount_minor)
        except TooMuch as error:
            raise AssertionError(f"the provider would refuse: {error}") from error
        self.books = books
        self.payment, facts = self.payment.done(step.number, authorisation_id="a1")
        return facts


@cache
def live(seed: int) -> Life:
    """A whole life: a while of chance, then the ride ends and every card works again."""
    rng = random.Random(seed)
    life = Life(rng=rng, decline=rng.choice([0.0, 0.2, 0.6]))
    for _ in range(rng.randrange(16)):
        life.step()
    if life.payment.ending is None:
        life.do(rng.choice(ENDS))
    life.decline = 0.0
    for _ in range(30):
        if life.payment.step is not None:
            life.do(PaymentStepDone)
        elif life.payment.refused is not None:
            life.do(PaymentRetryDue)
    return life
