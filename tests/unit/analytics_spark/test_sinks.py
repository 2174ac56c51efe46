"""An append looks for its batch in the table's snapshots first, and in the rows where snapshots have expired."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from analytics_spark.sinks import append_once, batch_offsets, is_written, overwrite_days, query_id_of, row_count
from analytics_spark.tables import BRONZE


@dataclass
class Snapshot:
    number: int
    parent: int | None
    properties: dict[str, str]

    def summary(self) -> dict[str, str]:
        return self.properties

    def parentId(self) -> int | None:  # noqa: N802 as Iceberg has it
        return self.parent


@dataclass
class Table:
    """The part of Iceberg's table that the sink asks: the newest snapshot is the last one."""

    snapshots: list[Snapshot] = field(default_factory=list)

    def commit(self, **properties: str) -> None:
        parent = self.snapshots[-1].number if self.snapshots else None
        self.snapshots.append(Snapshot(len(self.snapshots) + 1, parent, properties))

    def currentSnapshot(self) -> Snapshot | None:  # noqa: N802 as Iceberg has it
        return self.snapshots[-1] if self.snapshots else None

    def snapshot(self, number: int) -> Snapshot | None:
        return next((one for one in self.snapshots if one.number == number), None)


class Spark:
    """A session whose catalog holds one table, and frames that note what is written."""

    def __init__(self, table: Table, *, batches_in_rows: frozenset[int] = frozenset()) -> None:
        self.asked: list[str] = []
        self.options: dict[str, str] = {}
        self.columns: tuple[str, ...] = ()
        self._batches_in_rows = batches_in_rows
        self._jsparkSession = "session"
        self._table = table
        util = SimpleNamespace(loadIcebergTable=self._load)
        spark3 = SimpleNamespace(Spark3Util=util)
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=SimpleNamespace(spark=spark3))))

    def _load(self, session: str, name: str) -> Table:
        assert (session, name) == ("session", BRONZE.qualified)
        return self._table

    def table(self, name: str) -> Any:  # Any: a frame
        assert name == BRONZE.qualified
        return self

    def where(self, condition: str) -> Any:  # Any: a frame
        self.asked.append(condition)
        return self

    def limit(self, count: int) -> Any:  # Any: a frame
        assert count == 1
        return self

    def count(self) -> int:
        return int(self.asked[-1] in {f"{BRONZE.batch_column} = {batch}" for batch in self._batches_in_rows})

    # ---- as a frame that is written

    def select(self, *columns: str) -> Any:  # Any: a frame
        self.columns = columns
        return self

    def writeTo(self, name: str) -> Any:  # noqa: N802 as Spark has it; Any: a writer
        assert name == BRONZE.qualified
        return self

    def option(self, name: str, value: str) -> Any:  # Any: a writer
        self.options[name] = value
        return self

    def append(self) -> None:
        self._table.commit(**{name.removeprefix("snapshot-property."): value for name, value in self.options.items()})


def committed(query_id: str, batch_id: int) -> dict[str, str]:
    return {"lake.query": query_id, "lake.batch": str(batch_id)}


def test_a_batch_is_appended_once_with_its_query_and_number() -> None:
    table = Table()
    spark = Spark(table)
    assert append_once(spark, spark, BRONZE, query_id="q", batch_id=0)
    assert spark.columns == tuple(column.name for column in BRONZE.columns)
    assert [snapshot.properties for snapshot in table.snapshots] == [committed("q", 0)]
    assert not append_once(spark, spark, BRONZE, query_id="q", batch_id=0)
    assert append_once(spark, spark, BRONZE, query_id="q", batch_id=1)
    assert not append_once(spark, spark, BRONZE, query_id="q", batch_id=0)
    assert not append_once(spark, spark, BRONZE, query_id="q", batch_id=1)
    assert [snapshot.properties for snapshot in table.snapshots] == [committed("q", 0), committed("q", 1)]
    assert spark.asked == []


def test_snapshots_of_others_are_passed_over() -> None:
    table = Table()
    table.commit(**committed("q", 4))
    table.commit(**committed("another", 9))
    table.commit(operation="replace")  # a compaction
    spark = Spark(table)
    assert is_written(spark, BRONZE, query_id="q", batch_id=4)
    assert not is_written(spark, BRONZE, query_id="q", batch_id=5)
    assert not is_written(spark, BRONZE, query_id="new", batch_id=0)
    assert spark.asked == []


def test_the_rows_are_asked_where_the_snapshots_have_expired() -> None:
    table = Table()
    table.commit(**committed("q", 4))
    table.commit(operation="replace")
    del table.snapshots[0]
    spark = Spark(table, batches_in_rows=frozenset({4}))
    assert is_written(spark, BRONZE, query_id="q", batch_id=4)
    assert not is_written(spark, BRONZE, query_id="q", batch_id=5)
    assert spark.asked == [f"{BRONZE.batch_column} = 4", f"{BRONZE.batch_column} = 5"]
    assert not is_written(spark, replace(BRONZE, batch_column=None), query_id="q", batch_id=4)


def test_an_empty_table_holds_no_batch_and_no_row() -> None:
    spark = Spark(Table(), batches_in_rows=frozenset({0}))
    assert not is_written(spark, BRONZE, query_id="q", batch_id=0)
    assert spark.asked == []
    assert row_count(spark, BRONZE) == 0


@pytest.mark.parametrize(("properties", "rows"), [({"total-records": "17"}, 17), ({}, 0)])
def test_rows_are_counted_by_the_newest_snapshot(properties: dict[str, str], rows: int) -> None:
    table = Table()
    table.commit(**{"total-records": "3"})
    table.commit(**properties)
    assert row_count(Spark(table), BRONZE) == rows


def test_a_checkpoint_names_its_query_and_where_a_batch_ends(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0}\n{"rides.v1":{"0":12,"1":3}}\n')
    assert query_id_of(tmp_path) == "q"
    assert batch_offsets(tmp_path, 7) == {"rides.v1": {"0": 12, "1": 3}}


@dataclass(frozen=True)
class Condition:
    """A condition on a time, as Spark's columns build it."""

    holds: Callable[[datetime], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(lambda at: self.holds(at) and other.holds(at))


class TimeColumn:
    """A column of times."""

    def __ge__(self, bound: datetime) -> Condition:
        return Condition(lambda at: at >= bound)

    def __lt__(self, bound: datetime) -> Condition:
        return Condition(lambda at: at < bound)


class DaysFrame:
    """A frame that notes which rows are written, and which rows of the table they replace."""

    def __init__(self) -> None:
        self.steps: list[object] = []
        self.written: Condition | None = None
        self.replaced: Condition | None = None

    def select(self, *columns: str) -> DaysFrame:
        self.steps.append(columns)
        return self

    def where(self, condition: Condition) -> DaysFrame:
        self.written = condition
        return self

    def coalesce(self, count: int) -> DaysFrame:
        self.steps.append(count)
        return self

    def writeTo(self, name: str) -> DaysFrame:  # noqa: N802 as Spark has it
        self.steps.append(name)
        return self

    def overwrite(self, condition: Condition) -> None:
        self.replaced = condition


def test_whole_days_are_replaced_and_their_neighbours_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions

    monkeypatch.setattr(functions, "col", {"ingested_at": TimeColumn()}.__getitem__)
    monkeypatch.setattr(functions, "lit", lambda value: value)
    frame = DaysFrame()
    start, end = datetime(2014, 5, 1, tzinfo=UTC), datetime(2014, 5, 3, tzinfo=UTC)
    overwrite_days(frame, BRONZE, column="ingested_at", start=start, end=end)
    assert frame.steps == [tuple(column.name for column in BRONZE.columns), 1, BRONZE.qualified]
    moment = timedelta(microseconds=1)
    for condition in (frame.written, frame.replaced):
        assert condition is not None
        times = (start - moment, start, start + timedelta(days=1), end - moment, end, end + timedelta(days=1))
        assert [condition.holds(at) for at in times] == [False, True, True, True, False, False]
