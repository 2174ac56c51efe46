"""Dead letters: their topics, and the headers that describe the failure. The raw key, value and headers are kept."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from hailbus._transport import Outgoing, Received
from hailbus.adopted import Adopted, original_of
from hailbus.envelope import Headers, time_text
from hailbus.event import Topic

__all__ = [
    "dead_letter",
    "dead_letter_forms",
    "dead_letter_topic",
    "due_ms",
    "first_place",
    "is_dead_letter_header",
    "letter_limit",
    "origin",
    "original_headers",
    "retry_letter",
    "retry_topic",
    "uniform_name",
]

PREFIX = "kafka_dlt-"
RETRY_PREFIX = "retry_topic-"
ATTEMPT = "hailbus-attempt"
FIRST_FAILED_AT = "hailbus-first-failed-at"
FAILED_BY = "hailbus-failed-by"
REPLAYED_FROM = "hailbus-replayed-from"
OMITTED = "hailbus-omitted"
"""What a letter leaves out because the record was too large for its topic."""
EVENT = "hailbus-event-"
"""Before the CloudEvents attributes that were found out for a record without any, as `hailbus-event-type`."""
ADDED = frozenset({ATTEMPT, FIRST_FAILED_AT, FAILED_BY, REPLAYED_FROM, OMITTED, EVENT + "type", EVENT + "id"})
_FORMER = {
    "sdk-attempt": ATTEMPT,
    "sdk-first-failed-at": FIRST_FAILED_AT,
    "sdk-parked-by": FAILED_BY,
    "sdk-replayed-from": REPLAYED_FROM,
}
STACKTRACE_LIMIT = 8_000
MESSAGE_LIMIT = 2_000
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""
LETTER_HEADROOM_BYTES = 65_536
"""What the headers of a letter may add to a record: the stack trace, the message and the origin, with room to spare."""


def letter_limit(topic: Topic) -> str:
    """`max.message.bytes` for the dead letter and retry topics of a topic: larger than its own."""
    limit = topic.config.get("max.message.bytes", "")
    return str((int(limit) if limit.isdigit() else DEFAULT_MAX_MESSAGE_BYTES) + LETTER_HEADROOM_BYTES)


def dead_letter_topic(topic: Topic | str, group: str) -> str:
    """The group is part of the name, so that two consumers never share a dead letter topic."""
    return f"{topic if isinstance(topic, str) else topic.name}.{group}-dlt"


def retry_topic(topic: Topic | str, group: str, delay: timedelta) -> str:
    """The topic of one delay."""
    name = topic if isinstance(topic, str) else topic.name
    return f"{name}.{group}-retry-{delay // timedelta(milliseconds=1)}"


def uniform_name(name: str) -> str:
    """The present name of a header that older letters call otherwise."""
    return _FORMER.get(name, name)


def is_dead_letter_header(name: str) -> bool:
    """Whether this header was added on the way to a dead letter or retry topic."""
    return name.startswith((PREFIX, RETRY_PREFIX)) or uniform_name(name) in ADDED


def origin(record: Received) -> tuple[str, int, int, int]:
    """Topic, partition, offset and timestamp that a record had before it went to a retry or dead letter topic."""
    found = {name: value for name, value in record.headers if name.startswith(PREFIX + "original-")}
    try:
        return (
            found[PREFIX + "original-topic"].decode(),
            int(found[PREFIX + "original-partition"]),
            int(found[PREFIX + "original-offset"]),
            int(found[PREFIX + "original-timestamp"]),
        )
    except (KeyError, ValueError, AttributeError):  # the latter: a header without a value
        return record.topic, record.partition, record.offset, record.timestamp


def first_place(record: Received) -> tuple[str, int, int, int]:
    """As `origin`, but a record is believed only in a topic that is named after its origin.

    Anyone can write these headers. A record of another topic that carries them would send its dead letter to a topic
    that does not exist.
    """
    found = origin(record)
    return (
        found
        if record.topic.startswith(f"{found[0]}.")
        else (record.topic, record.partition, record.offset, record.timestamp)
    )


def attempts_before(record: Received) -> int:
    """How often the handler was called with this record before it came to this retry topic."""
    return _number(record, RETRY_PREFIX + "attempts") or 0


def due_ms(record: Received) -> int | None:
    """When a record of a retry topic is to be handled, in milliseconds since the epoch; None for other records."""
    return _number(record, RETRY_PREFIX + "backoff-timestamp")


def _number(record: Received, header: str) -> int | None:
    for name, value in record.headers:
        # Foreign records may be in this topic too: no more digits than a timestamp or a count has.
        if name == header and value is not None and value.isdigit() and len(value) < 19:
            return int(value)
    return None


def retry_letter(record: Received, *, group: str, error: BaseException, attempt: int, due: datetime) -> Outgoing:
    """The record to write to a retry topic; arguments as for `dead_letter`."""
    record = original_of(record)
    topic, partition, offset, timestamp = first_place(record)
    headers: Headers = [
        *original_headers(record.headers),
        (PREFIX + "original-topic", topic.encode()),
        (PREFIX + "original-partition", str(partition).encode()),
        (PREFIX + "original-offset", str(offset).encode()),
        (PREFIX + "original-timestamp", str(timestamp).encode()),
        (PREFIX + "original-consumer-group", group.encode()),
        (PREFIX + "exception-fqcn", _name(error).encode()),
        (PREFIX + "exception-message", _text(_message(error))),
        (RETRY_PREFIX + "attempts", str(attempt).encode()),
        (RETRY_PREFIX + "backoff-timestamp", str(int(due.timestamp() * 1000)).encode()),
        (RETRY_PREFIX + "original-timestamp", str(timestamp).encode()),
    ]
    return record.key, record.value, headers


def original_headers(headers: Sequence[tuple[str, bytes]]) -> Headers:
    """The headers as they were before the record became a dead letter."""
    return [(name, value) for name, value in headers if not is_dead_letter_header(name)]


def dead_letter(
    record: Received, *, group: str, error: BaseException | None, reason: str, attempt: int, now: datetime, by: str
) -> Outgoing:
    """The record to write to the dead letter topic.

    Args:
        record: As it was read; key, value and headers are kept unchanged.
        group: The consumer group that gives up.
        error: What was raised, None when a handler rejected the event.
        reason: One sentence.
        attempt: How often the handler was called with it; 0 when it could not even be decoded.
        now: The present.
        by: Who gives up: the handler's name, `decoder` or `inbox`.
    """
    return next(dead_letter_forms(record, group=group, error=error, reason=reason, attempt=attempt, now=now, by=by))


def dead_letter_forms(
    record: Received, *, group: str, error: BaseException | None, reason: str, attempt: int, now: datetime, by: str
) -> Iterator[Outgoing]:
    """The letter, then smaller forms of it for a topic that refuses the larger ones; arguments as for `dead_letter`.

    Left out are first the stack trace, then the value, then the original headers and the key. Where the record came
    from is never left out: while the original topic keeps it, a replay reads it from there.
    """
    found = dict(record.headers) if isinstance(record, Adopted) else {}
    record = original_of(record)
    topic, partition, offset, timestamp = first_place(record)
    added: dict[str, str] = {
        "original-topic": topic,
        "original-partition": str(partition),
        "original-offset": str(offset),
        "original-timestamp": str(timestamp),
        "original-timestamp-type": "CreateTime" if record.timestamp_type == 0 else "LogAppendTime",
        "original-consumer-group": group,
        "exception-message": reason[:MESSAGE_LIMIT],
    }
    if error is not None:
        added["exception-fqcn"] = _name(error)
        if error.__cause__ is not None:
            added["exception-cause-fqcn"] = _name(error.__cause__)
        added["exception-stacktrace"] = _stacktrace(error)
    about: Headers = [
        (ATTEMPT, str(attempt).encode()),
        (FIRST_FAILED_AT, time_text(now).encode()),
        (FAILED_BY, by.encode()),
    ]
    if not any(name == "ce_type" for name, _ in record.headers):
        about += [(EVENT + name, found[f"ce_{name}"]) for name in ("type", "id") if f"ce_{name}" in found]
    # A record that was replayed and failed again keeps nothing of its first failure.
    headers = original_headers(record.headers)
    yield record.key, record.value, [*headers, *_headers(added), *about]
    added.pop("exception-stacktrace", None)
    yield record.key, record.value, [*headers, *_headers(added), *about, (OMITTED, b"stacktrace")]
    yield record.key, None, [*headers, *_headers(added), *about, (OMITTED, b"stacktrace,value")]
    yield None, None, [*_headers(added), *about, (OMITTED, b"stacktrace,value,headers,key")]


def _headers(added: dict[str, str]) -> Headers:
    return [(PREFIX + name, _text(value)) for name, value in added.items()]


def _text(value: str) -> bytes:
    return value.encode("utf-8", "replace")


def _message(error: BaseException) -> str:
    try:
        text = str(error) or repr(error)
    except Exception:  # noqa: BLE001 a user's exception whose __str__ raises
        text = type(error).__qualname__
    return text[:MESSAGE_LIMIT]


def _stacktrace(error: BaseException) -> str:
    try:
        # As many frames as are kept: the text of a recursion would be made of a thousand.
        return "".join(traceback.format_exception(error, limit=-50))[-STACKTRACE_LIMIT:]
    except Exception:  # noqa: BLE001 a user's exception whose __str__ raises
        return type(error).__qualname__


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
