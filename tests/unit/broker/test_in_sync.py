"""The leader's view of who is in sync, one rule each."""

from __future__ import annotations

from hailbus_broker.cluster.replication.in_sync import InSyncReplicas

LAG_MS = 1_000


def view(
    *, isr: tuple[int, ...] = (1, 2, 3), epoch_start_offset: int = 0, fenced: tuple[int, ...] = ()
) -> InSyncReplicas:
    return InSyncReplicas(
        node_id=1,
        leader_epoch=5,
        epoch_start_offset=epoch_start_offset,
        replicas=(1, 2, 3),
        isr=isr,
        partition_epoch=7,
        now_ms=10_000,
        is_eligible=lambda node_id, _: node_id not in fenced,
    )


def high_watermark(replicas: InSyncReplicas, own: int, end: int, now_ms: int = 10_000) -> int:
    return replicas.high_watermark(own, end, now_ms=now_ms, max_lag_ms=LAG_MS)


def test_the_slowest_in_sync_replica_decides() -> None:
    replicas = view()
    assert high_watermark(replicas, 10, 10) == -1, "nothing is known of the others yet"
    replicas.fetched(2, 1, 8, 10, 10_000)
    replicas.fetched(3, 1, 6, 10, 10_000)
    assert high_watermark(replicas, 10, 10) == 6
    assert high_watermark(replicas, 5, 10) == 5, "the leader's own disk counts, too"


def test_one_that_is_about_to_be_in_sync_is_waited_for() -> None:
    replicas = view(isr=(1, 2))
    replicas.fetched(2, 1, 10, 10, 10_000)
    replicas.fetched(3, 1, 6, 6, 10_000)
    assert high_watermark(replicas, 10, 10) == 6
    assert high_watermark(replicas, 10, 10, now_ms=10_000 + LAG_MS + 1) == 10, "not for ever"
    fenced = view(isr=(1, 2), fenced=(3,))
    fenced.fetched(2, 1, 10, 10, 10_000)
    fenced.fetched(3, 1, 6, 6, 10_000)
    assert high_watermark(fenced, 10, 10) == 10


def test_a_follower_that_lags_for_long_leaves() -> None:
    replicas = view()
    replicas.fetched(2, 1, 10, 10, 10_000)
    replicas.fetched(3, 1, 9, 10, 10_000)
    assert replicas.propose(9, 10, now_ms=10_000 + LAG_MS, max_lag_ms=LAG_MS) is None
    assert replicas.deadline_ms(10, max_lag_ms=LAG_MS) == 10_000 + LAG_MS + 1
    proposal = replicas.propose(9, 10, now_ms=10_000 + LAG_MS + 1, max_lag_ms=LAG_MS)
    assert proposal is not None
    assert dict(proposal.isr) == {1: -1, 2: 1}
    assert replicas.counted == {1, 2, 3}, "it has not left before the controller says so"
    assert replicas.propose(9, 10, now_ms=99_000, max_lag_ms=LAG_MS) is None, "one proposal at a time"
    replicas.committed(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=8, now_ms=20_000)
    assert replicas.counted == {1, 2}


def test_a_follower_that_has_left_stays_outside_until_it_fetches_again() -> None:
    replicas = view()
    for node_id in (2, 3):
        replicas.fetched(node_id, 1, 10, 10, 10_000)
    left_ms = 10_000 + LAG_MS + 1
    proposal = replicas.propose(10, 11, now_ms=left_ms, max_lag_ms=LAG_MS)
    assert proposal is not None
    replicas.committed(replicas=(1, 2, 3), isr=tuple(proposal.isr), partition_epoch=8, now_ms=left_ms)
    assert replicas.isr == (1,)
    # Too few replicas are in sync to commit anything, so the followers have all that is committed.
    assert replicas.propose(10, 11, now_ms=left_ms, max_lag_ms=LAG_MS) is None
    replicas.fetched(2, 1, 10, 11, left_ms + 5_000)
    again = replicas.propose(10, 11, now_ms=left_ms + 5_000, max_lag_ms=LAG_MS)
    assert again is not None
    assert dict(again.isr) == {1: -1, 2: 1}


def test_one_that_keeps_up_with_a_busy_leader_stays() -> None:
    replicas = view(isr=(1, 2))
    for number in range(1, 10):
        # It always has what was there at its fetch before, and never all of it.
        replicas.fetched(2, 1, 10 * number, 10 * (number + 1), 10_000 + 400 * number)
    now_ms = 10_000 + 400 * 9
    assert replicas.propose(90, 100, now_ms=now_ms, max_lag_ms=LAG_MS) is None


def test_a_follower_joins_with_all_that_is_committed_and_was_there_before() -> None:
    replicas = view(isr=(1,), epoch_start_offset=20)
    replicas.fetched(2, 4, 15, 30, 10_000)
    assert replicas.propose(10, 30, now_ms=10_000, max_lag_ms=LAG_MS) is None, "below the start of the epoch"
    replicas.fetched(2, 4, 20, 30, 10_000)
    assert replicas.propose(25, 30, now_ms=10_000, max_lag_ms=LAG_MS) is None, "below the high watermark"
    replicas.fetched(2, 4, 25, 30, 10_000)
    proposal = replicas.propose(25, 30, now_ms=10_000, max_lag_ms=LAG_MS)
    assert proposal is not None
    assert dict(proposal.isr) == {1: -1, 2: 4}
    assert high_watermark(replicas, 30, 30) == 25, "it counts from now on"
    replicas.failed(proposal)
    assert replicas.counted == {1}


def test_a_fenced_follower_does_not_join() -> None:
    replicas = view(isr=(1,), fenced=(2,))
    replicas.fetched(2, 4, 30, 30, 10_000)
    assert replicas.propose(30, 30, now_ms=10_000, max_lag_ms=LAG_MS) is None


def test_a_follower_that_was_started_anew_may_have_less() -> None:
    replicas = view(isr=(1, 2))
    replicas.fetched(2, 4, 30, 30, 10_000)
    replicas.fetched(2, 5, 12, 30, 10_001)
    assert high_watermark(replicas, 30, 30) == 12
    assert replicas.propose(30, 30, now_ms=10_001, max_lag_ms=LAG_MS) is not None, "it has not caught up"


def test_an_old_state_of_the_partition_is_ignored() -> None:
    replicas = view(isr=(1, 2))
    replicas.committed(replicas=(1, 2, 3), isr=(1,), partition_epoch=7, now_ms=10_000)
    assert replicas.isr == (1, 2)
    assert not replicas.fetched(9, 1, 5, 5, 10_000), "no replica of the partition"


def test_too_few_in_sync_replicas() -> None:
    assert view(isr=(1,)).is_under_min_isr(2)
    assert not view(isr=(1, 2)).is_under_min_isr(2)
    assert not view(isr=(1, 2, 3)).is_under_min_isr(5), "there are no more replicas than three"
