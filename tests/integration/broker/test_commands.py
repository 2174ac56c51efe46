"""`hailbus-broker format`, `dump-log`, `dump-metadata`, `describe`: as somebody types them."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from hailbus_broker.cli import main
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.runtime.node import Node
from hailbus_broker.server.listener import Server
from hailbus_broker.testing import ThreadedBroker, running_broker

from tests.support import wait_for


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, code: int = 0) -> str:
        self._monkeypatch.setattr("sys.argv", ["hailbus-broker", *words])
        self._capsys.readouterr()  # what a broker in the same process has logged
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = self._capsys.readouterr()
        assert exit_.value.code == code, out + err
        return out if code == 0 else out + err

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def broker_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


async def fill(data_dir: Path) -> None:
    """Records of two keys, a commit and an aborted transaction."""
    settings = {"log.index.interval.bytes": "100", "num.partitions": "1"}
    async with running_broker(settings, data_dir=str(data_dir)) as broker:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="gzip") as producer:
            for number in range(4):
                await producer.send_and_wait(
                    "rides", f"value {number}".encode() * 20, key=b"key", headers=[("type", b"ride")]
                )
        async with AIOKafkaConsumer(
            "rides", bootstrap_servers=broker.bootstrap, group_id="surge", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.getone()
            await consumer.commit()
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="till") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait("rides", b"never")
            await producer.abort_transaction()


async def test_a_partition_is_shown_batch_by_batch(tmp_path: Path, broker_command: Command) -> None:
    await fill(tmp_path)
    log = tmp_path / "rides-0" / f"{0:020}.log"
    batches = broker_command.rows("dump-log", str(tmp_path / "rides-0"))
    assert [(row["base_offset"], row["last_offset"], row["compression"]) for row in batches] == [
        (0, 0, "gzip"),
        (1, 1, "gzip"),
        (2, 2, "gzip"),
        (3, 3, "gzip"),
        (4, 4, "none"),
        (5, 5, "none"),
    ]
    assert [row.get("control") for row in batches] == [None] * 5 + ["ABORT"]
    assert [row["is_transactional"] for row in batches] == [False] * 4 + [True] * 2
    assert sum(row["size_bytes"] for row in batches) == log.stat().st_size
    records = [row for row in broker_command.rows("dump-log", "--records", str(log)) if "record" in row]
    assert [row["record"] for row in records] == [0, 1, 2, 3, 4]
    assert (records[1]["key"], records[1]["value"]) == ("key", "value 1" * 20)
    assert records[1]["headers"] == {"type": "ride"}
    text = broker_command("dump-log", "--records", str(log))
    assert text.splitlines()[0].startswith("base_offset=0 last_offset=0 count=1 position=0")
    assert "  record=0 timestamp=" in text


async def test_indexes_and_states_are_shown_and_checked(tmp_path: Path, broker_command: Command) -> None:
    await fill(tmp_path)
    folder = tmp_path / "rides-0"
    stem = f"{0:020}"
    positions = {row["last_offset"]: row["position"] for row in broker_command.rows("dump-log", str(folder))}
    index = broker_command.rows("dump-log", str(folder / f"{stem}.index"))
    assert index
    assert all(positions[row["offset"]] == row["position"] for row in index)
    times = broker_command.rows("dump-log", str(folder / f"{stem}.timeindex"))
    assert times[-1]["offset"] in positions
    (aborted,) = broker_command.rows("dump-log", str(folder / f"{stem}.txnindex"))
    assert (aborted["first_offset"], aborted["last_offset"]) == (4, 5)
    (snapshot,) = folder.glob("*.snapshot")
    (producer,) = [row for row in broker_command.rows("dump-log", str(snapshot)) if row["producer_id"] >= 0]
    assert (producer["producer_id"], producer["current_transaction_start_offset"]) == (aborted["producer_id"], -1)
    assert broker_command.rows("dump-log", str(folder / "leader-epoch-checkpoint")) == [
        {"leader_epoch": 0, "start_offset": 0}
    ]


async def test_damage_is_found(tmp_path: Path, broker_command: Command) -> None:
    await fill(tmp_path)
    folder, stem = tmp_path / "rides-0", f"{0:020}"
    log, index = folder / f"{stem}.log", folder / f"{stem}.index"
    whole, entries = log.read_bytes(), index.read_bytes()
    log.write_bytes(whole[:-3])
    torn = broker_command("dump-log", str(log), code=1)
    assert "is damaged: at byte" in torn
    assert len([line for line in torn.splitlines() if line.startswith("base_offset=")]) == 5
    log.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    assert "does not match its CRC" in broker_command("dump-log", str(log), code=1)
    log.write_bytes(whole)
    index.write_bytes(entries[:7] + bytes([entries[7] ^ 1]) + entries[8:])
    assert "which it does not" in broker_command("dump-log", str(index), code=1)
    assert "there is no file" in broker_command("dump-log", str(folder / "nothing.log"), code=2)
    assert "is no file of a partition" in broker_command("dump-log", str(folder / "partition.metadata"), code=2)
    assert "has no .log file" in broker_command("dump-log", str(tmp_path), code=2)


async def test_the_brokers_own_topics_are_decoded(tmp_path: Path, broker_command: Command) -> None:
    await fill(tmp_path)
    offsets = broker_command.rows("dump-log", "--records", str(tmp_path / "__consumer_offsets-0"))
    committed = [row for row in offsets if row.get("type") == "OffsetCommitKey"]
    assert committed[-1]["key"] == {"group": "surge", "topic": "rides", "partition": 0}
    assert committed[-1]["value"]["offset"] == 1
    groups = [row for row in offsets if row.get("type") == "GroupMetadataKey"]
    assert groups[0]["key"] == {"group": "surge"}
    assert groups[0]["value"]["members"][0]["client_host"] == "/127.0.0.1"
    states = broker_command.rows("dump-log", "--records", str(tmp_path / "__transaction_state-0"))
    assert [row["value"]["transaction_status"] for row in states if "record" in row] == [0, 1, 3, 5]


async def test_metadata_is_shown_as_records_and_as_what_they_add_up_to(tmp_path: Path, broker_command: Command) -> None:
    await fill(tmp_path)
    records = broker_command.rows("dump-metadata", "--data-dir", str(tmp_path))
    types = [row["type"] for row in records if "record" in row]
    features = list(itertools.takewhile(lambda kind: kind == "FeatureLevelRecord", types))
    assert (len(features), types[len(features)]) == (3, "RegisterBrokerRecord")
    (topic,) = [row for row in records if row.get("value", {}).get("name") == "rides"]
    image = broker_command.rows("dump-metadata", "--data-dir", str(tmp_path), "--image")
    assert {"topic": "rides", "topic_id": topic["value"]["topic_id"], "partitions": 1} in image
    assert {"feature": "transaction.version", "level": 2} in image
    of_offsets = [row for row in image if row.get("config_of") == "topic" and row["name"] == "__consumer_offsets"]
    assert of_offsets[0]["configs"]["cleanup.policy"] == "compact"
    assert "has no __cluster_metadata-0" in broker_command("dump-metadata", "--data-dir", str(tmp_path / "no"), code=2)


async def test_a_formatted_directory_is_what_serve_takes(tmp_path: Path, broker_command: Command) -> None:
    data = tmp_path / "data"
    wanted = "MkU3OEVBNTcwNTJENDM2Qg"
    words = ("format", "--data-dir", str(data), "--set", "node.id=7", "--cluster-id", wanted)
    assert broker_command(*words).splitlines() == [f"cluster_id={wanted}", "node_id=7", f"data_dir={data}"]
    assert "is formatted already" in broker_command(*words, code=2)
    assert broker_command(*words, "--ignore-formatted") == f"{data} is formatted already.\n"
    other = ("format", "--data-dir", str(tmp_path / "other"))
    assert "is not 22 characters of base64" in broker_command(*other, "--cluster-id", "short", code=2)
    assert broker_command(*other).startswith("cluster_id=")
    options = {"log.dirs": str(data), "node.id": "7", "listeners": "PLAINTEXT://127.0.0.1:0"}
    server = Server(Node(BrokerConfig(options)))
    await server.start()
    try:
        assert server.node.cluster_id == wanted
    finally:
        await server.stop()
    shutil.rmtree(data)


def test_describe_tells_what_a_broker_is(broker_command: Command) -> None:
    with ThreadedBroker() as broker:
        broker.call(lambda running: running.node.create_internal_topic("__consumer_offsets"))
        wait_for(
            "the topic",
            lambda: broker.call(lambda running: "__consumer_offsets" in running.node.replicas.topics),
            30,
        )
        text = broker_command("describe", "--bootstrap", broker.bootstrap, "--groups")
        cluster_id = broker.call(lambda running: running.node.cluster_id)
        (found,) = broker_command.rows("describe", "--bootstrap", broker.bootstrap, "--groups")
    lines = text.splitlines()
    assert lines[:3] == [f"cluster_id={cluster_id}", "controller_id=1", f"broker=1 {broker_address(text)}"]
    assert "feature=transaction.version level=2" in lines
    assert any(line.startswith("log_dir=") and " online partitions=1 " in line for line in lines)
    assert (found["cluster_id"], found["groups"]) == (cluster_id, [])
    assert "no broker answers" in broker_command("describe", "--bootstrap", "127.0.0.1:1", code=1)


def broker_address(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("broker=")]
    return line.split()[1]


async def test_describe_tells_why_groups_were_rebalanced(broker_command: Command) -> None:
    async with running_broker() as broker:
        async with AIOKafkaConsumer("rides", bootstrap_servers=broker.bootstrap, group_id="surge") as consumer:
            await consumer.getmany(timeout_ms=100)
        text = await asyncio.to_thread(broker_command, "describe", "--bootstrap", broker.bootstrap, "--groups")
    (line,) = [line for line in text.splitlines() if line.startswith("group=")]
    assert line.startswith("group=surge type=Classic state=Empty members=0 last_rebalance=member-left: member ")
