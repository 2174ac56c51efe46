"""Every record ends as the class of its failure says, whatever raises or hangs around it: memory bus, virtual time.

Validators, upcasters, dependencies, handlers and verdicts fail by what the event says; stores, sends, commits and the
broker fail by a script. A model says how each record must end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from fastapi import Depends
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    DeliveryError,
    Done,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    ParkingLot,
    ParkKey,
    Reject,
    Retry,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    upcast,
)
from hailbus._consuming.failure import OUTAGE_MAX_S
from hailbus._consuming.path import STORE_TIMEOUT_S
from hailbus._transport import Outgoing, Received, TopicPartition
from hailbus.codec import encode, envelope_for
from hailbus.dead_letter import dead_letter_topic, origin
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationInfo, field_validator

WORK = Topic("work.v1", partitions=3)
GROUP, OTHER = "workers", "auditors"
Place = tuple[int, int]
Mode = Literal["lanes", "batches", "transactions", "inbox", "inbox batches", "parking"]
MODES: tuple[Mode, ...] = ("lanes", "batches", "transactions", "inbox", "inbox batches", "parking")
ATTEMPTS = 3
DEADLINE_S = 2.0
SETTINGS = SubscriberSettings(
    commit_interval=timedelta(milliseconds=40),
    revoke_grace=timedelta(milliseconds=60),
    drain_timeout=timedelta(milliseconds=80),
    max_buffered=12,
    max_spread=20,
    poll_records=5,
)
BAD_RECORDS = ("garbage", "validator", "cancelling validator", "upcaster", "no headers")
GIVEN_UP = ("raises", "hangs", "dependency", "cancels", "retries", "rejects", "no verdict")
PASSING = ("ok", "ok", "ok", "raises once", "hangs once", "dependency once", "retries once", "skips")
BEHAVIOURS = (*PASSING, *BAD_RECORDS, *GIVEN_UP)


decoded: Counter[int] = Counter()
"""How often the record with each number failed to decode, in both groups; cleared by `play`."""


class TaskV1(Event, topic=WORK, key="key", type="work.given", version=1):
    key: str
    behaviour: str
    number: int = 0


class Task(Event, topic=WORK, key="key", type="work.given", version=2):
    key: str
    number: int = 0
    behaviour: str

    @field_validator("behaviour")
    @classmethod
    def _look_up(cls, behaviour: str, info: ValidationInfo) -> str:
        if behaviour in BAD_RECORDS:
            decoded[info.data["number"]] += 1
        if behaviour == "validator":
            raise KeyError(behaviour)
        if behaviour == "cancelling validator":
            raise asyncio.CancelledError
        return behaviour


@upcast(TaskV1, Task)
def _to_v2(old: TaskV1) -> Task:
    if old.behaviour == "upcaster":
        decoded[old.number] += 1
        raise RuntimeError(old.behaviour)
    return Task(key=old.key, behaviour=old.behaviour)


def record_of(key: str, behaviour: str, number: int) -> Outgoing:
    event: Event = (
        TaskV1(key=key, behaviour="upcaster", number=number)
        if behaviour == "upcaster"
        else Task(key=key, behaviour="ok")
    )
    _, value, headers = encode(event, envelope_for(event, source="/source"))
    if behaviour == "garbage":
        value = b"{garbage"
    elif behaviour == "no headers":
        headers = [("other", b"\xff")]
    elif behaviour != "upcaster":
        value = b'{"key":"%s","number":%d,"behaviour":"%s"}' % (key.encode(), number, behaviour.encode())
    return key.encode(), value, list(headers)


# ---------------------------------------------------------------------------------------------------- faulty stores


@dataclass
class Store:
    """A database that can be away, or not answer; an inbox and a parking lot on top of it."""

    state: str = "here"
    calls: int = 0
    applied: set[str] = field(default_factory=set)
    parked: dict[Place, bytes] = field(default_factory=dict)

    async def reached(self) -> None:
        self.calls += 1
        if self.state == "away":
            raise OSError("connection refused")
        if self.state == "hangs":
            await asyncio.sleep(100_000)
        await asyncio.sleep(0)


class FakeTransaction:
    """What `AsyncConnection` is to the caller of handlers."""

    invalidated = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claimed: set[str] = set()

    async def start(self) -> None:
        await self._store.reached()

    async def begin(self) -> FakeTransaction:
        return self

    async def commit(self) -> None:
        await self._store.reached()
        self._store.applied |= self.claimed

    async def rollback(self) -> None:
        self.claimed.clear()

    async def close(self) -> None: ...


class FakeInbox:
    """As `Inbox`, on a `Store`."""

    consumer = GROUP

    def __init__(self, store: Store) -> None:
        self._store = store
        self.engine = self

    def connect(self) -> FakeTransaction:
        return FakeTransaction(self._store)

    async def create_tables(self) -> None: ...

    refusal_of = staticmethod(Inbox.refusal_of)

    async def claim(self, tx: FakeTransaction, deliveries: Sequence[Any]) -> set[str]:
        await self._store.reached()
        contexts = [d if isinstance(d, Context) else d.ctx for d in deliveries]
        fresh = {ctx.envelope.id for ctx in contexts} - self._store.applied
        tx.claimed |= fresh
        return fresh


class FakeLot:
    """As `ParkingLot`, on a `Store`; nothing is ever released."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create_tables(self) -> None: ...

    async def keys(self, consumer: str, partitions: Any = None) -> list[Any]:
        from hailbus.parking import ParkedKey

        await self._store.reached()
        assert consumer == GROUP
        now = VirtualClock()()
        places = {(TopicPartition(WORK.name, p), key) for (p, _), key in self._store.parked.items()}
        return [
            ParkedKey(
                consumer=consumer,
                topic=place.topic,
                partition=place.partition,
                key=key,
                waiting_count=1,
                reason="",
                parked_at=now,
                is_released=False,
            )
            for place, key in sorted(places)
            if partitions is None or place in partitions
        ]

    async def add(self, consumer: str, record: Received, *, reason: str, attempts: int) -> None:
        await self._store.reached()
        assert (consumer, bool(reason)) == (GROUP, True)
        assert attempts <= ATTEMPTS
        assert record.key is not None
        self._store.parked[record.partition, record.offset] = record.key


# ---------------------------------------------------------------------------------------------------- the world


@dataclass
class World:
    """What happened, and how it must have ended."""

    bus: MemoryBus
    mode: Mode
    store: Store = field(default_factory=Store)
    behaviours: dict[Place, tuple[str, str]] = field(default_factory=dict)
    numbers: dict[Place, int] = field(default_factory=dict)
    calls: Counter[Place] = field(default_factory=Counter)
    passed: set[Place] = field(default_factory=set)
    skipped: set[Place] = field(default_factory=set)
    audited: set[Place] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    disruptions: int = 0

    def letters(self, group: str) -> dict[Place, dict[str, bytes]]:
        return {
            origin(letter)[1:3]: dict(letter.headers) for letter in self.bus.records(dead_letter_topic(WORK, group))
        }

    def ended(self) -> set[Place]:
        return self.passed | self.skipped | set(self.letters(GROUP)) | set(self.store.parked)

    def check_commits(self) -> None:
        """No commit passes a record that has not ended."""
        ended = self.ended()
        for tp, offset in self.bus.committed(GROUP).items():
            missing = {(tp.partition, o) for o in range(offset) if (tp.partition, o) in self.behaviours} - ended
            assert not missing, f"committed {offset} on {tp}, not ended: {sorted(missing)}"

    def is_behind_a_failure(self, place: Place, key: str) -> bool:
        """Whether an earlier event of the same key was given up."""
        return any(
            k == key and behaviour in GIVEN_UP and p[0] == place[0] and p[1] < place[1]
            for p, (k, behaviour) in self.behaviours.items()
        )

    def check_ends(self) -> None:
        """Each record ended as the class of its failure says, and handlers were not called without bound."""
        letters, others = self.letters(GROUP), self.letters(OTHER)
        most = (ATTEMPTS + 2) * (1 + self.disruptions)
        for place, (key, behaviour) in self.behaviours.items():
            letter = letters.get(place)
            if self.mode == "parking" and place in self.store.parked and self.is_behind_a_failure(place, key):
                continue  # it waits, whatever it is
            if behaviour in BAD_RECORDS:
                assert letter is not None, (place, behaviour)
                assert letter["hailbus-failed-by"] == b"decoder"
                assert letter["hailbus-attempt"] == b"0"
                assert self.calls[place] == 0
                assert place in others
                # Each group decodes it once while it reads and once to set it aside: a bad record is not retried.
                assert decoded[self.numbers[place]] <= 4 * (1 + self.disruptions), (place, behaviour)
                continue
            assert place in self.audited
            assert place not in others
            if behaviour in GIVEN_UP:
                if self.mode == "parking":
                    assert place in self.store.parked, (place, behaviour)
                    assert letter is None
                else:
                    assert letter is not None, (place, behaviour)
                    assert letter["hailbus-failed-by"] not in {b"decoder", b"inbox"}
            elif behaviour == "skips":
                assert place in self.skipped
                assert letter is None, (place, behaviour)
            else:
                assert place in self.passed, (place, behaviour)
                assert letter is None, (place, behaviour)
            assert self.calls[place] <= most, (place, behaviour, self.calls[place], most)


def services(world: World) -> Service:
    svc = Service(GROUP, subscribing=SETTINGS)
    retry = Backoff(first=timedelta(milliseconds=10), attempts=ATTEMPTS, jitter=0.0)
    inbox = cast("Inbox", FakeInbox(world.store))

    async def dependency(ctx: Context) -> AsyncIterator[str]:
        behaviour = world.behaviours[ctx.partition, ctx.offset][1]
        if behaviour == "dependency" or (behaviour == "dependency once" and ctx.attempt == 1):
            world.calls[ctx.partition, ctx.offset] += 1
            raise ConnectionError("a dependency's own database")
        yield behaviour

    async def act(event: Task, ctx: Context, *, again: bool) -> Any:
        """Behave as the event says; `again` for a call that is not the first."""
        place = (ctx.partition, ctx.offset)
        behaviour = event.behaviour
        once = behaviour.endswith(" once")
        match behaviour.removesuffix(" once"):
            case "raises" if not (once and again):
                raise ValueError("as told")
            case "hangs" if not (once and again):
                await asyncio.sleep(1_000)
            case "cancels":
                raise asyncio.CancelledError
            case "retries" if not (once and again):
                return Retry(timedelta(milliseconds=20))
            case "rejects":
                return Reject("as told")
            case "no verdict":
                return 42
            case "skips":
                world.skipped.add(place)
                return Skip("as told")
            case "dependency" if not (once and again):
                raise ConnectionError("as told")
        return None

    deadline = timedelta(seconds=DEADLINE_S)
    if world.mode in {"batches", "inbox batches"}:
        promise = EffectivelyOnce(inbox=inbox, retry=retry) if world.mode == "inbox batches" else None

        @svc.on_batch(
            Task,
            delivery=promise or AtLeastOnce(retry=retry),
            max_items=4,
            max_wait=timedelta(milliseconds=5),
            deadline=deadline,
        )
        async def work_batch(batch: Batch[Task]) -> Any:
            verdicts: list[Any] = []
            places = [(item.ctx.partition, item.ctx.offset) for item in batch]
            seen = {place for place in places if world.calls[place]}
            world.calls.update(places)
            for item, place in zip(batch, places, strict=True):
                found = await act(item.event, item.ctx, again=place in seen)
                if isinstance(found, (Retry, Reject)) and promise is not None:
                    raise ValueError("as a batch says it")
                verdicts.append(Done() if found is None else found)
            world.passed.update(place for place, verdict in zip(places, verdicts, strict=True) if verdict == Done())
            return verdicts

    else:
        then = ParkKey(lot=cast("ParkingLot", FakeLot(world.store)), look_every=timedelta(seconds=5))
        delivery: Any = {
            "lanes": AtLeastOnce(retry=retry, max_in_flight=4),
            "transactions": ExactlyOnce(retry=retry, max_items=3),
            "inbox": EffectivelyOnce(inbox=inbox, retry=retry, max_in_flight=4),
            "parking": AtLeastOnce(retry=retry, then=then, max_in_flight=4),
        }[world.mode]

        @svc.on(Task, delivery=delivery, deadline=deadline)
        async def work(event: Task, ctx: Context, given: Annotated[str, Depends(dependency)]) -> Any:
            assert event.key not in world.running, f"handlers of key {event.key} overlap"
            world.running.add(event.key)
            world.calls[ctx.partition, ctx.offset] += 1
            try:
                verdict = await act(event, ctx, again=ctx.attempt > 1)
            finally:
                world.running.discard(event.key)
            if verdict is None:
                world.passed.add((ctx.partition, ctx.offset))
            return verdict

    @svc.on(Task, group=OTHER)
    async def audit(event: Task, ctx: Context) -> None:
        world.audited.add((ctx.partition, ctx.offset))

    return svc


Action = tuple[str, Any]
records = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(BEHAVIOURS)), min_size=1, max_size=8)
actions = st.one_of(
    st.tuples(st.just("publish"), records),
    st.tuples(st.just("wait"), st.integers(1, 4_000)),
    st.tuples(st.just("rebalance"), st.none()),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("refuse commits"), st.integers(1, 3)),
    st.tuples(st.just("down"), st.integers(1, 8_000)),
    st.tuples(st.just("store away"), st.integers(1, 8_000)),
    st.tuples(st.just("store hangs"), st.integers(1, 60_000)),
    st.tuples(st.just("fail sends"), st.integers(1, 4)),
)


# The consumer that replaces a broken one loads the parked keys from a store that hangs and then refuses, until after
# the last record has ended.
LATE_CONSUMER: list[Action] = [
    ("store away", 5638),
    ("wait", 974),
    ("break", None),
    ("store away", 5638),
    ("store hangs", 6651),
    ("refuse commits", 2),
    ("store away", 6651),
    ("wait", 974),
    ("store away", 5638),
    ("fail sends", 4),
]


@settings(max_examples=150, deadline=None)
@example(script=LATE_CONSUMER, mode="parking", seed=183)
@given(
    script=st.lists(actions, min_size=1, max_size=10),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 1000),
)
def test_every_record_ends_as_its_failure_says(script: list[Action], mode: Mode, seed: int) -> None:
    with quiet() as lines:
        run_virtual(play([("publish", [("a", "ok"), ("b", "raises"), ("c", "validator")]), *script], mode, seed))
    # Logs are bounded by records and by states, not by attempts and seconds.
    count = sum(len(argument) for name, argument in script if name == "publish") + 3
    assert len(lines) <= 8 * count + 40 * (len(script) + 1), Counter(line.split(":")[0] for line in lines)


@contextmanager
def quiet() -> Iterator[list[str]]:
    """The warnings of hailbus, kept and not shown."""
    lines: list[str] = []
    logger = logging.getLogger("hailbus")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # a handler of its own
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


async def play(script: list[Action], mode: Mode, seed: int) -> None:
    decoded.clear()
    bus = MemoryBus(clock=VirtualClock(), seed=seed)
    bus.create(WORK)
    world = World(bus, mode)
    svc = services(world)
    loop = asyncio.get_running_loop()
    await svc.start(bus)
    for name, argument in script:
        match name:
            case "publish":
                for key, behaviour in argument:
                    # Decided here, so that a key keeps its partition whatever its record looks like.
                    partition = ord(key) % 3
                    number = len(world.numbers)
                    (offset,) = bus.append(WORK.name, partition, [record_of(key, behaviour, number)])
                    world.behaviours[partition, offset] = (key, behaviour)
                    world.numbers[partition, offset] = number
            case "wait":
                await asyncio.sleep(argument / 1000)
            case "rebalance":
                world.disruptions += 1
                bus.rebalance(GROUP)
            case "break":
                world.disruptions += 1
                bus.break_consumers(GROUP)
            case "refuse commits":
                bus.refuse_commits(argument)
            case "down":
                bus.go_down()
                await asyncio.sleep(argument / 1000)
                bus.come_up()
            case "store away" | "store hangs":
                world.disruptions += 1  # a commit that fails repeats the handler
                world.store.state = name.removeprefix("store ")
                before, began_s = world.store.calls, loop.time()
                await asyncio.sleep(argument / 1000)
                # However many records wait, the store is asked a few times per second and not in a loop.
                assert world.store.calls - before <= 60 + 40 * (loop.time() - began_s)
                world.store.state = "here"
            case "fail sends":
                bus.fail_sends(*(DeliveryError("scripted", topic="", retriable=True) for _ in range(argument)))
        world.check_commits()
    async with asyncio.timeout(7200):  # virtual seconds: everything comes to rest by itself
        while any(
            bus.committed(group).get(tp, 0) < end for group in (GROUP, OTHER) for tp, end in bus.end(WORK).items()
        ):
            await asyncio.sleep(0.25)
            world.check_commits()
    # A consumer that came late may still wait for an answer that its database never gives, and then for its next try.
    healed_s = loop.time()
    while (reasons := svc.unhealthy_reasons) and loop.time() - healed_s <= STORE_TIMEOUT_S + 1.25 * OUTAGE_MAX_S:
        await asyncio.sleep(0.25)
        world.check_commits()
    assert reasons == [], reasons
    assert svc.failures == []
    await svc.stop()
    world.check_commits()
    world.check_ends()
