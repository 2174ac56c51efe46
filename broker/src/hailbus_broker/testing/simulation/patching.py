"""Clocks, randomness, sockets, threads and processes of the standard library, replaced while a world runs.

Each replacement looks at the process that calls it (a context variable). Code outside of any simulated process, such as
another thread of the test runner, gets the original.

The functions are replaced wherever a loaded module or a default argument refers to them, because programs write
`from time import monotonic` and `def now(clock=time.time)`. `datetime.now` is replaced in the type itself: a subclass
would be another type for everything that compares types.
"""

from __future__ import annotations

import _socket
import _thread
import asyncio
import ctypes
import datetime as dt
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.simulation.errors import EscapedError
from hailbus_broker.testing.simulation.library_state import library_replacements
from hailbus_broker.testing.simulation.process import CURRENT_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.testing.simulation.process import SimulatedProcess

_Gathering: Final[Any] = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]  # noqa: SLF001 - see its patch
_GMTIME: Final = time.gmtime
_CTIME: Final = time.ctime
_UUID_EPOCH_TICKS: Final = 0x01B21DD213814000
"""100 ns from the beginning of the Gregorian calendar to 1970."""


def _reading(original: Callable[[], Any], read: Callable[[SimulatedProcess], Any]) -> Callable[[], Any]:
    """Replace a function without arguments that reads a clock."""

    def replacement() -> Any:
        process = CURRENT_PROCESS.get(None)
        return original() if process is None else read(process)

    return replacement


def _refusing(original: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Replace a function that a simulated process must not call."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            return original(*args, **kwargs)
        raise EscapedError(f"{what} in {process.name} would leave the simulation")

    return replacement


def _breaking_down(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `time.gmtime` and `time.localtime`: without an argument they read the clock. The time zone is UTC."""

    def replacement(seconds: float | None = None) -> Any:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            return original(seconds)
        return _GMTIME(process.wall_s() if seconds is None else seconds)

    return replacement


def _formatting(original: Callable[..., Any], moment_index: int) -> Callable[..., Any]:
    """Replace `time.strftime`, `time.asctime` and `time.ctime`: without a moment they read the clock."""

    def replacement(*args: Any) -> Any:
        process = CURRENT_PROCESS.get(None)
        if process is None or len(args) > moment_index:
            return original(*args)
        moment = process.wall_s() if original is _CTIME else _GMTIME(process.wall_s())
        return original(*args, moment)

    return replacement


def _clock_of(original: Callable[[int], Any], *, is_ns: bool) -> Callable[[int], Any]:
    """Replace `time.clock_gettime` and `time.clock_gettime_ns`."""

    def replacement(clock: int, /) -> Any:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            return original(clock)
        ns = process.wall_ns() if clock == time.CLOCK_REALTIME else _ns(process.monotonic_s())
        return ns if is_ns else ns / 1e9

    return replacement


def _urandom(original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def replacement(size: int, /) -> bytes:
        process = CURRENT_PROCESS.get(None)
        return original(size) if process is None else process.rng.randbytes(size)

    return replacement


def _of_rng(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Replace a function of the `random` module by the method of the process's own generator."""

    def replacement(*args: Any, **kwargs: Any) -> Any:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            return original(*args, **kwargs)
        return getattr(process.rng, name)(*args, **kwargs)

    return replacement


def _seeding(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `random.Random.seed`: without a seed it asks the operating system."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        process = CURRENT_PROCESS.get(None)
        if a is None and process is not None:
            a = process.rng.getrandbits(256)
        original(self, a, version)

    return seed


def _hash_of_gathering(original: Callable[[Any], int]) -> Callable[[Any], int]:
    """Replace the hash of what `asyncio.gather` returns, the one future that no loop makes."""

    def replacement(self: Any) -> int:
        next_number: Callable[[], int] | None = getattr(self.get_loop(), "next_number", None)
        if next_number is None:
            return original(self)
        number: int | None = getattr(self, "_simulated_number", None)
        if number is None:
            number = self._simulated_number = next_number()
        return number

    return replacement


def _uuid1(original: Callable[..., uuid.UUID]) -> Callable[..., uuid.UUID]:
    def uuid1(node: int | None = None, clock_seq: int | None = None) -> uuid.UUID:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            return original(node, clock_seq)
        ticks = max(process.wall_ns() // 100 + _UUID_EPOCH_TICKS, process.last_uuid_ticks + 1)
        process.last_uuid_ticks = ticks
        sequence = process.rng.getrandbits(14) if clock_seq is None else clock_seq
        return uuid.UUID(
            fields=(
                ticks & 0xFFFFFFFF,
                ticks >> 32 & 0xFFFF,
                ticks >> 48 & 0x0FFF,
                sequence >> 8 & 0x3F,
                sequence & 0xFF,
                0x020000000000 + process.host.number if node is None else node,
            ),
            version=1,
        )

    return uuid1


def _now(original: Any) -> Any:
    def now(cls: type[dt.datetime], tz: dt.tzinfo | None = None) -> dt.datetime:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            found: dt.datetime = original.__get__(None, cls)(tz)
            return found
        moment = cls.fromtimestamp(process.wall_ns() / 1e9, dt.UTC)
        return moment.replace(tzinfo=None) if tz is None else moment.astimezone(tz)

    return classmethod(now)


def _utcnow(original: Any) -> Any:
    def utcnow(cls: type[dt.datetime]) -> dt.datetime:
        process = CURRENT_PROCESS.get(None)
        if process is None:
            found: dt.datetime = original.__get__(None, cls)()
            return found
        return cls.fromtimestamp(process.wall_ns() / 1e9, dt.UTC).replace(tzinfo=None)

    return classmethod(utcnow)


def _ns(seconds: float) -> int:
    return round(seconds * 1e6) * 1_000


_CLOCKS: Final[dict[str, Callable[[SimulatedProcess], Any]]] = {
    "time": lambda process: process.wall_ns() / 1e9,
    "time_ns": lambda process: process.wall_ns(),
    "monotonic": lambda process: process.monotonic_s(),
    "monotonic_ns": lambda process: _ns(process.monotonic_s()),
    "perf_counter": lambda process: process.monotonic_s(),
    "perf_counter_ns": lambda process: _ns(process.monotonic_s()),
    "process_time": lambda process: process.monotonic_s(),
    "process_time_ns": lambda process: _ns(process.monotonic_s()),
    "thread_time": lambda process: process.monotonic_s(),
    "thread_time_ns": lambda process: _ns(process.monotonic_s()),
}

_RANDOM_FUNCTIONS: Final = (
    *("betavariate", "binomialvariate", "choice", "choices", "expovariate", "gammavariate", "gauss", "getrandbits"),
    *("getstate", "lognormvariate", "normalvariate", "paretovariate", "randbytes", "randint", "random", "randrange"),
    *("sample", "seed", "setstate", "shuffle", "triangular", "uniform", "vonmisesvariate", "weibullvariate"),
)

_REFUSED: Final[tuple[tuple[Any, str, str], ...]] = (
    (time, "sleep", "time.sleep"),
    (_thread, "start_new_thread", "a thread"),
    (os, "fork", "os.fork"),
    (os, "forkpty", "os.forkpty"),
    (os, "posix_spawn", "os.posix_spawn"),
    (os, "posix_spawnp", "os.posix_spawnp"),
    (os, "system", "os.system"),
    (os, "sendfile", "os.sendfile"),
    (signal, "signal", "signal.signal"),
    (signal, "setitimer", "signal.setitimer"),
    (signal, "alarm", "signal.alarm"),
    (socket, "socketpair", "a socket"),
    (socket, "getaddrinfo", "DNS"),
    (_socket, "gethostbyname", "DNS"),
    (_socket, "gethostbyaddr", "DNS"),
    (_socket, "getnameinfo", "DNS"),
)


def _function_replacements() -> list[tuple[Any, Any]]:
    """Originals and what replaces them, wherever they are referred to."""
    pairs: list[tuple[Any, Any]] = []
    for name, read in _CLOCKS.items():
        original = getattr(time, name)
        pairs.append((original, _reading(original, read)))
    pairs.extend((original, _breaking_down(original)) for original in (time.gmtime, time.localtime))
    pairs.extend((original, _formatting(original, 0)) for original in (time.asctime, _CTIME))
    pairs.append((time.strftime, _formatting(time.strftime, 1)))
    pairs.append((time.clock_gettime, _clock_of(time.clock_gettime, is_ns=False)))
    pairs.append((time.clock_gettime_ns, _clock_of(time.clock_gettime_ns, is_ns=True)))
    pairs.append((os.urandom, _urandom(os.urandom)))
    pairs.append((os.getpid, _reading(os.getpid, lambda process: process.pid)))
    pairs.append((_socket.gethostname, _reading(_socket.gethostname, lambda process: process.host.name)))
    pairs.append((uuid.uuid1, _uuid1(uuid.uuid1)))
    for name in _RANDOM_FUNCTIONS:
        original = getattr(random, name, None)
        if original is not None:
            pairs.append((original, _of_rng(original, name)))
    for module, name, what in _REFUSED:
        original = getattr(module, name, None)
        if original is not None:
            pairs.append((original, _refusing(original, what)))
    pairs.extend(library_replacements())
    return pairs


def _attribute_replacements() -> list[tuple[Any, str, Any]]:
    """Attributes of classes written in Python, each with its replacement."""
    return [
        (random.Random, "seed", _seeding(random.Random.seed)),
        (threading.Thread, "start", _refusing(threading.Thread.start, "a thread")),
        (subprocess.Popen, "__init__", _refusing(subprocess.Popen.__init__, "a subprocess")),
        (socket.socket, "__init__", _refusing(socket.socket.__init__, "a socket")),
        (_Gathering, "__hash__", _hash_of_gathering(_Gathering.__hash__)),
    ]


class _Patch:
    """All replacements, and how to take them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def install(self) -> None:
        """Replace."""
        try:
            self._replace_references(_function_replacements())
            for owner, name, replacement in _attribute_replacements():
                inherits = name not in vars(owner)
                undo = partial(delattr, owner, name) if inherits else partial(setattr, owner, name, vars(owner)[name])
                self._undo.append(undo)
                setattr(owner, name, replacement)
            self._replace_in_type(dt.datetime, {"now": _now, "utcnow": _utcnow})
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    def _replace_references(self, pairs: list[tuple[Any, Any]]) -> None:
        by_id = {id(original): replacement for original, replacement in pairs}
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict) or module.__name__ == __name__:
                continue
            for name, value in list(names.items()):
                replacement = by_id.get(id(value))
                if replacement is not None:
                    self._undo.append(partial(names.__setitem__, name, value))
                    names[name] = replacement
                elif isinstance(value, FunctionType):
                    self._replace_defaults(value, by_id)
                elif isinstance(value, type) and value.__module__ == module.__name__:
                    for member in list(vars(value).values()):
                        function = getattr(member, "__func__", member)
                        if isinstance(function, FunctionType):
                            self._replace_defaults(function, by_id)

    def _replace_defaults(self, function: FunctionType, by_id: dict[int, Any]) -> None:
        defaults = function.__defaults__
        if defaults and any(id(default) in by_id for default in defaults):
            self._undo.append(lambda: setattr(function, "__defaults__", defaults))
            function.__defaults__ = tuple(by_id.get(id(default), default) for default in defaults)
        keyword_defaults = function.__kwdefaults__
        if keyword_defaults and any(id(default) in by_id for default in keyword_defaults.values()):
            self._undo.append(lambda: setattr(function, "__kwdefaults__", keyword_defaults))
            function.__kwdefaults__ = {
                name: by_id.get(id(default), default) for name, default in keyword_defaults.items()
            }

    def _replace_in_type(self, owner: type, replacements: dict[str, Callable[[Any], Any]]) -> None:
        """Replace methods of a type written in C, whose attributes cannot be assigned."""
        names = gc.get_referents(owner.__dict__)[0]  # the dictionary behind the read-only view
        for name, replace in replacements.items():
            original = names[name]

            def undo(name: str = name, original: Any = original) -> None:
                names[name] = original
                ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

            self._undo.append(undo)
            names[name] = replace(original)
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


@contextmanager
def patched() -> Iterator[None]:
    """Replace the standard library's ways out of a world for the duration of the block.

    Looking through all loaded modules takes some 20 ms: a block around many worlds does it once for all of them.
    """
    if time.time.__module__ == __name__:
        yield
        return
    patch = _Patch()
    patch.install()
    try:
        yield
    finally:
        patch.remove()
