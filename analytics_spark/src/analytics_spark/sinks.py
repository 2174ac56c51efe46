"""Idempotent appends: a batch is in a table wholly or not at all, and once, however often its query repeats it.

Spark repeats a batch when the driver died after writing and before noting so in its commit log. Iceberg has no
transaction id for appends, so every append carries query and batch id as properties of its snapshot, and the next one
looks for them first.
"""

import json
from pathlib import Path
from typing import Any

from analytics_spark.tables import TableSpec

__all__ = ["append_once", "batch_offsets", "is_written", "loaded", "overwrite_days", "query_id_of", "row_count"]

QUERY_PROPERTY = "lake.query"
BATCH_PROPERTY = "lake.batch"


def loaded(spark: Any, spec: TableSpec) -> Any:
    """Iceberg's own view of the table, read anew."""
    # No Python API shows snapshots.
    util = spark._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001 see above
    return util.loadIcebergTable(spark._jsparkSession, spec.qualified)  # noqa: SLF001 see above


def append_once(spark: Any, frame: Any, spec: TableSpec, *, query_id: str, batch_id: int) -> bool:
    """Append a batch, unless it is in the table already.

    Args:
        spark: The session.
        frame: All rows of the batch, with exactly the columns of `spec`.
        spec: The table.
        query_id: Of the streaming query's checkpoint: stays the same over restarts.
        batch_id: Of the batch; grows by one, and only the last one can come again.

    Returns:
        Whether rows were written now.
    """
    if is_written(spark, spec, query_id=query_id, batch_id=batch_id):
        return False
    (
        frame.select(*(column.name for column in spec.columns))
        .writeTo(spec.qualified)
        .option(f"snapshot-property.{QUERY_PROPERTY}", query_id)
        .option(f"snapshot-property.{BATCH_PROPERTY}", str(batch_id))
        .append()
    )
    return True


def is_written(spark: Any, spec: TableSpec, *, query_id: str, batch_id: int) -> bool:
    """Whether this batch, or a later one of the same query, is in the table."""
    table = loaded(spark, spec)
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get(QUERY_PROPERTY) == query_id:
            return int(summary.get(BATCH_PROPERTY)) >= batch_id
        parent = snapshot.parentId()
        if parent is None:
            return False
        snapshot = table.snapshot(parent)
    if table.currentSnapshot() is None or spec.batch_column is None:
        return False
    # The snapshots that would know were expired (many compactions in a row): the rows themselves know too. An append is
    # atomic, so one row of the batch stands for all of it.
    return bool(spark.table(spec.qualified).where(f"{spec.batch_column} = {batch_id}").limit(1).count())


def row_count(spark: Any, spec: TableSpec) -> int:
    """Rows in the table, from its newest snapshot's summary."""
    snapshot = loaded(spark, spec).currentSnapshot()
    return int(snapshot.summary().get("total-records") or 0) if snapshot is not None else 0


def query_id_of(checkpoint: Path) -> str:
    """The id that Spark gave to the query of this checkpoint. Exists from before its first batch."""
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def batch_offsets(checkpoint: Path, batch_id: int) -> dict[str, dict[str, int]]:
    """Where a Kafka batch ends: topic → partition → next offset. Spark writes it down before the batch starts."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    # Line 1 is the format's version, line 2 the batch's metadata, then one line per source.
    offsets: dict[str, dict[str, int]] = json.loads(lines[2])
    return offsets


def overwrite_days(frame: Any, spec: TableSpec, *, column: str, start: Any, end: Any) -> None:
    """Replace the rows of whole days by those of `frame`, in one commit.

    Args:
        frame: May hold neighbouring days too; only rows from `start` to `end` are written.
        spec: The table, partitioned by day of `column`.
        column: A timestamp.
        start: Midnight UTC, inclusive. The table is partitioned by day, so whole files go and come.
        end: Midnight UTC, exclusive.
    """
    from pyspark.sql import functions as f

    between = (f.col(column) >= f.lit(start)) & (f.col(column) < f.lit(end))
    names = [one.name for one in spec.columns]
    frame.select(*names).where(between).coalesce(1).writeTo(spec.qualified).overwrite(between)
