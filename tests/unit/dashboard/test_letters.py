"""What is said of a dead letter's value, its twin, and what is kept of a queue."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from dashboard.adapters.letters import KEPT, KEPT_BYTES, queue_of
from dashboard.domain.letters import Written, compact, problems_of, topic_and_group, twin_of
from hailbus import Envelope
from hailbus.codec import encode, envelope_for
from hailbus.dead_letter_queue import Letter
from hailbus.testing.memory import MemoryRecord
from ride_events import CATALOGUE
from ride_events.rides import RideDriverArrived

ARRIVED = RideDriverArrived(ride_id="ride-1", seq=3, driver_id="driver-7")
ENVELOPE: Envelope = envelope_for(ARRIVED, source="/booking", id="event-1")
KEY, VALUE, HEADERS = encode(ARRIVED, ENVELOPE)
PLACE = ("rides.v1", 2, 17)


def written(value: bytes | None, **changes: Any) -> Written:
    return replace(Written(topic="rides.v1", key=KEY, value=value, headers=HEADERS), **changes)


def edited(**fields: object) -> bytes:
    return json.dumps(json.loads(VALUE) | fields).encode()


@dataclass(frozen=True)
class Kept:
    """A record as a timeline keeps it."""

    topic: str = "rides.v1"
    partition: int = 2
    offset: int = 18
    timestamp: int = 0
    key: bytes | None = KEY
    value: bytes | None = VALUE
    headers: tuple[tuple[str, bytes], ...] = tuple(HEADERS)


def test_a_value_that_reads_well_has_no_problems() -> None:
    assert problems_of(written(VALUE), CATALOGUE) == ()


def test_every_field_that_is_wrong_is_named() -> None:
    found = problems_of(written(edited(seq="third", driver_id=None)), CATALOGUE)
    assert found is not None
    assert [problem.field for problem in found] == ["seq", "driver_id"]
    assert found[1].words == "Input should be a valid string"


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        (b'{"ride_id":"ride-1","se', "", "Invalid JSON: EOF while parsing a string"),
        (b"\xff\xfe", "", "Invalid JSON"),
        (None, "", "There is no value."),
        (edited(ride_id="ride-2"), "ride_id", "The field is 'ride-2', and the key of the record is 'ride-1'."),
        (edited(ride_id=""), "ride_id", "The field is empty, and it is the key of the record."),
        (edited(weight=float("nan")), "", "Invalid JSON: NaN is no JSON number"),
    ],
)
def test_what_is_wrong_is_said(value: bytes | None, field: str, words: str) -> None:
    found = problems_of(written(value), CATALOGUE)
    assert found is not None
    (problem,) = found
    assert problem.field == field
    assert problem.words.startswith(words)


def test_a_place_in_a_list_has_its_number() -> None:
    headers = [(name, b"recommendation.served" if name == "ce_type" else value) for name, value in HEADERS]
    value = json.dumps({"recommendation_id": "r", "options": [{"rank": "first"}]}).encode()
    found = problems_of(written(value, topic="recommendations.v1", headers=headers), CATALOGUE)
    assert found is not None
    assert "options[0].rank" in [problem.field for problem in found]


def test_what_no_class_describes_is_not_judged() -> None:
    unknown = [(name, b"ride.flown" if name == "ce_type" else value) for name, value in HEADERS]
    assert problems_of(written(VALUE, headers=unknown), CATALOGUE) is None
    assert problems_of(written(VALUE, headers=[]), CATALOGUE) is None


def test_a_twin_is_another_record_of_the_same_event_that_reads_well() -> None:
    letter = written(b"{}")
    other_event = [(name, b"event-2" if name == "ce_id" else value) for name, value in HEADERS]
    wrong = [
        Kept(offset=PLACE[2]),
        Kept(value=b"{}"),
        Kept(value=None),
        Kept(topic="payments.v1"),
        Kept(headers=tuple(other_event)),
    ]
    assert twin_of(letter, PLACE, wrong, CATALOGUE) is None
    assert twin_of(letter, PLACE, [*wrong, Kept()], CATALOGUE) == Kept()
    assert twin_of(written(b"{}", headers=[]), PLACE, [Kept()], CATALOGUE) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n  "a b": [1.10, 1e400, 12345678901234567890],\r\n\t"c": "\\" x"\n}', None),
        ('"  \\\\" ', '"  \\\\"'),
        ("[ ]", "[]"),
    ],
)
def test_compact_json_keeps_numbers_and_strings_as_they_are_written(text: str, expected: str | None) -> None:
    assert compact(text) == (expected or '{"a b":[1.10,1e400,12345678901234567890],"c":"\\" x"}')


def test_a_queue_is_named_after_its_topic_and_group() -> None:
    topics = ["rides.v1", "rides.v1.more", "rides"]
    assert topic_and_group("rides.v1.surge-dlt", topics) == ("rides.v1", "surge")
    assert topic_and_group("rides.v1.more.payment-saga-dlt", topics) == ("rides.v1.more", "payment-saga")
    assert topic_and_group("other-dlt", topics) == ("", "other")


def letter(offset: int, *, value: bytes = b"{}", status: str = "waiting") -> Letter:
    record = MemoryRecord(
        topic="rides.v1.surge-dlt", partition=0, offset=offset, timestamp=offset, key=KEY, value=value, headers=()
    )
    return Letter(
        record=record,
        origin_topic="rides.v1",
        origin_partition=0,
        origin_offset=offset,
        status=status,
        value=value,
        history=(),
    )


def test_of_a_queue_the_newest_letters_are_kept_and_the_others_are_counted() -> None:
    queue = queue_of("rides.v1.surge-dlt", [letter(0, status="dropped"), *(letter(n) for n in range(1, KEPT + 3))])
    assert (queue.topic, queue.group) == ("rides.v1", "surge")
    assert [kept.record.offset for kept in queue.letters] == list(range(KEPT + 2, 2, -1))
    assert (queue.total, queue.waiting, queue.more) == (KEPT + 3, KEPT + 2, 3)


def test_large_letters_are_bounded_by_their_size_and_the_newest_is_always_kept() -> None:
    huge = b"x" * (KEPT_BYTES // 4)
    queue = queue_of("rides.v1.surge-dlt", [letter(n, value=huge) for n in range(5)])
    assert [kept.record.offset for kept in queue.letters] == [4, 3]
    assert queue.more == 3
    largest = queue_of("rides.v1.surge-dlt", [letter(0), letter(1, value=b"x" * KEPT_BYTES)])
    assert [kept.record.offset for kept in largest.letters] == [1]
