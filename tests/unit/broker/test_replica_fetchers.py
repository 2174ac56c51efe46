"""A fetcher stores what a leader answers, and acknowledges no more than that."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.cluster.raft.voters import Endpoint
from hailbus_broker.log import LogConfig, PartitionLog, TailCache
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest
from hailbus_broker.protocol.definitions.fetch_response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from hailbus_broker.protocol.definitions.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime import replica_fetchers
from hailbus_broker.runtime.replica import FollowerReplica
from hailbus_broker.runtime.replica_fetchers import ReplicaFetchers, in_segments, whole_batches
from hailbus_broker.testing.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TOPIC = b"t" * 16
LEADER = Endpoint("PLAINTEXT", "leader", 9092)


class Clock:
    """Time that a test moves."""

    ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


class ManualSync:
    """A group sync whose rounds the test runs."""

    def __init__(self) -> None:
        self.dirty: dict[int, Any] = {}

    def mark(self, replica: object) -> None:
        self.dirty[id(replica)] = replica

    def run(self) -> None:
        dirty, self.dirty = self.dirty, {}
        for replica in dirty.values():
            pending = replica.log.start_sync()
            if pending is not None:
                pending.run()
            replica.synced(pending)


class Leader:
    """The other side: a test reads the requests and writes the responses."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
        self.dropped: list[Endpoint] = []
        self._waiting: list[asyncio.Future[Any]] = []

    async def ask(self, endpoint: Endpoint, key: ApiKey, message: Any, *, timeout_s: float | None = None) -> Any:
        assert (endpoint, key) in {(LEADER, ApiKey.FETCH), (LEADER, ApiKey.LIST_OFFSETS)}
        assert timeout_s is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.requests.put_nowait((message, future))
        return await future

    def drop(self, endpoint: Endpoint) -> None:
        self.dropped.append(endpoint)
        for future in self._waiting:
            if not future.done():
                future.set_exception(UnreachableError("dropped"))


class Logged:
    """Notes the level and the error of each line."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self.lines = lines

    def debug(self, _: str, *, error: str, **__: object) -> None:
        self.lines.append(("debug", error))

    def warning(self, _: str, *, error: str, **__: object) -> None:
        self.lines.append(("warning", error))


class World:
    """A broker that follows partitions of one leader."""

    def __init__(self) -> None:
        self.clock, self.sync, self.leader = Clock(), ManualSync(), Leader()
        self.disk = SimulatedDisk(random.Random(0))
        self.failures: list[Exception] = []
        self.checkpoints = asyncio.Semaphore(100)
        self.tasks: list[asyncio.Task[None]] = []
        self.fetchers = ReplicaFetchers(
            node_id=2,
            config=BrokerConfig({}),
            peers=self.leader,
            endpoint_of=lambda _: LEADER,
            broker_epoch=lambda: 40,
            clock=self.clock,
            truncate=self.truncate,
            checkpoint=self.checkpoint,
            spawn=self.spawn,
        )

    def spawn(self, coroutine: Coroutine[Any, Any, None], _: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def checkpoint(self) -> None:
        await self.checkpoints.acquire()

    async def truncate(self, replica: FollowerReplica, offset: int) -> None:
        replica.log.truncate_to(offset)

    def follow(self, index: int = 0) -> FollowerReplica:
        log = PartitionLog.open(
            self.disk, f"data/rides-{index}", LogConfig(), now_ms=0, clean=False, tail_cache=TailCache(0)
        )
        replica = FollowerReplica(
            topic="rides",
            topic_id=TOPIC,
            index=index,
            leader_id=1,
            leader_epoch=3,
            log=log,
            sync=self.sync,  # type: ignore[arg-type]  # all that a replica asks of it
            report=self.failures.append,
        )
        self.fetchers.follow(replica)
        return replica

    async def request(self) -> tuple[Any, asyncio.Future[Any]]:
        async with asyncio.timeout(30):
            return await self.leader.requests.get()

    async def answered(self, *partitions: PartitionData) -> FetchRequest:
        """Answer the next fetch, and return it."""
        message, future = await self.request()
        assert isinstance(message, FetchRequest)
        future.set_result(
            FetchResponse(session_id=7, responses=[FetchableTopicResponse(topic_id=TOPIC, partitions=list(partitions))])
        )
        return message

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(10):
            await asyncio.sleep(0)


def run(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            await test(world)
        finally:
            for task in world.tasks:
                task.cancel()
            results = await asyncio.gather(*world.tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        assert world.failures == []

    asyncio.run(main())


def batch(base_offset: int, count: int = 1, *, epoch: int = 3, size: int = 10) -> bytes:
    """Return a batch as a leader sends it: with its offset and leader epoch."""
    data = bytearray(build_batch([RecordToWrite(key=None, value=b"v" * size, timestamp=0) for _ in range(count)]))
    data[0:8] = base_offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def data(index: int = 0, records: bytes = b"", *, high_watermark: int = 0, log_start: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=index, high_watermark=high_watermark, log_start_offset=log_start, records=records or None
    )


def offsets(request: FetchRequest) -> dict[int, int]:
    return {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}


def test_records_are_acknowledged_when_they_are_on_the_disk() -> None:
    async def test(world: World) -> None:
        replica = world.follow()
        assert offsets(await world.answered(data(0, batch(0, 3), high_watermark=2))) == {0: 0}
        await world.settle()
        assert replica.log.log_end_offset == 3
        assert world.leader.requests.empty(), "its offset would acknowledge what a power cut may take"
        assert replica.log.high_watermark == 0
        world.sync.run()
        assert offsets(await world.answered()) == {0: 3}
        assert replica.log.high_watermark == 2
        await world.answered(data(0, high_watermark=3))
        await world.settle()
        assert replica.log.high_watermark == 3

    run(test)


def test_a_replica_with_records_that_are_not_synced_is_not_asked_for() -> None:
    async def test(world: World) -> None:
        replica = world.follow()
        world.fetchers.leave(replica)
        replica.append(batch(0), now_ms=0)
        world.fetchers.follow(replica)
        await world.settle()
        assert world.leader.requests.empty()
        world.sync.run()
        world.clock.ms += 1_000
        assert offsets(await world.answered()) == {0: 1}

    run(test)


def test_a_log_that_parts_from_the_leaders_is_cut() -> None:
    async def test(world: World) -> None:
        replica = world.follow()
        await world.answered(data(0, batch(0, epoch=1) + batch(1, epoch=1) + batch(2, epoch=2), high_watermark=1))
        await world.settle()
        world.sync.run()
        parted = data(0)
        parted.diverging_epoch = EpochEndOffset(epoch=1, end_offset=5)
        await world.answered(parted)
        request, _ = await world.request()
        assert offsets(request) == {0: 2}
        assert request.topics[0].partitions[0].last_fetched_epoch == 1
        assert replica.log.leader_epochs.entries == [(1, 0)]

    run(test)


def test_an_offset_before_the_leaders_log_begins_the_log_anew() -> None:
    async def test(world: World) -> None:
        replica = world.follow()
        missing = data(0)
        missing.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        await world.answered(missing)
        for offset in (90, 50):  # the leader's log ends and starts there
            asked, future = await world.request()
            assert asked.replica_id == 2
            answer = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
            future.set_result(ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="rides", partitions=[answer])]))
        assert offsets(await world.answered()) == {0: 50}
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (50, 50)

    run(test)


def starts(request: FetchRequest) -> dict[int, int]:
    return {one.partition: one.log_start_offset for topic in request.topics for one in topic.partitions}


def test_an_empty_log_begins_with_the_batch_that_holds_the_leaders_log_start() -> None:
    async def test(world: World) -> None:
        replica = world.follow()
        world.fetchers.leave(replica)
        replica.log.restart_at(5, now_ms=0)
        world.fetchers.follow(replica)
        await world.answered(data(0, batch(3, 4), high_watermark=7, log_start=5))
        await world.settle()
        world.sync.run()
        assert offsets(await world.answered(data(0, high_watermark=7, log_start=5))) == {0: 7}
        await world.settle()
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (5, 7)

    run(test)


def test_a_log_start_is_reported_to_the_leader_when_it_survives_a_crash() -> None:
    async def test(world: World) -> None:
        world.checkpoints = asyncio.Semaphore(0)
        replica = world.follow()
        assert starts(await world.answered(data(0, batch(0, 4), high_watermark=4, log_start=3))) == {0: 0}
        await world.settle()
        assert replica.log.log_start_offset == 0, "what is not on the disk is not committed here"
        world.sync.run()
        await world.settle()
        assert replica.log.log_start_offset == 3
        assert world.leader.requests.empty(), "the checkpoint is not written"
        world.checkpoints.release()
        request = await world.answered()
        assert (offsets(request), starts(request)) == ({0: 4}, {0: 3})

    run(test)


def test_a_partition_with_damaged_records_pauses_and_the_others_go_on() -> None:
    async def test(world: World) -> None:
        damaged, intact = world.follow(0), world.follow(1)
        flipped = bytearray(batch(0))
        flipped[-1] ^= 1
        await world.answered(data(0, bytes(flipped)), data(1, batch(0)))
        await world.settle()
        world.sync.run()
        request = await world.answered()
        assert offsets(request) == {1: 1}
        assert [one.partitions for one in request.forgotten_topics_data] == [[0]]
        assert damaged.log.log_end_offset == 0
        assert intact.log.log_end_offset == 1

    run(test)


def test_a_refusal_that_passes_is_no_news_and_another_is_one_until_the_leader_answers() -> None:
    async def test(world: World) -> None:
        world.follow()
        logged: list[tuple[str, str]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica_fetchers, "log", Logged(logged))
            failed, passing = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_LEADER_EPOCH
            for code in (passing, failed, passing, failed, ErrorCode.NONE, failed):
                answer = data(0)
                answer.error_code = code
                await world.answered(answer)
                await world.settle()
                world.clock.ms += 10_000
        assert logged == [
            ("debug", "UNKNOWN_LEADER_EPOCH"),
            ("warning", "KAFKA_STORAGE_ERROR"),
            ("debug", "UNKNOWN_LEADER_EPOCH"),
            ("warning", "KAFKA_STORAGE_ERROR"),
        ]

    run(test)


def test_a_new_partition_takes_the_place_of_the_request_that_is_under_way() -> None:
    async def test(world: World) -> None:
        world.follow(0)
        await world.answered()
        await world.request()  # which the leader keeps
        world.follow(1)
        assert world.leader.dropped == [LEADER]
        request, _ = await world.request()
        assert (request.session_id, request.session_epoch) == (7, 0)
        assert offsets(request) == {0: 0, 1: 0}

    run(test)


def test_what_arrives_for_a_replica_with_another_role_is_not_written() -> None:
    async def test(world: World) -> None:
        replica, other = world.follow(0), world.follow(1)
        _, future = await world.request()
        world.fetchers.leave(replica)
        replica.resign()
        records = FetchableTopicResponse(topic_id=TOPIC, partitions=[data(0, batch(0)), data(1, batch(0))])
        future.set_result(FetchResponse(session_id=7, responses=[records]))
        await world.settle()
        assert replica.log.log_end_offset == 0
        assert other.log.log_end_offset == 1

    run(test)


def test_a_response_is_cut_to_whole_batches_and_divided_by_segments() -> None:
    first, second, third = batch(0, size=50), batch(1, size=50), batch(2, size=500)
    records = first + second + third
    assert bytes(whole_batches(records + first[:70])) == records
    assert bytes(whole_batches(first[:20])) == b""
    found = [bytes(part) for part in in_segments(memoryview(records), len(first) + len(second))]
    assert found == [first + second, third]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_divided_batches_are_all_there(count: int) -> None:
    records = b"".join(batch(offset) for offset in range(count))
    assert b"".join(bytes(part) for part in in_segments(memoryview(records), 1)) == records
