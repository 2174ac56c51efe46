"""Transforms on small frames: frame in, rows out."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from analytics_spark.schemas import event_columns, silver_spec
from analytics_spark.tables import BRONZE, GOLD, QUARANTINE
from analytics_spark.transforms import gold
from analytics_spark.transforms.bronze import bronze_rows
from analytics_spark.transforms.silver import judged, quarantined, typed
from hailbus.codec import encode, envelope_for
from hailbus.event import event_info
from ride_events import CATALOGUE

from tests.integration.analytics_spark.lake_events import ORIGIN, SERVED_DESTINATION, SERVED_ORIGIN, START, ride

# py4j leaves closing its sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KAFKA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def kafka(spark: Any, rows: Sequence[tuple[Any, ...]]) -> Any:
    return spark.createDataFrame(list(rows), KAFKA)


def of_rides(spark: Any, numbers: range) -> Any:
    """Bronze rows of whole rides."""
    rows: list[tuple[Any, ...]] = []
    for number in numbers:
        for event, at in ride(number):
            encoded = encode(event, envelope_for(event, source="/booking", time=at))
            rows.append(
                (encoded.key, encoded.value, event_info(event).topic.name, 0, len(rows), AT, 0, encoded.headers)
            )
    return bronze_rows(kafka(spark, rows), batch_id=7)


def silver(records: Any, topic: str) -> Any:
    spec = silver_spec(CATALOGUE, topic)
    return typed(records, topic=topic, spec=spec, fields=event_columns(CATALOGUE.on_topic(topic)), batch_id=3)


def test_bronze_keeps_bytes_headers_and_coordinates(spark: Any) -> None:
    raw = b"\x00\xff not text"
    frame = bronze_rows(
        kafka(
            spark,
            [
                (None, raw, "t", 3, 42, AT, 0, [("a", b"1"), ("a", b"\xfe"), ("b", None)]),
                (b"k", None, "t", 3, 43, AT, 1, None),
            ],
        ),
        batch_id=9,
    )
    assert frame.columns == [column.name for column in BRONZE.columns]
    first, second = frame.orderBy("offset").collect()
    assert (first.key, bytes(first.value), first.offset, first.ingest_batch) == (None, raw, 42, 9)
    assert [(header.key, header.value and bytes(header.value)) for header in first.headers] == [
        ("a", b"1"),
        ("a", b"\xfe"),
        ("b", None),
    ]
    assert (first.timestamp_type, second.timestamp_type) == ("CreateTime", "LogAppendTime")
    assert (second.value, second.headers) == (None, None)


def test_typed_rows_hold_what_the_event_said(spark: Any) -> None:
    records = judged(of_rides(spark, range(1)))
    frame = silver(records, "rides.v1")
    assert frame.columns == [column.name for column in silver_spec(CATALOGUE, "rides.v1").columns]
    requested, matched, completed = frame.orderBy("offset").collect()
    assert [row.ce_type for row in (requested, matched, completed)] == [
        "ride.requested",
        "ride.matched",
        "ride.completed",
    ]
    assert requested.fare.asDict() == {"amount_minor": 5200, "currency": "USD"}
    assert (requested.multiplier, requested.surge_version, requested.passengers) == (1.2, 3, 1)
    assert (matched.driver_position.lat, matched.eta_s, matched.simulated, matched.fare) == (40.758, 120, True, None)
    assert completed.started_at - completed.requested_at == timedelta(minutes=3)
    assert (completed.ce_id is not None, completed.silver_batch, completed.pickup_cell) == (True, 3, ORIGIN)
    options = silver(records, "recommendations.v1").where("options IS NOT NULL").first().options
    assert [(one.rank, one.cell, one.place) for one in options] == [
        (1, SERVED_ORIGIN, None),
        (2, SERVED_DESTINATION, None),
    ]


def test_refused_rows_keep_their_bytes_and_say_why(spark: Any) -> None:
    rows = [(b"k", b"{", "rides.v1", 1, 5, AT, 0, [("ce_id", b"x")]), (b"k", None, "rides.v1", 1, 6, AT, 0, None)]
    records = judged(bronze_rows(kafka(spark, rows), batch_id=1))
    assert silver(records, "rides.v1").count() == 0
    frame = quarantined(records, batch_id=2)
    assert frame.columns == [column.name for column in QUARANTINE.columns]
    first, second = frame.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset, bytes(first.value)) == ("rides.v1", 1, 5, b"{")
    assert (first.error, first.headers[0].key, first.silver_batch) == ("MissingHeaderError", "ce_id", 2)
    assert second.value is None


def test_gold_counts_what_happened(spark: Any) -> None:
    # Ride n happens n seconds after 08:00, so rides 899 and 900 fall into two windows.
    records = judged(of_rides(spark, range(898, 902))).cache()
    quotes, rides, paid, served = (
        silver(records, topic) for topic in ("quotes.v1", "rides.v1", "payments.v1", "recommendations.v1")
    )
    first, second = START, START + timedelta(minutes=15)

    def rows(name: str, frame: Any) -> dict[datetime, dict[str, Any]]:
        assert frame.columns == [column.name for column in GOLD[name].columns]
        found = [row.asDict() for row in frame.orderBy("window_start").collect()]
        # Spark gives naive local time; the session and the tests agree on what it means.
        return {row.pop("window_start").astimezone(UTC): row for row in found}

    demand = rows("demand", gold.demand(quotes, rides))
    assert demand[first]["requested_count"] == 2
    assert demand[first]["rider_count"] == 2
    assert demand[first]["quoted_count"] == 4
    assert demand[second] == {
        "cell": ORIGIN,
        "requested_count": 2,
        "rider_count": 2,
        "quoted_count": 0,
        "unmatched_count": 0,
        "mean_multiplier": 1.2,
    }
    revenue = rows("revenue", gold.revenue(rides))
    assert sum(row["fares_minor"] for row in revenue.values()) == 4 * 5200
    assert {row["currency"] for row in revenue.values()} == {"USD"}
    money = rows("payments", gold.payments(paid))
    assert sum(row["captured_minor"] for row in money.values()) == 4 * 5500
    assert sum(row["captured_count"] for row in money.values()) == 8
    converted = rows("conversion", gold.conversion(quotes, rides))
    assert converted == {
        first: {
            "cell": ORIGIN,
            "offered_count": 4,
            "accepted_count": 4,
            "matched_count": 4,
            "completed_count": 4,
            "cancelled_count": 0,
            "unmatched_count": 0,
            "accepted_share": 1.0,
            "completed_share": 1.0,
        }
    }
    assert rows("recommendations", gold.recommendations(served, rides)) == {
        first: {
            "model": "counts",
            "served_count": 4,
            "chosen_count": 4,
            "chosen_top1_count": 0,
            "chosen_top3_count": 4,
            "followed_count": 4,
            "hit_top1_count": 0,
            "hit_top3_count": 4,
            "hit_count": 4,
            "chosen_share": 1.0,
            "hit_share": 1.0,
        }
    }
    records.unpersist()


def test_canonical_json_survives_the_columns(spark: Any) -> None:
    """For every event of the feed: column values, written as JSON again, are what the producer said."""
    records = judged(of_rides(spark, range(1))).cache()
    for topic in ("quotes.v1", "payments.v1", "recommendations.v1"):
        fields = list(event_columns(CATALOGUE.on_topic(topic)))
        told = {row.ce_id: json.loads(row.data) for row in records.where(f"topic = '{topic}'").collect()}
        for row in silver(records, topic).selectExpr("ce_id", f"to_json(struct({', '.join(fields)})) AS j").collect():
            kept = json.loads(row.j)
            assert _plain(kept) == _plain({name: told[row.ce_id][name] for name in kept})
    records.unpersist()


def _plain(value: Any) -> Any:
    """Null members and the spelling of instants aside."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, str) and value.startswith("2014-"):
        return datetime.fromisoformat(value)
    return value
