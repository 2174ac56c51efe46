"""Prometheus metrics of a service, read from its counters at scrape time: they cost nothing per event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hailbus._extras import extra

with extra("fastapi"):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["ServiceCollector", "metrics_text"]

COUNTERS = {
    "received": "Records read.",
    "settled": "Records settled by a handler.",
    "skipped": "Records settled without a handler: other types, tombstones, Skip verdicts.",
    "retried": "Calls that are or will be repeated.",
    "failed": "Handler calls that raised.",
    "dead_lettered": "Dead letters written.",
    "parked": "Records kept in the parking lot.",
    "committed": "Offset commits.",
    "rebalances": "Assignments.",
    "reconnects": "Consumers replaced.",
}


class ServiceCollector(Collector):
    """Give it to a Prometheus registry: `REGISTRY.register(ServiceCollector(svc))`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment."""
        name = self._service.name
        labels = ["service", "group"]
        for field, text in COUNTERS.items():
            family = CounterMetricFamily(f"hailbus_{field}", text, labels=labels)
            for subscriber in self._service.subscribers:
                family.add_metric([name, subscriber.group], getattr(subscriber.stats, field))
            yield family
        unsettled = GaugeMetricFamily("hailbus_unsettled_records", "Records read and not settled.", labels=labels)
        assigned = GaugeMetricFamily("hailbus_assigned_partitions", "Partitions held.", labels=labels)
        lag = GaugeMetricFamily("hailbus_lag_seconds", "Age of the oldest record read and not settled.", labels=labels)
        healthy = GaugeMetricFamily("hailbus_healthy", "1 while events make progress.", labels=labels)
        for subscriber in self._service.subscribers:
            unsettled.add_metric([name, subscriber.group], subscriber.unsettled_count)
            assigned.add_metric([name, subscriber.group], len(subscriber.assignment))
            lag.add_metric([name, subscriber.group], subscriber.lag_s)
            healthy.add_metric([name, subscriber.group], float(subscriber.unhealthy_reason is None))
        yield from (unsettled, assigned, lag, healthy)
        buffered = GaugeMetricFamily(
            "hailbus_publish_buffered_records", "Records accepted, not acknowledged.", labels=["service"]
        )
        buffered.add_metric([name], self._service.buffered_count)
        relayed = CounterMetricFamily("hailbus_outbox_published", "Outbox rows published.", labels=["service"])
        relayed.add_metric([name], sum(outbox.published_count for outbox in self._service.outboxes))
        due = GaugeMetricFamily("hailbus_outbox_due_rows", "Outbox rows that should be published.", labels=["service"])
        oldest = GaugeMetricFamily(
            "hailbus_outbox_lag_seconds", "For how long the oldest of them has been due.", labels=["service"]
        )
        lags = [outbox.last_lag for outbox in self._service.outboxes]
        due.add_metric([name], sum(lag.due_count for lag in lags))
        oldest.add_metric([name], max((lag.oldest_s for lag in lags), default=0.0))
        yield from (buffered, relayed, due, oldest)


def metrics_text(service: Service) -> bytes:
    """The exposition text of one service alone."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
