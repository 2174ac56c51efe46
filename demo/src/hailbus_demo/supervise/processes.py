"""One supervisor for all child processes: start, wait until ready, restart after a crash, stop, never leave one behind.

Each child leads a process group of its own, so that Ctrl-C in the terminal reaches only the supervisor, which stops
them in its own order, and so that a child's own children (Spark's JVM) end with it. If the supervisor itself is killed,
Linux kills the children (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pwd
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hailbus_demo.errors import RunFailedError

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 10.0
CRASHES_IN_A_ROW = 6
"""After so many crashes without `HEALTHY_AFTER_S` of work between, a process is given up."""
HEALTHY_AFTER_S = 20.0
TAIL_LINES = 12
MEASURE_EVERY_S = 2.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """What to start.

    `ready` returns whether the process serves; it is asked again after each restart. `before_restart` is awaited before
    that, so that `ready` can tell the new process from the one before.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    ready: Callable[[], Awaitable[bool]]
    ready_within_s: float = 60.0
    grace_s: float = 20.0
    before_restart: Callable[[], Awaitable[None]] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    user: str | None = None
    """Who it runs as, for root to say; None for who runs the demo."""
    folder: Path | None = None
    """Where it runs; None for where the demo does."""


@dataclass(slots=True)
class Child:
    """A process under supervision."""

    spec: ProcessSpec
    state: str = "starting"
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    crashes_in_a_row: int = 0
    kills: int = 0
    started_at: float = 0.0
    ready_after_s: float | None = None
    ready_at: float | None = None
    """When it last began to serve, as monotonic seconds."""
    cpu_s: float = 0.0
    cpu_before_s: float = 0.0
    """What its former lives took."""
    cpu_pid: int | None = None
    memory_mb: float = 0.0
    memory_peak_mb: float = 0.0
    last_exit: str = ""
    watcher: asyncio.Task[None] | None = None
    became_ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class Supervisor:
    """Runs child processes.

    Args:
        say: Called with a line for the user when a process crashed, came back or was given up.
    """

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self.say = say
        self.children: dict[str, Child] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets a `RunFailedError` when a process is given up."""
        self.expendable: set[str] = set()
        """Processes that may be given up without an end of the run."""
        self._stopping: set[str] = set()
        self._measured_at = 0.0

    async def start(self, spec: ProcessSpec) -> Child:
        """Start a process and watch it; see `wait_ready`."""
        child = self.children[spec.name] = Child(spec=spec)
        self._stopping.discard(spec.name)
        await self._spawn(child)
        child.watcher = asyncio.create_task(self._watch(child))
        return child

    async def start_again(self, name: str) -> None:
        """Start a process that `stop` ended, with the same command; see `wait_ready`."""
        child = self.children[name]
        assert child.pid is None, f"{name} still runs"
        self._stopping.discard(name)
        child.restarts += 1
        child.state = "starting"
        await self._spawn(child)
        child.watcher = asyncio.create_task(self._watch(child))

    async def wait_ready(self, *names: str) -> None:
        """Return when the processes serve.

        Raises:
            RunFailedError: One does not within its deadline, or was given up; with the tail of its log.
        """

        async def one(child: Child) -> None:
            try:
                async with asyncio.timeout(child.spec.ready_within_s):
                    await child.became_ready.wait()
            except TimeoutError:
                raise RunFailedError(
                    f"{child.spec.name} was not ready within {child.spec.ready_within_s:g} s; {self.tail(child)}"
                ) from None

        waiting = [asyncio.create_task(one(self.children[name])) for name in names]
        try:
            pending: set[asyncio.Future[None]] = {self.failure, *waiting}
            while set(waiting) & pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in waiting:
                task.cancel()

    async def let_end(self, name: str) -> bool:
        """Wait for a process that was asked to end by itself; say whether its exit code was 0. It is not restarted."""
        child = self.children[name]
        self._stopping.add(name)
        if child.watcher is not None:
            await asyncio.shield(child.watcher)
        return child.process is not None and child.process.returncode == 0

    async def kill(self, name: str) -> None:
        """Kill a process and its children with SIGKILL, as a fault would; it is restarted like after any crash.

        Crashes in a row are counted anew: a process that is killed often is not one that cannot be kept running.
        """
        child = self.children[name]
        if child.pid is None:
            return
        child.kills += 1
        child.crashes_in_a_row = 0
        child.became_ready.clear()
        _kill_group(child.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def suspended(self, name: str) -> Iterator[None]:
        """Let a process and its children do nothing, as SIGSTOP does, as long as the context lasts."""
        child = self.children[name]
        if child.pid is not None:
            _kill_group(child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if child.pid is not None:
                _kill_group(child.pid, signal.SIGCONT)

    async def stop(self, *names: str) -> None:
        """End processes: their signal, their grace, then SIGKILL of what is left of their group."""
        self._stopping.update(names)

        async def one(child: Child) -> None:
            process = child.process
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(child.spec.stop_signal)
                try:
                    async with asyncio.timeout(child.spec.grace_s):
                        await process.wait()
                except TimeoutError:
                    self.say(f"{child.spec.name} did not stop within {child.spec.grace_s:g} s: killed")
                _kill_group(process.pid, signal.SIGKILL)
                await process.wait()
            if child.watcher is not None:
                child.watcher.cancel()
                await asyncio.gather(child.watcher, return_exceptions=True)
            child.state = "stopped"

        await asyncio.gather(*(one(self.children[name]) for name in names if name in self.children))

    def measure(self) -> None:
        """Note memory (resident, in MiB) and CPU time of every process with its descendants; every two seconds at most.

        CPU time counts from the first start, restarts included, up to the last look before an end.
        """
        now = time.monotonic()
        if now - self._measured_at < MEASURE_EVERY_S:
            return
        self._measured_at = now
        owners = {child.pid: child for child in self.children.values() if child.pid is not None}
        parents: dict[int, int] = {}
        sizes: dict[int, int] = {}
        seconds: dict[int, float] = {}
        for process in psutil.Process().children(recursive=True):  # of ours alone: other people's cost time as well
            with contextlib.suppress(psutil.Error):
                parents[process.pid] = process.ppid()
                times = process.cpu_times()
                sizes[process.pid], seconds[process.pid] = process.memory_info().rss, times.user + times.system
        memory = dict.fromkeys(owners, 0)
        cpu_s = dict.fromkeys(owners, 0.0)
        for pid, size in sizes.items():
            ancestor: int | None = pid
            while ancestor is not None and ancestor not in owners:
                ancestor = parents.get(ancestor)
            if ancestor is not None:
                memory[ancestor] += size
                cpu_s[ancestor] += seconds[pid]
        for child in self.children.values():
            child.memory_mb = 0.0
        for pid, child in owners.items():
            child.memory_mb = memory[pid] / 2**20
            child.memory_peak_mb = max(child.memory_peak_mb, child.memory_mb)
            if child.cpu_pid != pid:  # started anew
                child.cpu_pid, child.cpu_before_s = pid, child.cpu_s
            child.cpu_s = max(child.cpu_s, child.cpu_before_s + cpu_s[pid])

    def kill_all(self) -> None:
        """Kill whatever still runs, at once; for the last way out."""
        self._stopping.update(self.children)
        for child in self.children.values():
            if child.process is not None:
                _kill_group(child.process.pid, signal.SIGKILL)

    def tail(self, child: Child) -> str:
        """Return the last lines of a process's log, for a message."""
        try:
            with child.spec.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 16_384))
                lines = file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        except OSError:
            lines = []
        words = "\n".join(f"    {line}" for line in lines) or "    (it wrote nothing)"
        return f"its log {child.spec.log} ends with:\n{words}"

    async def _spawn(self, child: Child) -> None:
        spec = child.spec
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        child.started_at = time.monotonic()
        child.became_ready.clear()
        if spec.before_restart is not None and child.restarts:
            await spec.before_restart()
        with spec.log.open("ab") as log:
            log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(spec.argv)}\n".encode())
            log.flush()
            try:
                child.process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    env={**_clean_environment(spec.env), **spec.env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=before_exec(spec.user),
                    cwd=spec.folder,
                )
            except OSError as error:
                raise RunFailedError(f"{spec.name} cannot be started ({error}): run `uv sync` first") from error

    async def _watch(self, child: Child) -> None:
        spec = child.spec
        while True:
            assert child.process is not None
            probing = asyncio.create_task(self._probe(child))
            code = await child.process.wait()
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            _kill_group(child.process.pid, signal.SIGKILL)  # its children must not outlive it
            if spec.name in self._stopping:
                child.state = "stopped"
                return
            child.became_ready.clear()
            child.last_exit = _describe_exit(code)
            lived_s = time.monotonic() - child.started_at
            child.crashes_in_a_row = 1 if lived_s > HEALTHY_AFTER_S else child.crashes_in_a_row + 1
            if child.crashes_in_a_row >= CRASHES_IN_A_ROW or (code == 2 and child.ready_after_s is None):
                child.state = "failed"
                message = f"{spec.name} {child.last_exit} and does not come back; {self.tail(child)}"
                if spec.name in self.expendable:
                    self.say(f"{spec.name} {child.last_exit} and does not come back")
                elif not self.failure.done():
                    self.failure.set_exception(RunFailedError(message))
                return
            wait_s = min(FIRST_BACKOFF_S * 2 ** (child.crashes_in_a_row - 1), LONGEST_BACKOFF_S)
            child.state = "restarting"
            child.restarts += 1
            self.say(f"{spec.name} {child.last_exit} after {lived_s:.1f} s: restart {child.restarts} in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            await self._spawn(child)

    async def _probe(self, child: Child) -> None:
        """Ask the process whether it serves until it says so."""
        back = child.restarts > 0
        while not await child.spec.ready():  # noqa: ASYNC110  # another process: there is no event to wait for
            await asyncio.sleep(0.1)
        child.ready_at = time.monotonic()
        child.ready_after_s = child.ready_at - child.started_at
        child.state = "ready"
        child.became_ready.set()
        if back:
            self.say(f"{child.spec.name} is back after {child.ready_after_s:.1f} s")


def before_exec(user: str | None) -> Callable[[], None]:
    """Return what a child does before it becomes its program: it becomes the user, and ends with its parent.

    uvloop takes no user. The kernel forgets the parent's death when a process changes its user, so that comes first.
    """
    entry = None if user is None else pwd.getpwnam(user)

    def prepare() -> None:
        if entry is not None:
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        _die_with_parent()

    return prepare


def _clean_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without settings of the child's prefix: what the child gets is what we say.

    Children keep what Python compiles, also where the machine says otherwise: without that each of them compiles its
    libraries at every start, which costs more CPU time than everything else until the first ride.
    """
    prefixes = tuple({name.split("_", 1)[0] + "_" for name in own if "_" in name} - {"JAVA_", "PYTHONUNBUFFERED_"})
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not (prefixes and name.startswith(prefixes))
    }


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Run in the child before exec: let Linux kill it when the supervisor is gone."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"exited with {code}"


def command(name: str) -> str:
    """Return the path of a command that was installed beside this Python."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
