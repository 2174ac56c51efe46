"""`hailbus run`: one service or web application, in this process or in several, with or without reloading."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hailbus._garbage import freeze_imports
from hailbus.cli.common import bus_at, load, run
from hailbus.cli.factories import is_factory
from hailbus.cli.workers import Command, Reloader, Workers
from hailbus.errors import ConfigurationError
from hailbus.event import event_info
from hailbus.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["listening", "run_service", "with_health"]

DEFAULT_LISTEN = "127.0.0.1:8000"
LEVELS = ("debug", "info", "warning", "error")


def run_service(
    target: Annotated[str, typer.Argument(help="package.module:service, or :app, or a function that makes one.")],
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            help="host:port of a broker, in place of the service's own bus and of HAILBUS_BOOTSTRAP_SERVERS.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            help=f"host:port of the application ({DEFAULT_LISTEN} by default), or of a service's health routes.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes; each is a member of the group.")] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a Python file changes.")] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    listen_fd: Annotated[int | None, typer.Option("--listen-fd", hidden=True)] = None,
    parent_fd: Annotated[int | None, typer.Option("--parent-fd", hidden=True)] = None,
) -> None:
    """Run a service, or a FastAPI application with one, until SIGTERM or Ctrl-C, then drain it.

    With --workers, SIGTERM goes to every process. One that dies is started again; five deaths within a minute end all.
    """
    if log_level not in LEVELS:
        typer.echo(f"hailbus: --log-level {log_level!r} is not {', '.join(LEVELS[:-1])} or {LEVELS[-1]}", err=True)
        raise typer.Exit(2)
    if workers > 1 and reload:
        typer.echo("hailbus: --workers and --reload exclude each other; reload one process", err=True)
        raise typer.Exit(2)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(max(logging.getLevelNamesMapping()[log_level.upper()], logging.WARNING))
    if workers > 1 or reload:
        words = [sys.executable, "-m", "hailbus._command", "run", target, "--log-level", log_level]
        words += ["--bootstrap-server", bootstrap] if bootstrap else []
        raise typer.Exit(run(_reload(words, listen) if reload else _work(words, target, listen, workers)))
    if bootstrap:
        os.environ["HAILBUS_BOOTSTRAP_SERVERS"] = bootstrap  # an application makes its services itself
    run(_run(target, bootstrap, listen, listen_fd, parent_fd))


async def _run(
    target: str, bootstrap: str | None, listen: str | None, listen_fd: int | None, parent_fd: int | None
) -> None:
    found = _found(target)
    freeze_imports()
    stop = asyncio.Event()
    if isinstance(found, Service):
        service = found
        _announce(service)
        bus = bus_at(bootstrap, connect_timeout_s=60.0) if bootstrap else None
        if listen is None and listen_fd is None:
            with _parent_watched(parent_fd, service.request_stop):
                await service.run(bus)
            return
        found = with_health(service, bus)
    from hailbus.fastapi import serve

    address = listen or DEFAULT_LISTEN
    listener = socket.socket(fileno=listen_fd) if listen_fd is not None else listening(address)
    with _parent_watched(parent_fd, stop.set):
        await serve(found, address, stop=stop, listener=listener)


def _found(target: str) -> Any:  # a service, or an ASGI application
    """The service or application that the argument names, made if it is a factory.

    Raises:
        ConfigurationError: It is neither.
    """
    found = load(target)
    if is_factory(found):
        wanted = [p.name for p in inspect.signature(found).parameters.values() if p.default is p.empty]
        if wanted:
            message = (
                f"{target!r} is a function that wants {', '.join(wanted)}; name one that makes it without arguments"
            )
            raise ConfigurationError(message)
        found = found()
    if not isinstance(found, Service) and not hasattr(found, "router"):
        message = f"{target!r} is neither a hailbus.Service nor a FastAPI application"
        raise ConfigurationError(message)
    return found


def _announce(service: Service) -> None:
    for subscription in service.subscriptions:
        names = ", ".join(event_info(cls).type for cls in subscription.events)
        promise = type(subscription.delivery).__name__
        typer.echo(f"{subscription.group}: {subscription.name} <- {names} ({promise})", err=True)


def with_health(service: Service, bus: Any) -> FastAPI:  # Any: a bus or None
    """An application of nothing but the service's health routes."""
    from fastapi import FastAPI

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> Any:
        async with service.running(bus):
            yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.include_router(service.health())
    return app


def listening(address: str) -> socket.socket:
    """A socket that listens at the address.

    Raises:
        ConfigurationError: It is no address, or it is taken.
    """
    from hailbus.fastapi import listener_at

    try:
        return listener_at(address)
    except OSError as error:
        message = f"--listen {address}: {error.strerror or error}; choose another address"
        raise ConfigurationError(message) from error


@contextlib.contextmanager
def _parent_watched(parent_fd: int | None, stop: Any) -> Any:  # Any: a function; a context manager
    """Stop when the process at the other end of this pipe has ended, however it ended."""
    if parent_fd is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(parent_fd)
        stop()

    loop.add_reader(parent_fd, on_end)
    try:
        yield
    finally:
        loop.remove_reader(parent_fd)


async def _work(words: list[str], target: str, listen: str | None, count: int) -> int:
    """Run several processes of the command; the exit code."""
    found = _found(target)  # what is wrong with it is said once, not by each process
    if isinstance(found, Service) and listen is None:
        return await Workers(Command(words), count).run()
    with listening(listen or DEFAULT_LISTEN) as listener:
        return await Workers(
            Command([*words, "--listen-fd", str(listener.fileno())], fds=(listener.fileno(),)), count
        ).run()


async def _reload(words: list[str], listen: str | None) -> int:
    words += ["--listen", listen] if listen else []
    return await Reloader(Command(words), os.getcwd()).run()  # noqa: PTH109 where `load` looks for modules
