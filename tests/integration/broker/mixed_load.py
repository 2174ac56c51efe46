"""Clients of clusters with nodes of Apache Kafka and of this broker, and what tests of such clusters share."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus.cli import app
from typer.testing import CliRunner

from tests.integration.broker.mixed_nodes import DEADLINE_S, FEATURES, MixedNode
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
TOPIC = "rides"
PARTITIONS = 4
GROUPS = [f"group-{number}" for number in range(8)]
"""Consecutive names are spread over all partitions of `__consumer_offsets`, and so over both coordinators."""
PRODUCERS = [f"producer-{number}" for number in range(4)]

INTERNAL = ["__consumer_offsets", "__transaction_state"]
COORDINATOR_MOVES = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
}
"""Of all nodes."""


class Load:
    """Clients of the cluster, and what they were promised.

    Attributes:
        committed: Values that were acknowledged, by partition; those of aborted transactions are not among them.
        offsets: What each group has committed last, of partition 0.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.committed: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
        self.offsets: dict[str, int] = {}
        self._round = 0

    def create(self, topic: str, *, partitions: int = PARTITIONS, factor: int = 2, **configs: str) -> None:
        config = {name.replace("_", "."): value for name, value in configs.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=factor, config=config)
        self.admin.create_topics([new])[topic].result(DEADLINE_S)
        self.until_in_sync(topic, factor)

    def partitions(self, topic: str = TOPIC) -> dict[int, Any]:
        return dict(self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)

    def leaders(self, topic: str = TOPIC) -> set[int]:
        return {one.leader for one in self.partitions(topic).values()}

    def until_in_sync(self, topic: str, count: int) -> None:
        def are_in_sync() -> bool:
            found = self.partitions(topic)
            return bool(found) and all(len(one.isrs) == count and one.leader >= 0 for one in found.values())

        wait_for(f"{count} in-sync replicas of {topic}", are_in_sync, DEADLINE_S)

    def until_led_by(self, node_ids: set[int], topic: str) -> None:
        wait_for(f"{node_ids} to lead {topic}", lambda: self.leaders(topic) == node_ids, DEADLINE_S)

    def elect_preferred(self, topics: list[str]) -> None:
        every = [TopicPartition(topic, index) for topic in topics for index in self.partitions(topic)]
        self.admin.elect_leaders(ElectionType.PREFERRED, every).result(DEADLINE_S)

    def until_both_lead(self) -> None:
        """Give the leaderships, those of the coordinators included, to both of two nodes."""
        for topic in (TOPIC, *INTERNAL):
            self.until_in_sync(topic, 2)
        self.elect_preferred([TOPIC, *INTERNAL])
        for topic in (TOPIC, *INTERNAL):
            self.until_led_by({1, 2}, topic)

    def run(self) -> None:
        """Write, commit offsets and run transactions, through every coordinator."""
        self._round += 1
        self._produce()
        self._run_transactions()
        self._commit_offsets()

    def _produce(self) -> None:
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True})
        for number in range(100):
            value, index = f"plain-{self._round}-{number}", number % PARTITIONS
            producer.produce(TOPIC, value, partition=index, on_delivery=lambda error, _: errors.append(error))
            self.committed[index].append(value)
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 100

    def _run_transactions(self) -> None:
        def run(name: str) -> None:
            producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name})
            producer.init_transactions(DEADLINE_S)
            for outcome in ("aborted", "committed"):
                producer.begin_transaction()
                for index in range(PARTITIONS):
                    producer.produce(TOPIC, f"{outcome}-{self._round}-{name}", partition=index)
                # Without this the abort would drop the records before they are sent.
                assert producer.flush(DEADLINE_S) == 0
                (producer.abort_transaction if outcome == "aborted" else producer.commit_transaction)(DEADLINE_S)

        for name in PRODUCERS:
            run(name)
            for values in self.committed.values():
                values.append(f"committed-{self._round}-{name}")

    def _commit_offsets(self) -> None:
        for group in GROUPS:
            consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
            offset = self._round * 10 + len(self.offsets)
            commit(consumer, offset)
            consumer.close()
            self.offsets[group] = offset

    def check(self) -> None:
        """Everything that was promised is there, and what was aborted is not."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in self.committed])
        found: dict[int, list[str]] = {index: [] for index in self.committed}

        def has_all() -> bool:
            for message in consumer.consume(500, 0.2):
                assert not message.error(), message.error()
                found[message.partition() or 0].append((message.value() or b"").decode())
            return all(len(found[index]) >= len(values) for index, values in self.committed.items())

        try:
            wait_for("all records", has_all, DEADLINE_S)
        finally:
            consumer.close()
        assert found == self.committed
        for group, offset in self.offsets.items():
            reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
            assert [one.offset for one in reader.committed([TopicPartition(TOPIC, 0)], timeout=DEADLINE_S)] == [offset]
            reader.close()


def commit(consumer: Consumer, offset: int) -> None:
    """Commit an offset of partition 0, and try again while the coordinator moves."""
    commit_position(consumer, TopicPartition(TOPIC, 0, offset))


def commit_position(consumer: Consumer, position: TopicPartition) -> None:
    """Commit a position, and try again while the coordinator moves."""

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[position], asynchronous=False)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() not in COORDINATOR_MOVES:
                raise
            return False
        return True

    wait_for("the commit", is_committed, DEADLINE_S)


def hailbus(bootstrap: str, *words: str) -> str:
    """Run `hailbus` against a broker, and return what it prints."""
    result = CliRunner().invoke(app, [words[0], "--bootstrap-server", bootstrap, *words[1:]])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


def start(*nodes: MixedNode) -> None:
    for node in nodes:
        node.start()
    for node in nodes:
        node.until_started()


def format_all(*nodes: MixedNode) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.format(CLUSTER_ID, *(() if node.is_ours else FEATURES)), nodes))


STOPPED = {0, 143}
"""Exit status after SIGTERM: the JVM's says so."""


def leader_of_quorum(nodes: Sequence[MixedNode]) -> MixedNode:
    """Return the node of the active controller, once a majority has one."""
    found: list[MixedNode] = []

    def has_leader() -> bool:
        for node in nodes:
            if node.process is not None:
                result = CliRunner().invoke(
                    app, ["quorum", "--bootstrap-server", node.address, "describe", "--status", "--json"]
                )
                if result.exit_code == 0:
                    leader_id = json.loads(result.stdout)["LeaderId"]
                    found.extend(one for one in nodes if one.node_id == leader_id and one.process is not None)
        return bool(found)

    wait_for("a leader of the quorum", has_leader, DEADLINE_S)
    return found[0]
