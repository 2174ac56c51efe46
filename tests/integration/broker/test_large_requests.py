"""A request about many topics or partitions leaves the event loop to others in between."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.options import TOPIC_OPTIONS
from hailbus_broker.coordinators.group import group_expiry
from hailbus_broker.coordinators.group import offsets as group_offsets
from hailbus_broker.coordinators.group.offsets import CommittedOffsets
from hailbus_broker.coordinators.outcome import Outcome
from hailbus_broker.log import PartitionLog, log_directory
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.definitions.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest, MetadataRequestTopic
from hailbus_broker.protocol.definitions.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from hailbus_broker.protocol.definitions.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches
from hailbus_broker.runtime import descriptors, group_sync, metadata_log, shard_driver
from hailbus_broker.runtime.coordinator import Coordinator
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.runtime.shard_driver import REPLIES_AT_ONCE
from hailbus_broker.server.dispatch import DECODED_IN_LOOP_BYTES
from hailbus_broker.server.handlers import cluster, configs, fetch, offsets, produce, topics
from hailbus_broker.server.handlers.log_offsets import SLICE
from hailbus_broker.server.request import MANY_ENTRIES, has_many_entries
from hailbus_broker.testing.broker import UnsyncedDisk

from tests.integration.broker.wire import Wire, led, server_on, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hailbus_broker.cluster.controller import Controller
    from hailbus_broker.log import TopicPartition
    from hailbus_broker.server.request import Request


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_counting = True

    def tick(self) -> None:
        self.count += 1
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self.tick)

    def stop(self) -> None:
        self._is_counting = False


@contextmanager
def counted_turns() -> Iterator[Turns]:
    turns = Turns()
    turns.tick()
    try:
        yield turns
    finally:
        turns.stop()


async def test_many_topics_are_created_in_as_many_turns(tmp_path: Path) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        started: list[int] = []
        create = server.node.controller.create_topic
        with counted_turns() as turns:

            def noting(*arguments: object, **options: object) -> object:
                started.append(turns.count)
                return create(*arguments, **options)  # type: ignore[arg-type]  # passed on

            server.node.controller.create_topic = noting  # type: ignore[method-assign,assignment]  # it calls the method
            topics = [
                CreatableTopic(name=f"t-{number}", num_partitions=1, replication_factor=1) for number in range(40)
            ]
            response = await wire.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        assert {topic.error_code for topic in response.topics} == {ErrorCode.NONE}
        assert len(set(started)) == len(started) == 40
        wire.close()


async def test_the_offsets_of_many_partitions_are_listed_in_several_turns(tmp_path: Path) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        count = 3 * SLICE + 1
        assert await wire.create("wide", count) == ErrorCode.NONE
        asked: list[int] = []
        replicas = server.node.replicas
        leader = replicas.leader
        with counted_turns() as turns:

            def noting(topic: str, index: int) -> object:
                asked.append(turns.count)
                return leader(topic, index)

            replicas.leader = noting  # type: ignore[method-assign,assignment]  # as above
            partitions = [
                ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-1)
                for index in range(count)
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(name="wide", partitions=partitions[:70]),
                    ListOffsetsTopic(name="none", partitions=[]),
                    ListOffsetsTopic(name="wide", partitions=partitions[70:]),
                ],
            )
            response = await wire.ask(ApiKey.LIST_OFFSETS, 7, request)
        assert [len(topic.partitions) for topic in response.topics] == [70, 0, count - 70]
        results = [result for topic in response.topics for result in topic.partitions]
        assert [(result.partition_index, result.error_code, result.offset) for result in results] == [
            (index, ErrorCode.NONE, 0) for index in range(count)
        ]
        assert max(asked.count(turn) for turn in asked) == SLICE
        wire.close()


async def test_many_topics_are_described_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        assert await wire.create("rides") == ErrorCode.NONE
        described: list[int] = []
        of_topic = configs.TopicConfigs.of
        with counted_turns() as turns:

            def noting(table: configs.TopicConfigs, overrides: dict[str, str]) -> object:
                described.append(turns.count)
                return of_topic(table, overrides)

            monkeypatch.setattr(configs.TopicConfigs, "of", noting)
            asked = [
                DescribeConfigsResource(resource_type=2, resource_name="rides", configuration_keys=None)
                for _ in range(4 * configs.SLICE)
            ]
            response = await wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=asked))
        assert [result.error_code for result in response.results] == [ErrorCode.NONE] * len(asked)
        assert {tuple(entry.name for entry in result.configs) for result in response.results} == {
            tuple(sorted(TOPIC_OPTIONS))
        }
        assert max(described.count(turn) for turn in described) <= configs.SLICE
        wire.close()


async def test_a_large_request_is_decoded_and_a_large_answer_encoded_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        names = [f"topic-{number:04d}-{'x' * 20}" for number in range(MANY_ENTRIES + 1)]
        creation = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names],
            timeout_ms=60_000,
        )
        assert len(codec.encode(creation, 5)) > DECODED_IN_LOOP_BYTES
        done_in: dict[str, set[int]] = {"decode": set(), "encode": set()}
        decode, encode = codec.decode, codec.encode

        def decoding(kind: type, *arguments: object, **options: object) -> object:
            if kind is CreateTopicsRequest:
                done_in["decode"].add(threading.get_ident())
            return decode(kind, *arguments, **options)  # type: ignore[arg-type]  # passed on

        def encoding(message: object, *arguments: object) -> object:
            if type(message).__name__ in {"CreateTopicsResponse", "MetadataResponse"}:
                done_in["encode"].add(threading.get_ident())
            return encode(message, *arguments)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(codec, "decode", decoding)
        monkeypatch.setattr(codec, "encode", encoding)
        created = await wire.ask(ApiKey.CREATE_TOPICS, 5, creation)
        everything = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        again = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        monkeypatch.undo()
        assert [topic.name for topic in created.topics] == names
        assert [topic.name for topic in everything.topics] == names
        assert again == everything
        assert done_in["decode"]
        assert done_in["encode"]
        assert threading.get_ident() not in done_in["decode"] | done_in["encode"]
        wire.close()


def test_entries_are_counted_on_both_levels() -> None:
    def request(topics: int, partitions: int) -> ListOffsetsRequest:
        return ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition() for _ in range(partitions)])
                for _ in range(topics)
            ]
        )

    assert not has_many_entries(request(1, MANY_ENTRIES - 1))
    assert has_many_entries(request(1, MANY_ENTRIES))
    assert has_many_entries(request(MANY_ENTRIES + 1, 0))
    assert not has_many_entries(request(0, 0))


async def test_a_produce_for_many_partitions_is_begun_in_slices_and_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        count = 2 * group_sync.LANES * group_sync.SLICE + 1
        assert await wire.create("wide", count) == ErrorCode.NONE

        def request(value: bytes, indexes: Sequence[int]) -> ProduceRequest:
            batch = bytes(build_batch([RecordToWrite(key=None, value=value, timestamp=1)]))
            parts = [PartitionProduceData(index=index, records=batch) for index in indexes]
            return ProduceRequest(
                acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name="wide", partition_data=parts)]
            )

        begun: list[int] = []
        synced: list[tuple[int, int]] = []
        sizes: list[int] = []
        built_in: set[int] = set()
        decoded_in: list[int] = []
        append, account, sync = LeaderReplica.append, LeaderReplica.synced, group_sync._run
        build, decode = produce._response, produce._decoded
        all_begun = threading.Event()
        with counted_turns() as turns:

            def appending(replica: LeaderReplica, *arguments: object, **options: object) -> object:
                begun.append(turns.count)
                if len(begun) == count:
                    all_begun.set()
                return append(replica, *arguments, **options)  # type: ignore[arg-type]  # passed on

            def accounting(replica: LeaderReplica, *arguments: object) -> None:
                synced.append((turns.count, replica.lane))  # lanes may have their turn together
                account(replica, *arguments)  # type: ignore[arg-type]  # passed on

            def syncing(rounds: group_sync.Rounds) -> group_sync.Results:
                assert all_begun.wait(30)  # so the next round could have all that is left
                sizes.append(len(rounds))
                return sync(rounds)

            def building(topics: produce.Topics) -> object:
                built_in.add(threading.get_ident())
                return build(topics)

            def decoding(request: Request, now_ms: int) -> object:
                decoded_in.append(threading.get_ident())
                return decode(request, now_ms)

            monkeypatch.setattr(produce, "_decoded", decoding)
            monkeypatch.setattr(group_sync, "_run", syncing)
            monkeypatch.setattr(group_sync, "ROUND", 60)
            monkeypatch.setattr(produce, "_response", building)
            monkeypatch.setattr(LeaderReplica, "append", appending)
            monkeypatch.setattr(LeaderReplica, "synced", accounting)
            wire.send(ApiKey.PRODUCE, 9, request(b"first", range(count)))
            wire.send(ApiKey.PRODUCE, 9, request(b"second", [count - 1]))  # pipelined: it must not come first
            answers = [await wire.receive(ApiKey.PRODUCE, 9) for _ in range(2)]
            monkeypatch.undo()
        assert len(begun) == count + 1
        assert max(begun.count(turn) for turn in begun) <= produce.SLICE + 1
        assert max(synced.count(turn) for turn in synced) <= group_sync.SLICE
        assert max(sizes) == 60
        assert count <= sum(sizes) <= count + 1
        assert len(built_in - {threading.get_ident()}) >= 1, "a thread makes the large answer"
        assert len(decoded_in) == 1, "the small request is read by hand"
        assert threading.get_ident() not in decoded_in
        parts = [part for answer in answers for part in answer.responses[0].partition_responses]
        assert [(part.error_code, part.base_offset) for part in parts] == [(ErrorCode.NONE, 0)] * count + [
            (ErrorCode.NONE, 1)
        ]
        wire.close()


async def test_a_fetch_of_many_partitions_is_read_in_slices_and_misses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_synced = {"log.flush.interval.messages": "1000"}  # so readers are notified within the append
    async with server_on(UnsyncedDisk(), str(tmp_path), **not_synced) as server:
        wire, other = await Wire.to(server.bootstrap), await Wire.to(server.bootstrap)
        monkeypatch.setattr(fetch, "SLICE", 20)
        count = 3 * fetch.SLICE + 1
        assert await wire.create("wide", count) == ErrorCode.NONE
        request = FetchRequest(
            max_wait_ms=25_000,
            min_bytes=1,
            max_bytes=2**20,
            topics=[
                FetchTopic(
                    topic="wide",
                    partitions=[
                        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=2**20)
                        for index in range(count)
                    ],
                )
            ],
        )
        read_in: list[int] = []
        read = fetch.ParkedFetch.read
        with counted_turns() as turns:

            def reading(parked: fetch.ParkedFetch, so_far: fetch._Reading, start: int, end: int) -> None:
                assert end - start == fetch.SLICE
                read_in.append(turns.count)
                if len(read_in) == 4:  # the first partition was read long ago
                    first = led(server.node, "wide", 0)
                    first.append(build_batch([RecordToWrite(key=None, value=b"late", timestamp=1)]), now_ms=1)
                read(parked, so_far, start, end)

            monkeypatch.setattr(fetch.ParkedFetch, "read", reading)
            async with asyncio.timeout(20):
                answer = await wire.ask(ApiKey.FETCH, 11, request)
            assert len(set(read_in)) == len(read_in), "one slice in a turn"
            # Parked: what comes later is noticed, too.
            request.topics[0].partitions[0].fetch_offset = 1
            wire.send(ApiKey.FETCH, 11, request)
            await until(lambda: len(led(server.node, "wide", count - 1).readers) == 1, "a parked fetch")
            assert await other.produce("wide", [b"later"], count - 1) == (ErrorCode.NONE, 0)
            async with asyncio.timeout(20):
                second = await wire.receive(ApiKey.FETCH, 11)
        partitions = answer.responses[0].partitions
        assert [part.partition_index for part in partitions] == list(range(count))
        assert [part.partition_index for part in partitions if part.records] == [0]
        found = [part.partition_index for part in second.responses[0].partitions if part.records]
        assert found == [count - 1]
        assert not any(led(server.node, "wide", index).readers for index in range(count))
        wire.close()
        other.close()


async def with_committed_offsets(wire: Wire, count: int, *, is_new: bool = True) -> None:
    """Commit offset 7 of each partition of the topic `wide`, for a group without members."""
    if is_new:
        assert await wire.create("wide", count) == ErrorCode.NONE
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    assert (await wire.ask(ApiKey.FIND_COORDINATOR, 4, asked)).coordinators[0].error_code == ErrorCode.NONE
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata="")
        for index in range(count)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="wide", partitions=partitions)],
    )
    async with asyncio.timeout(30):
        while True:
            answer = await wire.ask(ApiKey.OFFSET_COMMIT, 9, request)
            codes = {part.error_code for topic in answer.topics for part in topic.partitions}
            if codes == {ErrorCode.NONE}:
                return
            await asyncio.sleep(0.01)


async def test_many_committed_offsets_are_answered_for_by_a_thread_and_are_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MADE_IN_LOOP", 40)
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await with_committed_offsets(wire, 60)
        shard = next(shard for shard in server.node.groups.shards() if "g" in shard.group_ids())
        loop = asyncio.get_running_loop()
        made_in: list[int] = []
        make = offsets._GroupAnswer.make

        async def commit_more() -> None:
            of_group = shard.offsets["g"]
            of_group["wide", 0] = of_group["wide", 0]._replace(offset=8)
            of_group["wide", 60] = of_group["wide", 0]

        def making(parts: offsets._GroupAnswer) -> object:
            made_in.append(threading.get_ident())
            asyncio.run_coroutine_threadsafe(commit_more(), loop).result(10)
            return make(parts)

        def request(indexes: Sequence[int] | None) -> OffsetFetchRequest:
            asked = None
            if indexes is not None:
                asked = [OffsetFetchRequestTopics(name="wide", partition_indexes=list(indexes))]
            return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)])

        monkeypatch.setattr(offsets._GroupAnswer, "make", making)
        everything = await wire.ask(ApiKey.OFFSET_FETCH, 9, request(None))
        del shard.offsets["g"]["wide", 60]
        await with_committed_offsets(wire, 60, is_new=False)
        named = await wire.ask(ApiKey.OFFSET_FETCH, 9, request(range(60)))
        for answer in (everything, named):
            parts = answer.groups[0].topics[0].partitions
            assert [(part.partition_index, part.committed_offset) for part in parts] == [(n, 7) for n in range(60)]
        assert len(made_in) == 2
        assert threading.get_ident() not in made_in
        monkeypatch.undo()
        few = await wire.ask(ApiKey.OFFSET_FETCH, 9, request([0]))
        assert [part.committed_offset for part in few.groups[0].topics[0].partitions] == [8]
        wire.close()


async def test_metadata_of_many_partitions_is_made_by_a_thread_and_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MADE_IN_LOOP", 40)
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire, other = await Wire.to(server.bootstrap), await Wire.to(server.bootstrap)
        assert await wire.create("wide", 60) == ErrorCode.NONE
        loop = asyncio.get_running_loop()
        made_in: list[int] = []
        response = cluster._response

        def making(*arguments: object) -> object:
            made_in.append(threading.get_ident())
            if len(made_in) <= 2:
                created = other.create(f"late-{len(made_in)}")
                assert asyncio.run_coroutine_threadsafe(created, loop).result(10) == ErrorCode.NONE
            return response(*arguments)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(cluster, "_response", making)
        everything = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        named = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name="wide")]))
        again = await wire.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        assert [topic.name for topic in everything.topics] == ["wide"]
        assert [topic.name for topic in again.topics] == ["late-1", "late-2", "wide"]
        for answer in (everything, named):
            assert [part.partition_index for part in answer.topics[0].partitions] == list(range(60))
        assert len(made_in) == 3
        assert threading.get_ident() not in made_in
        wire.close()
        other.close()


async def test_a_large_topic_is_decided_by_a_thread_and_loses_no_other_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "DECIDED_IN_LOOP", 40)
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire, other = await Wire.to(server.bootstrap), await Wire.to(server.bootstrap)
        loop = asyncio.get_running_loop()
        decided_in: list[int] = []
        create = topics._create

        def creating(topic: CreatableTopic, controller: Controller, *, is_written: bool) -> object:
            if topic.num_partitions > 1:
                decided_in.append(threading.get_ident())
                if len(decided_in) <= overtaken:
                    created = other.create(f"{topic.name}-{len(decided_in)}")
                    assert asyncio.run_coroutine_threadsafe(created, loop).result(10) == ErrorCode.NONE
            return create(topic, controller, is_written=is_written)

        monkeypatch.setattr(topics, "_create", creating)
        overtaken = 0
        codes = await asyncio.gather(wire.create("wide", 60), other.create("wide", 60))
        assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert threading.get_ident() not in decided_in
        decided_in.clear()
        overtaken = metadata_log.DRAFTS
        assert await wire.create("late", 60) == ErrorCode.NONE
        assert [thread == threading.get_ident() for thread in decided_in] == [False] * metadata_log.DRAFTS + [True]
        image = server.node.image
        assert sorted(image.topics) == ["late", "late-1", "late-2", "late-3", "wide"]
        assert server.node.controller.image.to_records() == image.to_records()
        assert len(image.topics["wide"].partitions) == len(image.topics["late"].partitions) == 60
        more = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="wide", count=120, assignments=None)], timeout_ms=10_000
        )
        assert (await wire.ask(ApiKey.CREATE_PARTITIONS, 3, more)).results[0].error_code == ErrorCode.NONE
        assert len(server.node.image.topics["wide"].partitions) == len(server.node.replicas.topics["wide"]) == 120
        wire.close()
        other.close()


async def test_a_checkpoint_of_many_logs_is_noted_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory, "CHECKPOINT_SLICE", 20)
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        assert await wire.create("wide", 61) == ErrorCode.NONE
        assert await wire.produce("wide", [b"a", b"b"], 60) == (ErrorCode.NONE, 0)
        noted: list[int] = []
        formatted_in: set[int] = set()
        prepare, format_offsets = PartitionLog.prepare_checkpoint, log_directory._format_offsets
        with counted_turns() as turns:

            def noting(partition_log: PartitionLog) -> object:
                noted.append(turns.count)
                return prepare(partition_log)

            def formatting(table: dict[TopicPartition, int]) -> bytes:
                formatted_in.add(threading.get_ident())
                return format_offsets(table)

            monkeypatch.setattr(PartitionLog, "prepare_checkpoint", noting)
            monkeypatch.setattr(log_directory, "_format_offsets", formatting)
            await server.node.checkpoint()
        assert len(noted) == 61
        assert max(noted.count(turn) for turn in noted) == 20
        assert threading.get_ident() not in formatted_in
        lines = (tmp_path / "recovery-point-offset-checkpoint").read_text().splitlines()
        assert "wide 60 2" in lines
        assert sum(line.startswith("wide ") for line in lines) == 61
        wire.close()


async def test_a_commit_of_many_offsets_is_prepared_by_a_thread_and_is_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        count = offsets.PREPARED_IN_THREAD + 1
        await with_committed_offsets(wire, 3)
        prepared_in: set[int] = set()
        answered_in: set[int] = set()
        prepare, respond = CommittedOffsets.prepare, group_offsets.commit_response

        def answering(*arguments: object) -> object:
            answered_in.add(threading.get_ident())
            return respond(*arguments)  # type: ignore[arg-type]  # passed on

        def replaying(*_: object) -> None:
            raise AssertionError("the loop replays the records one by one")

        monkeypatch.setattr(group_offsets, "commit_response", answering)
        monkeypatch.setattr(CommittedOffsets, "replay", replaying)

        def noting(*arguments: object, **options: object) -> object:
            prepared_in.add(threading.get_ident())
            return prepare(*arguments, **options)  # type: ignore[arg-type]  # passed on

        driver = next(driver for driver in server.node.groups.active() if "g" in driver.shard.group_ids())
        monkeypatch.setattr(driver.shard, "prepare_commit", partial(noting, driver.shard._offsets))
        assert await wire.create("wider", count) == ErrorCode.NONE
        before = driver.partition.log.log_end_offset
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="here")
            for index in range(count + 1)
        ]
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name="wider", partitions=partitions)],
        )
        answer = await wire.ask(ApiKey.OFFSET_COMMIT, 9, request)
        codes = [part.error_code for part in answer.topics[0].partitions]
        assert codes == [ErrorCode.NONE] * count + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert len(prepared_in) == 1
        assert prepared_in == answered_in
        assert threading.get_ident() not in prepared_in
        found = driver.shard.all_committed("g")
        assert {where: entry.offset for where, entry in found.items() if where[0] == "wider"} == {
            ("wider", index): index for index in range(count)
        }
        read = driver.partition.log.read(before, 2**20)
        assert [batch.header.record_count for batch in iterate_batches(b"".join(read.buffers))] == [count]
        wire.close()


async def test_the_end_of_a_rebalance_answers_its_members_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await with_committed_offsets(wire, 1)
        driver = next(driver for driver in server.node.groups.active() if "g" in driver.shard.group_ids())
        answered: list[tuple[int, int]] = []
        with counted_turns() as turns:

            class Member:
                def __init__(self, number: int) -> None:
                    self.number = number

                def respond(self, _: object) -> None:
                    answered.append((turns.count, self.number))
                    if self.number == 7:
                        raise RuntimeError("a member that cannot be answered")

                def respond_error(self, code: ErrorCode) -> None:
                    assert code is ErrorCode.UNKNOWN_SERVER_ERROR
                    assert self.number == 7

            logged: list[tuple[int, int]] = []

            class Lines:
                @staticmethod
                def info(name: str, *, number: int) -> None:
                    assert name == "member_removed"
                    logged.append((turns.count, number))

                exception = staticmethod(shard_driver.log.exception)

            monkeypatch.setattr(shard_driver, "log", Lines)
            outcome = Outcome()
            count = 3 * REPLIES_AT_ONCE + 1
            outcome.log_events = [("member_removed", {"number": number}) for number in range(count)]
            for number in range(count):
                outcome.reply(Member(number), HeartbeatResponse())
            assert driver.run(outcome) is ErrorCode.NONE
            await until(lambda: len(answered) == len(logged) == count)
        assert [number for _, number in answered] == list(range(count))
        in_turns = Counter(turn for turn, _ in answered)
        assert sorted(in_turns.values(), reverse=True) == [REPLIES_AT_ONCE] * 3 + [1]
        assert [number for _, number in logged] == list(range(count))
        assert max(Counter(turn for turn, _ in logged).values()) == shard_driver.LOGGED_AT_ONCE
        wire.close()


async def test_the_offsets_of_a_deleted_topic_are_removed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_expiry, "FORGOTTEN_AT_ONCE", 30)
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await with_committed_offsets(wire, 100)
        driver = next(driver for driver in server.node.groups.active() if "g" in driver.shard.group_ids())
        decided: list[tuple[int, int]] = []
        run = driver.run
        with counted_turns() as turns:

            def noting(outcome: object) -> object:
                decided.append((turns.count, len(outcome.records)))  # type: ignore[attr-defined]  # an Outcome
                return run(outcome)  # type: ignore[arg-type]  # as above

            driver.run = noting  # type: ignore[method-assign,assignment]  # it calls the method
            deletion = DeleteTopicsRequest(topic_names=["wide"], timeout_ms=10_000)
            response = await wire.ask(ApiKey.DELETE_TOPICS, 5, deletion)
        assert response.responses[0].error_code == ErrorCode.NONE
        assert [count for _, count in decided] == [30, 30, 30, 10]
        assert all(after > before for (before, _), (after, _) in pairwise(decided)), "one decision in a turn"
        assert not driver.shard.all_committed("g")
        wire.close()


async def test_coordinators_look_at_their_partitions_only_when_these_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(UnsyncedDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        followed: list[object] = []
        follow = Coordinator._follow

        def noting(coordinator: object, image: object) -> object:
            followed.append(coordinator)
            return follow(coordinator, image)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(Coordinator, "_follow", noting)
        for number in range(5):
            assert await wire.create(f"topic-{number}") == ErrorCode.NONE
        assert followed == []
        await wire.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        assert followed == [server.node.groups]
        wire.close()


def test_the_number_of_open_files_is_that_of_a_listing() -> None:
    listed = len(os.listdir("/dev/fd"))  # noqa: PTH208 - one is that of the listing itself
    assert listed - 1 <= descriptors._open_count() <= listed
