"""Metadata records are those of Apache Kafka 4.3, byte for byte; what is not known stops the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.metadata.reading import MetadataReader
from hailbus_broker.cluster.metadata.records import (
    RECORD_TYPES,
    UnknownRecordError,
    decode_record,
    encode_record,
    record_class,
    record_version,
)
from hailbus_broker.protocol.definitions.abort_transaction_record import AbortTransactionRecord
from hailbus_broker.protocol.definitions.begin_transaction_record import BeginTransactionRecord
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.end_transaction_record import EndTransactionRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import BatchView, RecordToWrite, build_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.protocol.schema import Message

RECORDED = json.loads(Path(__file__).with_name("apache_kafka_metadata_records.json").read_text())
"""Values from the metadata logs of Apache Kafka 4.3.1, by type and version."""


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda one: f"{one['name']}-v{one['version']}")
def test_a_record_of_apache_kafka_is_written_as_it_was_read(recorded: dict[str, object]) -> None:
    for text in recorded["values"]:  # type: ignore[attr-defined]  # a list of texts
        value = bytes.fromhex(text)
        record = decode_record(value)
        assert type(record).__name__ == recorded["name"]
        assert record_version(record) == recorded["version"]
        assert encode_record(record) == value


@pytest.mark.parametrize("key", RECORD_TYPES)
def test_every_type_survives_in_every_version(key: int) -> None:
    cls = record_class(key)
    for version in range(cls.__versions__.first, cls.__versions__.last + 1):
        value = encode_record(cls(), version)
        assert value[:3] == bytes([1, key, version])
        assert encode_record(decode_record(value), version) == value


def test_a_change_of_a_registration_has_the_lowest_version_with_its_fields() -> None:
    changes = [
        BrokerRegistrationChangeRecord(fenced=1),
        BrokerRegistrationChangeRecord(fenced=1, in_controlled_shutdown=1),
        BrokerRegistrationChangeRecord(in_controlled_shutdown=1, log_dirs=[bytes(16)]),
        BrokerRegistrationChangeRecord(log_dirs=[bytes(16)], cordoned_log_dirs=[]),
    ]
    assert [record_version(change) for change in changes] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (bytes([1, 6, 0, 0]), r"at offset 17 has type 6 \(unknown\) in version 0"),
        (bytes([1, 99, 0, 0]), r"at offset 17 has type 99 \(unknown\) in version 0"),
        (bytes([1, 3, 9, 0]), r"at offset 17 has type 3 \(PartitionRecord\) in version 9"),
    ],
)
def test_an_unknown_record_is_named_with_type_version_and_offset(value: bytes, says: str) -> None:
    with pytest.raises(UnknownRecordError, match=says) as refused:
        decode_record(value, offset=17)
    assert (refused.value.type, refused.value.version, refused.value.offset) == (value[1], value[2], 17)
    reader = MetadataReader()
    with pytest.raises(UnknownRecordError):
        reader.read([_batch([value])])


@pytest.mark.parametrize(
    "value", [b"", b"\x01", b"\x01\x14", b"\x02\x14\x00\x00", b"\x01\x14\x00\x00\x00", b"\x01\x02\x00\x05ab"]
)
def test_a_damaged_record_is_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(value)


BEGIN, END, ABORT = BeginTransactionRecord(name="bootstrap"), EndTransactionRecord(), AbortTransactionRecord()


def level(number: int) -> Message:
    return FeatureLevelRecord(name="group.version", feature_level=number)


def _batch(values: Sequence[bytes], base_offset: int = 0) -> BatchView:
    records = [RecordToWrite(key=None, value=value, timestamp=0) for value in values]
    return BatchView(memoryview(build_batch(records, base_offset=base_offset)), 0)


def batch(base_offset: int, *records: Message) -> BatchView:
    return _batch([encode_record(record) for record in records], base_offset)


def test_records_of_a_transaction_wait_for_its_end_over_batches() -> None:
    reader = MetadataReader()
    assert reader.read([batch(0, level(1), BEGIN, level(2)), batch(3, level(3))]) == [level(1)]
    assert (reader.next_offset, reader.snapshot_offset, reader.transactions.is_open) == (4, 1, True)
    assert reader.transactions.name == "bootstrap"
    assert reader.read([batch(4, level(4), END, level(5))]) == [level(2), level(3), level(4), level(5)]
    assert (reader.next_offset, reader.snapshot_offset, reader.transactions.is_open) == (7, 7, False)


def test_records_of_an_aborted_transaction_are_dropped() -> None:
    reader = MetadataReader()
    assert reader.read([batch(0, BEGIN, level(2))]) == []
    assert reader.read([batch(2, ABORT, level(3), BEGIN, level(4), END)]) == [level(3), level(4)]


def test_a_restart_reads_an_open_transaction_from_its_beginning() -> None:
    """A snapshot ends before the transaction; the log behind the snapshot has all of it."""
    log = [batch(0, level(1)), batch(1, BEGIN, level(2)), batch(3, level(3)), batch(4, END)]
    first = MetadataReader()
    first.read(log[:3])
    again = MetadataReader(first.snapshot_offset)
    assert again.read(log) == [level(2), level(3)]


@pytest.mark.parametrize("records", [(END,), (ABORT,), (BEGIN, level(1), BEGIN), (BEGIN, END, END)])
def test_markers_that_contradict_each_other_are_refused(records: tuple[Message, ...]) -> None:
    with pytest.raises(ProtocolError, match="metadata transaction"):
        MetadataReader().read([batch(0, *records)])
