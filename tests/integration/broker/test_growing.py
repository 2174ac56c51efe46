"""A broker that began alone becomes a cluster of three, with everything that it held."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hailbus_broker.client import Client
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.update_features_request import FeatureUpdateKey, UpdateFeaturesRequest
from hailbus_broker.protocol.errors import ErrorCode

from tests.integration.broker.test_dynamic_quorum import DEADLINE_S, Nodes, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def send(bootstrap: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    errors: list[KafkaError | None] = []
    for value in values:
        producer.produce("rides", str(value), partition=value % 3, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None] * len(values)


def transact(producer: Producer, value: str, *, is_committed: bool) -> None:
    producer.begin_transaction()
    producer.produce("fares", value)
    producer.flush(DEADLINE_S)
    if is_committed:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)


def transactional(bootstrap: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "fares"})
    producer.init_transactions(DEADLINE_S)
    return producer


def read(bootstrap: str, group: str, topic: str, count: int) -> list[str]:
    """Read so many committed values of a topic as a member of a group, and commit their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: dict[tuple[int, int], str] = {}

    def has_read_all() -> bool:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            found[partition, offset] = (message.value() or b"").decode()
        return len(found) >= count

    until(has_read_all)
    ends: dict[int, int] = {}
    for partition, offset in found:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return list(found.values())


def name_the_voters_in_the_log(bootstrap: str) -> None:
    """Do what `kafka-features upgrade --feature kraft.version=1` does."""

    async def ask() -> ErrorCode:
        client = Client(bootstrap, "test", timeout_s=DEADLINE_S)
        update = FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        request = UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[update])
        try:
            response = await client.ask(ApiKey.UPDATE_FEATURES, 1, request)
        finally:
            client.close()
        return ErrorCode(response.error_code)

    assert asyncio.run(ask()) is ErrorCode.NONE


def spread(nodes: Nodes) -> None:
    """Give every partition a replica on each node."""
    topics = AdminClient({"bootstrap.servers": nodes.bootstraps[1]}).list_topics(timeout=DEADLINE_S).topics
    assert set(topics) == {"rides", "fares", *INTERNAL}
    found = [(topic, index) for topic, metadata in topics.items() for index in metadata.partitions]
    replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    partitions = [{"topic": topic, "partition": index, "replicas": replicas[index % 3]} for topic, index in found]
    plan = nodes.folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    nodes.hailbus("reassign", "--execute", "--reassignment-json-file", str(plan))
    until(
        lambda: (
            nodes.hailbus("reassign", "--verify", "--reassignment-json-file", str(plan)).count("is completed")
            == len(partitions)
        )
    )


def test_a_single_broker_grows_to_three_with_its_records_offsets_and_transactions(nodes: Nodes) -> None:
    alone = ("--data-dir", str(nodes.folder / "data1"), "--listen", f"127.0.0.1:{nodes.ports[0]}")
    properties = nodes.properties(1).read_text()
    nodes.processes[1] = nodes.command("serve", *alone)
    nodes.wait_for(1)
    nodes.hailbus("topics", "--create", "--topic", "rides", "--partitions", "3", node_id=1)
    nodes.hailbus("topics", "--create", "--topic", "fares", "--partitions", "1", node_id=1)
    send(nodes.bootstraps[1], range(30))
    assert len(read(nodes.bootstraps[1], "readers", "rides", 30)) == 30
    send(nodes.bootstraps[1], range(30, 60))
    producer = transactional(nodes.bootstraps[1])
    transact(producer, "committed", is_committed=True)
    transact(producer, "aborted", is_committed=False)
    producer.begin_transaction()
    producer.produce("fares", "open")
    producer.flush(DEADLINE_S)
    del producer
    nodes.stop_one(1)

    # A cluster of one: the configuration names the voter, then the log does.
    nodes.properties(1).write_text(
        re.sub(
            r"controller.quorum.bootstrap.servers=.*",
            f"controller.quorum.voters=1@127.0.0.1:{nodes.ports[3]}",
            properties,
        )
    )
    nodes.start(1)
    name_the_voters_in_the_log(nodes.bootstraps[1])
    nodes.stop_one(1)
    nodes.properties(1).write_text(properties)
    nodes.start(1)

    # Two more nodes join it.
    nodes.cluster_id = json.loads(nodes.hailbus("quorum", "describe", "--status", "--json", node_id=1))["ClusterId"]
    for node_id in (2, 3):
        nodes.format(node_id, "--no-initial-controllers")
    nodes.start(2, 3)
    for node_id in (2, 3):
        nodes.hailbus("quorum", "add-controller", "--command-config", str(nodes.properties(node_id)))
    assert list(nodes.voters()) == [1, 2, 3]
    spread(nodes)

    # Everything is on the others.
    nodes.kill(1)
    others = f"{nodes.bootstraps[2]},{nodes.bootstraps[3]}"
    assert sorted(read(others, "readers", "rides", 30), key=int) == [str(value) for value in range(30, 60)]
    assert sorted(read(others, "anew", "rides", 60), key=int) == [str(value) for value in range(60)]
    again = transactional(others)
    transact(again, "after", is_committed=True)
    assert read(others, "fares", "fares", 2) == ["committed", "after"]
