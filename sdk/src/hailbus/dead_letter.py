"""Dead letters: their topics, and the headers that say what happened. The raw key, value and headers are kept."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import datetime, timedelta

from hailbus._transport import Outgoing, Received
from hailbus.adopted import original_of
from hailbus.envelope import Headers, time_text
from hailbus.event import Topic

__all__ = [
    "dead_letter",
    "dead_letter_topic",
    "due_ms",
    "is_dead_letter_header",
    "origin",
    "original_headers",
    "retry_letter",
    "retry_topic",
]

PREFIX = "kafka_dlt-"
RETRY_PREFIX = "retry_topic-"
ADDED = frozenset({"sdk-attempt", "sdk-first-failed-at", "sdk-parked-by", "sdk-replayed-from"})
STACKTRACE_LIMIT = 8_000


def dead_letter_topic(topic: Topic | str, group: str) -> str:
    """The group is part of the name, so that two consumers never share a dead letter topic."""
    return f"{topic if isinstance(topic, str) else topic.name}.{group}-dlt"


def retry_topic(topic: Topic | str, group: str, delay: timedelta) -> str:
    """The topic of one delay."""
    name = topic if isinstance(topic, str) else topic.name
    return f"{name}.{group}-retry-{delay // timedelta(milliseconds=1)}"


def is_dead_letter_header(name: str) -> bool:
    """Whether this header was added on the way to a dead letter or retry topic."""
    return name.startswith((PREFIX, RETRY_PREFIX)) or name in ADDED


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
    except (KeyError, ValueError):
        return record.topic, record.partition, record.offset, record.timestamp


def attempts_before(record: Received) -> int:
    """How often the handler was called with this record before it came to this retry topic."""
    for name, value in record.headers:
        if name == RETRY_PREFIX + "attempts" and value.isdigit():
            return int(value)
    return 0


def due_ms(record: Received) -> int | None:
    """When a record of a retry topic is to be handled, in milliseconds since the epoch; None for other records."""
    for name, value in record.headers:
        if name == RETRY_PREFIX + "backoff-timestamp" and value.isdigit():
            return int(value)
    return None


def retry_letter(record: Received, *, group: str, error: BaseException, attempt: int, due: datetime) -> Outgoing:
    """The record to write to a retry topic; arguments as for `dead_letter`."""
    record = original_of(record)
    topic, partition, offset, timestamp = origin(record)
    headers: Headers = [
        *original_headers(record.headers),
        (PREFIX + "original-topic", topic.encode()),
        (PREFIX + "original-partition", str(partition).encode()),
        (PREFIX + "original-offset", str(offset).encode()),
        (PREFIX + "original-timestamp", str(timestamp).encode()),
        (PREFIX + "original-consumer-group", group.encode()),
        (PREFIX + "exception-fqcn", _name(error).encode()),
        (PREFIX + "exception-message", (str(error) or repr(error)).encode("utf-8", "replace")),
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
        record: As it was read; key, value and headers go on unchanged.
        group: The consumer group that gives up.
        error: What was raised, None when a handler parked the event.
        reason: One sentence.
        attempt: How often the handler was called with it; 0 when it could not even be decoded.
        now: The present.
        by: Who gives up: the handler's name, or `decoder`.
    """
    record = original_of(record)
    topic, partition, offset, timestamp = origin(record)
    added: dict[str, str] = {
        "original-topic": topic,
        "original-partition": str(partition),
        "original-offset": str(offset),
        "original-timestamp": str(timestamp),
        "original-timestamp-type": "CreateTime" if record.timestamp_type == 0 else "LogAppendTime",
        "original-consumer-group": group,
        "exception-message": reason,
    }
    if error is not None:
        added["exception-fqcn"] = _name(error)
        if error.__cause__ is not None:
            added["exception-cause-fqcn"] = _name(error.__cause__)
        added["exception-stacktrace"] = "".join(traceback.format_exception(error))[-STACKTRACE_LIMIT:]
    headers: Headers = [
        # A record that was replayed and failed again keeps nothing of its first failure.
        *original_headers(record.headers),
        *((PREFIX + name, value.encode("utf-8", "replace")) for name, value in added.items()),
        ("sdk-attempt", str(attempt).encode()),
        ("sdk-first-failed-at", time_text(now).encode()),
        ("sdk-parked-by", by.encode()),
    ]
    return record.key, record.value, headers


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
