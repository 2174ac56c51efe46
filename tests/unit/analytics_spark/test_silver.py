"""Silver against bronze, both in memory: every row is answered for, and each column is derived again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from analytics_spark.verify.report import Finding, LineReport, SilverReport
from analytics_spark.verify.silver import Refused, check_silver, derive, unchecked_line
from hailbus import Catalogue, Event, Topic
from hailbus.codec import encode, envelope_for
from pydantic import BaseModel, Field

Row = dict[str, Any]
THINGS, OTHERS = Topic("things.v1", partitions=1), Topic("others.v1", partitions=1)
AT = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)
INGESTED = datetime(2026, 1, 2, tzinfo=UTC)


class Part(BaseModel):
    name: str
    weight: float | None = None


class Thing(Event, topic=THINGS, key="thing_id", type="thing.made", version=1):
    """A thing was made."""

    thing_id: str
    size: int
    share: float = 0.5
    made_at: datetime
    day: date | None = None
    price: Decimal | None = None
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    shares: dict[str, float] | None = None
    mixed: int | str | None = None
    flag: bool = True
    renamed: str | None = Field(default=None, alias="called", serialization_alias="said")
    aliased: str | None = Field(default=None, alias="also")


class Other(Event, topic=OTHERS, key="other_id", type="other.made", version=1):
    """Another thing was made."""

    other_id: str


CATALOGUE = Catalogue((Thing, Other))
DUCKDB = duckdb.connect(":memory:", config={"threads": 1})  # to start one takes longer than most tests
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
TIME = pa.timestamp("us", tz="UTC")
COORDINATES = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": TIME}
RAW = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "ingested_at": TIME}
ENVELOPE = {
    **dict.fromkeys(("ce_id", "ce_source", "ce_type"), pa.string()),
    "ce_version": pa.int64(),
    "ce_time": TIME,
    **dict.fromkeys(("ce_subject", "correlation_id", "causation_id", "traceparent"), pa.string()),
}
PART = pa.struct({"name": pa.string(), "weight": pa.float64()})
SCHEMAS = {
    "bronze": COORDINATES | RAW,
    "silver.things": ENVELOPE
    | {
        "thing_id": pa.string(),
        "size": pa.int64(),
        "share": pa.float64(),
        "made_at": TIME,
        "day": pa.date32(),
        "price": pa.decimal128(38, 9),
        "part": PART,
        "parts": pa.list_(PART),
        "shares": pa.map_(pa.string(), pa.float64()),
        "mixed": pa.string(),
        "flag": pa.bool_(),
        "said": pa.string(),
        "also": pa.string(),
    }
    | COORDINATES
    | {"ingested_at": TIME, "silver_batch": pa.int64()},
    "silver.others": ENVELOPE
    | {"other_id": pa.string()}
    | COORDINATES
    | {"ingested_at": TIME, "silver_batch": pa.int64()},
    "silver.quarantine": COORDINATES | RAW | {"error": pa.string(), "reason": pa.string(), "silver_batch": pa.int64()},
}


def thing(number: int) -> Thing:
    return Thing(
        thing_id=f"thing-{number}",
        size=number,
        made_at=AT + timedelta(minutes=number),
        day=date(2014, 5, 1),
        price=Decimal("1.50"),
        part=Part(name="whole", weight=2),
        parts=(Part(name="left"), Part(name="right", weight=1)),
        shares={"a": 1},
        mixed=number,
        called="x",
        also="y",
    )


@dataclass
class Lake:
    """Bronze and silver in memory. What silver should hold is written out here, not derived."""

    tables: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in SCHEMAS})

    def land(self, event: Event | None, topic: str, *, id: str, value: bytes | None = None) -> Row:
        """Add a record to bronze: an event, or bytes in its place."""
        encoded = encode(event or thing(0), envelope_for(event or thing(0), source="/s", time=AT, id=id))
        row = {
            "topic": topic,
            "partition": 0,
            "offset": len(self.tables["bronze"]),
            "timestamp": AT,
            "key": encoded.key,
            "value": encoded.value if event else value,
            "headers": [{"key": name, "value": content} for name, content in encoded.headers],
            "ingested_at": INGESTED,
        }
        self.tables["bronze"].append(row)
        return row

    def thing(self, number: int, *, id: str) -> None:
        """Land a thing, and type it."""
        row = self.land(thing(number), "things.v1", id=id)
        self.tables["silver.things"].append(
            _envelope(id, "thing.made", f"thing-{number}")
            | {
                "thing_id": f"thing-{number}",
                "size": number,
                "share": 0.5,
                "made_at": AT + timedelta(minutes=number),
                "day": date(2014, 5, 1),
                "price": Decimal("1.5"),
                "part": {"name": "whole", "weight": 2.0},
                "parts": [{"name": "left", "weight": None}, {"name": "right", "weight": 1.0}],
                "shares": [("a", 1.0)],
                "mixed": f"{number}",
                "flag": True,
                "said": "x",
                "also": "y",
            }
            | _coordinates(row)
        )

    def other(self, *, id: str) -> None:
        """Land another thing, and type it."""
        row = self.land(Other(other_id="o"), "others.v1", id=id)
        typed = _envelope(id, "other.made", "o") | {"other_id": "o"} | _coordinates(row)
        self.tables["silver.others"].append(typed)

    def refused(self, *, id: str, value: bytes | None = b"no json", error: str = "InvalidPayloadError") -> None:
        """Land what no event class accepts, and quarantine it."""
        row = self.land(None, "things.v1", id=id, value=value)
        self.tables["silver.quarantine"].append(dict(row) | {"error": error, "reason": "why", "silver_batch": 0})

    def check(
        self, *, seed: int = 1, schemas: Mapping[str, Mapping[str, pa.DataType]] = SCHEMAS
    ) -> tuple[LineReport, SilverReport]:
        with DUCKDB.cursor() as connection:
            connection.execute("SET TimeZone='America/New_York'")
            for name, schema in schemas.items():
                rows = [{column: row.get(column) for column in schema} for row in self.tables[name]]
                table = pa.Table.from_pylist(rows, schema=pa.schema(dict(schema)))
                connection.register(name.replace(".", "__"), ds.dataset(table))
            silver = {name: pa.schema(dict(schema)) for name, schema in schemas.items() if name != "bronze"}
            return check_silver(connection, silver, CATALOGUE, seed=seed)


def _envelope(id: str, kind: str, subject: str) -> Row:
    said = {"ce_id": id, "ce_source": "/s", "ce_type": kind, "ce_version": 1, "ce_time": AT, "ce_subject": subject}
    return said | {"correlation_id": None, "causation_id": None, "traceparent": None}


def _coordinates(row: Row) -> Row:
    names = ("topic", "partition", "offset", "timestamp", "ingested_at")
    return {name: row[name] for name in names} | {"silver_batch": 0}


@pytest.fixture
def lake() -> Lake:
    """Offsets 0 to 2 are things, 3 is another thing, 4 and 5 are refused, and 6 repeats the event of 1."""
    made = Lake()
    for number in range(3):
        made.thing(number, id=f"id-{number}")
    made.other(id="id-other")
    made.refused(id="id-refused")
    made.refused(id="id-gone", value=None, error="TombstoneError")
    made.land(thing(1), "things.v1", id="id-1")
    return made


Found = tuple[str, str | None, int | None, str | None, str | None]


def in_order(found: list[Found]) -> list[Found]:
    """The order of the rows of one table is duckdb's: findings are compared by place."""
    return sorted(found, key=lambda one: (one[2] or 0, *map(str, one)))


def kinds(line: LineReport) -> list[Found]:
    return in_order([(one.kind, one.table, one.offset, one.id, one.column) for one in line.findings])


def test_every_row_is_answered_for(lake: Lake) -> None:
    line, report = lake.check(seed=7)
    assert line.findings == ()
    assert line.verdict == "agrees"
    assert report == SilverReport(bronze=7, typed=4, quarantined=2, duplicates=1, unaccounted=0, sampled=7)
    assert line.detail == (
        "7 bronze rows = 4 typed + 2 quarantined + 1 repeated; 7 rows and 2 of the quarantine derived again (seed 7): "
        "equal in every column"
    )


def test_a_lake_that_cannot_be_compared_is_not_checked() -> None:
    line = unchecked_line("the reason")
    assert (line.verdict, line.findings) == ("not_checked", (Finding(kind="unread", message="the reason"),))


def test_rows_that_silver_lacks_are_missing(lake: Lake) -> None:
    del lake.tables["silver.things"][2], lake.tables["silver.quarantine"][0], lake.tables["silver.others"][0]
    line, report = lake.check()
    assert kinds(line) == in_order(
        [
            ("missing", "silver.things", 2, "id-2", None),
            ("missing", "silver.others", 3, "id-other", None),
            ("missing", "silver.quarantine", 4, None, None),
        ]
    )
    assert {one.message for one in line.findings} == {
        (
            "silver.things: things.v1-0 offset 2 (id id-2) is in bronze, and neither typed nor a repeated "
            "event: silver has not typed it yet, or lost it"
        ),
        (
            "silver.others: others.v1-0 offset 3 (id id-other) is in bronze, and neither typed nor a repeated "
            "event: silver has not typed it yet, or lost it"
        ),
        "silver.quarantine: things.v1-0 offset 4 is refused (InvalidPayloadError) and not in the quarantine",
    }
    assert (report.duplicates, report.unaccounted) == (1, 3)


def test_an_event_that_repeats_another_source_is_no_repeat(lake: Lake) -> None:
    for row in lake.tables["silver.things"]:
        row["ce_source"] = "/another"
    line, report = lake.check()
    assert ("missing", "silver.things", 6, "id-1", None) in kinds(line)
    assert (report.duplicates, report.unaccounted) == (0, 1)


def test_rows_that_bronze_lacks_are_invented_and_hide_no_other(lake: Lake) -> None:
    things = lake.tables["silver.things"]
    things.insert(0, things[0] | {"offset": 100, "ce_id": "new"})
    things[2]["size"] = 99
    quarantine = lake.tables["silver.quarantine"]
    quarantine.insert(0, quarantine[0] | {"offset": 101})
    quarantine.append(quarantine[0] | {"offset": 102})
    quarantine[1]["error"] = "OtherError"
    line, _ = lake.check()
    assert kinds(line) == in_order(
        [
            ("invented", "silver.things", 100, "new", None),
            ("invented", "silver.quarantine", 101, None, None),
            ("invented", "silver.quarantine", 102, None, None),
            ("altered", "silver.things", 1, "id-1", "size"),
            ("altered", "silver.quarantine", 4, None, "error"),
        ]
    )
    assert [one.message for one in line.findings if one.kind == "invented"] == [
        "silver.things: things.v1-0 offset 100 (id new) is not in bronze",
        "silver.quarantine: things.v1-0 offset 101 is not in bronze",
        "silver.quarantine: things.v1-0 offset 102 is not in bronze",
    ]


def test_rows_of_the_quarantine_that_bronze_lacks_hide_no_other_in_any_order() -> None:
    lake = Lake()
    for number in range(10):
        lake.refused(id=f"id-{number}", error="OtherError")
    quarantine = lake.tables["silver.quarantine"]
    quarantine[:] = [row | {"offset": row["offset"] + more} for row in quarantine for more in (0, 100)]
    line, _ = lake.check()
    assert line.detail == "10 altered, 10 invented"


def test_rows_that_are_there_twice_are_doubled(lake: Lake) -> None:
    lake.tables["silver.things"].append(dict(lake.tables["silver.things"][1]))
    lake.tables["silver.quarantine"].append(dict(lake.tables["silver.quarantine"][0]))
    line, report = lake.check()
    assert kinds(line) == in_order(
        [
            ("doubled", "silver.things", 1, "id-1", None),
            ("doubled", "silver.quarantine", 4, None, None),
        ]
    )
    assert line.findings[0].message == "silver.things: things.v1-0 offset 1 (id id-1) is in silver more than once"
    assert (report.typed, report.quarantined) == (5, 3)


def test_an_event_id_that_two_rows_have_is_doubled(lake: Lake) -> None:
    row = lake.tables["bronze"][6]
    lake.tables["silver.things"].append(lake.tables["silver.things"][1] | _coordinates(row))
    line, report = lake.check()
    assert [(one.kind, one.id, one.message) for one in line.findings] == [
        (
            "doubled",
            "id-1",
            "silver.things: things.v1-0 offset 6 (id id-1) has an event id that another row of silver has, too",
        )
    ]
    assert report.duplicates == 0


def test_a_row_in_the_table_of_another_topic_is_misplaced(lake: Lake) -> None:
    [row] = lake.tables["silver.others"]
    lake.tables["silver.others"].clear()
    lake.tables["silver.things"].append({name: row.get(name) for name in SCHEMAS["silver.things"]})
    line, _ = lake.check()
    assert kinds(line)[0] == ("misplaced", "silver.things", 3, "id-other", None)
    assert line.findings[0].message.endswith("offset 3 (id id-other) belongs in the table of its own topic")


def test_what_the_classes_accept_may_not_be_quarantined_nor_the_other_way_round(lake: Lake) -> None:
    things, quarantine = lake.tables["silver.things"], lake.tables["silver.quarantine"]
    refused = quarantine.pop(0)
    quarantine.insert(0, dict(lake.tables["bronze"][0]) | {"error": "SomeError", "reason": "taste", "silver_batch": 0})
    things[0] |= _coordinates(refused) | {"ce_id": "made-up"}
    quarantine[1]["error"] = "OtherError"
    things[1]["size"] = 99
    line, _ = lake.check()
    assert kinds(line) == in_order(
        [
            ("altered", "silver.things", 1, "id-1", "size"),
            ("wrongly_typed", "silver.things", 4, "made-up", None),
            ("wrongly_quarantined", "silver.quarantine", 0, "id-0", None),
            ("altered", "silver.quarantine", 5, None, "error"),
        ]
    )
    by_kind = {one.kind: one.message for one in line.findings}
    assert "is typed, and the event classes refuse it: InvalidPayloadError: the value of" in by_kind["wrongly_typed"]
    assert by_kind["wrongly_quarantined"].endswith("is quarantined, and the event classes accept it")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("ce_source", "/another"),
        ("ce_type", "thing.lost"),
        ("ce_version", 2),
        ("ce_time", AT + timedelta(microseconds=1)),
        ("ce_subject", "another"),
        ("correlation_id", "another"),
        ("causation_id", "another"),
        ("traceparent", "another"),
        ("thing_id", "another"),
        ("size", 99),
        ("size", None),
        ("share", 0.25),
        ("made_at", None),
        ("day", date(2014, 5, 2)),
        ("price", Decimal("1.51")),
        ("part", {"name": "whole", "weight": None}),
        ("part", None),
        ("parts", []),
        ("parts", [{"name": "left", "weight": None}, {"name": "right", "weight": 2.0}]),
        ("shares", [("a", 2.0)]),
        ("shares", []),
        ("mixed", "99"),
        ("mixed", "no json"),
        ("flag", False),
        ("said", "z"),
        ("also", None),
        ("timestamp", AT + timedelta(microseconds=1)),
        ("ingested_at", INGESTED + timedelta(microseconds=1)),
    ],
)
def test_an_altered_column_is_named(lake: Lake, column: str, value: object) -> None:
    lake.tables["silver.things"][2][column] = value
    line, report = lake.check()
    assert kinds(line)[-1:] == [("altered", "silver.things", 2, "id-2", column)]
    assert line.findings_count == 1
    assert line.findings[0].message.startswith(f"silver.things: things.v1-0 offset 2 (id id-2) has {column} = ")
    assert report.unaccounted == 0


def test_an_altered_id_is_named_as_it_is_in_silver(lake: Lake) -> None:
    lake.tables["silver.things"][2]["ce_id"] = "another"
    assert kinds(lake.check()[0]) == [("altered", "silver.things", 2, "another", "ce_id")]
    lake.tables["silver.things"][2]["ce_id"] = None
    assert kinds(lake.check()[0]) == [("altered", "silver.things", 2, "id-2", "ce_id")]


def test_a_message_shortens_long_values_and_writes_times_as_iso_8601(lake: Lake) -> None:
    lake.tables["silver.things"][2] |= {"ce_time": AT.replace(hour=9), "ce_subject": "x" * 200}
    line, _ = lake.check()
    assert [one.message for one in line.findings] == [
        (
            "silver.things: things.v1-0 offset 2 (id id-2) has ce_time = 2014-05-01T09:00:00+00:00, and bronze says "
            "2014-05-01T08:00:00+00:00"
        ),
        f"silver.things: things.v1-0 offset 2 (id id-2) has ce_subject = '{'x' * 78}…, and bronze says 'thing-2'",
    ]


def test_batches_of_silver_are_not_compared(lake: Lake) -> None:
    for name in ("silver.things", "silver.quarantine"):
        for number, row in enumerate(lake.tables[name]):
            row["silver_batch"] = number
    assert lake.check()[0].verdict == "agrees"


def test_a_column_that_silver_lacks_is_missing_where_an_event_fills_it(lake: Lake) -> None:
    narrow = {name: dict(schema) for name, schema in SCHEMAS.items()}
    del narrow["silver.things"]["size"], narrow["silver.things"]["traceparent"]
    line, _ = lake.check(schemas=narrow)
    assert kinds(line) == [("missing", "silver.things", number, f"id-{number}", "size") for number in range(3)]
    assert sorted(one.message for one in line.findings) == [
        f"silver.things: things.v1-0 offset {number} (id id-{number}) has no column size" for number in range(3)
    ]


def test_a_bronze_table_without_a_newer_column_is_compared_all_the_same(lake: Lake) -> None:
    old = {name: dict(schema) for name, schema in SCHEMAS.items()}
    del old["bronze"]["ingested_at"]
    line, _ = lake.check(schemas=old)
    assert {one.column for one in line.findings} == {"ingested_at"}


@pytest.mark.parametrize(
    ("column", "value"),
    [("error", "OtherError"), ("key", b"another"), ("value", b"another"), ("headers", []), ("headers", None)],
)
def test_altered_columns_of_the_quarantine_are_named(lake: Lake, column: str, value: object) -> None:
    lake.tables["silver.quarantine"][0][column] = value
    line, _ = lake.check()
    assert kinds(line) == [("altered", "silver.quarantine", 4, None, column)]
    narrow = {name: dict(schema) for name, schema in SCHEMAS.items()}
    del narrow["silver.quarantine"][column]
    assert lake.check(schemas=narrow)[0].verdict == "agrees"


def test_a_sample_of_rows_is_derived_again_and_the_seed_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics_spark.verify.silver.SAMPLE_ROWS", 3)
    lake = Lake()
    for number in range(6):
        lake.thing(number, id=f"id-{number}")
    for number in range(6):
        lake.refused(id=f"id-refused-{number}")
    lake.tables["silver.things"][4]["size"] = 99
    lake.tables["silver.quarantine"][4]["error"] = "OtherError"
    found = {}
    for seed in range(8):
        line, report = lake.check(seed=seed)
        assert report.sampled == 3
        assert "6 of" not in line.detail
        found[seed] = kinds(line)
        assert lake.check(seed=seed)[0] == line
    columns = {tuple(column for *_, column in one) for one in found.values()}
    assert columns >= {(), ("size",), ("error",)}


def test_rows_are_read_in_pieces(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics_spark.verify.silver._PIECE", 2)
    monkeypatch.setattr("analytics_spark.verify.silver._ROWS_AT_ONCE", 1)
    line, report = lake.check()
    assert (line.verdict, report.duplicates, report.sampled) == ("agrees", 1, 7)
    for row in lake.tables["silver.things"]:
        row["size"] = 99
    for row in lake.tables["silver.quarantine"]:
        row["error"] = "OtherError"
    lake.tables["silver.others"].clear()
    line, report = lake.check()
    assert sorted((one.kind, one.offset) for one in line.findings) == [
        *(("altered", offset) for offset in (0, 1, 2, 4, 5)),
        ("missing", 3),
    ]
    assert (report.duplicates, report.unaccounted) == (1, 1)


def test_left_over_rows_are_judged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics_spark.verify.silver._PIECE", 2)
    lake = Lake()
    lake.thing(0, id="id-0")
    for _ in range(5):
        lake.land(thing(0), "things.v1", id="id-0")
    line, report = lake.check()
    assert (line.verdict, report.duplicates, report.unaccounted) == ("agrees", 5, 0)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
@pytest.mark.parametrize("where", ["size", "parts", "shares"])
def test_an_integer_that_no_column_holds_is_refused(number: int, where: str) -> None:
    class Wide(Event, topic=Topic("wide.v1", partitions=1), key="id", type="wide.made", version=1):
        """Integers of any size."""

        id: str
        size: int = 0
        parts: tuple[int, ...] = ()
        shares: dict[str, int] = Field(default_factory=dict)
        flag: bool = True

    def found(value: int) -> dict[str, Any] | Refused:
        given: dict[str, Any] = {"size": value, "parts": (1, value), "shares": {"a": 1, "b": value}}
        event = Wide(id="x", **{where: given[where]})
        encoded = encode(event, envelope_for(event, source="/s", time=AT, id="1"))
        return derive("wide.v1", encoded.key, encoded.value, encoded.headers, Catalogue((Wide,)))

    assert found(number) == Refused("OutOfRangeError", "an integer has more than 64 bits")
    assert isinstance(found(2**63 - 1), dict)
    assert isinstance(found(-(2**63)), dict)


def test_what_cannot_be_decoded_for_another_reason_is_refused_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("analytics_spark.verify.silver.decode", fail)
    assert derive("things.v1", None, None, [], CATALOGUE) == Refused("ZeroDivisionError", "by zero")


def test_times_of_other_zones_are_the_same_times(lake: Lake) -> None:
    for row in (*lake.tables["silver.things"], *lake.tables["bronze"]):
        row["timestamp"] = row["timestamp"].astimezone(timezone(timedelta(hours=5)))
    assert lake.check()[0].verdict == "agrees"
