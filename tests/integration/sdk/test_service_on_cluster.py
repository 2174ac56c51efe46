"""Services over real brokers: what the memory bus promises must hold here as well."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    BrokerUnreachableError,
    ClusterAdmin,
    Context,
    Event,
    ExactlyOnce,
    Inbox,
    KafkaBus,
    Outbox,
    Receipt,
    RecordTooLargeError,
    Service,
    SubscriberSettings,
    Topic,
    TopicMismatchError,
    bus_reader,
    record_reader,
)
from hailbus._transport.cluster import ClientName
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.event import event_info
from sqlalchemy import text

Until = Callable[..., Awaitable[None]]
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=50))


class Cluster(Protocol):
    bootstrap: str


class OwnCluster(Cluster, Protocol):
    def start(self) -> None: ...
    def kill(self) -> None: ...


def language(suffix: str, *, partitions: int = 3) -> tuple[Topic, type[Any]]:
    """A topic and an event class of its own for each test."""
    topic = Topic(f"orders-{suffix}-{random.randrange(10**9)}", partitions=partitions)

    class OrderPlaced(Event, topic=topic, key="order_id", type=f"order.{suffix}"):
        order_id: str
        amount: int = 0

    return topic, OrderPlaced


def bus_of(cluster: Cluster, client: ClientName) -> KafkaBus:
    return KafkaBus(
        bootstrap_servers=cluster.bootstrap, client=client, session_timeout_ms=6000, heartbeat_interval_ms=500
    )


async def test_events_go_round_in_key_order_and_lag_ends_at_zero(
    cluster: Cluster, client: ClientName, until: Until
) -> None:
    topic, order_placed = language("round")
    svc = Service("round-" + topic.name, subscribing=FAST)
    pub = svc.publishes(order_placed)
    seen: list[tuple[str, int]] = []

    @svc.on([order_placed])
    async def placed(event: Any, ctx: Context) -> None:
        seen.append((event.order_id, event.amount))

    async with svc.running(bus_of(cluster, client)), ClusterAdmin(cluster.bootstrap) as admin:
        receipts = await pub.publish_many([order_placed(order_id=str(i % 50), amount=i) for i in range(2000)])
        await until(lambda: len(seen) == 2000)

        async def no_lag() -> bool:
            lags = await admin.lag(svc.name)
            return sum(entry.lag for entry in lags) == 0 and sum(entry.committed_offset or 0 for entry in lags) == 2000

        await until(no_lag)
        assert svc.name in await admin.list_groups()
        assert await admin.consumes(svc.name)
        assert not await admin.consumes("nobody")
        ends = await admin.end_offsets([topic])
        assert sum(ends.values()) == 2000
        assert set((await admin.start_offsets([topic])).values()) == {0}
        assert (await admin.topics([topic.name]))[topic.name].partition_count == 3
    assert len({(r.partition, r.offset) for r in receipts}) == 2000
    for key in range(50):
        assert [amount for order_id, amount in seen if order_id == str(key)] == list(range(key, 2000, 50))


async def test_start_when_topics_exist_and_mismatch_is_said(cluster: Cluster, client: ClientName) -> None:
    topic, order_placed = language("exists")
    async with ClusterAdmin(cluster.bootstrap) as admin:
        assert await admin.provision([topic]) == {topic.name}
        assert await admin.provision([topic]) == frozenset()
        with pytest.raises(TopicMismatchError, match="3 partitions, declared are 5"):
            await admin.provision([Topic(topic.name, partitions=5)])
    svc = Service("exists")
    svc.publishes(order_placed)
    async with svc.running(bus_of(cluster, client)):
        assert svc.is_running


async def test_the_cluster_names_its_brokers_and_its_controller(cluster: Cluster) -> None:
    async with ClusterAdmin(cluster.bootstrap) as admin:
        found = await admin.cluster()
    assert found.cluster_id
    assert cluster.bootstrap in {
        f"{broker.host}:{broker.port}".replace("localhost", "127.0.0.1") for broker in found.brokers
    }
    assert not any(broker.is_fenced for broker in found.brokers)
    assert found.controller_id in found.voter_ids


async def test_unreachable_bootstrap_is_named(client: ClientName) -> None:
    svc = Service("nowhere")
    svc.publishes(language("nowhere")[1])
    with pytest.raises(BrokerUnreachableError, match=r"no Kafka broker answers at 127\.0\.0\.1:9 "):
        await svc.start(KafkaBus(bootstrap_servers="127.0.0.1:9", client=client, connect_timeout_s=1.0))


async def test_poison_becomes_a_dead_letter_and_too_large_is_refused(
    cluster: Cluster, client: ClientName, until: Until
) -> None:
    topic, order_placed = language("poison", partitions=1)
    svc = Service("poison-" + topic.name, subscribing=FAST)
    pub = svc.publishes(order_placed)
    seen: list[int] = []

    @svc.on(order_placed, delivery=AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=5), attempts=2)))
    async def placed(event: Any, ctx: Context) -> None:
        if event.amount == 7:
            raise ValueError("seven")
        seen.append(event.amount)

    bus = bus_of(cluster, client)
    async with svc.running(bus):
        with pytest.raises(RecordTooLargeError):
            await pub.publish(order_placed(order_id="x" * 2_000_000))
        await pub.publish_many([order_placed(order_id="k", amount=i) for i in range(10)])
        await until(lambda: len(seen) == 9)
        letters = [
            r async for r in record_reader(bus, [dead_letter_topic(topic, svc.name)], start="earliest", until_end=True)
        ]
    assert seen == [i for i in range(10) if i != 7]
    assert [dict(letter.headers)["kafka_dlt-exception-message"] for letter in letters] == [b"seven"]


@pytest.mark.parametrize("broker_decides", [False, True])
async def test_a_record_that_is_too_large_does_not_repeat_its_neighbours(
    cluster: Cluster, client: ClientName, *, broker_decides: bool
) -> None:
    limit = 100_000 if broker_decides else 1_048_576
    topic = Topic(f"limited-{random.randrange(10**9)}", partitions=1, config={"max.message.bytes": str(limit)})

    class Limited(Event, topic=topic, key="order_id", type="order.limited"):
        order_id: str
        note: str

    svc = Service("limited")
    pub = svc.publishes(Limited)
    bus = bus_of(cluster, client)
    async with svc.running(bus):
        futures = [
            await pub.enqueue(Limited(order_id="a", note="x" * (limit if number == 4 else 1)), id=str(number))
            for number in range(9)
        ]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        read = [d.ctx.envelope.id async for d in bus_reader(bus, Limited, start="earliest", until_end=True)]
    assert sorted(read) == ["0", "1", "2", "3", "5", "6", "7", "8"]
    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, Receipt)] == [RecordTooLargeError]
    assert isinstance(outcomes[4], RecordTooLargeError)
    assert outcomes[4].size_bytes > limit


@pytest.mark.slow_with("apache-librdkafka")  # the JVM takes seconds to start each time; the check has aiokafka on both
async def test_killed_broker_loses_nothing(
    own_cluster: OwnCluster, client: ClientName, until: Until, tmp_path: Path
) -> None:
    """Publisher, outbox relay, consumer and reader live through a broker that is killed and started again."""
    topic, order_placed = language("kill")
    engine = create_engine(f"sqlite:///{tmp_path}/deep/er/out.db")
    outbox = Outbox(engine)
    svc = Service("kill-" + topic.name, subscribing=FAST)
    pub = svc.publishes(order_placed)
    svc.relays(outbox)
    seen: list[int] = []
    tailed: list[int] = []

    @svc.on([order_placed])
    async def placed(event: Any, ctx: Context) -> None:
        seen.append(event.amount)

    async def tail() -> None:
        async for delivery in bus_reader(bus, order_placed, start="earliest"):
            tailed.append(delivery.event.amount)  # noqa: PERF401 looked at while the tail runs

    bus = bus_of(own_cluster, client)
    async with svc.running(bus):
        tailing = asyncio.get_running_loop().create_task(tail())
        await pub.publish_many([order_placed(order_id=str(i), amount=i) for i in range(100)])
        await until(lambda: len(seen) == 100 and len(tailed) == 100)
        await asyncio.to_thread(own_cluster.kill)
        during = [await pub.enqueue(order_placed(order_id=str(i), amount=i)) for i in range(100, 200)]
        async with engine.begin() as tx:
            for i in range(200, 300):
                await pub.publish(order_placed(order_id=str(i), amount=i), tx=tx)
        await asyncio.to_thread(own_cluster.start)
        receipts = await asyncio.gather(*during)
        assert len({(r.partition, r.offset) for r in receipts}) == 100
        await until(lambda: set(seen) == set(range(300)), seconds=60)
        await until(lambda: set(tailed) == set(range(300)), seconds=60)
        await pub.publish(order_placed(order_id="after", amount=300))
        await until(lambda: 300 in seen and 300 in tailed)

        async def relayed() -> bool:
            return await outbox.waiting_count() == 0

        await until(relayed, seconds=60)  # a row is marked after its event could be read

        async def committed() -> bool:
            async with ClusterAdmin(own_cluster.bootstrap) as admin:
                return sum(entry.lag for entry in await admin.lag(svc.name)) == 0

        await until(committed, seconds=60)
        tailing.cancel()
        await asyncio.gather(tailing, return_exceptions=True)
    await engine.dispose()


@pytest.mark.slow_with("apache")
async def test_service_waits_for_a_broker_that_is_coming_up(
    own_cluster: OwnCluster, client: ClientName, until: Until
) -> None:
    _, order_placed = language("late")
    svc = Service("late")
    pub = svc.publishes(order_placed)
    await asyncio.to_thread(own_cluster.kill)
    starting = asyncio.get_running_loop().create_task(svc.start(bus_of(own_cluster, client)))
    await asyncio.to_thread(own_cluster.start)
    await starting
    receipt = await pub.publish(order_placed(order_id="1"))
    assert receipt.offset == 0
    await svc.stop()


async def test_members_join_and_leave_and_nothing_is_lost(cluster: Cluster, client: ClientName, until: Until) -> None:
    topic, order_placed = language("rebalance", partitions=6)
    seen: list[int] = []
    running: set[str] = set()

    def member() -> Service:
        svc = Service("rebalance-" + topic.name, subscribing=FAST)

        @svc.on([order_placed])
        async def placed(event: Any, ctx: Context) -> None:
            assert event.order_id not in running  # neither in this member nor in any other
            running.add(event.order_id)
            await asyncio.sleep(0.002)
            running.discard(event.order_id)
            seen.append(event.amount)

        return svc

    source = Service("source")
    pub = source.publishes(order_placed)
    bus = bus_of(cluster, client)
    first, second = member(), member()
    async with source.running(bus), first.running(bus):
        for i in range(1000):
            await pub.enqueue(order_placed(order_id=str(i % 40), amount=i))
        async with second.running(bus):
            await until(lambda: bool(second.subscribers[0].assignment))
            for i in range(1000, 2000):
                await pub.enqueue(order_placed(order_id=str(i % 40), amount=i))
            await until(lambda: len(set(seen)) > 1500)
        await until(lambda: set(seen) == set(range(2000)))
    for key in range(40):
        firsts = list(dict.fromkeys(amount for amount in seen if amount % 40 == key))
        assert firsts == list(range(key, 2000, 40))


async def test_inbox_applies_each_event_once_although_delivered_twice(
    cluster: Cluster, client: ClientName, until: Until, tmp_path: Path
) -> None:
    topic, order_placed = language("inbox")
    engine = create_engine(f"sqlite:///{tmp_path}/in.db")
    inbox = Inbox(engine, consumer="till")
    await inbox.create_tables()
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE total (amount INTEGER)"))
        await tx.execute(text("INSERT INTO total VALUES (0)"))
    svc = Service("inbox-" + topic.name, subscribing=FAST)
    pub = svc.publishes(order_placed)

    @svc.on_batch(order_placed, max_items=200)
    async def add(batch: Batch[Any]) -> None:
        async with engine.begin() as tx:
            fresh = await inbox.claim(tx, batch.items)
            amount = sum({i.ctx.envelope.id: i.event.amount for i in batch if i.ctx.envelope.id in fresh}.values())
            await tx.execute(text("UPDATE total SET amount = amount + :amount"), {"amount": amount})

    async with svc.running(bus_of(cluster, client)):
        for _ in range(2):
            futures = [await pub.enqueue(order_placed(order_id=str(i), amount=i), id=f"order-{i}") for i in range(1000)]
            await asyncio.gather(*futures)

        async def all_seen() -> bool:
            return (await inbox.counts())[1] == 2000

        await until(all_seen)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT amount FROM total")) == sum(range(1000))
    assert await inbox.counts() == (1000, 2000)
    await engine.dispose()


async def test_sigterm_drains_and_exits_with_zero(cluster: Cluster, client: ClientName, tmp_path: Path) -> None:
    topic, order_placed = language("drain", partitions=1)
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import asyncio
from hailbus import *
class OrderPlaced(Event, topic=Topic({topic.name!r}, partitions=1), key="order_id", type="order.drain"):
    order_id: str
    amount: int = 0
svc = Service("drain-{topic.name}", bus=KafkaBus(bootstrap_servers={cluster.bootstrap!r}, client={client!r}))
@svc.on(OrderPlaced)
async def placed(event: OrderPlaced, ctx: Context) -> None:
    print("begin", event.amount, flush=True)
    await asyncio.sleep(0.5)
    print("end", event.amount, flush=True)
asyncio.run(svc.run())
"""
    )
    source = Service("source")
    pub = source.publishes(order_placed)
    async with source.running(bus_of(cluster, client)):
        await pub.publish_many([order_placed(order_id="a", amount=i) for i in range(5)])
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"begin 0\n"
            process.send_signal(signal.SIGTERM)
            rest = await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert rest == b"end 0\n"
    async with ClusterAdmin(cluster.bootstrap) as admin:
        assert [entry.committed_offset for entry in await admin.lag(f"drain-{topic.name}")] == [1]


async def test_delayed_outbox_rows_wait_and_can_be_withdrawn(
    cluster: Cluster, client: ClientName, until: Until, tmp_path: Path
) -> None:
    topic, order_placed = language("later", partitions=1)
    engine = create_engine(f"sqlite:///{tmp_path}/out.db")
    now = datetime(2014, 5, 1, tzinfo=UTC)
    outbox = Outbox(engine, clock=lambda: now)
    svc = Service("later-" + topic.name)
    pub = svc.publishes(order_placed)
    svc.relays(outbox)
    bus = bus_of(cluster, client)
    async with svc.running(bus):
        async with engine.begin() as tx:
            await pub.publish(order_placed(order_id="a", amount=1), tx=tx, not_before=now + timedelta(minutes=5))
            await pub.publish(
                order_placed(order_id="a", amount=2), tx=tx, not_before=now + timedelta(minutes=5), schedule_id="s"
            )
            await pub.publish(order_placed(order_id="a", amount=3), tx=tx)
        await until(lambda: outbox.published_count == 1)
        async with engine.begin() as tx:
            assert await outbox.cancel(tx, "s") == 1
        now += timedelta(minutes=6)
        outbox.wake()
        await until(lambda: outbox.published_count == 2)
        assert (await outbox.waiting_count(), await outbox.due_count()) == (0, 0)
        found = [d.event.amount async for d in bus_reader(bus, order_placed, start="earliest", until_end=True)]
    assert found == [3, 1]
    await engine.dispose()


async def test_exactly_once_over_a_rebalance(cluster: Cluster, client: ClientName, until: Until) -> None:
    topic, order_placed = language("exactly")
    out, total_changed = language("totals")

    def member() -> Service:
        svc = Service("sum-" + topic.name, subscribing=FAST)
        totals = svc.publishes(total_changed)

        @svc.on(order_placed, delivery=ExactlyOnce(retry=Backoff(first=timedelta(milliseconds=5)), max_items=50))
        async def add(event: Any, ctx: Context) -> None:
            await totals.publish(total_changed(order_id=event.order_id, amount=event.amount))
            if event.amount % 100 == 7 and ctx.attempt == 1:
                raise ValueError("after publishing")

        return svc

    source = Service("source")
    pub = source.publishes(order_placed)
    bus = bus_of(cluster, client)
    first, second = member(), member()
    async with source.running(bus), first.running(bus):
        await pub.publish_many([order_placed(order_id=str(i % 40), amount=i) for i in range(300)])
        async with second.running(bus):
            await until(lambda: bool(second.subscribers[0].assignment))
            await pub.publish_many([order_placed(order_id=str(i % 40), amount=i) for i in range(300, 600)])

        async def no_lag() -> bool:
            async with ClusterAdmin(cluster.bootstrap) as admin:
                lags = await admin.lag(first.name, [topic])
            return sum(entry.lag for entry in lags) == 0

        await until(no_lag, seconds=60)
    found = [d.event.amount async for d in bus_reader(bus, total_changed, start="earliest", until_end=True)]
    assert sorted(found) == list(range(600))
    assert out.name != topic.name


class Attempts(logging.Filter):
    """Counts what a library would log."""

    count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        return True


@pytest.mark.slow_with("apache")
async def test_an_outage_of_the_broker_is_logged_once_and_not_at_each_attempt(
    own_cluster: OwnCluster, client: ClientName, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    _, order_placed = language("quiet")
    svc = Service("quiet-" + event_info(order_placed).topic.name, subscribing=FAST)
    pub = svc.publishes(order_placed)
    seen: list[int] = []

    @svc.on([order_placed])
    async def placed(event: Any, ctx: Context) -> None:
        seen.append(event.amount)

    async with svc.running(bus_of(own_cluster, client)):
        await pub.publish(order_placed(order_id="a", amount=0))
        await until(lambda: seen == [0])
        await until(lambda: svc.subscribers[0].stats.committed)  # or the event would come again after the outage
        caplog.clear()
        attempts = Attempts()
        logging.getLogger("aiokafka").filters.insert(0, attempts)
        try:
            await asyncio.to_thread(own_cluster.kill)
            during = await pub.enqueue(order_placed(order_id="b", amount=1))
            await until(lambda: client == "librdkafka" or attempts.count >= 20, seconds=60)
            await until(lambda: svc.unhealthy_reasons, seconds=60)
        finally:
            logging.getLogger("aiokafka").removeFilter(attempts)
        lines = Counter((r.name, r.levelname, str(r.msg)) for r in caplog.records if r.levelno >= logging.WARNING)
        assert lines
        clients = {
            ("hailbus.transport", "WARNING", "broker_unreachable: %s: %s"): 2
        }  # producer and consumer, each once
        assert {line: count for line, count in lines.items() if count > clients.get(line, 1)} == {}
        await asyncio.to_thread(own_cluster.start)
        await during
        await until(lambda: 1 in seen, seconds=60)
        # Twice, if the group lost this member while the broker was away: then its commit is refused.
        assert seen in ([0, 1], [0, 1, 1])
