"""Join small files and drop old snapshots. Safe beside a running sink: Iceberg's commits are compare-and-swap."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from analytics_spark.config import LakeSettings
from analytics_spark.errors import LakeMissingError
from analytics_spark.jars import cache_dir
from analytics_spark.reading import table_names
from analytics_spark.session import CATALOG, LakeLayout, SessionPlan, end_session, start_session

__all__ = ["Maintained", "expire_before", "maintain", "maintain_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What was done to one table."""

    table: str
    files_joined: int
    files_written: int
    snapshots_dropped: int


def maintain(settings: LakeSettings, *, retain: int, older_than_h: float) -> tuple[Maintained, ...]:
    """Compact and expire every table.

    Snapshots that a stream has not read yet never expire, whatever their age: it would have to stop there.

    Args:
        settings: Which lake, and how the session starts.
        retain: Snapshots to keep of every table, at least 10: the guard against double writing looks for the last batch
            in them.
        older_than_h: Age at which others expire, in hours.
    """
    layout = LakeLayout(settings.dir.expanduser().absolute())
    if not layout.catalog_db.is_file():
        raise LakeMissingError(f"there is no lake at {layout.root}; name its folder with --dir or LAKE_DIR")
    spark = start_session(
        SessionPlan(
            layout=layout,
            app_name="lake-maintain",
            java=settings.java,
            cores=settings.cores,
            driver_memory_mb=settings.driver_memory_mb,
            cache=settings.cache or cache_dir(),
        )
    )
    try:
        return maintain_tables(spark, layout, retain=retain, older_than_h=older_than_h)
    finally:
        end_session(spark)


def maintain_tables(spark: Any, layout: LakeLayout, *, retain: int, older_than_h: float) -> tuple[Maintained, ...]:
    """`maintain` in a session that is there already."""
    return tuple(
        _maintain_table(spark, layout, name, retain=retain, older_than_h=older_than_h)
        for name in table_names(layout.root)
    )


def _maintain_table(spark: Any, layout: LakeLayout, name: str, *, retain: int, older_than_h: float) -> Maintained:
    joined = written = 0
    if not name.startswith("gold."):  # gold's days are replaced whole all the time
        answer = spark.sql(
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{name}', options => map('min-input-files', '4'))"
        ).first()
        joined, written = int(answer["rewritten_data_files_count"]), int(answer["added_data_files_count"])
        spark.sql(f"CALL {CATALOG}.system.rewrite_manifests('{name}')")
    before = _snapshot_count(spark, name)
    limit = expire_before(spark, layout, name, older_than_h=older_than_h)
    spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{name}', "
        f"older_than => TIMESTAMP '{limit:%Y-%m-%d %H:%M:%S.%f}', retain_last => {retain})"
    )
    dropped = before - _snapshot_count(spark, name)
    return Maintained(table=name, files_joined=joined, files_written=written, snapshots_dropped=dropped)


def _snapshot_count(spark: Any, name: str) -> int:
    return int(spark.table(f"{CATALOG}.{name}.snapshots").count())


def expire_before(spark: Any, layout: LakeLayout, name: str, *, older_than_h: float) -> datetime:
    """Snapshots of a table that are older than this may go: old enough, and read by every stream over the table."""
    limit = datetime.fromtimestamp(time.time(), UTC) - timedelta(hours=older_than_h)
    snapshots = {
        row["snapshot_id"]: row["millis"]
        for row in spark.table(f"{CATALOG}.{name}.snapshots")
        .selectExpr("snapshot_id", "unix_millis(committed_at) AS millis")
        .collect()
    }
    for query in ("silver", "gold"):
        for snapshot_id in _read_up_to(layout.checkpoint(query)):
            if snapshot_id in snapshots:
                limit = min(limit, datetime.fromtimestamp(snapshots[snapshot_id] / 1000, UTC))
    return limit


def _read_up_to(checkpoint: Path) -> set[int]:
    """Snapshot ids in the last two committed offsets of a query over Iceberg tables.

    They are where its next batch begins, and its last one, should that have to be repeated.
    """
    commits = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    ids = set()
    for batch_id in commits[-2:]:
        # Line 1 is the format's version, line 2 the batch's metadata, then one line per source.
        lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2:]
        ids |= {int(json.loads(line)["snapshot_id"]) for line in lines if line.startswith("{")}
    return ids
