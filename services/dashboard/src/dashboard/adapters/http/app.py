"""The routes: the page, its stream, and the same by REST."""

import gzip
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import hailbus.fastapi
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from hailbus.fastapi import ProblemError, ProblemKind, Problems
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboard.adapters.http.contracts import contracts_router
from dashboard.adapters.http.faults import NO_FAULTS, FaultsApi
from dashboard.adapters.http.hub import Hub, TooManyPagesError
from dashboard.adapters.http.letters import LetterRefusedError, Mode, letters_router
from dashboard.adapters.http.own_page import NOT_OWN_PAGE, is_from_own_page
from dashboard.adapters.http.rides import BookingApi, ride_view
from dashboard.adapters.letters import LetterDoneError, LetterNotFoundError, Letters, LettersUnavailableError
from dashboard.adapters.watch import Watch
from dashboard.domain.contracts import Contracts
from dashboard.domain.proposals import ProposalError
from dashboard.hexagons import land
from dashboard.view import View

STATIC: Final = Path(__file__).parents[2] / "static"
PROBLEMS: Final = Problems(
    {
        "too-many-pages": ProblemKind(status=503, title="Too many pages", advice="Close pages that nobody looks at."),
        "not-own-page": ProblemKind(status=403, title="Refused", advice="Click on the page of this dashboard itself."),
        "proposal-refused": ProblemKind(
            status=422, title="No such change", advice="Take fields and types from GET /api/contracts."
        ),
        "letter-refused": ProblemKind(
            status=422, title="The value is not what its event class says", advice="Correct what `problems` names."
        ),
        "letter-done": ProblemKind(
            status=409, title="Nothing can be done with this letter", advice="Read the letter's status and history."
        ),
        "letters-read-only": ProblemKind(
            status=403, title="Dead letters are only shown", advice="Set DASHBOARD_LETTERS=replay and start again."
        ),
    },
    errors={
        TooManyPagesError: "too-many-pages",
        ProposalError: "proposal-refused",
        LetterRefusedError: "letter-refused",
        LetterDoneError: "letter-done",
        LetterNotFoundError: "not-found",
        LettersUnavailableError: "unavailable",
    },
)
_BODY_LIMIT_BYTES: Final = 65_536
"""Of a proposed change, and of the value of a dead letter."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def build_app(
    watch: Watch,
    view: View,
    hub: Hub,
    *,
    contracts: Contracts,
    letters: Letters,
    letters_mode: Mode,
    booking: BookingApi | None,
    faults: FaultsApi | None,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="dashboard", version="0.1.0", lifespan=lifespan, docs_url=None, redoc_url=None)
    hailbus.fastapi.serve_api_page(app)
    cells = gzip.compress(land(), 6)

    @app.get("/api/state", summary="Everything that the page shows")
    async def state() -> dict[str, Any]:  # Any: JSON
        return view.whole()

    @app.get("/api/stream", summary="Server-sent events: `whole`, then `delta` every 250 ms")
    async def stream() -> Response:
        return StreamingResponse(hub.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @app.get("/api/cells", summary="The land cells with their boundaries and names")
    async def land_cells() -> Response:
        return Response(cells, media_type="application/json", headers={"Content-Encoding": "gzip"})

    @app.get("/api/rides/{ride_id}", summary="One ride's records as they were written, and what booking says")
    async def ride(ride_id: str) -> Response:
        records = watch.city.timelines.get(ride_id)
        if not records:
            raise ProblemError("not-found", f"the last 2,500 rides are kept, and {ride_id!r} is not among them")
        says = None if booking is None else await booking.says(ride_id)
        return JSONResponse(ride_view(ride_id, records, says))

    @app.get("/api/lag", summary="How far each consumer group is behind")
    async def lag() -> dict[str, Any]:  # Any: JSON
        return {"broker": watch.status.broker, "detail": watch.status.detail, "groups": view.lag()}

    @app.get("/api/cluster", summary="Brokers, and leader, replicas and in-sync replicas of each partition")
    async def cluster() -> dict[str, Any]:  # Any: JSON
        return {"cluster": view.cluster(), "age_s": view.cluster_age_s()}

    @app.get("/api/ledger", summary="Rides by the log, and the lines of the demo's ledger")
    async def ledger() -> dict[str, Any]:  # Any: JSON
        return {**view.ledger(), "full": view.full_ledger()}

    @app.get("/api/faults", summary="The faults that can be caused by a click, and how each went")
    async def all_faults() -> Response:
        if faults is None:
            raise ProblemError("not-found", NO_FAULTS)
        status, found = await faults.show()
        return JSONResponse(found, status_code=status)

    def clicked(request: Request) -> FaultsApi:
        """Return whom a click is for, if it is one on this page."""
        if faults is None:
            raise ProblemError("not-found", NO_FAULTS)
        if not is_from_own_page(request.headers):
            raise ProblemError("not-own-page", NOT_OWN_PAGE)
        return faults

    @app.post("/api/faults/{fault_id}", status_code=202, summary="Begin a fault; only the page itself may")
    async def begin_fault(fault_id: str, request: Request) -> Response:
        status, found = await clicked(request).begin(fault_id)
        return JSONResponse(found, status_code=status)

    @app.post("/api/load/{factor}", status_code=202, summary="Riders for each of the plan; only the page itself may")
    async def set_load(factor: float, request: Request) -> Response:
        status, found = await clicked(request).load(factor)
        return JSONResponse(found, status_code=status)

    @app.get("/livez", include_in_schema=False)
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        if watch.status.was_up:
            return JSONResponse({"status": "ok", "broker": watch.status.broker})
        return JSONResponse({"status": "starting", "reasons": [watch.status.detail]}, status_code=503)

    def publishers(topic: str) -> list[str]:
        return sorted({source.strip("/") for source, to in watch.city.flow.totals if to == topic and source.strip("/")})

    app.include_router(contracts_router(contracts, publishers))

    app.include_router(letters_router(letters, watch, letters_mode))

    @app.get("/contracts", include_in_schema=False)
    async def contracts_page() -> Response:
        return FileResponse(STATIC / "contracts.html")

    @app.get("/letters", include_in_schema=False)
    async def letters_page() -> Response:
        return FileResponse(STATIC / "letters.html")

    PROBLEMS.install(app, body_limit_bytes=_BODY_LIMIT_BYTES)
    app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    app.add_middleware(_Headers)
    return app


class _Headers:
    """Adds the headers that keep a page to itself, and makes browsers ask whether a file is still the same."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


__all__ = ["STATIC", "build_app"]
