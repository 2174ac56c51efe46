"""Events to record bytes and back: CloudEvents in binary or structured mode, JSON values by pydantic-core."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from hailbus.clock import utc_now
from hailbus.envelope import (
    STRUCTURED_CONTENT_TYPE,
    Envelope,
    Headers,
    attributes_in,
    attributes_of,
    envelope_from,
    headers_of,
    new_id,
)
from hailbus.errors import ContractError, InvalidPayloadError, MissingHeaderError, TombstoneError
from hailbus.event import ContentMode, Event, event_info, key_of
from hailbus.schema_id import payload_of
from hailbus.upcasting import upcasted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hailbus.catalogue import Catalogue

__all__ = [
    "Encoded",
    "RecordLike",
    "decode",
    "decode_value",
    "encode",
    "envelope_for",
    "legible_attributes",
    "plain_floats",
    "read_envelope",
]

STRUCTURED_PREFIX = b"application/cloudevents"


class Encoded(NamedTuple):
    """Key, value and headers of one record. The key is None for an event class without key."""

    key: bytes | None
    value: bytes
    headers: Headers


class RecordLike(Protocol):
    """What `decode` reads of a record: aiokafka's and faust's, and a `SimpleNamespace`, all fit."""

    @property
    def topic(self) -> str: ...  # noqa: D102 the names say it
    @property
    def key(self) -> bytes | None: ...  # noqa: D102 the names say it
    @property
    def value(self) -> bytes | None: ...  # noqa: D102 the names say it
    @property
    def headers(self) -> Any: ...  # noqa: D102 a sequence of pairs, a mapping, or None


def envelope_for(
    event: Event,
    *,
    source: str,
    id: str | None = None,
    time: datetime | None = None,
    cause: Envelope | None = None,
    traceparent: str | None = None,
    extensions: Mapping[str, str] | None = None,
) -> Envelope:
    """A fresh envelope for an event.

    Args:
        event: What happened.
        source: URI reference of the publisher.
        id: A stable id where there is one; else a random UUID.
        time: When it happened; else now.
        cause: Envelope of the event that led to this one: gives `causation_id`, and hands `correlation_id` on.
        traceparent: W3C trace context; else the cause's.
        extensions: Further CloudEvents attributes.
    """
    info = event_info(event)
    key = key_of(event)
    return Envelope(
        id=id if id is not None else new_id(),
        source=source,
        type=info.type,
        version=info.version,
        time=time if time is not None else utc_now(),
        subject=key.decode() if key is not None else None,
        correlation_id=(cause.correlation_id or cause.id) if cause is not None else None,
        causation_id=cause.id if cause is not None else None,
        traceparent=traceparent if traceparent is not None or cause is None else cause.traceparent,
        **({"extensions": extensions} if extensions else {}),
    )


def encode(event: Event, envelope: Envelope, mode: ContentMode | None = None) -> Encoded:
    """Key, value and headers of an event's record.

    Args:
        event: What happened.
        envelope: What surrounds it.
        mode: CloudEvents binary or structured mode, or plain, without CloudEvents attributes; None for the topic's,
            which is binary unless it says otherwise.

    Raises:
        MissingKeyError: The key field is None or empty.
        InvalidPayloadError: A field holds what JSON cannot.
        ConfigurationError: Structured mode, and an extension is called as the data is; or plain mode, and the topic
            would read the record as another event.
    """
    data = json_of(event)
    mode = mode or event_info(event).topic.content_mode
    if mode == "plain":
        from hailbus.plain import plain_record

        return Encoded(key_of(event), *plain_record(event, envelope, data))
    if mode != "structured":
        return Encoded(key_of(event), data, headers_of(envelope))
    attributes = json.dumps(attributes_in(envelope), ensure_ascii=False, separators=(",", ":")).encode()
    value = b"".join((attributes[:-1], b',"data":', data, b"}"))
    return Encoded(key_of(event), value, [("content-type", STRUCTURED_CONTENT_TYPE)])


def json_of(event: Event) -> bytes:
    """An event's data as JSON.

    Raises:
        InvalidPayloadError: A field holds what JSON cannot: NaN, an infinity, or bytes that are not UTF-8.
    """
    try:
        data = event.__pydantic_serializer__.to_json(event)
    except PydanticSerializationError as error:
        raise not_json(event, error) from error
    if may_hold_numbers_beyond_json(type(event)):
        check_numbers(event, data)
    return data


# What pydantic calls the schemas whose values never hold a float.
_WITHOUT_FLOATS = frozenset(
    {
        *("model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"),
        *("typed-dict", "typed-dict-field", "named-tuple", "arguments", "arguments-parameter"),
        *("default", "nullable", "union", "tagged-union", "lax-or-strict", "json-or-python", "chain"),
        *("list", "tuple", "set", "frozenset", "dict", "definitions", "definition-ref"),
        *("none", "bool", "int", "str", "bytes", "decimal", "literal", "enum", "url", "multi-host-url", "uuid"),
        *("date", "time", "datetime", "timedelta", "computed-field"),
    }
)
_checks: dict[type[Event], bool] = {}


def may_hold_numbers_beyond_json(cls: type[Event]) -> bool:
    """Whether events of a class may hold NaN or an infinity that would be written wrongly."""
    found = _checks.get(cls)
    if found is None:
        found = cls.model_config.get("ser_json_inf_nan") != "strings" and _may_hold_floats(cls.__pydantic_core_schema__)
        _checks[cls] = found
    return found


def plain_floats(cls: type[Event]) -> tuple[str, ...] | None:
    """The fields that are floats, when no other part of the events of a class can hold one; else None."""
    schema: Any = cls.__pydantic_core_schema__  # Any: pydantic's typed dictionaries, of many kinds
    while schema.get("type") == "definitions":
        schema = schema["schema"]
    fields = schema.get("schema", {}).get("fields") if schema.get("type") == "model" else None
    if not isinstance(fields, Mapping):
        return None
    found = []
    rest: list[object] = [{**schema, "schema": {**schema["schema"], "fields": {}}}]
    for name, field in fields.items():
        inner = field.get("schema", {})
        while inner.get("type") in {"default", "nullable"} and "serialization" not in inner:
            inner = inner["schema"]
        if inner.get("type") == "float" and "serialization" not in inner and "serialization" not in field:
            found.append(name)
        else:
            rest.append(field)
    return None if _may_hold_floats(rest) else tuple(found)


def _may_hold_floats(schema: object) -> bool:
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        if isinstance(kind, str) and kind not in _WITHOUT_FLOATS:
            return True
        return any(_may_hold_floats(part) for name, part in schema.items() if name != "metadata")
    if isinstance(schema, list):
        return any(_may_hold_floats(part) for part in schema)
    # A schema that pydantic has not built yet says nothing.
    return not isinstance(schema, (str, int, float, bytes, tuple, set, frozenset, type, type(None))) and not callable(
        schema
    )


def check_numbers(event: Event, data: bytes) -> None:
    """Refuse an event whose JSON has lost a number.

    pydantic writes NaN and the infinities as `null`, or as words that are no JSON. A reader would dead-letter them.

    Raises:
        InvalidPayloadError: It names the field and the number.
    """
    if (b"null" not in data and b"NaN" not in data and b"Infinity" not in data) or _is_finite(event):
        return
    lost = _lost_number(event, json.loads(data), "")
    if lost is not None:
        path, number = lost
        info = event_info(event)
        reason = f"{path} is {number}, which JSON cannot hold; leave the event unpublished or make the field optional"
        raise InvalidPayloadError(type=info.type, version=info.version, reason=reason, topic=info.topic.name)


def _is_finite(value: object) -> bool:
    """Whether no part of a value is a float that JSON cannot hold; False where only the JSON itself can tell."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (str, int, datetime, type(None))):
        return True
    if isinstance(value, BaseModel) and not type(value).model_computed_fields and not value.__pydantic_extra__:
        return all(map(_is_finite, value.__dict__.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return False


def _lost_number(value: object, written: object, path: str) -> tuple[str, float] | None:
    """Path and value of the first number that was written as null or as no JSON number."""
    if isinstance(value, float):
        kept = math.isfinite(value) or isinstance(written, str)
        return None if kept else (path, value)
    for name, part, written_part in _parts(value, written):
        found = _lost_number(part, written_part, f"{path}.{name}" if path else name)
        if found is not None:
            return found
    return None


def _parts(value: object, written: object) -> Iterator[tuple[str, object, object]]:
    """The parts of a value beside the JSON that was written for them, where both have the same shape."""
    if isinstance(written, dict):
        named: dict[str, object] = {}
        keys: dict[str, str] = {}
        if isinstance(value, BaseModel):
            for name, field in type(value).model_fields.items():
                named[name] = getattr(value, name)
                keys[name] = field.serialization_alias or field.alias or name
            for name, computed in type(value).model_computed_fields.items():
                named[name] = getattr(value, name)
                keys[name] = computed.alias or name
            named.update(value.__pydantic_extra__ or {})
        elif dataclasses.is_dataclass(value):
            named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        elif isinstance(value, Mapping):
            named = {str(name): part for name, part in value.items()}
        for name, part in named.items():
            for key in (name, keys.get(name, name)):
                if key in written:
                    yield name, part, written[key]
                    break
    elif isinstance(written, list) and isinstance(value, (list, tuple, set, frozenset)) and len(value) == len(written):
        for index, (part, written_part) in enumerate(zip(value, written, strict=True)):
            yield str(index), part, written_part


def not_json(event: Event, error: PydanticSerializationError) -> InvalidPayloadError:
    """The error for an event that cannot be written: it names the field and its value where they can be found."""
    info = event_info(event)
    found = next(iter(_not_utf8(event, "")), None)
    if found is None:
        reason = str(error)
    else:
        path, value = found
        reason = (
            f"{path} is {value!r:.60}, which is not UTF-8 text, so JSON cannot hold it; for binary data set "
            'ser_json_bytes="base64" and val_json_bytes="base64" in the class\'s model_config'
        )
    return InvalidPayloadError(type=info.type, version=info.version, reason=reason, topic=info.topic.name)


def _not_utf8(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Path and value of bytes and texts that have no UTF-8 form."""
    if isinstance(value, (str, bytes, bytearray)):
        try:
            value.encode() if isinstance(value, str) else value.decode()
        except UnicodeError:
            yield path, value
        return
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, BaseModel):
        parts = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif dataclasses.is_dataclass(value):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = enumerate(value)
    for name, part in parts:
        yield from _not_utf8(part, f"{path}.{name}" if path else str(name))


def header_pairs(headers: Iterable[tuple[str, bytes]] | Mapping[str, bytes] | None) -> Sequence[tuple[str, bytes]]:
    """Record headers as pairs, whatever client library they come from."""
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        return tuple(headers.items())
    return headers if isinstance(headers, (list, tuple)) else tuple(headers)


def read_envelope(record: RecordLike) -> Envelope:
    """Only the envelope of a record; the value is looked at in structured mode alone.

    A record of a topic without CloudEvents must have been adopted (`hailbus.plain`).

    Raises:
        MissingHeaderError, HeaderError: It is not a CloudEvent.
        InvalidPayloadError: It claims structured mode, and its value is not that.
    """
    _check_adopted(record)
    headers = header_pairs(record.headers)
    structured = _structured(record, headers)
    return (
        structured[0] if structured else envelope_from(attributes_of(headers, topic=record.topic), topic=record.topic)
    )


def _check_adopted(record: RecordLike) -> None:
    """Raise the error for which a record without CloudEvents attributes got none."""
    refusal: ContractError | None = getattr(record, "refusal", None)
    if refusal is not None:
        raise refusal


def legible_attributes(headers: Sequence[tuple[str, bytes]], value: bytes | None) -> dict[str, str]:
    """The CloudEvents attributes of a record, in either mode, as far as they can be read: of a broken record, some."""
    found = {name[3:]: (text or b"").decode("utf-8", "replace") for name, text in headers if name.startswith("ce_")}
    if _claims_structured(headers) and value is not None:
        with contextlib.suppress(ValueError):
            document = json.loads(value)
            if isinstance(document, dict):
                found |= _attributes(document)
    return found


def decode(record: RecordLike, catalogue: Catalogue) -> tuple[Event, Envelope]:
    """The event, in its newest version, and the envelope of a record, with the version that was written.

    Raises:
        MissingHeaderError, HeaderError: It is not a CloudEvent.
        UnknownEventError, UnsupportedVersionError: The catalogue has no class for it.
        InvalidPayloadError: The value is not what its class says.
        TombstoneError: There is no value.
    """
    if catalogue.has_plain_topics:
        from hailbus.plain import adopted_by

        record = adopted_by(record, catalogue)
        _check_adopted(record)
    headers = header_pairs(record.headers)
    structured = _structured(record, headers)
    if structured is not None:
        envelope, data = structured
    else:
        envelope = envelope_from(attributes_of(headers, topic=record.topic), topic=record.topic)
        if record.value is None:
            raise TombstoneError(type=envelope.type, topic=record.topic, key=record.key)
        data = record.value
    cls = catalogue.lookup(envelope.type, envelope.version, topic=record.topic)
    return upcasted(decode_value(cls, data, topic=record.topic)), envelope


def decode_value(cls: type[Event], value: bytes, *, topic: str | None = None) -> Event:
    """A record value as an event of a class; a schema id in front of it is passed over.

    Raises:
        InvalidPayloadError: The value is no JSON, or not what the class says.
    """
    try:
        event: Event = cls.__pydantic_validator__.validate_json(payload_of(value))
    except ValidationError as error:
        info = event_info(cls)
        raise InvalidPayloadError(type=info.type, version=info.version, reason=_reason(error), topic=topic) from error
    return event


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return (f"{place}: " if place else "") + first["msg"] + (f" (and {more} more)" if more else "")


def _claims_structured(headers: Iterable[tuple[str, bytes]]) -> bool:
    for name, value in headers:
        if name == "content-type" and value is not None and value.startswith(STRUCTURED_PREFIX):
            return True
    return False


def _attributes(document: Mapping[str, object]) -> dict[str, str]:
    """The attributes of a structured event, which stand beside its data."""
    return {
        # A boolean attribute is written `true`; null is the same as absent.
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in document.items()
        if name not in {"data", "data_base64"} and value is not None
    }


def _structured(record: RecordLike, headers: Sequence[tuple[str, bytes]]) -> tuple[Envelope, bytes] | None:
    """Envelope and data of a structured-mode record, None when it is binary mode."""
    if not _claims_structured(headers):
        return None
    if record.value is None:
        # A structured event is never a tombstone: without a value there is nothing that says what it is.
        raise MissingHeaderError(header="ce_type", topic=record.topic)
    try:
        document = json.loads(record.value)
        attributes = _attributes(document)
        if "data_base64" in document:
            data = base64.b64decode(document["data_base64"], validate=True)
        else:
            data = json.dumps(document.get("data")).encode()
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidPayloadError(
            type="", version=0, reason="content-type says structured CloudEvent, the value is not", topic=record.topic
        ) from error
    return envelope_from(attributes, topic=record.topic), data
