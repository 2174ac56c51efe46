"""What the metadata log does not hold for certain yet: nobody is told of anything that depends on it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk, RealFile

from tests.integration.broker.wire import Wire, server_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SlowFile(RealFile):
    def __init__(self, path: str, descriptor: int, disk: SlowDisk) -> None:
        super().__init__(path, descriptor)
        self.disk = disk

    def sync(self) -> None:
        if "__cluster_metadata" in self.path:
            self.disk.may_sync.wait(30)
        super().sync()


class SlowDisk(RealDisk):
    """Syncs the metadata log only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SlowFile(path, os.open(path, flags, 0o644), self)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


def size_of_deleted(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("rides-0.*-delete/*.log"))


async def test_a_record_waits_for_the_topic_that_it_is_in(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with server_on(disk, str(tmp_path)) as server:
        creator, producer, reader = [await Wire.to(server.bootstrap) for _ in range(3)]
        disk.may_sync.clear()
        topic = CreatableTopic(name="rides", num_partitions=1, replication_factor=1)
        creator.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        await until(lambda: "rides" in server.node.partitions)
        producer.send(*producer.produce_request("rides", [b"early"]))
        log = server.node.partitions["rides"][0].log
        await until(lambda: log.synced_end_offset == 1)
        assert log.high_watermark == 0
        assert await reader.fetch("rides", 0) == (ErrorCode.NONE, [])
        disk.may_sync.set()
        assert await producer.produced() == (ErrorCode.NONE, 0)
        created = await creator.receive(ApiKey.CREATE_TOPICS, 5)
        assert created.topics[0].error_code == ErrorCode.NONE
        assert await reader.fetch("rides", 0) == (ErrorCode.NONE, [b"early"])
        for wire in (creator, producer, reader):
            wire.close()


async def test_a_deleted_topics_files_stay_until_the_deletion_is_durable(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.create("rides")
        assert await wire.produce("rides", [b"still there"]) == (ErrorCode.NONE, 0)
        disk.may_sync.clear()
        wire.send(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["rides"], timeout_ms=10_000))
        await until(lambda: "rides" not in server.node.partitions)
        assert size_of_deleted(tmp_path)
        disk.may_sync.set()
        await wire.receive(ApiKey.DELETE_TOPICS, 5)
        await until(lambda: not size_of_deleted(tmp_path))
        wire.close()
