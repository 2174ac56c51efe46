"""DescribeProducers: the producers that have written to a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.runtime.replica import LeaderReplica

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.describe_producers_request import DescribeProducersRequest
    from hailbus_broker.protocol.definitions.describe_producers_response import DescribeProducersResponse
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


def describe_producers(
    dispatcher: Dispatcher, _: Request, message: DescribeProducersRequest
) -> DescribeProducersResponse:
    """DescribeProducers v0: who writes to a partition with a producer id (KIP-664)."""
    from hailbus_broker.protocol.definitions.describe_producers_response import (
        DescribeProducersResponse,
        PartitionResponse,
        ProducerState,
        TopicResponse,
    )

    response = DescribeProducersResponse()
    for topic in message.topics:
        answer = TopicResponse(name=topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            partition = dispatcher.node.replicas.leader(topic.name, index)
            result = PartitionResponse(partition_index=index, error_message=None)
            answer.partitions.append(result)
            if not isinstance(partition, LeaderReplica):
                result.error_code = partition
                continue
            result.active_producers = [
                ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_transaction_start_offset,
                )
                for producer in partition.log.producers()
            ]
    return response
