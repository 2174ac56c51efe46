"""What a failure is and what follows it. Pure decisions: no I/O, no clock, no tasks.

Whatever is raised between a read and a commit is classified here by the stage in which it was raised and its type:

| Kind | Raised by | What follows |
|---|---|---|
| `BAD_RECORD` | headers, decoding, upcasters, validators, an id that the inbox cannot keep | dead letter at once |
| `HANDLER_FAILED` | dependencies, the handler, its verdict, its deadline | the subscription's policy |
| `INFRASTRUCTURE_AWAY` | inbox, parking lot, dead letter topic, schema registry, transaction | the partition pauses |
| `OUR_DEFECT` | anything else, in hailbus itself | a few retries, then dead letter |
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hailbus.delivery import AtMostOnce, Promise, Retry
from hailbus.errors import (
    BrokerUnreachableError,
    ContractError,
    DeliveryError,
    ProducerFencedError,
    RecordTooLargeError,
    RegistryUnreachableError,
    TopicMissingError,
    VerdictError,
)

__all__ = [
    "Decision",
    "Drop",
    "Kind",
    "Pause",
    "RetryAfter",
    "SetAside",
    "Stage",
    "StageError",
    "StopReading",
    "classify",
    "decide",
    "is_fatal",
    "origin_of",
    "outage_delay_s",
    "reason_of",
]

DEFECT_ATTEMPTS = 4
"""How often a record is tried that meets a defect of hailbus."""
DEFECT_FIRST_S = 0.5
OUTAGE_FIRST_S = 0.2
OUTAGE_MAX_S = 10.0
REASON_LIMIT = 500
"""Characters of a reason: it appears in log lines and health answers."""


class Stage(Enum):
    """Where something was raised."""

    DECODE = "decoding"
    IDENTIFY = "asking the schema registry"
    CLAIM = "claiming in the inbox"
    HANDLER = "handling"
    VERDICT = "reading the verdict"
    INBOX_COMMIT = "committing the inbox transaction"
    PARK = "parking"
    LETTER = "writing a dead letter"
    TRANSACTION = "the Kafka transaction"
    INTERNAL = "hailbus itself"


class Kind(Enum):
    """What a failure says about."""

    BAD_RECORD = auto()
    HANDLER_FAILED = auto()
    INFRASTRUCTURE_AWAY = auto()
    OUR_DEFECT = auto()


class StageError(Exception):
    """Wraps an exception that was raised in a stage of ours, outside of the handler."""

    def __init__(self, stage: Stage, error: BaseException) -> None:
        self.stage = stage
        self.error = error
        super().__init__(f"{stage.value}: {reason_of(error)}")


def origin_of(failure: BaseException) -> tuple[Stage, BaseException]:
    """Where something was raised, and what: what no `StageError` wraps comes from a handler."""
    return (failure.stage, failure.error) if isinstance(failure, StageError) else (Stage.HANDLER, failure)


class StopReading(Exception):  # noqa: N818 an order, not an error
    """The policy `fail` for unknown events: the member stops reading."""

    def __init__(self, error: ContractError) -> None:
        self.error = error
        super().__init__(str(error))


# ------------------------------------------------------------------------------------------------ classifying


def is_fatal(error: BaseException) -> bool:
    """Whether an exception ends the process or the generator and must not be judged."""
    return isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))


def reason_of(error: BaseException) -> str:
    """One sentence about an exception, of bounded length."""
    try:
        text = str(error) or repr(error)
    except Exception:  # noqa: BLE001 a user's exception whose __str__ raises
        text = type(error).__qualname__
    return text if len(text) <= REASON_LIMIT else text[:REASON_LIMIT] + "…"


def classify(stage: Stage, error: BaseException) -> Kind:
    """What a failure says about, by the stage in which it was raised and its type."""
    match stage:
        case Stage.DECODE:
            return Kind.BAD_RECORD
        case Stage.HANDLER | Stage.VERDICT:
            return Kind.HANDLER_FAILED
        case Stage.IDENTIFY:
            if _is_unreachable(error) or isinstance(error.__cause__, RegistryUnreachableError):
                return Kind.INFRASTRUCTURE_AWAY
            return Kind.BAD_RECORD if isinstance(error, ContractError) else Kind.OUR_DEFECT
        case Stage.CLAIM | Stage.PARK:
            if isinstance(error, ContractError) or _is_database_error(error, "DataError"):
                return Kind.BAD_RECORD
            # Our own statements: a missing table or a refused login says nothing about the record either.
            if _is_unreachable(error) or _is_database_error(error, "SQLAlchemyError"):
                return Kind.INFRASTRUCTURE_AWAY
            return Kind.OUR_DEFECT
        case Stage.INBOX_COMMIT:
            if _is_unreachable(error) or _is_connection_lost(error):
                return Kind.INFRASTRUCTURE_AWAY
            return Kind.HANDLER_FAILED  # a deferred constraint, a serialization failure: the handler's statements
        case Stage.LETTER | Stage.TRANSACTION:
            if isinstance(error, (RecordTooLargeError, ProducerFencedError)):
                return Kind.OUR_DEFECT  # trying again helps neither
            if isinstance(error, (DeliveryError, BrokerUnreachableError, TopicMissingError)) or _is_unreachable(error):
                return Kind.INFRASTRUCTURE_AWAY
            return Kind.OUR_DEFECT
        case _:
            return Kind.OUR_DEFECT


def _is_unreachable(error: BaseException) -> bool:
    return isinstance(error, (OSError, TimeoutError, RegistryUnreachableError, BrokerUnreachableError))


def _is_database_error(error: BaseException, name: str) -> bool:
    # Without importing SQLAlchemy: a service without a database need not have it.
    module: Any = sys.modules.get("sqlalchemy.exc")  # Any: a module
    return module is not None and isinstance(error, getattr(module, name))


def _is_connection_lost(error: BaseException) -> bool:
    return (
        _is_database_error(error, "OperationalError")
        or _is_database_error(error, "InterfaceError")
        or bool(getattr(error, "connection_invalidated", False))
    )


# ------------------------------------------------------------------------------------------------ deciding


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try the record again after a delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class SetAside:
    """Give the record to the policy's `then`. `may_retry` allows retry topics."""

    reason: str
    may_retry: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """Give the record up: at most once."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold the partition and try the same step again after a delay."""

    delay_s: float


Decision = RetryAfter | SetAside | Drop | Pause


def decide(
    kind: Kind,
    error: BaseException,
    delivery: Promise | None,
    *,
    attempt: int,
    tries: int,
    rng: random.Random,
) -> Decision:
    """What follows a failure.

    Args:
        kind: See `classify`.
        error: What was raised.
        delivery: The subscription's promise; None when the record was not decoded far enough to have one.
        attempt: Calls of the handler so far, this one included.
        tries: How often this step has failed before, for defects and outages.
        rng: For the jitter of delays.
    """
    match kind:
        case Kind.BAD_RECORD:
            return SetAside(reason_of(error), may_retry=False)
        case Kind.INFRASTRUCTURE_AWAY:
            return Pause(outage_delay_s(tries, rng))
        case Kind.OUR_DEFECT:
            if tries + 1 < DEFECT_ATTEMPTS:
                return RetryAfter(DEFECT_FIRST_S * 4**tries)
            return SetAside(f"a defect in hailbus: {reason_of(error)}", may_retry=False)
        case Kind.HANDLER_FAILED:
            if delivery is None or isinstance(delivery, AtMostOnce):
                return Drop()
            if isinstance(error, VerdictError):
                return SetAside(reason_of(error), may_retry=False)
            retry = delivery.retry
            # A BaseException that ends neither process nor task is an error of the handler like any other.
            is_retriable = isinstance(error, retry.on) or not isinstance(error, Exception)
            if is_retriable and attempt < retry.attempts:
                return RetryAfter(retry.delay_s(attempt, rng))
            return SetAside(reason_of(error), may_retry=True)


def decide_retry(verdict: Retry, delivery: Promise, *, attempt: int) -> Decision:
    """What follows the verdict `Retry`: the delay that it asks for, within its bound."""
    limit = verdict.limit
    if limit is None:
        limit = 1 if isinstance(delivery, AtMostOnce) else delivery.retry.attempts
    if attempt < limit:
        return RetryAfter(verdict.after.total_seconds())
    if isinstance(delivery, AtMostOnce):
        return Drop()
    return SetAside(f"the handler asked for a retry in all of its {attempt} calls", may_retry=True)


def outage_delay_s(tries: int, rng: random.Random) -> float:
    """Seconds until infrastructure is tried again: grows to a bound, with jitter, so that members do not meet."""
    return float(min(OUTAGE_FIRST_S * 2 ** min(tries, 10), OUTAGE_MAX_S)) * (0.75 + rng.random() / 2)


def is_too_large(error: BaseException) -> bool:
    """Whether a write failed because of the record's size alone."""
    return isinstance(error, RecordTooLargeError)


def is_fenced(error: BaseException) -> bool:
    """Whether another member has taken over."""
    return isinstance(error, ProducerFencedError)
