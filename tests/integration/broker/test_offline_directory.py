"""The disk fails under a running broker: the directory goes offline, nothing acknowledged is lost, reads continue."""

from __future__ import annotations

import asyncio
import os
from errno import EIO, ENOSPC
from pathlib import Path

import pytest
from hailbus_broker.log import StorageError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from hailbus_broker.protocol.definitions.describe_log_dirs_request import DescribeLogDirsRequest
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk, RealFile
from structlog.testing import capture_logs

from tests.integration.broker.wire import Wire, led, server_on


class FaultyDisk(RealDisk):
    """Fails what a test asks for: (operation, part of a path) → errno."""

    def __init__(self) -> None:
        self.faults: dict[tuple[str, str], int] = {}

    def check(self, operation: str, path: str) -> None:
        for (failing, part), number in self.faults.items():
            if failing == operation and part in path:
                raise StorageError(f"cannot {operation} ({os.strerror(number)})", path=path, errno=number)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        if create:
            self.check("create", path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return FaultyFile(path, os.open(path, flags, 0o644), self)

    def write_whole(self, path: str, data: bytes) -> None:
        self.check("replace", path)
        super().write_whole(path, data)


class FaultyFile(RealFile):
    def __init__(self, path: str, descriptor: int, disk: FaultyDisk) -> None:
        super().__init__(path, descriptor)
        self.disk = disk

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self.disk.check("write", self.path)
        super().append(data)

    def read(self, position: int, length: int) -> bytes:
        self.disk.check("read", self.path)
        return super().read(position, length)

    def read_cached(self, position: int, length: int) -> bytearray | None:
        """What cannot be read is not in the page cache."""
        try:
            self.disk.check("read", self.path)
        except StorageError:
            return None
        return super().read_cached(position, length)

    def fileno(self) -> int:
        self.disk.check("read", self.path)
        return super().fileno()

    def sync(self) -> None:
        self.disk.check("sync", self.path)
        super().sync()


def names_in(directory: Path, prefix: str) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith(prefix)]


async def directory_error(wire: Wire) -> ErrorCode:
    response = await wire.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    assert response.error_code == ErrorCode.NONE
    return ErrorCode(response.results[0].error_code)


@pytest.mark.parametrize(("operation", "number"), [("sync", EIO), ("write", ENOSPC), ("write", EIO)])
async def test_one_failed_write_takes_the_directory_offline(tmp_path: Path, operation: str, number: int) -> None:
    disk = FaultyDisk()
    with capture_logs() as lines:
        async with server_on(disk, str(tmp_path)) as server:
            wire = await Wire.to(server.bootstrap)
            assert await wire.create("first") == ErrorCode.NONE
            assert await wire.create("second") == ErrorCode.NONE
            assert await wire.produce("first", [b"safe", b"too"]) == (ErrorCode.NONE, 0)
            assert await wire.produce("second", [b"other"]) == (ErrorCode.NONE, 0)
            assert await directory_error(wire) == ErrorCode.NONE

            disk.faults[operation, "first-0/00000000000000000000.log"] = number
            assert (await wire.produce("first", [b"never acknowledged"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            disk.faults.clear()

            # A retry would be answered from pages of which nobody knows whether they are on the disk: not before a
            # restart, and not on any other partition of the directory.
            assert (await wire.produce("first", [b"again"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await wire.produce("second", [b"again"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            assert await wire.create("third") == ErrorCode.KAFKA_STORAGE_ERROR
            assert await directory_error(wire) == ErrorCode.KAFKA_STORAGE_ERROR
            # what was committed is served
            assert await wire.fetch("first", 0) == (ErrorCode.NONE, [b"safe", b"too"])
            assert await wire.fetch("second", 0) == (ErrorCode.NONE, [b"other"])
            topics = (await wire.ask(ApiKey.METADATA, 8, MetadataRequest(topics=None))).topics
            assert sorted(topic.name for topic in topics) == ["first", "second"]
            wire.close()
    offline = [line for line in lines if line["event"] == "log_directory_offline"]
    assert len(offline) == 1
    assert os.strerror(number) in offline[0]["error"]
    assert "restart" in offline[0]["advice"]
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "the next start has to look at the logs"
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        code, values = await wire.fetch("first", 0)
        assert code == ErrorCode.NONE
        assert values[:2] == [b"safe", b"too"]
        assert (await wire.produce("first", [b"again"]))[0] == ErrorCode.NONE
        assert await directory_error(wire) == ErrorCode.NONE
        wire.close()


async def test_a_failed_read_is_one_partitions_answer_and_ends_writing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        for topic in ("sound", "broken"):
            await wire.create(topic)
            assert await wire.produce(topic, [topic.encode()]) == (ErrorCode.NONE, 0)
            led(server.node, topic).log._state.forget_tail()  # as if other topics had filled the cache
        disk.faults["read", "broken-0"] = EIO
        request = wire.fetch_request([("sound", 0, 0), ("broken", 0, 0)])
        response = await wire.ask(ApiKey.FETCH, 11, request)
        codes = {topic.topic: topic.partitions[0].error_code for topic in response.responses}
        assert codes == {"sound": ErrorCode.NONE, "broken": ErrorCode.KAFKA_STORAGE_ERROR}
        assert await wire.fetch("sound", 0) == (ErrorCode.NONE, [b"sound"])
        assert (await wire.produce("sound", [b"more"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        wire.close()


@pytest.mark.parametrize(
    "fault", [("create", "wide-5/00000000000000000000.log"), ("create", "wide-3/partition.metadata")]
)
async def test_a_disk_that_is_full_while_a_topic_is_created_is_told_and_the_topic_is_there_after_a_restart(
    tmp_path: Path, fault: tuple[str, str]
) -> None:
    disk = FaultyDisk()
    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        disk.faults[fault] = ENOSPC
        assert await wire.create("wide", 8) == ErrorCode.KAFKA_STORAGE_ERROR
        index = int(fault[1][5])
        assert await wire.produce("wide", [b"x"], index) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert (await wire.fetch("wide", 0, index))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert await directory_error(wire) == ErrorCode.KAFKA_STORAGE_ERROR
        wire.close()
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        assert await wire.create("wide", 8) == ErrorCode.TOPIC_ALREADY_EXISTS
        for partition in range(8):
            assert await wire.produce("wide", [b"x"], partition) == (ErrorCode.NONE, 0)
        wire.close()


async def test_the_checkpoint_cannot_be_written(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.create("topic")
        disk.faults["replace", "recovery-point-offset-checkpoint"] = ENOSPC
        await server.node._checkpoint_in_time()
        assert (await wire.produce("topic", [b"x"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        wire.close()


async def test_checkpoints_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.create("topic")
        for _ in range(20):
            await asyncio.gather(*(server.node.checkpoint() for _ in range(8)))
        assert await wire.produce("topic", [b"x"]) == (ErrorCode.NONE, 0)
        wire.close()


async def test_a_producer_whose_id_cannot_be_reserved_is_asked_to_retry(tmp_path: Path) -> None:
    """Clients of Kafka give up a transaction when its coordinator reports an error of storage."""
    disk = FaultyDisk()

    def init(transactional_id: str | None) -> InitProducerIdRequest:
        return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)

    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="t", key_type=1))
        begun = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init("t"))
        assert begun.error_code == ErrorCode.NONE
        wire.close()
    async with server_on(disk, str(tmp_path)) as server:  # it has no producer ids yet
        wire = await Wire.to(server.bootstrap)
        disk.faults["write", "__cluster_metadata"] = EIO
        add = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, group_id="g"
        )
        end = EndTxnRequest(
            transactional_id="t",
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            committed=True,
        )
        answers = [
            await wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, add),
            await wire.ask(ApiKey.END_TXN, 3, end),
            await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init("t")),
            await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init(None)),
        ]
        wire.close()
    assert [ErrorCode(answer.error_code) for answer in answers] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.INVALID_TXN_STATE,  # nothing is open; an end needs no producer id before the last epoch
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ]
