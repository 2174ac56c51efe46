"""How many batches a Produce request has is known before it is decoded."""

from __future__ import annotations

import random

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.hot import has_many_batches

VERSIONS = range(3, 14)
HEAD = b"head"


def some_request(rng: random.Random) -> tuple[ProduceRequest, int]:
    """Return a request and how many batches it has."""
    counts = [rng.randint(0, 6) for _ in range(rng.randint(0, 6))]
    request = ProduceRequest(
        transactional_id=rng.choice([None, "", "x" * rng.choice([1, 126, 127, 300])]),
        acks=rng.choice([-1, 0, 1]),
        timeout_ms=rng.randrange(2**31),
        topic_data=[
            TopicProduceData(
                name=rng.choice(["t", "topic-" + "x" * 130]),
                topic_id=rng.randbytes(16),
                partition_data=[
                    PartitionProduceData(index=index, records=rng.choice([None, b"", rng.randbytes(200)]))
                    for index in range(count)
                ],
            )
            for count in counts
        ],
    )
    return request, sum(counts)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_counted(version: int) -> None:
    rng = random.Random(version)
    for _ in range(100):
        request, count = some_request(rng)
        frame = memoryview(HEAD + bytes(codec.encode(request, version)))
        limit = max(count, len(request.topic_data))
        assert not has_many_batches(frame, version, len(HEAD), limit)
        if count:
            assert has_many_batches(frame, version, len(HEAD), count - 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_damaged_is_left_to_the_decoder(version: int) -> None:
    seed = 70 + version
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        request, _ = some_request(rng)
        data = bytearray(codec.encode(request, version))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        has_many_batches(memoryview(data)[: rng.randint(0, len(data))], version, 0, 4)  # it ends, and raises nothing


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_request_that_is_cut_short_counts_as_large(version: int) -> None:
    partitions = [PartitionProduceData(index=0, records=b"batch")]
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    data = memoryview(codec.encode(request, version))
    assert not has_many_batches(data, version, 0, 4)
    assert has_many_batches(data[:8], version, 0, 4)
