"""Produce: acks, producer ids and sequences, timestamps, limits. Said on the wire, so that no client library helps."""

from __future__ import annotations

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import Compression, RecordToWrite, TimestampType, build_batch

from tests.conformance.conftest import MakeTopic
from tests.conformance.wire import Wire, batch_of, batches, claiming, now_ms, records, values

HOUR_MS = 3_600_000


@pytest.mark.parametrize("acks", [1, -1])
def test_an_ack_has_the_offset(wire: Wire, topic: str, acks: int) -> None:
    assert wire.produce(topic, batch_of(b"a", b"b"), acks=acks).base_offset == 0
    found = wire.produce(topic, batch_of(b"c"), acks=acks)
    assert (found.error_code, found.base_offset, found.log_start_offset) == (0, 2, 0)
    assert found.log_append_time_ms == -1  # the producer's time counts


def test_acks_0_has_no_answer_and_the_record_is_there(wire: Wire, topic: str) -> None:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch_of(b"unacked"))}]}]
    wire.ask(ApiKey.PRODUCE, 9, acks=0, timeout_ms=1000, topic_data=data)
    # The next answer on this connection is that of the fetch: there was none for the produce request.
    found = wire.fetch(topic, 0, min_bytes=1, max_wait_ms=5000)
    assert values(found.records) == [b"unacked"]


def test_acks_0_with_an_error_closes_the_connection(wire: Wire, topic: str) -> None:
    broken = batch_of(b"unacked")
    broken[-1] ^= 1
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(broken)}]}]
    wire.ask(ApiKey.PRODUCE, 9, acks=0, timeout_ms=1000, topic_data=data)
    assert wire.is_closed_by_peer()


def test_each_partition_of_a_request_has_its_own_answer(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    parts = [
        {"index": 0, "records": bytes(batch_of(b"zero"))},
        {"index": 1, "records": bytes(batch_of(b"one"))},
        {"index": 7, "records": bytes(batch_of(b"nowhere"))},
    ]
    answer = wire.call(
        ApiKey.PRODUCE, 9, acks=-1, timeout_ms=10_000, topic_data=[{"name": topic, "partition_data": parts}]
    )
    codes = {part.index: part.error_code for part in answer.responses[0].partition_responses}
    assert codes == {0: 0, 1: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert values(wire.fetch(topic, 0, partition=1).records) == [b"one"]


class Sequenced:
    """A producer with an id that numbers its batches as it likes."""

    def __init__(self, wire: Wire, topic: str) -> None:
        answer = wire.new_producer()
        self.wire, self.topic, self.id, self.epoch = wire, topic, answer.producer_id, answer.producer_epoch

    def send(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> tuple[int, int]:
        batch = batch_of(
            *[b"%d" % (sequence + delta) for delta in range(count)],
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
        )
        found = self.wire.produce(self.topic, batch)
        return found.error_code, found.base_offset


def test_a_batch_sent_again_is_acked_with_its_offset_and_not_written(wire: Wire, topic: str) -> None:
    producer = Sequenced(wire, topic)
    assert [producer.send(sequence) for sequence in range(6)] == [(0, offset) for offset in range(6)]
    assert [producer.send(sequence) for sequence in range(1, 6)] == [(0, offset) for offset in range(1, 6)]
    # Five batches are remembered; the sixth from the end can no longer be told from a lost one.
    assert producer.send(0)[0] in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
    assert wire.list_offset(topic, -1).offset == 6


def test_a_gap_in_the_sequence_is_refused(wire: Wire, topic: str) -> None:
    producer = Sequenced(wire, topic)
    assert producer.send(0, 3) == (0, 0)
    assert producer.send(4)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(3) == (0, 3)


def test_an_older_epoch_is_refused_and_a_newer_one_begins_at_zero(wire: Wire, topic: str) -> None:
    producer = Sequenced(wire, topic)
    assert producer.send(0, 2) == (0, 0)
    assert producer.send(2, epoch=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=1) == (0, 2)
    assert producer.send(2, epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_question_behind_writes_is_answered_after_them(wire: Wire, topic: str, name: str) -> None:
    refused = [{"name": f"{name}-unknown", "partition_data": [{"index": 0, "records": bytes(batch_of(b"x"))}]}]
    for number in range(1, 6):
        accepted = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch_of(b"x"))}]}]
        requests = [refused, accepted, refused]  # the first and the last are answered at once
        for topics in requests:
            wire.ask(ApiKey.PRODUCE, 9, acks=-1, timeout_ms=10_000, topic_data=topics)
        where = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        wire.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=where)
        for _ in requests:
            wire.answer(ApiKey.PRODUCE, 9)
        assert wire.answer(ApiKey.LIST_OFFSETS, 7).topics[0].partitions[0].offset == number


def test_each_idempotent_producer_has_an_id_of_its_own(wire: Wire) -> None:
    ids = [wire.new_producer().producer_id for _ in range(5)]
    assert len(set(ids)) == 5


def test_the_sequence_wraps_after_the_largest_number(wire: Wire, topic: str) -> None:
    producer = Sequenced(wire, topic)
    last = 2**31 - 1
    assert producer.send(last - 1, 4)[0] == 0  # last-1, last, 0, 1
    assert producer.send(2) == (0, 4)


def test_create_time_stays_as_it_was_written(wire: Wire, topic: str) -> None:
    when = now_ms() - HOUR_MS
    wire.write(topic, b"a", timestamp=when)
    (record,) = records(wire.fetch(topic, 0).records)
    assert record.timestamp == when
    assert batches(wire.fetch(topic, 0).records)[0].header.timestamp_type == TimestampType.CREATE_TIME


def test_log_append_time_takes_the_producers_place(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before = now_ms()
    found = wire.produce(topic, batch_of(b"a", b"b", timestamp=before - HOUR_MS))
    assert before <= found.log_append_time_ms <= now_ms()
    answer = wire.fetch(topic, 0)
    (view,) = batches(answer.records)
    view.check_crc()
    assert view.header.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert view.header.max_timestamp == found.log_append_time_ms


def test_a_timestamp_out_of_bounds_is_refused_with_the_record(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS))
    now = now_ms()
    for when in (now - 2 * HOUR_MS, now + 2 * HOUR_MS):
        batch = build_batch(
            [RecordToWrite(key=None, value=b"a", timestamp=now), RecordToWrite(key=None, value=b"b", timestamp=when)]
        )
        found = wire.produce(topic, batch)
        assert found.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in found.record_errors] == [1]
    assert wire.produce(topic, batch_of(b"c", timestamp=now)).base_offset == 0


def test_the_size_limit_of_a_topic_counts_the_batch(wire: Wire, make_topic: MakeTopic) -> None:
    fits = batch_of(b"x" * 1000)
    topic = make_topic(max_message_bytes=str(len(fits)))
    assert wire.produce(topic, fits).error_code == 0
    assert wire.produce(topic, batch_of(b"x" * 1001)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    # Small records in one batch are one message for this limit.
    assert wire.produce(topic, batch_of(*[b"x" * 100] * 20)).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_is_stored_in_the_codec_it_came_in(wire: Wire, topic: str, codec: Compression) -> None:
    sent = batch_of(b"x" * 500, b"y" * 500, compression=codec)
    wire.produce(topic, sent)
    (view,) = batches(wire.fetch(topic, 0).records)
    assert view.header.codec == codec
    assert values(wire.fetch(topic, 0).records) == [b"x" * 500, b"y" * 500]


@pytest.mark.parametrize(
    ("configured", "stored"),
    [("uncompressed", Compression.NONE), ("gzip", Compression.GZIP), ("zstd", Compression.ZSTD)],
)
def test_a_topics_codec_is_the_one_that_is_stored(
    wire: Wire, make_topic: MakeTopic, configured: str, stored: Compression
) -> None:
    topic = make_topic(compression_type=configured)
    wire.produce(topic, batch_of(b"x" * 500, compression=Compression.LZ4))
    (view,) = batches(wire.fetch(topic, 0).records)
    view.check_crc()
    assert (view.header.codec, values(wire.fetch(topic, 0).records)) == (stored, [b"x" * 500])


def test_a_compacted_topic_refuses_records_without_a_key(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(cleanup_policy="compact")
    found = wire.produce(topic, batch_of(b"v"))
    assert found.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in found.record_errors] == [0]
    assert wire.produce(topic, batch_of(b"v", key=b"k")).base_offset == 0


def test_min_insync_replicas_above_the_number_of_replicas_asks_for_all_of_them(
    wire: Wire, make_topic: MakeTopic
) -> None:
    topic = make_topic(min_insync_replicas="2")
    assert wire.produce(topic, batch_of(b"a"), acks=-1).base_offset == 0


def test_a_control_batch_of_a_client_is_refused(wire: Wire, topic: str) -> None:
    found = wire.produce(topic, batch_of(b"marker", is_control=True))
    assert found.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("count", [1, 3, 2**31 - 1])
def test_a_compacted_topic_counts_the_records(
    wire: Wire, make_topic: MakeTopic, count: int, codec: Compression
) -> None:
    topic = make_topic(cleanup_policy="compact")
    batch = claiming(batch_of(b"x" * 20, b"y" * 20, key=b"k", compression=codec), count)
    assert wire.produce(topic, batch).error_code == ErrorCode.INVALID_RECORD
    assert wire.list_offset(topic, -1).offset == 0


def test_a_batch_cannot_claim_more_records_than_fit_into_it(wire: Wire, topic: str) -> None:
    batch = claiming(batch_of(b"x", b"y"), 2**31 - 1)
    assert wire.produce(topic, batch).error_code == ErrorCode.INVALID_RECORD
    assert wire.list_offset(topic, -1).offset == 0


def test_counts_that_contradict_each_other_are_refused(wire: Wire, topic: str) -> None:
    from hailbus_broker.records.building import update_crc

    batch = batch_of(b"a", b"b")
    batch[57:61] = (3).to_bytes(4, "big")  # record count: three, and the last offset delta says two
    update_crc(batch)
    assert wire.produce(topic, batch).error_code == ErrorCode.INVALID_RECORD
    assert wire.list_offset(topic, -1).offset == 0
