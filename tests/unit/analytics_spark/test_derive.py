"""Rows of silver derived again by the event classes: values by column type, and what is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from analytics_spark.verify.silver import Refused, derive, expected_value
from hailbus import Catalogue, Event, Topic
from hailbus.codec import encode, envelope_for
from pydantic import BaseModel

THINGS = Topic("things.v1", partitions=1)
OTHERS = Topic("others.v1", partitions=1)


class Part(BaseModel):
    name: str
    count: int | None = None


class Thing(Event, topic=THINGS, key="thing_id", type="thing.made", version=1):
    """A thing was made."""

    thing_id: str
    size: int
    parts: tuple[Part, ...] = ()
    topic: str = "a field with a column's name"


class Other(Event, topic=OTHERS, key="other_id", type="other.made", version=1):
    """Another thing was made."""

    other_id: str


CATALOGUE = Catalogue((Thing, Other))
AT = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)


def derived(event: Event, topic: str = "things.v1") -> dict[str, Any] | Refused:
    encoded = encode(event, envelope_for(event, source="/s", time=AT, id="1"))
    return derive(topic, encoded.key, encoded.value, encoded.headers, CATALOGUE)


def test_a_row_has_the_envelope_and_the_fields() -> None:
    row = derived(Thing(thing_id="t", size=3, parts=(Part(name="p"),)))
    assert isinstance(row, dict)
    assert (row["ce_id"], row["ce_source"], row["ce_type"], row["ce_version"]) == ("1", "/s", "thing.made", 1)
    assert (row["ce_time"], row["ce_subject"], row["traceparent"]) == (AT, "t", None)
    assert (row["thing_id"], row["size"]) == ("t", 3)
    assert row["parts"] == [{"name": "p", "count": None}]
    assert row["topic_"] == "a field with a column's name"


def test_what_no_class_accepts_is_refused() -> None:
    refused = [
        derive("things.v1", b"k", b"{", [("ce_id", b"1")], CATALOGUE),
        derived(Other(other_id="o")),
        derived(Thing(thing_id="t", size=2**63)),
        derive("things.v1", b"k", b"{}", [("ce_id", b"\xff")], CATALOGUE),
    ]
    assert [one.error if isinstance(one, Refused) else one for one in refused] == [
        "MissingHeaderError",
        "WrongTopicError",
        "OutOfRangeError",
        "HeaderError",
    ]
    assert isinstance(derived(Thing(thing_id="t", size=-(2**63))), dict)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.string(), None, None),
        (pa.timestamp("us", tz="UTC"), "2014-05-01T10:00:00+02:00", AT),
        (pa.timestamp("us", tz="UTC"), AT, AT),
        (pa.date32(), "2014-05-01", date(2014, 5, 1)),
        (pa.decimal128(38, 9), "1.50", Decimal("1.5")),
        (pa.float64(), 3, 3.0),
        (pa.int64(), 3, 3),
        (pa.list_(pa.date32()), ["2014-05-01"], [date(2014, 5, 1)]),
        (pa.map_(pa.string(), pa.float64()), {"a": 1}, {"a": 1.0}),
        (pa.struct([("a", pa.float64()), ("b", pa.string())]), {"a": 1}, {"a": 1.0, "b": None}),
    ],
)
def test_a_json_value_becomes_what_its_column_gives(kind: pa.DataType, value: object, expected: object) -> None:
    found = expected_value(kind, value)
    assert (found, type(found)) == (expected, type(expected))
