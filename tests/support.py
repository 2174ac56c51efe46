"""What tests of every kind share."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path


def free_port(*, also: Collection[int] = ()) -> int:
    """Return a port of loopback that nobody listens on.

    It lies below the range from which the system takes the ports of outgoing connections: a client that reconnects to a
    server which is being restarted could otherwise be given that very port, connect to itself and keep the server out.

    Args:
        also: How far above it other ports must be free.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in (0, *also):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            return port
    raise OSError("no port of loopback is free between 20,000 and 32,000")


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
