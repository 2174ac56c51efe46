"""The log as an account of its own: what records say, fed one by one, in a form that a million of them fit in memory.

`LogReader` takes records in the order of each partition's offsets and may be fed further at any time. It keeps about
400 bytes per position of a driver and 650 per other event: id, place, two hashes, and what the event says.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final, NamedTuple

from hailbus import Event, event_info
from hailbus.contract import contract_of
from hailbus.record_sum import MODULUS, record_hash
from hailbus.schema_id import HEADER as SCHEMA_ID
from hailbus.schema_id import header_of
from pydantic_core import from_json
from ride_events import CATALOGUE, TOPICS
from ride_events.drivers import DRIVER_LOCATIONS

from hailbus_demo.ledger.model import Finding, Partition

BROKEN_KEPT: Final = 1_000
FRESH_MS: Final = 30_000
"""A driver is free for a ride who was seen free less than this before a minute's end."""
CLASSES: Final[Mapping[str, type[Event]]] = {info.dataschema: cls for cls in CATALOGUE for info in (event_info(cls),)}
"""`ce_dataschema` → event class, of every event of the published language."""
TOPIC_NAMES: Final = frozenset(topic.name for topic in TOPICS)
PackedId = bytes | str
"""An event id as `pack_id` returns it."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
REPLAYED_FROM: Final = "hailbus-replayed-from"
"""A header of a dead letter that was replayed, which is done in a transaction: its marker has an offset of its own."""
POSITION_TYPE: Final = "driver.location_reported"


class LogRecord(NamedTuple):
    """A record as a client read it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Step(NamedTuple):
    """One event of a ride, quote, payment, driver or cell, as the log tells it. `data` is the event's JSON."""

    type: str
    row: int
    seq: int
    time_ms: int
    data: Mapping[str, Any]


@dataclass(slots=True)
class PartitionLog:
    """One partition as read: `gaps` are ranges of offsets, in order, at which no record came."""

    start: int
    next_offset: int
    records: int = 0
    checksum: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def hides(self, offset: int) -> bool:
        """Return whether the offset is in a gap."""
        index = bisect_right(self.gaps, offset, key=itemgetter(0)) - 1
        return index >= 0 and offset < self.gaps[index][1]


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccount:
    """What the log holds.

    Attributes:
        starts: First offset of each partition, by the broker.
        ends: End of each partition, by the broker, when the reading began.
        partitions: What was read of each.
        reader: Where the records' rows are; see the methods of `LogReader`.
    """

    starts: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    reader: LogReader

    @property
    def partitions(self) -> Mapping[Partition, PartitionLog]:
        """What was read of each partition."""
        return self.reader.partitions


class LogReader:
    """Reads records into columns and trails; not safe for several threads at once.

    Attributes:
        partitions: What was read of each partition.
        rows: Event id → row of the first record that carries it.
        repeats: Rows of records whose event id was there before.
        changed: Row → value of the first of them that say something else than the record before.
        replayed: For each partition the offsets of dead letters that somebody has replayed.
        broken: What is no event, or not what its topic or key says.
        rides: Ride id → its steps in the order of the log; `quotes`, `drivers` and `cells` map the same way.
        payments: By ride.
        served: Recommendation id → step, as does `chosen`.
        forecasts: Every forecast of demand, `supplies` of supply; `scores` are how far they were off.
        timers: Every timer.
        overdue: Every ride whose time in a state was over.
        positions: For each position report, a hash of who was where when, see `position_hash`; `position_rows` are
            their rows.
        newest_ms: Topic → the newest event time.
        sightings: Minute → driver → the last sighting in the minute's second half: when, whether busy, and the cell,
            "" where the event does not tell it.
    """

    def __init__(self) -> None:
        self.partitions: dict[Partition, PartitionLog] = {}
        self.rows: dict[PackedId, int] = {}
        self.repeats: list[int] = []
        self.changed: dict[int, bytes] = {}
        self.replayed: dict[Partition, list[int]] = {}
        self.broken: list[Finding] = []
        self.rides: dict[str, list[Step]] = {}
        self.quotes: dict[str, list[Step]] = {}
        self.drivers: dict[str, list[Step]] = {}
        self.payments: dict[str, list[Step]] = {}
        self.cells: dict[str, list[Step]] = {}
        self.served: dict[str, Step] = {}
        self.chosen: dict[str, Step] = {}
        self.forecasts: list[Step] = []
        self.supplies: list[Step] = []
        self.scores: list[Step] = []
        self.timers: list[Step] = []
        self.overdue: list[Step] = []
        self.positions = array("Q")
        self.position_rows = array("q")
        self.newest_ms: dict[str, int] = {}
        self.sightings: dict[int, dict[str, tuple[int, bool, str]]] = {}
        self._places: list[Partition] = []
        self._place_index: dict[Partition, int] = {}
        self._kinds: list[tuple[str, str]] = []  # source and type
        self._kind_index: dict[tuple[str, str], int] = {}
        self._ids: list[PackedId] = []
        self._place = array("H")
        self._offset = array("q")
        self._kind = array("H")
        self._content = array("q")
        self._value = array("q")
        self._latest_of_key: dict[Partition, dict[bytes, int]] = {}
        self._trails: dict[str, tuple[dict[str, list[Step]], str]] = {
            "rides.v1": (self.rides, "ride_id"),
            "quotes.v1": (self.quotes, "quote_id"),
            "drivers.v1": (self.drivers, "driver_id"),
            "payments.v1": (self.payments, "ride_id"),
            "surge.v1": (self.cells, "cell"),
        }

    # ------------------------------------------------------------------------------------------ reading

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """Begin partitions that were not read before at their first offset."""
        for place, start in starts.items():
            if place not in self.partitions:
                self.partitions[place] = PartitionLog(start=start, next_offset=start)

    def reach(self, place: Partition, end: int) -> None:
        """Note that the partition was read to `end`: offsets before it without a record are gaps."""
        log = self.partitions[place]
        if end > log.next_offset:
            log.gaps.append((log.next_offset, end))
            log.next_offset = end

    def feed(self, record: LogRecord) -> None:
        """Take the next record of its partition. An offset that was read before is refused as broken."""
        place = (record.topic, record.partition)
        log = self.partitions.get(place)
        if log is None:
            log = self.partitions[place] = PartitionLog(start=record.offset, next_offset=record.offset)
        if record.offset < log.next_offset:
            self._break(record, f"offset {record.offset} came again or too late", None)
            return
        if record.offset > log.next_offset:
            log.gaps.append((log.next_offset, record.offset))
        log.next_offset = record.offset + 1
        log.records += 1
        log.checksum = (
            log.checksum + record_hash(record.partition, record.offset, record.key, record.value, record.headers)
        ) % MODULUS
        if record.topic in TOPIC_NAMES:
            self._feed_event(place, record)

    def _feed_event(self, place: Partition, record: LogRecord) -> None:
        event_id = kind = source = time = subject = schema = schema_id = None
        for name, value in record.headers:
            if value is None:
                continue
            if name == "ce_id":
                event_id = value.decode("utf-8", "replace")
            elif name == "ce_type":
                kind = value.decode("utf-8", "replace")
            elif name == "ce_source":
                source = value.decode("utf-8", "replace")
            elif name == "ce_time":
                time = value.decode("utf-8", "replace")
            elif name == "ce_dataschema":
                schema = value.decode("utf-8", "replace")
            elif name == "ce_subject":
                subject = value.decode("utf-8", "replace")
            elif name == SCHEMA_ID:
                schema_id = value
            elif name == REPLAYED_FROM:
                self.replayed.setdefault(place, []).append(record.offset)
        if record.key is not None and place[0] in COMPACTED:
            self._latest_of_key.setdefault(place, {})[record.key] = record.offset
        if event_id is None or kind is None or source is None or time is None:
            self._break(record, "the record is no event: a CloudEvents header is missing", event_id)
            return
        event_class = CLASSES.get(schema or "")
        if event_class is None or event_info(event_class).type != kind:
            self._break(record, f"an event of type {kind!r} and schema {schema!r} is unknown", event_id)
            return
        if event_info(event_class).topic.name != record.topic:
            self._break(record, f"an event of type {kind!r} does not belong on this topic", event_id)
            return
        if schema_id is not None and schema_id != schema_id_for(event_class):
            self._break(record, f"the record's schema id is not that of {kind!r}", event_id)
        row = self._append(place, record, event_id, source, kind)
        packed = pack_id(event_id)
        first = self.rows.get(packed)
        if first is not None:
            self.repeats.append(row)
            if self._content[row] != self._content[first] and len(self.changed) < BROKEN_KEPT:
                self.changed[row] = record.value or b""
            return
        self.rows[packed] = row
        try:
            event_class.model_validate_json(record.value or b"")
            data = from_json(record.value or b"")
            time_ms = milliseconds(time)
            self._follow(record, Step(kind, row, int(data.get("seq", 0)), time_ms, data), subject)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = str(error).replace("\n", " ")
            self._break(record, f"an event of type {kind!r} cannot be read: {reason}", event_id)

    def _follow(self, record: LogRecord, step: Step, subject: str | None) -> None:
        """Add an event to what it belongs to."""
        data, key = step.data, None if record.key is None else record.key.decode("utf-8", "replace")
        self.newest_ms[record.topic] = max(step.time_ms, self.newest_ms.get(record.topic, step.time_ms))
        if key != subject:
            self._break(record, f"the record's key is {key!r}, its event's subject {subject!r}", self.id_of(step.row))
        trail = self._trails.get(record.topic)
        if trail is not None:
            steps, field_name = trail
            name = str(data[field_name])
            if name != key:
                self._break(record, f"the record's key is {key!r}, its {field_name} {name!r}", self.id_of(step.row))
            steps.setdefault(name, []).append(step)
            if record.topic == "drivers.v1":
                self._see(step, free="cell" in data)
        elif step.type == POSITION_TYPE:
            position = data["position"]
            hashed = position_hash(str(data["driver_id"]), position["lat"], position["lng"], step.time_ms)
            self.positions.append(hashed)
            self.position_rows.append(step.row)
            self._see(step, free=bool(data["free"]))
        elif step.type == "recommendation.served":
            self.served[str(data["recommendation_id"])] = step
        elif step.type == "recommendation.chosen":
            self.chosen[str(data["recommendation_id"])] = step
        elif step.type == "demand.forecast_published":
            self.forecasts.append(step)
        elif step.type == "supply.forecast_published":
            self.supplies.append(step)
        elif step.type in {"demand.forecast_scored", "supply.forecast_scored"}:
            self.scores.append(step)
        elif step.type == "booking.timer_elapsed":
            self.timers.append(step)
        elif step.type == "booking.ride_overdue":
            self.overdue.append(step)

    def _see(self, step: Step, *, free: bool) -> None:
        """Keep a sighting of a driver if a minute's supply may depend on it."""
        minute, into_ms = divmod(step.time_ms, 60_000)
        if into_ms > 60_000 - FRESH_MS:
            drivers = self.sightings.setdefault(minute, {})
            sighting = (step.time_ms, not free, str(step.data.get("cell", "")))
            known = drivers.get(step.data["driver_id"])
            if known is None or sighting > known:
                drivers[step.data["driver_id"]] = sighting

    def _append(self, place: Partition, record: LogRecord, event_id: str, source: str, kind: str) -> int:
        index = self._place_index.get(place)
        if index is None:
            index = self._place_index[place] = len(self._places)
            self._places.append(place)
        said = (source, kind)
        kind_index = self._kind_index.get(said)
        if kind_index is None:
            kind_index = self._kind_index[said] = len(self._kinds)
            self._kinds.append(said)
        self._ids.append(pack_id(event_id))
        self._place.append(index)
        self._offset.append(record.offset)
        self._kind.append(kind_index)
        self._content.append(content_hash(record.key, record.value, record.headers))
        self._value.append(value_hash(record.value))
        return len(self._ids) - 1

    def _break(self, record: LogRecord, what: str, event_id: str | None) -> None:
        if len(self.broken) < BROKEN_KEPT:
            self.broken.append(
                Finding(
                    what=what, topic=record.topic, partition=record.partition, offset=record.offset, id=event_id or None
                )
            )

    # ------------------------------------------------------------------------------------------ asking

    def row_of(self, event_id: str) -> int | None:
        """Return the row of the first record with this event id."""
        return self.rows.get(pack_id(event_id))

    def place_of(self, row: int) -> Place:
        """Return where a row's record is."""
        topic, partition = self._places[self._place[row]]
        return Place(topic, partition, self._offset[row])

    def id_of(self, row: int) -> str:
        """Return a row's event id."""
        return unpack_id(self._ids[row])

    def source_of(self, row: int) -> str:
        """Return the CloudEvents source of a row's event."""
        return self._kinds[self._kind[row]][0]

    def type_of(self, row: int) -> str:
        """Return the type of a row's event."""
        return self._kinds[self._kind[row]][1]

    def content_of(self, row: int) -> int:
        """Return the hash of a row's key, value and headers; see `content_hash`."""
        return self._content[row]

    def value_of(self, row: int) -> int:
        """Return the hash of a row's value; see `value_hash`."""
        return self._value[row]

    def events(self) -> Iterator[int]:
        """Yield the rows of all events, each event once, in the order of reading."""
        return iter(self.rows.values())

    def newer_of_key(self, place: Partition, key: bytes, offset: int) -> bool:
        """Return whether a compacted partition holds a record of this key at a higher offset."""
        return self._latest_of_key.get(place, {}).get(key, -1) > offset

    def finding(self, what: str, row: int) -> Finding:
        """Return a finding about a row's record."""
        topic, partition, offset = self.place_of(row)
        return Finding(what=what, topic=topic, partition=partition, offset=offset, id=self.id_of(row))


COMPACTED: Final = frozenset(topic.name for topic in TOPICS if "compact" in topic.cleanup_policy)
POSITIONS: Final = DRIVER_LOCATIONS.name


def pack_id(event_id: str) -> PackedId:
    """Return an event id in few bytes: a canonical UUID takes 16, any other id stays as it is."""
    return bytes.fromhex(event_id.replace("-", "")) if _UUID.fullmatch(event_id) else event_id


def unpack_id(packed: PackedId) -> str:
    """Return the event id that `pack_id` packed."""
    if isinstance(packed, str):
        return packed
    text = packed.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def content_hash(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return a number for what a record says, wherever it is: two publications of one event have the same.

    It differs from process to process: it is for comparisons within one ledger. The schema id does not count: a
    service adds it when it writes the record, and the event in an outbox has none.
    """
    return hash((key, value, tuple(header for header in headers if header[0] != SCHEMA_ID)))


@cache
def schema_id_for(event: type[Event]) -> bytes:
    """Return the schema id that a record of this event carries, derived from its class and not from a registry."""
    # Its client takes a tenth of a second to import, and a log without schema ids needs none of it.
    from hailbus.registry.references import guid_of
    from hailbus.registry.schemas import registered_form

    return header_of(guid_of(registered_form(contract_of(event))))[1]


def value_hash(value: bytes | None) -> int:
    """Return a number for a record's value, as `content_hash` does for all of it."""
    return hash(value or b"")


def position_hash(driver_id: str, lat: float, lng: float, time_ms: int) -> int:
    """Return 64 bits of who was where when."""
    said = f"{driver_id}\n{lat!r}\n{lng!r}\n{time_ms}".encode()
    return int.from_bytes(blake2b(said, digest_size=8).digest(), "little")


def milliseconds(text: str) -> int:
    """Return the Unix milliseconds of an RFC 3339 time."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


__all__ = [
    "COMPACTED",
    "POSITIONS",
    "LogAccount",
    "LogReader",
    "LogRecord",
    "PackedId",
    "PartitionLog",
    "Place",
    "Step",
    "content_hash",
    "milliseconds",
    "pack_id",
    "position_hash",
    "unpack_id",
    "value_hash",
]
