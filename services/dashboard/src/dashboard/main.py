"""The dashboard process: reads the bus, serves the page, until SIGTERM."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

import hailbus.fastapi
import structlog
from fastapi import FastAPI
from hailbus import Bus, KafkaBus
from hailbus.process import run_process
from ride_events import CATALOGUE
from ride_events.needs import recorded_needs

from dashboard.adapters.files import JsonFile
from dashboard.adapters.http.app import build_app
from dashboard.adapters.http.faults import FaultsApi
from dashboard.adapters.http.hub import Hub
from dashboard.adapters.http.rides import BookingApi
from dashboard.adapters.letters import Letters
from dashboard.adapters.nodes import Nodes
from dashboard.adapters.watch import Watch
from dashboard.config import Settings
from dashboard.domain.city import City
from dashboard.domain.contracts import Contracts
from dashboard.view import View

TICK_S: Final = 0.25
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("dashboard")


class DashboardBrokeError(Exception):
    """A task that must not end has ended: a page that stands still would lie."""


def create_app(
    settings: Settings, *, bus: Bus | None = None, on_break: Callable[[], None] = lambda: None
) -> tuple[FastAPI, Hub]:
    """Return the application, and the hub to close before the server can end.

    Args:
        settings: All there is to know.
        bus: In place of the cluster that the settings name, for tests.
        on_break: Called when a task of the dashboard ended by a mistake of ours.
    """
    if bus is None:
        bus = KafkaBus(
            bootstrap_servers=settings.bootstrap_servers,
            client_id="dashboard",
            connect_timeout_s=4,
            max_partition_fetch_bytes=262_144,
        )
    watch = Watch(bus, lambda: City(tick_s=TICK_S))
    nodes = Nodes(bus)
    letters = Letters(bus)
    faults = None
    if settings.faults_url is not None and settings.faults_token is not None:
        faults = FaultsApi(settings.faults_url, settings.faults_token.get_secret_value())
    view = View(
        watch,
        nodes,
        letters,
        ledger=JsonFile(settings.ledger_file),
        lake=JsonFile(settings.lake_file),
        has_faults=faults is not None,
    )
    hub = Hub(view.whole)
    token = settings.booking_token
    booking = None
    if settings.booking_url is not None:
        booking = BookingApi(settings.booking_url, token.get_secret_value() if token is not None else None)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            message, is_new = view.tick()
            if is_new:
                hub.begin_anew()
            else:
                hub.push(message)

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("dashboard_broke", exc_info=task.exception())
            on_break()

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(work) for work in (watch.read(), watch.poll(), nodes.poll(), letters.poll(), tick())
        ]
        for task in tasks:
            task.add_done_callback(ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    contracts = Contracts(CATALOGUE, recorded_needs())
    app = build_app(
        watch,
        view,
        hub,
        contracts=contracts,
        letters=letters,
        letters_mode=settings.letters,
        booking=booking,
        faults=faults,
        lifespan=lifespan,
    )
    return app, hub


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OSError: The address is taken.
        DashboardBrokeError: It stopped by a mistake of its own.
    """
    # The client repeats ten times a second that a broker is away; `broker_state` says it once.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("hailbus").setLevel(logging.WARNING)
    stop = asyncio.Event()
    is_broken = False

    def on_break() -> None:
        nonlocal is_broken
        is_broken = True
        stop.set()

    app, hub = create_app(settings, on_break=on_break)
    await hailbus.fastapi.serve(app, settings.listen, on_stop=hub.close, stop=stop, grace_s=5)
    if is_broken:
        raise DashboardBrokeError("stopped by a mistake of its own: see the log")


def main() -> None:
    """Run the dashboard. Exit code 0 after SIGTERM, 1 when it broke, 2 when it cannot start as told."""
    try:
        run_process("dashboard", Settings, serve)
    except DashboardBrokeError as error:
        print(f"dashboard: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
