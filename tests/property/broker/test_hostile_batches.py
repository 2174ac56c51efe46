"""Batches that no client library builds: refused, or stored so that readers and compaction can work with them."""

from __future__ import annotations

import random

from hailbus_broker.log import CleanupPolicy, Isolation, LogConfig, LogError, PartitionLog, TailCache
from hailbus_broker.records import (
    BatchView,
    Compression,
    RecordsError,
    RecordToWrite,
    build_batch,
    compress,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.records.building import assemble
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import example, given, settings
from hypothesis import strategies as st

COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=1000, delete_retention_ms=0)
SOUND = BatchView(
    build_batch(
        [
            RecordToWrite(key=b"k%d" % number, value=b"v" * number or None, timestamp=5, headers=(("h", b"1"),))
            for number in range(4)
        ]
    )
)
PAYLOAD = bytes(SOUND.data[61:])
numbers = st.one_of(st.integers(-3, 8), st.integers(-(2**31), 2**31 - 1))
header_changes = st.fixed_dictionaries(
    {},
    optional={
        "last_offset_delta": numbers,
        "record_count": numbers,
        "attributes": st.integers(0, 127),
        "base_timestamp": st.integers(-(2**63), 2**63 - 1),
        "max_timestamp": st.integers(-(2**63), 10),
        "producer_id": st.integers(-2, 3),
        "producer_epoch": st.integers(-2, 3),
        "base_sequence": numbers,
    },
)
payloads = st.one_of(
    st.just(PAYLOAD),
    st.binary(max_size=60),
    st.builds(
        lambda at, byte: PAYLOAD[:at] + bytes([byte]) + PAYLOAD[at + 1 :],
        st.integers(0, len(PAYLOAD) - 1),
        st.integers(0, 255),
    ),
    st.builds(lambda at: PAYLOAD[:at], st.integers(0, len(PAYLOAD))),
)


def with_header(payload: bytes = PAYLOAD, codec: Compression = Compression.NONE, **changes: int) -> bytes:
    return bytes(assemble(SOUND.header._replace(**{"attributes": codec} | changes), compress(codec, payload)))


hostile = st.builds(
    lambda changes, payload, codec: with_header(payload, codec, **changes),
    header_changes,
    payloads,
    st.sampled_from([Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY]),
)


@settings(max_examples=500, deadline=None)
@given(batches=st.lists(hostile, min_size=1, max_size=4))
@example(batches=[with_header(base_timestamp=-(2**63) + 99)])
def test_what_a_compacted_topic_accepts_can_be_read_and_compacted(batches: list[bytes]) -> None:
    log = PartitionLog.open(
        SimulatedDisk(random.Random(0)), "data/rides-0", COMPACTED, now_ms=0, clean=False, tail_cache=TailCache(0)
    )
    accepted = 0
    for data in batches:
        try:
            result = log.append(data, now_ms=10)
        except (LogError, RecordsError):
            continue
        accepted += result.last_offset + 1 - result.base_offset
        assert result.is_duplicate or result.last_offset + 1 == log.log_end_offset
    assert log.log_end_offset <= accepted
    log.advance_high_watermark(log.sync())
    check_readable(log)
    log.roll(now_ms=20)
    log.advance_high_watermark(log.sync())
    for now_ms in (100, 200):
        task = log.start_compaction(now_ms=now_ms, first_dirty_offset=0, is_forced=True)
        if task is not None:
            for _ in task.steps():
                pass
            assert log.finish_compaction(task)
        check_readable(log)


def check_readable(log: PartitionLog) -> None:
    offset, previous = log.log_start_offset, -1
    while result := log.read(offset, 1 << 20, isolation=Isolation.LOG_END):
        if not result.length:
            break
        for view in iterate_batches(result.to_bytes()):
            view.check_crc()
            for record in iterate_records(view):
                assert previous < record.offset <= view.header.last_offset
                previous = record.offset
            offset = view.header.next_offset
    assert log.offset_for_timestamp(2**62) is None or log.max_timestamp() is not None
