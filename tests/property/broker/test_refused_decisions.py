"""A coordinator whose log refuses records at random has the state of one that was never asked for what was refused.

Two shards get the same requests with the same randomness. The log of one of them refuses some of its records; the
other one is given only the decisions that were recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from hailbus_broker.coordinators.group.config import GroupConfig
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.group.shard import GroupShard
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from hailbus_broker.protocol.definitions.txn_offset_commit_request import TxnOffsetCommitRequest
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.test_consumer_groups import RIDES, image_with
from tests.unit.broker.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite, TransactionOutcome
    from hailbus_broker.coordinators.transaction.state import TopicPartition

WALL_AHEAD_MS = 1_700_000_000_000
GROUPS = ["a", "b"]
INSTANCES = ["driver-1", "driver-2"]
SUBSCRIPTIONS = [
    b"\x00\x01" + bytes(codec.encode(ConsumerProtocolSubscription(topics=topics), 1, bytearray()))
    for topics in (["rides"], ["rides", "bikes"])
]


class Twins:
    """Two group shards; the log of the first one refuses some records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000
        self.step_number = 0
        self.seen: Counter[str] = Counter()
        image = image_with(rides=4, bikes=2)
        self.refusing, self.other = (
            GroupShard(
                GroupConfig(initial_rebalance_delay_ms=0, max_size=3, consumer_migration_policy="bidirectional"),
                image=image,
                group_settings=lambda _: (45_000, 5_000),
                rng=random.Random(1),
            )
            for _ in range(2)
        )

    @property
    def wall_ms(self) -> int:
        return WALL_AHEAD_MS + self.now_ms

    def decide(self, decide: Callable[[GroupShard], Outcome]) -> None:
        """Let the refusing shard decide, and the other one if the decision was recorded."""
        outcome = self._ask(self.refusing, decide)
        if outcome is None:
            assert self._ask(self.other, decide) is None
        elif outcome.records and self.rng.random() < 0.4:
            self.seen["refused"] += 1
            on_refused = outcome.on_refused
            follow_up = None if on_refused is None else on_refused(ErrorCode.UNKNOWN_SERVER_ERROR)
            if follow_up is not None:
                self.seen["followed up"] += 1
                assert not follow_up.records
                self._carry_out(self.refusing, follow_up)
                again = self._ask(self.other, decide)
                assert again is not None
                assert again.on_refused is not None
                expected = again.on_refused(ErrorCode.UNKNOWN_SERVER_ERROR)
                assert expected is not None
                assert expected.replies == follow_up.replies
                self._carry_out(self.other, expected)
        else:
            self.seen["recorded" if outcome.records else "without records"] += 1
            expected = self._ask(self.other, decide)
            assert expected is not None
            assert outcome.replies == expected.replies
            self._carry_out(self.refusing, outcome)
            self._carry_out(self.other, expected)
        self.compare()

    def _ask(self, shard: GroupShard, decide: Callable[[GroupShard], Outcome]) -> Outcome | None:
        shard._state.rng.seed(self.step_number)
        try:
            return decide(shard)
        except ApiError:
            return None

    def _carry_out(self, shard: GroupShard, outcome: Outcome) -> None:
        outcome.install()
        producer_id = -1 if outcome.producer is None else outcome.producer[0]
        for record in outcome.records:
            shard.replay(record.encode_key(), record.encode_value(), now_ms=self.now_ms, producer_id=producer_id)

    def compare(self) -> None:
        one, other = self.refusing, self.other
        assert one.groups == other.groups
        assert one.consumer_groups == other.consumer_groups
        assert one._state.session_deadlines == other._state.session_deadlines
        assert one._state.revocation_deadlines == other._state.revocation_deadlines
        assert (one.offsets, one._offsets.pending) == (other.offsets, other._offsets.pending)
        assert one.rebalance_counts == other.rebalance_counts

    def advance(self, ms: int) -> None:
        """Let time pass. Only the refusing shard has all its timers, since it retries what was refused."""
        self.now_ms += ms
        while (key := self.refusing._state.timers.pop_due(self.now_ms)) is not None:
            self.decide(partial(GroupShard.check, key=key, now_ms=self.now_ms, wall_ms=self.wall_ms))

    def step(self) -> None:
        rng, self.step_number = self.rng, self.step_number + 1
        group_id = rng.choice(GROUPS)
        token = Token(f"token {self.step_number}")
        shard = self.refusing
        group, consumer_group = shard.groups.get(group_id), shard.consumer_groups.get(group_id)
        members = sorted(
            {*(() if group is None else (*group.members, *group.pending))}
            | {*(() if consumer_group is None else consumer_group.members)}
        )
        member_id = rng.choice([*members, "stranger"]) if members else "stranger"
        instance_id = rng.choice([None, None, *INSTANCES])
        match rng.choice(
            ["join"] * 4
            + ["sync"] * 3
            + ["beat", "leave", "commit", "transaction", "end", "expire"]
            + ["consumer"] * 4
            + ["time"] * 2
        ):
            case "join":
                join = JoinGroupRequest(
                    group_id=group_id,
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=rng.choice([0, 5_000]),
                    member_id=rng.choice(["", member_id]),
                    group_instance_id=instance_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name="range", metadata=rng.choice(SUBSCRIPTIONS))],
                )
                is_required = rng.random() < 0.3
                self.decide(
                    lambda shard: shard.join(
                        join,
                        token,
                        client_id="client",
                        client_host="/10.0.0.1",
                        requires_known_member=is_required,
                        can_skip_assignment=True,
                        now_ms=self.now_ms,
                        wall_ms=self.wall_ms,
                    )
                )
            case "sync":
                if group is not None and group.leader is not None and rng.random() < 0.6:
                    member_id = group.leader
                known = None if consumer_group is None else consumer_group.members.get(member_id)
                generation = group.generation if group is not None else 0 if known is None else known.member_epoch
                sync = SyncGroupRequest(
                    group_id=group_id,
                    generation_id=generation,
                    member_id=member_id,
                    assignments=[SyncGroupRequestAssignment(member_id=name, assignment=b"share") for name in members],
                )
                self.decide(lambda shard: shard.sync(sync, token, now_ms=self.now_ms, wall_ms=self.wall_ms))
            case "beat":
                generation = 0 if group is None else group.generation
                beat = HeartbeatRequest(group_id=group_id, generation_id=generation, member_id=member_id)
                self.decide(lambda shard: shard.heartbeat(beat, token, now_ms=self.now_ms))
            case "leave":
                leave = LeaveGroupRequest(group_id=group_id)
                leaving = [MemberIdentity(member_id=name) for name in members[: rng.randint(1, 3)]]
                self.decide(lambda shard: shard.leave(leave, leaving, token, now_ms=self.now_ms, wall_ms=self.wall_ms))
            case "commit" | "transaction" as kind:
                generation = -1 if not members or group is None else group.generation
                if consumer_group is not None and member_id in consumer_group.members:
                    generation = consumer_group.members[member_id].member_epoch
                entry = OffsetToCommit(
                    topic="rides",
                    topic_id=RIDES,
                    partition=0,
                    offset=self.step_number,
                    leader_epoch=0,
                    metadata="",
                )
                member_id = member_id if members else ""
                if kind == "commit":
                    self.decide(
                        lambda shard: shard.commit(
                            group_id,
                            generation,
                            member_id,
                            None,
                            [entry],
                            token,
                            now_ms=self.now_ms,
                            wall_ms=self.wall_ms,
                        )
                    )
                else:
                    request = TxnOffsetCommitRequest(
                        group_id=group_id, producer_id=9, generation_id=generation, member_id=member_id
                    )
                    self.decide(
                        lambda shard: shard.commit_in_transaction(
                            request, [entry], token, now_ms=self.now_ms, wall_ms=self.wall_ms
                        )
                    )
            case "end":
                is_commit = rng.random() < 0.5
                for shard in (self.refusing, self.other):
                    shard.replay_end_transaction(9, is_commit=is_commit)
                self.compare()
            case "expire":
                wall_ms = self.wall_ms + rng.choice([0, 30 * 24 * 3_600_000])
                self.decide(lambda shard: shard.expire_offsets(wall_ms=wall_ms))
                if rng.random() < 0.3:
                    self.decide(lambda shard: shard.delete_group(group_id))
            case "consumer":
                member_id = rng.choice(["m1", "m2", "m3"])
                known = None if consumer_group is None else consumer_group.members.get(member_id)
                epoch = 0 if known is None else rng.choice([known.member_epoch, known.member_epoch, 0, -1])
                if epoch < 0 or known is None:
                    epoch = min(epoch, 0)
                consumer = ConsumerGroupHeartbeatRequest(
                    group_id=group_id,
                    member_id=member_id,
                    member_epoch=epoch,
                    rebalance_timeout_ms=5_000,
                    subscribed_topic_names=rng.choice([["rides"], ["rides", "bikes"]]),
                    subscribed_topic_regex=rng.choice([None, None, ".*s"]),
                    topic_partitions=[],
                )
                self.decide(
                    lambda shard: shard.consumer_heartbeat(
                        consumer,
                        token,
                        member_id=member_id,
                        client_id="client",
                        client_host="/10.0.0.1",
                        now_ms=self.now_ms,
                        wall_ms=self.wall_ms,
                    )
                )
            case "time":
                self.advance(rng.choice([1, 100, 1_000, 6_000, 50_000]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_the_log_refuses_leaves_no_trace_in_a_group_shard(seed: int) -> None:
    twins = Twins(seed)
    for _ in range(120):
        twins.step()


def test_the_group_shards_are_refused_often_enough() -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        twins = Twins(seed)
        for _ in range(120):
            twins.step()
        seen += twins.seen
    assert min(seen[what] for what in ("refused", "recorded", "without records")) > 200, seen
    assert seen["followed up"], seen


class TransactionTwins:
    """Two transaction shards; the log of the first one refuses some records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = WALL_AHEAD_MS
        self.refused_count = 0
        config = TransactionConfig(id_expiration_ms=100_000)
        self.refusing, self.other = (TransactionShard(config, coordinator_epoch=1) for _ in range(2))

    def decide(self, decide: Callable[[TransactionShard], TransactionOutcome]) -> None:
        outcome = decide(self.refusing)
        if outcome.records and self.rng.random() < 0.4:
            self.refused_count += 1
            if outcome.on_refused is not None:
                assert outcome.on_refused(ErrorCode.UNKNOWN_SERVER_ERROR) is None
        else:
            expected = decide(self.other)
            assert (outcome.replies, outcome.markers) == (expected.replies, expected.markers)
            for shard, decided in ((self.refusing, outcome), (self.other, expected)):
                decided.install()
                for record in decided.records:
                    shard.replay(record.encode_key(), record.encode_value(), now_ms=self.now_ms)
            self.compare()
            for markers in outcome.markers:
                failed = [("t", 0)] if self.rng.random() < 0.2 else []
                self.decide(partial(self.written, markers, failed))
        self.compare()

    def written(
        self, markers: MarkersToWrite, failed: list[TopicPartition], shard: TransactionShard
    ) -> TransactionOutcome:
        return shard.markers_written(markers, failed=failed, now_ms=self.now_ms, wall_ms=self.now_ms)

    def compare(self) -> None:
        assert self.refusing.transactions == self.other.transactions
        assert self.refusing._last_epochs == self.other._last_epochs

    def step(self, number: int) -> None:
        rng, token = self.rng, Token(f"token {number}")
        name = rng.choice(["x", "y"])
        known = self.refusing.transactions.get(name)
        producer_id, epoch = (5, 0) if known is None else (known.producer_id, known.producer_epoch)
        is_v2, is_known = rng.random() < 0.5, rng.random() < 0.5
        match rng.choice(["init", "add", "add", "end", "end", "time"]):
            case "init":
                self.decide(
                    lambda shard: shard.init_producer_id(
                        name,
                        10_000,
                        producer_id if is_known else -1,
                        epoch if is_known else -1,
                        token,
                        new_producer_id=lambda: 1_000 + number,
                        wall_ms=self.now_ms,
                    )
                )
            case "add":
                self.decide(
                    lambda shard: shard.add_partitions(
                        name,
                        producer_id,
                        epoch,
                        [("t", number % 3)],
                        token,
                        lambda code: AddOffsetsToTxnResponse(error_code=code),
                        is_v2=is_v2,
                        wall_ms=self.now_ms,
                    )
                )
            case "end":
                self.decide(
                    lambda shard: shard.end(
                        name,
                        producer_id,
                        epoch,
                        is_known,
                        token,
                        is_v2=is_v2,
                        new_producer_id=lambda: 2_000 + number,
                        wall_ms=self.now_ms,
                    )
                )
            case "time":
                self.now_ms += rng.choice([1, 1_000, 20_000])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_the_log_refuses_leaves_no_trace_in_a_transaction_shard(seed: int) -> None:
    twins = TransactionTwins(seed)
    for number in range(80):
        twins.step(number)


def test_the_transaction_shards_are_refused_often_enough() -> None:
    refused_count = 0
    for seed in range(25):
        twins = TransactionTwins(seed)
        for number in range(80):
            twins.step(number)
        refused_count += twins.refused_count
    assert refused_count > 100
