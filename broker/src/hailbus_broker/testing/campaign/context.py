"""What every client of a campaign is given, and what all of them do in one way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records.errors import RecordsError
from hailbus_broker.testing.campaign.read_replicas import ReadReplicas
from hailbus_broker.testing.campaign.routing import client_for
from hailbus_broker.testing.history import Watermark

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from hailbus_broker.client import Client
    from hailbus_broker.protocol.definitions.fetch_response import PartitionData
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.routing import CampaignClient
    from hailbus_broker.testing.simulation.process import SimulatedProcess

EARLIEST: Final = -2
LATEST: Final = -1
MAX_FETCH_BYTES: Final = 64 * 1024

WAITS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Codes after which a client tries the same again."""
WAITS_IN_A_CLUSTER: Final = WAITS | frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""The same, where several brokers lead and coordinate."""


@dataclass(slots=True)
class Stop:
    """Whether the clients shall end what they do."""

    is_set: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a client is given.

    Attributes:
        name: The client's, in all its lives.
        life: Which life it is, counted from 0.
        rate: How many times a second it acts, at most.
        partition_count: Of the topics.
        rng: Its own randomness.
        process: The simulated process that it runs in.
        is_cluster: Whether leaders and coordinators move between brokers.
        rack: `client.rack`; empty for a client that reads from leaders only.
    """

    name: str
    life: int
    rate: float
    bootstrap: str
    partition_count: int
    rng: random.Random
    recorder: Recorder
    stop: Stop
    process: SimulatedProcess
    is_cluster: bool = False
    rack: str = ""

    def client(self, *, timeout_s: float | None = None) -> CampaignClient:
        """Make connections of its own."""
        chosen_s = timeout_s or self.rng.choice((0.7, 2.0, 5.0))

        def abandoned() -> None:
            self.recorder.note("request without a response")

        return client_for(
            self.bootstrap,
            self.name,
            timeout_s=chosen_s,
            rng=self.rng,
            when_abandoned=abandoned,
            read_replicas=ReadReplicas(self.rack, self.recorder) if self.rack else None,
        )

    async def pause(self) -> None:
        """Wait before the next thing is done."""
        await asyncio.sleep(self.rng.expovariate(self.rate))

    async def back_off(self) -> None:
        """Wait after something went wrong."""
        await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    def now_ms(self) -> int:
        """The time of this client's host."""
        return self.process.wall_ns() // 1_000_000

    @property
    def waits(self) -> frozenset[ErrorCode]:
        """Codes after which this client tries the same again."""
        return WAITS_IN_A_CLUSTER if self.is_cluster else WAITS

    def succeeded(self) -> None:
        """Count that the client has achieved something."""
        self.recorder.progress[self.name] += 1


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class TopicReader:
    """Reads partitions of a topic by Fetch, from positions that it keeps itself.

    Args:
        context: Of the client that reads.
        client: Its connection.
        topic: What to read.
        is_committed: Whether records of open and aborted transactions are left out.
        identity: Tells topics of the same name apart that follow one another.
    """

    def __init__(
        self, context: Context, client: Client, topic: str, *, is_committed: bool, identity: str | None = None
    ) -> None:
        self.positions: Final[dict[int, int]] = {}
        self.log_starts: Final[dict[int, int]] = {}
        self._context: Final = context
        self._client: Final = client
        self._topic: Final = topic
        self._identity: Final = identity or topic
        self._is_committed: Final = is_committed

    async def poll(self, *, max_wait_ms: int = 200, max_bytes: int = MAX_FETCH_BYTES) -> list[Found]:
        """Return what there is next in all partitions, in the order of their positions.

        Raises:
            UnreachableError: No response came.
            RefusedError: A partition cannot be read now.
        """
        recorder = self._context.recorder
        asked_at = recorder.event()
        partitions = [
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
            for partition, offset in self.positions.items()
        ]
        response = await self._client.ask(
            ApiKey.FETCH,
            11,
            FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=max_bytes,
                isolation_level=int(self._is_committed),
                rack_id=self._context.rack,
                topics=[FetchTopic(topic=self._topic, partitions=partitions)],
            ),
            timeout_s=self._client.timeout_s + max_wait_ms / 1000,
        )
        accept(response.error_code, "Fetch")
        answered_at = recorder.event()
        found: list[Found] = []
        refusal = 0
        for answered in response.responses:
            for data in answered.partitions:
                if data.error_code:
                    refusal = data.error_code
                    continue
                if not self._context.is_cluster:  # there a leader of old may answer: see `ClusterInvariants.observe`
                    recorder.watermarks.append(
                        Watermark(
                            place=(self._identity, data.partition_index),
                            asked_at=asked_at,
                            answered_at=answered_at,
                            log_start=data.log_start_offset,
                            last_stable=data.last_stable_offset,
                            high=data.high_watermark,
                        )
                    )
                self.log_starts[data.partition_index] = data.log_start_offset
                if data.records:
                    found += self._records_of(data)
                    index = data.partition_index
                    recorder.when_read(self._topic, index, self.positions[index], self._is_committed)
        if refusal and not found:
            accept(refusal, f"Fetch of {self._topic} at {self.positions}")
        return found

    def _records_of(self, data: PartitionData) -> Iterable[Found]:
        partition = data.partition_index
        position = self.positions[partition]
        limit = data.last_stable_offset if self._is_committed else data.high_watermark
        aborted = sorted(data.aborted_transactions or (), key=lambda entry: entry.first_offset, reverse=True)
        open_aborted: set[int] = set()
        assert data.records is not None
        try:
            for batch in self._context.recorder.batches.of(data.records):
                header = batch.header
                if header.last_offset < position:
                    continue
                if header.base_offset >= limit:
                    self._context.recorder.fail(
                        f"{self._topic}-{partition}: read a batch at {header.base_offset}, readable up to {limit}"
                    )
                while aborted and aborted[-1].first_offset <= header.last_offset:
                    open_aborted.add(aborted.pop().producer_id)
                self.positions[partition] = header.next_offset
                if header.is_control:
                    if batch.is_abort:
                        open_aborted.discard(header.producer_id)
                    continue
                if self._is_committed and header.is_transactional and header.producer_id in open_aborted:
                    continue
                for record in batch.records:
                    if record.offset >= position:
                        yield Found(partition, record.offset, record.key, record.value)
        except RecordsError as error:
            self._context.recorder.fail(f"{self._topic}-{partition}, read from {position}: {error}")
            raise UnreachableError("damaged bytes were read") from error


async def list_offsets(
    client: Client, topic: str, partitions: Sequence[int], timestamps: Sequence[int], *, is_committed: bool = False
) -> dict[tuple[int, int], int]:
    """Ask for offsets by time.

    Returns:
        The offset of each partition and timestamp; -1 for none.

    Raises:
        UnreachableError: No response came.
        RefusedError: A partition cannot be asked now.
    """
    found: dict[tuple[int, int], int] = {}
    for timestamp in timestamps:
        asked = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in partitions]
        response = await client.ask(
            ApiKey.LIST_OFFSETS,
            5,
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(is_committed),
                topics=[ListOffsetsTopic(name=topic, partitions=asked)],
            ),
        )
        for answered in response.topics:
            for part in answered.partitions:
                accept(part.error_code, f"ListOffsets of {topic}")
                found[part.partition_index, timestamp] = part.offset
    return found


def failed(context: Context, error: Exception, *expected: ErrorCode) -> None:
    """Note a refusal that has no reason; others are part of life."""
    if isinstance(error, RefusedError) and error.code not in context.waits and error.code not in expected:
        context.recorder.fail(f"{context.name}: {error}")
