"""What clients were told about the records of one partition, kept apart from the cluster, and compared with it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hailbus_broker.client import Client, UnreachableError
from hailbus_broker.log import Isolation
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.runtime.replica import HostedReplica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.testing.simulation import ClusterWorld, SimulatedNode

TOPIC = "rides.v1"
CLIENT_TIMEOUT_S = 3.0
UNKNOWN = {
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
"""Errors of a write whose record may be in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer to one fetch."""

    code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    next_offset: int
    values: dict[int, bytes]
    markers: dict[int, int]
    """Offsets of control batches, with the id of the producer whose transaction each ends."""


class Account:
    """A client of one partition that sends each value once, and records each response.

    Attributes:
        acknowledged: Values by the offset that the acknowledgement named.
        refused: Values that are said not to have been written.
        unknown: Values whose outcome is open.
        seen: Values by offset, of all reads of committed records.
        codes: Of the answers to all writes; None for no answer.
        messages: Of these answers.
    """

    def __init__(self, cluster: ClusterWorld, topic: str = TOPIC) -> None:
        self.cluster = cluster
        self.topic = topic
        self.acknowledged: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.codes: list[ErrorCode | None] = []
        self.messages: list[str] = []
        self._clients: dict[int, Client] = {}
        self._count = 0

    # ------------------------------------------------------------------ requests

    async def ask(self, node_id: int, key: ApiKey, version: int, message: Message) -> Any:
        """Ask one node; a connection that fails is closed.

        Raises:
            UnreachableError: No response came.
        """
        client = self._clients.get(node_id)
        if client is None:
            address = f"{self.cluster.nodes[node_id].name}:9092"
            client = self._clients[node_id] = Client(address, "account", timeout_s=CLIENT_TIMEOUT_S)
        try:
            return await client.ask(key, version, message)
        except UnreachableError:
            client.close()
            raise

    async def leader(self) -> int | None:
        """Return the leader of the newest epoch that any broker names; None if the partition has none."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)])
        newest: tuple[int, int] = (-1, -1)
        for node_id, node in self.cluster.nodes.items():
            if not node.is_broker:
                continue
            try:
                answer = await self.ask(node_id, ApiKey.METADATA, 12, request)
            except UnreachableError:
                continue
            for one in answer.topics[0].partitions:
                newest = max(newest, (one.leader_epoch, one.leader_id))
        return newest[1] if newest[1] >= 0 else None

    async def send(self, *, to: int | None = None, acks: int = -1) -> ErrorCode | None:
        """Send the next value once, to a node or to the leader.

        Returns:
            The code of the answer; None if there was none. The value counts as refused if it was not sent.
        """
        value = b"%d" % self._count
        self._count += 1
        node_id = await self.leader() if to is None else to
        if node_id is None:
            self.refused.add(value)
            return ErrorCode.LEADER_NOT_AVAILABLE
        batch = build_batch([RecordToWrite(key=None, value=value, timestamp=int(time.time() * 1_000))])
        request = ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=2_000,
            topic_data=[
                TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
            ],
        )
        try:
            answer = await self.ask(node_id, ApiKey.PRODUCE, 9, request)
        except UnreachableError:
            self.unknown.add(value)
            self.codes.append(None)
            return None
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        self.codes.append(code)
        self.messages.append(result.error_message or "")
        if code is ErrorCode.NONE and acks != -1:
            self.unknown.add(value)  # one replica has it
        elif code is ErrorCode.NONE:
            assert result.base_offset not in self.acknowledged, f"offset {result.base_offset} was acknowledged twice"
            self.acknowledged[result.base_offset] = value
        elif code in UNKNOWN:
            self.unknown.add(value)
        else:
            self.refused.add(value)
        return code

    async def fetch(
        self, node_id: int, offset: int = 0, *, is_committed: bool = False, leader_epoch: int = -1
    ) -> Fetched:
        """Read from a node once, as a client that reads from leaders only; compare it with what was read before.

        Raises:
            UnreachableError: No response came.
        """
        part = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=2**20, current_leader_epoch=leader_epoch
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=int(is_committed),
            topics=[FetchTopic(topic=self.topic, partitions=[part])],
        )
        answer = await self.ask(node_id, ApiKey.FETCH, 10, request)
        data = answer.responses[0].partitions[0]
        values: dict[int, bytes] = {}
        markers: dict[int, int] = {}
        next_offset = offset
        for batch in iterate_batches(bytes(data.records or b""), whole=False):
            next_offset = batch.header.next_offset
            if batch.header.is_control:
                markers[batch.header.base_offset] = batch.header.producer_id
                continue
            for record in iterate_records(batch):
                if record.offset >= offset:
                    values[record.offset] = bytes(record.value or b"")
        assert next_offset <= max(data.high_watermark, offset), "a read beyond the high watermark"
        for found, value in values.items():
            assert self.seen.setdefault(found, value) == value, f"offset {found} has two values"
        return Fetched(
            code=ErrorCode(data.error_code),
            high_watermark=data.high_watermark,
            last_stable_offset=data.last_stable_offset,
            next_offset=next_offset,
            values=values,
            markers=markers,
        )

    async def read_all(self) -> dict[int, bytes]:
        """Read everything that is committed, from the leader, as soon as there is one that answers."""
        found: dict[int, bytes] = {}
        position = 0
        async with asyncio.timeout(60):
            while True:
                leader = await self.leader()
                if leader is not None:
                    try:
                        answer = await self.fetch(leader, position)
                    except UnreachableError:
                        continue
                    found |= answer.values
                    position = answer.next_offset
                    if answer.code is ErrorCode.NONE and position == answer.high_watermark:
                        return found
                await asyncio.sleep(0.1)

    # ------------------------------------------------------------------ work

    async def until_acknowledged(self, count: int = 5, *, acks: int = -1) -> None:
        """Send until more values are acknowledged."""
        wanted = self.codes.count(ErrorCode.NONE) + count
        async with asyncio.timeout(60):
            while self.codes.count(ErrorCode.NONE) < wanted:
                if await self.send(acks=acks) is not ErrorCode.NONE:
                    await asyncio.sleep(0.1)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send to the leader all the time, one value after another."""
        is_over = False

        async def run() -> None:
            while not is_over:
                await self.send()
                await asyncio.sleep(0.05)

        task = asyncio.create_task(run())
        yield
        is_over = True
        async with asyncio.timeout(30):
            await task

    # ------------------------------------------------------------------ the verdict

    async def check(self) -> dict[int, bytes]:
        """Compare what clients were told with what they can read, and with the logs of all brokers that run.

        Returns:
            What can be read.
        """
        found = await self.read_all()
        for offset, value in self.acknowledged.items():
            assert found.get(offset) == value, f"offset {offset} was acknowledged with {value!r}: {found.get(offset)!r}"
        sent = sorted(self.acknowledged)
        assert [int(self.acknowledged[offset]) for offset in sent] == sorted(
            int(value) for value in self.acknowledged.values()
        ), "one client's records are out of order"
        values = list(found.values())
        assert len(set(values)) == len(values), "a value that was sent once is there twice"
        assert not self.refused & set(values), "a value that was refused is there"
        assert set(values) <= set(self.acknowledged.values()) | self.unknown
        await self._check_replicas()
        return found

    async def _check_replicas(self) -> None:
        """The in-sync replicas have the same bytes."""
        await self.cluster.until(lambda: len(self._ends()) == 1)
        logs = {bytes(log) for log in (self._bytes_of(node) for node in self._in_sync()) if log is not None}
        assert len(logs) == 1, "in-sync replicas have different logs"

    def _in_sync(self) -> list[SimulatedNode]:
        found = [self.cluster.nodes[node_id] for node_id in self.cluster.state_of(self.topic).isr]
        return [node for node in found if node.is_up]

    def _ends(self) -> set[int]:
        return {replica_of(node, self.topic).log.log_end_offset for node in self._in_sync()}

    def _bytes_of(self, node: SimulatedNode) -> bytes:
        log = replica_of(node, self.topic).log

        def read() -> bytes:
            found, offset = b"", log.log_start_offset
            while offset < log.log_end_offset:
                data = log.read(offset, 2**20, isolation=Isolation.LOG_END).to_bytes()
                for batch in iterate_batches(data, whole=False):
                    offset = batch.header.next_offset
                    found += bytes(batch.data)
            return found

        return node.process.call(read)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def replica_of(node: SimulatedNode, topic: str = TOPIC) -> HostedReplica:
    replica = node.broker.replicas.topics[topic][0]
    assert isinstance(replica, HostedReplica)
    return replica


async def create_topic(
    account: Account,
    *,
    replicas: Sequence[int] = (1, 2, 3),
    configs: Mapping[str, str] | None = None,
    name: str | None = None,
) -> None:
    """Create the topic of an account with one partition on the brokers named, of which the first leads."""
    cluster = account.cluster
    topic = CreatableTopic(
        name=name or account.topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    answer = await account.ask(
        replicas[0], ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    )
    assert answer.topics[0].error_code == 0, answer
    running = [node for node in cluster.nodes.values() if node.is_up]
    await cluster.until(lambda: all(topic.name in node.core.image.topics for node in running))


async def until_in_sync(cluster: ClusterWorld, *node_ids: int, topic: str = TOPIC) -> None:
    await cluster.until(lambda: sorted(cluster.state_of(topic).isr) == sorted(node_ids), timeout_s=120)
