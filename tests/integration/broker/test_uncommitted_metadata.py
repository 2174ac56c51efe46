"""No answer depends on a record that is not durable yet."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.definitions.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from hailbus_broker.protocol.definitions.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.disk import RealDisk, RealFile
from hailbus_broker.runtime.markers import Marker, append_marker
from hailbus_broker.runtime.replica_manager import SLICE

from tests.integration.broker.wire import Wire, led, server_on, until
from tests.unit.broker.tokens import Token

if TYPE_CHECKING:
    from pathlib import Path


class SlowFile(RealFile):
    def __init__(self, path: str, descriptor: int, disk: SlowDisk) -> None:
        super().__init__(path, descriptor)
        self.disk = disk

    def sync(self) -> None:
        if self.disk.topic in self.path:
            self.disk.may_sync.wait(30)
        super().sync()


class SlowDisk(RealDisk):
    """Syncs a topic's logs only when it may."""

    def __init__(self, topic: str = "__cluster_metadata") -> None:
        super().__init__()
        self.topic = topic
        self.may_sync = threading.Event()
        self.may_sync.set()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SlowFile(path, os.open(path, flags, 0o644), self)


def folders(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("rides-*")]


async def test_a_topic_is_there_for_nobody_before_it_is_durable(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with server_on(disk, str(tmp_path)) as server:
        creator, other, producer = [await Wire.to(server.bootstrap) for _ in range(3)]
        disk.may_sync.clear()
        topic = CreatableTopic(name="rides", num_partitions=1, replication_factor=1)
        creator.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        await until(lambda: "rides" in server.node.controller.image.topics)
        # The answer "it exists already" would be as wrong as "it was created" if the record were lost now.
        other.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert await producer.produce("rides", [b"early"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert not folders(tmp_path)
        disk.may_sync.set()
        created = await creator.receive(ApiKey.CREATE_TOPICS, 5)
        assert created.topics[0].error_code == ErrorCode.NONE
        refused = await other.receive(ApiKey.CREATE_TOPICS, 5)
        assert refused.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await producer.produce("rides", [b"now"]) == (ErrorCode.NONE, 0)
        for wire in (creator, other, producer):
            wire.close()


async def test_what_rests_on_a_decision_is_answered_after_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with server_on(disk, str(tmp_path)) as server:
        creator, other, third = [await Wire.to(server.bootstrap) for _ in range(3)]
        disk.may_sync.clear()
        topic = CreatableTopic(name="rides", num_partitions=1, replication_factor=1)
        creator.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        await until(lambda: "rides" in server.node.controller.image.topics)
        other.send(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        answer = asyncio.create_task(other.receive(ApiKey.CREATE_TOPICS, 5))
        for _ in range(10):
            await third.ask(ApiKey.METADATA, 8, MetadataRequest(topics=[]))  # served in between
        assert not answer.done()
        disk.may_sync.set()
        assert (await answer).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        for wire in (creator, other, third):
            wire.close()


async def test_a_deleted_topic_is_served_until_the_deletion_is_durable(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with server_on(disk, str(tmp_path)) as server:
        wire, producer = [await Wire.to(server.bootstrap) for _ in range(2)]
        await wire.create("rides")
        assert await producer.produce("rides", [b"still there"]) == (ErrorCode.NONE, 0)
        disk.may_sync.clear()
        wire.send(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["rides"], timeout_ms=10_000))
        await until(lambda: "rides" not in server.node.controller.image.topics)
        assert await producer.produce("rides", [b"as well"]) == (ErrorCode.NONE, 1)
        assert folders(tmp_path) == ["rides-0"]
        disk.may_sync.set()
        await wire.receive(ApiKey.DELETE_TOPICS, 5)
        assert await producer.produce("rides", [b"late"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await until(lambda: not folders(tmp_path))
        for each in (wire, producer):
            each.close()


async def test_others_are_answered_while_many_partitions_are_made_and_removed(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        admin, other = [await Wire.to(server.bootstrap) for _ in range(2)]

        async def answers_until(done: asyncio.Task[object]) -> int:
            count = 0
            while not done.done():
                await other.ask(ApiKey.METADATA, 8, MetadataRequest(topics=[]))
                count += 1
            return count

        created = asyncio.create_task(admin.create("wide", 1_000))
        assert await answers_until(created) >= 1_000 // SLICE
        assert await created == ErrorCode.NONE
        admin.send(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["wide"], timeout_ms=10_000))
        deleted = asyncio.create_task(admin.receive(ApiKey.DELETE_TOPICS, 5))
        assert await answers_until(deleted) >= 1_000 // SLICE
        await deleted
        for each in (admin, other):
            each.close()


async def test_offsets_of_several_groups_are_told_when_all_of_them_are_durable(tmp_path: Path) -> None:
    disk = SlowDisk("__consumer_offsets")
    async with server_on(disk, str(tmp_path), **{"offsets.topic.num.partitions": "8"}) as server:
        wire, reader, third = [await Wire.to(server.bootstrap) for _ in range(3)]
        await wire.create("rides")
        await wire.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=0))
        groups = ["a", "b", "c", "d"]
        disk.may_sync.clear()
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=42, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name="rides", partitions=[part])]
        wire.send(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id="c", topics=topics))
        shard = partition_for("c", 8)
        await until(lambda: led(server.node, "__consumer_offsets", shard).log.log_end_offset > 0)
        asked = [
            OffsetFetchRequestGroup(
                group_id=group, topics=[OffsetFetchRequestTopics(name="rides", partition_indexes=[0])]
            )
            for group in groups
        ]
        reader.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=asked))
        answer = asyncio.create_task(reader.receive(ApiKey.OFFSET_FETCH, 8))
        for _ in range(10):
            await third.ask(ApiKey.METADATA, 8, MetadataRequest(topics=[]))  # served in between
        assert not answer.done()
        disk.may_sync.set()
        found = {group.group_id: group.topics[0].partitions[0].committed_offset for group in (await answer).groups}
        assert found == {"a": -1, "b": -1, "c": 42, "d": -1}
        for each in (wire, reader, third):
            each.close()


async def test_offsets_of_a_transaction_are_told_when_its_marker_is_durable(tmp_path: Path) -> None:
    disk = SlowDisk("__consumer_offsets")
    async with server_on(disk, str(tmp_path)) as server:
        wire, third = [await Wire.to(server.bootstrap) for _ in range(2)]
        await wire.create("rides")
        await wire.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="a", key_type=0))
        (driver,) = server.node.groups.active()
        entry = OffsetToCommit(topic="rides", topic_id=b"", partition=0, offset=42, leader_epoch=0, metadata="")
        commit = driver.shard.commit("a", -1, "", None, [entry], Token.new(), now_ms=driver.now_ms(), wall_ms=1)
        commit.producer = 5, 0
        commit.replies.clear()
        assert driver.run(commit) is ErrorCode.NONE
        await driver.committed()
        disk.may_sync.clear()
        marker = Marker(producer_id=5, producer_epoch=0, coordinator_epoch=0, is_commit=True, must_be_newer=False)
        append_marker(driver.partition, marker, now_ms=1)
        asked = OffsetFetchRequestGroup(
            group_id="a", topics=[OffsetFetchRequestTopics(name="rides", partition_indexes=[0])]
        )
        wire.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[asked]))
        answer = asyncio.create_task(wire.receive(ApiKey.OFFSET_FETCH, 8))
        for _ in range(10):
            await third.ask(ApiKey.METADATA, 8, MetadataRequest(topics=[]))  # served in between
        assert not answer.done()
        disk.may_sync.set()
        assert (await answer).groups[0].topics[0].partitions[0].committed_offset == 42
        for each in (wire, third):
            each.close()
