"""Hands committed metadata to everything that acts on it, in one order."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from hailbus_broker.cluster.metadata.difference import difference
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataDelta
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import Offset
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

APPLIED_IN_LOOP: Final = 250
"""A thread applies more records than this to a copy of the image: a new partition takes 6 µs."""


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
        threads: Where records are applied that would take long.

    Attributes:
        image: The committed metadata. Nobody else changes it. A snapshot, or a large commit, replaces it.
        end_offset: Everything below this offset of the metadata log is in the image.
        applied_end_offset: And below this one all subscribers have acted on it.
    """

    def __init__(self, image: MetadataImage, end_offset: Offset, threads: Threads) -> None:
        self.image = image
        self.end_offset = end_offset
        self.applied_end_offset = end_offset
        self._threads: Final = threads
        self._subscribers: tuple[Subscriber, ...] = ()
        self._queue: Final[deque[_Commit]] = deque()
        self._has_work: Final = asyncio.Event()

    def subscribe(self, *subscribers: Subscriber) -> None:
        """Tell subscribers of each change from now on, in this order; they know the present image."""
        self._subscribers = subscribers

    def publish(
        self,
        records: Sequence[Message],
        end_offset: Offset,
        done: Callable[[], object],
        *,
        is_snapshot: bool = False,
    ) -> None:
        """Take in records that are committed, and call back when all subscribers have acted on them.

        Args:
            records: What was committed.
            end_offset: Where it ends in the log, exclusive.
            done: Called back.
            is_snapshot: Whether the records are everything, in place of all that came before.
        """
        self._queue.append(_Commit(records, end_offset, done, is_snapshot))
        self._has_work.set()

    async def run(self) -> None:
        """Publish one commit after another, until cancelled."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._queue:
                commit = self._queue.popleft()
                if commit.is_snapshot:
                    self.image, delta = await self._threads.run(partial(_replaced, self.image, commit.records))
                elif len(commit.records) > APPLIED_IN_LOOP:
                    image = self.image.copy()
                    delta = await self._threads.run(partial(image.apply, commit.records))
                    self.image = image
                else:
                    delta = self.image.apply(commit.records)
                # One without records was queued with the end of an earlier moment.
                self.end_offset = self.image.version = max(self.end_offset, commit.end_offset)
                for subscriber in self._subscribers:
                    try:
                        await subscriber.apply(delta, self.image)
                    except Exception:
                        log.exception("metadata_not_applied", subscriber=type(subscriber).__name__)
                self.applied_end_offset = self.end_offset
                commit.done()


def _replaced(before: MetadataImage, records: Sequence[Message]) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image that a snapshot makes, and how it differs from the one before."""
    image = MetadataImage()
    image.apply(records)
    return image, difference(before, image)


class _Commit(NamedTuple):
    """See `MetadataPublisher.publish`."""

    records: Sequence[Message]
    end_offset: Offset
    done: Callable[[], object]
    is_snapshot: bool
