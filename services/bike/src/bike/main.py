"""The bike process: wires the parts, and runs them until SIGTERM."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import hailbus.fastapi
from fastapi import FastAPI
from hailbus import Bus, KafkaBus, Outbox, Service
from hailbus.clock import ServiceClock
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook
from hailbus.process import run_process
from ride_events import CATALOGUE
from ride_events.bikes import BikeReservationLapsed, BikeReserved, BikeReturned, BikeUnlocked

from bike.adapters.http import problems
from bike.adapters.http.routes import add_routes
from bike.adapters.storage.store import Store
from bike.config import Settings

VERSION: Final = "0.1.0"


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
    """
    clock = ServiceClock(settings.clock)
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    outbox = Outbox(engine, clock.now)
    service = Service(
        "bike",
        bus=bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers),
        catalogue=CATALOGUE,
        clock=clock.now,
    )
    publisher = service.publishes(BikeReserved | BikeUnlocked | BikeReturned | BikeReservationLapsed)
    service.relays(outbox)
    service.prunes(outbox, keep=timedelta(days=settings.keep_d))
    store = Store(
        engine,
        outbox=outbox,
        publisher=publisher,
        clock=clock,
        policy=settings.policy(),
        answers=AnswerBook(engine, keep=timedelta(hours=settings.idempotency_keep_h)),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await store.open()
            async with service.running():
                yield
        finally:
            await engine.dispose()

    app = FastAPI(
        title="bike", version=VERSION, lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    hailbus.fastapi.serve_api_page(app)
    add_routes(app.router, store, clock)
    app.include_router(service.health())
    problems.install(app)
    return app


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run the bike service. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("bike", Settings, serve)


if __name__ == "__main__":
    main()
