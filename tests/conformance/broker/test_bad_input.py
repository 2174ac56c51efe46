"""What no client should send, to both brokers: an error code or a closed connection, and the broker goes on."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, request_class, response_class
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import Message
from hailbus_broker.records import RecordToWrite, build_batch

from tests.conformance.conftest import Cluster


class Wire:
    """A connection on which anything can be said."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send(struct.pack(">i", len(frame)) + frame)

    def request(self, key: ApiKey, version: int, message: Message) -> None:
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="wire")
        out = codec.encode(header, header_versions(key, version)[0])
        self.send_frame(bytes(codec.encode(message, version, out)))

    def answer(self, key: ApiKey, version: int) -> Any:
        frame = self.read(struct.unpack(">i", self.read(4))[0])
        header, position = codec.decode_with_end(ResponseHeader, frame, header_versions(key, version)[1])
        assert header.correlation_id == 7
        return codec.decode(response_class(key), frame, version, position=position)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    def is_closed_by_peer(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@contextmanager
def wire_to(cluster: Cluster) -> Iterator[Wire]:
    wire = Wire(cluster.bootstrap)
    try:
        yield wire
    finally:
        wire.socket.close()


def assert_serves(cluster: Cluster) -> None:
    with wire_to(cluster) as wire:
        wire.request(ApiKey.METADATA, 4, MetadataRequest(topics=[]))
        assert len(wire.answer(ApiKey.METADATA, 4).brokers) == 1


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    name = f"bad-input-{time.time_ns()}"
    with wire_to(cluster) as wire:
        wire.request(
            ApiKey.CREATE_TOPICS,
            4,
            CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)]),
        )
        assert wire.answer(ApiKey.CREATE_TOPICS, 4).topics[0].error_code == 0
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with wire_to(cluster) as wire:
            wire.request(ApiKey.METADATA, 4, MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
            (found,) = wire.answer(ApiKey.METADATA, 4).topics
        if found.error_code == 0 and found.partitions[0].leader_id >= 0:
            return name
    raise AssertionError(f"{name} has no leader")


def batch() -> bytearray:
    return build_batch([RecordToWrite(key=b"k", value=b"v", timestamp=time.time_ns() // 1_000_000)])


def produce(cluster: Cluster, topic: str, records: bytes, *, acks: int = -1) -> int:
    data = [PartitionProduceData(index=0, records=records)]
    with wire_to(cluster) as wire:
        wire.request(
            ApiKey.PRODUCE,
            8,
            ProduceRequest(
                acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            ),
        )
        code: int = wire.answer(ApiKey.PRODUCE, 8).responses[0].partition_responses[0].error_code
    return code


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(bytes.fromhex("16030100c0010000bc0303") + bytes(200), id="tls"),
        pytest.param(struct.pack(">i", -5) + b"xxxx", id="negative length"),
        pytest.param(struct.pack(">i", 2**31 - 1) + b"xxxx", id="oversized"),
        pytest.param(struct.pack(">i", 4) + b"\x00\x03\x00\x01", id="no header"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="unknown api"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="unknown version"),
        pytest.param(struct.pack(">ihhihi", 14, 3, 1, 1, -1, 1_000_000), id="array longer than the request"),
    ],
)
def test_what_is_no_request_closes_the_connection(cluster: Cluster, data: bytes) -> None:
    with wire_to(cluster) as wire:
        wire.send(data)
        assert wire.is_closed_by_peer()
    assert_serves(cluster)


def test_a_version_of_api_versions_from_the_future_is_answered_in_the_first_format(cluster: Cluster) -> None:
    with wire_to(cluster) as wire:
        wire.send_frame(struct.pack(">hhih", 18, 5, 7, -1) + b"\x00")
        answer = wire.answer(ApiKey.API_VERSIONS, 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        wire.request(ApiKey.API_VERSIONS, 0, request_class(ApiKey.API_VERSIONS)())
        assert wire.answer(ApiKey.API_VERSIONS, 0).error_code == 0


def test_a_request_in_pieces_is_put_together(cluster: Cluster) -> None:
    frame = codec.encode(RequestHeader(request_api_key=3, request_api_version=4, correlation_id=7, client_id="slow"), 1)
    codec.encode(MetadataRequest(topics=[]), 4, frame)
    data = struct.pack(">i", len(frame)) + frame
    with wire_to(cluster) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            wire.send(bytes([byte]))
        assert len(wire.answer(ApiKey.METADATA, 4).brokers) == 1


def test_pipelined_requests_are_answered_in_order(cluster: Cluster) -> None:
    with wire_to(cluster) as wire:
        frames = b""
        for number in range(600):
            header = RequestHeader(
                request_api_key=3, request_api_version=4, correlation_id=number, client_id="pipeline"
            )
            frame = codec.encode(MetadataRequest(topics=[]), 4, codec.encode(header, 1))
            frames += struct.pack(">i", len(frame)) + frame
        wire.send(frames)
        for number in range(600):
            answer = wire.read(struct.unpack(">i", wire.read(4))[0])
            assert struct.unpack_from(">i", answer) == (number,)


def test_a_batch_with_a_wrong_crc_is_refused(cluster: Cluster, topic: str) -> None:
    records = batch()
    records[-1] ^= 1
    assert produce(cluster, topic, bytes(records)) == ErrorCode.CORRUPT_MESSAGE
    assert produce(cluster, topic, bytes(batch())) == ErrorCode.NONE


def test_two_batches_for_a_partition_are_refused(cluster: Cluster, topic: str) -> None:
    assert produce(cluster, topic, bytes(batch() + batch())) == ErrorCode.INVALID_RECORD


def test_a_batch_above_the_limit_is_refused(cluster: Cluster, topic: str) -> None:
    records = build_batch([RecordToWrite(key=None, value=bytes(1_100_000), timestamp=0)])
    assert produce(cluster, topic, bytes(records)) == ErrorCode.MESSAGE_TOO_LARGE


def test_acks_that_do_not_exist_are_refused(cluster: Cluster, topic: str) -> None:
    assert produce(cluster, topic, bytes(batch()), acks=5) == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_unknown_topic_is_an_error_code(cluster: Cluster) -> None:
    assert produce(cluster, "no-such-topic", bytes(batch())) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
