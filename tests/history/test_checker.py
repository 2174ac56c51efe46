"""The checker finds each kind of broken promise, and nothing in a sound history."""

from dataclasses import replace

import pytest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.history import (
    CHECKS,
    Acked,
    Attempted,
    Committed,
    Deleted,
    End,
    History,
    Identified,
    KeyRead,
    KeyWrite,
    Listed,
    Owned,
    Polled,
    Sent,
    Stored,
    TimeLookup,
    Watermark,
    consume_counts,
    outcome_of_refusal,
    violations,
)


def sent(value: int, offset: int | None, **more: object) -> Sent:
    base = Sent(process="p", partition=0, value=value, outcome="ok" if offset is not None else "unknown", offset=offset)
    return replace(base, **more)  # type: ignore[arg-type]  # the fields are named by each test


def read(value: int, offset: int, *, process: str = "c", life: int = 0, **more: object) -> Polled:
    base = Polled(process=process, life=life, partition=0, offset=offset, value=value)
    return replace(base, **more)  # type: ignore[arg-type]  # the fields are named by each test


def moved(value: int, offset: int, *, op: int = 3, process: str = "c", life: int = 0) -> Polled:
    """A record for a subscribed consumer, of its third poll."""
    return read(value, offset, is_subscribed=True, op=op, process=process, life=life)


def given(owner: str, producer_id: int) -> Identified:
    return Identified(owner=owner, producer_id=producer_id)


def listed(*values: int, process: str = "l") -> Listed:
    return Listed(process=process, partition=0, values=values)


def commit(offset: int, *, is_read: bool = False, outcome: End = "ok") -> Committed:
    return Committed(group="g", partition=0, offset=offset, is_read=is_read, outcome=outcome)


def stored(base: int, sequence: int, *, count: int = 1, epoch: int = 0, marker: object = None) -> Stored:
    return Stored(
        partition=0,
        base_offset=base,
        last_offset=base + count - 1,
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
        marker=marker,  # type: ignore[arg-type]  # the tests name the two kinds
    )


def mark(asked_at: int, high: int, *, stable: int | None = None, start: int = 0, place: int = 0) -> Watermark:
    return Watermark(
        place=("t", place),
        asked_at=asked_at,
        answered_at=asked_at + 1,
        log_start=start,
        last_stable=high if stable is None else stable,
        high=high,
    )


def wrote(key: str, value: int | None, offset: int | None, outcome: End = "ok") -> KeyWrite:
    return KeyWrite(key=key, value=value, outcome=outcome, offset=offset)


def saw(key: str, value: int | None, offset: int) -> KeyRead:
    return KeyRead(partition=0, key=key, value=value, offset=offset)


def attempt(number: int, *, producer_id: int = 7, is_written: bool = True) -> Attempted:
    places = frozenset({0})
    return Attempted(
        number=number, producer_id=producer_id, partitions=places, written=places if is_written else frozenset()
    )


SOUND = History(
    sent=[sent(10, 0), sent(11, 1), sent(12, None), sent(20, 3, transaction=1), sent(21, 5, transaction=2)],
    polled=[read(10, 0), read(11, 1), read(12, 2), read(20, 3), read(10, 0, life=1)],
    final=[read(10, 0), read(11, 1), read(12, 2), read(20, 3)],
    transactions={1: "ok", 2: "fail"},
    offsets=[commit(3), commit(3, is_read=True), commit(5, outcome="unknown"), commit(5, is_read=True)],
    copied=[read(10, 0), read(11, 1)],
    stored=[
        stored(0, 0, count=2),
        stored(2, 2),
        stored(3, -1, marker="commit"),
        stored(4, 0, epoch=1),
        stored(5, -1, epoch=1, marker="abort"),
    ],
    # The second life, and then the other member, resume where the last commit was: before what was handed over last.
    handed=[
        moved(10, 0, op=1),
        moved(11, 1, op=2),
        moved(11, 1, op=3, life=1),
        moved(12, 2, op=3, life=1),
        moved(12, 2, op=4, process="other"),
        moved(20, 3, op=4, process="other"),
    ],
    lists=[listed(), listed(10, 11), listed(10, process="k"), listed(10, 11), listed(10, 11, 12)],
    uncommitted=[read(10, 0), read(21, 5)],
    raw=[read(10, 0), read(11, 1), read(12, 2), read(20, 3), read(21, 5)],
    again=[read(10, 0), read(11, 1), read(12, 2), read(20, 3)],
    # The second was asked before the first was answered, and may be older.
    watermarks=[
        mark(1, 5, stable=4),
        mark(1, 3),
        mark(3, 5, stable=4),
        mark(5, 9, stable=4, start=2),
        mark(6, 1, place=1),
    ],
    # Only the last of these marks was asked for after the acknowledgement.
    acked=[
        Acked(place=("t", 1), last_offset=0, answered_at=2),
        Acked(place=("t", 0), last_offset=8, answered_at=5),
        Acked(place=("t", 0), last_offset=20, answered_at=8),
    ],
    deleted=[Deleted(place=("t", 0), offset=2, answered_at=4)],
    owned=[
        Owned(group="g", generation=1, member="a", partitions=(0, 1)),
        Owned(group="g", generation=2, member="a", partitions=(0,)),
        Owned(group="g", generation=2, member="b", partitions=(1,)),
        Owned(group="h", generation=2, member="c", partitions=(0, 1)),
    ],
    lookups=[
        TimeLookup(op=1, partition=0, timestamp=100, offset=2),
        TimeLookup(op=1, partition=0, timestamp=200, offset=2),
        TimeLookup(op=1, partition=0, timestamp=300, offset=-1),
        TimeLookup(op=2, partition=0, timestamp=300, offset=1),
    ],
    key_writes=[
        wrote("k", 1, 0),
        wrote("k", 2, 3),
        wrote("gone", 5, 1),
        wrote("gone", None, 4),
        wrote("maybe", 6, None, "unknown"),
        wrote("k", 9, 6, "fail"),
    ],
    key_reads={
        "early": [saw("k", 1, 0), saw("gone", 5, 1), saw("k", 2, 3), saw("gone", None, 4)],
        "late": [saw("k", 2, 3), saw("maybe", 6, 5)],
    },
    attempted=[attempt(1), attempt(2)],
    # A transactional id keeps its producer id when it is asked for again.
    identified=[given("shop", 7), given("shop", 7), given("request 1", 8)],
)


def test_a_sound_history_has_no_violations() -> None:
    assert violations(SOUND) == {}


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("inconsistent_offsets", replace(SOUND, polled=[read(12, 0)])),
        ("duplicates", replace(SOUND, polled=[read(10, 0), read(10, 4)])),
        ("lost_writes", replace(SOUND, sent=[*SOUND.sent, sent(13, 2)])),
        ("unseen", replace(SOUND, sent=[*SOUND.sent, sent(13, 9)])),
        ("aborted_reads", replace(SOUND, final=[*SOUND.final, read(21, 5)])),
        (
            "aborted_reads",
            replace(SOUND, sent=[*SOUND.sent, sent(14, None, outcome="fail")], final=[*SOUND.final, read(14, 7)]),
        ),
        (
            "torn_transactions",
            replace(
                SOUND,
                sent=[*SOUND.sent, sent(30, 6, transaction=3), sent(31, 7, transaction=3)],
                final=[*SOUND.final, read(30, 6)],
                transactions={**SOUND.transactions, 3: "unknown"},
            ),
        ),
        ("never_written", replace(SOUND, final=[*SOUND.final, read(99, 8)])),
        ("vanished_reads", replace(SOUND, polled=[*SOUND.polled, moved(13, 9)])),
        (
            "vanished_reads",  # even if nobody was told that it is in the log
            replace(SOUND, sent=[*SOUND.sent, sent(13, None)], polled=[*SOUND.polled, moved(13, 9)]),
        ),
        ("incompatible_order", replace(SOUND, lists=[listed(10, 12)])),
        ("incompatible_order", replace(SOUND, lists=[listed(10, 11, 12, 20, 13)])),
        ("incompatible_order", replace(SOUND, lists=[listed(10, 11, 12), listed(10, 11)])),
        ("incompatible_order", replace(SOUND, lists=[listed(10, 12), listed(10, 11, 12)])),
        # The first life began behind the first record.
        ("auto_commit_skips", replace(SOUND, handed=[moved(11, 1)])),
        # The next life resumes behind a record of which the one before only heard that it is there.
        ("auto_commit_skips", replace(SOUND, handed=[moved(10, 0), moved(12, 2, life=1)])),
        # The same where the partition moves to another member, and where one poll passes over a record.
        ("auto_commit_skips", replace(SOUND, handed=[moved(10, 0), moved(12, 2, process="other")])),
        ("auto_commit_skips", replace(SOUND, handed=[moved(10, 0), moved(12, 2)])),
        # It is too late when a later life is handed the record after all.
        ("auto_commit_skips", replace(SOUND, handed=[moved(10, 0), moved(12, 2, life=1), moved(11, 1, life=2)])),
        ("poll_order", replace(SOUND, polled=[read(11, 1), read(10, 0)])),
        ("poll_order", replace(SOUND, polled=[read(10, 0), read(12, 2)])),
        (
            "poll_order",
            replace(SOUND, polled=[read(11, 1, is_subscribed=True, op=3), read(10, 0, is_subscribed=True, op=3)]),
        ),
        (
            "poll_order",
            replace(SOUND, polled=[read(10, 0, is_subscribed=True, op=3), read(12, 2, is_subscribed=True, op=3)]),
        ),
        (
            "lost_writes",  # part of a transaction without an answer was read: the rest must be there, too
            replace(
                SOUND,
                sent=[*SOUND.sent, sent(30, 2, transaction=3), sent(31, 6, transaction=3)],
                polled=[*SOUND.polled, read(31, 6, life=2, is_subscribed=True)],
                transactions={**SOUND.transactions, 3: "unknown"},
            ),
        ),
        ("precommitted_reads", replace(SOUND, polled=[read(20, 3, transaction=1, is_subscribed=True)])),
        (
            "information_cycles",
            replace(
                SOUND,
                sent=[*SOUND.sent, sent(30, 6, transaction=3)],
                polled=[
                    read(30, 6, transaction=1, is_subscribed=True),
                    read(20, 3, transaction=3, is_subscribed=True, op=1),
                ],
                transactions={**SOUND.transactions, 3: "ok"},
            ),
        ),
        ("lost_commits", replace(SOUND, offsets=[commit(3), commit(5), commit(3, is_read=True)])),
        ("lost_commits", replace(SOUND, offsets=[commit(3), commit(-1, is_read=True)])),
        ("lost_commits", replace(SOUND, offsets=[commit(3), commit(4, is_read=True)])),
        ("inexact_copies", replace(SOUND, copied=[read(10, 0), read(10, 1)])),
        ("inexact_copies", replace(SOUND, copied=[read(11, 0)])),
        ("inexact_copies", replace(SOUND, copied=[*SOUND.final, read(99, 9)])),
        ("broken_sequences", replace(SOUND, stored=[stored(0, 0), stored(1, 2), stored(2, -1, marker="abort")])),
        ("broken_sequences", replace(SOUND, stored=[stored(0, 0), stored(1, 0), stored(2, -1, marker="abort")])),
        (
            "broken_sequences",
            replace(SOUND, stored=[stored(0, 0, epoch=2), stored(1, 0, epoch=1), stored(2, -1, marker="abort")]),
        ),
        ("missing_markers", replace(SOUND, stored=[stored(0, 0)])),
        ("nonmonotonic_sends", replace(SOUND, sent=[sent(11, 1), sent(10, 0), *SOUND.sent[2:]])),
        ("uncommitted_reads_vanish", replace(SOUND, uncommitted=[read(13, 6)])),
        ("uncommitted_reads_vanish", replace(SOUND, uncommitted=[read(11, 0)])),
        ("changed_by_restart", replace(SOUND, again=SOUND.final[:-1])),
        ("changed_by_restart", replace(SOUND, again=[*SOUND.final, read(21, 5)])),
        ("retreating_watermarks", replace(SOUND, watermarks=[mark(1, 5), mark(3, 4)])),
        ("retreating_watermarks", replace(SOUND, watermarks=[mark(1, 5), mark(3, 6, stable=4)])),
        ("retreating_watermarks", replace(SOUND, watermarks=[mark(1, 5, start=2), mark(3, 5)])),
        ("retreating_watermarks", replace(SOUND, watermarks=[mark(1, 5, stable=6)])),
        ("uncovered_acks", replace(SOUND, acked=[Acked(place=("t", 0), last_offset=9, answered_at=4)])),
        ("deleted_records_return", replace(SOUND, watermarks=[mark(5, 9, start=1)])),
        (
            "shared_partitions",
            replace(SOUND, owned=[*SOUND.owned, Owned(group="g", generation=2, member="c", partitions=(1,))]),
        ),
        (
            "unordered_times",
            replace(SOUND, lookups=[*SOUND.lookups, TimeLookup(op=2, partition=0, timestamp=400, offset=0)]),
        ),
        (
            "unordered_times",
            replace(SOUND, lookups=[*SOUND.lookups, TimeLookup(op=2, partition=0, timestamp=200, offset=-1)]),
        ),
        ("stale_keys", replace(SOUND, key_reads={"late": [saw("k", 1, 0)]})),
        ("stale_keys", replace(SOUND, key_reads={"late": []})),
        ("stale_keys", replace(SOUND, key_reads={"late": [saw("gone", 5, 1), saw("k", 2, 3)]})),
        ("stale_keys", replace(SOUND, key_reads={"late": [saw("k", 2, 3), saw("k", 9, 6)]})),
        ("stale_keys", replace(SOUND, key_reads={"late": [saw("k", 2, 3), saw("k", 8, 6)]})),
        ("stale_keys", replace(SOUND, key_reads={"late": [saw("k", 2, 3), saw("maybe", 6, 2)]})),
        ("unmatched_markers", replace(SOUND, attempted=[attempt(1), attempt(2), attempt(1)])),
        (
            "unmatched_markers",  # the transaction was aborted
            replace(SOUND, transactions={1: "fail", 2: "fail"}),
        ),
        ("unmatched_markers", replace(SOUND, attempted=[attempt(1)])),
        ("shared_producer_ids", replace(SOUND, identified=[*SOUND.identified, given("request 2", 7)])),
    ],
)
def test_each_broken_promise_is_found(name: str, broken: History) -> None:
    assert name in violations(broken)


def test_a_subscribed_consumer_may_jump_between_polls() -> None:
    assert violations(replace(SOUND, polled=[moved(12, 2, op=1), moved(10, 0, op=2)])) == {}


def test_a_refusal_after_the_append_leaves_the_outcome_open() -> None:
    """A batch whose sync failed may be read later; one whose sequence was refused may not."""

    def later_read_after(code: ErrorCode) -> dict[str, list[str]]:
        refused = sent(14, None, outcome=outcome_of_refusal(code))
        found = read(14, 7)
        return violations(
            replace(
                SOUND,
                sent=[*SOUND.sent, refused],
                final=[*SOUND.final, found],
                again=[*SOUND.final, found],
                raw=[*SOUND.raw, found],
            )
        )

    for code in (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ):
        assert later_read_after(code) == {}
    for code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert later_read_after(code) == {"aborted_reads": ["14 of transaction None (fail)"]}


def test_how_often_values_were_read() -> None:
    assert consume_counts(SOUND) == {1: 3, 2: 1}


def test_every_check_is_known_to_fail() -> None:
    """Each check is named by a history above that breaks it."""
    cases = test_each_broken_promise_is_found.pytestmark[0].args[1]  # type: ignore[attr-defined]  # pytest sets it
    assert {name for name, _ in cases} == {check.__name__ for check in CHECKS}
