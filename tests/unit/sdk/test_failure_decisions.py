"""What a failure is, by its stage and type, and what follows it: delays, attempts, dead letters."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest
from hailbus import AtLeastOnce, AtMostOnce, Backoff, DeliveryError, Retry, UnknownEventError
from hailbus._consuming.failure import (
    Decision,
    Drop,
    Kind,
    Pause,
    RetryAfter,
    SetAside,
    Stage,
    StageError,
    classify,
    decide,
    decide_retry,
    is_fatal,
    outage_delay_s,
    reason_of,
)
from hailbus.delivery import Promise
from hailbus.errors import (
    BrokerUnreachableError,
    ProducerFencedError,
    RecordTooLargeError,
    RegistryRefusedError,
    RegistryUnreachableError,
    TopicMissingError,
    VerdictError,
)
from sqlalchemy import exc

BAD, FAILED, AWAY, OURS = Kind.BAD_RECORD, Kind.HANDLER_FAILED, Kind.INFRASTRUCTURE_AWAY, Kind.OUR_DEFECT


class Drawn(random.Random):
    """Draws the same number each time."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


UNREACHABLE = RegistryUnreachableError(urls=["http://registry"], reason="refused")


@pytest.mark.parametrize(
    ("stage", "error", "kind"),
    [
        (Stage.DECODE, ConnectionError("a validator's"), BAD),
        (Stage.HANDLER, ConnectionError("the handler's"), FAILED),
        (Stage.VERDICT, VerdictError(handler="take", problem="returned 3"), FAILED),
        (Stage.INTERNAL, ConnectionError("where none is used"), OURS),
        # asking the schema registry
        (Stage.IDENTIFY, UNREACHABLE, AWAY),
        (Stage.IDENTIFY, TimeoutError("no answer"), AWAY),
        (Stage.IDENTIFY, caused_by(UnknownEventError(type="x"), UNREACHABLE), AWAY),
        (Stage.IDENTIFY, UnknownEventError(type="x"), BAD),
        (Stage.IDENTIFY, RegistryRefusedError(code=500, url="http://registry", text="no"), OURS),
        (Stage.IDENTIFY, KeyError("x"), OURS),
        # claiming and parking
        *(
            case
            for stage in (Stage.CLAIM, Stage.PARK)
            for case in (
                (stage, UnknownEventError(type="x"), BAD),
                (stage, exc.DataError("INSERT", {}, ValueError("too long")), BAD),
                (stage, exc.OperationalError("INSERT", {}, OSError("gone")), AWAY),
                (stage, exc.ProgrammingError("INSERT", {}, ValueError("no such table")), AWAY),
                (stage, ConnectionRefusedError("refused"), AWAY),
                (stage, TimeoutError("no answer"), AWAY),
                (stage, KeyError("x"), OURS),
            )
        ),
        # committing the inbox transaction
        (Stage.INBOX_COMMIT, exc.OperationalError("COMMIT", {}, OSError("gone")), AWAY),
        (Stage.INBOX_COMMIT, exc.InterfaceError("COMMIT", {}, OSError("gone")), AWAY),
        (Stage.INBOX_COMMIT, exc.DBAPIError("COMMIT", {}, OSError("gone"), connection_invalidated=True), AWAY),
        (Stage.INBOX_COMMIT, exc.DBAPIError("COMMIT", {}, ValueError("no")), FAILED),
        (Stage.INBOX_COMMIT, exc.IntegrityError("COMMIT", {}, ValueError("deferred")), FAILED),
        (Stage.INBOX_COMMIT, ConnectionResetError("reset"), AWAY),
        (Stage.INBOX_COMMIT, KeyError("x"), FAILED),
        # letters and transactions
        *(
            case
            for stage in (Stage.LETTER, Stage.TRANSACTION)
            for case in (
                (stage, RecordTooLargeError(topic="t", size_bytes=9), OURS),
                (stage, ProducerFencedError(transactional_id="x"), OURS),
                (stage, DeliveryError("refused", topic="t"), AWAY),
                (stage, BrokerUnreachableError(bootstrap="b", waited_s=1), AWAY),
                (stage, TopicMissingError(topic="t"), AWAY),
                (stage, OSError("no route"), AWAY),
                (stage, KeyError("x"), OURS),
            )
        ),
    ],
)
def test_a_failure_is_classified_by_its_stage_and_type(stage: Stage, error: BaseException, kind: Kind) -> None:
    assert classify(stage, error) is kind


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (KeyboardInterrupt(), True),
        (SystemExit(), True),
        (GeneratorExit(), True),
        (asyncio.CancelledError(), False),
        (ValueError(), False),
    ],
)
def test_only_what_ends_the_process_or_the_generator_is_never_judged(error: BaseException, fatal: bool) -> None:
    assert is_fatal(error) is fatal


def decision(
    kind: Kind, error: BaseException, delivery: Promise | None, *, attempt: int = 1, tries: int = 0
) -> Decision:
    return decide(kind, error, delivery, attempt=attempt, tries=tries, rng=Drawn(0.5))


THREE = AtLeastOnce(retry=Backoff(first=timedelta(seconds=2), factor=3, attempts=3, on=(ValueError,)))


def test_a_handler_is_called_as_often_as_its_policy_says_with_growing_delays() -> None:
    error = ValueError("no")
    assert decision(FAILED, error, THREE, attempt=1) == RetryAfter(2)
    assert decision(FAILED, error, THREE, attempt=2) == RetryAfter(6)
    assert decision(FAILED, error, THREE, attempt=3) == SetAside("no", may_retry=True)


def test_an_error_that_the_policy_does_not_name_is_not_retried_and_a_base_exception_is() -> None:
    assert decision(FAILED, KeyError("x"), THREE) == SetAside("'x'", may_retry=True)
    assert decision(FAILED, asyncio.CancelledError("mine"), THREE) == RetryAfter(2)


def test_a_value_that_is_no_verdict_is_never_retried() -> None:
    wrong = VerdictError(handler="take", problem="returned 3")
    any_error = AtLeastOnce(retry=Backoff(attempts=9))
    assert decision(FAILED, wrong, any_error) == SetAside(reason_of(wrong), may_retry=False)


@pytest.mark.parametrize("delivery", [AtMostOnce(), None])
def test_at_most_once_gives_a_failed_record_up(delivery: Promise | None) -> None:
    assert decision(FAILED, ValueError("no"), delivery) == Drop()


def test_a_bad_record_is_a_dead_letter_at_once() -> None:
    assert decision(BAD, ValueError("no number"), THREE) == SetAside("no number", may_retry=False)


def test_a_defect_of_hailbus_is_tried_four_times_with_quadrupled_delays() -> None:
    error = AssertionError("wrong")
    assert [decision(OURS, error, THREE, tries=tries) for tries in range(3)] == [
        RetryAfter(0.5),
        RetryAfter(2),
        RetryAfter(8),
    ]
    assert decision(OURS, error, THREE, tries=3) == SetAside("a defect in hailbus: wrong", may_retry=False)


def test_what_is_away_is_tried_for_ever_with_delays_up_to_ten_seconds() -> None:
    found = [decision(AWAY, OSError("gone"), THREE, tries=tries) for tries in (0, 1, 2, 5, 6, 7, 2_000)]
    assert found == [Pause(0.2), Pause(0.4), Pause(0.8), Pause(6.4), Pause(10), Pause(10), Pause(10)]


@pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.75), (0.5, 1.0), (0.999_999, 1.25)])
def test_delays_of_members_differ_by_a_quarter_either_way(drawn: float, share: float) -> None:
    assert outage_delay_s(0, Drawn(drawn)) == pytest.approx(0.2 * share, rel=1e-5)
    assert outage_delay_s(50, Drawn(drawn)) == pytest.approx(10 * share, rel=1e-5)


def test_a_handler_that_asks_for_retries_gets_as_many_as_it_or_its_policy_allows() -> None:
    ask = Retry(after=timedelta(seconds=7))
    assert decide_retry(ask, THREE, attempt=2) == RetryAfter(7)
    reason = "the handler asked for a retry in all of its 3 calls"
    assert decide_retry(ask, THREE, attempt=3) == SetAside(reason, may_retry=True)
    bounded = Retry(after=timedelta(seconds=7), limit=5)
    assert decide_retry(bounded, THREE, attempt=4) == RetryAfter(7)
    assert isinstance(decide_retry(bounded, THREE, attempt=5), SetAside)


def test_at_most_once_grants_a_retry_only_where_the_handler_sets_a_limit() -> None:
    assert decide_retry(Retry(), AtMostOnce(), attempt=1) == Drop()
    bounded = Retry(after=timedelta(seconds=7), limit=2)
    assert decide_retry(bounded, AtMostOnce(), attempt=1) == RetryAfter(7)
    assert decide_retry(bounded, AtMostOnce(), attempt=2) == Drop()


def test_a_reason_is_one_sentence_of_bounded_length() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert reason_of(ValueError("no")) == "no"
    assert reason_of(ValueError()) == "ValueError()"
    assert reason_of(SilentError()).endswith("SilentError")
    assert reason_of(ValueError("x" * 500)) == "x" * 500
    assert reason_of(ValueError("x" * 501)) == "x" * 500 + "…"
    assert str(StageError(Stage.PARK, ValueError("no"))) == "parking: no"
