"""OpenTelemetry metrics of a service, with the names of the messaging conventions.

Durations are recorded as they are measured. Everything else is read from the service's state when the metrics are
collected. Without an OpenTelemetry SDK all this does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from hailbus._extras import extra

with extra("otel"):
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

from hailbus.durations import BOUNDS_S

if TYPE_CHECKING:
    from hailbus.errors import DeliveryError
    from hailbus.service import Service

__all__ = ["Metering"]

SYSTEM: Final = {"messaging.system": "kafka"}
COUNTERS: Final = {
    "messaging.client.consumed.messages": ("received", "{message}", "Records read."),
    "hailbus.retries": ("retried", "{call}", "Handler calls that are repeated."),
    "hailbus.dead_letters": ("dead_lettered", "{message}", "Dead letters written."),
    "hailbus.parked": ("parked", "{message}", "Records parked in the database."),
}
"""Name: attribute of `SubscriberStats`, unit, description."""


class Metering:
    """Records the metrics of one service.

    Args:
        service: Its name, counters and outboxes are read.
        meter: From the application's meter provider; the global one when None.
    """

    def __init__(self, service: Service, meter: Meter | None = None) -> None:
        self._service = service
        meter = meter if meter is not None else metrics.get_meter("hailbus")
        self._process = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of handler calls.",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of requests to the broker.",
            explicit_bucket_boundaries_advisory=BOUNDS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Records that publishers sent."
        )
        for name, (field, unit, text) in COUNTERS.items():
            meter.create_observable_counter(name, [self._counted(field)], unit=unit, description=text)
        meter.create_observable_gauge(
            "hailbus.lag", [self._lag], unit="s", description="Age of the oldest record read and not settled."
        )
        meter.create_observable_up_down_counter(
            "hailbus.lanes", [self._lanes], unit="{lane}", description="Handlers that run now, one per lane."
        )
        meter.create_observable_gauge(
            "hailbus.outbox.age", [self._outbox], unit="s", description="For how long the oldest outbox row is due."
        )

    def processed(self, group: str) -> Callable[[float, str, str], None]:
        """Return a listener for the durations of a group's handlers."""
        record = self._process.record
        of: dict[tuple[str, str], dict[str, str]] = {}

        def observe(seconds: float, topic: str, error: str) -> None:
            attributes = of.get((topic, error))
            if attributes is None:
                attributes = of[topic, error] = {
                    **self._group(group),
                    "messaging.operation.name": "process",
                    "messaging.operation.type": "process",
                    "messaging.destination.name": topic,
                    **({"error.type": error} if error else {}),
                }
            record(seconds, attributes)

        return observe

    def sent(self, topic: str, count: int, seconds: float, error: DeliveryError | None) -> None:
        """Record one request that sent records to a topic."""
        attributes = {
            **SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        if error is not None:
            attributes["error.type"] = type(error).__name__
        self._operation.record(seconds, attributes)
        self._sent.add(count, attributes)

    def _group(self, group: str) -> dict[str, str]:
        return {**SYSTEM, "messaging.consumer.group.name": group, "messaging.client.id": self._service.name}

    def _counted(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for subscriber in self._service.subscribers:
                yield Observation(getattr(subscriber.stats, field), self._group(subscriber.group))

        return observe

    def _lag(self, _: CallbackOptions) -> Iterable[Observation]:
        for subscriber in self._service.subscribers:
            yield Observation(subscriber.lag_s, self._group(subscriber.group))

    def _lanes(self, _: CallbackOptions) -> Iterable[Observation]:
        for subscriber in self._service.subscribers:
            yield Observation(subscriber.lanes_in_use, self._group(subscriber.group))

    def _outbox(self, _: CallbackOptions) -> Iterable[Observation]:
        outboxes = self._service.outboxes
        if outboxes:
            yield Observation(
                max(outbox.last_lag.oldest_s for outbox in outboxes), {"messaging.client.id": self._service.name}
            )
