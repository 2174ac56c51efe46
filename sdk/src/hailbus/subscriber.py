"""One group member: reads, hands records to lanes and batches, commits the contiguous settled prefix only.

The rules, each with a test:

- Nothing is committed beyond a record that is not settled.
- Handlers of one key never overlap. A lane has one runner at a time.
- A cancelled handler settles nothing.
- On revocation running handlers get `revoke_grace` to finish, then they are cancelled; what settled by then is
  committed, the rest is dropped here and read again by the next owner.
- What cannot be decoded goes to the dead letter topic, with its raw bytes, before it is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError

from hailbus._batches import BatchRunner
from hailbus._transport import Bus, Consumer, Outgoing, Producer, Received, Start, TopicPartition, TransportBrokenError
from hailbus._work import Chunk, Item, Part, ReleaseMark, Route, Usual
from hailbus.catalogue import Catalogue
from hailbus.clock import Clock
from hailbus.codec import STRUCTURED_PREFIX, decode, decode_value
from hailbus.context import Context
from hailbus.dead_letter import (
    attempts_before,
    dead_letter,
    dead_letter_topic,
    due_ms,
    origin,
    retry_letter,
    retry_topic,
)
from hailbus.delivery import (
    AtLeastOnce,
    AtMostOnce,
    Done,
    EffectivelyOnce,
    ExactlyOnce,
    Park,
    ParkKey,
    Retry,
    RetryTopics,
    Skip,
    Verdict,
)
from hailbus.envelope import CONTENT_TYPE
from hailbus.errors import (
    ConfigurationError,
    ContractError,
    DeliveryError,
    UnknownEventError,
    UnsupportedVersionError,
)
from hailbus.event import Event, event_info
from hailbus.settlement import Lane, Lanes, SettledPrefix
from hailbus.subscription import Handler, SubscriberSettings, SubscriberStats, Subscription
from hailbus.upcasting import newest, upcasted

if TYPE_CHECKING:
    from hailbus.inbox import Inbox
    from hailbus.parking import ParkedRecord, ParkingLot
    from hailbus.registry.schemas import Schemas
    from hailbus.tracing import Tracing

__all__ = ["Subscriber"]

log = logging.getLogger("hailbus.subscriber")

JSON_HEADER = ("content-type", CONTENT_TYPE)
# Handlers that never wait would keep the event loop: after so many of them, or so long, it gets its turn.
YIELD_EVERY = 256
YIELD_AFTER_S = 0.005
LOOK_EVERY = 16  # records between two looks at the clock


class Subscriber:
    """All subscriptions of one group in one process, on one consumer."""

    def __init__(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        bus: Bus,
        catalogue: Catalogue,
        settings: SubscriberSettings,
        clock: Clock,
        producer: Callable[[], Producer],
        client_id: str,
        seed: int | None = None,
        tracing: Tracing | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        self.group = group
        self.subscriptions = tuple(subscriptions)
        self.stats = SubscriberStats()
        self._bus = bus
        self._catalogue = catalogue
        self._settings = settings
        self._clock = clock
        self._producer = producer
        self._client_id = client_id
        self.tracing = tracing
        self._schemas = schemas
        self._random = random.Random(seed)
        self._at_most_once = isinstance(subscriptions[0].delivery, AtMostOnce)
        if any(isinstance(s.delivery, AtMostOnce) != self._at_most_once for s in subscriptions):
            message = (
                f"group {group!r} mixes AtMostOnce and AtLeastOnce, whose commits exclude each other; "
                "give one of the subscriptions a group of its own"
            )
            raise ConfigurationError(message)
        starts = {s.start for s in subscriptions}
        if len(starts) > 1:
            message = f"group {group!r} has subscriptions that start at both ends; give one of them another group"
            raise ConfigurationError(message)
        self._start: Start = starts.pop()
        self._by_class: dict[type[Event], Route] = {}
        self._batches: list[BatchRunner] = []
        for subscription in subscriptions:
            runner = BatchRunner(self, subscription) if subscription.batch_handler is not None else None
            if runner is not None:
                self._batches.append(runner)
            for cls in subscription.events:
                if cls in self._by_class:
                    message = (
                        f"group {group!r} has two handlers for {cls.__name__}; "
                        "give one of them another group, or call both from one"
                    )
                    raise ConfigurationError(message)
                self._by_class[cls] = Route(subscription, cls, batch=runner)
        self._retries: dict[str, tuple[RetryTopics, int]] = {}
        for subscription in subscriptions:
            then = getattr(subscription.delivery, "then", None)
            if isinstance(then, RetryTopics):
                for cls in subscription.events:
                    for step, delay in enumerate(then.delays):
                        name = retry_topic(event_info(cls).topic, group, delay)
                        # Of equal delays the last counts: a record there has been through all of them.
                        self._retries[name] = (then, step)
        self._lots = {
            delivery.then.lot: delivery.then
            for delivery in (s.delivery for s in subscriptions)
            if isinstance(delivery, (AtLeastOnce, EffectivelyOnce)) and isinstance(delivery.then, ParkKey)
        }
        self._parked: dict[tuple[TopicPartition, bytes], ParkingLot] = {}
        self.topics = tuple(sorted({event_info(cls).topic.name for cls in self._by_class} | self._retries.keys()))
        self._routes: dict[tuple[bytes | None, bytes | None], Route] = {}
        self._decode_first = Route(None, None)
        self._usual = Usual(None, None, self._decode_first)
        self._takes_single_events = any(s.handler for s in subscriptions)
        self._max_in_flight = max((s.delivery.max_in_flight for s in subscriptions if s.handler), default=1)

        self._consumer: Consumer | None = None
        self._lanes: Lanes[Item] = Lanes()
        self._chunks: deque[Chunk] = deque()
        self._releasing: set[tuple[TopicPartition, bytes]] = set()
        self._prefixes: dict[TopicPartition, SettledPrefix] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._reads: dict[TopicPartition, deque[tuple[int, int]]] = {}
        """Last offset and first timestamp of each read that is not settled."""
        self._paused: set[TopicPartition] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._spare: asyncio.Future[None] | None = None
        self._worker_pending = False
        """A worker has been made and has not begun: one at a time, as it makes the next when it finds work."""
        self._running: dict[asyncio.Task[None], TopicPartition] = {}
        """Workers inside of a handler, or about to be, and whose records they handle."""
        self._lane_done = asyncio.Event()
        self._room = asyncio.Event()
        self._room_wanted = False
        self._streak = 0
        self._turn_began_s = 0.0
        self._commit_wanted = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._committing = asyncio.Lock()
        self._progress_s = 0.0
        self._progress_count = 0
        self._count_at_commit = 0
        self.failure: BaseException | None = None
        """What ended this subscriber, when it was not `stop`."""

    # -------------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Join the group and begin to read."""
        self._loop = asyncio.get_running_loop()
        self._progress_s = self._loop.time()
        for lot in self._lots:
            await lot.create_tables()
        await self._connect()
        for runner in self._batches:
            runner.start()
        self._tasks = [
            *(
                self._loop.create_task(self._watch_releases(then), name=f"hailbus-parked-{self.group}")
                for then in self._lots.values()
            ),
            self._loop.create_task(self._read(), name=f"hailbus-read-{self.group}"),
            self._loop.create_task(self._commit_regularly(), name=f"hailbus-commit-{self.group}"),
        ]

    async def _connect(self) -> None:
        consumer = self._bus.consumer(
            client_id=self._client_id, group=self.group, topics=self.topics, start=self._start, listener=self
        )
        await consumer.start()
        self._consumer = consumer

    async def stop(self) -> None:
        """Let running handlers finish within the drain timeout, commit what settled, leave the group."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        drained = await self._quiesce(self._settings.drain_timeout.total_seconds(), None)
        if not drained:
            log.warning("drain_timed_out: group %s, unfinished events will be delivered again", self.group)
        for runner in self._batches:
            await runner.stop()
        if self._consumer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10.0):
                    await self._commit_settled()
            for prefix in self._prefixes.values():
                prefix.closed = True
            consumer, self._consumer = self._consumer, None
            await consumer.stop()
        for worker in tuple(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _quiesce(self, grace_s: float, partitions: frozenset[TopicPartition] | None) -> bool:
        """Stop what runs on some partitions (None: on all): no new calls, a grace for running ones, then cancel."""
        for chunk in self._chunks:
            if partitions is None or chunk.partition in partitions:
                chunk.records.clear()
        for partition in tuple(self._prefixes) if partitions is None else partitions:
            self._lanes.drop(partition)
        for runner in self._batches:
            runner.drop(partitions)

        def running() -> list[asyncio.Task[None]]:
            tasks = [task for task, owner in self._running.items() if partitions is None or owner in partitions]
            return tasks + [r.task for r in self._batches if r.task is not None and r.touches(partitions)]

        deadline_s = asyncio.get_running_loop().time() + grace_s
        while running():
            self._lane_done.clear()
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(left_s, 0.0)):
                    await self._lane_done.wait()
            except TimeoutError:
                break
        late = running()
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=5.0)
            for runner in self._batches:
                runner.restart_if_cancelled()
            if self._has_work and not self._stopping:
                self._wake_worker()
        return not late

    # -------------------------------------------------------------------------------------------- rebalance

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """New partitions: each begins with an empty prefix."""
        self.stats.rebalances += 1
        for lot in self._lots:
            for parked in await lot.keys(self.group, partitions):
                self._parked[TopicPartition(parked.topic, parked.partition), parked.key] = lot
        for partition in partitions:
            self._prefixes[partition] = SettledPrefix()
        log.info("partitions_assigned: group %s has %s", self.group, _names(partitions))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions go: finish or cancel what runs, commit what settled, forget the rest."""
        if not partitions:
            return
        await self._quiesce(self._settings.revoke_grace.total_seconds(), partitions)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await self._commit_settled(partitions)
        self._forget(partitions)
        log.info("partitions_revoked: group %s gave up %s", self.group, _names(partitions))

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            prefix = self._prefixes.pop(partition, None)
            if prefix is not None:
                prefix.closed = True
            self._committed.pop(partition, None)
            self._reads.pop(partition, None)
            self._paused.discard(partition)
            for place in [place for place in self._parked if place[0] == partition]:
                del self._parked[place]
            if self._consumer is not None:
                self._consumer.resume(partition)
        self._room.set()

    # -------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        settings = self._settings
        delay_s = 0.2
        while not self._stopping and self.failure is None:
            room = settings.max_buffered - self.unsettled_count
            if room <= 0:
                await self._until_room()
                continue
            assert self._consumer is not None
            try:
                polled = await self._consumer.poll(timeout_s=0.25, max_records=min(settings.poll_records, room))
                delay_s = 0.2
                if polled:
                    await self._take(polled)
                    await asyncio.sleep(0)  # handlers first: what has been read just now is still in the CPU's cache
            except TransportBrokenError as error:
                log.warning("consumer_replaced: group %s after %s", self.group, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
                await self._reconnect()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 a defect, or the policy `fail`
                self._fail(error)
                return

    def _fail(self, error: BaseException) -> None:
        """Read and hand out no more, say so, be unhealthy. Nothing is skipped: what was read stays unsettled."""
        self.failure = error
        log.error("subscriber_failed: group %s reads no more", self.group, exc_info=error)
        for chunk in self._chunks:
            chunk.records.clear()

    async def _until_room(self) -> None:
        # Half empty before reading goes on, so that a slow handler does not cause tiny reads.
        self._room.clear()
        if self.unsettled_count > self._settings.max_buffered // 2:
            self._room_wanted = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._room.wait()
            self._room_wanted = False

    async def _reconnect(self) -> None:
        self.stats.reconnects += 1
        partitions = frozenset(self._prefixes)
        await self._quiesce(self._settings.revoke_grace.total_seconds(), partitions)
        self._forget(partitions)
        assert self._consumer is not None
        await self._consumer.stop()
        while not self._stopping:
            try:
                await self._connect()
            except ConfigurationError as error:
                log.warning("reconnect_failed: %s", error)
                await asyncio.sleep(1.0)
            else:
                return

    async def _take(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> None:
        assert self._consumer is not None
        if self._at_most_once:
            ends = {TopicPartition(*tp): records[-1].offset + 1 for tp, records in polled.items() if records}
            if not await self._consumer.commit(ends):
                # Not committed, so not ours to handle: whoever has the partition reads them again.
                held = self._consumer.assignment()
                starts = {TopicPartition(*tp): records[0].offset for tp, records in polled.items() if records}
                await self._consumer.seek({tp: offset for tp, offset in starts.items() if tp in held})
                await asyncio.sleep(0.02)
                return
            self._committed.update(ends)
        for raw_partition, records in polled.items():
            if not records:
                continue
            partition = TopicPartition(*raw_partition)
            prefix = self._prefixes.get(partition)
            if prefix is None:
                # Either revoked meanwhile, or assigned so lately that `assigned` has not finished: then the records
                # must come again, or the next commit would pass them.
                if partition in self._consumer.assignment():
                    await self._consumer.seek({partition: records[0].offset})
                    await asyncio.sleep(0.02)
                continue
            if partition.topic in self._retries:
                records = await self._due(partition, records)  # noqa: PLW2901 the rest is read again later
                if not records:
                    continue
            prefix.received_all([record.offset for record in records])
            self._reads.setdefault(partition, deque()).append((records[-1].offset, records[0].timestamp))
            self.stats.received += len(records)
            chunk = Chunk(partition, prefix, self._lanes.names(partition), list(reversed(records)))
            if self._takes_single_events:
                self._chunks.append(chunk)
            else:
                self._take_batches(chunk, records)
            self._pause_if_spread(partition, prefix)
        if self._has_work:
            self._wake_worker()

    def _take_batches(self, chunk: Chunk, records: Sequence[Received]) -> None:
        """Records for a group that has handlers of batches only; neighbours of one route stay together."""
        usual = self._usual
        route: Route | None = None
        start = 0
        for index, record in enumerate(records):
            headers = record.headers
            if (
                len(headers) > 6
                and headers[5] == usual.schema
                and headers[3] == usual.kind
                and headers[6] == JSON_HEADER
            ):
                found = usual.route
            else:
                found = self._route_of(record)
                usual = self._usual
            if found is not route:
                if route is not None:
                    self._push_batch(chunk, records[start:index], route)
                route, start = found, index
        if route is not None:
            self._push_batch(chunk, records[start:], route)

    def _push_batch(self, chunk: Chunk, records: Sequence[Received], route: Route) -> None:
        if route.batch is not None:
            route.batch.push(Part(chunk.partition, chunk.prefix, records, route))
            return
        for record in records:
            self._dispatch(chunk, record, route)

    @property
    def _has_work(self) -> bool:
        return bool(self._chunks) or self._lanes.ready_count > 0

    def _route_of(self, record: Received) -> Route:
        """Where a record goes, by its headers alone."""
        headers = record.headers
        kind: bytes | None = None
        schema: bytes | None = None
        if (
            len(headers) > 6
            and headers[6] == JSON_HEADER
            and headers[3][0] == "ce_type"
            and headers[5][0] == "ce_dataschema"
        ):
            # The order in which hailbus writes them: most records by far.
            kind = headers[3][1]
            schema = headers[5][1]
            known = self._routes.get((kind, schema))
            if known is not None:
                self._usual = Usual(headers[3], headers[5], known)
                return known
        else:
            for name, value in headers:
                if name == "ce_type":
                    kind = value
                elif name == "ce_dataschema":
                    schema = value
                elif name == "content-type" and value is not None and value.startswith(STRUCTURED_PREFIX):
                    kind = schema = None
                    break
        if kind is None:
            return self._decode_first
        route = self._routes.get((kind, schema))
        return route if route is not None else self._route(kind, schema, record)

    def _dispatch(self, chunk: Chunk, record: Received, route: Route) -> None:
        """Hand a record to its lane or batch, or settle it at once when it is of no concern here."""
        item = Item(chunk.partition, chunk.prefix, record, route)
        if route.handler is not None:
            if chunk.partition.topic in self._retries:
                item.before = attempts_before(record)
            self._lanes.push(chunk.partition, self._lane_name(route, record), item)
        elif route.batch is not None:
            route.batch.push(Part(chunk.partition, chunk.prefix, [record], route))
        elif route.error is not None or route is self._decode_first:
            # By key as well: a structured record may turn out to be an event that is handled.
            self._lanes.push(chunk.partition, record.key, item)
        else:
            self.stats.skipped += 1
            chunk.prefix.settled(record.offset)

    @staticmethod
    def _lane_name(route: Route, record: Received) -> object:
        if route.order == "key":
            return record.key
        return None if route.order == "partition" else record.offset

    async def _due(self, partition: TopicPartition, records: Sequence[Received]) -> Sequence[Received]:
        """The records of a retry topic whose time has come; the partition sleeps until that of the next one."""
        now_ms = int(self._clock().timestamp() * 1000)
        for index, record in enumerate(records):
            wait_ms = (due_ms(record) or 0) - now_ms
            if wait_ms > 0:
                assert self._consumer is not None
                await self._consumer.seek({partition: record.offset})
                self._consumer.pause(partition)
                self._loop.call_later(wait_ms / 1000, self._end_nap, partition, self._prefixes.get(partition))
                return records[:index]
        return records

    def _end_nap(self, partition: TopicPartition, prefix: SettledPrefix | None) -> None:
        if self._prefixes.get(partition) is prefix and partition not in self._paused and self._consumer is not None:
            self._consumer.resume(partition)

    def _pause_if_spread(self, partition: TopicPartition, prefix: SettledPrefix) -> None:
        if prefix.spread >= self._settings.max_spread and partition not in self._paused:
            self._paused.add(partition)
            assert self._consumer is not None
            self._consumer.pause(partition)

    def _route(self, kind: bytes | None, schema: bytes | None, record: Received) -> Route:
        """Find out once per type and version; the answer is remembered."""
        route: Route
        try:
            probe = Context(record).envelope
            cls = self._catalogue.lookup(probe.type, probe.version, topic=record.topic)
        except UnknownEventError as error:
            if self._settings.unknown_event == "fail":
                raise
            route = Route(None, None, error=error if self._settings.unknown_event == "park" else None)
            log.info("unknown_event: %s, policy %s", error, self._settings.unknown_event)
        except UnsupportedVersionError as error:
            if self._settings.unknown_version == "fail":
                raise
            route = Route(None, None, error=error if self._settings.unknown_version == "park" else None)
            log.warning("unknown_version: %s, policy %s", error, self._settings.unknown_version)
        except ContractError as error:
            return Route(None, None, error=error)  # of this record, not of its type
        else:
            route = self._by_class.get(newest(cls)) or Route(None, None)
            if route.subscription is not None and cls is not route.cls:
                route = Route(route.subscription, cls, batch=route.batch)
        if len(self._routes) < 10_000:  # a flood of made-up types must not eat the memory
            self._routes[kind, schema] = route
        return route

    # -------------------------------------------------------------------------------------------- handling

    def _wake_worker(self) -> None:
        spare = self._spare
        if spare is not None:
            self._spare = None
            if not spare.done():
                self._worker_pending = True
                spare.set_result(None)
        elif not self._worker_pending and len(self._workers) < self._max_in_flight:
            self._worker_pending = True
            task = self._loop.create_task(self._work(), name=f"hailbus-work-{self.group}")
            self._workers.add(task)
            task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if task.cancelled():  # perhaps before it began
            self._worker_pending = False

    async def _work(self) -> None:
        """Run lanes and chunks until there is nothing to do. One worker waits for more, the others end.

        Handlers run in the worker's own task. Should one wait for something, another worker, which has been woken
        before, goes on meanwhile; else that worker finds nothing left: one task per read, not one per event.
        """
        task = asyncio.current_task()
        assert task is not None
        self._worker_pending = False
        while True:
            lane = self._lanes.take()
            if lane is not None:
                await self._run_lane(lane, task)
            elif self._chunks:
                await self._run_chunk(self._chunks[0], task)
            elif self._stopping or self._spare is not None:
                return
            else:
                self._spare = self._loop.create_future()
                try:
                    await self._spare
                except asyncio.CancelledError:
                    self._spare = None
                    raise
                self._worker_pending = False
                self._turn_began_s = self._loop.time()
            if self._turn_is_over():
                await asyncio.sleep(0)
                self._streak = 0
                self._turn_began_s = self._loop.time()

    def _turn_is_over(self) -> bool:
        return self._streak >= YIELD_EVERY or self._loop.time() - self._turn_began_s > YIELD_AFTER_S

    async def _run_lane(self, lane: Lane[Item], task: asyncio.Task[None]) -> None:
        """Handle the oldest record of a lane and give the lane back."""
        if self._has_work:
            self._wake_worker()
        self._running[task] = lane.partition
        try:
            await self._end_lane(lane, self._run_one(lane))
        finally:
            del self._running[task]
            self._lane_done.set()
        self._streak += 1

    async def _end_lane(self, lane: Lane[Item], run: Awaitable[float | None]) -> None:
        """Give a lane back when its oldest record has been handled, or must be handled again later."""
        try:
            wait_s = await run
        except (asyncio.CancelledError, GeneratorExit):  # the latter when the event loop was closed without stopping us
            self._lanes.release(lane)
            raise
        except BaseException:
            self._lanes.release(lane)
            log.exception("worker_failed: a defect in hailbus, the record stays unsettled")
            raise
        if wait_s is None:
            self._lanes.release(lane)
        else:
            self._lanes.delay(lane)
            self._loop.call_later(wait_s, self._wake_lane, lane)

    async def _run_chunk(self, chunk: Chunk, task: asyncio.Task[None]) -> None:
        """Handle a chunk's records in order, each right here unless its key is busy or something must come first."""
        lanes = self._lanes
        records, names, prefix, partition = chunk.records, chunk.names, chunk.prefix, chunk.partition
        is_plain = partition.topic not in self._retries and self.tracing is None
        stats, group, usual = self.stats, self.group, self._usual
        self._running[task] = partition
        try:
            while records:
                record = records.pop()
                headers = record.headers
                if (
                    len(headers) > 6
                    and headers[5] == usual.schema
                    and headers[3] == usual.kind
                    and headers[6] == JSON_HEADER
                ):
                    route = usual.route
                else:
                    try:
                        route = self._route_of(record)
                    except ContractError as error:
                        self._fail(error)  # the policy `fail`
                        break
                    usual = self._usual
                value = record.value
                if not route.is_direct or not is_plain or value is None or self._parked:
                    self._dispatch(chunk, record, route)
                    if lanes.ready_count:
                        break
                    continue
                name = record.key if route.order == "key" else self._lane_name(route, record)
                if name in names:
                    self._dispatch(chunk, record, route)
                    continue
                assert route.validate is not None
                assert route.handler is not None
                try:
                    event = route.validate(value)
                except ValidationError:
                    self._dispatch(chunk, record, route)  # to be set aside in its turn
                    break
                names[name] = None
                if not self._worker_pending and (records or lanes.ready_count or len(self._chunks) > 1):
                    self._wake_worker()
                try:
                    verdict = await route.handler(event, Context(record, group=group))
                except BaseException as error:  # noqa: BLE001 whatever a handler raises is subject to its policy
                    item = Item(partition, prefix, record, route)
                    item.attempt = 1
                    lane = lanes.adopt(partition, names, name, item)
                    await self._end_lane(lane, self._after_failure(lane, item, error))
                else:
                    if verdict is None:
                        lanes.leave(names, name)
                        if not prefix.closed:
                            prefix.settled(record.offset)
                            stats.settled += 1
                            if self._room_wanted or self._paused:
                                self._make_room(partition, prefix)
                    else:
                        item = Item(partition, prefix, record, route)
                        item.attempt = 1
                        lane = lanes.adopt(partition, names, name, item)
                        await self._end_lane(lane, self._after_verdict(lane, item, verdict))
                self._streak += 1
                if lanes.ready_count or (self._streak % LOOK_EVERY == 0 and self._turn_is_over()):
                    break
        finally:
            del self._running[task]
            self._lane_done.set()
            if not records and self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()
            self._note_progress()

    def _wake_lane(self, lane: Lane[Item]) -> None:
        self._lanes.wake(lane)
        if self._lanes.ready_count:
            self._wake_worker()

    async def _run_one(self, lane: Lane[Item]) -> float | None:
        """Handle the oldest record of a lane. None when it is settled, else seconds until the next attempt."""
        item = lane.items[0]
        item.attempt += 1
        record = item.record
        route = item.route
        if item.is_release:
            await self._handle_parked(lane, item)
            self._lanes.finish(lane)
            return None
        if self._parked and record.key is not None and route.handler is not None:
            lot = self._parked.get((lane.partition, record.key))
            if lot is not None:
                await lot.add(self.group, record, reason="waits behind a parked event of its key", attempts=0)
                self.stats.parked += 1
                self._finish(lane, item)
                return None
        if route.handler is None:
            resolved = await self._resolve(item)
            if resolved is None:
                self._finish(lane, item)
                return None
            route = item.route = resolved
            record = item.record
            item.was_resolved = True
            if route.batch is not None:
                self._lanes.finish(lane)
                part = Part(item.partition, item.prefix, [record], route)
                part.was_resolved = True
                route.batch.push(part)
                return None
        assert route.handler is not None
        assert route.cls is not None
        ctx = Context(record, attempt=item.attempt + item.before, group=self.group)
        try:
            event = self._event(route, record, structured=item.was_resolved)
        except ContractError as error:
            await self._dead_letter(item, error, str(error), by="decoder", attempt=0)
            self._finish(lane, item)
            return None
        if event is None:
            self.stats.skipped += 1
            self._finish(lane, item)
            return None
        verdict: Verdict | None
        try:
            if self.tracing is not None:
                with self.tracing.processing(ctx):
                    verdict = await self._call(route, event, ctx)
            elif route.inbox is None:
                verdict = await route.handler(event, ctx)
            else:
                verdict = await self._effectively_once(route.inbox, route.handler, event, ctx)
        except BaseException as error:  # noqa: BLE001 whatever a handler raises is subject to its policy
            return await self._after_failure(lane, item, error)
        return await self._after_verdict(lane, item, verdict)

    async def _after_verdict(self, lane: Lane[Item], item: Item, verdict: Verdict | None) -> float | None:
        wait_s = None if verdict is None else await self._judge(item, verdict)
        if wait_s is None:
            self._finish(lane, item)
        return wait_s

    async def _after_failure(self, lane: Lane[Item], item: Item, error: BaseException) -> float | None:
        """Apply the policy, unless it is this worker that is being cancelled: then nothing is settled."""
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if lane.dropped or self._stopping or (task is not None and task.cancelling()):
                raise error
            # else the handler cancelled something of its own
        elif not isinstance(error, Exception):
            raise error
        wait_s = await self._failed(item, error)
        if wait_s is None:
            self._finish(lane, item)
        return wait_s

    async def _call(self, route: Route, event: Event, ctx: Context) -> Verdict | None:
        assert route.handler is not None
        if route.inbox is None:
            return await route.handler(event, ctx)
        return await self._effectively_once(route.inbox, route.handler, event, ctx)

    async def _effectively_once(self, inbox: Inbox, handler: Handler, event: Event, ctx: Context) -> Verdict | None:
        """Claim and handle in one transaction; Retry and Park roll it back."""
        if (refusal := inbox.refusal_of(ctx)) is not None:
            return Park(str(refusal))
        async with inbox.engine.connect() as tx, tx.begin() as transaction:
            if not await inbox.claim(tx, [ctx]):
                self.stats.skipped += 1
                return None
            ctx.tx = tx
            verdict = await handler(event, ctx)
            if isinstance(verdict, (Retry, Park)):
                await transaction.rollback()
            return verdict

    async def _watch_releases(self, then: ParkKey) -> None:
        """Queue the parked records of keys that someone has released, behind what their lanes hold."""
        while True:
            await asyncio.sleep(then.look_every.total_seconds())
            try:
                released = [key for key in await then.lot.keys(self.group, self._prefixes) if key.is_released]
            except Exception as error:  # noqa: BLE001 a database that is away comes back
                log.warning("parking_lot_unreachable: %r", error)
                continue
            for key in released:
                place = (TopicPartition(key.topic, key.partition), key.key)
                prefix = self._prefixes.get(place[0])
                if prefix is None or place in self._releasing:
                    continue
                self._parked.setdefault(place, then.lot)
                self._releasing.add(place)
                item = Item(place[0], prefix, ReleaseMark(place[0], key.key), self._decode_first)
                item.is_release = True
                self._lanes.push(place[0], key.key, item)
            if self._lanes.ready_count:
                self._wake_worker()

    async def _handle_parked(self, lane: Lane[Item], item: Item) -> None:
        """Handle the waiting records of a released key in order; at the first that fails the key stays parked."""
        key = item.record.key
        assert key is not None
        place = (lane.partition, key)
        lot = self._parked[place]
        try:
            while records := await lot.records(self.group, lane.partition.topic, key, limit=100):
                for record in records:
                    reason = await self._try_parked(record)
                    if reason is not None:
                        await lot.hold(self.group, lane.partition.topic, key, reason=reason)
                        log.warning("key_parked_again: %r on %s: %s", key, lane.partition.topic, reason)
                        return
                    await lot.remove([record.position])
                    self.stats.settled += 1
            self._parked.pop(place, None)
            log.info("key_released: %r on %s", key, lane.partition.topic)
        finally:
            self._releasing.discard(place)

    async def _try_parked(self, record: ParkedRecord) -> str | None:
        """Call the handler once with a parked record; why it failed, or None."""
        try:
            envelope = Context(record).envelope
            cls = self._catalogue.lookup(envelope.type, envelope.version, topic=record.topic)
            route = self._by_class.get(newest(cls))
            if route is None or route.handler is None:
                return None  # no longer handled here: nothing to wait for
            event = upcasted(decode_value(cls, record.value or b"", topic=record.topic))
            ctx = Context(record, attempt=record.attempts + 1, group=self.group)
            if route.inbox is None:
                verdict = await route.handler(event, ctx)
            else:
                verdict = await self._effectively_once(route.inbox, route.handler, event, ctx)
        except Exception as error:  # noqa: BLE001 whatever a handler raises keeps the key parked
            return str(error) or repr(error)
        match verdict:
            case Retry():
                return "the handler asks to retry"
            case Park(reason):
                return reason
            case _:
                return None

    def _event(self, route: Route, record: Received, *, structured: bool = False) -> Event | None:
        """The typed event, None for a tombstone, which says nothing that a handler of events could use."""
        assert route.cls is not None
        value = record.value
        if value is None:
            return None
        if structured:
            return decode(record, self._catalogue)[0]
        event = decode_value(route.cls, value, topic=record.topic)
        return event if route.is_newest else upcasted(event)

    async def _resolve(self, item: Item) -> Route | None:
        """The route of a record that had none at reading; None when it has been set aside or skipped."""
        record = item.record
        error = item.route.error
        if error is None:
            try:
                if self._schemas is not None:
                    record = item.record = await self._schemas.identified(record, self._catalogue)
                envelope = Context(record).envelope
                cls = self._catalogue.lookup(envelope.type, envelope.version, topic=record.topic)
            except ContractError as found:
                if (isinstance(found, UnknownEventError) and self._settings.unknown_event == "skip") or (
                    isinstance(found, UnsupportedVersionError) and self._settings.unknown_version == "skip"
                ):
                    self.stats.skipped += 1
                    return None
                error = found
            else:
                route = self._by_class.get(newest(cls))
                if route is None:
                    self.stats.skipped += 1
                return route
        await self._dead_letter(item, error, str(error), by="decoder", attempt=0)
        return None

    async def _judge(self, item: Item, verdict: Verdict) -> float | None:
        match verdict:
            case Done():
                return None
            case Skip():
                self.stats.skipped += 1
                return None
            case Retry(after):
                self.stats.retried += 1
                return after.total_seconds()
            case Park(reason):
                await self._set_aside(item, None, reason)
                return None
            case _:
                assert_never(verdict)

    async def _set_aside(self, item: Item, error: BaseException | None, reason: str) -> None:
        """What follows the last attempt, by the subscription's policy: dead letter, retry topic, or parked key."""
        subscription = _subscription(item)
        record = item.record
        then = getattr(subscription.delivery, "then", None)
        attempt = item.attempt + item.before
        if isinstance(then, ParkKey) and record.key is not None:
            await then.lot.add(self.group, record, reason=reason, attempts=attempt)
            self._parked[TopicPartition(record.topic, record.partition), record.key] = then.lot
            self.stats.parked += 1
            log.warning("key_parked: %r on %s: %s", record.key, record.topic, reason)
            return
        if isinstance(then, RetryTopics) and error is not None:
            step = self._retries[record.topic][1] + 1 if record.topic in self._retries else 0
            if step < len(then.delays):
                delay = then.delays[step]
                letter = retry_letter(record, group=self.group, error=error, attempt=attempt, due=self._clock() + delay)
                await self._write(retry_topic(origin(record)[0], self.group, delay), record.partition, letter)
                self.stats.retried += 1
                return
        await self._dead_letter(item, error, reason, by=subscription.name, attempt=attempt)

    async def _failed(self, item: Item, error: BaseException) -> float | None:
        """Apply the subscription's policy to a handler's exception."""
        subscription = _subscription(item)
        record = item.record
        self.stats.failed += 1
        where = f"{record.topic}-{record.partition}@{record.offset}"
        delivery = subscription.delivery
        if isinstance(delivery, AtMostOnce):
            log.error("handler_failed: %s at %s, at most once, not repeated", subscription.name, where, exc_info=error)
            return None
        retry = delivery.retry
        if item.attempt < retry.attempts and isinstance(error, (*retry.on, asyncio.CancelledError)):
            wait_s = retry.delay_s(item.attempt, self._random)
            self.stats.retried += 1
            log.warning(
                "handler_retried: %s at %s, attempt %d of %d, next in %.2f s: %r",
                subscription.name,
                where,
                item.attempt,
                retry.attempts,
                wait_s,
                error,
            )
            return wait_s
        log.error("handler_gave_up: %s at %s after %d attempts", subscription.name, where, item.attempt, exc_info=error)
        await self._set_aside(item, error, str(error) or repr(error))
        return None

    async def _dead_letter(
        self, item: Item, error: BaseException | None, reason: str, *, by: str, attempt: int
    ) -> None:
        """Write the dead letter; tries until it is written, as settling without it would lose the record."""
        record = item.record
        outgoing = dead_letter(
            record, group=self.group, error=error, reason=reason, attempt=attempt, now=self._clock(), by=by
        )
        topic = dead_letter_topic(origin(record)[0], self.group)
        await self._write(topic, record.partition, outgoing)
        self.stats.dead_lettered += 1
        log.warning("dead_lettered: %s-%d@%d to %s: %s", record.topic, record.partition, record.offset, topic, reason)

    async def _write(self, topic: str, partition: int, outgoing: Outgoing) -> None:
        """Write a dead letter or a retry; tries until it is written, as settling without it would lose the record."""
        delay_s = 0.2
        while True:
            try:
                producer = self._producer()
                count = await producer.partition_count(topic)
                await producer.send(topic, partition % count, [outgoing])
            except (DeliveryError, ConfigurationError) as failure:
                log.error("dead_letter_not_written: %s, trying again in %.1f s", failure, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 30.0)
            else:
                return

    def _finish(self, lane: Lane[Item], item: Item) -> None:
        self._lanes.finish(lane)
        self.settle(item)

    def settle(self, item: Item) -> None:
        """A record is done with; counts for nothing when its partition has gone meanwhile."""
        prefix = item.prefix
        if prefix.closed:
            return
        prefix.settled(item.record.offset)
        self.stats.settled += 1
        if self._room_wanted or self._paused:
            self._make_room(item.partition, prefix)
        self._note_progress()

    def settle_all(self, parts: Sequence[Part]) -> None:
        """Settle many records at once."""
        for part in parts:
            if not part.prefix.closed:
                part.prefix.settled_all([record.offset for record in part.records])
                self.stats.settled += len(part.records)
        if self._room_wanted or self._paused:
            for partition, prefix in {part.partition: part.prefix for part in parts}.items():
                self._make_room(partition, prefix)
        self._note_progress()

    def _make_room(self, partition: TopicPartition, prefix: SettledPrefix) -> None:
        """A record has settled while reading waits for room."""
        if self._room_wanted and self.unsettled_count <= self._settings.max_buffered // 2:
            self._room.set()
        if self._paused and prefix.spread <= self._settings.max_spread // 2:
            self._resume(partition)

    def _note_progress(self) -> None:
        """Ask for a commit when enough has settled since the last one."""
        if self._done_count - self._count_at_commit >= self._settings.commit_every:
            self._commit_wanted.set()

    def _resume(self, partition: TopicPartition) -> None:
        if partition in self._paused and self._consumer is not None:
            self._paused.discard(partition)
            self._consumer.resume(partition)

    # -------------------------------------------------------------------------------------------- committing

    async def _commit_regularly(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.commit_interval.total_seconds()):
                    await self._commit_wanted.wait()
            self._commit_wanted.clear()
            self._look_at_progress()
            await self.commit()

    async def commit(self) -> None:
        """Commit what has settled, without waiting for the interval. A failure is logged; the next commit covers it."""
        try:
            await self._commit_settled()
        except Exception:
            log.exception("commit_failed: group %s, the next commit covers it", self.group)

    async def _commit_settled(self, partitions: frozenset[TopicPartition] | None = None) -> None:
        async with self._committing:
            offsets: dict[TopicPartition, int] = {}
            for partition, prefix in self._prefixes.items():
                if partitions is not None and partition not in partitions:
                    continue
                committable = prefix.committable
                if committable is not None and committable > self._committed.get(partition, -1):
                    offsets[partition] = committable
            self._count_at_commit = self._done_count
            if not offsets or self._consumer is None:
                return
            if await self._consumer.commit(offsets):
                self.stats.committed += 1
                for partition, offset in offsets.items():
                    if partition in self._prefixes:
                        self._committed[partition] = offset

    # -------------------------------------------------------------------------------------------- health

    @property
    def unhealthy_reason(self) -> str | None:
        """Why this subscriber is unhealthy: it ended, or records wait and nothing has settled for a while."""
        if self.failure is not None:
            return f"group {self.group} reads no more: {self.failure}"
        self._look_at_progress()
        stalled_s = asyncio.get_running_loop().time() - self._progress_s
        if stalled_s > self._settings.stall_after.total_seconds():
            waiting = self.unsettled_count
            return f"group {self.group} has {waiting} events waiting and settled none for {stalled_s:.0f} s"
        return None

    @property
    def _done_count(self) -> int:
        return self.stats.settled + self.stats.skipped

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not settled, in seconds; 0 when there is none."""
        self._forget_settled_reads()
        oldest = [reads[0][1] for reads in self._reads.values() if reads]
        return max(self._clock().timestamp() - min(oldest) / 1000, 0.0) if oldest else 0.0

    def _forget_settled_reads(self) -> None:
        for partition, reads in self._reads.items():
            prefix = self._prefixes.get(partition)
            first = prefix.first_unsettled if prefix is not None else None
            while reads and (first is None or reads[0][0] < first):
                reads.popleft()

    def _look_at_progress(self) -> None:
        """There is progress when something has settled since the last look, or nothing waits."""
        self._forget_settled_reads()
        if self._done_count != self._progress_count or not self.unsettled_count:
            self._progress_count = self._done_count
            self._progress_s = asyncio.get_running_loop().time()

    @property
    def unsettled_count(self) -> int:
        """Records read and not settled."""
        return sum(prefix.unsettled_count for prefix in self._prefixes.values())

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds."""
        return frozenset(self._prefixes)

    # -------------------------------------------------------------------------------------------- for batches

    @property
    def is_stopping(self) -> bool:
        """Whether nothing new is begun."""
        return self._stopping

    def event_of(self, item: Item) -> Event | None:
        """See `_event`."""
        return self._event(item.route, item.record, structured=item.was_resolved)

    async def set_aside(self, item: Item, error: BaseException | None, reason: str, *, by: str, attempt: int) -> None:
        """See `_dead_letter`."""
        await self._dead_letter(item, error, reason, by=by, attempt=attempt)

    async def give_up(self, item: Item, error: BaseException) -> None:
        """See `_set_aside`."""
        await self._set_aside(item, error, str(error) or repr(error))

    def retry_delay_s(self, delivery: AtLeastOnce | EffectivelyOnce | ExactlyOnce, attempt: int) -> float:
        """Seconds until the next attempt."""
        return delivery.retry.delay_s(attempt, self._random)

    def handler_ended(self) -> None:
        """Whoever waits for running handlers looks again."""
        self._lane_done.set()


def _subscription(item: Item) -> Subscription:
    assert item.route.subscription is not None
    return item.route.subscription


def _names(partitions: frozenset[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "nothing"
