"""The router's process: reads the regions, and forwards until SIGTERM."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import hailbus.fastapi
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from hailbus.process import run_process
from prometheus_client import CollectorRegistry, generate_latest

from booking.adapters.http.problems import PROBLEMS
from booking.regions_file import read_regions
from booking.router.config import Settings
from booking.router.forward import Forwarder
from booking.router.region_client import RegionClient

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its lifespan opens and closes the connections to the regions.

    `/livez`, `/readyz` and `/metrics` are the router's own; every other path is the regions'. It is ready without them:
    a load balancer that took it out while one region is away would take the others away as well.

    Raises:
        ConfigurationError: The file of regions is wrong.
    """
    regions = read_regions(settings.regions, setting="ROUTER_REGIONS")
    registry = CollectorRegistry()
    clients: dict[str, RegionClient] = {}

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        for region in regions.all:
            clients[region.name] = RegionClient(
                region, in_flight=settings.in_flight, answer_within_s=settings.answer_within_s
            )
        try:
            yield
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))

    # No document of its own: /openapi.json and /docs are booking's.
    app = FastAPI(title="booking-router", lifespan=lifespan, redirect_slashes=False, openapi_url=None)

    @app.get("/livez")
    @app.get("/readyz")
    async def is_up() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=METRICS)

    PROBLEMS.install(app)
    app.mount("", Forwarder(regions, clients, registry))
    return app


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was begun.

    Raises:
        ConfigurationError, OSError: It cannot start.
    """
    await hailbus.fastapi.serve(create_app(settings), settings.listen)


def main() -> None:
    """Run the router. Exit code 0 after SIGTERM, 2 when it cannot start as told."""
    run_process("booking-router", Settings, serve)


if __name__ == "__main__":
    main()
