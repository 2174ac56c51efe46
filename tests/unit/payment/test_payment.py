"""The payment of a ride: the steps that it takes, declines, fees, and the books that it keeps."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from payment.adapters.streams.saga import TRANSITIONS, Authorised, Closed, Due, Refused, Settled, state_of
from payment.domain.fees import Cancellation, Fees
from payment.domain.payment import Ending, Fact, Payment, Refund, StepKind

from tests.unit.payment.walk import live, payment_of

FARE = Ending(kind="fare", due_minor=1_840, reason="fare_was_lower")
FREE = Ending(kind="none", due_minor=0, reason="timeout")
FEE = Ending(kind="cancellation_fee", due_minor=500, reason="changed_plans")
SEEDS = range(8_000)


def asked(payment: Payment) -> tuple[StepKind, int] | None:
    return (payment.step.kind, payment.step.amount_minor) if payment.step is not None else None


def answered(payment: Payment, *answers: bool) -> tuple[Payment, list[Fact]]:
    """The payment after the provider has done (True) or declined its steps."""
    told: list[Fact] = []
    for answer in answers:
        step = payment.step
        assert step is not None
        if answer:
            payment, facts = payment.done(step.number, authorisation_id="a1")
        else:
            payment, facts = payment.declined(step.number, reason="insufficient_funds")
        told += facts
    return payment, told


def kinds(facts: list[Fact]) -> list[tuple[str, int]]:
    return [(fact.kind, fact.amount_minor) for fact in facts]


def test_a_completed_ride_is_authorised_and_charged() -> None:
    payment, told = answered(payment_of(), True)
    assert state_of(payment) is Authorised
    payment, more = answered(payment.ended(FARE), True)
    assert kinds(told + more) == [("authorised", 1_840), ("captured", 1_840)]
    assert [fact.seq for fact in told + more] == [1, 2]
    assert state_of(payment) is Settled


def test_what_the_fare_rises_by_is_authorised_in_addition_and_a_lower_fare_releases_the_rest() -> None:
    payment, _ = answered(payment_of(), True)
    payment, told = answered(payment.priced(2_500), True)
    assert kinds(told) == [("authorised", 660)]
    assert asked(payment.priced(2_000)) is None
    ending = replace(FARE, due_minor=2_000)
    payment, told = answered(payment.priced(2_000).ended(ending), True, True)
    assert kinds(told) == [("captured", 2_000), ("released", 500)]


def test_news_of_the_ride_waits_for_the_step_under_way() -> None:
    payment = payment_of().priced(2_500).priced(3_000).ended(replace(FARE, due_minor=3_000))
    assert asked(payment) == (StepKind.AUTHORISE, 1_840)
    payment, told = answered(payment, True, True, True)
    assert kinds(told) == [("authorised", 1_840), ("authorised", 1_160), ("captured", 3_000)]


def test_an_outcome_counts_once() -> None:
    payment, _ = answered(payment_of(), True)
    assert payment.done(1, authorisation_id="a1") == (payment, ())
    assert payment.declined(1, reason="late") == (payment, ())
    after = payment.ended(FARE)
    assert after.done(1, authorisation_id="a1") == (after, ())


def test_a_free_cancellation_releases_everything() -> None:
    payment, _ = answered(payment_of(), True)
    payment, told = answered(payment.ended(FREE), True)
    assert kinds(told) == [("released", 1_840)]
    assert told[0].reason == "timeout"
    assert state_of(payment) is Closed


def test_a_fee_is_charged_out_of_the_authorisation() -> None:
    payment, _ = answered(payment_of(), True)
    payment, told = answered(payment.ended(FEE), True, True)
    assert kinds(told) == [("captured", 500), ("released", 1_340)]
    small, _ = answered(payment_of(400), True)
    assert asked(small.ended(FEE)) == (StepKind.CAPTURE, 400)


def test_a_fee_is_waived_when_nothing_is_reserved() -> None:
    declined, told = answered(payment_of().ended(FEE), False)
    assert [(fact.kind, fact.stage, fact.owed_minor) for fact in told] == [("failed", "authorise", 0)]
    assert state_of(declined) is Closed
    refused, _ = answered(payment_of(), False)
    assert state_of(refused.ended(FEE)) is Closed


def test_a_declined_authorisation_waits_for_a_change() -> None:
    payment, told = answered(payment_of(), False)
    assert [(fact.kind, fact.stage, fact.reason) for fact in told] == [("failed", "authorise", "insufficient_funds")]
    assert state_of(payment) is Refused
    assert asked(payment.priced(900)) == (StepKind.AUTHORISE, 900)
    assert asked(payment.ended(FARE)) == (StepKind.AUTHORISE, 1_840)
    assert state_of(payment.ended(FREE)) is Closed


def test_a_declined_capture_is_a_debt_until_a_retry_succeeds() -> None:
    payment, _ = answered(payment_of(), True)
    payment, told = answered(payment.ended(FARE), False)
    assert [(fact.stage, fact.amount_minor, fact.owed_minor) for fact in told] == [("capture", 1_840, 1_840)]
    assert state_of(payment) is Due
    again, told = answered(payment.tried_again(), False)
    assert (again.tries, told[0].owed_minor) == (2, 1_840)
    first, second = payment.tried_again().step, again.tried_again().step
    assert first is not None
    assert second is not None
    assert first.number < second.number, "a retry has a key of its own"
    paid, told = answered(again.tried_again(), True)
    assert kinds(told) == [("captured", 1_840)]
    assert paid.owed_minor == 0


def test_a_ride_that_went_on_with_a_declined_card_is_a_debt() -> None:
    payment, _ = answered(payment_of(), False)
    payment, told = answered(payment.ended(FARE), False)
    assert [(fact.stage, fact.owed_minor) for fact in told] == [("authorise", 1_840)]
    assert state_of(payment) is Due


def test_refunds_go_back_one_by_one_and_never_more_than_was_charged() -> None:
    payment, _ = answered(payment_of(), True)
    payment, _ = answered(payment.ended(FARE), True)
    payment, _ = payment.refund(Refund(amount_minor=1_000, reason="late"))
    payment, _ = payment.refund(Refund(amount_minor=800, reason="rude"))
    same, refusal = payment.refund(Refund(amount_minor=41, reason="greed"))
    assert [(fact.kind, fact.stage) for fact in refusal] == [("failed", "refund")]
    after, told = answered(same, True, False)
    assert [(fact.kind, fact.amount_minor, fact.reason) for fact in told] == [
        ("refunded", 1_000, "late"),
        ("failed", 800, "insufficient_funds"),
    ]
    assert (after.refunded_minor, after.refundable_minor) == (1_000, 840)
    assert state_of(after) is Settled


@pytest.mark.parametrize("seed", range(0, len(SEEDS), 1_000))
def test_whatever_happens_the_books_agree_and_nothing_stays_reserved(seed: int) -> None:
    for one in range(seed, seed + 1_000):
        life = live(one)
        payment, books = life.payment, life.books
        assert life.state in {Settled, Closed}, f"seed {one}: {life.state}"
        assert payment.owed_minor <= 0, f"seed {one}"
        assert payment.held_minor == 0, f"seed {one}"
        mine = (payment.authorised_minor, payment.captured_minor, payment.released_minor, payment.refunded_minor)
        theirs = (
            (books.authorised_minor, books.captured_minor, books.released_minor, books.refunded_minor)
            if books is not None
            else (0, 0, 0, 0)
        )
        told = tuple(
            sum(fact.amount_minor for fact in life.facts if fact.kind == kind)
            for kind in ("authorised", "captured", "released", "refunded")
        )
        assert mine == theirs == told, f"seed {one}"
        assert [fact.seq for fact in life.facts] == list(range(1, len(life.facts) + 1)), f"seed {one}"
        assert payment.ending is not None
        if payment.ending.kind == "fare":
            assert payment.captured_minor == payment.ending.due_minor, f"seed {one}"


def test_the_transition_table_is_what_happens() -> None:
    happened = {move for seed in SEEDS for move in live(seed).moves}
    table = {(source, event, target) for (source, event), targets in TRANSITIONS.items() for target in targets}
    assert happened - table == set()
    assert table - happened == set()


MATCHED_AT = datetime(2014, 5, 1, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("by", "reason", "stage", "after_s", "expected"),
    [
        ("rider", "changed_plans", "matched", 121, ("cancellation_fee", 500)),
        ("rider", "changed_plans", "arrived", 300, ("cancellation_fee", 500)),
        ("rider", "changed_plans", "matched", 120, ("none", 0)),
        ("rider", "changed_plans", "requested", 900, ("none", 0)),
        ("driver", "no_show", "arrived", 900, ("no_show_fee", 700)),
        ("system", "no_show", "arrived", 900, ("no_show_fee", 700)),
        ("rider", "no_show", "arrived", 10, ("none", 0)),
        ("driver", "no_show", "matched", 900, ("none", 0)),
        ("system", "payment_failed", "matched", 900, ("none", 0)),
    ],
)
def test_who_pays_a_fee(by: str, reason: str, stage: str, after_s: int, expected: tuple[str, int]) -> None:
    fees = Fees(cancellation_minor=500, grace=timedelta(seconds=120), no_show_minor=700)
    cancellation = Cancellation(
        by=by,
        reason=reason,
        stage=stage,
        matched_at=MATCHED_AT if stage != "requested" else None,
        at=MATCHED_AT + timedelta(seconds=after_s),
    )
    assert fees.of(cancellation) == expected
