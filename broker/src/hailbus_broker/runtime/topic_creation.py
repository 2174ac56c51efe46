"""Creates topics that clients use before they exist, and the topics of the coordinators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.controller import check_topic_name
from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, ApiKey
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import asyncio

    from hailbus_broker.protocol.definitions.create_topics_request import CreateTopicsRequest
    from hailbus_broker.runtime.controller_channel import ControllerChannel
    from hailbus_broker.runtime.node_core import NodeCore

WAIT_MS: Final = 1_000
"""So long a client waits for a topic that another node creates. It asks again after that."""

_HEADER_WITHOUT_CLIENT: Final = b"\0\0\0\0\xff\xff\0"
"""Correlation id, no client id, no tags."""


@dataclass(slots=True)
class _OwnRequest:
    """A request of this node that is forwarded like one of a client; see `ForwardedRequest`."""

    frame: memoryview
    api_key: int
    version: int
    client_host: str = "/127.0.0.1"


class TopicCreation:
    """Has the active controller create topics, each at most once at a time.

    Args:
        core: Of this node.
        channel: To the active controller.
    """

    def __init__(self, core: NodeCore, channel: ControllerChannel) -> None:
        self._core: Final = core
        self._channel: Final = channel
        self._pending: Final[dict[str, asyncio.Task[None]]] = {}

    def create(self, name: str) -> asyncio.Future[None]:
        """Create a topic that the committed metadata does not have.

        Returns:
            Done when the topic is created; it fails with an ApiError if it is not. If another node's controller
            decides, this node may learn of the topic a little later.

        Raises:
            ApiError: The topic cannot be created.
            StorageError: The machine failed.
        """
        core = self._core
        if not core.roles.is_standalone and not core.metadata.is_active:
            check_topic_name(name)
            task = self._pending.get(name)
            if task is None:
                task = self._pending[name] = core.spawn(self._ask(name), f"create-{name}")
                task.add_done_callback(partial(self._done, name))
            return task
        if name in core.controller.image.topics:
            return core.metadata.write([])  # decided, but not committed yet
        count, factor = self._size(name)
        new = core.controller.create_topic(
            name,
            partition_count=count,
            replication_factor=factor,
            is_internal=name in {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC},
        )
        return core.write_metadata(new.records)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        del self._pending[name]
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    def _size(self, name: str) -> tuple[int, int]:
        """Return the number of partitions and the replication factor; -1 for what the controller decides."""
        option = {GROUP_METADATA_TOPIC: "offsets.topic", TRANSACTION_STATE_TOPIC: "transaction.state.log"}.get(name)
        if option is None:
            return -1, -1
        config = self._core.config
        return config[f"{option}.num.partitions"], config[f"{option}.replication.factor"]

    async def _ask(self, name: str) -> None:
        """Ask the controller, which is on another node.

        Raises:
            ApiError: The topic was not created, or not in time.
        """
        request = self._request(name)
        version = APIS[ApiKey.CREATE_TOPICS].last
        head = ApiKey.CREATE_TOPICS.to_bytes(2, "big") + version.to_bytes(2, "big") + _HEADER_WITHOUT_CLIENT
        frame = codec.encode(request, version, bytearray(head))
        own = _OwnRequest(memoryview(frame), ApiKey.CREATE_TOPICS, version)
        try:
            response = await self._channel.forward(own, request, timeout_s=WAIT_MS / 1_000)
        except UnreachableError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        for result in response.topics:
            if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                raise ApiError(ErrorCode(result.error_code), result.error_message)

    def _request(self, name: str) -> CreateTopicsRequest:
        from hailbus_broker.protocol.definitions.create_topics_request import (
            CreatableTopic,
            CreatableTopicConfig,
            CreateTopicsRequest,
        )

        count, factor = self._size(name)
        configs = []
        if name == TRANSACTION_STATE_TOPIC:
            minimum = self._core.config.text("transaction.state.log.min.isr")
            configs.append(CreatableTopicConfig(name="min.insync.replicas", value=minimum))
        topic = CreatableTopic(name=name, num_partitions=count, replication_factor=factor, configs=configs)
        return CreateTopicsRequest(topics=[topic], timeout_ms=WAIT_MS)
