"""Key lanes: workers that call handlers of single events, one at a time per key, many keys at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping

from hailbus._consuming.calling import Caller
from hailbus._consuming.failure import Stage, StageError, StopReading, is_fatal
from hailbus._consuming.outages import Outages
from hailbus._consuming.parked import ParkedKeys
from hailbus._consuming.path import FailurePath, Parked
from hailbus._consuming.progress import Partitions
from hailbus._consuming.routing import JSON_HEADER, Router
from hailbus._consuming.sequenced import Numbering
from hailbus._consuming.work import Chunk, Ending, Item, Outcome, Part, ReleaseMark, Route
from hailbus._transport import Received, TopicPartition
from hailbus.context import Context
from hailbus.dead_letter import attempts_before
from hailbus.delivery import RetryTopics
from hailbus.settlement import Lane, Lanes, Names
from hailbus.subscription import SubscriberStats

__all__ = ["LaneRunner"]

log = logging.getLogger("hailbus.subscriber")

# Handlers that never wait would keep the event loop: after so many of them, or so long, it gets its turn.
YIELD_EVERY = 256
YIELD_AFTER_S = 0.005
LOOK_EVERY = 16  # records between two looks at the clock
RELEASE_AGAIN_S = 5.0


class LaneRunner:
    """Runs the lanes of one group member."""

    def __init__(
        self,
        group: str,
        *,
        max_in_flight: int,
        router: Router,
        partitions: Partitions,
        path: FailurePath,
        caller: Caller,
        parked: ParkedKeys | None,
        outages: Outages,
        stats: SubscriberStats,
        retries: dict[str, tuple[RetryTopics, int]],
        numbered: Mapping[str, Numbering],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._group = group
        self._max_in_flight = max_in_flight
        self._router = router
        self._partitions = partitions
        self._path = path
        self._caller = caller
        self._parked = parked
        self._places: Parked = parked.places if parked is not None else {}
        self._outages = outages
        self._stats = stats
        self._retries = retries
        self._numbered = numbered
        self._fail = fail
        self._lanes: Lanes[Item] = Lanes()
        self._chunks: deque[Chunk] = deque()
        self._held_chunks: dict[TopicPartition, list[Chunk]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._spare: asyncio.Future[None] | None = None
        self._worker_pending = False
        """A worker has been made and has not begun: one at a time, as it makes the next when it finds work."""
        self._running: dict[asyncio.Task[None], TopicPartition] = {}
        """Workers inside of a handler, or about to be, and whose records they handle."""
        self._streak = 0
        self._turn_began_s = 0.0
        self.is_stopping = False
        self.ended = asyncio.Event()
        """Set whenever a worker has ended a handler's call."""
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Bind to the running loop."""
        self._loop = asyncio.get_running_loop()

    # -------------------------------------------------------------------------------------------- from outside

    def names(self, partition: TopicPartition) -> Names[Item]:
        """The keys in use of a partition."""
        return self._lanes.names(partition)

    def push(self, chunk: Chunk) -> None:
        """Queue the records of a read."""
        self._chunks.append(chunk)

    def dispatch(self, chunk: Chunk, record: Received, route: Route) -> None:
        """Hand a record to its lane or batch, or end it at once when no handler here wants it."""
        if route.handler is None and route.batch is None and route.error is None:
            route = self._passing(chunk.partition, route)
        item = Item(chunk.partition, chunk.prefix, record, route)
        if route.handler is not None:
            if chunk.partition.topic in self._retries:
                item.before = attempts_before(record)
            self._lanes.push(chunk.partition, _lane_name(route, record), item)
        elif route.batch is not None:
            route.batch.push(Part(chunk.partition, chunk.prefix, [record], route))
        elif route.error is not None or route is self._router.decode_first:
            # Ordered as well: a structured record may turn out to be an event that is handled.
            name = None if chunk.partition.topic in self._router.partition_ordered else record.key
            self._lanes.push(chunk.partition, name, item)
        else:
            self._partitions.end(item, Ending.SKIPPED)

    def _passing(self, partition: TopicPartition, route: Route) -> Route:
        """The route of a record that has no handler here: on a numbered topic its number counts all the same."""
        numbered = self._numbered.get(partition.topic)
        return route if numbered is None or route is self._router.decode_first else numbered.passing

    def queue_release(self, partition: TopicPartition, key: bytes) -> None:
        """Queue the release of a parked key behind what its lane holds."""
        prefix = self._partitions.prefixes.get(partition)
        if prefix is None:
            return
        item = Item(partition, prefix, ReleaseMark(partition, key), self._router.decode_first)
        item.is_release = True
        self._lanes.push(partition, key, item)
        self.wake()

    def hold(self, partition: TopicPartition) -> None:
        """Begin no more calls for a partition until `unhold`."""
        self._lanes.hold(partition)

    def unhold(self, partition: TopicPartition) -> None:
        """Handle the records of a partition again."""
        self._lanes.unhold(partition)
        self._chunks.extend(self._held_chunks.pop(partition, ()))
        self.wake()

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """Forget what waits for these partitions, or for all."""
        for chunk in (*self._chunks, *(c for chunks in self._held_chunks.values() for c in chunks)):
            if partitions is None or chunk.partition in partitions:
                chunk.records.clear()
        for partition in tuple(self._partitions.prefixes) if partitions is None else partitions:
            self._lanes.drop(partition)
            self._held_chunks.pop(partition, None)

    def running(self, partitions: Collection[TopicPartition] | None) -> list[asyncio.Task[None]]:
        """Workers that handle records of these partitions, or of any."""
        return [task for task, owner in self._running.items() if partitions is None or owner in partitions]

    @property
    def in_use(self) -> int:
        """Workers inside of a handler."""
        return len(self._running)

    async def stop(self) -> None:
        """Cancel all workers."""
        for worker in tuple(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    # -------------------------------------------------------------------------------------------- workers

    @property
    def _has_work(self) -> bool:
        return bool(self._chunks or self._lanes.ready)

    def wake(self) -> None:
        """Let a worker look for work, if there is any."""
        if self._has_work:
            self._wake_worker()

    def _wake_worker(self) -> None:
        spare = self._spare
        if spare is not None:
            self._spare = None
            if not spare.done():
                self._worker_pending = True
                spare.set_result(None)
        elif not self._worker_pending and self._busy_count < self._max_in_flight:
            self._worker_pending = True
            task = self._loop.create_task(self._work(), name=f"hailbus-work-{self._group}")
            self._workers.add(task)
            task.add_done_callback(self._worker_ended)

    @property
    def _busy_count(self) -> int:
        waiting = self._outages.waiting
        return len(self._workers) - (len(self._workers & waiting) if waiting else 0)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if task.cancelled():  # perhaps before it began
            self._worker_pending = False
        elif (error := task.exception()) is not None:
            log.error("worker_died: group %s makes another", self._group, exc_info=error)
            self._worker_pending = False
            self._loop.call_later(1.0, self.wake)

    async def _work(self) -> None:
        """Run lanes and chunks until there is nothing to do. One worker waits for more, the others end.

        Handlers run in the worker's own task. Should one wait for something, another worker, which has been woken
        before, continues meanwhile; else that worker finds nothing left: one task per read, not one per event.
        """
        task = asyncio.current_task()
        assert task is not None
        self._worker_pending = False
        while True:
            lane = self._lanes.take()
            if lane is not None:
                await self._run_lane(lane, task)
            elif self._chunks:
                chunk = self._chunks[0]
                if self._lanes.is_held(chunk.partition):
                    self._held_chunks.setdefault(chunk.partition, []).append(self._chunks.popleft())
                    continue
                await self._run_chunk(chunk, task)
            elif self.is_stopping or self._spare is not None:
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
        self.wake()
        self._running[task] = lane.partition
        item = lane.items[0]
        try:
            await self._end_run(lane, item, self._run_one(lane, item))
        finally:
            del self._running[task]
            self.ended.set()
        self._streak += 1

    async def _end_run(self, lane: Lane[Item], item: Item, run: Awaitable[Outcome | None]) -> None:
        """Give a lane back when its oldest record has ended, or must be tried again later."""
        lanes = self._lanes
        try:
            try:
                outcome = await run
            except BaseException as error:
                if is_fatal(error) or isinstance(error, (asyncio.CancelledError, StopReading)):
                    raise
                if item.is_release:
                    log.error("release_failed: %r on %s", item.record.key, lane.partition.topic, exc_info=error)
                    outcome = RELEASE_AGAIN_S
                else:
                    outcome = await self._path.failed(item, StageError(Stage.INTERNAL, error))
        except StopReading as order:
            self._fail(order.error)
            lanes.delay(lane)  # for good
            return
        except BaseException:  # cancelled, or the event loop was closed without stopping us
            lanes.release(lane)
            raise
        if isinstance(outcome, float):
            lanes.delay(lane)
            self._loop.call_later(outcome, self._wake_lane, lane)
            return
        lanes.finish(lane)
        if outcome is not None:
            self._partitions.end(item, outcome)
        lanes.release(lane)

    def _wake_lane(self, lane: Lane[Item]) -> None:
        self._lanes.wake(lane)
        self.wake()

    async def _run_chunk(self, chunk: Chunk, task: asyncio.Task[None]) -> None:
        """Handle a chunk's records in order, each right here unless its key is busy or something must come first."""
        lanes, router, partitions = self._lanes, self._router, self._partitions
        records, names, prefix, partition = chunk.records, chunk.names, chunk.prefix, chunk.partition
        durations = self._stats.durations
        is_plain = partition.topic not in self._retries
        succeeded = None if durations is None else durations.of(partition.topic)
        listener = None if durations is None else durations.listener
        spans = None if self._caller.tracing is None else self._caller.tracing.calls()
        now = self._loop.time
        began_s = 0.0
        stats, group, places, settled = self._stats, self._group, self._places, prefix.settled
        deadlines = self._caller.deadlines
        until = deadlines.until
        held, ready, chunks = lanes.held, lanes.ready, self._chunks
        # What a route says is looked up when the route changes: of most topics all records take the same.
        usual_kind, usual_schema, usual_route = router.usual
        route = usual_route
        validate, handler, deadline_s = route.validate, route.handler, route.deadline_s
        is_direct, is_by_key = route.is_direct and is_plain, route.order == "key"
        streak = 0
        self._running[task] = partition
        try:
            while records:
                if held and partition in held:
                    break
                record = records.pop()
                headers = record.headers
                if (
                    len(headers) > 6
                    and headers[5] == usual_schema
                    and headers[3] == usual_kind
                    and headers[6] == JSON_HEADER
                ):
                    found = usual_route
                else:
                    try:
                        found = router.route_of(record)
                    except StopReading as order:
                        self._fail(order.error)
                        break
                    usual_kind, usual_schema, usual_route = router.usual
                if found is not route:
                    route = found
                    validate, handler, deadline_s = route.validate, route.handler, route.deadline_s
                    is_direct, is_by_key = route.is_direct and is_plain, route.order == "key"
                value = record.value
                if not is_direct or validate is None or handler is None or value is None or places:
                    self.dispatch(chunk, record, route)
                    if ready:
                        break
                    continue
                name = record.key if is_by_key else _lane_name(route, record)
                if name in names:
                    self.dispatch(chunk, record, route)
                    continue
                try:
                    event = validate(value)
                except BaseException as error:
                    if is_fatal(error):
                        raise
                    self.dispatch(chunk, record, route)  # to be set aside in its turn
                    break
                names[name] = None
                if not self._worker_pending and (records or ready or len(chunks) > 1):
                    self._wake_worker()
                ctx = Context(record, 1, group)  # by position: names would cost half as much again
                if succeeded is not None or deadline_s is not None:
                    began_s = now()
                    if deadline_s is not None:
                        deadlines.begin(task, began_s + deadline_s)
                try:
                    if spans is not None:
                        spans.begin(ctx)
                    verdict = await handler(event, ctx)
                except BaseException as error:  # noqa: BLE001 whatever a handler raises is judged by one path
                    failure = error
                    if deadline_s is not None:
                        failure = deadlines.failure(task, error, handler=route.name, deadline_s=deadline_s)
                    if durations is not None:
                        durations.observe(now() - began_s, partition.topic, type(failure).__name__)
                    if spans is not None:
                        spans.end(failure)
                    item = Item(partition, prefix, record, route)
                    item.attempt = 1
                    lane = lanes.adopt(partition, names, name, item)
                    await self._end_run(lane, item, self._after_failure(lane, item, failure))
                    del failure  # its traceback refers to this frame
                else:
                    if deadline_s is not None and until.pop(task, None) is None:
                        deadlines.end(task)
                    if succeeded is not None:
                        took_s = now() - began_s
                        succeeded.observe(took_s)
                        if listener is not None:
                            listener(took_s, partition.topic, "")
                    if spans is not None and spans.span is not None:
                        spans.end()
                    if verdict is None:
                        behind = names.pop(name, None)
                        if behind is not None:
                            lanes.follow(names, behind)
                        if not prefix.closed:
                            settled(record.offset)
                            stats.settled += 1
                            if partitions.room_wanted or partitions.spread:
                                partitions.make_room(partition, prefix)
                    else:
                        item = Item(partition, prefix, record, route)
                        item.attempt = 1
                        lane = lanes.adopt(partition, names, name, item)
                        await self._end_run(lane, item, self._path.judged(item, verdict))
                streak += 1
                if streak == LOOK_EVERY:
                    streak = 0
                    self._streak += LOOK_EVERY
                    if self._turn_is_over():
                        break
                if ready:
                    break
        finally:
            self._streak += streak
            if spans is not None:
                spans.close()
            del self._running[task]
            self.ended.set()
            if not records and self._chunks and self._chunks[0] is chunk:
                self._chunks.popleft()
            partitions.note_progress()

    # -------------------------------------------------------------------------------------------- one record

    async def _run_one(self, lane: Lane[Item], item: Item) -> Outcome | None:
        """Handle the oldest record of a lane. None when somebody else will end it."""
        if item.is_release:
            assert self._parked is not None
            await self._parked.release(item)
            return None
        route, record = item.route, item.record
        if self._places and record.key is not None and route.handler is not None and route.numbered is None:
            lot = self._places.get((lane.partition, record.key))
            if lot is not None:
                return await self._path.park(item, lot, reason="waits behind a parked event of its key", attempts=0)
        try:
            if route.handler is None:
                resolved = await self._outages.reach(
                    "the schema registry", [item.partition], lambda: self._router.resolve(item)
                )
                numbered = self._numbered.get(item.partition.topic)
                if resolved is None and numbered is not None:
                    resolved = numbered.passing
                if resolved is None:
                    return Ending.SKIPPED
                route = item.route = resolved
                record = item.record
                item.was_resolved = True
                if route.batch is not None:
                    part = Part(item.partition, item.prefix, [record], route)
                    part.was_resolved = True
                    route.batch.push(part)
                    return None
            event = (
                route.numbered.unhandled(record)
                if route.numbered is not None and route.passes
                else self._router.event_of(route, record, structured=item.was_resolved)
            )
        except StageError as failure:
            return await self._path.failed(item, failure)
        if event is None:
            return Ending.SKIPPED
        if route.numbered is not None:
            item.number = route.numbered.number_of(event)
        item.attempt += 1
        ctx = Context(record, attempt=item.attempt + item.before, group=self._group)
        try:
            verdict = await self._caller.single(route, item.partition, event, ctx)
        except BaseException as error:  # noqa: BLE001 whatever a handler raises is judged by one path
            return await self._after_failure(lane, item, error)
        outcome = await self._path.judged(item, verdict)
        if route.numbered is not None and self._parked is not None and outcome in {Ending.SETTLED, Ending.SKIPPED}:
            # Before the record ends: after a crash it is read again, and those that wait for it follow then.
            await self._parked.follow(item.partition, record.key)
        return outcome

    async def _after_failure(self, lane: Lane[Item], item: Item, error: BaseException) -> Outcome:
        """Judge a failure, unless it is this worker that is being cancelled: then the record has not ended."""
        if is_fatal(error):
            raise error
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if lane.dropped or self.is_stopping or (task is not None and task.cancelling()):
                raise error
            # else the handler cancelled something of its own
        return await self._path.failed(item, error)


def _lane_name(route: Route, record: Received) -> object:
    if route.order == "key":
        return record.key
    return None if route.order == "partition" else record.offset
