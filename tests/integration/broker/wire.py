"""A broker in this event loop on a disk of the test's choice, and a client that speaks the protocol itself."""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, response_class
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.runtime.machine import Machine
from hailbus_broker.runtime.node import Node
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.server.listener import Server
from hailbus_broker.testing.broker import TEST_SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hailbus_broker.log import Disk
    from hailbus_broker.protocol.schema import Message


@asynccontextmanager
async def server_on(disk: Disk, directory: str, **settings: str) -> AsyncIterator[Server]:
    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", **TEST_SETTINGS, **settings, "log.dirs": directory})
    server = Server(Node(config, machine=Machine(random=random.Random(1), disk=disk)))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait for something that nothing announces."""
    try:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not come") from None


def led(node: Node, topic: str, index: int = 0) -> LeaderReplica:
    """The replica that leads a partition."""
    replica = node.replicas.leader(topic, index)
    assert isinstance(replica, LeaderReplica), replica
    return replica


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.client_id = "wire"

    @classmethod
    async def to(cls, bootstrap: str) -> Self:
        host, port = bootstrap.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    def close(self) -> None:
        self.writer.close()

    def send(self, key: ApiKey, version: int, message: Message) -> None:
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=7, client_id=self.client_id
        )
        frame = codec.encode(message, version, codec.encode(header, header_versions(key, version)[0]))
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, key: ApiKey, version: int) -> Any:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(size)
        _, position = codec.decode_with_end(ResponseHeader, frame, header_versions(key, version)[1])
        response, end = codec.decode_with_end(response_class(key), frame, version, position=position)
        assert end == len(frame), "the answer is longer or shorter than its length says"
        return response

    async def ask(self, key: ApiKey, version: int, message: Message) -> Any:
        self.send(key, version, message)
        return await asyncio.wait_for(self.receive(key, version), 30)

    async def create(self, topic: str, partitions: int = 1) -> ErrorCode:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)], timeout_ms=10_000
        )
        response = await self.ask(ApiKey.CREATE_TOPICS, 5, request)
        return ErrorCode(response.topics[0].error_code)

    @staticmethod
    def produce_request(topic: str, values: Sequence[bytes], partition: int = 0) -> tuple[ApiKey, int, ProduceRequest]:
        """One batch, for `send`."""
        batch = build_batch([RecordToWrite(key=None, value=value, timestamp=1) for value in values])
        data = [PartitionProduceData(index=partition, records=bytes(batch))]
        request = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        return ApiKey.PRODUCE, 9, request

    async def produced(self) -> tuple[ErrorCode, int]:
        """The answer to `produce_request`: its code and base offset."""
        response = await asyncio.wait_for(self.receive(ApiKey.PRODUCE, 9), 30)
        result = response.responses[0].partition_responses[0]
        return ErrorCode(result.error_code), result.base_offset

    async def produce(self, topic: str, values: Sequence[bytes], partition: int = 0) -> tuple[ErrorCode, int]:
        """One batch; the answer's code and base offset."""
        self.send(*self.produce_request(topic, values, partition))
        return await self.produced()

    @staticmethod
    def fetch_request(wanted: Sequence[tuple[str, int, int]], **limits: int) -> FetchRequest:
        """What is wanted: topics, partitions, offsets."""
        topics = [
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        partition_max_bytes=limits.get("partition_max_bytes", 2**30),
                    )
                ],
            )
            for topic, partition, offset in wanted
        ]
        return FetchRequest(
            max_wait_ms=limits.get("max_wait_ms", 0),
            min_bytes=1,
            max_bytes=limits.get("max_bytes", 2**30),
            topics=topics,
        )

    async def fetch(self, topic: str, offset: int, partition: int = 0, **limits: int) -> tuple[ErrorCode, list[bytes]]:
        """The answer's code and the values of the whole batches in it."""
        response = await self.ask(ApiKey.FETCH, 11, self.fetch_request([(topic, partition, offset)], **limits))
        result = response.responses[0].partitions[0]
        return ErrorCode(result.error_code), values_of(result.records)


def values_of(records: bytes | memoryview | None) -> list[bytes]:
    """The values of all whole batches."""
    data = memoryview(bytes(records or b""))
    values: list[bytes] = []
    while len(data) >= 12 and len(data) >= (size := 12 + int.from_bytes(data[8:12], "big")):
        for batch in iterate_batches(data[:size]):
            batch.check_crc()
            values += [bytes(record.value or b"") for record in iterate_records(batch)]
        data = data[size:]
    return values
