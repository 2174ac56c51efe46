"""Bodies that are too large or no JSON are refused before anything reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hailbus.fastapi.problems import Problems

__all__ = ["BodyGate"]


class BodyGate:
    """ASGI middleware for POST, PUT and PATCH: at most `limit_bytes`, and `application/json` where there is a body."""

    def __init__(self, app: ASGIApp, *, problems: Problems, limit_bytes: int) -> None:
        self._app = app
        self._problems = problems
        self._limit_bytes = limit_bytes
        self._too_large = f"the body is larger than {limit_bytes} bytes"

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
        if length is not None and length > self._limit_bytes:
            await self._problems.response("too-large", self._too_large, instance=scope["path"])(scope, receive, send)
        elif (length or chunked) and media_type != b"application/json":
            shown = media_type.decode("latin-1") or "none"
            detail = f"the body's media type is {shown}; send application/json"
            response = self._problems.response("unsupported-media-type", detail, instance=scope["path"])
            await response(scope, receive, send)
        elif chunked:
            await self._app(scope, self._counted(receive), send)
        else:
            await self._app(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._limit_bytes:
                raise HTTPException(413, self._too_large)  # FastAPI takes any other for broken JSON
            return message

        return counted
