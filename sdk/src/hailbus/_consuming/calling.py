"""Calls of handlers: with their deadline, their span, and the inbox transaction around them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hailbus._consuming.claiming import Claiming
from hailbus._consuming.deadlines import Deadlines
from hailbus._consuming.failure import Stage, StageError, is_fatal
from hailbus._consuming.outages import Outages
from hailbus._consuming.path import STORE_TIMEOUT_S, checked_verdict
from hailbus._consuming.sequenced import Numbering, Place, Unhandled, place_of
from hailbus._consuming.work import Early, Route
from hailbus._transport import Received, TopicPartition
from hailbus.context import Batch, Context, Deliveries, Delivery
from hailbus.delivery import Done, EffectivelyOnce, Reject, Retry, Skip, Verdict
from hailbus.errors import VerdictError
from hailbus.event import Event
from hailbus.subscription import SubscriberStats, Subscription

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from hailbus.inbox import Inbox
    from hailbus.tracing import Tracing

__all__ = ["ALREADY_APPLIED", "Caller", "ends_task"]

T = TypeVar("T")
ALREADY_APPLIED = Skip("applied before")


class _RollBackError(Exception):
    """Ends an inbox transaction without its effects; carries the verdict that asks for that."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__()


class Caller:
    """Calls the handlers of one group."""

    def __init__(self, group: str, *, tracing: Tracing | None, outages: Outages, stats: SubscriberStats) -> None:
        self.tracing = tracing
        self._stats = stats
        self.deadlines = Deadlines()
        self._group = group
        self._outages = outages
        self._closing: set[asyncio.Future[None]] = set()

    async def single(
        self, route: Route, partition: TopicPartition, event: Event, ctx: Context, *, may_skip: bool = False
    ) -> Verdict | Early | None:
        """Call a handler of single events.

        Args:
            route: Where the event goes.
            partition: Where it was read.
            event: What it is.
            ctx: Its context.
            may_skip: Whether it may pass over a gap that somebody has accepted.

        Raises:
            StageError: The inbox refused the event, or could not commit.
            BaseException: What the handler raised, `VerdictError` for a value that is no verdict.
        """
        if route.inbox is None:
            return await self._handle(route, event, ctx)
        inbox, numbered = route.inbox, route.numbered
        if not isinstance(event, Unhandled):
            _check_storable(inbox, ctx)
        if numbered is not None:
            numbered.check(event, ctx.record)

        async def claim(tx: AsyncConnection) -> tuple[Verdict | Early, set[str]]:
            verdict: Verdict | Early = Done()
            if numbered is not None:
                (verdict,) = await numbered.admit(tx, [(event, ctx)], may_skip=may_skip)
            return verdict, await inbox.claim(tx, [ctx]) if isinstance(verdict, Done) else set()

        async def once() -> Verdict | Early | None:
            async with self._transaction(inbox, claim) as (tx, (admitted, fresh)):
                if not isinstance(admitted, Done):
                    return admitted
                if not fresh:
                    return ALREADY_APPLIED
                ctx.tx = tx
                verdict = await self._handle(route, event, ctx)
                if isinstance(verdict, (Retry, Reject)):
                    raise _RollBackError(verdict)
                return verdict

        try:
            return await self._outages.reach(_resource(inbox), [partition], once)
        except _RollBackError as order:
            return order.verdict

    async def _handle(self, route: Route, event: Event, ctx: Context) -> Verdict | None:
        assert route.handler is not None
        assert route.subscription is not None
        name = route.subscription.name
        with (
            self.tracing.processing(ctx) if self.tracing is not None else contextlib.nullcontext(),
            self._measured(ctx.topic),
        ):
            call = route.handler(event, ctx)
            if route.deadline_s is not None:
                call = self.deadlines.within(name, route.deadline_s, call)
            verdict = await call
            return verdict if verdict is None else checked_verdict(verdict, name)

    async def batch(
        self,
        subscription: Subscription,
        inbox: Inbox | None,
        partitions: Collection[TopicPartition],
        deliveries: Sequence[Delivery[Event]],
        *,
        numbered: Numbering | None = None,
        may_skip: bool = False,
    ) -> Sequence[Verdict | Early] | None:
        """Call a handler of batches; the verdicts, one per delivery, or None for all done.

        Args:
            subscription: With the handler.
            inbox: Of its promise.
            partitions: Where the events were read.
            deliveries: The events.
            numbered: How their numbers are checked; None when they have none.
            may_skip: Whether the first event may pass over a gap that somebody has accepted.

        Raises:
            StageError: The inbox could not claim or commit.
            BaseException: What the handler raised, `VerdictError` for values that are no verdicts.
        """
        if inbox is None:
            return await self._handle_batch(subscription, Batch(deliveries), deliveries)
        if isinstance(subscription.delivery, EffectivelyOnce) and subscription.delivery.own_transaction:

            async def in_its_own_transaction() -> Sequence[Verdict | Early] | None:
                claiming = Claiming(inbox, numbered, deliveries, may_skip=may_skip)
                try:
                    return await self._own_batch(subscription, claiming, deliveries)
                except Exception as error:
                    await _check_reachable(inbox, error)
                    raise

            return await self._outages.reach(_resource(inbox), partitions, in_its_own_transaction)

        async def claim(tx: AsyncConnection) -> tuple[list[Verdict | Early] | None, list[Delivery[Event]]]:
            if numbered is None:
                return None, _first_of_each(deliveries, await inbox.claim(tx, deliveries))
            admitted = await numbered.admit(tx, [(d.event, d.ctx) for d in deliveries], may_skip=may_skip)
            due = [d for d, verdict in zip(deliveries, admitted, strict=True) if isinstance(verdict, Done)]
            return admitted, _first_of_each(due, await inbox.claim(tx, due))

        async def once() -> Sequence[Verdict | Early] | None:
            async with self._transaction(inbox, claim) as (tx, (admitted, new)):
                if not new:
                    return admitted
                verdicts = await self._handle_batch(subscription, Batch(new, tx=tx), new)
                if verdicts is None or all(isinstance(v, Done) for v in verdicts):
                    return admitted
                if any(isinstance(v, (Retry, Reject)) for v in verdicts):
                    raise VerdictError(
                        handler=subscription.name,
                        problem="gave Retry or Reject under EffectivelyOnce, where a batch is applied as a whole",
                    )
                given: dict[Place, Verdict] = {place_of(d.ctx): v for d, v in zip(new, verdicts, strict=True)}
                before = admitted if admitted is not None else [Done()] * len(deliveries)
                return [given.get(place_of(d.ctx), v) for d, v in zip(deliveries, before, strict=True)]

        return await self._outages.reach(_resource(inbox), partitions, once)

    async def _own_batch(
        self, subscription: Subscription, claiming: Claiming, deliveries: Sequence[Delivery[Event]]
    ) -> Sequence[Verdict | Early] | None:
        """Call a handler that claims in a transaction of its own."""
        batch = Batch(claiming.handled, claiming=claiming.claim)
        verdicts = await self._handle_batch(subscription, batch, deliveries)
        if verdicts is not None:
            problem = "returned verdicts under own_transaction=True; refuse an event by claim.refuse(item, reason)"
            raise VerdictError(handler=subscription.name, problem=problem)
        if not claiming.is_stored:
            problem = "stored no claim under own_transaction=True; call batch.claim(tx), and claim.store() at the end"
            raise VerdictError(handler=subscription.name, problem=problem)
        return claiming.verdicts()

    async def _handle_batch(
        self, subscription: Subscription, batch: Batch[Event], read: Sequence[Delivery[Event]]
    ) -> Sequence[Verdict] | None:
        """Call a handler with a batch; `read` is what spans and durations are about."""
        handler, name, deadline = subscription.batch_handler, subscription.name, subscription.deadline
        assert handler is not None
        with (
            self.tracing.processing_batch(*_records_of(read), group=self._group)
            if self.tracing is not None
            else contextlib.nullcontext(),
            self._measured(read[0].ctx.topic),
        ):
            call = handler(batch)
            verdicts: Any = await (  # Any: whatever the handler returns
                call if deadline is None else self.deadlines.within(name, deadline.total_seconds(), call)
            )
            return None if verdicts is None else _checked_verdicts(verdicts, len(batch), name)

    @contextmanager
    def _measured(self, topic: str) -> Iterator[None]:
        """Count how long a handler's call takes, if somebody reads that."""
        durations = self._stats.durations
        if durations is None:
            yield
            return
        now = asyncio.get_running_loop().time
        began_s, failure = now(), ""
        try:
            yield
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            durations.observe(now() - began_s, topic, failure)

    @asynccontextmanager
    async def _transaction(
        self, inbox: Inbox, claim: Callable[[AsyncConnection], Awaitable[T]]
    ) -> AsyncIterator[tuple[AsyncConnection, T]]:
        """A transaction that begins with `claim`; committed at the end, rolled back when the block raises."""
        tx = inbox.engine.connect()
        try:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await tx.start()
                    transaction = await tx.begin()
                    claimed = await claim(tx)
            except Exception as error:
                raise StageError(Stage.CLAIM, error) from error
            try:
                yield tx, claimed
            except BaseException as error:
                is_lost = tx.invalidated
                with contextlib.suppress(Exception):
                    await transaction.rollback()
                if is_lost and isinstance(error, Exception):
                    # The connection that we lent the handler has died under it.
                    raise StageError(Stage.INBOX_COMMIT, ConnectionError(str(error))) from error
                raise
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await transaction.commit()
            except Exception as error:
                raise StageError(Stage.INBOX_COMMIT, error) from error
        finally:
            with contextlib.suppress(Exception):
                await self._uncancelled(tx.close())

    async def _uncancelled(self, work: Awaitable[None]) -> None:
        """Finish, even when the caller is cancelled: a connection that is not returned is lost to its pool."""
        task = asyncio.ensure_future(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    async def stop(self) -> None:
        """Wait until every connection has been returned."""
        self.deadlines.stop()
        await asyncio.gather(*self._closing, return_exceptions=True)


def ends_task(error: BaseException) -> bool:
    """Whether an exception ends the task that has called a handler rather than the call."""
    task = asyncio.current_task()
    return is_fatal(error) or (isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0)


def _resource(inbox: Inbox) -> str:
    return f"the database of inbox {inbox.consumer!r}"


async def _check_reachable(inbox: Inbox, error: Exception) -> None:
    """Whatever a handler with a transaction of its own has raised: that its database is away is no fault of the events.

    Raises:
        StageError: It is away.
    """
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            await inbox.check()
    except Exception as away:  # noqa: BLE001 whatever the driver raises
        raise StageError(Stage.CLAIM, away) from error


def _check_storable(inbox: Inbox, ctx: Context) -> None:
    try:
        refusal: Exception | None = inbox.refusal_of(ctx)
    except Exception as error:  # noqa: BLE001 an envelope that cannot be read
        refusal = error
    if refusal is not None:
        raise StageError(Stage.CLAIM, refusal)


def _checked_verdicts(verdicts: object, count: int, name: str) -> Sequence[Verdict]:
    if not isinstance(verdicts, Sequence) or isinstance(verdicts, (str, bytes)):
        raise VerdictError(handler=name, problem=f"returned {_kind(verdicts)} for {count} events")
    if len(verdicts) != count:
        raise VerdictError(handler=name, problem=f"gave {len(verdicts)} verdicts for {count} events")
    for verdict in verdicts:
        if verdict is None:
            raise VerdictError(handler=name, problem="gave None as one verdict of a list, where Done() is meant")
        checked_verdict(verdict, name)
    return verdicts


def _kind(value: object) -> str:
    return f"a {type(value).__qualname__}"


def _first_of_each(deliveries: Sequence[Delivery[Event]], fresh: set[str]) -> list[Delivery[Event]]:
    """The deliveries with fresh ids, each id once."""
    left = set(fresh)
    found: list[Delivery[Event]] = []
    for delivery in deliveries:
        event_id = delivery.ctx.envelope.id
        if event_id in left:
            left.remove(event_id)
            found.append(delivery)
    return found


def _records_of(items: Sequence[Delivery[Event]]) -> tuple[Sequence[Received], int]:
    """The records of a batch, and how often they have been handed over, this call included."""
    if isinstance(items, Deliveries):
        return items.records, max(items.attempts)
    return [item.ctx.record for item in items], max(item.ctx.attempt for item in items)
