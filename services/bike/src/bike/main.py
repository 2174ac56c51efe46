"""The bike process: wires the parts, and runs them until SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Final

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from hailbus import BrokerUnreachableError, Bus, ConfigurationError, KafkaBus, Outbox, Service
from hailbus.database import create_engine
from ride_events import CATALOGUE
from ride_events.bikes import BikeReservationLapsed, BikeReserved, BikeReturned, BikeUnlocked
from sqlalchemy.exc import SQLAlchemyError

from bike.adapters.clock import Clock
from bike.adapters.http.application import build_application
from bike.adapters.http.routes import add_routes
from bike.adapters.storage.store import Store
from bike.config import Settings, read_settings

VERSION: Final = "0.1.0"
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("bike")


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
    """
    clock = Clock(settings.clock)
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    outbox = Outbox(engine, clock.now)
    service = Service(
        "bike",
        bus=bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers),
        catalogue=CATALOGUE,
        clock=clock.now,
    )
    publisher = service.publishes(BikeReserved, BikeUnlocked, BikeReturned, BikeReservationLapsed)
    service.relays(outbox)
    store = Store(
        engine,
        outbox=outbox,
        publisher=publisher,
        clock=clock,
        policy=settings.policy(),
        keep_answers=timedelta(hours=settings.idempotency_keep_h),
    )

    def reasons() -> Sequence[str]:
        return service.unhealthy_reasons if service.is_running else ["the bus is not ready"]

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await store.open()
            async with service.running():
                yield
        finally:
            await engine.dispose()

    return build_application(
        lambda api: add_routes(api, store, clock, reasons), title="bike", version=VERSION, lifespan=lifespan
    )


class _Server(uvicorn.Server):
    """uvicorn, but for its signals: it would end the process by the signal it got, and not with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
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
    """Run the bike service. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        uvloop.run(serve(settings))
    except (ConfigurationError, BrokerUnreachableError) as error:
        raise SystemExit(_complain(str(error))) from None
    except OSError as error:
        where = f" at {settings.listen}" if error.errno else ""
        raise SystemExit(
            _complain(f"cannot listen{where}: {error.strerror or error}; set BIKE_LISTEN to a free address")
        ) from None
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise SystemExit(_complain(f"the database cannot be opened: {reason}; check BIKE_DATABASE_URL")) from None


def _complain(sentence: str) -> int:
    print(f"bike: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
