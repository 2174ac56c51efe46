"""Kafka to bronze."""

import time
from collections.abc import Collection
from typing import Any

import structlog

from analytics_spark.config import LakeSettings
from analytics_spark.errors import LakeError
from analytics_spark.progress import Progress
from analytics_spark.session import LakeLayout
from analytics_spark.sinks import append_once, batch_offsets, loaded, query_id_of, row_count
from analytics_spark.sources import kafka_stream, topic_ids
from analytics_spark.streams import StreamPlan
from analytics_spark.tables import BRONZE, ensure_table
from analytics_spark.topic_ids import note_topic_ids, read_topic_ids
from analytics_spark.transforms.bronze import bronze_rows

__all__ = ["bronze_stream"]

log = structlog.get_logger()

_TOPIC_IDS_TIMEOUT_MS = 15_000


def bronze_stream(spark: Any, settings: LakeSettings, layout: LakeLayout, progress: Progress) -> StreamPlan:
    """The query that lands every record exactly once.

    Raises:
        LakeError: The table has rows and the checkpoint that says up to where is gone, or a landed topic is left out.
        DataLossError: A landed topic was deleted and created again.
    """
    checkpoint = layout.checkpoint("bronze")
    ensure_table(spark, BRONZE)
    rows = row_count(spark, BRONZE)
    progress.rows[BRONZE.name] = rows
    if rows and not (checkpoint / "metadata").exists():
        raise LakeError(
            f"{BRONZE.name} has {rows} rows and {checkpoint} is gone, so all would be landed again; "
            "bring the checkpoint back, or start a new LAKE_DIR"
        )
    commits = sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    if commits:
        landed = batch_offsets(checkpoint, commits[-1])
        left_out = sorted(set(landed).difference(settings.topics))
        if left_out:
            raise LakeError(
                f"LAKE_TOPICS leaves out {', '.join(left_out)}, which this lake has landed so far; "
                "name it too, or start a new LAKE_DIR"
            )
        progress.offsets(landed=landed, latest=landed)
    checked: set[str] = set()

    def check_topics(session: Any, topics: Collection[str]) -> None:
        """See that these topics are those that were landed, and note new ones."""
        if checked.issuperset(topics):
            return
        address, timeout_ms = settings.bootstrap_servers, _TOPIC_IDS_TIMEOUT_MS
        note_topic_ids(layout.topic_ids, topic_ids(session, topics, bootstrap_servers=address, timeout_ms=timeout_ms))
        checked.update(topics)

    try:
        # Before the query starts: it writes down the offsets of a batch before it runs, and would repeat them for ever.
        check_topics(spark, read_topic_ids(layout.topic_ids))
    except ConnectionError as error:
        log.warning("topics_unchecked", reason=str(error), effect="the first batch checks them")

    def land(batch: Any, batch_id: int) -> None:
        began = time.monotonic()
        session = batch.sparkSession
        ends = batch_offsets(checkpoint, batch_id)
        check_topics(session, ends)
        # One task per core reads all partitions one after the other: a task per partition would cost more than its
        # rows.
        frame = bronze_rows(batch.coalesce(settings.cores), batch_id=batch_id)
        is_new = append_once(session, frame, BRONZE, query_id=query_id_of(checkpoint), batch_id=batch_id)
        if not is_new:
            log.info("batch_skipped", stream="bronze", batch_id=batch_id, reason="it is in the table already")
        snapshot = loaded(session, BRONZE).currentSnapshot()
        summary = snapshot.summary() if snapshot is not None else {}
        progress.offsets(landed=ends, latest={})
        progress.batch_done(
            "bronze",
            batch_id=batch_id,
            rows={BRONZE.name: int(summary.get("total-records") or 0)},
            in_batch=int(summary.get("added-records") or 0) if is_new else 0,
            seconds=time.monotonic() - began,
        )

    return StreamPlan(
        name="bronze",
        frame=lambda: kafka_stream(
            spark,
            bootstrap_servers=settings.bootstrap_servers,
            topics=settings.topics,
            max_offsets_per_trigger=settings.max_offsets_per_trigger,
        ),
        batch=land,
        checkpoint=checkpoint,
        trigger_s=settings.trigger_s,
        knows_its_end=True,
    )
