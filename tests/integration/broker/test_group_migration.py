"""Clients of both group protocols in one group, one after another and together."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer
from hailbus_broker.testing import ThreadedBroker


def consumer(bootstrap: str, protocol: str) -> Consumer:
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": bootstrap,
        "group.id": "surge",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 100}
    made = Consumer(settings)
    made.subscribe(["rides"])
    return made


def until(condition: Callable[[], bool], read: list[bytes], *members: Consumer, seconds: float = 30) -> None:
    """Let the members poll and commit until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            message = member.poll(0.05)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                read.append(value)
                member.commit(message=message, asynchronous=False)


def partitions(member: Consumer) -> set[int]:
    return {place.partition for place in member.assignment()}


def test_a_group_is_upgraded_and_downgraded_by_rolling_its_consumers() -> None:
    settings = {
        "num.partitions": "4",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "100",
    }
    with ThreadedBroker(settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

        def produce(*values: bytes) -> None:
            for value in values:
                producer.produce("rides", value, key=value)
            assert producer.flush(30) == 0

        def kinds() -> list[str]:
            return broker.call(
                lambda running: [
                    group.group_type for shard in running.node.groups.shards() for group in shard.list_groups()
                ]
            )

        read: list[bytes] = []
        produce(b"a", b"b", b"c", b"d")
        old = consumer(broker.bootstrap, "classic")
        until(lambda: partitions(old) == {0, 1, 2, 3} and len(read) == 4, read, old)
        new = consumer(broker.bootstrap, "consumer")
        until(lambda: len(partitions(old)) == len(partitions(new)) == 2, read, old, new)
        assert partitions(old) | partitions(new) == {0, 1, 2, 3}
        assert kinds() == ["Consumer"]
        produce(b"e", b"f", b"g", b"h")
        until(lambda: len(read) == 8, read, old, new)
        old.close()
        until(lambda: partitions(new) == {0, 1, 2, 3}, read, new)
        # And back.
        back = consumer(broker.bootstrap, "classic")
        until(lambda: len(partitions(back)) == len(partitions(new)) == 2, read, back, new)
        new.close()
        until(lambda: partitions(back) == {0, 1, 2, 3}, read, back)
        assert kinds() == ["Classic"]
        produce(b"i", b"j")
        until(lambda: len(read) == 10, read, back)
        back.close()
        # Nothing was read twice and nothing left out: offsets went along.
        assert sorted(read) == [bytes([letter]) for letter in b"abcdefghij"]
