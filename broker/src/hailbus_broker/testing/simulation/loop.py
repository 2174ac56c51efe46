"""The event loop of a simulated world: virtual time, many processes, every choice drawn from a seed."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import sys
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, cast
from weakref import ref

from hailbus_broker.testing.simulation.burial import bury
from hailbus_broker.testing.simulation.closed_loop import ClosedLoop
from hailbus_broker.testing.simulation.errors import DeadlockError, EscapedError, SimulatedCrashError
from hailbus_broker.testing.simulation.handles import (
    KernelEvent,
    SimulatedFuture,
    SimulatedHandle,
    SimulatedTask,
    SimulatedTimer,
    name_of,
)
from hailbus_broker.testing.simulation.process import CURRENT_PROCESS, SimulatedProcess
from hailbus_broker.testing.simulation.thread_work import ThreadWork

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence

    from hailbus_broker.testing.simulation.network import Network, SimulatedServer
    from hailbus_broker.testing.simulation.trace import Trace
    from hailbus_broker.testing.simulation.transport import SimulatedTransport
    from hailbus_broker.testing.simulation.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RESOLUTION_S: Final = 0.000_001
"""The least delay of a timer: a program that waits for 0 s until its clock has moved would never see it move."""
_STEPS_PER_MS: Final = 10_000
"""So many callbacks in a row take a millisecond: a program that spins until a time has come sees it come."""
_MIN_CANCELLED_TIMERS: Final = 100
_log: Final = logging.getLogger("asyncio")


class SimulatedLoop(ClosedLoop):
    """One loop for all processes of a world.

    Within a process callbacks run in asyncio's order. Which process runs next is drawn; each gets one turn of what it
    had ready. When no process has anything ready, virtual time jumps to the next timer.

    Args:
        rng: Decides which process runs next, and how long threads take.
        trace: Gets one line per step that matters.

    Attributes:
        now_s: Virtual time, in seconds since the world began.
        step_count: Callbacks run so far.
        network: Set by the world.
        world: Set by itself.
        unhandled: What reached the exception handler of living processes that have none of their own.
    """

    network: Network
    world: World

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.now_s = 0.0
        self.step_count = 0
        self.unhandled: list[dict[str, Any]] = []
        self.main: SimulatedProcess | None = None
        """The process of whatever is scheduled outside of any process."""
        self.processes: list[SimulatedProcess] = []
        self.rng: Final = rng
        self._trace: Final = trace
        self._numbers: Final = count(1)
        self._runnable: list[SimulatedProcess] = []
        self._timers: list[tuple[float, int, SimulatedTimer | KernelEvent]] = []
        self._cancelled_timer_count = 0
        # By id: the hook that drops a generator is called when its weak references are gone already.
        self._generators: Final[dict[int, SimulatedProcess]] = {}
        self._is_running = False
        self._is_stopping = False
        self._is_closed = False
        self._is_debugging = False
        self._is_ended = False
        self._instant_began_at = 0

    def __repr__(self) -> str:
        return f"<SimulatedLoop now={self.now_s:.6f} steps={self.step_count} is_running={self._is_running}>"

    # ------------------------------------------------------------------ what the world needs

    def record(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self._trace.add(f"{self.now_s:.9f} {self.step_count} {who} {what}")

    def at(self, when_s: float, action: Callable[[], object]) -> KernelEvent:
        """Let something happen at a time, outside of any process."""
        event = KernelEvent(action)
        heapq.heappush(self._timers, (when_s, next(self._numbers), event))
        return event

    def after(self, delay_s: float, action: Callable[[], object]) -> KernelEvent:
        """Let something happen after a while, outside of any process."""
        return self.at(self.now_s + delay_s, action)

    def schedule(self, process: SimulatedProcess, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback as a process, after all that it has ready; nothing if it is dead."""
        if process.is_alive:
            self._enqueue(process, SimulatedHandle(process, callback, args, self, process.shared_context))

    def _enqueue(self, process: SimulatedProcess, handle: Any) -> None:
        process.ready.append(handle)
        if not process.is_queued and not process.is_paused:
            process.is_queued = True
            self._runnable.append(process)

    def pause(self, process: SimulatedProcess) -> None:
        """See `SimulatedProcess.pause`."""
        if process.is_alive and not process.is_paused:
            self.record(process.name, "paused")
            process.is_paused = True
            self._dequeue(process)

    def resume(self, process: SimulatedProcess) -> None:
        """See `SimulatedProcess.resume`."""
        if process.is_alive and process.is_paused:
            self.record(process.name, "resumed")
            process.is_paused = False
            self._requeue(process)

    def _dequeue(self, process: SimulatedProcess) -> None:
        if process.is_queued:
            process.is_queued = False
            self._runnable.remove(process)

    def _requeue(self, process: SimulatedProcess) -> None:
        if process.ready and process.is_alive and not process.is_paused and not process.is_queued:
            process.is_queued = True
            self._runnable.append(process)

    def kill(self, process: SimulatedProcess, *, is_power_cut: bool = False) -> None:
        """End a process without running any of its code.

        Args:
            process: It may be the one that runs at the moment: then what it still does reaches nothing.
            is_power_cut: Its peers are not told.
        """
        if not process.is_alive:
            return
        self.record(process.name, "lost power" if is_power_cut else "killed")
        process.is_alive = False
        self._dequeue(process)
        # Everything stays referenced until the world ends: the collector would close the coroutines and run `finally`.
        process.grave.extend(process.ready)
        process.ready.clear()
        kept = []
        for entry in self._timers:
            timer = entry[2]
            if isinstance(timer, SimulatedTimer) and timer.process is process:
                process.grave.append(timer)
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._timers = kept
        process.grave.extend(task for task in asyncio.all_tasks(self) if self._process_of(task) is process)
        process.grave.extend(process.open_generators())
        for server in list(process.servers):
            process.grave.append(server)
            server.process_ended()
        for transport in list(process.transports):
            process.grave.append(transport)
            transport.process_ended(is_power_cut=is_power_cut)
        for callback in process.when_killed:
            callback()

    @staticmethod
    def _process_of(task: asyncio.Task[Any]) -> SimulatedProcess | None:
        return task.process if isinstance(task, SimulatedTask) else None

    def end(self) -> None:
        """End the world: kill what lives, then release what the dead held, without letting it touch anything."""
        self._is_ended = True
        for process in self.processes:
            self.kill(process)
        self._timers.clear()
        self._runnable.clear()
        self.network.forget()
        for process in self.processes:
            process.forget()
        bury(self.processes)
        self._is_closed = True
        # The world refers to the loop and no longer the other way round: its memory is free without a collection.
        self.processes.clear()
        self.main = None
        del self.network, self.world

    # ------------------------------------------------------------------ running

    def run_forever(self) -> None:
        """Run until `stop`."""
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        if self._is_running or asyncio._get_running_loop() is not None:  # noqa: SLF001 - as every event loop does
            raise RuntimeError("another event loop runs in this thread; start the simulation outside of it")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generator_started, finalizer=self._generator_dropped)
        asyncio._set_running_loop(self)  # noqa: SLF001 - as every event loop does
        self._is_running = True
        self._is_stopping = False
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)  # noqa: SLF001 - as every event loop does
            sys.set_asyncgen_hooks(*hooks)

    def _turn(self) -> None:
        """Run what one process has ready, or let time pass. The hot path of every simulation."""
        timers = self._timers
        if timers and timers[0][0] <= self.now_s:
            self._fire()
        runnable = self._runnable
        if not runnable:
            self._advance()
            if not runnable:
                return
        process = runnable[0] if len(runnable) == 1 else runnable[int(self.rng.random() * len(runnable))]
        if process.busy_until_s > self.now_s:
            self._dequeue(process)
            self.at(process.busy_until_s, lambda: self._requeue(process))
            return
        ready = process.ready
        turn_count = len(ready)
        while turn_count:
            turn_count -= 1
            handle = ready.popleft()
            if handle._cancelled:  # noqa: SLF001 - attributes of asyncio's, here and below
                continue
            self.step_count += 1
            try:
                handle._context.run(handle._callback, *handle._args)  # noqa: SLF001 what asyncio.Handle._run does
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio
                message = f"Exception in callback {name_of(handle)}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})
            if not process.is_queued:  # killed or paused
                return
        if not ready:
            process.is_queued = False
            self._runnable.remove(process)
        if self.step_count - self._instant_began_at > _STEPS_PER_MS:
            self._instant_began_at = self.step_count
            self.now_s += 0.001

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:  # noqa: SLF001 - an attribute of asyncio's
            heapq.heappop(timers)
        if not timers:
            raise DeadlockError(self._describe_deadlock())
        self.now_s = max(self.now_s, timers[0][0])
        self._instant_began_at = self.step_count
        self._fire()

    def _fire(self) -> None:
        """Make ready what is due."""
        timers, now_s = self._timers, self.now_s
        while timers and timers[0][0] <= now_s:
            entry = heapq.heappop(timers)[2]
            if entry._cancelled:  # noqa: SLF001 - an attribute of asyncio's
                continue
            if isinstance(entry, KernelEvent):
                entry.action()
                timers = self._timers  # a process that was killed has taken its timers out
            else:
                entry._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001 - an attribute of asyncio's
                self._trace.add(f"{now_s:.9f} {self.step_count} {entry.process.name} timer {name_of(entry)}")
                self._enqueue(entry.process, entry)

    def _describe_deadlock(self) -> str:
        lines = [f"nothing can happen any more at {self.now_s:.6f} s; these tasks wait:"]
        for task in sorted(asyncio.all_tasks(self), key=hash):
            process = self._process_of(task)
            if process is None or not process.is_alive:
                continue
            frames = task.get_stack(limit=1)
            where = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
            paused = " (paused)" if process.is_paused else ""
            coroutine = getattr(task.get_coro(), "__qualname__", "?")
            lines.append(f"  {process.name}{paused}: {task.get_name()} in {coroutine}{where}")
        return "\n".join(lines)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until a future is done, and return its result."""
        task: asyncio.Future[T] = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        task.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._stop_when_done)
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def _stop_when_done(self, _future: asyncio.Future[Any]) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the callback that runs."""
        self._is_stopping = True

    def is_running(self) -> bool:
        """Whether the loop runs."""
        return self._is_running

    def is_closed(self) -> bool:
        """Whether the loop was closed."""
        return self._is_closed

    def close(self) -> None:
        """Close the loop."""
        if self._is_running:
            raise RuntimeError("Cannot close a running event loop")
        self._is_closed = True

    async def shutdown_asyncgens(self) -> None:
        """Close all asynchronous generators of the calling process."""
        closing = [generator.aclose() for generator in self._current().open_generators()]
        await asyncio.gather(*closing, return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's signature
        """Return: there are no threads."""

    def _generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._current()
        process.async_generators[id(generator)] = ref(generator)
        self._generators[id(generator)] = process

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.pop(id(generator), None)
        if process is not None:
            process.async_generators.pop(id(generator), None)
        if process is not None and process.is_alive and not self._is_closed:
            self.schedule(process, self.create_task, generator.aclose())

    # ------------------------------------------------------------------ callbacks and timers

    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self.now_s

    def _current(self) -> SimulatedProcess:
        process = CURRENT_PROCESS.get(self.main)
        assert process is not None, "nothing runs in this loop before its world has a main process"
        return process

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        """Run a callback in the next turn of its process."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(CURRENT_PROCESS, self.main)
        assert process is not None
        handle = SimulatedHandle(process, callback, args, self, context)
        if process.is_alive:
            if self._is_closed:
                raise RuntimeError("Event loop is closed")
            process.ready.append(handle)
            if not process.is_queued and not process.is_paused:
                process.is_queued = True
                self._runnable.append(process)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> SimulatedHandle:
        """As `call_soon`: what runs in a simulated thread calls it."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedTimer:
        """Run a callback after a while of virtual time."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedTimer:
        """Run a callback at a virtual time."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(CURRENT_PROCESS, self.main)
        assert process is not None
        when = max(when, self.now_s + _RESOLUTION_S)
        number = next(self._numbers)
        timer = SimulatedTimer(process, when, callback, args, self, context, number)
        if process.is_alive:
            if self._is_closed:
                raise RuntimeError("Event loop is closed")
            timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - an attribute of asyncio's
            heapq.heappush(self._timers, (when, number, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # called by `TimerHandle.cancel`
        if not handle._scheduled:  # type: ignore[attr-defined]  # noqa: SLF001 - an attribute of asyncio's
            return
        self._cancelled_timer_count += 1
        if self._cancelled_timer_count > max(_MIN_CANCELLED_TIMERS, len(self._timers) // 2):
            # The one that is being cancelled is not marked yet: it goes next time.
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]  # noqa: SLF001 - as above
            heapq.heapify(self._timers)
            self._cancelled_timer_count = 0

    # ------------------------------------------------------------------ futures, tasks, threads

    def next_number(self) -> int:
        """Count what is made in this world: hashes and ties are decided by such numbers, never by addresses."""
        return next(self._numbers)

    def create_future(self) -> SimulatedFuture[Any]:
        """Make a future of this loop."""
        return SimulatedFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> SimulatedTask[T]:
        """Run a coroutine as the calling process, or as that of `context`."""
        if context is None:
            context = contextvars.copy_context()
        process = context.get(CURRENT_PROCESS, self.main)
        assert process is not None
        if name is None:
            process.task_count += 1
            name = f"{process.name}-task-{process.task_count}"
        task: SimulatedTask[T] = SimulatedTask(
            cast("Coroutine[Any, Any, T]", coro), loop=self, name=str(name), context=context
        )
        task.process = process
        if not process.is_alive:
            process.grave.append(task)
        return task

    def set_task_factory(self, factory: object) -> None:
        """Refuse: tasks of this loop have hashes of their own."""
        if factory is not None:
            raise EscapedError("a task factory would make tasks that are not the simulation's")

    def get_task_factory(self) -> None:
        """Return None: there is none."""
        return

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> SimulatedFuture[T]:  # type: ignore[override]  # noqa: ARG002 - any executor is ignored
        """Call a function later, at once as a whole, as the calling process: a simulated thread."""
        future: SimulatedFuture[T] = self.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", result))

        self.run_in_thread(lambda: func(*args), done, delay_s=self.thread_delay_s())
        return future

    def thread_delay_s(self) -> float:
        """How long a thread takes to come to its work: mostly some 50 µs, now and then milliseconds."""
        drawn = self.rng.random()
        return 0.000_02 + 0.000_1 * drawn if drawn < 0.98 else 0.01 * (drawn - 0.98) / 0.02

    def run_in_thread(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        *,
        delay_s: float,
        duration_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Run work as a simulated thread of the calling process.

        Args:
            work: Called once, after the delay, as a whole.
            done: Called in the process with the result or with what was raised, after the duration.
            delay_s: See `work`.
            duration_s: Asked when the work is done.
        """
        process = self._current()
        if process.is_alive:
            self.after(delay_s, ThreadWork(self, process, work, done, duration_s).run)
        else:
            process.grave.append(work)

    def set_default_executor(self, executor: object) -> None:
        """Ignore it: there are no threads."""

    # ------------------------------------------------------------------ errors

    def set_exception_handler(self, handler: Callable[[Any, dict[str, Any]], object] | None) -> None:
        """Set the handler of the calling process."""
        self._current().exception_handler = handler

    def get_exception_handler(self) -> Callable[[Any, dict[str, Any]], object] | None:
        """Return the handler of the calling process."""
        return self._current().exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what happened, and keep it in `unhandled`."""
        self.unhandled.append(context)
        error = context.get("exception")
        exc_info = (type(error), error, error.__traceback__) if isinstance(error, BaseException) else None
        _log.error("%s", context.get("message") or "unhandled exception", exc_info=exc_info)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Hand an error to the handler of its process; the dead raise nothing."""
        process = self._process_of_error(context)
        if self._is_ended or (process is not None and not process.is_alive):
            return
        if isinstance(context.get("exception"), SimulatedCrashError):
            return
        handler = None if process is None else process.exception_handler
        if handler is None:
            self.default_exception_handler(context)
        else:
            handler(self, context)

    def _process_of_error(self, context: dict[str, Any]) -> SimulatedProcess | None:
        for key in ("handle", "task", "future"):
            process = getattr(context.get(key), "process", None)
            if isinstance(process, SimulatedProcess):
                return process
        return CURRENT_PROCESS.get(self.main)

    def get_debug(self) -> bool:
        """Whether debug mode is on."""
        return self._is_debugging

    def set_debug(self, enabled: bool) -> None:
        """Turn debug mode on or off; it changes nothing here but what asyncio's own classes do."""
        self._is_debugging = enabled

    # ------------------------------------------------------------------ the network

    async def create_connection(  # type: ignore[override]  # typeshed's overloads
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        **_options: Any,
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect to a listener of the simulated network."""
        if ssl or sock is not None or host is None or port is None:
            raise EscapedError("the simulated network has plain connections to a host and a port only")
        return await self.network.connect(self._current(), protocol_factory, host, port)

    async def create_server(  # type: ignore[override]  # typeshed's overloads
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **_options: Any,
    ) -> SimulatedServer:
        """Listen in the simulated network, as the calling process."""
        if ssl or sock is not None:
            raise EscapedError("the simulated network has plain listeners on a port only")
        server = self.network.listen(self._current(), protocol_factory, host, port or 0)
        if start_serving:
            await server.start_serving()
        return server

    async def getaddrinfo(  # type: ignore[override]  # narrower than typeshed's, which allows bytes
        self,
        host: str | None,
        port: str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, Any, int, str, tuple[str, int]]]:
        """Return the address of a simulated host.

        Raises:
            socket.gaierror: There is no such host.
        """
        import socket

        del family, type, proto, flags
        found = self.network.resolve(self._current(), host or "localhost")
        address = "127.0.0.1" if host in {None, "localhost", "127.0.0.1"} else found.address
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]
