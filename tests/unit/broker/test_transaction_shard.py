"""The transaction coordinator without logs and network: what it decides and what it remembers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hailbus_broker.coordinators.patterns import PatternError
from hailbus_broker.coordinators.transaction.deadlines import ABORT_RETRY_MS, MARKER_RETRY_MS
from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite, TransactionOutcome
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.coordinators.transaction.state import TRANSITIONS, State, Transaction
from hailbus_broker.protocol.definitions.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from hailbus_broker.protocol.definitions.transaction_log_key import TransactionLogKey
from hailbus_broker.protocol.definitions.transaction_log_value import TransactionLogValue
from hailbus_broker.protocol.errors import ErrorCode, ProtocolError

from tests.unit.broker.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = 60_000
A = ("orders", 0)
B = ("payments", 3)


class Bench:
    """A shard with the log that a driver would keep for it."""

    def __init__(self) -> None:
        self.config = TransactionConfig(max_timeout_ms=15 * MINUTE, id_expiration_ms=1000 * MINUTE)
        self.shard = TransactionShard(self.config, coordinator_epoch=3)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.ids = count(1000)
        self.now = 1_000_000
        self.wall_is_ahead_by = 0
        self.written: list[MarkersToWrite] = []
        self.broken: set[tuple[str, int]] = set()
        self.crashes_before_markers = False

    @property
    def wall(self) -> int:
        return self.now + self.wall_is_ahead_by

    def run(self, outcome: TransactionOutcome) -> Any:
        outcome.install()
        for record in outcome.records:
            key, value = record.encode_key(), record.encode_value()
            self.log.append((key, value))
            self.shard.replay(key, value, now_ms=self.now)
        if self.crashes_before_markers:
            return None
        for markers in outcome.markers:
            failed = [partition for partition in markers.partitions if partition in self.broken]
            self.written.append(markers)
            self.run(self.shard.markers_written(markers, failed=failed, now_ms=self.now, wall_ms=self.wall))
        return outcome.replies[0][1] if outcome.replies else None

    def tick(self) -> None:
        for outcome in self.shard.tick(self.now, wall_ms=self.wall):
            self.run(outcome)

    def restart(self) -> None:
        self.shard = TransactionShard(self.config, coordinator_epoch=4)
        for key, value in self.log:
            self.shard.replay(key, value, now_ms=self.now, wall_ms=self.wall)
        self.crashes_before_markers = False
        self.run(self.shard.resume())

    def init(
        self, producer_id: int = -1, producer_epoch: int = -1, *, timeout_ms: int = MINUTE, name: str = "t"
    ) -> tuple[ErrorCode, int, int]:
        response = self.run(
            self.shard.init_producer_id(
                name,
                timeout_ms,
                producer_id,
                producer_epoch,
                Token("token"),
                new_producer_id=lambda: next(self.ids),
                wall_ms=self.wall,
            )
        )
        return ErrorCode(response.error_code), response.producer_id, response.producer_epoch

    def add(
        self,
        producer_id: int,
        producer_epoch: int,
        *partitions: tuple[str, int],
        is_v2: bool = False,
        name: str = "t",
    ) -> ErrorCode:
        response = self.run(
            self.shard.add_partitions(
                name,
                producer_id,
                producer_epoch,
                partitions,
                Token("token"),
                lambda error: AddOffsetsToTxnResponse(error_code=error),
                **({"is_v2": True} if is_v2 else {}),
                wall_ms=self.wall,
            )
        )
        return ErrorCode(response.error_code)

    def end(
        self, producer_id: int, producer_epoch: int, *, commit: bool = True, is_v2: bool = False, name: str = "t"
    ) -> tuple[ErrorCode, int, int]:
        response = self.run(
            self.shard.end(
                name,
                producer_id,
                producer_epoch,
                commit,
                Token("token"),
                is_v2=is_v2,
                new_producer_id=lambda: next(self.ids),
                wall_ms=self.wall,
            )
        )
        if response is None:
            return ErrorCode.NONE, -1, -1
        return ErrorCode(response.error_code), response.producer_id, response.producer_epoch

    def skip_to(self, producer_epoch: int) -> None:
        """Leave out the epochs up to this one: there are 32,767."""
        self.shard.transactions["t"] = replace(self.shard.transactions["t"], producer_epoch=producer_epoch)

    def is_in(self, state: State) -> bool:
        return self.shard.transactions["t"].state is state

    def markers(self) -> list[tuple[int, int, bool, Sequence[tuple[str, int]]]]:
        return [(item.producer_id, item.producer_epoch, item.is_commit, item.partitions) for item in self.written]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_transaction_of_version_one(bench: Bench) -> None:
    assert bench.init() == (ErrorCode.NONE, 1000, 0)
    assert bench.add(1000, 0, B, A) is ErrorCode.NONE
    assert bench.is_in(State.ONGOING)
    assert bench.shard.verify("t", 1000, 0, *A) is ErrorCode.NONE
    assert bench.shard.verify("t", 1000, 0, "orders", 1) is ErrorCode.INVALID_TXN_STATE
    assert bench.end(1000, 0) == (ErrorCode.NONE, -1, -1)
    assert bench.markers() == [(1000, 0, True, (A, B))]
    assert bench.written[0].coordinator_epoch == 3
    assert not bench.written[0].must_be_newer
    assert bench.is_in(State.COMPLETE_COMMIT)
    assert bench.end(1000, 0) == (ErrorCode.NONE, -1, -1)  # the answer got lost
    assert bench.end(1000, 0, commit=False)[0] is ErrorCode.INVALID_TXN_STATE
    assert bench.shard.verify("t", 1000, 0, *A) is ErrorCode.INVALID_TXN_STATE
    assert len(bench.markers()) == 1
    assert bench.add(1000, 0, A) is ErrorCode.NONE  # the next one
    assert bench.shard.transactions["t"].partitions == (A,)
    assert bench.end(1000, 0, commit=False)[0] is ErrorCode.NONE
    assert bench.is_in(State.COMPLETE_ABORT)


def test_every_end_of_version_two_brings_a_new_epoch(bench: Bench) -> None:
    bench.init()
    assert bench.add(1000, 0, A, is_v2=True) is ErrorCode.NONE
    assert bench.end(1000, 0, is_v2=True) == (ErrorCode.NONE, 1000, 1)
    assert bench.markers() == [(1000, 1, True, (A,))]
    assert bench.written[0].must_be_newer
    assert bench.end(1000, 0, is_v2=True) == (ErrorCode.NONE, 1000, 1)  # again, with the epoch it knows
    assert bench.end(1000, 0, commit=False, is_v2=True)[0] is ErrorCode.INVALID_TXN_STATE
    assert bench.add(1000, 0, A, is_v2=True) is ErrorCode.PRODUCER_FENCED
    assert bench.add(1000, 1, A, is_v2=True) is ErrorCode.NONE
    assert bench.end(1000, 0, is_v2=True)[0] is ErrorCode.PRODUCER_FENCED  # a late one must not end this transaction
    assert bench.end(1000, 1, commit=False, is_v2=True) == (ErrorCode.NONE, 1000, 2)
    assert bench.end(1000, 2, commit=False, is_v2=True) == (ErrorCode.NONE, 1000, 3)  # an abort of nothing
    assert bench.end(1000, 3, commit=True, is_v2=True)[0] is ErrorCode.INVALID_TXN_STATE


def test_init_fences_the_producer_before(bench: Bench) -> None:
    bench.init()
    assert bench.init() == (ErrorCode.NONE, 1000, 1)
    assert bench.add(1000, 0, A) is ErrorCode.PRODUCER_FENCED
    assert bench.end(1000, 0)[0] is ErrorCode.PRODUCER_FENCED
    assert bench.add(77, 0, A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert bench.shard.verify("t", 1000, 0, *A) is ErrorCode.PRODUCER_FENCED
    assert bench.shard.verify("nobody", 1000, 0, *A) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_init_aborts_an_open_transaction_first(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    assert bench.init()[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.markers() == [(1000, 1, False, (A,))]
    assert bench.is_in(State.COMPLETE_ABORT)
    assert bench.init() == (ErrorCode.NONE, 1000, 2)


def test_a_producer_may_bump_its_own_epoch(bench: Bench) -> None:
    bench.init()
    assert bench.init(1000, 0) == (ErrorCode.NONE, 1000, 1)
    assert bench.init(1000, 0) == (ErrorCode.NONE, 1000, 1)  # the answer got lost
    assert bench.init(1000, 1) == (ErrorCode.NONE, 1000, 2)
    assert bench.init(1000, 0)[0] is ErrorCode.PRODUCER_FENCED
    assert bench.init(55, 2)[0] is ErrorCode.PRODUCER_FENCED
    bench.add(1000, 2, A)
    assert bench.init(1000, 1)[0] is ErrorCode.PRODUCER_FENCED  # a zombie aborts nothing
    assert bench.is_in(State.ONGOING)


def test_used_up_epochs_are_exchanged_for_a_new_producer_id(bench: Bench) -> None:
    bench.init()
    bench.skip_to(2**15 - 10)
    for _ in range(8):
        bench.init()
    assert bench.shard.transactions["t"].producer_epoch == 2**15 - 2
    assert bench.init() == (ErrorCode.NONE, 1001, 0)


def test_the_last_epoch_of_version_two_is_exchanged_at_the_end(bench: Bench) -> None:
    bench.init()
    bench.skip_to(2**15 - 10)
    for epoch in range(2**15 - 10, 2**15 - 2):
        assert bench.end(1000, epoch, commit=False, is_v2=True) == (ErrorCode.NONE, 1000, epoch + 1)
    last = 2**15 - 2
    bench.add(1000, last, A, is_v2=True)
    assert bench.end(1000, last, is_v2=True) == (ErrorCode.NONE, 1001, 0)
    assert bench.markers()[-1] == (1000, last + 1, True, (A,))
    assert bench.end(1000, last, is_v2=True) == (ErrorCode.NONE, 1001, 0)
    assert bench.add(1001, 0, A, is_v2=True) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "timeout_ms", "producer", "error"),
    [
        ("", MINUTE, (-1, -1), ErrorCode.INVALID_REQUEST),
        ("t", MINUTE, (5, -1), ErrorCode.INVALID_REQUEST),
        ("t", 0, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("t", 15 * MINUTE + 1, (-1, -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_init_refuses_nonsense(
    bench: Bench, name: str, timeout_ms: int, producer: tuple[int, int], error: ErrorCode
) -> None:
    assert bench.init(*producer, timeout_ms=timeout_ms, name=name) == (error, -1, -1)


def test_a_commit_of_nothing_is_refused(bench: Bench) -> None:
    bench.init()
    assert bench.end(1000, 0)[0] is ErrorCode.INVALID_TXN_STATE
    assert bench.end(1000, 0, commit=False)[0] is ErrorCode.INVALID_TXN_STATE
    assert bench.end(1000, 0, is_v2=True)[0] is ErrorCode.INVALID_TXN_STATE


def test_what_is_open_for_too_long_is_aborted_and_its_producer_fenced(bench: Bench) -> None:
    bench.init(timeout_ms=5000)
    bench.add(1000, 0, A)
    assert bench.shard.next_deadline_ms() == bench.now + 5000
    bench.now += 4999
    bench.tick()
    assert bench.is_in(State.ONGOING)
    bench.now += 1
    bench.tick()
    assert bench.is_in(State.COMPLETE_ABORT)
    assert bench.markers() == [(1000, 1, False, (A,))]
    assert bench.end(1000, 0)[0] is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("jump_ms", [-10 * MINUTE, 10 * MINUTE])
def test_a_jump_of_the_wall_clock_changes_no_timeout(bench: Bench, jump_ms: int) -> None:
    bench.init(timeout_ms=5000)
    began_ms = bench.wall
    bench.add(1000, 0, A)
    bench.wall_is_ahead_by = jump_ms
    bench.now += 2000
    bench.add(1000, 0, B)
    assert bench.shard.transactions["t"].start_ms == began_ms
    assert bench.shard.transactions["t"].updated_ms == bench.wall
    assert bench.shard.next_deadline_ms() == bench.now + 3000
    bench.now += 2999
    bench.tick()
    assert bench.is_in(State.ONGOING)
    bench.now += 1
    bench.tick()
    assert bench.is_in(State.COMPLETE_ABORT)


@pytest.mark.parametrize(
    ("jump_ms", "remaining_ms"), [(0, 3000), (-1000, 4000), (-10 * MINUTE, 5000), (1000, 2000), (10 * MINUTE, 0)]
)
def test_after_a_restart_the_wall_clock_tells_what_is_left_of_a_timeout(
    bench: Bench, jump_ms: int, remaining_ms: int
) -> None:
    bench.init(timeout_ms=5000)
    bench.add(1000, 0, A)
    bench.now += 2000
    bench.wall_is_ahead_by = jump_ms
    bench.restart()
    assert bench.shard.next_deadline_ms() == bench.now + remaining_ms


def test_the_next_transaction_has_a_timeout_of_its_own(bench: Bench) -> None:
    bench.init(timeout_ms=5000)
    bench.add(1000, 0, A)
    bench.now += 4000
    bench.end(1000, 0)
    bench.add(1000, 0, A)
    bench.now += 4999
    bench.tick()
    assert bench.is_in(State.ONGOING)
    bench.now += 1
    bench.tick()
    assert bench.is_in(State.COMPLETE_ABORT)


def test_unused_ids_are_forgotten(bench: Bench) -> None:
    bench.init()
    bench.now += 1000 * MINUTE
    bench.tick()
    assert bench.shard.transactions == {}
    bench.restart()
    assert bench.shard.transactions == {}


def test_ids_are_forgotten_in_the_order_of_their_last_use(bench: Bench) -> None:
    bench.init(name="first")
    bench.now += MINUTE
    bench.init(name="second")
    bench.now += MINUTE
    bench.init(name="first")
    assert bench.shard.next_deadline_ms() == bench.now + 999 * MINUTE
    bench.now += 999 * MINUTE
    bench.tick()
    assert set(bench.shard.transactions) == {"first"}
    bench.now += MINUTE
    bench.tick()
    assert set(bench.shard.transactions) == set()
    assert bench.shard.next_deadline_ms() is None


def test_the_next_deadline_is_known_without_a_look_at_every_id(bench: Bench) -> None:
    for number in range(50):
        bench.init(name=f"t{number}")
    bench.init()
    bench.add(1050, 0, A)
    seen = Unread(bench.shard.transactions)
    bench.shard.transactions = seen
    assert bench.shard.next_deadline_ms() == bench.now + MINUTE


class Unread(dict[str, Transaction]):
    """Transactions that may be looked up one by one only."""

    def values(self) -> NoReturn:
        raise AssertionError("every transaction is looked at")

    items = keys = __iter__ = values


def test_an_id_has_one_timer_however_many_transactions_it_has(bench: Bench) -> None:
    bench.init()
    for _ in range(100):
        bench.now += 1
        bench.add(1000, 0, A)
        bench.end(1000, 0)
    assert len(bench.shard._deadlines.timers) == 1
    bench.now += MINUTE
    bench.tick()
    assert bench.is_in(State.COMPLETE_COMMIT)
    assert not bench.shard._deadlines.timers


def test_an_abort_that_cannot_be_recorded_is_tried_again(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    bench.now += MINUTE
    assert [outcome.records for outcome in bench.shard.tick(bench.now, wall_ms=bench.wall)]  # and written nowhere
    assert bench.shard.next_deadline_ms() == bench.now + ABORT_RETRY_MS
    bench.now += ABORT_RETRY_MS
    bench.tick()
    assert bench.is_in(State.COMPLETE_ABORT)


def test_a_timer_that_is_early_schedules_the_next_and_holds_up_no_other(bench: Bench) -> None:
    bench.init(name="ended")
    bench.init(name="again")
    bench.init(name="late")
    bench.add(1000, 0, A, name="ended")
    bench.add(1001, 0, A, name="again")
    bench.end(1001, 0, name="again")
    bench.end(1000, 0, name="ended")
    bench.add(1002, 0, B, name="late")
    bench.now += MINUTE // 2
    bench.add(1001, 0, A, name="again")  # its timer is that of the first transaction
    bench.now += MINUTE // 2
    bench.tick()
    states = {name: transaction.state for name, transaction in bench.shard.transactions.items()}
    assert states == {"ended": State.COMPLETE_COMMIT, "again": State.ONGOING, "late": State.COMPLETE_ABORT}
    bench.now += MINUTE // 2
    bench.tick()
    assert bench.shard.transactions["again"].state is State.COMPLETE_ABORT


def test_a_removal_that_cannot_be_recorded_holds_up_no_other(bench: Bench) -> None:
    bench.init(name="first")
    bench.init(name="second")
    bench.now += 1000 * MINUTE
    assert len(list(bench.shard.tick(bench.now, wall_ms=bench.wall))) == 2  # and written nowhere
    assert list(bench.shard.tick(bench.now, wall_ms=bench.wall)) == []
    bench.now += 1000 * MINUTE
    bench.tick()
    assert bench.shard.transactions == {}


def test_an_id_whose_removal_is_refused_waits_behind_those_that_expire_later(bench: Bench) -> None:
    bench.init(name="first")
    bench.now += 10
    bench.init(name="second")

    def removed() -> list[str]:
        outcomes = bench.shard.tick(bench.now, wall_ms=bench.wall)  # and written nowhere
        keys = [record.key for outcome in outcomes for record in outcome.records]
        return [key.transactional_id for key in keys if isinstance(key, TransactionLogKey)]

    bench.now += 1000 * MINUTE - 10
    assert removed() == ["first"]
    bench.now += 10
    assert removed() == ["second"]


def test_an_end_that_cannot_be_recorded_is_tried_again_after_a_while_without_its_markers(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    bench.crashes_before_markers = True
    bench.end(1000, 0)
    markers = bench.shard.resume().markers[0]
    refused = bench.shard.markers_written(markers, now_ms=bench.now, wall_ms=bench.wall)
    assert refused.on_refused is not None
    refused.on_refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert bench.shard.next_deadline_ms() == bench.now + MARKER_RETRY_MS
    bench.now += MARKER_RETRY_MS - 1
    assert list(bench.shard.tick(bench.now, wall_ms=bench.wall)) == []
    bench.now += 1
    (again,) = bench.shard.tick(bench.now, wall_ms=bench.wall)
    assert [(one.partitions, one.is_commit) for one in again.markers] == [((), True)]


def test_markers_are_tried_again_once_at_a_time_and_said_to_be_resumed(bench: Bench) -> None:
    bench.broken = {A}
    bench.init()
    bench.add(1000, 0, A)
    bench.end(1000, 0)
    assert [markers.is_resumed for markers in bench.written] == [False]
    bench.now += MARKER_RETRY_MS
    retried = list(bench.shard.tick(bench.now, wall_ms=bench.wall))
    assert [markers.is_resumed for outcome in retried for markers in outcome.markers] == [True]
    assert list(bench.shard.tick(bench.now, wall_ms=bench.wall)) == []  # they are being written


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_crash_before_the_markers_is_rolled_forward(bench: Bench, is_v2: bool, commit: bool) -> None:
    bench.init()
    bench.add(1000, 0, A, is_v2=is_v2)
    bench.crashes_before_markers = True
    bench.end(1000, 0, commit=commit, is_v2=is_v2)
    assert bench.is_in(State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    bench.restart()
    assert bench.markers() == [(1000, 1 if is_v2 else 0, commit, (A,))]
    assert bench.written[0].is_resumed
    assert bench.written[0].coordinator_epoch == 4
    assert bench.is_in(State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    bench.restart()
    assert len(bench.markers()) == 1


def test_while_a_transaction_ends_nothing_else_may_happen(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    bench.crashes_before_markers = True
    bench.end(1000, 0)
    bench.crashes_before_markers = False
    assert bench.add(1000, 0, A) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.init()[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(1000, 0)[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.end(1000, 0, commit=False)[0] is ErrorCode.INVALID_TXN_STATE
    assert bench.shard.verify("t", 1000, 0, *A) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_markers_that_failed_are_tried_again(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A, B)
    bench.broken = {B}
    bench.end(1000, 0)
    assert bench.is_in(State.PREPARE_COMMIT)
    assert bench.shard.next_deadline_ms() == bench.now + MARKER_RETRY_MS
    bench.broken = set()
    bench.now += MARKER_RETRY_MS
    bench.tick()
    assert bench.markers() == [(1000, 0, True, (A, B)), (1000, 0, True, (B,))]
    assert bench.is_in(State.COMPLETE_COMMIT)


def test_transactions_can_be_described_and_listed(bench: Bench) -> None:
    bench.init()
    bench.init(name="u-1")
    bench.add(1000, 0, A, B)
    described = bench.shard.describe("t")
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", MINUTE)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("orders", [0]), ("payments", [3])]
    assert bench.shard.describe("nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def names(**filters: Any) -> list[str]:
        arguments: dict[str, Any] = {"states": (), "producer_ids": (), "min_duration_ms": -1, "pattern": None}
        return [item.transactional_id for item in bench.shard.list(**{**arguments, **filters}, wall_ms=bench.now + 50)]

    assert names() == ["t", "u-1"]
    assert names(states=["Empty"]) == ["u-1"]
    assert names(producer_ids=[1000]) == ["t"]
    assert names(min_duration_ms=49) == ["t"]
    assert names(min_duration_ms=50) == []
    assert names(pattern="u-.*") == ["u-1"]
    with pytest.raises(PatternError, match="missing"):
        names(pattern="(")


def test_described_and_listed_transactions_show_their_producer_and_their_start(bench: Bench) -> None:
    bench.init()
    bench.now += 7
    bench.add(1000, 0, ("b", 1), ("a", 2), ("b", 0))
    described = bench.shard.describe("t")
    assert (described.error_code, described.transactional_id) == (ErrorCode.NONE, "t")
    assert (described.producer_id, described.producer_epoch) == (1000, 0)
    assert described.transaction_start_time_ms == bench.now
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [2]), ("b", [0, 1])]
    assert bench.shard.describe("nobody").transactional_id == "nobody"
    (listed,) = bench.shard.list(["Ongoing"], [1000], 0, "t", wall_ms=bench.now + 1)
    assert (listed.transactional_id, listed.producer_id, listed.transaction_state) == ("t", 1000, "Ongoing")
    assert bench.shard.list((), [999], -1, None, wall_ms=bench.now) == []
    assert bench.shard.list((), (), 0, None, wall_ms=bench.now) == []  # open since this moment, not for longer than 0
    assert len(bench.shard.list((), (), -1, "", wall_ms=bench.now)) == 1


def test_the_duration_of_a_transaction_at_time_zero_counts(bench: Bench) -> None:
    bench.now = 0
    bench.init()
    bench.init(name="idle")
    bench.add(1000, 0, A)
    assert [item.transactional_id for item in bench.shard.list((), (), 4, None, wall_ms=5)] == ["t"]
    # What has no transaction has no duration, so no minimum is below it.
    assert [item.transactional_id for item in bench.shard.list((), (), 0, None, wall_ms=5)] == ["t"]


def test_a_request_over_a_connection_that_was_given_up_is_late(bench: Bench) -> None:
    bench.init()
    late = bench.shard.is_late
    assert not late("t", 1000, 0, 5)
    assert not late("t", 1000, 0, 5)
    assert late("t", 1000, 0, 4)
    assert not late("t", 1000, 0, 6)
    assert late("t", 1000, 0, 5)
    assert not late("t", 1000, 1, 3)  # not the owner, who is refused for that
    assert not late("t", 999, 0, 30)
    assert not late("nobody", 1000, 0, 3)
    assert not late("t", 1000, 0, 7)
    assert bench.shard._connections == {"t": 7}
    bench.now += 1000 * MINUTE
    bench.tick()
    assert bench.shard._connections == {}


def test_deadlines_are_those_of_open_transactions_of_idle_ids_and_of_failed_markers(bench: Bench) -> None:
    assert bench.shard.next_deadline_ms() is None
    bench.init()
    assert bench.shard.next_deadline_ms() == bench.now + 1000 * MINUTE
    bench.now += 5
    bench.init(name="later")
    assert bench.shard.next_deadline_ms() == bench.now - 5 + 1000 * MINUTE
    bench.add(1000, 0, A, B)
    assert bench.shard.next_deadline_ms() == bench.now + MINUTE
    bench.broken = {A, B}
    bench.end(1000, 0, commit=False)
    assert bench.shard.next_deadline_ms() == bench.now + MARKER_RETRY_MS
    bench.now += MARKER_RETRY_MS - 1
    bench.tick()
    assert len(bench.written) == 1
    bench.now += 1
    bench.tick()
    assert bench.markers()[1] == (1000, 0, False, (A, B))
    assert bench.written[1].is_resumed
    assert not bench.written[0].is_resumed
    bench.broken = set()
    bench.now += MARKER_RETRY_MS
    bench.tick()
    assert bench.is_in(State.COMPLETE_ABORT)
    bench.now = 1_000_005 + MINUTE  # the deadline of the transaction, which has ended, passes without anything to do
    written = len(bench.written)
    bench.tick()
    assert len(bench.written) == written
    assert bench.shard.next_deadline_ms() == 1_000_005 + 1000 * MINUTE


def test_markers_of_an_older_end_change_nothing(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    bench.end(1000, 0)
    (markers,) = bench.written
    after = bench.shard.transactions["t"]
    assert bench.shard.markers_written(markers, now_ms=bench.now, wall_ms=bench.wall).records == []
    bench.add(1000, 0, B)
    assert bench.shard.markers_written(markers, now_ms=bench.now, wall_ms=bench.wall).records == []
    bench.crashes_before_markers = True
    bench.end(1000, 0)
    other = replace(markers, producer_epoch=1)
    assert bench.shard.markers_written(other, failed=[A], now_ms=bench.now, wall_ms=bench.wall) == TransactionOutcome()
    assert (
        bench.shard.markers_written(replace(markers, producer_id=5), now_ms=bench.now, wall_ms=bench.wall)
        == TransactionOutcome()
    )
    assert (
        bench.shard.markers_written(replace(markers, transactional_id="u"), now_ms=bench.now, wall_ms=bench.wall)
        == TransactionOutcome()
    )
    assert after.state is State.COMPLETE_COMMIT
    assert bench.is_in(State.PREPARE_COMMIT)
    failed = bench.shard.markers_written(markers, failed=[B, A], now_ms=bench.now, wall_ms=bench.wall)
    assert failed.log_events == [("transaction_markers_failed", {"transactional_id": "t", "count": 2})]
    assert failed.records == []


@pytest.mark.parametrize("is_v2", [False, True])
def test_a_transaction_has_the_version_that_its_first_partition_came_with(bench: Bench, is_v2: bool) -> None:
    bench.init()
    bench.add(1000, 0, A, is_v2=is_v2)
    assert bench.shard.transactions["t"].is_v2 is is_v2


def test_a_transaction_begins_with_its_first_partition_and_keeps_that_moment(bench: Bench) -> None:
    bench.init()
    bench.now += 10
    bench.add(1000, 0, A)
    started = bench.now
    bench.now += 10
    records = len(bench.log)
    bench.add(1000, 0, A)
    assert len(bench.log) == records  # nothing new, nothing written
    bench.add(1000, 0, B)
    current = bench.shard.transactions["t"]
    assert (current.start_ms, current.updated_ms, current.partitions) == (started, bench.now, (A, B))
    bench.now += 10
    bench.end(1000, 0)
    ended = bench.shard.transactions["t"]
    assert (ended.partitions, ended.updated_ms, ended.start_ms) == ((), bench.now, started)
    bench.now += 10
    bench.add(1000, 0, A)
    assert bench.shard.transactions["t"].start_ms == bench.now


def test_an_abort_says_who_was_fenced_and_for_how_long_it_was_open(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    outcome = bench.shard.init_producer_id(
        "t", MINUTE, -1, -1, Token("token"), new_producer_id=lambda: next(bench.ids), wall_ms=bench.wall + 250
    )
    ((name, facts),) = outcome.log_events
    assert name == "transaction_aborted"
    assert (facts["transactional_id"], facts["producer_id"], facts["producer_epoch"]) == ("t", 1000, 0)
    assert facts["open_for_ms"] == 250
    (markers,) = outcome.markers
    assert (markers.producer_epoch, markers.is_commit, markers.partitions) == (1, False, (A,))
    (record,) = outcome.records
    assert isinstance(record.value, TransactionLogValue)
    assert record.value.transaction_last_update_timestamp_ms == bench.now + 250


def test_the_last_epoch_of_all_fences_by_itself(bench: Bench) -> None:
    bench.init()
    for last, epoch in ((2**15 - 2, 2**15 - 1), (2**15 - 1, 2**15 - 1)):
        bench.shard.transactions["t"] = replace(
            bench.shard.transactions["t"], producer_epoch=last, state=State.ONGOING, partitions=(A,), start_ms=0
        )
        bench.written.clear()
        bench.init()
        assert bench.markers() == [(1000, epoch, False, (A,))]
    assert bench.init() == (ErrorCode.NONE, 1001, 0)


def test_the_epoch_of_a_lost_answer_is_known_until_it_is_used(bench: Bench) -> None:
    bench.init()
    bench.shard.transactions["t"] = replace(bench.shard.transactions["t"], producer_epoch=2**15 - 2)
    assert bench.init(1000, 2**15 - 2) == (ErrorCode.NONE, 1001, 0)
    assert bench.init(1000, 2**15 - 2) == (ErrorCode.NONE, 1001, 0)  # the answer got lost
    assert bench.init(1000, 2**15 - 3)[0] is ErrorCode.PRODUCER_FENCED
    assert bench.init(999, 2**15 - 2)[0] is ErrorCode.PRODUCER_FENCED


def test_the_first_producer_id_of_all_is_one_that_is_known(bench: Bench) -> None:
    bench.ids = count(0)
    assert bench.init() == (ErrorCode.NONE, 0, 0)
    assert bench.init(0, 7)[0] is ErrorCode.PRODUCER_FENCED
    assert bench.init(0, 0) == (ErrorCode.NONE, 0, 1)


def test_only_the_last_epochs_of_an_exchanged_id_may_wait_for_an_end(bench: Bench) -> None:
    last = 2**15 - 2
    bench.init()
    bench.shard.transactions["t"] = replace(bench.shard.transactions["t"], producer_epoch=last)
    assert bench.init() == (ErrorCode.NONE, 1001, 0)
    bench.add(1001, 0, A)
    bench.crashes_before_markers = True
    bench.end(1001, 0)
    bench.crashes_before_markers = False
    assert bench.init(1000, last)[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bench.init(1000, last - 1)[0] is ErrorCode.PRODUCER_FENCED


def test_init_takes_the_whole_of_the_longest_time_and_an_id_or_none(bench: Bench) -> None:
    assert bench.init(timeout_ms=15 * MINUTE)[0] is ErrorCode.NONE
    assert bench.shard.transactions["t"].timeout_ms == 15 * MINUTE
    assert bench.init(timeout_ms=1)[0] is ErrorCode.NONE
    assert bench.shard.transactions["t"].timeout_ms == 1
    assert bench.init(-1, 0)[0] is ErrorCode.INVALID_REQUEST
    assert bench.init(0, 0, name="unknown") == (ErrorCode.NONE, 1001, 0)
    bench.now += 9
    bench.init()
    assert bench.shard.transactions["t"].updated_ms == bench.now


def test_a_tombstone_is_replayed_and_a_foreign_record_is_refused(bench: Bench) -> None:
    bench.init()
    with pytest.raises(ProtocolError, match="key of type 99"):
        bench.shard.replay(b"\x00\x63unknown", b"", now_ms=bench.now)
    assert list(bench.shard.transactions) == ["t"]
    bench.shard.is_late("t", 1000, 0, 3)
    key, _ = bench.log[0]
    bench.shard.replay(key, None, now_ms=bench.now)
    assert (bench.shard.transactions, bench.shard._last_epochs, bench.shard._connections) == ({}, {}, {})
    bench.shard.replay(key, None, now_ms=bench.now)


def test_a_tombstone_takes_the_deadline_of_an_open_transaction_with_it(bench: Bench) -> None:
    bench.init()
    bench.add(1000, 0, A)
    key, opened = bench.log[-1]
    bench.shard.replay(key, None, now_ms=bench.now)
    bench.now += MINUTE // 2
    bench.shard.replay(key, opened, now_ms=bench.now)
    bench.now += MINUTE - 1
    assert [outcome.records for outcome in bench.shard.tick(bench.now, wall_ms=bench.wall)] == []
    bench.now += 1
    assert len(list(bench.shard.tick(bench.now, wall_ms=bench.wall))) == 1


def test_an_id_at_rest_keeps_its_age_over_a_restart_and_is_never_of_the_future(bench: Bench) -> None:
    bench.init()
    for age_ms in (0, 400 * MINUTE):
        bench.now = 1_000_000 + age_ms
        bench.restart()
        assert bench.shard.next_deadline_ms() == 1_000_000 + 1000 * MINUTE
    bench.wall_is_ahead_by = -600 * MINUTE
    bench.restart()
    assert bench.shard.next_deadline_ms() == bench.now + 1000 * MINUTE


def test_no_request_waits_but_for_its_records(bench: Bench) -> None:
    bench.init()
    assert list(bench.shard.waiting()) == []


def test_the_epoch_before_is_remembered_for_the_state_that_was_written(bench: Bench) -> None:
    bench.init()
    bench.init(1000, 0)
    assert bench.shard.transactions["t"].last_producer_epoch == 0
    bench.restart()
    assert bench.shard.transactions["t"].last_producer_epoch == -1
    assert bench.init(1000, 0)[0] is ErrorCode.PRODUCER_FENCED  # not durable, as in Apache Kafka


def test_a_state_is_the_same_after_its_record_was_read() -> None:
    written = Transaction(
        transactional_id="t",
        producer_id=7,
        producer_epoch=3,
        previous_producer_id=5,
        next_producer_id=9,
        timeout_ms=MINUTE,
        state=State.PREPARE_COMMIT,
        partitions=(("a", 2), ("b", 0), ("b", 1)),
        start_ms=11,
        updated_ms=12,
        is_v2=True,
    )
    for changed in (written, replace(written, is_v2=False, state=State.ONGOING), replace(written, partitions=())):
        value = changed.to_record().value
        assert isinstance(value, TransactionLogValue)
        assert Transaction.from_value("t", value) == changed
    value = written.to_record().value
    assert isinstance(value, TransactionLogValue)
    assert value.client_transaction_version == 2
    old = replace(written, is_v2=False).to_record().value
    assert isinstance(old, TransactionLogValue)
    assert old.client_transaction_version == 0
    value.client_transaction_version = 1
    assert not Transaction.from_value("t", value).is_v2
    value.client_transaction_version = 3
    assert Transaction.from_value("t", value).is_v2
    empty = replace(written, state=State.EMPTY).to_record().value
    assert isinstance(empty, TransactionLogValue)
    assert empty.transaction_partitions is None


def test_the_defaults_are_those_of_apache_kafka() -> None:
    assert TransactionConfig() == TransactionConfig(max_timeout_ms=15 * MINUTE, id_expiration_ms=7 * 24 * 60 * MINUTE)
    assert (MARKER_RETRY_MS, ABORT_RETRY_MS) == (1_000, 1_000)
    assert [state for state in State if state.is_open] == [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT]
    assert [int(state) for state in State] == [0, 1, 2, 3, 4, 5, 6]
    assert State.DEAD.label == "Dead"
    fresh = Transaction(transactional_id="t", producer_id=1, timeout_ms=1, updated_ms=1)
    assert (fresh.producer_epoch, fresh.last_producer_epoch) == (-1, -1)
    assert (fresh.previous_producer_id, fresh.next_producer_id, fresh.start_ms) == (-1, -1, -1)
    assert not fresh.is_v2
    assert [replace(fresh, producer_epoch=epoch).is_epoch_exhausted for epoch in (2**15 - 3, 2**15 - 2)] == [
        False,
        True,
    ]


def test_producers_of_both_versions_walk_every_edge_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: set[tuple[State, State]] = set()
    write = TransactionShard._write

    def watched(shard: TransactionShard, outcome: TransactionOutcome, changed: Transaction) -> None:
        before = shard.transactions.get(changed.transactional_id)
        if before is not None:
            walked.add((before.state, changed.state))
        write(shard, outcome, changed)

    monkeypatch.setattr(TransactionShard, "_write", watched)
    chance = random.Random(5)
    bench = Bench()
    for _ in range(1_000):
        current = bench.shard.transactions.get("t")
        producer_id, epoch = (-1, -1) if current is None else (current.producer_id, current.producer_epoch)
        is_v2 = chance.random() < 0.5
        match chance.randrange(5):
            case 0:
                bench.init()
            case 1 if current is not None:
                bench.add(producer_id, epoch, chance.choice([A, B]), is_v2=is_v2)
            case 2 | 3 if current is not None:
                bench.end(producer_id, epoch, commit=chance.random() < 0.5, is_v2=is_v2)
            case _:
                bench.now += chance.choice([1_000, 2 * MINUTE])
                bench.tick()
    assert set(TRANSITIONS) == set(State)
    assert walked == {(state, after) for state, following in TRANSITIONS.items() for after in following}
    assert [state.label for state in State][:6] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ]
