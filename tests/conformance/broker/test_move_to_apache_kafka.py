"""The steps of `docs/broker/moving-to-kafka.md` for three nodes, with the properties and the commands of that page.

`uv run just slow tests/conformance/broker/test_move_to_apache_kafka.py` runs it.
"""

from __future__ import annotations

import shlex
import threading
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.contract.docs.pages import ROOT, Fence, fences
from tests.integration.broker.mixed_load import (
    CLUSTER_ID,
    INTERNAL,
    PARTITIONS,
    STOPPED,
    TOPIC,
    Load,
    commit_position,
    hailbus,
    start,
)
from tests.integration.broker.mixed_nodes import DEADLINE_S, MixedCluster, MixedNode
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = [pytest.mark.needs("apache kafka"), pytest.mark.timeout(1200), pytest.mark.slow]

PAGE = ROOT / "docs" / "broker" / "moving-to-kafka.md"
SECTION = "Move a cluster of three nodes"
HOSTS = ("one.example", "two.example", "three.example")
FASTER = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
"""What the test adds to the properties of the page."""

Found = dict[tuple[int, int], str]
"""Values by partition and offset."""


def section_fences(language: str) -> list[Fence]:
    """Return the blocks of the section about three nodes."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {SECTION}") + 1
    last = next(number for number in range(first + 1, len(lines)) if lines[number - 1].startswith("## "))
    return [fence for fence in fences(PAGE, language) if first < fence.line < last]


class Page:
    """The section of the page, with the hosts of the cluster in place of its examples."""

    def __init__(self, nodes: list[MixedNode]) -> None:
        (properties,) = section_fences("properties")
        self._properties = properties.text
        self.there, self.elect, self.back = (fence.text.splitlines() for fence in section_fences("sh"))
        self._nodes = nodes

    def with_addresses(self, text: str) -> str:
        """Replace the example's hosts and ports."""
        for node, host in zip(self._nodes, HOSTS, strict=True):
            text = text.replace(f"{host}:9092", node.address).replace(f"{host}:9093", node.controller_address)
        assert ".example" not in text
        return text

    def settings(self, node: MixedNode) -> dict[str, str]:
        """Return a node's properties, for which the page says what differs from those of node 1."""
        lines = dict(line.split("=", 1) for line in self._properties.splitlines())
        assert lines["node.id"] == "1"
        lines["node.id"] = str(node.node_id)
        lines["listeners"] = lines["listeners"].replace(HOSTS[0], HOSTS[node.node_id - 1])
        assert lines["log.dirs"] == "data"
        lines["log.dirs"] = str(node.data)
        return {name: self.with_addresses(value) for name, value in lines.items()}

    def perform(self, line: str, node: MixedNode) -> None:
        """Do what one line says, on one of the nodes."""
        match shlex.split(self.with_addresses(line)):
            case ["hailbus", command, "--bootstrap-server", servers, *words]:
                run = self._until_silent if "--under-replicated-partitions" in words else hailbus
                run(servers, command, *words)
            case ["kill", "-TERM", "$BROKER_PID"]:
                assert node.is_ours
                assert node.stop() == 0
            case ["kill", "-TERM", "$KAFKA_PID"]:
                assert not node.is_ours
                assert node.stop() in STOPPED
            case ["kafka-server-start", "node1.properties"]:
                node.is_ours = False
                start(node)
            case ["hailbus-broker", "serve", "--config", "node1.properties"]:
                node.is_ours = True
                start(node)
            case words:
                pytest.fail(f"the test does not know how to perform {words}")

    @staticmethod
    def _until_silent(servers: str, *words: str) -> str:
        wait_for("no replica to be behind", lambda: not hailbus(servers, *words).strip(), DEADLINE_S)
        return ""


class Background:
    """Calls a function again and again in a thread, until the block ends; an error in the thread fails the block.

    Attributes:
        is_idle: Held while the function does not run.
        count: Of calls that have returned.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        self.is_idle = threading.Lock()
        self.count = 0
        self._step = step
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        self.check()

    def check(self) -> None:
        """Raise what the thread has raised."""
        if self._error is not None:
            raise self._error

    def until_next(self) -> None:
        """Wait until a call that begins from now on has returned."""
        wanted = self.count + 2

        def has_run() -> bool:
            self.check()
            return self.count >= wanted

        wait_for("the next call", has_run, DEADLINE_S)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.05):
                with self.is_idle:
                    self._step()
                self.count += 1
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error


class Reader:
    """The only member of a group that reads what is committed, and commits after each poll.

    Attributes:
        found: What it has read.
    """

    def __init__(self, bootstrap: str) -> None:
        self.found: Found = {}
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([TOPIC])

    def step(self) -> None:
        messages = self.consumer.consume(500, 0.2)
        for message in messages:
            assert not message.error(), message.error()
            place = (message.partition() or 0, message.offset() or 0)
            value = (message.value() or b"").decode()
            assert self.found.setdefault(place, value) == value, "another record has this offset"
        for index in {message.partition() or 0 for message in messages}:
            last = max(message.offset() or 0 for message in messages if message.partition() == index)
            commit_position(self.consumer, TopicPartition(TOPIC, index, last + 1))


def values(found: Found) -> dict[int, list[str]]:
    """Return the values of each partition, in the order of their offsets."""
    result: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
    for (index, _), value in sorted(found.items()):
        result[index].append(value)
    return result


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path) as found:
        yield found


def test_three_nodes_become_apache_kafka_and_return_by_the_steps_of_the_page(cluster: MixedCluster) -> None:
    nodes = [cluster.add(number, is_ours=True) for number in (1, 2, 3)]
    page = Page(nodes)
    for node in nodes:
        node.settings = page.settings(node) | FASTER
        node.format(CLUSTER_ID)
    start(*nodes)
    bootstrap = ",".join(node.address for node in nodes)
    load = Load(bootstrap)
    load.create(TOPIC, factor=3)
    reader = Reader(bootstrap)

    with Background(reader.step) as reading:

        def has_all() -> bool:
            reading.check()
            with reading.is_idle:
                return values(reader.found) == load.committed

        with Background(load.run) as writing:

            def check() -> None:
                writing.until_next()
                with writing.is_idle:
                    load.check()
                    wait_for("the group's member", has_all, DEADLINE_S)

            check()
            for lines, is_ours in ((page.there, False), (page.back, True)):
                for node in nodes:
                    for line in lines:
                        page.perform(line, node)
                    check()
                    assert node.is_ours is is_ours
                page.perform(lines[0], nodes[0])
                for line in page.elect:
                    page.perform(line, nodes[0])
                for topic in (TOPIC, *INTERNAL):
                    load.until_led_by({1, 2, 3}, topic)
                check()
        wait_for("the group's member", has_all, DEADLINE_S)
    reader.consumer.close()
    assert everything(bootstrap) == reader.found, "the offsets of the records have changed"
    for topic in (TOPIC, *INTERNAL):
        load.until_in_sync(topic, 3)
    for index in range(PARTITIONS):
        contents = [(node.data / f"{TOPIC}-{index}" / f"{0:020}.log").read_bytes() for node in nodes]
        assert contents[0] == contents[1] == contents[2]


def everything(bootstrap: str) -> Found:
    """Read all records that are committed, from the beginning."""
    found: Found = {}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "everything",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    at_end: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(message.partition() or 0)
            else:
                found[message.partition() or 0, message.offset() or 0] = (message.value() or b"").decode()
        return len(at_end) == PARTITIONS

    wait_for("the end of all partitions", is_read, DEADLINE_S)
    consumer.close()
    return found
