"""The classic group protocol, member by member: what a coordinator answers at each step."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode

from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.wire import RETRIED, Wire, names_of_one_coordinator, wire_to
from tests.servers import FAST_PROPERTIES
from tests.support import wait_for


def subscription(user_data: str) -> bytes:
    """A member's metadata in the embedded protocol of consumers, version 0: no topics, and bytes of its own."""
    return struct.pack(">hii", 0, 0, len(user_data)) + user_data.encode()


MAX_SIZE = int(FAST_PROPERTIES["group.max.size"])


class Member:
    """One member of a group, on a connection of its own, that does what a test says and nothing by itself."""

    def __init__(self, cluster: Cluster, group: str, *, instance: str | None = None, session_ms: int = 10_000) -> None:
        self.wire = Wire(cluster.bootstrap)
        self.group, self.instance, self.session_ms = group, instance, session_ms
        self.id, self.generation, self.leader = "", -1, ""
        self.wire.find_coordinator(group)

    def ask_to_join(
        self, *, rebalance_ms: int = 10_000, protocols: tuple[str, ...] = ("range",), user_data: str | None = None
    ) -> None:
        self.wire.ask(
            ApiKey.JOIN_GROUP,
            7,
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[{"name": name, "metadata": subscription(user_data or name)} for name in protocols],
        )

    def joined(self) -> Any:
        answer = self.wire.answer(ApiKey.JOIN_GROUP, 7)
        if answer.error_code == 0:
            self.generation, self.leader = answer.generation_id, answer.leader
        if answer.member_id:
            self.id = answer.member_id
        return answer

    def join(self, **more: Any) -> Any:
        """Join, and again where the coordinator first gives a member id, or is not ready.

        A member id that was given a moment ago is in the coordinator's memory only: one that has just been loaded does
        not know it, and the member asks for another one, as clients do.
        """
        has_new_id = False
        while True:
            self.ask_to_join(**more)
            answer = self.joined()
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                has_new_id = True
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID and has_new_id:
                self.id, has_new_id = "", False
            elif answer.error_code not in RETRIED:
                return answer

    def take_id(self) -> None:
        """Ask to join and be told a member id only."""
        self.ask_to_join()
        answer = self.joined()
        while answer.error_code in RETRIED:
            self.ask_to_join()
            answer = self.joined()
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, answer

    @property
    def is_leader(self) -> bool:
        return self.id == self.leader

    def ask_to_sync(self, shares: dict[str, bytes] | None = None) -> None:
        self.wire.ask(
            ApiKey.SYNC_GROUP,
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": name, "assignment": data} for name, data in (shares or {}).items()],
        )

    def synced(self) -> Any:
        return self.wire.answer(ApiKey.SYNC_GROUP, 5)

    def sync(self, shares: dict[str, bytes] | None = None) -> Any:
        self.ask_to_sync(shares)
        return self.synced()

    def beat(self, *, generation: int | None = None) -> int:
        answer = self.wire.call(
            ApiKey.HEARTBEAT,
            4,
            group_id=self.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance,
        )
        return int(answer.error_code)

    def leave(self) -> None:
        self.wire.call(
            ApiKey.LEAVE_GROUP, 4, group_id=self.group, members=[{"member_id": self.id, "group_instance_id": None}]
        )

    def commit(self, topic: str, offset: int, *, generation: int | None = None, member: str | None = None) -> int:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        answer = self.wire.call(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id if member is None else member,
            group_instance_id=self.instance,
            topics=[{"name": topic, "partitions": [part]}],
        )
        return int(answer.topics[0].partitions[0].error_code)


NewMember = Callable[..., Member]


@pytest.fixture
def new_member(cluster: Cluster, name: str) -> Iterator[NewMember]:
    members: list[Member] = []

    def make(**more: Any) -> Member:
        members.append(Member(cluster, name, **more))
        return members[-1]

    yield make
    for member in members:
        member.wire.close()


def join_together(*members: Member) -> None:
    """Bring the members into one generation: who is told of a rebalance joins again, as clients do."""
    for member in members:
        if not member.id:
            member.take_id()
    waiting: set[Member] = set()
    ready: set[Member] = set()
    deadline = time.monotonic() + 20
    while len(ready) < len(members) or len({member.generation for member in members}) > 1:
        assert time.monotonic() < deadline, [member.generation for member in members]
        for member in members:
            if member in waiting:
                if member.wire.has_answer(within_s=0.02):
                    assert member.joined().error_code == 0
                    waiting.remove(member)
                    ready.add(member)
            elif member not in ready or member.beat() == ErrorCode.REBALANCE_IN_PROGRESS:
                ready.discard(member)
                member.ask_to_join()
                waiting.add(member)


def settle(*members: Member) -> None:
    """Bring the members into one generation, with a share for each."""
    join_together(*members)
    shares = {member.id: f"share of {number}".encode() for number, member in enumerate(members)}
    for member in members:
        member.ask_to_sync(shares if member.is_leader else None)
    for number, member in enumerate(members):
        answer = member.synced()
        assert (answer.error_code, bytes(answer.assignment)) == (0, f"share of {number}".encode())


def is_told_to_join(member: Member) -> bool:
    return member.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def describe(wire: Wire, group: str) -> Any:
    return wire.call(ApiKey.DESCRIBE_GROUPS, 5, groups=[group]).groups[0]


def test_a_first_member_is_given_its_id_and_leads(wire: Wire, new_member: NewMember, name: str) -> None:
    member = new_member()
    member.take_id()
    answer = member.join()
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id == member.id
    assert [(listed.member_id, bytes(listed.metadata)) for listed in answer.members] == [
        (member.id, subscription("range"))
    ]
    assert describe(wire, name).group_state == "CompletingRebalance"
    assert bytes(member.sync({member.id: b"all"}).assignment) == b"all"
    assert member.beat() == 0
    found = describe(wire, name)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
    assert [(listed.client_id, bytes(listed.member_assignment)) for listed in found.members] == [("wire", b"all")]


def test_a_second_member_makes_the_first_join_again(new_member: NewMember) -> None:
    first, second = new_member(), new_member()
    settle(first)
    second.take_id()
    second.ask_to_join()
    wait_for("the first is told", lambda: first.beat() == ErrorCode.REBALANCE_IN_PROGRESS)
    assert not second.wire.has_answer(within_s=0.1)
    answer = first.join()
    assert second.joined().generation_id == answer.generation_id == 2
    # Only the leader is told who is there.
    assert sorted(member.member_id for member in answer.members) == sorted([first.id, second.id])


def test_a_third_member_joins_during_the_rebalance_of_the_second(new_member: NewMember) -> None:
    first, second, third = new_member(), new_member(), new_member()
    settle(first)
    second.take_id()
    third.take_id()
    second.ask_to_join()
    wait_for("the first is told", lambda: first.beat() == ErrorCode.REBALANCE_IN_PROGRESS)
    third.ask_to_join()
    assert not third.wire.has_answer(within_s=0.1)
    first.ask_to_join()
    assert {member.joined().generation_id for member in (first, second, third)} == {2}
    settle(first, second, third)


def test_a_member_that_joins_before_all_have_synced_begins_another_rebalance(new_member: NewMember) -> None:
    first, second, third = new_member(), new_member(), new_member()
    join_together(first, second)
    leader, follower = (first, second) if first.is_leader else (second, first)
    follower.ask_to_sync()
    third.take_id()
    third.ask_to_join()
    # Whoever waits for a share is told to join again, and so is the leader that comes with the shares.
    assert follower.synced().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.sync({leader.id: b"l", follower.id: b"f"}).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leader.ask_to_join()
    follower.ask_to_join()
    generations = {member.joined().generation_id for member in (leader, follower, third)}
    assert len(generations) == 1


def test_who_does_not_join_again_in_time_is_out(wire: Wire, new_member: NewMember, name: str) -> None:
    # Sessions outlast the test, so that it is the rebalance that ends the first member.
    first, second = new_member(session_ms=600_000), new_member(session_ms=600_000)
    first.take_id()
    first.join(rebalance_ms=600)
    first.sync({first.id: b"all"})
    second.take_id()
    began = time.monotonic()
    second.ask_to_join(rebalance_ms=600)
    answer = second.joined()
    assert time.monotonic() - began >= 0.4
    assert [member.member_id for member in answer.members] == [second.id]
    assert first.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session(wire: Wire, new_member: NewMember, name: str) -> None:
    silent, alive = new_member(session_ms=1500), new_member()
    settle(silent, alive)
    wait_for("the other is told", lambda: alive.beat() == ErrorCode.REBALANCE_IN_PROGRESS, 8)
    assert alive.join().error_code == 0
    assert [member.member_id for member in describe(wire, name).members] == [alive.id]
    assert silent.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_makes_the_others_join_again(new_member: NewMember) -> None:
    first, second = new_member(), new_member()
    settle(first, second)
    second.leave()
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in first.join().members] == [first.id]


def test_an_older_generation_is_fenced(new_member: NewMember, topic: str) -> None:
    member = new_member()
    settle(member)
    assert member.commit(topic, 5) == 0
    settle(member)
    old = member.generation - 1
    assert member.beat(generation=old) == ErrorCode.ILLEGAL_GENERATION
    assert member.commit(topic, 6, generation=old) == ErrorCode.ILLEGAL_GENERATION
    current, member.generation = member.generation, old
    assert member.sync({member.id: b"all"}).error_code == ErrorCode.ILLEGAL_GENERATION
    member.generation = current
    assert member.commit(topic, 6, member="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    # Nor may somebody commit who is in no generation while the group has members.
    assert member.commit(topic, 6, generation=-1, member="") == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.commit(topic, 7) == 0


def test_a_follower_with_unchanged_protocols_stays_in_the_generation(new_member: NewMember) -> None:
    first, second = new_member(), new_member()
    settle(first, second)
    follower = second if first.is_leader else first
    before = follower.generation
    assert follower.join().generation_id == before
    assert first.beat() == second.beat() == 0


def test_protocols_are_the_first_that_all_know(new_member: NewMember) -> None:
    first, second, third = new_member(), new_member(), new_member()
    assert first.join(protocols=("sticky", "range")).protocol_name == "sticky"
    second.take_id()
    second.ask_to_join(protocols=("range",))
    wait_for("the first is told", lambda: first.beat() == ErrorCode.REBALANCE_IN_PROGRESS)
    first.ask_to_join(protocols=("sticky", "range"))
    assert first.joined().protocol_name == second.joined().protocol_name == "range"
    assert third.join(protocols=("sticky",)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_comes_back_without_a_rebalance(new_member: NewMember) -> None:
    static, other = new_member(instance="static"), new_member()
    assert static.join().error_code == 0  # its instance names it: no id is needed first
    assert static.sync({static.id: b"s"}).error_code == 0
    other.take_id()
    other.ask_to_join()
    wait_for("the static member is told", lambda: static.beat() == ErrorCode.REBALANCE_IN_PROGRESS)
    static.join()
    other.joined()
    shares = {static.id: b"for static", other.id: b"for other"}
    for member in (static, other):
        member.ask_to_sync(shares if member.is_leader else None)
    assert {static.synced().error_code, other.synced().error_code} == {0}
    back = new_member(instance="static")
    answer = back.join(user_data="of a consumer that was in no generation yet")  # what differs does not matter
    assert (answer.error_code, answer.generation_id) == (0, static.generation)
    assert answer.member_id != static.id
    assert bytes(back.sync().assignment) == b"for static"
    assert other.beat() == 0
    assert static.beat() == ErrorCode.FENCED_INSTANCE_ID


def test_a_group_takes_as_many_members_as_it_may_have(new_member: NewMember) -> None:
    members = [new_member() for _ in range(MAX_SIZE)]
    settle(*members)
    assert new_member().join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {member.beat() for member in members} == {0}


def test_ids_that_wait_to_be_used_do_not_fill_a_group(new_member: NewMember) -> None:
    for _ in range(MAX_SIZE):
        new_member().take_id()
    members = [new_member() for _ in range(MAX_SIZE)]
    for member in members:
        member.take_id()
        member.ask_to_join(rebalance_ms=1500)  # for so long the rebalance waits for the ids that nobody comes with
    assert {member.joined().error_code for member in members} == {0}


def test_a_group_that_gets_too_many_members_in_a_rebalance_loses_the_last(new_member: NewMember) -> None:
    members = [new_member() for _ in range(MAX_SIZE - 1)]
    settle(*members)
    newcomers = [new_member(), new_member()]
    for newcomer in newcomers:  # while nobody else has joined the rebalance, there is room for both
        newcomer.take_id()
        newcomer.ask_to_join()
    for member in members:
        wait_for("it is told", functools.partial(is_told_to_join, member))
        member.ask_to_join()
    # Each has a connection of its own, so only the broker knows which of them came last.
    answers = {member: member.joined().error_code for member in (*newcomers, *members)}
    assert sorted(answers.values()) == [ErrorCode.NONE] * MAX_SIZE + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    (refused,) = (member for member, code in answers.items() if code)
    assert refused.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_timeout_out_of_bounds_is_refused(new_member: NewMember) -> None:
    for session_ms in (10, 100_000_000):
        assert new_member(session_ms=session_ms).join().error_code == ErrorCode.INVALID_SESSION_TIMEOUT


# Offsets.


def fetch_offset(wire: Wire, group: str, topic: str, partition: int = 0) -> Any:
    answer = wire.call(
        ApiKey.OFFSET_FETCH,
        7,
        group_id=group,
        topics=[{"name": topic, "partition_indexes": [partition]}],
        require_stable=False,
    )
    assert answer.error_code == 0
    return answer.topics[0].partitions[0]


def commit_alone(wire: Wire, group: str, topic: str, **part: Any) -> int:
    """Commit as a consumer that assigns itself: without a generation."""
    wire.find_coordinator(group)
    while True:
        answer = wire.call(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_metadata": "", **part}]}],
        )
        code = int(answer.topics[0].partitions[0].error_code)
        if code not in RETRIED:
            return code


def test_a_commit_keeps_offset_metadata_and_leader_epoch(wire: Wire, name: str, topic: str) -> None:
    code = commit_alone(
        wire, name, topic, committed_offset=42, committed_leader_epoch=3, committed_metadata="read by hand ☂"
    )
    assert code == 0
    found = fetch_offset(wire, name, topic)
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (42, 3, "read by hand ☂")
    nothing = fetch_offset(wire, name, topic, 5)
    assert (nothing.committed_offset, nothing.metadata, nothing.error_code) == (-1, "", 0)


def test_metadata_above_its_limit_is_refused(wire: Wire, name: str, topic: str) -> None:
    code = commit_alone(wire, name, topic, committed_offset=1, committed_metadata="x" * 4097)
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert fetch_offset(wire, name, topic).committed_offset == -1


def test_a_commit_that_no_batch_can_hold_is_refused_for_good(wire: Wire, name: str, make_topic: MakeTopic) -> None:
    count = 300
    many = make_topic(count)
    wire.find_coordinator(name)

    def commit(partitions: int, metadata: str) -> set[int]:
        parts = [
            {"partition_index": index, "committed_offset": 7, "committed_metadata": metadata}
            for index in range(partitions)
        ]
        answer = wire.call(ApiKey.OFFSET_COMMIT, 8, group_id=name, topics=[{"name": many, "partitions": parts}])
        return {part.error_code for part in answer.topics[0].partitions}

    wait_for("the coordinator is loaded", lambda: commit(1, "") == {0})
    # A code after which clients ask again would have them ask for ever.
    assert commit(count, "m" * 4096) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert fetch_offset(wire, name, many, count - 1).committed_offset == -1
    assert commit(count, "m") == {0}
    assert fetch_offset(wire, name, many, count - 1).committed_offset == 7


def test_assignments_that_no_batch_can_hold_make_the_members_join_again(new_member: NewMember) -> None:
    first, second = new_member(), new_member()
    join_together(first, second)
    leader, follower = (first, second) if first.is_leader else (second, first)
    follower.ask_to_sync()
    assert leader.sync({leader.id: bytes(2_000_000), follower.id: b"f"}).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.synced().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert first.beat() == second.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    settle(first, second)


def test_a_string_longer_than_the_protocol_allows_ends_the_connection(cluster: Cluster, new_member: NewMember) -> None:
    other = new_member()
    settle(other)
    with wire_to(cluster) as wire:
        wire.ask(
            ApiKey.JOIN_GROUP,
            7,
            group_id=other.group + "-long",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            group_instance_id="static",
            protocol_type="p" * 32_768,
            protocols=[{"name": "range", "metadata": b""}],
        )
        assert wire.is_closed_by_peer()
    assert other.beat() == 0


def test_a_commit_for_what_does_not_exist_is_refused(wire: Wire, name: str) -> None:
    code = commit_alone(wire, name, "no-such-topic", committed_offset=1)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_groups_are_listed_by_state_and_type(wire: Wire, new_member: NewMember, name: str, topic: str) -> None:
    settle(new_member())
    empty = f"{name}-empty"
    commit_alone(wire, empty, topic, committed_offset=1)

    def listed(**filters: Any) -> dict[str, tuple[str, str]]:
        answer = wire.call(ApiKey.LIST_GROUPS, 5, **filters)
        return {
            group.group_id: (group.group_state, group.group_type.lower())
            for group in answer.groups
            if group.group_id.startswith(name)
        }

    assert listed() == {name: ("Stable", "classic"), empty: ("Empty", "classic")}
    assert set(listed(states_filter=["Empty"])) == {empty}
    assert set(listed(types_filter=["classic"])) == {name, empty}
    assert listed(types_filter=["consumer"]) == {}


def test_a_group_that_is_not_there_is_described_as_dead(wire: Wire, name: str) -> None:
    wire.find_coordinator(name)
    found = describe(wire, name)
    assert (found.error_code, found.group_state, found.members) == (0, "Dead", [])
    newer = wire.call(ApiKey.DESCRIBE_GROUPS, 6, groups=[name]).groups[0]
    assert newer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert newer.error_message


def test_a_group_is_deleted_only_when_it_is_empty(wire: Wire, new_member: NewMember, name: str, topic: str) -> None:
    member = new_member()
    settle(member)
    assert member.commit(topic, 3) == 0

    def delete() -> int:
        return int(wire.call(ApiKey.DELETE_GROUPS, 2, groups_names=[name]).results[0].error_code)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert fetch_offset(wire, name, topic).committed_offset == 3
    assert delete() == 0
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert fetch_offset(wire, name, topic).committed_offset == -1


def test_offsets_are_deleted_unless_the_group_reads_the_topic(wire: Wire, name: str, topic: str) -> None:
    commit_alone(wire, name, topic, committed_offset=3)

    def delete(group: str) -> Any:
        return wire.call(
            ApiKey.OFFSET_DELETE,
            0,
            group_id=group,
            topics=[{"name": topic, "partitions": [{"partition_index": 0}]}],
        )

    answer = delete(name)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert fetch_offset(wire, name, topic).committed_offset == -1
    assert delete(f"{name}-nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_all_offsets_of_a_group_and_of_several_groups_at_once(wire: Wire, name: str, topic: str) -> None:
    one, two, three = names_of_one_coordinator(wire, name, 3)
    commit_alone(wire, one, topic, committed_offset=1)
    commit_alone(wire, two, topic, committed_offset=2)
    answer = wire.call(
        ApiKey.OFFSET_FETCH,
        8,
        groups=[{"group_id": group, "topics": None} for group in (one, two, three)],
        require_stable=True,
    )
    found = {
        group.group_id: [(part.partition_index, part.committed_offset) for t in group.topics for part in t.partitions]
        for group in answer.groups
    }
    assert found == {one: [(0, 1)], two: [(0, 2)], three: []}
