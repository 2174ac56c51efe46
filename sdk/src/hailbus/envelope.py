"""What surrounds an event, by CloudEvents 1.0: as record headers in binary mode, beside the data in structured mode."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from hailbus.errors import ConfigurationError, HeaderError, MissingHeaderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Envelope", "Headers", "envelope_of", "headers_of", "new_id", "parse_dataschema"]

Headers = list[tuple[str, bytes]]
"""Record headers as Kafka keeps them: in order, names may repeat, values are bytes."""

SPECVERSION = b"1.0"
CONTENT_TYPE = b"application/json"
STRUCTURED_CONTENT_TYPE = b"application/cloudevents+json; charset=UTF-8"
_DATASCHEMA = re.compile(r"hailbus:(?P<type>[^/]+)/v(?P<version>[1-9][0-9]*)\Z")
_NO_EXTENSIONS: Mapping[str, str] = MappingProxyType({})
_KNOWN = frozenset(
    {
        "specversion",
        "id",
        "source",
        "type",
        "time",
        "subject",
        "dataschema",
        "datacontenttype",
        "correlationid",
        "causationid",
        "traceparent",
    }
)
_KNOWN_HEADERS = {f"ce_{name}": name for name in _KNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The CloudEvents attributes of one event.

    Attributes:
        id: Unique with `source`; a retry of the same publication keeps it, consumers dedupe on it.
        source: URI reference of the publishing service, for example `/booking`.
        type: For example `ride.requested`.
        version: Of the type; travels in `ce_dataschema` as `hailbus:<type>/v<version>`.
        time: When the fact happened (event time), aware, UTC.
        subject: What the event is about: the key, as text.
        correlation_id: Same for all events of one business process (`ce_correlationid`).
        causation_id: Id of the event that caused this one (`ce_causationid`).
        traceparent: W3C context of the *creation*; never changed per hop.
        extensions: Further CloudEvents extension attributes, without the `ce_` prefix.
    """

    id: str
    source: str
    type: str
    version: int
    time: datetime
    subject: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    extensions: Mapping[str, str] = field(default_factory=lambda: _NO_EXTENSIONS)

    @property
    def dataschema(self) -> str:
        """The schema URI that carries the version."""
        return f"hailbus:{self.type}/v{self.version}"


IDS_AT_ONCE = 64
_random_hex: list[str] = []


def new_id() -> str:
    """A random UUID (version 4) as text; five times as fast as `str(uuid.uuid4())`."""
    try:
        h = _random_hex.pop()
    except IndexError:
        drawn = os.urandom(16 * IDS_AT_ONCE).hex()
        _random_hex.extend(drawn[start : start + 32] for start in range(0, 32 * IDS_AT_ONCE, 32))
        h = _random_hex.pop()
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANTS[h[16]]}{h[17:20]}-{h[20:]}"


_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random_hex.clear)  # or both processes would use what is left


@lru_cache(maxsize=1_024)  # the records of one event type all have the same
def parse_dataschema(text: str) -> tuple[str, int] | None:
    """Type and version of a `ce_dataschema` that hailbus wrote, None for anybody else's."""
    match = _DATASCHEMA.match(text)
    return (match["type"], int(match["version"])) if match else None


def time_text(moment: datetime) -> str:
    """RFC 3339 in UTC with `Z`, microseconds only when there are some.

    Raises:
        ConfigurationError: The time has no time zone.
    """
    if moment.tzinfo is not UTC:
        if moment.utcoffset() is None:
            message = (
                f"the event time {moment.isoformat()} has no time zone, so nobody knows which moment it means; "
                "give an aware datetime, as datetime(2026, 5, 1, 12, tzinfo=UTC)"
            )
            raise ConfigurationError(message)
        moment = moment.astimezone(UTC)
    return moment.isoformat()[:-6] + "Z"  # in place of +00:00


def headers_of(envelope: Envelope) -> Headers:
    """The record headers of an envelope, in binary mode, always in the same order."""
    headers: Headers = [
        ("ce_specversion", SPECVERSION),
        ("ce_id", envelope.id.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_time", time_text(envelope.time).encode()),
        ("ce_dataschema", envelope.dataschema.encode()),
        ("content-type", CONTENT_TYPE),
    ]
    if envelope.subject is not None:
        headers.append(("ce_subject", envelope.subject.encode()))
    if envelope.correlation_id is not None:
        headers.append(("ce_correlationid", envelope.correlation_id.encode()))
    if envelope.causation_id is not None:
        headers.append(("ce_causationid", envelope.causation_id.encode()))
    if envelope.traceparent is not None:
        headers.append(("ce_traceparent", envelope.traceparent.encode()))
    headers.extend((f"ce_{name}", value.encode()) for name, value in sorted(envelope.extensions.items()))
    return headers


def attributes_in(envelope: Envelope) -> dict[str, str]:
    """The CloudEvents attributes of an envelope by name, as a structured event has them beside its data.

    Raises:
        ConfigurationError: An extension has a name that belongs to the data.
    """
    if clash := {"data", "data_base64"} & envelope.extensions.keys():
        message = f"no CloudEvents attribute is called {min(clash)!r}; name the extension otherwise"
        raise ConfigurationError(message)
    attributes = {
        "specversion": SPECVERSION.decode(),
        "id": envelope.id,
        "source": envelope.source,
        "type": envelope.type,
        "time": time_text(envelope.time),
        "dataschema": envelope.dataschema,
        "datacontenttype": CONTENT_TYPE.decode(),
        "subject": envelope.subject,
        "correlationid": envelope.correlation_id,
        "causationid": envelope.causation_id,
        "traceparent": envelope.traceparent,
        **dict(sorted(envelope.extensions.items())),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def attributes_of(headers: Iterable[tuple[str, bytes]], *, topic: str | None = None) -> dict[str, str]:
    """The CloudEvents attributes among record headers, names without prefix. Other headers may hold any bytes.

    Raises:
        HeaderError: A `ce_` header is not UTF-8.
    """
    attributes: dict[str, str] = {}
    for name, value in headers:
        attribute = _KNOWN_HEADERS.get(name) or (name[3:] if name.startswith("ce_") else None)
        if attribute is not None:
            try:
                attributes[attribute] = value.decode()
            except (UnicodeDecodeError, AttributeError) as error:
                raise HeaderError(header=name, value=value or b"", reason="not UTF-8 text", topic=topic) from error
    return attributes


def envelope_of(headers: Iterable[tuple[str, bytes]], *, topic: str | None = None) -> Envelope:
    """Read the envelope from record headers in binary mode.

    Raises:
        MissingHeaderError: `ce_id`, `ce_source` or `ce_type` is absent.
        HeaderError: A `ce_` header is not UTF-8, or `ce_time` is no RFC 3339 time.
    """
    return envelope_from(attributes_of(headers, topic=topic), topic=topic)


def envelope_from(attributes: Mapping[str, str], *, topic: str | None = None) -> Envelope:
    """Build the envelope from CloudEvents attributes by name. Errors as for `envelope_of`."""
    for required in ("id", "source", "type"):
        if not attributes.get(required):
            raise MissingHeaderError(header=f"ce_{required}", topic=topic)
    schema = parse_dataschema(attributes.get("dataschema", ""))
    extensions = (
        {} if attributes.keys() <= _KNOWN else {name: value for name, value in attributes.items() if name not in _KNOWN}
    )
    return Envelope(
        id=attributes["id"],
        source=attributes["source"],
        type=attributes["type"],
        # A foreign producer's schema URI says nothing to us: its events are read as version 1.
        version=schema[1] if schema else 1,
        time=_time_of(attributes.get("time"), topic=topic),
        subject=attributes.get("subject"),
        correlation_id=attributes.get("correlationid"),
        causation_id=attributes.get("causationid"),
        traceparent=attributes.get("traceparent"),
        extensions=MappingProxyType(extensions) if extensions else _NO_EXTENSIONS,
    )


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time_of(text: str | None, *, topic: str | None) -> datetime:
    if text is None:  # optional in CloudEvents: a reader must not fail on it
        return EPOCH
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise HeaderError(header="ce_time", value=text.encode(), reason="no RFC 3339 time", topic=topic) from error
    return moment if moment.tzinfo is UTC else moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
