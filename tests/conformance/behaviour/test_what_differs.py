"""The deviations that no other test meets on its way: each is shown on both kinds of broker."""

from __future__ import annotations

import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import BatchView, RecordToWrite, build_batch
from hailbus_broker.records.building import update_crc

from tests.conformance.behaviour.test_topics import BROKER, SET, TOPIC, alter, configs
from tests.conformance.behaviour.test_transactions import NewProducer, new_producer
from tests.conformance.conftest import NODES, Cluster, MakeTopic, hailbus_cluster, has_leaders, own_apache_cluster
from tests.conformance.deviations import expected
from tests.conformance.wire import Wire, batch_of, batches, claiming, now_ms, values, wire_to
from tests.servers import FAST_PROPERTIES
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["new_producer"]


def test_defaults(cluster: Cluster, wire: Wire) -> None:
    broker = wire.call(ApiKey.METADATA, 4, topics=[]).brokers[0]
    found = configs(wire, BROKER, str(broker.node_id))

    def default(name: str) -> str | None:
        return next((str(item.value) for item in found[name].synonyms if item.source == 5), None)  # 5: default

    internal = expected(cluster, apache="50", ours="4", deviation="internal-topics-have-4-partitions")
    assert default("offsets.topic.num.partitions") == internal
    assert default("transaction.state.log.num.partitions") == internal
    never = str(2**63 - 1)
    assert default("log.flush.interval.messages") == expected(
        cluster, apache=never, ours="1", deviation="acknowledged-is-on-the-disk"
    )


def test_a_ratio_that_is_not_a_number(cluster: Cluster, wire: Wire, topic: str) -> None:
    found = alter(wire, topic, ("min.cleanable.dirty.ratio", SET, "NaN"))
    assert found.error_code == expected(
        cluster, apache=ErrorCode.NONE, ours=ErrorCode.INVALID_CONFIG, deviation="not-a-number-is-no-setting"
    )


def test_a_batch_that_lies_about_its_records(cluster: Cluster, wire: Wire, make_topic: MakeTopic) -> None:
    accepted, refused = ErrorCode.NONE, ErrorCode.INVALID_RECORD
    three_of_two = claiming(batch_of(b"x" * 20, b"y" * 20), 3)
    assert wire.produce(make_topic(), three_of_two).error_code == expected(
        cluster, apache=refused, ours=accepted, deviation="records-are-read-where-something-depends-on-them"
    )
    wrong_delta = batch_of(b"x", b"y", key=b"k")
    assert wrong_delta[-8:-4] == b"\x00\x00\x02\x02"  # attributes, timestamp delta, offset delta 1, length of the key
    wrong_delta[-6] = 6
    update_crc(wrong_delta)
    assert wire.produce(make_topic(cleanup_policy="compact"), wrong_delta).error_code == expected(
        cluster, apache=accepted, ours=refused, deviation="records-are-read-where-something-depends-on-them"
    )


def test_a_late_copy_of_an_end_of_transaction(
    cluster: Cluster, wire: Wire, new_producer: NewProducer, topic: str
) -> None:
    producer = new_producer()
    producer.write(topic, b"first")
    given_up, producer.wire = producer.wire, Wire(cluster.bootstrap)
    producer.commit()
    producer.write(topic, b"second")
    given_up.ask(
        ApiKey.END_TXN,
        3,
        transactional_id=producer.name,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=True,
    )
    assert given_up.is_closed_by_peer() == expected(
        cluster, apache=False, ours=True, deviation="late-ends-of-transactions-are-refused"
    )
    given_up.close()
    described = wire.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[producer.name])
    is_open = described.transaction_states[0].transaction_state == "Ongoing"
    assert is_open == expected(cluster, apache=False, ours=True, deviation="late-ends-of-transactions-are-refused")


def test_a_header_that_lies_about_the_newest_timestamp(cluster: Cluster, wire: Wire, topic: str) -> None:
    now = now_ms()
    batch = build_batch([RecordToWrite(key=None, value=b"v", timestamp=now)])
    struct.pack_into(">q", batch, 35, now - 1000)  # the maximum of the batch's timestamps
    update_crc(batch)
    assert BatchView(batch).header.max_timestamp == now - 1000
    found = wire.produce(topic, batch)
    assert found.error_code == 0
    (view,) = batches(wire.fetch(topic, 0).records)
    assert view.header.max_timestamp == expected(
        cluster, apache=now, ours=now - 1000, deviation="a-headers-timestamps-are-believed"
    )


def test_the_client_id_of_admin_clients_opens_no_door(cluster: Cluster, wire: Wire, name: str) -> None:
    wire.find_coordinator(name)
    wire.client_id = "__admin_client"
    forged = batch_of(b"nothing", key=b"\x7f\xff")  # of a type that every broker skips
    wait_for("the topic has leaders", lambda: has_leaders(wire, "__consumer_offsets", 1))
    code = wire.produce("__consumer_offsets", forged).error_code
    assert code == expected(
        cluster,
        apache=ErrorCode.NONE,
        ours=ErrorCode.INVALID_TOPIC_EXCEPTION,
        deviation="nobody-writes-to-the-coordinators-topics",
    )
    wire.client_id = "anybody"
    assert wire.produce("__consumer_offsets", forged).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    at_end = [{"partition_index": 0, "offset": -1}]
    deleted = wire.call(
        ApiKey.DELETE_RECORDS, 2, topics=[{"name": "__consumer_offsets", "partitions": at_end}], timeout_ms=5_000
    )
    assert deleted.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("start", [hailbus_cluster, own_apache_cluster])
def test_a_client_creates_the_topic_of_the_group_coordinator(
    start: Callable[[Path], Iterator[Cluster]], tmp_path: Path
) -> None:
    with contextmanager(start)(tmp_path) as cluster, wire_to(cluster) as wire:
        wanted = [
            {"name": topic, "num_partitions": int(count), "replication_factor": 1}
            for topic, count in (("__consumer_offsets", FAST_PROPERTIES["offsets.topic.num.partitions"]), ("t", 1))
        ]
        assert {topic.error_code for topic in wire.call(ApiKey.CREATE_TOPICS, 5, topics=wanted).topics} == {0}
        wait_for("t has a leader", lambda: has_leaders(wire, "t", 1))
        policy = configs(wire, TOPIC, "__consumer_offsets")["cleanup.policy"].value
        assert policy == expected(
            cluster, apache="delete", ours="compact", deviation="the-coordinators-topics-are-always-compacted"
        )
        wire.find_coordinator("group")
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}

        def commit() -> int:
            topics = [{"name": "t", "partitions": [part]}]
            answer = wire.call(ApiKey.OFFSET_COMMIT, 8, group_id="group", topics=topics)
            return int(answer.topics[0].partitions[0].error_code)

        wait_for("the group is served", lambda: commit() == 0)
        deleted = wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=["__consumer_offsets"], timeout_ms=5_000)
        assert deleted.responses[0].error_code == expected(
            cluster,
            apache=ErrorCode.NONE,
            ours=ErrorCode.INVALID_TOPIC_EXCEPTION,
            deviation="the-coordinators-topics-are-always-compacted",
        )


def value_at_start(cluster: Cluster, topic: str) -> bytes | None:
    """The first record of a topic as a new connection reads it; None if nobody answers, or has one to give."""
    with suppress(OSError):
        wire = Wire(cluster.bootstrap)
        try:
            found = values(wire.fetch(topic, 0, partition_max_bytes=1).records)
            return found[0] if found else None
        finally:
            wire.close()
    return None


@pytest.mark.parametrize("start", [hailbus_cluster, own_apache_cluster])
def test_the_only_log_directory_fails(start: Callable[[Path], Iterator[Cluster]], tmp_path: Path) -> None:
    with contextmanager(start)(tmp_path) as cluster:
        wire = Wire(cluster.bootstrap)
        segments = [{"name": "segment.bytes", "value": "1048576"}]
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": segments}
        assert wire.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout_ms=20_000).topics[0].error_code == 0
        wait_for("t has a leader", lambda: has_leaders(wire, "t", 1))
        wire.write("t", b"committed")
        (partition,) = tmp_path.rglob("t-0")
        partition.rename(tmp_path / "gone")  # what is open can be read and written, the next segment has no place
        refused = None
        with suppress(OSError):
            for _ in range(5):
                batch = build_batch([RecordToWrite(key=None, value=bytes(500_000), timestamp=now_ms())])
                refused = wire.produce("t", batch).error_code
        wire.close()
        serves = expected(cluster, apache=False, ours=NODES == 1, deviation="a-failed-disk-ends-writing-not-reading")
        if serves:
            assert refused == ErrorCode.KAFKA_STORAGE_ERROR
            assert value_at_start(cluster, "t") == b"committed"
        else:
            wait_for("the broker has halted", lambda: value_at_start(cluster, "t") is None)
