"""The desk over HTTP on loopback: `GET /faults`, `POST /faults/{id}` and `POST /load/{factor}`, for a token's holder.

It has no framework: three routes without a body need none, and the launcher stays as light as its load generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import httptools

from hailbus_demo.supervise.ports import HOST
from hailbus_demo.tray.desk import FaultRefusedError, UnknownFaultError

LONGEST_HEAD_BYTES: Final = 16_384
REQUEST_WITHIN_S: Final = 5.0
_REASONS: Final = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
}
Json = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the dashboard reaches the desk."""

    url: str
    token: str


class FaultServer:
    """Serves the desk.

    Args:
        show: Returns all faults.
        begin: Begins one; raises `UnknownFaultError` or `FaultRefusedError`.
        load: Sets the factor of the demand; raises `FaultRefusedError`.
    """

    def __init__(
        self, *, show: Callable[[], Json], begin: Callable[[str], None], load: Callable[[float], None]
    ) -> None:
        self.token: Final = secrets.token_urlsafe(32)
        self._show = show
        self._begin = begin
        self._load = load
        self._server: asyncio.Server | None = None

    async def start(self) -> Access:
        """Listen on a free port of loopback; return address and token."""
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=LONGEST_HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return Access(url=f"http://{HOST}:{port}", token=self.token)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def answer(self, method: str, path: str, authorization: str) -> tuple[int, Json]:
        """Return status and body."""
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.token}".encode()):
            return _problem(401, "the token is missing or wrong: only the dashboard of this run has it")
        what, _, name = path.removeprefix("/").partition("/")
        if path != "/faults" and (what not in ("faults", "load") or not name):
            return _problem(404, f"there is nothing at {path}")
        if method != ("POST" if name else "GET"):
            return _problem(
                405, "GET /faults lists the faults, POST /faults/ID begins one, POST /load/FACTOR sets the load"
            )
        if not name:
            return 200, self._show()
        try:
            if what == "load":
                self._load(float(unquote(name)))
            else:
                self._begin(unquote(name))
        except UnknownFaultError as error:
            return _problem(404, str(error))
        except ValueError:
            return _problem(404, f"{unquote(name)!r} is no factor of the load: write a number such as 1.5")
        except FaultRefusedError as error:
            return _problem(409, str(error))
        return 202, self._show()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = _Request()
        parser = httptools.HttpRequestParser(request)
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                parser.feed_data(await reader.readuntil(b"\r\n\r\n"))
            status, body = self.answer(
                parser.get_method().decode(), request.url.decode("ascii", "replace"), request.authorization
            )
        except (httptools.HttpParserError, asyncio.LimitOverrunError):
            status, body = _problem(400, "this is no request that the desk understands")
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        content = json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + content)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


class _Request:
    """Collects what the parser finds."""

    def __init__(self) -> None:
        self.url = b""
        self.authorization = ""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self.authorization = value.decode("latin-1")


def _problem(status: int, detail: str) -> tuple[int, Json]:
    return status, {"type": "about:blank", "title": _REASONS[status], "status": status, "detail": detail}


__all__ = ["Access", "FaultServer"]
