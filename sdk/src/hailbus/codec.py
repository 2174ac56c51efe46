"""Events to record bytes and back: CloudEvents in binary or structured mode, JSON values by pydantic-core."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import ValidationError

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
from hailbus.errors import InvalidPayloadError, MissingHeaderError, TombstoneError
from hailbus.event import ContentMode, Event, event_info, key_of
from hailbus.schema_id import payload_of
from hailbus.upcasting import upcasted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus.catalogue import Catalogue

__all__ = [
    "Encoded",
    "RecordLike",
    "decode",
    "decode_value",
    "encode",
    "envelope_for",
    "legible_attributes",
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
    id: str | None = None,  # noqa: A002 CloudEvents' own word
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
        mode: CloudEvents binary or structured mode; None for the topic's, which is binary unless it says otherwise.

    Raises:
        MissingKeyError: The key field is None or empty.
        ConfigurationError: Structured mode, and an extension is called as the data is.
    """
    data = event.__pydantic_serializer__.to_json(event)
    if (mode or event_info(event).topic.content_mode) != "structured":
        return Encoded(key_of(event), data, headers_of(envelope))
    attributes = json.dumps(attributes_in(envelope), ensure_ascii=False, separators=(",", ":")).encode()
    value = b"".join((attributes[:-1], b',"data":', data, b"}"))
    return Encoded(key_of(event), value, [("content-type", STRUCTURED_CONTENT_TYPE)])


def header_pairs(headers: Iterable[tuple[str, bytes]] | Mapping[str, bytes] | None) -> Sequence[tuple[str, bytes]]:
    """Record headers as pairs, whatever client library they come from."""
    if headers is None:
        return ()
    if isinstance(headers, Mapping):
        return tuple(headers.items())
    return headers if isinstance(headers, (list, tuple)) else tuple(headers)


def read_envelope(record: RecordLike) -> Envelope:
    """Only the envelope of a record; the value is looked at in structured mode alone.

    Raises:
        MissingHeaderError, HeaderError: It is not a CloudEvent.
        InvalidPayloadError: It claims structured mode, and its value is not that.
    """
    headers = header_pairs(record.headers)
    structured = _structured(record, headers)
    return (
        structured[0] if structured else envelope_from(attributes_of(headers, topic=record.topic), topic=record.topic)
    )


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
