"""What no client should send, to all brokers: an error code or a closed connection, and the broker goes on."""

from __future__ import annotations

import struct

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, request_class
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.errors import ErrorCode

from tests.conformance.conftest import NODES, Cluster
from tests.conformance.wire import CORRELATION_ID, Wire, batch_of, wire_to


def assert_serves(cluster: Cluster) -> None:
    with wire_to(cluster) as wire:
        assert len(wire.call(ApiKey.METADATA, 4, topics=[]).brokers) == NODES


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
        wire.send_frame(struct.pack(">hhih", 18, 5, CORRELATION_ID, -1) + b"\x00")
        answer = wire.answer(ApiKey.API_VERSIONS, 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        wire.request(ApiKey.API_VERSIONS, 0, request_class(ApiKey.API_VERSIONS)())
        assert wire.answer(ApiKey.API_VERSIONS, 0).error_code == 0


def test_a_request_in_pieces_is_put_together(cluster: Cluster) -> None:
    frame = codec.encode(
        RequestHeader(request_api_key=3, request_api_version=4, correlation_id=CORRELATION_ID, client_id="slow"), 1
    )
    codec.encode(MetadataRequest(topics=[]), 4, frame)
    data = struct.pack(">i", len(frame)) + frame
    with wire_to(cluster) as wire:
        for byte in data:
            wire.send(bytes([byte]))
        assert len(wire.answer(ApiKey.METADATA, 4).brokers) == NODES


def test_pipelined_requests_are_answered_in_order(cluster: Cluster) -> None:
    with wire_to(cluster) as wire:
        frames = b""
        for number in range(300):
            header = RequestHeader(
                request_api_key=3, request_api_version=4, correlation_id=number, client_id="pipeline"
            )
            frame = codec.encode(MetadataRequest(topics=[]), 4, codec.encode(header, 1))
            frames += struct.pack(">i", len(frame)) + frame
        wire.send(frames)
        for number in range(300):
            answer = wire.read(struct.unpack(">i", wire.read(4))[0])
            assert struct.unpack_from(">i", answer) == (number,)


def test_a_batch_with_a_wrong_crc_is_refused(wire: Wire, topic: str) -> None:
    records = batch_of(b"v")
    records[-1] ^= 1
    assert wire.produce(topic, records).error_code == ErrorCode.CORRUPT_MESSAGE
    assert wire.produce(topic, batch_of(b"v")).base_offset == 0


def test_two_batches_for_a_partition_are_refused(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch_of(b"v") + batch_of(b"w")).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_above_the_limit_is_refused(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch_of(bytes(1_100_000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_acks_that_do_not_exist_are_refused(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, batch_of(b"v"), acks=5).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_unknown_topic_is_an_error_code(wire: Wire) -> None:
    assert wire.produce("no-such-topic", batch_of(b"v")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
