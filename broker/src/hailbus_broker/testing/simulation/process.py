"""Simulated machines and the processes that run on them."""

from __future__ import annotations

import contextvars
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from typing import ParamSpec
    from weakref import ref

    from hailbus_broker.testing.simulation.handles import SimulatedHandle, SimulatedTask
    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.network import SimulatedServer
    from hailbus_broker.testing.simulation.transport import SimulatedTransport

    P = ParamSpec("P")

T = TypeVar("T")

CURRENT_PROCESS: Final[contextvars.ContextVar[SimulatedProcess]] = contextvars.ContextVar("hailbus_simulated_process")
"""The process whose code runs. Handles, tasks and timers inherit it by their context."""

_EPOCH_S: Final = 1_767_225_600.0
"""What a wall clock without skew shows when a world begins: 2026-01-01."""


class WallClock:
    """The wall clock of a host: runs at its own rate, and jumps.

    Args:
        loop: Where virtual time comes from.
        name: The host's, for the trace.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop: Final = loop
        self._name: Final = name
        self._base_s = _EPOCH_S
        self._since_s = 0.0
        self._rate = 1.0

    def read_s(self) -> float:
        """Seconds since 1970."""
        return self._base_s + (self._loop.now_s - self._since_s) * self._rate

    def jump(self, seconds: float) -> None:
        """Put the clock forward, or back when negative."""
        self._loop.record(self._name, f"clock jumps {seconds}")
        self._base_s += seconds

    def drift(self, rate: float) -> None:
        """Run at another rate from now on; 1.0 is exact."""
        self._loop.record(self._name, f"clock runs at {rate}")
        self._base_s, self._since_s, self._rate = self.read_s(), self._loop.now_s, rate


class Host:
    """One machine: an address, a wall clock, and the ports that its processes listen on.

    Attributes:
        name: Also its host name in the network.
        address: Its IPv4 address.
        is_up: False between a power cut and the next boot.
    """

    def __init__(self, name: str, number: int, loop: SimulatedLoop) -> None:
        self.name: Final = name
        self.number: Final = number
        self.address: Final = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.clock: Final = WallClock(loop, name)
        self.is_up = True
        self.listeners: Final[dict[int, SimulatedServer]] = {}
        self.processes: Final[list[SimulatedProcess]] = []
        self.when_power_lost: Final[list[Callable[[], object]]] = []
        self._next_port = 32_768

    def __repr__(self) -> str:
        return f"<Host {self.name}>"

    def free_port(self) -> int:
        """A port that nobody has had since the world began."""
        self._next_port += 1
        return self._next_port


class SimulatedProcess:
    """A process of the simulated world: what its code schedules belongs to it and ends with it.

    Args:
        name: For the trace, unique in the world.
        host: The machine.
        loop: The event loop of the world.
        rng: Randomness of this process.
        pid: Its process id.

    Attributes:
        ready: Handles in the order in which the process runs them.
        is_alive: False after `kill`.
        is_paused: Whether the process is stopped, as by SIGSTOP.
        shared_context: The context of callbacks that the kernel makes.
    """

    def __init__(self, name: str, host: Host, loop: SimulatedLoop, rng: random.Random, *, pid: int) -> None:
        self.name: Final = name
        self.host: Final = host
        self.rng: Final = rng
        self.pid: Final = pid
        self.ready: Final[deque[SimulatedHandle]] = deque()
        self.is_alive = True
        self.is_paused = False
        self.is_queued = False
        self.busy_until_s = 0.0
        self.exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        self.transports: Final[dict[SimulatedTransport, None]] = {}
        self.servers: Final[dict[SimulatedServer, None]] = {}
        # By id, in the order in which they began; a reference is dead once its generator is gone.
        self.async_generators: Final[dict[int, ref[AsyncGenerator[Any, Any]]]] = {}
        self.when_killed: Final[list[Callable[[], object]]] = []
        self.grave: Final[list[object]] = []
        self.task_count = 0
        self.last_uuid_ticks = 0
        self._loop: Final = loop
        self.shared_context: Final = contextvars.copy_context()
        self.shared_context.run(CURRENT_PROCESS.set, self)
        host.processes.append(self)

    def __repr__(self) -> str:
        return f"<SimulatedProcess {self.name}>"

    @property
    def context(self) -> contextvars.Context:
        """A context in which code runs as this process."""
        return self.shared_context.copy()

    def open_generators(self) -> list[AsyncGenerator[Any, Any]]:
        """Return the asynchronous generators that have begun and still exist."""
        found = [reference() for reference in self.async_generators.values()]
        return [generator for generator in found if generator is not None]

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function as this process."""
        return self.context.run(function, *args, **kwargs)

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> SimulatedTask[T]:
        """Run a coroutine as this process."""
        return self._loop.create_task(coroutine, name=name, context=self.context)

    def wall_s(self) -> float:
        """What the wall clock shows, in seconds since 1970."""
        return self.host.clock.read_s()

    def wall_ns(self) -> int:
        """What the wall clock shows, in nanoseconds since 1970."""
        return round(self.host.clock.read_s() * 1e6) * 1_000

    def monotonic_s(self) -> float:
        """The monotonic clock: the time of the event loop."""
        return self._loop.now_s

    def block(self, seconds: float) -> None:
        """Let the process do nothing else for a while: a call of the system that blocks its event loop."""
        self.busy_until_s = max(self.busy_until_s, self._loop.now_s) + seconds

    def forget(self) -> None:
        """Let go of the program, at the end of the world; what is in the grave is released apart."""
        self.transports.clear()
        self.servers.clear()
        self.when_killed.clear()
        self.exception_handler = None

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does: its kernel still accepts connections and bytes."""
        self._loop.pause(self)

    def resume(self) -> None:
        """Let the process continue, as SIGCONT does."""
        self._loop.resume(self)

    def kill(self) -> None:
        """End the process at once, as SIGKILL does: no `finally` runs, and the kernel closes its sockets."""
        self._loop.kill(self)
