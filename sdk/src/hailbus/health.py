"""Health routes: alive when the event loop turns, ready when the service runs and makes progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hailbus._extras import extra

with extra("fastapi"):
    from fastapi import APIRouter
    from fastapi.responses import JSONResponse, Response

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["health_router"]


def health_router(
    service: Service,
    *,
    reasons: Callable[[], Sequence[str]] = tuple,
    failures: Callable[[], Sequence[str]] = tuple,
) -> APIRouter:
    """`GET /livez` answers 200 unless a subscriber has ended; `GET /readyz` is 200 only while events make progress.

    `GET /metrics` gives the service's counters to Prometheus.

    Args:
        service: Whose progress counts.
        reasons: Further reasons why requests cannot be answered now, as that a database is away.
        failures: Further reasons why only a restart helps, as that a task of the application has died.
    """
    router = APIRouter(tags=["health"])

    @router.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        failed = [*(str(s.failure) for s in service.subscribers if s.failure is not None), *failures()]
        if failed:
            return JSONResponse({"status": "failed", "reasons": failed}, status_code=503)
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        found = list(reasons())
        if not service.is_running or found:
            found = found or ["the service does not run"]
            return JSONResponse({"status": "starting", "reasons": found}, status_code=503)
        stalled = service.unhealthy_reasons
        if stalled:
            return JSONResponse({"status": "stalled", "reasons": stalled}, status_code=503)
        lags = {subscriber.group: round(subscriber.lag_s, 3) for subscriber in service.subscribers}
        return JSONResponse({"status": "ok", "lag_seconds": lags})

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        from hailbus.metrics import metrics_text

        for outbox in service.outboxes:
            await outbox.lag()  # remembered in `last_lag`
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
