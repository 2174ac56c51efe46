"""Reads the bus without a group, and asks how far the groups are."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import structlog
from hailbus import Bus, ClusterAdmin, TopicPartition, record_reader
from ride_events import TOPICS

from dashboard.adapters.admin import renewed_admin
from dashboard.adapters.failures import is_of_the_bus
from dashboard.domain.city import City
from dashboard.domain.health import Progress

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard.watch")

TOPIC_NAMES: Final = tuple(topic.name for topic in TOPICS)
_SLICE_S: Final = 0.015
_PAUSE_S: Final = 0.22
_FRESH_MS: Final = 3_000
_POLL_S: Final = 2.0
_PATIENCE_S: Final = 5.0
_SHORTER_POLLS: Final = 3
"""Polls in a row that must find the log shorter than what was read. A new leader's high watermark lags for a moment."""


def wall_ms() -> int:
    """Return the wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """How far a group is behind in one topic, in records over all partitions."""

    topic: str
    lag: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind.

    Attributes:
        records: Records that it has not taken.
        seconds: The age of the oldest of them.
        per_second: Its speed since the last look.
        progress: Whether it catches up, in words; empty before that is known.
    """

    group: str
    records: int
    seconds: float
    per_second: float
    progress: str
    topics: tuple[TopicLag, ...]


@dataclass(slots=True)
class Status:
    """Whether the broker answers."""

    broker: Literal["connecting", "up", "down"] = "connecting"
    detail: str = "looking for the broker"
    since_ms: int = field(default_factory=wall_ms)
    behind: int = 0
    was_up: bool = False

    def say(self, broker: Literal["connecting", "up", "down"], detail: str = "") -> None:
        """Change the state; `since_ms` stays while it does."""
        if broker != self.broker:
            self.broker, self.since_ms = broker, wall_ms()
            log.info("broker_state", broker=broker, detail=detail)
        self.detail = detail
        self.was_up = self.was_up or broker == "up"

    def fail(self, detail: str) -> None:
        """Say that the broker does not answer: it is down if it ever did."""
        self.say("down" if self.was_up else "connecting", detail)


class Watch:
    """Feeds a city from the bus, from the start of the retained log on.

    Nothing is committed and no group is joined. Live records are taken in slices with pauses between, so that a fetch
    brings many; while it catches up there is no pause.
    """

    def __init__(self, bus: Bus, new_city: Callable[[], City]) -> None:
        self._bus = bus
        self._new_city = new_city
        self.city = new_city()
        self.status = Status()
        self.groups: tuple[GroupLag, ...] = ()
        self.ends: Mapping[TopicPartition, int] = {}
        self._committed: dict[str, tuple[float, int]] = {}
        self._progress: dict[str, Progress] = {}
        self._restart = asyncio.Event()
        self._shorter_count = 0

    async def read(self) -> None:
        """Read for ever. What was read stays until the broker is back; then all begins at the start of the log."""
        while True:
            try:
                async with ClusterAdmin(self._bus, client_id="dashboard") as admin:
                    await admin.provision(TOPICS, on_mismatch="ignore")
                self.status.say("up")
                self._restart.clear()
                if self.city.records:
                    self.city = self._new_city()
                await self._read()
            except Exception as error:
                if not is_of_the_bus(error):
                    raise
                self.status.fail(str(error))
            await asyncio.sleep(1)

    async def _read(self) -> None:
        slice_began = time.monotonic()
        records = record_reader(self._bus, TOPIC_NAMES, start="earliest", client_id="dashboard")
        try:
            async for record in records:
                if self._restart.is_set():
                    log.warning("log_replaced", detail="the log is shorter than what was read: reading it anew")
                    return
                self.city.apply(record)
                if time.monotonic() - slice_began > _SLICE_S:
                    is_live = wall_ms() - record.timestamp < _FRESH_MS
                    await asyncio.sleep(_PAUSE_S if is_live else 0)
                    slice_began = time.monotonic()
        finally:
            await records.aclose()

    async def poll(self) -> None:
        """Ask for the groups' positions every two seconds, for ever."""
        async with renewed_admin(self._bus, "dashboard-lag") as client:
            while True:
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        await self._poll(client.admin)
                    if self.status.broker == "down":
                        self.status.say("up")
                except Exception as error:
                    if not is_of_the_bus(error):
                        raise
                    self.status.fail(str(error) or "no answer in 5 s")
                    await client.close()
                await asyncio.sleep(_POLL_S)

    async def _poll(self, admin: ClusterAdmin) -> None:
        self.ends = await admin.end_offsets(TOPIC_NAMES)
        positions = self.city.offsets.positions
        lags = [end - positions.get((tp.topic, tp.partition), 0) for tp, end in self.ends.items()]
        self._shorter_count = self._shorter_count + 1 if any(lag < 0 for lag in lags) else 0
        if self._shorter_count >= _SHORTER_POLLS:
            self._shorter_count = 0
            self._restart.set()
        self.status.behind = sum(max(0, lag) for lag in lags)
        starts: Mapping[TopicPartition, int] | None = None
        found = []
        for group in await admin.list_groups():
            committed = await admin.committed(group)
            topics = sorted({tp.topic for tp in committed} & set(TOPIC_NAMES))
            if not topics:
                continue
            if starts is None and any(tp not in committed for tp in self.ends if tp.topic in topics):
                starts = await admin.start_offsets(TOPIC_NAMES)
            found.append(self._group(group, topics, committed, starts or {}))
        self.groups = tuple(found)

    def _group(
        self,
        group: str,
        topics: list[str],
        committed: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
    ) -> GroupLag:
        lags = dict.fromkeys(topics, 0)
        ends = dict.fromkeys(topics, 0)
        taken = 0
        oldest_ms: int | None = None
        for tp, end in self.ends.items():
            if tp.topic not in lags:
                continue
            position = committed.get(tp, starts.get(tp, 0))
            taken += position
            ends[tp.topic] += end
            if position < end:
                lags[tp.topic] += end - position
                written_ms = self.city.offsets.written_ms((tp.topic, tp.partition), position)
                if written_ms is not None:
                    oldest_ms = written_ms if oldest_ms is None else min(oldest_ms, written_ms)
        now = time.monotonic()
        before, taken_before = self._committed.get(group, (now, taken))
        self._committed[group] = (now, taken)
        progress = self._progress.setdefault(group, Progress())
        progress.note(now, position=taken, lag=sum(lags.values()))
        return GroupLag(
            group=group,
            records=sum(lags.values()),
            seconds=round(max(0.0, (wall_ms() - oldest_ms) / 1000), 1) if oldest_ms is not None else 0.0,
            per_second=round(max(0, taken - taken_before) / (now - before), 1) if now > before else 0.0,
            progress=progress.words(),
            topics=tuple(TopicLag(topic=topic, lag=lags[topic], end=ends[topic]) for topic in topics),
        )


def as_json(group: GroupLag) -> dict[str, Any]:
    """Return a group's lag as JSON."""
    return {
        "group": group.group,
        "records": group.records,
        "seconds": group.seconds,
        "per_second": group.per_second,
        "progress": group.progress,
        "topics": [{"topic": part.topic, "lag": part.lag, "end": part.end} for part in group.topics],
    }


__all__ = ["TOPIC_NAMES", "GroupLag", "Status", "TopicLag", "Watch", "as_json", "wall_ms"]
