"""Coordinators follow the leadership of their partitions: what happens when it is lost, and when it comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from hailbus_broker.coordinators.group.offsets import OffsetToCommit
from hailbus_broker.coordinators.transaction.state import State
from hailbus_broker.log import BatchTooLargeError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.list_groups_request import ListGroupsRequest
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.markers import Marker, append_marker
from hailbus_broker.runtime.replay import SLICE_MS, replay_coordinator
from hailbus_broker.runtime.replica import LeaderReplica

from tests.integration.broker.test_coordinator_records import GROUP, commit, committed, find, start_using
from tests.integration.broker.test_uncommitted_metadata import SlowDisk
from tests.integration.broker.wire import Wire, led, server_on, until
from tests.unit.broker.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.runtime.threads import Threads

ANOTHER_BROKER = 99
BOTH_TOPICS = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)


async def elect(node: Node, topic: str, leader: int) -> None:
    """Commit another leader of a topic's only partition, as a controller does."""
    topic_id = node.image.topics[topic].topic_id
    change = PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=leader)
    published = asyncio.Event()
    node.core.publisher.publish([change], node.core.publisher.end_offset, published.set)
    await asyncio.wait_for(published.wait(), 30)


async def elect_again(node: Node, topic: str) -> None:
    """Let this broker lead again, and wait until it has loaded the partition."""
    await elect(node, topic, node.node_id)
    coordinator = node.groups if topic == GROUP_METADATA_TOPIC else node.transactions
    await until(lambda: not coordinator.is_loading, "the end of the load")


def ask_to_join(wire: Wire, member_id: str = "", group: str = GROUP) -> None:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    wire.send(ApiKey.JOIN_GROUP, 3, request)


class Producer:
    """A transactional producer on a connection of its own."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.producer_id, self.producer_epoch, self.sequence = -1, -1, 0

    async def init(self) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000)
        answer = await self.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def write(self, value: bytes) -> ErrorCode:
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="payments",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        added = await self.wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)
        code = ErrorCode(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
        if code:
            return code
        batch = build_batch(
            [RecordToWrite(key=None, value=value, timestamp=1)],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        self.sequence += 1
        data = [PartitionProduceData(index=0, records=bytes(batch))]
        request = ProduceRequest(
            transactional_id="payments",
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name="t", partition_data=data)],
        )
        self.wire.send(ApiKey.PRODUCE, 9, request)
        return (await self.wire.produced())[0]

    def ask_to_commit(self) -> None:
        request = EndTxnRequest(
            transactional_id="payments",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=True,
        )
        self.wire.send(ApiKey.END_TXN, 3, request)

    async def ended(self) -> ErrorCode:
        return ErrorCode((await asyncio.wait_for(self.wire.receive(ApiKey.END_TXN, 3), 30)).error_code)


async def test_a_member_that_waits_is_sent_to_the_new_coordinator(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        first, second, other = [await Wire.to(server.bootstrap) for _ in range(3)]
        await start_using(first)
        ask_to_join(first)
        joined = await first.receive(ApiKey.JOIN_GROUP, 3)
        ask_to_join(second)  # it waits for the first member to join again
        (driver,) = server.node.groups.active()
        await until(lambda: len(driver.shard.groups[GROUP].members) == 2)
        await elect(server.node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)
        answer = await asyncio.wait_for(second.receive(ApiKey.JOIN_GROUP, 3), 30)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=joined.member_id)
        assert (await first.ask(ApiKey.HEARTBEAT, 3, beat)).error_code == ErrorCode.NOT_COORDINATOR
        assert await commit(other, 50) is ErrorCode.NOT_COORDINATOR
        assert (await committed(other))[0] is ErrorCode.NOT_COORDINATOR
        await elect_again(server.node, GROUP_METADATA_TOPIC)
        # The group never had a generation that was recorded; its offsets are there.
        assert (await first.ask(ApiKey.HEARTBEAT, 3, beat)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(other) == (ErrorCode.NONE, 41)
        assert await commit(other, 51) is ErrorCode.NONE
        for wire in (first, second, other):
            wire.close()


async def test_an_open_transaction_outlives_its_coordinators_leadership(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        producer = Producer(wire)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.write(b"before") is ErrorCode.NONE
        await elect(server.node, TRANSACTION_STATE_TOPIC, ANOTHER_BROKER)
        producer.ask_to_commit()
        assert await producer.ended() is ErrorCode.NOT_COORDINATOR
        assert await producer.init() is ErrorCode.NOT_COORDINATOR
        producer.producer_epoch = 1  # its own: the answer held none
        await elect_again(server.node, TRANSACTION_STATE_TOPIC)
        (driver,) = server.node.transactions.active()
        transaction = driver.shard.transactions["payments"]
        producer.producer_id, producer.producer_epoch = transaction.producer_id, transaction.producer_epoch
        assert await producer.write(b"after") is ErrorCode.NONE
        producer.ask_to_commit()
        assert await producer.ended() is ErrorCode.NONE
        log = led(server.node, "t").log
        assert log.last_stable_offset == log.log_end_offset
        wire.close()


async def test_a_prepared_transaction_is_completed_under_the_next_leadership(tmp_path: Path) -> None:
    disk = SlowDisk("/t-0/")
    async with server_on(disk, str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        producer = Producer(wire)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.write(b"value") is ErrorCode.NONE
        disk.may_sync.clear()
        end_offset = led(server.node, "t").log.log_end_offset
        producer.ask_to_commit()
        await until(lambda: led(server.node, "t").log.log_end_offset > end_offset)  # the marker, which is not durable
        (before,) = server.node.transactions.active()
        await elect(server.node, TRANSACTION_STATE_TOPIC, ANOTHER_BROKER)
        records = led_or_follower_end(server.node, TRANSACTION_STATE_TOPIC)
        disk.may_sync.set()
        assert await producer.ended() is ErrorCode.NOT_COORDINATOR, "the commit was not complete"
        await until(lambda: led(server.node, "t").log.high_watermark > end_offset)
        assert led_or_follower_end(server.node, TRANSACTION_STATE_TOPIC) == records, "a former leader has written"
        await elect_again(server.node, TRANSACTION_STATE_TOPIC)
        (after,) = server.node.transactions.active()
        await until(lambda: after.shard.transactions["payments"].state.label == "CompleteCommit")
        assert before.shard.transactions["payments"].state.label == "PrepareCommit"
        log = led(server.node, "t").log
        assert (log.last_stable_offset, log.log_end_offset) == (end_offset + 1, end_offset + 1), "one marker"
        wire.close()


def led_or_follower_end(node: Node, topic: str) -> int:
    """The log end offset of a topic's only partition, whatever the role of its replica."""
    replica: Any = node.replicas.topics[topic][0]  # none of this test's replicas is offline
    end: int = replica.log.log_end_offset
    return end


async def test_a_decision_of_an_earlier_leadership_is_neither_written_nor_acknowledged(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        (driver,) = server.node.groups.active()
        answers: list[ErrorCode | object] = []

        class Request:
            def respond(self, message: object) -> None:
                answers.append(message)

            def respond_error(self, code: ErrorCode) -> None:
                answers.append(code)

        entry = OffsetToCommit(topic="t", topic_id=b"", partition=0, offset=99, leader_epoch=0, metadata="")
        now_ms, wall_ms = driver.now_ms(), driver.clock.wall_ms()
        late, early = [
            driver.shard.commit(GROUP, -1, "", None, [entry], Request(), now_ms=now_ms, wall_ms=wall_ms)
            for _ in range(2)
        ]
        driver.run(early)  # appended, and not durable yet
        assert not answers
        await elect(server.node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)
        assert answers == [ErrorCode.NOT_COORDINATOR]
        await elect_again(server.node, GROUP_METADATA_TOPIC)
        end_offset = led(server.node, GROUP_METADATA_TOPIC).log.log_end_offset
        assert driver.run(late) is ErrorCode.NOT_COORDINATOR
        assert answers == [ErrorCode.NOT_COORDINATOR] * 2
        assert led(server.node, GROUP_METADATA_TOPIC).log.log_end_offset == end_offset
        wire.close()


class HeldThreads:
    """Threads of a coordinator that read nothing before they may."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.may_read = asyncio.Event()

    async def run(self, work: Callable[[], Any]) -> Any:
        await self.may_read.wait()
        return await self.threads.run(work)


async def test_requests_wait_for_the_end_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        node = server.node
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        # A transaction with an offset for the group, whose end comes while the partition is loaded.
        (driver,) = node.groups.active()
        entry = OffsetToCommit(topic="t", topic_id=b"", partition=0, offset=77, leader_epoch=0, metadata="")
        batch = driver.shard.commit(GROUP, -1, "", None, [entry], Token.new(), now_ms=driver.now_ms(), wall_ms=1)
        batch.producer, batch.request = (5, 0), None
        batch.replies.clear()
        assert driver.run(batch) is ErrorCode.NONE
        held = HeldThreads(node.threads)
        monkeypatch.setattr(node.groups, "_threads", held)
        await elect(node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)
        await elect(node, GROUP_METADATA_TOPIC, node.node_id)
        assert await commit(wire, 50) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await committed(wire))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # Clients do not expect this refusal of a heartbeat.
        beat = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="any")
        assert (await wire.ask(ApiKey.HEARTBEAT, 3, beat)).error_code == ErrorCode.NONE
        (loading,) = node.groups.drivers.values()
        for record in batch.records:  # as if the load had come so far
            loading.shard.replay(record.encode_key(), record.encode_value(), now_ms=1, producer_id=5)
        marker = Marker(producer_id=5, producer_epoch=0, coordinator_epoch=0, is_commit=True, must_be_newer=False)
        append_marker(led(node, GROUP_METADATA_TOPIC), marker, now_ms=1)
        assert loading.shard.is_unstable(GROUP, "t", 0), "the marker's place is behind what the load has not read yet"
        held.may_read.set()
        await until(lambda: not node.groups.is_loading)
        assert await committed(wire) == (ErrorCode.NONE, 77)
        assert await commit(wire, 78) is ErrorCode.NONE
        wire.close()


async def test_leadership_that_is_lost_during_a_load_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        node = server.node
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        held = HeldThreads(node.threads)
        monkeypatch.setattr(node.groups, "_threads", held)
        await elect(node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)
        await elect(node, GROUP_METADATA_TOPIC, node.node_id)
        (loading,) = node.groups.drivers.values()
        await elect(node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)
        held.may_read.set()
        assert await commit(wire, 50) is ErrorCode.NOT_COORDINATOR
        await elect_again(node, GROUP_METADATA_TOPIC)
        assert loading.refusal is ErrorCode.NOT_COORDINATOR
        assert await committed(wire) == (ErrorCode.NONE, 41)
        wire.close()


@pytest.mark.parametrize("topic", BOTH_TOPICS)
async def test_a_new_epoch_of_the_same_leader_interrupts_nothing(tmp_path: Path, topic: str) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire, second = [await Wire.to(server.bootstrap) for _ in range(2)]
        await start_using(wire)
        ask_to_join(wire)
        await wire.receive(ApiKey.JOIN_GROUP, 3)
        ask_to_join(second)
        (group_driver,), (driver,) = server.node.groups.active(), server.node.transactions.active()
        await until(lambda: len(group_driver.shard.groups[GROUP].members) == 2)
        before = led(server.node, topic).leader_epoch
        await elect(server.node, topic, server.node.node_id)
        assert led(server.node, topic).leader_epoch > before
        assert list(server.node.groups.active()) == [group_driver]
        assert list(server.node.transactions.active()) == [driver]
        assert driver.shard.coordinator_epoch == led(server.node, TRANSACTION_STATE_TOPIC).leader_epoch
        assert group_driver.leader_epoch == led(server.node, GROUP_METADATA_TOPIC).leader_epoch
        (waiting,) = group_driver.shard.waiting()
        assert waiting is not None
        assert await find(wire) is ErrorCode.NONE
        for each in (wire, second):
            each.close()


class TickingClock:
    """Each look at it takes a millisecond."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        self.time_ms += 1
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms


class Counted:
    """Counts what is replayed into it, and in how many turns of the event loop."""

    def __init__(self) -> None:
        self.record_count = 0
        self.turns: list[int] = []

    def replay_record(self, record: Record, batch: BatchView) -> None:
        del record, batch
        self.record_count += 1

    def replay_marker(self, batch: BatchView) -> None:
        raise AssertionError(batch)

    async def watch(self) -> None:
        while True:
            self.turns.append(self.record_count)
            await asyncio.sleep(0)


async def test_a_load_leaves_the_event_loop_to_others_in_between(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        partition = led(server.node, GROUP_METADATA_TOPIC)
        batch = build_batch([RecordToWrite(key=b"\0\1" + bytes(20), value=None, timestamp=1)] * 5_000)
        partition.append(batch, now_ms=1)
        counted = Counted()
        watcher = asyncio.create_task(counted.watch())
        is_loaded = await replay_coordinator(
            partition, counted, threads=server.node.threads, clock=TickingClock(), is_wanted=lambda: True
        )
        await asyncio.sleep(0)  # the watcher sees what came last, too
        watcher.cancel()
        assert is_loaded
        assert counted.record_count >= 5_000
        steps = [after - before for before, after in zip(counted.turns, counted.turns[1:], strict=False)]
        assert max(steps) <= 32 * SLICE_MS, "one turn of the loop replayed too much"
        wire.close()


async def test_find_coordinator_names_the_leader_of_the_keys_partition(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **{"offsets.topic.num.partitions": "2"}) as server:
        wire = await Wire.to(server.bootstrap)
        keys = ["a", "b", "c"]
        by_partition = {key: partition_for(key, 2) for key in keys}
        assert set(by_partition.values()) == {0, 1}
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
        found = (await wire.ask(ApiKey.FIND_COORDINATOR, 4, request)).coordinators
        assert [(part.key, part.error_code, part.node_id) for part in found] == [
            (key, ErrorCode.NONE, server.node.node_id) for key in keys
        ]
        await elect(server.node, GROUP_METADATA_TOPIC, ANOTHER_BROKER)  # of partition 0
        found = (await wire.ask(ApiKey.FIND_COORDINATOR, 4, request)).coordinators
        for part in found:
            is_elsewhere = by_partition[part.key] == 0
            assert part.error_code == (ErrorCode.COORDINATOR_NOT_AVAILABLE if is_elsewhere else ErrorCode.NONE)
            assert part.node_id == (-1 if is_elsewhere else server.node.node_id)
        elsewhere = next(key for key in keys if by_partition[key] == 0)
        single = await wire.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key_type=0, key=elsewhere))
        assert (single.error_code, single.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        wire.close()


class NotedMarkers:
    """Sends nothing, and remembers what it was to send."""

    def __init__(self) -> None:
        self.sent: list[MarkersToWrite] = []

    def send(self, markers: MarkersToWrite, done: Callable[[list[TopicPartition]], None]) -> None:
        del done
        self.sent.append(markers)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_coordinator_that_is_closed_sends_no_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        producer = Producer(wire)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.write(b"value") is ErrorCode.NONE
        (driver,) = server.node.transactions.active()
        markers = NotedMarkers()
        monkeypatch.setattr(driver, "_marker_sender", markers)
        waiting: list[Callable[[Exception | None], None]] = []
        when_committed = LeaderReplica.when_committed

        def holding(replica: LeaderReplica, end_offset: int, callback: Callable[[Exception | None], None]) -> None:
            if replica is driver.partition:
                waiting.append(callback)
            else:
                when_committed(replica, end_offset, callback)

        monkeypatch.setattr(LeaderReplica, "when_committed", holding)
        producer.ask_to_commit()
        await until(lambda: bool(waiting), "the decision to commit")
        if is_closed:
            driver.close()
        monkeypatch.setattr(LeaderReplica, "when_committed", when_committed)
        for committed_now in waiting:
            committed_now(None)  # PREPARE is durable
        assert len(markers.sent) == (0 if is_closed else 1)
        if is_closed:
            assert await producer.ended() is ErrorCode.NOT_COORDINATOR
        wire.close()


async def test_the_end_of_a_transaction_that_cannot_be_recorded_is_recorded_a_second_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        producer = Producer(wire)
        assert await producer.init() is ErrorCode.NONE
        assert await producer.write(b"value") is ErrorCode.NONE
        (driver,) = server.node.transactions.active()
        append, states = driver._append, []

        def refusing_once(outcome: Outcome, encoded: list[tuple[bytes, bytes | None]]) -> None:
            state = driver.shard.transactions["payments"].state
            states.append(state)
            if states.count(State.PREPARE_COMMIT) == 1 and state is State.PREPARE_COMMIT:
                raise BatchTooLargeError("the record of the end does not fit")
            append(outcome, encoded)

        monkeypatch.setattr(driver, "_append", refusing_once)
        log = led(server.node, "t").log
        end_offset = log.log_end_offset
        producer.ask_to_commit()
        await until(lambda: driver.shard.transactions["payments"].state is State.COMPLETE_COMMIT, "the recorded end")
        assert states == [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_COMMIT]
        assert log.log_end_offset == end_offset + 1, "the marker is written once"
        assert log.last_stable_offset == log.log_end_offset
        assert await producer.ended() is ErrorCode.NONE
        wire.close()
