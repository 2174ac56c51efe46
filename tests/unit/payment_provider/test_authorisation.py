"""What an authorisation allows, and which requests are declined."""

import pytest
from payment_provider.domain.authorisation import Authorisation
from payment_provider.domain.errors import Declined, TooMuch
from payment_provider.domain.faults import Faults, Kind, Outage


def authorisation(authorised_minor: int = 1_000) -> Authorisation:
    return Authorisation(
        authorisation_id="a1", reference="ride-1", card="card-1", currency="USD", authorised_minor=authorised_minor
    )


def test_money_adds_up_after_each_step() -> None:
    after = authorisation().increment(500).capture(1_200).release(300)
    assert (after.authorised_minor, after.captured_minor, after.released_minor, after.held_minor) == (
        1_500,
        1_200,
        300,
        0,
    )
    assert after.refund(1_200).refunded_minor == 1_200


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (authorisation(), "capture"),
        (authorisation().capture(1), "capture"),
        (authorisation().release(1), "capture"),
        (authorisation(), "release"),
        (authorisation().capture(1), "release"),
        (authorisation().capture(999), "refund"),
        (authorisation().capture(1_000).refund(1), "refund"),
    ],
)
def test_no_more_than_what_is_left(before: Authorisation, step: str) -> None:
    with pytest.raises(TooMuch) as caught:
        getattr(before, step)(1_000 if before.authorised_minor != before.held_minor or step == "refund" else 1_001)
    assert caught.value.left_minor < caught.value.asked_minor


def outcomes(faults: Faults, kind: Kind = Kind.CAPTURE, card: str = "card-1") -> list[bool]:
    def declined(key: str) -> bool:
        try:
            faults.check(kind, card=card, key=key)
        except Declined:
            return True
        return False

    return [declined(f"key-{number}") for number in range(2_000)]


def test_the_key_decides_by_chance_and_always_alike() -> None:
    faults = Faults(decline_percent=10.0, seed=7)
    assert outcomes(faults) == outcomes(Faults(decline_percent=10.0, seed=7))
    assert outcomes(faults) != outcomes(Faults(decline_percent=10.0, seed=8))
    assert 140 < sum(outcomes(faults)) < 260
    assert not any(outcomes(Faults()))
    assert not any(outcomes(faults, Kind.RELEASE))


@pytest.mark.parametrize(
    ("card", "declined"),
    [
        ("card-1", set[Kind]()),
        ("card-1-declined", set(Kind)),
        ("card-1-declined-on-capture", {Kind.CAPTURE}),
        ("card-1-declined-on-authorise", {Kind.AUTHORISE}),
    ],
)
def test_a_card_decides_what_is_declined(card: str, declined: set[Kind]) -> None:
    assert {kind for kind in Kind if any(outcomes(Faults(), kind, card))} == declined


def test_an_outage_may_hit_one_kind_only() -> None:
    faults = Faults(outage=Outage.REFUSE, only=Kind.CAPTURE)
    assert {kind for kind in Kind if faults.outage_of(kind) is Outage.REFUSE} == {Kind.CAPTURE}
    assert {kind for kind in Kind if Faults(outage=Outage.HANG).outage_of(kind) is Outage.HANG} == set(Kind)
