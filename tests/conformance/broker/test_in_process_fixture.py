"""The broker inside a test: faults on demand, a clock to turn, and the same engine."""

from __future__ import annotations

import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer
from hailbus_broker.testing import ApiKey, ErrorCode, Fault, ThreadedBroker, running_broker


async def test_it_starts_in_milliseconds() -> None:
    async with running_broker():
        pass  # the first one loads the handlers
    before = time.process_time()
    async with running_broker():
        took_s = time.process_time() - before
    assert took_s < 0.05, took_s


async def test_a_lost_answer_is_no_duplicate() -> None:
    async with (
        running_broker() as broker,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer,
    ):
        assert (await producer.send_and_wait("rides", b"first")).offset == 0
        fault = broker.fail(Fault(api=ApiKey.PRODUCE, drops_answer=True))
        second = await producer.send_and_wait("rides", b"second")
        third = await producer.send_and_wait("rides", b"third")
    assert fault.hit_count == 1
    assert (second.offset, third.offset) == (1, 2)


async def test_an_error_that_passes_is_retried_by_the_client() -> None:
    async with (
        running_broker() as broker,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
    ):
        fault = broker.fail(Fault(api=ApiKey.PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2))
        assert (await producer.send_and_wait("rides", b"first")).offset == 0
    assert fault.hit_count == 2


async def test_a_silent_member_is_out_when_the_clock_says_so() -> None:
    async with (
        running_broker() as broker,
        AIOKafkaConsumer(
            "rides", bootstrap_servers=broker.bootstrap, group_id="surge", session_timeout_ms=30_000
        ) as consumer,
    ):
        await consumer.getmany(timeout_ms=200)
        (shard,) = broker.node.groups.shards()
        assert len(shard.groups["surge"].members) == 1
        broker.advance(30_001)
        assert shard.groups["surge"].members == {}
        assert "silent" in shard.groups["surge"].rebalances.last_reason


def test_blocking_clients_have_it_in_a_thread() -> None:
    with ThreadedBroker({"num.partitions": "3"}) as broker:
        offsets = []
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(
            "rides", b"first", partition=2, on_delivery=lambda _, message: offsets.append(message.offset())
        )
        assert producer.flush(20) == 0
        assert offsets == [0]
        assert broker.call(lambda running: len(running.node.partitions["rides"])) == 3


async def test_data_survives_when_the_folder_is_kept(tmp_path: object) -> None:
    for expected in range(2):
        async with (
            running_broker(data_dir=str(tmp_path)) as broker,
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
        ):
            assert (await producer.send_and_wait("rides", b"x")).offset == expected
