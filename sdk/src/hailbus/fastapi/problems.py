"""RFC 9457 problem responses: every refusal and every mistake of a client has a code, a status and a sentence."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from hailbus.errors import ClockNotSetError, KeyReusedError
from hailbus.fastapi.bodies import BodyGate

__all__ = ["COMMON_PROBLEMS", "PROBLEM_JSON", "FieldProblem", "Problem", "ProblemError", "ProblemKind", "Problems"]

log = logging.getLogger("hailbus.fastapi")

PROBLEM_JSON = "application/problem+json"
BODY_LIMIT_BYTES = 1024 * 1024


class FieldProblem(BaseModel):
    """One field that is wrong."""

    at: str = Field(description="Where, as in `body.place.lat`.")
    message: str


class Problem(BaseModel):
    """What went wrong, by RFC 9457."""

    type: str = Field(description="`/problems/<code>`; GET it for an explanation.")
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[FieldProblem] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemKind:
    """A kind of problem: its status, its title, and what to do about it."""

    status: int
    title: str
    advice: str


COMMON_PROBLEMS: Mapping[str, ProblemKind] = MappingProxyType(
    {
        "malformed": ProblemKind(
            status=400, title="Malformed request", advice="Send what the OpenAPI document asks for."
        ),
        "event-time-refused": ProblemKind(
            status=400,
            title="Event-Time is refused",
            advice="This service runs by the wall clock: leave the header out, or start it with the event clock.",
        ),
        "event-time-required": ProblemKind(
            status=400,
            title="Event-Time is required",
            advice="The event clock has seen no event yet: send the header Event-Time.",
        ),
        "not-found": ProblemKind(status=404, title="Not found", advice="Check the id and the path."),
        "method-not-allowed": ProblemKind(
            status=405, title="Method not allowed", advice="Use a method of the Allow header."
        ),
        "too-large": ProblemKind(status=413, title="Request body too large", advice="Send less at once."),
        "unsupported-media-type": ProblemKind(
            status=415, title="Unsupported media type", advice="Send the body as application/json."
        ),
        "invalid": ProblemKind(status=422, title="Invalid request", advice="Correct the fields named in `errors`."),
        "idempotency-key-reused": ProblemKind(
            status=422,
            title="Idempotency-Key was used for another request",
            advice="Take a new key for a new request; repeat a request with the same path and body.",
        ),
        "internal": ProblemKind(status=500, title="Our fault", advice="Repeat the request with the same key; tell us."),
        "unavailable": ProblemKind(
            status=503, title="Not available now", advice="Repeat the request with the same key after Retry-After."
        ),
    }
)
"""What any service can meet. `Problems` adds a service's own."""

_COMMON_ERRORS: Mapping[type[Exception], str] = MappingProxyType(
    {KeyReusedError: "idempotency-key-reused", ClockNotSetError: "event-time-required"}
)


class ProblemError(Exception):
    """Raised in a route to answer with a problem."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


class Problems:
    """The problems of one service: the common ones, its own, and which of its errors is which.

    ::

        PROBLEMS = Problems(
            {"bike-taken": ProblemKind(status=409, title="Bike is taken", advice="Choose another one.")},
            errors={BikeTaken: "bike-taken", NotFound: "not-found"},
        )
        PROBLEMS.install(app)

    Args:
        kinds: The service's own kinds by code; a common code may be given another advice.
        errors: Exceptions that routes let through, by class, with the code of each; `str(error)` is the detail. An
            attribute `problem_members` of an exception, a mapping, adds members to its problem.
    """

    def __init__(
        self,
        kinds: Mapping[str, ProblemKind] = MappingProxyType({}),
        *,
        errors: Mapping[type[Exception], str] = MappingProxyType({}),
    ) -> None:
        self.kinds: Mapping[str, ProblemKind] = MappingProxyType({**COMMON_PROBLEMS, **kinds})
        self._errors = {**_COMMON_ERRORS, **errors}
        unknown = sorted(set(self._errors.values()) - set(self.kinds))
        assert not unknown, f"errors with codes that have no kind: {', '.join(unknown)}"

    def code_of(self, error: Exception) -> str:
        """The code of an error's class, or of the nearest base that has one. A class without any is a KeyError."""
        for cls in type(error).__mro__:
            if cls in self._errors:
                return self._errors[cls]
        raise KeyError(type(error))

    def body(
        self, code: str, detail: str, *, instance: str | None = None, fields: Sequence[FieldProblem] = ()
    ) -> dict[str, Any]:  # Any: JSON
        """A problem as a JSON object."""
        kind = self.kinds[code]
        body: dict[str, Any] = {
            "type": f"/problems/{code}",
            "title": kind.title,
            "status": kind.status,
            "detail": detail,
        }
        if instance is not None:
            body["instance"] = instance
        if fields:
            body["errors"] = [field.model_dump() for field in fields]
        return body

    def of_error(self, error: Exception, *, instance: str | None = None) -> dict[str, Any]:  # Any: JSON
        """An error as a JSON object, with its `problem_members`."""
        return self.body(self.code_of(error), str(error), instance=instance) | getattr(error, "problem_members", {})

    def stored(self, error: Exception, *, instance: str | None = None) -> tuple[int, bytes]:
        """Status and body of an error, to be stored as a request's answer and sent by `reply_to`."""
        body = self.of_error(error, instance=instance)
        return body["status"], _bytes(body)

    def response(
        self, code: str, detail: str, *, instance: str | None = None, fields: Sequence[FieldProblem] = ()
    ) -> Response:
        """A problem as a response."""
        return self._respond(code, self.body(code, detail, instance=instance, fields=fields))

    def _respond(self, code: str, body: Mapping[str, Any]) -> Response:  # Any: JSON
        headers = {"Retry-After": "1"} if code == "unavailable" else None
        return Response(_bytes(body), status_code=self.kinds[code].status, media_type=PROBLEM_JSON, headers=headers)

    def documented(self, *codes: str) -> dict[int | str, dict[str, Any]]:  # Any: OpenAPI
        """OpenAPI responses for problems, by status, for a route's `responses`."""
        responses: dict[int | str, dict[str, Any]] = {}
        for code in codes:
            kind = self.kinds[code]
            entry = responses.setdefault(
                kind.status,
                {
                    "description": kind.title,
                    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}},
                },
            )
            if kind.title not in entry["description"]:
                entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
            entry["content"][PROBLEM_JSON]["examples"][code] = {"value": self.body(code, kind.advice)}
        return responses

    def install(self, app: FastAPI, *, body_limit_bytes: int = BODY_LIMIT_BYTES) -> None:
        """Answer whatever goes wrong with a problem, refuse bodies that are too large or no JSON, and explain.

        Adds exception handlers, the `BodyGate`, the route `GET /problems/{code}`, and the problem's schema to the
        OpenAPI document.
        """
        for cls in self._errors:
            app.add_exception_handler(cls, self._on_error)
        app.add_exception_handler(ProblemError, self._on_problem)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http)
        app.add_exception_handler(Exception, self._on_fault)
        app.add_middleware(BodyGate, problems=self, limit_bytes=body_limit_bytes)
        app.add_api_route(
            "/problems/{code}",
            self._explain,
            tags=["problems"],
            summary="What a problem means",
            responses=self.documented("not-found", "invalid"),
        )
        _extend_openapi(app)

    async def _explain(self, code: str) -> dict[str, str | int]:
        kind = self.kinds.get(code)
        if kind is None:
            raise ProblemError("not-found", f"there is no problem {code!r}")
        return {"status": kind.status, "title": kind.title, "advice": kind.advice}

    async def _on_error(self, request: Request, error: Exception) -> Response:
        return self._respond(self.code_of(error), self.of_error(error, instance=request.url.path))

    async def _on_problem(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        return self.response(error.code, error.detail, instance=request.url.path)

    async def _on_invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields: list[FieldProblem] = []
        code = "invalid"
        for found in error.errors():
            place = ".".join(str(part) for part in found["loc"])
            fields.append(FieldProblem.model_construct(at=place, message=found["msg"]))
            if found["loc"][:1] == ("header",) or found["type"] == "json_invalid":
                code = "malformed"
        first = f"{fields[0].at}: {fields[0].message}" if fields else "the request is not as documented"
        return self.response(code, first, instance=request.url.path, fields=fields)

    async def _on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(error.status_code, "malformed")
        detail = {
            "not-found": "there is nothing at this path",
            "method-not-allowed": f"{request.method} is not possible here",
        }.get(code, str(error.detail))
        response = self.response(code, detail, instance=request.url.path)
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    async def _on_fault(self, request: Request, error: Exception) -> Response:
        log.error("request_broke: %s", request.url.path, exc_info=error)
        return self.response("internal", "this is our fault and has been logged", instance=request.url.path)


def _bytes(body: Mapping[str, Any]) -> bytes:  # Any: JSON
    """ASCII only, as what clients sent (a lone surrogate, say) may not be valid text."""
    return json.dumps(body, ensure_ascii=True).encode()


def _extend_openapi(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:  # Any: JSON
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes, openapi_version="3.1.0")
            components = document.setdefault("components", {}).setdefault("schemas", {})
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            components.update(schema.pop("$defs", {}))
            components["Problem"] = schema
            for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which nobody gets to see
                components.pop(name, None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
