"""What the published language says of the value of a dead letter, and what the value should look like."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hailbus import Catalogue, ContractError
from hailbus.codec import decode
from hailbus.errors import (
    HeaderError,
    InvalidPayloadError,
    MissingHeaderError,
    MissingKeyError,
    TombstoneError,
    UnknownEventError,
    UnsupportedVersionError,
)
from hailbus.event import event_info, key_of
from hailbus.schema_id import payload_of
from pydantic import ValidationError

from dashboard.domain.timeline import Record

SUFFIX: Final = "-dlt"
"""How the names of dead letter topics end: `<topic>.<group>-dlt`."""
_NOT_DESCRIBED: Final = (HeaderError, MissingHeaderError, UnknownEventError, UnsupportedVersionError)
_TOKENS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with a value.

    Attributes:
        field: The path, for example `pickup.lat` or `options[0].rank`; empty for the whole value.
        words: What is wrong there.
    """

    field: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A record as it was before it became a dead letter, with the value to judge."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


def problems_of(record: Written, catalogue: Catalogue) -> tuple[Problem, ...] | None:
    """Return what the record's event class says of the value; `None` when no class of the catalogue describes it."""
    try:
        event, _ = decode(record, catalogue)
        key = key_of(event)
    except _NOT_DESCRIBED:
        return None
    except TombstoneError:
        return (Problem(field="", words="There is no value."),)
    except MissingKeyError as error:
        return (Problem(field=error.field, words="The field is empty, and it is the key of the record."),)
    except InvalidPayloadError as error:
        return _found(error)
    except ContractError as error:
        return (Problem(field="", words=str(error)),)
    if record.key is not None and key is not None and key != record.key:
        words = f"The field is {key.decode()!r}, and the key of the record is {record.key.decode(errors='replace')!r}."
        return (Problem(field=event_info(event).key_field or "", words=words),)
    try:
        json.loads(payload_of(record.value or b""), parse_constant=_refused)
    except ValueError as error:
        return (Problem(field="", words=str(error)),)
    return ()


def _refused(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is no JSON number")


def _found(error: InvalidPayloadError) -> tuple[Problem, ...]:
    if not isinstance(error.__cause__, ValidationError):
        return (Problem(field="", words=error.reason),)
    found = error.__cause__.errors(include_url=False, include_context=False, include_input=False)
    return tuple(Problem(field=_path(one["loc"]), words=one["msg"]) for one in found)


def _path(place: Iterable[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return path.removeprefix(".")


def twin_of(
    letter: Written, place: tuple[str, int, int], known: Iterable[Record], catalogue: Catalogue
) -> Record | None:
    """Return another record of the same event whose value reads well.

    Args:
        letter: The record that failed.
        place: Its topic, partition and offset.
        known: Records to look through.
        catalogue: The published language.
    """
    event_id = dict(letter.headers).get("ce_id")
    if event_id is None:
        return None
    for record in known:
        if (
            record.topic == place[0]
            and (record.topic, record.partition, record.offset) != place
            and dict(record.headers).get("ce_id") == event_id
            and problems_of(
                Written(topic=record.topic, key=record.key, value=record.value, headers=record.headers), catalogue
            )
            == ()
        ):
            return record
    return None


def compact(text: str) -> str:
    """Return JSON text without the white space between its tokens. Numbers and strings stay as they are written."""
    return _TOKENS.sub(r"\1", text)


def topic_and_group(queue: str, topics: Iterable[str]) -> tuple[str, str]:
    """Return the topic and the group that a dead letter topic belongs to; no topic when it is none of these."""
    fitting = [topic for topic in topics if queue.startswith(f"{topic}.")]
    if not fitting:
        return "", queue.removesuffix(SUFFIX)
    topic = max(fitting, key=len)
    return topic, queue[len(topic) + 1 :].removesuffix(SUFFIX)


__all__ = ["SUFFIX", "Problem", "Written", "compact", "problems_of", "topic_and_group", "twin_of"]
