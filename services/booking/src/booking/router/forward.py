"""Forwards requests to the regions. It keeps nothing between two requests, so several routers may run side by side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

import structlog
from fastapi import Request
from fastapi.responses import Response
from hailbus.fastapi import ProblemError
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Receive, Scope, Send

from booking.adapters.http.problems import PROBLEMS
from booking.domain.region import Region, Regions
from booking.router.batch import MISDIRECTED, Batch, Part, key_of_round
from booking.router.region_client import Headers, Regional, Reply, UnreachableError
from booking.router.routes import ToAll, ToAny, ToOne, ToOwners, route

VIA: Final = ("via", "1.1 booking-router")
KEY: Final = "idempotency-key"
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
OK: Final = 200
UNAVAILABLE: Final = 503
OF_THE_CONNECTION: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("proxy-authenticate", "proxy-authorization", "host", "content-length", "expect"),
    }
)
"""Headers that belong to one connection (RFC 9110, 7.6.1), or that each side writes anew."""
WRITTEN_ANEW: Final = OF_THE_CONNECTION | {"date", "server"}
log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking.router")


class Forwarder:
    """An ASGI application that sends each request to the region that owns it.

    Everything that a client sends but the headers of the connection is passed on as it is, the token and the
    idempotency key among it. A region that does not answer is a 503 for its own requests alone: the request may have
    been done, and is safe to repeat with its key.

    Args:
        regions: Who owns what.
        clients: The process of each region, by name.
        registry: Where its counter is registered.
    """

    def __init__(self, regions: Regions, clients: Mapping[str, Regional], registry: CollectorRegistry) -> None:
        self._regions = regions
        self._clients = clients
        self._away: set[str] = set()
        """Regions that did not answer the last request: the log says it once."""
        self._forwarded = Counter(
            "booking_router_forwarded",
            "Requests sent to a region, by what became of them: answered, misdirected or unreachable",
            ["region", "outcome"],
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except UnreachableError as error:
            detail = f"region {error.region} does not answer; repeat the request with the same Idempotency-Key"
            response = PROBLEMS.response("unavailable", detail, instance=scope["path"])
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        # Of other methods nobody reads the body, nor bounds it.
        sent = _Sent.of(request, await request.body() if request.method in WITH_BODY else b"")
        found = route(request.method, request.scope["path"], sent.body, self._regions)
        match found:
            case ToOne(region):
                return _respond(await self._to_owner(region, sent))
            case ToAll():
                replies = await _all_of([self._send(region, sent) for region in self._regions.all])
                return _respond(next((reply for reply in replies if reply.status >= 400), replies[0]))
            case ToAny():
                return _respond(await self._to_any(sent))
            case ToOwners(updates):
                return await self._to_owners(Batch(updates, self._regions), sent)
            case _:
                assert_never(found)

    async def _to_owner(self, region: Region, sent: _Sent) -> Reply:
        """Send to a region, and once more to the owner that it names."""
        reply = await self._send(region, sent)
        if reply.status != MISDIRECTED:
            return reply
        # The address is the file's, not the answer's: a router connects to nothing else.
        owner = self._regions.named(str(_json(reply).get("owner")))
        return reply if owner is None or owner is region else await self._send(owner, sent)

    async def _to_any(self, sent: _Sent) -> Reply:
        """Send to one region after the other until one can answer."""
        rest = self._regions.rest
        *others, last = [rest, *(region for region in self._regions.all if region is not rest)]
        for region in others:
            with contextlib.suppress(UnreachableError):
                reply = await self._send(region, sent)
                if reply.status != UNAVAILABLE:
                    return reply
        return await self._send(last, sent)

    async def _to_owners(self, batch: Batch, sent: _Sent) -> Response:
        """Send updates to their regions, in as many rounds as it takes."""
        while not batch.is_done:
            parts = batch.parts()
            replies = await _all_of([self._send(part.region, sent.only(part, batch)) for part in parts])
            refused = next((reply for reply in replies if reply.status != OK), None)
            if refused is not None:
                return _respond(refused)
            batch.take([(part, _json(reply)["results"]) for part, reply in zip(parts, replies, strict=True)])
        return Response(_encoded({"results": batch.results}), media_type="application/json")

    async def _send(self, region: Region, sent: _Sent) -> Reply:
        try:
            reply = await self._clients[region.name].send(sent.method, sent.target, sent.headers, sent.body)
        except UnreachableError as error:
            self._forwarded.labels(region.name, "unreachable").inc()
            if region.name not in self._away:
                self._away.add(region.name)
                log.warning("region_unreachable", region=region.name, address=region.address, reason=error.reason)
            raise
        if region.name in self._away:
            self._away.discard(region.name)
            log.info("region_answers_again", region=region.name)
        self._forwarded.labels(region.name, "misdirected" if reply.status == MISDIRECTED else "answered").inc()
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A request as it is passed on."""

    method: str
    target: str
    headers: Headers
    body: bytes

    @classmethod
    def of(cls, request: Request, body: bytes) -> _Sent:
        """Return a request without the headers of its connection.

        Raises:
            ProblemError: It has no path.
        """
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        query: bytes = request.scope["query_string"]
        if not raw.startswith(b"/"):  # appended to an address it would be another one
            raise ProblemError("malformed", "the request names no path")
        return cls(
            method=request.method,
            target=(raw + (b"?" + query if query else b"")).decode("latin-1"),
            headers=[
                *(
                    (name.decode("latin-1"), value.decode("utf-8", "replace"))
                    for name, value in request.headers.raw
                    if name.decode("latin-1") not in OF_THE_CONNECTION
                ),
                VIA,
            ],
            body=body,
        )

    def only(self, part: Part, batch: Batch) -> _Sent:
        """Return the request with the updates of a part, and with the key of the batch's round."""
        if len(part.places) == len(batch.updates):
            return self
        return replace(
            self,
            headers=[
                (name, key_of_round(value, batch.round) if name == KEY else value) for name, value in self.headers
            ],
            body=_encoded({"updates": [batch.updates[place] for place in part.places]}),
        )


async def _all_of(sending: Iterable[Awaitable[Reply]]) -> Sequence[Reply]:
    """Wait for all, so that nothing is under way when the client repeats the request; raise what one raised."""
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    replies: list[Reply] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        replies.append(outcome)
    return replies


def _respond(reply: Reply) -> Response:
    response = Response(reply.body, status_code=reply.status)
    kept = [
        (name.lower(), value) for name, value in reply.headers if name.decode("latin-1").lower() not in WRITTEN_ANEW
    ]
    response.raw_headers = [*kept, (b"content-length", str(len(reply.body)).encode())]
    return response


def _json(reply: Reply) -> Any:  # Any: JSON of booking
    return json.loads(reply.body)


def _encoded(content: Mapping[str, Any]) -> bytes:  # Any: JSON
    return json.dumps(content, separators=(",", ":")).encode()


__all__ = ["Forwarder"]
