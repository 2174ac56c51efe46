"""Server-side assignors of the consumer protocol (KIP-848): who gets which partitions.

Both are pure functions of the members, their subscriptions and the topics; what members have now only decides between
results that are equally good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from hailbus_broker.protocol.schema import Uuid

Assignment: TypeAlias = Mapping["Uuid", frozenset[int]]
"""Partitions by topic id; topics without partitions are left out."""


def assign_uniform(
    subscriptions: Mapping[str, frozenset[Uuid]],
    partition_counts: Mapping[Uuid, int],
    current: Mapping[str, Assignment],
    names: Mapping[str, str],
) -> dict[str, Assignment]:
    """Give every member the same number of partitions, as far as subscriptions allow, and move as few as possible.

    Args:
        subscriptions: Topics by member.
        partition_counts: Partitions of each topic.
        current: What members were assigned last.
        names: What members are ordered by: the instance id of a static one, else the member id.
    """
    members = sorted(subscriptions, key=names.__getitem__)
    owned: dict[str, set[tuple[Uuid, int]]] = {}
    taken: set[tuple[Uuid, int]] = set()
    for member in members:
        topics = subscriptions[member]
        kept = {
            (topic, partition)
            for topic, partitions in current.get(member, {}).items()
            if topic in topics
            for partition in partitions
            if partition < partition_counts.get(topic, 0)
        }
        kept -= taken
        taken |= kept
        owned[member] = kept
    wanted = sorted({topic for topics in set(subscriptions.values()) for topic in topics})
    candidates = _Candidates(owned, members, subscriptions)
    for topic in wanted:
        for partition in range(partition_counts.get(topic, 0)):
            place = topic, partition
            if place not in taken:
                owned[candidates.with_least(topic)].add(place)
    _balance(owned, candidates)
    return {member: _grouped(places, current.get(member)) for member, places in owned.items()}


class _Candidates:
    """Finds who has the fewest partitions among the subscribers of a topic, in logarithmic time.

    Topics with the same subscribers share a heap of counts and names, made at the first question. An entry may be out
    of date: a lower count than the member's is corrected when the entry comes to the top, so that only a member that
    loses a partition has to be noted, by `lost`.

    Args:
        owned: The partitions of each member; read again with each question.
        members: All members, in order.
        subscriptions: Topics by member.
    """

    def __init__(
        self,
        owned: Mapping[str, set[tuple[Uuid, int]]],
        members: Sequence[str],
        subscriptions: Mapping[str, frozenset[Uuid]],
    ) -> None:
        self._owned: Final = owned
        self._members: Final = members
        self._subscriptions: Final = subscriptions
        self._shared: Final[dict[frozenset[str], list[tuple[int, str]]]] = {}
        self._heaps: Final[dict[Uuid, list[tuple[int, str]]]] = {}

    def with_least(self, topic: Uuid) -> str:
        """Return the subscriber with the fewest partitions; among equals the first one by name."""
        heap = self._heaps.get(topic)
        if heap is None:
            heap = self._heaps[topic] = self._heap_of(topic)
        while True:
            count, name = heap[0]
            actual = len(self._owned[name])
            if actual == count:
                return name
            heapreplace(heap, (actual, name))

    def _heap_of(self, topic: Uuid) -> list[tuple[int, str]]:
        names = frozenset(member for member in self._members if topic in self._subscriptions[member])
        heap = self._shared.get(names)
        if heap is None:
            heap = self._shared[names] = [(len(self._owned[name]), name) for name in names]
            heapify(heap)
        return heap

    def lost(self, name: str) -> None:
        """Note that a member has fewer partitions than before."""
        entry = len(self._owned[name]), name
        for names, heap in self._shared.items():
            if name in names:
                heappush(heap, entry)


def _balance(owned: dict[str, set[tuple[Uuid, int]]], candidates: _Candidates) -> None:
    """Move partitions from those who have most, as long as that evens the numbers out."""
    is_moving = True
    while is_moving:
        is_moving = False
        least = min(map(len, owned.values()), default=0)
        givers = [name for name, places in owned.items() if len(places) > least + 1]  # nobody takes from the others
        for giver in sorted(givers, key=lambda name: (-len(owned[name]), name)):
            for place in sorted(owned[giver], reverse=True):
                taker = candidates.with_least(place[0])
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[giver].discard(place)
                    owned[taker].add(place)
                    candidates.lost(giver)
                    is_moving = True


def assign_range(
    subscriptions: Mapping[str, frozenset[Uuid]],
    partition_counts: Mapping[Uuid, int],
    current: Mapping[str, Assignment],  # noqa: ARG001 - the same shape as the other assignor
    names: Mapping[str, str],
) -> dict[str, Assignment]:
    """Give each member neighbouring partitions of each topic: equal numbers of different topics go to the same member.

    Args:
        subscriptions: Topics by member.
        partition_counts: Partitions of each topic.
        current: Not used: the result depends on the members only.
        names: What members are ordered by: the instance id of a static one, else the member id.
    """
    owned: dict[str, set[tuple[Uuid, int]]] = {member: set() for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = sorted(
            (member for member in subscriptions if topic in subscriptions[member]), key=lambda member: names[member]
        )
        each, extra = divmod(partition_counts.get(topic, 0), len(members))
        start = 0
        for number, member in enumerate(members):
            count = each + (1 if number < extra else 0)
            owned[member].update((topic, partition) for partition in range(start, start + count))
            start += count
    return {member: _grouped(places, None) for member, places in owned.items()}


def _grouped(places: set[tuple[Uuid, int]], before: Assignment | None) -> Assignment:
    """Return partitions by topic; if they are those of the assignment before, that."""
    if before is not None and sum(map(len, before.values())) == len(places) and all(before.values()):
        for topic, partitions in before.items():
            if not all((topic, partition) in places for partition in partitions):
                break
        else:
            return before
    topics: dict[Uuid, set[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, set()).add(partition)
    return {topic: frozenset(partitions) for topic, partitions in topics.items()}


ASSIGNORS: Final[
    dict[
        str,
        Callable[
            [Mapping[str, frozenset[bytes]], Mapping[bytes, int], Mapping[str, Assignment], Mapping[str, str]],
            dict[str, Assignment],
        ],
    ]
] = {"uniform": assign_uniform, "range": assign_range}
