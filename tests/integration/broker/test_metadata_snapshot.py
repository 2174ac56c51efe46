"""The metadata log does not grow for ever: a snapshot takes the place of what it covers, at any moment of a crash."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cli.dump import dump_metadata
from hailbus_broker.cluster.metadata.image import MetadataImage, ResourceType
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, decode_snapshot, encode_snapshot
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.records import CorruptBatchError
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.testing import RunningBroker, running_broker

if TYPE_CHECKING:
    from hailbus_broker.protocol.schema import Message

METADATA = "__cluster_metadata-0"


async def change(broker: RunningBroker, *topics: str) -> None:
    """Topics with a config each, and one that goes again."""
    node = broker.node
    for name in (*topics, "gone"):
        new = node.controller.create_topic(name, partition_count=3, configs={"retention.ms": "1000"})
        await node.write_metadata(new.records)
    await node.write_metadata(node.controller.delete_topic(node.image.topics["gone"]))
    await node.write_metadata(
        node.controller.alter_configs(ResourceType.GROUP, "g", {"consumer.session.timeout.ms": "50000"})
    )
    await node.producer_ids.reserve()


def without_registration(image: MetadataImage) -> list[Message]:
    """What a restart leaves as it was: a broker registers anew."""
    return [record for record in image.to_records() if type(record).__name__ != "RegisterBrokerRecord"]


def files(data: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in (data / METADATA).glob(pattern))


async def test_a_start_from_a_snapshot_finds_the_same_cluster(tmp_path: Path) -> None:
    async with running_broker(data_dir=str(tmp_path)) as broker:
        await change(broker, "rides", "bikes")
        end = broker.node.metadata.quorum.log.log_end_offset
        await broker.node.metadata.snapshot()
        assert files(tmp_path, "*.checkpoint") == [f"{end:020}-0000000001.checkpoint"]
        assert files(tmp_path, "*.log") == [f"{end:020}.log"]
        await change(broker, "later")
        before, version = without_registration(broker.node.image), broker.node.image.version
        log_end = broker.node.metadata.quorum.log.log_end_offset
        assert version == log_end
    async with running_broker(data_dir=str(tmp_path)) as broker:
        assert without_registration(broker.node.image) == before
        assert broker.node.metadata.quorum.log.log_start_offset == end
        started = log_end + 2  # a leader's epoch, and a registration
        assert broker.node.image.version == broker.node.metadata.quorum.log.log_end_offset == started
        assert sorted(broker.node.replicas.topics) == ["bikes", "later", "rides"]
        second = broker.node.metadata.quorum.log.log_end_offset
        await broker.node.metadata.snapshot()
        assert files(tmp_path, "*.checkpoint") == [f"{second:020}-0000000002.checkpoint"]
    async with running_broker(data_dir=str(tmp_path)) as broker:
        assert without_registration(broker.node.image) == before


def without_epochs(records: list[Message]) -> list[Message]:
    for record in records:
        if isinstance(record, PartitionRecord):
            record.leader_epoch = record.partition_epoch = 0
    return records


@pytest.mark.parametrize("step", ["before the snapshot", "before the log is cut"])
async def test_a_crash_between_the_steps_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data, after_crash = tmp_path / "data", tmp_path / "copy"
    async with running_broker(data_dir=str(data)) as broker:
        await change(broker, "rides")
        before = without_registration(broker.node.image)

        def crash(*_: object, **__: object) -> None:
            shutil.copytree(data, after_crash, ignore=shutil.ignore_patterns("*-delete"))  # these go meanwhile
            raise RuntimeError("the machine stops here")

        where = {
            "before the snapshot": "hailbus_broker.runtime.metadata_snapshots.MetadataSnapshots.write",
            "before the log is cut": "hailbus_broker.log.partition_log.PartitionLog.delete_records",
        }
        with monkeypatch.context() as patch:
            patch.setattr(where[step], crash)
            with pytest.raises(RuntimeError, match="stops here"):
                await broker.node.metadata.snapshot()
    async with running_broker(data_dir=str(after_crash)) as broker:
        epochs = {state.leader_epoch for topic in broker.node.image.topics.values() for state in topic.partitions}
        assert epochs == {1}, "a crash begins new leader epochs"
        assert without_epochs(without_registration(broker.node.image)) == without_epochs(before)
        await change(broker, "later")
        await broker.node.metadata.snapshot()
        before = without_registration(broker.node.image)
    async with running_broker(data_dir=str(after_crash)) as broker:
        assert without_registration(broker.node.image) == before


async def test_the_log_is_cut_when_it_is_larger_than_its_limit(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
    async with running_broker(settings, data_dir=str(tmp_path)) as broker:
        assert files(tmp_path, "*.checkpoint") == []
        while broker.node.metadata.quorum.log.size_bytes() <= 2000:
            await broker.node.write_metadata(broker.node.controller.allocate_producer_ids()[1])
        await broker.node.write_metadata(
            broker.node.controller.allocate_producer_ids()[1]
        )  # while the first is written
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 waits for what happens in a thread
                broker.node.metadata.quorum.log.size_bytes() > 2000 or len(files(tmp_path, "*.log")) > 1
            ):
                await asyncio.sleep(0.01)
        assert len(files(tmp_path, "*.checkpoint")) == 1


async def test_a_start_without_the_snapshot_says_what_is_missing(tmp_path: Path) -> None:
    async with running_broker(data_dir=str(tmp_path)) as broker:
        await change(broker, "rides")
        await broker.node.metadata.snapshot()
    (name,) = files(tmp_path, "*.checkpoint")
    path = tmp_path / METADATA / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(StartError, match="is damaged"):
        async with running_broker(data_dir=str(tmp_path)):
            pass
    path.unlink()
    with pytest.raises(StartError, match="no snapshot holds what was before"):
        async with running_broker(data_dir=str(tmp_path)):
            pass


async def test_dump_metadata_begins_with_the_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_broker(data_dir=str(tmp_path)) as broker:
        await change(broker, "rides")
        await broker.node.metadata.snapshot()
        await change(broker, "later")
    capsys.readouterr()
    assert dump_metadata(str(tmp_path), shows_image=True, as_json=True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["topic"] for row in rows if "topic_id" in row] == ["later", "rides"]


def test_a_snapshot_without_its_end_is_none() -> None:
    image = MetadataImage()
    data = encode_snapshot(image.to_records(), timestamp=5, now_ms=5)
    assert len(decode_snapshot(data)) == len(image.to_records())
    for cut in range(1, len(data)):
        with pytest.raises(CorruptBatchError):
            decode_snapshot(data[:-cut])
    assert SnapshotId.parse(SnapshotId(17, 3).file_name) == SnapshotId(17, 3)
    assert SnapshotId.parse("leader-epoch-checkpoint") is None
