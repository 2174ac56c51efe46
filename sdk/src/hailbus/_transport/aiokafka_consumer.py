"""The consumer over aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import aiokafka
from aiokafka import errors as kafka_errors
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from hailbus._transport import (
    RebalanceListener,
    Received,
    TopicPartition,
    TransportBrokenError,
    aiokafka_private,
    cluster,
)
from hailbus._transport.aiokafka_client import connected, connection
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings, ConsumerOptions
from hailbus._transport.reachability import Reachability
from hailbus._transport.repeated_lines import aiokafka_lines

__all__ = ["AiokafkaConsumer", "stop_consumer"]

log = logging.getLogger("hailbus.transport")
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


async def stop_consumer(client: aiokafka.AIOKafkaConsumer) -> None:
    """Stop a consumer of the client library, and close its connections even where that fails.

    The library's own `stop` waits for answers of the coordinator as long as for any other request. And it is cut short,
    by the `CancelledError` of a task of its own, while a fetch waits to try again, as when a broker is away: what is
    left then tries to connect for ever, and is found by the garbage collector when the loop has been closed.
    """
    stopping = asyncio.ensure_future(client.stop())
    try:
        await asyncio.wait({stopping}, timeout=cluster.STOP_TIMEOUT_S)
        if not stopping.done():
            log.warning("consumer_stop_timed_out: the broker does not answer, its connections are closed")
            await aiokafka_private.close_connections(client)  # ends the wait for answers on them
            await asyncio.wait({stopping}, timeout=1.0)
    finally:
        stopping.cancel()
        await asyncio.wait({stopping})
        error = None if stopping.cancelled() else stopping.exception()
        if error is not None:
            log.warning("consumer_stop_failed: %r", error)
        if error is not None or stopping.cancelled():
            await aiokafka_private.close_connections(client)


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        await self._listener.revoked(frozenset(TopicPartition(*tp) for tp in revoked))

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        await self._listener.assigned(frozenset(TopicPartition(*tp) for tp in assigned))


class AiokafkaConsumer:
    """A group member, or without a group a reader of all partitions of its topics."""

    def __init__(self, settings: ClusterSettings, options: ConsumerOptions) -> None:
        self._settings = settings
        self._options = options
        self._started: aiokafka.AIOKafkaConsumer | None = None
        self._reachability = Reachability(on_return=aiokafka_lines.reached)
        self._paused: set[TopicPartition] = set()
        self._resumed = asyncio.Event()

    def _make(self) -> aiokafka.AIOKafkaConsumer:
        settings = self._settings
        return aiokafka.AIOKafkaConsumer(
            **connection(settings, self._options.client_id),
            group_id=self._options.group,
            group_instance_id=settings.group_instance_id if self._options.group else None,
            enable_auto_commit=False,
            auto_offset_reset=self._options.start,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            # A stuck handler shows in the health route. Leaving the group would only move the stuck record elsewhere.
            max_poll_interval_ms=2**31 - 1,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            max_partition_fetch_bytes=settings.max_partition_fetch_bytes,
            partition_assignment_strategy=(ASSIGNORS[settings.assignor],),
            isolation_level="read_committed" if self._options.read_committed else "read_uncommitted",
        )

    async def start(self) -> None:
        async def begin(client: aiokafka.AIOKafkaConsumer) -> None:
            await client.start()
            aiokafka_private.read_into_records(client)
            if self._options.group is not None:
                self._started = client  # the listener may use this consumer before `start` returns
                listener = self._options.listener
                client.subscribe(self._options.topics, listener=_Listener(listener) if listener else None)
                return
            partitions = []
            for topic in self._options.topics:
                found = await aiokafka_private.partitions_when_known(client, topic)
                partitions += [aiokafka.TopicPartition(topic, partition) for partition in sorted(found)]
            client.assign(partitions)

        self._started = await connected(self._settings, self._make, begin, stop_consumer)

    async def stop(self) -> None:
        if self._started is not None:
            await stop_consumer(self._started)

    @property
    def _client(self) -> aiokafka.AIOKafkaConsumer:
        assert self._started is not None, "the consumer has not been started"
        return self._started

    @property
    def unreachable_since_s(self) -> float | None:
        if self._started is None:
            return None
        return self._reachability.observe(
            is_connected=aiokafka_private.is_connected(self._started), now_s=asyncio.get_running_loop().time()
        )

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        client = self._client
        _ = self.unreachable_since_s  # noted in each poll, so that the moment is exact
        self._learn_topics()
        partitions: list[Any] = []
        if self._paused:
            partitions = [tp for tp in client.assignment() if tp not in self._paused]
            if not partitions:
                # Everything is paused. An empty list would mean "all" to the client.
                self._resumed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._resumed.wait()
                return {}
        try:
            records: Mapping[TopicPartition, Sequence[Received]] = await client.getmany(
                *partitions, timeout_ms=int(timeout_s * 1000), max_records=max_records
            )
        except kafka_errors.ConsumerStoppedError as error:
            raise TransportBrokenError(str(error)) from error
        except kafka_errors.KafkaError as error:
            if aiokafka_private.membership_ended(client):
                raise TransportBrokenError(repr(error)) from error
            log.warning("poll_failed: %r, trying again", error)
            await asyncio.sleep(RETRY_BACKOFF_S)
            return {}
        return records

    def _learn_topics(self) -> None:
        """Ask for the topics' metadata when the client has none.

        The client sends a request for metadata that was lost with a broker again after `metadata_max_age_ms` only. If
        this member leads its group meanwhile, nobody is given partitions. What the answer brings makes it rejoin.
        """
        if self._options.group is not None and not all(
            self._client.partitions_for_topic(topic) for topic in self._options.topics
        ):
            aiokafka_private.request_metadata(self._client)

    def pause(self, partition: TopicPartition) -> None:
        # Not the client's own pause: that one throws away what it has fetched ahead.
        self._paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._paused.discard(partition)
        self._resumed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*tp) for tp in self._started.assignment()) if self._started else frozenset()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        try:
            await self._client.commit({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()})
        except (kafka_errors.CommitFailedError, kafka_errors.IllegalStateError) as error:
            log.info("commit_overtaken_by_rebalance: %s", error)
            return False
        except kafka_errors.KafkaError as error:
            log.warning("commit_failed: %r, the next commit covers it", error)
            return False
        return True

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = {tp: await self._client.committed(aiokafka.TopicPartition(*tp)) for tp in partitions}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    async def positions(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(*tp): await self._client.position(tp) for tp in self._client.assignment()}

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._client.seek(aiokafka.TopicPartition(*tp), offset)
