"""The guard in front of each route: who calls, may this role call here, and has it called too often.

It runs before the body is read. What a caller may do to one ride, quote or driver is decided in `app/permissions.py`.
"""

import hashlib
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from hailbus.clock import ServiceClock
from hailbus.fastapi import ProblemError, moment_of

from booking.adapters.http.direct import DirectRoute
from booking.adapters.http.problems import PROBLEMS
from booking.adapters.http.rate_limit import RateLimit
from booking.adapters.http.tokens import TokenError, TokenVerifier
from booking.domain.caller import ANYONE, Caller, Role

CALLERS: Final = "x-callers"
"""Under this name each operation of the OpenAPI document lists the roles that may call it."""
SCHEME: Final = "bearer"
GUARDED: Final = ("unauthenticated", "forbidden", "rate-limited")
"""The problems of every guarded route."""
LIMITED: Final = frozenset({Role.RIDER, Role.DRIVER})
"""The roles with a rate limit. Fleets and operators act for many people and are trusted, so they have none."""
_ADMISSION: Final = "booking.admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request that was let through. `route` is its method and path template."""

    caller: Caller
    route: str

    def scoped(self, key: str) -> str:
        """Return an idempotency key as it is stored: the same key of another caller or route is another key."""
        text = f"{self.caller.role}\n{self.caller.subject}\n{self.route}\n{key}"
        return hashlib.sha256(text.encode()).hexdigest()


def admission_of(request: Request) -> Admission:
    """Return what the guard found."""
    found: Admission = request.scope[_ADMISSION]
    return found


class Guard:
    """Lets requests through, or answers them.

    Args:
        verifier: Verifies tokens; None when authentication is off, and every caller is `ANYONE`.
        limit: How often a caller may come.
        clock: The time by which `limit` counts.
    """

    def __init__(self, verifier: TokenVerifier | None, limit: RateLimit, clock: ServiceClock) -> None:
        self._verifier = verifier
        self._limit = limit
        self._clock = clock

    @property
    def is_on(self) -> bool:
        """Whether callers must authenticate."""
        return self._verifier is not None

    def declare(self, callers: Collection[Role]) -> dict[str, Any]:  # Any: OpenAPI
        """Return what a route declares in the OpenAPI document, for `openapi_extra`."""
        declared: dict[str, Any] = {CALLERS: sorted(callers)}
        if self.is_on:
            declared["security"] = [{SCHEME: []}]
        return declared

    def route_class(self, callers: Collection[Role]) -> type[APIRoute]:
        """Return the class of a route that these roles may call."""
        guard, allowed = self, frozenset(callers)

        class GuardedRoute(DirectRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                handler = super().get_route_handler()
                route = f"{' '.join(sorted(self.methods or ()))} {self.path}"

                async def guarded(request: Request) -> Response:
                    found = guard.admit(request, allowed)
                    if isinstance(found, Response):
                        return found
                    request.scope[_ADMISSION] = Admission(caller=found, route=route)
                    return await handler(request)

                return guarded

        return GuardedRoute

    def admit(self, request: Request, allowed: frozenset[Role]) -> Caller | Response:
        """Return the caller, or the response that turns the request away."""
        if self._verifier is None:
            return ANYONE
        path = request.scope["path"]
        token = _bearer_token(request)
        if token is None:
            return _unauthenticated("send the header Authorization: Bearer TOKEN", path, 'Bearer realm="booking"')
        try:
            caller = self._verifier.caller(token)
        except TokenError as error:
            challenge = f'Bearer realm="booking", error="invalid_token", error_description="{error}"'
            return _unauthenticated(str(error), path, challenge)
        if caller.role not in allowed:
            who = " or ".join(sorted(allowed))
            return PROBLEMS.response("forbidden", f"this is for the role {who}; you are {caller}", instance=path)
        if caller.role in LIMITED:
            wait_s = self._limit.take(caller, self._now_s(request))
            if wait_s > 0:
                detail = f"{caller} sent too many requests; wait {wait_s} s by the {self._clock.name} clock"
                response = PROBLEMS.response("rate-limited", detail, instance=path)
                response.headers["Retry-After"] = str(wait_s)
                return response
        return caller

    def _now_s(self, request: Request) -> float:
        now = self._clock.now()
        if self._clock.name == "event":
            try:
                moment = moment_of(request.headers.get("event-time"), self._clock)
            except ProblemError:  # the route answers it
                moment = None
            if moment is not None:
                now = max(now, moment)
        return now.timestamp()


def _bearer_token(request: Request) -> str | None:
    """Return the token of the only Authorization header, if that is what it holds."""
    found = [value for name, value in request.scope["headers"] if name == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, token = found[0].decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _unauthenticated(detail: str, path: str, challenge: str) -> Response:
    response = PROBLEMS.response("unauthenticated", detail, instance=path)
    response.headers["WWW-Authenticate"] = challenge
    return response
