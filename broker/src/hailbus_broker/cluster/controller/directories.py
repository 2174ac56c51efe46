"""Decides about the directories of replicas: AssignReplicasToDirs (KIP-858)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.protocol.definitions import assign_replicas_to_dirs_response
from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_request import AssignReplicasToDirsRequest
    from hailbus_broker.protocol.schema import Message, Uuid


class DirectoryDecisions(ControllerState):
    """The part of the controller that notes where replicas are."""

    def assign_replicas(self, request: AssignReplicasToDirsRequest) -> Decision[AssignReplicasToDirsResponse]:
        """Decide about the directories that a broker has chosen for its replicas.

        A replica in a directory that is offline leaves the ISR.

        Raises:
            ApiError: STALE_BROKER_EPOCH.
        """
        self.check_broker_epoch(request.broker_id, request.broker_epoch)
        response = AssignReplicasToDirsResponse()
        records: list[Message] = []
        seen: set[tuple[Uuid, int]] = set()
        for asked_directory in request.directories:
            of_directory = assign_replicas_to_dirs_response.DirectoryData(id=asked_directory.id)
            response.directories.append(of_directory)
            for asked_topic in asked_directory.topics:
                of_topic = assign_replicas_to_dirs_response.TopicData(topic_id=asked_topic.topic_id)
                of_directory.topics.append(of_topic)
                for asked in asked_topic.partitions:
                    key = (bytes(asked_topic.topic_id), asked.partition_index)
                    code = ErrorCode.INVALID_REQUEST
                    if key not in seen:
                        seen.add(key)
                        code = self._assign(request.broker_id, *key, bytes(asked_directory.id), records)
                    of_topic.partitions.append(
                        assign_replicas_to_dirs_response.PartitionData(
                            partition_index=asked.partition_index, error_code=code
                        )
                    )
        return Decision(records, response)

    def _assign(self, broker_id: int, topic_id: Uuid, index: int, directory: Uuid, records: list[Message]) -> ErrorCode:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        state = self.image.partition(topic_id, index)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if broker_id not in state.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker = self.image.brokers[broker_id]
        is_online = broker.has_online_directory(directory)

        def is_acceptable(other: int) -> bool:
            return self.is_active(other) and (is_online or other != broker_id)

        change = self.change(topic, state, is_acceptable=is_acceptable)
        change.directories[broker_id] = directory
        if broker_id in state.last_known_elr and not broker.has_online_directory(state.directory(broker_id)):
            # The directory that it led from is lost, and with it the records: it is no better than any other replica.
            change.last_known_elr = ()
        if not is_online:
            change.isr = tuple(other for other in state.isr if other != broker_id)
        record = change.build()
        if record is not None:
            records.append(record)
        return ErrorCode.NONE
