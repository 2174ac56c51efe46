"""The recommender process: wires the parts, and runs them until SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from time import perf_counter
from typing import Final

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI
from hailbus import Batch, BrokerUnreachableError, Bus, ConfigurationError, Event, Inbox, KafkaBus
from hailbus.clock import utc_now
from hailbus.database import create_engine
from sqlalchemy.exc import SQLAlchemyError

from recommender.adapters.http.problems import BodyLimit, add_problem_responses
from recommender.adapters.http.routes import routes
from recommender.adapters.storage.store import Store
from recommender.adapters.streams.facts import facts_of, handled_events, source_events
from recommender.adapters.streams.service import GROUP, build_service
from recommender.app.city import City
from recommender.app.serving import Serving
from recommender.config import Settings, read_settings

VERSION: Final = "0.1.0"
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("recommender")


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan rebuilds the models, connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.

    Raises:
        ConfigurationError: The database's URL or the sources do not work.
    """
    events = handled_events(source_events(settings.source_types()))
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000)
    store = Store(engine, Inbox(engine, GROUP))
    city = City()

    async def learn(batch: Batch[Event]) -> None:
        # Memory follows the commit without a pause between: whoever asks next sees what is stored.
        for fact in await store.apply(batch.items, facts_of):
            city.apply(fact)

    service, announcements = build_service(
        bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers), events, learn
    )
    serving = Serving(city, store, announcements)

    def reasons() -> Sequence[str]:
        return service.unhealthy_reasons if service.is_running else ["models or bus are not ready"]

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await store.create_tables()
            began = perf_counter()
            async for fact in store.facts(journeys_at_most=settings.journeys_at_most):
                city.apply(fact)
            log.info("models_rebuilt", journeys=city.journeys, seconds=round(perf_counter() - began, 2))
            await service.start()
            try:
                await serving.start()
                yield
                await serving.stop()
            finally:
                await service.stop()
        finally:
            await engine.dispose()

    app = FastAPI(title="recommender", version=VERSION, lifespan=lifespan, redirect_slashes=False)
    app.include_router(routes(serving, city, reasons=reasons, now=utc_now))
    add_problem_responses(app)
    app.add_middleware(BodyLimit)
    return app


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
    server = _Server(
        uvicorn.Config(app, lifespan="off", http="httptools", ws="none", log_config=None, access_log=False)
    )
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(_run(app, server, listener))

    def on_signal() -> None:
        server.should_exit = True
        if not server.started:
            running.cancel()  # told to stop while broker or database were still away

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await running
    except asyncio.CancelledError:
        if not server.should_exit:
            raise


async def _run(app: FastAPI, server: _Server, listener: socket.socket) -> None:
    async with app.router.lifespan_context(app):
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"listening={shown}:{port}", flush=True)  # connections wait in the backlog from here on
        log.info("serving", listen=f"{shown}:{port}")
        await server.serve(sockets=[listener])


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
    for name in ("aiokafka", "uvicorn", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def main() -> None:
    """Run the recommender. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        uvloop.run(serve(settings))
    except (ConfigurationError, BrokerUnreachableError) as error:
        raise SystemExit(_complain(str(error))) from None
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        raise SystemExit(
            _complain(f"the database cannot be opened: {reason}; check RECOMMENDER_DATABASE_URL")
        ) from None
    except OSError as error:
        raise SystemExit(
            _complain(f"cannot listen at {settings.listen}: {error.strerror or error}; set RECOMMENDER_LISTEN")
        ) from None


def _complain(sentence: str) -> int:
    print(f"recommender: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
