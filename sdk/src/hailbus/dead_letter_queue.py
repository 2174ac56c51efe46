"""Looking after dead letters: list, show, edit, replay, drop. Every action leaves an audit record, none happens twice.

What was done with a letter is one record of a compacted topic: its present status, a corrected value, and the history.
A replay and its audit record are one Kafka transaction under one transactional id per queue: a tool that dies in
between has replayed nothing, and of two that run at the same time the older is fenced.
"""

from __future__ import annotations

import base64
import getpass
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hailbus._transport import Bus, Producer, Received
from hailbus.clock import Clock, utc_now
from hailbus.codec import legible_attributes
from hailbus.dead_letter import ADDED, EVENT, OMITTED, PREFIX, REPLAYED_FROM, origin, original_headers, uniform_name
from hailbus.envelope import Headers, time_text
from hailbus.errors import ConfigurationError
from hailbus.event import Topic
from hailbus.reader import record_reader

__all__ = ["AUDIT", "DeadLetterQueue", "Letter", "with_fields"]

AUDIT = Topic(
    "hailbus.dead-letter-audit",
    partitions=1,
    cleanup_policy="compact",
    description="What was done with dead letters: key <topic>/<partition>/<offset>, value JSON.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter.

    Attributes:
        record: Raw, as stored in the dead letter topic.
        origin_topic, origin_partition, origin_offset: Where it came from.
        status: `waiting`, `edited` (and waiting), `replayed` or `dropped`.
        value: The record's value, or the corrected one.
        history: What was done with it, oldest first: `action`, `at`, `by`.
    """

    record: Received
    origin_topic: str
    origin_partition: int
    origin_offset: int
    status: str
    value: bytes | None
    history: Sequence[Mapping[str, str]]

    @property
    def waits(self) -> bool:
        """Whether it is still to be dealt with."""
        return self.status in {"waiting", "edited"}

    @property
    def is_incomplete(self) -> bool:
        """Whether the value was left out because the record was too large for the dead letter topic."""
        return any(name == OMITTED and b"value" in found for name, found in self.record.headers)

    @property
    def place(self) -> str:
        """`<partition>@<offset>` in the dead letter topic: the name by which commands take it."""
        return f"{self.record.partition}@{self.record.offset}"

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the failure, by header without prefix, and of the event, by attribute, as `ce_type`.

        The attributes of a structured CloudEvent are read from its value, or from the corrected value if there is one.
        """
        attributes = {
            name.removeprefix(EVENT): value.decode("utf-8", "replace")
            for name, value in self.record.headers
            if name.startswith(EVENT)
        } | legible_attributes(self.record.headers, self.value)
        return {f"ce_{name}": text for name, text in attributes.items()} | {
            uniform_name(name).removeprefix(PREFIX): value.decode("utf-8", "replace")
            for name, value in self.record.headers
            if name.startswith(PREFIX) or (uniform_name(name) in ADDED and not name.startswith(EVENT))
        }

    def as_json(self, *, with_value: bool = False) -> dict[str, object]:
        """For `--json`."""
        found: dict[str, object] = {
            "place": self.place,
            "status": self.status,
            "topic": self.record.topic,
            "key": None if self.record.key is None else self.record.key.decode("utf-8", "backslashreplace"),
            **self.facts,
        }
        if self.history:
            found["history"] = [dict(entry) for entry in self.history]
        if with_value:
            found["value"] = None if self.value is None else self.value.decode("utf-8", "backslashreplace")
        return found


class DeadLetterQueue:
    """The dead letters in one topic.

    Args:
        bus: Where they are.
        topic: The dead letter topic, `<topic>.<group>-dlt`.
        by: Who works on it, for the audit record; the user of this process unless given.
    """

    def __init__(self, bus: Bus, topic: str, *, clock: Clock = utc_now, by: str | None = None) -> None:
        self._by = by if by is not None else _user()
        self._bus = bus
        self.topic = topic
        self._clock = clock

    async def letters(self) -> list[Letter]:
        """All dead letters, oldest first."""
        audit = await self._audit()
        found = [record async for record in record_reader(self._bus, [self.topic], start="earliest", until_end=True)]
        letters = []
        for record in sorted(found, key=lambda r: (r.timestamp, r.partition, r.offset)):
            topic, partition, offset, _ = origin(record)
            entry = audit.get(_audit_key(record), {})
            corrected = entry.get("value_base64")
            letters.append(
                Letter(
                    record=record,
                    origin_topic=topic,
                    origin_partition=partition,
                    origin_offset=offset,
                    status=entry.get("status", "waiting"),
                    value=base64.b64decode(corrected) if corrected is not None else record.value,
                    history=entry.get("history", []),
                )
            )
        return letters

    async def letter(self, place: str) -> Letter:
        """One dead letter. Raises `ConfigurationError` when there is none at this place."""
        (found,) = await self._choose([place])
        return found

    async def _audit(self) -> dict[str, dict[str, Any]]:
        admin = self._bus.admin(client_id="hailbus-dlq")
        await admin.start()
        try:
            await admin.create([AUDIT])
        finally:
            await admin.stop()
        entries: dict[str, dict[str, Any]] = {}  # Any: JSON
        async for record in record_reader(self._bus, [AUDIT.name], start="earliest", until_end=True):
            if record.key is not None and record.value is not None:
                entries[record.key.decode()] = json.loads(record.value)
        return entries

    async def replay(
        self, places: Iterable[str] | None = None, *, value: bytes | None = None, force: bool = False
    ) -> list[Letter]:
        """Publish dead letters to the topic and partition that they came from; those that were.

        Key, value and headers are the original ones, the event id included, so consumers that dedupe apply it once; an
        edited letter goes with its corrected value. Letters that were replayed or dropped before are left alone, unless
        forced.

        Args:
            places: `<partition>@<offset>` of the letters; all that wait when None.
            value: A corrected value, for one letter.
            force: Replay again.

        Raises:
            ConfigurationError: There is no letter at a place, or a value is given for several.
        """
        done = []
        async with self._working() as producer:
            chosen = await self._choose(places)
            if value is not None and len(chosen) != 1:
                message = "a corrected value goes with exactly one letter; name its place"
                raise ConfigurationError(message)
            for letter in chosen:
                if not letter.waits and not force:
                    continue
                record = letter.record
                if letter.value is None and value is None and letter.is_incomplete:
                    message = (
                        f"the letter at {letter.place!r} is without its value, which was too large for {self.topic}; "
                        f"read the original at {letter.origin_topic}-{letter.origin_partition}@{letter.origin_offset}, "
                        "then edit the letter or give its value"
                    )
                    raise ConfigurationError(message)
                headers: Headers = [
                    *original_headers(record.headers),
                    (REPLAYED_FROM, f"{record.topic}-{record.partition}@{record.offset}".encode()),
                ]
                count = await producer.partition_count(letter.origin_topic)
                body = letter.value if value is None else value
                partition = letter.origin_partition % count
                await producer.begin()
                (offset,) = await producer.send(letter.origin_topic, partition, [(record.key, body, headers)])
                place = f"{letter.origin_topic}-{partition}@{offset}"
                await self._note(producer, letter, "replayed", value=body, to=place)
                await producer.commit()
                done.append(letter)
        return done

    async def edit(self, place: str, value: bytes) -> Letter:
        """Correct the value of a letter that waits; a replay publishes it so.

        Raises:
            ConfigurationError: There is no letter at this place, or it was dealt with before.
        """
        async with self._working() as producer:
            (letter,) = await self._choose([place])
            if not letter.waits:
                message = f"the letter at {place!r} was {letter.status}; only letters that wait can be edited"
                raise ConfigurationError(message)
            await producer.begin()
            await self._note(producer, letter, "edited", value=value)
            await producer.commit()
        return letter

    async def drop(self, places: Iterable[str]) -> list[Letter]:
        """Mark letters as dealt with, without publishing them; those that were."""
        async with self._working() as producer:
            chosen = [letter for letter in await self._choose(places) if letter.waits]
            for letter in chosen:
                await producer.begin()
                await self._note(producer, letter, "dropped", value=letter.value)
                await producer.commit()
        return chosen

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[Producer]:
        """A producer that fences all others that work on this queue. Read the letters only after it has started."""
        producer = self._bus.producer(client_id="hailbus-dlq", transactional_id=f"hailbus-dlq-{self.topic}")
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def _choose(self, places: Iterable[str] | None) -> list[Letter]:
        letters = await self.letters()
        if places is None:
            return letters
        by_place = {letter.place: letter for letter in letters}
        chosen = []
        for place in places:
            if place not in by_place:
                message = f"{self.topic} has no letter at {place!r}; `hailbus dlq list` shows the places"
                raise ConfigurationError(message)
            chosen.append(by_place[place])
        return chosen

    async def _note(self, producer: Producer, letter: Letter, action: str, *, value: bytes | None, **more: str) -> None:
        entry = {"action": action, "at": time_text(self._clock()), "by": self._by} | more
        document: dict[str, Any] = {"status": action, "history": [*letter.history, entry]}  # Any: JSON
        if value is not None and value != letter.record.value:
            document["value_base64"] = base64.b64encode(value).decode()
            entry["value"] = "edited"
        body = json.dumps(document).encode()
        await producer.send(AUDIT.name, 0, [(_audit_key(letter.record).encode(), body, [])])


def _audit_key(record: Received) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def with_fields(value: bytes | None, changes: Mapping[str, Any]) -> bytes:
    """A JSON value with some fields set, by dotted paths: `{"fare.amount_cents": 500}`.

    Raises:
        ConfigurationError: The value is no JSON object, or a path leads through something that is none.
    """
    try:
        document = json.loads(value or b"")
    except ValueError as error:
        message = "the value is no JSON, so no field of it can be set; give a whole value"
        raise ConfigurationError(message) from error
    for path, new in changes.items():
        *parents, last = path.split(".")
        target = document
        for name in parents:
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            message = f"{path!r} leads to no object in the value; its fields are {sorted(document)}"
            raise ConfigurationError(message)
        target[last] = new
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
