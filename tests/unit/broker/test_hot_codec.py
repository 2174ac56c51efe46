"""The hand-written Produce codec says what the generated one says."""

from __future__ import annotations

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.definitions.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from hailbus_broker.protocol.hot import SingleProduce, read_single_produce, write_single_produced

VERSIONS = range(3, 14)
RECORDS = bytes(range(256)) * 3
TOPIC_ID = b"0123456789abcdef"


def request_with(
    version: int, *partitions: int, topics: int = 1, transactional_id: str | None = None, name: str = "rides"
) -> bytes:
    data = [PartitionProduceData(index=index, records=RECORDS) for index in partitions]
    topic = TopicProduceData(name=name, topic_id=TOPIC_ID, partition_data=data)
    message = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1_500, topic_data=[topic] * topics)
    return bytes(codec.encode(message, version, bytearray(b"head")))


@pytest.mark.parametrize("version", VERSIONS)
def test_one_partition_is_read(version: int) -> None:
    usual = read_single_produce(memoryview(request_with(version, 3)), version, 4)
    assert usual is not None
    single, records = usual
    topic = TOPIC_ID if version >= 13 else b"rides"
    assert (single.acks, single.topic, single.partition, bytes(records)) == (-1, topic, 3, RECORDS)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_else_is_left_to_the_generated_codec(version: int) -> None:
    for frame in (
        request_with(version),
        request_with(version, 1, 2),
        request_with(version, 1, topics=2),
        request_with(version, 1, transactional_id="t"),
        request_with(version, 1)[:-1],
        request_with(version, 1) + b"\x00",
        b"",
    ):
        assert read_single_produce(memoryview(frame), version, 4) is None


@pytest.mark.parametrize("version", range(3, 13))
def test_a_name_that_no_topic_has_is_left_to_the_generated_codec(version: int) -> None:
    assert read_single_produce(memoryview(request_with(version, 1, name="räder")), version, 4) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_refused(version: int) -> None:
    frame = request_with(version, 1)
    for end in range(len(frame)):
        assert read_single_produce(memoryview(frame[:end]), version, 4) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_generated_one(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else b"rides"
    single = SingleProduce(-1, topic, 7, 30_000)
    out = bytearray()
    write_single_produced(out, version, single, 41, -1, 5)
    result = PartitionProduceResponse(index=7, base_offset=41, log_append_time_ms=-1, log_start_offset=5)
    expected = ProduceResponse(
        responses=[TopicProduceResponse(name="rides", topic_id=TOPIC_ID, partition_responses=[result])]
    )
    assert out == codec.encode(expected, version)
