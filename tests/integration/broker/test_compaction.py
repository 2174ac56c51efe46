"""Compaction of a running broker, as a client sees it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.testing import ThreadedBroker

SETTINGS = {"log.cleaner.backoff.ms": "100"}
TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}


def read_all(bootstrap: str) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of every record, up to the end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        end = consumer.get_watermark_offsets(TopicPartition("accounts", 0), timeout=20)[1]
        consumer.assign([TopicPartition("accounts", 0, OFFSET_BEGINNING)])
        found: list[tuple[int, str, str | None]] = []
        while consumer.position([TopicPartition("accounts", 0)])[0].offset < end:
            message = consumer.poll(0.1)
            if message is None:
                continue
            assert message.error() is None
            key, value, offset = message.key(), message.value(), message.offset()
            assert key is not None
            assert offset is not None
            found.append((offset, key.decode(), None if value is None else value.decode()))
            if offset == end - 1:
                break
        return found
    finally:
        consumer.close()


@pytest.mark.timeout(120)
def test_old_values_go_and_the_newest_stay() -> None:
    with ThreadedBroker(SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("accounts", 1, 1, config=TOPIC_CONFIG)])["accounts"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        newest: dict[str, str] = {}
        for number in range(3000):
            key, value = f"k{number % 10}", f"v{number}" + "." * 50
            producer.produce("accounts", key=key, value=value)
            newest[key] = value
            if number % 100 == 0:
                producer.flush(20)
        producer.flush(20)
        before = 3000
        deadline = time.monotonic() + 60
        while True:
            found = read_all(broker.bootstrap)
            offsets = [offset for offset, _, _ in found]
            assert offsets == sorted(set(offsets))
            assert {key: value for _, key, value in found} == newest
            assert len(found) <= before
            before = len(found)
            if len(found) < 1000:
                break
            assert time.monotonic() < deadline, f"{len(found)} records are left"
        producer.produce("accounts", key="k0", value="after")  # the sequence goes on
        assert producer.flush(20) == 0
        assert read_all(broker.bootstrap)[-1] == (3000, "k0", "after")
