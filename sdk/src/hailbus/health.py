"""Health routes: alive when the event loop turns, ready when the service runs and makes progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["health_router"]


def health_router(service: Service) -> APIRouter:
    """`GET /livez` answers 200 unless a subscriber has ended; `GET /readyz` is 200 only while events make progress.

    `GET /metrics` gives the service's counters to Prometheus.
    """
    router = APIRouter(tags=["health"])

    @router.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        failed = [str(s.failure) for s in service.subscribers if s.failure is not None]
        if failed:
            return JSONResponse({"status": "failed", "reasons": failed}, status_code=503)
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        if not service.is_running:
            return JSONResponse({"status": "starting", "reasons": ["the service does not run"]}, status_code=503)
        reasons = service.unhealthy_reasons
        if reasons:
            return JSONResponse({"status": "stalled", "reasons": reasons}, status_code=503)
        return JSONResponse({"status": "ok"})

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        from hailbus.metrics import metrics_text

        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
