"""Passes the page's clicks on faults to the demo's launcher, which owns the processes."""

import asyncio
import json
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

Json = dict[str, Any]  # Any: JSON
_PATIENCE_S: Final = 5.0
_OPENER: Final = build_opener(ProxyHandler({}))
"""Never by a proxy: the launcher is on this machine, and the token is for it alone."""
NO_FAULTS: Final = "nobody offers faults here: `uv run demo` does, without --chaos, --outage and --sabotage"


class FaultsApi:
    """Asks the launcher.

    Args:
        url: Where it listens.
        token: What it wants to see.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def show(self) -> tuple[int, Json]:
        """Return the launcher's status and all faults, or why there are none."""
        return await self._ask("GET", "/faults")

    async def begin(self, fault_id: str) -> tuple[int, Json]:
        """Begin a fault; return the launcher's status and all faults, or why it refuses."""
        return await self._ask("POST", f"/faults/{quote(fault_id, safe='')}")

    async def load(self, factor: float) -> tuple[int, Json]:
        """Set the factor of the demand; return the launcher's status and all faults, or why it refuses."""
        return await self._ask("POST", f"/load/{factor:g}")

    async def _ask(self, method: str, path: str) -> tuple[int, Json]:
        # The scheme is checked by the settings.
        request = Request(self._url + path, method=method, headers=self._headers)  # noqa: S310
        return await asyncio.to_thread(_fetch, request)


def _fetch(request: Request) -> tuple[int, Json]:
    try:
        with _OPENER.open(request, timeout=_PATIENCE_S) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        try:
            return error.code, json.load(error)
        except ValueError:
            detail = f"the demo's launcher answers {error.code}"
    except (URLError, OSError, ValueError) as error:
        detail = f"the demo's launcher does not answer: {getattr(error, 'reason', error)}"
    return 503, {"type": "about:blank", "title": "No launcher", "status": 503, "detail": detail}


__all__ = ["NO_FAULTS", "FaultsApi"]
