"""RFC 9457 problem responses: every refusal has a code, a status and a sentence."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recommender.app.serving import (
    OtherOptionChosenError,
    UnavailableError,
    UnknownOptionError,
    UnknownRecommendationError,
)

BODY_LIMIT_BYTES: Final = 64 * 1024
_TITLES: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        "malformed": (400, "Malformed request"),
        "not-found": (404, "Not found"),
        "method-not-allowed": (405, "Method not allowed"),
        "other-option-chosen": (409, "Another option was chosen before"),
        "too-large": (413, "Request body too large"),
        "invalid": (422, "Invalid request"),
        "unknown-option": (422, "Unknown option"),
        "unavailable": (503, "Not available now"),
    }
)
_CODES: Final[Mapping[type[Exception], str]] = MappingProxyType(
    {
        UnknownRecommendationError: "not-found",
        UnknownOptionError: "unknown-option",
        OtherOptionChosenError: "other-option-chosen",
        UnavailableError: "unavailable",
    }
)


class FieldProblem(BaseModel):
    """One field that is wrong."""

    at: str
    message: str


class Problem(BaseModel):
    """What went wrong, by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None


def problem(code: str, detail: str, errors: Sequence[FieldProblem] = ()) -> JSONResponse:
    """Return a problem as a response."""
    status, title = _TITLES[code]
    body: dict[str, Any] = {"type": f"/problems/{code}", "title": title, "status": status, "detail": detail}
    if errors:
        body["errors"] = [error.model_dump() for error in errors]
    headers = {"Retry-After": "1"} if code == "unavailable" else None
    return JSONResponse(body, status_code=status, media_type="application/problem+json", headers=headers)


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI responses for problems, by status."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, title = _TITLES[code]
        found[status] = {"description": title, "content": {"application/problem+json": {}}, "model": Problem}
    return found


def add_problem_responses(app: FastAPI) -> None:
    """Answer every mistake of a client with a problem."""

    async def refused(_request: Request, error: Exception) -> JSONResponse:
        return problem(_CODES[type(error)], str(error))

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        found = error.errors()
        fields = [FieldProblem(at=".".join(map(str, item["loc"])), message=str(item["msg"])) for item in found]
        code = "malformed" if any(item["type"] == "json_invalid" for item in found) else "invalid"
        return problem(code, f"{fields[0].at}: {fields[0].message}", fields)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "malformed")
        detail = {
            "not-found": f"there is nothing at {request.url.path}",
            "method-not-allowed": f"{request.method} is not possible here",
        }.get(code, "the body is not as documented: send JSON in UTF-8")
        response = problem(code, detail)
        response.headers.update(error.headers or {})
        return response

    for kind in _CODES:
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


class BodyLimit:
    """Refuses bodies of more than 64 KiB before anything holds them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        first: Message = {"type": "http.request", "body": b"", "more_body": True}
        if not length.isdigit():  # chunked: read it whole, as far as it may go
            body = bytearray()
            while first.get("more_body", False) and len(body) <= BODY_LIMIT_BYTES:
                first = await receive()
                body += first.get("body", b"")
            first = {"type": "http.request", "body": bytes(body), "more_body": False}
        if len(first["body"]) > BODY_LIMIT_BYTES or (length.isdigit() and int(length) > BODY_LIMIT_BYTES):
            await problem("too-large", f"the body is larger than {BODY_LIMIT_BYTES} bytes")(scope, receive, send)
        elif length.isdigit():
            await self._app(scope, receive, send)
        else:
            waiting = [first]

            async def replayed() -> Message:
                return waiting.pop() if waiting else await receive()

            await self._app(scope, replayed, send)


__all__ = ["BodyLimit", "FieldProblem", "Problem", "add_problem_responses", "documented", "problem"]
