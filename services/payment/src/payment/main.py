"""The payment process: wires the parts, and runs them until SIGTERM."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import hailbus.fastapi
import httpx
from fastapi import FastAPI
from hailbus import Bus, Inbox, KafkaBus, Outbox, ParkingLot
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook
from hailbus.process import run_process
from hailbus.registry import SchemaRegistry, Schemas

from payment.adapters.http.routes import PROBLEMS, Desk, add_routes
from payment.adapters.provider.client import HttpProvider
from payment.adapters.streams.service import GROUP, NAME, build_service
from payment.config import Settings

VERSION: Final = "0.1.0"


def create_app(
    settings: Settings, *, bus: Bus | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
        transport: In place of the network to the provider, for tests.

    Raises:
        ConfigurationError: The database's or the schema registry's URL does not work.
    """
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    provider = HttpProvider(settings.provider_url, timeout_s=settings.provider_timeout_s, transport=transport)
    registry = _registry_of(settings)
    outbox, inbox = Outbox(engine), Inbox(engine, GROUP)
    service, saga, asked = build_service(
        bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers),
        inbox=inbox,
        outbox=outbox,
        lot=ParkingLot(engine),
        provider=provider,
        policy=settings.policy(),
        schemas=None if registry is None else Schemas(registry),
    )
    for store in (outbox, inbox):
        service.prunes(store, keep=timedelta(days=settings.keep_d))

    answers = AnswerBook(engine, keep=timedelta(days=1))
    service.needs(answers)
    desk = Desk(engine, outbox=outbox, saga=saga, asked=asked, answers=answers)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            async with service.running():
                yield
        finally:
            await provider.close()
            if registry is not None:
                await registry.close()
            await engine.dispose()

    app = FastAPI(title=NAME, version=VERSION, lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None)
    hailbus.fastapi.serve_api_page(app)
    add_routes(app.router, desk)
    app.include_router(service.health())
    PROBLEMS.install(app)
    return app


def _registry_of(settings: Settings) -> SchemaRegistry | None:
    if settings.schema_registry_url is None:
        return None
    return SchemaRegistry(settings.schema_registry_url, cache=settings.schema_cache)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run the payment service. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process(NAME, Settings, serve)


if __name__ == "__main__":
    main()
