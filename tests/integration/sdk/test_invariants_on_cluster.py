"""What the memory bus promises under kills and rebalances, over real brokers, in short."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    ClusterAdmin,
    ConfigurationError,
    Context,
    Event,
    KafkaBus,
    Receipt,
    Reject,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    record_reader,
)
from hailbus._transport.cluster import ClientName
from hailbus.dead_letter import dead_letter_topic, origin
from hailbus.dead_letter_queue import DeadLetterQueue
from pydantic import field_validator

Until = Callable[..., Awaitable[None]]
Place = tuple[int, int]
COUNT = 240
BEHAVIOURS = [
    *("ok", "ok", "ok", "ok", "slow", "slow"),
    *("raises", "cancels", "hangs", "rejects", "no verdict", "skips", "validator"),
]
SETTINGS = SubscriberSettings(
    commit_interval=timedelta(milliseconds=30),
    revoke_grace=timedelta(milliseconds=200),
    drain_timeout=timedelta(milliseconds=500),
    max_buffered=60,
    poll_records=20,
)


class OwnCluster(Protocol):
    @property
    def bootstrap(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Observed:
    """What handlers did."""

    settled: set[Place] = field(default_factory=set)
    given_up: set[Place] = field(default_factory=set)
    overlaps: list[str] = field(default_factory=list)
    order: dict[str, list[int]] = field(default_factory=dict)


def language(name: str) -> type[Any]:
    class Task(Event, topic=Topic(name, partitions=3), key="key", type="work.given"):
        key: str
        number: int
        behaviour: str

        @field_validator("behaviour")
        @classmethod
        def _look_up(cls, behaviour: str) -> str:
            if behaviour == "validator":
                raise KeyError(behaviour)
            return behaviour

    return Task


def member(group: str, task: type[Any], observed: Observed) -> Service:
    svc = Service(group, subscribing=SETTINGS)
    running: set[str] = set()
    retry = Backoff(first=timedelta(milliseconds=5), attempts=2, jitter=0.0)

    @svc.on(task, delivery=AtLeastOnce(retry=retry, max_in_flight=8), deadline=timedelta(seconds=1))
    async def work(event: Any, ctx: Context) -> Any:
        if event.key in running:
            observed.overlaps.append(event.key)
        running.add(event.key)
        try:
            await asyncio.sleep(0.02 if event.behaviour == "slow" else 0)
            place = (ctx.partition, ctx.offset)
            is_last = ctx.attempt == 2 and event.behaviour in {"raises", "cancels", "hangs"}
            if is_last or event.behaviour in {"rejects", "no verdict"}:
                observed.given_up.add(place)
            match event.behaviour:
                case "raises":
                    raise ValueError("always")
                case "cancels":
                    raise asyncio.CancelledError
                case "hangs":
                    await asyncio.sleep(600)
                case "rejects":
                    return Reject("as told")
                case "no verdict":
                    return 42
                case "skips":
                    observed.settled.add(place)
                    return Skip("as told")
            observed.settled.add(place)
            observed.order.setdefault(event.key, []).append(event.number)
            return None
        finally:
            running.discard(event.key)

    return svc


@pytest.mark.slow_with("apache-librdkafka")  # the JVM takes seconds to start each time; the check has aiokafka on both
async def test_kills_and_rebalances_break_no_promise(
    own_cluster: OwnCluster, client: ClientName, until: Until, open_connections: Callable[[], list[object]]
) -> None:
    chance = random.Random(7)
    name = f"work-{random.randrange(10**9)}"
    task, group, observed = language(name), f"workers-{name}", Observed()
    bus = KafkaBus(
        bootstrap_servers=own_cluster.bootstrap,
        client=client,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        rebalance_timeout_ms=6000,
    )
    source = Service(f"source-{name}")
    pub = source.publishes(task)
    members = [member(group, task, observed) for _ in range(3)]
    bad_records: set[Place] = set()

    async def committed() -> dict[int, int]:
        async with ClusterAdmin(own_cluster.bootstrap) as admin:
            return {e.partition: e.committed_offset or 0 for e in await admin.lag(group)}

    async def nothing_is_committed_beyond_what_is_settled() -> None:
        for partition, offset in (await committed()).items():
            below = {(partition, o) for o in range(offset)}
            missing = below - observed.settled - observed.given_up - bad_records
            assert not missing, f"committed {offset} on {partition}, not settled: {sorted(missing)}"

    def note_bad(done: asyncio.Future[Receipt]) -> None:
        found = done.result()
        assert found.partition is not None
        assert found.offset is not None
        bad_records.add((found.partition, found.offset))

    async def publish(numbers: range) -> None:
        for number in numbers:
            behaviour = chance.choice(BEHAVIOURS)
            # A publisher validates as well: this one does not.
            event = task.model_construct(key=f"k{number % 9}", number=number, behaviour=behaviour)
            receipt = await pub.enqueue(event)
            if behaviour == "validator":
                receipt.add_done_callback(note_bad)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(source.running(bus))
        for each in members:
            stack.push_async_callback(each.stop)
        await members[0].start(bus)
        await members[1].start(bus)
        await publish(range(COUNT // 2))
        await until(lambda: len(observed.settled) > 20)
        await nothing_is_committed_beyond_what_is_settled()
        await members[2].start(bus)  # a rebalance while handlers run
        await publish(range(COUNT // 2, COUNT))
        own_cluster.kill()  # while the third one joins, and perhaps before it knows the topic's partitions
        await asyncio.to_thread(own_cluster.start)
        await members[0].stop()
        await nothing_is_committed_beyond_what_is_settled()
        await source.flush()

        async def at_the_end() -> bool:
            try:
                found = await committed()
            except ConfigurationError:  # a coordinator that has just come back
                return False
            return sum(found.values()) == COUNT

        await until(at_the_end, seconds=60)
        await nothing_is_committed_beyond_what_is_settled()
        letters = {
            origin(record)[1:3]
            async for record in record_reader(bus, [dead_letter_topic(name, group)], start="earliest", until_end=True)
        }
        everything = {(p, o) for p, end in (await committed()).items() for o in range(end)}
        assert observed.settled | letters == everything  # settled or dead-lettered, each
        assert letters == observed.given_up | bad_records  # by the class of each failure
        assert not observed.overlaps
        queue = DeadLetterQueue(bus, dead_letter_topic(name, group))
        waiting = {letter.place for letter in await queue.letters()}
        done = {letter.place for letter in await queue.drop(waiting)}
        assert done == waiting
        assert await queue.replay() == []  # dealt with: a replay changes nothing
    assert open_connections() == []
    for numbers in observed.order.values():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts)  # order of a key, repetitions aside
