"""Producer ids of this broker, taken from blocks that the controller gives out (KIP-730)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

WAIT_S: Final = 2.0
"""A request waits no longer for a block; its client asks again."""
PREFETCH: Final = 0.9
"""The share of the current block after whose use the next one is requested, as in Apache Kafka."""


class ProducerIds:
    """Gives producer ids out, each once.

    Args:
        allocate: Takes a block; returns its first id and its length.
        spawn: Runs something beside the requests.
    """

    def __init__(
        self,
        allocate: Callable[[], Awaitable[tuple[int, int]]],
        spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]],
    ) -> None:
        self._allocate: Final = allocate
        self._spawn: Final = spawn
        self._next = 0
        self._end = 0
        self._prefetch_at = 0
        self._following: tuple[int, int] | None = None
        self._request: asyncio.Task[None] | None = None

    async def reserve(self) -> None:
        """Make sure that `take` has an id.

        Raises:
            ApiError: COORDINATOR_LOAD_IN_PROGRESS, as in Apache Kafka: no controller has given out a block in time.
                Clients ask again.
            StorageError: The metadata log failed.
        """
        if self._next < self._end:
            if self._next >= self._prefetch_at and self._following is None:
                self._ask()
            return
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._has_next():
                    await asyncio.shield(self._ask())
        except TimeoutError:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "No controller has given out producer ids in time."
            ) from None

    def take(self) -> int:
        """Return a producer id that nobody has; one was reserved before."""
        assert self._has_next(), "no producer id was reserved"
        self._next += 1
        return self._next - 1

    def _has_next(self) -> bool:
        if self._next == self._end and self._following is not None:
            self._next, length = self._following
            self._end = self._next + length
            self._prefetch_at = self._next + int(length * PREFETCH)
            self._following = None
        return self._next < self._end

    def _ask(self) -> asyncio.Task[None]:
        if self._request is None or self._request.done():
            self._request = self._spawn(self._take_block(), "producer-ids")
            self._request.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # the next one asks again
        return self._request

    async def _take_block(self) -> None:
        self._following = await self._allocate()
