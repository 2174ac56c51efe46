"""Gathers the accounts: databases first, then the ends of the log, then the log up to those ends. Changes nothing.

What booking's database calls published was acknowledged before the database was read, so it is below the ends, which
are asked for later: an event that is not there was lost, and none can be excused as "published later".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from hailbus_demo.errors import RunFailedError
from hailbus_demo.ledger.accounts import (
    Accounts,
    BookAccount,
    GroupsAccount,
    InboxAccount,
    LakeAccount,
    LettersAccount,
    ParkedAccount,
    PoisonEvent,
    SurgeAccount,
)
from hailbus_demo.ledger.databases import (
    read_booking,
    read_inbox,
    read_journal,
    read_parked,
    read_payment,
    read_provider,
    read_recommender,
    read_surge,
)
from hailbus_demo.ledger.kafka import KafkaLog
from hailbus_demo.ledger.lines.pricing import SURGE_GROUP, expected_close_ms
from hailbus_demo.ledger.log import TOPIC_NAMES, LogAccount, LogReader
from hailbus_demo.ledger.model import Consumer, Partition, Unread
from hailbus_demo.supervise.processes import command

T = TypeVar("T")
DEAD_LETTER_SUFFIX: Final = "-dlt"
PARKING: Final = ("booking", "payment")
"""Databases with a parking lot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the accounts are.

    Attributes:
        bootstrap: The cluster.
        databases: Service (booking, payment, provider, surge, recommender, logger) → SQLAlchemy URL; one that is not
            named is not part of this run, and neither are the lines that need it.
        consumers: The groups.
        book: Returns the riders' book, `None` where nobody kept one.
        journal: The event logger's file, `None` where it is out of reach.
        lake_dir: The lake's folder, `None` where there is none to look into.
        lake_report: What `lake verify --json` printed, where it was run already.
        restarted: Returns the names of processes that were restarted, `None` when nobody counted.
        poison: Returns the damaged copies that clicks wrote.
        ended: Returns whether every ride was played to its end, `None` when nobody knows.
    """

    bootstrap: str
    databases: Mapping[str, str]
    consumers: tuple[Consumer, ...]
    book: Callable[[], BookAccount] | None = None
    journal: Path | None = None
    lake_dir: Path | None = None
    lake_report: Mapping[str, Any] | None = None
    restarted: Callable[[], frozenset[str]] | None = None
    poison: Callable[[], Sequence[PoisonEvent]] = tuple
    ended: Callable[[], bool] | None = None


@dataclass(slots=True)
class _Moment:
    """What would change if anybody still worked."""

    ends: dict[Partition, int] = field(default_factory=dict)
    committed: dict[str, dict[Partition, int]] = field(default_factory=dict)


class Gatherer:
    """Gathers the accounts, once or again and again: it reads of the log only what it has not read before."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.reader = LogReader()
        self._log: KafkaLog | None = None

    async def gather(self, *, so_far: bool = False) -> Accounts:
        """Return the accounts of this moment.

        Args:
            so_far: Whether the run is unfinished: then the lake and the dead letters' contents are left out.
        """
        sources = self.sources
        before = await self._moment()
        databases = sources.databases
        booking = await _read(databases, "booking", read_booking)
        # The provider first: what payment has published of its movements by then, the log has, too.
        provider = await _read(databases, "provider", read_provider)
        payment = await _read(databases, "payment", read_payment)
        recommender = await _read(databases, "recommender", read_recommender)
        surge = await self.gather_surge()
        inboxes: dict[str, InboxAccount | Unread | None] = {}
        for consumer in sources.consumers:
            url = databases.get(consumer.database)
            inboxes[consumer.group] = None if url is None else await _or_unread(read_inbox(url, consumer.group))
        parking = [databases[name] for name in PARKING if name in databases]
        parked: ParkedAccount | Unread | None = await _or_unread(read_parked(parking)) if parking else None
        path = sources.journal
        journal = None if path is None else await _or_unread(asyncio.to_thread(read_journal, path))
        # The driver apps note a position before they send it, the riders an answer after they got it.
        book = None if sources.book is None else sources.book()
        log = await self.gather_log()
        letters = await _or_unread(asyncio.to_thread(self._letters))
        lake: LakeAccount | Unread | None = None
        if sources.lake_report is not None:
            lake = LakeAccount(report=sources.lake_report)
        elif sources.lake_dir is not None and not so_far:
            lake = await _or_unread(lake_report(sources.lake_dir, sources.bootstrap))
        after = await self._moment()
        groups: GroupsAccount | Unread = (
            after if isinstance(after, Unread) else GroupsAccount(committed=after.committed)
        )
        return Accounts(
            log=log,
            book=book,
            booking=booking,
            payment=payment,
            provider=provider,
            inboxes=inboxes,
            consumers=sources.consumers,
            groups=groups,
            recommender=recommender,
            journal=journal,
            letters=letters,
            parked=parked,
            lake=lake,
            surge=surge,
            ended=None if sources.ended is None else sources.ended(),
            restarted=None if sources.restarted is None else sources.restarted(),
            poison=sources.poison(),
            moved=() if so_far else _moved(before, after, log),
            read_at_ms=time.time_ns() // 1_000_000,
            so_far=so_far,
        )

    async def gather_log(self) -> LogAccount | Unread:
        """Read the log alone, up to the ends of this moment."""
        return await _or_unread(asyncio.to_thread(self._read_log))

    async def gather_surge(self) -> SurgeAccount | Unread | None:
        """Read surge's database alone."""
        return await _read(self.sources.databases, "surge", partial(read_surge, worker=SURGE_GROUP))

    def is_behind(self, surge: SurgeAccount) -> bool:
        """Whether surge has minutes to close that it will close by itself: event time has passed them."""
        expected, closed = expected_close_ms(self.reader), surge.closed_until_ms
        return expected is not None and (closed is None or closed < expected)

    async def close(self) -> None:
        """Disconnect."""
        log, self._log = self._log, None
        if log is not None:
            await asyncio.to_thread(log.close)

    def _connected(self) -> KafkaLog:
        if self._log is None:
            self._log = KafkaLog(self.sources.bootstrap)
        return self._log

    async def _moment(self) -> _Moment | Unread:
        def ask() -> _Moment:
            log = self._connected()
            _, ends = log.bounds(TOPIC_NAMES)
            consumers = self.sources.consumers
            said = log.committed([group for consumer in consumers for group in consumer.read_by])
            return _Moment(
                ends=ends,
                committed={one.group: _slowest([said[group] for group in one.read_by]) for one in consumers},
            )

        return await _or_unread(asyncio.to_thread(ask))

    def _read_log(self) -> LogAccount:
        log = self._connected()
        starts, ends = log.bounds(TOPIC_NAMES)
        self.reader.begin(starts)
        log.read(self.reader, ends)
        return LogAccount(starts=starts, ends=ends, reader=self.reader)

    def _letters(self) -> LettersAccount:
        counts, letters = self._connected().letters(DEAD_LETTER_SUFFIX)
        return LettersAccount(counts=counts, letters=letters)


def _slowest(groups: Sequence[Mapping[Partition, int]]) -> dict[Partition, int]:
    """Return how far all of the groups have committed."""
    first, *others = groups
    return {
        place: min(offset, *(group[place] for group in others)) if others else offset
        for place, offset in first.items()
        if all(place in group for group in others)
    }


def _moved(before: _Moment | Unread, after: _Moment | Unread, log: LogAccount | Unread) -> tuple[str, ...]:
    """Return what happened between two moments, as sentences."""
    for moment in (before, after):
        if isinstance(moment, Unread):
            return (moment.reason,)
    assert isinstance(before, _Moment)
    assert isinstance(after, _Moment)
    moved = []
    read = {} if isinstance(log, Unread) else log.ends
    for place, end in sorted(after.ends.items()):
        if before.ends.get(place, 0) != end or read.get(place, end) != end:
            moved.append(f"{place[0]}-{place[1]} went on from {before.ends.get(place, 0)} to {end}")
    for group, offsets in sorted(after.committed.items()):
        if offsets != before.committed.get(group):
            moved.append(f"group {group} committed")
    return tuple(moved)


async def _read(databases: Mapping[str, str], name: str, read: Callable[[str], Awaitable[T]]) -> T | Unread | None:
    url = databases.get(name)
    return None if url is None else await _or_unread(read(url))


async def _or_unread(work: Awaitable[T]) -> T | Unread:
    try:
        return await work
    except RunFailedError as error:
        return Unread(reason=str(error))


async def lake_report(lake_dir: Path, bootstrap: str) -> LakeAccount:
    """Have the lake compared by its own witness, `lake verify`, which runs without Spark.

    Raises:
        RunFailedError: It printed no report.
    """
    process = await asyncio.create_subprocess_exec(
        *(command("lake"), "verify", "--full", "--bootstrap", bootstrap, "--dir", str(lake_dir), "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    try:
        return LakeAccount(report=read_lake_report(output.decode()))
    except ValueError as error:
        words = errors.decode("utf-8", "replace").strip().splitlines()
        said = words[-1] if words else str(error)
        raise RunFailedError(f"`lake verify` ended with {process.returncode} and no report: {said}") from error


def read_lake_report(text: str) -> Mapping[str, Any]:
    """Return a report of `lake verify --json`.

    Raises:
        ValueError: It is none.
    """
    report = json.loads(text)
    if isinstance(report, dict) and isinstance(report.get("lines"), list):
        return report
    raise ValueError("it has no lines")


__all__ = ["Gatherer", "Sources", "lake_report", "read_lake_report"]
