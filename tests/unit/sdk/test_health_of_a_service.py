"""What probes say: unreachable brokers, failing commits, dead tasks, parked keys, an outbox that nobody empties."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hailbus import (
    AtLeastOnce,
    Backoff,
    ConfigurationError,
    Context,
    DeadLetter,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Outbox,
    ParkingLot,
    ParkKey,
    Retry,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus._consuming.path import FailurePath
from hailbus.admin import ClusterAdmin
from hailbus.cli.explaining import explained
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.health import service_checks
from hailbus.outbox import OutboxLag
from hailbus.testing import Harness, MemoryBus, VirtualClock, run_virtual
from hailbus.testing.memory import MemoryConsumer
from sqlalchemy import text

ORDERS = Topic("orders.v1", partitions=2)
ONE_S = timedelta(seconds=1)


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int = 0


def till(handled: list[int], *, exactly_once: bool = False, **settings: Any) -> Service:
    svc = Service("till", subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=20), **settings))

    @svc.on(Placed, delivery=ExactlyOnce() if exactly_once else AtLeastOnce())
    async def take(event: Placed, ctx: Context) -> None:
        handled.append(event.number)

    return svc


@asynccontextmanager
async def probes(svc: Service) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, dict[str, Any]]]]]:
    app = FastAPI()
    app.include_router(svc.health())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://till") as http:

        async def ask(path: str) -> tuple[int, dict[str, Any]]:
            answer = await http.get(path)
            body = answer.json()
            for sentence in (*body.get("reasons", ()), *body.get("warnings", ())):
                assert explained(sentence), f"`hailbus doctor` has no explanation of: {sentence}"
            return answer.status_code, body

        yield ask


def virtual(test: Callable[[MemoryBus], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(MemoryBus(clock=VirtualClock()))

    run_virtual(main())


@pytest.mark.parametrize("exactly_once", [False, True])
def test_readyz_is_red_while_the_broker_cannot_be_reached(exactly_once: bool) -> None:
    handled: list[int] = []

    async def play(bus: MemoryBus) -> None:
        svc = till(handled, exactly_once=exactly_once)
        async with bus.run(svc) as t, probes(svc) as ask:
            await t.given(Placed(order_id="a", number=1))
            await t.settle()
            assert (await ask("/readyz"))[0] == 200
            bus.go_down()
            await asyncio.sleep(2)
            assert (await ask("/readyz"))[0] == 200, "a blip is no outage"
            await asyncio.sleep(10)
            status, body = await ask("/readyz")
            assert status == 503
            assert "group till has not reached the broker at memory for 12 s" in body["reasons"][0]
            assert "the producer has not reached the broker" in str(body["reasons"])
            assert (await ask("/livez"))[0] == 200, "a restart would not help"
            bus.come_up()
            await t.given(Placed(order_id="a", number=2))
            await t.settle()
            assert (await ask("/readyz"))[0] == 200

    virtual(play)
    assert handled == [1, 2]


@pytest.mark.parametrize("how", ["refused", "raises"])
def test_readyz_tells_of_commits_that_fail(how: str, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []

    async def play(bus: MemoryBus) -> None:
        svc = till(handled)
        async with bus.run(svc) as t:
            await t.given(Placed(order_id="a", number=1))
            await t.settle()
            (member,) = bus.group("till").members
            commit = member.commit
            if how == "refused":
                bus.refuse_commits(10_000)
            else:

                async def broken(offsets: Any) -> bool:
                    raise RuntimeError("the client's own mistake")

                member.commit = broken  # type: ignore[method-assign]  # a fault
            await t.given(*(Placed(order_id="a", number=n) for n in range(2, 5)))
            await asyncio.sleep(20)
            assert handled == [1, 2, 3, 4]
            (reason,) = svc.unhealthy_reasons
            assert "group till could not commit offsets for" in reason
            member.commit = commit  # type: ignore[method-assign]  # end of the fault
            bus._commit_failures = 0
            await t.settle()
            assert svc.unhealthy_reasons == []

    with caplog.at_level(logging.WARNING, "hailbus"):
        virtual(play)
    assert sum("commit_failed" in line.getMessage() for line in caplog.records) == 1


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("times", [1, 10_000])
def test_a_reader_that_dies_is_restarted_or_makes_the_service_fail(
    exactly_once: bool, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []
    left = 0

    class Faulty(MemoryBus):
        def consumer(self, **options: Any) -> MemoryConsumer:
            made = super().consumer(**options)
            poll = made.poll

            async def faulty(**options: Any) -> Any:
                nonlocal left
                found = await poll(**options)
                if left and found:
                    left -= 1
                    raise RuntimeError("after records were polled")
                return found

            made.poll = faulty  # type: ignore[method-assign]  # a fault
            return made

    async def main() -> None:
        nonlocal left
        bus = Faulty(clock=VirtualClock())
        svc = till(handled, exactly_once=exactly_once)
        async with svc.running(bus), probes(svc) as ask:
            t = Harness(bus, [svc])
            await t.given(*(Placed(order_id="a", number=n) for n in range(5)))
            await t.settle()
            left = times
            await t.given(*(Placed(order_id="a", number=n) for n in range(5, 10)))
            if times == 1:
                await t.settle()
                assert handled == list(range(10)), "what was polled and lost is read again"
                assert (await ask("/livez"))[0] == 200
            else:
                await asyncio.sleep(300)
                status, body = await ask("/livez")
                assert (status, handled) == (503, list(range(5)))
                assert "after records were polled" in body["reasons"][0]

    with caplog.at_level(logging.ERROR, "hailbus"):
        run_virtual(main())
    assert len(caplog.records) == (1 if times == 1 else 7)


def test_a_defect_of_ours_is_tried_a_few_times_and_then_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    judged = FailurePath.judged

    async def faulty(self: FailurePath, item: Any, verdict: object) -> Any:
        if item.record.key == b"bad":
            raise AssertionError("a wrong assumption")
        return await judged(self, item, verdict)

    monkeypatch.setattr(FailurePath, "judged", faulty)

    async def play(bus: MemoryBus) -> None:
        svc = Service("till")

        @svc.on(Placed)
        async def take(event: Placed, ctx: Context) -> Retry | None:
            handled.append(event.number)
            return Retry(limit=99) if event.order_id == "bad" else None

        async with bus.run(svc) as t:
            t.expect_dead_letters()
            await t.given(Placed(order_id="bad", number=1), Placed(order_id="bad", number=2), Placed(order_id="good"))
            await t.settle()
        first, second = bus.records(dead_letter_topic(ORDERS, "till"))
        reasons = {dict(letter.headers)["kafka_dlt-exception-message"] for letter in (first, second)}
        assert reasons == {b"a defect in hailbus: a wrong assumption"}

    virtual(play)
    assert handled.count(1) == handled.count(2) == 4
    assert handled.count(0) == 1


async def test_readyz_warns_of_parked_keys_and_doctor_names_them(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/lot.db")
    svc = Service("till")

    @svc.on(Placed, delivery=AtLeastOnce(retry=Backoff(attempts=1), then=ParkKey(lot=ParkingLot(engine))))
    async def take(event: Placed, ctx: Context) -> None:
        raise ValueError("no")

    async with bus.run(svc) as t, probes(svc) as ask:
        await t.given(Placed(order_id="a"), Placed(order_id="b"), Placed(order_id="a"))
        await t.settle()
        status, body = await ask("/readyz")
        assert status == 200
        assert body["warnings"] == ["group till has 2 parked keys; `hailbus parked ls` lists them"]
        async with ClusterAdmin(bus) as admin:
            checks = {check.what: check for check in await service_checks(svc, admin)}
    parked = next(check for what, check in checks.items() if what.startswith("keys that"))
    assert (parked.answer, parked.ok) == ("2", False)
    assert checks["progress of group till"].ok
    await engine.dispose()


async def test_doctor_finds_a_group_that_makes_no_progress(bus: MemoryBus) -> None:
    svc = Service("till")
    release = asyncio.Event()

    @svc.on(Placed)
    async def take(event: Placed, ctx: Context) -> None:
        if event.number == 1:
            await release.wait()

    async with bus.run(svc) as t:
        await t.given(Placed(order_id="a", number=0))
        await t.settle()
        (hung,) = await t.given(Placed(order_id="a", number=1))
        async with ClusterAdmin(bus) as admin:
            (check,) = await service_checks(svc, admin)
        assert (check.ok, f"orders.v1-{hung.partition}" in check.answer) == (False, True)
        release.set()
        await t.settle()


async def test_an_outbox_that_nobody_empties_makes_the_service_unhealthy(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    svc = Service("shop", subscribing=SubscriberSettings(stall_after=timedelta(milliseconds=300)))
    pub = svc.publishes(Placed)
    svc.relays(outbox, elsewhere=True)
    async with svc.running(bus), probes(svc) as ask:
        async with engine.begin() as tx:
            await pub.publish(Placed(order_id="a"), tx=tx)
        status, body = await ask("/readyz")
        assert status in {200, 503}
        async with asyncio.timeout(10):
            while (await ask("/readyz"))[0] == 200:  # noqa: ASYNC110 the probe is the condition
                await asyncio.sleep(0.02)
        status, body = await ask("/readyz")
        assert "the outbox holds 1 events to publish" in body["reasons"][0]
    await engine.dispose()


async def answered(
    ask: Callable[[str], Awaitable[tuple[int, dict[str, Any]]]], status: int, *, reason: str = ""
) -> dict[str, Any]:
    """The body of `/readyz` once it has this status, and a first reason that begins so."""
    async with asyncio.timeout(10):
        while True:
            found, body = await ask("/readyz")
            if found == status and (not reason or body["reasons"][0].startswith(reason)):
                return body
            await asyncio.sleep(0.02)


async def test_a_relay_whose_database_is_away_makes_the_service_unhealthy(
    bus: MemoryBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hailbus.outbox")
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine, poll_interval=timedelta(milliseconds=5))
    svc = Service("shop", subscribing=SubscriberSettings(outage_after=timedelta(milliseconds=500)))
    svc.relays(outbox)

    async def rename(old: str, new: str) -> None:
        async with engine.begin() as tx:
            await tx.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    async with svc.running(bus), probes(svc) as ask:
        assert (await ask("/readyz"))[0] == 200
        await rename("hailbus_outbox", "away")
        # A probe may have found the table missing a little earlier than the relay.
        body = await answered(ask, 503, reason="the outbox relay has failed for ")
        assert body["reasons"] == [body["reasons"][0]]
        assert body["reasons"][0].endswith("no such table: hailbus_outbox")
        assert (await ask("/livez"))[0] == 200
        await rename("away", "hailbus_outbox")
        await answered(ask, 200)
    words = [record.getMessage().partition(":")[0] for record in caplog.records if record.name == "hailbus.outbox"]
    assert words == ["relay_failed", "relay_recovered"], "each state once, and not each attempt"
    await engine.dispose()


async def test_an_outbox_whose_database_hangs_makes_the_service_unhealthy(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    svc = Service("shop", subscribing=SubscriberSettings(outage_after=timedelta(milliseconds=200)))
    svc.relays(outbox, elsewhere=True)
    monkeypatch.setattr("hailbus.health.DATABASE_TIMEOUT_S", 0.05)
    lag = outbox.lag

    async def hang() -> OutboxLag:
        await asyncio.Event().wait()
        raise AssertionError

    async with svc.running(bus), probes(svc) as ask:
        monkeypatch.setattr(outbox, "lag", hang)
        status, body = await ask("/readyz")
        assert (status, body["warnings"]) == (200, ["the outbox's database does not answer"])
        body = await answered(ask, 503)
        assert body["reasons"][0].startswith("the outbox's database has not answered for ")
        monkeypatch.setattr(outbox, "lag", lag)
        assert "warnings" not in await answered(ask, 200)
    await engine.dispose()


async def test_a_relay_that_dies_is_restarted(bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    svc = Service("shop")
    pub = svc.publishes(Placed)
    svc.relays(outbox)
    relay = outbox.relay
    deaths = 0

    async def mortal(*arguments: Any) -> None:
        nonlocal deaths
        if not deaths:
            deaths += 1
            raise RuntimeError("once")
        await relay(*arguments)

    monkeypatch.setattr(outbox, "relay", mortal)
    async with bus.run(svc) as t:
        async with engine.begin() as tx:
            await pub.publish(Placed(order_id="a"), tx=tx)
        await t.settle()
        t.published(Placed).one()
    assert deaths == 1
    await engine.dispose()


# ---------------------------------------------------------------------------------------------------- refusals


def batch_with(**options: Any) -> None:
    from hailbus import Batch

    @Service("till").on_batch(Placed, **options)
    async def take(batch: Batch[Placed]) -> None: ...


def one_with(**options: Any) -> None:
    @Service("till").on(Placed, **options)
    async def take(event: Placed, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SubscriberSettings(max_buffered=0), "max_buffered)=0 must be a whole number of at least 1"),
        (lambda: SubscriberSettings(poll_records=-1), "poll_records)=-1 must be"),
        (lambda: SubscriberSettings(max_spread=1.5), "max_spread)=1.5 must be"),  # type: ignore[arg-type]  # the point
        (lambda: SubscriberSettings(unknown_event="nope"), "unknown_event='nope') is not one of"),  # type: ignore[arg-type]  # the point
        (lambda: SubscriberSettings(unknown_version="park"), "'skip', 'dead-letter' and 'fail'"),  # type: ignore[arg-type]  # the point
        (lambda: SubscriberSettings(commit_interval=timedelta(0)), "commit_interval) is 0 s; give a positive"),
        (lambda: SubscriberSettings(stall_after=-ONE_S), "stall_after) is -1 s; give a positive duration"),
        (lambda: SubscriberSettings(drain_timeout=5), "drain_timeout)=5 is not a duration"),  # type: ignore[arg-type]  # the point
        (lambda: AtLeastOnce(retry=5), "retry=5 is not a retry policy; give a Backoff"),  # type: ignore[arg-type]  # the point
        (lambda: ExactlyOnce(retry=5), "retry=5 is not a retry policy"),  # type: ignore[arg-type]  # the point
        (lambda: AtLeastOnce(then=DeadLetter), "then=DeadLetter is a class; give a policy"),  # type: ignore[arg-type]  # the point
        (lambda: AtLeastOnce(then="dlq"), "then='dlq' is not a policy"),  # type: ignore[arg-type]  # the point
        (lambda: AtLeastOnce(max_in_flight=0), "max_in_flight=0 must be a whole number of at least 1"),
        (lambda: AtLeastOnce(order="keys"), "order='keys' is not one of"),  # type: ignore[arg-type]  # the point
        (lambda: ExactlyOnce(order="key"), "one transaction handles the events of a partition one after the other"),
        (lambda: ExactlyOnce(max_items=0), "max_items=0 must be"),
        (lambda: EffectivelyOnce(inbox=None), "inbox=None is not an Inbox"),  # type: ignore[arg-type]  # the point
        (lambda: Backoff(factor=-1), "factor=-1) would shrink the delay"),
        (lambda: Backoff(factor=float("nan")), "would shrink the delay"),
        (lambda: Backoff(first=timedelta(0)), "Backoff(first) is 0 s"),
        (lambda: Backoff(max=-ONE_S), "Backoff(max) is -1 s"),
        (lambda: Backoff(attempts=0), "at least one attempt, not 0"),
        (lambda: Backoff(attempts=2.5), "at least one attempt, not 2.5"),  # type: ignore[arg-type]  # the point
        (lambda: Backoff(jitter=2), "jitter=2) is a share of the delay"),
        (lambda: Backoff(on=ValueError), "must be a tuple of exception classes"),  # type: ignore[arg-type]  # the point
        (lambda: Retry(-ONE_S), "Retry(after) is -1 s"),
        (lambda: Retry(limit=0), "Retry(limit)=0 must be"),
        (lambda: RetryTopics(timedelta(0)), "is 0 s; give a positive duration"),
        (lambda: RetryTopics(ONE_S, then=ParkKey), "only DeadLetter() can follow"),  # type: ignore[arg-type]  # the point
        (lambda: batch_with(max_items=0), "max_items=0 must be"),
        (lambda: batch_with(max_wait=-ONE_S), "max_wait is -1 s"),
        (lambda: batch_with(max_bytes=0), "max_bytes=0 must be"),
        (lambda: batch_with(delivery=ExactlyOnce()), "ExactlyOnce is for handlers of single events"),
        (lambda: batch_with(deadline=timedelta(0)), "deadline is 0 s; give a positive duration"),
        (lambda: one_with(deadline=3), "deadline=3 is not a duration"),
        (lambda: one_with(start="middle"), "start='middle' is neither 'earliest' nor 'latest'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make()
    assert sentence in str(refusal.value)
