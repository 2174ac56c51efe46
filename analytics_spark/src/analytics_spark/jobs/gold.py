"""Silver to gold: the days that new events fall on are computed again, whole, and replaced."""

import time
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any

from ride_events import CATALOGUE

from analytics_spark.config import LakeSettings
from analytics_spark.progress import Progress
from analytics_spark.schemas import silver_specs
from analytics_spark.session import LakeLayout
from analytics_spark.sinks import overwrite_days, row_count
from analytics_spark.sources import iceberg_stream
from analytics_spark.streams import StreamPlan
from analytics_spark.tables import GOLD, ensure_table
from analytics_spark.transforms import gold

__all__ = ["gold_stream", "refresh_days"]

_DAY = timedelta(days=1)
_SOURCES = ("quotes.v1", "rides.v1", "payments.v1", "recommendations.v1")


def gold_stream(spark: Any, settings: LakeSettings, layout: LakeLayout, progress: Progress) -> StreamPlan:
    """The query that notices which days changed. A repeated batch computes the same days again: nothing to guard."""
    specs = silver_specs(CATALOGUE)
    for spec in GOLD.values():
        ensure_table(spark, spec)
        progress.rows[spec.name] = row_count(spark, spec)

    def refresh(batch: Any, batch_id: int) -> None:
        began = time.monotonic()
        session = batch.sparkSession
        days = sorted({row["day"] for row in batch.select("day").distinct().collect() if row["day"] is not None})
        if days:
            refresh_days(session, days)
        progress.batch_done(
            "gold",
            batch_id=batch_id,
            rows={spec.name: row_count(session, spec) for spec in GOLD.values()},
            in_batch=len(days),
            seconds=time.monotonic() - began,
        )

    def changes() -> Any:
        streams = [
            iceberg_stream(spark, specs[topic], max_rows_per_trigger=10_000_000).selectExpr("to_date(ce_time) AS day")
            for topic in _SOURCES
        ]
        return reduce(lambda left, right: left.unionByName(right), streams)

    return StreamPlan(
        name="gold",
        frame=changes,
        batch=refresh,
        checkpoint=layout.checkpoint("gold"),
        trigger_s=settings.gold_trigger_s,
    )


def refresh_days(spark: Any, days: list[date]) -> None:
    """Compute gold for these days, and for the day before each: a quote of 23:55 is accepted at 00:05.

    Days that lie together are computed together, so a backlog of a month is one pass.
    """
    specs = silver_specs(CATALOGUE)

    def silver(topic: str, first: date, last: date) -> Any:
        # One more day on the right: what became of a day's last quotes.
        return spark.table(specs[topic].qualified).where(f"ce_time >= '{first}' AND ce_time < '{last + 2 * _DAY}'")

    for first, last in _runs(sorted({*days, *(day - _DAY for day in days)})):
        quotes, rides, paid, served = (silver(topic, first, last) for topic in _SOURCES)
        frames = {
            "demand": gold.demand(quotes, rides),
            "revenue": gold.revenue(rides),
            "payments": gold.payments(paid),
            "conversion": gold.conversion(quotes, rides),
            "recommendations": gold.recommendations(served, rides),
        }
        for name, frame in frames.items():
            overwrite_days(frame, GOLD[name], column="window_start", start=_utc(first), end=_utc(last + _DAY))


def _runs(days: list[date]) -> list[tuple[date, date]]:
    """Sorted days as runs of neighbours: first and last, inclusive."""
    runs: list[tuple[date, date]] = []
    for day in days:
        if runs and day - runs[-1][1] == _DAY:
            runs[-1] = (runs[-1][0], day)
        else:
            runs.append((day, day))
    return runs


def _utc(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
