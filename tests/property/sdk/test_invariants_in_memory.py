"""What a service promises, under random failures, rebalances and redelivery, in virtual time on the memory bus."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    DeliveryError,
    Event,
    Reject,
    Retry,
    Service,
    SubscriberSettings,
    Topic,
    Verdict,
)
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from hypothesis import given, settings
from hypothesis import strategies as st

WORK = Topic("work.v1", partitions=3)
GROUP = "workers"
SETTINGS = SubscriberSettings(
    commit_interval=timedelta(milliseconds=40),
    revoke_grace=timedelta(milliseconds=60),
    drain_timeout=timedelta(milliseconds=80),
    max_buffered=12,
    max_spread=20,
    poll_records=5,
)


class Task(Event, topic=WORK, key="key", type="work.given"):
    key: str
    number: int
    behaviour: str


@dataclass
class Observed:
    """What happened, and the checks that hold at every moment."""

    bus: MemoryBus
    running: set[str] = field(default_factory=set)
    handled: list[int] = field(default_factory=list)
    settled: set[tuple[str, int, int]] = field(default_factory=set)

    def enter(self, event: Task) -> None:
        assert event.key not in self.running, f"handlers of key {event.key} overlap"
        self.running.add(event.key)

    def leave(self, event: Task) -> None:
        self.running.discard(event.key)

    def check_commits(self) -> None:
        """Nothing is committed beyond a record that is neither settled by its handler nor a dead letter."""
        letters = {
            (
                dict(letter.headers)["kafka_dlt-original-topic"].decode(),
                int(dict(letter.headers)["kafka_dlt-original-partition"]),
                int(dict(letter.headers)["kafka_dlt-original-offset"]),
            )
            for letter in self.bus.records(dead_letter_topic(WORK, GROUP))
        }
        for tp, offset in self.bus.committed(GROUP).items():
            below = {(tp.topic, tp.partition, o) for o in range(offset)}
            missing = below - self.settled - letters
            assert not missing, f"committed {offset} on {tp}, not settled: {sorted(missing)}"


def member(observed: Observed, *, batch: bool) -> Service:
    svc = Service(GROUP, subscribing=SETTINGS)
    delivery = AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=10), attempts=3, jitter=0.0), max_in_flight=4)

    async def act(event: Task, ctx: Context) -> Verdict | None:
        if event.behaviour == "slow":
            await asyncio.sleep(0.03)
        elif event.behaviour == "stuck":
            await asyncio.sleep(0.5)  # longer than any grace: cancelled when the partition goes
        elif event.behaviour == "fails":
            raise ValueError("always")
        elif event.behaviour == "fails once" and ctx.attempt == 1:
            raise ValueError("once")
        elif event.behaviour == "park":
            return Reject("as told")
        elif event.behaviour == "retry" and ctx.attempt < 3:
            return Retry(timedelta(milliseconds=20))
        return None

    if batch:

        @svc.on_batch(Task, delivery=delivery, max_items=4, max_wait=timedelta(milliseconds=5))
        async def work_batch(batch: Batch[Task]) -> list[Verdict]:
            verdicts: list[Verdict] = []
            from hailbus import Done

            for item in batch:
                verdict = await act(item.event, item.ctx)
                verdicts.append(verdict if verdict is not None else Done())
            for item, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, Done):
                    observed.handled.append(item.event.number)
                    observed.settled.add((item.ctx.topic, item.ctx.partition, item.ctx.offset))
            return verdicts

    else:

        @svc.on(Task, delivery=delivery)
        async def work(event: Task, ctx: Context) -> Verdict | None:
            observed.enter(event)
            try:
                verdict = await act(event, ctx)
            finally:
                observed.leave(event)
            if verdict is None:
                observed.handled.append(event.number)
                observed.settled.add((ctx.topic, ctx.partition, ctx.offset))
            return verdict

    return svc


def remaining(bus: MemoryBus) -> int:
    committed = bus.committed(GROUP)
    return sum(end - committed.get(tp, 0) for tp, end in bus.end(WORK).items())


behaviours = st.sampled_from(["ok", "ok", "ok", "slow", "stuck", "fails", "fails once", "park", "retry"])
actions = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.tuples(st.sampled_from("abcde"), behaviours), min_size=1, max_size=8)),
    st.tuples(st.just("wait"), st.integers(1, 200)),
    st.tuples(st.just("join"), st.none()),
    st.tuples(st.just("leave"), st.none()),
    st.tuples(st.just("rebalance"), st.none()),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("refuse commits"), st.integers(1, 3)),
    st.tuples(st.just("down"), st.integers(1, 100)),
    st.tuples(st.just("fail sends"), st.integers(1, 3)),
)


@settings(max_examples=120, deadline=None)
@given(script=st.lists(actions, min_size=1, max_size=12), batch=st.booleans(), seed=st.integers(0, 1000))
def test_every_record_ends_settled_or_dead_lettered_and_commits_stay_behind(
    script: list[tuple[str, object]], batch: bool, seed: int
) -> None:
    run_virtual(play(script, batch=batch, seed=seed))


async def play(script: list[tuple[str, object]], *, batch: bool, seed: int) -> None:
    bus = MemoryBus(clock=VirtualClock(), seed=seed)
    observed = Observed(bus)
    source = Service("source")
    pub = source.publishes(Task)
    members = [member(observed, batch=batch)]
    count = 0
    await source.start(bus)
    await members[0].start(bus)
    for name, argument in script:
        match name, argument:
            case "publish", list(tasks):
                for key, behaviour in tasks:
                    await pub.enqueue(Task(key=key, number=count, behaviour=behaviour))
                    count += 1
            case "wait", int(milliseconds):
                await asyncio.sleep(milliseconds / 1000)
            case "join", None if len(members) < 3:
                members.append(member(observed, batch=batch))
                await members[-1].start(bus)
            case "leave", None if len(members) > 1:
                await members.pop(0).stop()
            case "rebalance", None:
                bus.rebalance(GROUP)
            case "break", None:
                bus.break_consumers(GROUP)
            case "refuse commits", int(times):
                bus.refuse_commits(times)
            case "down", int(milliseconds):
                bus.go_down()
                await asyncio.sleep(milliseconds / 1000)
                bus.come_up()
            case "fail sends", int(times):
                bus.fail_sends(*(DeliveryError("scripted", topic="", retriable=True) for _ in range(times)))
        observed.check_commits()
    bus.fail_sends()
    async with asyncio.timeout(3600):  # virtual seconds: everything comes to rest
        await pub.flush()
        while remaining(bus):
            await asyncio.sleep(0.05)
            observed.check_commits()
    for running in members:
        await running.stop()
    await source.stop()
    observed.check_commits()
    assert remaining(bus) == 0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_same_seed_same_history(seed: int) -> None:
    async def history() -> list[tuple[str, int, int, float]]:
        bus = MemoryBus(clock=VirtualClock(), seed=seed)
        seen: list[tuple[str, int, int, float]] = []
        svc = Service(GROUP, subscribing=SETTINGS)
        pub = svc.publishes(Task)

        @svc.on(Task)
        async def work(event: Task, ctx: Context) -> None:
            await asyncio.sleep(0.01 * (event.number % 3))
            seen.append((event.key, event.number, ctx.partition, asyncio.get_running_loop().time()))

        async with svc.running(bus):
            await pub.publish_many([Task(key="abc"[i % 3], number=i, behaviour="") for i in range(30)])
            while remaining(bus):  # noqa: ASYNC110 virtual time
                await asyncio.sleep(0.01)
        return seen

    first, second = run_virtual(history()), run_virtual(history())
    assert first == second
    assert len(first) == 30
