"""A group member that handles events and commits the contiguous settled prefix.

The rules, each with a test:

- Nothing is committed beyond a record that has not ended.
- Handlers of one key never overlap. A lane has one runner at a time.
- A cancelled handler ends nothing.
- On revocation running handlers get `revoke_grace` to finish, then they are cancelled; what ended by then is committed,
  the rest is dropped here and read again by the next owner.
- Whatever is raised on the way goes through one failure path, `hailbus._consuming.failure`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hailbus._consuming.batches import BatchRunner
from hailbus._consuming.committing import Committer
from hailbus._consuming.lanes import LaneRunner
from hailbus._consuming.member import Member, Surroundings, ended
from hailbus._consuming.outages import names
from hailbus._consuming.parked import ParkedKeys
from hailbus._consuming.path import FailurePath, ProducerOutlet
from hailbus._consuming.progress import Heads, Partitions
from hailbus._consuming.routing import JSON_HEADER
from hailbus._consuming.work import Chunk, Part, Route
from hailbus._transport import Producer, Received, TopicPartition
from hailbus.dead_letter import due_ms, retry_topic
from hailbus.delivery import AtLeastOnce, AtMostOnce, EffectivelyOnce, ParkKey, RetryTopics
from hailbus.errors import ConfigurationError
from hailbus.event import event_info
from hailbus.settlement import SettledPrefix
from hailbus.subscription import Subscription

if TYPE_CHECKING:
    pass

__all__ = ["Subscriber"]

log = logging.getLogger("hailbus.subscriber")
STOP_COMMIT_TIMEOUT_S = 10.0
REVOKE_COMMIT_TIMEOUT_S = 5.0
CANCEL_TIMEOUT_S = 5.0
REFUSED_COMMIT_PAUSE_S = (0.02, 2.0)
LONGEST_NAP_S = 3600.0
READS_PER_COMMIT = 4
"""At most once, each read is committed by itself, and a commit costs as much CPU time as 100 records or more: it covers
as many records as this many reads of other groups."""


class Subscriber(Member):
    """All subscriptions of one group in one process, on one consumer; those of `ExactlyOnce` have their own."""

    def __init__(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        around: Surroundings,
        *,
        producer: Callable[[], Producer],
    ) -> None:
        self._at_most_once = isinstance(subscriptions[0].delivery, AtMostOnce)
        if any(isinstance(s.delivery, AtMostOnce) != self._at_most_once for s in subscriptions):
            message = (
                f"group {group!r} mixes AtMostOnce and AtLeastOnce, whose commits exclude each other; "
                "give one of the subscriptions a group of its own"
            )
            raise ConfigurationError(message)
        super().__init__(group, subscriptions, around)
        settings, clock = around.settings, around.clock
        self._retries = _retry_topics(group, subscriptions)
        self.topics = tuple(sorted({*self.topics, *self._retries}))
        self._partitions = Partitions(
            stats=self.stats,
            settings=settings,
            clock=clock,
            resume=lambda partition: self._reader.resume(partition, "spread"),
        )
        policies = [
            delivery.then
            for delivery in (s.delivery for s in subscriptions)
            if isinstance(delivery, (AtLeastOnce, EffectivelyOnce)) and isinstance(delivery.then, ParkKey)
        ]
        self._parked = (
            ParkedKeys(
                group,
                policies,
                router=self._router,
                caller=self._caller,
                outages=self._outages,
                stats=self.stats,
                rng=self._rng,
                heads=self._partitions.heads,
                numbered=self._numbered,
            )
            if policies
            else None
        )
        self._path = FailurePath(
            group,
            stats=self.stats,
            clock=clock,
            rng=self._rng,
            outages=self._outages,
            outlet=ProducerOutlet(producer),
            retries=self._retries,
            parked=self._parked.places if self._parked is not None else {},
            heads=self._partitions.heads,
        )
        self._lanes = LaneRunner(
            group,
            max_in_flight=max((s.delivery.max_in_flight for s in subscriptions if s.handler), default=1),
            router=self._router,
            partitions=self._partitions,
            path=self._path,
            caller=self._caller,
            parked=self._parked,
            outages=self._outages,
            stats=self.stats,
            retries=self._retries,
            numbered=self._numbered,
            fail=self._fail,
        )
        self._batches: list[BatchRunner] = []
        for subscription in subscriptions:
            runner = self._batch_runner(subscription) if subscription.batch_handler is not None else None
            self._route(subscription, runner)
        self._takes_single_events = any(s.handler for s in subscriptions)
        self._committer = Committer(
            group,
            partitions=self._partitions,
            consumer=lambda: self._reader.consumer,
            stats=self.stats,
            settings=settings,
        )
        self._refused_commits = 0
        self._loading: set[asyncio.Task[None]] = set()
        self._holds: dict[TopicPartition, set[str]] = {}

    def _batch_runner(self, subscription: Subscription) -> BatchRunner:
        runner = BatchRunner(
            self.group,
            subscription,
            router=self._router,
            partitions=self._partitions,
            path=self._path,
            caller=self._caller,
            stats=self.stats,
            rng=self._rng,
            numbered=self._numbered.get(event_info(subscription.events[0]).topic.name),
            parked=self._parked,
            keep=lambda runner: self._supervisor.run(f"batch-{subscription.name}", runner.run),
            ended=self._lanes.ended.set,
        )
        self._batches.append(runner)
        return runner

    # -------------------------------------------------------------------------------------------- start and stop

    async def _prepare(self) -> None:
        self._lanes.start()
        if self._parked is not None:
            await self._parked.create_tables()

    def _tasks(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        for runner in self._batches:
            runner.start()
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [("commit", self._committer.run)]
        parked = self._parked
        if parked is not None:

            def held() -> frozenset[TopicPartition]:
                return frozenset(self._partitions.prefixes)

            tasks += [
                ("parked", partial(parked.watch, policy, held, self._lanes.queue_release))
                for policy in parked.lots.values()
            ]
        return tasks

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._lanes.drop(None)

    async def stop(self) -> None:
        """Let running handlers finish within the drain timeout, commit what ended, leave the group."""
        self._is_stopping = self._lanes.is_stopping = True
        await self._supervisor.stop(but=[runner.task for runner in self._batches])
        drained = await self._quiesce(self._settings.drain_timeout.total_seconds(), None)
        if not drained:
            log.warning("drain_timed_out: group %s, unfinished events will be delivered again", self.group)
        await self._supervisor.stop()
        if self._reader.consumer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_COMMIT_TIMEOUT_S):
                    await self._committer.commit()
            for prefix in self._partitions.prefixes.values():
                prefix.closed = True
            await self._reader.stop()
        await self._lanes.stop()
        await self._caller.stop()

    async def _quiesce(self, grace_s: float, partitions: frozenset[TopicPartition] | None) -> bool:
        """Stop what runs on some partitions (None: on all): no new calls, a grace for running ones, then cancel."""
        self._lanes.drop(partitions)
        for runner in self._batches:
            runner.drop(partitions)

        def running() -> list[asyncio.Task[None]]:
            tasks = self._lanes.running(partitions)
            return tasks + [r.task for r in self._batches if r.task is not None and r.touches(partitions)]

        deadline_s = asyncio.get_running_loop().time() + grace_s
        while True:
            # A task that waits for an outage runs no handler: there is nothing to finish.
            found = [task for task in running() if task not in self._outages.waiting]
            if not found:
                break
            self._lanes.ended.clear()
            if not await ended(self._lanes.ended, deadline_s - asyncio.get_running_loop().time()):
                break
        late = running()
        in_time = all(task in self._outages.waiting for task in late)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCEL_TIMEOUT_S)
            for runner in self._batches:
                runner.abandon(partitions)
                if not self._is_stopping:
                    runner.start()
            if not self._is_stopping:
                self._lanes.wake()
        return in_time

    # -------------------------------------------------------------------------------------------- rebalance

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """New partitions: each begins with an empty prefix."""
        self.stats.rebalances += 1
        for partition in partitions:
            self._partitions.add(partition)
        if self._parked is not None and partitions:
            for partition in partitions:
                self._hold_for("parked keys", partition)
            task = self._supervisor.run("load-parked", lambda: self._load_parked(partitions))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)
            await asyncio.wait({task}, timeout=self._settings.revoke_grace.total_seconds())
        log.info("partitions_assigned: group %s has %s", self.group, names(partitions))

    async def _load_parked(self, partitions: frozenset[TopicPartition]) -> None:
        """Learn which keys are parked before any record of theirs is handled."""
        assert self._parked is not None
        held = frozenset(partition for partition in partitions if partition in self._partitions.prefixes)
        await self._parked.load(held)
        for partition in held:
            self._release_for("parked keys", partition)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions go: finish or cancel what runs, commit what ended, forget the rest."""
        if not partitions:
            return
        await self._quiesce(self._settings.revoke_grace.total_seconds(), partitions)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REVOKE_COMMIT_TIMEOUT_S):
                await self._committer.commit(partitions)
        self._forget(partitions)
        log.info("partitions_revoked: group %s gave up %s", self.group, names(partitions))

    async def let_go(self) -> None:
        """See `Reading`."""
        partitions = frozenset(self._partitions.prefixes)
        await self._quiesce(self._settings.revoke_grace.total_seconds(), partitions)
        self._forget(partitions)

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        for task in tuple(self._loading):
            task.cancel()
        self._outages.forget(partitions)
        self._partitions.remove(partitions)
        self._committer.forget(partitions)
        for partition in partitions:
            self._holds.pop(partition, None)
            self._lanes.unhold(partition)
            if self._parked is not None:
                self._parked.forget(partition)
            self._reader.forget(partition)

    # -------------------------------------------------------------------------------------------- holding

    def _hold(self, partition: TopicPartition) -> None:
        self._hold_for("outage", partition)

    def _release(self, partition: TopicPartition) -> None:
        self._release_for("outage", partition)

    def _hold_for(self, why: str, partition: TopicPartition) -> None:
        """Read and handle no more of a partition until every reason is gone."""
        if partition in self._partitions.prefixes:
            self._holds.setdefault(partition, set()).add(why)
            self._lanes.hold(partition)
            self._reader.pause(partition, "held")

    def _release_for(self, why: str, partition: TopicPartition) -> None:
        reasons = self._holds.get(partition)
        if reasons is None:
            return
        reasons.discard(why)
        if not reasons:
            del self._holds[partition]
            self._reader.resume(partition, "held")
            self._lanes.unhold(partition)

    # -------------------------------------------------------------------------------------------- reading

    async def room(self) -> int:
        """See `Reading`."""
        if self.failure is not None:
            await asyncio.get_running_loop().create_future()  # for good: this member reads no more
        return await self._partitions.until_room(reads=READS_PER_COMMIT if self._at_most_once else 1)

    async def take(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> None:
        """See `Reading`."""
        if self._at_most_once and not await self._commit_first(polled):
            return
        for raw_partition, records in polled.items():
            if not records:
                continue
            partition = TopicPartition(*raw_partition)
            prefix = self._partitions.prefixes.get(partition)
            if prefix is None:
                # Either revoked meanwhile, or assigned so lately that `assigned` has not finished: then the records
                # must come again, or the next commit would pass them.
                await self._reader.seek_back({partition: records[0].offset})
                continue
            if prefix.position is not None and records[0].offset < prefix.position:
                prefix = await self._begin_anew(partition, prefix, records[0].offset)
            if partition.topic in self._retries:
                records = await self._due(partition, records)  # noqa: PLW2901 the rest is read again later
                if not records:
                    continue
            if self._partitions.received(partition, prefix, records):
                self._reader.pause(partition, "spread")
            chunk = Chunk(partition, prefix, self._lanes.names(partition), list(reversed(records)))
            if self._takes_single_events:
                self._lanes.push(chunk)
            else:
                self._take_batches(chunk, records)
        self._lanes.wake()
        if not self._at_most_once:  # else handlers run while the next read is being committed
            await asyncio.sleep(0)  # handlers first: what has been read just now is still in the CPU's cache

    async def _commit_first(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> bool:
        """Commit what was polled before it is handled; if that is refused, read it again later."""
        consumer = self._reader.consumer
        assert consumer is not None
        ends = {TopicPartition(*tp): records[-1].offset + 1 for tp, records in polled.items() if records}
        if await self._committer.commit_now(ends):
            self._refused_commits = 0
            return True
        # Not committed, so not ours to handle: the partition's owner reads them again.
        first_s, max_s = REFUSED_COMMIT_PAUSE_S
        await self._reader.seek_back({TopicPartition(*tp): r[0].offset for tp, r in polled.items() if r})
        await asyncio.sleep(min(first_s * 2 ** min(self._refused_commits, 10), max_s))
        self._refused_commits += 1
        return False

    async def _begin_anew(self, partition: TopicPartition, prefix: SettledPrefix, offset: int) -> SettledPrefix:
        """The log ends below what was read of it: forget the old one, and take the records that there are now."""
        log.error(
            "log_moved_back: %s-%d was read up to offset %d and now continues at %d: the topic was created anew, or "
            "its broker lost the end of the log; group %s handles what there is now",
            partition.topic,
            partition.partition,
            prefix.position,
            offset,
            self.group,
        )
        only = frozenset({partition})
        await self._quiesce(self._settings.revoke_grace.total_seconds(), only)
        self._outages.forget(only)
        self._release(partition)
        self._partitions.remove(only)
        self._committer.forget(only)
        self._reader.resume(partition, "spread")
        self._partitions.add(partition)
        return self._partitions.prefixes[partition]

    def _take_batches(self, chunk: Chunk, records: Sequence[Received]) -> None:
        """Records for a group that has handlers of batches only; neighbours of one route stay together."""
        router = self._router
        usual = router.usual
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
                found = router.route_of(record)
                usual = router.usual
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
            self._lanes.dispatch(chunk, record, route)

    async def _due(self, partition: TopicPartition, records: Sequence[Received]) -> Sequence[Received]:
        """The records of a retry topic whose time has come; the partition is paused until that of the next one."""
        now_ms = int(self._clock().timestamp() * 1000)
        for index, record in enumerate(records):
            wait_ms = (due_ms(record) or 0) - now_ms
            if wait_ms > 0:
                await self._reader.seek_back({partition: record.offset})
                self._reader.pause(partition, "not due")
                asyncio.get_running_loop().call_later(
                    min(wait_ms / 1000, LONGEST_NAP_S),
                    self._end_nap,
                    partition,
                    self._partitions.prefixes.get(partition),
                )
                return records[:index]
        return records

    def _end_nap(self, partition: TopicPartition, prefix: SettledPrefix | None) -> None:
        if self._partitions.prefixes.get(partition) is prefix:
            self._reader.resume(partition, "not due")

    async def commit(self) -> None:
        """Commit what has settled, without waiting for the interval. A failure is noted; the next commit covers it."""
        await self._committer.commit()

    # -------------------------------------------------------------------------------------------- health

    @property
    def _heads(self) -> Heads:
        self._partitions.look()
        return self._partitions.heads

    def _further_reasons(self, *, after_s: float) -> list[str]:
        return self._committer.reasons(after_s=after_s)

    @property
    def unsettled_count(self) -> int:
        """Records read and not settled."""
        return self._partitions.unsettled_count

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not settled, in seconds; 0 when there is none."""
        return self._partitions.lag_s

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds."""
        return frozenset(self._partitions.prefixes)

    @property
    def lanes_in_use(self) -> int:
        """Handlers of single events that run now, each in a lane of its own."""
        return self._lanes.in_use

    @property
    def parked_keys(self) -> int:
        """Parked keys on the partitions that this member holds."""
        return len(self._parked.places) if self._parked is not None else 0


def _retry_topics(group: str, subscriptions: Sequence[Subscription]) -> dict[str, tuple[RetryTopics, int]]:
    found: dict[str, tuple[RetryTopics, int]] = {}
    for subscription in subscriptions:
        then = getattr(subscription.delivery, "then", None)
        if isinstance(then, RetryTopics):
            for cls in subscription.events:
                for step, delay in enumerate(then.delays):
                    # Of equal delays the last counts: a record there has been through all of them.
                    found[retry_topic(event_info(cls).topic, group, delay)] = (then, step)
    return found
