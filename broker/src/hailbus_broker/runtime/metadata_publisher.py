"""Hands committed metadata to everything that acts on it, in one order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import Offset

log: Any = get_logger()


class Subscriber(Protocol):
    """Something that acts on committed metadata."""

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Act on a change; `image` has it already. The next change comes when this one has been acted on."""
        ...


class MetadataPublisher:
    """Keeps the committed image, and tells the subscribers of each change.

    Args:
        image: What was committed before.
        end_offset: Where that ends in the log, exclusive.
        subscribers: They receive each change in this order.

    Attributes:
        image: The committed metadata. Nobody else changes it.
        end_offset: Everything below this offset of the metadata log is in the image.
    """

    def __init__(self, image: MetadataImage, end_offset: Offset, subscribers: Sequence[Subscriber]) -> None:
        self.image: Final = image
        self.end_offset = end_offset
        self._subscribers: Final = tuple(subscribers)
        self._queue: Final[deque[tuple[Sequence[Message], Offset, Callable[[], object]]]] = deque()
        self._has_work: Final = asyncio.Event()

    def publish(self, records: Sequence[Message], end_offset: Offset, done: Callable[[], object]) -> None:
        """Take in records that are committed, and call back when all subscribers have acted on them."""
        self._queue.append((records, end_offset, done))
        self._has_work.set()

    async def run(self) -> None:
        """Publish one commit after another, until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._queue:
                records, end_offset, done = self._queue.popleft()
                delta = self.image.apply(records)
                self.end_offset = end_offset
                for subscriber in self._subscribers:
                    try:
                        await subscriber.apply(delta, self.image)
                    except Exception:
                        log.exception("metadata_not_applied", subscriber=type(subscriber).__name__)
                done()
