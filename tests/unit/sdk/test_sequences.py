"""Numbered events: repetitions are skipped, events that come too early wait, and those behind a gap follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    DeadLetter,
    EffectivelyOnce,
    Event,
    Inbox,
    ParkingLot,
    ParkKey,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus.codec import encode, envelope_for
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.sequence import Position, Turn
from hailbus.testing import Harness, MemoryBus
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.unit.sdk.test_failure_policies import until

Taking = Literal["single", "batch", "own"]
"""How a service takes events: one by one, in batches, or in batches with a transaction of its own."""
HIRES = Topic("hires.v1", partitions=2)
SOON = timedelta(milliseconds=5)


class HireEvent(Event, topic=HIRES, key="hire_id"):
    hire_id: str
    seq: int


class Hired(HireEvent, type="bike.hired"):
    pass


class Returned(HireEvent, type="bike.returned"):
    pass


class Cleaned(HireEvent, type="bike.cleaned"):
    """Nobody here handles it."""


class Unnumbered(Event, topic=Topic("bells.v1"), key="hire_id", type="bell.rung"):
    hire_id: str


class Shop:
    """A service that writes the events it applies into a table."""

    def __init__(self, engine: AsyncEngine, *, taking: Taking, **options: Any) -> None:
        self.engine = engine
        self.lot = ParkingLot(engine)
        self.inbox = Inbox(engine, "shop")
        self.calls: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        self.failing: dict[int, int] = {}
        """How often an event fails from now on."""
        self.hanging: set[int] = set()
        self.refused: set[int] = set()
        self.taking = taking
        self.options: dict[str, Any] = {"sequence": "seq", "retry": Backoff(attempts=1)} | options
        self.catalogue: Catalogue | None = Catalogue.of(Hired, Returned, Cleaned)

    def service(self) -> Service:
        """A process of it; another one is a restart."""
        settings = SubscriberSettings(commit_interval=SOON, drain_timeout=timedelta(0))
        svc = Service("shop", subscribing=settings, catalogue=self.catalogue)
        delivery = EffectivelyOnce(
            inbox=self.inbox,
            then=ParkKey(lot=self.lot, look_every=SOON),
            own_transaction=self.taking == "own",
            **self.options,
        )

        async def apply(event: HireEvent, tx: Any) -> None:
            self.calls.append((event.hire_id, event.seq))
            await tx.execute(text("INSERT INTO effects VALUES (:k, :n)"), {"k": event.hire_id, "n": event.seq})
            if event.seq in self.hanging:
                await asyncio.Event().wait()
            if self.failing.get(event.seq, 0) > 0:
                self.failing[event.seq] -= 1
                raise OSError("not now")
            if event.seq in self.broken:
                raise ValueError(f"{event.seq} is broken")

        if self.taking == "own":

            @svc.on_batch(Hired | Returned, delivery=delivery, max_wait=timedelta(milliseconds=1))
            async def take_and_commit(items: Batch[Hired | Returned]) -> None:
                async with self.engine.begin() as tx:
                    claim = await items.claim(tx)
                    for item in items:
                        if item not in claim:
                            continue
                        if item.event.seq in self.refused:
                            claim.refuse(item, f"{item.event.seq} is refused")
                        else:
                            await apply(item.event, tx)
                    await claim.store()

        elif self.taking == "batch":

            @svc.on_batch(Hired | Returned, delivery=delivery, max_wait=timedelta(milliseconds=1))
            async def take_all(items: Batch[Hired | Returned]) -> None:
                for item in items:
                    await apply(item.event, items.tx)

        else:

            @svc.on(Hired | Returned, delivery=delivery)
            async def take(event: Hired | Returned, ctx: Context) -> None:
                await apply(event, ctx.tx)

        return svc

    async def effects(self, key: str = "a") -> list[int]:
        async with self.engine.connect() as connection:
            query = text("SELECT seq FROM effects WHERE hire = :k ORDER BY rowid")
            return list((await connection.execute(query, {"k": key})).scalars())

    async def release(self) -> None:
        """Release the key, and wait until the service has tried its events."""
        await self.lot.release("shop", "hires.v1", b"a")
        await until(self._is_tried)

    async def _is_tried(self) -> bool:
        return not any(key.is_released for key in await self.lot.keys("shop"))

    async def waiting(self) -> list[tuple[str, int, str]]:
        return [(key.key.decode(), key.waiting_count, key.reason) for key in await self.lot.keys("shop")]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE effects (hire TEXT, seq INTEGER)"))
    yield engine
    await engine.dispose()


@pytest.fixture(params=["single", "batch", "own"])
def taking(request: pytest.FixtureRequest) -> Taking:
    chosen: Taking = request.param
    return chosen


def hired(*numbers: int, key: str = "a") -> list[Hired]:
    return [Hired(hire_id=key, seq=number) for number in numbers]


# ---------------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("last", "first", "number", "turn"),
    [
        (None, 1, 1, Turn.DUE),
        (None, 1, 0, Turn.DUE),
        (None, 1, 2, Turn.EARLY),
        (None, None, 7, Turn.DUE),
        (4, 1, 3, Turn.STALE),
        (4, 1, 4, Turn.STALE),
        (4, 1, 5, Turn.DUE),
        (4, 1, 6, Turn.EARLY),
        (4, None, 6, Turn.EARLY),
    ],
)
def test_the_number_says_whether_an_event_is_applied(
    last: int | None, first: int | None, number: int, turn: Turn
) -> None:
    assert Position(last).turn_of(number, first=first) is turn


def test_an_accepted_gap_is_passed_over_only_by_the_next_event_that_waits() -> None:
    position = Position(4, accepts_gap=True)
    assert position.turn_of(7, first=1) is Turn.EARLY
    assert position.turn_of(7, first=1, may_skip=True) is Turn.DUE
    assert position.turn_of(4, first=1, may_skip=True) is Turn.STALE


# ---------------------------------------------------------------------------------------------------- gaps


async def test_events_behind_a_gap_follow_when_the_missing_one_comes(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    service = shop.service()
    async with bus.run(service) as t:
        await t.given(*hired(1, 4, 3), *hired(1, 2, key="b"))
        await t.settle()
        assert (await shop.effects(), await shop.effects("b")) == ([1], [1, 2])
        ((key, count, reason),) = await shop.waiting()
        assert (key, count, reason[5:]) == ("a", 2, " came where 2 was due"), "3 or 4, whichever it was first"
        (member,) = service._subscribers
        assert member.parked_keys == 1
        await t.given(*hired(2))
        await t.settle()
        assert await shop.effects() == [1, 2, 3, 4]
        assert (await shop.waiting(), member.parked_keys) == ([], 0)
        await t.given(*hired(5))
        await t.settle()
    assert await shop.effects() == [1, 2, 3, 4, 5]
    assert await shop.inbox.sequences.last("hires.v1", b"a") == 5
    assert bus.records(dead_letter_topic(HIRES, "shop")) == []


async def test_a_number_that_was_applied_is_skipped_under_any_id(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    service = shop.service()
    async with bus.run(service) as t:
        await t.given(*hired(1, 2, 1, 2, 3))
        await t.settle()
        (member,) = service._subscribers
        assert (member.stats.settled, member.stats.skipped) == (3, 2)
    assert shop.calls == [("a", 1), ("a", 2), ("a", 3)]


async def test_a_restart_remembers_what_waits_and_what_is_due(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 3))
        await t.settle()
    async with bus.run(shop.service()) as t:
        await t.given(*hired(4))
        await t.settle()
        assert (await shop.effects(), len(await shop.waiting())) == ([1], 1)
        await t.given(*hired(2))
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3, 4], [])


async def test_a_second_gap_behind_the_first_waits_on_with_its_own_reason(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 6, 3))
        await t.settle()
        await t.given(*hired(2))
        await t.settle()
        assert await shop.effects() == [1, 2, 3]
        assert await shop.waiting() == [("a", 1, "seq 6 came where 4 was due")]
        await t.given(*hired(5, 4))
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3, 4, 5, 6], [])


async def test_an_event_that_fails_parks_its_key_and_is_tried_again_when_released(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    shop.broken = {2}
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 2, 3))
        await t.settle()
        assert (await shop.effects(), await shop.waiting()) == ([1], [("a", 2, "2 is broken")])
        shop.broken = set()
        await shop.release()
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3], [])


async def test_a_parked_event_whose_turn_comes_is_tried_as_often_as_any_other(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking, retry=Backoff(first=SOON, attempts=3))
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 3, 4))
        await t.settle()
        shop.failing[3] = 2
        await t.given(*hired(2))
        await t.settle()
    assert shop.calls == [("a", number) for number in (1, 2, 3, 3, 3, 4)]
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3, 4], [])


async def test_a_process_that_ends_while_events_follow_leaves_the_rest_to_the_next_one(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    shop.hanging = {4}
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 3, 4, 5))
        await t.settle()
        await t.given(*hired(2))
        await until(lambda: ("a", 4) in shop.calls)
    assert await shop.effects() == [1, 2, 3]
    shop.hanging = set()
    async with bus.run(shop.service()) as t:
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3, 4, 5], [])


# ---------------------------------------------------------------------------------------------------- beginnings


async def test_a_group_without_a_first_number_begins_where_it_is(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking, first_number=None)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(7, 9, 8))
        await t.settle()
    assert await shop.effects() == [7, 8, 9]


@pytest.mark.parametrize("come_together", [True, False], ids=["together", "apart"])
async def test_a_key_that_begins_with_an_event_that_fails_is_not_begun_anew(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking, come_together: bool
) -> None:
    shop = Shop(engine, taking=taking, first_number=None)
    shop.broken = {7}
    await begin_with_seven(bus, shop, come_together=come_together)


@pytest.mark.parametrize("taking", ["own"])
@pytest.mark.parametrize("come_together", [True, False], ids=["together", "apart"])
async def test_a_key_that_begins_with_an_event_that_is_refused_is_not_begun_anew(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking, come_together: bool
) -> None:
    shop = Shop(engine, taking=taking, first_number=None)
    shop.refused = {7}
    await begin_with_seven(bus, shop, come_together=come_together)


async def begin_with_seven(bus: MemoryBus, shop: Shop, *, come_together: bool) -> None:
    """Have the key begin with 7, which cannot be applied, and then can; 8 must not overtake it."""
    async with bus.run(shop.service()) as t:
        if come_together:
            await t.given(*hired(7, 8))
        else:
            await t.given(*hired(7))
            await t.settle()
            await t.given(*hired(8))
        await t.settle()
        assert await shop.effects() == []
        assert [(key, count) for key, count, _ in await shop.waiting()] == [("a", 2)]
        shop.refused, shop.broken = set(), set()
        await shop.release()
    assert (await shop.effects(), await shop.waiting()) == ([7, 8], [])


# ---------------------------------------------------------------------------------------------------- other types


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
async def test_events_that_have_no_handler_leave_no_gap(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking, is_known: bool
) -> None:
    shop = Shop(engine, taking=taking)
    if not is_known:
        shop.catalogue = None
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1), Cleaned(hire_id="a", seq=2), *hired(3), *hired(6), Cleaned(hire_id="a", seq=5))
        await t.settle()
        assert (await shop.effects(), len(await shop.waiting())) == ([1, 3], 1)
        await t.given(Cleaned(hire_id="a", seq=4))
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 3, 6], [])


async def test_the_number_of_a_structured_record_counts_as_well(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    cleaned = Cleaned(hire_id="a", seq=2)
    key, value, headers = encode(cleaned, envelope_for(cleaned, source="/test"), "structured")
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1))
        await t.given_record(HIRES, value, key=key, headers=headers)
        await t.given(*hired(3))
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 3], [])


# ---------------------------------------------------------------------------------------------------- operators


async def test_a_gap_that_somebody_accepts_is_passed_over_once(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 5, 4, 8))
        await t.settle()
        await shop.release()
        assert await shop.waiting() == [("a", 3, "seq 4 came where 2 was due")], "a release alone accepts nothing"
        await shop.inbox.sequences.accept_gap("hires.v1", b"a")
        await t.given(*hired(9))
        await t.settle()
        assert await shop.effects() == [1], "an event that comes meanwhile passes over nothing"
        await shop.release()
        assert await shop.effects() == [1, 4, 5]
        assert await shop.waiting() == [("a", 2, "seq 8 came where 6 was due")]
        await t.given(*hired(2, 3))
        await t.settle()
        assert await shop.effects() == [1, 4, 5], "what was given up comes too late"
    (key,) = await shop.lot.keys("shop")
    assert not key.is_released


async def test_a_gap_before_the_first_event_can_be_accepted(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(3))
        await t.settle()
        assert await shop.waiting() == [("a", 1, "seq 3 came where 1 was due")]
        await shop.inbox.sequences.accept_gap("hires.v1", b"a")
        await shop.release()
        await t.given(*hired(4))
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([3, 4], [])


# ---------------------------------------------------------------------------------------------------- dead letters


async def dead_letter_of_2(t: Harness) -> DeadLetterQueue:
    """Give an event 2 that cannot be read, and correct its letter."""
    (second,) = hired(2)
    key, value, headers = encode(second, envelope_for(second, source="/test"))
    t.expect_dead_letters()
    await t.given_record(HIRES, b"{", key=key, headers=headers)
    await t.given(*hired(3))
    await t.settle()
    queue = DeadLetterQueue(t.bus, dead_letter_topic(HIRES, "shop"))
    (letter,) = await queue.letters()
    await queue.edit(letter.place, value)
    return queue


async def test_a_replayed_dead_letter_fills_its_gap(bus: MemoryBus, engine: AsyncEngine, taking: Taking) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1))
        queue = await dead_letter_of_2(t)
        assert await shop.waiting() == [("a", 1, "seq 3 came where 2 was due")]
        await queue.replay()
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 2, 3], [])


async def test_a_dead_letter_that_is_replayed_after_its_gap_was_accepted_is_skipped(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1))
        queue = await dead_letter_of_2(t)
        await shop.inbox.sequences.accept_gap("hires.v1", b"a")
        await shop.release()
        await queue.replay()
        await t.settle()
    assert (await shop.effects(), await shop.waiting()) == ([1, 3], [])


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
async def test_an_event_whose_number_cannot_be_kept_is_a_dead_letter(
    bus: MemoryBus, engine: AsyncEngine, taking: Taking, number: int
) -> None:
    shop = Shop(engine, taking=taking)
    async with bus.run(shop.service()) as t:
        t.expect_dead_letters()
        await t.given(*hired(number))
        await t.settle()
        letter = t.dead_letters().one()
        assert f"seq={number}, which is not between" in str(letter)
    assert await shop.effects() == []


async def test_an_event_without_a_key_is_a_dead_letter(bus: MemoryBus, engine: AsyncEngine, taking: Taking) -> None:
    shop = Shop(engine, taking=taking)
    (first,) = hired(1)
    _, value, headers = encode(first, envelope_for(first, source="/test"))
    async with bus.run(shop.service()) as t:
        t.expect_dead_letters()
        await t.given_record(HIRES, value, headers=headers)
        await t.settle()
        assert "has no key, so it has no place in a sequence" in str(t.dead_letters().one())
    assert await shop.effects() == []


# ---------------------------------------------------------------------------- transactions of the handler's own


async def test_what_a_handler_refuses_waits_with_what_is_behind_it(bus: MemoryBus, engine: AsyncEngine) -> None:
    shop = Shop(engine, taking="own")
    shop.refused = {2}
    async with bus.run(shop.service()) as t:
        await t.given(*hired(1, 2, 3), *hired(1, key="b"))
        await t.settle()
        assert await shop.effects() == [1]
        assert await shop.effects("b") == [1]
        ((key, count, reason),) = await shop.waiting()
        assert (key, count) == ("a", 2)
        assert reason in {"2 is refused", "seq 3 came where 2 was due"}
        assert await shop.inbox.sequences.last("hires.v1", b"a") == 1
        shop.refused = set()
        await shop.release()
        assert await shop.effects() == [1, 2, 3]
        assert await shop.waiting() == []


async def test_without_numbers_an_event_that_is_refused_is_a_dead_letter(bus: MemoryBus, engine: AsyncEngine) -> None:
    inbox = Inbox(engine, "shop")
    svc = Service("shop", catalogue=Catalogue.of(Hired))

    @svc.on_batch(Hired, delivery=EffectivelyOnce(inbox=inbox, own_transaction=True))
    async def take(items: Batch[Hired]) -> None:
        async with engine.begin() as tx:
            claim = await items.claim(tx, of=lambda ctx: ctx.key != b"c")
            for item in items:
                if item in claim and item.event.seq == 2:
                    claim.refuse(item, "not now")
                elif item in claim:
                    await tx.execute(text("INSERT INTO effects VALUES ('a', :n)"), {"n": item.event.seq})
            await claim.store()

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(*hired(1, 2, 3), *hired(9, key="c"))
        await t.redeliver_last()
        await t.settle()
        assert "not now" in str(t.dead_letters().one())
        assert await inbox.counts() == (2, 2)  # the refused event can be replayed, the one of others is not claimed
    async with engine.connect() as connection:
        assert list((await connection.execute(text("SELECT seq FROM effects"))).scalars()) == [1, 3]


async def test_nothing_is_refused_after_the_claim_is_stored(bus: MemoryBus, engine: AsyncEngine) -> None:
    svc = Service("shop", catalogue=Catalogue.of(Hired))
    said: list[str] = []

    @svc.on_batch(Hired, delivery=EffectivelyOnce(inbox=Inbox(engine, "shop"), own_transaction=True))
    async def take(items: Batch[Hired]) -> None:
        async with engine.begin() as tx:
            claim = await items.claim(tx)
            await claim.store()
            try:
                claim.refuse(items.items[0], "too late")
            except AssertionError as error:
                said.append(str(error).partition("\n")[0])

    async with bus.run(svc) as t:
        await t.given(*hired(1))
        await t.settle()
    assert said == ["the claim is stored; refuse events before claim.store()"]


async def test_a_claim_that_was_rolled_back_is_made_again(bus: MemoryBus, engine: AsyncEngine) -> None:
    inbox, lot = Inbox(engine, "shop"), ParkingLot(engine)
    svc = Service("shop", catalogue=Catalogue.of(Hired))
    delivery = EffectivelyOnce(inbox=inbox, then=ParkKey(lot=lot), sequence="seq", own_transaction=True)

    @svc.on_batch(Hired, delivery=delivery)
    async def take(items: Batch[Hired]) -> None:
        for is_kept in (False, True):
            async with engine.connect() as tx, tx.begin() as transaction:
                claim = await items.claim(tx)
                due = [item for item in items if item in claim]
                for item in due:
                    await tx.execute(text("INSERT INTO effects VALUES ('a', :n)"), {"n": item.event.seq})
                await claim.store()
                await (transaction.commit() if is_kept else transaction.rollback())

    async with bus.run(svc) as t:
        await t.given(*hired(1, 2))
        await t.settle()
    async with engine.connect() as connection:
        assert list((await connection.execute(text("SELECT seq FROM effects"))).scalars()) == [1, 2]


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_handler_that_stores_no_claim_settles_nothing(
    bus: MemoryBus, engine: AsyncEngine, is_claimed: bool
) -> None:
    svc = Service("shop", catalogue=Catalogue.of(Hired))

    @svc.on_batch(Hired, delivery=EffectivelyOnce(inbox=Inbox(engine, "shop"), own_transaction=True))
    async def take(items: Batch[Hired]) -> None:
        if is_claimed:
            async with engine.begin() as tx:
                await items.claim(tx)

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(*hired(1))
        await t.settle()
        assert "stored no claim" in str(t.dead_letters().one())


async def test_a_claim_needs_a_transaction_of_the_handlers_own(engine: AsyncEngine) -> None:
    own = EffectivelyOnce(inbox=Inbox(engine, "shop"), own_transaction=True)
    with pytest.raises(ConfigurationError, match="own_transaction=True is for handlers of batches"):

        @Service("shop").on(Hired, delivery=own)
        async def one(event: Hired) -> None: ...

    async with engine.connect() as tx:
        with pytest.raises(ConfigurationError, match=r"batch.claim\(tx\) is for EffectivelyOnce"):
            await Batch([]).claim(tx)


# ---------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_keep_a_sequence_is_refused(engine: AsyncEngine) -> None:
    inbox, lot = Inbox(engine, "shop"), ParkingLot(engine)
    then = ParkKey(lot=lot)
    for other in (DeadLetter(), RetryTopics(timedelta(seconds=1))):
        with pytest.raises(ConfigurationError, match=r"sequence='seq' parks events .* give then=ParkKey"):
            EffectivelyOnce(inbox=inbox, then=other, sequence="seq")
    with pytest.raises(ConfigurationError, match="is not the name of a field"):
        EffectivelyOnce(inbox=inbox, then=then, sequence="")
    with pytest.raises(ConfigurationError, match="neither a whole number nor None"):
        EffectivelyOnce(inbox=inbox, then=then, sequence="seq", first_number="1")  # type: ignore[arg-type]  # as said
    with pytest.raises(TypeError, match="sequence"):
        AtLeastOnce(then=then, sequence="seq")  # type: ignore[call-arg]  # it has no inbox


COMPACTED = Topic("bikes.v1", cleanup_policy="compact")


class Parked(Event, topic=COMPACTED, key="bike_id", type="bike.parked"):
    bike_id: str
    seq: int


class Keyless(Event, topic=Topic("rings.v1"), type="ring.rung"):
    seq: int


@pytest.mark.parametrize(
    ("cls", "start", "message"),
    [
        (Unnumbered, "earliest", "sequence='seq' is no field of Unnumbered with the type int"),
        (Keyless, "earliest", "Keyless has no key, so sequence='seq' says nothing of its order"),
        (Parked, "earliest", "topic 'bikes.v1' is compacted, which leaves gaps"),
        (Hired, "latest", "starts at the end of its topics, where keys are past number 1"),
    ],
)
def test_events_without_a_sequence_are_refused(engine: AsyncEngine, cls: Any, start: Any, message: str) -> None:
    delivery = EffectivelyOnce(inbox=Inbox(engine, "shop"), then=ParkKey(lot=ParkingLot(engine)), sequence="seq")

    async def handle(event: Event) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        Service("shop").on(cls, delivery=delivery, start=start)(handle)


@pytest.mark.parametrize(
    ("is_numbered", "is_batch", "message"),
    [(False, False, "must number it alike"), (True, True, "one of which takes batches|of which one takes batches")],
)
async def test_two_handlers_of_a_topic_must_keep_one_order(
    bus: MemoryBus, engine: AsyncEngine, is_numbered: bool, is_batch: bool, message: str
) -> None:
    inbox, lot = Inbox(engine, "shop"), ParkingLot(engine)
    svc = Service("shop", bus=bus)
    numbered = EffectivelyOnce(inbox=inbox, then=ParkKey(lot=lot), sequence="seq")

    @svc.on(Hired, delivery=numbered)
    async def one(event: Hired) -> None: ...

    if is_batch:

        @svc.on_batch(Returned, delivery=numbered)
        async def two(batch: Batch[Returned]) -> None: ...

    else:

        @svc.on(Returned, delivery=numbered if is_numbered else AtLeastOnce())
        async def three(event: Returned) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        await svc.start()
