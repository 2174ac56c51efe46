"""The worker: settles what it hears, closes minutes as event time advances, and publishes what they bring.

A batch is counted in the city, and its rows are committed together with its inbox rows. A minute is closed in memory,
committed with what it decides, and then published: a process that is killed in between publishes it after its restart.
Whatever fails is done again until it succeeds, and nothing further is closed before.

The city in memory is authoritative. It is loaded when the group has given this process its partitions, and after every
other process was fenced in the database: what that one had committed is in the rows, what it had not is heard again.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final
from uuid import uuid4

import structlog
from hailbus import Batch, ClusterAdmin, Event, HailbusError, Service, TopicPartition
from ride_events.pricing import SurgeUpdated
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from surge.adapters.calendars import calendar_of
from surge.adapters.snapshots import Snapshots
from surge.adapters.storage.store import CITY, SLOTS, WINDOWS, Changes, Store
from surge.adapters.streams.records import (
    Answer,
    Forecast,
    fact_of,
    forecast_events,
    milliseconds,
    moment_of,
    price_event,
)
from surge.adapters.streams.service import SOURCES, Answers
from surge.app.city import KEPT_SLOTS, SLOT_MS, City, MinuteClosed, Row
from surge.app.decided import Decided
from surge.app.errors import WorkerError
from surge.config import Settings
from surge.domain.calendar import SLOTS_PER_DAY
from surge.domain.pricing import PricingRules
from surge.domain.watermark import LATENESS_MS, Watermark

log = structlog.get_logger("surge")

MINUTES_AT_ONCE: Final = 30
"""Minutes that are closed between two writes of the state, when the city catches up."""
EVENTS_AT_ONCE: Final = 1_000
"""Decided together they are one row of some 100 kB at most."""
LOOK_EVERY_MS: Final = 500
"""Time between two looks at the group's lag, which are needed while a partition is silent."""
TRY_AGAIN_S: Final = 1.0


class SurgeWorker:
    """One city's worker, at work while its service runs and `run` is awaited.

    Args:
        settings: All there is to know.
        service: Of `create_service`; it does not run yet.
        answers: Publishes for it.
        engine: Of the database with the inbox.
        store: The rows, in the same database.
        admin: Tells what the group has not read yet.
        monotonic_ms, wall_ms: Clocks.
    """

    # Known when the city is loaded.
    _history: str
    _snapshots: Snapshots

    def __init__(
        self,
        settings: Settings,
        *,
        service: Service,
        answers: Answers,
        engine: AsyncEngine,
        store: Store,
        admin: ClusterAdmin,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._service = service
        self._answers = answers
        self._engine = engine
        self._store = store
        self._admin = admin
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._calendar = calendar_of(settings.time_zone, settings.holidays)
        self._city = City(rules=PricingRules(), least_counts=settings.forecast_least_pickups, calendar=self._calendar)
        self._watermark = Watermark(idle_after_ms=settings.idle_after_ms)
        self._turn = asyncio.Lock()
        """Batches and closings take turns: each leaves memory and rows at one."""
        self._settled = asyncio.Event()
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._rebalances = 0
        self._loaded = asyncio.Event()
        self._newest: dict[str, int] = {}
        self._slots_kept: deque[int] = deque()
        self._uncommitted = Changes()
        self._unstored: Changes | None = None
        self._unpublished = Decided()
        self._ends_day = False
        self._looked_at_ms = 0
        self._trouble = ""

    async def run(self) -> None:
        """Close minutes until cancelled. What ends it is reported to the service."""
        while True:
            try:
                await self._round()
            except (HailbusError, SQLAlchemyError, OSError) as error:
                self._note(str(error))
                await asyncio.sleep(TRY_AGAIN_S)
            except WorkerError as error:
                self._service.fail(str(error))
                return
            except Exception:
                log.exception("failed")
                self._service.fail("an unexpected error ended the worker; nothing is lost: start it again")
                return
            else:
                self._note("")

    def _note(self, trouble: str) -> None:
        """Log what holds the worker up, once, and its end."""
        if trouble and not self._trouble:
            log.warning("waits", reason=trouble)
        elif self._trouble and not trouble:
            log.info("goes_on")
        self._trouble = trouble

    async def _round(self) -> None:
        self._settled.clear()
        if await self._has_partitions():
            async with self._turn:
                await self._load()
                if not await self._close_minutes():
                    return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), self._settings.batch_wait_ms / 1000)

    # ------------------------------------------------------------------------------------------------ the group

    async def _has_partitions(self) -> bool:
        """Whether the group has given this process its partitions.

        Raises:
            WorkerError: It has given it some of them only.
        """
        members = self._service.subscribers
        own = {place for member in members for place in member.assignment}
        if not own:
            return False
        if own != self._partitions:
            self._partitions = frozenset(await self._admin.start_offsets(SOURCES))
        if own != self._partitions:
            raise WorkerError(
                f"only {len(own)} of {len(self._partitions)} partitions were assigned, so another worker is in group "
                f"{self._settings.group!r}; a city is priced by one worker: stop the other one"
            )
        rebalances = sum(member.stats.rebalances for member in members)
        if rebalances != self._rebalances:
            if self._loaded.is_set():
                # The group knows a member by its name alone, and gives its place back to a process that has slept.
                async with self._engine.begin() as tx:
                    await self._store.write(tx, Changes())
            self._rebalances = rebalances
            self._watermark.assign([_name(*place) for place in self._partitions], now_ms=self._monotonic_ms())
        return True

    async def _behind(self) -> list[str]:
        """The partitions that hold more than what the group has committed."""
        lag = await self._admin.lag(self._settings.group, SOURCES)
        return [_name(one.topic, one.partition) for one in lag if one.lag]

    # ------------------------------------------------------------------------------------------------ loading

    async def _load(self) -> None:
        """Rebuild the city once, from what the process before has left."""
        if self._loaded.is_set():
            return
        began = time.monotonic()
        found = await self._store.take_over()
        slots, drivers = by_slot(found[SLOTS])
        self._slots_kept.extend(sorted(slots))
        state = found[CITY].get("state")
        snapshot_slot = self._restore_city(state, found[WINDOWS], slots, drivers)
        self._newest = found[CITY].get("newest", {})
        self._watermark.restore(self._newest, floor_ms=self._city.closed_until_ms)
        self._unpublished = Decided.of((state or {}).get("decided"))
        self._loaded.set()
        log.info(
            "city_loaded",
            closed_until=_text(self._city.closed_until_ms),
            surging_cells=self._city.surging,
            slots=len(slots),
            snapshot=snapshot_slot,
            seconds=round(time.monotonic() - began, 3),
        )

    def _restore_city(
        self,
        state: Row | None,
        windows: Mapping[str, Row],
        slots: Mapping[int, Mapping[str, int]],
        drivers: Mapping[int, Mapping[str, int]],
    ) -> int | None:
        """Rebuild the city; return the first slot that its snapshot has not learnt, or None without a snapshot."""
        self._history = (state or {}).get("history") or uuid4().hex
        self._snapshots = Snapshots(self._settings.state_dir, history=self._history, calendar=self._calendar.name)
        found = None
        if state is not None and state["closed_until_ms"] is not None:
            found = self._snapshots.read(
                until_slot=state["closed_until_ms"] // SLOT_MS,
                since_slot=min(slots) if len(slots) >= KEPT_SLOTS else None,
            )
        snapshot_slot, snapshot = found or (None, None)
        self._city.restore(state=state, windows=windows, slots=slots, drivers=drivers, snapshot=snapshot)
        return snapshot_slot

    # ------------------------------------------------------------------------------------------------ batches

    async def settle(self, batch: Batch[Event]) -> None:
        """Count a batch, and commit its rows with its claims."""
        await self._loaded.wait()  # `run` does that when it has looked at what the group has given this process
        try:
            async with self._turn:
                await self._count(batch)
        except WorkerError as error:
            self._service.fail(str(error))
            # Until it is cancelled: these events are neither settled nor put aside.
            await asyncio.get_running_loop().create_future()
        self._settled.set()

    async def _count(self, batch: Batch[Event]) -> None:
        now_ms = self._monotonic_ms()
        async with self._engine.begin() as tx:
            claim = await batch.claim(tx)
            newest: dict[tuple[str, int], int] = {}
            for delivery in batch:
                ctx = delivery.ctx
                at_ms = milliseconds(ctx.envelope.time)
                place = ctx.topic, ctx.partition
                newest[place] = max(at_ms, newest.get(place, at_ms))
                if delivery in claim and (fact := fact_of(delivery.event, at_ms)) is not None:
                    self._city.apply(fact)
            for place, at_ms in newest.items():
                self._watermark.observe(_name(*place), at_ms, now_ms=now_ms)
            await self._write_rows(tx)
            await claim.store()
        self._uncommitted = Changes()

    async def _write_rows(self, tx: AsyncConnection) -> None:
        """Write the rows that have changed since the last commit."""
        for name, row in self._city.changed_rows().items():
            self._uncommitted.put(WINDOWS, name, row)
        newest = dict(self._watermark.newest)
        if newest != self._newest:
            self._newest = newest
            self._uncommitted.put(CITY, "newest", newest)
        await self._store.write(tx, self._uncommitted)

    # ------------------------------------------------------------------------------------------------ minutes

    async def _close_minutes(self) -> bool:
        """Close minutes that the watermark has passed, keep and publish what they bring; whether all are closed."""
        await self._finish_closing()
        if self._uncommitted.rows:
            return True  # what the database does not have yet is counted when it has it
        watermark_ms = await self._event_time()
        if watermark_ms is None:
            return True
        closed: list[MinuteClosed] = []
        events = 0
        may_be_more = True
        while may_be_more and (end_ms := self._city.next_end(watermark_ms)) is not None:
            minute = self._city.close_minute(end_ms)
            closed.append(minute)
            events += len(minute.prices) + len(minute.demand.forecasts) + len(minute.supply.forecasts)
            may_be_more = len(closed) < MINUTES_AT_ONCE and events < EVENTS_AT_ONCE
        if not closed:
            return True
        self._keep(closed)
        await self._finish_closing()
        return may_be_more

    async def _event_time(self) -> int | None:
        """How far event time has come, None where nobody knows yet or has looked a moment ago."""
        now_ms = self._monotonic_ms()
        behind: Collection[str] = ()
        if self._watermark.has_silent(now_ms=now_ms):
            if now_ms - self._looked_at_ms < LOOK_EVERY_MS:
                return None
            self._looked_at_ms = now_ms
            behind = await self._behind()
        if self._settings.clock == "wall" and self._watermark.is_idle(now_ms=now_ms, behind=behind):
            self._watermark.advance_to(self._wall_ms() - LATENESS_MS)
        return self._watermark.current(now_ms=now_ms, behind=behind)

    def _keep(self, closed: list[MinuteClosed]) -> None:
        """Note what is to be stored and published of minutes that were closed together."""
        decided, changes = Decided.at_end_of(closed), Changes()
        for slot in (minute.slot for minute in closed if minute.slot is not None):
            changes.put(SLOTS, str(slot.number), dict(slot.pickups))
            changes.put(SLOTS, _drivers_key(slot.number), dict(slot.drivers))
            self._slots_kept.append(slot.number)
            self._ends_day = self._ends_day or (slot.number + 1) % SLOTS_PER_DAY == 0
        changes.put(CITY, "state", self._city.state_row() | {"decided": decided.row(), "history": self._history})
        changes.drop(WINDOWS, self._city.obsolete_rows())
        while len(self._slots_kept) > KEPT_SLOTS:
            gone = self._slots_kept.popleft()
            changes.drop(SLOTS, (str(gone), _drivers_key(gone)))
        self._unstored, self._unpublished = changes, decided

    async def _finish_closing(self) -> None:
        """Store, then publish what the last minutes brought, as far as that has not been done."""
        if self._unstored is not None:
            async with self._engine.begin() as tx:
                await self._store.write(tx, self._unstored)
            self._unstored = None
        await self._publish(self._unpublished)
        self._unpublished = Decided()
        if self._ends_day:
            self._ends_day = False
            await self._keep_snapshot()

    async def _publish(self, decided: Decided) -> None:
        """Publish what was decided, and wait until the log has it."""
        waiting = [
            await self._answers.enqueue(answer.event, id=answer.id, time=answer.time) for answer in answers(decided)
        ]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _keep_snapshot(self) -> None:
        """Keep what the forecasts have learnt, so that a restart changes none, however long the history is."""
        arrays, closed_until_ms = self._city.snapshot(), self._city.closed_until_ms
        if arrays is None or closed_until_ms is None:
            return
        began = time.monotonic()
        try:
            # The loop waits: nothing is learnt meanwhile. Some hundred megabytes must not hold up heartbeats.
            await asyncio.to_thread(self._snapshots.write, closed_until_ms // SLOT_MS, arrays)
        except OSError as error:
            log.warning("snapshot_not_written", reason=str(error), consequence="a restart uses an older one")
            return
        log.info("snapshot_written", slot=closed_until_ms // SLOT_MS, seconds=round(time.monotonic() - began, 3))


def answers(decided: Decided) -> Iterator[Answer[SurgeUpdated | Forecast]]:
    """The events that say what was decided, in the order in which they are published."""
    yield from map(price_event, decided.prices)
    yield from forecast_events(decided.demand, decided.supply)


def _name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _drivers_key(slot: int) -> str:
    """Name of the row with the drivers that were free at a slot's end; its pickups are under the number alone."""
    return f"{slot}/drivers"


def by_slot(
    rows: Mapping[str, Mapping[str, int]],
) -> tuple[dict[int, Mapping[str, int]], dict[int, Mapping[str, int]]]:
    """Pickups, and free drivers, by slot."""
    pickups: dict[int, Mapping[str, int]] = {}
    drivers: dict[int, Mapping[str, int]] = {}
    for key, row in rows.items():
        number, _, kind = key.partition("/")
        (drivers if kind else pickups)[int(number)] = row
    return pickups, drivers


def _text(at_ms: int | None) -> str | None:
    return None if at_ms is None else moment_of(at_ms).isoformat()
