"""What the broker says of its partitions, asked by a Python client: `lake verify` starts no JVM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analytics_spark.errors import LakeError

__all__ = ["BrokerView", "Offsets"]

Offsets = dict[tuple[str, int], int]
"""(topic, partition) → offset."""


@dataclass(slots=True)
class BrokerView:
    """Starts, committed ends and visible records of some topics of one cluster. Blocking; for use from a command."""

    bootstrap_servers: str
    timeout_s: float = 15.0

    def offsets(self, topics: Sequence[str]) -> tuple[Offsets, Offsets]:
        """(topic, partition) → first offset, and → end of the committed records, exclusive.

        Topics that do not exist are left out.

        Raises:
            LakeError: No broker answers.
        """
        found: tuple[Offsets, Offsets] = self._run(_offsets(self._config(), topics))
        return found

    def visible_records(self, topic: str, partition: int, start: int, end: int) -> int:
        """Records that a read_committed consumer sees from `start` to `end`, exclusive."""
        count: int = self._run(_visible(self._config(), topic, partition, start, end, self.timeout_s))
        return count

    def _config(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "request_timeout_ms": 10_000,
        }

    def _run(self, work: Any) -> Any:  # a coroutine and its result
        import asyncio

        from aiokafka.errors import KafkaError

        try:
            return asyncio.run(asyncio.wait_for(work, timeout=self.timeout_s * 4))
        except (KafkaError, TimeoutError, OSError) as error:
            raise LakeError(
                f"no broker answers at {self.bootstrap_servers} ({str(error) or type(error).__name__}); "
                "start it, or correct the address"
            ) from error


async def _offsets(config: dict[str, Any], topics: Sequence[str]) -> tuple[Offsets, Offsets]:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=config["bootstrap_servers"])
    await admin.start()
    try:
        existing = sorted(set(await admin.list_topics()).intersection(topics))
        described = await admin.describe_topics(existing) if existing else []
    finally:
        await admin.close()
    places = [
        TopicPartition(topic["topic"], partition["partition"])
        for topic in described
        for partition in sorted(topic["partitions"], key=lambda one: one["partition"])
    ]
    consumer = AIOKafkaConsumer(**config)
    await consumer.start()
    try:
        starts = await consumer.beginning_offsets(places) if places else {}
        ends = await consumer.end_offsets(places) if places else {}
    finally:
        await consumer.stop()
    return (
        {(place.topic, place.partition): int(offset) for place, offset in starts.items()},
        {(place.topic, place.partition): int(offset) for place, offset in ends.items()},
    )


async def _visible(config: dict[str, Any], topic: str, partition: int, start: int, end: int, timeout_s: float) -> int:
    import asyncio

    from aiokafka import AIOKafkaConsumer, TopicPartition

    place = TopicPartition(topic, partition)
    consumer = AIOKafkaConsumer(**config)
    await consumer.start()
    try:
        consumer.assign([place])
        consumer.seek(place, start)
        seen = 0
        deadline = asyncio.get_running_loop().time() + timeout_s
        # The position moves over hidden offsets too, so it says when the gap has been read.
        while await consumer.position(place) < end and asyncio.get_running_loop().time() < deadline:
            batch = await consumer.getmany(place, timeout_ms=500)
            seen += sum(1 for record in batch.get(place, ()) if record.offset < end)
            if any(record.offset >= end for record in batch.get(place, ())):
                break
        return seen
    finally:
        await consumer.stop()
