"""A broker whose disk is full: it says so, keeps what it acknowledged, and still serves what it can."""

from __future__ import annotations

import contextlib
import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_BYTES = 300_000


@contextlib.contextmanager
def broker(directory: Path, *, file_bytes: int | None = None) -> Iterator[str]:
    """A broker process; RLIMIT_FSIZE stands in for a full disk."""

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [sys.executable, "-c", "from hailbus_broker.cli import main; main()", "serve", "--listen", "127.0.0.1:0"]
    with (
        (directory.parent / "broker.log").open("ab") as errors,
        subprocess.Popen(
            [*command, "--data-dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=limit,  # noqa: PLW1509 no thread runs yet, and a limit has no other way in
        ) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"bootstrap=(\S+)\n", line)
            assert found, line
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


def produce(bootstrap: str, topic: str, count: int, size: int) -> tuple[list[int], list[KafkaError]]:
    """Send numbered records; the numbers that were acknowledged, and the errors of the others."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "retries": 0, "message.timeout.ms": 10_000, "acks": "all"}
    )
    acked: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acked.append(int((message.value() or b"")[:6]))
        else:
            errors.append(error)

    for number in range(count):
        producer.produce(topic, b"%06d" % number + b"x" * size, on_delivery=delivered)
        producer.flush(20)
    return acked, errors


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[int] = []
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None
            value = message.value()
            assert value is not None
            found.append(int(value[:6]))
        return found
    finally:
        consumer.close()


def end_of(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1])
    finally:
        consumer.close()


@pytest.mark.timeout(180)
def test_a_full_disk(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with broker(directory, file_bytes=LIMIT_BYTES) as bootstrap:
        assert len(produce(bootstrap, "small", 3, 10)[0]) == 3
        acked, errors = produce(bootstrap, "big", 40, 10_000)
        assert 25 <= len(acked) <= 30
        assert acked == list(range(len(acked)))
        assert {error.code() for error in errors} == {KafkaError.KAFKA_STORAGE_ERROR}
        # what it has can be read, and as in Apache Kafka no partition of the directory takes more before a restart
        assert consume(bootstrap, "big", len(acked)) == acked
        none_acked, errors = produce(bootstrap, "small", 3, 10)
        assert none_acked == []
        assert {error.code() for error in errors} <= {KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT}
    assert (tmp_path / "broker.log").read_text().count('"log_directory_offline"') == 1
    with broker(directory) as bootstrap:
        assert consume(bootstrap, "big", len(acked)) == acked
        more, errors = produce(bootstrap, "big", 3, 10)
        assert (len(more), errors) == (3, [])
        assert end_of(bootstrap, "big") == len(acked) + 3
