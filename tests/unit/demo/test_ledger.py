"""The ledger's parts, without a log: verdicts, the reader of records, lines over accounts that are missing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hailbus.contract import contract_of
from hailbus.record_sum import MODULUS, record_hash
from hailbus.registry import header_of, registered_form
from hailbus_demo.ledger.accounts import Accounts, LakeAccount
from hailbus_demo.ledger.draw import Ledger, SoFar, draw_up
from hailbus_demo.ledger.lines import LINES, LineSpec
from hailbus_demo.ledger.lines.money import listed_fare
from hailbus_demo.ledger.log import LogAccount, LogReader, LogRecord, pack_id, unpack_id
from hailbus_demo.ledger.model import Finding, Findings, Judgement, Line, Unread, is_balanced
from hailbus_registry.state import Submission
from ride_events.rides import RideRequested

RIDE = "00000000-0000-4000-8000-000000000001"


REQUEST = {
    "ride_id": "r1",
    "rider_id": "rider",
    "quote_id": "q1",
    "pickup": {"lat": 40.7, "lng": -74.0},
    "dropoff": {"lat": 40.8, "lng": -74.0},
    "pickup_cell": "882a100d25fffff",
    "dropoff_cell": "882a100d25fffff",
    "fare": {"amount_minor": 800, "currency": "USD"},
    "multiplier": 1.0,
    "surge_version": None,
}


def line(verdict: Any, *findings: Finding, name: str = "a") -> Line:
    return Line(id=name, name=name, between=("one", "other"), verdict=verdict, detail="", findings=tuple(findings))


def record(
    offset: int, *, event_id: str = RIDE, kind: str = "ride.requested", key: str = "r1", data: Any = None, **change: Any
) -> LogRecord:
    said = {**REQUEST, "seq": offset + 1, **(data or {})}
    headers: Sequence[tuple[str, bytes | None]] = [
        ("ce_id", event_id.encode()),
        ("ce_source", b"/booking"),
        ("ce_type", kind.encode()),
        ("ce_time", b"2014-05-02T17:00:00.125000Z"),
        ("ce_subject", key.encode()),
        ("ce_dataschema", f"hailbus:{kind}/v1".encode()),
    ]
    made = LogRecord("rides.v1", 0, offset, 1_000, key.encode(), json.dumps(said).encode(), headers)
    return made._replace(**change)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["agrees", "agrees"], True),
        (["agrees", "shown"], True),
        (["agrees", "disagrees"], False),
        (["agrees", "not_checked"], False),
        (["shown"], False),
        ([], False),
    ],
)
def test_only_a_ledger_of_which_every_line_was_judged_and_agrees_is_balanced(
    verdicts: list[str], expected: bool
) -> None:
    lines = [line(verdict) for verdict in verdicts]
    assert is_balanced(lines) is expected
    ledger = Ledger(lines=tuple(lines), left_out=())
    assert (ledger.balanced, ledger.exit_code) == (expected, 0 if expected else 1)


def test_an_account_that_could_not_be_read_is_not_checked_and_one_that_is_no_part_is_named() -> None:
    ledger = draw_up(Accounts(log=Unread(reason="the broker is silent")))
    assert not ledger.balanced
    assert {one.verdict for one in ledger.lines} == {"not_checked"}
    assert all(one.detail == "not checked: the broker is silent" for one in ledger.lines)
    assert "silver follows from bronze" in ledger.left_out
    assert len(ledger.lines) + len(ledger.left_out) == len(LINES)


def test_line_ids_and_names_are_unique_and_each_names_two_accounts() -> None:
    assert len({spec.id for spec in LINES}) == len({spec.name for spec in LINES}) == len(LINES)
    assert all(spec.between[0] != spec.between[1] for spec in LINES)


def test_a_finding_says_where_to_look() -> None:
    found = Finding(what="it is gone", topic="rides.v1", partition=3, offset=7, id="x")
    assert str(found) == "it is gone (rides.v1-3 offset 7, id x)"
    assert str(Finding(what="it is gone", topic="rides.v1")) == "it is gone (rides.v1)"
    assert str(Finding(what="it is gone")) == "it is gone"


@pytest.mark.parametrize(
    ("count", "detail"), [(1, "lost 0"), (2, "lost 0; and 1 more"), (1_500, "lost 0; and 1,499 more")]
)
def test_a_line_says_its_first_finding_and_how_many_more_there_are(count: int, detail: str) -> None:
    spec = LineSpec(
        id="a",
        name="a",
        between=("one", "other"),
        needs=("log",),
        judge=lambda _: Judgement(findings=tuple(Finding(what=f"lost {number}") for number in range(count))),
    )
    reader = LogReader()
    drawn = spec.draw(Accounts(log=LogAccount(starts={}, ends={}, reader=reader)))
    assert drawn is not None
    assert (drawn.verdict, drawn.detail, len(drawn.findings)) == ("disagrees", detail, count)
    ledger = Ledger(lines=(drawn,), left_out=())
    assert SoFar(grace_s=0).settle(ledger, now_s=0).lines[0].detail == detail


def test_a_line_keeps_ten_thousand_findings() -> None:
    found = Findings()
    for number in range(10_001):
        found.add("gone", offset=number)
    found.extend([Finding(what="gone")] * 2)
    assert (found.count, len(found.kept), found.kept[-1].offset) == (10_003, 10_000, 9_999)
    more = Findings()
    more.extend(Finding(what="gone", offset=number) for number in range(10_001))
    assert (more.count, len(more.kept)) == (10_001, 10_000)


def test_the_reader_keeps_a_thousand_broken_records() -> None:
    reader = LogReader()
    for offset in range(1_001):
        reader.feed(record(offset, headers=()))
    assert [one.offset for one in reader.broken] == list(range(1_000))


def test_a_line_as_json_holds_a_bounded_number_of_findings() -> None:
    many = line("disagrees", *(Finding(what="gone", offset=n) for n in range(50)))
    shown = many.as_json()
    assert len(shown["findings"]) == 20
    assert shown["findings"][1] == {"what": "gone", "topic": None, "partition": None, "offset": 1, "id": None}
    assert shown["between"] == ["one", "other"]


def test_so_far_a_disagreement_counts_when_it_stays_the_same() -> None:
    lasting, passing = Finding(what="lost", offset=1), Finding(what="late", offset=2)
    so_far = SoFar(grace_s=5)

    def settle(at_s: float, *findings: Finding) -> Line:
        ledger = Ledger(lines=(line("disagrees" if findings else "agrees", *findings),), left_out=())
        return so_far.settle(ledger, now_s=at_s).lines[0]

    assert settle(0, lasting, passing).verdict == "agrees"
    assert settle(4, lasting).verdict == "agrees"
    at_five = settle(5, lasting, passing)
    assert (at_five.verdict, at_five.findings, at_five.detail) == ("disagrees", (lasting,), "lost (offset 1)")
    assert settle(9, passing).verdict == "agrees"  # seen since 5 only: it had been gone at 4
    assert settle(10, passing).findings == (passing,)
    assert settle(11).verdict == "agrees"


def test_so_far_what_was_not_checked_stays_so() -> None:
    ledger = Ledger(lines=(line("not_checked"), line("shown", name="b")), left_out=())
    assert [one.verdict for one in SoFar(grace_s=5).settle(ledger, now_s=0).lines] == ["not_checked", "shown"]


@pytest.mark.parametrize("event_id", [RIDE, RIDE.upper(), "a", "", "é" * 36, "x" * 16, "3d" + RIDE[2:], "0" * 36])
def test_event_ids_come_back_as_they_were(event_id: str) -> None:
    assert unpack_id(pack_id(event_id)) == event_id


def test_the_reader_keeps_the_order_of_the_log_and_the_first_of_two_publications() -> None:
    reader = LogReader()
    other = RIDE[:-1] + "2"
    reader.feed(record(0, event_id=other, data={"seq": 2}))
    reader.feed(record(1, data={"seq": 1}))
    reader.feed(record(2, event_id=other, data={"seq": 2}))
    assert [step.seq for step in reader.rides["r1"]] == [2, 1]
    assert [reader.place_of(row).offset for row in reader.repeats] == [2]
    assert reader.content_of(reader.repeats[0]) == reader.content_of(reader.rides["r1"][0].row)
    assert reader.newest_ms["rides.v1"] == 1_399_050_000_125
    assert reader.broken == []


def test_only_a_higher_offset_of_the_same_key_and_partition_replaces_a_record() -> None:
    reader = LogReader()
    reader.feed(record(3, key="882a100d25fffff")._replace(topic="surge.v1"))
    place = ("surge.v1", 0)
    assert [reader.newer_of_key(place, b"882a100d25fffff", offset) for offset in (2, 3, 4)] == [True, False, False]
    assert not reader.newer_of_key(place, b"another", 0)
    assert not reader.newer_of_key(("surge.v1", 1), b"882a100d25fffff", 0)


def test_the_readers_checksum_is_the_sum_of_the_records_hashes() -> None:
    reader = LogReader()
    records = [record(0), record(1, event_id=RIDE[:-1] + "2")]
    for one in records:
        reader.feed(one)
    expected = sum(record_hash(0, one.offset, one.key, one.value, one.headers) for one in records) % MODULUS
    assert reader.partitions["rides.v1", 0].checksum == expected
    assert reader.partitions["rides.v1", 0].records == 2


def test_the_reader_names_gaps_and_goes_on_where_it_stopped() -> None:
    reader = LogReader()
    reader.begin({("rides.v1", 0): 0})
    reader.feed(record(2))
    reader.reach(("rides.v1", 0), 5)
    reader.begin({("rides.v1", 0): 1})
    assert reader.partitions["rides.v1", 0].gaps == [(0, 2), (3, 5)]
    part = reader.partitions["rides.v1", 0]
    assert part.next_offset == 5
    assert [offset for offset in range(6) if part.hides(offset)] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"headers": [("ce_id", b"x")]}, "a CloudEvents header is missing"),
        ({"topic": "quotes.v1"}, "does not belong on this topic"),
        ({"value": b"{"}, "cannot be read"),
        ({"value": b'{"seq": 1}'}, "cannot be read: "),
        ({"key": b"r2"}, "the record's key is 'r2'"),
        ({"value": json.dumps({**REQUEST, "seq": 1, "ride_id": "r2"}).encode()}, "its ride_id 'r2'"),
    ],
)
def test_what_is_no_event_is_found_where_it_is(change: dict[str, Any], words: str) -> None:
    reader = LogReader()
    reader.feed(record(0)._replace(**change))
    found = reader.broken[0]
    assert words in found.what
    assert (found.partition, found.offset) == (0, 0)


@pytest.mark.parametrize("lost", ["ce_id", "ce_type", "ce_source", "ce_time"])
def test_each_header_that_an_event_lacks_is_found(lost: str) -> None:
    reader = LogReader()
    whole = record(0)
    assert lost in {name for name, _ in whole.headers}
    reader.feed(whole._replace(headers=[(name, value) for name, value in whole.headers if name != lost]))
    assert [one.what for one in reader.broken] == ["the record is no event: a CloudEvents header is missing"]


def test_a_record_names_the_schema_of_its_event_or_none() -> None:
    """The id that the reader derives is the one that a registry gives; what names another schema is found."""
    schema = registered_form(contract_of(RideRequested))
    submission = Submission(text=json.dumps(schema), references=(), type="JSON")
    own = header_of(submission.guid)
    reader, plain = LogReader(), record(0)
    reader.feed(plain)
    reader.feed(plain._replace(offset=1, headers=[*plain.headers, own]))
    assert reader.broken == []
    assert reader.content_of(reader.repeats[0]) == reader.content_of(reader.rides["r1"][0].row)
    other = header_of("00000000-0000-0000-0000-000000000001")
    reader.feed(record(2, event_id=RIDE[:-1] + "2")._replace(headers=[*plain.headers, other]))
    (found,) = reader.broken
    assert (found.what, found.offset) == ("the record's schema id is not that of 'ride.requested'", 2)


def test_an_offset_that_comes_twice_is_found() -> None:
    reader = LogReader()
    reader.feed(record(3))
    reader.feed(record(3, event_id=RIDE[:-1] + "2"))
    assert reader.broken[0].what == "offset 3 came again or too late"


@pytest.mark.parametrize(
    ("distance_m", "duration_s", "multiplier", "cents"),
    [(0, 0, 1.0, 800), (5_000, 900, 1.0, 1_570), (5_000, 900, 1.5, 2_355), (10_000, 1_800, 1.1, 3_124)],
)
def test_the_price_list(distance_m: int, duration_s: int, multiplier: float, cents: int) -> None:
    assert listed_fare(distance_m=distance_m, duration_s=duration_s, multiplier=multiplier) == cents


REPORT: dict[str, Any] = {
    "lines": [
        {"name": "bronze = log", "verdict": "agrees", "detail": "fine", "findings": []},
        {"name": "silver = bronze", "verdict": "agrees", "detail": "fine", "findings": []},
        {"name": "gold = recomputed", "verdict": "agrees", "detail": "fine", "findings": []},
    ],
    "partitions": [],
}


def lake_lines(report: dict[str, Any]) -> dict[str, Line]:
    reader = LogReader()
    reader.feed(record(0))
    place = ("rides.v1", 0)
    log = LogAccount(starts={place: 0}, ends={place: 1}, reader=reader)
    ledger = draw_up(Accounts(log=log, lake=LakeAccount(report=report)))
    return {one.id: one for one in ledger.lines if one.id.startswith("lake-")}


def part(**change: Any) -> dict[str, Any]:
    reader = LogReader()
    reader.feed(record(0))
    checksum = f"{reader.partitions['rides.v1', 0].checksum:016x}"
    whole = {"topic": "rides.v1", "partition": 0, "log_start": 0, "end": 1, "checked_from": 0}
    counts = {"log_records": 1, "lake_records": 1, "log_checksum": checksum, "lake_checksum": checksum}
    return {**whole, **counts, **change}


def test_a_lake_that_agrees() -> None:
    lines = lake_lines({**REPORT, "partitions": [part()]})
    assert {one.verdict for one in lines.values()} == {"agrees"}


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ([], "1 records are in the log, and the lake was not asked for them (rides.v1-0)"),
        ([part(end=2)], "compared to the end 2"),
        ([part(end=None, detail="it was made anew")], "the lake was not compared: it was made anew (rides.v1-0)"),
        ([part(checked_from=1)], "compared from 1 on"),
        ([part(lake_records=0)], "0 with"),
        ([part(lake_checksum="0" * 16)], "1 with 0000000000000000 in the lake"),
    ],
)
def test_a_lake_that_was_compared_with_something_else_disagrees(partitions: list[Any], words: str) -> None:
    found = lake_lines({**REPORT, "partitions": partitions})["lake-bronze"]
    assert found.verdict == "disagrees"
    assert words in found.detail


@pytest.mark.parametrize(
    "wrong", [{"end": 2}, {"end": None, "detail": "it was made anew"}, {"checked_from": 1}, {"log_start": 1}, None]
)
def test_a_partition_that_was_compared_with_something_else_hides_no_other(wrong: dict[str, Any] | None) -> None:
    reader = LogReader()
    reader.feed(record(0))
    reader.feed(record(0, event_id=RIDE[:-1] + "2", partition=1))
    reader.feed(record(0, event_id=RIDE[:-1] + "3", partition=2))
    ends = {("rides.v1", number): 1 for number in range(3)}
    log = LogAccount(starts=dict.fromkeys(ends, 0), ends=ends, reader=reader)
    sums = [f"{reader.partitions['rides.v1', number].checksum:016x}" for number in range(3)]
    parts = [part(partition=1, lake_records=0), part(partition=2, lake_checksum=sums[2])]
    parts += [] if wrong is None else [part(**wrong)]
    ledger = draw_up(Accounts(log=log, lake=LakeAccount(report={**REPORT, "partitions": parts})))
    (bronze,) = (one for one in ledger.lines if one.id == "lake-bronze")
    assert [found.partition for found in bronze.findings] == [0, 1]


def test_a_compacted_partition_is_compared_by_what_the_lake_read_of_the_log() -> None:
    reader = LogReader()
    reader.feed(record(0))
    reader.feed(record(2, event_id=RIDE[:-1] + "2"))
    place = ("rides.v1", 0)
    log = LogAccount(starts={place: 0}, ends={place: 3}, reader=reader)
    checksum = f"{reader.partitions[place].checksum:016x}"
    told = {"end": 3, "lake_records": 3, "lake_checksum": "0" * 16, "log_records": 2, "log_checksum": checksum}
    for change, verdict in (({}, "agrees"), ({"log_records": 3}, "disagrees"), ({"log_checksum": "1"}, "disagrees")):
        report = {**REPORT, "partitions": [part(**{**told, **change})]}
        ledger = draw_up(Accounts(log=log, lake=LakeAccount(report=report)))
        assert next(one for one in ledger.lines if one.id == "lake-bronze").verdict == verdict


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"lines": []},
        {"lines": "x"},
        {"lines": [{"name": "silver = bronze"}]},
        {"lines": [{**REPORT["lines"][1], "verdict": "fine"}]},
        {"lines": [{**REPORT["lines"][1], "verdict": "not_checked", "detail": "the broker is silent"}]},
        {"lines": [REPORT["lines"][1], REPORT["lines"][1]]},
    ],
)
def test_a_report_of_the_lake_that_cannot_be_read_is_not_excused(report: dict[str, Any]) -> None:
    lines = lake_lines(report)
    assert lines["lake-silver"].verdict == "not_checked"
    assert lines["lake-bronze"].verdict == "not_checked"


def test_what_the_lake_finds_is_a_finding_of_the_ledger() -> None:
    told = {"message": "rides.v1-0: offset 0 is altered", "topic": "rides.v1", "partition": 0, "offset": 0, "id": RIDE}
    silver = {"name": "silver = bronze", "verdict": "disagrees", "detail": "1 row", "findings": [told]}
    line_ = lake_lines({**REPORT, "lines": [REPORT["lines"][0], silver, REPORT["lines"][2]]})["lake-silver"]
    assert line_.verdict == "disagrees"
    assert line_.findings == (
        Finding(what="rides.v1-0: offset 0 is altered", topic="rides.v1", partition=0, offset=0, id=RIDE),
    )


def test_a_run_that_goes_on_leaves_its_end_open() -> None:
    reader = LogReader()
    reader.feed(record(0))
    place = ("rides.v1", 0)
    accounts = Accounts(
        log=LogAccount(starts={place: 0}, ends={place: 1}, reader=reader), moved=("rides.v1-0 went on",)
    )
    by_id = {one.id: one for one in draw_up(accounts).lines}
    assert by_id["still"].verdict == "not_checked"
    assert by_id["still"].detail.endswith("rides.v1-0 went on")
    so_far = {one.id: one for one in draw_up(replace(accounts, so_far=True)).lines}
    assert so_far["still"].verdict == "shown"
