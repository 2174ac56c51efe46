"""Two services of the SDK: a shop that publishes by an outbox, and a till with a handler of each delivery semantic."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Context,
    DeliveryError,
    DeliveryTimeoutError,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    KafkaBus,
    PublisherSettings,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus.errors import BrokerUnreachableError
from hailbus.inbox import Inbox
from hailbus.outbox import Outbox
from hailbus_broker.testing.history import Sent
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hailbus import Publisher, Receipt
    from hailbus_broker.testing.campaign.context import Context as ClientContext
    from hailbus_broker.testing.history import End
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hailbus_devtools.simulate.guests.books import Books, Handler

PARTITIONS: Final = 2
CUSTOMERS: Final = ("ada", "bob", "cleo")
PATIENT: Final = Backoff(first=timedelta(milliseconds=50), max=timedelta(seconds=1), attempts=10_000)
"""A handler fails because its database is away, or by chance: no event may become a dead letter for that."""


class OrderPlaced(Event, topic=Topic("orders.v1", partitions=PARTITIONS), key="customer", type="simulate.order.placed"):
    """An order is in the shop's store."""

    number: int
    customer: str


class OrderPaid(Event, topic=Topic("payments.v1", partitions=PARTITIONS), key="customer", type="simulate.order.paid"):
    """An order is in the till's store."""

    number: int
    customer: str


class OrderCopied(Event, topic=Topic("copies.v1", partitions=PARTITIONS), key="customer", type="simulate.order.copied"):
    """A record was read, and copied exactly once."""

    number: int
    customer: str


class Ticked(Event, topic=Topic("ticks.v1", partitions=PARTITIONS), key="value", type="simulate.ticked"):
    """Published without an outbox."""

    value: int


class HandlerError(Exception):
    """A handler fails by chance."""


class ChangedMindError(Exception):
    """A transaction is rolled back."""


def bus_of(context: ClientContext) -> KafkaBus:
    """Make a bus whose time-outs fit a scenario of ten seconds."""
    return KafkaBus(
        bootstrap_servers=context.bootstrap,
        connect_timeout_s=5.0,
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
        rebalance_timeout_ms=5_000,
        request_timeout_ms=3_000,
    )


@asynccontextmanager
async def running(context: ClientContext, service: Service) -> AsyncIterator[None]:
    """Run a service; a start that fails is tried again, as a supervisor would."""
    while True:
        try:
            await service.start(bus_of(context))
            break
        except (BrokerUnreachableError, DeliveryError, SQLAlchemyError):
            context.recorder.note("service could not start")
            await context.back_off()
    yield
    await service.stop()


class Shop:
    """Stores orders, each with its event in the outbox; publishes ticks without one."""

    def __init__(self, context: ClientContext, books: Books) -> None:
        self._context: Final = context
        self._books: Final = books

    async def run(self) -> None:
        """Sell until the campaign stops, and publish what is stored."""
        context = self._context
        engine = self._books.shop.engine()
        outbox = Outbox(engine)
        service = Service("shop", publishing=PublisherSettings(delivery_timeout=timedelta(seconds=6)))
        service.relays(outbox)
        orders = service.publishes(OrderPlaced)
        ticks = service.publishes(Ticked)
        async with running(context, service):
            while not context.stop.is_set:
                if context.rng.random() < 0.7:
                    await self._sell(engine, orders)
                else:
                    await self._tick(ticks)
                await context.pause()
            while not await self._has_published(outbox):  # noqa: ASYNC110 - a database announces nothing
                await asyncio.sleep(0.2)
        self._books.is_shop_done = True

    async def _sell(self, engine: AsyncEngine, orders: Publisher[OrderPlaced]) -> None:
        context = self._context
        order = self._books.placed()
        customer = context.rng.choice(CUSTOMERS)
        try:
            async with engine.begin() as tx:
                row = {"number": order.number, "customer": customer}
                await tx.execute(text("INSERT INTO orders (number, customer) VALUES (:number, :customer)"), row)
                await orders.publish(OrderPlaced(number=order.number, customer=customer), tx=tx)
                if context.rng.random() < 0.2:
                    raise ChangedMindError
        except ChangedMindError:
            order.outcome = "fail"
            context.recorder.note("outbox transaction rolled back")
        except SQLAlchemyError:
            return
        else:
            order.outcome = "ok"
            context.succeeded()

    async def _tick(self, ticks: Publisher[Ticked]) -> None:
        context = self._context
        value = next(context.recorder.values)
        place = len(self._books.ticks)
        self._note_tick(place, value, "unknown")
        try:
            receipt = await ticks.publish(Ticked(value=value))
        except DeliveryTimeoutError:
            return
        except DeliveryError as error:
            if not error.retriable:
                context.recorder.fail(f"{context.name}: {error}")
            return
        self._note_tick(place, value, "ok", receipt)

    def _note_tick(self, place: int, value: int, outcome: End, receipt: Receipt | None = None) -> None:
        sent = Sent(
            process=f"{self._context.name}.{self._context.life}",
            partition=-1 if receipt is None or receipt.partition is None else receipt.partition,
            value=value,
            outcome=outcome,
            offset=None if receipt is None else receipt.offset,
        )
        self._books.ticks[place : place + 1] = [sent]

    async def _has_published(self, outbox: Outbox) -> bool:
        try:
            return await outbox.waiting_count() == 0
        except SQLAlchemyError:
            return False


class Till:
    """Takes money for orders: its effects and its own events are in one transaction with the inbox."""

    def __init__(self, context: ClientContext, books: Books) -> None:
        self._context: Final = context
        self._books: Final = books
        self._running: Final[set[tuple[Handler, str]]] = set()

    async def run(self) -> None:
        """Handle until the campaign stops and everything is handled."""
        context, books = self._context, self._books
        engine = books.till.engine()
        service = Service(
            "till",
            subscribing=SubscriberSettings(revoke_grace=timedelta(seconds=2), drain_timeout=timedelta(seconds=5)),
        )
        service.relays(Outbox(engine))
        paid = service.publishes(OrderPaid)
        copied = service.publishes(OrderCopied)

        @service.on(delivery=EffectivelyOnce(inbox=Inbox(engine, "till"), retry=PATIENT))
        async def take_money(event: OrderPlaced, ctx: Context) -> None:
            assert ctx.tx is not None
            row = {"number": event.number, "customer": event.customer}
            await ctx.tx.execute(text("INSERT INTO effects (number, customer) VALUES (:number, :customer)"), row)
            self._fail_sometimes()
            await paid.publish(OrderPaid(number=event.number, customer=event.customer), tx=ctx.tx, cause=ctx)
            await asyncio.sleep(context.rng.uniform(0.0, 0.3))
            context.succeeded()

        @service.on(delivery=AtLeastOnce(retry=PATIENT), group="till-ledger")
        async def write_down(event: OrderPlaced, ctx: Context) -> None:
            await self._handle("at least once", event, ctx)

        @service.on(delivery=AtMostOnce(), group="till-screen")
        async def show(event: OrderPlaced, ctx: Context) -> None:
            await self._handle("at most once", event, ctx)

        @service.on(delivery=ExactlyOnce(retry=PATIENT), group="till-copies")
        async def copy(event: OrderPlaced, ctx: Context) -> None:
            self._fail_sometimes()
            await copied.publish(OrderCopied(number=event.number, customer=event.customer), partition=ctx.partition)
            books.handled["exactly once"].append((ctx.partition, ctx.offset))

        async with running(context, service):
            while not (context.stop.is_set and books.is_all_handled()):
                if not books.has_shop:
                    context.succeeded()
                await asyncio.sleep(0.2)

    async def _handle(self, handler: Handler, event: OrderPlaced, ctx: Context) -> None:
        context = self._context
        key = (handler, event.customer)
        if key in self._running:
            context.recorder.fail(f"{context.name}: two handlers {handler} run at once for the key {event.customer}")
        self._running.add(key)
        try:
            if handler == "at most once":  # called is handled, whatever becomes of it
                self._books.handled[handler].append((ctx.partition, ctx.offset))
            await asyncio.sleep(context.rng.uniform(0.0, 0.05))
            self._fail_sometimes()
            if handler != "at most once":
                self._books.handled[handler].append((ctx.partition, ctx.offset))
        finally:
            self._running.discard(key)

    def _fail_sometimes(self) -> None:
        if self._context.rng.random() < 0.05:
            self._context.recorder.note("handler failed")
            raise HandlerError
