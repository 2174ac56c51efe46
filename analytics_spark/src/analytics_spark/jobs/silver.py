"""Bronze to silver: typed tables, one per topic, and the quarantine."""

import time
from typing import Any

import structlog
from ride_events import CATALOGUE

from analytics_spark.config import LakeSettings
from analytics_spark.progress import Progress
from analytics_spark.schemas import event_columns, silver_specs
from analytics_spark.session import LakeLayout
from analytics_spark.sinks import append_once, query_id_of, row_count
from analytics_spark.sources import iceberg_stream
from analytics_spark.streams import StreamPlan
from analytics_spark.tables import BRONZE, QUARANTINE, ensure_table
from analytics_spark.transforms.silver import distinct_events, judged, quarantined, typed

__all__ = ["silver_stream"]

log = structlog.get_logger()


def silver_stream(spark: Any, settings: LakeSettings, layout: LakeLayout, progress: Progress) -> StreamPlan:
    """The query that types every event once."""
    checkpoint = layout.checkpoint("silver")
    specs = silver_specs(CATALOGUE)
    fields = {topic: event_columns(CATALOGUE.on_topic(topic)) for topic in specs}
    for spec in (QUARANTINE, *specs.values()):
        ensure_table(spark, spec)
        progress.rows[spec.name] = row_count(spark, spec)

    def settle(batch: Any, batch_id: int) -> None:
        began = time.monotonic()
        session = batch.sparkSession
        query_id = query_id_of(checkpoint)
        # Kept while the tables are written: the ids that this batch remembers are committed by computing it once.
        records = batch.persist()
        try:
            counts = {
                (row["topic"], row["is_event"]): row["rows"]
                for row in records.selectExpr("topic", "error IS NULL AS is_event")
                .groupBy("topic", "is_event")
                .agg({"*": "count"})
                .withColumnRenamed("count(1)", "rows")
                .collect()
            }
            rows: dict[str, int] = {}
            for topic in sorted({topic for topic, is_event in counts if is_event}):
                spec = specs[topic]
                frame = typed(records, topic=topic, spec=spec, fields=fields[topic], batch_id=batch_id)
                append_once(session, frame.coalesce(1), spec, query_id=query_id, batch_id=batch_id)
                rows[spec.name] = row_count(session, spec)
            if any(not is_event for _, is_event in counts):
                frame = quarantined(records, batch_id=batch_id)
                append_once(session, frame.coalesce(1), QUARANTINE, query_id=query_id, batch_id=batch_id)
                rows[QUARANTINE.name] = row_count(session, QUARANTINE)
        finally:
            records.unpersist()
        progress.batch_done(
            "silver", batch_id=batch_id, rows=rows, in_batch=sum(counts.values()), seconds=time.monotonic() - began
        )

    return StreamPlan(
        name="silver",
        frame=lambda: distinct_events(
            judged(iceberg_stream(spark, BRONZE, max_rows_per_trigger=settings.max_rows_per_silver_batch)),
            window_h=settings.dedupe_window_h,
        ),
        batch=settle,
        checkpoint=checkpoint,
        trigger_s=settings.silver_trigger_s,
    )
