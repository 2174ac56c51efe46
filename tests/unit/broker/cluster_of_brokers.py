"""A controller and its brokers for unit tests: requests in short, records applied after each decision."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller import Controller
from hailbus_broker.cluster.features import ELR_VERSION
from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage, PartitionState
from hailbus_broker.cluster.metadata.records import decode_record, encode_record
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.protocol.definitions import (
    alter_partition_reassignments_request,
    alter_partition_request,
    broker_registration_request,
)
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import AlterPartitionReassignmentsRequest
from hailbus_broker.protocol.definitions.alter_partition_request import AlterPartitionRequest
from hailbus_broker.protocol.definitions.broker_heartbeat_request import BrokerHeartbeatRequest
from hailbus_broker.protocol.definitions.broker_registration_request import BrokerRegistrationRequest
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hailbus_broker.protocol.definitions.alter_partition_reassignments_response import (
        ReassignablePartitionResponse,
    )
    from hailbus_broker.protocol.definitions.alter_partition_response import PartitionData
    from hailbus_broker.protocol.definitions.broker_heartbeat_response import BrokerHeartbeatResponse
    from hailbus_broker.protocol.schema import Message

CLUSTER_ID = "Mb0WW4kyQ8ACZkmbFqVwxA"


def directory(broker_id: int, number: int = 0) -> bytes:
    return bytes([broker_id, number]) + b"d" * 14


def incarnation(broker_id: int, number: int = 0) -> bytes:
    return bytes([broker_id, number]) + b"i" * 14


def registration(broker_id: int, **changes: object) -> BrokerRegistrationRequest:
    request = BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=incarnation(broker_id),
        listeners=[broker_registration_request.Listener(name="CLIENT", host="h", port=9000 + broker_id)],
        features=[broker_registration_request.Feature(name=ELR_VERSION, max_supported_version=1)],
        log_dirs=[directory(broker_id)],
    )
    for name, value in changes.items():
        assert hasattr(request, name)
        setattr(request, name, value)
    return request


class Brokers:
    """A cluster of brokers that are registered and unfenced, and the controller that leads it."""

    def __init__(self, *broker_ids: int, has_elr: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.image = MetadataImage()
        self.offset = 0
        self.now_ms = 0
        self.controller = Controller(
            self.image,
            BrokerConfig(settings or {}),
            node_id=1,
            directory_id=bytes(16),
            chance=random.Random(5),
        )
        self.write(self.controller.activate(next_offset=0, now_ms=0, has_open_transaction=False))
        if has_elr:
            self.write([FeatureLevelRecord(name=ELR_VERSION, feature_level=1)])
        for broker_id in broker_ids:
            self.register(broker_id)
            self.heartbeat(broker_id)

    def write(self, records: Sequence[Message]) -> MetadataDelta:
        self.offset += len(records)
        return self.image.apply([decode_record(encode_record(record)) for record in records])

    def register(self, broker_id: int, **changes: object) -> int:
        """Register a broker and return its epoch."""
        decision = self.controller.register(
            registration(broker_id, **changes), cluster_id=CLUSTER_ID, next_offset=self.offset, now_ms=self.now_ms
        )
        self.write(decision.records)
        return decision.response.broker_epoch

    def heartbeat(self, broker_id: int, **wishes: object) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].broker_epoch,
            current_metadata_offset=self.offset - 1,
        )
        for name, value in wishes.items():
            assert hasattr(request, name)
            setattr(request, name, value)
        decision = self.controller.heartbeat(request, next_offset=self.offset, now_ms=self.now_ms)
        self.write(decision.records)
        return decision.response

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            epoch = self.image.brokers[broker_id].broker_epoch
            self.write(self.controller.fence(broker_id, epoch, next_offset=self.offset))

    def tick(self, now_ms: int | None = None) -> list[Message]:
        return self.controller.tick(next_offset=self.offset, now_ms=self.now_ms if now_ms is None else now_ms)

    def create(self, *replicas: Sequence[int], **configs: str) -> None:
        """Create the topic `rides` with a partition per list of replicas."""
        new = self.controller.create_topic(
            "rides",
            assignments=dict(enumerate(replicas)),
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        self.write(new.records)

    @property
    def topic_id(self) -> bytes:
        return self.image.topics["rides"].topic_id

    def partition(self, index: int = 0) -> PartitionState:
        return self.image.topics["rides"].partitions[index]

    def alter_isr(self, *isr: int, version: int = 3, by: int | None = None, **changes: int) -> PartitionData:
        """Let a leader ask for an ISR, with what it knows or something else."""
        state = self.partition()
        asked = alter_partition_request.PartitionData(
            partition_index=0, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch
        )
        if version >= 3:
            asked.new_isr_with_epochs = [
                alter_partition_request.BrokerState(
                    broker_id=one,
                    broker_epoch=self.image.brokers[one].broker_epoch if one in self.image.brokers else 0,
                )
                for one in isr
            ]
        else:
            asked.new_isr = list(isr)
        for name, value in changes.items():
            setattr(asked, name, value)
        leader = state.leader if by is None else by
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self.image.brokers[leader].broker_epoch,
            topics=[alter_partition_request.TopicData(topic_id=self.topic_id, partitions=[asked])],
        )
        decision = self.controller.alter_partition(request, version=version)
        self.write(decision.records)
        ((result,),) = [topic.partitions for topic in decision.response.topics]
        return result

    def reassign(self, replicas: Sequence[int] | None, **changes: bool) -> ReassignablePartitionResponse:
        asked = alter_partition_reassignments_request.ReassignablePartition(
            partition_index=0, replicas=None if replicas is None else list(replicas)
        )
        topic = alter_partition_reassignments_request.ReassignableTopic(name="rides", partitions=[asked])
        request = AlterPartitionReassignmentsRequest(topics=[topic])
        for name, value in changes.items():
            setattr(request, name, value)
        decision = self.controller.alter_reassignments(request)
        self.write(decision.records)
        ((result,),) = [answer.partitions for answer in decision.response.responses]
        return result
