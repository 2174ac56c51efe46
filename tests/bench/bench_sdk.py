"""Events per second and CPU per event of hailbus, beside bare clients, on one broker in one run.

    python tests/bench/bench_sdk.py [--bootstrap 127.0.0.1:9092] [--events 50000] [--rounds 3]

Each figure is the median of the rounds; each case runs in a process of its own, whose CPU time is counted, so that no
case works in memory that another one has left in pieces. `aiokafka + model` is what a service does without
an SDK: it builds, dumps or validates the same pydantic model. FastStream, faust-streaming and confluent-kafka take part
when installed: `uv run --with 'faststream[kafka]' python tests/bench/bench_sdk.py`. Without --bootstrap it starts the
in-house broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import importlib.util
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiokafka
from hailbus import AtLeastOnce, AtMostOnce, Batch, ClusterAdmin, Context, Event, KafkaBus, Service, Topic, event_info
from hailbus.envelope import new_id, time_text
from hailbus.testing import MemoryBus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.report import Run

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

AT_ONCE = 1000  # callers that each await one publish after the other
AWAITED = "publish: hailbus awaited, 1000 at once"
Result = dict[str, float]
Work = Callable[[], Awaitable[int]]
Case = Callable[[], Coroutine[Any, Any, Result]]


def event_class(topic: Topic) -> type[Any]:
    class Measured(Event, topic=topic, key="ride_id", type="bench.measured"):
        ride_id: str
        rider_id: str
        lat: float
        lon: float
        fare_cents: int
        note: str
        simulated: bool

    return Measured


def fields(i: int) -> dict[str, Any]:
    """Seven fields, about 300 bytes as JSON."""
    return {
        "ride_id": f"ride-{i % 5000:031d}",
        "rider_id": f"rider-{i:030d}",
        "lat": 40.7128,
        "lon": -74.006,
        "fare_cents": i,
        "note": "n" * 120,
        "simulated": True,
    }


FIXED_HEADERS = [
    ("ce_specversion", b"1.0"),
    ("ce_source", b"/bench"),
    ("ce_type", b"bench.measured"),
    ("ce_dataschema", b"hailbus:bench.measured/v1"),
    ("content-type", b"application/json"),
]


def headers(key: bytes) -> list[tuple[str, str | bytes | None]]:
    """The CloudEvents headers that hailbus writes, for the clients that are compared with it."""
    return [
        *FIXED_HEADERS,
        ("ce_id", new_id().encode()),
        ("ce_time", time_text(datetime.now(UTC)).encode()),
        ("ce_subject", key),
    ]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """How a service is observed."""

    sampled: float | None = None
    """The share of traces that a parent-based sampler keeps; None without tracing. The export is not counted."""
    is_service_traced: bool = True
    """With tracing: whether the service makes spans, or the HTTP framework around it alone."""
    metrics: Literal["prometheus", "opentelemetry"] | None = None
    has_deadline: bool = False

    @cache  # noqa: B019 a provider can be set once, and so can each of the few constants below
    def install(self) -> None:
        """Set the global providers."""
        if self.sampled is not None:
            from opentelemetry import trace
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

            trace.set_tracer_provider(TracerProvider(sampler=ParentBasedTraceIdRatio(self.sampled)))
        if self.metrics == "opentelemetry":
            from opentelemetry import metrics
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader

            metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))

    def service(self, name: str, **more: Any) -> Service:
        """A service that is observed so."""
        self.install()
        tracing = self.sampled is not None and self.is_service_traced
        svc = Service(name, tracing=tracing, metering=self.metrics == "opentelemetry", **more)
        if self.metrics == "prometheus":
            from hailbus.metrics import ServiceCollector

            ServiceCollector(svc)
        return svc

    def request(self) -> AbstractContextManager[object]:
        """What an HTTP framework puts around a request: a span, where there is tracing."""
        if self.sampled is None:
            return contextlib.nullcontext()
        return _tracer().start_as_current_span("request")


@cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("bench")


BLIND = Observed()
IN_TRACED_REQUESTS = Observed(sampled=0.01, is_service_traced=False)
OBSERVED = Observed(sampled=0.01, metrics="prometheus", has_deadline=True)
EVERY_SPAN = Observed(sampled=1.0)
OTEL_METRICS = Observed(metrics="opentelemetry")


async def measured(work: Work) -> Result:
    # The garbage collector must not walk through what earlier cases and imports have left: alike for all cases.
    gc.collect()
    gc.freeze()
    wall, cpu = time.perf_counter(), time.process_time()
    count = await work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"events_per_s": count / wall, "cpu_us": cpu / count * 1e6, "per_core": count / cpu}


class Bench:
    def __init__(self, bootstrap: str, count: int, *, client: Literal["aiokafka", "librdkafka"] = "aiokafka") -> None:
        self.bus = KafkaBus(bootstrap_servers=bootstrap, client=client, max_batch_bytes=131_072)
        self.bootstrap = bootstrap
        self.count = count

    async def topic(self) -> tuple[Topic, type[Any]]:
        topic = Topic(f"bench-{random.randrange(10**9)}", partitions=1)
        async with ClusterAdmin(self.bus) as admin:
            await admin.provision([topic])
        return topic, event_class(topic)

    # ------------------------------------------------------------------------------------------ publishing

    async def aiokafka_publish(self, *, with_model: bool, awaited: bool = False) -> Result:
        topic, cls = await self.topic()
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True, linger_ms=5, max_batch_size=131_072
        )
        await producer.start()
        raw = cls(**fields(1)).model_dump_json().encode()
        ready = headers(b"ride-1")

        async def work() -> int:
            futures = []
            for i in range(self.count):
                if with_model:
                    event = cls(**fields(i))
                    raw_i = event.__pydantic_serializer__.to_json(event)
                    key = event.ride_id.encode()
                    futures.append(await producer.send(topic.name, raw_i, key=key, headers=headers(key)))
                else:
                    futures.append(await producer.send(topic.name, raw, key=b"ride-1", headers=ready))
            await asyncio.gather(*futures)
            return self.count

        async def one_by_one() -> int:
            async def some(start: int) -> None:
                for i in range(start, self.count, AT_ONCE):
                    event = cls(**fields(i))
                    raw_i = event.__pydantic_serializer__.to_json(event)
                    key = event.ride_id.encode()
                    await producer.send_and_wait(topic.name, raw_i, key=key, headers=headers(key))

            await asyncio.gather(*(some(start) for start in range(AT_ONCE)))
            return self.count

        try:
            return await measured(one_by_one if awaited else work)
        finally:
            await producer.stop()

    async def hailbus_publish(self, *, how: str, observed: Observed = BLIND) -> Result:
        _, cls = await self.topic()
        svc = observed.service("bench", provision=False)
        pub = svc.publishes(cls)

        async def enqueued() -> int:
            futures = [await pub.enqueue(cls(**fields(i))) for i in range(self.count)]
            await asyncio.gather(*futures)
            return self.count

        async def many() -> int:
            await pub.publish_many(cls(**fields(i)) for i in range(self.count))
            return self.count

        async def awaited() -> int:
            async def some(start: int) -> None:
                with observed.request():
                    for i in range(start, self.count, AT_ONCE):
                        await pub.publish(cls(**fields(i)))

            await asyncio.gather(*(some(start) for start in range(AT_ONCE)))
            return self.count

        async with svc.running(self.bus):
            return await measured({"enqueue": enqueued, "many": many, "awaited": awaited}[how])

    async def latency(self) -> Result:
        _, cls = await self.topic()
        svc = Service("bench", provision=False)
        pub = svc.publishes(cls)
        times = []
        async with svc.running(self.bus):
            await pub.publish(cls(**fields(0)))
            for i in range(500):
                began = time.perf_counter()
                await pub.publish(cls(**fields(i)))
                times.append((time.perf_counter() - began) * 1000)
        times.sort()
        return {"p50_ms": times[250], "p99_ms": times[495]}

    # ------------------------------------------------------------------------------------------ consuming

    async def filled(self) -> tuple[Topic, type[Any]]:
        topic, cls = await self.topic()
        await self.fill(cls, Service("fill", provision=False))
        return topic, cls

    async def fill(self, cls: type[Any], svc: Service) -> None:
        """Publish a hundred events per call, so that as many share a trace context where there is one."""
        pub = svc.publishes(cls)
        async with svc.running(self.bus):
            for start in range(0, self.count, 10_000):
                stop = min(start + 10_000, self.count)
                await asyncio.gather(
                    *(
                        pub.publish_many(cls(**fields(i)) for i in range(first, min(first + 100, stop)))
                        for first in range(start, stop, 100)
                    )
                )

    async def aiokafka_consume(self, *, with_model: bool) -> Result:
        topic, cls = await self.filled()
        consumer = aiokafka.AIOKafkaConsumer(
            topic.name, bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()

        async def work() -> int:
            seen = 0
            while seen < self.count:
                for records in (await consumer.getmany(timeout_ms=500, max_records=1000)).values():
                    if with_model:
                        for record in records:
                            cls.__pydantic_validator__.validate_json(record.value)
                    seen += len(records)
            return seen

        try:
            return await measured(work)
        finally:
            await consumer.stop()

    async def hailbus_consume(self, *, how: str, observed: Observed = BLIND) -> Result:
        _, cls = await self.topic()
        await self.fill(cls, observed.service("fill", provision=False))
        svc = observed.service(f"bench-{random.randrange(10**9)}")
        deadline = timedelta(seconds=20) if observed.has_deadline else None
        seen, wanted = 0, 1
        reached = asyncio.Event()

        if how == "batches":

            @svc.on_batch([cls], deadline=deadline)
            async def batch(items: Batch[Any]) -> None:
                nonlocal seen
                seen += len(items)
                if seen >= wanted:
                    reached.set()

        else:

            @svc.on(
                cls,
                delivery=AtMostOnce() if how == "at most once" else AtLeastOnce(),
                deadline=deadline,
            )
            async def one(event: Any, ctx: Context) -> None:
                nonlocal seen
                seen += 1
                if seen >= wanted:
                    reached.set()

        async with svc.running(self.bus):
            await reached.wait()
            before, wanted = seen, self.count
            if before < wanted:
                reached.clear()

            async def work() -> int:
                await reached.wait()
                return self.count - before

            return await measured(work)

    async def memory(self) -> Result:
        topic = Topic("bench", partitions=1)
        cls = event_class(topic)
        bus = MemoryBus()
        svc = Service("bench")
        pub = svc.publishes(cls)
        done = asyncio.Event()
        seen = 0

        @svc.on([cls])
        async def one(event: Any, ctx: Context) -> None:
            nonlocal seen
            seen += 1
            if seen >= self.count:
                done.set()

        filler = Service("fill")
        fill = filler.publishes(cls)
        async with filler.running(bus):
            await fill.publish_many(cls(**fields(i)) for i in range(self.count))

        async def work() -> int:
            async with svc.running(bus):
                await done.wait()
            return self.count

        assert pub.events == (cls,)
        return await measured(work)

    # ------------------------------------------------------------------------------------------ others

    async def confluent(self, *, reports: bool = False) -> Result:
        """Hands over records one by one, as its batch calls drop headers.

        With `reports` it keeps the offset of each record, as publishers return it: the fastest that hailbus could be
        over it. It is not idempotent: librdkafka's idempotent producer spins while more than one batch waits.
        """
        from confluent_kafka import Producer

        topic, cls = await self.topic()
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 131_072})
        offsets: list[int] = []

        def report(error: Any, message: Any) -> None:
            assert error is None
            offsets.append(message.offset())

        async def work() -> int:
            for i in range(self.count):
                event = cls(**fields(i))
                while True:
                    try:
                        key = event.ride_id.encode()
                        producer.produce(
                            topic.name,
                            event.__pydantic_serializer__.to_json(event),
                            key,
                            on_delivery=report if reports else None,
                            headers=headers(key),
                        )
                    except BufferError:
                        producer.poll(0.01)
                    else:
                        break
                if i % 1000 == 0:
                    producer.poll(0)
            producer.flush()
            assert len(offsets) == (self.count if reports else 0)
            return self.count

        return await measured(work)

    async def confluent_consume(self, *, with_headers: bool) -> Result:
        """Reads batches in this thread, as a script would; librdkafka's own threads count as well.

        The headers name the event, so a client that reads them is the fastest that hailbus could be.
        """
        from confluent_kafka import Consumer

        topic, cls = await self.filled()
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"bench-{random.randrange(10**9)}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic.name])

        async def work() -> int:
            seen = 0
            while seen < self.count:
                messages = consumer.consume(1000, 0.5)
                for message in messages:
                    if with_headers:
                        message.headers()
                    cls.__pydantic_validator__.validate_json(message.value())
                seen += len(messages)
                if messages:
                    consumer.commit(asynchronous=True)
            return seen

        try:
            return await measured(work)
        finally:
            consumer.close()

    async def faststream_consume(self) -> Result:
        """At least once: acked after the handler. A tenth of the events, as each is committed alone."""
        kafka: Any = importlib.import_module("faststream.kafka")  # optional, so unknown to the type checker
        faststream: Any = importlib.import_module("faststream")

        few = Bench(self.bootstrap, max(self.count // 10, 1))
        topic, cls = await few.filled()
        broker = kafka.KafkaBroker(self.bootstrap, logger=None)
        seen, done = 0, asyncio.Event()

        async def take(event: Any) -> None:
            nonlocal seen
            seen += 1
            if seen >= few.count:
                done.set()

        take.__annotations__["event"] = cls
        group = f"bench-{random.randrange(10**9)}"
        policy = faststream.AckPolicy.NACK_ON_ERROR
        broker.subscriber(topic.name, group_id=group, auto_offset_reset="earliest", ack_policy=policy)(take)

        async def work() -> int:
            await broker.start()
            await done.wait()
            return few.count

        try:
            return await measured(work)
        finally:
            await broker.stop()

    async def faust_consume(self) -> Result:
        """A process of its own, as faust owns its event loop; its start is not counted."""
        topic, _ = await self.filled()
        program = Path(__file__).with_name("faust_consumer.py")
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), self.bootstrap, topic.name, str(self.count), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        line = re.search(rb'\{"events_per_s".*\}', out)  # among what faust prints about itself
        assert line is not None, out.decode()
        found: Result = json.loads(line.group())
        return found

    async def faststream(self) -> Result:
        kafka: Any = importlib.import_module("faststream.kafka")  # optional, so unknown to the type checker

        topic, cls = await self.topic()
        broker = kafka.KafkaBroker(self.bootstrap, acks="all", linger_ms=5, max_batch_size=131_072)
        await broker.start()

        async def work() -> int:
            for i in range(self.count):
                event = cls(**fields(i))
                key = event.ride_id.encode()
                named = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers(key)}
                await broker.publish(event, topic.name, key=key, headers=named, no_confirm=True)
            await broker._producer._producer.producer.flush()
            return self.count

        try:
            return await measured(work)
        finally:
            await broker.stop()


def cases_of(bench: Bench) -> dict[str, Case]:
    cases: dict[str, Case] = {
        "publish: aiokafka, bytes": lambda: bench.aiokafka_publish(with_model=False),
        "publish: aiokafka + model": lambda: bench.aiokafka_publish(with_model=True),
        "publish: aiokafka + model, awaited, 1000 at once": lambda: bench.aiokafka_publish(
            with_model=True, awaited=True
        ),
        "publish: hailbus enqueue": lambda: bench.hailbus_publish(how="enqueue"),
        "publish: hailbus publish_many": lambda: bench.hailbus_publish(how="many"),
        AWAITED: lambda: bench.hailbus_publish(how="awaited"),
        f"{AWAITED}, in traced requests": lambda: bench.hailbus_publish(how="awaited", observed=IN_TRACED_REQUESTS),
        "consume: aiokafka, bytes": lambda: bench.aiokafka_consume(with_model=False),
        "consume: aiokafka + model": lambda: bench.aiokafka_consume(with_model=True),
        "consume: hailbus at least once, key lanes": lambda: bench.hailbus_consume(how="at least once"),
        "consume: hailbus at most once": lambda: bench.hailbus_consume(how="at most once"),
        "consume: hailbus batches": lambda: bench.hailbus_consume(how="batches"),
        "memory bus through a handler": bench.memory,
        "latency of one awaited publish": bench.latency,
    }
    for name, observed in (("observed", OBSERVED), ("every span", EVERY_SPAN), ("OpenTelemetry metrics", OTEL_METRICS)):
        cases |= {
            f"publish: hailbus publish_many, {name}": partial(bench.hailbus_publish, how="many", observed=observed),
            f"{AWAITED}, {name}": partial(bench.hailbus_publish, how="awaited", observed=observed),
            f"consume: hailbus at least once, key lanes, {name}": partial(
                bench.hailbus_consume, how="at least once", observed=observed
            ),
            f"consume: hailbus batches, {name}": partial(bench.hailbus_consume, how="batches", observed=observed),
        }
    if importlib.util.find_spec("confluent_kafka"):
        fast = Bench(bench.bootstrap, bench.count, client="librdkafka")
        cases["publish: hailbus publish_many, librdkafka"] = lambda: fast.hailbus_publish(how="many")
        cases[f"{AWAITED}, librdkafka"] = lambda: fast.hailbus_publish(how="awaited")
        cases["consume: hailbus at least once, key lanes, librdkafka"] = lambda: fast.hailbus_consume(
            how="at least once"
        )
        cases["consume: hailbus batches, librdkafka"] = lambda: fast.hailbus_consume(how="batches")
        cases["latency of one awaited publish, librdkafka"] = fast.latency
        cases["publish: confluent-kafka + model"] = bench.confluent
        cases["publish: confluent-kafka + model, reports"] = lambda: bench.confluent(reports=True)
        cases["consume: confluent-kafka + model"] = lambda: bench.confluent_consume(with_headers=False)
        cases["consume: confluent-kafka + model, headers"] = lambda: bench.confluent_consume(with_headers=True)
    if importlib.util.find_spec("faststream"):
        cases["publish: faststream, unconfirmed"] = bench.faststream
        cases["consume: faststream at least once"] = bench.faststream_consume
    if importlib.util.find_spec("faust"):
        cases["consume: faust agent, bytes"] = bench.faust_consume
    return cases


def run_alone(name: str, bootstrap: str, count: int) -> Result:
    """One case in a process of its own."""
    command = [sys.executable, __file__, "--bootstrap", bootstrap, "--events", str(count), "--case", name]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: Result = json.loads(out.splitlines()[-1])
    return found


def run(bootstrap: str, count: int, rounds: int) -> dict[str, list[Result]]:
    """Run all cases, interleaved, so that a busy moment of the machine hits all alike; the results of each round."""
    found: dict[str, list[Result]] = {name: [] for name in cases_of(Bench(bootstrap, count))}
    for _ in range(rounds):
        for name, results in found.items():
            results.append(run_alone(name, bootstrap, count))
    return found


@contextlib.contextmanager
def in_house_broker() -> Iterator[str]:
    """A broker of our own in a process and a folder of its own; its address."""
    with tempfile.TemporaryDirectory(prefix="hailbus-bench-") as folder:
        command = [str(Path(sys.executable).with_name("hailbus-broker")), "serve", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", folder, "--log-level", "warning"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            try:
                yield broker.stdout.readline().strip().removeprefix("bootstrap=")
            finally:
                broker.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", help="host:port of a broker; without it the in-house broker is started")
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help="only this one, in this process; prints its figures as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(asyncio.run(cases_of(Bench(arguments.bootstrap, arguments.events))[arguments.case]())))
        return
    found = Run(f"just bench-sdk {' '.join(sys.argv[1:])}".strip(), rounds=arguments.rounds)
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap or stack.enter_context(in_house_broker())
        results = run(bootstrap, arguments.events, arguments.rounds)
    size = len(event_class(Topic("x"))(**fields(1)).model_dump_json())
    assert event_info(event_class(Topic("x"))).key_field == "ride_id"
    condition = (
        f"{arguments.events:,} events of {size} bytes, one partition, acks=all, the broker syncs before each ack"
    )
    found.table(
        "Events through a client", condition=condition, columns=("a second", "CPU µs each", "a second per core")
    )
    for name, rounds in results.items():
        if "p50_ms" not in rounds[0]:
            found.add(name, "events", *([one[key] for one in rounds] for key in ("events_per_s", "cpu_us", "per_core")))
    found.table("Latency of one publish after the other", condition=condition, columns=("p50", "p99"))
    for name, rounds in results.items():
        if "p50_ms" in rounds[0]:
            found.add(name, "ms", *([one[key] for one in rounds] for key in ("p50_ms", "p99_ms")))

    def ratio(ours: str, theirs: str) -> float:
        return statistics.median(one["per_core"] for one in results[ours]) / statistics.median(
            one["per_core"] for one in results[theirs]
        )

    bare, bare_awaited = "publish: aiokafka + model", "publish: aiokafka + model, awaited, 1000 at once"
    bare_consume = "consume: aiokafka + model"
    bars = [
        ("publish: hailbus publish_many", bare, 1.2),
        ("publish: hailbus enqueue", bare, 0.75),
        (AWAITED, bare_awaited, 1.5),
        ("consume: hailbus at least once, key lanes", bare_consume, 0.9),
        ("consume: hailbus at most once", bare_consume, 0.9),
        ("consume: hailbus batches", bare_consume, 1.0),
        ("publish: hailbus publish_many, librdkafka", bare, 2.5),
        ("consume: hailbus batches, librdkafka", bare_consume, 1.5),
        *(
            (f"{case}, observed", case, 0.85)
            for case in (
                "publish: hailbus publish_many",
                "consume: hailbus at least once, key lanes",
                "consume: hailbus batches",
            )
        ),
        # The span of the request is the HTTP framework's, with or without tracing of the service.
        (f"{AWAITED}, observed", f"{AWAITED}, in traced requests", 0.85),
    ]
    bars = [bar for bar in bars if bar[0] in results]  # librdkafka is an extra
    found.table("Events per core, beside aiokafka with the same model", condition=condition, columns=("ratio",))
    for ours, theirs, bar in bars:
        found.add(ours, "×", [value := ratio(ours, theirs)])
        print(f"{'ok ' if value >= bar else 'LOW'} {ours} is {value:.2f} x {theirs} per core, the bar is {bar}")
    if arguments.json:
        found.write(arguments.json)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
