"""Metrics are listed by the names, types and labels that queries use."""

from hailbus_devtools.derive_metrics import Exposed, exposed
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def test_names_are_those_that_queries_use() -> None:
    registry = CollectorRegistry()
    Histogram("request_seconds", "Time.", ["api"], registry=registry).labels("Fetch").observe(1)
    families = [*registry.collect(), CounterMetricFamily("read", "Records.", labels=["group"])]
    read, seconds = exposed([*families, GaugeMetricFamily("a_bytes", "Size.", value=1)])[1:]
    assert read == Exposed(name="read_total", kind="counter", labels=("group",), text="Records.")
    assert (seconds.labels, seconds.unit) == (("api",), "seconds")
    assert seconds.series == ("request_seconds_bucket", "request_seconds_sum", "request_seconds_count")
