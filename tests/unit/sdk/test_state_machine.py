"""Processes that span services: each event moves its process once, timeouts are scheduled events, one table."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import (
    Backoff,
    Catalogue,
    ConfigurationError,
    EffectivelyOnce,
    Event,
    Inbox,
    Outbox,
    ParkingLot,
    ParkKey,
    Publisher,
    Service,
    SubscriberSettings,
    Topic,
    event_info,
)
from hailbus.database import create_engine
from hailbus.state_machine import State, StateMachine, Step, state_table
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from sqlalchemy import Connection, event, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

ORDERS = Topic("orders.v1", partitions=2)
PAYMENTS = Topic("payments.v1", partitions=2)
SLOW = SubscriberSettings(commit_interval=timedelta(milliseconds=500))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount_cents: int


class OrderExpired(Event, topic=ORDERS, key="order_id", type="order.expired"):
    order_id: str


class PaymentTimedOut(Event, topic=ORDERS, key="order_id", type="order.payment_timed_out"):
    order_id: str


class PaymentReceived(Event, topic=PAYMENTS, key="payment_id", type="payment.received"):
    payment_id: str
    order_id: str


class AwaitingPayment(State, name="awaiting-payment"):
    amount_cents: int


class Paid(State, is_final=True):
    payment_id: str


class Expired(State, is_final=True):
    pass


class Ticked(Event, topic=ORDERS, key="order_id", type="order.ticked"):
    order_id: str


class Counted(State):
    count: int


def order_of(event: PaymentReceived) -> str:
    return event.order_id


class Checkout:
    """The service under test: what the guide shows."""

    def __init__(self, engine: AsyncEngine, clock: VirtualClock, max_items: int = 1) -> None:
        self.engine = engine
        self.svc = Service("shop", subscribing=SLOW, clock=clock)
        self.outbox = Outbox(engine, clock=clock, poll_interval=timedelta(seconds=1))
        self.pub: Publisher[OrderExpired | PaymentTimedOut] = self.svc.publishes(OrderExpired | PaymentTimedOut)
        self.machine = machine = StateMachine(
            "checkout",
            inbox=Inbox(engine, "checkout", clock=clock),
            outbox=self.outbox,
            retry=Backoff(first=timedelta(milliseconds=1), attempts=3),
            clock=clock,
            max_items=max_items,
        )
        self.moves: list[str] = []

        @machine.starts(OrderPlaced)
        async def placed(event: OrderPlaced, step: Step) -> AwaitingPayment:
            self.moves.append("placed")
            await step.schedule(self.pub, PaymentTimedOut(order_id=event.order_id), after=timedelta(minutes=1))
            return AwaitingPayment(amount_cents=event.amount_cents)

        @machine.on(AwaitingPayment, PaymentReceived, by=order_of)
        async def paid(state: AwaitingPayment, event: PaymentReceived, step: Step) -> Paid:
            self.moves.append("paid")
            return Paid(payment_id=event.payment_id)

        @machine.on(AwaitingPayment, PaymentTimedOut)
        async def expired(state: AwaitingPayment, event: PaymentTimedOut, step: Step) -> Expired:
            self.moves.append("expired")
            await self.pub.publish(OrderExpired(order_id=step.instance), tx=step.tx, cause=step.ctx)
            return Expired()

        machine.attach(self.svc)

    async def state(self, order: str) -> State | None:
        async with self.engine.connect() as connection:
            return await self.machine.state(connection, order)


def checkout(tmp_path: Path, max_items: int = 1) -> Checkout:
    return Checkout(create_engine(f"sqlite:///{tmp_path}/shop.db"), VirtualClock(), max_items)


one_by_one_and_together = pytest.mark.parametrize("max_items", [1, 50])


@one_by_one_and_together
def test_a_payment_in_time_ends_the_process_and_withdraws_the_timeout(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        shop = checkout(tmp_path, max_items)
        async with MemoryBus(clock=VirtualClock()).run(shop.svc) as t:
            await t.given(OrderPlaced(order_id="o1", amount_cents=500))
            await t.settle()
            assert await shop.state("o1") == AwaitingPayment(amount_cents=500)
            assert await shop.outbox.waiting_count() == 1  # the timeout
            await t.given(PaymentReceived(payment_id="p1", order_id="o1"))
            await t.settle()
            assert await shop.state("o1") == Paid(payment_id="p1")
            assert await shop.outbox.waiting_count() == 0
            t.published(PaymentTimedOut).none()
        await shop.engine.dispose()

    run_virtual(main())


@one_by_one_and_together
def test_a_timeout_is_an_event_of_its_own_and_a_late_payment_changes_nothing(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        shop = checkout(tmp_path, max_items)
        async with MemoryBus(clock=VirtualClock()).run(shop.svc) as t:
            await t.given(OrderPlaced(order_id="o1", amount_cents=500))
            await t.settle()
            await asyncio.sleep(55)  # virtual
            assert shop.moves == ["placed"]
            async with asyncio.timeout(10):
                while await shop.state("o1") != Expired():  # noqa: ASYNC110 virtual time
                    await asyncio.sleep(0.05)
            await t.settle()
            assert t.published(OrderExpired).one().order_id == "o1"
            await t.given(PaymentReceived(payment_id="p1", order_id="o1"))
            await t.settle()
            assert await shop.state("o1") == Expired()
            assert shop.moves == ["placed", "expired"]
        await shop.engine.dispose()

    run_virtual(main())


@one_by_one_and_together
def test_a_redelivered_event_moves_its_process_once(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        shop = checkout(tmp_path, max_items)
        async with MemoryBus(clock=VirtualClock()).run(shop.svc) as t:
            await t.given(OrderPlaced(order_id="o1", amount_cents=500))
            await t.redeliver_last()
            await t.settle()
            assert shop.moves == ["placed"]
            async with shop.engine.connect() as connection:
                (version,) = (await connection.execute(select(state_table.c.version))).scalars()
            assert version == 1
        await shop.engine.dispose()

    run_virtual(main())


@one_by_one_and_together
def test_an_event_that_met_another_one_is_handled_again_with_the_new_state(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        shop = checkout(tmp_path, max_items)
        seen: list[int] = []

        machine = StateMachine(
            "counting",
            inbox=Inbox(shop.engine, "counting"),
            outbox=shop.outbox,
            retry=Backoff(),
            max_items=max_items,
        )

        @machine.starts(OrderPlaced)
        async def begin(event: OrderPlaced, step: Step) -> Counted:
            return Counted(count=0)

        @machine.on(Counted, Ticked)
        async def tick(state: Counted, event: Ticked, step: Step) -> Counted:
            seen.append(state.count)
            if len(seen) == 1:  # as if another member had committed in between
                await step.tx.execute(
                    update(state_table)
                    .where(state_table.c.machine == "counting")
                    .values(version=state_table.c.version + 1)
                )
            return Counted(count=state.count + 1)

        svc = Service("counter", subscribing=SLOW)
        machine.attach(svc)
        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(OrderPlaced(order_id="o1", amount_cents=1))
            await t.settle()
            await t.given(Ticked(order_id="o1"))
            await t.settle()
        assert seen == [0, 0]  # rolled back, and called again
        async with shop.engine.connect() as connection:
            assert await machine.state(connection, "o1") == Counted(count=1)
        await shop.engine.dispose()

    run_virtual(main())


class Tally:
    """A machine that counts, with handlers that can be told to fail."""

    def __init__(self, tmp_path: Path, *, max_items: int) -> None:
        self.engine = create_engine(f"sqlite:///{tmp_path}/tally.db")
        self.machine = StateMachine(
            "tally",
            inbox=Inbox(self.engine, "tally"),
            outbox=Outbox(self.engine),
            retry=Backoff(first=timedelta(milliseconds=1), attempts=2),
            max_items=max_items,
        )
        self.fails = ""
        self.ticks: list[str] = []

        @self.machine.starts(OrderPlaced)
        async def begin(event: OrderPlaced, step: Step) -> Counted:
            return Counted(count=0)

        @self.machine.on(Counted, Ticked)
        async def tick(state: Counted, event: Ticked, step: Step) -> Counted:
            self.ticks.append(step.instance)
            if step.instance == self.fails:
                raise ValueError(step.instance)
            return Counted(count=state.count + 1)

        self.svc = Service("tally", subscribing=SLOW)
        self.machine.attach(self.svc)

    async def rows(self) -> dict[str, tuple[int, int]]:
        """Count and version of each process."""
        query = select(state_table.c.instance, state_table.c.data, state_table.c.version)
        async with self.engine.connect() as connection:
            return {row[0]: (json.loads(row[1])["count"], row[2]) for row in await connection.execute(query)}


@pytest.mark.parametrize(("max_items", "transactions"), [(1, 40), (50, 1)])
def test_events_of_many_processes_share_a_transaction(tmp_path: Path, max_items: int, transactions: int) -> None:
    async def main() -> None:
        tally = Tally(tmp_path, max_items=max_items)
        commits: list[int] = []
        async with MemoryBus(clock=VirtualClock()).run(tally.svc) as t:

            @event.listens_for(tally.engine.sync_engine, "commit")
            def count(_connection: Connection) -> None:
                commits.append(1)

            placed = [OrderPlaced(order_id=f"o{number}", amount_cents=1) for number in range(10)]
            ticks = [Ticked(order_id=f"o{number}") for _ in range(3) for number in range(10)]
            await t.given(*placed, *ticks)
            await t.settle()
            event.remove(tally.engine.sync_engine, "commit", count)
        assert await tally.rows() == {f"o{number}": (3, 4) for number in range(10)}
        assert len(commits) == transactions
        await tally.engine.dispose()

    run_virtual(main())


def test_an_event_that_cannot_be_handled_takes_none_of_its_transaction_along(tmp_path: Path) -> None:
    async def main() -> None:
        tally = Tally(tmp_path, max_items=50)
        tally.fails = "o2"
        async with MemoryBus(clock=VirtualClock()).run(tally.svc) as t:
            placed = [OrderPlaced(order_id=f"o{number}", amount_cents=1) for number in range(4)]
            await t.given(*placed, *(Ticked(order_id=f"o{number}") for number in range(4)))
            await t.settle()
            assert t.dead_letters(Ticked).one().event == Ticked(order_id="o2")
        assert await tally.rows() == {"o0": (1, 2), "o1": (1, 2), "o2": (0, 1), "o3": (1, 2)}
        await tally.engine.dispose()

    run_virtual(main())


@one_by_one_and_together
def test_an_event_that_changes_nothing_is_skipped_and_counted(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        tally = Tally(tmp_path, max_items=max_items)
        async with MemoryBus(clock=VirtualClock()).run(tally.svc) as t:
            await t.given(Ticked(order_id="o1"), OrderPlaced(order_id="o1", amount_cents=1), Ticked(order_id="o1"))
            await t.settle()
            (stats,) = [subscriber.stats for subscriber in tally.svc.subscribers]
            assert (stats.skipped, stats.settled) == (1, 2)
        assert await tally.rows() == {"o1": (1, 2)}
        await tally.engine.dispose()

    run_virtual(main())


async def test_a_machine_that_rejects_events_handles_them_one_by_one(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    for settings, message in (
        ({"otherwise": "reject", "max_items": 2}, "otherwise='reject' rejects single events"),
        ({"max_items": 0}, "m: max_items"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            StateMachine("m", inbox=Inbox(engine, "m"), outbox=Outbox(engine), **settings)
    await engine.dispose()


class Cased(Event, topic=Topic("cases.v1", partitions=2), key="case_id"):
    case_id: str
    seq: int


class CaseOpened(Cased, type="case.opened"):
    pass


class CaseClosed(Cased, type="case.closed"):
    pass


class CaseNudged(Event, topic=ORDERS, key="case_id", type="case.nudged"):
    """Has no number, and another topic."""

    case_id: str


@one_by_one_and_together
def test_a_topic_may_have_a_delivery_of_its_own(tmp_path: Path, max_items: int) -> None:
    async def main() -> None:
        engine = create_engine(f"sqlite:///{tmp_path}/cases.db")
        inbox, lot = Inbox(engine, "office-cases"), ParkingLot(engine)
        in_order = EffectivelyOnce(inbox=inbox, then=ParkKey(lot=lot), sequence="seq")
        topic = event_info(CaseOpened).topic
        machine = StateMachine(
            "cases", inbox=inbox, outbox=Outbox(engine), deliveries={topic: in_order}, max_items=max_items
        )
        moves: list[str] = []

        @machine.starts(CaseOpened)
        async def opened(event: CaseOpened, step: Step) -> Counted:
            moves.append("opened")
            return Counted(count=0)

        @machine.on(Counted, CaseNudged)
        async def nudged(state: Counted, event: CaseNudged, step: Step) -> Counted:
            moves.append("nudged")
            return Counted(count=state.count + 1)

        @machine.on(Counted, CaseClosed)
        async def closed(state: Counted, event: CaseClosed, step: Step) -> Expired:
            moves.append("closed")
            return Expired()

        svc = Service("office", subscribing=SLOW, catalogue=Catalogue.of(CaseOpened, CaseClosed, CaseNudged))
        machine.attach(svc)
        async with MemoryBus(clock=VirtualClock()).run(svc) as t:
            await t.given(CaseClosed(case_id="c", seq=2))
            await t.settle()
            assert [key.reason for key in await lot.keys("office-cases")] == ["seq 2 came where 1 was due"]
            await t.given(CaseOpened(case_id="d", seq=1))
            await t.settle()
            await t.given(CaseNudged(case_id="d"))
            await t.settle()
            await t.given(CaseOpened(case_id="c", seq=1))
            await t.settle()
        assert moves == ["opened", "nudged", "opened", "closed"]
        assert await lot.keys("office-cases") == []
        await engine.dispose()

    run_virtual(main())


async def test_a_delivery_that_the_machine_cannot_keep_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/cases.db")
    inbox, topic = Inbox(engine, "office-cases"), event_info(CaseOpened).topic
    for deliveries, message in (
        ({ORDERS: EffectivelyOnce(inbox=inbox)}, "names topic 'orders.v1', of which no event has a transition"),
        ({topic: EffectivelyOnce(inbox=Inbox(engine, "other"))}, "the delivery of topic 'cases.v1' has another inbox"),
    ):
        machine = StateMachine("cases", inbox=inbox, outbox=Outbox(engine), deliveries=deliveries)

        @machine.starts(CaseOpened)
        async def opened(event: CaseOpened, step: Step) -> Counted:
            return Counted(count=0)

        with pytest.raises(ConfigurationError, match=message):
            machine.attach(Service("office"))
    await engine.dispose()


def test_the_table_is_what_the_diagram_shows(tmp_path: Path) -> None:
    shop = checkout(tmp_path)
    rows = [
        (t.source and t.source.__name__, t.event.__name__, *(target.__name__ for target in t.targets))
        for t in shop.machine.transitions
    ]
    assert rows == [
        (None, "OrderPlaced", "AwaitingPayment"),
        ("AwaitingPayment", "PaymentReceived", "Paid"),
        ("AwaitingPayment", "PaymentTimedOut", "Expired"),
    ]
    assert shop.machine.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> awaiting-payment : OrderPlaced",
        "    awaiting-payment --> Paid : PaymentReceived",
        "    awaiting-payment --> Expired : PaymentTimedOut",
        "    Paid --> [*]",
        "    Expired --> [*]",
    ]


async def test_mistakes_are_refused_when_they_are_declared(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    machine = StateMachine("m", inbox=Inbox(engine, "m"), outbox=Outbox(engine))
    with pytest.raises(ConfigurationError, match="no event starts a process"):
        machine.attach(Service("x"))

    async def move(state: Paid, event: OrderPlaced, step: Step) -> Paid:
        return state

    async def start(event: OrderPlaced, step: Step) -> Paid:
        return Paid(payment_id="")

    with pytest.raises(ConfigurationError, match="Paid is final"):
        machine.on(Paid, OrderPlaced)(move)
    machine.starts(OrderPlaced)(start)
    with pytest.raises(ConfigurationError, match="declared twice"):
        machine.starts(OrderPlaced)(start)
    with pytest.raises(ConfigurationError, match="unknown class keywords"):
        type("Odd", (State,), {"__module__": __name__}, finall=True)
    await engine.dispose()
