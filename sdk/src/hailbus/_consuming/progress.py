"""The partitions of a member: what is settled of each, what may be committed, and how long its head has waited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

from hailbus._consuming.work import Ending, Item, Part
from hailbus._transport import Received, TopicPartition
from hailbus.clock import Clock
from hailbus.settlement import SettledPrefix
from hailbus.subscription import SubscriberSettings, SubscriberStats

__all__ = ["Heads", "Partitions", "count"]


def count(stats: SubscriberStats, ending: Ending, times: int = 1) -> None:
    """Count records that have ended."""
    setattr(stats, ending.value, getattr(stats, ending.value) + times)


class Heads:
    """For how long the first unsettled record of each partition has made no progress."""

    def __init__(self) -> None:
        self._heads: dict[TopicPartition, tuple[int, float]] = {}

    def look(self, partition: TopicPartition, offset: int | None) -> None:
        """Note the first unsettled offset of a partition; None when nothing waits there."""
        if offset is None:
            self._heads.pop(partition, None)
        else:
            known = self._heads.get(partition)
            if known is None or known[0] != offset:
                self._heads[partition] = (offset, asyncio.get_running_loop().time())

    def attempted(self, partition: TopicPartition, offset: int, wait_s: float) -> None:
        """A record was tried and will be tried again after a delay: that is progress until then."""
        known = self._heads.get(partition)
        if known is None or known[0] == offset:
            self._heads[partition] = (offset, asyncio.get_running_loop().time() + wait_s)

    def follower_attempted(self, partition: TopicPartition, wait_s: float) -> None:
        """A parked event was tried that follows the head, and will be tried again after a delay: progress as well."""
        known = self._heads.get(partition)
        if known is not None:
            self._heads[partition] = (known[0], asyncio.get_running_loop().time() + wait_s)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is gone."""
        self._heads.pop(partition, None)

    def stalled(self, after_s: float) -> list[tuple[TopicPartition, int, float]]:
        """Partitions whose head made no progress for longer than this: the head's offset, and seconds."""
        now_s = asyncio.get_running_loop().time()
        return [
            (partition, offset, now_s - since_s)
            for partition, (offset, since_s) in sorted(self._heads.items())
            if now_s - since_s > after_s
        ]


class Partitions:
    """Settled prefixes of the partitions that a member holds."""

    def __init__(
        self,
        *,
        stats: SubscriberStats,
        settings: SubscriberSettings,
        clock: Clock,
        resume: Callable[[TopicPartition], None],
    ) -> None:
        self.prefixes: dict[TopicPartition, SettledPrefix] = {}
        self.spread: set[TopicPartition] = set()
        """Partitions that are not read because too much is held back from commit."""
        self.room_wanted = False
        self.commit_wanted = asyncio.Event()
        self.done_at_commit = 0
        self._room = asyncio.Event()
        self._stats = stats
        self._settings = settings
        self._clock = clock
        self._resume = resume
        self._reads: dict[TopicPartition, deque[tuple[int, int]]] = {}
        """Last offset and first timestamp of each read that is not settled."""
        self.heads = Heads()

    # -------------------------------------------------------------------------------------------- coming and going

    def add(self, partition: TopicPartition) -> None:
        """A partition was assigned: it begins with an empty prefix."""
        self.prefixes[partition] = SettledPrefix()

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions are gone; what settles later counts for nothing."""
        for partition in partitions:
            prefix = self.prefixes.pop(partition, None)
            if prefix is not None:
                prefix.closed = True
            self._reads.pop(partition, None)
            self.spread.discard(partition)
            self.heads.forget(partition)
        self._room.set()

    def received(self, partition: TopicPartition, prefix: SettledPrefix, records: Sequence[Received]) -> bool:
        """Note records that were read; return whether the partition should pause, because too much is held back."""
        prefix.received_all([record.offset for record in records])
        self._reads.setdefault(partition, deque()).append((records[-1].offset, records[0].timestamp))
        self._stats.received += len(records)
        if prefix.spread < self._settings.max_spread or partition in self.spread:
            return False
        self.spread.add(partition)
        return True

    # -------------------------------------------------------------------------------------------- settling

    def end(self, item: Item, ending: Ending) -> None:
        """A record has ended; does nothing when its partition has gone meanwhile."""
        prefix = item.prefix
        if prefix.closed:
            return
        prefix.settled(item.record.offset)
        count(self._stats, ending)
        if self.room_wanted or self.spread:
            self.make_room(item.partition, prefix)
        self.note_progress()

    def end_all(self, parts: Sequence[Part], ending: Ending) -> None:
        """Many records have ended in the same way."""
        for part in parts:
            if not part.prefix.closed:
                part.prefix.settled_all([record.offset for record in part.records])
                count(self._stats, ending, len(part.records))
        if self.room_wanted or self.spread:
            for partition, prefix in {part.partition: part.prefix for part in parts}.items():
                self.make_room(partition, prefix)
        self.note_progress()

    def make_room(self, partition: TopicPartition, prefix: SettledPrefix) -> None:
        """A record has settled while reading waits for room."""
        if self.room_wanted and self.unsettled_count <= self._settings.max_buffered // 2:
            self._room.set()
        if partition in self.spread and prefix.spread <= self._settings.max_spread // 2:
            self.spread.discard(partition)
            self._resume(partition)

    def note_progress(self) -> None:
        """Ask for a commit when enough has settled since the last one."""
        if self._stats.done - self.done_at_commit >= self._settings.commit_every:
            self.commit_wanted.set()

    async def until_room(self, *, reads: int = 1) -> int:
        """Wait until records may be read; how many: as many as so many usual reads take, and there is room for."""
        settings = self._settings
        while (room := settings.max_buffered - self.unsettled_count) <= 0:
            # Half empty before reading continues, so that a slow handler does not cause tiny reads.
            self._room.clear()
            self.room_wanted = True
            try:
                async with asyncio.timeout(1.0):
                    await self._room.wait()
            except TimeoutError:
                pass
            finally:
                self.room_wanted = False
        return min(reads * settings.poll_records, room)

    # -------------------------------------------------------------------------------------------- looking

    @property
    def unsettled_count(self) -> int:
        """Records read and not settled."""
        return sum([prefix.unsettled_count for prefix in self.prefixes.values()])

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not settled, in seconds; 0 when there is none."""
        self.look()
        oldest = [reads[0][1] for reads in self._reads.values() if reads]
        return max(self._clock().timestamp() - min(oldest) / 1000, 0.0) if oldest else 0.0

    def look(self) -> None:
        """Forget settled reads, and note the head of each partition."""
        for partition, prefix in self.prefixes.items():
            first = prefix.first_unsettled
            self.heads.look(partition, first)
            reads = self._reads.get(partition)
            while reads and (first is None or reads[0][0] < first):
                reads.popleft()
