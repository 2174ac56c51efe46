"""Bronze rows to typed events: judged, each event id once, cut into a frame per topic and one of what was refused."""

from typing import Any

from analytics_spark.quality import VERDICT_DDL, judge_arrow
from analytics_spark.schemas import ENVELOPE, column_name
from analytics_spark.tables import QUARANTINE, TableSpec

__all__ = ["distinct_events", "judged", "quarantined", "typed"]

_RAW = ("key", "value", "headers")


def judged(bronze: Any) -> Any:
    """The verdict on every record.

    *In:* the columns of `tables.BRONZE`.
    *Out:* one row per record: `topic, partition, offset, timestamp, ingested_at`, the columns of `quality.VERDICT_DDL`,
    and `key, value, headers` where it was refused (null otherwise: typed rows need no raw bytes, and they would be
    shuffled).
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf

    # The lambda has no annotations: arrow_udf reads them, and only knows pyarrow's classes, not their names.
    declare: Any = arrow_udf  # its overloads do not know that the evaluation type may be left out
    verdict = declare(lambda *columns: judge_arrow(*columns), VERDICT_DDL)  # noqa: PLW0108 see above
    return bronze.withColumn(
        "verdict", verdict("topic", "key", "value", f.coalesce("headers", f.array().cast(_HEADERS)))
    ).select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "ingested_at",
        "verdict.*",
        *(f.when(f.col("verdict.error").isNotNull(), f.col(name)).alias(name) for name in _RAW),
    )


_HEADERS = "array<struct<key: string, value: binary>>"


def distinct_events(records: Any, *, window_h: int) -> Any:
    """Each event once: a second record with the same (`ce_source`, `ce_id`) is dropped; what was refused never is.

    The watermark runs on `ingested_at`, which the sink stamps in order: no row is ever late, only the memory of ids is
        bounded.

    *In:* a streaming frame of `judged`.
    *Out:* the same columns, at most one row per event id within `window_h` hours.
    """
    from pyspark.sql import functions as f

    identity = f.when(
        f.col("error").isNull(), f.concat_ws("\u001f", f.lit("event"), f.col("ce_source"), f.col("ce_id"))
    ).otherwise(f.concat_ws("\u001f", f.lit("record"), f.col("topic"), f.col("partition"), f.col("offset")))
    return (
        records.withColumn("identity", identity)
        .withWatermark("ingested_at", f"{window_h} hours")
        .dropDuplicatesWithinWatermark(["identity"])
        .drop("identity")
    )


def typed(records: Any, *, topic: str, spec: TableSpec, fields: dict[str, str], batch_id: int) -> Any:
    """The typed events of one topic.

    *In:* a batch of `distinct_events`.
    *Out:* one row per event of `topic`, with the columns of `spec`.
    """
    from pyspark.sql import functions as f

    ddl = ", ".join(f"`{name}` {kind}" for name, kind in fields.items())
    rows = records.where((f.col("topic") == topic) & f.col("error").isNull()).withColumn(
        "payload", f.from_json("data", ddl)
    )
    return (
        rows.withColumn("silver_batch", f.lit(batch_id).cast("bigint"))
        .select(
            *(column.name for column in ENVELOPE),
            *(f.col(f"payload.`{name}`").alias(column_name(name)) for name in fields),
            "topic",
            "partition",
            "offset",
            "timestamp",
            "ingested_at",
            "silver_batch",
        )
        .select(*(column.name for column in spec.columns))
    )


def quarantined(records: Any, *, batch_id: int) -> Any:
    """What was refused, with the reason.

    *In:* a batch of `distinct_events`.
    *Out:* one row per refused record, with the columns of `tables.QUARANTINE`.
    """
    from pyspark.sql import functions as f

    return (
        records.where(f.col("error").isNotNull())
        .withColumn("silver_batch", f.lit(batch_id).cast("bigint"))
        .select(*(column.name for column in QUARANTINE.columns))
    )
