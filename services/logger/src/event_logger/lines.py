"""One event as one line of JSON, and back."""

import json
from dataclasses import dataclass

from hailbus import Context
from pydantic_core import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """What a line says of where its event came from."""

    source: str
    id: str
    topic: str
    partition: int
    offset: int


def line_of(ctx: Context) -> bytes:
    """Return an event as a line, newline included: its envelope, its place in the log, and its data as published."""
    envelope = ctx.envelope
    head = {
        "id": envelope.id,
        "source": envelope.source,
        "type": envelope.type,
        "version": envelope.version,
        "time": envelope.time,
        "subject": envelope.subject,
        "correlation_id": envelope.correlation_id,
        "causation_id": envelope.causation_id,
        "topic": ctx.topic,
        "partition": ctx.partition,
        "offset": ctx.offset,
        "published_at": ctx.timestamp,
    }
    data = ctx.record.value or b"null"
    if b"\n" in data or b"\r" in data:  # another producer may indent its JSON; a line is one line
        data = json.dumps(json.loads(data), separators=(",", ":")).encode()
    # The data go in as they came: a reader sees fields that our event classes do not know.
    return to_json(head)[:-1] + b',"data":' + data + b"}\n"


def read_line(line: bytes) -> LoggedEvent:
    """Return what a line says of its event's origin.

    Raises:
        ValueError: It is no line of ours.
    """
    try:
        found = json.loads(line)
        return LoggedEvent(
            source=str(found["source"]),
            id=str(found["id"]),
            topic=str(found["topic"]),
            partition=int(found["partition"]),
            offset=int(found["offset"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a line of the event log: {line[:80]!r}") from error
