"""The broker inside a test: faults on demand, a clock to turn, and the same engine."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer
from hailbus_broker.testing import ApiKey, ErrorCode, Fault, ThreadedBroker, running_broker

from tests.conformance.conftest import ROOT
from tests.conformance.wire import Wire
from tests.support import wait_for


async def test_it_starts_with_little_work() -> None:
    """A test can afford a broker of its own: Python makes about 1,000 calls for it."""
    async with running_broker():
        pass  # the first one loads the handlers
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        async with running_broker():
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
    assert 0 < calls["call"] < 5_000, calls


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


async def test_a_lost_request_is_sent_again() -> None:
    async with (
        running_broker() as broker,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer,
    ):
        assert (await producer.send_and_wait("rides", b"first")).offset == 0
        fault = broker.fail(Fault(api=ApiKey.PRODUCE, drops_request=True, times=2))
        assert (await producer.send_and_wait("rides", b"second")).offset == 1
    assert fault.hit_count == 2


async def test_a_delayed_request_is_overtaken_by_those_of_other_clients() -> None:
    async with (
        running_broker() as broker,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap, client_id="slow") as slow,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap, client_id="fast") as fast,
    ):
        await fast.send_and_wait("rides", b"0")
        fault = broker.fail(Fault(api=ApiKey.PRODUCE, delay_s=0.2, client_id="slow"))
        delayed = asyncio.create_task(slow.send_and_wait("rides", b"2"))
        while not fault.hit_count:  # noqa: ASYNC110 - the broker counts, it sends no event
            await asyncio.sleep(0.001)
        assert (await fast.send_and_wait("rides", b"1")).offset == 1
        assert not delayed.done()
        assert (await delayed).offset == 2


def test_the_clock_ends_transactions_and_retention_without_a_wait() -> None:
    settings = {"log.retention.check.interval.ms": "1000", "log.retention.ms": "3600000"}
    with ThreadedBroker(settings) as broker:
        wire = Wire(broker.bootstrap)
        try:
            answer = wire.new_producer("copier", timeout_ms=60_000)
            asked = [{"name": "rides", "partitions": [0]}]
            wire.call(ApiKey.METADATA, 4, topics=[{"name": "rides"}], allow_auto_topic_creation=True)
            wire.call(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id="copier",
                v3_and_below_producer_id=answer.producer_id,
                v3_and_below_producer_epoch=answer.producer_epoch,
                v3_and_below_topics=asked,
            )

            def state() -> str:
                found = wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["copier"])
                return str(found.transaction_states[0].transaction_state)

            wire.write("rides", b"old")
            assert state() == "Ongoing"
            broker.advance(60_001)
            wait_for("the transaction is aborted", lambda: state() == "CompleteAbort", 5)
            assert wire.list_offset("rides", -2).offset == 0
            broker.advance(3_600_001)
            wait_for("the old record is gone", lambda: wire.list_offset("rides", -2).offset > 0, 5)
        finally:
            wire.close()


def test_the_ten_lines_of_the_docs(tmp_path: Path) -> None:
    shop = re.findall(r"```python\n(# shop.py.*?)```", (ROOT / "docs/sdk/quickstart.md").read_text(), re.DOTALL)
    test = re.findall(r"```python\n(# test_till.py.*?)```", (ROOT / "docs/broker/in-tests.md").read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(shop[0])
    (tmp_path / "test_till.py").write_text(test[0])
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "1 passed" in done.stdout, done.stdout


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
        assert broker.call(lambda running: len(running.node.replicas.topics["rides"])) == 3


async def test_data_survives_when_the_folder_is_kept(tmp_path: object) -> None:
    for expected in range(2):
        async with (
            running_broker(data_dir=str(tmp_path)) as broker,
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
        ):
            assert (await producer.send_and_wait("rides", b"x")).offset == expected
