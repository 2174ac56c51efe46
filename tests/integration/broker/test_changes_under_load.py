"""A cluster of real processes that changes while clients work; no client sees an error that it does not retry."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus.cli import app
from hailbus_broker.protocol.api import ApiKey
from typer.testing import CliRunner

from tests.conformance.wire import Wire
from tests.history.cluster import Cluster, Place, cluster, loopback_places, restart_one_by_one
from tests.support import free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = "rides"
PARTITIONS = 3
PERIOD_S = 0.02


class Load:
    """A producer, a transactional producer and a member of a group, and every error that they were shown."""

    def __init__(self, bootstrap: str) -> None:
        self.common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.stopped = threading.Event()
        self.errors: list[str] = []
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.committed: list[int] = []
        self.read: dict[int, list[int]] = defaultdict(list)
        self.last = dict.fromkeys(("acknowledged", "committed", "read"), time.monotonic())
        self.longest_s = dict.fromkeys(self.last, 0.0)
        self.producers = [threading.Thread(target=one) for one in (self.produce, self.transact)]
        self.consumer = threading.Thread(target=self.consume)

    def noted(self, error: KafkaError, what: str) -> None:
        """Note an error, unless it only says that a connection was lost and is made again."""
        if error.fatal() or error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
            self.errors.append(f"{what}: {error}")

    def done(self, what: str) -> None:
        """Note that something was achieved, and how long nothing was."""
        now = time.monotonic()
        self.longest_s[what] = max(self.longest_s[what], now - self.last[what])
        self.last[what] = now

    def settings(self, what: str) -> dict[str, object]:
        return {**self.common, "error_cb": functools.partial(self.noted, what=what)}

    def produce(self) -> None:
        producer = Producer({**self.settings("producer"), "enable.idempotence": True, "linger.ms": 0})

        def done(error: KafkaError | None, message: Message, value: int) -> None:
            partition = message.partition()
            if error is not None:
                self.errors.append(f"{value} was not delivered: {error}")
            elif partition is not None:
                self.sent[partition].append(value)
                self.done("acknowledged")

        value = 0
        while not self.stopped.wait(PERIOD_S):
            value += 1
            delivered = functools.partial(done, value=value)
            producer.produce(TOPIC, str(value), partition=value % PARTITIONS, on_delivery=delivered)
            producer.poll(0)
        if producer.flush(60):
            self.errors.append("sends were not answered")

    def transact(self) -> None:
        producer = Producer({**self.settings("transactional producer"), "transactional.id": "till", "linger.ms": 0})
        self.step(lambda: producer.init_transactions(30))
        value = 1_000_000
        while not self.stopped.wait(10 * PERIOD_S):
            producer.begin_transaction()
            values = range(value, value + PARTITIONS)
            for one in values:
                producer.produce(TOPIC, str(one), partition=one % PARTITIONS)
            value += PARTITIONS
            if not self.step(lambda: producer.commit_transaction(30)):
                return
            self.committed += values
            self.done("committed")

    def step(self, call: Callable[[], object]) -> bool:
        """Make a call again for as long as librdkafka says that it can be repeated, as its documentation asks for."""
        while True:
            try:
                call()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable():
                    self.errors.append(f"transaction: {error}")
                    return False
            else:
                return True

    def consume(self) -> None:
        group = {"group.id": "board", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = Consumer({**self.settings("consumer"), **group})
        consumer.subscribe([TOPIC])
        while any(thread.is_alive() for thread in self.producers) or not self.has_read_all():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self.noted(error, "consumer's poll")
            elif (partition := message.partition()) is not None:
                self.read[partition].append(int(message.value() or b""))
                self.done("read")
        consumer.close()

    def has_read_all(self) -> bool:
        sent = {*self.committed, *(value for values in self.sent.values() for value in values)}
        return bool(self.errors) or sent <= {value for values in self.read.values() for value in values}

    def count(self) -> int:
        return sum(map(len, self.sent.values()))

    def goes_on(self) -> None:
        """Wait until more is acknowledged, committed and read."""
        sent, committed, read = self.count(), len(self.committed), sum(map(len, self.read.values()))
        wait_for(
            "the load goes on",
            lambda: (
                bool(self.errors)
                or (
                    self.count() > sent and len(self.committed) > committed and sum(map(len, self.read.values())) > read
                )
            ),
            120,
        )


@contextlib.contextmanager
def load(running: Cluster) -> Iterator[Load]:
    """Clients that work until the block ends; then all they sent must have been read once, in its order."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
    made = Load(running.bootstrap)
    for thread in (*made.producers, made.consumer):
        thread.start()
    try:
        made.goes_on()
        yield made
        made.goes_on()
    finally:
        made.stopped.set()
        for thread in (*made.producers, made.consumer):
            thread.join(120)
    print("longest time in which nothing was", {what: f"{took:.1f} s" for what, took in made.longest_s.items()})
    assert made.errors == []
    assert not made.consumer.is_alive(), "the consumer has not read everything"
    for partition in range(PARTITIONS):
        single = [value for value in made.read[partition] if value < 1_000_000]
        assert single == made.sent[partition], f"partition {partition}"
        together = [value for value in made.read[partition] if value >= 1_000_000]
        assert together == [value for value in made.committed if value % PARTITIONS == partition]


def test_a_rolling_restart_shows_clients_no_error(tmp_path: Path) -> None:
    with cluster("hailbus", tmp_path, loopback_places(3)) as running, load(running) as work:
        restart_one_by_one(running, random.Random(1))
        work.goes_on()
        assert [node.lives for node in running.nodes.values()] == [2, 2, 2]


def reassign(running: Cluster, directory: Path, brokers: str, *topics: str) -> None:
    """Move all partitions of topics to these brokers by our command, and wait until they are there."""
    runner = CliRunner()
    chosen, plan = directory / "topics.json", directory / "plan.json"
    chosen.write_text(json.dumps({"version": 1, "topics": [{"topic": topic} for topic in topics]}))

    def run(*words: str | Path) -> str:
        done = runner.invoke(app, ["reassign", "--bootstrap-server", running.bootstrap, *map(str, words)])
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.stdout

    proposed = run("--generate", "--topics-to-move-json-file", chosen, "--broker-list", brokers)
    plan.write_text(re.findall(r"^\{.*\}$", proposed, re.MULTILINE)[1])
    by_plan = ("--reassignment-json-file", plan)
    run("--execute", *by_plan)
    wait_for("the partitions have moved", lambda: "still in progress" not in run("--verify", *by_plan), 120)


def replicas(running: Cluster) -> set[int]:
    """Return the brokers that have a replica of anything."""
    found = running.metadata()
    assert found is not None
    return {
        replica
        for topic in found.topics.values()
        for partition in topic.partitions.values()
        for replica in (*partition.replicas, *partition.isrs, partition.leader)
    }


def test_a_fourth_broker_joins_takes_partitions_and_leaves_under_load(tmp_path: Path) -> None:
    moved = (TOPIC, "__consumer_offsets", "__transaction_state")
    with cluster("hailbus", tmp_path, loopback_places(3)) as running, load(running) as work:
        port = free_port(also=(1,))
        place = Place(host="127.0.0.1", port=port, controller_port=port + 1)
        fourth = running.add(4, place, is_controller=False)
        fourth.start()
        running.wait_until_whole()
        reassign(running, tmp_path, "2,3,4", *moved)
        wait_for("the first broker has nothing left", lambda: replicas(running) == {2, 3, 4})
        work.goes_on()
        reassign(running, tmp_path, "1,2,3", *moved)
        wait_for("the fourth broker has nothing left", lambda: replicas(running) == {1, 2, 3})
        work.goes_on()
        fourth.stop()
        del running.nodes[4]
        wire = Wire(running.nodes[1].address)
        assert wire.call(ApiKey.UNREGISTER_BROKER, 0, broker_id=4).error_code == 0
        wire.close()
        running.wait_until_whole()
