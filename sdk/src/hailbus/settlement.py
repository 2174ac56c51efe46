"""The settlement core: contiguous settled prefixes and key lanes. Plain state, no I/O, no clock, no tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from hailbus._transport import TopicPartition

__all__ = ["Lane", "Lanes", "Names", "SettledPrefix"]

ItemT = TypeVar("ItemT")


class SettledPrefix:
    """What of one partition may be committed: everything below the first record that is not settled.

    Offsets may have gaps (compaction, transaction markers): what was never received is never waited for.

    Settling notes the offset alone, as it is done for each record; what follows from it is worked out when somebody
    asks, once for many records.
    """

    __slots__ = ("_noted", "_pending", "_position", "_settled", "closed", "settled", "settled_all")

    def __init__(self) -> None:
        self._pending: deque[int] = deque()
        self._settled: set[int] = set()
        self._noted: list[int] = []
        self._position: int | None = None
        self.closed = False
        """Set when the partition is gone; what settles later counts for nothing."""
        self.settled: Callable[[int], None] = self._noted.append
        """Settle a received record, in any order."""
        self.settled_all: Callable[[list[int]], None] = self._noted.extend
        """Settle several received records, in any order."""

    @property
    def position(self) -> int | None:
        """The offset after the last record received; None before the first."""
        return self._position

    def unsettled(self) -> set[int]:
        """The offsets of all records received and not settled."""
        return set(self._unsettled()) - self._settled

    def received(self, offset: int) -> None:
        """A record came; offsets only grow."""
        self.received_all([offset])

    def received_all(self, offsets: list[int]) -> None:
        """Several records came, in the order of their offsets."""
        assert self._position is None or offsets[0] >= self._position, (offsets[0], self._position)
        self._pending.extend(offsets)
        self._position = offsets[-1] + 1

    def _unsettled(self) -> deque[int]:
        """The received records from the first one that is not settled."""
        pending, settled, noted = self._pending, self._settled, self._noted
        if noted:
            for offset in noted:
                if pending and pending[0] == offset:
                    pending.popleft()
                else:
                    settled.add(offset)
            noted.clear()
            while settled and pending and pending[0] in settled:
                settled.remove(pending.popleft())
        return pending

    @property
    def unsettled_count(self) -> int:
        """Records received and not settled."""
        return len(self._unsettled()) - len(self._settled)

    @property
    def spread(self) -> int:
        """Records held back from commit, the first unsettled one included."""
        return len(self._unsettled())

    @property
    def first_unsettled(self) -> int | None:
        """Offset of the first record that is not settled."""
        pending = self._unsettled()
        return pending[0] if pending else None

    @property
    def committable(self) -> int | None:
        """The offset to commit: the next one to read after a restart. None before the first record."""
        pending = self._unsettled()
        return pending[0] if pending else self._position


class Lane(Generic[ItemT]):
    """Records that must be handled one after the other, oldest first."""

    __slots__ = ("dropped", "items", "name", "partition", "waiting")

    def __init__(self, partition: TopicPartition, name: object) -> None:
        self.partition = partition
        self.name = name
        self.items: deque[ItemT] = deque()
        self.waiting = False
        """True while a retry delay runs."""
        self.dropped = False
        """True once the partition is gone: the lane's runner stops and settles nothing."""


Names = dict[object, Lane[ItemT] | None]
"""The lanes of one partition by name; None stands for a record that is handled without a lane, as it met none."""


class Lanes(Generic[ItemT]):
    """All lanes of one subscriber. At any time a lane is in one place only: ready, running, or waiting.

    `take` hands a lane to one runner, who gives it back by `release` or `delay`: that is why handlers of one key never
    overlap. A record whose name nobody uses needs no lane: its runner writes the name down with None in `names`, and
    takes it out when it ends. Records of that name which come meanwhile wait in a lane, which `follow` makes ready.
    """

    __slots__ = ("_names", "held", "item_count", "ready", "running_count")

    def __init__(self) -> None:
        self._names: dict[TopicPartition, Names[ItemT]] = {}
        self.ready: deque[Lane[ItemT]] = deque()
        """Lanes that could run now, unless their partition is held. Others may look whether there are some."""
        self.held: dict[TopicPartition, list[Lane[ItemT]]] = {}
        """Ready lanes of partitions that are held."""
        self.item_count = 0
        self.running_count = 0

    def names(self, partition: TopicPartition) -> Names[ItemT]:
        """The names in use of one partition; the same mapping until the partition is dropped."""
        found = self._names.get(partition)
        if found is None:
            found = self._names[partition] = {}
        return found

    def push(self, partition: TopicPartition, name: object, item: ItemT) -> None:
        """Add a record behind those of the same partition and name."""
        names = self.names(partition)
        lane = names.get(name)
        if lane is None:
            is_busy = name in names
            lane = names[name] = Lane(partition, name)
            if not is_busy:
                self.ready.append(lane)
        lane.items.append(item)
        self.item_count += 1

    def take(self) -> Lane[ItemT] | None:
        """A lane to run, never empty; None when none is ready."""
        ready = self.ready
        while ready:
            lane = ready.popleft()
            if lane.dropped:
                continue
            if self.held and lane.partition in self.held:
                self.held[lane.partition].append(lane)
                continue
            self.running_count += 1
            return lane
        return None

    def hold(self, partition: TopicPartition) -> None:
        """Hand out no lanes of a partition until `unhold`."""
        self.held.setdefault(partition, [])

    def unhold(self, partition: TopicPartition) -> None:
        """Hand out the lanes of a partition again."""
        self.ready.extend(self.held.pop(partition, ()))

    def is_held(self, partition: TopicPartition) -> bool:
        """Whether the lanes of a partition are held."""
        return partition in self.held

    def follow(self, names: Names[ItemT], lane: Lane[ItemT]) -> None:
        """Let the records run that came while one of their name ran without a lane; its name is no longer in use."""
        names[lane.name] = lane
        self.ready.append(lane)

    def adopt(self, partition: TopicPartition, names: Names[ItemT], name: object, item: ItemT) -> Lane[ItemT]:
        """Turn a run without a lane into a running lane with its record at the front."""
        lane = names.get(name)
        if lane is None:
            lane = Lane(partition, name)
            if self._names.get(partition) is names:
                names[name] = lane
            else:
                lane.dropped = True
        self.running_count += 1
        if not lane.dropped:
            lane.items.appendleft(item)
            self.item_count += 1
        return lane

    def finish(self, lane: Lane[ItemT]) -> None:
        """Remove the oldest record of a running lane."""
        if not lane.dropped:
            lane.items.popleft()
            self.item_count -= 1

    def release(self, lane: Lane[ItemT]) -> None:
        """Give a running lane back: to the end of the ready ones, or away if it is empty."""
        self.running_count -= 1
        if lane.dropped:
            return
        if lane.items:
            self.ready.append(lane)
        else:
            del self._names[lane.partition][lane.name]

    def delay(self, lane: Lane[ItemT]) -> None:
        """Give a running lane back, to wait for `wake`."""
        self.running_count -= 1
        lane.waiting = True

    def wake(self, lane: Lane[ItemT]) -> None:
        """The delay is over."""
        if lane.waiting and not lane.dropped:
            lane.waiting = False
            self.ready.append(lane)

    def drop(self, partition: TopicPartition) -> list[Lane[ItemT]]:
        """Forget all lanes of a partition; returns them. Running ones are marked, so that they settle nothing."""
        names = self._names.pop(partition, {})
        if partition in self.held:
            self.held[partition] = []
        gone = [lane for lane in names.values() if lane is not None]
        names.clear()
        for lane in gone:
            lane.dropped = True
            self.item_count -= len(lane.items)
            lane.items = deque()
        return gone
