"""A broker that runs out of file descriptors: new work is refused, what is served already goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from errno import EMFILE, ENFILE
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.log import StorageError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.descriptors import Descriptors
from hailbus_broker.runtime.disk import RealDisk
from structlog.testing import capture_logs

from tests.integration.broker.process import broker_process
from tests.integration.broker.test_offline_directory import FaultyDisk, directory_error
from tests.integration.broker.wire import Wire, led, server_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT = 256


async def create(wire: Wire, topic: str, partitions: int) -> tuple[ErrorCode, str]:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)], timeout_ms=10_000
    )
    result = (await wire.ask(ApiKey.CREATE_TOPICS, 5, request)).topics[0]
    return ErrorCode(result.error_code), result.error_message or ""


async def with_room_again(bootstrap: str) -> Wire:
    """Connect once the broker has noticed that others are gone, which their clients cannot see."""
    async with asyncio.timeout(60):
        while True:
            wire = await Wire.to(bootstrap)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                if (await create(wire, "room", 1))[0] == ErrorCode.NONE:
                    return wire
            wire.close()
            await asyncio.sleep(0.01)


async def test_four_hundred_connections_and_many_partitions_leave_the_broker_working(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", {"log.segment.bytes": "1024"}, descriptors=LIMIT) as broker:
        wire = await Wire.to(broker.bootstrap)
        assert await create(wire, "rides", 2) == (ErrorCode.NONE, "")
        assert await wire.produce("rides", [b"first"]) == (ErrorCode.NONE, 0)

        host, port = broker.bootstrap.rsplit(":", 1)
        crowd = [await asyncio.open_connection(host, int(port)) for _ in range(400)]
        code, sentence = await create(wire, "more", 3)
        assert code == ErrorCode.POLICY_VIOLATION
        assert f"may open {LIMIT} files" in sentence
        assert "ulimit -n" in sentence
        # what is served already goes on, with a segment for each record
        for number in range(1, 60):
            assert await wire.produce("rides", [b"x" * 900]) == (ErrorCode.NONE, number)
        assert await directory_error(wire) == ErrorCode.NONE
        for _, writer in crowd:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        wire.close()

        # and with room again there is new work: until partitions have taken it
        wire = await with_room_again(broker.bootstrap)
        made = 0
        for number in range(100):
            code, sentence = await create(wire, f"more-{number}", 10)
            if code != ErrorCode.NONE:
                break
            made += 1
        assert made > 1
        assert code == ErrorCode.POLICY_VIOLATION
        assert "room for" in sentence
        grow = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="rides", count=200, assignments=None)], timeout_ms=10_000
        )
        grown = (await wire.ask(ApiKey.CREATE_PARTITIONS, 1, grow)).results[0]
        assert grown.error_code == ErrorCode.POLICY_VIOLATION
        for number in range(made):
            assert await wire.produce(f"more-{number}", [b"y"], partition=9) == (ErrorCode.NONE, 0)
        assert await wire.produce("rides", [b"last"]) == (ErrorCode.NONE, 60)
        assert await directory_error(wire) == ErrorCode.NONE
        wire.close()
        assert "log_directory_offline" not in broker.log()
        assert "too_many_open_files" in broker.log()
        broker.kill()
    with broker_process(tmp_path / "data", descriptors=LIMIT) as broker:
        wire = await Wire.to(broker.bootstrap)
        assert (await wire.fetch("rides", 60))[1] == [b"last"]
        wire.close()


@pytest.mark.parametrize("number", [EMFILE, ENFILE])
@pytest.mark.parametrize(
    "fault", [("create", "rides-0/"), ("sync", "rides-0/"), ("replace", "offset-checkpoint"), ("create", "new-0/")]
)
async def test_no_descriptor_is_no_disk_failure(tmp_path: Path, fault: tuple[str, str], number: int) -> None:
    disk = FaultyDisk()
    with capture_logs() as lines:
        async with server_on(disk, str(tmp_path), **{"log.segment.bytes": "1024"}) as server:
            wire = await Wire.to(server.bootstrap)
            assert await wire.create("rides") == ErrorCode.NONE
            assert await wire.produce("rides", [b"x" * 900]) == (ErrorCode.NONE, 0)
            disk.faults[fault] = number
            assert await create(wire, "new", 1) == (ErrorCode.NONE, "")
            if "new" in fault[1]:
                assert (await wire.produce("new", [b"n"]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            await server.node._checkpoint_in_time()
            wire.send(*wire.produce_request("rides", [b"y" * 900]))
            if fault[0] == "create" and "rides" in fault[1]:
                assert (await wire.produced())[0] == ErrorCode.KAFKA_STORAGE_ERROR, "retriable: a client tries again"
                disk.faults.clear()
                assert await wire.produce("rides", [b"y" * 900]) == (ErrorCode.NONE, 1)
            else:
                if fault[0] == "sync":
                    # no acknowledgement before the sync that could not be run
                    await asyncio.wait_for(wait_until(lambda: any(is_warning(line) for line in lines)), 30)
                    assert led(server.node, "rides").log.high_watermark == 1
                disk.faults.clear()
                assert await wire.produced() == (ErrorCode.NONE, 1)
            assert await wire.produce("rides", [b"z" * 900]) == (ErrorCode.NONE, 2)
            assert await create(wire, "newer", 1) == (ErrorCode.NONE, "")
            await asyncio.wait_for(wait_until(lambda: not server.node.replicas.has_retriable), 30)
            assert await wire.produce("new", [b"n"]) == (ErrorCode.NONE, 0)
            assert await directory_error(wire) == ErrorCode.NONE
            wire.close()
    assert not [line for line in lines if line["event"] == "log_directory_offline"]
    assert any(is_warning(line) for line in lines)
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        found: list[bytes] = []
        while len(found) < 3:
            found += (await wire.fetch("rides", len(found)))[1]
        assert found == [b"x" * 900, b"y" * 900, b"z" * 900]
        wire.close()


def is_warning(line: object) -> bool:
    return isinstance(line, dict) and line["event"] == "too_many_open_files"


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is a line in a list
        await asyncio.sleep(0.01)


async def test_a_request_for_very_many_partitions_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(name=f"wide{number}", num_partitions=5_001, replication_factor=1) for number in range(2)
            ],
            timeout_ms=10_000,
        )
        results = (await wire.ask(ApiKey.CREATE_TOPICS, 5, request)).topics
        assert {(result.name, result.error_code) for result in results} == {
            ("wide0", ErrorCode.POLICY_VIOLATION),
            ("wide1", ErrorCode.POLICY_VIOLATION),
        }
        assert (await wire.ask(ApiKey.METADATA, 8, MetadataRequest(topics=None))).topics == []
        wire.close()


def test_descriptors_that_are_held_back_serve_short_work_when_no_other_is_left(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = RealDisk(reserved_descriptors=2)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(StorageError, match="Too many open files") as caught:
            disk.open(str(tmp_path / "log"), create=True)
        assert caught.value.is_out_of_descriptors
        for number in range(5):
            disk.write_whole(str(tmp_path / "checkpoint"), b"%d" % number)
            disk.sync_directory(str(tmp_path))
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "checkpoint").read_bytes() == b"4"


def test_connections_leave_descriptors_to_partitions_and_both_leave_some_to_what_is_served() -> None:
    for limit in (128, 256, 1024, 20_000, 1_048_576):
        descriptors = Descriptors(limit)
        last_connection = max(number for number in range(limit) if descriptors.has_room_for_connection(number))
        room = descriptors.room_for_partitions(0)
        assert 0 < room < last_connection < limit - 40, limit
        assert descriptors.room_for_partitions(10**9) == 0
