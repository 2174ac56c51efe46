"""Routes that hand a valid request to its endpoint themselves; every other request goes through FastAPI.

For each request FastAPI works out anew what the endpoint takes and where it comes from, which costs more than all that
booking does itself before a request joins its batch. A route declares this once, so it is worked out once. FastAPI
still declares the route and words the answer to a request that is not valid.
"""

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Final, Self

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.routing import Match
from starlette.types import Scope

JSON_BODY: Final = b"application/json"
TRACED: Final = "fastapi.telemetry"
"""FastAPI traces this request; its spans and values are then its own."""

Validate = Callable[[Any], tuple[Any, Any]]  # Any: a value and the errors, as FastAPI's fields return them


class DirectRoute(APIRoute):
    """A route for `async` endpoints that take path parameters, headers and a body, and return a response.

    An endpoint that takes anything else is called by FastAPI.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:  # Any: as FastAPI's own
        super().__init__(path, endpoint, **declared)
        self._suffix = path.rpartition("}")[2]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request. Most routes see by the end of its path that it is for another one."""
        if scope["type"] == "http" and not scope["path"].endswith(self._suffix):
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request, as FastAPI asks for it."""
        through_fastapi = super().get_route_handler()
        parameters = _Parameters.of(self.dependant)
        if parameters is None:
            return through_fastapi
        endpoint = self.endpoint

        async def direct(request: Request) -> Response:
            found = None if TRACED in request.scope else await parameters.read(request)
            if found is None:
                return await through_fastapi(request)
            response = await endpoint(**found)
            assert isinstance(response, Response), f"{endpoint} returned {response!r}, which is no Response"
            return response

        return direct


class _Parameters:
    """What an endpoint takes: where it comes from, and what validates it."""

    def __init__(
        self,
        request: str | None,
        path: dict[str, tuple[str, Validate]],
        headers: dict[bytes, tuple[str, Validate]],
        optional: dict[str, Any],
        body: tuple[str, type[BaseModel]],
    ) -> None:
        self._request = request
        self._path = path
        self._headers = headers
        self._optional = optional
        self._body_name, self._body = body
        self._count = len(path) + len(headers) + 1 + (request is not None)

    @classmethod
    def of(cls, dependant: Dependant) -> Self | None:
        """Return the parameters of an endpoint, None if it takes anything but those of `DirectRoute`."""
        others = (dependant.dependencies, dependant.query_params, dependant.cookie_params)
        named = (
            dependant.http_connection_param_name,
            dependant.response_param_name,
            dependant.background_tasks_param_name,
            dependant.security_scopes_param_name,
        )
        if any(others) or any(named) or len(dependant.body_params) != 1 or not iscoroutinefunction(dependant.call):
            return None
        (body,) = dependant.body_params
        model = body.field_info.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return None
        headers = dependant.header_params
        return cls(
            dependant.request_param_name,
            {field.alias: (field.name, field.validate) for field in dependant.path_params},
            {field.alias.lower().encode("latin-1"): (field.name, field.validate) for field in headers},
            {field.name: field.default for field in headers if not field.field_info.is_required()},
            (body.name, model),
        )

    async def read(self, request: Request) -> dict[str, Any] | None:
        """Return the arguments of the endpoint, None if the request is not valid."""
        found: dict[str, Any] = {}
        media_type: bytes | None = None
        for name, value in request.scope["headers"]:
            if (wanted := self._headers.get(name)) is not None:
                if wanted[0] not in found and not _put(found, wanted, value.decode("latin-1")):
                    return None
            elif name == b"content-type" and media_type is None:
                media_type = value
        for alias, text in request.scope["path_params"].items():
            if (wanted := self._path.get(alias)) is not None and not _put(found, wanted, text):
                return None
        if media_type != JSON_BODY:
            return None
        try:
            found[self._body_name] = self._body.__pydantic_validator__.validate_json(await request.body())
        except ValidationError:
            return None
        if self._request is not None:
            found[self._request] = request
        if len(found) < self._count:
            found = self._optional | found
        return found if len(found) == self._count else None


def _put(found: dict[str, Any], parameter: tuple[str, Validate], text: str) -> bool:
    name, validate = parameter
    found[name], errors = validate(text)
    return not errors
