"""The publisher's account of what the image contains."""

from __future__ import annotations

import asyncio

from hailbus_broker.cluster.metadata.image import MetadataImage
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.runtime.metadata_publisher import MetadataPublisher


async def test_a_commit_without_records_does_not_take_the_end_back() -> None:
    publisher = MetadataPublisher(MetadataImage(), 5)
    done = asyncio.Event()
    publisher.publish([NoOpRecord()], 6, lambda: None)
    publisher.publish([], publisher.end_offset, done.set)  # asks for another round, while the first one waits
    task = asyncio.create_task(publisher.run())
    async with asyncio.timeout(10):
        await done.wait()
    task.cancel()
    assert (publisher.end_offset, publisher.image.version) == (6, 6)
