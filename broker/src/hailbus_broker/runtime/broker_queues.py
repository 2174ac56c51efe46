"""A queue to each other broker, with one request under way at a time that takes what has queued up meanwhile."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from hailbus_broker.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hailbus_broker.runtime.coordinator import Spawn

log: Any = get_logger()

Item = TypeVar("Item")


class BrokerQueues(Generic[Item]):
    """Sends items to brokers in batches.

    Each item belongs to a request in work, so the requests bound the queues.

    Args:
        send: Sends some of the items to a broker and returns when each of them has its answer. It takes them out of the
            queue, at least one. It raises nothing.
        spawn: Runs the sending beside the requests.
        name: Of the tasks.
    """

    def __init__(self, send: Callable[[int, deque[Item]], Awaitable[None]], spawn: Spawn, name: str) -> None:
        self._send: Final = send
        self._spawn: Final = spawn
        self._name: Final = name
        self._queues: Final[dict[int, deque[Item]]] = {}

    def put(self, broker_id: int, item: Item) -> None:
        """Send an item with the next request to a broker."""
        queue = self._queues.get(broker_id)
        if queue is not None:
            queue.append(item)
            return
        self._queues[broker_id] = deque([item])
        self._spawn(self._run(broker_id), f"{self._name}-{broker_id}")

    async def _run(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        try:
            while queue:
                await self._send(broker_id, queue)
        finally:
            del self._queues[broker_id]
