"""What a handler may look like, where it runs, and the sentences that refuse all others when they are registered."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import pytest
from fastapi import Depends
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    Done,
    Event,
    Publisher,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    upcast,
)
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=2)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
ONCE = AtLeastOnce(retry=Backoff(attempts=1))


class OrderEvent(Event, topic=ORDERS, key="order_id"):
    order_id: str


class OrderPlaced(OrderEvent, type="order.placed"):
    pass


class OrderPaid(OrderEvent, type="order.paid"):
    pass


class OrderSent(OrderEvent, type="order.sent"):
    pass


@pytest.fixture
def svc() -> Service:
    return Service("till", subscribing=FAST)


def subscribed(svc: Service) -> list[set[type[Event]]]:
    return [set(subscription.events) for subscription in svc.subscriptions]


# ------------------------------------------------------------------------------------------ which events


def test_the_annotation_of_the_first_parameter_names_the_events(svc: Service) -> None:
    @svc.on
    async def one(event: OrderPlaced, ctx: Context) -> None: ...

    @svc.on(group="other", delivery=AtMostOnce())
    async def two(event: OrderPlaced | OrderPaid) -> None: ...

    @svc.on_batch
    async def three(batch: Batch[OrderPaid]) -> None: ...

    @svc.on_batch(group="batches", max_items=7)
    async def four(batch: Batch[OrderSent | OrderPaid]) -> None: ...

    assert subscribed(svc) == [{OrderPlaced}, {OrderPlaced, OrderPaid}, {OrderPaid}, {OrderSent, OrderPaid}]
    assert [s.group for s in svc.subscriptions] == ["till", "other", "till", "batches"]
    assert [type(s.delivery) for s in svc.subscriptions] == [AtLeastOnce, AtMostOnce, AtLeastOnce, AtLeastOnce]
    assert svc.subscriptions[3].max_items == 7


def test_annotations_may_name_classes_that_are_local_to_the_registering_function(svc: Service) -> None:
    class Local(OrderEvent, type="order.local"):
        pass

    @svc.on
    async def take(event: Local) -> None: ...

    def register() -> None:
        @svc.on(group="closure")
        async def take(event: Local) -> None:
            assert isinstance(event, Local)

    register()
    assert subscribed(svc) == [{Local}, {Local}]


def test_several_events_are_named_as_a_union_or_a_catalogue(svc: Service) -> None:
    async def take(event: Event, ctx: Context) -> None: ...

    svc.on(OrderPlaced | OrderPaid)(take)
    svc.on(Catalogue.of(OrderPlaced, OrderSent), group="catalogue")(take)
    svc.on([OrderSent], group="list")(take)
    assert subscribed(svc) == [{OrderPlaced, OrderPaid}, {OrderPlaced, OrderSent}, {OrderSent}]
    pub: Publisher[OrderPlaced | OrderPaid] = svc.publishes(OrderPlaced | OrderPaid)
    assert set(pub.events) == {OrderPlaced, OrderPaid}


def test_old_versions_in_a_catalogue_are_handled_as_the_newest(svc: Service) -> None:
    class Opened(OrderEvent, type="till.opened"):
        pass

    class OpenedV2(OrderEvent, type="till.opened", version=2):
        pass

    @upcast(Opened, OpenedV2)
    def newer(old: Opened) -> OpenedV2:
        return OpenedV2(order_id=old.order_id)

    async def take(event: Event) -> None: ...

    svc.on(Catalogue.of(OpenedV2))(take)
    assert subscribed(svc) == [{OpenedV2}]


# ------------------------------------------------------------------------------------------ which parameters


async def ends_of(svc: Service, bus: MemoryBus, *events: Event) -> int:
    """Publish events, let the service handle them, and return how many became dead letters."""
    async with bus.run(svc) as t:
        await t.given(*events)
        await t.settle()
        return len(t.dead_letters(ORDERS))


async def test_a_handler_may_leave_out_its_context(svc: Service, bus: MemoryBus) -> None:
    seen: list[str] = []

    @svc.on
    async def take(event: OrderPlaced) -> None:
        seen.append(event.order_id)

    assert await ends_of(svc, bus, OrderPlaced(order_id="a")) == 0
    assert seen == ["a"]


def tenant(event: OrderPlaced) -> str:
    return event.order_id.upper()


async def test_context_and_dependencies_come_in_any_order_and_by_keyword(svc: Service, bus: MemoryBus) -> None:
    seen: list[tuple[str, str, int]] = []

    @svc.on
    async def take(event: OrderPlaced, whose: Annotated[str, Depends(tenant)], *, more: int = 3, ctx: Context) -> None:
        seen.append((event.order_id, whose, ctx.offset + more))

    assert await ends_of(svc, bus, OrderPlaced(order_id="a")) == 0
    assert seen == [("a", "A", 3)]


async def test_handlers_may_be_methods_partials_objects_and_wrapped(svc: Service, bus: MemoryBus) -> None:
    seen: list[str] = []

    class Till:
        async def take(self, event: OrderPlaced) -> None:
            seen.append(f"method {event.order_id}")

        async def __call__(self, event: OrderPlaced, ctx: Context) -> None:
            seen.append(f"object {ctx.topic}")

    async def take(prefix: str, event: OrderPlaced, ctx: Context) -> None:
        seen.append(f"{prefix} {event.order_id}")

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(threading.current_thread().name)
            return function(*args, **kwargs)

        return call

    @wrapped
    async def inner(event: OrderPlaced) -> None:
        seen.append("inner")

    svc.on(Till().take)
    svc.on(OrderPlaced, group="b")(Till())
    svc.on(OrderPlaced, group="c")(functools.partial(take, "partial"))
    svc.on(OrderPlaced, group="d")(inner)
    svc.on(OrderPlaced, group="e")(lambda event, ctx: seen.append(f"lambda {ctx.topic}"))
    assert await ends_of(svc, bus, OrderPlaced(order_id="a")) == 0
    main = threading.main_thread().name
    assert sorted(seen) == sorted(["method a", "object orders.v1", "partial a", main, "inner", "lambda orders.v1"])


Any_ = TypeVar("Any_", bound=OrderEvent)


@pytest.mark.parametrize(
    "annotation",
    [OrderPlaced, OrderEvent, Event, OrderPlaced | OrderPaid, object, Any, Any_, "Nowhere", Annotated[OrderEvent, 3]],
    ids=repr,
)
def test_an_annotation_that_takes_the_event_fits(annotation: object, svc: Service) -> None:
    async def take(event: Any, ctx: Any) -> None: ...

    take.__annotations__ = {"event": annotation, "ctx": Context, "return": None}
    svc.on(OrderPlaced)(take)
    assert subscribed(svc) == [{OrderPlaced}]


# ------------------------------------------------------------------------------------------ plain functions


async def test_a_plain_function_runs_in_a_thread_with_the_callers_context_variables(
    svc: Service, bus: MemoryBus
) -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[tuple[str, str, bool]] = []

    async def traced(event: OrderPlaced) -> str:
        trace.set(event.order_id)
        return event.order_id

    @svc.on(OrderPlaced)
    def take(event: OrderPlaced, ctx: Context, whose: str = Depends(traced)) -> None:
        seen.append((whose, trace.get(), threading.current_thread() is threading.main_thread()))

    assert await ends_of(svc, bus, OrderPlaced(order_id="a")) == 0
    assert seen == [("a", "a", False)]


async def test_verdicts_and_exceptions_of_plain_functions_count_as_those_of_coroutines(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[str] = []

    @svc.on(OrderPlaced | OrderPaid | OrderSent, delivery=ONCE)
    def take(event: OrderEvent) -> Skip | Done | None:
        calls.append(event.order_id)
        match event:
            case OrderPlaced():
                return Skip("not today")
            case OrderPaid():
                raise LookupError("no")
        next(iter([]))  # StopIteration, which a future refuses
        return None

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"), OrderPaid(order_id="b"), OrderSent(order_id="c"))
        await t.settle()
        assert len(t.dead_letters(ORDERS)) == 2
    assert sorted(calls) == ["a", "b", "c"]


async def test_no_more_threads_than_allowed_and_other_work_goes_on_meanwhile(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST, handler_threads=2)
    lock, go_on, two_are_in = threading.Lock(), threading.Event(), threading.Event()
    inside: list[str] = []
    most = 0

    @svc.on(OrderPlaced, delivery=AtLeastOnce(order="none"))
    def take(event: OrderPlaced) -> None:
        nonlocal most
        with lock:
            inside.append(event.order_id)
            most = max(most, len(inside))
            if len(inside) == 2:
                two_are_in.set()
        assert go_on.wait(20)
        with lock:
            inside.remove(event.order_id)

    async with bus.run(svc) as t:
        await t.given(*(OrderPlaced(order_id=str(n)) for n in range(8)))
        assert await asyncio.to_thread(two_are_in.wait, 20)  # the loop is free while both threads are blocked
        go_on.set()
        await t.settle()
        assert not t.dead_letters(ORDERS)
    assert most == 2


async def test_batches_too_and_plain_dependencies_run_beside_the_handler(svc: Service, bus: MemoryBus) -> None:
    threads: list[str] = []

    def session() -> Iterator[str]:
        threads.append(f"open {threading.current_thread().name[:12]}")
        yield "session"
        threads.append(f"close {threading.current_thread().name[:12]}")

    async def pool() -> AsyncIterator[str]:
        threads.append(f"open {threading.current_thread().name}")
        yield "pool"
        threads.append(f"close {threading.current_thread().name}")

    @svc.on_batch(OrderPlaced)
    def take(batch: Batch[OrderPlaced], db: str = Depends(session), p: str = Depends(pool)) -> list[Done]:
        threads.append(f"{db} {p} {threading.current_thread().name[:12]}")
        return [Done() for _ in batch]

    assert await ends_of(svc, bus, OrderPlaced(order_id="a")) == 0
    main = threading.main_thread().name
    assert threads == [
        "open hailbus-till",
        f"open {main}",
        "session pool hailbus-till",
        f"close {main}",
        "close hailbus-till",
    ]


async def test_dependencies_of_a_cancelled_plain_function_end_after_it_and_as_failed(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=SubscriberSettings(drain_timeout=timedelta(milliseconds=10)))
    entered, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def session() -> Iterator[str]:
        try:
            yield "session"
        except asyncio.CancelledError:
            order.append("rolled back")
            raise
        else:
            order.append("committed")
        finally:
            closed.set()

    @svc.on(OrderPlaced)
    def take(event: OrderPlaced, db: str = Depends(session)) -> None:
        entered.set()
        assert go_on.wait(20)
        order.append("handled")

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        assert await asyncio.to_thread(entered.wait, 20)
    assert order == []  # the service has stopped; the thread still uses its session
    go_on.set()
    async with asyncio.timeout(20):
        while not closed.is_set():  # noqa: ASYNC110 set by a thread
            await asyncio.sleep(0.002)
    assert order == ["handled", "rolled back"]


# ------------------------------------------------------------------------------------------ refused


async def two_needed(event: OrderPlaced, ctx: Context, db: str) -> None: ...


async def unreadable(event: OrderPlaced, ctx: Context, db: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 what is tested


async def nothing() -> None: ...


async def keyword_only(*, event: OrderPlaced) -> None: ...


async def wrong_event(event: OrderPaid) -> None: ...


async def no_event(event: int) -> None: ...


async def context_first(ctx: Context, event: OrderPlaced) -> None: ...


async def a_batch(batch: Batch[OrderPlaced]) -> None: ...


async def yields(event: OrderPlaced) -> AsyncIterator[None]:
    yield


class Taker:
    def __init__(self, event: OrderPlaced) -> None: ...


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (two_needed, "handler two_needed has a parameter 'db' that is neither an event, a Context, a Batch nor a "),
        (unreadable, "handler unreadable has a parameter 'db' whose annotation 'Nowhere' cannot be read ("),
        (nothing, "handler nothing takes no parameter; its first parameter is the event, by position"),
        (keyword_only, "handler keyword_only takes 'event' by keyword only; its first parameter is the event, by"),
        (
            wrong_event,
            "handler wrong_event is registered for OrderPlaced, but its first parameter takes OrderPaid; expected ",
        ),
        (no_event, "handler no_event is registered for OrderPlaced, but its first parameter takes int; expected "),
        (context_first, "handler context_first has Context as its first parameter 'ctx'; the event comes first, the "),
        (a_batch, "handler a_batch has hailbus.context.Batch["),
        (yields, "handler yields contains `yield`; a handler returns its verdict, or None"),
        (Taker, "handler Taker is a class; register a function, as in `async def take(event: OrderPlaced) -> None`"),
        (3, "handler int is 3; register a function, as in `async def take(event: OrderPlaced) -> None`"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_registered(handler: Any, sentence: str, svc: Service) -> None:
    with pytest.raises(ConfigurationError) as refused:
        svc.on(OrderPlaced)(handler)
    assert str(refused.value).startswith(sentence)
    assert svc.subscriptions == ()


async def with_context(batch: Batch[OrderPlaced], ctx: Context) -> None: ...


async def one_event(event: OrderPlaced) -> None: ...


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (with_context, "handler with_context asks for a Context, which a handler of batches has none of"),
        (one_event, "handler one_event has OrderPlaced as its first parameter 'event'; register it with `on`, or "),
    ],
)
def test_what_does_not_fit_a_handler_of_batches_is_refused(handler: Any, sentence: str, svc: Service) -> None:
    with pytest.raises(ConfigurationError) as refused:
        svc.on_batch(OrderPlaced)(handler)
    assert str(refused.value).startswith(sentence)


async def says_nothing(event, ctx) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 what is tested


async def says_a_base(event: OrderEvent) -> None: ...


async def says_something_else(event: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 what is tested


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (says_nothing, "handler says_nothing says no event; annotate its first parameter like `event: OrderPlaced`"),
        (says_a_base, "handler says_a_base handles OrderEvent, which is no event with a type=; annotate the events "),
        (says_something_else, "handler says_something_else has an annotation 'Nowhere' that cannot be read"),
        (no_event, "handler no_event handles int, which is no event with a type="),
    ],
)
def test_an_annotation_that_names_no_event_is_refused(handler: Any, sentence: str, svc: Service) -> None:
    with pytest.raises(ConfigurationError) as refused:
        svc.on(handler)
    assert str(refused.value).startswith(sentence)


async def bare(batch: Batch) -> None: ...  # type: ignore[type-arg]  # what is tested


def test_a_batch_of_nothing_is_refused(svc: Service) -> None:
    with pytest.raises(ConfigurationError) as refused:
        svc.on_batch(bare)
    sentence = "handler bare says no event; annotate its first parameter like `batch: Batch[OrderPlaced]`"
    assert str(refused.value) == sentence
    assert svc.subscriptions == ()


@pytest.mark.parametrize(
    ("register", "sentence"),
    [
        (lambda svc: svc.on("order.placed"), "on(...) takes an event class, a union of them like OrderPlaced | "),
        (lambda svc: svc.on(OrderPlaced, OrderPaid), "on(...) takes several events as a union: on(OrderPlaced | Orde"),
        (lambda svc: svc.publishes(OrderPlaced, OrderPaid), "publishes(...) takes several events as a union: publish"),
        (
            lambda svc: svc.publishes(),
            "publishes(...) takes several events as a union: publishes(OrderPlaced | OrderPa",
        ),
        (lambda svc: svc.publishes(OrderPlaced | None), "<class 'NoneType'> is no event class; give a class derived"),
        (lambda svc: svc.on(())(says_nothing), "says_nothing subscribes to no event; name an event class in on(...)"),
        (
            lambda svc: svc.on(OrderPlaced, delivery=AtLeastOnce)(one_event),
            "handler one_event: delivery=<class 'hailbus.delivery.AtLeastOnce'> is a class; call it: AtLeastOnce(...)",
        ),
        (
            lambda svc: svc.on(OrderPlaced, delivery="at least once")(one_event),
            "handler one_event: delivery='at least once' is no promise; give AtLeastOnce()",
        ),
        (
            lambda svc: svc.on(OrderPlaced, group="")(one_event),
            "handler one_event: group='' is not the name of a consumer group",
        ),
        (lambda svc: Service("till", handler_threads=0), "service till: handler_threads=0 must be at least 1"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    register: Callable[[Service], object], sentence: str, svc: Service
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        register(svc)
    assert str(refused.value).startswith(sentence)
