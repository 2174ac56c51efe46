"""The dashboard process: reads the bus, serves the page, until SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from hailbus import Bus, ConfigurationError, KafkaBus

from dashboard.adapters.files import JsonFile
from dashboard.adapters.http.app import build_app
from dashboard.adapters.http.hub import Hub
from dashboard.adapters.watch import Watch
from dashboard.config import Settings, read_settings
from dashboard.domain.city import City
from dashboard.view import View

TICK_S: Final = 0.25
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard")


class DashboardBrokeError(Exception):
    """A task that must not end has ended: a page that stands still would lie."""


def create_app(
    settings: Settings, *, bus: Bus | None = None, on_break: Callable[[], None] = lambda: None
) -> tuple[FastAPI, Hub]:
    """Return the application, and the hub to close before the server can end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
        on_break: Called when a task of the dashboard ended by a mistake of ours.
    """
    if bus is None:
        bus = KafkaBus(
            bootstrap_servers=settings.bootstrap_servers,
            client_id="dashboard",
            connect_timeout_s=4,
            max_partition_fetch_bytes=262_144,
        )
    watch = Watch(bus, lambda: City(tick_s=TICK_S))
    view = View(watch, ledger=JsonFile(settings.ledger_file), lake=JsonFile(settings.lake_file))
    hub = Hub(view.whole)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            message, is_new = view.tick()
            if is_new:
                hub.begin_anew()
            else:
                hub.push(message)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("dashboard_broke", exc_info=task.exception())
            on_break()

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (watch.read(), watch.poll(), tick())]
        for task in tasks:
            task.add_done_callback(ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return build_app(watch, view, hub, booking_url=settings.booking_url, lifespan=lifespan), hub


class _Server(uvicorn.Server):
    """uvicorn, but for its signals: it would end the process by the signal it got, and not with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OSError: The address is taken.
        DashboardBrokeError: It stopped by a mistake of its own.
    """
    is_broken = False

    def on_break() -> None:
        nonlocal is_broken
        is_broken = True
        on_signal()

    app, hub = create_app(settings, on_break=on_break)
    host, port = settings.address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128)
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            http="httptools",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
        )
    )
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        server.should_exit = True
        hub.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with app.router.lifespan_context(app):
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"listening={shown}:{port}", flush=True)
        log.info("serving", listen=f"{shown}:{port}")
        await server.serve(sockets=[listener])
    if is_broken:
        raise DashboardBrokeError("stopped by a mistake of its own: see the log")


def configure_logging(level: str) -> None:
    """Log to stderr: lines for a terminal, JSON otherwise."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in ("uvicorn", "asyncio", "hailbus"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # The client repeats ten times a second that a broker is away; `broker_state` says it once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def main() -> None:
    """Run the dashboard. Exit code 0 after SIGTERM, 1 when it broke, 2 when it cannot start as told."""
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        uvloop.run(serve(settings))
    except ConfigurationError as error:
        raise SystemExit(_complain(str(error))) from None
    except DashboardBrokeError as error:
        _complain(str(error))
        raise SystemExit(1) from None
    except OSError as error:
        raise SystemExit(
            _complain(f"cannot listen at {settings.listen}: {error.strerror or error}; set DASHBOARD_LISTEN")
        ) from None


def _complain(sentence: str) -> int:
    print(f"dashboard: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
