"""`hailbus-broker dump-log` and `dump-metadata`: print the files' contents. They need no broker and change nothing."""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from hailbus_broker.cluster.metadata.image import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
)
from hailbus_broker.cluster.metadata.reading import MetadataReader
from hailbus_broker.cluster.metadata.records import decode_record
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, decode_snapshot
from hailbus_broker.coordinators.group.consumer_records import CONSUMER_VALUE_TYPES
from hailbus_broker.coordinators.group.shard import KEY_TYPES
from hailbus_broker.coordinators.outcome import decode_key, decode_value
from hailbus_broker.log import LogError, encode_uuid
from hailbus_broker.log.leader_epochs import FILE_NAME as LEADER_EPOCHS
from hailbus_broker.log.leader_epochs import parse_checkpoint
from hailbus_broker.log.log_directory import METADATA_LOG, parse_partition_directory
from hailbus_broker.log.offset_index import OffsetIndex
from hailbus_broker.log.producer_state import ProducerState
from hailbus_broker.log.time_index import TimeIndex
from hailbus_broker.log.transaction_index import TransactionIndex
from hailbus_broker.protocol.definitions.group_metadata_value import GroupMetadataValue
from hailbus_broker.protocol.definitions.offset_commit_value import OffsetCommitValue
from hailbus_broker.protocol.definitions.transaction_log_key import TransactionLogKey
from hailbus_broker.protocol.definitions.transaction_log_value import TransactionLogValue
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.schema import Struct
from hailbus_broker.records import (
    BatchView,
    Compression,
    ControlType,
    CorruptBatchError,
    RecordsError,
    iterate_records,
    read_control_type,
)
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.protocol.schema import Field, Message
    from hailbus_broker.records import Record

Line = dict[str, Any]  # a JSON document

_GROUP_VALUES: Final[dict[int, type[Message]]] = {
    0: OffsetCommitValue,
    1: OffsetCommitValue,
    2: GroupMetadataValue,
    **CONSUMER_VALUE_TYPES,
}


def dump_log(paths: Sequence[str], *, records: bool, as_json: bool) -> int:
    """Print batches, index entries and states; 1 when a file is damaged.

    Args:
        paths: Files of a partition, or directories of partitions.
        records: The records of each batch, too.
        as_json: One document per line.

    Raises:
        StartError: There is no such file, or it is no file of a partition.
    """
    is_whole = True
    for path in _files(paths):
        try:
            for line in _lines(path, records=records):
                _write(line, as_json=as_json)
        except (RecordsError, LogError, ProtocolError, _DamageError) as error:
            sys.stdout.flush()
            sys.stderr.write(f"hailbus-broker: {path} is damaged: {error}\n")
            is_whole = False
    return 0 if is_whole else 1


def dump_metadata(data_dir: str, *, shows_image: bool, as_json: bool) -> int:
    """Print the records of the cluster's metadata, or what they add up to.

    Raises:
        StartError: The directory has no metadata.
    """
    directory = Path(data_dir) / str(METADATA_LOG)
    if not directory.is_dir():
        raise StartError(f"{data_dir} has no {METADATA_LOG}; give --data-dir the folder that serve was given")
    if not shows_image:
        return dump_log([str(directory)], records=True, as_json=as_json)
    image = MetadataImage()
    snapshot = MetadataSnapshots(RealDisk(), str(directory)).newest()
    start = 0
    try:
        if snapshot is not None:
            start = snapshot.end_offset
            for message in decode_snapshot((directory / snapshot.file_name).read_bytes()):
                image.replay(message)
        reader = MetadataReader(start)
        for path in _files([str(directory)]):
            for batch in _batches(path):
                image.apply(reader.read([batch]))
        image.version = reader.next_offset
    except (RecordsError, ProtocolError, _DamageError) as error:
        sys.stderr.write(f"hailbus-broker: {directory} is damaged: {error}\n")
        return 1
    for line in _image_lines(image):
        _write(line, as_json=as_json)
    return 0


def _image_lines(image: MetadataImage) -> Iterator[Line]:
    for name, level in sorted(image.features.items()):
        yield {"feature": name, "level": level}
    for node_id, broker in sorted(image.brokers.items()):
        yield {"broker": node_id, "broker_epoch": broker.broker_epoch}
    for name, topic in sorted(image.topics.items()):
        yield {"topic": name, "topic_id": encode_uuid(UUID(bytes=topic.topic_id)), "partitions": len(topic.partitions)}
        for state in topic.partitions:
            yield {
                "topic": name,
                "partition": state.index,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "replicas": state.replicas,
                "isr": state.isr,
            }
    for kind, name, values in image.all_configs():
        yield {"config_of": kind.name.lower(), "name": name, "configs": dict(values)}
    yield {"next_producer_id": image.next_producer_id, "records": image.version}


class _DamageError(Exception):
    """A file contradicts itself or its neighbour."""


def _write(line: Line, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    else:
        text = " ".join(
            f"{name}={value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)}"
            for name, value in line.items()
        )
        sys.stdout.write(("  " if "record" in line else "") + text + "\n")


def _files(paths: Sequence[str]) -> list[Path]:
    found = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            logs = sorted(path.glob("*.log"))
            if not logs:
                raise StartError(f"the folder {text} has no .log file: give a partition's folder, like data/rides-0")
            found += logs
        elif path.is_file():
            found.append(path)
        else:
            raise StartError(f"there is no file {text}")
    return found


def _lines(path: Path, *, records: bool) -> Iterator[Line]:
    if path.name == LEADER_EPOCHS:
        return ({"leader_epoch": epoch, "start_offset": start} for epoch, start in _leader_epochs(path))
    reader = {
        ".log": lambda path: _log_lines(path, records=records),
        ".index": _offset_index_lines,
        ".timeindex": _time_index_lines,
        ".txnindex": _transaction_index_lines,
        ".checkpoint": lambda path: _log_lines(path, records=records),
        ".snapshot": _producer_lines,
    }.get(path.suffix)
    if reader is None or not (path.stem.isdigit() or SnapshotId.parse(path.name)):
        raise StartError(
            f"{path} is no file of a partition: give a .log, .index, .timeindex, .txnindex, .snapshot or .checkpoint, "
            f"{LEADER_EPOCHS}, or a partition's folder"
        )
    return reader(path)


# ---------------------------------------------------------------------------------------------------- batches


def _batches(path: Path) -> Iterator[BatchView]:
    if not path.stat().st_size:
        return
    with path.open("rb") as file:
        # Not closed here: records are views of it, and it goes when the last of them does.
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    position = 0
    while position < len(view):
        try:
            batch = BatchView(view, position)
        except CorruptBatchError as error:
            raise _DamageError(f"at byte {position}: {error}") from error
        batch.check_crc(path=str(path))
        position += batch.size_bytes
        yield batch


def _log_lines(path: Path, *, records: bool) -> Iterator[Line]:
    place = parse_partition_directory(path.resolve().parent.name)
    decode = _DECODERS.get("" if place is None else place.topic, _plain_record)
    expected = int(path.stem) if path.stem.isdigit() else 0
    for batch in _batches(path):
        header = batch.header
        if header.base_offset < expected:
            raise _DamageError(f"at byte {batch.position}: offset {header.base_offset} follows {expected - 1}")
        expected = header.next_offset
        line: Line = {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.record_count,
            "position": batch.position,
            "size_bytes": header.size_bytes,
            "max_timestamp": header.max_timestamp,
            "timestamp_type": header.timestamp_type.name,
            "compression": Compression(header.codec).name.lower(),
            "leader_epoch": header.leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
            "crc": header.crc,
        }
        if header.is_control:
            control = read_control_type(batch)
            line["control"] = "unknown" if control is None else ControlType(control).name
        yield line
        if records and not header.is_control:
            for record in iterate_records(batch):
                yield {"record": record.offset, "timestamp": record.timestamp, **decode(record)}


def _text(data: bytes | memoryview | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "backslashreplace")


def _plain_record(record: Record) -> Line:
    line: Line = {"key": _text(record.key), "value": _text(record.value)}
    if record.headers:
        line["headers"] = {name: _text(value) for name, value in record.headers}
    return line


def _metadata_record(record: Record) -> Line:
    message = decode_record(record.value or b"", offset=record.offset)
    return {"type": type(message).__name__, "value": _plain(message)}


def _coordinator_record(
    keys: dict[int, type[Message]], value_of: Callable[[int], type[Message]]
) -> Callable[[Record], Line]:
    def decode(record: Record) -> Line:
        key = None if record.key is None else decode_key(record.key, keys)
        if key is None:
            return _plain_record(record)  # a newer broker's
        value = None if record.value is None else decode_value(record.value, value_of(key.__api_key__))
        return {"type": type(key).__name__, "key": _plain(key), "value": None if value is None else _plain(value)}

    return decode


_DECODERS: Final[dict[str, Callable[[Record], Line]]] = {
    CLUSTER_METADATA_TOPIC: _metadata_record,
    GROUP_METADATA_TOPIC: _coordinator_record(KEY_TYPES, _GROUP_VALUES.__getitem__),
    TRANSACTION_STATE_TOPIC: _coordinator_record(
        {TransactionLogKey.__api_key__: TransactionLogKey}, lambda _: TransactionLogValue
    ),
}


def _plain(struct: Struct) -> Line:
    return {field.name: _plain_value(field, getattr(struct, field.name)) for field in struct.__fields__}


def _plain_value(field: Field, value: Any) -> Any:  # as the field's kind says
    if value is None:
        return None
    match field.kind:
        case "uuid":
            return encode_uuid(UUID(bytes=bytes(value)))
        case "bytes":
            return _text(value)
        case "struct":
            return _plain(value)
        case "array":
            element = field.element
            assert element is not None
            return [_plain(item) if isinstance(element, type) else _plain_value(element, item) for item in value]
        case _:
            return value


# ---------------------------------------------------------------------------------------------------- beside a log


def _offset_index_lines(path: Path) -> Iterator[Line]:
    base_offset = int(path.stem)
    starts = {batch.position: batch.header.last_offset for batch in _batches(path.with_suffix(".log"))}
    before = -1
    for relative, position in OffsetIndex(RealDisk(), str(path), base_offset).entries():
        offset = base_offset + relative
        if not relative and not position:
            continue  # Apache Kafka allots its indexes ahead: zeros are room for entries
        if offset <= before:
            raise _DamageError(f"the entry of offset {offset} follows that of {before}")
        if starts.get(position) != offset:
            raise _DamageError(f"offset {offset} is said to end the batch at byte {position}, which it does not")
        before = offset
        yield {"offset": offset, "position": position}


def _time_index_lines(path: Path) -> Iterator[Line]:
    base_offset = int(path.stem)
    last_offsets = {batch.header.last_offset for batch in _batches(path.with_suffix(".log"))}
    before = -1
    for timestamp, relative in TimeIndex(RealDisk(), str(path), base_offset).entries():
        if not timestamp and not relative:
            continue
        if timestamp < before:
            raise _DamageError(f"the time {timestamp} follows {before}")
        if base_offset + relative not in last_offsets:
            raise _DamageError(f"offset {base_offset + relative} of time {timestamp} ends no batch")
        before = timestamp
        yield {"timestamp": timestamp, "offset": base_offset + relative}


def _transaction_index_lines(path: Path) -> Iterator[Line]:
    for entry in TransactionIndex(RealDisk(), str(path)).entries:
        yield dict(zip(entry._fields, entry, strict=True))


def _producer_lines(path: Path) -> Iterator[Line]:
    state = ProducerState.from_snapshot(path.read_bytes())
    if state is None:
        raise _DamageError("it is not a whole snapshot of producers")
    for producer_id, entry in sorted(state.producers.items()):
        last = entry.batches[-1] if entry.batches else None
        yield {
            "producer_id": producer_id,
            "producer_epoch": entry.producer_epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_timestamp": entry.last_timestamp,
            "last_sequence": None if last is None else last.last_sequence,
            "last_offset": None if last is None else last.last_offset,
            "current_transaction_start_offset": entry.transaction_first_offset,
        }


def _leader_epochs(path: Path) -> list[tuple[int, int]]:
    return parse_checkpoint(str(path), path.read_bytes())
