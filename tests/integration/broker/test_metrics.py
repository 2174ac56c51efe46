"""What a broker tells Prometheus, and why a group was rebalanced."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from hailbus_broker.cli.client import BrokerClient
from hailbus_broker.coordinators.group.rebalances import TAG
from hailbus_broker.metrics import Metrics, MetricsServer
from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
from hailbus_broker.testing import RunningBroker, running_broker
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.broker.wire import led

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def watch(broker: RunningBroker, *, max_partitions: int = 1000) -> Metrics:
    assert broker.server.dispatcher is not None
    return Metrics(broker.server.dispatcher, max_partitions=max_partitions)


async def test_requests_logs_groups_and_rebalances_are_counted() -> None:
    async with running_broker() as broker:
        metrics = watch(broker)
        async with (
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
            AIOKafkaConsumer(
                "rides", bootstrap_servers=broker.bootstrap, group_id="surge", auto_offset_reset="earliest"
            ) as consumer,
        ):
            for _ in range(3):
                await producer.send_and_wait("rides", b"x" * 100)
            await consumer.getone()
            await consumer.commit()
            found = samples(metrics.text().decode())

            def one(name: str, **labels: str) -> float:
                return found[name, tuple(sorted(labels.items()))]

            assert one("hailbus_broker_request_seconds_count", api="Produce") == 3
            assert one("hailbus_broker_request_bytes_total", api="Produce") > 300
            assert one("hailbus_broker_response_bytes_total", api="Fetch") > 100
            assert one("kafka_brokers") == 1
            assert one("kafka_topic_partitions", topic="rides") == 1
            assert one("kafka_topic_partition_current_offset", topic="rides", partition="0") == 3
            assert one("kafka_topic_partition_oldest_offset", topic="rides", partition="0") == 0
            size = led(broker.node, "rides").log.size_bytes()
            assert one("hailbus_broker_log_size_bytes", topic="rides") == size
            assert one("hailbus_broker_under_replicated_partitions") == 0
            assert one("hailbus_broker_active_controller") == 1
            assert one("hailbus_broker_leader_partitions") == len(list(broker.node.replicas.leaders()))
            assert one("hailbus_broker_offline_log_directories") == 0
            assert one("hailbus_broker_groups", type="Classic", state="Stable") == 1
            assert one("kafka_consumergroup_members", consumergroup="surge") == 1
            assert one("kafka_consumergroup_lag_sum", consumergroup="surge", topic="rides") == 2
            assert one("hailbus_broker_group_rebalances_total", cause="member-joined") == 1
            broker.advance(60_000)
            after = samples(metrics.text().decode())
            assert after["hailbus_broker_groups", (("state", "Empty"), ("type", "Classic"))] == 1
            assert after["hailbus_broker_group_rebalances_total", (("cause", "session-expired"),)] == 1


async def test_bytes_that_go_from_file_to_socket_are_counted(tmp_path: Path) -> None:
    async with (
        running_broker(data_dir=str(tmp_path)) as broker,
        AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer,
    ):
        for _ in range(4):
            await producer.send_and_wait("rides", b"x" * 900_000)
    # After a restart the broker has none of it in memory.
    async with running_broker(data_dir=str(tmp_path)) as broker:
        metrics = watch(broker)
        async with AIOKafkaConsumer(
            "rides", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            for _ in range(4):
                await consumer.getone()
        found = samples(metrics.text().decode())
        assert found["hailbus_broker_response_bytes_total", (("api", "Fetch"),)] > 4 * 900_000


async def test_an_open_transaction_has_an_age() -> None:
    async with running_broker() as broker:
        metrics = watch(broker)
        async with AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id="t", transaction_timeout_ms=600_000
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("rides", b"x")
            broker.advance(90_000)
            found = samples(metrics.text().decode())
            assert 90 <= found["hailbus_broker_oldest_open_transaction_seconds", ()] < 100
            assert found["hailbus_broker_transactions", (("state", "Ongoing"),)] == 1
            where = (("partition", "0"), ("topic", "rides"))
            assert found["hailbus_broker_partition_last_stable_offset", where] == 0
            assert found["kafka_topic_partition_current_offset", where] == 1
            await producer.commit_transaction()
        found = samples(metrics.text().decode())
        assert found["hailbus_broker_oldest_open_transaction_seconds", ()] == 0
        assert found["hailbus_broker_partition_last_stable_offset", where] == 2


async def test_many_partitions_have_no_numbers_of_their_own() -> None:
    async with running_broker({"num.partitions": "4"}) as broker:
        metrics = watch(broker, max_partitions=3)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send_and_wait("rides", b"x")
        found = samples(metrics.text().decode())
        assert found["kafka_topic_partitions", (("topic", "rides"),)] == 4
        assert not [name for name, _ in found if name.startswith("kafka_topic_partition_")]


async def ask(address: str, request: bytes) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.splitlines()[0], body


async def test_http_answers_get_metrics_and_nothing_else() -> None:
    async with running_broker() as broker:
        server = MetricsServer(watch(broker))
        address = await server.start("127.0.0.1:0")
        try:
            status, body = await ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status == "HTTP/1.1 200 OK"
            assert samples(body)["kafka_brokers", ()] == 1
            assert (await ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n")) == ("HTTP/1.1 200 OK", "")
            assert (await ask(address, b"GET /secret HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 404 Not Found"
            assert (await ask(address, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == "HTTP/1.1 405 Method Not Allowed"
            assert (await ask(address, b"x" * 50_000))[0] == "HTTP/1.1 400 Bad Request"
        finally:
            await server.stop()


def serve(directory: Path, *settings: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("hailbus-broker")), "serve", "--listen", "127.0.0.1:0"]
    return subprocess.Popen(
        [*command, "--data-dir", str(directory), *(f"--set={setting}" for setting in settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_says_where_its_metrics_are(tmp_path: Path) -> None:
    with serve(tmp_path, "metrics.listen=127.0.0.1:0") as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("bootstrap=127.0.0.1:")
            url = process.stdout.readline().strip().removeprefix("metrics=http://")
            status, body = asyncio.run(ask(url.removesuffix("/metrics"), b"GET /metrics HTTP/1.1\r\n\r\n"))
            assert status == "HTTP/1.1 200 OK"
            assert "hailbus_broker_connections 0.0" in body
        finally:
            process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("9308", "is not HOST:PORT"), ("127.0.0.1:99999", "is not HOST:PORT"), ("192.0.2.1:9", "choose another")],
)
def test_an_address_that_cannot_be_is_one_sentence(tmp_path: Path, value: str, sentence: str) -> None:
    with serve(tmp_path, f"metrics.listen={value}") as process:
        _, text = process.communicate(timeout=30)
        assert (process.returncode, sentence in text) == (2, True), text
        assert "Traceback" not in text


async def test_a_described_group_tells_why_it_was_rebalanced() -> None:
    def describe(version: int) -> Any:
        with BrokerClient(broker.bootstrap) as client:
            answer: Any = client.ask(DescribeGroupsRequest(groups=["surge"]), version=version)
        return answer.groups[0]

    async with running_broker() as broker:
        async with AIOKafkaConsumer("rides", bootstrap_servers=broker.bootstrap, group_id="surge") as consumer:
            await consumer.getmany(timeout_ms=100)
        group = await asyncio.to_thread(describe, 5)
        history = json.loads(group.unknown_tags[TAG])
        assert [(entry["cause"], entry["members"]) for entry in history] == [("member-joined", 1), ("member-left", 0)]
        assert history[0]["at_ms"] <= history[1]["at_ms"]
        assert "left" in history[1]["reason"]
        assert (await asyncio.to_thread(describe, 4)).unknown_tags is None
