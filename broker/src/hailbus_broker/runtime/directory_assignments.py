"""Reports to the controller which log directory holds a replica, where the metadata says otherwise (KIP-858)."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hailbus_broker.client import UnreachableError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse
    from hailbus_broker.protocol.schema import Uuid

    Key: TypeAlias = tuple[Uuid, int]

log: Any = get_logger()

FIRST_BACKOFF_S: Final = 0.1
LAST_BACKOFF_S: Final = 10.0
"""The pause after a request that failed doubles from the first to the last."""
PARTITIONS_PER_REQUEST: Final = 2_250
"""As Apache Kafka's brokers: a request stays below 64 KiB."""


class DirectoryAssignments:
    """Compares committed metadata with the directory of this node, and corrects the metadata.

    The controller assigns a new replica to the directory that its broker has registered. That directory is another one
    after the node's disk was replaced and formatted again. The controller elects no replica of a directory that is not
    registered, and lets none into the ISR.

    Args:
        node_id: Of this node.
        directory_id: Of its log directory.
        broker_epoch: Returns the epoch of its registration.
        is_hosted: Returns whether this node has the log of a partition.
        ask: Sends a request to the active controller.
        spawn: Runs the requests in the background.
    """

    def __init__(
        self,
        *,
        node_id: int,
        directory_id: Uuid,
        broker_epoch: Callable[[], int],
        is_hosted: Callable[[Uuid, int], bool],
        ask: Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._node_id: Final = node_id
        self._directory_id: Final = directory_id
        self._broker_epoch: Final = broker_epoch
        self._is_hosted: Final = is_hosted
        self._ask: Final = ask
        self._spawn: Final = spawn
        self._pending: Final[dict[Key, None]] = {}
        self._is_running = False

    def compare_all(self, image: MetadataImage) -> None:
        """Compare every partition; at the start."""
        for topic in image.topics.values():
            self._compare(image, topic.topic_id, range(len(topic.partitions)))

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Compare the partitions that a change has touched, after their replicas were made."""
        for topic_id, indexes in (*delta.new_partitions.items(), *delta.changed_partitions.items()):
            self._compare(image, topic_id, indexes)
        for key in [key for key in self._pending if key[0] not in image.topics_by_id]:
            del self._pending[key]

    def _compare(self, image: MetadataImage, topic_id: Uuid, indexes: Iterable[int]) -> None:
        partitions = image.topics_by_id[topic_id].partitions
        for index in indexes:
            state = partitions[index]
            if (
                self._node_id in state.replicas
                and state.directory(self._node_id) != self._directory_id
                and self._is_hosted(topic_id, index)
            ):
                self._pending[topic_id, index] = None
            else:
                self._pending.pop((topic_id, index), None)
        if self._pending and not self._is_running:
            self._is_running = True
            self._spawn(self._run(), "directory-assignments")

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        try:
            while self._pending:
                asked = list(islice(self._pending, PARTITIONS_PER_REQUEST))
                try:
                    reason = self._take(await self._ask(self._request(asked)))
                except UnreachableError as error:
                    reason = str(error)
                if not reason:
                    backoff_s = FIRST_BACKOFF_S
                    continue
                log.warning("directories_not_assigned", error=reason, partitions=len(self._pending))
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        finally:
            self._is_running = False

    def _request(self, asked: Iterable[Key]) -> AssignReplicasToDirsRequest:
        topics: dict[Uuid, TopicData] = {}
        for topic_id, index in asked:
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
            topic.partitions.append(PartitionData(partition_index=index))
        directory = DirectoryData(id=self._directory_id, topics=list(topics.values()))
        return AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=[directory]
        )

    def _take(self, response: AssignReplicasToDirsResponse) -> str:
        """Drop what the controller has assigned, move the rest to the end, and return why it has not assigned that."""
        if response.error_code:
            return ErrorCode(response.error_code).name
        reason = ""
        for directory in response.directories:
            for topic in directory.topics:
                for partition in topic.partitions:
                    key = (bytes(topic.topic_id), partition.partition_index)
                    if key not in self._pending:
                        continue  # the metadata has changed meanwhile
                    del self._pending[key]
                    if partition.error_code:
                        reason = ErrorCode(partition.error_code).name
                        self._pending[key] = None
        return reason
