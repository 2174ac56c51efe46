"""Keeps the streams of one lake running: restarts what a broker's absence ended, and ends them in order."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from pyspark.errors import StreamingQueryException

from analytics_spark.errors import DataLossError, LakeError
from analytics_spark.progress import Progress
from analytics_spark.streams import RunningStream, StreamPlan

__all__ = ["Supervisor", "SupervisorPlan"]

log = structlog.get_logger()
_POLL_S = 0.25
_FIRST_BACKOFF_S = 1.0
_LAST_BACKOFF_S = 15.0
_ATTEMPTS = 5
"""How often in a row a stream may fail for a reason that is not the broker's absence."""
_BROKER_WORDS = ("org.apache.kafka", "TimeoutException", "Connection refused", "fetching offsets", "ConnectionError")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPlan:
    """How patient the supervisor is.

    Attributes:
        finish_file: When it appears, streams catch up and end.
        retry_for_s: How long failing streams are started again since the last batch that worked.
        drain_s: How long a running batch may take at the end.
    """

    finish_file: Path
    retry_for_s: float
    drain_s: float = 12.0


class Supervisor:
    """The streams in the order of the data: each reads what the one before it wrote."""

    def __init__(
        self, spark: Any, makers: Sequence[Callable[[], StreamPlan]], plan: SupervisorPlan, progress: Progress
    ) -> None:
        self._spark = spark
        self._makers = tuple(makers)
        self._streams: list[RunningStream] = []
        self._plan = plan
        self._progress = progress
        self._due: dict[str, float] = {}
        self._failures: dict[str, _Failures] = {}
        self._figures_seen: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set or the finish file appears.

        Raises:
            DataLossError: The broker lost records that the lake does not have.
            LakeError: A stream kept failing for `retry_for_s`.
        """
        # One after the other: bronze is landing while the tables of silver and gold are still made.
        for make in self._makers:
            if stop.is_set():
                break
            self._add(make).start()
            self._progress.say("running")
        while not stop.wait(_POLL_S):
            if self._plan.finish_file.exists():
                self.finish(stop)
                self._plan.finish_file.unlink(missing_ok=True)
                return
            for stream in self._streams:
                self._look_after(stream)
        self._stop_all()

    def finish(self, stop: threading.Event) -> None:
        """Bring every stream, in order, to what its source has now; the streams are stopped afterwards."""
        self._stop_all()
        self._progress.say("finishing")
        for index, make in enumerate(self._makers):
            stream = self._streams[index] if index < len(self._streams) else self._add(make)
            while not stop.is_set():
                try:
                    stream.catch_up(stop)
                except StreamingQueryException as error:
                    stop.wait(self._failed(stream, error))
                else:
                    break
            self._note(stream)
        if not stop.is_set():
            self._progress.say("caught-up")

    def _add(self, make: Callable[[], StreamPlan]) -> RunningStream:
        stream = RunningStream(self._spark, make())
        self._streams.append(stream)
        return stream

    def _stop_all(self) -> None:
        deadline = time.monotonic() + self._plan.drain_s
        for stream in self._streams:
            is_whole = stream.stop_after_batch(timeout_s=max(0.5, deadline - time.monotonic()))
            if not is_whole:
                log.warning("batch_cut", stream=stream.plan.name, effect="the next start repeats it")

    def _look_after(self, stream: RunningStream) -> None:
        name = stream.plan.name
        if stream.is_active:
            self._note(stream)
            return
        now = time.monotonic()
        if name not in self._due:
            error = stream.failure()
            self._due[name] = now + (self._failed(stream, error) if error is not None else 0.0)
        if now >= self._due[name]:
            del self._due[name]
            stream.start()

    def _failed(self, stream: RunningStream, error: Exception) -> float:
        """Seconds to wait before the stream starts again.

        Raises:
            DataLossError, LakeError: Starting again would not help, or was tried long enough.
        """
        name = stream.plan.name
        reason = _reason(error)
        if "failOnDataLoss" in str(error) or "KAFKA_DATA_LOSS" in str(error):
            raise DataLossError(
                f"the broker no longer has records that come next for the lake, or was emptied ({reason}); "
                "bring its data back, or start a new LAKE_DIR"
            ) from error
        if (lost := _data_loss(error)) is not None:
            raise DataLossError(lost) from error
        failures = self._failures.setdefault(name, _Failures(since=time.monotonic()))
        failures.count += 1
        is_brokers = any(word in str(error) for word in _BROKER_WORDS)
        is_over = (
            time.monotonic() - failures.since > self._plan.retry_for_s if is_brokers else failures.count > _ATTEMPTS
        )
        if is_over:
            raise LakeError(
                f"stream {name} failed {failures.count} times in a row ({reason}); "
                + (
                    "bring the broker back and start lake-sink again"
                    if is_brokers
                    else "logs/spark.log has the details"
                )
            ) from error
        wait_s: float = min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (failures.count - 1))
        log.warning("stream_failed", stream=name, reason=reason, again_in_s=wait_s)
        self._progress.say("waiting", f"stream {name} starts again in {wait_s:.0f} s: {reason}")
        return wait_s

    def _note(self, stream: RunningStream) -> None:
        """Take offsets and lag from Spark's figures; a trigger that worked ends a row of failures."""
        figures = stream.last_progress()
        name = stream.plan.name
        if figures is None or figures["timestamp"] == self._figures_seen.get(name):
            return
        self._figures_seen[name] = figures["timestamp"]
        source = figures["sources"][0]
        if source["description"].startswith("KafkaV2") and source["endOffset"]:
            self._progress.offsets(landed=source["endOffset"], latest=source["latestOffset"] or {})
        if self._failures.pop(name, None) is not None and not self._failures:
            self._progress.say("running")
        else:
            self._progress.write()


@dataclass(slots=True)
class _Failures:
    since: float
    count: int = 0


def _data_loss(error: Exception) -> str | None:
    """The message of a `DataLossError` that a batch raised: it comes as text, inside the JVM's own exception."""
    _, name, rest = str(error).partition(f"{DataLossError.__name__}: ")
    return rest.splitlines()[0] if name and rest else None


def _reason(error: Exception) -> str:
    """The innermost cause that the JVM names, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [index for index, line in enumerate(lines) if line.startswith("Caused by: ")]
    start = causes[-1] if causes else 0
    # A message may begin on the line after its class.
    text = " ".join(lines[start : start + (3 if lines and lines[start].endswith(":") else 1)])
    return text.removeprefix("Caused by: ")[:400] or type(error).__name__
