"""Token buckets of the callers."""

from booking.adapters.http.rate_limit import RateLimit
from booking.domain.caller import Caller, Role

ONE, OTHER = (Caller(role=Role.RIDER, subject=subject) for subject in ("r1", "r2"))


def test_a_burst_then_the_rate() -> None:
    limit = RateLimit(per_s=2.0, burst=3)
    assert [limit.take(ONE, 100.0) for _ in range(5)] == [0, 0, 0, 1, 1]
    assert limit.take(OTHER, 100.0) == 0  # each caller has a bucket
    assert [limit.take(ONE, 100.5) for _ in range(2)] == [0, 1]
    assert [limit.take(ONE, 1_000.0) for _ in range(4)] == [0, 0, 0, 1]  # never more than the burst


def test_the_wait_is_as_long_as_needed() -> None:
    limit = RateLimit(per_s=0.1, burst=1)
    assert limit.take(ONE, 0.0) == 0
    assert limit.take(ONE, 0.0) == 10
    assert limit.take(ONE, 9.0) == 1
    assert limit.take(ONE, 10.0) == 0


def test_time_that_goes_back_fills_no_bucket() -> None:
    limit = RateLimit(per_s=1.0, burst=1)
    assert [limit.take(ONE, at) for at in (100.0, 50.0, 100.0, 50.0, 100.9, 101.0)] == [0, 1, 1, 1, 1, 0]


def test_the_same_requests_at_the_same_times_have_the_same_outcome() -> None:
    times = [number * 0.3 for number in range(50)]
    outcomes = []
    for _ in range(2):
        limit = RateLimit(per_s=1.0, burst=5)
        outcomes.append([limit.take(ONE, at) for at in times])
    assert outcomes[0] == outcomes[1]
    assert 0 < sum(wait > 0 for wait in outcomes[0]) < 50


def test_the_number_of_buckets_is_bounded() -> None:
    limit = RateLimit(per_s=1.0, burst=1, callers_max=10)
    for number in range(1_000):
        limit.take(Caller(role=Role.RIDER, subject=str(number)), 0.0)
    assert len(limit._buckets) == 10
    assert limit.take(Caller(role=Role.RIDER, subject="999"), 0.0) == 1
