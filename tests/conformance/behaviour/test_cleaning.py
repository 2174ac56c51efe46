"""Retention and compaction as a client sees them."""

from __future__ import annotations

from typing import Any

from hailbus_broker.records import RecordToWrite, build_batch

from tests.conformance.conftest import MakeTopic
from tests.conformance.wire import Wire, batches, now_ms, records
from tests.support import wait_for

DAY_MS = 86_400_000


def put(wire: Wire, topic: str, key: bytes, value: bytes | None) -> int:
    record = RecordToWrite(key=key, value=value, timestamp=now_ms())
    found = wire.produce(topic, build_batch([record]))
    assert found.error_code == 0, found
    base: int = found.base_offset
    return base


def stored(wire: Wire, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all that is there."""
    offset = wire.list_offset(topic, -2).offset
    found: list[tuple[int, bytes | None, bytes | None]] = []
    while True:
        data = wire.fetch(topic, offset).records
        if not data:
            return found
        found += [(record.offset, record.key, record.value) for record in records(data) if record.offset >= offset]
        offset = batches(data)[-1].header.next_offset


def compacted_topic(make_topic: MakeTopic, **more: str) -> str:
    settings: dict[str, Any] = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "segment_ms": "50",  # each segment is soon closed, and only closed ones are compacted
        "delete_retention_ms": "0",
    }
    return make_topic(**(settings | more))


def test_compaction_keeps_the_newest_value_of_each_key_and_its_offset(wire: Wire, make_topic: MakeTopic) -> None:
    topic = compacted_topic(make_topic)
    for number in range(3):
        put(wire, topic, b"a", b"a%d" % number)
        put(wire, topic, b"b", b"b%d" % number)
    end = 6

    def superseded() -> bool:
        nonlocal end
        end = put(wire, topic, b"tick", b"t") + 1  # closes the segment before
        return [item for item in stored(wire, topic) if item[1] in {b"a", b"b"}] == [(4, b"a", b"a2"), (5, b"b", b"b2")]

    wait_for("what is superseded is gone", superseded, 30)
    # The log's end and its start are what they were, and what is left is in order.
    assert wire.list_offset(topic, -1).offset == end
    assert wire.list_offset(topic, -2).offset == 0
    offsets = [offset for offset, _, _ in stored(wire, topic)]
    assert offsets == sorted(offsets)
    # A read from an offset that is gone begins with the next one that is there.
    assert next(record.offset for record in records(wire.fetch(topic, 1).records) if record.offset >= 1) == 4


def test_a_tombstone_takes_its_key_away_and_then_goes_itself(wire: Wire, make_topic: MakeTopic) -> None:
    topic = compacted_topic(make_topic)
    put(wire, topic, b"gone", b"v")
    put(wire, topic, b"kept", b"v")
    put(wire, topic, b"gone", None)

    def is_gone() -> bool:
        put(wire, topic, b"tick", b"t")
        return {key for _, key, _ in stored(wire, topic)} == {b"kept", b"tick"}

    wait_for("key and tombstone are gone", is_gone, 30)


def test_a_tombstone_stays_for_its_time(wire: Wire, make_topic: MakeTopic) -> None:
    topic = compacted_topic(make_topic, delete_retention_ms=str(DAY_MS))
    put(wire, topic, b"gone", b"v")
    put(wire, topic, b"gone", None)

    def value_is_gone() -> bool:
        put(wire, topic, b"tick", b"t")
        return [item for item in stored(wire, topic) if item[1] == b"gone"] == [(1, b"gone", None)]

    wait_for("the value is gone", value_is_gone, 30)


def test_old_records_go_and_the_log_starts_later(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_ms="1000")  # also when they are in the segment that is written to
    wire.write(topic, b"old 0", b"old 1", timestamp=now_ms() - 60_000)
    wait_for("the old ones are gone", lambda: wire.list_offset(topic, -2).offset == 2, 30)
    assert wire.write(topic, b"new", timestamp=now_ms() + 60_000) == 2
    assert stored(wire, topic) == [(2, None, b"new")]


def test_a_log_above_its_size_loses_its_oldest_segments(wire: Wire, make_topic: MakeTopic) -> None:
    topic = make_topic(retention_bytes="2000000", segment_bytes="1048576")
    for _ in range(8):
        wire.write(topic, b"x" * 700_000)  # one per segment

    wait_for("the oldest are gone", lambda: wire.list_offset(topic, -2).offset >= 5, 30)
    assert wire.list_offset(topic, -1).offset == 8
    # What the limit allows is still there.
    assert len(stored(wire, topic)) * 700_000 >= 1_400_000


def test_minus_one_keeps_everything(wire: Wire, make_topic: MakeTopic) -> None:
    eternal = make_topic(retention_ms="-1", segment_ms="50")
    mortal = make_topic(retention_ms="1000", segment_ms="50")
    for topic in (eternal, mortal):
        wire.write(topic, b"old", timestamp=now_ms() - 400 * DAY_MS)
        wire.write(topic, b"old too", timestamp=now_ms() - 400 * DAY_MS)
    wait_for("the mortal ones are gone", lambda: wire.list_offset(mortal, -2).offset == 2, 30)
    assert wire.list_offset(eternal, -2).offset == 0
    assert [value for _, _, value in stored(wire, eternal)] == [b"old", b"old too"]
