"""The payment of one ride: what is reserved and charged, what is owed, and the next step towards it.

One step is under way at a time. What happens to the ride meanwhile only changes what is owed; the step after is decided
when the outcome is known. So no order of events and outcomes needs a case of its own. Amounts are minor units (cents).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal


class StepKind(StrEnum):
    """What the provider is asked for."""

    AUTHORISE = "authorise"
    REAUTHORISE = "reauthorise"
    CAPTURE = "capture"
    RELEASE = "release"
    REFUND = "refund"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request to the provider. `number` counts the steps of a payment: it makes the idempotency key."""

    number: int
    kind: StepKind
    amount_minor: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is due at the end of the ride. `kind` is `fare`, `cancellation_fee`, `no_show_fee` or `none`."""

    kind: str
    due_minor: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refund:
    """An amount that goes back to the rider."""

    amount_minor: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What happened to the money, to be published."""

    kind: Literal["authorised", "captured", "released", "refunded", "failed"]
    seq: int
    amount_minor: int
    reason: str = ""
    stage: str = ""
    owed_minor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """The payment of one ride, changed only by what the ride and the provider say.

    Attributes:
        fare_minor: What the ride costs as things stand.
        authorisation_id: The provider's.
        authorised_minor, captured_minor, released_minor, refunded_minor: What the provider has confirmed.
        seq: Counts the published facts.
        steps: Counts the steps.
        step: The one that is under way.
        ending: None while the ride has not ended.
        refused: Why the last step was declined; None once something has changed since.
        refunds: What is to be paid back.
        tries: How often the amount that is owed was declined.
    """

    payment_id: str
    ride_id: str
    rider_id: str
    currency: str
    simulated: bool
    fare_minor: int
    authorisation_id: str | None = None
    authorised_minor: int = 0
    captured_minor: int = 0
    released_minor: int = 0
    refunded_minor: int = 0
    seq: int = 0
    steps: int = 0
    step: Step | None = None
    ending: Ending | None = None
    refused: str | None = None
    refunds: tuple[Refund, ...] = ()
    tries: int = 0

    @property
    def held_minor(self) -> int:
        """What is reserved and neither charged nor free again."""
        return self.authorised_minor - self.captured_minor - self.released_minor

    @property
    def owed_minor(self) -> int:
        """What is due and not charged; 0 while the ride has not ended."""
        return self.ending.due_minor - self.captured_minor if self.ending is not None else 0

    @property
    def refundable_minor(self) -> int:
        """What was charged and is not paid back, nor about to be."""
        return self.captured_minor - self.refunded_minor - sum(refund.amount_minor for refund in self.refunds)

    # ---------------------------------------------------------------- what the ride says

    def priced(self, fare_minor: int) -> "Payment":
        """The ride costs something else now. A declined card is asked again for the new fare."""
        return _advanced(replace(self, fare_minor=fare_minor, refused=None))

    def ended(self, ending: Ending) -> "Payment":
        """The ride has ended. A declined card is asked again for a fare that is due."""
        if ending.kind != "fare":
            # A fee is taken out of what is reserved for the fare, or is about to be.
            reserved_minor = self.fare_minor if self._reserves else self.held_minor
            ending = replace(ending, due_minor=min(ending.due_minor, reserved_minor))
        return _advanced(replace(self, ending=ending, refused=None, tries=0))

    # ---------------------------------------------------------------- what people say

    def tried_again(self) -> "Payment":
        """Ask for the declined step again."""
        return _advanced(replace(self, refused=None))

    def refund(self, refund: Refund) -> tuple["Payment", tuple[Fact, ...]]:
        """Pay an amount back, or tell that so much was not charged."""
        if refund.amount_minor > self.refundable_minor:
            after = replace(self, seq=self.seq + 1)
            reason = f"exceeds_captured: {self.refundable_minor} can be refunded"
            return after, (
                Fact(kind="failed", seq=after.seq, amount_minor=refund.amount_minor, reason=reason, stage="refund"),
            )
        return _advanced(replace(self, refunds=(*self.refunds, refund))), ()

    # ---------------------------------------------------------------- what the provider says

    def done(self, number: int, *, authorisation_id: str) -> tuple["Payment", tuple[Fact, ...]]:
        """The step had its effect. The outcome of another step than the one under way changes nothing."""
        step = self.step
        if step is None or step.number != number:
            return self, ()
        amount = step.amount_minor
        seq = self.seq + 1
        after = replace(self, step=None, seq=seq, authorisation_id=authorisation_id)
        match step.kind:
            case StepKind.AUTHORISE | StepKind.REAUTHORISE:
                after = replace(after, authorised_minor=self.authorised_minor + amount)
                fact = Fact(kind="authorised", seq=seq, amount_minor=amount)
            case StepKind.CAPTURE:
                after = replace(after, captured_minor=self.captured_minor + amount, tries=0)
                fact = Fact(kind="captured", seq=seq, amount_minor=amount)
            case StepKind.RELEASE:
                after = replace(after, released_minor=self.released_minor + amount)
                fact = Fact(kind="released", seq=seq, amount_minor=amount, reason=step.reason)
            case StepKind.REFUND:
                after = replace(after, refunded_minor=self.refunded_minor + amount, refunds=self.refunds[1:])
                fact = Fact(kind="refunded", seq=seq, amount_minor=amount, reason=step.reason)
        return _advanced(after), (fact,)

    def declined(self, number: int, *, reason: str) -> tuple["Payment", tuple[Fact, ...]]:
        """The step was declined and had no effect."""
        step = self.step
        if step is None or step.number != number:
            return self, ()
        after = replace(self, step=None, seq=self.seq + 1)
        if step.kind is StepKind.REFUND:
            after = replace(after, refunds=self.refunds[1:])
        else:
            if self.ending is not None and self.ending.kind != "fare" and self._reserves:
                # A fee is taken out of what is reserved, and waived where nothing is.
                after = replace(
                    after, ending=replace(self.ending, due_minor=min(self.ending.due_minor, self.held_minor))
                )
            wanted = _wanted(after)
            # Where something else is wanted by now, as after a change of the fare, the card is asked for that.
            if wanted is not None and wanted[:2] == (step.kind, step.amount_minor):
                after = replace(after, refused=reason, tries=self.tries + 1)
        fact = Fact(
            kind="failed",
            seq=after.seq,
            amount_minor=step.amount_minor,
            reason=reason,
            stage=step.kind.value,
            owed_minor=max(after.owed_minor, 0) if after.refused is not None else 0,
        )
        return _advanced(after), (fact,)

    # ----------------------------------------------------------------

    @property
    def _reserves(self) -> bool:
        return self.step is not None and self.step.kind in {StepKind.AUTHORISE, StepKind.REAUTHORISE}


def _advanced(payment: Payment) -> Payment:
    """Begin the next step, if there is one and none is under way."""
    if payment.step is not None or payment.refused is not None:
        return payment
    wanted = _wanted(payment)
    if wanted is None:
        return payment
    kind, amount_minor, reason = wanted
    number = payment.steps + 1
    return replace(payment, steps=number, step=Step(number=number, kind=kind, amount_minor=amount_minor, reason=reason))


def _wanted(payment: Payment) -> tuple[StepKind, int, str] | None:
    reserve = StepKind.AUTHORISE if payment.authorisation_id is None else StepKind.REAUTHORISE
    if payment.ending is None:
        missing_minor = payment.fare_minor - payment.held_minor
        return (reserve, missing_minor, "") if missing_minor > 0 else None
    if payment.owed_minor > 0:
        missing_minor = payment.owed_minor - payment.held_minor
        if missing_minor > 0:
            return reserve, missing_minor, ""
        return StepKind.CAPTURE, payment.owed_minor, payment.ending.kind
    if payment.held_minor > 0:
        return StepKind.RELEASE, payment.held_minor, payment.ending.reason
    if payment.refunds:
        return StepKind.REFUND, payment.refunds[0].amount_minor, payment.refunds[0].reason
    return None
