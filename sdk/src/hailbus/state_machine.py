"""Processes that span services: typed states in one table, moved by events, with timeouts as scheduled events.

::

    class AwaitingPayment(State):
        amount_cents: int

    class Paid(State, is_final=True):
        payment_id: str

    class Expired(State, is_final=True):
        pass

    checkout = StateMachine("checkout", inbox=Inbox(engine, "checkout"), outbox=outbox)

    @checkout.starts(OrderPlaced)
    async def placed(event: OrderPlaced, step: Step) -> AwaitingPayment:
        await step.schedule(timeouts, PaymentTimedOut(order_id=event.order_id), after=timedelta(minutes=15))
        return AwaitingPayment(amount_cents=event.amount_cents)

    @checkout.on(AwaitingPayment, PaymentReceived)
    async def paid(state: AwaitingPayment, event: PaymentReceived, step: Step) -> Paid:
        return Paid(payment_id=event.payment_id)

    @checkout.on(AwaitingPayment, PaymentTimedOut)
    async def expired(state: AwaitingPayment, event: PaymentTimedOut, step: Step) -> Expired:
        return Expired()

    checkout.attach(svc)

The row, the inbox row and what is published with `tx=step.tx` are committed together, so each event moves its process
once. Events of one process may come from several topics at the same time. On PostgreSQL the second waits for the row
that the first one changes; where it cannot wait, it is rolled back and handled again, with the state that the first has
left.

`StateMachine(..., max_items=100)` handles up to so many events in one transaction, which costs a fraction of the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Integer,
        MetaData,
        String,
        Table,
        Text,
        bindparam,
        insert,
        select,
        update,
    )
    from sqlalchemy.exc import IntegrityError

from hailbus.clock import Clock, micros, utc_now
from hailbus.context import Batch, Context
from hailbus.delivery import Backoff, DeadLetter, Done, EffectivelyOnce, Reject, Skip, Verdict, checked_count
from hailbus.errors import ConfigurationError, HailbusError
from hailbus.event import Event, Topic, event_info, key_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from hailbus.inbox import Inbox
    from hailbus.outbox import Outbox
    from hailbus.publisher import Publisher
    from hailbus.service import Service

__all__ = ["State", "StateChangedError", "StateMachine", "Step", "Transition", "state_table"]

metadata = MetaData()
state_table = Table(
    "hailbus_state",
    metadata,
    Column("machine", String(100), primary_key=True),
    Column("instance", String(255), primary_key=True),
    Column("state", String(100), nullable=False),
    Column("data", Text, nullable=False),  # JSON
    Column("timeouts", Text, nullable=False),  # JSON: the names of those that were scheduled and not cancelled
    Column("version", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),  # microseconds since the epoch
)

_SELECT = (
    select(state_table)
    .where(state_table.c.machine == bindparam("of"), state_table.c.instance.in_(bindparam("ids", expanding=True)))
    .order_by(state_table.c.instance)  # two transactions that lock several rows do so in the same order
)
_LOCK = _SELECT.with_for_update()
_INSERT = insert(state_table)
_UPDATE = update(state_table).where(
    state_table.c.machine == bindparam("of"),
    state_table.c.instance == bindparam("id"),
    state_table.c.version == bindparam("before"),
)

E = TypeVar("E", bound=Event)


class State(BaseModel):
    """Base class of states: a frozen pydantic model. Its name in the table is that of the class, unless given.

    Class keywords: `name`, to keep stored rows readable when the class is renamed; `is_final`, for states that no event
    leaves: entering one withdraws the timeouts that are left.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    __state_name__: ClassVar[str] = ""
    __state_is_final__: ClassVar[bool] = False

    def __init_subclass__(cls, *, name: str | None = None, is_final: bool = False, **config: Any) -> None:
        super().__init_subclass__()
        cls.__state_name__ = name if name is not None else cls.__name__
        cls.__state_is_final__ = is_final

    @classmethod
    def __pydantic_init_subclass__(cls, *, name: Any = None, is_final: Any = False, **config: Any) -> None:
        super().__pydantic_init_subclass__()
        if config:
            message = f"{cls.__qualname__}: unknown class keywords {sorted(config)}; known are name and is_final"
            raise ConfigurationError(message)


S = TypeVar("S", bound=State)
Moving = Callable[[S, E, "Step"], Awaitable[State | None]]


class StateChangedError(HailbusError):
    """Another event moved the same process at the same time; handled again, this one sees the new state.

    Attributes:
        machine, instance: Which process.
    """

    def __init__(self, *, machine: str, instance: str) -> None:
        super().__init__(f"{machine} {instance!r} was changed by another event at the same time; it is handled again")
        self.machine = machine
        self.instance = instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A line of the transition table. `source` is None for the start; `targets` are those that the handler names."""

    source: type[State] | None
    event: type[Event]
    targets: tuple[type[State], ...]
    handler: Callable[..., Awaitable[State | None]]


class Step:
    """One event on its way through a process.

    Attributes:
        instance: Id of the process: the event's key, unless the transition says otherwise.
        ctx: The handler's context.
        tx: The open transaction; publish with `tx=step.tx`.
    """

    __slots__ = ("_machine", "ctx", "instance", "timeouts", "tx")

    def __init__(
        self, machine: StateMachine, instance: str, ctx: Context, tx: AsyncConnection, timeouts: set[str]
    ) -> None:
        self._machine = machine
        self.instance = instance
        self.ctx = ctx
        self.tx = tx
        self.timeouts = timeouts
        """Names of the timeouts that were scheduled and not cancelled."""

    async def schedule(
        self,
        publisher: Publisher[E],
        event: E,
        *,
        after: timedelta | None = None,
        at: datetime | None = None,
        name: str = "timeout",
    ) -> None:
        """Publish an event later, unless it is cancelled before; an earlier one of the same name is replaced.

        Raises:
            ConfigurationError: Neither or both of `after` and `at` are given.
        """
        if (after is None) == (at is None):
            message = "a timeout has either after= or at="
            raise ConfigurationError(message)
        await self.cancel(name)
        due = at if at is not None else self._machine.clock() + (after or timedelta())
        await publisher.publish(
            event,
            tx=self.tx,
            cause=self.ctx,
            not_before=due,
            schedule_id=self._machine.schedule_id(self.instance, name),
        )
        self.timeouts.add(name)

    async def cancel(self, name: str = "timeout") -> None:
        """Withdraw a timeout, if there is one; when it was published already, it finds no transition."""
        if name in self.timeouts:
            await self._machine.outbox.cancel(self.tx, self._machine.schedule_id(self.instance, name))
            self.timeouts.discard(name)


@dataclass(slots=True, kw_only=True)
class _Process:
    """A process while a transaction is open. `version` is that of its row, 0 where there is none."""

    instance: str
    state: State | None
    timeouts: set[str]
    version: int
    move_count: int = 0


class StateMachine:
    """A kind of process: its transition table and the instances in `hailbus_state`.

    Args:
        name: Of this kind of process; with the service's name it is the consumer group.
        inbox: In the database of the table; makes each event count once.
        outbox: In the same database; holds the timeouts.
        otherwise: What happens to an event that its process has no transition for: `skip` it, as with a timeout that
            comes late, or `reject` it as a dead letter.
        retry: As for `EffectivelyOnce`.
        deliveries: How the events of a topic are delivered, where `EffectivelyOnce(inbox=inbox, retry=retry)` is not
            enough: `{RIDES: EffectivelyOnce(inbox=inbox, then=ParkKey(lot=lot), sequence="seq")}`.
        clock: For `after=` and `updated_at`.
        max_items: Events of a topic's delivery that one transaction handles at most. Those that are there are taken,
            none is waited for. The handlers run one after the other, in the events' order; the rows are written after
            the last one. When one of them raises, the transaction is retried as the delivery says, then each event
            alone.

    Raises:
        ConfigurationError: `max_items` is no count, or more than 1 with `otherwise="reject"`, which rejects single
            events.
    """

    def __init__(
        self,
        name: str,
        *,
        inbox: Inbox,
        outbox: Outbox,
        otherwise: Literal["skip", "reject"] = "skip",
        retry: Backoff | None = None,
        deliveries: Mapping[Topic, EffectivelyOnce] | None = None,
        clock: Clock = utc_now,
        max_items: int = 1,
    ) -> None:
        checked_count(f"{name}: max_items", max_items)
        if max_items > 1 and otherwise == "reject":
            message = f"{name}: otherwise='reject' rejects single events, so it does not go with max_items={max_items}"
            raise ConfigurationError(message)
        self.name = name
        self.outbox = outbox
        self.clock = clock
        self._inbox = inbox
        self._otherwise = otherwise
        self._max_items = max_items
        self._delivery = EffectivelyOnce(
            inbox=inbox, retry=retry if retry is not None else Backoff(), then=DeadLetter()
        )
        self._deliveries = {topic.name: delivery for topic, delivery in (deliveries or {}).items()}
        self._table: dict[tuple[type[State] | None, type[Event]], Transition] = {}
        self._instance_of: dict[type[Event], Callable[[Any], str]] = {}
        self._states: dict[str, type[State]] = {}

    # ---------------------------------------------------------------------------------------------- declaring

    def starts(
        self, event: type[E], *, by: Callable[[E], str] | None = None
    ) -> Callable[[Callable[[E, Step], Awaitable[S]]], Callable[[E, Step], Awaitable[S]]]:
        """The event begins a process, unless there is one with this id already.

        Args:
            event: Its class.
            by: The id of the process that an event belongs to; its key unless given.
        """

        def register(handler: Callable[[E, Step], Awaitable[S]]) -> Callable[[E, Step], Awaitable[S]]:
            self._add(None, event, handler, by)
            return handler

        return register

    def on(
        self, state: type[S], event: type[E], *, by: Callable[[E], str] | None = None
    ) -> Callable[[Moving[S, E]], Moving[S, E]]:
        """What the event does to a process in this state: the handler gives the next state, None to stay as it is."""

        def register(handler: Moving[S, E]) -> Moving[S, E]:
            self._add(state, event, handler, by)
            return handler

        return register

    def _add(
        self,
        source: type[State] | None,
        event: type[Event],
        handler: Callable[..., Awaitable[State | None]],
        by: Callable[[Any], str] | None,
    ) -> None:
        where = f"{self.name}: {source.__state_name__ if source else 'start'} on {event.__name__}"
        if (source, event) in self._table:
            message = f"{where} is declared twice"
            raise ConfigurationError(message)
        if source is not None and source.__state_is_final__:
            message = f"{where}: {source.__state_name__} is final, so no event leaves it"
            raise ConfigurationError(message)
        if by is None and event_info(event).key_field is None:
            message = f"{where}: {event.__name__} has no key; say which process it belongs to by by="
            raise ConfigurationError(message)
        known = self._instance_of.setdefault(event, by if by is not None else _key_text)
        if by is not None and known is not by:
            message = f"{where}: {event.__name__} belongs to a process by another rule already; give the same by="
            raise ConfigurationError(message)
        targets = _states_in(get_type_hints(handler).get("return"))
        if not targets and source is None:
            message = f"{where}: annotate the state that the handler returns"
            raise ConfigurationError(message)
        for state in (source, *targets):
            if state is not None and self._states.setdefault(state.__state_name__, state) is not state:
                message = f"{self.name}: two states are called {state.__state_name__!r}; give one of them name="
                raise ConfigurationError(message)
        self._table[source, event] = Transition(source=source, event=event, targets=targets, handler=handler)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The transition table, in the order of declaration: what the code runs on."""
        return tuple(self._table.values())

    def mermaid(self) -> str:
        """The transition table as a Mermaid state diagram, for the docs."""
        lines = ["stateDiagram-v2"]
        for transition in self._table.values():
            source = transition.source.__state_name__ if transition.source is not None else "[*]"
            targets = [target.__state_name__ for target in transition.targets] or [source]
            lines += [f"    {source} --> {target} : {transition.event.__name__}" for target in targets]
        lines += [f"    {s.__state_name__} --> [*]" for s in self._states.values() if s.__state_is_final__]
        return "\n".join(lines) + "\n"

    def attach(self, service: Service) -> None:
        """Let a service run this machine, in the group `<service>-<machine>`; call it after the last transition.

        Raises:
            ConfigurationError: There is no transition, no event starts a process, or a delivery of `deliveries` has
                another inbox or a topic of which no event has a transition.
        """
        if not any(source is None for source, _ in self._table):
            message = f"{self.name}: no event starts a process; declare one by @{self.name}.starts(Event)"
            raise ConfigurationError(message)
        service.relays(self.outbox)
        service.needs(self)
        group = f"{service.name}-{self.name}"
        by_topic: dict[str | None, list[type[Event]]] = {}
        for event in self._instance_of:
            topic = event_info(event).topic.name
            by_topic.setdefault(topic if topic in self._deliveries else None, []).append(event)
        for topic_name, delivery in self._deliveries.items():
            if topic_name not in by_topic:
                message = f"{self.name}: deliveries= names topic {topic_name!r}, of which no event has a transition"
                raise ConfigurationError(message)
            if delivery.inbox is not self._inbox:
                message = (
                    f"{self.name}: the delivery of topic {topic_name!r} has another inbox; give it the machine's, "
                    "whose database holds the states"
                )
                raise ConfigurationError(message)
        for found, events in by_topic.items():
            delivery = self._deliveries[found] if found is not None else self._delivery
            if self._max_items == 1:
                service.on(tuple(events), delivery=delivery, group=group)(self._handle)
                continue
            service.on_batch(
                tuple(events), delivery=delivery, group=group, max_items=self._max_items, max_wait=timedelta()
            )(self._handle_batch)

    async def create_tables(self) -> None:
        """Create the table where it is missing."""
        async with self._inbox.engine.begin() as connection:
            await connection.run_sync(_create)

    # ---------------------------------------------------------------------------------------------- running

    def schedule_id(self, instance: str, name: str) -> str:
        """The name of a timeout in the outbox."""
        return f"{self.name}/{instance}/{name}"

    async def _handle(self, event: Event, ctx: Context) -> Verdict:
        assert ctx.tx is not None
        instance = self._instance_of[type(event)](event)
        process = (await self._processes(ctx.tx, [instance]))[instance]
        verdict = await self._move(process, event, ctx, ctx.tx)
        await self._write(ctx.tx, [process])
        return verdict

    async def _handle_batch(self, batch: Batch[Event]) -> list[Verdict]:
        assert batch.tx is not None
        items = [(self._instance_of[type(item.event)](item.event), item) for item in batch]
        processes = await self._processes(batch.tx, {instance for instance, _ in items})
        verdicts = [await self._move(processes[instance], item.event, item.ctx, batch.tx) for instance, item in items]
        await self._write(batch.tx, processes.values())
        return verdicts

    async def _processes(self, tx: AsyncConnection, instances: Iterable[str]) -> dict[str, _Process]:
        """Read processes, and lock their rows: another event of one waits here instead of failing when it writes."""
        found = {instance: _Process(instance=instance, state=None, timeouts=set(), version=0) for instance in instances}
        for row in await tx.execute(_LOCK, {"of": self.name, "ids": list(found)}):
            found[row.instance] = _Process(
                instance=row.instance,
                state=self._state_of(row),
                timeouts=set(json.loads(row.timeouts)),
                version=row.version,
            )
        return found

    async def _move(self, process: _Process, event: Event, ctx: Context, tx: AsyncConnection) -> Verdict:
        """Let an event move a process, which is written afterwards."""
        state, instance = process.state, process.instance
        transition = self._table.get((type(state) if state is not None else None, type(event)))
        if transition is None:
            at = state.__state_name__ if state is not None else "no state"
            reason = f"{self.name} {instance!r} is in {at}, which {type(event).__name__} does not change"
            return Reject(reason) if self._otherwise == "reject" else Skip(reason)
        step = Step(self, instance, ctx, tx, process.timeouts)
        if state is None:
            after = await transition.handler(event, step)
            assert after is not None, f"{self.name}: the start on {type(event).__name__} gave no state"
        else:
            after = await transition.handler(state, event, step) or state
        if after.__state_is_final__ and step.timeouts:
            schedules = [self.schedule_id(instance, name) for name in sorted(step.timeouts)]
            await self.outbox.cancel_many(tx, schedules)
            step.timeouts.clear()
        process.state = after
        process.move_count += 1
        return Done()

    def _state_of(self, row: Any) -> State:  # Any: a SQLAlchemy row
        cls = self._states.get(row.state)
        if cls is None:
            message = (
                f"{self.name} {row.instance!r} is in state {row.state!r}, which no transition names; "
                "keep the class, or give the renamed one name="
            )
            raise ConfigurationError(message)
        return cls.model_validate_json(row.data)

    async def _write(self, tx: AsyncConnection, processes: Iterable[_Process]) -> None:
        """Write the processes that were moved."""
        begun: list[dict[str, Any]] = []  # Any: column values
        moved: list[dict[str, Any]] = []
        updated_at = micros(self.clock())
        for process in sorted(processes, key=attrgetter("instance")):  # as `_SELECT` does, and for the same reason
            if process.state is None or not process.move_count:
                continue
            values = {
                "state": process.state.__state_name__,
                "data": process.state.model_dump_json(),
                "timeouts": json.dumps(sorted(process.timeouts)),
                "version": process.version + process.move_count,
                "updated_at": updated_at,
            }
            if process.version:
                moved.append({"of": self.name, "id": process.instance, "before": process.version, **values})
            else:
                begun.append({"machine": self.name, "instance": process.instance, **values})
        if begun:
            try:
                await tx.execute(_INSERT, begun)
            except IntegrityError as error:
                raise StateChangedError(machine=self.name, instance=begun[0]["instance"]) from error
        if moved:
            changed = await tx.execute(_UPDATE, moved)
            # asyncpg does not count the rows of several updates; there the rows are locked since they were read.
            if 0 <= changed.rowcount != len(moved):
                raise StateChangedError(machine=self.name, instance=moved[0]["id"])

    async def state(self, tx: AsyncSession | AsyncConnection, instance: str) -> State | None:
        """The state of a process, None when it has not begun."""
        row = (await tx.execute(_SELECT, {"of": self.name, "ids": [instance]})).one_or_none()
        return self._state_of(row) if row is not None else None


def _key_text(event: Event) -> str:
    key = key_of(event)
    assert key is not None
    return key.decode()


def _states_in(annotation: object) -> tuple[type[State], ...]:
    """The state classes in a return annotation, alone or in a union."""
    found = get_args(annotation) or (annotation,)
    return tuple(cls for cls in found if isinstance(cls, type) and issubclass(cls, State))


def _create(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=True)
