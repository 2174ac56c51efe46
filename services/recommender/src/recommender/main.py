"""The recommender process: wires the parts, and runs them until SIGTERM."""

import contextlib
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

import hailbus.fastapi
import structlog
from fastapi import FastAPI
from hailbus import Batch, Bus, Event, Inbox, KafkaBus, ParkingLot
from hailbus.clock import utc_now
from hailbus.database import create_engine
from hailbus.process import run_process

from recommender.adapters.http.problems import BODY_LIMIT_BYTES, PROBLEMS
from recommender.adapters.http.routes import add_routes
from recommender.adapters.storage.store import Store
from recommender.adapters.streams.facts import facts_of, handled_events, source_events
from recommender.adapters.streams.service import GROUP, build_service
from recommender.app.city import City
from recommender.app.serving import Serving
from recommender.config import Settings

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
    inbox = Inbox(engine, GROUP)
    store = Store(engine, inbox)
    city = City()

    async def learn(batch: Batch[Event]) -> None:
        # Memory follows the commit without a pause between: the next request sees what is stored.
        for fact in await store.apply(batch, facts_of):
            city.apply(fact)

    service, announcements = build_service(
        bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers),
        events,
        learn,
        inbox=inbox,
        lot=ParkingLot(engine),
    )
    serving = Serving(city, store, announcements)

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

    app = FastAPI(
        title="recommender", version=VERSION, lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    hailbus.fastapi.serve_api_page(app)
    add_routes(app.router, serving, city, now=utc_now)
    app.include_router(service.health())
    PROBLEMS.install(app, body_limit_bytes=BODY_LIMIT_BYTES)
    return app


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run the recommender. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("recommender", Settings, serve)


if __name__ == "__main__":
    main()
