"""Record batches: round trips, and any bytes at all."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hailbus_broker.log import LogConfig, PartitionLog
from hailbus_broker.log.errors import LogError
from hailbus_broker.log.producer_state import ProducerState
from hailbus_broker.records import (
    BatchView,
    Compression,
    RecordsError,
    RecordToWrite,
    build_batch,
    compression,
    iterate_batches,
    iterate_records,
    read_control_type,
    rebuild_batch,
)
from hailbus_broker.records.building import assemble, write_varint
from hailbus_broker.records.record import read_varint
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import example, given, settings
from hypothesis import strategies as st

optional_bytes = st.one_of(st.none(), st.binary(max_size=40))
records = st.builds(
    RecordToWrite,
    key=optional_bytes,
    value=optional_bytes,
    timestamp=st.one_of(st.integers(-1, 2**45), st.integers(-(2**63), 2**63 - 1)),
    headers=st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=3).map(tuple),
)


@given(
    written=st.lists(records, min_size=1, max_size=20),
    codec=st.sampled_from(list(Compression)),
    other=st.sampled_from(list(Compression)),
    base_offset=st.integers(0, 2**60),
    horizon=st.one_of(st.none(), st.integers(0, 2**62)),
)
@example(
    written=[RecordToWrite(key=b"k", value=None, timestamp=at) for at in (-(2**63), 2**63 - 1)],
    codec=Compression.NONE,
    other=Compression.NONE,
    base_offset=0,
    horizon=1,
)
def test_what_is_built_is_read_back(
    written: list[RecordToWrite], codec: Compression, other: Compression, base_offset: int, horizon: int | None
) -> None:
    view = BatchView(build_batch(written, base_offset=base_offset, compression=codec))
    view.check_crc()
    read = list(iterate_records(view))
    assert [(record.key, record.value, record.timestamp, record.headers) for record in read] == [
        (record.key, record.value, record.timestamp, record.headers) for record in written
    ]
    assert [record.offset for record in read] == list(range(base_offset, base_offset + len(written)))
    assert view.header.max_timestamp == max(-1, *(record.timestamp for record in written))
    again = BatchView(rebuild_batch(view.header, read, compression=other, delete_horizon_ms=horizon))
    again.check_crc()
    assert list(iterate_records(again)) == read


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_varints(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varint(bytes(out), 0) == (number, len(out))


@settings(max_examples=500)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(RecordsError):
        for view in iterate_batches(data):
            view.check_crc()
            list(iterate_records(view))


@settings(max_examples=500, deadline=None)
@given(
    codec=st.integers(0, 7),
    payload=st.binary(max_size=200),
    count=st.integers(-2, 50),
    attributes=st.integers(0, 127),
    delta=st.integers(-2, 50),
)
def test_any_record_section_is_read_or_refused(
    codec: int, payload: bytes, count: int, attributes: int, delta: int
) -> None:
    header = BatchView(build_batch([RecordToWrite(key=None, value=b"", timestamp=0)])).header
    data = assemble(
        header._replace(attributes=attributes & ~7 | codec, record_count=count, last_offset_delta=delta), payload
    )
    view = BatchView(data)
    for use in (lambda: list(iterate_records(view)), lambda: read_control_type(view)):
        with suppress(RecordsError):
            use()


@settings(max_examples=300, deadline=None)
@given(
    written=st.lists(records, min_size=1, max_size=4),
    codec=st.sampled_from(list(Compression)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 50),
)
def test_a_damaged_batch_is_refused_or_harmless(
    written: list[RecordToWrite], codec: Compression, flips: list[tuple[int, int]], cut: int
) -> None:
    """Whatever a client sends, the log takes a whole sound batch or nothing."""
    data = build_batch(written, compression=codec)
    for position, mask in flips:
        data[position % len(data)] ^= mask
    del data[len(data) - min(cut, len(data)) :]
    disk = SimulatedDisk(random.Random(0))
    log = PartitionLog.open(disk, "t-0", LogConfig(message_timestamp_after_max_ms=2**62), now_ms=0, clean=False)
    try:
        log.append(data, now_ms=0)
    except (RecordsError, LogError):
        assert log.log_end_offset == 0
        assert log.size_bytes() == 0
    else:
        assert log.log_end_offset == len(written)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_none(data: bytes) -> None:
    ProducerState.from_snapshot(data)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_a_batch_that_would_fill_the_memory_is_refused(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1 << 20)

    header = BatchView(build_batch([RecordToWrite(key=None, value=b"", timestamp=0)])).header
    payload = compression.compress(codec, bytes(compression.MAX_DECOMPRESSED_BYTES + 1))
    bomb = assemble(header._replace(attributes=int(codec)), payload)
    assert len(bomb) < 100_000
    with pytest.raises(RecordsError, match="grows beyond"):
        list(iterate_records(BatchView(bomb)))
