"""Fetch: where a read begins, how much it brings, how long it waits, and what a session remembers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import Compression, RecordToWrite, build_batch

from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.deviations import expected
from tests.conformance.wire import Wire, batch_of, batches, now_ms, records, values, wire_to

LONG_WAIT_MS = 600_000
"""Longer than a test waits for any answer: what is answered all the same did not wait for this."""


def test_an_offset_within_a_batch_brings_the_whole_batch(wire: Wire, topic: str) -> None:
    wire.write(topic, b"0", b"1", b"2")
    wire.write(topic, b"3", b"4")
    for offset, bases in ((0, [0, 3]), (1, [0, 3]), (2, [0, 3]), (3, [3]), (4, [3])):
        found = batches(wire.fetch(topic, offset).records)
        assert [view.header.base_offset for view in found] == bases, offset


def test_the_end_of_the_log_is_no_error_and_what_lies_beyond_is(wire: Wire, topic: str) -> None:
    wire.write(topic, b"0", b"1")
    at_end = wire.fetch(topic, 2)
    assert (at_end.error_code, values(at_end.records), at_end.high_watermark) == (0, [], 2)
    for offset in (3, -1):
        beyond = wire.fetch(topic, offset)
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert not beyond.records


def test_what_was_deleted_is_out_of_range_and_the_answer_says_where_the_log_starts(wire: Wire, topic: str) -> None:
    wire.write(topic, b"0", b"1", b"2")
    where = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
    wire.call(ApiKey.DELETE_RECORDS, 1, topics=where, timeout_ms=10_000)
    assert wire.fetch(topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    found = wire.fetch(topic, 2)
    assert (found.error_code, found.log_start_offset) == (0, 2)
    assert [record.offset for record in records(found.records)] == [0, 1, 2]  # the batch is whole; clients skip


@pytest.mark.parametrize("limit", [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 100_001}])
def test_a_batch_above_the_limit_is_brought_alone(wire: Wire, topic: str, limit: dict[str, int]) -> None:
    wire.write(topic, b"x" * 100_000)
    wire.write(topic, b"y")
    found = batches(wire.fetch(topic, 0, **limit).records)
    assert [view.header.base_offset for view in found] == [0]


def fetch_all(wire: Wire, topic: str, partitions: int, **more: Any) -> dict[int, int]:
    """Return how many bytes of records each partition brought."""
    size = more.pop("partition_max_bytes", 1 << 20)
    where = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": size} for index in range(partitions)]
    answer = wire.call(
        ApiKey.FETCH, 12, max_wait_ms=0, min_bytes=1, topics=[{"topic": topic, "partitions": where}], **more
    )
    return {part.partition_index: len(part.records or b"") for part in answer.responses[0].partitions}


def test_the_limit_of_a_request_spans_its_partitions(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    for partition in range(3):
        wire.write(topic, b"x" * 10_000, partition=partition)
    sizes = fetch_all(wire, topic, 3, max_bytes=1)
    assert sizes[0] > 10_000
    assert (sizes[1], sizes[2]) == (0, 0)
    sizes = fetch_all(wire, topic, 3, max_bytes=1 << 20)
    assert min(sizes.values()) > 10_000


def test_only_the_first_partition_may_pass_its_limit(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for partition in range(2):
        wire.write(topic, b"x" * 10_000, partition=partition)
    sizes = fetch_all(wire, topic, 2, max_bytes=1 << 20, partition_max_bytes=100)
    assert sizes[0] > 10_000
    assert sizes[1] <= 100


def test_a_fetch_at_the_end_waits_for_as_long_as_it_says(cluster: Cluster, wire: Wire, topic: str) -> None:
    with wire_to(cluster) as patient:
        ask_later(patient, topic, min_bytes=1, max_wait_ms=LONG_WAIT_MS)
        began = time.monotonic()
        assert values(wire.fetch(topic, 0, max_wait_ms=300).records) == []
        assert time.monotonic() - began >= 0.28
        assert not patient.has_answer(within_s=0.1)


def test_a_waiting_fetch_is_woken_by_a_write(cluster: Cluster, wire: Wire, topic: str) -> None:
    ask_later(wire, topic, min_bytes=1, max_wait_ms=LONG_WAIT_MS)
    with wire_to(cluster) as other:
        assert not wire.has_answer(within_s=0.1)
        other.write(topic, b"now")
    assert values(wire.answer(ApiKey.FETCH, 12).responses[0].partitions[0].records) == [b"now"]


def test_a_waiting_fetch_waits_for_min_bytes(cluster: Cluster, wire: Wire, topic: str) -> None:
    ask_later(wire, topic, min_bytes=2000, max_wait_ms=LONG_WAIT_MS)
    with wire_to(cluster) as other:
        other.write(topic, b"x" * 1000)
        assert not wire.has_answer(within_s=0.2)
        other.write(topic, b"y" * 1000)
    found = wire.answer(ApiKey.FETCH, 12).responses[0].partitions[0]
    assert values(found.records) == [b"x" * 1000, b"y" * 1000]


def test_min_bytes_above_max_bytes_count_as_max_bytes(wire: Wire, topic: str) -> None:
    wire.write(topic, b"x" * 1000)
    ask_later(wire, topic, min_bytes=10_000_000, max_wait_ms=15_000, max_bytes=500)
    assert wire.has_answer(within_s=5)
    found = wire.answer(ApiKey.FETCH, 12).responses[0].partitions[0]
    assert values(found.records) == [b"x" * 1000]


def ask_later(wire: Wire, topic: str, **more: Any) -> None:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {"max_bytes": 1 << 20, **more}
    wire.ask(ApiKey.FETCH, 12, topics=[{"topic": topic, "partitions": [part]}], **fields)


def test_an_unknown_partition_beside_one_at_its_end(cluster: Cluster, wire: Wire, topic: str) -> None:
    parts = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 9)]
    asked = [{"topic": topic, "partitions": parts}]
    wire.ask(ApiKey.FETCH, 12, max_wait_ms=LONG_WAIT_MS, min_bytes=1, topics=asked)
    if expected(cluster, apache=True, ours=False, deviation="fetch-answers-errors-at-once"):
        assert not wire.has_answer(within_s=0.5)
        with wire_to(cluster) as other:
            other.write(topic, b"ends the wait")
    answer = wire.answer(ApiKey.FETCH, 12)
    codes = {part.partition_index: part.error_code for part in answer.responses[0].partitions}
    assert codes == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_leader_epoch_that_is_not_current_is_refused(wire: Wire, topic: str) -> None:
    wire.write(topic, b"0")
    current = batches(wire.fetch(topic, 0).records)[0].header.leader_epoch
    assert values(wire.fetch(topic, 0, leader_epoch=current).records) == [b"0"]
    assert wire.fetch(topic, 0, leader_epoch=current + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_offset_for_leader_epoch(wire: Wire, topic: str) -> None:
    current = wire.list_offset(topic, -2).leader_epoch

    def ask(epoch: int) -> tuple[int, int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        answer = wire.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [part]}]
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(current) == (0, current, 0), "no record has been written"
    wire.write(topic, b"0", b"1", b"2")
    assert batches(wire.fetch(topic, 0).records)[0].header.leader_epoch == current
    assert wire.list_offset(topic, -2).leader_epoch == current
    assert ask(current) == (0, current, 3)
    assert ask(current + 5) == (0, -1, -1)


def test_a_topic_is_fetched_by_id_and_an_unknown_id_is_an_error(wire: Wire, topic: str) -> None:
    wire.write(topic, b"by id")
    topic_id = wire.call(ApiKey.METADATA, 12, topics=[{"name": topic}]).topics[0].topic_id

    def fetch(asked: bytes) -> Any:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        answer = wire.call(
            ApiKey.FETCH, 13, max_wait_ms=0, min_bytes=1, topics=[{"topic_id": asked, "partitions": [part]}]
        )
        return answer.responses[0].partitions[0]

    assert values(fetch(topic_id).records) == [b"by id"]
    assert fetch(b"\x07" * 16).error_code == ErrorCode.UNKNOWN_TOPIC_ID


class Session:
    """An incremental fetch session (KIP-227)."""

    def __init__(self, wire: Wire, topic: str, *, max_bytes: int = 1 << 20) -> None:
        self.wire, self.topic, self.max_bytes, self.id, self.epoch = wire, topic, max_bytes, 0, 0

    def fetch(self, offsets: dict[int, int], *, forget: tuple[int, ...] = ()) -> dict[int, list[bytes | None]]:
        answer = self.ask(offsets, forget=forget)
        assert answer.error_code == 0
        self.id, self.epoch = answer.session_id, self.epoch + 1
        return {
            part.partition_index: list(values(part.records)) for topic in answer.responses for part in topic.partitions
        }

    def ask(self, offsets: dict[int, int], *, forget: tuple[int, ...] = ()) -> Any:
        parts = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for index, offset in offsets.items()
        ]
        return self.wire.call(
            ApiKey.FETCH,
            12,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=self.max_bytes,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[{"topic": self.topic, "partitions": parts}] if parts else [],
            forgotten_topics_data=[{"topic": self.topic, "partitions": list(forget)}] if forget else [],
        )


def test_a_session_remembers_and_brings_only_what_changed(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    wire.write(topic, b"zero", partition=0)
    session = Session(wire, topic)
    assert session.fetch({0: 0, 1: 0}) == {0: [b"zero"], 1: []}
    assert session.id > 0
    assert session.fetch({0: 1}) == {}  # nothing is new
    wire.write(topic, b"one", partition=1)
    assert session.fetch({}) == {1: [b"one"]}
    wire.write(topic, b"more", partition=0)
    assert session.fetch({1: 1}, forget=(0,)) == {}  # partition 0 is not asked for any more


def test_a_session_brings_its_partitions_in_turn(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    for partition in range(3):
        wire.write(topic, b"x" * 1000, partition=partition)
    session = Session(wire, topic, max_bytes=500)  # room for one batch in each answer
    session.fetch({0: 0, 1: 0, 2: 0})
    brought = [index for _ in range(6) for index, found in session.fetch({}).items() if found]
    assert brought == [0, 1, 2, 0, 1, 2]


def test_a_session_that_is_unknown_or_out_of_step_is_refused(wire: Wire, topic: str) -> None:
    session = Session(wire, topic)
    session.fetch({0: 0})
    session.epoch += 5
    assert session.ask({}).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.id += 1
    assert session.ask({}).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# ListOffsets.


def test_offsets_for_times_earliest_latest_and_max_timestamp(wire: Wire, topic: str) -> None:
    empty = {mark: wire.list_offset(topic, mark) for mark in (-2, -1, -3, 0)}
    assert [(mark, found.offset, found.timestamp) for mark, found in empty.items()] == [
        (-2, 0, -1),
        (-1, 0, -1),
        (-3, -1, -1),
        (0, -1, -1),
    ]
    noon = now_ms() - 60_000
    for seconds in (1, 5, 3, 4):  # not in order, as with several producers
        wire.produce(topic, batch_of(b"%d" % seconds, timestamp=noon + seconds * 1000))
    for asked_ms, offset, seconds in (
        (noon, 0, 1),
        (noon + 1000, 0, 1),
        (noon + 1001, 1, 5),
        (noon + 3500, 1, 5),
        (noon + 5000, 1, 5),
        (-3, 1, 5),  # max timestamp
    ):
        found = wire.list_offset(topic, asked_ms)
        assert (found.offset, found.timestamp) == (offset, noon + seconds * 1000), asked_ms
    found = wire.list_offset(topic, noon + 5001)
    assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)
    assert wire.list_offset(topic, -2).offset == 0
    assert wire.list_offset(topic, -1).offset == 4
    assert wire.list_offset(topic, -4).offset == 0  # earliest local


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_an_offset_for_a_time_lies_within_a_batch(wire: Wire, topic: str, codec: Compression) -> None:
    noon = now_ms() - 60_000
    listed = [RecordToWrite(key=None, value=b"v", timestamp=noon + delta) for delta in (100, 300, 200, 300)]
    assert wire.produce(topic, build_batch(listed, compression=codec)).base_offset == 0
    assert [wire.list_offset(topic, noon + delta).offset for delta in (50, 150, 200, 300, 301)] == [0, 1, 1, 1, -1]
    assert wire.list_offset(topic, -3).offset == 1  # the first of those with the largest timestamp


def test_latest_is_the_last_stable_offset_for_read_committed(wire: Wire, topic: str, name: str) -> None:
    wire.write(topic, b"plain", timestamp=now_ms() - 10_000)
    producer = wire.new_producer(name)
    add = wire.call(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    assert add.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    batch = batch_of(
        b"open",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    assert wire.produce(topic, batch, transactional_id=name).error_code == 0
    assert wire.list_offset(topic, -1, isolation=0).offset == 2
    assert wire.list_offset(topic, -1, isolation=1).offset == 1
    hidden = wire.list_offset(topic, -3, isolation=1)  # the newest record is in the open transaction
    assert (hidden.error_code, hidden.offset, hidden.timestamp, hidden.leader_epoch) == (0, -1, -1, -1)
    assert wire.list_offset(topic, -3, isolation=0).offset == 1
    found = wire.fetch(topic, 0, isolation=1)
    assert (found.high_watermark, found.last_stable_offset, values(found.records)) == (2, 1, [b"plain"])
    ended = wire.call(
        ApiKey.END_TXN,
        3,
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=False,
    )
    assert ended.error_code == 0
