"""Offset commits: regularly, of the contiguous settled prefix only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from hailbus._consuming.failure import reason_of
from hailbus._consuming.progress import Partitions
from hailbus._transport import Consumer, TopicPartition
from hailbus.subscription import SubscriberSettings, SubscriberStats

__all__ = ["Committer"]

log = logging.getLogger("hailbus.subscriber")


class Committer:
    """Commits what has settled on the partitions of a member."""

    def __init__(
        self,
        group: str,
        *,
        partitions: Partitions,
        consumer: Callable[[], Consumer | None],
        stats: SubscriberStats,
        settings: SubscriberSettings,
    ) -> None:
        self._group = group
        self._partitions = partitions
        self._consumer = consumer
        self._stats = stats
        self._settings = settings
        self._committed: dict[TopicPartition, int] = {}
        self._lock = asyncio.Lock()
        self._failing_since_s: float | None = None
        self._failure = ""

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self.until_due()
            await self.commit()

    async def until_due(self) -> None:
        """Wait for the interval, or until enough has settled."""
        wanted = self._partitions.commit_wanted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.commit_interval.total_seconds()):
                await wanted.wait()
        wanted.clear()
        self._partitions.look()

    async def commit(self, partitions: frozenset[TopicPartition] | None = None) -> None:
        """Commit what has settled on some partitions, or on all; a failure is noted, and the next commit covers it."""
        async with self._lock:
            offsets: dict[TopicPartition, int] = {}
            for partition, prefix in self._partitions.prefixes.items():
                if partitions is not None and partition not in partitions:
                    continue
                committable = prefix.committable
                if committable is not None and committable > self._committed.get(partition, -1):
                    offsets[partition] = committable
            self._partitions.done_at_commit = self._stats.done
            consumer = self._consumer()
            if not offsets or consumer is None:
                return
            if await self._try(consumer, offsets):
                for partition, offset in offsets.items():
                    if partition in self._partitions.prefixes:
                        self._committed[partition] = offset

    async def commit_now(self, offsets: dict[TopicPartition, int]) -> bool:
        """Commit offsets whose records have not been handled; whether it was done."""
        consumer = self._consumer()
        if consumer is None or not await self._try(consumer, offsets):
            return False
        self._committed.update(offsets)
        return True

    async def _try(self, consumer: Consumer, offsets: dict[TopicPartition, int]) -> bool:
        failure = "the coordinator refuses or does not answer"
        try:
            is_done = await consumer.commit(offsets)
        except Exception as error:  # noqa: BLE001 whatever it is, nothing was committed and the next one covers it
            is_done, failure = False, reason_of(error)
        if is_done:
            self._stats.committed += 1
            self._succeeded()
        else:
            self._failed(failure)
        return is_done

    def _succeeded(self) -> None:
        if self._failing_since_s is not None:
            log.info("commits_work_again: group %s", self._group)
            self._failing_since_s = None

    def _failed(self, failure: str) -> None:
        self._failure = failure
        if self._failing_since_s is None:
            self._failing_since_s = asyncio.get_running_loop().time()
            log.warning("commit_failed: group %s, the next commit covers it: %s", self._group, failure)

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget partitions that are gone, or whose log was created again."""
        for partition in partitions:
            self._committed.pop(partition, None)

    def reasons(self, *, after_s: float) -> list[str]:
        """Why this member is unhealthy: commits that have failed for longer than `after_s`."""
        since_s = self._failing_since_s
        if since_s is None:
            return []
        lasted_s = asyncio.get_running_loop().time() - since_s
        if lasted_s < after_s:
            return []
        return [f"group {self._group} could not commit offsets for {lasted_s:.0f} s: {self._failure}"]
