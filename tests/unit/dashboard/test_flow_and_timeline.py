"""Rates, ages of records, and the records that are kept per ride."""

from types import SimpleNamespace

import pytest
from dashboard.domain.flow import Flow, OffsetTimes
from dashboard.domain.timeline import Timelines


def record(topic: str, offset: int, timestamp: int, *headers: tuple[str, bytes]) -> SimpleNamespace:
    return SimpleNamespace(
        topic=topic, partition=0, offset=offset, timestamp=timestamp, key=b"k", value=b"{}", headers=headers
    )


def test_rates_are_means_over_four_seconds() -> None:
    flow = Flow(tick_s=0.25)
    for _ in range(20):
        for _ in range(5):
            flow.count("/booking", "rides.v1")
        flow.tick()
    assert flow.per_second() == {("/booking", "rides.v1"): 20.0}
    assert flow.totals == {("/booking", "rides.v1"): 100}
    for _ in range(8):
        flow.tick()
    assert flow.per_second() == {("/booking", "rides.v1"): 10.0}


def test_the_age_of_a_record_is_known_to_a_quarter_second() -> None:
    times, partition = OffsetTimes(), ("rides.v1", 0)
    for offset in range(10_000):
        times.seen(partition, offset, 1_000_000 + offset * 10)
    assert times.written_ms(partition, 9_000) == pytest.approx(1_090_000, abs=250)
    assert times.written_ms(partition, 0) == 1_000_000
    assert times.written_ms(partition, 10_000) is None
    assert times.written_ms(("other", 0), 0) is None


def test_a_rides_records_begin_with_its_quote() -> None:
    timelines = Timelines()
    timelines.of_quote("q", record("quotes.v1", 1, 10))
    timelines.of_ride("r", record("rides.v1", 1, 30))
    timelines.begin("r", "q")
    timelines.of_quote("q", record("quotes.v1", 2, 20))
    timelines.of_ride("r", record("payments.v1", 1, 30))
    assert [(kept.topic, kept.offset) for kept in timelines.get("r")] == [
        ("quotes.v1", 1),
        ("quotes.v1", 2),
        ("rides.v1", 1),
        ("payments.v1", 1),
    ]
    assert timelines.get("unknown") == []


def test_records_stand_in_the_order_of_their_events_however_they_were_written_and_read() -> None:
    timelines = Timelines()
    timelines.of_ride("r", record("rides.v1", 1, 50, ("ce_time", b"2014-05-07T08:00:00Z")))
    timelines.of_ride("r", record("rides.v1", 2, 50, ("ce_time", b"2014-05-07T08:04:00.5Z")))
    timelines.of_ride("r", record("payments.v1", 1, 50, ("ce_time", b"2014-05-07T08:00:00Z")))
    assert [(kept.topic, kept.offset) for kept in timelines.get("r")] == [
        ("rides.v1", 1),
        ("payments.v1", 1),
        ("rides.v1", 2),
    ]


@pytest.mark.parametrize("broken", [b"yesterday", b"\xff"])
def test_a_record_without_a_readable_event_time_stands_at_the_time_of_its_writing(broken: bytes) -> None:
    timelines = Timelines()
    timelines.of_ride("r", record("rides.v1", 2, 2_000, ("ce_time", broken)))
    timelines.of_ride("r", record("rides.v1", 1, 9_000, ("ce_time", b"1970-01-01T00:00:01Z")))
    assert [kept.offset for kept in timelines.get("r")] == [1, 2]


def test_what_is_kept_is_bounded() -> None:
    timelines = Timelines()
    for number in range(3_000):
        timelines.of_quote(f"q{number}", record("quotes.v1", number, number))
        timelines.of_ride(f"r{number}", record("rides.v1", number, number))
    for number in range(100):
        timelines.of_ride("r2999", record("rides.v1", number, number))
    assert timelines.get("r0") == []
    assert len(timelines.get("r2999")) == 60
    timelines.begin("late", "q0")
    assert timelines.get("late") == []
