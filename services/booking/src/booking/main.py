"""The booking process: wires the parts, and runs them until SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from hailbus import BrokerUnreachableError, Bus, ConfigurationError, Inbox, KafkaBus, Outbox
from hailbus.database import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from booking.adapters.clock import BEGINNING, EventClock, WallClock
from booking.adapters.http.application import build_application
from booking.adapters.http.routes import add_routes
from booking.adapters.storage.database import DatabaseTakenError
from booking.adapters.storage.reader import Reader
from booking.adapters.storage.writer import Writer
from booking.adapters.streams.publishing import InboxRows, LocationReports, OutboxRows
from booking.adapters.streams.service import GROUP, SOURCE, build_service
from booking.config import Settings, read_settings

VERSION: Final = "0.1.0"
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking")


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
    """
    clock = EventClock() if settings.clock == "event" else WallClock()

    def now() -> datetime:
        return clock.now() or BEGINNING

    # FULL: a commit that was answered survives a power cut. The relay and the writer take turns on SQLite.
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    outbox = Outbox(engine, now)
    inbox = Inbox(engine, GROUP)
    service, positions = build_service(
        bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers), now, lambda: writer
    )
    reports = LocationReports(positions)
    writer = Writer(
        engine,
        policy=settings.policy(),
        clock=clock,
        outbox=OutboxRows(outbox, source=SOURCE, clock=now),
        inbox=InboxRows(inbox),
        report=reports.report,
        keep_answers=timedelta(hours=settings.idempotency_keep_h),
    )
    service.relays(outbox)

    def reasons() -> Sequence[str]:
        if not writer.ready:
            return ["the database is not ready"]
        if not service.is_running:
            return ["the bus is not ready"]
        return service.unhealthy_reasons

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await outbox.create_tables()
            await inbox.create_tables()
            await writer.start()
            try:
                await service.start()
                reports.start()
                yield
            finally:
                await reports.stop()
                await service.stop()
                await writer.stop()
        finally:
            await engine.dispose()

    reader = Reader(engine)
    return build_application(
        lambda api: add_routes(api, writer, reader, clock, reasons),
        title="booking",
        version=VERSION,
        lifespan=lifespan,
    )


class _Server(uvicorn.Server):
    """uvicorn, but for its signals: it would end the process by the signal it got, and not with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, DatabaseTakenError, OSError, SQLAlchemyError: It cannot start.
    """
    app = create_app(settings)
    host, port = settings.address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    config = uvicorn.Config(
        app,
        lifespan="off",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        stop.set()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.ensure_future(_serve(app, server, listener))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done() and not server.started:
        starting.cancel()  # told to stop while broker or database were still away
        await asyncio.gather(starting, return_exceptions=True)
        return
    stopping.cancel()
    await starting


async def _serve(app: FastAPI, server: _Server, listener: socket.socket) -> None:
    async with app.router.lifespan_context(app):
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(f"listening={shown}:{port}", flush=True)
        log.info("serving", listen=f"{shown}:{port}")
        await serving


def configure_logging(level: str) -> None:
    """Log to stderr: lines for a terminal, JSON otherwise."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
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
    for name in ("aiokafka", "uvicorn", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def main() -> None:
    """Run booking. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        uvloop.run(serve(settings))
    except (ConfigurationError, BrokerUnreachableError, DatabaseTakenError) as error:
        raise SystemExit(_complain(str(error))) from None
    except OSError as error:
        where = f" at {settings.listen}" if error.errno else ""
        raise SystemExit(
            _complain(f"cannot listen{where}: {error.strerror or error}; set BOOKING_LISTEN to a free address")
        ) from None
    except (DBAPIError, SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        raise SystemExit(_complain(f"the database cannot be opened: {reason}; check BOOKING_DATABASE_URL")) from None


def _complain(sentence: str) -> int:
    print(f"booking: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
