"""Bronze against a log in memory: what is named, what is noted as verified, and from where a later run compares."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from analytics_spark.broker_view import Place, RecordSink, TopicView
from analytics_spark.verify.bronze import Bronze, check_bronze, unchecked_line
from analytics_spark.verify.bronze.comparison import LogRecords
from analytics_spark.verify.report import Finding, LineReport, PartitionReport
from analytics_spark.verify.sink_notes import SinkNotes
from analytics_spark.verify.state import Accepted, VerifiedPartition
from hailbus.record_sum import MODULUS, record_hash

Row = dict[str, Any]
DUCKDB = duckdb.connect(":memory:", config={"threads": 1})  # to start one takes longer than most tests
A, B, PAID = ("rides.v1", 0), ("rides.v1", 1), ("payments.v1", 2)
AT = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_type": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "ingest_batch": pa.int64(),
    }
)


@dataclass(frozen=True)
class Record:
    offset: int
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records(*offsets: int, key: bytes | None = None) -> list[Record]:
    """Records with an id each, and a key each unless one is given."""
    return [
        Record(one, key or b"key %d" % one, b"value %d" % one, (("ce_id", b"id-%d" % one), ("empty", None)))
        for one in offsets
    ]


@dataclass
class Log:
    """A broker's log in memory.

    Attributes:
        places: What it holds.
        views: What it says of its topics.
        later: What it says of them when it is asked again while it is compared.
        silent: What is not read, with the reason.
        reads: What was asked of it.
    """

    places: dict[Place, list[Record]]
    views: dict[str, TopicView]
    later: dict[str, TopicView] | None = None
    silent: dict[Place, str] = field(default_factory=dict)
    reads: list[Mapping[Place, tuple[int, int]]] = field(default_factory=list)
    described: list[Sequence[str]] = field(default_factory=list)

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        self.described.append(topics)
        views = self.views if self.later is None else self.later
        return {name: view for name, view in views.items() if name in topics}

    def read(self, wanted: Mapping[Place, tuple[int, int]], sink: RecordSink) -> dict[Place, str]:
        self.reads.append(dict(wanted))
        for place, (start, end) in wanted.items():
            for one in self.places.get(place, ()):
                if start <= one.offset < end and place not in self.silent:
                    sink(place, one.offset, one.key, one.value, one.headers)
        return {place: reason for place, reason in self.silent.items() if place in wanted}


def log_of(places: dict[Place, list[Record]], *, ends: Mapping[Place, int] | None = None) -> Log:
    """A log that begins at 0 and ends after its last record, or at the ends that are given."""
    views: dict[str, TopicView] = {}
    for (topic, partition), kept in places.items():
        view = views.setdefault(
            topic, TopicView(topic=topic, topic_id=f"id of {topic}", retention="retention.ms=1, retention.bytes=2")
        )
        view.starts[partition] = 0
        view.ends[partition] = (ends or {}).get((topic, partition), kept[-1].offset + 1 if kept else 0)
    return Log(places, views)


def rows_of(log: Log) -> list[Row]:
    """Bronze as it is when all of the log has landed."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "offset": one.offset,
            "timestamp": AT,
            "timestamp_type": "CreateTime",
            "key": one.key,
            "value": one.value,
            "headers": [{"key": name, "value": value} for name, value in one.headers],
            "ingest_batch": 0,
        }
        for (topic, partition), kept in log.places.items()
        for one in kept
    ]


def at(rows: Iterable[Row], place: Place, offset: int) -> Row:
    return next(row for row in rows if (row["topic"], row["partition"], row["offset"]) == (*place, offset))


class Compared(NamedTuple):
    line: LineReport
    parts: dict[Place, PartitionReport]
    verified: dict[Place, VerifiedPartition]
    allowances: list[str]

    @property
    def found(self) -> list[tuple[str, Place, int | None]]:
        return [(one.kind, (str(one.topic), one.partition or 0), one.offset) for one in self.line.findings]

    @property
    def messages(self) -> list[str]:
        return [one.message for one in self.line.findings]


def compare(
    rows: Sequence[Row],
    log: Log,
    *,
    state: Mapping[Place, VerifiedPartition] | None = None,
    notes: SinkNotes | None = None,
    topics: Sequence[str] = ("rides.v1", "payments.v1"),
    full: bool = False,
    accepts_deleted: bool = False,
) -> Compared:
    dataset = ds.dataset(pa.Table.from_pylist(list(rows), schema=SCHEMA))
    with DUCKDB.cursor() as connection:
        connection.register("bronze", dataset)
        bronze = Bronze(
            connection=connection,
            dataset=dataset,
            log=log,
            notes=notes or SinkNotes(),
            state=state or {},
            full=full,
            accepts_deleted=accepts_deleted,
        )
        line, parts, verified = check_bronze(bronze, log.views, topics)
    assert list(parts) == sorted(parts, key=lambda part: (part.topic, part.partition))
    return Compared(line, {(part.topic, part.partition): part for part in parts}, verified, bronze.allowances)


def checksum(place: Place, kept: Iterable[Record]) -> int:
    return sum(record_hash(place[1], one.offset, one.key, one.value, one.headers) for one in kept) % MODULUS


# -- what agrees


def test_a_whole_lake_agrees() -> None:
    log = log_of({A: records(*range(1_200)), B: records(0, 1, 4, 7), PAID: []}, ends={B: 9})
    found = compare(rows_of(log), log)
    assert (found.line.verdict, found.line.findings, found.allowances) == ("agrees", (), [])
    assert found.line.detail == "1,204 records in 3 partitions: counts and checksums are equal"
    assert log.reads == [{PAID: (0, 0), A: (0, 1_200), B: (0, 9)}]
    assert log.described == []  # nothing is left to explain
    for place, end, hidden in ((A, 1_200, 0), (B, 9, 5), (PAID, 0, 0)):
        kept = log.places[place]
        part, verified = found.parts[place], found.verified[place]
        assert part == PartitionReport(
            topic=place[0],
            partition=place[1],
            topic_id=f"id of {place[0]}",
            log_start=0,
            end=end,
            log_records=len(kept),
            lake_records=len(kept),
            log_checksum=checksum(place, kept),
            lake_checksum=checksum(place, kept),
            rows=len(kept),
            hidden_offsets=hidden,
        )
        assert verified == VerifiedPartition(
            topic_id=f"id of {place[0]}",
            end=end,
            rows=len(kept),
            checksum=checksum(place, kept),
            quick_sum=verified.quick_sum,
            quick_version=duckdb.__version__,
            verified_at=verified.verified_at,
        )
        assert bool(verified.quick_sum) == bool(kept)


@pytest.mark.parametrize("offsets", [[], [0], [5], [0, 1, 2], [3, 4, 5], [0, 1, 4, 7], [2, 9]])
def test_an_offset_is_found_where_it_stands(offsets: list[int]) -> None:
    log = LogRecords()
    log.offsets.extend(offsets)
    for offset in range(12):
        assert log.index(offset) == (offsets.index(offset) if offset in offsets else -1)


def test_without_a_broker_nothing_is_checked() -> None:
    line = unchecked_line()
    assert (line.verdict, line.findings_count, line.detail) == ("not_checked", 1, "1 unread")
    assert [one.message for one in line.findings] == ["no broker was given; name it with --bootstrap HOST:PORT"]


def test_a_broker_without_any_of_the_topics_is_no_proof() -> None:
    found = compare([], Log({}, {}))
    assert found.line.verdict == "not_checked"
    assert found.line.findings == (
        Finding(kind="unread", message="the broker has none of the topics rides.v1, payments.v1"),
    )
    assert (found.line.findings_count, found.parts) == (1, {})


def test_a_topic_that_neither_side_has_is_no_fault() -> None:
    log = log_of({A: records(0)})
    assert compare(rows_of(log), log, topics=("nobody.v1", "rides.v1")).line.verdict == "agrees"


# -- records


def test_each_fault_of_a_record_is_named_once() -> None:
    log = log_of({A: records(*range(8)), B: records(0, 1, 2), PAID: records(0)})
    rows = rows_of(log)
    rows.remove(at(rows, A, 2))
    rows += [at(rows, A, 4)] * 3
    at(rows, A, 5)["value"] = b"other"
    at(rows, A, 6)["key"] = b"other"
    at(rows, A, 6)["headers"] = None
    del log.places[B][1]
    found = compare(rows, log)
    assert found.line.verdict == "disagrees"
    assert sorted((one.kind, one.column, one.id, one.message) for one in found.line.findings) == [
        ("altered", "key and headers", "id-6", ("rides.v1-0: offset 6 (id id-6) is altered: its key and headers "
         "differ from the log's")),
        ("altered", "value", "id-5", "rides.v1-0: offset 5 (id id-5) is altered: its value differs from the log's"),
        ("doubled", None, "id-4", "rides.v1-0: offset 4 (id id-4) is in bronze more than once"),
        ("invented", None, "id-1", "rides.v1-1: offset 1 (id id-1) is in bronze and not in the log"),
        ("missing", None, "id-2", "rides.v1-0: offset 2 (id id-2) is in the log and not in bronze"),
    ]  # fmt: skip
    assert {(one.topic, one.table) for one in found.line.findings} == {("rides.v1", "bronze.events")}
    assert {(kind, *place, offset) for kind, place, offset in found.found} == {
        ("altered", "rides.v1", 0, 5),
        ("altered", "rides.v1", 0, 6),
        ("doubled", "rides.v1", 0, 4),
        ("invented", "rides.v1", 1, 1),
        ("missing", "rides.v1", 0, 2),
    }
    assert found.line.findings_count == 5
    assert found.line.detail == "2 altered, 1 doubled, 1 invented, 1 missing"
    assert {place: (part.verdict, part.detail) for place, part in found.parts.items()} == {
        A: ("disagrees", "altered, doubled, missing"),
        B: ("disagrees", "invented"),
        PAID: ("agrees", ""),
    }
    assert (found.parts[A].log_records, found.parts[A].lake_records, found.parts[A].rows) == (8, 10, 10)
    assert (found.parts[B].log_records, found.parts[B].lake_records, found.parts[B].rows) == (2, 2, 3)
    assert found.parts[A].log_checksum != found.parts[A].lake_checksum
    # Only what agrees is verified.
    assert list(found.verified) == [PAID]


def test_records_without_an_id_are_named_by_their_offset() -> None:
    log = log_of({A: [Record(0, headers=(("other", b"x"),)), Record(1, headers=(("ce_id", None),)), Record(2)]})
    found = compare(rows_of(log)[2:], log, notes=SinkNotes(landed={A: 3}))
    assert found.messages == [
        "rides.v1-0: offset 0 is in the log and not in bronze",
        "rides.v1-0: offset 1 is in the log and not in bronze",
    ]
    assert [one.id for one in found.line.findings] == [None, None]


def test_an_id_that_the_log_does_not_have_is_taken_from_the_lake() -> None:
    log = log_of({A: records(0, 1)})
    rows = rows_of(log)
    log.places[A][0] = replace(log.places[A][0], headers=())
    [finding] = compare(rows, log).line.findings
    assert (finding.kind, finding.column, finding.id) == ("altered", "headers", "id-0")


def test_records_are_named_without_their_ids_when_the_log_falls_silent() -> None:
    log = log_of({A: records(0, 1, 2, 3)})
    rows = rows_of(log)
    at(rows, A, 1)["value"] = b"other"
    rows.remove(at(rows, A, 2))
    whole, asked = log.read, []

    def read(wanted: Mapping[Place, tuple[int, int]], sink: RecordSink) -> dict[Place, str]:
        asked.append(dict(wanted))
        return whole(wanted, sink) if len(asked) == 1 else dict.fromkeys(wanted, "silence")

    log.read = read  # type: ignore[method-assign]  # the second read fails
    found = compare(rows, log)
    assert found.messages == [
        "rides.v1-0: offset 1 (id id-1) is altered: its content differs from the log's",
        "rides.v1-0: offset 2 is in the log and not in bronze",
    ]
    assert asked[1:] == [{A: (1, 2)}]


def test_the_records_of_each_partition_are_looked_up_one_by_one() -> None:
    log = log_of({A: records(*range(6)), B: records(*range(6))})
    found = compare([at(rows_of(log), A, 5), at(rows_of(log), B, 5)], log)
    assert [one.id for one in found.line.findings] == [f"id-{offset}" for _ in (A, B) for offset in range(5)]
    assert log.reads[1:] == [{A: (offset, offset + 1), B: (offset, offset + 1)} for offset in range(5)]


def test_twenty_findings_are_listed_and_all_are_counted() -> None:
    log = log_of({A: records(*range(30)), B: records(*range(30))})
    rows = [row | {"value": b"other"} for row in rows_of(log)]
    found = compare(rows, log)
    assert (len(found.line.findings), found.line.findings_count) == (20, 60)
    assert found.line.detail == "60 altered"
    assert {place: part.verdict for place, part in found.parts.items()} == {A: "disagrees", B: "disagrees"}


def test_a_record_of_a_partition_that_was_not_read_is_neither_missing_nor_verified() -> None:
    log = log_of({A: records(*range(4)), B: records(*range(4))})
    log.silent[A] = "no answer"
    rows = rows_of(log)
    rows.remove(at(rows, B, 1))
    found = compare(rows, log)
    assert found.found == [("unread", A, None), ("missing", B, 1)]
    assert found.messages[0] == "rides.v1-0: no answer"
    assert found.line.verdict == "disagrees"
    assert (found.parts[A].verdict, found.parts[A].detail) == ("not_checked", "unread")
    assert (found.parts[A].log_records, found.parts[A].lake_records) == (0, 0)
    assert found.verified == {}
    alone = compare(rows_of(log), log)
    assert alone.line.verdict == "not_checked"
    assert list(alone.verified) == [B]


def test_what_could_not_be_checked_and_what_was_not_compared_is_not_checked() -> None:
    """A partition that is unread and unverified is not checked; with one record missing it disagrees."""
    log = log_of({A: records(*range(2, 6))})
    log.views["rides.v1"].starts[0] = 2
    log.silent[A] = "no answer"
    rows = rows_of(log_of({A: records(*range(6))}))
    found = compare(rows, log)
    assert (found.parts[A].verdict, found.parts[A].detail) == ("not_checked", "unread, unverified")
    rows.remove(at(rows, A, 1))
    found = compare(rows, log)
    assert (found.parts[A].verdict, found.parts[A].detail) == ("disagrees", "lost, unread, unverified")


# -- the end of the log


def test_the_end_that_did_not_land_is_behind() -> None:
    log = log_of({A: records(*range(1_500)), B: records(0, 1, 2), PAID: records(0)})
    rows = [row for row in rows_of(log) if row["topic"] == "rides.v1" and row["offset"] < 2]
    found = compare(rows, log)
    assert found.found == [("behind", PAID, 0), ("behind", A, 2), ("behind", B, 2)]
    assert [one.id for one in found.line.findings] == [None, None, None]
    assert found.messages[1] == (
        "rides.v1-0: 1,498 records from offset 2 on are not in the lake: lake-sink has not landed them; start it, or "
        "let it catch up, and verify again"
    )
    assert found.line.findings_count == 1_498 + 1 + 1
    assert {place: (part.behind_records, part.detail) for place, part in found.parts.items()} == {
        A: (1_498, "behind"),
        B: (1, "behind"),
        PAID: (1, "behind"),
    }


def test_what_the_sink_noted_as_landed_is_missing() -> None:
    log = log_of({A: records(0, 1, 2, 3, 4)})
    found = compare(rows_of(log)[:2], log, notes=SinkNotes(landed={A: 3, B: 9}))
    assert found.found == [("behind", A, 3), ("missing", A, 2)]
    assert found.parts[A].behind_records == 2


def test_rows_beyond_the_end_may_have_come_since() -> None:
    log = log_of({A: records(*range(6)), B: records(0)}, ends={A: 4})
    rows = rows_of(log)
    log.later = {"rides.v1": TopicView(topic="rides.v1", topic_id="id of rides.v1", starts={0: 0}, ends={0: 6})}
    found = compare(rows, log)
    assert found.line.verdict == "agrees"
    assert log.described == [["rides.v1"]]
    assert (found.parts[A].log_records, found.parts[A].lake_records, found.parts[A].rows) == (4, 4, 4)
    assert found.verified[A].end == 4


def test_a_log_that_ends_below_the_lake_lost_its_newest_records() -> None:
    log = log_of({A: records(*range(6)), B: records(0, 1), PAID: []}, ends={A: 4, B: 1})
    found = compare(rows_of(log), log)
    assert found.found == [("invented", A, 5), ("invented", B, 1)]
    assert found.messages[0] == (
        "rides.v1-0: the lake has offset 5, and the log ends at 4: the broker lost its newest records, or is another "
        "one"
    )


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({}, "rides.v1-0: the topic is gone"),
        ({"rides.v1": TopicView(topic="rides.v1", unanswered="no answer", ends={0: 9})}, "rides.v1-0: no answer"),
        ({"rides.v1": TopicView(topic="rides.v1", ends={1: 9})}, "rides.v1-0: "),
    ],
)
def test_rows_beyond_the_end_of_which_the_broker_tells_nothing_are_not_checked(
    later: dict[str, TopicView], message: str
) -> None:
    log = log_of({A: records(*range(6))}, ends={A: 4})
    log.later = later
    found = compare(rows_of(log), log)
    assert (found.line.verdict, found.messages) == ("not_checked", [message])


# -- topics


def test_a_topic_with_another_id_is_replaced() -> None:
    log = log_of({A: records(0, 1), PAID: records(0)})
    rows = rows_of(log)
    first = compare(rows, log)
    log.views["rides.v1"].topic_id = "new"
    for state, notes, what in (
        (first.verified, SinkNotes(), "verified"),
        ({}, SinkNotes(topic_ids={"rides.v1": "id of rides.v1", "payments.v1": "id of payments.v1"}), "landed"),
    ):
        found = compare(rows, log, state=state, notes=notes)
        assert found.line.verdict == "disagrees"
        assert found.line.findings == (
            Finding(
                kind="replaced",
                message=f"rides.v1: it was deleted and created again: id id of rides.v1 was {what}, the broker now has "
                "new",
                topic="rides.v1",
                table="bronze.events",
            ),
        )
        assert found.line.findings_count == 1
        assert (found.parts[A].verdict, found.parts[A].rows, found.parts[A].end) == ("disagrees", 2, None)
        assert found.parts[A].detail.startswith("it was deleted")
        assert found.parts[PAID].verdict == "agrees"


def test_a_broker_without_ids_of_topics_is_compared_anew_each_time() -> None:
    log = log_of({A: records(0, 1)})
    first = compare(rows_of(log), log)
    log.views["rides.v1"].topic_id = None
    found = compare(rows_of(log), log, state=first.verified, notes=SinkNotes(topic_ids={"rides.v1": "another"}))
    assert found.line.verdict == "agrees"
    assert log.reads[-1] == {A: (0, 2)}
    assert found.verified[A].topic_id is None


def test_a_topic_or_partition_that_the_broker_lost_is_replaced() -> None:
    log = log_of({A: records(0, 1), B: records(0), PAID: records(0)})
    rows = rows_of(log)
    del log.views["payments.v1"]
    del log.views["rides.v1"].starts[1], log.views["rides.v1"].ends[1]
    found = compare(rows, log, topics=("rides.v1",))  # topics that the lake has are always compared
    assert found.messages == [
        "payments.v1: its rows are in the lake, and the broker has no such topic",
        "rides.v1-1: 1 rows are in the lake, and the broker has no such partition",
    ]
    assert {one.kind for one in found.line.findings} == {"replaced"}
    assert found.parts.keys() == {A, PAID}
    assert found.verified.keys() == {A}


def test_a_topic_of_which_the_broker_tells_nothing_is_not_checked() -> None:
    log = log_of({A: records(0, 1), PAID: records(0)})
    rows = rows_of(log)
    log.views["rides.v1"].unanswered = "no answer"
    found = compare(rows, log)
    assert (found.line.verdict, found.messages) == ("not_checked", ["rides.v1: no answer"])
    assert (found.parts[A].verdict, found.parts[A].detail, found.parts[A].rows) == ("not_checked", "no answer", 2)
    assert found.verified.keys() == {PAID}


# -- a later run


def verified_of(log: Log, rows: Sequence[Row]) -> dict[Place, VerifiedPartition]:
    found = compare(rows, log)
    assert found.line.verdict == "agrees", found.messages
    log.reads.clear()
    return found.verified


def grown(log: Log, more: dict[Place, list[Record]]) -> Log:
    return log_of({place: [*kept, *more.get(place, ())] for place, kept in log.places.items()})


def test_a_later_run_reads_only_what_came_since() -> None:
    old = log_of({A: records(0, 1, 2), B: records(0, 1), PAID: []})
    state = verified_of(old, rows_of(old))
    log = grown(old, {A: records(3, 4), PAID: records(0)})
    found = compare(rows_of(log), log, state=state)
    assert found.line.verdict == "agrees"
    assert log.reads == [{PAID: (0, 1), A: (3, 5), B: (2, 2)}]
    assert found.line.detail == (
        "3 records in 3 partitions: counts and checksums are equal; 5 rows were compared earlier or accepted, and are "
        "unchanged"
    )
    part = found.parts[A]
    assert (part.verified_before, part.checked_from, part.log_records, part.lake_records) == (3, 3, 2, 2)
    assert part.rows == 5
    assert part.log_checksum == part.lake_checksum == checksum(A, records(3, 4))
    again = compare(rows_of(log), log)
    for place in log.places:
        assert found.verified[place] == replace(again.verified[place], verified_at=found.verified[place].verified_at)
    assert again.verified[A].checksum == checksum(A, log.places[A])
    full = compare(rows_of(log), log, state=state, full=True)
    assert log.reads[-1] == {PAID: (0, 1), A: (0, 5), B: (0, 2)}
    assert full.line.detail == "8 records in 3 partitions: counts and checksums are equal"
    assert full.verified[A].checksum == checksum(A, log.places[A])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows, row: rows.remove(row), ("missing", A, 1)),
        (lambda rows, row: rows.append(row), ("doubled", A, 1)),
        (lambda _, row: row.update(value=b"other"), ("altered", A, 1)),
    ],
    ids=["removed", "doubled", "altered"],
)
def test_a_change_below_what_was_verified_is_named(change: Any, found: tuple[str, Place, int]) -> None:
    old = log_of({A: records(0, 1, 2), B: records(0)})
    state = verified_of(old, rows_of(old))
    log = grown(old, {A: records(3)})
    rows = rows_of(log)
    change(rows, at(rows, A, 1))
    for full in (False, True):
        compared = compare(rows, log, state=state, full=full)
        assert compared.found == [found]
        # What was verified stays noted as it was; only what agrees moves on.
        assert compared.verified[A] == state[A]
        assert compared.parts[A].checked_from == 0
        assert log.reads[0][A] == (0, 4)
        log.reads.clear()


def test_an_altered_timestamp_below_what_was_verified_is_noticed() -> None:
    log = log_of({A: records(0, 1, 2)})
    rows = rows_of(log)
    state = verified_of(log, rows)
    at(rows, A, 1)["timestamp"] += timedelta(seconds=1)
    found = compare(rows, log, state=state)
    assert found.found == [("altered", A, None)]
    assert found.messages == [
        (
            "rides.v1-0: the timestamps of rows that were verified earlier are altered: offsets below 3 are not "
            f"what they were on {state[A].verified_at} (3 rows, 3 then)"
        )
    ]
    assert found.verified == state


def test_rows_that_the_log_has_deleted_since_are_still_watched() -> None:
    log = log_of({A: records(*range(5))})
    rows = rows_of(log)
    state = verified_of(log, rows)
    log.views["rides.v1"].starts[0] = 3
    assert compare(rows, log, state=state).line.verdict == "agrees"
    assert log.reads[-1] == {A: (5, 5)}
    full = compare(rows, log, state=state, full=True)
    assert full.line.verdict == "agrees"
    assert log.reads[-1] == {A: (3, 5)}
    assert full.verified[A].checksum == state[A].checksum
    at(rows, A, 1)["value"] = b"other"
    for is_full in (False, True):
        found = compare(rows, log, state=state, full=is_full)
        assert found.messages == [
            (
                "rides.v1-0: rows that the log has deleted since are altered, missing or doubled: offsets below 5 "
                f"are not what they were on {state[A].verified_at} (5 rows, 5 then)"
            )
        ]


def test_another_version_of_duckdb_hashes_the_rows_again() -> None:
    log = log_of({A: records(*range(5))})
    log.views["rides.v1"].starts[0] = 3
    rows = rows_of(log_of({A: records(*range(5))}))
    fresh = log_of({A: records(*range(5))})
    state = {place: replace(one, quick_version="0.0.1", quick_sum=7) for place, one in verified_of(fresh, rows).items()}
    found = compare(rows, log, state=state)
    assert found.line.verdict == "agrees"
    assert log.reads[-1] == {A: (5, 5)}
    assert found.verified[A].quick_version == duckdb.__version__
    assert found.verified[A].checksum == checksum(A, records(*range(5)))
    at(rows, A, 1)["value"] = b"other"
    found = compare(rows, log, state=state)
    assert found.messages == [
        f"rides.v1-0: rows below offset 5 are not those that were verified on {state[A].verified_at}: 5 rows, 5 then"
    ]
    rows.remove(at(rows, A, 1))
    found = compare(rows, log, state=state)
    assert found.messages == [
        f"rides.v1-0: rows below offset 5 are not those that were verified on {state[A].verified_at}: 4 rows, 5 then"
    ]


def test_only_the_partitions_that_changed_are_compared_from_their_start() -> None:
    log = log_of({A: records(*range(6)), B: records(*range(6))})
    old = log_of({A: records(*range(4)), B: records(*range(5))})
    state = verified_of(old, rows_of(old))
    rows = rows_of(log)
    at(rows, A, 1)["timestamp"] += timedelta(seconds=1)
    found = compare(rows, log, state=state)
    assert log.reads[-1] == {A: (0, 6), B: (5, 6)}
    assert found.found == [("altered", A, None)]
    assert (found.parts[A].verified_before, found.parts[B].verified_before) == (0, 5)
    assert (found.parts[A].lake_records, found.parts[B].lake_records) == (6, 1)
    assert found.verified[B].checksum == checksum(B, log.places[B])


def test_a_log_that_is_shorter_than_it_was_has_retreated() -> None:
    log = log_of({A: records(*range(5)), B: records(0)})
    rows = rows_of(log)
    state = verified_of(log, rows)
    log.views["rides.v1"].ends[0] = 3
    found = compare(rows, log, state=state)
    assert found.found[0] == ("retreated", A, 3)
    assert found.messages[0] == (
        f"rides.v1-0: the log ends at offset 3, and 5 was its end on {state[A].verified_at}: the broker lost 2 offsets"
    )
    assert ("invented", A, 4) in found.found
    assert found.parts[A].hidden_offsets == 0
    assert found.verified[A] == state[A]


# -- the start of the log


def test_what_the_log_deleted_before_it_was_compared_is_not_checked() -> None:
    log = log_of({A: records(*range(8)), B: records(0)})
    rows = rows_of(log)
    log.views["rides.v1"].starts[0] = 4
    found = compare(rows, log)
    assert found.line.findings == (
        Finding(
            kind="unverified",
            message="rides.v1-0: 4 rows between offsets 0 and 3 were never compared, and the log begins at 4; verify "
            "more often than the topic's retention (retention.ms=1, retention.bytes=2), and see `lake verify --help` "
            "for --accept-deleted",
            topic="rides.v1",
            partition=0,
            offset=0,
            table="bronze.events",
        ),
    )
    assert (found.line.verdict, found.line.findings_count) == ("not_checked", 4)
    assert (found.parts[A].verified_before, found.parts[A].checked_from, found.parts[A].log_records) == (0, 4, 4)
    assert found.verified.keys() == {B}


@pytest.mark.parametrize(("gone", "first"), [((2,), 2), ((0, 1), 0), ((1, 3), 1), ((3,), 3)])
def test_a_hole_below_the_start_of_the_log_is_lost(gone: tuple[int, ...], first: int) -> None:
    log = log_of({A: records(*range(8)), B: records(*range(8))})
    rows = [row for row in rows_of(log) if row["partition"] == 1 or row["offset"] not in gone]
    log.views["rides.v1"].starts[0] = 4
    found = compare(rows, log)
    assert found.found == [("lost", A, first), ("unverified", A, 0)]
    assert found.messages[0].startswith(
        f"rides.v1-0: {len(gone)} offsets between 0 and 3 are not in the lake, the first is {first}, and the log "
        "begins at 4: records that were deleted before they landed are lost to the lake; verify more often"
    )
    assert found.line.findings_count == 4
    assert found.line.verdict == "disagrees"


def test_a_lake_without_any_row_below_the_start_lost_them_all() -> None:
    log = log_of({A: records(*range(8))})
    log.views["rides.v1"].starts[0] = 4
    found = compare([row for row in rows_of(log) if row["offset"] >= 4], log)
    assert (found.found, found.line.findings_count) == ([("lost", A, 0)], 4)


def test_what_came_between_two_runs_and_was_deleted_is_not_checked() -> None:
    old = log_of({A: records(*range(3))})
    state = verified_of(old, rows_of(old))
    log = grown(old, {A: records(*range(3, 8))})
    log.views["rides.v1"].starts[0] = 5
    rows = rows_of(log)
    found = compare(rows, log, state=state)
    assert found.found == [("unverified", A, 3)]
    assert found.messages[0].startswith("rides.v1-0: 2 rows between offsets 3 and 4 were never compared, and the log")
    rows.remove(at(rows, A, 3))
    found = compare(rows, log, state=state)
    assert found.found == [("lost", A, 3), ("unverified", A, 3)]


def test_where_the_lake_began_is_no_hole() -> None:
    log = log_of({A: records(*range(4, 8)), B: records(0)})
    log.views["rides.v1"].starts[0] = 4
    notes = SinkNotes(began={A: 4})
    found = compare(rows_of(log), log, notes=notes)
    assert found.line.verdict == "agrees"
    assert found.allowances == [
        (
            "rides.v1-0: the log began at offset 4 when the lake began (noted by lake-sink at its first "
            "start): earlier records are not expected"
        )
    ]
    assert (found.parts[A].verified_before, found.parts[A].checked_from) == (0, 4)
    log.views["rides.v1"].starts[0] = 6
    found = compare(rows_of(log), log, notes=notes)
    assert found.found == [("unverified", A, 4)]


def test_a_person_may_accept_what_nobody_can_compare() -> None:
    log = log_of({A: records(*range(1_600))})
    rows = rows_of(log)
    rows.remove(at(rows, A, 5))
    log.views["rides.v1"].starts[0] = 1_500
    first = compare(rows, log, accepts_deleted=True)
    assert first.line.verdict == "agrees"
    accepted = Accepted(start=0, end=1_500, rows=1_499, accepted_at=first.verified[A].accepted[0].accepted_at)
    assert first.verified[A].accepted == (accepted,)
    sentence = (
        "rides.v1-0: offsets 0 to 1499 (1,499 rows) were deleted by the broker before they were compared; accepted on "
        f"{accepted.accepted_at}"
    )
    assert first.allowances == [sentence]
    for full in (False, True):
        later = compare(rows, log, state=first.verified, full=full)
        assert (later.line.verdict, later.allowances) == ("agrees", [sentence])
        assert later.verified[A].accepted == (accepted,)
    log.views["rides.v1"].starts[0] = 1_600
    log.views["rides.v1"].ends[0] = 1_600
    assert compare(rows, log, state=first.verified).allowances == [sentence]


# -- compaction, and retention while records are compared


def test_compaction_explains_tombstones_and_what_has_a_newer_record_of_its_key() -> None:
    whole = {
        A: [*records(0, 1, 2, key=b"k"), Record(3, b"gone", None), *records(4, 5, key=b"other"), Record(6, None)],
        B: records(0, 1, key=b"k"),
    }
    rows = rows_of(log_of(whole))
    log = log_of({A: [whole[A][2], whole[A][5], whole[A][6]], B: [whole[B][1]]})
    log.views["rides.v1"].is_compacted = True
    found = compare(rows, log)
    assert found.line.verdict == "agrees", found.messages
    assert found.allowances == [
        (
            "5 rows in 2 partitions are no longer in the log: their topics are compacted, and each is a tombstone or "
            "has a newer record of its key in the lake"
        )
    ]
    assert found.parts[A].hidden_offsets == 4
    # The newest record of a key, and a record without a key, have no such excuse.
    del log.places[A][1:]
    found = compare(rows, log)
    assert found.found == [("invented", A, 5), ("invented", A, 6)]


def test_a_topic_that_is_not_compacted_has_no_such_excuse() -> None:
    log = log_of({A: records(0, 1, 2, key=b"k"), PAID: records(0, 1, key=b"k")})
    rows = rows_of(log)
    del log.places[A][0], log.places[PAID][0]
    log.views["payments.v1"].is_compacted = True
    found = compare(rows, log)
    assert found.found == [("invented", A, 0)]
    assert found.parts[PAID].verdict == "agrees"
    assert found.allowances[0].startswith("1 rows in 1 partitions are no longer in the log")


def test_what_retention_deletes_while_it_is_compared_is_not_checked() -> None:
    log = log_of({A: records(*range(6)), B: records(*range(6))})
    rows = rows_of(log)
    del log.places[A][:2], log.places[B][1]
    log.later = {"rides.v1": replace(log.views["rides.v1"], starts={0: 2, 1: 1})}
    found = compare(rows, log)
    assert found.found == [("unverified", A, 0), ("invented", B, 1)]
    assert found.messages[0] == (
        "rides.v1-0: the log deleted 2 records from offset 0 on while they were compared: verify again"
    )
    assert found.line.findings_count == 3
    for later in ({}, {"rides.v1": replace(log.views["rides.v1"], starts={0: 2, 1: 1}, unanswered="no answer")}):
        log.later = later
        assert compare(rows, log).found == [("invented", A, 0), ("invented", A, 1), ("invented", B, 1)]
