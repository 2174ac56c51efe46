"""The event loop never waits for the disk: what the page cache does not have is read by threads."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from hailbus_broker.log import CleanupPolicy
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.disk import RealDisk, RealFile

from tests.integration.broker.wire import Wire, led, server_on, until, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from hailbus_broker.runtime.node import Node

COUNT = 40
FIRST_TIMESTAMP = 1_000
SETTINGS = {"log.segment.bytes": "6000", "log.index.interval.bytes": "1500", "log.retention.ms": "-1"}


class ColdFile(RealFile):
    """A file of which the page cache has nothing."""

    __slots__ = ("disk",)

    disk: ColdDisk

    def read(self, position: int, length: int) -> bytes:
        self.disk.note(f"read {self.path}")
        return super().read(position, length)

    def read_cached(self, position: int, length: int) -> None:
        del position, length

    def is_cached(self, position: int, length: int) -> bool:
        del position, length
        return False


class ColdDisk(RealDisk):
    """Notes what waits for it in the thread that made it, which is the event loop's."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.is_watched = False
        self.waits: list[str] = []
        self.read_count = 0

    def note(self, what: str) -> None:
        if self.is_watched:
            self.read_count += 1
            if threading.get_ident() == self.thread:
                self.waits.append(what)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        self.note(f"open {path}")
        opened = super().open(path, create=create)
        file = ColdFile(path, os.dup(opened.fileno()))
        file.disk = self
        return file

    def read_bytes(self, path: str) -> bytes | None:
        self.note(f"read {path}")
        return super().read_bytes(path)

    def exists(self, path: str) -> bool:
        self.note(f"exists {path}")
        return super().exists(path)

    def size(self, path: str) -> int:
        self.note(f"size {path}")
        return super().size(path)

    def modified_ms(self, path: str) -> int:
        self.note(f"modified {path}")
        return super().modified_ms(path)


async def fill(wire: Wire, topic: str) -> list[bytes]:
    """One batch for each value, of growing times."""
    await wire.create(topic)
    values = [bytes([number]) * 1000 for number in range(COUNT)]
    for number, value in enumerate(values):
        batch = build_batch([RecordToWrite(key=None, value=value, timestamp=FIRST_TIMESTAMP + number)])
        data = [PartitionProduceData(index=0, records=bytes(batch))]
        request = ProduceRequest(
            acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        response = await wire.ask(ApiKey.PRODUCE, 9, request)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return values


async def list_offset(wire: Wire, topic: str, timestamp: int) -> tuple[int, int]:
    asked = [ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    response = await wire.ask(ApiKey.LIST_OFFSETS, 7, request)
    result = response.topics[0].partitions[0]
    assert result.error_code == ErrorCode.NONE
    return result.timestamp, result.offset


async def test_no_request_reads_the_disk_in_the_event_loop(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        values = await fill(wire, "cold")
        wire.close()
    disk = ColdDisk()
    async with server_on(disk, str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.ask(*Wire.produce_request("cold", [b"the first append after the start"]))
        led(server.node, "cold").log._state.forget_tail()
        disk.is_watched = True
        for timestamp in (0, FIRST_TIMESTAMP + 3, FIRST_TIMESTAMP + 25, FIRST_TIMESTAMP + COUNT - 1):
            expected = max(timestamp, FIRST_TIMESTAMP)
            assert await list_offset(wire, "cold", timestamp) == (expected, expected - FIRST_TIMESTAMP)
        assert await list_offset(wire, "cold", FIRST_TIMESTAMP + COUNT) == (-1, -1)
        assert await list_offset(wire, "cold", -3) == (FIRST_TIMESTAMP + COUNT - 1, COUNT - 1)
        for isolation_level in (0, 1):
            for offset in range(COUNT):
                request = wire.fetch_request([("cold", 0, offset)], partition_max_bytes=2500)
                request.isolation_level = isolation_level
                response = await wire.ask(ApiKey.FETCH, 11, request)
                result = response.responses[0].partitions[0]
                assert result.error_code == ErrorCode.NONE
                assert values_of(result.records)[0] == values[offset]
        assert disk.read_count > COUNT
        assert disk.waits == []
        disk.is_watched = False
        wire.close()


async def test_a_fetch_of_many_cold_partitions_reads_them_together(tmp_path: Path) -> None:
    topics = [f"cold-{number}" for number in range(5)]
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        values = {topic: await fill(wire, topic) for topic in topics}
        wire.close()
    disk = ColdDisk()
    async with server_on(disk, str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        disk.is_watched = True
        request = wire.fetch_request([(topic, 0, 7) for topic in topics])
        response = await wire.ask(ApiKey.FETCH, 11, request)
        for topic in response.responses:
            found = values_of(topic.partitions[0].records)
            assert found == values[topic.topic][7 : 7 + len(found)] != []
        assert disk.waits == []
        disk.is_watched = False
        wire.close()


def segment_count(node: Node) -> int:
    return len(led(node, "cold").log._state.segments)


async def test_retention_reads_no_index_in_the_event_loop(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        await fill(wire, "cold")
        wire.close()
    disk = ColdDisk()
    async with server_on(disk, str(tmp_path), **SETTINGS) as server:
        node = server.node
        log = led(node, "cold").log
        data = build_batch([RecordToWrite(key=None, value=b"young", timestamp=node.clock.wall_ms())])
        log.append(data, now_ms=node.clock.wall_ms())
        log.advance_high_watermark(log.sync())
        count = segment_count(node)
        assert count > 3
        log.config = replace(log.config, retention_ms=3_600_000)
        disk.is_watched = True
        node._apply_retention()
        await until(lambda: segment_count(node) == 1, "the removal of all old segments")
        disk.is_watched = False
        assert disk.read_count >= count - 1, "an index of each old segment was read"
        assert disk.waits == []


async def test_compaction_opens_no_file_in_the_event_loop(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        await fill(wire, "cold")
        wire.close()
    disk = ColdDisk()
    async with server_on(disk, str(tmp_path), **SETTINGS, **{"log.cleaner.enable": "false"}) as server:
        node = server.node
        log = led(node, "cold").log
        size_bytes = log.size_bytes()
        # the lag has the newest timestamp of each segment looked up
        log.config = replace(
            log.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT}), min_compaction_lag_ms=3_600_000
        )
        cleaner = Cleaner(
            node.data.logs,
            threads=node.threads,
            wall_ms=node.clock.wall_ms,
            dedupe_buffer_bytes=1 << 20,
            names=node.data.names,
            report=node.take_offline,
        )
        disk.is_watched = True
        assert await cleaner.clean_one()
        disk.is_watched = False
        assert log.size_bytes() < size_bytes / 2
        assert disk.waits == []
