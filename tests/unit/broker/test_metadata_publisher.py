"""The publisher's account of what the image contains."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.runtime.metadata_publisher import APPLIED_IN_LOOP, MetadataPublisher
from hailbus_broker.runtime.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hailbus_broker.cluster.metadata.delta import MetadataDelta
    from hailbus_broker.protocol.schema import Message

TOPIC_ID = bytes(range(16))


@asynccontextmanager
async def running(end_offset: int) -> AsyncIterator[MetadataPublisher]:
    threads = ThreadPool(1, "test")
    publisher = MetadataPublisher(MetadataImage(), end_offset, threads)
    task = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(10):
            yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        threads.close()


async def test_a_commit_without_records_does_not_take_the_end_back() -> None:
    async with running(5) as publisher:
        done = asyncio.Event()
        publisher.publish([NoOpRecord()], 6, lambda: None)
        publisher.publish([], publisher.end_offset, done.set)  # asks for another round, while the first one waits
        await done.wait()
        assert (publisher.end_offset, publisher.image.version) == (6, 6)


def partition(index: int) -> PartitionRecord:
    return PartitionRecord(partition_id=index, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1)


async def test_a_large_commit_is_applied_by_a_thread_to_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see all of a commit or nothing, and an image that somebody keeps does not change."""
    deltas: list[MetadataDelta] = []
    applied_in: list[int] = []
    apply = MetadataImage.apply

    def noting(image: MetadataImage, records: list[Message]) -> MetadataDelta:
        applied_in.append(threading.get_ident())
        return apply(image, records)

    class Subscriber:
        async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
            assert image is publisher.image
            deltas.append(delta)

    monkeypatch.setattr(MetadataImage, "apply", noting)
    async with running(0) as publisher:
        publisher.subscribe(Subscriber())
        first, second = asyncio.Event(), asyncio.Event()
        topic: list[Message] = [TopicRecord(name="t", topic_id=TOPIC_ID)]
        publisher.publish(
            topic + [partition(index) for index in range(APPLIED_IN_LOOP - 1)], APPLIED_IN_LOOP, first.set
        )
        await first.wait()
        before = publisher.image
        count = APPLIED_IN_LOOP + 1
        more: list[Message] = [partition(index) for index in range(APPLIED_IN_LOOP - 1, 2 * APPLIED_IN_LOOP)]
        publisher.publish(more, APPLIED_IN_LOOP + count, second.set)
        await second.wait()
        assert applied_in[0] == threading.get_ident()
        assert applied_in[1] != threading.get_ident()
        assert len(before.topics["t"].partitions) == APPLIED_IN_LOOP - 1
        assert len(publisher.image.topics["t"].partitions) == 2 * APPLIED_IN_LOOP
        assert publisher.image.topics_by_id[TOPIC_ID] is publisher.image.topics["t"]
        assert publisher.image.version == publisher.end_offset == APPLIED_IN_LOOP + count
        assert [len(delta.new_partitions[TOPIC_ID]) for delta in deltas] == [APPLIED_IN_LOOP - 1, count]
