"""A seeded world: hosts with processes on them, a network between them, virtual time for all."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from hailbus_broker.testing.simulation.errors import SimulationError
from hailbus_broker.testing.simulation.host_disk import HostDisk
from hailbus_broker.testing.simulation.library_state import fresh_library_state
from hailbus_broker.testing.simulation.link import LinkQuality
from hailbus_broker.testing.simulation.loop import SimulatedLoop
from hailbus_broker.testing.simulation.network import Network
from hailbus_broker.testing.simulation.patching import patched
from hailbus_broker.testing.simulation.process import Host, SimulatedProcess
from hailbus_broker.testing.simulation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

T = TypeVar("T")
P = ParamSpec("P")

_FIRST_PID: Final = 1_000


class World:
    """Everything that happens in one simulation; the same seed gives the same trace.

    Args:
        seed: Decides everything that is left to chance.
        keep_trace: How many of the newest lines of the trace to keep; None keeps all.
        quality: Of links that nobody has changed.

    Attributes:
        loop: The event loop of all processes.
        network: Hosts and links, and how to cut them.
        trace: What has happened.
        notes: How often each thing happened that a campaign wants to have seen.
        note: Counts one more of such things.
        main: The process of the function that `run` is given.
    """

    def __init__(self, seed: int, *, keep_trace: int | None = 1_000, quality: LinkQuality | None = None) -> None:
        self.seed = seed
        self.trace: Final = Trace(keep=keep_trace)
        self.notes: Final[Counter[str]] = Counter()
        self.note: Final = partial(_count, self.notes)
        self.loop: Final = SimulatedLoop(self.rng("loop"), self.trace)
        self.network: Final = Network(self.loop, self.rng("network"), self.note, quality or LinkQuality())
        self.loop.network = self.network
        self.loop.world = self
        self._disks: Final[dict[str, HostDisk]] = {}
        self._incarnations: Final[Counter[str]] = Counter()
        self.main: Final = self.process("main")
        self.loop.main = self.main

    def rng(self, purpose: str) -> random.Random:
        """Make a generator of its own, so that draws for one purpose do not change those for another."""
        return random.Random(f"{self.seed}/{purpose}")

    def reseed(self, seed: int) -> None:
        """Begin again with another seed, before anything has happened.

        Raises:
            SimulationError: The world has begun.
        """
        if len(self.loop.processes) > 1 or self._disks:
            raise SimulationError(f"the world runs with seed {self.seed} already")
        self.seed = seed
        for rng, purpose in ((self.loop.rng, "loop"), (self.network.rng, "network"), (self.main.rng, "process/main")):
            rng.seed(f"{seed}/{purpose}")

    def host(self, name: str) -> Host:
        """Return the host of a name; the first call makes it."""
        return self.network.host(name)

    def disk(self, name: str) -> HostDisk:
        """Return the disk of a host; the first call makes it."""
        found = self._disks.get(name)
        if found is None:
            found = self._disks[name] = HostDisk(self.host(name), self.loop, self.rng(f"disk/{name}"), self.note)
        return found

    def process(self, name: str, host: str | None = None) -> SimulatedProcess:
        """Start a process: nothing runs in it yet.

        Args:
            name: Each further process of the name is another life of it, `name.2`, `name.3` and so on.
            host: Where it runs; None is the host of the same name. The host boots if it is off.
        """
        machine = self.host(host or name)
        self.network.boot(machine)
        self._incarnations[name] += 1
        life = self._incarnations[name]
        full_name = name if life == 1 else f"{name}.{life}"
        pid = _FIRST_PID + len(self.loop.processes)
        process = SimulatedProcess(full_name, machine, self.loop, self.rng(f"process/{full_name}"), pid=pid)
        self.loop.processes.append(process)
        return process

    @property
    def unhandled(self) -> list[dict[str, Any]]:
        """Errors that no code has handled, as asyncio's exception handlers get them."""
        return self.loop.unhandled

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def run(self, main: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function in this world, then end the world; once only.

        Raises:
            DeadlockError: Nothing can happen any more, and `main` still waits.
        """
        with patched(), fresh_library_state(), _collector_paused():
            try:
                return self.loop.run_until_complete(self.main.start(main(self), name="main"))
            finally:
                self.loop.end()


def simulated(
    *, seed: int = 0, seeds: Iterable[int] | None = None
) -> Callable[[Callable[P, Coroutine[Any, Any, object]]], Callable[P, None]]:
    """Run a coroutine test in a world of its own, once for each seed.

    Args:
        seed: Of the world.
        seeds: Of several worlds, one after the other.
    """
    chosen = (seed,) if seeds is None else tuple(seeds)

    def decorate(test: Callable[P, Coroutine[Any, Any, object]]) -> Callable[P, None]:
        @wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            with patched():
                for each in chosen:
                    world = World(each)
                    try:
                        world.run(lambda _world: test(*args, **kwargs))
                    except BaseException as error:
                        error.add_note(f"in a simulated world with seed {world.seed}")
                        raise

        return run

    return decorate


def _count(notes: Counter[str], what: str) -> None:
    """Count something; no method of the world, which would then refer to itself."""
    notes[what] += 1


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running finalizers at moments that no seed decides."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # the collection at the end looks at what the world has made only
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
