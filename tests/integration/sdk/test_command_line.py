"""The command line on real brokers: Kafka's flag names, dead letters, and one sentence for what is wrong."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest
from hailbus import AtLeastOnce, Backoff, ClusterAdmin, Context, KafkaBus, Service
from hailbus.cli import app, letters
from hailbus_broker.testing import ApiKey, Fault, ThreadedBroker
from typer.testing import CliRunner

MODULE = """
from hailbus import *
class OrderPlaced(Event, topic=Topic({topic!r}, partitions=3), key="order_id", type="order.placed"):
    order_id: str
    amount: int = 0
svc = Service("till-{topic}")
@svc.on(OrderPlaced)
async def placed(event: OrderPlaced, ctx: Context) -> None: ...
"""


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Until(Protocol):
    async def __call__(self, condition: object, *, seconds: float = ...) -> None: ...


@pytest.fixture
def topic() -> str:
    return f"cli-{random.randrange(10**9)}"


@pytest.fixture
def module(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "shop_" + topic.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE.format(topic=topic))
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


class Command:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = CliRunner()

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        head, rest = words[:1], words[1:]
        if words[0] == "dlq":
            head, rest = words[:2], words[2:]
        result = self._runner.invoke(app, [*head, "--bootstrap-server", self._bootstrap, *rest], input=stdin)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout if code == 0 else result.output


@pytest.fixture
def hailbus(cluster: Cluster) -> Command:
    return Command(cluster.bootstrap)


def test_topics_produce_consume_groups_configs(hailbus: Command, topic: str) -> None:
    created = hailbus("topics", "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=60000")
    assert created == f"Created topic {topic}.\n"
    assert topic in hailbus("topics", "--list").splitlines()
    described = hailbus("topics", "--describe", "--topic", topic).splitlines()
    assert described[0].startswith(f"Topic: {topic}\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: ")
    assert "retention.ms=60000" in described[0]
    assert [line.split("\t")[2] for line in described[1:]] == ["Partition: 0", "Partition: 1", "Partition: 2"]
    assert "exists already" in hailbus("topics", "--create", "--topic", topic, code=2)
    lines = "".join(f"key{i}:value{i}\n" for i in range(20))
    hailbus("produce", "--topic", topic, "--property", "parse.key=true", "--property", "key.separator=:", stdin=lines)
    consumed = hailbus(
        "consume", "--topic", topic, "--from-beginning", "--max-messages", "20", "--property", "print.key=true"
    )
    assert sorted(consumed.splitlines()) == sorted(f"key{i}\tvalue{i}" for i in range(20))
    group = f"group-{topic}"
    hailbus("consume", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", "20")
    assert group in hailbus("groups", "--list").splitlines()
    rows = [json.loads(line) for line in hailbus("groups", "--describe", "--group", group, "--json").splitlines()]
    assert sum(row["current_offset"] for row in rows) == 20
    assert sum(row["lag"] for row in rows) == 0
    hailbus("groups", "--reset-offsets", "--group", group, "--to-earliest", "--execute")
    rows = [json.loads(line) for line in hailbus("groups", "--describe", "--group", group, "--json").splitlines()]
    assert sum(row["lag"] for row in rows) == 20
    hailbus(
        "configs",
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--alter",
        "--add-config",
        "max.message.bytes=9999",
    )
    shown = hailbus("configs", "--entity-type", "topics", "--entity-name", topic, "--describe")
    assert "  max.message.bytes=9999" in shown.splitlines()
    assert "  retention.ms=60000" in shown.splitlines()
    hailbus("topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in hailbus("topics", "--describe", "--topic", topic)
    hailbus("topics", "--delete", "--topic", topic)
    assert topic not in hailbus("topics", "--list").splitlines()


def test_keys_go_where_java_puts_them(hailbus: Command, topic: str) -> None:
    hailbus("topics", "--create", "--topic", topic, "--partitions", "3")
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    hailbus("produce", "--topic", topic, *keyed, stdin="21:1\nfoobar:2\nabc:3\n")
    found = hailbus("consume", "--topic", topic, "--from-beginning", "--max-messages", "3", "--json")
    # org.apache.kafka.common.utils.UtilsTest: murmur2 of these is -973932308, -790332482 and 479470107
    java = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
    expected = {key: (value & 0x7FFFFFFF) % 3 for key, value in java.items()}
    assert {r["key"]: r["partition"] for r in map(json.loads, found.splitlines())} == expected


def test_what_is_wrong_is_one_sentence_and_exit_code_2(hailbus: Command, topic: str) -> None:
    assert f"topic {topic!r} does not exist" in hailbus("consume", "--topic", topic, code=2)
    assert "exactly one of --list, --describe" in hailbus("topics", code=2)
    assert "not known; known are" in hailbus("produce", "--topic", topic, "--property", "parse.keys=true", code=2)
    assert "no module 'nowhere'" in hailbus("tail", "nowhere:CATALOGUE", code=2)
    assert "--list shows those that do" in hailbus("groups", "--describe", "--group", "nobody", code=2)
    refused = CliRunner().invoke(app, ["topics", "--bootstrap-server", "127.0.0.1", "--list"])
    assert (refused.exit_code, "is not like 'host:9092'" in refused.output) == (2, True)


def test_publish_tail_doctor(hailbus: Command, module: str, topic: str) -> None:
    receipt = json.loads(hailbus("publish", f"{module}:OrderPlaced", '{"order_id": "a", "amount": 3}', "--id", "x"))
    assert (receipt["id"], receipt["topic"], receipt["offset"]) == ("x", topic, 0)
    assert "amount" in hailbus("publish", f"{module}:OrderPlaced", '{"order_id": "a", "amount": "many"}', code=1)
    found = json.loads(hailbus("tail", module, "--start", "earliest", "--until-end", "--json"))
    assert (found["type"], found["id"], found["data"]) == ("order.placed", "x", {"order_id": "a", "amount": 3})
    assert f"topic {topic}" in hailbus("doctor", "--service", f"{module}:svc")
    answers = [json.loads(line) for line in hailbus("doctor", "--service", f"{module}:svc", "--json").splitlines()]
    assert {"what": f"topic {topic}", "found": "3 partitions, declared 3", "ok": True} in answers


def test_dead_letters_are_listed_replayed_once_and_audited(
    hailbus: Command, cluster: Cluster, module: str, topic: str, until: Until
) -> None:
    import importlib

    sys.path.insert(0, str(Path.cwd()))
    shop = importlib.import_module(module)
    sys.path.pop(0)
    svc = Service(f"till-{topic}")
    pub = svc.publishes(shop.OrderPlaced)
    # A member that a loaded machine keeps from its heartbeats must not lose its partitions: what was not committed
    # would be handled again, and be a second letter.
    bus = KafkaBus(bootstrap_servers=cluster.bootstrap, session_timeout_ms=120_000)
    seen: list[tuple[str, int]] = []

    @svc.on(shop.OrderPlaced, delivery=AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2)))
    async def placed(event: object, ctx: Context) -> None:
        amount: int = event.amount  # type: ignore[attr-defined]  # of a class made at run time
        if amount == 1:
            raise ValueError("till is jammed")
        seen.append((ctx.envelope.id, amount))

    async def fail_once() -> None:
        async with svc.running(bus), ClusterAdmin(bus) as admin:
            for amount in range(3):
                await pub.publish(shop.OrderPlaced(order_id="k", amount=amount), id=f"id-{amount}")

            async def all_is_committed() -> bool:
                return len(seen) == 2 and not sum(entry.lag for entry in await admin.lag(svc.name))

            await until(all_is_committed, seconds=60)

    async def take_the_replayed() -> None:
        async with svc.running(bus):
            await until(lambda: len(seen) == 3, seconds=60)

    asyncio.run(fail_once())
    queue = f"{topic}.till-{topic}-dlt"
    (letter,) = [json.loads(line) for line in hailbus("dlq", "list", queue, "--json").splitlines()]
    assert (letter["status"], letter["ce_id"], letter["exception-message"]) == ("waiting", "id-1", "till is jammed")
    assert "till is jammed" in hailbus("dlq", "show", queue, letter["place"])
    assert "no letter at '9@9'" in hailbus("dlq", "replay", queue, "9@9", code=2)
    assert "is not like PATH=VALUE" in hailbus("dlq", "edit", queue, letter["place"], "--set", "amount", code=2)
    edited = hailbus("dlq", "edit", queue, letter["place"], "--set", "amount=100", "--set", "order_id=k")
    assert edited == f"Edited the letter at {letter['place']} of {queue}; `hailbus dlq replay` publishes it.\n"
    assert json.loads(hailbus("dlq", "show", queue, letter["place"]))["value"] == '{"order_id":"k","amount":100}'
    refused = hailbus("dlq", "edit", queue, letter["place"], "--set", "amount=100", "--set", "order_id=k", "--json")
    assert json.loads(refused) == {"queue": queue, "place": letter["place"], "edited": False}
    assert hailbus("dlq", "replay", queue, letter["place"]) == f"Replayed 1 dead letters of {queue}.\n"
    assert hailbus("dlq", "replay", queue, "--all") == f"Replayed 0 dead letters of {queue}.\n"
    assert json.loads(hailbus("dlq", "drop", queue, letter["place"], "--json")) == {"queue": queue, "dropped": []}
    asyncio.run(take_the_replayed())
    assert seen == [("id-0", 0), ("id-2", 2), ("id-1", 100)]
    assert hailbus("dlq", "list", queue, "--json") == ""
    (done,) = [json.loads(line) for line in hailbus("dlq", "list", queue, "--all", "--json").splitlines()]
    assert done["status"] == "replayed"
    assert [(entry["action"], entry.get("value")) for entry in done["history"]] == [
        ("edited", "edited"),
        ("replayed", "edited"),
    ]
    assert "was replayed; only letters that wait" in hailbus(
        "dlq", "edit", queue, done["place"], "--set", "a=1", code=2
    )


def test_a_first_transaction_may_take_longer_than_a_broker_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(bootstrap: str, *, connect_timeout_s: float = 1.0) -> KafkaBus:
        return KafkaBus(bootstrap_servers=bootstrap, connect_timeout_s=connect_timeout_s)

    monkeypatch.setattr(letters, "bus_at", impatient)
    with ThreadedBroker() as broker:
        command = Command(broker.bootstrap)
        command("topics", "--create", "--topic", "orders.v1.till-dlt", "--partitions", "1")
        slow = broker.fail(Fault(api=ApiKey.INIT_PRODUCER_ID, delay_s=3.0))
        assert (
            command("dlq", "replay", "orders.v1.till-dlt", "--all")
            == "Replayed 0 dead letters of orders.v1.till-dlt.\n"
        )
        assert slow.hit_count == 1
