"""A Produce that waits for followers holds none of its request's memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.definitions.produce_response import ProduceResponse
from hailbus_broker.server.handlers import produce
from hailbus_broker.server.request import Request

from tests.unit.broker.test_leader_with_followers import World, a_batch

if TYPE_CHECKING:
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Peer

VERSION = 9


class Connection:
    """Counts the answers."""

    def __init__(self) -> None:
        self.answered_count = 0

    def answered(self) -> None:
        self.answered_count += 1


@pytest.mark.parametrize("partitions", [[0], [0, 1]], ids=["usual", "several"])
async def test_the_frame_is_free_while_followers_store_the_batch(partitions: list[int]) -> None:
    world = World()
    node = SimpleNamespace(
        replicas=SimpleNamespace(topics={"rides": [world.leader, world.leader]}, topics_by_id={}), clock=world.clock
    )
    dispatcher = cast("Dispatcher", SimpleNamespace(node=node, unverified={}))
    topic = TopicProduceData(
        name="rides", partition_data=[PartitionProduceData(index=index, records=a_batch()) for index in partitions]
    )
    message = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
    arrived = codec.encode(message, VERSION, bytearray())
    size = len(arrived)
    connection = Connection()
    request = Request(cast("Peer", connection), memoryview(arrived), ApiKey.PRODUCE, VERSION, 1, None, position=0)

    assert produce.handle(dispatcher, request, None) is None

    assert not request.is_done
    arrived.append(0)  # raises BufferError as long as anybody holds a view of it
    assert request.size_bytes == size
    end = world.log.log_end_offset
    world.sync.run()
    for follower in (2, 3):
        world.leader.fetched(follower, 1, end)
    assert connection.answered_count == 1
    (out,) = request.parts
    response: Any = codec.decode(ProduceResponse, memoryview(cast("bytearray", out)), VERSION, position=9)
    (found,) = response.responses
    assert [part.base_offset for part in found.partition_responses] == list(range(len(partitions)))
