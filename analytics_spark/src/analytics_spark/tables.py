"""Every table of the lake: its name, columns and settings, declared once."""

import hashlib
from dataclasses import dataclass
from typing import Any, cast

from analytics_spark.errors import LakeError
from analytics_spark.session import CATALOG

__all__ = ["BRONZE", "GOLD", "QUARANTINE", "Column", "TableSpec", "ensure_table"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, Spark SQL type, and what it holds."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One Iceberg table.

    Attributes:
        name: `namespace.table`.
        columns: In order. A later version may add columns; Iceberg then reads null from older files.
        partition: Iceberg's hidden partitioning, as SQL.
        batch_column: Which column holds the batch id of the query that wrote the row, for the guard against double
            writing.
    """

    name: str
    columns: tuple[Column, ...]
    partition: str
    comment: str
    batch_column: str | None = None

    @property
    def qualified(self) -> str:
        """The name that Spark knows, with the catalog."""
        return f"{CATALOG}.{self.name}"


BRONZE = TableSpec(
    name="bronze.events",
    comment="Every record of every topic as the broker keeps it, exactly once",
    columns=(
        Column("topic", "string"),
        Column("partition", "int"),
        Column("offset", "bigint"),
        Column("timestamp", "timestamp", "of the record, milliseconds"),
        Column("timestamp_type", "string", "CreateTime: the producer's clock, LogAppendTime: the broker's"),
        Column("key", "binary"),
        Column("value", "binary", "null is a tombstone"),
        Column("headers", "array<struct<key: string, value: binary>>", "in order, names may repeat"),
        Column("ingest_batch", "bigint", "batch of the streaming query that landed it"),
        Column("ingested_at", "timestamp", "start of that batch, by the driver's clock"),
    ),
    partition="days(ingested_at)",
    batch_column="ingest_batch",
)

QUARANTINE = TableSpec(
    name="silver.quarantine",
    comment="Records that do not decode: coordinates, raw bytes and the reason, to be repaired and replayed",
    columns=(
        Column("topic", "string"),
        Column("partition", "int"),
        Column("offset", "bigint"),
        Column("timestamp", "timestamp"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("headers", "array<struct<key: string, value: binary>>"),
        Column("error", "string", "class of the error, for example InvalidPayloadError"),
        Column("reason", "string", "one sentence"),
        Column("ingested_at", "timestamp"),
        Column("silver_batch", "bigint"),
    ),
    partition="days(ingested_at)",
    batch_column="silver_batch",
)

_WINDOW = Column("window_start", "timestamp", "start of 15 minutes of event time")
_CELL = Column("cell", "string", "H3, resolution 8")


def _counts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "bigint") for name in names)


def _gold(name: str, comment: str, *columns: Column) -> TableSpec:
    return TableSpec(name=f"gold.{name}", comment=comment, columns=columns, partition="days(window_start)")


GOLD = {
    "demand": _gold(
        "demand",
        "Requests and quotes per cell",
        _WINDOW,
        _CELL,
        *_counts("requested_count", "rider_count", "quoted_count", "unmatched_count"),
        Column("mean_multiplier", "double"),
    ),
    "revenue": _gold(
        "revenue",
        "Fares of completed rides per pickup cell, in the smallest unit of the currency",
        _WINDOW,
        _CELL,
        Column("currency", "string"),
        *_counts("completed_count", "fares_minor", "distance_m", "duration_s"),
        Column("mean_multiplier", "double"),
    ),
    "payments": _gold(
        "payments",
        "Money authorised, captured, failed, released and refunded",
        _WINDOW,
        Column("currency", "string"),
        *_counts("authorised_minor", "captured_minor", "failed_minor", "released_minor", "refunded_minor"),
        *_counts("captured_count"),
    ),
    "conversion": _gold(
        "conversion",
        "What became of the quotes offered in each window",
        _WINDOW,
        _CELL,
        *_counts("offered_count", "accepted_count", "matched_count", "completed_count"),
        *_counts("cancelled_count", "unmatched_count"),
        Column("accepted_share", "double", "of the offered"),
        Column("completed_share", "double", "of the offered"),
    ),
    "recommendations": _gold(
        "recommendations",
        "How often recommendations were chosen, and foretold the next booking",
        _WINDOW,
        Column("model", "string"),
        *_counts("served_count", "chosen_count", "chosen_top1_count", "chosen_top3_count", "followed_count"),
        *_counts("hit_top1_count", "hit_top3_count", "hit_count"),
        Column("chosen_share", "double", "of the served"),
        Column("hit_share", "double", "of those followed by a booking"),
    ),
}
"""Gold, by short name: each a pure function of silver, replaced day by day."""

_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # A batch comes in as few tasks as there are cores: sorting them by partition again would only cost a shuffle.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "10",
}

_FINGERPRINT = "lake.columns"


def ensure_table(spark: Any, spec: TableSpec) -> None:  # a SparkSession
    """Create the table, or add the columns that it lacks.

    Raises:
        LakeError: A column exists with another type; the message names both.
    """
    namespace = spec.name.partition(".")[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
    if not spark.catalog.tableExists(spec.qualified):
        columns = ", ".join(
            f"`{column.name}` {column.type}" + (f" COMMENT {_quoted(column.comment)}" if column.comment else "")
            for column in spec.columns
        )
        properties = ", ".join(
            f"'{name}'='{value}'" for name, value in (_PROPERTIES | {_FINGERPRINT: _fingerprint(spec)}).items()
        )
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {spec.qualified} ({columns}) USING iceberg "
            f"PARTITIONED BY ({spec.partition}) COMMENT {_quoted(spec.comment)} TBLPROPERTIES ({properties})"
        )
        return
    if spark.sql(f"SHOW TBLPROPERTIES {spec.qualified} ('{_FINGERPRINT}')").first()["value"] == _fingerprint(spec):
        return
    from pyspark.sql.types import StructType

    found = {field.name: field.dataType.simpleString() for field in spark.table(spec.qualified).schema}
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in spec.columns)
    schema = cast("StructType", StructType.fromDDL(ddl))  # declared as any DataType, a column list gives a struct
    wanted = {field.name: field.dataType.simpleString() for field in schema}
    for column in spec.columns:
        if column.name not in found:
            spark.sql(f"ALTER TABLE {spec.qualified} ADD COLUMN `{column.name}` {column.type}")
        elif found[column.name] != wanted[column.name]:
            raise LakeError(
                f"column {column.name} of {spec.name} is {found[column.name]}, the event models now say "
                f"{wanted[column.name]}; publish the change as a new event version, or start a new LAKE_DIR"
            )
    spark.sql(f"ALTER TABLE {spec.qualified} SET TBLPROPERTIES ('{_FINGERPRINT}'='{_fingerprint(spec)}')")


def _fingerprint(spec: TableSpec) -> str:
    """Changes with any column: saves comparing them one by one at every start."""
    text = ",".join(f"{column.name} {column.type}" for column in spec.columns)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
