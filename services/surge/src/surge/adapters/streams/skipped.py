"""Records that the stream processor passed over, read from the log."""

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

READ_TIMEOUT_S: Final = 30.0


class SkippedRecords:
    """Reads ranges of offsets outside of the group.

    faust empties its queues whenever it resumes after a rebalance, and takes a hole in the offsets for one in the log
    (compaction, a transaction's marker), so that what was in the queues is committed and never seen. Whoever notices a
    hole asks here: what the log still has is given, and a hole in the log itself gives nothing.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._consumer: Any = None  # Any: aiokafka has no types

    async def read(self, topic: str, partition: int, start: int, end: int) -> list[Any]:
        """The records of `[start, end)`, in order. There must be one at `end` or after, or the call times out.

        Raises:
            TimeoutError: The broker did not give them in time.
        """
        tp = TopicPartition(topic, partition)
        async with asyncio.timeout(READ_TIMEOUT_S):
            if self._consumer is None:
                consumer = AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap_servers,
                    client_id="surge-skipped",
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                )
                await consumer.start()
                self._consumer = consumer
            self._consumer.assign([tp])
            self._consumer.seek(tp, start)
            found: list[Any] = []
            while True:
                for record in (await self._consumer.getmany(tp, timeout_ms=1000)).get(tp, ()):
                    if record.offset >= end:
                        return found
                    found.append(record)

    async def close(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None
