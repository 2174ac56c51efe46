"""The proof must fail when it should: lakes with faults, made without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from analytics_spark.errors import LakeMissingError
from analytics_spark.reading import QueryRefusedError, query, table_infos
from analytics_spark.session import CATALOG, LakeLayout
from analytics_spark.verify import verify_lake

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def make(root: Path, tables: dict[str, pa.Table]) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    layout = LakeLayout(root)
    layout.warehouse.mkdir(parents=True)
    catalog = SqlCatalog(CATALOG, uri=layout.catalog_uri, warehouse=layout.warehouse.as_uri())
    for name, rows in tables.items():
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        catalog.create_table(name, rows.schema).append(rows)
    catalog.close()


def bronze(offsets: Sequence[int], *, topic: str = "rides.v1", ids: Sequence[str] | None = None) -> pa.Table:
    count = len(offsets)
    names = ids if ids is not None else [f"id-{offset}" for offset in offsets]
    return pa.table(
        {
            "topic": [topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b"{}"] * count, pa.binary()),
            "headers": pa.array(
                [[{"key": "ce_source", "value": b"/s"}, {"key": "ce_id", "value": name.encode()}] for name in names],
                HEADERS,
            ),
        }
    )


def coordinates(rows: pa.Table, *, typed: bool) -> pa.Table:
    kept = rows.select(["topic", "partition", "offset"])
    if not typed:
        return kept
    ids = [one[1]["value"].decode() for one in rows["headers"].to_pylist()]
    return kept.append_column("ce_source", pa.array(["/s"] * len(ids))).append_column("ce_id", pa.array(ids))


@pytest.mark.parametrize(
    ("offsets", "end", "problem"),
    [
        ([0, 1, 2], 3, ""),
        ([0, 2], 3, "1 offsets are missing, the first 1 to 1"),
        ([1, 2], 3, "1 offsets are missing, the first 0 to 0"),
        ([0, 1], 5, "3 offsets are missing, the first 2 to 4"),
        ([0, 1, 1, 2], 3, "1 rows repeat an offset"),
        ([0, 1, 2, 3], 3, "the lake has offset 3, the broker ends at 3: it is another or an emptied broker"),
    ],
)
def test_gaps_and_repetitions_are_named(root: Path, offsets: list[int], end: int, problem: str) -> None:
    make(root, {"bronze.events": bronze(offsets)})
    report = verify_lake(root, {("rides.v1", 0): end})
    assert report.problems == ((f"rides.v1-0: {problem}",) if problem else ())
    assert report.ok is not bool(problem)


def test_a_partition_that_is_not_in_the_lake_is_missed(root: Path) -> None:
    make(root, {"bronze.events": bronze([0])})
    report = verify_lake(root, {("rides.v1", 0): 1, ("rides.v1", 1): 2, ("rides.v1", 2): 0})
    assert report.problems == ("rides.v1-1: 2 offsets are missing, the first 0 to 1",)


def test_a_gap_is_excused_where_the_broker_shows_nothing(root: Path) -> None:
    make(root, {"bronze.events": bronze([0, 1, 4])})
    asked: list[tuple[str, int, int, int]] = []

    def visible(topic: str, partition: int, start: int, end: int) -> int:
        asked.append((topic, partition, start, end))
        return 1 if start == 5 else 0

    report = verify_lake(root, {("rides.v1", 0): 7}, visible_records=visible)
    assert asked == [("rides.v1", 0, 2, 4), ("rides.v1", 0, 5, 7)]
    assert report.problems == ("rides.v1-0: 2 offsets are missing, the first 5 to 6",)
    assert report.partitions[0].hidden_offsets == 2


def test_compacted_topics_may_have_gaps(root: Path) -> None:
    make(root, {"bronze.events": bronze([0, 5], topic="surge.v1")})
    assert verify_lake(root, {("surge.v1", 0): 6}).ok


def test_what_the_broker_deleted_since_stays_welcome(root: Path) -> None:
    make(root, {"bronze.events": bronze([0, 1, 2, 3])})
    assert verify_lake(root, {("rides.v1", 0): 4}, start_offsets={("rides.v1", 0): 2}).ok


def test_every_bronze_row_must_be_answered_for(root: Path) -> None:
    rows = bronze([0, 1, 2, 3, 4], ids=["a", "b", "a", "d", "e"])
    make(
        root,
        {
            "bronze.events": rows,
            "silver.rides": coordinates(rows.slice(0, 2), typed=True),
            "silver.quarantine": coordinates(rows.slice(3, 1), typed=False),
        },
    )
    report = verify_lake(root, {("rides.v1", 0): 5})
    silver = report.silver
    assert silver is not None
    assert (silver.typed, silver.quarantined, silver.duplicates, silver.unaccounted) == (2, 1, 1, 1)
    assert report.problems == ("silver: 1 bronze rows are neither typed, quarantined nor a duplicate of a typed event",)


def test_an_event_that_is_typed_twice_is_named(root: Path) -> None:
    rows = bronze([0, 1], ids=["a", "a"])
    tables = {
        "silver.rides": coordinates(rows, typed=True),
        "silver.quarantine": coordinates(rows.slice(0, 0), typed=False),
    }
    make(root, {"bronze.events": rows, **tables})
    assert verify_lake(root, {("rides.v1", 0): 2}).problems == ("silver: 1 event ids are in silver more than once",)


def test_queries_read_and_nothing_else(root: Path) -> None:
    make(root, {"bronze.events": bronze([0, 1])})
    assert query(root, "SELECT count(*) AS n FROM bronze.events").to_pylist() == [{"n": 2}]
    assert [(info.name, info.rows) for info in table_infos(root)] == [("bronze.events", 2)]
    refused: list[tuple[str, str]] = [
        ("DELETE FROM bronze.events", "give one SELECT"),
        ("SELECT 1; SELECT 2", "give one SELECT"),
        (f"COPY (SELECT 1) TO '{root}/x'", "give one SELECT"),
        ("SELEC 1", "does not parse"),
        ("SELECT * FROM bronze.nothing", "tables are bronze.events"),
        ("SELECT * FROM read_text('/etc/hostname')", "file system operations are disabled"),
    ]
    for sql, words in refused:
        with pytest.raises(QueryRefusedError, match=words):
            query(root, sql)


def test_no_lake_is_said_in_one_sentence(root: Path) -> None:
    calls: list[Any] = [lambda: verify_lake(root, {}), lambda: table_infos(root), lambda: query(root, "SELECT 1")]
    for call in calls:
        with pytest.raises(LakeMissingError, match=f"there is no lake at {root}; run lake-sink"):
            call()
