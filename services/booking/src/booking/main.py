"""The booking process: wires the parts, and runs them until SIGTERM."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Final

import hailbus.fastapi
from fastapi import FastAPI
from hailbus import Bus, Inbox, KafkaBus, Outbox
from hailbus.clock import ServiceClock
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook
from hailbus.process import run_process

from booking.adapters.http.problems import PROBLEMS
from booking.adapters.http.routes import add_routes
from booking.adapters.storage.reader import Reader
from booking.adapters.storage.writer import Writer
from booking.adapters.streams.publishing import LocationReports
from booking.adapters.streams.service import GROUP, SOURCE, build_service
from booking.config import Settings

VERSION: Final = "0.1.0"


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
    """
    clock = ServiceClock(settings.clock)
    # FULL: a commit that was answered survives a power cut. The relay and the writer take turns on SQLite.
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    outbox = Outbox(engine, clock.now)
    inbox = Inbox(engine, GROUP)
    service, positions = build_service(
        bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers), clock.now, lambda: writer
    )
    reports = LocationReports(positions)
    writer = Writer(
        engine,
        policy=settings.policy(),
        clock=clock,
        outbox=outbox,
        inbox=inbox,
        source=SOURCE,
        answers=AnswerBook(engine, keep=timedelta(hours=settings.idempotency_keep_h)),
        report=reports.report,
    )
    service.relays(outbox)
    for store in (outbox, inbox):
        service.prunes(store, keep=timedelta(days=settings.keep_d))

    def reasons() -> Sequence[str]:
        return [trouble] if (trouble := writer.trouble) is not None else []

    def failures() -> Sequence[str]:
        return [failure] if (failure := writer.failure) is not None else []

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

    app = FastAPI(title="booking", version=VERSION, lifespan=lifespan, redirect_slashes=False)
    add_routes(app.router, writer, Reader(engine), clock)
    app.include_router(service.health(reasons, failures=failures))
    PROBLEMS.install(app)
    return app


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run booking. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("booking", Settings, serve)


if __name__ == "__main__":
    main()
