"""Driver apps share requests: what they report while one batch is on its way goes with the next one."""

from __future__ import annotations

import asyncio
from typing import Any

from hailbus_demo.city.plan import to_text
from hailbus_demo.replay.sure import GaveUpError, SureClient
from hailbus_demo.replay.tokens import FLEET

LARGEST_BATCH = 500


class DriverUpdates:
    """Sends driver updates to booking's `POST /driver-updates`, one batch at a time, in the order of their calls.

    Waiting callers bound the queue: each has at most one update in it.
    """

    def __init__(self, booking: SureClient, *, prefix: str) -> None:
        self.booking = booking
        self.prefix = prefix
        self.batches = 0
        self._queue: list[tuple[dict[str, Any], asyncio.Future[tuple[int, Any]]]] = []
        self._sender: asyncio.Task[None] | None = None

    async def send(self, update: dict[str, Any], at_ms: int) -> tuple[int, Any]:  # Any: JSON
        """Send one update that happened at an event time; return status and body of its own result."""
        answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        self._queue.append(({**update, "event_time": to_text(at_ms)}, answer))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        await asyncio.sleep(0)  # let the actions of the same moment join
        while self._queue:
            batch, self._queue = self._queue[:LARGEST_BATCH], self._queue[LARGEST_BATCH:]
            self.batches += 1
            key = f"{self.prefix}:updates:{self.batches}"
            latest = max(update["event_time"] for update, _ in batch)
            try:
                status, body = await self.booking.post(
                    "/driver-updates",
                    {"updates": [update for update, _ in batch]},
                    key=key,
                    event_time=latest,
                    by=FLEET,
                )
                if status != 200:
                    raise GaveUpError(f"booking refused a batch of driver updates with {status}: {body}")
                results = [(result["status"], result["body"]) for result in body["results"]]
                assert len(results) == len(batch), (len(results), len(batch))
            except BaseException as error:  # every waiting caller must hear of it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, answer), result in zip(batch, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
