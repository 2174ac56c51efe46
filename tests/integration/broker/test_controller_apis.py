"""What a one-node controller answers, over a socket, in every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hailbus_broker.cli.client import BrokerClient
from hailbus_broker.protocol.definitions import (
    add_partitions_to_txn_request as add_partitions,
)
from hailbus_broker.protocol.definitions import (
    alter_partition_reassignments_request as reassign,
)
from hailbus_broker.protocol.definitions import (
    create_topics_request as create,
)
from hailbus_broker.protocol.definitions import (
    describe_quorum_request as quorum,
)
from hailbus_broker.protocol.definitions import (
    elect_leaders_request as elect,
)
from hailbus_broker.protocol.definitions import (
    update_features_request as features,
)
from hailbus_broker.protocol.definitions import (
    write_txn_markers_request as markers,
)
from hailbus_broker.protocol.definitions.api_versions_request import ApiVersionsRequest
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from hailbus_broker.protocol.definitions.describe_producers_request import DescribeProducersRequest, TopicRequest
from hailbus_broker.protocol.definitions.describe_transactions_request import DescribeTransactionsRequest
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.testing import ThreadedBroker

from tests.integration.broker.wire import led


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker() as running:
        yield running


@pytest.fixture
def client(broker: ThreadedBroker) -> Iterator[BrokerClient]:
    with BrokerClient(broker.bootstrap) as connected:
        connected.ask(
            create.CreateTopicsRequest(
                topics=[create.CreatableTopic(name="rides", num_partitions=2, replication_factor=1)]
            )
        )
        yield connected


def ask(client: BrokerClient, request: Any, version: int | None = None) -> Any:
    return client.ask(request, version=version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_partition_is_led_by_its_only_replica(client: BrokerClient, version: int) -> None:
    asked = [elect.TopicPartitions(topic="rides", partitions=[1, 7])]
    answer = ask(client, elect.ElectLeadersRequest(election_type=0, topic_partitions=asked), version)
    (topic,) = answer.replica_election_results
    assert [(p.partition_id, ErrorCode(p.error_code)) for p in topic.partition_result] == [
        (1, ErrorCode.ELECTION_NOT_NEEDED),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    everything = ask(client, elect.ElectLeadersRequest(topic_partitions=None), version)
    assert (everything.error_code, everything.replica_election_results) == (0, [])
    if version:
        assert ask(client, elect.ElectLeadersRequest(election_type=5), version).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "code", "sentence"),
    [
        ("rides", 0, [1], ErrorCode.NONE, None),
        ("rides", 0, [1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no such broker is registered"),
        ("rides", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        ("rides", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        ("rides", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
        ("rides", 9, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find"),
        ("bikes", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find"),
    ],
)
def test_a_partition_stays_where_it_is(
    client: BrokerClient, topic: str, partition: int, replicas: list[int] | None, code: ErrorCode, sentence: str | None
) -> None:
    asked = reassign.ReassignableTopic(
        name=topic, partitions=[reassign.ReassignablePartition(partition_index=partition, replicas=replicas)]
    )
    answer = ask(client, reassign.AlterPartitionReassignmentsRequest(topics=[asked]))
    ((result,),) = [found.partitions for found in answer.responses]
    assert ErrorCode(result.error_code) is code
    assert (sentence or "") in (result.error_message or "")


def test_a_reassignment_may_be_told_to_keep_the_factor(client: BrokerClient) -> None:
    asked = reassign.ReassignableTopic(
        name="rides", partitions=[reassign.ReassignablePartition(partition_index=0, replicas=[1, 2])]
    )
    request = reassign.AlterPartitionReassignmentsRequest(topics=[asked], allow_replication_factor_change=False)
    ((result,),) = [found.partitions for found in ask(client, request).responses]
    assert ErrorCode(result.error_code) is ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_this_node(broker: ThreadedBroker, client: BrokerClient, version: int) -> None:
    asked = [
        quorum.TopicData(topic_name=name, partitions=[quorum.PartitionData(partition_index=0)])
        for name in ("__cluster_metadata", "rides")
    ]
    metadata, other = ask(client, quorum.DescribeQuorumRequest(topics=asked), version).topics
    (found,) = metadata.partitions
    end = broker.call(lambda running: running.node.metadata.quorum.log.log_end_offset)
    assert (found.leader_id, found.high_watermark, found.observers) == (1, end, [])
    assert [(v.replica_id, v.log_end_offset) for v in found.current_voters] == [(1, end)]
    assert other.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def levels(client: BrokerClient) -> dict[str, int]:
    answer = ask(client, ApiVersionsRequest(client_software_name="t", client_software_version="1"))
    return {found.name: found.max_version_level for found in answer.finalized_features}


def update(name: str, level: int, kind: int = 1) -> features.UpdateFeaturesRequest:
    return features.UpdateFeaturesRequest(
        feature_updates=[features.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)]
    )


def test_features_change_their_level_on_request_only(client: BrokerClient) -> None:
    assert levels(client) == {"group.version": 1, "metadata.version": 30, "transaction.version": 2}
    refused = ask(client, update("transaction.version", 1))
    assert ErrorCode(refused.error_code) is ErrorCode.INVALID_UPDATE_VERSION
    assert "upgrade type" in refused.error_message
    assert "only supports versions 0-2" in ask(client, update("transaction.version", 3)).error_message
    assert "only supports versions 30-30" in ask(client, update("metadata.version", 29, 3)).error_message
    assert "does not support" in ask(client, update("share.version", 1)).error_message
    only_tried = update("transaction.version", 1, 2)
    only_tried.validate_only = True
    assert ask(client, only_tried).error_code == 0
    assert levels(client)["transaction.version"] == 2
    assert ask(client, update("transaction.version", 1, 2), 1).results[0].error_code == 0
    assert ask(client, update("group.version", 0, 2)).error_code == 0
    assert levels(client) == {"metadata.version": 30, "transaction.version": 1}
    heartbeat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
    assert ask(client, heartbeat).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ask(client, update("group.version", 1)).error_code == 0
    assert levels(client)["group.version"] == 1


def test_lowered_features_stay_lowered_after_a_restart(tmp_path: Any) -> None:
    with ThreadedBroker(data_dir=str(tmp_path)) as running, BrokerClient(running.bootstrap) as connected:
        assert ask(connected, update("transaction.version", 1, 2)).error_code == 0
    with ThreadedBroker(data_dir=str(tmp_path)) as running, BrokerClient(running.bootstrap) as connected:
        assert levels(connected) == {"group.version": 1, "metadata.version": 30, "transaction.version": 1}


def transactional_producer(client: BrokerClient, name: str = "t") -> tuple[int, int]:
    ask(client, FindCoordinatorRequest(key_type=1, coordinator_keys=[name]))
    answer = ask(client, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000))
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def test_two_phase_commit_is_refused(client: BrokerClient) -> None:
    transactional_producer(client)
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000, enable2_pc=True)
    assert ask(client, request, 6).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000, keep_prepared_txn=True)
    assert ask(client, request, 6).error_code == ErrorCode.UNSUPPORTED_VERSION


def batched(name: str, identity: tuple[int, int], *partitions: int, verify: bool) -> Any:
    return add_partitions.AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=identity[0],
        producer_epoch=identity[1],
        verify_only=verify,
        topics=[add_partitions.AddPartitionsToTxnTopic(name="rides", partitions=list(partitions))],
    )


def codes(answer: Any) -> dict[str, list[tuple[int, ErrorCode]]]:
    return {
        result.transactional_id: [
            (part.partition_index, ErrorCode(part.partition_error_code))
            for topic in result.topic_results
            for part in topic.results_by_partition
        ]
        for result in answer.results_by_transaction
    }


@pytest.mark.parametrize(
    ("version", "absent"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_brokers_add_and_verify_partitions_of_many_transactions(
    client: BrokerClient, version: int, absent: ErrorCode
) -> None:
    one, other = transactional_producer(client, "one"), transactional_producer(client, "other")

    def send(*transactions: Any) -> dict[str, list[tuple[int, ErrorCode]]]:
        return codes(ask(client, add_partitions.AddPartitionsToTxnRequest(transactions=list(transactions)), version))

    assert send(batched("one", one, 0, verify=False), batched("other", other, 1, 9, verify=False)) == {
        "one": [(0, ErrorCode.NONE)],
        "other": [(1, ErrorCode.OPERATION_NOT_ATTEMPTED), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
    }
    assert send(batched("one", one, 0, 1, verify=True), batched("one-two", one, 0, verify=True)) == {
        "one": [(0, ErrorCode.NONE), (1, absent)],
        "one-two": [(0, ErrorCode.INVALID_PRODUCER_ID_MAPPING)],
    }
    assert send(batched("one", (one[0], one[1] + 1), 0, verify=True)) == {"one": [(0, ErrorCode.PRODUCER_FENCED)]}
    assert send() == {}


@pytest.mark.parametrize("version", [0, 3])
def test_without_a_coordinator_every_partition_says_so(client: BrokerClient, version: int) -> None:
    request = add_partitions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_topics=[add_partitions.AddPartitionsToTxnTopic(name="rides", partitions=[0, 1])],
    )
    (topic,) = ask(client, request, version).results_by_topic_v3_and_below
    assert [part.partition_error_code for part in topic.results_by_partition] == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("version", [1, 2])
def test_an_administrator_ends_a_transaction(broker: ThreadedBroker, client: BrokerClient, version: int) -> None:
    producer_id, epoch = transactional_producer(client)
    added = batched("t", (producer_id, epoch), 0, verify=False)
    ask(client, add_partitions.AddPartitionsToTxnRequest(transactions=[added]))
    batch = build_batch(
        [RecordToWrite(key=None, value=b"x", timestamp=1)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        is_transactional=True,
    )
    produced = ask(
        client,
        ProduceRequest(
            transactional_id="t",
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="rides", partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
            ],
        ),
        11,
    )
    assert produced.responses[0].partition_responses[0].error_code == 0

    def stable() -> int:
        return broker.call(lambda running: led(running.node, "rides").log.last_stable_offset)

    assert stable() == 0
    marker = markers.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[markers.WritableTxnMarkerTopic(name="rides", partition_indexes=[0, 5])],
    )
    answer = ask(client, markers.WriteTxnMarkersRequest(markers=[marker]), version)
    ((topic,),) = [found.topics for found in answer.markers]
    assert [(p.partition_index, ErrorCode(p.error_code)) for p in topic.partitions] == [
        (0, ErrorCode.NONE),
        (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert stable() == 2
    assert ask(client, markers.WriteTxnMarkersRequest(markers=[marker]), version) == answer, "it is sent again"
    assert broker.call(lambda running: led(running.node, "rides").log.log_end_offset) == 2, "and there is one marker"
    marker.producer_epoch = epoch - 1
    answer = ask(client, markers.WriteTxnMarkersRequest(markers=[marker]), version)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    found = ask(client, DescribeProducersRequest(topics=[TopicRequest(name="rides", partition_indexes=[0])]))
    (state,) = found.topics[0].partitions[0].active_producers
    assert (state.producer_id, state.current_txn_start_offset) == (producer_id, -1)


def test_a_late_end_of_version_one_does_not_end_the_next_transaction(
    broker: ThreadedBroker, client: BrokerClient
) -> None:
    producer_id, epoch = transactional_producer(client)

    def add(connection: BrokerClient, partition: int) -> Any:
        request = add_partitions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[add_partitions.AddPartitionsToTxnTopic(name="rides", partitions=[partition])],
        )
        (topic,) = ask(connection, request, 3).results_by_topic_v3_and_below
        return ErrorCode(topic.results_by_partition[0].partition_error_code)

    def end(connection: BrokerClient, epoch: int) -> ErrorCode:
        request = EndTxnRequest(transactional_id="t", producer_id=producer_id, producer_epoch=epoch, committed=True)
        return ErrorCode(ask(connection, request, 4).error_code)

    def state() -> str:
        described = ask(client, DescribeTransactionsRequest(transactional_ids=["t"]))
        found: str = described.transaction_states[0].transaction_state
        return found

    with BrokerClient(broker.bootstrap) as old, BrokerClient(broker.bootstrap) as new:
        assert add(old, 0) is ErrorCode.NONE
        # The answer to the first end gets lost; it is repeated over a new connection, and the next transaction begins.
        assert end(new, epoch) is ErrorCode.NONE
        assert add(new, 1) is ErrorCode.NONE
        # Somebody without the right to the id counts for nothing.
        with BrokerClient(broker.bootstrap) as stranger:
            assert end(stranger, epoch + 1) in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
        with pytest.raises(EOFError):
            end(old, epoch)
        assert state() == "Ongoing"
        assert end(new, epoch) is ErrorCode.NONE
        assert state() == "CompleteCommit"
