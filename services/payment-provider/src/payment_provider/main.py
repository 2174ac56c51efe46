"""The provider's process: wires the parts, and runs them until SIGTERM."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import hailbus.fastapi
from fastapi import FastAPI
from hailbus.clock import utc_now
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook
from hailbus.process import run_process

from payment_provider.adapters.http.problems import PROBLEMS
from payment_provider.adapters.http.routes import Switchboard, add_routes
from payment_provider.adapters.storage.books import Books
from payment_provider.config import Settings

VERSION: Final = "0.1.0"
KEEP_ANSWERS: Final = timedelta(days=30)
"""Longer than any outage that a merchant retries through."""


def create_app(settings: Settings) -> FastAPI:
    """Return the application."""
    engine = create_engine(settings.database_url.get_secret_value(), busy_timeout_ms=30_000, synchronous="FULL")
    books = Books(engine, answers=AnswerBook(engine, keep=KEEP_ANSWERS), clock=utc_now)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await books.open()
            yield
        finally:
            await engine.dispose()

    app = FastAPI(
        title="payment-provider",
        version=VERSION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    hailbus.fastapi.serve_api_page(app)
    add_routes(app.router, books, Switchboard(settings.faults()))
    PROBLEMS.install(app)
    return app


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigurationError, OSError, SQLAlchemyError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run the provider. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("payment-provider", Settings, serve)


if __name__ == "__main__":
    main()
