"""A service that stops while its broker is away, or does not answer, leaves no task, connection or thread behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    ClusterAdmin,
    Context,
    Event,
    ExactlyOnce,
    KafkaBus,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus._consuming import transactions
from hailbus._transport import cluster
from hailbus.delivery import Promise
from hailbus_broker.testing import ApiKey, Fault, RunningBroker, running_broker

ORDERS = Topic("orders.v1", partitions=3)
NAMES = [f"order-{number}" for number in range(9)]


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


ClientName = Literal["aiokafka", "librdkafka"]
Connections = Callable[[], list[object]]


class Until(Protocol):
    async def __call__(self, condition: object, *, seconds: float = ...) -> None: ...


@dataclass
class Shop:
    """A service that has seen some orders, and its broker, which may be sent away."""

    svc: Service
    bus: KafkaBus
    broker: RunningBroker
    send_away: AsyncExitStack

    async def all_is_committed(self) -> bool:
        async with ClusterAdmin(self.bus) as admin:
            return not sum(entry.lag for entry in await admin.lag("shop"))


@asynccontextmanager
async def running_shop(delivery: Promise, client: ClientName, fault: Fault | None = None) -> AsyncIterator[Shop]:
    svc = Service("shop", subscribing=SubscriberSettings(drain_timeout=timedelta(seconds=1)))
    orders = svc.publishes(OrderPlaced)
    seen: set[str] = set()
    all_seen = asyncio.Event()

    @svc.on(OrderPlaced, delivery=delivery)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.add(event.order_id)
        if len(seen) == len(NAMES):
            all_seen.set()

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker())
        bus = KafkaBus(bootstrap_servers=broker.bootstrap, heartbeat_interval_ms=200, client=client)
        async with svc.running(bus):
            if fault is not None:
                broker.fail(fault)
            await orders.publish_many([OrderPlaced(order_id=name) for name in NAMES])
            async with asyncio.timeout(30):
                await all_seen.wait()
            yield Shop(svc, bus, broker, stack)


def native_threads() -> set[int]:
    """The threads that librdkafka has in this process, which Python does not know of."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if (thread / "comm").read_text().startswith("rdk:"):
                found.add(int(thread.name))
    return found


@pytest.fixture
async def threads_end(client: ClientName, until: Until) -> AsyncIterator[None]:
    """Wait for the end of the threads that a test has begun, which takes librdkafka some time after a stop."""
    before = native_threads()
    yield
    if client == "aiokafka":  # it has none; those that appear belong to a client that an earlier test left behind
        return
    collected_at = 0.0

    def ended() -> bool:
        # A client ends its threads when nothing refers to it; a thread that closes one may still do so now.
        nonlocal collected_at
        if time.monotonic() - collected_at > 1:
            gc.collect()
            collected_at = time.monotonic()
        return native_threads() <= before

    await until(ended, seconds=60)


def other_tasks() -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def stop_without_broker(
    delivery: Promise, client: ClientName, until: Until, open_connections: Connections
) -> None:
    async with running_shop(delivery, client) as shop:
        await until(shop.all_is_committed)
        await shop.send_away.aclose()
        # Its fetches fail, and wait for a moment between two attempts.
        await asyncio.sleep(0.5)
        await shop.svc.stop()
    assert other_tasks() == []
    assert open_connections() == []


@pytest.mark.usefixtures("threads_end")
@pytest.mark.parametrize("delivery", [AtLeastOnce(), AtMostOnce()], ids=lambda d: type(d).__name__)
async def test_nothing_is_left_by_a_stop_without_broker(
    delivery: Promise, client: ClientName, until: Until, open_connections: Connections
) -> None:
    await stop_without_broker(delivery, client, until, open_connections)


@pytest.mark.usefixtures("threads_end")
@pytest.mark.parametrize("api", [ApiKey.LEAVE_GROUP, ApiKey.HEARTBEAT], ids=lambda api: api.name)
async def test_nothing_is_left_by_a_stop_beside_a_broker_that_does_not_answer(
    api: ApiKey, client: ClientName, until: Until, open_connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "STOP_TIMEOUT_S", 0.5)
    async with running_shop(AtLeastOnce(), client) as shop:
        await until(shop.all_is_committed)
        silence = shop.broker.fail(Fault(api=api, delay_s=60.0, times=100))
        if api is not ApiKey.LEAVE_GROUP:
            await until(lambda: silence.hit_count > 0)
        await shop.svc.stop()
        assert silence.hit_count > 0
        assert open_connections() == []
        # The others are the broker's own.
        assert [task for task in other_tasks() if "aiokafka" in task or "name='hailbus-" in task] == []


# A librdkafka producer that was committing a transaction when its broker went away keeps its threads for minutes: its
# call does not return sooner. They keep no process alive, and are not waited for. So these tests are the last.


async def test_nothing_is_left_by_a_stop_without_broker_exactly_once(
    client: ClientName, until: Until, open_connections: Connections
) -> None:
    await stop_without_broker(ExactlyOnce(), client, until, open_connections)


@pytest.mark.parametrize("api", [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN], ids=lambda api: api.name)
async def test_an_open_transaction_keeps_nobody_from_stopping_without_broker(
    api: ApiKey, client: ClientName, open_connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ABORT_TIMEOUT_S", 0.2)
    async with running_shop(ExactlyOnce(), client, Fault(api=api, drops_request=True, times=1_000)) as shop:
        await shop.send_away.aclose()
        async with asyncio.timeout(60):
            await shop.svc.stop()
    assert other_tasks() == []
    assert open_connections() == []
