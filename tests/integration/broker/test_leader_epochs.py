"""A crash that takes records which consumers have read begins a new leader epoch, by which they see it (KIP-320)."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.definitions.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.disk import RealDisk

from tests.integration.broker.process import broker_process
from tests.integration.broker.wire import Wire, server_on
from tests.support import free_port

if TYPE_CHECKING:
    from pathlib import Path


async def end_of_epoch(wire: Wire, epoch: int, topic: str = "rides") -> tuple[int, int]:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])])
    response = await wire.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)
    (result,) = response.topics[0].partitions
    assert result.error_code == ErrorCode.NONE
    return result.leader_epoch, result.end_offset


def copy_as_if_killed(data: Path, left: Path) -> None:
    """Copy what is in the files while a broker writes them: what its next life would find if it were killed now."""
    shutil.copytree(data, left)
    (left / ".lock").unlink()


def power_cut(data: Path, left: Path, kept: int, of: int) -> None:
    """Copy what is on the disk, but for the last records of a topic: the system had not written them."""
    copy_as_if_killed(data, left)
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


async def earliest(wire: Wire, topic: str) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    response = await wire.ask(ApiKey.LIST_OFFSETS, 5, request)
    (result,) = response.topics[0].partitions
    assert result.error_code == ErrorCode.NONE
    return result.leader_epoch, result.offset


async def test_a_consumer_of_an_idle_partition_keeps_its_position_when_the_broker_is_killed(tmp_path: Path) -> None:
    """librdkafka takes an unknown epoch for records that are gone, and begins anew where `auto.offset.reset` says."""
    lives = [tmp_path / f"life-{number}" for number in range(4)]
    for epoch in range(3):
        async with server_on(RealDisk(), str(lives[epoch])) as server:
            wire = await Wire.to(server.bootstrap)
            if epoch == 0:
                await wire.create("empty")
                await wire.create("idle")
                assert await wire.produce("idle", [b"0", b"1"]) == (ErrorCode.NONE, 0)
            assert await earliest(wire, "empty") == (epoch, 0)
            assert await earliest(wire, "idle") == (0, 0)
            for asked in range(epoch + 1):
                assert await end_of_epoch(wire, asked, "empty") == (asked, 0)
                assert await end_of_epoch(wire, asked, "idle") == (asked if asked == epoch else 0, 2)
            assert await end_of_epoch(wire, epoch + 1, "empty") == (-1, -1)
            assert await end_of_epoch(wire, epoch + 1, "idle") == (-1, -1)
            copy_as_if_killed(lives[epoch], lives[epoch + 1])
            wire.close()


def test_librdkafka_keeps_its_position_in_an_idle_partition_when_the_broker_is_killed(tmp_path: Path) -> None:
    data, listen = tmp_path / "data", f"127.0.0.1:{free_port()}"
    settings: dict[str, Any] = {"bootstrap.servers": listen, "log_level": 0, "reconnect.backoff.max.ms": 200}
    states: list[tuple[str, int]] = []

    def note_state(statistics: str) -> None:
        partition = json.loads(statistics)["topics"].get("rides", {}).get("partitions", {}).get("0")
        if partition is not None:
            states.append((partition["fetch_state"], partition["leader_epoch"]))

    reading = {"group.id": "readers", "auto.offset.reset": "error"}
    consumer = Consumer({**settings, **reading, "statistics.interval.ms": 50, "stats_cb": note_state})

    def poll_until_active(leader_epoch: int) -> None:
        deadline = time.monotonic() + 60
        while ("active", leader_epoch) not in states:
            message = consumer.poll(0.1)
            assert message is None or message.error() is None, message.error()
            assert time.monotonic() < deadline, states

    with broker_process(data, listen=listen) as first:
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("rides", 1, 1)])["rides"].result(30)
        consumer.assign([TopicPartition("rides", 0, OFFSET_BEGINNING)])
        poll_until_active(0)
        first.kill()
    with broker_process(data, listen=listen):
        poll_until_active(1)
    consumer.close()
