"""A data directory with one thing damaged: a broker that was killed keeps all it can, and says what it cannot."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.broker.process import broker_process, start_failure

if TYPE_CHECKING:
    from pathlib import Path

METADATA = "__cluster_metadata-0"
FIRST_SEGMENT = "00000000000000000000.log"
COUNT = 40


def fill(directory: Path, topics: int = 1, *, is_killed: bool = True) -> None:
    """Records that were acknowledged one by one, so that each is a batch; then SIGKILL, or a stop in order."""
    with broker_process(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [f"rides{number}" for number in range(topics)]
        for name, made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).items():
            made.result(30)
            producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
            for number in range(COUNT):
                producer.produce(name, b"%s %03d" % (name.encode(), number))
                assert producer.flush(30) == 0
        if is_killed:
            broker.kill()
        else:
            broker.stop()


def read(bootstrap: str, topic: str) -> dict[int, bytes]:
    """All records by offset, until the end that the broker names."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    found: dict[int, bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message: Message | None = consumer.poll(30)
            assert message is not None, f"{len(found)} records and no end"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                return found
            found[message.offset() or 0] = message.value() or b""
    finally:
        consumer.close()


def expected(topic: str, lost: int = -1) -> dict[int, bytes]:
    return {offset: b"%s %03d" % (topic.encode(), offset) for offset in range(COUNT) if offset != lost}


def events(log: str, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_a_flipped_byte_and_a_kill_cost_one_record_and_no_offset_is_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    fill(directory)
    segment = directory / "rides0-0" / FIRST_SEGMENT
    flip(segment, segment.stat().st_size * 9 // COUNT + 70)
    with broker_process(directory) as broker:
        assert read(broker.bootstrap, "rides0") == expected("rides0", lost=9)
        (line,) = events(broker.log(), "log_damaged")
        assert (line["partition"], line["first_lost_offset"], line["next_offset"]) == ("rides0-0", 9, 10)
        assert line["level"] == "error"
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        offsets: list[int | None] = []
        producer.produce("rides0", b"more", on_delivery=lambda _, message: offsets.append(message.offset()))
        assert producer.flush(30) == 0
        assert offsets == [COUNT]
        broker.kill()
    with broker_process(directory) as broker:
        assert read(broker.bootstrap, "rides0") == expected("rides0", lost=9) | {COUNT: b"more"}


def test_damaged_metadata_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    fill(directory, topics=10)
    segment = directory / METADATA / FIRST_SEGMENT
    flip(segment, segment.stat().st_size // 2)
    before = segment.read_bytes()
    for _ in range(2):
        said = start_failure(directory)
        assert "cannot read the cluster's metadata" in said
        assert str(segment) in said
        assert "restore the file from a backup" in said
        assert segment.read_bytes() == before
    flip(segment, segment.stat().st_size // 2)
    with broker_process(directory) as broker:
        assert read(broker.bootstrap, "rides9") == expected("rides9")


@pytest.mark.parametrize(("is_killed", "is_emptied"), [(True, False), (False, True)])
def test_a_directory_whose_metadata_is_missing_begins_no_new_cluster(
    tmp_path: Path, *, is_killed: bool, is_emptied: bool
) -> None:
    directory = tmp_path / "data"
    fill(directory, is_killed=is_killed)
    shutil.copytree(directory / METADATA, tmp_path / "backup")
    shutil.rmtree(directory / METADATA)
    if is_emptied:
        (directory / METADATA).mkdir()
    said = start_failure(directory)
    assert "rides0-0" in said
    assert f"metadata log {METADATA} is missing" in said
    shutil.rmtree(directory / METADATA, ignore_errors=True)
    shutil.copytree(tmp_path / "backup", directory / METADATA)
    with broker_process(directory) as broker:
        assert read(broker.bootstrap, "rides0") == expected("rides0")


@pytest.mark.parametrize(
    ("name", "damage", "is_killed"),
    [
        ("rides0-0/leader-epoch-checkpoint", b"8 bytes!", True),
        ("rides0-0/partition.metadata", b"8 bytes!", False),
        ("rides0-0/partition.metadata", None, True),
        ("recovery-point-offset-checkpoint", b"8 bytes!", False),
    ],
)
def test_a_damaged_small_file_costs_no_record(
    tmp_path: Path, name: str, damage: bytes | None, *, is_killed: bool
) -> None:
    directory = tmp_path / "data"
    fill(directory, is_killed=is_killed)
    path = directory / name
    if damage is None:  # another character of the id: a valid id of no topic
        data = path.read_bytes()
        at = data.index(b"topic_id: ") + 15
        path.write_bytes(data[:at] + (b"A" if data[at : at + 1] != b"A" else b"B") + data[at + 1 :])
    else:
        path.write_bytes(damage)
    for _ in range(2):
        with broker_process(directory) as broker:
            assert read(broker.bootstrap, "rides0") == expected("rides0")
    assert not list(directory.glob("*-stray"))
