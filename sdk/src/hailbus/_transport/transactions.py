"""List a cluster's transactions, and end one that hangs (KIP-664)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import errors as kafka_errors

from hailbus._transport import TopicPartition
from hailbus._transport import admin_requests as requests
from hailbus._transport.cluster import RETRY_BACKOFF_S
from hailbus._transport.kafka_admin import KafkaAdmin, refused
from hailbus.errors import BrokerUnreachableError, ConfigurationError, TopicMissingError

__all__ = ["ActiveProducer", "HangingTransaction", "ListedTransaction", "Transaction", "TransactionAdmin"]

_COORDINATOR_OF_TRANSACTIONS: Final = 1
_TRANSACTIONAL_ID_NOT_FOUND: Final = 105
_CONCURRENT_TRANSACTIONS: Final = 51
_FENCING_TIMEOUT_MS: Final = 60_000
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transactional id and its newest transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id as its coordinator knows it; `start_ms` is None without an open transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer with an id, as a partition's leader knows it; `start_offset` is None without an open transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    start_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator will ever end."""

    partition: TopicPartition
    producer: ActiveProducer
    idle_ms: int


def _producer(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_timestamp: int,
    coordinator_epoch: int,
    start_offset: int,
    _tags: object,
) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        last_sequence=last_sequence,
        last_timestamp=last_timestamp,
        start_offset=start_offset if start_offset >= 0 else None,
    )


class TransactionAdmin:
    """Looks at transactions and aborts them.

    Args:
        admin: Started.
    """

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin

    async def all_ids(
        self, *, duration_ms: int = -1, pattern: str | None = None, producer_ids: Sequence[int] = ()
    ) -> list[ListedTransaction]:
        """All transactional ids, or those open for longer than a time, matching a pattern, of certain producers."""
        request = requests.list_transactions(producer_ids=list(producer_ids), duration_ms=duration_ms, pattern=pattern)
        found = []
        for node in await self._admin.nodes():
            answer = await self._admin.ask(request, node)
            refused(answer.error_code, "transactions cannot be listed")
            found += [
                ListedTransaction(transactional_id=name, coordinator=node, producer_id=producer_id, state=state)
                for name, producer_id, state, _ in answer.states
            ]
        return sorted(found, key=lambda entry: entry.transactional_id)

    async def describe(self, transactional_id: str) -> Transaction:
        """One transactional id. Raises `ConfigurationError` when its coordinator does not know it."""
        found = await self._described(transactional_id)
        if found is None:
            message = (
                f"there is no transactional id {transactional_id!r}; `transactions list` shows those that there are"
            )
            raise ConfigurationError(message)
        return found

    async def _described(self, transactional_id: str) -> Transaction | None:
        node = await self._coordinator(transactional_id)
        answer = await self._admin.ask(requests.describe_transactions([transactional_id]), node)
        ((code, name, state, timeout_ms, start_ms, producer_id, producer_epoch, topics, _),) = answer.states
        if code == _TRANSACTIONAL_ID_NOT_FOUND:
            return None
        refused(code, f"the transactional id {transactional_id!r} cannot be described")
        return Transaction(
            transactional_id=name,
            coordinator=node,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            state=state,
            timeout_ms=timeout_ms,
            start_ms=start_ms if start_ms >= 0 else None,
            partitions=tuple(sorted(TopicPartition(topic, index) for topic, indexes, _ in topics for index in indexes)),
        )

    async def producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        """Who writes to a partition with a producer id."""
        place = TopicPartition(topic, partition)
        return (await self._producers([place]))[place]

    async def _producers(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, list[ActiveProducer]]:
        by_leader: dict[int, dict[str, list[int]]] = {}
        described = await self._admin.describe(sorted({place.topic for place in places}))
        for place in places:
            if place.topic not in described:
                raise TopicMissingError(topic=place.topic)
            leaders = described[place.topic].leaders
            if place.partition not in leaders:
                message = f"topic {place.topic!r} has partitions 0 to {len(leaders) - 1}, not {place.partition}"
                raise ConfigurationError(message)
            by_leader.setdefault(leaders[place.partition], {}).setdefault(place.topic, []).append(place.partition)
        found: dict[TopicPartition, list[ActiveProducer]] = {}
        for leader, partitions in by_leader.items():
            answer = await self._admin.ask(requests.describe_producers(partitions), leader)
            for topic, results, _ in answer.topics:
                for index, code, text, producers, _ in results:
                    refused(code, f"the producers of {topic}-{index} cannot be described", text)
                    found[TopicPartition(topic, index)] = [_producer(*values) for values in producers]
        return found

    async def abort_at(self, topic: str, partition: int, start_offset: int) -> ActiveProducer:
        """Abort the transaction that began in a partition at an offset; returns whose it was."""
        for producer in await self.producers(topic, partition):
            if producer.start_offset == start_offset:
                await self.abort(
                    topic,
                    partition,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    # A producer that has never had a marker shows -1, which no log takes for a coordinator's.
                    coordinator_epoch=max(producer.coordinator_epoch, 0),
                )
                return producer
        message = (
            f"no open transaction of {topic}-{partition} began at offset {start_offset}; "
            "`transactions describe-producers` shows those that there are"
        )
        raise ConfigurationError(message)

    async def abort(
        self, topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an abort marker into one partition, whatever the coordinator thinks of it."""
        described = await self._admin.describe([topic])
        if topic not in described:
            raise TopicMissingError(topic=topic)
        leader = described[topic].leaders.get(partition)
        if leader is None:
            message = f"topic {topic!r} has no partition {partition}"
            raise ConfigurationError(message)
        request = requests.write_txn_markers(
            topic,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        answer = await self._admin.ask(request, leader)
        for _, topics, _ in answer.markers:
            for _, results, _ in topics:
                for _, code, _ in results:
                    refused(code, f"the transaction of producer {producer_id} in {topic}-{partition} cannot be aborted")

    async def find_hanging(
        self, *, max_timeout_ms: int, topic: str | None = None, partition: int | None = None, broker: int | None = None
    ) -> list[HangingTransaction]:
        """Open transactions that are silent for longer than any may last, and that no coordinator knows of."""
        described = await self._admin.describe(None if topic is None else [topic])
        if topic is not None and topic not in described:
            raise TopicMissingError(topic=topic)
        places = [
            TopicPartition(name, index)
            for name, description in sorted(described.items())
            for index, leader in sorted(description.leaders.items())
            if partition in {None, index} and broker in {None, leader}
        ]
        now_ms = int(time.time() * 1000)
        silent = [
            HangingTransaction(partition=place, producer=producer, idle_ms=now_ms - producer.last_timestamp)
            for place, producers in sorted((await self._producers(places)).items())
            for producer in producers
            if producer.start_offset is not None and now_ms - producer.last_timestamp > max_timeout_ms
        ]
        if not silent:
            return []
        listed = await self.all_ids(producer_ids=sorted({entry.producer.producer_id for entry in silent}))
        ids = {entry.producer_id: entry.transactional_id for entry in listed}
        hanging = []
        for entry in silent:
            name = ids.get(entry.producer.producer_id)
            transaction = None if name is None else await self._described(name)
            # A coordinator that has the partition in an open transaction will end it.
            if transaction is None or transaction.start_ms is None or entry.partition not in transaction.partitions:
                hanging.append(entry)
        return hanging

    async def terminate(self, transactional_id: str) -> None:
        """Fence a transactional id's producer and abort what it has open."""
        node = await self._coordinator(transactional_id)
        await self.describe(transactional_id)
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            answer = await self._admin.ask(requests.init_producer_id(transactional_id, _FENCING_TIMEOUT_MS), node)
            # The first answer begins the abort, and asks to come again when it is done.
            if answer.error_code != _CONCURRENT_TRANSACTIONS or time.monotonic() > deadline_s:
                refused(answer.error_code, f"the transaction of {transactional_id!r} cannot be ended")
                return
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def _coordinator(self, transactional_id: str) -> int:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await self._admin.coordinator(_COORDINATOR_OF_TRANSACTIONS, transactional_id)
            except kafka_errors.KafkaError as error:
                # Its topic is created when somebody asks for the first time.
                if not error.retriable or time.monotonic() > deadline_s:
                    raise BrokerUnreachableError(
                        bootstrap=self._admin.address, waited_s=_PATIENCE_S, reason=f"no coordinator: {error!r}"
                    ) from error
                await asyncio.sleep(RETRY_BACKOFF_S)
