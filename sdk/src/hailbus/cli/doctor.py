"""`hailbus doctor`: what is wrong with a cluster, with a service's declaration, and with a service that runs."""

from __future__ import annotations

import asyncio
import contextlib
import json as encoder
import platform
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from hailbus._transport import TopicDescription
from hailbus.admin import ClusterAdmin
from hailbus.cli.common import Bootstrap, Json, bus_at, load, out, run, table
from hailbus.cli.explaining import explained
from hailbus.errors import BrokerUnreachableError, ConfigurationError
from hailbus.health import service_checks
from hailbus.service import Service

__all__ = ["doctor"]

PROBE_TIMEOUT_S = 10.0
PACKAGES = ("hailbus", "aiokafka", "confluent-kafka", "pydantic", "sqlalchemy")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    answer: object
    ok: bool = True
    advice: str = ""


def doctor(
    bootstrap_server: Bootstrap,
    service: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            help="A service to check as well: package.module:service, or the URL of one that runs, like "
            "http://127.0.0.1:8000. May be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check the cluster, and whether services are well. Exit code 1 when something is wrong.

    Of a service's declaration it checks topics, lag, progress, dead letters, parked keys and outboxes. Of one that runs
    it reads /livez and /readyz, and explains each reason and warning.
    """
    given = service or []
    urls = [name.rstrip("/") for name in given if name.startswith(("http://", "https://"))]

    async def main() -> list[Finding]:
        services = [_service_named(name) for name in given if not name.startswith(("http://", "https://"))]
        found = _versions()
        for url in urls:
            found += await asyncio.to_thread(_probed, url)
        try:
            async with ClusterAdmin(bus_at(bootstrap_server)) as admin:
                topics = await admin.topics()
                found.append(Finding("broker", f"{bootstrap_server}, {len(topics)} topics"))
                leaderless = [f"{t.name}-{p}" for t in topics.values() for p, leader in t.leaders.items() if leader < 0]
                found.append(Finding("partitions without leader", ", ".join(leaderless) or "none", not leaderless))
                for one in services:
                    found += await _declared(one, admin, topics)
        except BrokerUnreachableError as error:
            found.append(Finding("broker", str(error), ok=False))
        return found

    found = run(main())
    if json:
        for one in found:
            out({"what": one.what, "found": one.answer, "ok": one.ok, **({"advice": one.advice} if one.advice else {})})
    else:
        rows: list[list[object]] = [["ok" if one.ok else "WRONG", one.what, one.answer] for one in found]
        table(["", "WHAT", "FOUND"], rows)
        for one in found:
            if one.advice:
                typer.echo(f"\n{one.answer}\n  {one.advice}")
    if not all(one.ok for one in found):
        raise typer.Exit(1)


def _service_named(name: str) -> Service:
    found: Any = load(name)
    if not isinstance(found, Service):
        message = f"{name!r} is no hailbus.Service; give one like 'shop.main:svc', or the URL of one that runs"
        raise ConfigurationError(message)
    return found


def _versions() -> list[Finding]:
    found = []
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):  # of an extra that is not installed
            found.append(Finding(package, version(package)))
    return [*found, Finding("python", platform.python_version())]


async def _declared(service: Service, admin: ClusterAdmin, topics: Mapping[str, TopicDescription]) -> list[Finding]:
    """What the cluster says about a service that is declared in this process."""
    found = []
    for topic in service.topics:
        there = topics.get(topic.name)
        if there is None:
            found.append(Finding(f"topic {topic.name}", "missing; created at the service's start"))
        else:
            text = f"{there.partition_count} partitions, declared {topic.partitions}"
            found.append(Finding(f"topic {topic.name}", text, there.partition_count == topic.partitions))
    for group in sorted({s.group for s in service.subscriptions}):
        lag = sum(entry.lag for entry in await admin.lag(group))
        found.append(Finding(f"group {group}", f"lag {lag}"))
        for topic in service.topics:
            if topic.name.endswith(f".{group}-dlt") and topic.name in topics:
                ends = sum((await admin.end_offsets([topic])).values())
                starts = sum((await admin.start_offsets([topic])).values())
                found.append(Finding(f"dead letters in {topic.name}", ends - starts))
    return found + [Finding(c.what, c.answer, c.ok) for c in await service_checks(service, admin)]


def _probed(url: str) -> list[Finding]:
    """What a running service answers on its health routes."""
    found: list[Finding] = []
    for route in ("livez", "readyz"):
        what = f"{url}/{route}"
        try:
            status, body = _answer(what)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            advice = "Give the address of the service's health routes: `svc.health()`, or `hailbus run --listen`."
            return [*found, Finding(what, f"no answer: {reason}", ok=False, advice=advice)]
        ok = status < 300
        reasons = [str(reason) for reason in body.get("reasons", ())]
        found.append(Finding(what, f"{status} {body.get('status', '')}".strip(), ok))
        found += [Finding("reason", reason, ok=False, advice=explained(reason)) for reason in reasons]
        found += [Finding("warning", str(w), advice=explained(str(w))) for w in body.get("warnings", ())]
        lags = body.get("lag_seconds", {})
        found += [Finding(f"lag of group {group}", f"{lag_s} s") for group, lag_s in sorted(lags.items())]
    return found


def _answer(url: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a route.

    Raises:
        OSError: Nothing answers.
        ValueError: What answers is no service of ours.
    """
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S) as answer:  # noqa: S310 http or https, see above
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    try:
        body = encoder.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or "status" not in body:
        message = f"HTTP status {status} without the body of a health route"
        raise ValueError(message)
    return status, body
