"""Records without CloudEvents attributes: found out when they are read, left out when they are written.

A topic that says so by `default_event=` or `discriminator=` may hold records of producers that know nothing of
CloudEvents. Such a record gets its attributes here, before anything else looks at it:

- `type` and version from the header or field that the topic names, else the topic's default event;
- `id` from the topic's `attributes=`, else topic, partition and offset of the original record, so that a redelivery, a
  retry topic or another consumer sees the same id;
- `source` from `attributes=`, else `/kafka/<topic>`; `time` from `attributes=`, else the record's timestamp; `subject`
  from `attributes=`, else the key where it is text.

The record itself stays what it is: dead letters and replays have its bytes and headers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from hailbus._transport import Bus, Consumer, Received, TopicPartition
from hailbus._transport.wrapped import WrappedBus, WrappedConsumer
from hailbus.adopted import Adopted
from hailbus.codec import header_pairs
from hailbus.dead_letter import origin
from hailbus.envelope import CONTENT_TYPE, SPECVERSION, Envelope, Headers, time_text
from hailbus.errors import ConfigurationError, ContractError, InvalidPayloadError, MissingHeaderError
from hailbus.event import Event, FromField, FromHeader, Topic, event_info, type_and_version
from hailbus.schema_id import payload_of

if TYPE_CHECKING:
    from hailbus.catalogue import Catalogue

__all__ = ["adopted", "adopted_by", "adopting", "defaults_of", "plain_record", "with_attributes"]

REPLAYED_FROM = frozenset({"hailbus-replayed-from", "sdk-replayed-from"})


def with_attributes(record: Received, attributes: Mapping[str, str], *, value: bytes | None) -> Adopted:
    """A record with these CloudEvents attributes, before its own headers and in the order of hailbus' own records."""
    version = int(attributes.get("version", "1"))
    first = {
        "specversion": SPECVERSION.decode(),
        "id": attributes["id"],
        "source": attributes["source"],
        "type": attributes["type"],
        "time": attributes["time"],
        "dataschema": f"hailbus:{attributes['type']}/v{version}",
    }
    more = {name: text for name, text in attributes.items() if name not in first and name != "version"}
    headers: Headers = [
        *((f"ce_{name}", text.encode()) for name, text in first.items()),
        ("content-type", CONTENT_TYPE),
        *((f"ce_{name}", text.encode()) for name, text in more.items()),
        *record.headers,
    ]
    return Adopted(record, headers, value)


def defaults_of(record: Received) -> dict[str, str]:
    """Attributes of a record that says nothing of itself: id, source and time by its place in the log."""
    topic, partition, offset, timestamp = origin(record)
    place = f"{topic}-{partition}-{offset}"
    for name, value in record.headers:
        if name in REPLAYED_FROM and value:
            # A replay is a new record. Two replays of one dead letter are the same event.
            place = value.decode("utf-8", "replace").replace("@", "-")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(timestamp, 0))
    return {"id": place, "source": f"/kafka/{topic}", "time": time_text(moment)}


def adopted(record: Received, topic: Topic, *, of_tombstones: str | None = None) -> Received:
    """A record with CloudEvents attributes; itself when it has some, or is a structured CloudEvent.

    Args:
        record: As it was read, from the topic itself, a retry topic or a dead letter topic.
        topic: The original topic, one that `reads_plain`.
        of_tombstones: Type of records without value, where only a field could have named it.
    """
    if isinstance(record, Adopted):
        return record
    for name, value in record.headers:
        if name.startswith("ce_") or (
            name == "content-type" and value and value.startswith(b"application/cloudevents")
        ):
            return record
    try:
        return with_attributes(record, _attributes(record, topic, of_tombstones), value=record.value)
    except ContractError as error:
        return Adopted(record, tuple(record.headers), record.value, error)
    except Exception as error:  # noqa: BLE001 a record must not stop the reading of its partition
        refusal = InvalidPayloadError(type="", version=0, reason=repr(error), topic=record.topic)
        return Adopted(record, tuple(record.headers), record.value, refusal)


def _attributes(record: Received, topic: Topic, of_tombstones: str | None) -> dict[str, str]:
    found = _Source(record, topic)
    attributes = defaults_of(record)
    if record.key is not None:
        with contextlib.suppress(UnicodeDecodeError):
            attributes["subject"] = record.key.decode()
    named = found.text(topic.discriminator) if topic.discriminator is not None else None
    if named is not None and topic.discriminator is not None:
        known = topic.discriminator.names.get(named)
        type_, version = type_and_version(known) if known is not None else (named, 1)
    elif topic.default_event is not None:
        type_, version = type_and_version(topic.default_event)
    elif record.value is None and of_tombstones is not None:
        type_, version = of_tombstones, 1
    else:
        raise found.missing(topic.discriminator)
    attributes |= {"type": type_, "version": str(version)}
    for name, source in topic.attributes.items():
        text = source if isinstance(source, str) else found.text(source)
        if text is not None:
            attributes[name] = _version(text, topic) if name == "version" else text
    return attributes


def _version(text: str, topic: Topic) -> str:
    number = text.strip().lower().removeprefix("v").partition(".")[0]
    if not number.isascii() or not number.isdigit() or int(number) < 1:
        raise InvalidPayloadError(
            type="", version=0, reason=f"the version {text!r} is not like 2, 'v2' or '2.1'", topic=topic.name
        )
    return str(int(number))


class _Source:
    """The headers and fields of one record. The value is parsed when a field is asked for, once."""

    def __init__(self, record: Received, topic: Topic) -> None:
        self._record = record
        self._topic = topic
        self._document: Any = None  # Any: JSON
        self._is_parsed = False

    def text(self, source: FromHeader | FromField) -> str | None:
        """What a header or field holds, as text; None when it is missing, null or empty."""
        if isinstance(source, FromHeader):
            for name, value in self._record.headers:
                if name == source.name and value:
                    return value.decode("utf-8", "replace")
            return None
        found = self._parsed()
        for part in source.path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None or found == "":
            return None
        return found if isinstance(found, str) else json.dumps(found)

    def _parsed(self) -> Any:
        if not self._is_parsed:
            self._is_parsed = True
            if self._record.value is not None:
                try:
                    self._document = json.loads(payload_of(self._record.value))
                except ValueError:
                    self._document = None
        return self._document

    def missing(self, source: FromHeader | FromField | None) -> ContractError:
        """Why the record names no event."""
        topic = self._topic.name
        if isinstance(source, FromHeader):
            return MissingHeaderError(header=source.name, topic=topic)
        path = source.path if source is not None else ""
        kind = f"has no field {path!r}" if isinstance(self._parsed(), dict) else "is no JSON object"
        return InvalidPayloadError(
            type="", version=0, reason=f"the value {kind}, which names the event on this topic", topic=topic
        )


def dataschema_of(topic: Topic, value: bytes, headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """The `ce_dataschema` of a record that is written plain, by what would name its event when it is read."""
    try:
        found = _attributes(_Outgoing(topic=topic.name, value=value, headers=headers), topic, None)
    except ContractError:
        return None
    return f"hailbus:{found['type']}/v{found['version']}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outgoing:
    """A record on its way out, in the shape of one that was read."""

    topic: str
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    timestamp_type: int = 0
    key: bytes | None = None


# ------------------------------------------------------------------------------------------------ writing


def plain_record(event: Event, envelope: Envelope, data: bytes) -> tuple[bytes, Headers]:
    """Value and headers of an event on a topic without CloudEvents: the data, and what the topic reads attributes from.

    A header or field that the topic names is written, unless the event has that field itself.

    Raises:
        ConfigurationError: The topic would read the event as another, or a nested field is not the event's own.
    """
    info = event_info(event)
    topic = info.topic
    topic.check_plain()
    written: dict[FromHeader | FromField, str | int] = {}
    if topic.discriminator is not None:
        names = [name for name, text in topic.discriminator.names.items() if type_and_version(text) == _kind(envelope)]
        written[topic.discriminator] = names[0] if names else envelope.type
        if not names and envelope.version != 1 and "version" not in topic.attributes:
            message = (
                f"{topic.name!r} is written plain, and nothing says that {envelope.type} has version "
                f"{envelope.version}; list it in the discriminator's names as '{envelope.type}/v{envelope.version}'"
            )
            raise ConfigurationError(message)
    elif topic.default_event is not None and type_and_version(topic.default_event) != _kind(envelope):
        message = (
            f"{topic.name!r} is written plain, and its default event is {topic.default_event}; {envelope.type} "
            f"v{envelope.version} would be read as that. Give the topic a discriminator."
        )
        raise ConfigurationError(message)
    known: dict[str, str | int | None] = {
        "id": envelope.id,
        "source": envelope.source,
        "time": time_text(envelope.time),
        "subject": envelope.subject,
        "version": envelope.version,
        "correlationid": envelope.correlation_id,
        "causationid": envelope.causation_id,
        "traceparent": envelope.traceparent,
        **envelope.extensions,
    }
    for name, source in topic.attributes.items():
        value = known.get(name)
        if not isinstance(source, str) and value is not None:
            written[source] = value
    headers: Headers = []
    fields: dict[str, str | int] = {}
    own = {field.serialization_alias or name for name, field in type(event).model_fields.items()}
    for source, value in written.items():
        if isinstance(source, FromHeader):
            headers.append((source.name, str(value).encode()))
        elif source.path.partition(".")[0] not in own:
            if "." in source.path:
                message = f"{info.type} has no field {source.path!r}, which {topic.name!r} needs; add it to the event"
                raise ConfigurationError(message)
            fields[source.path] = value
    if fields:
        front = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        data = front if data == b"{}" else front[:-1] + b"," + data[1:]
    return data, headers


def _kind(envelope: Envelope) -> tuple[str, int]:
    return envelope.type, envelope.version


# ------------------------------------------------------------------------------------------------ reading


def adopting(bus: Bus, catalogue: Catalogue) -> Bus:
    """A bus whose consumers hand out records with CloudEvents attributes; itself when no topic needs it."""
    topics = {topic.name: topic for topic in catalogue.topics if topic.reads_plain}
    if not topics:
        return bus
    return _AdoptingBus(inner=bus, catalogue=catalogue, topics=topics)


def adopted_by(record: Any, catalogue: Catalogue) -> Any:  # Any: whatever `codec.decode` is given
    """A record with CloudEvents attributes, if it comes from a topic of the catalogue that has records without."""
    topic = catalogue.topic(record.topic)
    if topic is None:
        topic = catalogue.topic(_origin_topic(record))
    if topic is None or not topic.reads_plain or isinstance(record, Adopted) or not hasattr(record, "offset"):
        return record
    return adopted(record, topic, of_tombstones=_some_type(catalogue, topic))


def _origin_topic(record: Any) -> str:  # Any: as above
    for name, value in header_pairs(record.headers):
        if name == "kafka_dlt-original-topic":
            return str(value.decode("utf-8", "replace"))
    return ""


def _some_type(catalogue: Catalogue, topic: Topic) -> str | None:
    classes = catalogue.on_topic(topic.name)
    return event_info(classes[0]).type if classes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdoptingBus(WrappedBus):
    """See `adopting`."""

    catalogue: Catalogue
    topics: Mapping[str, Topic]

    def consumer_over(self, inner: Consumer, topics: Sequence[str]) -> Consumer:
        plain = {name: topic for name in topics if (topic := self._topic_of(name)) is not None}
        return _AdoptingConsumer(inner, self.catalogue, plain) if plain else inner

    def _topic_of(self, name: str) -> Topic | None:
        """The plain topic of this name, or the one behind a retry topic of this name."""
        if name in self.topics or "-retry-" not in name:
            return self.topics.get(name)
        return next((topic for found, topic in self.topics.items() if name.startswith(f"{found}.")), None)


class _AdoptingConsumer(WrappedConsumer):
    """See `Consumer`."""

    def __init__(self, inner: Consumer, catalogue: Catalogue, topics: Mapping[str, Topic]) -> None:
        super().__init__(inner)
        self._topics = {name: (topic, _some_type(catalogue, topic)) for name, topic in topics.items()}

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        polled = await self._inner.poll(timeout_s=timeout_s, max_records=max_records)
        return {partition: self._adopted(partition[0], records) for partition, records in polled.items()}

    def _adopted(self, name: str, records: Iterable[Received]) -> Sequence[Received]:
        found = self._topics.get(name)
        if found is None:
            return list(records)
        topic, of_tombstones = found
        return [adopted(record, topic, of_tombstones=of_tombstones) for record in records]
