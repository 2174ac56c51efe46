"""Watches the dead letter topics, and replays or drops a letter."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from hailbus import Bus, ClusterAdmin
from hailbus.dead_letter_queue import AUDIT, DeadLetterQueue, Letter
from hailbus.errors import BrokerUnreachableError, ConfigurationError, RecordTooLargeError

from dashboard.adapters.admin import renewed_admin
from dashboard.adapters.failures import is_of_the_bus
from dashboard.adapters.watch import TOPIC_NAMES
from dashboard.domain.letters import SUFFIX, topic_and_group

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard.letters")

KEPT: Final = 500
"""Letters that are kept of each queue, the newest."""
KEPT_BYTES: Final = 16 * 1024 * 1024
"""Size of the values that are kept of each queue."""
BY: Final = "dashboard"
"""Who acts, by the audit record."""
_EVERY_S: Final = 2.0
_PAUSE_SHARE: Final = 4
"""Pause after a poll, in durations of that poll: a queue that is read again and again takes a fifth of the time."""
_PATIENCE_S: Final = 5.0
_READ_PATIENCE_S: Final = 60.0
_ACT_PATIENCE_S: Final = 20.0


class LetterNotFoundError(Exception):
    """There is no such letter."""


class LetterDoneError(Exception):
    """The letter was dealt with before, or the cluster refuses what was asked."""


class LettersUnavailableError(Exception):
    """The cluster does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A dead letter topic.

    Attributes:
        name: Of the topic.
        topic: The topic that its records came from; empty when it is not known.
        group: The consumer group that set them aside.
        letters: The newest first, at most 500.
        total: How many there are.
        waiting: How many of all wait to be dealt with.
    """

    name: str
    topic: str
    group: str
    letters: tuple[Letter, ...]
    total: int
    waiting: int

    @property
    def more(self) -> int:
        """How many older letters are not kept here."""
        return self.total - len(self.letters)


def queue_of(name: str, letters: Sequence[Letter]) -> Queue:
    """Return a queue of letters that come oldest first; of them the newest are kept."""
    kept: list[Letter] = []
    room_bytes = KEPT_BYTES
    for letter in reversed(letters):
        room_bytes -= len(letter.value or b"") + len(letter.record.value or b"")
        if len(kept) == KEPT or (room_bytes < 0 and kept):
            break
        kept.append(letter)
    topic, group = topic_and_group(name, {*TOPIC_NAMES, *(letter.origin_topic for letter in letters[-1:])})
    waiting = sum(letter.waits for letter in letters)
    return Queue(name=name, topic=topic, group=group, letters=tuple(kept), total=len(letters), waiting=waiting)


class Letters:
    """The dead letters of all groups, as they were at the last poll.

    Attributes:
        queues: By name.
        error: Why the last poll failed; empty when it did not.
        is_read: Whether the queues have been read.
        version: Rises whenever one of the others changes.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.queues: dict[str, Queue] = {}
        self.error = ""
        self.is_read = False
        self.version = 0
        self._ends: dict[str, Mapping[int, int]] = {}
        self._audit_ends: Mapping[int, int] = {}
        self._reading = asyncio.Lock()

    @property
    def waiting(self) -> int | None:
        """How many letters wait; `None` before the queues have been read."""
        return sum(queue.waiting for queue in self.queues.values()) if self.is_read else None

    def find(self, queue: str, place: str) -> Letter:
        """Return a letter.

        Raises:
            LetterNotFoundError: There is none at this place, or it is not kept.
        """
        found = self.queues.get(queue)
        if found is None:
            raise LetterNotFoundError(f"there is no dead letter topic {queue[:249]!r}")
        for letter in found.letters:
            if letter.place == place:
                return letter
        older = f"; {found.more} older ones are not shown here, see `hailbus dlq list`" if found.more else ""
        raise LetterNotFoundError(f"{queue} has no letter at {place[:40]!r}{older}")

    async def poll(self) -> None:
        """Look for new letters for ever. After an error a new client asks again."""
        async with renewed_admin(self._bus, "dashboard-letters") as client:
            while True:
                began = time.monotonic()
                try:
                    await self._poll(client.admin)
                    self._note(error="", is_read=True)
                except Exception as error:
                    if not is_of_the_bus(error):
                        raise
                    self._note(error=str(error) or "no answer in time", is_read=self.is_read)
                    log.debug("letters_not_read", detail=str(error))
                    await client.close()
                await asyncio.sleep(max(_EVERY_S, _PAUSE_SHARE * (time.monotonic() - began)))

    def _note(self, *, error: str, is_read: bool) -> None:
        if (error, is_read) != (self.error, self.is_read):
            self.error, self.is_read = error, is_read
            self.version += 1

    async def _poll(self, admin: ClusterAdmin) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            topics = await admin.topics()
            names = sorted(name for name in topics if name.endswith(SUFFIX))
            ends: dict[str, dict[int, int]] = {name: {} for name in (*names, AUDIT.name)}
            asked = [*names, *([AUDIT.name] if AUDIT.name in topics else [])] if names else []
            for tp, end in (await admin.end_offsets(asked)).items() if asked else ():
                ends[tp.topic][tp.partition] = end
        for gone in self.queues.keys() - set(names):
            del self.queues[gone]
            self._ends.pop(gone, None)
            self.version += 1
        audit_ends = {partition: end for partition, end in ends[AUDIT.name].items() if end}
        is_audit_new = audit_ends != self._audit_ends
        for name in names:
            has_letters = name in self.queues and self.queues[name].total > 0
            if self._ends.get(name) == ends[name] and not (is_audit_new and has_letters):
                continue
            if any(ends[name].values()):
                async with asyncio.timeout(_READ_PATIENCE_S):
                    await self._read(name)
            else:
                self._keep(queue_of(name, ()))
            self._ends[name] = ends[name]
        self._audit_ends = audit_ends

    async def _read(self, name: str) -> None:
        """Read a queue again. A replay or a drop that is under way ends first."""
        async with self._reading:
            self._keep(queue_of(name, await DeadLetterQueue(self._bus, name, by=BY).letters()))

    def _keep(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self.version += 1

    async def replay(self, queue: str, place: str, value: bytes | None) -> Letter:
        """Publish a letter that waits to the topic that it came from, and return it as it then is.

        Args:
            queue: Name of the dead letter topic.
            place: `<partition>@<offset>` there.
            value: The value to publish; `None` for the one that the letter has.

        Raises:
            LetterNotFoundError: There is no such letter.
            LetterDoneError: The letter was dealt with before, or the cluster refuses the record.
            LettersUnavailableError: The cluster does not answer, so the outcome may be unknown.
        """
        return await self._act(queue, place, lambda letters: letters.replay([place], value=value))

    async def drop(self, queue: str, place: str) -> Letter:
        """Mark a letter that waits as dealt with; arguments and errors as for `replay`."""
        return await self._act(queue, place, lambda letters: letters.drop([place]))

    async def _act(
        self, queue: str, place: str, act: Callable[[DeadLetterQueue], Awaitable[Sequence[Letter]]]
    ) -> Letter:
        self.waiting_letter(queue, place)
        try:
            async with asyncio.timeout(_ACT_PATIENCE_S), self._reading:
                done = await act(DeadLetterQueue(self._bus, queue, by=BY))
        except Exception as error:
            if not is_of_the_bus(error):
                raise
            if isinstance(error, (ConfigurationError, RecordTooLargeError)) and not isinstance(
                error, BrokerUnreachableError
            ):
                raise LetterDoneError(str(error)) from error
            said = str(error) or f"no answer in {_ACT_PATIENCE_S:.0f} s"
            raise LettersUnavailableError(f"{said}; look at the letter's status before you try again") from error
        finally:
            self._ends.pop(queue, None)  # the next poll reads the queue again
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._read(queue)
        except Exception as error:
            if not is_of_the_bus(error):
                raise
            log.warning("letters_not_read", queue=queue, detail=str(error))
        if not done:
            self.waiting_letter(queue, place)
            raise LetterDoneError(f"the letter at {place} of {queue} was dealt with before")
        log.info("letter_dealt_with", queue=queue, place=place)
        return self.find(queue, place)

    def waiting_letter(self, queue: str, place: str) -> Letter:
        """Return a letter that waits.

        Raises:
            LetterNotFoundError: There is no such letter.
            LetterDoneError: The letter was dealt with before.
        """
        letter = self.find(queue, place)
        if not letter.waits:
            last: Mapping[str, str] = letter.history[-1] if letter.history else {}
            by = f" by {last['by']} at {last['at']}" if last.keys() >= {"by", "at"} else ""
            raise LetterDoneError(f"the letter at {place} of {queue} was {letter.status}{by}: nothing more can be done")
        return letter


__all__ = [
    "BY",
    "KEPT",
    "LetterDoneError",
    "LetterNotFoundError",
    "Letters",
    "LettersUnavailableError",
    "Queue",
    "queue_of",
]
