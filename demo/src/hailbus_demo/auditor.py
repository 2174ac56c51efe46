"""Draws up the ledger again and again during the run, in a process of its own that gives way to all others.

The auditor's process reads the log, the databases and the event logger's file by itself. Only the riders' book is in
this process, which hands it over when asked. After its first look the auditor runs at a low priority: where the run
needs all processors the auditor falls behind, and the run does not.

An auditor that reads on never sees again what it has read. When the broker has been started again, another auditor
begins with an empty memory: what a restart lost or changed is what an auditor must see. Its first look is a short one,
at what booking knows to be acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Final

from hailbus_demo import acknowledged
from hailbus_demo.ledger.accounts import BookAccount, PoisonEvent
from hailbus_demo.ledger.draw import Ledger, SoFar, draw_up
from hailbus_demo.ledger.gather import Gatherer, Sources
from hailbus_demo.ledger.model import FINDINGS_SHOWN, Finding, Unread

log = logging.getLogger("hailbus_demo.auditor")

GRACE_S: Final = 8.0
"""A disagreement counts once it has stayed the same for so many calm seconds.

A second is calm while no group is 5 s behind, so what is merely late must be allowed for longer than that.
"""
NICENESS: Final = 5
"""Where the processes of ordinary priority keep two processors busy, Linux gives this one a seventh of one of them
while it works, which it does at most half of the time: 3 to 4 % of what the run has."""
SHORTEST_PAUSE_S: Final = 1.0
LOOKS_AGAIN_AFTER_S: Final = 0.5
LOOKS_EVERY_S: Final = 0.5
BEGINS_AGAIN_AFTER_S: Final = 1.0
ENDS_WITHIN_S: Final = 2.0
PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What only the launcher knows of a moment.

    Attributes:
        book: The riders' book, `None` where it was not asked for.
        restarted: Names of processes that were restarted.
        poison: The damaged copies that clicks wrote.
        serves: Whether every process serves: what is being started again cannot be read.
        calm_s: The seconds so far in which every process served and no group was far behind: only these count for the
            grace period of a disagreement.
        broker_life: Changes when a broker's process does; None if nobody knows.
    """

    book: BookAccount | None
    restarted: frozenset[str]
    poison: tuple[PoisonEvent, ...]
    serves: bool
    calm_s: float
    broker_life: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one look found, and what it cost: wall time, and CPU time of all looks so far.

    `is_partial` says that only some accounts were looked at: the lines that are missing are as they were.
    """

    ledger: Ledger
    took_s: float
    cpu_s: float
    is_partial: bool = False


class Auditor:
    """Keeps an auditor's process and takes what it finds.

    Args:
        sources: What the final ledger reads.
        serves: Returns whether every process serves.
        keeps_up: Returns whether no group is far behind.
        broker_life: Returns what changes when a broker's process does.
        take: Called in the event loop with every round.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        serves: Callable[[], bool],
        keeps_up: Callable[[], bool],
        broker_life: Callable[[], tuple[int | None, ...] | None],
        take: Callable[[Round], None],
    ) -> None:
        assert sources.book is not None, "the demo keeps a book"
        self._book = sources.book
        self._restarted = sources.restarted or frozenset
        self._poison = sources.poison
        self._sources = replace(sources, book=None, restarted=None, poison=tuple, ended=None)
        self._serves = serves
        self._clock = CalmClock(lambda: serves() and keeps_up())
        self._broker_life = broker_life
        self._take = take
        self._process: multiprocessing.process.BaseProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id of the auditor while it runs."""
        process = self._process
        return process.pid if process is not None and process.is_alive() else None

    def start(self) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """End the process, at once."""
        self._stopping = True
        self._end()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self) -> None:
        process = self._process
        if process is not None and process.pid is not None and process.is_alive():
            process.kill()  # it only reads

    async def _keep(self) -> None:
        while not self._stopping:
            try:
                await asyncio.to_thread(self._serve, asyncio.get_running_loop())
            except Exception:
                log.exception("the auditor's process failed")
            if not self._stopping:
                log.warning("the auditor's process ended; the next one begins in %g s", BEGINS_AGAIN_AFTER_S)
                await asyncio.sleep(BEGINS_AGAIN_AFTER_S)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the auditor's questions and take its rounds until its process ends."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_audit, args=(theirs, self._sources), name="auditor", daemon=True)
        process.start()
        self._process = process
        theirs.close()
        try:
            with contextlib.suppress(EOFError, OSError):
                while not self._stopping:
                    said = ours.recv()
                    if isinstance(said, Round):
                        loop.call_soon_threadsafe(self._take, said)
                    else:
                        assert isinstance(said, bool), said
                        ours.send(asyncio.run_coroutine_threadsafe(self._moment(with_book=said), loop).result())
        finally:
            self._end()
            process.join(ENDS_WITHIN_S)
            ours.close()

    async def _watch(self) -> None:
        known = self._broker_life()
        while True:
            self._clock.look(time.monotonic())
            life = self._broker_life()
            if life is not None and life != known:
                known = life
                self._end()  # its round waits half a minute for a broker that is gone; the next process reads anew
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _moment(self, *, with_book: bool) -> Moment:
        self._clock.look(time.monotonic())
        return Moment(
            book=copied(self._book()) if with_book else None,
            restarted=self._restarted(),
            poison=tuple(self._poison()),
            serves=self._serves(),
            calm_s=self._clock.calm_s,
            broker_life=self._broker_life(),
        )


def copied(book: BookAccount) -> BookAccount:
    """Return the book as it is now: the riders continue while it is sent."""
    return replace(
        book,
        rides=dict(book.rides),
        quotes=dict(book.quotes),
        advice=dict(book.advice),
        positions=book.positions[:],
    )


def _audit(pipe: Connection, sources: Sources) -> None:
    """Be the auditor: the main function of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's: it ends this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    logging.disable()
    with contextlib.suppress(EOFError, OSError):
        asyncio.run(_keep_auditing(pipe, sources))


async def _keep_auditing(pipe: Connection, sources: Sources) -> None:
    def ask(*, with_book: bool = False) -> Moment:
        pipe.send(with_book)
        answer = pipe.recv()
        assert isinstance(answer, Moment)
        return answer

    last: Moment = ask()

    def book() -> BookAccount:
        nonlocal last
        last = ask(with_book=True)
        assert last.book is not None
        return last.book

    sources = replace(sources, book=book, restarted=lambda: last.restarted, poison=lambda: last.poison)
    so_far = SoFar(grace_s=GRACE_S)
    certain: frozenset[Finding] | None = None
    gives_way = False
    gatherer = Gatherer(sources)
    while True:
        before = ask()
        if not before.serves:
            await asyncio.sleep(LOOKS_AGAIN_AFTER_S)
            continue
        if certain is None:
            began = time.monotonic()
            lines = await acknowledged.compare(sources)
            if ask().broker_life != before.broker_life:
                continue
            certain = frozenset(finding for line in lines for finding in line.findings)
            if certain:
                ledger = shortened(Ledger(lines=lines, left_out=()))
                took_s = time.monotonic() - began
                pipe.send(Round(ledger=ledger, took_s=took_s, cpu_s=time.process_time(), is_partial=True))
        if not gives_way:  # the first look is short, and what a restart lost is to be seen at once
            os.nice(NICENESS)
            gives_way = True
        began = time.monotonic()
        accounts = await gatherer.gather(so_far=True)
        after = ask()
        if after.broker_life != before.broker_life:
            await gatherer.close()
            gatherer, certain = Gatherer(sources), None
            continue
        if not after.serves:
            continue
        drawn = draw_up(accounts)
        ledger = shortened(with_certain(so_far.settle(drawn, now_s=before.calm_s), drawn, certain))
        took_s = time.monotonic() - began
        pipe.send(Round(ledger=ledger, took_s=took_s, cpu_s=time.process_time()))
        if isinstance(accounts.log, Unread):  # a client that lost its way is not trusted with the next round
            await gatherer.close()
            gatherer = Gatherer(sources)
        await asyncio.sleep(max(SHORTEST_PAUSE_S, took_s))


def with_certain(settled: Ledger, drawn: Ledger, certain: frozenset[Finding]) -> Ledger:
    """Return the settled ledger, in which a finding that is certain counts without a grace period."""
    lines = []
    for line, raw in zip(settled.lines, drawn.lines, strict=True):
        lasting = tuple(one for one in raw.findings if one in certain or one in line.findings)
        if certain.isdisjoint(lasting):
            lines.append(line)
        else:
            lines.append(replace(raw, findings=lasting, detail=_several(lasting)))
    return replace(settled, lines=tuple(lines))


def _several(findings: Sequence[Finding]) -> str:
    """Return the first finding as text, and how many more there are."""
    more = len(findings) - 1
    return str(findings[0]) if not more else f"{findings[0]}; and {more:,} more"


def updated(shown: Ledger | None, found: Round) -> Ledger | None:
    """Return the ledger to show after a round: what a partial one did not look at is as it was."""
    if not found.is_partial:
        return found.ledger
    if shown is None:
        return None
    new = {line.id: line for line in found.ledger.lines}
    return replace(shown, lines=tuple(new.get(line.id, line) for line in shown.lines))


def shortened(ledger: Ledger) -> Ledger:
    """Return the ledger with as many findings per line as are shown; a line's sentence says how many there are."""
    return replace(ledger, lines=tuple(replace(line, findings=line.findings[:FINDINGS_SHOWN]) for line in ledger.lines))


class CalmClock:
    """Counts the seconds in which nothing was out of the ordinary; see `Moment`.

    Attributes:
        is_calm: Whether it was calm at the last look.
        calm_s: The calm seconds so far.
    """

    def __init__(self, is_calm: Callable[[], bool]) -> None:
        self._ask = is_calm
        self._looked_s: float | None = None
        self.is_calm = False
        self.calm_s = 0.0

    def look(self, now_s: float) -> None:
        """Look; the time since the last look counts when it is and was calm."""
        was_calm, self.is_calm = self.is_calm, self._ask()
        if was_calm and self.is_calm and self._looked_s is not None:
            self.calm_s += now_s - self._looked_s
        self._looked_s = now_s


__all__ = ["Auditor", "CalmClock", "Moment", "Round", "shortened", "updated", "with_certain"]
