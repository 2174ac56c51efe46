"""What a service tells Prometheus and OpenTelemetry about its handlers and its publishing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    Context,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    Publisher,
    Service,
    Topic,
)
from hailbus.database import create_engine
from hailbus.delivery import Promise
from hailbus.metering import Metering
from hailbus.metrics import ServiceCollector, metrics_text
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client.parser import text_string_to_metric_families

ORDERS = Topic("orders.v1", partitions=2)
DURATION = "messaging_process_duration_seconds"


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class OrderPaid(Event, topic=Topic("paid.v1", partitions=1), key="order_id", type="order.paid"):
    order_id: str


def samples(service: Service) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics_text(service).decode())
        for sample in family.samples
    }


def of_handler(service: Service, part: str, error: str = "", **more: str) -> float:
    """One value of the histogram of handler calls, 0 when there is none."""
    labels = {
        "service": "till",
        "messaging_consumer_group_name": "till",
        "messaging_destination_name": "orders.v1",
        "error_type": error,
        **more,
    }
    return samples(service).get((f"{DURATION}_{part}", frozenset(labels.items())), 0.0)


RETRY = Backoff(first=timedelta(seconds=1), attempts=3)


@pytest.mark.parametrize("name", ["at least once", "effectively once", "exactly once"])
def test_calls_of_handlers_are_measured_and_failures_apart(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        engine = create_engine(f"sqlite:///{tmp_path}/till.db")
        promises: dict[str, Promise] = {
            "at least once": AtLeastOnce(retry=RETRY),
            "effectively once": EffectivelyOnce(inbox=Inbox(engine, "till"), retry=RETRY),
            "exactly once": ExactlyOnce(retry=RETRY),
        }
        svc = Service("till")
        ServiceCollector(svc)
        calls: list[str] = []

        @svc.on(OrderPlaced, delivery=promises[name])
        async def take(event: OrderPlaced, ctx: Context) -> None:
            calls.append(event.order_id)
            await asyncio.sleep(3)
            if len(calls) == 1:
                raise ValueError(event.order_id)

        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await t.settle(timeout_s=60)
            assert len(calls) == 2
            assert of_handler(svc, "count") == of_handler(svc, "count", "ValueError") == 1
            assert of_handler(svc, "bucket", le="2.5") == 0
            assert of_handler(svc, "bucket", le="5.0") == of_handler(svc, "bucket", le="+Inf") == 1
            assert 2.99 < of_handler(svc, "sum") < 5
            assert 2.99 < of_handler(svc, "sum", "ValueError") < 5
        await engine.dispose()

    run_virtual(main())


def test_a_handler_at_most_once_is_measured() -> None:
    async def main() -> None:
        svc = Service("till")
        ServiceCollector(svc)

        @svc.on(OrderPlaced, delivery=AtMostOnce())
        async def take(event: OrderPlaced, ctx: Context) -> None:
            await asyncio.sleep(3)

        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await t.settle(timeout_s=60)
            assert of_handler(svc, "count") == of_handler(svc, "bucket", le="5.0") == 1

    run_virtual(main())


def test_a_batch_is_one_call() -> None:
    async def main() -> None:
        svc = Service("till")
        ServiceCollector(svc)

        @svc.on_batch(OrderPlaced, max_items=10, max_wait=timedelta(seconds=1))
        async def take(batch: Batch[OrderPlaced]) -> None:
            await asyncio.sleep(3)

        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(*(OrderPlaced(order_id=f"o{number}") for number in range(10)))
            await t.settle(timeout_s=60)
            assert of_handler(svc, "count") == of_handler(svc, "bucket", le="5.0") == 1

    run_virtual(main())


async def test_nothing_is_measured_when_nobody_reads_it(bus: MemoryBus) -> None:
    svc = Service("till")

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        await t.settle()
        assert [subscriber.stats.durations for subscriber in svc.subscribers] == [None]
        assert of_handler(svc, "count") == 0  # the scrape begins to measure
        await t.given(OrderPlaced(order_id="b"))
        await t.settle()
        assert of_handler(svc, "count") == 1


async def test_lanes_in_use_are_the_handlers_that_run(bus: MemoryBus) -> None:
    svc = Service("till")
    ended, begun = asyncio.Event(), asyncio.Semaphore(0)

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        begun.release()
        await ended.wait()

    def lanes() -> float:
        return samples(svc)["hailbus_lanes_in_use", frozenset({("service", "till"), ("group", "till")})]

    async with bus.run(svc) as t:
        assert lanes() == 0
        await t.given(*(OrderPlaced(order_id=name) for name in "abc"))
        async with asyncio.timeout(10):
            for _ in range(3):
                await begun.acquire()
        assert lanes() == 3
        ended.set()
        await t.settle()
        assert lanes() == 0


async def test_publishing_is_measured(bus: MemoryBus) -> None:
    svc = Service("till", bus=bus)
    paid: Publisher[OrderPaid] = svc.publishes(OrderPaid)
    operation = {("service", "till"), ("messaging_operation_name", "send")}
    async with svc.running(bus):
        await paid.publish_many([OrderPaid(order_id=name) for name in "abc"])
        await paid.publish(OrderPaid(order_id="d"))
        found = samples(svc)
        assert found["messaging_client_operation_duration_seconds_count", frozenset(operation)] == 4
        assert found["messaging_client_operation_duration_seconds_bucket", frozenset({*operation, ("le", "+Inf")})] == 4
        sent = frozenset({("service", "till"), ("error_type", "")})
        assert found["messaging_client_sent_messages_total", sent] == 4


def points(reader: InMemoryMetricReader) -> dict[str, Sequence[NumberDataPoint | HistogramDataPoint]]:
    found = reader.get_metrics_data()
    assert found is not None
    return {
        metric.name: list(metric.data.data_points)  # type: ignore[arg-type]  # no exponential histogram is made
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_gets_the_names_of_its_conventions() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    async def main() -> None:
        svc = Service("till", metering=True)
        svc._metering = Metering(svc, provider.get_meter("test"))
        paid: Publisher[OrderPaid] = svc.publishes(OrderPaid)

        @svc.on(OrderPlaced)
        async def take(event: OrderPlaced, ctx: Context) -> None:
            await asyncio.sleep(3)
            await paid.publish(OrderPaid(order_id=event.order_id), cause=ctx)

        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await t.settle(timeout_s=60)
            found = points(reader)
        (process,) = found["messaging.process.duration"]
        assert isinstance(process, HistogramDataPoint)
        assert process.attributes == {
            "messaging.system": "kafka",
            "messaging.client.id": "till",
            "messaging.consumer.group.name": "till",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "orders.v1",
        }
        assert (process.count, 2.99 < process.sum < 5) == (1, True)
        assert tuple(process.explicit_bounds)[:3] == (0.005, 0.01, 0.025)
        sends = found["messaging.client.operation.duration"]
        assert [dict(send.attributes or {})["messaging.destination.name"] for send in sends] == ["paid.v1"]
        (sent,), (consumed,) = found["messaging.client.sent.messages"], found["messaging.client.consumed.messages"]
        assert isinstance(sent, NumberDataPoint)
        assert isinstance(consumed, NumberDataPoint)
        assert (sent.value, consumed.value) == (1, 1)
        assert {"hailbus.lag", "hailbus.lanes", "hailbus.retries", "hailbus.dead_letters"} <= found.keys()

    try:
        run_virtual(main())
    finally:
        provider.shutdown()


def test_the_page_lists_every_instrument() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| (`[a-z.`, _]+`) \| (?:s|\{\w+\}) \|", page, flags=re.MULTILINE)
    made: list[str] = []

    class Recorded(NoOpMeter):
        def _record(self, name: str, *_: object, **__: object) -> Any:  # Any: stands for every kind of instrument
            made.append(name)

        create_counter = create_histogram = create_observable_counter = _record
        create_observable_gauge = create_observable_up_down_counter = _record

    Metering(Service("till"), Recorded("test"))
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(made)
