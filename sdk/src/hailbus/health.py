"""Health: routes for probes, and what `hailbus doctor` checks of a service from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hailbus._extras import extra
from hailbus.delivery import ParkKey

if TYPE_CHECKING:
    from fastapi import APIRouter

    from hailbus.admin import ClusterAdmin
    from hailbus.outbox import Outbox
    from hailbus.service import Service

__all__ = ["Check", "health_router", "service_checks"]

DATABASE_TIMEOUT_S = 2.0
PROGRESS_PATIENCE_S = 5.0


def health_router(
    service: Service,
    *,
    reasons: Callable[[], Sequence[str]] = tuple,
    failures: Callable[[], Sequence[str]] = tuple,
) -> APIRouter:
    """Routes for probes: `GET /livez`, `GET /readyz` and `GET /metrics`.

    `/livez` answers 200 unless only a restart can help: a group that reads no more, or a task that could not be kept
    running. `/readyz` is 503 while the service cannot do its work, with the reasons: the broker or a database has not
    been reached for `outage_after`, offset commits fail, a partition or the outbox made no progress for `stall_after`.
    Its answer lists `warnings` that need a person but no restart: parked keys, rows that wait in an outbox. `/metrics`
    gives the service's counters to Prometheus.

    Args:
        service: The service to report on.
        reasons: Further reasons why requests cannot be answered now, for example a database that is away.
        failures: Further reasons why only a restart helps, for example a task of the application that has died.
    """
    with extra("fastapi"):
        from fastapi import APIRouter
        from fastapi.responses import JSONResponse, Response

    router = APIRouter(tags=["health"])

    @router.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        failed = [*service.failures, *failures()]
        if failed:
            return JSONResponse({"status": "failed", "reasons": failed}, status_code=503)
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        found = list(reasons())
        if not service.is_running or found:
            found = found or ["the service does not run"]
            return JSONResponse({"status": "starting", "reasons": found}, status_code=503)
        stuck, warnings = await _outboxes(service)
        more = {"warnings": warnings} if (warnings := [*service.warnings, *warnings]) else {}
        unhealthy = [*service.unhealthy_reasons, *stuck]
        if unhealthy:
            return JSONResponse({"status": "unhealthy", "reasons": unhealthy, **more}, status_code=503)
        lags = {subscriber.group: round(subscriber.lag_s, 3) for subscriber in service.subscribers}
        return JSONResponse({"status": "ok", "lag_seconds": lags, **more})

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        from hailbus.metrics import metrics_text

        await _outboxes(service)  # the lag is remembered in `last_lag`
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


async def _outboxes(service: Service) -> tuple[list[str], list[str]]:
    """Reasons to be unhealthy, and warnings, of the outboxes of a service."""
    stall_s = service.settings.stall_after.total_seconds()
    outage_s = service.settings.outage_after.total_seconds()
    stuck: list[str] = []
    warnings: list[str] = []
    for outbox in service.outboxes:
        lag = await _lag_of(outbox)
        failing = outbox.reasons(after_s=outage_s)
        stuck += failing
        if lag is None:
            silent_s = asyncio.get_running_loop().time() - (outbox.silent_since_s or 0.0)
            if silent_s < outage_s:
                warnings.append("the outbox's database does not answer")
            elif not failing:
                stuck.append(f"the outbox's database has not answered for {silent_s:.0f} s")
        elif lag[1] > stall_s:
            stuck.append(f"the outbox holds {lag[0]} events to publish, the oldest for {lag[1]:.0f} s")
        elif lag[0]:
            warnings.append(f"the outbox holds {lag[0]} events to publish, the oldest for {lag[1]:.1f} s")
    return stuck, warnings


async def _lag_of(outbox: Outbox) -> tuple[int, float] | None:
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S):
            lag = await outbox.lag()
    except Exception:  # noqa: BLE001 whatever it is, the probe must have its answer
        if outbox.silent_since_s is None:
            outbox.silent_since_s = began_s
        return None
    outbox.silent_since_s = None
    return lag.due_count, lag.oldest_s


# ------------------------------------------------------------------------------------------------ from outside


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    answer: str
    ok: bool = True


async def service_checks(service: Service, admin: ClusterAdmin) -> list[Check]:
    """Check what is visible of a service that runs elsewhere: the progress of its groups, parked keys, its outboxes.

    Args:
        service: As its module declares it; it need not run in this process.
        admin: For the cluster that it runs on.
    """
    found: list[Check] = []
    for group in sorted({s.group for s in service.subscriptions}):
        before = {(e.topic, e.partition): e for e in await admin.lag(group)}
        behind = {place for place, entry in before.items() if entry.lag}
        deadline_s = asyncio.get_running_loop().time() + PROGRESS_PATIENCE_S
        while behind and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(PROGRESS_PATIENCE_S / 10)
            now = {(e.topic, e.partition): e for e in await admin.lag(group)}
            behind = {p for p in behind if now[p].lag and now[p].committed_offset == before[p].committed_offset}
        stuck = ", ".join(f"{topic}-{number}" for topic, number in sorted(behind))
        answer = f"no commit within {PROGRESS_PATIENCE_S:g} s on {stuck}" if stuck else "yes"
        found.append(Check(f"progress of group {group}", answer, not stuck))
    for subscription in service.subscriptions:
        then = getattr(subscription.delivery, "then", None)
        if isinstance(then, ParkKey):
            what = f"keys that {subscription.name} parked"
            try:
                async with asyncio.timeout(DATABASE_TIMEOUT_S):
                    keys = await then.lot.keys(subscription.group)
            except Exception as error:  # noqa: BLE001 whatever it is, it is the finding
                found.append(Check(what, f"the database cannot be read: {error}", ok=False))
            else:
                found.append(Check(what, str(len(keys)), not keys))
    for outbox in service.outboxes:
        lag = await _lag_of(outbox)
        if lag is None:
            found.append(Check("outbox", "the database cannot be read", ok=False))
        else:
            stall_s = service.settings.stall_after.total_seconds()
            found.append(
                Check("outbox", f"{lag[0]} events to publish, the oldest for {lag[1]:.0f} s", lag[1] <= stall_s)
            )
    return found
