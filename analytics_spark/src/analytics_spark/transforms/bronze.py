"""Kafka records to bronze rows: nothing is read into them, only the batch is noted."""

from typing import Any

__all__ = ["bronze_rows"]


def bronze_rows(records: Any, *, batch_id: int) -> Any:
    """Bronze rows of one batch.

    *In:* the columns of Spark's Kafka source with headers.
    *Out:* one row per record with the columns of `tables.BRONZE`.
    """
    from pyspark.sql import functions as f

    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        # Kafka's numbers: 0 is the producer's clock, 1 the broker's.
        f.when(f.col("timestampType") == 0, "CreateTime")
        .when(f.col("timestampType") == 1, "LogAppendTime")
        .alias("timestamp_type"),
        "key",
        "value",
        "headers",
        f.lit(batch_id).cast("bigint").alias("ingest_batch"),
        f.current_timestamp().alias("ingested_at"),
    )
