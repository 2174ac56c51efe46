"""Groups, configs, transactions, and ways to read: the commands of an administrator, on both brokers."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient
from hailbus._transport.kafka_admin import KafkaAdmin
from hailbus.cli import app
from hailbus_broker.testing import ApiKey, ErrorCode, Fault, ThreadedBroker
from typer.testing import CliRunner

from tests.support import wait_for


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Command:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = CliRunner()

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        head = 2 if words[0] == "transactions" else 1
        arguments = [*words[:head], "--bootstrap-server", self._bootstrap, *words[head:]]
        result = self._runner.invoke(app, arguments, input=stdin)
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout if code == 0 else result.output

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def hailbus(cluster: Cluster) -> Command:
    return Command(cluster.bootstrap)


@pytest.fixture
def topic(hailbus: Command) -> Iterator[str]:
    name = f"admin-{random.randrange(10**9)}"
    hailbus("topics", "--create", "--topic", name, "--partitions", "2", "--json")
    yield name
    hailbus("topics", "--delete", "--topic", name)


def test_consuming_from_a_time_by_key_and_to_the_end_touches_no_group(
    hailbus: Command, cluster: Cluster, topic: str
) -> None:
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    before = hailbus("groups", "--list")
    written = hailbus("produce", "--topic", topic, *keyed, "--json", stdin="a:1\nb:2\na:3\n")
    assert {json.loads(line)["topic"] for line in written.splitlines()} == {topic}
    assert len(written.splitlines()) == 3
    time.sleep(0.005)  # a later record must have a later millisecond
    moment = datetime.now(tz=UTC).isoformat()
    hailbus("produce", "--topic", topic, *keyed, stdin="a:4\nb:5\n")
    read = ("consume", "--topic", topic, "--until-end")
    assert sorted(hailbus(*read, "--from-beginning").split()) == ["1", "2", "3", "4", "5"]
    assert hailbus(*read, "--from-beginning", "--key", "a").split() == ["1", "3", "4"]
    assert sorted(hailbus(*read, "--from-datetime", moment).split()) == ["4", "5"]
    assert hailbus(*read, "--from-datetime", moment, "--key", "b").split() == ["5"]
    assert hailbus(*read) == ""
    assert hailbus(*read, "--from-beginning", "--key", "a", "--max-messages", "2").split() == ["1", "3"]
    # Other tests use the same cluster, and have groups of their own.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for group in set(hailbus("groups", "--list").split()) - set(before.split()):
        (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        assert topic not in {place.topic for place in found.result(30).topic_partitions or ()}, group
    assert "only one of" in hailbus(*read, "--from-beginning", "--from-datetime", moment, code=2)
    assert "continues at the group's committed offsets" in hailbus(*read, "--group", "g", code=2)
    assert "is not like" in hailbus(*read, "--from-datetime", "yesterday", code=2)


def test_topics_are_placed_and_filtered(hailbus: Command, topic: str) -> None:
    (plain,) = hailbus.rows("topics", "--describe", "--topic", topic)
    broker = plain["partitions"][0]["leader"]
    placed = f"{topic}-placed"
    create = ("topics", "--create", "--topic", placed)
    where = ("--replica-assignment", f"{broker},{broker},{broker}")
    assert "leave --partitions" in hailbus(*create, *where, "--partitions", "3", code=2)
    assert "is not like 1:2,2:3" in hailbus(*create, "--replica-assignment", "a:b", code=2)
    assert "cannot be created" in hailbus(*create, "--replica-assignment", "77", code=2)
    hailbus(*create, *where, "--config", "retention.ms=60000")
    try:
        (found,) = hailbus.rows("topics", "--describe", "--topic", placed)
        assert [part["replicas"] for part in found["partitions"]] == [[broker]] * 3
        of_topic = ("--entity-type", "topics", "--entity-name", topic)
        hailbus("configs", *of_topic, "--alter", "--delete-config", "cleanup.policy")
        overridden = [row["topic"] for row in hailbus.rows("topics", "--describe", "--topics-with-overrides")]
        assert placed in overridden
        assert topic not in overridden
        assert hailbus("topics", "--describe", "--under-replicated-partitions") == ""
        assert hailbus("topics", "--describe", "--unavailable-partitions") == ""
    finally:
        hailbus("topics", "--delete", "--topic", placed)


def test_a_topic_that_is_deleted_while_others_are_described_is_left_out(
    hailbus: Command, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_lived = f"{topic}-short"
    hailbus("topics", "--create", "--topic", short_lived)
    configs = KafkaAdmin.configs

    async def configs_after_the_deletion(admin: KafkaAdmin, kind: Any, name: str) -> Any:
        if name == short_lived:
            await admin.delete([short_lived])
            deadline_s = time.monotonic() + 60
            while await admin.describe([short_lived]):  # Apache Kafka deletes a moment later
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.05)
        return await configs(admin, kind, name)

    monkeypatch.setattr(KafkaAdmin, "configs", configs_after_the_deletion)
    found = [row["topic"] for row in hailbus.rows("topics", "--describe")]
    assert topic in found
    assert short_lived not in found


def until_coordinated(bootstrap: str, group: str) -> None:
    """Wait until a group's coordinator has loaded: a broker that has just started may, and aiokafka gives up then."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline_s = time.monotonic() + 60
    while True:
        try:
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def test_a_group_is_described_moved_and_forgotten(hailbus: Command, cluster: Cluster, topic: str) -> None:
    group = f"group-{topic}"
    until_coordinated(cluster.bootstrap, group)

    async def consume() -> None:
        async with (
            AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer,
            AIOKafkaConsumer(
                topic,
                bootstrap_servers=cluster.bootstrap,
                group_id=group,
                group_instance_id="one",
                client_id="reader",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer,
        ):
            for index in range(2):
                await producer.send_and_wait(topic, b"x", partition=index)
            for _ in range(2):
                await consumer.getone()
            shown = await asyncio.to_thread(hailbus.rows, "groups", "--describe", "--group", group)
            # Nothing is committed yet, and the lag is there all the same.
            assert [(row["partition"], row["current_offset"], row["lag"]) for row in shown] == [
                (0, None, 1),
                (1, None, 1),
            ]
            await consumer.commit()
            (member,) = await asyncio.to_thread(hailbus.rows, "groups", "--describe", "--group", group, "--members")
            assert (member["instance_id"], member["client_id"]) == ("one", "reader")
            assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
            (state,) = await asyncio.to_thread(hailbus.rows, "groups", "--describe", "--group", group, "--state")
            assert (state["state"], state["type"], state["members"]) == ("Stable", "classic", 1)
            told = await asyncio.to_thread(hailbus.rows, "groups", "--describe", "--group", group, "--rebalances")
            if type(cluster).__name__ == "InHouse":
                assert [(entry["cause"], entry["members"]) for entry in told] == [("member-joined", 1)]
                assert state["last_rebalance"] == told[0]["reason"]
            else:
                assert (told, state["last_rebalance"]) == ([], None)
            refused = await asyncio.to_thread(hailbus, "groups", "--delete", "--group", group, code=2)
            assert "cannot be deleted" in refused

    asyncio.run(consume())
    listed = {row["group"]: row for row in hailbus.rows("groups", "--list")}
    assert listed[group]["type"].lower() == "classic"


def test_groups_are_listed_by_their_states(hailbus: Command, topic: str) -> None:
    group = f"group-{topic}"
    hailbus("produce", "--topic", topic, stdin="x\n")
    hailbus("consume", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", "1")

    def listed(*words: str) -> set[tuple[str, str]]:
        return {(row["group"], row["state"]) for row in hailbus.rows("groups", "--list", *words)}

    assert (group, "Empty") in listed("--state", "stable,Empty")
    assert (group, "Empty") in listed("--state=stable,Empty")
    assert (group, "Empty") in listed("--state")
    assert {state for _, state in listed("--state", "Stable, Dead")} <= {"Stable", "Dead"}
    assert {state for _, state in listed("--state=Stable")} <= {"Stable"}
    assert (group, "Empty") in listed("--state", "Empty", "--type", "Classic")
    assert group not in {name for name, _ in listed("--type=consumer")}
    rows = [line.split() for line in hailbus("groups", "--state", "--list").splitlines()]
    assert rows[0] == ["GROUP", "TYPE", "STATE"]
    assert [group, "classic", "Empty"] in [[name, kind.lower(), state] for name, kind, state in rows[1:]]
    assert group in hailbus("groups", "--list", "--state", "Empty")
    assert "no group state is called 'Emty'; there are PreparingRebalance" in hailbus(
        "groups", "--list", "--state", "Emty", code=2
    )
    assert "no group type is called 'share'; there are classic, consumer" in hailbus(
        "groups", "--list", "--type=share", code=2
    )
    assert "--state alone is a view" in hailbus("groups", "--describe", "--group", group, "--state=Empty", code=2)


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS], ids=lambda e: e.name
)
def test_a_coordinator_that_has_just_moved_is_asked_again(error: ErrorCode) -> None:
    with ThreadedBroker() as broker:
        command = Command(broker.bootstrap)
        command("topics", "--create", "--topic", "rides", "--partitions", "1")
        command("produce", "--topic", "rides", stdin="x\n")
        command("consume", "--topic", "rides", "--from-beginning", "--group", "surge", "--max-messages", "1")
        apis = (ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS)
        faults = [broker.fail(Fault(api=api, error=error, times=2)) for api in apis]
        (row,) = command.rows("groups", "--describe", "--group", "surge")
        assert (row["current_offset"], row["lag"]) == (1, 0)
        command("groups", "--delete-offsets", "--group", "surge", "--topic", "rides")
        command("groups", "--delete", "--group", "surge")
        assert command("groups", "--list") == ""
        assert [fault.hit_count for fault in faults] == [2, 2, 2, 2]


def test_offsets_are_reset_and_deleted(hailbus: Command, topic: str) -> None:
    group = f"group-{topic}"
    hailbus("produce", "--topic", topic, "--partition", "0", stdin="1\n2\n3\n")
    hailbus("consume", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", "3")

    def reset(*words: str) -> dict[int, int]:
        rows = hailbus.rows("groups", "--reset-offsets", "--group", group, *words)
        return {row["partition"]: row["new_offset"] for row in rows}

    assert reset("--to-current", "--all-topics") == {0: 3, 1: 0}
    assert reset("--shift-by", "-2", "--topic", f"{topic}:0", "--execute") == {0: 1}
    assert reset("--to-current", "--all-topics", "--dry-run") == {0: 1, 1: 0}
    assert reset("--by-duration", "PT1H", "--topic", topic) == {0: 0, 1: 0}
    assert "not like P2DT3H4M5S" in hailbus(
        "groups", "--reset-offsets", "--group", group, "--by-duration", "1h", "--topic", topic, code=2
    )
    assert "partitions 0 to 1" in hailbus(
        "groups", "--reset-offsets", "--group", group, "--to-earliest", "--topic", f"{topic}:7", code=2
    )
    assert hailbus.rows("groups", "--delete-offsets", "--group", group, "--topic", f"{topic}:0") == [
        {"group": group, "topic": topic, "partition": 0, "deleted": True}
    ]
    assert hailbus.rows("groups", "--delete", "--group", group) == [{"group": group, "deleted": True}]
    assert "cannot be deleted" in hailbus("groups", "--delete", "--group", group, code=2)
    assert group not in hailbus("groups", "--list").split()


def test_a_group_of_the_consumer_protocol_shows_its_members(hailbus: Command, cluster: Cluster, topic: str) -> None:
    group = f"new-{topic}"
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "group.protocol": "consumer", "client.id": "new"}
    )
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + 30
        while len(consumer.assignment()) < 2:
            consumer.poll(0.1)
            assert time.monotonic() < deadline
        (member,) = hailbus.rows("groups", "--describe", "--group", group, "--members")
        assert (member["client_id"], member["partitions"]) == ("new", [f"{topic}-0", f"{topic}-1"])
        (state,) = hailbus.rows("groups", "--describe", "--group", group, "--state")
        assert (state["type"], state["state"], state["assignor"]) == ("consumer", "Stable", "uniform")
    finally:
        consumer.close()


def test_configs_of_topics_brokers_and_groups(hailbus: Command, topic: str) -> None:
    def configs(*words: str) -> dict[str, str]:
        return {row["name"]: row["value"] for row in hailbus.rows("configs", *words, "--describe")}

    # A broker hears of a change a moment after the controller has acknowledged it.
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    hailbus("configs", *of_topic, "--alter", "--add-config", "cleanup.policy=[compact,delete],retention.ms=60000")
    wait_for("both", lambda: configs(*of_topic) == {"cleanup.policy": "compact,delete", "retention.ms": "60000"})
    hailbus("configs", *of_topic, "--alter", "--delete-config", "retention.ms", "--json")
    wait_for("one", lambda: configs(*of_topic) == {"cleanup.policy": "compact,delete"})
    of_group = ("--entity-type", "groups", "--entity-name", f"group-{topic}")
    hailbus("configs", *of_group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    wait_for("the group's", lambda: configs(*of_group) == {"consumer.session.timeout.ms": "50000"})
    of_all = ("--entity-type", "brokers", "--entity-default")
    hailbus("configs", *of_all, "--alter", "--add-config", "message.max.bytes=2000000")
    wait_for("the brokers'", lambda: configs(*of_all).get("message.max.bytes") == "2000000")
    hailbus("configs", *of_all, "--alter", "--delete-config", "message.max.bytes")
    assert "cannot be changed" in hailbus("configs", *of_topic, "--alter", "--add-config", "retention.mss=1", code=2)
    assert "--entity-default is for" in hailbus(
        "configs", "--entity-type", "topics", "--entity-default", "--describe", code=2
    )


def test_transactions_are_listed_described_aborted_and_ended(hailbus: Command, cluster: Cluster, topic: str) -> None:
    name = f"till-{topic}"

    async def main() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=name, transaction_timeout_ms=50_000
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"x", partition=1)
            await asyncio.to_thread(look)
        finally:
            await producer.stop()

    def look() -> None:
        listed = {row["transactional_id"]: row for row in hailbus.rows("transactions", "list")}
        assert listed[name]["state"] == "Ongoing"
        assert name in hailbus("transactions", "list", "--transactional-id-pattern", f"till-{topic}.*")
        assert name not in hailbus("transactions", "list", "--duration-filter", "3600000")
        (found,) = hailbus.rows("transactions", "describe", "--transactional-id", name)
        assert (found["state"], found["timeout_ms"], found["partitions"]) == ("Ongoing", 50_000, [f"{topic}-1"])
        assert found["start_ms"] > 0
        where = ("--topic", topic, "--partition", "1")
        (active,) = hailbus.rows("transactions", "describe-producers", *where)
        assert (active["producer_id"], active["start_offset"]) == (found["producer_id"], 0)
        # Its coordinator knows it, so it does not hang, however long it is silent.
        assert hailbus.rows("transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []
        assert "no open transaction" in hailbus("transactions", "abort", *where, "--start-offset", "7", code=2)
        assert "give either" in hailbus("transactions", "abort", *where, "--producer-id", "7", code=2)
        (aborted,) = hailbus.rows("transactions", "abort", *where, "--start-offset", "0")
        assert aborted["producer_id"] == found["producer_id"]
        (after,) = hailbus.rows("transactions", "describe-producers", *where)
        assert after["start_offset"] is None
        hailbus("transactions", "forceTerminateTransaction", "--transactional-id", name)
        (ended,) = hailbus.rows("transactions", "describe", "--transactional-id", name)
        assert (ended["state"], ended["start_ms"], ended["partitions"]) == ("Empty", None, [])
        assert ended["producer_epoch"] > found["producer_epoch"]
        assert "there is no transactional id" in hailbus("transactions", "describe", "--transactional-id", "x", code=2)

    asyncio.run(main())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_flags(shell: str) -> None:
    command = str(Path(sys.executable).with_name("hailbus"))

    def complete(line: str) -> str:
        words = line.split(" ")
        variables = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        done = subprocess.run(
            [command],
            env={"PATH": "/usr/bin:/bin", "_HAILBUS_COMPLETE": f"complete_{shell}", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    assert "transactions" in complete("hailbus tra")
    assert "find-hanging" in complete("hailbus transactions find")
    assert "--reset-offsets" in complete("hailbus groups --res")
    script = subprocess.run(
        [command, "--show-completion", shell],
        env={"PATH": "/usr/bin:/bin", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert f"complete_{shell}" in script.stdout
