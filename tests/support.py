"""What tests of every kind share."""

import contextlib
import fcntl
import functools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

PORTS = range(10_000, 20_000)
"""Below the range from which the system takes the ports of outgoing connections: a client that reconnects to a server
which is being restarted could otherwise be given that very port, connect to itself and keep the server out. The demo
chooses its ports above this range."""
PORTS_OF_A_PROCESS = 500


class _Ports:
    """The part of the ports that belongs to this process, so that no two tests that run at a time choose the same one.

    The process locks a file for as long as it lives. It offers each of its ports before it offers one again: a server
    that is down for a moment, or not up yet, keeps its port.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir(), f"hailbus-test-ports-{os.getuid()}")
        folder.mkdir(exist_ok=True)
        for first in PORTS[::PORTS_OF_A_PROCESS]:
            self._locked = (folder / str(first)).open("w")
            try:
                fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._locked.close()
                continue
            self._all = range(first, first + PORTS_OF_A_PROCESS)
            self._next = first
            return
        raise OSError(f"other processes of tests hold all ports from {PORTS.start} to {PORTS.stop}")

    def take(self, further: Collection[int]) -> int:
        for _ in self._all:
            port, last = self._next, self._next + max(further, default=0)
            if last not in self._all:
                self._next = self._all.start
                continue
            self._next = last + 1
            with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
                for offset in (0, *further):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
                return port
        raise OSError(f"no port of loopback is free between {self._all.start} and {self._all.stop}")


@functools.cache
def _ports_of(_pid: int) -> _Ports:
    return _Ports()


def free_port(*, also: Collection[int] = ()) -> int:
    """Return a port of loopback that nobody listens on, and that no other process of tests is given.

    Args:
        also: How far above it other ports must be free; they are not offered afterwards, either.
    """
    return _ports_of(os.getpid()).take(also)  # a fork takes a part of its own


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
    """Return when the condition holds; fail with what was waited for when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def mypy_cache(name: str) -> Path:
    """Return a folder that keeps what mypy has read; files that other tests of this name also read are read once."""
    kept = os.environ.get("MYPY_CACHE_DIR") or Path(__file__).resolve().parents[1] / ".mypy_cache"
    return Path(kept, name)
