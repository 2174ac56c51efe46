"""Batches that a consumer of aiokafka has fetched, read into records of hailbus, against two other accounts.

One is the plan by which the batches were made. The other is aiokafka's own reader, whose rules ours repeats: when a
release of aiokafka changes them, the two accounts no longer agree.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition
from hailbus._transport.aiokafka_private import _Batches, _Fetched
from hypothesis import given
from hypothesis import strategies as st

PLACE = TopicPartition("rides", 3)
ATTRIBUTES_AT, LAST_DELTA_AT, CRC_AT = 21, 23, 17
CONTROL = 0x20
CODECS = [0, 1, 2, 3, 4]
Fields = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
content = st.sampled_from([None, b"", b"a", b"\xff\x00", b"v" * 300])
fields = st.tuples(content, content, st.lists(st.tuples(st.sampled_from(["", "ce_id", "é"]), content), max_size=3))


@dataclass(frozen=True)
class Plan:
    """One batch to be made."""

    kept: dict[int, Fields]
    """The records that compaction has left, by their distance from the first offset."""
    length: int
    """Offsets that the batch takes."""
    codec: int = 0
    producer_id: int = -1
    ending: str = ""
    """`commit` or `abort` for the marker that ends a transaction."""
    gap: int = 0
    """Offsets before it that are in no batch."""


@st.composite
def batches(draw: st.DrawFn) -> Plan:
    ending = draw(st.sampled_from(["", "", "", "commit", "abort"]))
    producer_id = draw(st.sampled_from([1, 2] if ending else [-1, 1, 2]))
    if ending:
        return Plan({}, 1, producer_id=producer_id, ending=ending, gap=draw(st.integers(0, 2)))
    length = draw(st.integers(1, 6))
    kept = {delta: draw(fields) for delta in sorted(draw(st.sets(st.integers(0, length - 1))))}
    return Plan(kept, length, draw(st.sampled_from(CODECS if kept else [0])), producer_id, gap=draw(st.integers(0, 2)))


def written(plan: Plan, base: int) -> bytes:
    """The bytes of a batch, with what brokers and not producers write: offsets, markers, the gaps of compaction."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=plan.codec,
        is_transactional=plan.producer_id >= 0,
        producer_id=plan.producer_id,
        producer_epoch=0,
        base_sequence=0,
        batch_size=2**20,
    )
    for delta, (key, value, headers) in plan.kept.items():
        builder.append(delta, 1_700_000_000_000 + delta, key, value, headers)
    if plan.ending:
        builder.append(0, 1_700_000_000_000, struct.pack(">HH", 0, plan.ending == "commit"), b"\0" * 6, [])
    found = bytearray(builder.build())
    struct.pack_into(">q", found, 0, base)
    struct.pack_into(">i", found, LAST_DELTA_AT, plan.length - 1)
    if plan.ending:
        (attributes,) = struct.unpack_from(">h", found, ATTRIBUTES_AT)
        struct.pack_into(">h", found, ATTRIBUTES_AT, attributes | CONTROL)
    struct.pack_into(">I", found, CRC_AT, calc_crc32c(found[ATTRIBUTES_AT:]))
    return bytes(found)


class Log:
    """A log, and a broker's answer to a fetch: the batches from the one that holds the offset on."""

    def __init__(self, plans: list[Plan], start: int = 0) -> None:
        ends = list(accumulate(plan.gap + plan.length for plan in plans))
        self.end = ends[-1] if ends else 0
        self.start = min(start, self.end)
        self.answer = b""
        self.aborted: list[tuple[int, int]] = []
        """Producer id and first offset of each aborted transaction that ends in the answer."""
        self.records: list[tuple[int, Fields]] = []
        """Offset and fields of each record that is no marker."""
        self.hidden: set[int] = set()
        """Offsets of records of aborted transactions."""
        began: dict[int, tuple[int, list[int]]] = {}
        for plan, end in zip(plans, ends, strict=True):
            base = end - plan.length
            is_fetched = end > self.start
            if is_fetched:
                self.answer += written(plan, base)
            if plan.ending:
                first, offsets = began.pop(plan.producer_id, (base, []))
                if plan.ending == "abort":
                    self.hidden |= set(offsets)
                    if is_fetched and first < base:
                        self.aborted.append((plan.producer_id, first))
                continue
            if plan.producer_id >= 0:
                began.setdefault(plan.producer_id, (base, []))[1].extend(base + delta for delta in plan.kept)
            self.records += [(base + delta, found) for delta, found in plan.kept.items()]

    def reader(self, isolation: int = READ_COMMITTED) -> PartitionRecords:
        records = MemoryRecords(self.answer)
        return PartitionRecords(PLACE, records, self.aborted, self.start, None, None, True, isolation)

    def visible(self, isolation: int) -> list[tuple[int, Fields]]:
        return [
            (offset, found)
            for offset, found in self.records
            if offset >= self.start and not (isolation == READ_COMMITTED and offset in self.hidden)
        ]


def fields_of(record: Any) -> tuple[Any, ...]:
    return (
        *(record.topic, record.partition, record.offset, record.timestamp, record.timestamp_type),
        *(record.key, record.value, list(record.headers)),
    )


@given(
    plans=st.lists(batches(), max_size=12),
    start=st.integers(0, 40),
    isolation=st.sampled_from([READ_COMMITTED, READ_UNCOMMITTED]),
    most=st.integers(1, 5),
)
def test_fetched_batches_give_the_records_that_were_written(
    plans: list[Plan], start: int, isolation: int, most: int
) -> None:
    log = Log(plans, start)
    ours, theirs = _Batches(log.reader(isolation)), log.reader(isolation)
    found: list[Any] = []
    while True:
        some = list(islice(ours, most))
        assert [fields_of(record) for record in some] == [fields_of(record) for record in islice(theirs, most)]
        assert ours.next_fetch_offset == theirs.next_fetch_offset
        found += some
        if len(some) < most:
            break
    assert ours.next_fetch_offset == log.end
    assert [(r.offset, (r.key, r.value, list(r.headers))) for r in found] == log.visible(isolation)


VALUE: Fields = (b"key", b"value", [("name", b"text")])


def test_a_transaction_that_was_aborted_is_passed_over_and_a_later_one_of_its_producer_is_read() -> None:
    plans = [
        Plan({0: VALUE, 1: VALUE}, 2, producer_id=1),
        Plan({0: VALUE}, 1, producer_id=2),
        Plan({}, 1, producer_id=1, ending="abort"),
        Plan({0: VALUE}, 1, producer_id=1),
        Plan({}, 1, producer_id=2, ending="commit"),
        Plan({}, 1, producer_id=1, ending="commit"),
    ]
    ours = _Batches(Log(plans).reader())
    assert [record.offset for record in ours] == [2, 4]
    assert ours.next_fetch_offset == 7


def test_batches_that_compaction_has_emptied_are_passed_over() -> None:
    ours = _Batches(Log([Plan({}, 4), Plan({1: VALUE}, 3), Plan({}, 2)]).reader())
    assert [record.offset for record in ours] == [5]
    assert ours.next_fetch_offset == 9


@pytest.mark.parametrize("codec", CODECS)
def test_reading_begins_in_the_middle_of_a_batch(codec: int) -> None:
    long: Fields = (None, b"v" * 500, [])  # or it would not be compressed
    ours = _Batches(Log([Plan(dict.fromkeys(range(10), long), 10, codec)], start=7).reader())
    assert [(record.offset, record.key, record.value) for record in ours] == [
        (offset, None, b"v" * 500) for offset in (7, 8, 9)
    ]


def test_a_batch_whose_checksum_is_wrong_ends_reading_before_it() -> None:
    log = Log([Plan({0: VALUE}, 1), Plan({0: VALUE}, 1)])
    log.answer = log.answer[:-1] + bytes([log.answer[-1] ^ 1])
    ours = _Batches(log.reader())
    assert [record.offset for record in islice(ours, 1)] == [0]
    with pytest.raises(CorruptRecordException, match="CRC"):
        next(iter(ours))
    assert ours.next_fetch_offset == 1


def test_a_fetcher_keeps_each_result_with_our_reader_and_each_error_as_it_is() -> None:
    fetched = _Fetched()
    log = Log([Plan({0: VALUE, 1: VALUE}, 2)])
    fetched[PLACE] = FetchResult(PLACE, assignment=None, partition_records=log.reader(), backoff=0)
    fetched["other"] = error = object()
    assert type(fetched[PLACE]._partition_records) is _Batches
    assert fetched["other"] is error
    assert list(fetched) == [PLACE, "other"]
