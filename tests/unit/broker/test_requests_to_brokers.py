"""What a broker asks others about transactions: markers to leaders, checks of partitions to coordinators."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.raft.voters import Endpoint
from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions import (
    add_partitions_to_txn_response,
    write_txn_markers_response,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.cluster_markers import ClusterMarkers
from hailbus_broker.runtime.markers import LocalMarkers
from hailbus_broker.runtime.remote_coordinators import PartitionCheck, RemoteCoordinators

from tests.unit.broker.cluster_of_brokers import Brokers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hailbus_broker.coordinators.transaction.state import TopicPartition


def spawn(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(coroutine, name=name)


def endpoint_of(broker_id: int) -> Endpoint:
    return Endpoint("CLIENT", f"broker{broker_id}", 9092)


class Peers:
    """Other brokers, which answer as a test says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}
        self.down: set[str] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self, endpoint: Endpoint, key: ApiKey, message: Any, *, timeout_s: float | None = None) -> Any:
        assert timeout_s is not None
        self.requests.append((endpoint.host, message))
        await self.may_answer.wait()
        if endpoint.host in self.down:
            raise UnreachableError("down")
        if key is ApiKey.WRITE_TXN_MARKERS:
            return self._markers(message)
        return self._checks(message)

    def _markers(self, message: Any) -> Any:
        found = write_txn_markers_response
        return found.WriteTxnMarkersResponse(
            markers=[
                found.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        found.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                found.WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self.codes.get((topic.name, index), ErrorCode.NONE),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in message.markers
            ]
        )

    def _checks(self, message: Any) -> Any:
        found = add_partitions_to_txn_response
        return found.AddPartitionsToTxnResponse(
            results_by_transaction=[
                found.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        found.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                found.AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=self.codes.get((topic.name, index), ErrorCode.NONE),
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in message.transactions
            ]
        )


class Local:
    """The partitions of this broker."""

    def __init__(self) -> None:
        self.written: list[TopicPartition] = []

    def send(self, markers: MarkersToWrite, done: Callable[[list[TopicPartition]], None]) -> None:
        self.written += markers.partitions
        done([])


def markers_for(*indexes: int, producer_id: int = 7) -> MarkersToWrite:
    return MarkersToWrite(
        transactional_id=f"t{producer_id}",
        producer_id=producer_id,
        producer_epoch=3,
        coordinator_epoch=1,
        is_commit=True,
        partitions=tuple(("rides", index) for index in indexes),
        must_be_newer=True,
        is_resumed=False,
    )


class Markers:
    """The markers of broker 1, in a cluster whose partition N is led by broker N + 1."""

    def __init__(self) -> None:
        self.cluster = Brokers(1, 2, 3)
        self.cluster.create([1], [2], [3], [3])
        self.peers = Peers()
        self.local = Local()
        peers: Any = self.peers
        self.sender = ClusterMarkers(
            node_id=1,
            image=lambda: self.cluster.image,
            local=self.local,
            endpoint_of=endpoint_of,
            peers=peers,
            spawn=spawn,
        )

    async def send(self, markers: MarkersToWrite) -> list[TopicPartition]:
        done: asyncio.Future[list[TopicPartition]] = asyncio.get_running_loop().create_future()
        self.sender.send(markers, lambda failed: done.set_result(sorted(failed)))
        return await done


def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    async def run() -> None:
        bench = Markers()
        assert await bench.send(markers_for(0, 1, 2, 3)) == []
        assert bench.local.written == [("rides", 0)]
        sent = {host: message.markers[0] for host, message in bench.peers.requests}
        assert {host: one.topics[0].partition_indexes for host, one in sent.items()} == {
            "broker2": [1],
            "broker3": [2, 3],
        }
        marker = sent["broker2"]
        assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
        assert (marker.coordinator_epoch, marker.transaction_version) == (1, 2)

    asyncio.run(run())


def test_partitions_fail_where_another_try_may_succeed() -> None:
    async def run() -> None:
        bench = Markers()
        bench.peers.codes = {
            ("rides", 1): ErrorCode.INVALID_PRODUCER_EPOCH,  # it has a newer marker, so it had this one
            ("rides", 2): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ("rides", 3): ErrorCode.NOT_ENOUGH_REPLICAS,
        }
        assert await bench.send(markers_for(0, 1, 2, 3)) == [("rides", 2), ("rides", 3)]
        bench.peers.codes = {("rides", 1): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert await bench.send(markers_for(1)) == [("rides", 1)]
        bench.peers.codes = {}
        bench.peers.down = {"broker3"}
        assert await bench.send(markers_for(0, 1, 2, 3)) == [("rides", 2), ("rides", 3)]
        bench.cluster.fence(2)
        assert await bench.send(markers_for(0, 1)) == [("rides", 1)]

    asyncio.run(run())


def test_a_deleted_partition_needs_no_marker() -> None:
    async def run() -> None:
        bench = Markers()
        assert await bench.send(replace(markers_for(), partitions=(("gone", 0), ("rides", 9), ("rides", 1)))) == []
        assert await bench.send(replace(markers_for(), partitions=(("gone", 0),))) == []
        assert [host for host, _ in bench.peers.requests] == ["broker2"]

    asyncio.run(run())


def test_a_partition_that_this_broker_is_about_to_host_is_tried_again() -> None:
    """The image names a new leader a moment before the replicas follow it."""
    replicas: Any = SimpleNamespace(leader=lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    clock: Any = None  # nothing is written
    found: list[list[TopicPartition]] = []
    LocalMarkers(replicas, clock, lambda topic, index: (topic, index) == ("rides", 0)).send(
        markers_for(0, 1), found.append
    )
    assert found == [[("rides", 0)]]


def test_markers_queue_up_behind_a_request_and_leave_together() -> None:
    async def run() -> None:
        bench = Markers()
        bench.peers.may_answer.clear()
        first = asyncio.create_task(bench.send(markers_for(1, producer_id=1)))
        while not bench.peers.requests:  # noqa: ASYNC110 no time passes
            await asyncio.sleep(0)
        rest = [asyncio.create_task(bench.send(markers_for(1, producer_id=number))) for number in (2, 3, 4)]
        await asyncio.sleep(0)  # each of them has begun
        bench.peers.may_answer.set()
        assert await asyncio.gather(first, *rest) == [[], [], [], []]
        sent = [[marker.producer_id for marker in message.markers] for _, message in bench.peers.requests]
        assert sent == [[1], [2, 3, 4]]

    asyncio.run(run())


def check_of(coordinators: RemoteCoordinators, name: str, *indexes: int) -> asyncio.Future[Mapping[Any, ErrorCode]]:
    done: asyncio.Future[Mapping[Any, ErrorCode]] = asyncio.get_running_loop().create_future()
    check = PartitionCheck(
        transactional_id=name,
        producer_id=7,
        producer_epoch=3,
        partitions=[("rides", index) for index in indexes],
        verify_only=True,
        answer=done.set_result,
    )
    coordinators.check(2, check)
    return done


def test_checks_of_one_transaction_are_not_in_one_request() -> None:
    async def run() -> None:
        peers = Peers()
        any_peers: Any = peers
        coordinators = RemoteCoordinators(endpoint_of=endpoint_of, peers=any_peers, spawn=spawn)
        peers.codes = {("rides", 1): ErrorCode.TRANSACTION_ABORTABLE}
        found = await asyncio.gather(
            check_of(coordinators, "a", 0, 1), check_of(coordinators, "b", 0), check_of(coordinators, "a", 2)
        )
        # The code for the client's version is chosen later.
        assert [dict(codes) for codes in found] == [
            {("rides", 0): ErrorCode.NONE, ("rides", 1): ErrorCode.INVALID_TXN_STATE},
            {("rides", 0): ErrorCode.NONE},
            {("rides", 2): ErrorCode.NONE},
        ]
        sent = [[one.transactional_id for one in message.transactions] for _, message in peers.requests]
        assert sent == [["a", "b"], ["a"]]

    asyncio.run(run())


def test_a_coordinator_out_of_reach_is_not_available() -> None:
    async def run() -> None:
        peers = Peers()
        any_peers: Any = peers
        coordinators = RemoteCoordinators(endpoint_of=endpoint_of, peers=any_peers, spawn=spawn)
        peers.down = {"broker2"}
        assert dict(await check_of(coordinators, "a", 0)) == {("rides", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}

    asyncio.run(run())
