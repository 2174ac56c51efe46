"""Brokers forward requests of their clients to controllers in envelopes."""

from __future__ import annotations

from typing import Any

import pytest
from hailbus_broker.client import Client
from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, response_class
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.default_principal_data import DefaultPrincipalData
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from hailbus_broker.protocol.definitions.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.definitions.envelope_request import EnvelopeRequest
from hailbus_broker.protocol.definitions.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from hailbus_broker.protocol.definitions.list_groups_request import ListGroupsRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import Message
from hailbus_broker.testing.simulation import simulated

from tests.integration.broker.simulation.controllers import PORT, SimulatedController, until
from tests.integration.broker.simulation.test_membership import controllers, three_brokers

CORRELATION_ID = 77
PRINCIPAL = b"\0\0" + bytes(codec.encode(DefaultPrincipalData(type="User", name="ANONYMOUS"), 0))
LAST = {
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DESCRIBE_QUORUM: 2,
    ApiKey.LIST_GROUPS: 5,
}


def frame(key: ApiKey, message: Message, *, version: int | None = None) -> bytes:
    """A request as a client sends it, without its size."""
    version = LAST[key] if version is None else version
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + CORRELATION_ID.to_bytes(4, "big") + b"\0\2me"
    tags = b"\0" if header_versions(key, version)[0] == 2 else b""
    return head + tags + bytes(codec.encode(message, version))


async def ask(controller: SimulatedController, key: ApiKey, version: int, message: Message) -> Any:
    client = Client(f"{controller.name}:{PORT}", "broker", timeout_s=5)
    try:
        return await client.ask(key, version, message)
    finally:
        client.close()


async def forward(
    controller: SimulatedController,
    data: bytes,
    *,
    principal: bytes | None = PRINCIPAL,
    host: bytes = bytes((10, 0, 0, 7)),
) -> Any:
    envelope = EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=host)
    return await ask(controller, ApiKey.ENVELOPE, 0, envelope)


async def forwarded(controller: SimulatedController, key: ApiKey, message: Message) -> Any:
    """Return the response in the envelope."""
    answer = await forward(controller, frame(key, message))
    assert answer.error_code == ErrorCode.NONE
    data = bytes(answer.response_data)
    assert int.from_bytes(data[:4], "big") == CORRELATION_ID
    position = 4 + header_versions(key, LAST[key])[1]
    response, end = codec.decode_with_end(response_class(key), data, LAST[key], position=position)
    assert end == len(data)
    return response


def create(*names: str, factor: int = 3) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=2, replication_factor=factor) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=5_000)


@simulated(seed=1)
async def test_the_active_controller_serves_what_a_broker_forwards() -> None:
    quorum = controllers()
    await three_brokers(quorum)
    active = await quorum.until_one_is_active()
    created = await forwarded(active, ApiKey.CREATE_TOPICS, create("calls", "calls"))
    assert [(one.name, one.error_code) for one in created.topics] == [("calls", ErrorCode.INVALID_REQUEST)]
    created = await forwarded(active, ApiKey.CREATE_TOPICS, create("calls", "trips"))
    assert [(one.name, one.error_code) for one in created.topics] == [("calls", 0), ("trips", 0)]
    for name in ("calls", "trips"):
        partitions = active.core.image.topics[name].partitions
        assert [sorted(one.replicas) for one in partitions] == [[11, 12, 13]] * 2
    too_many = (await forwarded(active, ApiKey.CREATE_TOPICS, create("more", factor=4))).topics[0]
    assert too_many.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "only 3 broker(s) are registered" in too_many.error_message
    deleted = await forwarded(
        active, ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=[DeleteTopicState(name="trips")], timeout_ms=5_000)
    )
    assert [one.error_code for one in deleted.responses] == [0]
    await until(lambda: all("trips" not in one.core.image.topics for one in quorum.all))
    about = DescribeQuorumRequest(
        topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
    )
    described = await forwarded(active, ApiKey.DESCRIBE_QUORUM, about)
    assert described.topics[0].partitions[0].leader_id == active.node_id


@simulated(seed=2)
async def test_the_default_replication_factor_is_the_controllers() -> None:
    quorum = controllers({"default.replication.factor": "2"})
    await three_brokers(quorum)
    active = await quorum.until_one_is_active()
    created = (await forwarded(active, ApiKey.CREATE_TOPICS, create("calls", factor=-1))).topics[0]
    assert (created.error_code, created.replication_factor) == (ErrorCode.NONE, 2)
    assert [len(one.replicas) for one in active.core.image.topics["calls"].partitions] == [2, 2]


@simulated(seed=3)
async def test_a_controller_that_is_not_active_refuses_envelope_and_request() -> None:
    quorum = controllers()
    await quorum.start()
    active = await quorum.until_one_is_active()
    for other in quorum.all:
        if other is not active:
            answer = await forward(other, frame(ApiKey.CREATE_TOPICS, create("calls", factor=1)))
            assert (answer.error_code, answer.response_data) == (ErrorCode.NOT_CONTROLLER, None)
            direct = await ask(other, ApiKey.CREATE_TOPICS, 7, create("calls", factor=1))
            assert [one.error_code for one in direct.topics] == [ErrorCode.NOT_CONTROLLER]


@simulated(seed=4)
async def test_the_second_change_of_a_list_builds_on_the_first() -> None:
    quorum = controllers()
    await three_brokers(quorum)
    active = await quorum.until_one_is_active()
    await forwarded(active, ApiKey.CREATE_TOPICS, create("calls"))
    append, subtract = 2, 3

    def change(operation: int, value: str) -> AlterConfigsResource:
        entry = AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
        return AlterConfigsResource(resource_type=2, resource_name="calls", configs=[entry])

    request = IncrementalAlterConfigsRequest(resources=[change(append, "compact"), change(subtract, "delete")])
    answer = await forwarded(active, ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    assert [one.error_code for one in answer.responses] == [0, 0]
    assert active.core.image.configs(ResourceType.TOPIC, "calls") == {"cleanup.policy": "compact"}


@simulated(seed=5)
@pytest.mark.parametrize(
    ("data", "options", "code"),
    [
        (frame(ApiKey.LIST_GROUPS, ListGroupsRequest()), {}, ErrorCode.INVALID_REQUEST),
        (frame(ApiKey.CREATE_TOPICS, create("calls"))[:-3], {}, ErrorCode.INVALID_REQUEST),
        (b"\0\x13\0\7", {}, ErrorCode.INVALID_REQUEST),
        (b"\0\x13\0\x63" + bytes(8), {}, ErrorCode.UNSUPPORTED_VERSION),
        (b"\x03\x13\0\0" + bytes(8), {}, ErrorCode.UNSUPPORTED_VERSION),
        (frame(ApiKey.CREATE_TOPICS, create("calls")), {"host": b"abc"}, ErrorCode.INVALID_REQUEST),
        (
            frame(ApiKey.CREATE_TOPICS, create("calls")),
            {"principal": None},
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
        ),
        (
            frame(ApiKey.CREATE_TOPICS, create("calls")),
            {"principal": b"\0\1abc"},
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
        ),
    ],
)
async def test_an_envelope_with_anything_else_is_refused(data: bytes, options: Any, code: ErrorCode) -> None:
    quorum = controllers()
    await quorum.start()
    active = await quorum.until_one_is_active()
    answer = await forward(active, data, **options)
    assert answer.error_code == code
    assert not active.core.image.topics
