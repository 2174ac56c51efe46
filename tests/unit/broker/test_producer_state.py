"""What a partition remembers of its producers, question by question, and its snapshot byte by byte."""

from __future__ import annotations

from struct import pack

import pytest
from hailbus_broker.log.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from hailbus_broker.log.producer_state import CompletedTransaction, ProducerState, RememberedBatch
from hailbus_broker.records import crc32c

NOW = 1_700_000_000_000
LAST_SEQUENCE = 2**31 - 1
LAST_EPOCH = 2**15 - 1


def note(
    state: ProducerState,
    producer_id: int,
    base_sequence: int,
    base_offset: int,
    *,
    count: int = 1,
    epoch: int = 0,
    timestamp: int = NOW,
    transactional: bool = False,
) -> None:
    state.note_batch(
        producer_id,
        epoch,
        (base_sequence + count - 1) & LAST_SEQUENCE,
        base_offset + count - 1,
        count - 1,
        timestamp,
        is_transactional=transactional,
    )


def end(
    state: ProducerState,
    producer_id: int,
    offset: int,
    *,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    aborts: bool = False,
) -> CompletedTransaction | None:
    completed = state.note_marker(producer_id, epoch, coordinator_epoch, offset, NOW, is_aborted=aborts)
    if completed is not None:
        state.complete(completed)
    return completed


def check(
    state: ProducerState,
    producer_id: int,
    base_sequence: int,
    *,
    epoch: int = 0,
    transactional: bool = False,
    verified: bool = False,
) -> None:
    state.check(producer_id, epoch, base_sequence, is_transactional=transactional, is_verified=verified)


def follows(state: ProducerState, base_sequence: int, *, epoch: int = 0, transactional: bool = False) -> bool:
    return state.follows_plainly(1, epoch, base_sequence, is_transactional=transactional)


def test_a_remembered_batch_knows_where_it_begins() -> None:
    batch = RememberedBatch(last_sequence=12, last_offset=112, offset_delta=2, timestamp=NOW)
    assert (batch.base_sequence, batch.base_offset) == (10, 110)
    wrapped = RememberedBatch(last_sequence=1, last_offset=112, offset_delta=3, timestamp=NOW)
    assert wrapped.base_sequence == LAST_SEQUENCE - 1


def test_the_next_batch_follows_plainly_and_nothing_else_does() -> None:
    state = ProducerState()
    assert not follows(state, 0)
    end(state, 1, 4)  # a marker alone
    assert not follows(state, 0)
    note(state, 1, 0, 5, count=3)
    assert follows(state, 3)
    assert not follows(state, 2)
    assert not follows(state, 4)
    assert not follows(state, 0)
    assert not follows(state, 3, epoch=1)
    assert not follows(state, 3, transactional=True)
    note(state, 1, 3, 8, transactional=True)
    assert follows(state, 4, transactional=True)
    assert not follows(state, 4)


def test_the_first_sequence_follows_plainly_only_after_a_look() -> None:
    state = ProducerState()
    note(state, 1, 0, 0)
    state.producers[1].batches[0] = RememberedBatch(-1, 0, 0, NOW)
    assert not follows(state, 0)
    state.producers[1].batches[0] = RememberedBatch(0, 0, 0, NOW)
    assert follows(state, 1)


def test_the_last_five_batches_are_recognised_by_both_sequences() -> None:
    state = ProducerState()
    for number in range(6):
        note(state, 1, number * 2, number * 2, count=2, timestamp=NOW + number)
    assert state.find_duplicate(1, 0, 0, 1) is None
    for number in range(1, 6):
        assert state.find_duplicate(1, 0, number * 2, number * 2 + 1) == RememberedBatch(
            number * 2 + 1, number * 2 + 1, 1, NOW + number
        )
    assert state.find_duplicate(1, 0, 4, 4) is None
    assert state.find_duplicate(1, 0, 5, 5) is None
    assert state.find_duplicate(1, 1, 4, 5) is None
    assert state.find_duplicate(2, 0, 4, 5) is None


def test_an_unknown_producer_may_begin_with_any_sequence_but_not_in_an_unverified_transaction() -> None:
    state = ProducerState()
    check(state, 1, 17)
    check(state, 1, 17, transactional=True, verified=True)
    with pytest.raises(InvalidTransactionStateError, match="does not know"):
        check(state, 1, 17, transactional=True)


def test_a_sequence_follows_the_last_one() -> None:
    state = ProducerState()
    note(state, 1, 5, 0, count=3)
    check(state, 1, 8)
    for wrong in (7, 9, 0):
        with pytest.raises(OutOfOrderSequenceError, match=f"writes sequence {wrong} after 7 in epoch 0"):
            check(state, 1, wrong)
    check(state, 1, -1)  # without a number: what a group coordinator writes
    note(state, 1, LAST_SEQUENCE, 3)
    check(state, 1, 0)
    with pytest.raises(OutOfOrderSequenceError):
        check(state, 1, 1)


def test_an_epoch_begins_with_sequence_zero_and_ends_the_one_before() -> None:
    state = ProducerState()
    note(state, 1, 0, 0, epoch=4)
    with pytest.raises(InvalidProducerEpochError, match="writes with epoch 3, but 4 was seen"):
        check(state, 1, 1, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        check(state, 1, -1, epoch=3)
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 5 with sequence 1 instead of 0"):
        check(state, 1, 1, epoch=5)
    check(state, 1, 0, epoch=5)
    note(state, 1, 0, 1, epoch=5)
    assert [batch.last_offset for batch in state.producers[1].batches] == [1]
    assert state.find_duplicate(1, 4, 0, 0) is None


def test_a_producer_that_was_known_without_an_epoch_may_begin_anywhere() -> None:
    state = ProducerState()
    note(state, 1, 3, 0, epoch=-1)
    check(state, 1, 7, epoch=0)


def test_data_stays_within_its_open_transaction() -> None:
    state = ProducerState()
    note(state, 1, 0, 0)
    with pytest.raises(InvalidTransactionStateError, match="does not know"):
        check(state, 1, 1, transactional=True)
    check(state, 1, 1, transactional=True, verified=True)
    note(state, 1, 1, 1, transactional=True)
    check(state, 1, 2, transactional=True)  # known to be open
    with pytest.raises(InvalidTransactionStateError, match="open since offset 1"):
        check(state, 1, 2)
    end(state, 1, 2)
    check(state, 1, 2)


def test_markers_of_older_epochs_and_coordinators_are_fenced() -> None:
    state = ProducerState()
    state.check_marker(1, 0, 0)
    note(state, 1, 0, 0, epoch=4, transactional=True)
    state.check_marker(1, 4, 0)
    state.check_marker(1, 5, 0, must_be_newer=True)
    with pytest.raises(InvalidProducerEpochError, match="has epoch 3, but 4 was seen"):
        state.check_marker(1, 3, 0)
    with pytest.raises(InvalidProducerEpochError):
        state.check_marker(1, 4, 0, must_be_newer=True)
    end(state, 1, 1, epoch=4, coordinator_epoch=7)
    state.check_marker(1, 4, 7, must_be_newer=True)  # nothing is open: the marker says nothing new
    state.check_marker(1, 4, 8)
    with pytest.raises(TransactionCoordinatorFencedError, match="coordinator epoch 6, but 7 has written one"):
        state.check_marker(1, 4, 6)


def test_the_last_epoch_of_all_ends_its_own_transaction() -> None:
    state = ProducerState()
    note(state, 1, 0, 0, epoch=LAST_EPOCH, transactional=True)
    state.check_marker(1, LAST_EPOCH, 0, must_be_newer=True)
    other = ProducerState()
    note(other, 1, 0, 0, epoch=LAST_EPOCH - 1, transactional=True)
    with pytest.raises(InvalidProducerEpochError):
        other.check_marker(1, LAST_EPOCH - 1, 0, must_be_newer=True)


def test_the_first_unstable_offset_is_that_of_the_oldest_transaction_until_its_marker_is_safe() -> None:
    state = ProducerState()
    assert (state.has_transactions, state.first_unstable_offset()) == (False, None)
    note(state, 1, 0, 10, count=2, transactional=True)
    note(state, 2, 0, 12, transactional=True)
    note(state, 1, 2, 13, transactional=True)
    assert state.open_transactions == {1: 10, 2: 12}
    assert (state.has_transactions, state.first_unstable_offset()) == (True, 10)
    first = end(state, 1, 14, aborts=True)
    assert first == CompletedTransaction(producer_id=1, first_offset=10, last_offset=14, is_aborted=True)
    assert state.open_transactions == {2: 12}
    assert state.first_unstable_offset() == 10
    state.high_watermark_moved(14)
    assert state.first_unstable_offset() == 10
    state.high_watermark_moved(15)
    assert state.first_unstable_offset() == 12
    second = end(state, 2, 15)
    assert second == CompletedTransaction(producer_id=2, first_offset=12, last_offset=15, is_aborted=False)
    assert (state.has_transactions, state.first_unstable_offset()) == (True, 12)
    state.high_watermark_moved(99)
    assert (state.has_transactions, state.first_unstable_offset()) == (False, None)
    assert end(state, 2, 16) is None


def test_the_oldest_of_several_transactions_whose_markers_are_not_safe_counts() -> None:
    state = ProducerState()
    note(state, 1, 0, 10, transactional=True)
    note(state, 2, 0, 11, transactional=True)
    end(state, 2, 12)
    end(state, 1, 13)
    assert state.first_unstable_offset() == 10
    state.high_watermark_moved(13)
    assert state.first_unstable_offset() == 10
    state.high_watermark_moved(14)
    assert state.first_unstable_offset() is None


def test_a_transaction_whose_marker_is_safe_holds_nothing_back_beside_one_whose_marker_is_not() -> None:
    state = ProducerState()
    note(state, 1, 0, 10, transactional=True)
    note(state, 2, 0, 11, transactional=True)
    end(state, 1, 12)
    end(state, 2, 13)
    state.high_watermark_moved(13)
    assert state.first_unstable_offset() == 11


def test_a_producer_that_must_begin_at_zero_does() -> None:
    state = ProducerState()
    with pytest.raises(OutOfOrderSequenceError, match="begins with sequence 1 instead of 0"):
        state.check(1, 0, 1, is_transactional=True, is_verified=True, must_begin_at_zero=True)
    state.check(1, 0, 0, is_transactional=True, is_verified=True, must_begin_at_zero=True)


def test_the_last_stable_offset_of_an_aborted_transaction_is_where_the_next_one_began() -> None:
    state = ProducerState()
    note(state, 1, 0, 10, transactional=True)
    alone = CompletedTransaction(producer_id=1, first_offset=10, last_offset=14, is_aborted=True)
    assert state.last_stable_offset_without(alone) == 15
    note(state, 2, 0, 11, transactional=True)
    note(state, 3, 0, 12, transactional=True)
    assert state.last_stable_offset_without(alone) == 11


def test_markers_that_are_left_after_a_truncation_hold_the_last_stable_offset_back() -> None:
    before, after = ProducerState(), ProducerState()
    for producer, offset in ((1, 10), (2, 20)):
        note(before, producer, 0, offset, transactional=True)
        end(before, producer, offset + 1)
    after.keep_unreplicated_of(before, 21)  # the second marker is cut off
    assert after.first_unstable_offset() == 10
    after.high_watermark_moved(12)
    assert after.first_unstable_offset() is None


def test_an_open_transaction_belongs_to_its_epoch() -> None:
    state = ProducerState()
    assert not state.has_open_transaction(1, 0)
    assert state.needs_marker(1, 0)
    note(state, 1, 0, 0, epoch=3)
    assert not state.has_open_transaction(1, 3)
    assert not state.needs_marker(1, 3)
    note(state, 1, 1, 1, epoch=3, transactional=True)
    assert state.has_open_transaction(1, 3)
    assert not state.has_open_transaction(1, 2)
    assert not state.has_open_transaction(1, 4)
    assert state.needs_marker(1, 3)
    assert state.needs_marker(1, 4)
    assert not state.needs_marker(1, 2)
    end(state, 1, 2, epoch=3)
    assert not state.has_open_transaction(1, 3)
    assert not state.needs_marker(1, 3)
    assert state.needs_marker(1, 4)


def test_a_marker_of_a_new_epoch_forgets_the_batches_of_the_one_before() -> None:
    state = ProducerState()
    note(state, 1, 0, 0, epoch=3)
    end(state, 1, 1, epoch=3)
    assert state.last_data_offsets() == {1: 0}
    end(state, 1, 2, epoch=4, coordinator_epoch=6)
    assert state.last_data_offsets() == {1: -1}
    (active,) = state.active_producers()
    assert tuple(active) == (1, 4, -1, NOW, 6, -1)
    check(state, 1, 0, epoch=4)
    with pytest.raises(OutOfOrderSequenceError, match="sequence 1 after -1"):
        check(state, 1, 1, epoch=4)


def test_producers_are_listed_by_id() -> None:
    state = ProducerState()
    note(state, 2, 4, 10, count=3, epoch=1, timestamp=NOW + 1, transactional=True)
    note(state, 1, 0, 13, timestamp=NOW + 2)
    end(state, 1, 14, coordinator_epoch=9)
    assert [tuple(active) for active in state.active_producers()] == [(1, 0, 0, NOW, 9, -1), (2, 1, 6, NOW + 1, -1, 10)]
    assert state.last_data_offsets() == {2: 12, 1: 13}


def test_a_producer_that_is_silent_is_forgotten_but_not_within_a_transaction() -> None:
    state = ProducerState()
    note(state, 1, 0, 0, timestamp=1_000)
    note(state, 2, 0, 1, timestamp=1_001)
    note(state, 3, 0, 2, timestamp=1_000, transactional=True)
    assert state.expire(now_ms=1_999, after_ms=1_000) == 0
    assert state.expire(now_ms=2_000, after_ms=1_000) == 1
    assert sorted(state.producers) == [2, 3]
    assert state.expire(now_ms=9_000, after_ms=1_000) == 1
    assert sorted(state.producers) == [3]


# ---- snapshots


def snapshot(*entries: tuple[int, int, int, int, int, int, int, int], version: int = 1) -> bytes:
    """The layout of Apache Kafka's file: see the module's docstring."""
    body = pack(">i", len(entries)) + b"".join(pack(">qhiqiqiq", *entry) for entry in entries)
    return pack(">hI", version, crc32c(body)) + body


SEVERAL = snapshot(
    (7, 2, 41, 140, 3, NOW, 5, 137), (3, 0, -1, -1, 0, NOW - 1, 4, -1), (4, 1, 9, 99, 0, NOW - 2, -1, 99)
)


def test_a_snapshot_is_written_as_apache_kafka_writes_it() -> None:
    state = ProducerState()
    end(state, 7, 100, epoch=2, coordinator_epoch=5)
    note(state, 7, 30, 120, count=8, epoch=2)
    note(state, 7, 38, 137, count=4, epoch=2, transactional=True)
    state.note_marker(3, 0, 4, 136, NOW - 1, is_aborted=True)
    note(state, 4, 9, 99, epoch=1, timestamp=NOW - 2, transactional=True)
    assert state.to_snapshot() == SEVERAL
    assert ProducerState().to_snapshot() == snapshot()


def test_a_snapshot_is_read_with_the_last_batch_of_each_producer() -> None:
    state = ProducerState.from_snapshot(SEVERAL)
    assert state is not None
    assert state.to_snapshot() == SEVERAL
    assert list(state.open_transactions.items()) == [(4, 99), (7, 137)]
    assert state.first_unstable_offset() == 99
    assert state.producers[7].batches == [RememberedBatch(41, 140, 3, NOW)]
    assert state.producers[3].batches == []
    assert [tuple(active) for active in state.active_producers()] == [
        (3, 0, -1, NOW - 1, 4, -1),
        (4, 1, 9, NOW - 2, -1, 99),
        (7, 2, 41, NOW, 5, 137),
    ]


@pytest.mark.parametrize("length", range(len(SEVERAL)))
def test_a_torn_snapshot_is_none(length: int) -> None:
    assert ProducerState.from_snapshot(SEVERAL[:length]) is None


def test_a_snapshot_with_a_changed_byte_or_another_version_is_none() -> None:
    for position in range(len(SEVERAL)):
        changed = bytearray(SEVERAL)
        changed[position] ^= 1
        assert ProducerState.from_snapshot(bytes(changed)) is None, position
    assert ProducerState.from_snapshot(SEVERAL + b"\0") is None
    assert ProducerState.from_snapshot(snapshot((1, 0, 0, 0, 0, NOW, 0, -1), version=2)) is None
    assert ProducerState.from_snapshot(snapshot((1, 0, 0, 0, 0, NOW, 0, -1), version=0)) is None
