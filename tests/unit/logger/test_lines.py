"""Events as lines."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from event_logger.lines import LoggedEvent, line_of, read_line
from hailbus import Context
from hailbus.codec import encode, envelope_for
from ride_events.timers import TimerElapsed

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)


def context(value: bytes | None = None) -> Context:
    event = TimerElapsed(subject_id="q1", kind="quote_expiry", seq=1, due_at=NOW)
    key, encoded, headers = encode(event, envelope_for(event, source="/booking", id="id-1", time=NOW))
    record = SimpleNamespace(
        topic="booking-timers.v1",
        partition=3,
        offset=17,
        timestamp=1_398_931_200_000,
        timestamp_type=0,
        key=key,
        value=value if value is not None else encoded,
        headers=headers,
    )
    return Context(record, group="event-logger")


def test_a_line_has_envelope_place_and_data() -> None:
    line = line_of(context())
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "id": "id-1",
        "source": "/booking",
        "type": "booking.timer_elapsed",
        "version": 1,
        "time": "2014-05-01T08:00:00Z",
        "subject": "q1",
        "correlation_id": None,
        "causation_id": None,
        "topic": "booking-timers.v1",
        "partition": 3,
        "offset": 17,
        "published_at": "2014-05-01T08:00:00Z",
        "data": {
            "subject_id": "q1",
            "kind": "quote_expiry",
            "seq": 1,
            "due_at": "2014-05-01T08:00:00Z",
            "simulated": False,
        },
    }
    assert read_line(line) == LoggedEvent(
        source="/booking", id="id-1", topic="booking-timers.v1", partition=3, offset=17
    )


def test_data_stay_as_they_came_but_on_one_line() -> None:
    line = line_of(context(b'{\n  "subject_id": "q1",\r\n  "unknown": 1.10\n}'))
    assert line.count(b"\n") == 1
    assert json.loads(line)["data"] == {"subject_id": "q1", "unknown": 1.1}
    assert b'"data":{"subject_id":"q1","unknown": 1.10}' in line_of(context(b'{"subject_id":"q1","unknown": 1.10}'))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"id": 1}', b'"text"', b"\xff"])
def test_what_is_no_line_of_ours_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a line of the event log"):
        read_line(line)
