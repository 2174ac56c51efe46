"""Looking after dead letters: list, show, replay, drop. Every action leaves an audit record, none happens twice."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hailbus._transport import Bus, Producer, Received
from hailbus.clock import Clock, utc_now
from hailbus.dead_letter import ADDED, PREFIX, origin, original_headers
from hailbus.envelope import Headers, time_text
from hailbus.errors import ConfigurationError
from hailbus.event import Topic
from hailbus.reader import record_reader

__all__ = ["AUDIT", "DeadLetterQueue", "Letter"]

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
        record: Raw, as it lies in the dead letter topic.
        origin_topic, origin_partition, origin_offset: Where it came from.
        status: `waiting`, `replayed` or `dropped`.
        audit: What is known of that action.
    """

    record: Received
    origin_topic: str
    origin_partition: int
    origin_offset: int
    status: str
    audit: Mapping[str, str]

    @property
    def place(self) -> str:
        """`<partition>@<offset>` in the dead letter topic: the name by which commands take it."""
        return f"{self.record.partition}@{self.record.offset}"

    @property
    def facts(self) -> dict[str, str]:
        """What the headers say, without their prefix."""
        return {
            name.removeprefix(PREFIX): value.decode("utf-8", "replace")
            for name, value in self.record.headers
            if name.startswith((PREFIX, "ce_")) or name in ADDED
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
        if self.audit:
            found["audit"] = dict(self.audit)
        if with_value:
            value = self.record.value
            found["value"] = None if value is None else value.decode("utf-8", "backslashreplace")
        return found


class DeadLetterQueue:
    """The dead letters in one topic.

    Args:
        bus: Where they are.
        topic: The dead letter topic, `<topic>.<group>-dlt`.
    """

    def __init__(self, bus: Bus, topic: str, *, clock: Clock = utc_now) -> None:
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
            letters.append(
                Letter(
                    record=record,
                    origin_topic=topic,
                    origin_partition=partition,
                    origin_offset=offset,
                    status=entry.get("action", "waiting"),
                    audit=entry,
                )
            )
        return letters

    async def _audit(self) -> dict[str, dict[str, str]]:
        admin = self._bus.admin(client_id="hailbus-dlq")
        await admin.start()
        try:
            await admin.create([AUDIT])
        finally:
            await admin.stop()
        entries: dict[str, dict[str, str]] = {}
        async for record in record_reader(self._bus, [AUDIT.name], start="earliest", until_end=True):
            if record.key is not None and record.value is not None:
                entries[record.key.decode()] = json.loads(record.value)
        return entries

    async def replay(
        self, places: Iterable[str] | None = None, *, value: bytes | None = None, force: bool = False
    ) -> list[Letter]:
        """Publish dead letters to the topic and partition that they came from; those that were.

        Key, value and headers are the original ones, the event id included, so consumers that dedupe apply it once.
        Letters that were replayed or dropped before are left alone, unless forced.

        Args:
            places: `<partition>@<offset>` of the letters; all that wait when None.
            value: A corrected value, for one letter.
            force: Replay again.

        Raises:
            ConfigurationError: There is no letter at a place, or a value is given for several.
        """
        chosen = await self._choose(places)
        if value is not None and len(chosen) != 1:
            message = "a corrected value goes with exactly one letter; name its place"
            raise ConfigurationError(message)
        done = []
        producer = self._bus.producer(client_id="hailbus-dlq")
        await producer.start()
        try:
            for letter in chosen:
                if letter.status != "waiting" and not force:
                    continue
                record = letter.record
                headers: Headers = [
                    *original_headers(record.headers),
                    ("sdk-replayed-from", f"{record.topic}-{record.partition}@{record.offset}".encode()),
                ]
                count = await producer.partition_count(letter.origin_topic)
                body = record.value if value is None else value
                (offset,) = await producer.send(
                    letter.origin_topic, letter.origin_partition % count, [(record.key, body, headers)]
                )
                audit = {"action": "replayed", "to": f"{letter.origin_topic}-{letter.origin_partition}@{offset}"}
                if value is not None:
                    audit["value"] = "edited"
                await self._note(producer, letter, audit)
                done.append(letter)
        finally:
            await producer.stop()
        return done

    async def drop(self, places: Iterable[str]) -> list[Letter]:
        """Mark letters as dealt with, without publishing them; those that were."""
        chosen = [letter for letter in await self._choose(places) if letter.status == "waiting"]
        producer = self._bus.producer(client_id="hailbus-dlq")
        await producer.start()
        try:
            for letter in chosen:
                await self._note(producer, letter, {"action": "dropped"})
        finally:
            await producer.stop()
        return chosen

    async def _choose(self, places: Iterable[str] | None) -> list[Letter]:
        letters = await self.letters()
        if places is None:
            return letters
        by_place = {letter.place: letter for letter in letters}
        chosen = []
        for place in places:
            if place not in by_place:
                message = f"{self.topic} has no letter at {place!r}; `hailbus dlq ls` shows the places"
                raise ConfigurationError(message)
            chosen.append(by_place[place])
        return chosen

    async def _note(self, producer: Producer, letter: Letter, audit: dict[str, str]) -> None:
        entry = audit | {"at": time_text(self._clock()), "by": _user()}
        await producer.send(AUDIT.name, 0, [(_audit_key(letter.record).encode(), json.dumps(entry).encode(), [])])


def _audit_key(record: Received) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
