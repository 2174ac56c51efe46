"""A crash that takes records which consumers have read begins a new leader epoch, by which they see it (KIP-320)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk

from tests.integration.broker.wire import Wire, server_on

if TYPE_CHECKING:
    from pathlib import Path


async def end_of_epoch(wire: Wire, epoch: int) -> tuple[int, int]:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="rides", partitions=[asked])]
    )
    response = await wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    (result,) = response.topics[0].partitions
    assert result.error_code == ErrorCode.NONE
    return result.leader_epoch, result.end_offset


def power_cut(data: Path, left: Path, kept: int, of: int) -> None:
    """Copy what is on the disk, but for the last records of a topic: the system had not written them."""
    shutil.copytree(data, left)
    (left / ".lock").unlink()
    path = left / "rides-0" / "00000000000000000000.log"
    os.truncate(path, path.stat().st_size * kept // of)


async def test_a_consumer_sees_where_its_records_ended(tmp_path: Path) -> None:
    data, left = tmp_path / "data", tmp_path / "left"
    # Acknowledged before the sync, as Apache Kafka does by default.
    settings = {"log.flush.interval.messages": "9223372036854775807"}
    async with server_on(RealDisk(), str(data), **settings) as server:
        wire = await Wire.to(server.bootstrap)
        await wire.create("rides")
        for number in range(10):
            assert await wire.produce("rides", [b"%d" % number]) == (ErrorCode.NONE, number)
        assert len((await wire.fetch("rides", 0))[1]) > 0, "what is not on the disk can be read"
        assert await end_of_epoch(wire, 0) == (0, 10)
        power_cut(data, left, 5, 10)
        wire.close()
    async with server_on(RealDisk(), str(left), **settings) as server:
        wire = await Wire.to(server.bootstrap)
        for number in range(5, 15):
            assert await wire.produce("rides", [b"other"]) == (ErrorCode.NONE, number)
        # A consumer that stands at offset 10 of epoch 0 learns that its epoch ended at 5.
        assert await end_of_epoch(wire, 0) == (0, 5)
        fetch = wire.fetch_request([("rides", 0, 10)])
        fetch.topics[0].partitions[0].current_leader_epoch = 0
        response = await wire.ask(ApiKey.FETCH, 11, fetch)
        assert response.responses[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        wire.close()
    # After a stop in order nothing is lost, and the epochs stay.
    async with server_on(RealDisk(), str(left), **settings) as server:
        wire = await Wire.to(server.bootstrap)
        assert await end_of_epoch(wire, 1) == (1, 15)
        wire.close()
