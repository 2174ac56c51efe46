"""Brokers register with three controllers over the network, and are fenced when they are silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hailbus_broker.client import Client, RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions import (
    allocate_producer_ids_request,
    alter_partition_request,
    broker_heartbeat_request,
    broker_registration_request,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.simulation import simulated
from hailbus_broker.testing.simulation.loop import SimulatedLoop

from tests.integration.broker.simulation.controllers import CLUSTER_ID, PORT, Controllers, until

SESSION_S = 9
VERSIONS = {
    ApiKey.BROKER_REGISTRATION: 4,
    ApiKey.BROKER_HEARTBEAT: 2,
    ApiKey.ALTER_PARTITION: 3,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
}


def controllers(settings: dict[str, str] | None = None) -> Controllers:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return Controllers(loop.world, 3, settings)


class Broker:
    """What a broker says to controllers, without the broker."""

    def __init__(self, quorum: Controllers, node_id: int, *, incarnation: int = 1) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.incarnation = bytes([node_id, incarnation]) * 8
        self.epoch = -1
        self.is_fenced = True
        self._beating: asyncio.Task[None] | None = None

    async def ask(self, key: ApiKey, message: Any) -> Any:
        """Ask one controller after the other, until the active one answers."""
        async with asyncio.timeout(60):
            while True:
                for controller in self.quorum.all:
                    client = Client(f"{controller.name}:{PORT}", f"broker{self.node_id}", timeout_s=2)
                    try:
                        response = await client.ask(key, VERSIONS[key], message)
                    except UnreachableError:
                        continue
                    finally:
                        client.close()
                    if response.error_code != ErrorCode.NOT_CONTROLLER:
                        accept(response.error_code, key.name)
                        return response
                await asyncio.sleep(0.05)

    async def register(self) -> None:
        endpoint = broker_registration_request.Listener(
            name="PLAINTEXT", host=f"broker{self.node_id}", port=9092, security_protocol=0
        )
        request = broker_registration_request.BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.incarnation,
            listeners=[endpoint],
            log_dirs=[bytes([self.node_id]) * 16],
        )
        self.epoch = (await self.ask(ApiKey.BROKER_REGISTRATION, request)).broker_epoch

    async def beat(self) -> None:
        request = broker_heartbeat_request.BrokerHeartbeatRequest(
            broker_id=self.node_id, broker_epoch=self.epoch, current_metadata_offset=2**40
        )
        self.is_fenced = (await self.ask(ApiKey.BROKER_HEARTBEAT, request)).is_fenced

    async def live(self) -> None:
        """Register, and send heartbeats until `die`."""
        await self.register()
        self._beating = asyncio.create_task(self._beat())
        await until(lambda: not self.is_fenced)

    async def _beat(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(2)

    async def die(self) -> None:
        assert self._beating is not None
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)


async def create_topic(quorum: Controllers, name: str, **options: Any) -> None:
    active = await quorum.until_one_is_active()

    async def create() -> None:
        await active.core.metadata.write(active.core.controller.create_topic(name, **options).records)

    await active.process.start(create())


def partition(quorum: Controllers) -> Any:
    active = next(one for one in quorum.all if one.is_active)
    return active.core.image.topics["rides"].partitions[0]


async def three_brokers(quorum: Controllers) -> dict[int, Broker]:
    await quorum.start()
    brokers = {node_id: Broker(quorum, node_id) for node_id in (11, 12, 13)}
    for broker in brokers.values():
        await broker.live()
    await create_topic(quorum, "rides", partition_count=1, replication_factor=3)
    return brokers


@simulated(seeds=range(3))
async def test_a_silent_leader_is_fenced_and_may_return() -> None:
    quorum = controllers()
    brokers = await three_brokers(quorum)
    before = partition(quorum)
    assert sorted(before.isr) == [11, 12, 13]
    leader = brokers[before.leader]
    await leader.die()
    silent_s = asyncio.get_running_loop().time()
    await until(lambda: partition(quorum).leader != leader.node_id)
    assert SESSION_S - 2.5 < asyncio.get_running_loop().time() - silent_s < SESSION_S + 1
    after = partition(quorum)
    assert sorted(after.isr) == sorted({11, 12, 13} - {leader.node_id})
    assert (after.leader_epoch, after.leader in after.isr) == (before.leader_epoch + 1, True)
    again = Broker(quorum, leader.node_id, incarnation=2)
    await again.live()
    # The new leader takes it into the in-sync replicas; one that still uses the old epoch is refused.
    topic_id = next(one for one in quorum.all if one.is_active).core.image.topics["rides"].topic_id
    new_leader = brokers[after.leader]
    states = [
        alter_partition_request.BrokerState(
            broker_id=node_id, broker_epoch=(brokers | {again.node_id: again})[node_id].epoch
        )
        for node_id in (11, 12, 13)
    ]

    def request(leader_epoch: int) -> alter_partition_request.AlterPartitionRequest:
        part = alter_partition_request.PartitionData(
            partition_index=0,
            leader_epoch=leader_epoch,
            new_isr_with_epochs=states,
            partition_epoch=after.partition_epoch,
        )
        return alter_partition_request.AlterPartitionRequest(
            broker_id=new_leader.node_id,
            broker_epoch=new_leader.epoch,
            topics=[alter_partition_request.TopicData(topic_id=topic_id, partitions=[part])],
        )

    refused = await new_leader.ask(ApiKey.ALTER_PARTITION, request(before.leader_epoch))
    assert refused.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    changed = await new_leader.ask(ApiKey.ALTER_PARTITION, request(after.leader_epoch))
    assert changed.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert sorted(partition(quorum).isr) == [11, 12, 13]


@simulated(seeds=range(3))
async def test_another_controller_knows_the_brokers() -> None:
    quorum = controllers()
    brokers = await three_brokers(quorum)
    first = await quorum.until_one_is_active()
    first.kill()
    second = await quorum.until_one_is_active()
    await asyncio.sleep(2 * SESSION_S)
    image = second.core.image
    assert {node_id: broker.fenced for node_id, broker in image.brokers.items()} == dict.fromkeys(brokers, False)
    assert partition(quorum).leader_epoch == 0
    # Nobody gets producer ids that another broker has got from another controller.
    blocks = [await allocate(brokers[11])]
    second.kill()
    await first.start()
    blocks += [await allocate(brokers[12]), await allocate(brokers[11])]
    assert len(set(blocks)) == len(blocks)


async def allocate(broker: Broker) -> int:
    request = allocate_producer_ids_request.AllocateProducerIdsRequest(
        broker_id=broker.node_id, broker_epoch=broker.epoch
    )
    response = await broker.ask(ApiKey.ALLOCATE_PRODUCER_IDS, request)
    start: int = response.producer_id_start
    return start


@simulated(seeds=range(3))
async def test_a_second_broker_with_the_same_id_is_refused() -> None:
    quorum = controllers()
    await quorum.start()
    broker, twin = Broker(quorum, 11), Broker(quorum, 11, incarnation=2)
    await broker.live()
    with pytest.raises(RefusedError, match="DUPLICATE_BROKER_REGISTRATION"):
        await twin.register()
    await broker.die()
    await asyncio.sleep(SESSION_S + 1)
    await twin.live()
    assert twin.epoch > broker.epoch
    with pytest.raises(RefusedError, match="STALE_BROKER_EPOCH"):
        await broker.beat()
