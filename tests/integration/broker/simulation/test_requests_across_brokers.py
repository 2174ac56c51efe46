"""A request may come to any broker of a cluster, whichever node decides it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hailbus_broker.client import Client
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from hailbus_broker.protocol.definitions.describe_cluster_request import DescribeClusterRequest
from hailbus_broker.protocol.definitions.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.definitions.elect_leaders_request import ElectLeadersRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.protocol.schema import Message

PORT = 9092
NODES = (1, 2, 3)


async def ask(node_id: int, key: ApiKey, version: int, message: Message) -> Any:
    client = Client(f"node{node_id}:{PORT}", "test", timeout_s=40)
    try:
        return await client.ask(key, version, message)
    finally:
        client.close()


async def ask_until(node_id: int, key: ApiKey, version: int, message: Message, is_answer: Callable[[Any], bool]) -> Any:
    """Ask again until the answer is one that a client does not retry."""
    async with asyncio.timeout(60):
        while True:
            answer = await ask(node_id, key, version, message)
            if is_answer(answer):
                return answer
            await asyncio.sleep(0.1)


async def create(node_id: int, name: str, *, partitions: int = 3, factor: int = 3) -> ErrorCode:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    return ErrorCode((await ask(node_id, ApiKey.CREATE_TOPICS, 7, request)).topics[0].error_code)


async def until_all_know(cluster: ClusterWorld, *names: str) -> None:
    running = [node for node in cluster.nodes.values() if node.is_up]
    await cluster.until(lambda: all(name in node.core.image.topics for node in running for name in names))


@simulated(seeds=range(2))
async def test_every_broker_takes_what_the_active_controller_decides() -> None:
    async with simulated_cluster() as cluster:
        for node_id in NODES:
            name = f"rides{node_id}"
            assert await create(node_id, name) is ErrorCode.NONE
            await until_all_know(cluster, name)
            assert await create(node_id, name) is ErrorCode.TOPIC_ALREADY_EXISTS
            assert await create(node_id, "more", factor=4) is ErrorCode.INVALID_REPLICATION_FACTOR
            more = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=5, assignments=None)], timeout_ms=5_000
            )
            assert (await ask(node_id, ApiKey.CREATE_PARTITIONS, 3, more)).results[0].error_code == ErrorCode.NONE
            entry = AlterableConfig(name="retention.ms", config_operation=0, value="1000")
            resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=[entry])
            altered = await ask(
                node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource])
            )
            assert altered.responses[0].error_code == ErrorCode.NONE
            elected = await ask(node_id, ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(topic_partitions=None))
            assert (elected.error_code, elected.replica_election_results) == (ErrorCode.NONE, [])
            listed = await ask(
                node_id, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(topics=None)
            )
            assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])
            about = DescribeQuorumRequest(
                topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
            )
            described = (await ask(node_id, ApiKey.DESCRIBE_QUORUM, 2, about)).topics[0].partitions[0]
            assert described.leader_id == cluster.node("active controller").node_id
            assert sorted(one.replica_id for one in described.current_voters) == [1, 2, 3]
            assert len(cluster.image.topics[name].partitions) == 5
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="rides1")], timeout_ms=5_000)
        assert (await ask(2, ApiKey.DELETE_TOPICS, 6, gone)).responses[0].error_code == ErrorCode.NONE
        await cluster.until(lambda: all("rides1" not in node.core.image.topics for node in cluster.nodes.values()))


@simulated(seeds=range(4))
async def test_a_request_survives_the_active_controller() -> None:
    async with simulated_cluster() as cluster:
        await cluster.until(lambda: cluster.active is not None)
        victim = cluster.node("active controller").node_id
        others = [node_id for node_id in NODES if node_id != victim]
        requests = [asyncio.create_task(create(node_id, f"rides{node_id}", factor=2)) for node_id in others]
        await cluster.advance(cluster.world.seed * 0.005)
        cluster.kill(victim)
        # Apache Kafka's clients meet TOPIC_ALREADY_EXISTS, too, when the first attempt was committed.
        assert set(await asyncio.gather(*requests)) <= {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        await until_all_know(cluster, *(f"rides{node_id}" for node_id in others))


@simulated(seeds=range(2))
async def test_a_request_does_not_wait_for_a_controller_that_was_replaced() -> None:
    """The old controller never answers: nothing that is sent to it arrives."""
    async with simulated_cluster() as cluster:
        await cluster.until(lambda: cluster.active is not None)
        old = cluster.node("active controller").node_id
        others = [node_id for node_id in NODES if node_id != old]
        assert await create(others[0], "before") is ErrorCode.NONE  # its connection to the controller is open
        cluster.partition({old}, others)
        began_s = cluster.world.loop.now_s
        assert await create(others[0], "rides", factor=2) is ErrorCode.NONE
        assert cluster.world.loop.now_s - began_s < 15
        assert cluster.node("active controller").node_id != old


@simulated(seeds=range(2))
async def test_without_a_controller_a_request_times_out_in_time() -> None:
    async with simulated_cluster() as cluster:
        cluster.kill(1)
        cluster.kill(2)
        began_s = cluster.world.loop.now_s
        assert await create(3, "rides", factor=1) is ErrorCode.REQUEST_TIMED_OUT
        assert 19 < cluster.world.loop.now_s - began_s < 22


@simulated(seeds=range(2))
async def test_every_broker_names_all_brokers_and_the_same_leaders() -> None:
    async with simulated_cluster() as cluster:
        assert await create(1, "rides", partitions=6) is ErrorCode.NONE
        await until_all_know(cluster, "rides")
        leaders = {state.index: state.leader for state in cluster.image.topics["rides"].partitions}
        request = MetadataRequest(topics=[MetadataRequestTopic(name="rides")])
        for node_id in NODES:
            found = await ask(node_id, ApiKey.METADATA, 12, request)
            assert [(one.node_id, one.host, one.port) for one in found.brokers] == [
                (other, f"node{other}", PORT) for other in NODES
            ]
            assert found.controller_id in NODES
            assert {one.partition_index: one.leader_id for one in found.topics[0].partitions} == leaders
            described = await ask(node_id, ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
            assert [one.broker_id for one in described.brokers] == [1, 2, 3]
        cluster.kill(2)
        await cluster.until(lambda: cluster.active is not None and cluster.image.brokers[2].fenced)
        await cluster.advance(1)
        for node_id in (1, 3):
            found = await ask(node_id, ApiKey.METADATA, 12, request)
            assert [one.node_id for one in found.brokers] == [1, 3]
            assert all(one.offline_replicas == [2] for one in found.topics[0].partitions)
            assert {one.leader_id for one in found.topics[0].partitions} == {1, 3}
            described = await ask(
                node_id, ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(include_fenced_brokers=True)
            )
            assert {one.broker_id: one.is_fenced for one in described.brokers} == {1: False, 2: True, 3: False}


@simulated(seeds=range(2))
async def test_a_topic_is_created_when_it_is_used_at_any_broker() -> None:
    async with simulated_cluster({"default.replication.factor": "3", "num.partitions": "2"}):
        for node_id in NODES:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=f"used{node_id}")])
            found = await ask_until(
                node_id, ApiKey.METADATA, 12, request, lambda answer: not answer.topics[0].error_code
            )
            assert [sorted(one.replica_nodes) for one in found.topics[0].partitions] == [[1, 2, 3]] * 2


@simulated(seeds=range(2))
async def test_all_brokers_name_the_same_coordinator() -> None:
    counts = {"offsets.topic.num.partitions": "8", "transaction.state.log.num.partitions": "8"}
    async with simulated_cluster(counts) as cluster:
        keys = [f"g{number}" for number in range(8)]
        for key_type, topic in ((0, "__consumer_offsets"), (1, "__transaction_state")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            answers = [
                await ask_until(
                    node_id,
                    ApiKey.FIND_COORDINATOR,
                    6,
                    request,
                    lambda answer: not any(one.error_code for one in answer.coordinators),
                )
                for node_id in NODES
            ]
            found = [{one.key: (one.node_id, one.host) for one in answer.coordinators} for answer in answers]
            assert found[0] == found[1] == found[2]
            assert len(set(found[0].values())) > 1
            states = cluster.image.topics[topic].partitions
            assert all(sorted(state.replicas) == [1, 2, 3] for state in states)


@simulated(seeds=range(2))
async def test_brokers_give_out_different_producer_ids() -> None:
    async with simulated_cluster() as cluster:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

        async def init(node_id: int) -> int:
            answer = await ask_until(
                node_id,
                ApiKey.INIT_PRODUCER_ID,
                5,
                request,
                lambda answer: answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )
            assert answer.error_code == ErrorCode.NONE
            found: int = answer.producer_id
            return found

        ids = [await init(node_id) for _ in range(3) for node_id in NODES]
        assert len(set(ids)) == len(ids)
        victim = cluster.kill("active controller").node_id
        ids += [await init(node_id) for node_id in NODES if node_id != victim]
        await cluster.start(victim)
        ids += [await init(node_id) for node_id in NODES]
        assert len(set(ids)) == len(ids)
