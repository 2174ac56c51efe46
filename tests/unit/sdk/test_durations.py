"""Durations are counted by bucket, topic and error."""

import pytest
from hailbus.durations import BOUNDS_S, Durations, Histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.005, 0), (0.0051, 1), (1.0, 9), (10.0, 13), (10.1, 14), (3600.0, 14)]
)
def test_a_bound_belongs_to_its_bucket(seconds: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.observe(seconds)
    assert [index for index, count in enumerate(histogram.counts) if count] == [bucket]


def test_prometheus_sees_cumulative_counts() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.002, 0.3, 20.0):
        histogram.observe(seconds)
    buckets = dict(histogram.cumulative())
    assert (buckets["0.005"], buckets["0.25"], buckets["0.5"], buckets["10.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert len(buckets) == len(BOUNDS_S) + 1
    assert histogram.count == 4
    assert histogram.sum_s == pytest.approx(20.303)


def test_topics_and_errors_have_histograms_of_their_own() -> None:
    heard: list[tuple[float, str, str]] = []
    durations = Durations(lambda *observed: heard.append(observed))
    durations.observe(0.1, "rides.v1")
    durations.observe(0.2, "rides.v1", "ValueError")
    durations.observe(0.3, "rides.v1")
    assert [(topic, error, histogram.count) for topic, error, histogram in durations] == [
        ("rides.v1", "", 2),
        ("rides.v1", "ValueError", 1),
    ]
    assert heard == [(0.1, "rides.v1", ""), (0.2, "rides.v1", "ValueError"), (0.3, "rides.v1", "")]
