"""A request about many topics leaves the event loop to others in between."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.server.handlers.log_offsets import SLICE
from hailbus_broker.testing.broker import UnsyncedDisk

from tests.integration.broker.wire import Wire, server_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counting = True

    def tick(self) -> None:
        self.count += 1
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self.tick)

    def stop(self) -> None:
        self._is_counting = False


@contextmanager
def counted_turns() -> Iterator[Turns]:
    turns = Turns()
    turns.tick()
    try:
        yield turns
    finally:
        turns.stop()


async def test_many_topics_are_created_in_as_many_turns(tmp_path: Path) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        started: list[int] = []
        create = server.node.controller.create_topic
        with counted_turns() as turns:

            def noting(*arguments: object, **options: object) -> object:
                started.append(turns.count)
                return create(*arguments, **options)  # type: ignore[arg-type]  # passed on

            server.node.controller.create_topic = noting  # type: ignore[method-assign,assignment]
            topics = [
                CreatableTopic(name=f"t-{number}", num_partitions=1, replication_factor=1) for number in range(40)
            ]
            response = await wire.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}
        assert len(set(started)) == len(started) == 40
        wire.close()


async def test_the_offsets_of_many_partitions_are_listed_in_several_turns(tmp_path: Path) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        count = 3 * SLICE + 1
        assert await wire.create("wide", count) == ErrorCode.NONE
        asked: list[int] = []
        replicas = server.node.replicas
        leader = replicas.leader
        with counted_turns() as turns:

            def noting(topic: str, index: int) -> object:
                asked.append(turns.count)
                return leader(topic, index)

            replicas.leader = noting  # type: ignore[method-assign,assignment]
            partitions = [
                ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
                for index in range(count)
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(name="wide", partitions=partitions[:70]),
                    ListOffsetsTopic(name="none", partitions=[]),
                    ListOffsetsTopic(name="wide", partitions=partitions[70:]),
                ],
            )
            response = await wire.ask(ApiKey.LIST_OFFSETS, 7, request)
        assert [len(topic.partitions) for topic in response.topics] == [70, 0, count - 70]
        results = [result for topic in response.topics for result in topic.partitions]
        assert [(result.partition_index, result.error_code, result.offset) for result in results] == [
            (index, ErrorCode.NONE, 0) for index in range(count)
        ]
        assert max(asked.count(turn) for turn in asked) == SLICE
        wire.close()
