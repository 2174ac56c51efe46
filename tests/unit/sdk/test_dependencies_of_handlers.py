"""Dependencies of handlers: made per event, closed after it, replaced in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

import pytest
from fastapi import Depends
from hailbus import AtLeastOnce, Backoff, Batch, ConfigurationError, Context, Event, Service, SubscriberSettings, Topic
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=1)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


@dataclass
class Session:
    log: list[str] = field(default_factory=list)


LOG: list[str] = []


async def session(ctx: Context) -> AsyncIterator[Session]:
    LOG.append(f"open {ctx.offset}")
    made = Session(LOG)
    try:
        yield made
    except ValueError:
        LOG.append("rolled back")
        raise
    LOG.append("committed")


def tenant(event: OrderPlaced) -> str:
    return event.order_id[0]


def first_repository(db: Annotated[Session, Depends(session)]) -> Session:
    return db


def second_repository(db: Annotated[Session, Depends(session)]) -> Iterator[Session]:
    yield db


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    LOG.clear()


async def test_dependencies_are_made_once_per_event_and_see_the_handlers_exception(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    seen: list[tuple[str, bool]] = []

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(attempts=1)))
    async def take(
        event: OrderPlaced,
        ctx: Context,
        first: Annotated[Session, Depends(first_repository)],
        second: Annotated[Session, Depends(second_repository)],
        whose: Annotated[str, Depends(tenant)],
        times: int = 1,
    ) -> None:
        seen.append((whose, first is second))
        if whose == "b":
            raise ValueError("no")

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a1"), OrderPlaced(order_id="b1"))
        await t.settle()
        assert len(t.dead_letters(ORDERS, group="shop")) == 1
    assert seen == [("a", True), ("b", True)]
    assert LOG == ["open 0", "committed", "open 1", "rolled back"]


async def test_overrides_replace_a_dependency_in_tests(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    fake = Session()
    seen: list[Session] = []

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context, db: Annotated[Session, Depends(session)]) -> None:
        seen.append(db)

    svc.dependency_overrides[session] = lambda: fake
    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a1"))
        await t.settle()
    assert seen == [fake]
    assert LOG == []


async def test_handlers_of_batches_have_dependencies_too(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    seen: list[int] = []

    def size(batch: Batch[OrderPlaced]) -> int:
        return len(batch)

    @svc.on_batch(OrderPlaced, max_items=2, max_wait=timedelta(seconds=5))
    async def take(batch: Batch[OrderPlaced], count: Annotated[int, Depends(BATCH_SIZE)]) -> None:
        seen.append(count)

    svc.dependency_overrides[BATCH_SIZE] = size
    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a1"), OrderPlaced(order_id="a2"))
        await t.settle()
    assert seen == [2]


def BATCH_SIZE(batch: Batch[OrderPlaced]) -> int:  # noqa: N802 a name that is looked up at module level
    return -len(batch)


def test_parameters_that_nobody_fills_are_refused_when_subscribing() -> None:
    svc = Service("shop")

    with pytest.raises(ConfigurationError, match="parameter 'db' that is neither an event"):

        @svc.on(OrderPlaced)
        async def take(event: OrderPlaced, ctx: Context, db: Session) -> None: ...


# ---------------------------------------------------------------------------------------------- limits of time


async def refused(svc: Service, bus: MemoryBus) -> str:
    with pytest.raises(ConfigurationError) as found:
        await svc.start(bus)
    return str(found.value)


async def test_time_limits_that_cut_each_other_short_are_refused_at_start(bus: MemoryBus) -> None:
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    drain = Service("shop", subscribing=SubscriberSettings(grace_period=timedelta(seconds=10)))
    assert "drain_timeout=20 s is not shorter than grace_period=10 s" in await refused(drain, bus)

    retry = Service("shop", subscribing=SubscriberSettings(stall_after=timedelta(seconds=5)))
    retry.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(first=timedelta(seconds=4), attempts=4)))(take)
    assert "waits up to 17.6 s between two attempts" in await refused(retry, bus)

    class Quick(MemoryBus):
        @property
        def rebalance_timeout(self) -> timedelta:  # type: ignore[override]  # the memory bus itself never hurries
            return timedelta(seconds=3)

    revoke = Service("shop")
    revoke.on(OrderPlaced)(take)
    assert "revoke_grace=5 s is not shorter than the bus's rebalance timeout of 3 s" in await refused(revoke, Quick())


async def test_lag_is_the_age_of_the_oldest_unsettled_record(bus: MemoryBus) -> None:
    import asyncio
    from datetime import UTC, datetime

    now = datetime(2024, 1, 1, tzinfo=UTC)
    bus.clock = lambda: now
    svc = Service("shop", subscribing=FAST, clock=lambda: now + timedelta(seconds=42))
    entered, go_on = asyncio.Event(), asyncio.Event()

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        entered.set()
        await go_on.wait()

    async with bus.run(svc) as t:
        (subscriber,) = svc.subscribers
        assert subscriber.lag_s == 0
        await t.given(OrderPlaced(order_id="a1"))
        await entered.wait()
        assert subscriber.lag_s == 42
        go_on.set()
        await t.settle()
        assert subscriber.lag_s == 0
