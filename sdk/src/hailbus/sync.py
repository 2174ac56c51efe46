"""Publishing, outbox and inbox for synchronous code: Flask, Django, scripts.

::

    shop = Service("shop", bus=KafkaBus(bootstrap_servers="127.0.0.1:9092"))
    orders = SyncPublisher(shop, shop.publishes(OrderPlaced))

    orders.publish(OrderPlaced(order_id="a"))                      # waits for the acknowledgement
    with Session(engine) as tx:                                    # or: stored with the state that it tells of,
        orders.publish(OrderPlaced(order_id="b"), tx=tx)           # published by `hailbus relay`
        tx.commit()
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import Connection, Engine, delete
    from sqlalchemy import create_engine as create_sqlalchemy_engine
    from sqlalchemy.orm import Session

from hailbus.clock import Clock, micros, utc_now
from hailbus.context import Context, Delivery
from hailbus.database import CREATE_OPTION, database_url, ensure_tables_sync, set_up_sqlite
from hailbus.envelope import Envelope
from hailbus.errors import ConfigurationError, DeliveryError, EventIdError
from hailbus.event import Event
from hailbus.inbox import PRUNE, PRUNED_AT_ONCE, Claims, Inbox, claim_statement, inbox_table
from hailbus.outbox import SyncTransaction, cancel_sync, outbox_table, store_sync
from hailbus.publisher import Publisher, Receipt
from hailbus.service import Service

__all__ = ["SyncInbox", "SyncOutbox", "SyncPublisher", "create_engine"]

E_contra = TypeVar("E_contra", bound=Event, contravariant=True)
T = TypeVar("T")


# ------------------------------------------------------------------------------------------------ database


def create_engine(
    url: str,
    *,
    busy_timeout_ms: int = 10_000,
    synchronous: str = "NORMAL",
    create_tables: bool | None = None,
    **options: Any,
) -> Engine:
    """Make a synchronous engine with the settings of `hailbus.database.create_engine`; PostgreSQL by psycopg.

    Outbox and inbox work with any SQLAlchemy engine of these databases. This one sets up SQLite for concurrent use.

    Args:
        url: `sqlite:///path` or `postgresql://…`; the driver is chosen here.
        busy_timeout_ms: As there.
        synchronous: As there.
        create_tables: As there.
        options: Handed to SQLAlchemy's `create_engine`.

    Raises:
        ConfigurationError: As there.
    """
    parsed = database_url(url)
    if create_tables is not None:
        options["execution_options"] = {**options.get("execution_options", {}), CREATE_OPTION: create_tables}
    if parsed.get_backend_name() == "postgresql":
        try:
            return create_sqlalchemy_engine(parsed.set(drivername="postgresql+psycopg"), **options)
        except ModuleNotFoundError as error:
            message = "PostgreSQL in synchronous code needs the driver psycopg: pip install 'psycopg[binary]'"
            raise ConfigurationError(message) from error
    engine = create_sqlalchemy_engine(parsed.set(drivername="sqlite+pysqlite"), **options)
    set_up_sqlite(engine, busy_timeout_ms=busy_timeout_ms, synchronous=synchronous)
    return engine


class SyncOutbox:
    """The outbox table of one database, written by synchronous code.

    It is the table of `hailbus.Outbox`. Events are stored by `SyncPublisher.publish(tx=...)`; the relay runs elsewhere:
    `hailbus relay --database URL`, or a service with `svc.relays(Outbox(engine))`.

    Args:
        engine: Of SQLite or PostgreSQL.
    """

    def __init__(self, engine: Engine, *, clock: Clock = utc_now) -> None:
        self.engine = engine
        self._clock = clock

    def create_tables(self) -> None:
        """Create table and indexes where they are missing; see `hailbus.database.ensure_tables`."""
        ensure_tables_sync(self.engine, outbox_table)

    def cancel(self, tx: Session | Connection, *schedule_ids: str) -> int:
        """Withdraw the unpublished rows of schedules, in the caller's transaction; how many there were."""
        return cancel_sync(tx, schedule_ids, now=self._clock())


class SyncInbox:
    """What one consumer has applied, claimed in the synchronous transaction of the effects.

    It is the table of `hailbus.Inbox`, for handlers that are plain functions::

        @svc.on(OrderPlaced)
        def take(event: OrderPlaced, ctx: Context) -> None:
            with Session(engine) as tx, tx.begin():
                if inbox.claim(tx, [ctx]):
                    ...                                   # apply once

    Args:
        engine: Of SQLite or PostgreSQL.
        consumer: Name of the consumer, by convention its group.
    """

    def __init__(self, engine: Engine, consumer: str, *, clock: Clock = utc_now) -> None:
        self.engine = engine
        self.consumer = consumer
        self._clock = clock
        self._claim = claim_statement(engine.dialect.name)

    def create_tables(self) -> None:
        """Create table and index where they are missing; see `hailbus.database.ensure_tables`."""
        ensure_tables_sync(self.engine, inbox_table)

    @staticmethod
    def refusal_of(delivery: Delivery[Any] | Context) -> EventIdError | None:
        """Why an event cannot be claimed, None when it can; see `hailbus.Inbox`."""
        return Inbox.refusal_of(delivery)

    def claim(self, tx: Session | Connection, deliveries: Iterable[Delivery[Any] | Context]) -> set[str]:
        """Record events in the caller's transaction; the ids of those that were never applied before.

        Raises:
            EventIdError: An id or source is too long for the table or holds control characters; nothing was claimed.
        """
        claims = Claims(deliveries)
        if not claims.rows:
            return set()
        return claims.fresh(tx.execute(self._claim, claims.parameters(self.consumer, self._clock())).all())

    def release(self, tx: Session | Connection, contexts: Iterable[Context]) -> None:
        """Forget that events were applied, in the caller's transaction, so that their dead letters can be replayed."""
        for ctx in contexts:
            tx.execute(
                delete(inbox_table).where(
                    inbox_table.c.consumer == self.consumer,
                    inbox_table.c.source == ctx.envelope.source,
                    inbox_table.c.event_id == ctx.envelope.id,
                )
            )

    def prune(self, keep: timedelta) -> int:
        """Forget events that were applied longer ago than this; how many."""
        old = {"consumer": self.consumer, "before": micros(self._clock() - keep), "most": PRUNED_AT_ONCE}
        pruned_count = 0
        while True:
            with self.engine.begin() as connection:
                count = connection.execute(PRUNE, old).rowcount
            pruned_count += count
            if count < PRUNED_AT_ONCE:
                return pruned_count


# ------------------------------------------------------------------------------------------------ publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What a caller's thread hands to the publisher's."""

    publish: Callable[[], Coroutine[Any, Any, asyncio.Future[Receipt]]]
    done: Future[Receipt]


class SyncPublisher(Generic[E_contra]):
    """Publishes events from synchronous code, from any number of threads.

    An asyncio publisher runs in a thread of its own. It starts with the first event, or by `start`. It ends by `close`,
    when the context is left, or at the end of the interpreter. After a fork the child starts its own.

    Events of one key that one thread publishes are written in their order. At most `max_waiting` events wait for their
    acknowledgement: beyond that `enqueue` and `publish` block the caller.

    Args:
        service: Gives bus, name, source, schemas and settings. Only its publishing runs here, not its handlers.
        publisher: Which events: `SyncPublisher(svc, svc.publishes(A, B))`.
        max_waiting: Events that wait for their acknowledgement, over all threads.
        close_timeout: How long `close` waits for acknowledgements.
    """

    def __init__(
        self,
        service: Service,
        publisher: Publisher[E_contra],
        *,
        max_waiting: int = 10_000,
        close_timeout: timedelta = timedelta(seconds=15),
    ) -> None:
        if max_waiting < 1:
            message = f"max_waiting={max_waiting} must be at least 1"
            raise ConfigurationError(message)
        self._service = service
        self._declared = publisher
        self._max_waiting = max_waiting
        self._close_timeout_s = close_timeout.total_seconds()
        self._reset()

    def _reset(self) -> None:
        """Reset: when made, and in the child of a fork, which has neither the thread nor its events."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(self._max_waiting)
        self._orders: deque[_Order] = deque()
        self._waiting: set[Future[Receipt]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        self._is_told = False
        self._publisher: Publisher[Any] | None = None
        self._is_closed = False

    # -------------------------------------------------------------------------------------------- life

    def start(self) -> Self:
        """Connect now, not with the first event.

        Raises:
            BrokerUnreachableError: No broker answered within the bus's connect timeout.
            ConfigurationError: The service has no bus, or the publisher was closed.
        """
        self._running_loop()
        return self

    def close(self) -> None:
        """Wait for acknowledgements within `close_timeout`, then disconnect; safe to call twice."""
        if self._pid != os.getpid():
            return  # the parent's
        with self._lock:
            self._is_closed = True
            thread, loop, arrived = self._thread, self._loop, self._arrived
            self._thread = None
        if thread is not None and loop is not None and arrived is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(arrived.set)
            thread.join(self._close_timeout_s + 5.0)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            if self._is_closed:
                message = "this publisher was closed; make another"
                raise ConfigurationError(message)
            if self._thread is not None and self._thread.is_alive() and self._loop is not None:
                return self._loop
            started: Future[asyncio.AbstractEventLoop] = Future()
            thread = threading.Thread(
                target=self._run, args=(started,), name=f"hailbus-publisher-{self._service.name}", daemon=True
            )
            thread.start()
            self._loop = started.result()
            self._thread = thread
            atexit.register(self.close)
            return self._loop

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            asyncio.run(self._main(started))
        except BaseException as error:  # noqa: BLE001 whatever it is belongs to those who wait
            if not started.done():
                started.set_exception(error)
            self._give_up(error)

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        service, self._publisher = _publishing_half(self._service, self._declared)
        arrived = self._arrived = asyncio.Event()
        async with service.running():
            started.set_result(asyncio.get_running_loop())
            while True:
                self._is_told = False
                while self._orders:
                    await self._begin(self._orders.popleft())
                if self._is_closed:
                    break
                await arrived.wait()
                arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_timeout_s):
                    await service.flush()

    async def _begin(self, order: _Order) -> None:
        """Hand one event to the asyncio publisher; its receipt or error goes to the caller's future."""
        try:
            sent = await order.publish()
        except Exception as error:  # noqa: BLE001 the caller's to judge
            self._settle(order.done, error)
            return

        def decided(future: asyncio.Future[Receipt]) -> None:
            error = future.exception() if not future.cancelled() else DeliveryError("the publisher ended", topic="")
            self._settle(order.done, error if error is not None else future.result())

        sent.add_done_callback(decided)

    def _settle(self, done: Future[Receipt], outcome: Receipt | BaseException) -> None:
        if done not in self._waiting:
            return
        self._waiting.discard(done)
        self._room.release()
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def _give_up(self, error: BaseException) -> None:
        """Tell those who wait that the thread has ended."""
        self._orders.clear()
        ended = DeliveryError(f"the publisher ended: {error!r}", topic="")
        for done in tuple(self._waiting):
            self._settle(done, error if isinstance(error, Exception) else ended)

    # -------------------------------------------------------------------------------------------- publishing

    def publish(
        self,
        event: E_contra,
        *,
        id: str | None = None,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        tx: Session | Connection | SyncTransaction | None = None,
        not_before: datetime | None = None,
        schedule_id: str | None = None,
    ) -> Receipt:
        """Publish one event and wait for its acknowledgement; with `tx`, store it in the outbox instead.

        Arguments and errors are those of `Publisher.publish`. With `tx`, a synchronous SQLAlchemy `Session` or
        `Connection`, or `hailbus.django.django_tx()`, nothing is connected: a relay publishes the event after the
        caller's commit.

        Raises:
            ConfigurationError: Also where an event loop runs in this thread, which it would block: use `Publisher`.
        """
        if tx is not None:
            rows = self._declared.outbox_rows(
                [event],
                marks=[(id, None)],
                time=time,
                cause=cause,
                headers=headers,
                partition=partition,
                not_before=not_before,
                schedule_id=schedule_id,
            )
            store_sync(tx, rows)
            return Receipt(rows[0].id, rows[0].topic, None, None)
        if not_before is not None or schedule_id is not None:
            message = "not_before and schedule_id need the outbox: give tx= as well"
            raise ConfigurationError(message)
        _refuse_event_loop("publish")
        return self.enqueue(event, id=id, time=time, cause=cause, headers=headers, partition=partition).result()

    def enqueue(
        self,
        event: E_contra,
        *,
        id: str | None = None,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> Future[Receipt]:
        """Hand over one event, waiting only for room among `max_waiting`. The future gives the receipt or the error."""
        loop = self._running_loop()
        publisher = self._publisher
        assert publisher is not None
        self._room.acquire()
        done: Future[Receipt] = Future()
        done.set_running_or_notify_cancel()  # it cannot be taken back
        self._waiting.add(done)
        moment = time if time is not None else utc_now()  # of the call, not of the hand-over

        def publish() -> Coroutine[Any, Any, asyncio.Future[Receipt]]:
            return publisher.enqueue(event, id=id, time=moment, cause=cause, headers=headers, partition=partition)

        self._orders.append(_Order(publish=publish, done=done))
        if not self._is_told:  # else the thread has yet to look, and finds this one as well
            self._is_told = True
            assert self._arrived is not None
            try:
                loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError as error:  # closed in between
                self._give_up(error)
        return done

    def publish_many(
        self,
        events: Iterable[E_contra],
        *,
        time: datetime | None = None,
        cause: Context | Envelope | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        tx: Session | Connection | SyncTransaction | None = None,
    ) -> list[Receipt]:
        """Publish events and wait until all are acknowledged; receipts in the order of the events.

        Raises:
            DeliveryError: The first that failed, when all are decided; the others may have been written.
        """
        if tx is not None:
            rows = self._declared.outbox_rows(events, time=time, cause=cause, headers=headers)
            if rows:
                store_sync(tx, rows)
            return [Receipt(row.id, row.topic, None, None) for row in rows]
        _refuse_event_loop("publish_many")
        futures = [self.enqueue(event, time=time, cause=cause, headers=headers) for event in events]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def flush(self, timeout: timedelta | None = None) -> None:
        """Wait until everything that was enqueued so far is acknowledged or has failed.

        Raises:
            TimeoutError: Not within the time.
        """
        _refuse_event_loop("flush")
        deadline = None if timeout is None else utc_now() + timeout
        for done in tuple(self._waiting):
            left_s = None if deadline is None else max((deadline - utc_now()).total_seconds(), 0.0)
            done.exception(left_s)

    @property
    def waiting_count(self) -> int:
        """Events that wait for their acknowledgement."""
        return len(self._waiting)


def _publishing_half(service: Service, publisher: Publisher[Any]) -> tuple[Service, Publisher[Any]]:
    """The same service without its handlers, and the same publisher on it."""
    half = service._without_handlers()  # noqa: SLF001 the other half of the same thing
    modes = publisher.content_modes
    mode = modes.pop() if len(modes) == 1 else None  # several: each topic's own
    return half, half.publishes(*publisher.events, content_mode=mode)


def _refuse_event_loop(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = f"{what}() of a SyncPublisher would block the event loop of this thread; use svc.publishes() and await it"
    raise ConfigurationError(message)
