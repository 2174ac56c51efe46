"""A broker reports its directory until the metadata agrees, whatever the controller answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.metadata.image import MetadataDelta
from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_response import (
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime import directory_assignments
from hailbus_broker.runtime.directory_assignments import DirectoryAssignments

from tests.unit.broker.cluster_of_brokers import Brokers, directory

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest

OWN = directory(2, 1)
"""Where broker 2 has its replicas now; the metadata names the directory that it had when they were created."""


class World:
    """Broker 2 after its disk was replaced, and the controller's answers."""

    def __init__(self) -> None:
        self.brokers = Brokers(1, 2, 3)
        self.brokers.create([1, 2], [2, 3], [1, 3])
        self.brokers.fence(2)
        self.brokers.now_ms += 60_000
        self.brokers.register(2, incarnation_id=b"n" * 16, log_dirs=[OWN])
        self.requests: list[dict[int, bytes]] = []
        self.refusals: list[ErrorCode | None] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.hosted = {0, 1, 2}
        self.assignments = DirectoryAssignments(
            node_id=2,
            directory_id=OWN,
            broker_epoch=lambda: self.brokers.image.brokers[2].broker_epoch,
            is_hosted=lambda _, index: index in self.hosted,
            ask=self.ask,
            spawn=self.spawn,
        )

    def spawn(self, coroutine: Coroutine[Any, Any, None], _: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def ask(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        found = {
            one.partition_index: bytes(of_directory.id)
            for of_directory in request.directories
            for topic in of_directory.topics
            for one in topic.partitions
        }
        self.requests.append(found)
        refusal = self.refusals.pop(0) if self.refusals else ErrorCode.NONE
        if refusal is None:
            raise UnreachableError("nobody is there")
        if refusal is ErrorCode.STALE_BROKER_EPOCH:
            return AssignReplicasToDirsResponse(error_code=refusal)
        if refusal:
            partitions = [PartitionData(partition_index=index, error_code=refusal) for index in found]
            topic = TopicData(topic_id=self.brokers.topic_id, partitions=partitions)
            return AssignReplicasToDirsResponse(directories=[DirectoryData(id=OWN, topics=[topic])])
        decision = self.brokers.controller.assign_replicas(request)
        self.brokers.write(decision.records)
        return decision.response

    async def finish(self) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*self.tasks)


async def test_only_replicas_in_another_directory_are_reported() -> None:
    world = World()
    world.assignments.compare_all(world.brokers.image)
    await world.finish()
    assert world.requests == [{0: OWN, 1: OWN}]
    assert [world.brokers.partition(index).directory(2) for index in (0, 1)] == [OWN, OWN]
    # What agrees is not reported again.
    world.assignments.compare_all(world.brokers.image)
    assert len(world.tasks) == 1


async def test_a_replica_without_a_log_is_not_reported() -> None:
    world = World()
    world.hosted = {1}
    world.assignments.compare_all(world.brokers.image)
    await world.finish()
    assert world.requests == [{1: OWN}]


@pytest.mark.parametrize(
    "refusal",
    [None, ErrorCode.STALE_BROKER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID],
    ids=lambda one: getattr(one, "name", one),
)
async def test_what_is_not_assigned_is_reported_again(
    refusal: ErrorCode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_assignments, "FIRST_BACKOFF_S", 0.001)
    world = World()
    world.refusals = [refusal, refusal]
    world.assignments.compare_all(world.brokers.image)
    await world.finish()
    assert world.requests == [{0: OWN, 1: OWN}] * 3


async def test_what_the_metadata_has_decided_meanwhile_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_assignments, "FIRST_BACKOFF_S", 0.001)
    world = World()
    world.refusals = [None]
    world.assignments.compare_all(world.brokers.image)
    await asyncio.sleep(0)
    delta = world.brokers.write(world.brokers.controller.delete_topic(world.brokers.image.topics["rides"]))
    await world.assignments.apply(delta, world.brokers.image)
    await world.finish()
    assert len(world.requests) == 1


async def test_a_change_of_the_metadata_is_compared() -> None:
    world = World()
    delta = MetadataDelta()
    delta.changed_partitions[world.brokers.topic_id] = [1]
    await world.assignments.apply(delta, world.brokers.image)
    await world.finish()
    assert world.requests == [{1: OWN}]
