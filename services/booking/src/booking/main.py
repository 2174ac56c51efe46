"""The booking process: wires the parts, and runs them until SIGTERM."""

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final

import hailbus.fastapi
import structlog
from fastapi import FastAPI
from hailbus import Bus, ConfigurationError, Inbox, KafkaBus, Outbox, ParkingLot
from hailbus.clock import ServiceClock
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook
from hailbus.process import run_process

from booking.adapters.http.guard import SCHEME, Guard
from booking.adapters.http.problems import PROBLEMS
from booking.adapters.http.rate_limit import RateLimit
from booking.adapters.http.routes import add_routes
from booking.adapters.http.tokens import TokenVerifier, read_keys
from booking.adapters.storage.claims import set_up, show_whole_city, url_of, url_of_whole_city
from booking.adapters.storage.reader import Reader
from booking.adapters.storage.writer import Writer
from booking.adapters.streams.publishing import LocationReports
from booking.adapters.streams.service import GROUP, SOURCE, build_service
from booking.config import Settings
from booking.regions_file import realm_of

VERSION: Final = "0.1.0"
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking")


def create_app(settings: Settings, *, bus: Bus | None = None) -> FastAPI:
    """Return the application; its lifespan connects, and drains at the end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.

    Raises:
        ConfigurationError: Tokens cannot be verified, and it is not allowed to do without; or the regions are wrong.
    """
    clock = ServiceClock(settings.clock)
    guard = Guard(_verifier_of(settings), RateLimit(per_s=settings.rate_per_s, burst=settings.rate_burst), clock)
    # FULL: a commit that was answered survives a power cut. The relay and the writer take turns on SQLite.
    url, realm = settings.database_url.get_secret_value(), realm_of(settings)
    own_url = url if realm is None else url_of(url, realm.own.name)
    engine = create_engine(own_url, busy_timeout_ms=30_000, synchronous="FULL")
    # Views are made anew when a region starts; statements that are prepared once would outlive them.
    whole_city = (
        None
        if realm is None
        else create_engine(url_of_whole_city(url), connect_args={"prepared_statement_cache_size": 0})
    )
    outbox = Outbox(engine, clock.now)
    inbox = Inbox(engine, GROUP)
    cluster = bus if bus is not None else KafkaBus(bootstrap_servers=settings.bootstrap_servers)
    lot = ParkingLot(engine)
    service, positions = build_service(cluster, clock, lambda: writer, inbox=inbox, lot=lot, realm=realm)
    reports = LocationReports(positions)
    writer = Writer(
        engine,
        policy=settings.policy(),
        clock=clock,
        outbox=outbox,
        source=SOURCE,
        answers=AnswerBook(engine, keep=timedelta(hours=settings.idempotency_keep_h)),
        report=reports.report,
        fail=service.fail,
        commit_timeout_s=settings.commit_timeout_s,
        realm=realm,
    )
    service.relays(outbox)
    for store in (outbox, inbox):
        service.prunes(store, keep=timedelta(days=settings.keep_d))

    def reasons() -> Sequence[str]:
        return [trouble] if (trouble := writer.trouble) is not None else []

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            if realm is not None:
                await set_up(url, realm.own.name)
            await outbox.create_tables()
            await inbox.create_tables()
            await lot.create_tables()
            await writer.start()
            if realm is not None:
                await show_whole_city(url, realm)
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
            if whole_city is not None:
                await whole_city.dispose()

    app = FastAPI(
        title="booking", version=VERSION, lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    hailbus.fastapi.serve_api_page(app)
    add_routes(app.router, writer, Reader(engine, whole_city), clock, guard, realm)
    app.include_router(service.health(reasons))
    PROBLEMS.install(app)
    if guard.is_on:
        _declare_scheme(app)
    return app


def _verifier_of(settings: Settings) -> TokenVerifier | None:
    """Return what verifies tokens, None when authentication is off."""
    if settings.auth == "off":
        if not _is_loopback(settings.listen):
            raise ConfigurationError(
                f"BOOKING_AUTH=off is for a loopback address, and BOOKING_LISTEN is {settings.listen}: listen at "
                "127.0.0.1, or give BOOKING_AUTH_KEYS"
            )
        log.warning("authentication_is_off", listen=settings.listen)
        return None
    if settings.auth_keys is None:
        raise ConfigurationError(
            "BOOKING_AUTH_KEYS is not set: name a JWKS file (`booking-token keys` writes one), or set BOOKING_AUTH=off "
            "to try booking out without tokens"
        )
    return TokenVerifier(
        read_keys(settings.auth_keys),
        issuer=settings.auth_issuer,
        audience=settings.auth_audience,
        leeway_s=settings.auth_leeway_s,
    )


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _declare_scheme(app: FastAPI) -> None:
    """Add the bearer scheme to the OpenAPI document; its page gets a button to enter a token."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:  # Any: JSON
        document = describe()
        scheme = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
        document["components"]["securitySchemes"] = {SCHEME: scheme}
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, BrokerUnreachableError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run booking. Exit code 0 after SIGTERM, 1 when only a restart helps, 2 when it cannot start as told."""
    run_process("booking", Settings, serve)


if __name__ == "__main__":
    main()
