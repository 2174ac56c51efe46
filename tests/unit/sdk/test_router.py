"""Handlers and publishers of other modules: included with defaults, bound to the service that includes them."""

from datetime import timedelta

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Batch,
    ConfigurationError,
    Event,
    Router,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=2)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


async def test_handlers_and_publishers_of_a_router_run_in_the_service_that_includes_it(bus: MemoryBus) -> None:
    router = Router()
    paid = router.publishes(OrderPaid)
    seen: list[str] = []

    @router.on
    async def take_money(event: OrderPlaced) -> None:
        await paid.publish(OrderPaid(order_id=event.order_id))

    @router.on_batch(group="archive")
    async def archive(batch: Batch[OrderPaid]) -> None:
        seen.extend(event.order_id for event in batch.events)

    svc = Service("till", subscribing=FAST)
    svc.include(router)
    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        await t.settle()
        assert t.published(OrderPaid).one().order_id == "a"
    assert seen == ["a"]
    assert svc.published == (OrderPaid,)


def test_the_nearest_says_group_and_delivery() -> None:
    inner = Router(group="inner")
    outer = Router(delivery=AtMostOnce())

    @inner.on
    async def by_router(event: OrderPlaced) -> None: ...

    @inner.on(group="own", delivery=AtLeastOnce())
    async def by_handler(event: OrderPlaced) -> None: ...

    @outer.on
    async def by_include(event: OrderPaid) -> None: ...

    plain = Router()

    @plain.on
    async def by_service(event: OrderPaid) -> None: ...

    outer.include(inner, group="ignored")
    svc = Service("till")
    svc.include(outer, group="included")
    svc.include(plain)
    assert {s.name.rpartition(".")[2]: (s.group, type(s.delivery)) for s in svc.subscriptions} == {
        "by_router": ("inner", AtMostOnce),
        "by_handler": ("own", AtLeastOnce),
        "by_include": ("included", AtMostOnce),
        "by_service": ("till", AtLeastOnce),
    }


async def test_a_publisher_works_in_the_service_that_included_its_router_last(bus: MemoryBus) -> None:
    router = Router()
    paid = router.publishes(OrderPaid)
    with pytest.raises(ConfigurationError, match="a router that no service includes; call svc"):
        await paid.publish(OrderPaid(order_id="a"))
    assert not hasattr(paid, "anything")
    for name in ("first", "second"):
        svc = Service(name)
        svc.include(router)
        async with bus.run(svc) as t:
            await paid.publish(OrderPaid(order_id=name))
            assert [delivery.event.order_id for delivery in t.published(OrderPaid)][-1] == name
            other = Service("other")
            with pytest.raises(ConfigurationError, match=f"belongs to service {name}, which runs; make a router per"):
                other.include(router)


def test_a_router_that_includes_itself_or_names_a_class_as_its_promise_is_refused() -> None:
    router = Router()
    with pytest.raises(ConfigurationError, match="cannot include itself"):
        router.include(router)
    with pytest.raises(ConfigurationError, match=r"Router\(\.\.\.\): delivery=.* is a class; call it: AtMostOnce"):
        Router(delivery=AtMostOnce)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigurationError, match=r"include\(\.\.\.\): delivery=.* is a class; call it: AtMostOnce"):
        Service("till").include(router, delivery=AtMostOnce)  # type: ignore[arg-type]  # what is tested
