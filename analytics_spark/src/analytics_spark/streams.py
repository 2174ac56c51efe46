"""One streaming query: how it starts, how it ends after its running batch, and how it catches up."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RunningStream", "StreamPlan"]

_CUT_S = 12.0
"""How long a batch may take to end when a catching-up stream is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What makes a streaming query.

    Attributes:
        name: Of the query, and of its checkpoint.
        frame: Builds the streaming DataFrame; called at every start.
        batch: Writes one batch, idempotently: `batch(frame, batch_id)`.
        checkpoint: Folder of its offset and commit logs; belongs to this query alone.
        trigger_s: Least time between two batches.
        knows_its_end: Whether the source can be asked to stop where it ends now. Iceberg's cannot: it plans that from
            its first snapshot, and fails when that has expired. It is caught up when it has nothing more to do.
    """

    name: str
    frame: Callable[[], Any]
    batch: Callable[[Any, int], None]
    checkpoint: Path
    trigger_s: float
    knows_its_end: bool = False

    def writer(self) -> Any:
        """The query, not started."""
        return (
            self.frame()
            .writeStream.queryName(self.name)
            .option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(self.batch)
        )


class RunningStream:
    """A started query. Not thread-safe: the supervisor's thread owns it."""

    def __init__(self, spark: Any, plan: StreamPlan) -> None:
        self._spark = spark
        self.plan = plan
        self._query: Any = None

    def start(self) -> None:
        """Start with the plan's trigger; its jobs get their fair share of the cores."""
        self._pool()
        self._query = self.plan.writer().trigger(processingTime=f"{self.plan.trigger_s} seconds").start()

    def catch_up(self, stop: threading.Event) -> None:
        """Process what is there now, in as many batches as it takes, and end. The stream must not be running.

        Args:
            stop: When it is set, ends after the running batch.

        Raises:
            StreamingQueryException: A batch failed.
        """
        self._pool()
        trigger: dict[str, Any] = {"availableNow": True} if self.plan.knows_its_end else {"processingTime": "0 seconds"}
        query = self.plan.writer().trigger(**trigger).start()
        self._query = query
        failed: list[Exception] = []

        def wait() -> None:
            try:
                if self.plan.knows_its_end:
                    query.awaitTermination()
                else:
                    query.processAllAvailable()
            except Exception as error:  # noqa: BLE001 raised again below, in the caller's thread
                failed.append(error)

        # In a thread: a call into the JVM cannot be interrupted, and a signal must not wait for the whole backlog.
        waiting = threading.Thread(target=wait, name=f"catch-up-{self.plan.name}", daemon=True)
        waiting.start()
        while waiting.is_alive() and not stop.is_set():
            waiting.join(0.2)
        self.stop_after_batch(timeout_s=_CUT_S)
        if failed and not stop.is_set():
            raise failed[0]

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return self._query is not None and bool(self._query.isActive)

    def failure(self) -> Exception | None:
        """Why the query ended, None when it runs or was stopped."""
        if self._query is None:
            return None
        error: Exception | None = self._query.exception()
        return error

    def last_progress(self) -> dict[str, Any] | None:
        """Spark's own figures of the last trigger."""
        if self._query is None:
            return None
        progress = self._query.lastProgress
        # Its own JSON: the object holds offsets as Python's spelling of a mapping.
        return dict(json.loads(progress.json)) if progress else None

    def stop_after_batch(self, *, timeout_s: float) -> bool:
        """End between two batches; in the middle of one, which loses nothing, when it takes over `timeout_s`.

        Returns:
            Whether no batch was cut.
        """
        query = self._query
        if query is None or not query.isActive:
            return True
        deadline = time.monotonic() + timeout_s
        while query.isActive and query.status["isTriggerActive"]:
            if time.monotonic() >= deadline:
                query.stop()
                return False
            time.sleep(0.05)
        query.stop()
        return True

    def _pool(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.plan.name)
