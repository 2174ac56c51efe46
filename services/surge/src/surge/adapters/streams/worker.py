"""The faust application: agents that read, tables that keep, and one loop that settles.

Agents only hand events to the intake. The loop takes a batch, counts it in the city, writes the rows that changed to
the tables, waits until their changelogs have them, records the events in the inbox, and only then acknowledges them.
A process that is killed at any point therefore hears again what it had not recorded, and counting that again changes
nothing.

What faust does on its own is kept out of the way: its `take` acknowledges also what was cancelled half way, its buffer
flush may give up silently, and a table that is read back after every rebalance must not be the only copy of the state.
So acknowledgements are given one by one here, every write is awaited by its own future, and the city in memory is
authoritative: it is loaded from the tables once, after the first recovery.
"""

import asyncio
import contextlib
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

import faust
import structlog
from aiokafka.errors import IllegalStateError
from faust.exceptions import ConsumerNotStarted
from faust.tables.manager import TableManager
from faust.transport.drivers.aiokafka import Consumer as KafkaConsumer
from faust.types import TP
from hailbus import Catalogue, ClusterAdmin, Context, ContractError, Inbox, Topic
from hailbus._transport import Received
from hailbus.codec import decode
from hailbus.dead_letter import dead_letter, dead_letter_topic
from hailbus.faust import record_of
from mode.services import WaitResults
from ride_events.drivers import DRIVER_LOCATIONS, DRIVERS
from ride_events.pricing import FORECASTS, SURGE
from ride_events.quotes import QUOTES
from ride_events.rides import RIDES

from surge.adapters.calendars import calendar_of
from surge.adapters.snapshots import Snapshots
from surge.adapters.streams.records import (
    fact_of,
    forecast_events,
    milliseconds,
    moment_of,
    price_event,
)
from surge.adapters.streams.skipped import SkippedRecords
from surge.app.city import KEPT_SLOTS, SLOT_MS, City, MinuteClosed
from surge.app.decided import Decided
from surge.app.errors import WorkerError
from surge.config import Settings
from surge.domain.calendar import SLOTS_PER_DAY
from surge.domain.pricing import PricingRules
from surge.domain.watermark import LATENESS_MS, Watermark

log = structlog.get_logger("surge")

SOURCES: Final = (RIDES, QUOTES, DRIVERS, DRIVER_LOCATIONS)
PARTITIONS: Final = 6
TABLES: Final = ("windows", "city", "slots")
INTAKE_MAX: Final = 4_000
"""Events that wait for the loop; beyond it the agents wait, and with them the fetching."""
WRITE_TIMEOUT_S: Final = 60.0
FINISH_TIMEOUT_S: Final = 5.0
MINUTES_AT_ONCE: Final = 30
EVENTS_AT_ONCE: Final = 1_000
"""Decided together they are one row of some 100 kB at most."""
"""Minutes that are closed between two writes of the state, when the city catches up."""


CHANGELOG_CONFIG: Final = {
    "segment.bytes": str(2**20),  # the least that Apache Kafka allows
    "delete.retention.ms": "60000",  # a deleted row is a minute long past; a recovery takes less than that
}
"""Only closed segments are compacted. With Kafka's 1 GiB none closes, and a start reads every row ever written: after
21 minutes at thirty times real time 140,000 of them, for 16 s."""


def changelog_topics(group: str) -> tuple[Topic, ...]:
    """The topics behind the tables. As many partitions as the sources, because faust assigns them together."""
    return tuple(
        Topic(
            f"{group}-{name}-changelog",
            partitions=PARTITIONS,
            cleanup_policy="compact",
            config=CHANGELOG_CONFIG,
            description=f"Rows of the surge worker's table {name!r}, for its recovery",
        )
        for name in TABLES
    )


def topics(group: str) -> tuple[Topic, ...]:
    """Every topic that the worker reads or writes, to be provisioned before it starts."""
    dead = tuple(
        Topic(
            dead_letter_topic(topic, group),
            partitions=topic.partitions,
            description=f"Records of {topic.name} that {group} could not read",
        )
        for topic in SOURCES
    )
    return (*SOURCES, SURGE, FORECASTS, *changelog_topics(group), *dead)


class AwaitedTable(faust.Table[str, Any]):
    """A table that remembers the writes that are on their way to its changelog."""

    def send_changelog(self, *args: Any, **kwargs: Any) -> Any:
        """See `faust.Table`; the future is kept until `written` awaits it."""
        future = super().send_changelog(*args, **kwargs)
        self.on_their_way.append(future)
        return future

    @property
    def on_their_way(self) -> list[Awaitable[Any]]:
        """Futures of the writes that were not awaited yet."""
        waiting: list[Awaitable[Any]] = self.__dict__.setdefault("_on_their_way", [])
        return waiting


class PromptTables(TableManager):
    """faust's table manager, which waits a second for tables that are declared late; here all are declared before."""

    async def on_start(self) -> None:
        """See `mode.Service`."""
        await self._update_channels()
        await self.recovery.start()


class EagerConsumer(KafkaConsumer):
    """faust's consumer, which hands a message over without making four tasks for it when nothing has to be waited for.

    `_drain_messages` does `wait_first(callback(message), suspend_flow.wait())` for every message. Here the callback is
    run at once; only if it has to wait, as for a full queue, is it raced as before.
    """

    async def wait_first(self, *coros: Any, timeout: Any = None) -> WaitResults:  # noqa: ASYNC109 mode's signature
        """See `mode.Service`."""
        if len(coros) != 2 or timeout is not None or not asyncio.iscoroutine(coros[0]) or self.should_stop:
            return await super().wait_first(*coros, timeout=timeout)
        first, other = coros
        try:
            waits_for = first.send(None)
        except StopIteration as done:
            other.close()
            return WaitResults([first], [done.value], False)
        except BaseException:
            other.close()
            raise
        return await super().wait_first(_finish(first, waits_for), other)


async def _finish(coro: Any, waits_for: Any) -> Any:
    return await _resumed(coro, waits_for)


@types.coroutine
def _resumed(coro: Any, waits_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that was begun outside of a task, and what it waits for."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:  # noqa: BLE001 handed on
            try:
                waits_for = coro.throw(error)
            except StopIteration as done:
                return done.value
        else:
            try:
                waits_for = coro.send(sent)
            except StopIteration as done:
                return done.value


class Intake:
    """Events between the agents and the loop, bounded."""

    def __init__(self, *, most: int) -> None:
        self._events: deque[Any] = deque()
        self._most = most
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, events: list[Any]) -> None:
        """Hand over events; waits while the intake is full."""
        while len(self._events) >= self._most:
            self._room.clear()
            await self._room.wait()
        self._events.extend(events)
        self._arrived.set()

    async def take(self, *, most: int, wait_s: float) -> list[Any]:
        """The next events, at most `most`: those that came within `wait_s`, sooner if there are enough."""
        deadline = time.monotonic() + wait_s
        while len(self._events) < most:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left_s)
            except TimeoutError:
                break
        taken = [self._events.popleft() for _ in range(min(most, len(self._events)))]
        self._room.set()
        return taken


class SurgeWorker:
    """One city's worker. `app` is the faust application; `run` is the loop, to be awaited beside it."""

    # Known when the city is loaded.
    _history: str
    _snapshots: Snapshots

    def __init__(
        self,
        settings: Settings,
        *,
        inbox: Inbox,
        catalogue: Catalogue,
        admin: ClusterAdmin,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._catalogue = catalogue
        self._admin = admin
        self._skipped = SkippedRecords(settings.bootstrap_servers)
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._calendar = calendar_of(settings.time_zone, settings.holidays)
        self._city = City(rules=PricingRules(), least_counts=settings.forecast_least_pickups, calendar=self._calendar)
        self._watermark = Watermark(idle_after_ms=settings.idle_after_ms)
        self._intake = Intake(most=INTAKE_MAX)
        self._sent: list[Awaitable[Any]] = []
        self._recovered = asyncio.Event()
        self._finishing = False
        self._finished = asyncio.Event()
        self._last_seen: dict[str, int] = {}
        self._slots_kept: deque[int] = deque()
        self.app = self._create_app()
        self._windows, self._state, self._slots = (self._table(name) for name in TABLES)
        for topic in SOURCES:
            self._agent(topic)

    # ------------------------------------------------------------------------------------------------ faust

    def _create_app(self) -> Any:  # Any: faust's own annotations contradict its documentation
        settings = self._settings
        app: Any = faust.App(
            settings.group,
            broker=[f"kafka://{address.strip()}" for address in settings.bootstrap_servers.split(",")],
            datadir=str(settings.state_dir),
            store="memory://",
            Table=AwaitedTable,
            TableManager=PromptTables,
            autodiscover=False,
            web_enabled=False,
            worker_redirect_stdouts=False,
            topic_partitions=PARTITIONS,
            topic_replication_factor=1,
            topic_disable_leader=True,
            # A restart within the session timeout takes its place at once, and two workers cannot both be it.
            consumer_group_instance_id=settings.instance,
            consumer_auto_offset_reset="earliest",
            broker_session_timeout=settings.session_timeout_ms / 1000,
            broker_heartbeat_interval=min(3.0, settings.session_timeout_ms / 3000),
            broker_request_timeout=max(20.0, settings.session_timeout_ms / 1000 + 5),
            broker_commit_interval=0.5,
            producer_acks=-1,
            producer_request_timeout=WRITE_TIMEOUT_S / 2,
            stream_wait_empty=False,
            stream_recovery_delay=0.0,
        )

        async def assigned(_app: Any, partitions: Iterable[TP], **_: Any) -> None:
            await self._on_assigned({(tp.topic, tp.partition) for tp in partitions})

        async def recovered(_app: Any, **_: Any) -> None:
            self._recovered.set()

        app.transport.Consumer = EagerConsumer
        # Resuming after a rebalance empties the queues, also of what was read since: see `SkippedRecords`. What is old
        # is left out by its generation instead.
        new_queue = app.FlowControlQueue
        app.FlowControlQueue = lambda maxsize=None, **_: new_queue(maxsize, clear_on_resume=False)
        # Rows are written by the batch and awaited: reading need not wait for them as well.
        app.producer.buffer.max_messages = 1_000_000
        app.on_partitions_assigned.connect(assigned, weak=False)
        app.on_rebalance_complete.connect(recovered, weak=False)
        return app

    def _table(self, name: str) -> Any:
        # By key, not by the partition of the event at hand: rows sum up events of many partitions.
        return self.app.Table(name, key_type=str, partitions=PARTITIONS, use_partitioner=True)

    def _agent(self, topic: Topic) -> None:
        source = self.app.topic(
            topic.name,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            allow_empty=True,
            partitions=topic.partitions,
        )

        async def read(stream: Any) -> None:
            # Iterating a stream costs a turn of the event loop per event; its channel gives all that has come at once.
            await stream.maybe_start()
            queue = stream.channel.queue
            monitor = self.app.monitor
            while True:
                try:
                    events = [await queue.get()]
                except StopAsyncIteration:
                    return  # how faust tells an agent that it ends
                while not queue.empty():
                    events.append(queue.get_nowait())
                generation = self.app.consumer_generation_id
                # What was fetched before a rebalance is fetched again after it.
                current = [event for event in events if event.message.generation_id == generation]
                now_s = time.monotonic()
                for tp in {event.message.tp for event in current}:
                    monitor.stream_inbound_time[tp] = now_s
                await self._intake.put(current)

        self.app.agent(source, name=f"{self._settings.group}.{topic.name}")(read)

    async def _on_assigned(self, assigned: set[tuple[str, int]]) -> None:
        wanted = {(topic.name, partition) for topic in SOURCES for partition in range(topic.partitions)}
        own = {tp for tp in assigned if tp in wanted}
        if own and own != wanted:
            await self.app.crash(
                WorkerError(
                    f"only {len(own)} of {len(wanted)} partitions were assigned, so another worker is in group "
                    f"{self._settings.group!r}; a city is priced by one worker: stop the other one"
                )
            )
            return
        self._watermark.assign([f"{topic}/{partition}" for topic, partition in own], now_ms=self._monotonic_ms())

    # ------------------------------------------------------------------------------------------------ loop

    async def run(self) -> None:
        """Settle records and close minutes as event time advances; return after `finish`."""
        await self._recovered.wait()
        self._load()
        await self._find_offsets()
        await self._publish_decided(Decided.of((self._state.get("state") or {}).get("decided")))
        try:
            while not self._finishing:
                wait_s = self._settings.batch_wait_ms / 1000
                events = await self._intake.take(most=self._settings.batch_max, wait_s=wait_s)
                if events:
                    await self._settle(events)
                await self._close_minutes()
        finally:
            self._finished.set()

    async def finish(self) -> None:
        """Settle the batch at hand, commit what is acknowledged, and let `run` return."""
        self._finishing = True
        if self._recovered.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), FINISH_TIMEOUT_S)
                await asyncio.wait_for(self.app.consumer.commit(), FINISH_TIMEOUT_S)

    def _load(self) -> None:
        began = time.monotonic()
        slots, drivers = by_slot(self._slots)
        self._slots_kept.extend(sorted(slots))
        snapshot_slot = self._restore_city(slots, drivers)
        newest = self._state.get("newest") or {}
        self._last_seen = dict(newest)
        self._watermark.restore(newest, floor_ms=self._city.closed_until_ms)
        log.info(
            "city_loaded",
            closed_until=_text(self._city.closed_until_ms),
            surging_cells=self._city.surging,
            slots=len(slots),
            snapshot=snapshot_slot,
            seconds=round(time.monotonic() - began, 3),
        )

    def _restore_city(
        self, slots: Mapping[int, Mapping[str, int]], drivers: Mapping[int, Mapping[str, int]]
    ) -> int | None:
        """Rebuild the city; return the first slot that its snapshot has not learnt, or None without a snapshot."""
        state = self._state.get("state")
        self._history = (state or {}).get("history") or uuid4().hex
        self._snapshots = Snapshots(self._settings.state_dir, history=self._history, calendar=self._calendar.name)
        found = None
        if state is not None and state["closed_until_ms"] is not None:
            found = self._snapshots.read(
                until_slot=state["closed_until_ms"] // SLOT_MS,
                since_slot=min(slots) if len(slots) >= KEPT_SLOTS else None,
            )
        snapshot_slot, snapshot = found or (None, None)
        windows = dict(self._windows.items())
        self._city.restore(state=state, windows=windows, slots=slots, drivers=drivers, snapshot=snapshot)
        return snapshot_slot

    async def _find_offsets(self) -> None:
        """Learn where the group resumes, so that a hole right at the beginning is noticed too."""
        starts = await self._admin.start_offsets(SOURCES)
        committed = await self._admin.committed(self._settings.group)
        for tp, start in starts.items():
            self._next_offsets[tp.topic, tp.partition] = max(start, committed.get(tp, start))

    async def _records(self, events: list[Any]) -> list[Received]:
        """The records of a batch, with those that were passed over on the way."""
        records: list[Received] = []
        for event in events:
            record = record_of(event)
            tp = (record.topic, record.partition)
            expected = self._next_offsets.get(tp, record.offset)
            if record.offset > expected:
                found = await self._skipped.read(*tp, expected, record.offset)
                if found:
                    log.warning("skipped_records_read", topic=tp[0], partition=tp[1], offset=expected, count=len(found))
                records.extend(found)
            self._next_offsets[tp] = max(expected, record.offset + 1)
            records.append(record)
        return records

    async def _settle(self, events: list[Any]) -> None:
        """Count a batch, keep it, record it, acknowledge it: in that order."""
        now_ms = self._monotonic_ms()
        contexts: list[Context] = []
        for record in await self._records(events):
            if record.value is None:
                continue  # a deleted key of a compacted topic tells nothing
            try:
                typed, envelope = decode(record, self._catalogue)
            except ContractError as error:
                await self._park(record, error)
                continue
            at_ms = milliseconds(envelope.time)
            self._watermark.observe(f"{record.topic}/{record.partition}", at_ms, now_ms=now_ms)
            fact = fact_of(typed, at_ms)
            if fact is not None:
                self._city.apply(fact)
            contexts.append(Context(record, envelope=envelope))
        for key, row in self._city.changed_rows().items():
            self._windows[key] = row
        newest = {str(partition): at_ms for partition, at_ms in self._watermark.newest.items()}
        if newest != self._last_seen:
            self._state["newest"] = self._last_seen = newest
        await self._written()
        if contexts:
            async with self._inbox.engine.begin() as transaction:
                await self._inbox.claim(transaction, contexts)
        for event in events:
            event.ack()

    async def _close_minutes(self) -> bool:
        """Close minutes that the watermark has passed, publish, keep the state; whether there may be more to close."""
        now_ms = self._monotonic_ms()
        behind = self._behind()
        if self._settings.clock == "wall" and self._watermark.is_idle(now_ms=now_ms, behind=behind):
            self._watermark.advance_to(self._wall_ms() - LATENESS_MS)
        watermark_ms = self._watermark.current(now_ms=now_ms, behind=behind)
        if watermark_ms is None:
            return False
        closed: list[MinuteClosed] = []
        events = 0
        may_be_more, ends_day = True, False
        while may_be_more and (end_ms := self._city.next_end(watermark_ms)) is not None:
            minute = self._city.close_minute(end_ms)
            closed.append(minute)
            events += len(minute.prices) + len(minute.demand.forecasts) + len(minute.supply.forecasts)
            may_be_more = len(closed) < MINUTES_AT_ONCE and events < EVENTS_AT_ONCE
            if (slot := minute.slot) is not None:
                self._slots[str(slot.number)] = dict(slot.pickups)
                self._slots[_drivers_key(slot.number)] = dict(slot.drivers)
                self._slots_kept.append(slot.number)
                ends_day = ends_day or (slot.number + 1) % SLOTS_PER_DAY == 0
        if not closed:
            return False
        # Slots first: a slot whose minute is not closed is counted again, a minute whose slot is missing is lost.
        await self._written()
        decided = Decided.at_end_of(closed)
        self._state["state"] = self._city.state_row() | {"decided": decided.row(), "history": self._history}
        await self._written()
        await self._publish_decided(decided)
        for key in self._city.obsolete_rows():
            self._windows.pop(key, None)
        while len(self._slots_kept) > KEPT_SLOTS:
            gone = self._slots_kept.popleft()
            self._slots.pop(str(gone), None)
            self._slots.pop(_drivers_key(gone), None)
        if ends_day:
            await self._keep_snapshot()
        return not may_be_more

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

    async def _publish_decided(self, decided: Decided) -> None:
        """Publish what the state says was decided, and wait until the log has it."""
        for change in decided.prices:
            await self._publish(SURGE.name, *price_event(change))
        for event in forecast_events(decided.demand, decided.supply):
            await self._publish(FORECASTS.name, *event)
        await self._written()

    def _behind(self) -> list[str]:
        """The partitions that held more than what was settled when they were last fetched from."""
        consumer = self.app.consumer
        behind = []
        for (topic, partition), next_offset in self._next_offsets.items():
            try:
                end = consumer.highwater(TP(topic, partition))
            except (IllegalStateError, ConsumerNotStarted):
                continue  # not assigned at the moment
            if end is not None and end > next_offset:
                behind.append(f"{topic}/{partition}")
        return behind

    async def _publish(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]
    ) -> None:
        producer = await self.app.maybe_start_producer()
        self._sent.append(await producer.send(topic, key, value, None, None, list(headers)))

    async def _park(self, record: Received, error: ContractError) -> None:
        """Put a record that cannot be read on the dead letter topic, as the SDK does."""
        name = dead_letter_topic(record.topic, self._settings.group)
        key, value, headers = dead_letter(
            record,
            group=self._settings.group,
            error=error,
            reason=str(error),
            attempt=0,
            now=moment_of(self._wall_ms()),
            by="decoder",
        )
        log.warning(
            "dead_lettered",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            to=name,
            reason=str(error),
        )
        await self._publish(name, key, value, headers)

    async def _written(self) -> None:
        """Wait until everything that was written is acknowledged by the broker."""
        waiting = [*self._sent]
        self._sent.clear()
        for table in (self._windows, self._state, self._slots):
            waiting.extend(table.on_their_way)
            table.on_their_way.clear()
        if not waiting:
            return
        try:
            await asyncio.wait_for(asyncio.gather(*waiting), WRITE_TIMEOUT_S)
        except TimeoutError as error:
            raise WorkerError(
                f"the broker did not acknowledge {len(waiting)} writes within {WRITE_TIMEOUT_S:.0f} s; "
                "nothing is lost: start the worker again when the broker is well"
            ) from error


def _drivers_key(slot: int) -> str:
    """Key of the row with the drivers that were free at a slot's end; its pickups are under the number alone."""
    return f"{slot}/drivers"


def by_slot(
    table: Mapping[str, Mapping[str, int]],
) -> tuple[dict[int, Mapping[str, int]], dict[int, Mapping[str, int]]]:
    """Pickups, and free drivers, by slot."""
    pickups: dict[int, Mapping[str, int]] = {}
    drivers: dict[int, Mapping[str, int]] = {}
    for key, row in table.items():
        number, _, kind = key.partition("/")
        (drivers if kind else pickups)[int(number)] = row
    return pickups, drivers


def _text(at_ms: int | None) -> str | None:
    return None if at_ms is None else moment_of(at_ms).isoformat()
