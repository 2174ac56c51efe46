"""What the sink has done so far, as one JSON file that is replaced whole: a reader never sees half of it."""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

__all__ = ["BatchFigures", "PartitionProgress", "Progress", "State", "read_progress"]


State = Literal["starting", "waiting", "running", "finishing", "caught-up", "stopped", "failed"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")  # noqa: TID251 the file says when it was written


def read_progress(path: Path) -> dict[str, Any] | None:
    """The file's content, None when the sink has not written it yet."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFigures:
    """The last batch of one query."""

    batch_id: int
    rows: int
    seconds: float
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """One partition: `landed` and `latest` are ends, exclusive; `lag` is their difference in offsets."""

    topic: str
    partition: int
    landed: int
    latest: int
    lag: int


@dataclass(slots=True)
class Progress:
    """The file's content and how it is written. Batches of several queries report here, each from its own thread."""

    path: Path
    state: State = "starting"
    message: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    batches: dict[str, BatchFigures] = field(default_factory=dict)
    batch_counts: dict[str, int] = field(default_factory=dict)
    landed: dict[tuple[str, int], int] = field(default_factory=dict)
    latest: dict[tuple[str, int], int] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    started_at: str = field(default_factory=_now)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, state: State, message: str = "") -> None:
        """Change what the sink is doing, and write."""
        with self._lock:
            self.state, self.message = state, message
            self._write()

    def timing(self, name: str, seconds: float) -> None:
        """Note a duration of the start, once."""
        with self._lock:
            self.timings_s.setdefault(name, round(seconds, 3))

    def batch_done(self, query: str, *, batch_id: int, rows: Mapping[str, int], in_batch: int, seconds: float) -> None:
        """A batch is in its tables: `rows` are those tables' totals now, `in_batch` the rows that it added."""
        with self._lock:
            self.rows.update(rows)
            self.batches[query] = BatchFigures(batch_id=batch_id, rows=in_batch, seconds=round(seconds, 3), at=_now())
            self.batch_counts[query] = self.batch_counts.get(query, 0) + 1
            self._write()

    def offsets(self, *, landed: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> None:
        """Where the tables end and where the broker ends. Written with the next batch or change of state."""
        with self._lock:
            self.landed.update(_flat(landed))
            self.latest.update(_flat(latest))

    def write(self) -> None:
        """Write as it stands."""
        with self._lock:
            self._write()

    def as_dict(self) -> dict[str, Any]:
        """The file's content."""
        partitions = [
            PartitionProgress(
                topic=topic,
                partition=partition,
                landed=landed,
                latest=max(landed, self.latest.get((topic, partition), landed)),
                lag=max(0, self.latest.get((topic, partition), landed) - landed),
            )
            for (topic, partition), landed in sorted(self.landed.items())
        ]
        return {
            "version": 1,
            "state": self.state,
            "message": self.message,
            "pid": os.getpid(),
            "started_at": self.started_at,
            "updated_at": _now(),
            "rows": dict(sorted(self.rows.items())),
            "lag_records": sum(part.lag for part in partitions),
            "partitions": [asdict(part) for part in partitions],
            "batches": {
                name: asdict(figures) | {"count": self.batch_counts[name]} for name, figures in self.batches.items()
            },
            "timings_s": self.timings_s,
        }

    def _write(self) -> None:
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        fresh.replace(self.path)


def _flat(offsets: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, int], int]:
    return {(topic, int(partition)): end for topic, parts in offsets.items() for partition, end in parts.items()}
