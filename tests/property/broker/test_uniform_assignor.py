"""The uniform assignor against its definition, which looks at all members for each partition."""

from __future__ import annotations

import random
from collections import Counter
from typing import ClassVar

import pytest
from hailbus_broker.coordinators.group import assignors
from hailbus_broker.coordinators.group.assignors import Assignment, assign_uniform

TOPICS = [letter.encode() * 16 for letter in "ABCD"]


def plain(
    subscriptions: dict[str, frozenset[bytes]],
    counts: dict[bytes, int],
    current: dict[str, Assignment],
    names: dict[str, str],
) -> dict[str, set[tuple[bytes, int]]]:
    members = sorted(subscriptions, key=lambda member: names[member])
    owned: dict[str, set[tuple[bytes, int]]] = {member: set() for member in members}
    taken: set[tuple[bytes, int]] = set()
    for member in members:
        for topic, partitions in current.get(member, {}).items():
            kept = {(topic, index) for index in partitions if topic in subscriptions[member] and index < counts[topic]}
            owned[member] |= kept - taken
            taken |= kept

    def least(topic: bytes) -> str:
        return min((len(owned[member]), member) for member in members if topic in subscriptions[member])[1]

    wanted = {topic for topics in subscriptions.values() for topic in topics}
    for place in sorted((topic, index) for topic in wanted for index in range(counts[topic])):
        if place not in taken:
            owned[least(place[0])].add(place)
    is_moving = True
    while is_moving:
        is_moving = False
        for giver in sorted(owned, key=lambda member: (-len(owned[member]), member)):
            for place in sorted(owned[giver], reverse=True):
                taker = least(place[0])
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[giver].remove(place)
                    owned[taker].add(place)
                    is_moving = True
    return owned


@pytest.mark.parametrize("seed", range(60))
def test_the_uniform_assignor_gives_what_its_definition_gives(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    current: dict[str, Assignment] = {}
    for _ in range(6):
        members = [f"m{number}" for number in rng.sample(range(20), rng.randint(1, 12))]
        is_uniform = rng.random() < 0.5
        all_of_them = frozenset(rng.sample(TOPICS, rng.randint(1, 4)))
        subscriptions = {
            member: all_of_them if is_uniform else frozenset(rng.sample(TOPICS, rng.randint(0, 4)))
            for member in members
        }
        counts = {topic: rng.randint(0, 25) for topic in TOPICS}
        names = {member: rng.choice([member, f"static-{member}"]) for member in members}
        assigned = assign_uniform(subscriptions, counts, current, names)
        places = {
            member: {(topic, index) for topic, indexes in assignment.items() for index in indexes}
            for member, assignment in assigned.items()
        }
        assert places == plain(subscriptions, counts, current, names)
        current = assigned


def test_the_cost_of_an_assignment_does_not_grow_with_members_times_partitions() -> None:
    class Name(str):
        """A member id that counts how often it is compared."""

        __slots__ = ()
        comparisons: ClassVar[Counter[str]] = Counter()

        def __lt__(self, other: str) -> bool:
            self.comparisons["<"] += 1
            return str.__lt__(self, other)

        def __eq__(self, other: object) -> bool:
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 400
    members: list[str] = [Name(f"m{number:04}") for number in range(count)]
    subscriptions = {member: frozenset(TOPICS[:1]) for member in members}
    names = {member: str(member) for member in members}
    assigned = assign_uniform(subscriptions, {TOPICS[0]: 5 * count}, {}, names)
    assert {len(assignment[TOPICS[0]]) for assignment in assigned.values()} == {5}
    assert Name.comparisons["<"] < 30 * 6 * count, "about the logarithm of the members for each partition, not all"


def test_a_member_that_finds_nothing_free_costs_no_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join to a large group is decided in one turn of the loop: what stays as it is must cost little."""
    monkeypatch.setattr(assignors._Candidates, "_heap_of", lambda *_: pytest.fail("subscribers were compared"))
    current: dict[str, Assignment] = {f"m{number}": {TOPICS[0]: frozenset({number})} for number in range(6)}
    subscriptions = dict.fromkeys([*current, "new"], frozenset(TOPICS[:1]))
    names = {member: member for member in subscriptions}
    target = assign_uniform(subscriptions, {TOPICS[0]: 6}, current, names)
    assert target.pop("new") == {}
    assert list(target) == list(current)
    assert all(target[member] is assignment for member, assignment in current.items())
