"""HTTP to the process of one region: kept-alive connections, and a bound on the requests that wait for it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from booking.domain.region import Region

CONNECT_WITHIN_S: Final = 2.0
KEPT_ALIVE_S: Final = 4.0
"""Shorter than uvicorn's five seconds, so that a connection is not closed at the moment at which it is used again."""
Headers = Sequence[tuple[str, str]]


class UnreachableError(Exception):
    """A region's process gave no answer: it may or may not have done the request."""

    def __init__(self, region: str, reason: str) -> None:
        self.region = region
        self.reason = reason
        super().__init__(f"region {region} does not answer: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a region answered."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class Regional(Protocol):
    """The process of a region."""

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> Reply:
        """Send a request to a path with its query and return the answer, whatever its status.

        Raises:
            UnreachableError: There is none.
        """


class RegionClient:
    """The process of a region over HTTP.

    Args:
        region: Its region.
        in_flight: How many requests may be under way. Another one is refused at once, so that a region that hangs holds
            no more than these.
        answer_within_s: How long an answer may take.
    """

    def __init__(self, region: Region, *, in_flight: int, answer_within_s: float) -> None:
        self.region = region
        self._limit = in_flight
        self._in_flight = 0
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=in_flight, keepalive_timeout=KEPT_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=answer_within_s, sock_connect=CONNECT_WITHIN_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> Reply:
        """Do as the port says."""
        if self._in_flight >= self._limit:
            raise UnreachableError(self.region.name, f"{self._limit} requests are under way already")
        self._in_flight += 1
        try:
            async with self._session.request(
                method,
                URL(self.region.address + target, encoded=True),
                headers=CIMultiDict(headers),
                data=body or None,
                allow_redirects=False,
            ) as answer:
                return Reply(status=answer.status, headers=answer.raw_headers, body=await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnreachableError(self.region.name, str(error) or type(error).__name__) from error
        finally:
            self._in_flight -= 1

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
        await asyncio.sleep(0)  # aiohttp closes its transports in callbacks


__all__ = ["Headers", "RegionClient", "Regional", "Reply", "UnreachableError"]
