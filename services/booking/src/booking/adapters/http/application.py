"""The ASGI application: routes, and a problem response for whatever goes wrong."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from booking.adapters.http.problems import FieldProblem, Problem, ProblemError, problem_response, refusal_code
from booking.adapters.storage.writer import ClockNotSetError, KeyReusedError, UnavailableError
from booking.domain.errors import Refusal

BODY_LIMIT_BYTES: Final = 1024 * 1024

Scope = MutableMapping[str, Any]  # Any: ASGI
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("booking.http")


class BodyGate:
    """Refuses bodies that are too large or no JSON, before anything reads them."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http" or scope["method"] not in {"POST", "PUT", "PATCH"}:
            await self._app(scope, receive, send)
            return
        length: int | None = None
        media_type = b""
        chunked = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value) if value.isdigit() else None
            elif name == b"content-type":
                media_type = value.split(b";", 1)[0].strip().lower()
            elif name == b"transfer-encoding":
                chunked = True
        has_body = bool(length) or chunked
        if length is not None and length > BODY_LIMIT_BYTES:
            await self._refuse("too-large", _too_large(), scope, receive, send)
            return
        if has_body and media_type != b"application/json":
            shown = media_type.decode("latin-1") or "none"
            detail = f"the body's media type is {shown}; send application/json"
            await self._refuse("unsupported-media-type", detail, scope, receive, send)
            return
        if not chunked:
            await self._app(scope, receive, send)
            return
        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > BODY_LIMIT_BYTES:
                raise HTTPException(413, _too_large())  # FastAPI takes any other for broken JSON
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, code: str, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
        await problem_response(code, detail, instance=scope.get("path"))(scope, receive, send)


def _too_large() -> str:
    return f"the body is larger than {BODY_LIMIT_BYTES} bytes"


def build_application(
    add_routes: Callable[[APIRouter], None],
    *,
    title: str,
    version: str,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> FastAPI:
    """Return the application with its routes and problem responses."""
    app = FastAPI(title=title, version=version, lifespan=lifespan, redirect_slashes=False)
    add_routes(app.router)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return problem_response(refusal_code(error), str(error), instance=request.url.path)

    @app.exception_handler(ProblemError)
    async def problem(request: Request, error: ProblemError) -> Response:
        return problem_response(error.code, error.detail, instance=request.url.path)

    @app.exception_handler(KeyReusedError)
    async def reused(request: Request, _error: KeyReusedError) -> Response:
        detail = "this Idempotency-Key belongs to a request with another path or body"
        return problem_response("idempotency-key-reused", detail, instance=request.url.path)

    @app.exception_handler(ClockNotSetError)
    async def no_time(request: Request, _error: ClockNotSetError) -> Response:
        detail = "the event clock has seen no event yet: send the header Event-Time"
        return problem_response("event-time-required", detail, instance=request.url.path)

    @app.exception_handler(UnavailableError)
    async def unavailable(request: Request, error: UnavailableError) -> Response:
        return problem_response("unavailable", str(error), instance=request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields: list[FieldProblem] = []
        code = "invalid"
        for found in error.errors():
            place = ".".join(str(part) for part in found["loc"])
            fields.append(FieldProblem.model_construct(at=place, message=found["msg"]))
            if found["loc"][:1] == ("header",) or found["type"] == "json_invalid":
                code = "malformed"
        first = f"{fields[0].at}: {fields[0].message}" if fields else "the request is not as documented"
        return problem_response(code, first, instance=request.url.path, fields=fields)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(error.status_code, "malformed")
        detail = {
            "not-found": "there is nothing at this path",
            "method-not-allowed": f"{request.method} is not possible here",
        }.get(code, str(error.detail))
        response = problem_response(code, detail, instance=request.url.path)
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    @app.exception_handler(Exception)
    async def broke(request: Request, error: Exception) -> Response:
        log.error("request_broke", path=request.url.path, exc_info=error)
        return problem_response("internal", "this is our fault and has been logged", instance=request.url.path)

    def openapi() -> dict[str, Any]:  # Any: JSON
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes, openapi_version="3.1.0")
            components = document.setdefault("components", {}).setdefault("schemas", {})
            problem_schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            components.update(problem_schema.pop("$defs", {}))
            components["Problem"] = problem_schema
            for name in ("HTTPValidationError", "ValidationError"):
                components.pop(name, None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
    app.add_middleware(BodyGate)
    return app


__all__ = ["BODY_LIMIT_BYTES", "BodyGate", "build_application"]
