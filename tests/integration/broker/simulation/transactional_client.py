"""A transactional producer of transactions v1 and v2 that looks leaders and coordinators up, as Kafka's clients do."""

from __future__ import annotations

import asyncio
from typing import Any

from hailbus_broker.client import Client, RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.definitions.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hailbus_broker.protocol.definitions.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import Message
from hailbus_broker.records import RecordToWrite, build_batch

BACKOFF_S = 0.1


class TransactionalClient:
    """One producer.

    Args:
        bootstrap: HOST:PORT of all brokers.
        transactional_id: Of the producer.
        is_v2: Whether it speaks transactions v2.
    """

    def __init__(self, bootstrap: str, transactional_id: str, *, is_v2: bool) -> None:
        self.transactional_id = transactional_id
        self.is_v2 = is_v2
        self.producer_id = -1
        self.producer_epoch = -1
        self.refusals: list[ErrorCode] = []
        self._bootstrap = bootstrap.split(",")
        self._clients: dict[str, Client] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        self._added: set[tuple[str, int]] = set()

    async def _ask(self, address: str, key: ApiKey, version: int, message: Message) -> Any:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = Client(address, "transactional", timeout_s=3)
        try:
            return await client.ask(key, version, message)
        except UnreachableError:
            client.close()
            raise

    async def coordinator(self, group: str | None = None) -> str:
        """Return where the coordinator of the transactional id is, or that of a group."""
        key_type, key = (1, self.transactional_id) if group is None else (0, group)
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        for address in self._bootstrap:
            try:
                answer = await self._ask(address, ApiKey.FIND_COORDINATOR, 6, request)
            except UnreachableError:
                continue
            found = answer.coordinators[0]
            if not found.error_code:
                return f"{found.host}:{found.port}"
        raise UnreachableError("no coordinator is known")

    async def _leader(self, topic: str, index: int) -> str:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        for address in self._bootstrap:
            try:
                answer = await self._ask(address, ApiKey.METADATA, 12, request)
            except UnreachableError:
                continue
            brokers = {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers}
            for one in answer.topics[0].partitions:
                if one.partition_index == index and one.leader_id in brokers:
                    return brokers[one.leader_id]
        raise UnreachableError("no leader is known")

    async def _retried(self, attempt: Any) -> Any:
        """Try until it succeeds, or is refused for good."""
        async with asyncio.timeout(90):
            while True:
                try:
                    return await attempt()
                except UnreachableError:
                    pass
                except RefusedError as error:
                    self.refusals.append(error.code)
                    if error.code not in RETRIABLE:
                        raise
                await asyncio.sleep(BACKOFF_S)

    async def init(self) -> None:
        """Take the transactional id."""

        async def attempt() -> None:
            request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
            answer = await self._ask(await self.coordinator(), ApiKey.INIT_PRODUCER_ID, 5, request)
            accept(answer.error_code, "InitProducerId")
            self._identify(answer)

        await self._retried(attempt)

    def _identify(self, answer: Any) -> None:
        if (self.producer_id, self.producer_epoch) != (answer.producer_id, answer.producer_epoch):
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()

    def twin(self) -> TransactionalClient:
        """Return the same producer in the same state, with connections of its own."""
        twin = TransactionalClient(",".join(self._bootstrap), self.transactional_id, is_v2=self.is_v2)
        twin.producer_id, twin.producer_epoch = self.producer_id, self.producer_epoch
        twin._sequences.update(self._sequences)
        twin._added.update(self._added)
        return twin

    async def produce(self, topic: str, index: int, value: bytes, *, adds: bool = True) -> None:
        """Write one record in the transaction.

        Args:
            topic: Of the partition.
            index: Of the partition.
            value: Of the record.
            adds: Whether a producer of transactions v1 makes the partition part of the transaction first.
        """
        if not self.is_v2 and adds and (topic, index) not in self._added:
            await self._retried(lambda: self._add(topic, index))
            self._added.add((topic, index))
        sequence = self._sequences.get((topic, index), 0)
        batch = build_batch(
            [RecordToWrite(key=None, value=value, timestamp=0)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = [PartitionProduceData(index=index, records=bytes(batch))]
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=2_000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )

        async def attempt() -> None:
            address = await self._leader(topic, index)
            answer = await self._ask(address, ApiKey.PRODUCE, 12 if self.is_v2 else 11, request)
            accept(answer.responses[0].partition_responses[0].error_code, "Produce")

        await self._retried(attempt)
        self._sequences[topic, index] = sequence + 1

    async def _add(self, topic: str, index: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )
        answer = await self._ask(await self.coordinator(), ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        accept(result.partition_error_code, "AddPartitionsToTxn")

    async def commit_offset(self, group: str, topic: str, offset: int, *, adds: bool = True) -> None:
        """Make an offset of partition 0 part of the transaction.

        Args:
            group: Whose offset it is.
            topic: Of the partition.
            offset: To commit.
            adds: Whether a producer of transactions v1 tells its coordinator first.
        """
        if not self.is_v2 and adds:
            await self._retried(lambda: self._add_offsets(group))
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )

        async def attempt() -> None:
            address = await self.coordinator(group)
            answer = await self._ask(address, ApiKey.TXN_OFFSET_COMMIT, 5 if self.is_v2 else 3, request)
            accept(answer.topics[0].partitions[0].error_code, "TxnOffsetCommit")

        await self._retried(attempt)

    async def _add_offsets(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        answer = await self._ask(await self.coordinator(), ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
        accept(answer.error_code, "AddOffsetsToTxn")

    def end_request(self, *, is_commit: bool) -> EndTxnRequest:
        """Return the request that ends the transaction as it is now."""
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )

    async def send_end(self, request: EndTxnRequest) -> Any:
        """Send an EndTxn once."""
        return await self._ask(await self.coordinator(), ApiKey.END_TXN, 5 if self.is_v2 else 3, request)

    async def end(self, *, is_commit: bool) -> None:
        """End the transaction."""
        request = self.end_request(is_commit=is_commit)

        async def attempt() -> None:
            answer = await self.send_end(request)
            accept(answer.error_code, "EndTxn")
            if self.is_v2:
                self._identify(answer)

        await self._retried(attempt)
        self._added.clear()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
