"""Processes under a supervisor: several of one command, or one that starts again when its code changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hailbus._extras import extra
from hailbus._signals import on_stop_signal

__all__ = ["Command", "Reloader", "Workers"]

RESTARTS = 5
WITHIN_S = 60.0
RESTART_DELAY_S = 0.5
RELOAD_GRACE_S = 10.0
CANNOT_START = 2
"""The exit code of a process that says by a sentence why it cannot start: starting it again would not help."""


@dataclass(frozen=True, slots=True)
class Command:
    """What each process runs.

    Args:
        words: The program and its arguments.
        fds: File descriptors that it inherits.
    """

    words: Sequence[str]
    fds: tuple[int, ...] = ()


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """The end of a pipe whose other end closes when this process ends, even if it is killed."""
    readable, writable = os.pipe()
    try:
        yield readable
    finally:
        os.close(readable)
        os.close(writable)


async def _start(command: Command, lifeline: int) -> asyncio.subprocess.Process:
    # In a session of its own: Ctrl-C in a terminal reaches this process alone, which passes it on once.
    return await asyncio.create_subprocess_exec(
        *command.words,
        "--parent-fd",
        str(lifeline),
        pass_fds=(*command.fds, lifeline),
        start_new_session=True,
    )


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


class Workers:
    """A number of processes of one command.

    A process that dies is started again. When that happened `restarts` times within `within_s` seconds, or a process
    says that it cannot start, all are stopped. A signal goes to all of them: the first one drains, the second one
    cancels the drain, the third one kills.

    Args:
        command: What each process runs.
        count: How many.
        restarts: Deaths that are one too many.
        within_s: ... within so many seconds.
    """

    def __init__(self, command: Command, count: int, *, restarts: int = RESTARTS, within_s: float = WITHIN_S) -> None:
        self._command = command
        self._count = count
        self._restarts = restarts
        self._within_s = within_s
        self._deaths: deque[float] = deque()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._code = 0

    async def run(self) -> int:
        """Run until all have ended; the exit code: 0 after a signal or when all ended with 0."""
        with _lifeline() as lifeline, on_stop_signal(self._on_signal):
            await asyncio.gather(*(self._keep(number, lifeline) for number in range(self._count)))
        return self._code

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop(signal.SIGKILL if self._signals > 2 else signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        for process in self._processes.values():
            _signal(process, number)

    async def _keep(self, number: int, lifeline: int) -> None:
        """Keep one process running."""
        while not self._stopping.is_set():
            process = self._processes[number] = await _start(self._command, lifeline)
            if self._stopping.is_set():  # the signal came while it was started
                _signal(process, signal.SIGTERM)
            code = await process.wait()
            del self._processes[number]
            if code == 0:
                return
            if self._stopping.is_set():
                self._code = self._code or (code if code > 0 else 128 - code)
                return
            if not self._may_restart(code):
                self._code = CANNOT_START if code == CANNOT_START else 1
                self._stop(signal.SIGTERM)
                return
            print(f"hailbus: worker {process.pid} ended with {code}; starting another", file=sys.stderr, flush=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RESTART_DELAY_S)

    def _may_restart(self, code: int) -> bool:
        if code == CANNOT_START:
            return False
        now = asyncio.get_running_loop().time()
        self._deaths.append(now)
        while self._deaths[0] < now - self._within_s:
            self._deaths.popleft()
        if len(self._deaths) < self._restarts:
            return True
        print(
            f"hailbus: {len(self._deaths)} workers died within {self._within_s:g} s, the last with {code}; all stop",
            file=sys.stderr,
            flush=True,
        )
        return False


class Reloader:
    """One process that is stopped and started again whenever a Python file below a folder changes.

    A process that ends by itself, as by a mistake in its code, is started again at the next change.

    Args:
        command: What it runs.
        folder: Where its code is.
        changes: In place of watching the folder, for tests: yields whenever something has changed.
    """

    def __init__(
        self,
        command: Command,
        folder: str,
        *,
        changes: Callable[[asyncio.Event], AsyncIterator[Sequence[str]]] | None = None,
    ) -> None:
        self._command = command
        self._folder = folder
        self._changes = changes if changes is not None else self._watch
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal; the exit code of the process."""
        with _lifeline() as lifeline, on_stop_signal(self._on_signal):
            self._process = await _start(self._command, lifeline)
            async for paths in self._changes(self._stopping):
                shown = ", ".join(sorted(path.removeprefix(f"{self._folder}/") for path in paths)[:3])
                print(f"hailbus: {shown} changed; starting again", file=sys.stderr, flush=True)
                await self._end()
                if self._stopping.is_set():
                    break
                self._process = await _start(self._command, lifeline)
            code = await self._process.wait()
        return max(code, 0)

    def _on_signal(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, signal.SIGTERM)

    async def _end(self) -> None:
        """Stop the process: drain it, then cancel the drain, then kill it."""
        assert self._process is not None
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            _signal(self._process, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), RELOAD_GRACE_S)

    async def _watch(self, stop: asyncio.Event) -> AsyncIterator[Sequence[str]]:
        with extra("cli"):
            import watchfiles
        async for changes in watchfiles.awatch(
            Path(self._folder), watch_filter=watchfiles.PythonFilter(), stop_event=stop, rust_timeout=500
        ):
            yield [path for _, path in changes]
