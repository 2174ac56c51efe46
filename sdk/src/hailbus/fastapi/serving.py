"""Serving an application until a signal: listener, lifespan, requests, and back in that order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Callable, Iterator

from hailbus._extras import extra

with extra("fastapi"):
    import uvicorn
    from fastapi import FastAPI

from hailbus._failing import Failures
from hailbus._signals import on_stop_signal
from hailbus.errors import ConfigurationError, ServiceFailedError

__all__ = ["listener_at", "serve"]

log = logging.getLogger("hailbus.fastapi")

BACKLOG = 1_024
DRAIN_LIMIT_S = 60.0
"""How long an application may drain after a failure: what has failed may also hang."""
_ADDRESS = re.compile(r"(\[(?P<v6>[0-9a-fA-F:]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})\Z")


class _Server(uvicorn.Server):
    """uvicorn without its signals, which would end the process by the signal it got; says when it serves."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()


async def serve(
    app: FastAPI,
    listen: str,
    *,
    on_stop: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
    grace_s: int = 10,
    listener: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`, then finish the requests that run and leave the application's lifespan.

    The address is taken before the lifespan begins, so that a wrong one costs no time. As soon as requests are answered
    the line `listening=HOST:PORT` goes to stdout, with the port that was given for port 0. A signal that comes while
    the lifespan is still starting (while a broker is away, say) ends it at once.

    When a service that its lifespan has started reports that only a restart helps (see `Service.fail`), serving stops
    as by a signal, and the error says why.

    Args:
        app: Its lifespan starts and drains the service.
        listen: `HOST:PORT` or `[IPV6]:PORT`; port 0 takes a free one.
        on_stop: Called once when stopping begins: ends streams, which would otherwise last until their clients go.
        stop: Set it to stop as by a signal.
        grace_s: How long running requests may take after the signal.
        listener: A socket that listens already, in place of one at `listen`; closed at the end.

    Raises:
        ConfigurationError: `listen` is no address.
        OSError: The address is taken, or not of this machine.
        ServiceFailedError: A part of a service has ended; the others were drained, or had 60 s for it.
    """
    listener = listener if listener is not None else listener_at(listen)
    stop = stop if stop is not None else asyncio.Event()
    config = uvicorn.Config(
        app,
        lifespan="off",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=grace_s,
    )

    def on_started() -> None:
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"listening={address}", flush=True)
        log.info("serving: %s", address)

    server = _Server(config, on_started)
    failures = Failures(stop)
    loop = asyncio.get_running_loop()
    with contextlib.closing(listener), on_stop_signal(stop.set):
        serving = loop.create_task(_serve(app, server, listener), context=failures.context())
        stopping = loop.create_task(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                on_stop()
                if server.started:
                    server.should_exit = True
                else:
                    serving.cancel()
            if failures.reasons:
                await asyncio.wait({serving}, timeout=DRAIN_LIMIT_S)
                raise ServiceFailedError(reasons=failures.reasons) from _error_of(serving)
            try:
                await serving
            except asyncio.CancelledError:
                if not stop.is_set():
                    raise
        finally:
            stopping.cancel()


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _serve(app: FastAPI, server: _Server, listener: socket.socket) -> None:
    async with app.router.lifespan_context(app):
        await server.serve(sockets=[listener])


def listener_at(listen: str) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigurationError: `listen` is no address.
        OSError: The address is taken, or not of this machine.
    """
    found = _ADDRESS.match(listen)
    if found is None or int(found["port"]) > 65_535:
        message = f"{listen!r} is no address to listen on; give HOST:PORT, as in 127.0.0.1:8000 or [::1]:8000"
        raise ConfigurationError(message)
    host = found["v6"] or found["host"]
    family = socket.AF_INET6 if found["v6"] else socket.AF_INET
    return socket.create_server((host, int(found["port"])), family=family, backlog=BACKLOG)
