"""Watches a running system: ends, lags, multipliers, the lake. While the broker is away it shows what it saw last."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hailbus import Bus, ClusterAdmin, HailbusError, bus_reader
from ride_events.pricing import SurgeUpdated
from ride_events.recommendations import RecommendationServed

from hailbus_demo.health import Progress
from hailbus_demo.ledger.model import Consumer, Partition

log = logging.getLogger("hailbus_demo.watch")
HISTORY_S = 600
RATE_OVER_S = 5.0

FIRST_EVERY_S = 0.2
"""How often the cluster is looked at before it holds any record."""


@dataclass(slots=True)
class GroupLag:
    """How far a group is behind."""

    group: str
    topics: tuple[str, ...]
    records: int = 0
    seconds: float = 0.0
    progress: Progress = field(default_factory=Progress)


@dataclass(slots=True)
class LakeView:
    """What the lake sink says of itself."""

    state: str = "absent"
    rows: int = 0
    behind: int = 0
    stamp: str = ""
    tables: dict[str, int] = field(default_factory=dict)


class Watch:
    """Looks at the cluster every `every_s` seconds.

    Args:
        bus: Where.
        topics: Topics whose ends are followed.
        consumers: Groups whose lag is followed.
        lake_dir: The lake's folder, `None` for no lake.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        topics: Sequence[str],
        consumers: Sequence[Consumer],
        lake_dir: Path | None,
        every_s: float = 1.0,
    ) -> None:
        self.bus = bus
        self.topics = tuple(topics)
        self.lake_dir = lake_dir
        self.every_s = every_s
        self.ends: dict[Partition, int] = {}
        self.starts: dict[Partition, int] = {}
        self.groups = {group: GroupLag(group=group, topics=c.topics) for c in consumers for group in c.read_by}
        self.lake = LakeView()
        self.has_lake: Callable[[], bool] = lambda: True
        """Returns whether the lake sink will get on; one that was given up is not waited for."""
        self.served = 0
        self.hottest: dict[str, tuple[float, datetime]] = {}
        self.fresh_at = 0.0
        """Monotonic time of the last look that succeeded."""
        self.looked_at = 0.0
        """Monotonic time to which the ends and lags of that look belong: a little before `fresh_at`."""
        self.first_record_at: float | None = None
        self.peak_per_s = 0.0
        self._history: deque[tuple[float, dict[Partition, int]]] = deque()
        self._base = 0
        self._admin: ClusterAdmin | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to watch; what is there now counts as seen before."""
        await self.look()
        self._base = sum(self.ends.values())
        self.first_record_at = None
        self._tasks = [asyncio.create_task(self._keep_looking()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._drop_admin()

    @property
    def records(self) -> int:
        """Records in all topics since `start`."""
        return sum(self.ends.values()) - self._base

    def records_of(self, topic: str) -> int:
        """Records that a topic ever got."""
        return sum(end for (name, _), end in self.ends.items() if name == topic)

    def per_second(self) -> float:
        """Return records per second over the last seconds."""
        if len(self._history) < 2:
            return 0.0
        now, latest = self._history[-1]
        then, before = next((h for h in self._history if h[0] >= now - RATE_OVER_S), self._history[0])
        return (sum(latest.values()) - sum(before.values())) / (now - then) if now > then else 0.0

    def hot_cells(self, event_time: datetime | None, *, most: int = 5) -> list[tuple[str, float]]:
        """Return the cells with the highest multipliers that are still valid, highest first."""
        valid = [
            (cell, multiplier)
            for cell, (multiplier, until) in self.hottest.items()
            if multiplier > 1.0 and (event_time is None or until >= event_time)
        ]
        return sorted(valid, key=lambda pair: (-pair[1], pair[0]))[:most]

    def behind(self) -> dict[str, int]:
        """Return reader → records that it is behind, the lake included."""
        late = {group.group: group.records for group in self.groups.values()}
        if self.lake_dir is not None and self.has_lake():
            late["lake"] = self.lake.behind
        return late

    def keeps_up(self, *, within_s: float) -> bool:
        """Return whether the last look succeeded lately, and no group was so many seconds behind."""
        fresh = time.monotonic() - self.fresh_at < within_s
        return fresh and all(group.seconds < within_s for group in self.groups.values())

    async def look(self) -> bool:
        """Look once; say whether the cluster answered."""
        try:
            async with asyncio.timeout(20):
                if self._admin is None:
                    self._admin = ClusterAdmin(self.bus, client_id="demo-watch")
                ends = {
                    (tp.topic, tp.partition): end for tp, end in (await self._admin.end_offsets(self.topics)).items()
                }
                if not self.starts:
                    starts = await self._admin.start_offsets(self.topics)
                    self.starts = {(tp.topic, tp.partition): start for tp, start in starts.items()}
                now = time.monotonic()
                self._history.append((now, ends))
                while self._history and self._history[0][0] < now - HISTORY_S:
                    self._history.popleft()
                self.ends = ends
                for group in self.groups.values():
                    await self._look_at_group(self._admin, group, now)
        except (HailbusError, TimeoutError, OSError, ExceptionGroup) as error:
            log.debug("the cluster does not answer: %s", error)
            await self._drop_admin()
            return False
        except Exception as error:  # noqa: BLE001  # the client's own errors while a broker is being killed
            log.debug("the cluster does not answer: %r", error)
            await self._drop_admin()
            return False
        self.look_at_lake()
        self.looked_at, self.fresh_at = now, time.monotonic()
        self.peak_per_s = max(self.peak_per_s, self.per_second())
        return True

    async def _look_at_group(self, admin: ClusterAdmin, group: GroupLag, now: float) -> None:
        committed = {(tp.topic, tp.partition): offset for tp, offset in (await admin.committed(group.group)).items()}
        records, taken, seconds = 0, 0, 0.0
        for place, end in self.ends.items():
            if place[0] not in group.topics:
                continue
            reached = committed.get(place, self.starts.get(place, 0))
            taken += reached
            if reached < end:
                records += end - reached
                since = next((at for at, ends in self._history if ends.get(place, 0) > reached), now)
                seconds = max(seconds, now - since)
        group.records, group.seconds = records, seconds
        group.progress.note(now, position=taken, lag=records)

    def look_at_lake(self) -> None:
        """Read what the lake sink last wrote about itself."""
        if self.lake_dir is None:
            return
        try:
            progress = json.loads((self.lake_dir / "progress.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.lake.behind = sum(self.ends.values()) - sum(self.starts.values())
            return
        landed = {(p["topic"], p["partition"]): p["landed"] for p in progress["partitions"]}
        self.lake = LakeView(
            state=progress["state"],
            tables=progress["rows"],
            stamp=json.dumps([progress["state"], progress["batches"], progress["timings_s"]]),
            rows=progress["rows"].get("bronze.events", 0),
            behind=sum(max(0, end - landed.get(p, self.starts.get(p, 0))) for p, end in self.ends.items()),
        )

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            if self.first_record_at is None and self.records > 0:
                self.first_record_at = time.monotonic()
            await asyncio.sleep(self.every_s if self.records else FIRST_EVERY_S)

    async def _listen(self) -> None:
        while True:
            try:
                async for delivery in bus_reader(
                    self.bus, SurgeUpdated, RecommendationServed, start="latest", client_id="demo-watch"
                ):
                    event = delivery.event
                    if isinstance(event, SurgeUpdated):
                        self.hottest[event.cell] = (event.multiplier, event.valid_until)
                    else:
                        self.served += 1
            except Exception as error:  # noqa: BLE001  # the broker is away: look again soon
                log.debug("the tail broke: %r", error)
                await asyncio.sleep(1.0)

    async def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            try:
                async with asyncio.timeout(5):
                    await admin.close()
            except Exception as error:  # noqa: BLE001  # it is broken already
                log.debug("the client did not close: %r", error)


def utc_now_text() -> str:
    """Return the machine's time as text, for files that say when they were written."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
