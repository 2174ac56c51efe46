"""The classic group protocol, driven without a loop: requests in, outcomes out, time by hand."""

from __future__ import annotations

import random

import pytest
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.coordinators.group.classic import TRANSITIONS, ClassicGroup, ClassicState
from hailbus_broker.coordinators.group.classic_rebalance import ClassicRebalances
from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.decision import GroupDecision
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.group.rebalances import RebalanceCause
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.coordinators.outcome import Outcome
from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse
from hailbus_broker.protocol.definitions.offset_commit_response import OffsetCommitResponse
from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
from hailbus_broker.protocol.definitions.txn_offset_commit_response import TxnOffsetCommitResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import Message

from tests.unit.broker.tokens import Token

GROUP = "rides"
WALL_AHEAD_MS = 1_700_000_000_000
"""How far the wall clock is ahead of the clock for deadlines: what mixes them up is far off."""


class Coordinator:
    """A shard with its log, which is a list.

    `is_refusing` lets the log refuse the next records, as if they were too large; `is_slow` lets the replies wait for
    `sync_log`.
    """

    def __init__(self, *, delay_ms: int = 0) -> None:
        self.now_ms = 1_000
        self.suspended_ms = 0
        self.is_refusing = False
        self.is_slow = False
        self.parked: list[Outcome] = []
        self.refused: list[object] = []
        self.records: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[object, Message] = {}
        self.shard = self.make(delay_ms)

    def make(self, delay_ms: int) -> GroupShard:
        return GroupShard(
            GroupConfig(initial_rebalance_delay_ms=delay_ms, max_size=3),
            image=MetadataImage(),
            group_settings=lambda _: (45_000, 5_000),
            rng=random.Random(7),
        )

    @property
    def wall_ms(self) -> int:
        return WALL_AHEAD_MS + self.now_ms + self.suspended_ms

    def run(self, outcome: Outcome) -> None:
        if self.is_refusing and outcome.records:
            self.is_refusing = False
            self.refused.append(outcome.request)
            follow_up = None if outcome.on_refused is None else outcome.on_refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            if follow_up is not None:
                self.run(follow_up)
            return
        outcome.install()
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.records.append((key, value))
            self.shard.replay(key, value, now_ms=self.now_ms)
        if self.is_slow and outcome.replies:
            outcome.replies_parked()
            self.parked.append(outcome)
        else:
            self.answer(outcome)

    def answer(self, outcome: Outcome) -> None:
        for token, message in outcome.replies:
            assert token not in self.answers, f"{token} was answered twice"
            self.answers[token] = message

    def sync_log(self) -> None:
        self.is_slow = False
        parked, self.parked = self.parked, []
        for outcome in parked:
            self.answer(outcome)
            outcome.replies_released(self.now_ms)

    def restart(self) -> None:
        self.shard = self.make(0)
        for key, value in self.records:
            self.shard.replay(key, value, now_ms=self.now_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for outcome in self.shard.tick(self.now_ms, wall_ms=self.wall_ms):
            self.run(outcome)

    def join(self, token: str, member_id: str = "", *, instance: str | None = None, **changes: object) -> None:
        values: dict[str, object] = {
            "group_id": GROUP,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"subscription")],
        }
        request = JoinGroupRequest(**(values | changes))  # type: ignore[arg-type]  # values of many types
        self.run(
            self.shard.join(
                request,
                Token(token),
                client_id="client",
                client_host="/10.0.0.1",
                requires_known_member=False,
                can_skip_assignment=True,
                now_ms=self.now_ms,
                wall_ms=self.wall_ms,
            )
        )

    def joined(self, token: str) -> JoinGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def sync(self, token: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> None:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        self.run(self.shard.sync(request, Token(token), now_ms=self.now_ms, wall_ms=self.wall_ms))

    def synced(self, token: str) -> SyncGroupResponse:
        answer = self.answers[token]
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def beat(self, member_id: str, generation: int) -> int:
        token = Token.new()
        request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        self.run(self.shard.heartbeat(request, token, now_ms=self.now_ms))
        code: int = self.answers.pop(token).error_code  # type: ignore[attr-defined]  # a Message of a known kind
        return code

    def leave(self, member_id: str, instance: str | None = None) -> int:
        token = Token.new()
        members = [MemberIdentity(member_id=member_id, group_instance_id=instance)]
        request = LeaveGroupRequest(group_id=GROUP, members=members)
        self.run(self.shard.leave(request, members, token, now_ms=self.now_ms, wall_ms=self.wall_ms))
        code: int = self.answers.pop(token).members[0].error_code  # type: ignore[attr-defined]  # a Message of a known kind
        return code

    def commit(self, offset: int, *, generation: int = -1, member_id: str = "") -> int:
        token = Token.new()
        entry = OffsetToCommit(
            topic="t", topic_id=bytes(16), partition=0, offset=offset, leader_epoch=0, metadata="here"
        )
        self.run(
            self.shard.commit(
                GROUP, generation, member_id, None, [entry], token, now_ms=self.now_ms, wall_ms=self.wall_ms
            )
        )
        answer = self.answers.pop(token)
        assert isinstance(answer, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def commit_in_transaction(self, offset: int, *, generation: int = -1, member_id: str = "") -> int:
        """Leave an offset with the transaction of producer 9; it counts when that commits."""
        token = Token.new()
        entry = OffsetToCommit(topic="t", topic_id=bytes(16), partition=0, offset=offset, leader_epoch=0, metadata="")
        request = TxnOffsetCommitRequest(
            group_id=GROUP, producer_id=9, producer_epoch=0, generation_id=generation, member_id=member_id
        )
        outcome = self.shard.commit_in_transaction(request, [entry], token, now_ms=self.now_ms, wall_ms=self.wall_ms)
        assert outcome.producer == (9, 0)
        for record in outcome.records:
            self.shard.replay(record.encode_key(), record.encode_value(), now_ms=self.now_ms, producer_id=9)
        ((_, answer),) = outcome.replies
        assert isinstance(answer, TxnOffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def committed(self) -> int | None:
        """The group's offset."""
        found = self.shard.committed(GROUP, "t", 0)
        return None if found is None else found.offset

    def group(self) -> ClassicGroup:
        return self.shard.groups[GROUP]


def stable_pair() -> tuple[Coordinator, str, str]:
    """A group of two in generation 2."""
    coordinator = Coordinator()
    coordinator.join("a1")
    first = coordinator.joined("a1").member_id
    coordinator.join("b1")
    coordinator.join("a2", first)
    second = coordinator.joined("b1").member_id
    generation = coordinator.joined("a2").generation_id
    coordinator.sync("b-sync", second, generation)
    coordinator.sync("a-sync", first, generation, {first: b"one", second: b"two"})
    assert coordinator.group().state is ClassicState.STABLE
    return coordinator, first, second


def test_the_first_member_leads_and_assigns() -> None:
    coordinator = Coordinator()
    coordinator.join("j")
    answer = coordinator.joined("j")
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert [member.metadata for member in answer.members] == [b"subscription"]
    coordinator.sync("s", answer.member_id, 1, {answer.member_id: b"all"})
    assert coordinator.synced("s").assignment == b"all"
    assert coordinator.beat(answer.member_id, 1) == ErrorCode.NONE


def test_a_second_member_makes_the_first_one_rejoin() -> None:
    coordinator = Coordinator()
    coordinator.join("a1")
    first = coordinator.joined("a1").member_id
    coordinator.sync("s", first, 1, {first: b"all"})
    coordinator.join("b1")
    assert "b1" not in coordinator.answers
    assert coordinator.beat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join("a2", first)
    assert coordinator.joined("b1").generation_id == coordinator.joined("a2").generation_id == 2
    assert coordinator.joined("a2").leader == first
    assert coordinator.joined("b1").members == []


def test_followers_get_their_assignment_when_the_leader_brings_it() -> None:
    coordinator, _, _ = stable_pair()
    assert coordinator.synced("a-sync").assignment == b"one"
    assert coordinator.synced("b-sync").assignment == b"two"


def test_the_initial_delay_waits_for_more_members() -> None:
    coordinator = Coordinator(delay_ms=3_000)
    coordinator.join("a")
    coordinator.advance(2_000)
    coordinator.join("b")
    coordinator.advance(1_000)
    assert coordinator.answers == {}
    coordinator.advance(3_000)
    assert coordinator.joined("a").generation_id == coordinator.joined("b").generation_id == 1


def test_a_silent_member_is_removed_and_the_rest_rebalance() -> None:
    coordinator, first, second = stable_pair()
    coordinator.advance(6_000)
    assert coordinator.beat(first, 2) == ErrorCode.NONE
    coordinator.advance(5_000)
    assert list(coordinator.group().members) == [first]
    assert "silent" in coordinator.group().rebalances.last_reason
    assert coordinator.beat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.beat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_rejoin_is_left_out() -> None:
    coordinator, first, _ = stable_pair()
    coordinator.join("c")
    coordinator.join("a3", first)
    for _ in range(12):
        coordinator.advance(5_000)
        if "a3" in coordinator.answers:
            break
    assert coordinator.joined("a3").generation_id == 3
    assert len(coordinator.joined("a3").members) == 2


def test_a_member_that_does_not_sync_is_removed() -> None:
    coordinator = Coordinator()
    coordinator.join("a1")
    first = coordinator.joined("a1").member_id
    coordinator.join("b1")
    coordinator.join("a2", first)
    second = coordinator.joined("b1").member_id
    coordinator.sync("s", second, 2)
    for _ in range(15):
        coordinator.advance(5_000)
        if "s" in coordinator.answers:
            break
    assert coordinator.synced("s").error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert first not in coordinator.group().members


def test_leaving_empties_the_group_and_writes_it_down() -> None:
    coordinator, first, second = stable_pair()
    assert coordinator.leave(first) == ErrorCode.NONE
    assert coordinator.leave(second) == ErrorCode.NONE
    assert coordinator.leave(second) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.group().state is ClassicState.EMPTY
    coordinator.restart()
    assert coordinator.group().state is ClassicState.EMPTY
    assert coordinator.group().generation == 3


def test_a_restart_keeps_members_generation_and_assignments() -> None:
    coordinator, first, second = stable_pair()
    coordinator.restart()
    group = coordinator.group()
    assert (group.state, group.generation, group.leader, group.protocol) == (ClassicState.STABLE, 2, first, "range")
    assert {key: member.assignment for key, member in group.members.items()} == {first: b"one", second: b"two"}
    assert coordinator.beat(second, 2) == ErrorCode.NONE
    coordinator.advance(10_001)
    assert coordinator.group().members == {}


@pytest.mark.parametrize(
    ("member", "generation", "code"),
    [
        ("first", 1, ErrorCode.ILLEGAL_GENERATION),
        ("first", 3, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", 2, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_is_not_of_this_generation_is_fenced(member: str, generation: int, code: ErrorCode) -> None:
    coordinator, first, _ = stable_pair()
    member_id = first if member == "first" else member
    assert coordinator.beat(member_id, generation) == code
    coordinator.sync("late", member_id, generation, {first: b"other"})
    assert coordinator.synced("late").error_code == code
    assert coordinator.commit(5, generation=generation, member_id=member_id) == code
    assert coordinator.commit_in_transaction(5, generation=generation, member_id=member_id) == code
    assert not coordinator.shard.is_unstable(GROUP, "t", 0)
    assert coordinator.committed() is None


def test_a_leaders_shares_are_for_its_generation_only() -> None:
    coordinator, first, second = stable_pair()
    coordinator.join("a3", first)
    coordinator.join("b3", second, protocols=[JoinGroupRequestProtocol(name="range", metadata=b"more")])
    assert coordinator.joined("a3").generation_id == 3
    coordinator.sync("late", first, 2, {first: b"all"})
    assert coordinator.synced("late").error_code == ErrorCode.ILLEGAL_GENERATION
    assert coordinator.group().state is ClassicState.COMPLETING_REBALANCE
    coordinator.sync("a", first, 3, {first: b"one", second: b"two"})
    assert coordinator.synced("a").assignment == b"one"


@pytest.mark.parametrize(
    ("generation", "names_member", "code"),
    [
        (2, True, ErrorCode.NONE),
        (2, False, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, True, ErrorCode.ILLEGAL_GENERATION),
        (1, True, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_commit_names_the_member_and_its_generation(generation: int, names_member: bool, code: ErrorCode) -> None:
    coordinator, first, _ = stable_pair()
    member_id = first if names_member else ""
    assert coordinator.commit_in_transaction(4, generation=generation, member_id=member_id) == code
    assert coordinator.shard.is_unstable(GROUP, "t", 0) == (code == ErrorCode.NONE)
    assert coordinator.commit(5, generation=generation, member_id=member_id) == code
    assert coordinator.committed() == (None if code else 5)


def test_a_generation_commits_until_the_next_one_begins() -> None:
    coordinator, first, second = stable_pair()
    coordinator.join("a3", first)
    # It has been told to rejoin, and commits what it has done so far.
    assert coordinator.commit(5, generation=2, member_id=second) == ErrorCode.NONE
    coordinator.join("b3", second)
    assert coordinator.joined("b3").generation_id == 3
    assert coordinator.commit(6, generation=2, member_id=second) == ErrorCode.ILLEGAL_GENERATION
    # It belongs to the new generation, and has no share of it yet.
    assert coordinator.commit(7, generation=3, member_id=second) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.committed() == 5


def test_a_generation_is_refused_where_there_is_no_group_or_nobody_in_it() -> None:
    coordinator = Coordinator()
    assert coordinator.commit(1, generation=2, member_id="gone") == ErrorCode.ILLEGAL_GENERATION
    coordinator, first, second = stable_pair()
    coordinator.leave(first)
    coordinator.leave(second)
    generation = coordinator.group().generation
    assert coordinator.commit(1, generation=generation, member_id=first) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(1, generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.committed() is None


def test_a_member_that_waits_for_the_disk_is_not_silent() -> None:
    coordinator = Coordinator()
    coordinator.join("a")
    leader = coordinator.joined("a")
    coordinator.is_slow = True
    coordinator.sync("s", leader.member_id, 1, {leader.member_id: b"all"})
    coordinator.advance(9_000)
    coordinator.advance(25_000)  # longer than its session timeout
    assert leader.member_id in coordinator.group().members
    coordinator.sync_log()
    assert coordinator.synced("s").assignment == b"all"
    coordinator.advance(9_999)  # its session has begun with the answer
    assert coordinator.beat(leader.member_id, 1) == ErrorCode.NONE
    coordinator.advance(9_999)
    assert leader.member_id in coordinator.group().members
    coordinator.advance(1)
    assert coordinator.group().members == {}


def test_an_answer_that_comes_after_its_member_has_left_begins_no_session() -> None:
    coordinator = Coordinator()
    coordinator.join("a")
    leader = coordinator.joined("a")
    coordinator.is_slow = True
    coordinator.sync("s", leader.member_id, 1, {leader.member_id: b"all"})
    coordinator.is_slow = False
    assert coordinator.leave(leader.member_id) == ErrorCode.NONE
    coordinator.sync_log()
    coordinator.advance(30_000)
    assert coordinator.group().members == {}
    assert coordinator.shard.next_deadline_ms() is None


def group_of(count: int) -> tuple[Coordinator, list[str]]:
    """A stable group; its first member leads."""
    coordinator = Coordinator()
    coordinator.join("j0")
    ids = [coordinator.joined("j0").member_id]
    for number in range(1, count):
        coordinator.join(f"j{number}")
        ids += [found for found in coordinator.group().members if found not in ids]
    coordinator.join("again", ids[0])
    generation = coordinator.joined("again").generation_id
    coordinator.sync("s", ids[0], generation, dict.fromkeys(ids, b"one"))
    assert coordinator.group().state is ClassicState.STABLE
    return coordinator, ids


@pytest.mark.parametrize("leaving_count", [2, 3])
def test_members_that_leave_together_cause_one_rebalance(leaving_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at all members for each that leaves would hold the loop for long."""
    coordinator, ids = group_of(3)
    elections: list[str] = []
    elected = ClassicGroup._elected

    def electing(group: ClassicGroup) -> str | None:
        elections.append("leader")
        return elected(group)

    monkeypatch.setattr(ClassicGroup, "_elected", electing)
    started: list[str] = []
    maybe_rebalance = ClassicRebalances.maybe_rebalance

    def rebalancing(
        rebalances: ClassicRebalances, group: ClassicGroup, cause: RebalanceCause, reason: str, decision: GroupDecision
    ) -> None:
        started.append(reason)
        maybe_rebalance(rebalances, group, cause, reason, decision)

    monkeypatch.setattr(ClassicRebalances, "maybe_rebalance", rebalancing)
    entries = [*ids[:leaving_count], ids[1], "unknown"]
    request = LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=found) for found in entries])
    coordinator.run(coordinator.shard.leave(request, request.members, Token("l"), now_ms=coordinator.now_ms, wall_ms=9))
    answer = coordinator.answers["l"]
    assert isinstance(answer, LeaveGroupResponse)
    codes = [ErrorCode(member.error_code) for member in answer.members]
    assert codes == [ErrorCode.NONE] * leaving_count + [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert list(coordinator.group().members) == ids[leaving_count:]
    assert coordinator.group().leader == (ids[2] if leaving_count == 2 else None)
    assert started == [f"member {ids[0]} left; its reason: not given; so did {leaving_count - 1} more"]
    assert elections == ["leader"]


def test_who_commits_or_syncs_is_not_silent() -> None:
    coordinator, first, second = stable_pair()
    for number in range(4):
        coordinator.advance(6_000)
        assert coordinator.commit(number, generation=2, member_id=first) == ErrorCode.NONE
        coordinator.sync(f"again {number}", second, 2)
        assert coordinator.synced(f"again {number}").assignment == b"two"
    assert list(coordinator.group().members) == [first, second]


def test_a_static_member_returns_without_a_rebalance() -> None:
    coordinator = Coordinator()
    coordinator.join("a1", instance="driver-1")
    first = coordinator.joined("a1").member_id
    coordinator.sync("s", first, 1, {first: b"all"})
    coordinator.join("a2", instance="driver-1")
    answer = coordinator.joined("a2")
    assert answer.generation_id == 1
    assert answer.member_id != first
    assert answer.skip_assignment
    assert coordinator.beat(first, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.sync("s2", answer.member_id, 1)
    assert coordinator.synced("s2").assignment == b"all"
    coordinator.restart()
    assert list(coordinator.group().members) == [answer.member_id]


def test_a_static_member_returns_without_a_rebalance_with_another_generation_in_its_subscription() -> None:
    coordinator = Coordinator()
    coordinator.join("a1", instance="driver-1")
    first = coordinator.joined("a1").member_id
    coordinator.sync("s", first, 1, {first: b"all"})
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"subscription, never in a generation")]
    coordinator.join("a2", instance="driver-1", protocols=protocols)
    second = coordinator.joined("a2")
    assert (second.generation_id, second.members[0].metadata) == (1, protocols[0].metadata)
    coordinator.sync("s2", second.member_id, 1)
    assert coordinator.synced("s2").assignment == b"all"


def test_a_static_member_that_returns_with_another_protocol_causes_a_rebalance() -> None:
    coordinator = Coordinator()
    coordinator.join("a1", instance="driver-1")
    first = coordinator.joined("a1").member_id
    coordinator.sync("s", first, 1, {first: b"all"})
    coordinator.join("a2", instance="driver-1", protocols=[JoinGroupRequestProtocol(name="sticky", metadata=b"")])
    assert (coordinator.joined("a2").generation_id, coordinator.joined("a2").protocol_name) == (2, "sticky")


def test_a_fenced_static_member_is_told_so() -> None:
    coordinator = Coordinator()
    coordinator.join("a1", instance="driver-1")
    first = coordinator.joined("a1").member_id
    coordinator.sync("s", first, 1, {first: b"all"})
    coordinator.join("a2", instance="driver-1")
    coordinator.join("a3", first, instance="driver-1")
    assert coordinator.joined("a3").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_newcomer_is_first_given_an_id_where_the_version_has_that() -> None:
    coordinator = Coordinator()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    outcome = coordinator.shard.join(
        request,
        Token("j"),
        client_id="c",
        client_host="/h",
        requires_known_member=True,
        can_skip_assignment=True,
        now_ms=coordinator.now_ms,
        wall_ms=coordinator.wall_ms,
    )
    coordinator.run(outcome)
    answer = coordinator.joined("j")
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("c-")
    coordinator.join("j2", answer.member_id)
    assert coordinator.joined("j2").generation_id == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_are_refused(changes: dict[str, object], code: ErrorCode) -> None:
    coordinator = Coordinator()
    member_id = changes.pop("member_id", "")
    assert isinstance(member_id, str)
    coordinator.join("j", member_id, **changes)  # type: ignore[arg-type]  # values of many types  # none of them is `instance`
    assert coordinator.joined("j").error_code == code


def test_a_group_has_a_greatest_size_and_one_protocol_in_common() -> None:
    coordinator, first, second = stable_pair()
    coordinator.join("x", protocols=[JoinGroupRequestProtocol(name="sticky")])
    assert coordinator.joined("x").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    coordinator.join("c")
    coordinator.join("d")  # has room: only one has joined this rebalance
    coordinator.join("a3", first)
    coordinator.join("b3", second)
    assert coordinator.joined("b3").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {coordinator.joined(token).error_code for token in ("c", "d", "a3")} == {ErrorCode.NONE}
    assert len(coordinator.group().members) == 3
    coordinator.join("e")
    assert coordinator.joined("e").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_offsets_are_kept_over_a_restart_and_can_be_committed_without_joining() -> None:
    coordinator = Coordinator()
    assert coordinator.commit(41) == ErrorCode.NONE
    assert coordinator.commit(42) == ErrorCode.NONE
    coordinator.restart()
    committed = coordinator.shard.committed(GROUP, "t", 0)
    assert committed is not None
    assert (committed.offset, committed.metadata, committed.leader_epoch) == (42, "here", 0)


def test_a_commit_from_outside_is_refused_while_there_are_members() -> None:
    coordinator, first, _ = stable_pair()
    assert coordinator.commit(1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(1, generation=2, member_id=first) == ErrorCode.NONE


def test_a_restart_does_not_put_the_end_of_an_empty_groups_offsets_off() -> None:
    coordinator = Coordinator()
    coordinator.join("a")
    member = coordinator.joined("a").member_id
    coordinator.sync("s", member, 1, {member: b"all"})
    coordinator.commit(41, generation=1, member_id=member)
    coordinator.advance(5_000)
    coordinator.leave(member)
    emptied_ms = coordinator.wall_ms
    coordinator.advance(3_600_000)
    coordinator.restart()
    week_ms = coordinator.shard.config.offsets_retention_ms
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=emptied_ms + week_ms - 1))
    assert coordinator.shard.committed(GROUP, "t", 0) is not None
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=emptied_ms + week_ms))
    assert coordinator.shard.committed(GROUP, "t", 0) is None


def test_offsets_of_an_empty_group_expire() -> None:
    coordinator = Coordinator()
    coordinator.commit(41)
    week_ms = coordinator.shard.config.offsets_retention_ms
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms - 1))
    assert coordinator.shard.committed(GROUP, "t", 0) is not None
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms))
    assert coordinator.shard.committed(GROUP, "t", 0) is None


def test_only_an_empty_group_can_be_deleted() -> None:
    coordinator, first, second = stable_pair()
    coordinator.commit(7, generation=2, member_id=first)
    with pytest.raises(ApiError) as refused:
        coordinator.shard.delete_group(GROUP)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    coordinator.leave(first)
    coordinator.leave(second)
    coordinator.run(coordinator.shard.delete_group(GROUP))
    assert not coordinator.shard.knows(GROUP)
    coordinator.restart()
    assert not coordinator.shard.knows(GROUP)


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    coordinator = Coordinator()
    coordinator.commit(1)
    for offset in (2, 3):
        assert coordinator.commit_in_transaction(offset) == ErrorCode.NONE
        assert coordinator.committed() == 1
        assert coordinator.shard.is_unstable(GROUP, "t", 0)
        coordinator.shard.replay_end_transaction(9, is_commit=offset == 3)
        assert not coordinator.shard.is_unstable(GROUP, "t", 0)
    assert coordinator.committed() == 3


def test_members_that_come_and_go_walk_every_edge_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: set[tuple[ClassicState, ClassicState]] = set()
    move_to = ClassicGroup.move_to

    def watched(group: ClassicGroup, state: ClassicState, now_ms: int) -> None:
        walked.add((group.state, state))
        move_to(group, state, now_ms)

    monkeypatch.setattr(ClassicGroup, "move_to", watched)
    chance = random.Random(3)
    coordinator = Coordinator()
    for number in range(2_000):
        group = coordinator.shard.groups.get(GROUP)
        member = None if group is None or not group.members else chance.choice(sorted(group.members))
        match chance.randrange(6):
            case 0:
                coordinator.join(f"join-{number}")
            case 1 if member is not None:
                coordinator.join(f"join-{number}", member)
            case 2 if group is not None and group.leader is not None and group.leader in group.members:
                coordinator.sync(f"sync-{number}", group.leader, group.generation)
            case 3 if member is not None:
                coordinator.leave(member)
            case 4:
                coordinator.advance(chance.choice([1_000, 11_000, 61_000, 301_000]))
            case 5 if group is not None and group.state is ClassicState.EMPTY:
                coordinator.run(coordinator.shard.delete_group(GROUP))
            case _:
                pass
    assert walked == {(state, after) for state, following in TRANSITIONS.items() for after in following}


def test_the_table_refuses_what_it_does_not_have() -> None:
    assert set(TRANSITIONS) == set(ClassicState)
    group = ClassicGroup(group_id=GROUP)
    with pytest.raises(AssertionError):
        group.move_to(ClassicState.STABLE, 0)


def test_assignments_that_cannot_be_recorded_make_the_members_join_again() -> None:
    coordinator, first, second = stable_pair()
    coordinator.join("a3", first)
    coordinator.join("b3", second)
    generation = coordinator.joined("a3").generation_id
    coordinator.sync("b-sync3", second, generation)
    coordinator.is_refusing = True
    coordinator.sync("a-sync3", first, generation, {first: b"one", second: b"two"})
    assert coordinator.refused == ["a-sync3"]
    assert coordinator.synced("b-sync3").error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert coordinator.beat(first, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join("a4", first)
    coordinator.join("b4", second)
    assert coordinator.joined("a4").generation_id == coordinator.joined("b4").generation_id == generation + 1


def test_a_static_member_whose_return_cannot_be_recorded_keeps_its_place() -> None:
    coordinator = Coordinator()
    coordinator.join("a", instance="driver")
    member = coordinator.joined("a").member_id
    coordinator.sync("s", member, 1, {member: b"all"})
    coordinator.is_refusing = True
    coordinator.join("again", instance="driver")
    assert coordinator.refused == ["again"]
    group = coordinator.group()
    assert (set(group.members), group.static_members, group.leader) == ({member}, {"driver": member}, member)
    assert coordinator.beat(member, 1) == ErrorCode.NONE


@pytest.mark.parametrize("suspended_ms", [0, 30 * 24 * 3_600_000])
def test_offsets_age_by_the_wall_clock(suspended_ms: int) -> None:
    """A host that was suspended has a clock for deadlines that lags behind."""
    coordinator = Coordinator()
    coordinator.suspended_ms = suspended_ms
    coordinator.join("a")
    member = coordinator.joined("a").member_id
    coordinator.sync("s", member, 1, {member: b"all"})
    assert coordinator.commit(41, generation=1, member_id=member) == ErrorCode.NONE
    assert coordinator.commit_in_transaction(42, generation=1, member_id=member) == ErrorCode.NONE
    coordinator.shard.replay_end_transaction(9, is_commit=True)
    committed = coordinator.shard.committed(GROUP, "t", 0)
    assert committed is not None
    assert committed.commit_timestamp_ms == coordinator.wall_ms
    coordinator.advance(3_600_000)
    coordinator.leave(member)
    assert coordinator.group().state_since_ms == coordinator.wall_ms
    week_ms = coordinator.shard.config.offsets_retention_ms
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms - 1))
    assert coordinator.shard.committed(GROUP, "t", 0) is not None
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms))
    assert coordinator.shard.committed(GROUP, "t", 0) is None


def test_offsets_that_an_open_transaction_may_change_do_not_expire() -> None:
    coordinator = Coordinator()
    coordinator.commit(1)
    coordinator.commit_in_transaction(2)
    week_ms = coordinator.shard.config.offsets_retention_ms
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms))
    assert coordinator.committed() == 1
    coordinator.shard.replay_end_transaction(9, is_commit=False)
    coordinator.run(coordinator.shard.expire_offsets(wall_ms=coordinator.wall_ms + week_ms))
    assert coordinator.committed() is None


def test_all_offsets_of_a_commit_are_in_one_batch() -> None:
    coordinator = Coordinator()
    entry = OffsetToCommit(topic="t", topic_id=bytes(16), partition=0, offset=1, leader_epoch=0, metadata="")
    assert coordinator.shard.commit(GROUP, -1, "", None, [entry], Token("token"), now_ms=0, wall_ms=0).is_atomic
    request = TxnOffsetCommitRequest(group_id=GROUP, producer_id=9, producer_epoch=0)
    assert coordinator.shard.commit_in_transaction(request, [entry], Token("token"), now_ms=0, wall_ms=0).is_atomic


def test_what_is_due_is_decided_one_after_the_other() -> None:
    coordinator, first, second = stable_pair()
    coordinator.now_ms += 10_000
    outcomes = coordinator.shard.tick(coordinator.now_ms, wall_ms=coordinator.wall_ms)
    coordinator.run(next(outcomes))
    assert set(coordinator.group().members) in ({first}, {second})
    coordinator.run(next(outcomes))
    assert not coordinator.group().members


def test_a_members_timers_do_not_grow_in_number_with_the_rebalances() -> None:
    coordinator = Coordinator()
    coordinator.join("a")
    member = coordinator.joined("a").member_id
    for number in range(50):
        coordinator.sync(f"s{number}", member, number + 1, {member: b"all"})
        coordinator.join(f"again{number}", member)
        coordinator.advance(5_000)
    # The present one, and the long one of its first join.
    assert len(coordinator.shard._state.timers) <= 4


def test_a_rebalance_that_waits_for_nobody_does_not_take_all_time() -> None:
    coordinator = Coordinator()
    coordinator.join("a", instance="driver", rebalance_timeout_ms=0)
    static = coordinator.joined("a").member_id
    coordinator.join("b", rebalance_timeout_ms=0)
    coordinator.join("a2", static, instance="driver", rebalance_timeout_ms=0)
    other = coordinator.joined("b").member_id
    coordinator.leave(other)
    coordinator.advance(1)  # the static member is away, and there is no other to go on with
    due_ms = coordinator.shard.next_deadline_ms()
    assert due_ms is not None
    assert due_ms > coordinator.now_ms


def test_a_commit_in_a_transaction_does_not_wait_for_the_end_of_a_rebalance() -> None:
    coordinator = Coordinator()
    coordinator.join("a")
    member = coordinator.joined("a").member_id
    assert coordinator.group().state is ClassicState.COMPLETING_REBALANCE
    assert coordinator.commit(5, generation=1, member_id=member) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.commit_in_transaction(5, generation=1, member_id=member) == ErrorCode.NONE
    assert coordinator.commit_in_transaction(5, generation=2, member_id=member) == ErrorCode.ILLEGAL_GENERATION


def test_a_check_that_comes_early_does_not_lose_the_deadline_of_a_later_rebalance() -> None:
    coordinator = Coordinator()
    coordinator.join("a", rebalance_timeout_ms=5_000)
    first = coordinator.joined("a").member_id
    coordinator.sync("s", first, 1, {first: b"all"})  # from here on a check of the group is due in five seconds
    coordinator.join("b", rebalance_timeout_ms=8_000)
    for _ in range(9):
        assert coordinator.beat(first, 1) in {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID}
        coordinator.advance(1_000)
    assert set(coordinator.group().members) == {coordinator.joined("b").member_id}
