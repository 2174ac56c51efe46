"""Prometheus metrics of a service; the names are those of OpenTelemetry's conventions where these have one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hailbus._extras import extra

with extra("fastapi"):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector

from hailbus.durations import cumulative

if TYPE_CHECKING:
    from hailbus.service import Service

__all__ = ["ServiceCollector", "metrics_text"]

COUNTERS = {
    "received": "Records read.",
    "settled": "Records that a handler has handled.",
    "skipped": "Records that no handler wanted: other types, tombstones, repetitions, Skip verdicts.",
    "dropped": "Records given up under at most once.",
    "retried": "Handler calls that are repeated.",
    "failed": "Handler calls that raised an exception.",
    "dead_lettered": "Dead letters written.",
    "parked": "Records parked in the database.",
    "retried_later": "Records written to a retry topic.",
    "deadlines_exceeded": "Handler calls cancelled at their deadline.",
    "outages": "Times that a database, a registry or the cluster was unreachable.",
    "committed": "Offset commits.",
    "rebalances": "Assignments of partitions.",
    "reconnects": "Consumers that were replaced after they lost the broker.",
}


class ServiceCollector(Collector):
    """Exposes the metrics of one service; register it with `REGISTRY.register(ServiceCollector(svc))`.

    Counters and gauges are read from the service's state at the time of a scrape. Durations of handlers are measured
    from the time that the collector exists, because they cost something for each event.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        service.measure_durations()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics as they are now."""
        yield from self._of_groups()
        yield self._handlers()
        yield from self._of_publishing()
        yield from self._of_outboxes()

    def _of_groups(self) -> Iterable[Metric]:
        name = self._service.name
        labels = ["service", "group"]
        for field, text in COUNTERS.items():
            family = CounterMetricFamily(f"hailbus_{field}", text, labels=labels)
            for subscriber in self._service.subscribers:
                family.add_metric([name, subscriber.group], getattr(subscriber.stats, field))
            yield family
        unsettled = GaugeMetricFamily("hailbus_unsettled_records", "Records read and not settled.", labels=labels)
        assigned = GaugeMetricFamily("hailbus_assigned_partitions", "Partitions that the service has.", labels=labels)
        lanes = GaugeMetricFamily("hailbus_lanes_in_use", "Handlers that run now, one per lane.", labels=labels)
        lag = GaugeMetricFamily("hailbus_lag_seconds", "Age of the oldest record read and not settled.", labels=labels)
        healthy = GaugeMetricFamily("hailbus_healthy", "1 while events make progress.", labels=labels)
        parked = GaugeMetricFamily("hailbus_parked_keys", "Parked keys on the assigned partitions.", labels=labels)
        for subscriber in self._service.subscribers:
            parked.add_metric([name, subscriber.group], subscriber.parked_keys)
            unsettled.add_metric([name, subscriber.group], subscriber.unsettled_count)
            assigned.add_metric([name, subscriber.group], len(subscriber.assignment))
            lanes.add_metric([name, subscriber.group], subscriber.lanes_in_use)
            lag.add_metric([name, subscriber.group], subscriber.lag_s)
            healthy.add_metric([name, subscriber.group], float(subscriber.unhealthy_reason is None))
        yield from (unsettled, assigned, lanes, lag, healthy, parked)

    def _handlers(self) -> Metric:
        durations = HistogramMetricFamily(
            "messaging_process_duration_seconds",
            "Duration of handler calls. error_type is the class of the exception, empty after success.",
            labels=["service", "messaging_consumer_group_name", "messaging_destination_name", "error_type"],
        )
        for subscriber in self._service.subscribers:
            for topic, error, histogram in subscriber.stats.durations or ():
                durations.add_metric(
                    [self._service.name, subscriber.group, topic, error], histogram.cumulative(), histogram.sum_s
                )
        return durations

    def _of_publishing(self) -> Iterable[Metric]:
        name, stats = self._service.name, self._service.publish_stats
        buffered = GaugeMetricFamily(
            "hailbus_publish_buffered_records", "Records accepted and not acknowledged.", labels=["service"]
        )
        buffered.add_metric([name], self._service.buffered_count)
        sent = CounterMetricFamily(
            "messaging_client_sent_messages",
            "Records that publishers sent. error_type is empty for acknowledged records.",
            labels=["service", "error_type"],
        )
        sent.add_metric([name, ""], stats.published)
        sent.add_metric([name, "DeliveryError"], stats.failed)
        durations = HistogramMetricFamily(
            "messaging_client_operation_duration_seconds",
            "Time from a call of a publisher to the acknowledgement, or to the failure.",
            labels=["service", "messaging_operation_name"],
        )
        durations.add_metric([name, "send"], cumulative(stats.duration_counts), stats.duration_sum_s)
        yield from (buffered, sent, durations)

    def _of_outboxes(self) -> Iterable[Metric]:
        name, outboxes = self._service.name, self._service.outboxes
        relayed = CounterMetricFamily("hailbus_outbox_published", "Outbox rows published.", labels=["service"])
        relayed.add_metric([name], sum(outbox.published_count for outbox in outboxes))
        due = GaugeMetricFamily("hailbus_outbox_due_rows", "Outbox rows that should be published.", labels=["service"])
        oldest = GaugeMetricFamily(
            "hailbus_outbox_lag_seconds", "For how long the oldest outbox row has been due.", labels=["service"]
        )
        lags = [outbox.last_lag for outbox in outboxes]
        due.add_metric([name], sum(lag.due_count for lag in lags))
        oldest.add_metric([name], max((lag.oldest_s for lag in lags), default=0.0))
        yield from (relayed, due, oldest)


def metrics_text(service: Service) -> bytes:
    """Return the metrics of one service in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
