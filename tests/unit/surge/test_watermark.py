"""Which partitions are waited for."""

from surge.domain.watermark import Watermark


def test_the_slowest_partition_decides() -> None:
    watermark = Watermark(lateness_ms=30_000, idle_after_ms=3_000)
    watermark.assign(["a", "b"], now_ms=0)
    watermark.observe("a", 1_000_000, now_ms=10)
    assert watermark.current(now_ms=10) is None  # b may hold anything
    watermark.observe("b", 100_000, now_ms=20)
    assert watermark.current(now_ms=20) == 70_000


def test_an_idle_partition_is_not_waited_for() -> None:
    watermark = Watermark(lateness_ms=30_000, idle_after_ms=3_000)
    watermark.assign(["a", "b", "c"], now_ms=0)
    watermark.observe("b", 100_000, now_ms=0)
    for now_ms in range(0, 3_000, 500):
        watermark.observe("a", 1_000_000 + now_ms, now_ms=now_ms)
        assert watermark.current(now_ms=now_ms) is None  # c may hold anything
    watermark.observe("a", 1_003_000, now_ms=3_000)
    assert watermark.current(now_ms=3_000) == 973_000


def test_a_silence_of_all_makes_none_of_them_late() -> None:
    watermark = Watermark(lateness_ms=30_000, idle_after_ms=3_000)
    watermark.assign(["a", "b"], now_ms=0)
    watermark.observe("a", 100_000, now_ms=0)
    watermark.observe("b", 100_000, now_ms=0)
    assert watermark.current(now_ms=2_900) == 70_000
    watermark.observe("a", 900_000, now_ms=2_900)  # the broker is back, and b is read a moment later
    assert watermark.current(now_ms=3_100) == 70_000
    watermark.observe("b", 200_000, now_ms=3_200)
    assert watermark.current(now_ms=3_200) == 170_000
    watermark.observe("a", 950_000, now_ms=60_000)  # and after a silence of a minute just the same
    assert watermark.current(now_ms=60_000) == 170_000


def test_silence_of_all_means_that_all_was_read() -> None:
    watermark = Watermark(lateness_ms=0, idle_after_ms=3_000)
    watermark.assign(["a", "b"], now_ms=0)
    watermark.observe("a", 500, now_ms=10)
    assert watermark.current(now_ms=3_009) is None
    assert not watermark.is_idle(now_ms=3_009)
    assert watermark.current(now_ms=3_010) == 500
    assert watermark.is_idle(now_ms=3_010)


def test_it_never_retreats_and_all_idle_means_all_read() -> None:
    watermark = Watermark(lateness_ms=0, idle_after_ms=3_000)
    watermark.observe("a", 500, now_ms=0)
    assert watermark.current(now_ms=0) == 500
    watermark.observe("b", 100, now_ms=1)
    assert watermark.current(now_ms=1) == 500
    watermark.observe("b", 900, now_ms=2)
    assert watermark.current(now_ms=5_000) == 900


def test_revoked_partitions_are_forgotten() -> None:
    watermark = Watermark(lateness_ms=0, idle_after_ms=3_000)
    watermark.assign(["a", "b"], now_ms=0)
    watermark.observe("a", 500, now_ms=0)
    watermark.observe("b", 900, now_ms=0)
    watermark.assign(["b"], now_ms=1)
    assert watermark.current(now_ms=1) == 900


def test_a_restored_watermark_goes_on_where_it_was() -> None:
    watermark = Watermark(lateness_ms=0, idle_after_ms=3_000)
    watermark.assign(["a"], now_ms=0)
    watermark.restore({"a": 800}, floor_ms=600)
    assert watermark.current(now_ms=0) == 600
    assert watermark.current(now_ms=3_000) == 800


def test_a_partition_that_is_known_to_hold_more_is_waited_for_longer_but_not_for_ever() -> None:
    watermark = Watermark(lateness_ms=0, idle_after_ms=3_000)
    watermark.assign(["a", "b"], now_ms=0)
    watermark.observe("b", 200, now_ms=0)
    watermark.observe("a", 900, now_ms=0)
    assert watermark.current(now_ms=29_999, behind=["b"]) == 200
    assert watermark.current(now_ms=30_000, behind=["b"]) == 900
