"""Controllers become voters and cease to be voters while the quorum decides, with network and disks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.log import LogDirectory, MetaProperties
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions import add_raft_voter_request, update_features_request
from hailbus_broker.protocol.definitions.add_raft_voter_request import AddRaftVoterRequest
from hailbus_broker.protocol.definitions.describe_quorum_request import (
    DescribeQuorumRequest,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.definitions.remove_raft_voter_request import RemoveRaftVoterRequest
from hailbus_broker.protocol.definitions.update_features_request import UpdateFeaturesRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.metadata import QuorumSettings
from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
from hailbus_broker.runtime.peers import Peers
from hailbus_broker.testing.simulation import simulated
from hailbus_broker.testing.simulation.loop import SimulatedLoop

from tests.integration.broker.simulation.controllers import (
    CLUSTER_ID,
    PORT,
    Controllers,
    SimulatedController,
    endpoint_of,
    until,
)

if TYPE_CHECKING:
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.testing.simulation.world import World

BOOTSTRAP = tuple(endpoint_of(node_id) for node_id in range(1, 5))


def key_of(node_id: int, *, life: int = 0) -> ReplicaKey:
    return ReplicaKey(node_id, UUID(int=node_id + (life << 8), version=4).bytes)


class DynamicController(SimulatedController):
    """A controller that finds the quorum by bootstrap servers."""

    def __init__(self, world: World, node_id: int, *, timing: RaftSettings, settings: dict[str, str]) -> None:
        super().__init__(world, node_id, VoterSet([]), settings)
        endpoints = (endpoint_of(node_id),)
        self._quorum = QuorumSettings(voters=VoterSet([]), endpoints=endpoints, bootstrap=BOOTSTRAP, timing=timing)

    def format(self, voters: VoterSet) -> None:
        """Write what `format --standalone` and `--initial-controllers` write."""
        data = encode_snapshot([], timestamp=0, now_ms=0, quorum=control_records.quorum_state(1, voters))
        MetadataSnapshots(self.disk, "/data/__cluster_metadata-0").write(SnapshotId(0, 0), data)

    def lose_directory(self) -> None:
        """Come back with an empty disk, whose directory has another id."""
        self.disk = self.world.disk(f"{self.name}-again")
        directory_id = UUID(bytes=key_of(self.node_id, life=1).directory_id or b"", version=4)
        meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=self.node_id, directory_id=directory_id)
        LogDirectory.open(self.disk, "/data", new_meta=meta)

    def listen_on(self, port: int) -> None:
        """Listen on another port from the next start on."""
        endpoint = Endpoint("CONTROLLER", self.name, port)
        self._settings["listeners"] = f"CONTROLLER://{self.name}:{port}"
        self._quorum = replace(self._quorum, endpoints=(endpoint,))


class DynamicQuorum(Controllers):
    """Controllers of which the first vote."""

    all: list[Any]

    def __init__(
        self, count: int, voters: int, *, settings: dict[str, str] | None = None, auto_join: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.world = loop.world
        timing = RaftSettings(auto_join=auto_join)
        first = VoterSet(Voter(key_of(node_id), (endpoint_of(node_id),)) for node_id in range(1, voters + 1))
        self.all = [
            DynamicController(self.world, node_id, timing=timing, settings=settings or {})
            for node_id in range(1, count + 1)
        ]
        for controller in self.all[:voters]:
            controller.format(first)
        self.admin = self.world.process("admin")

    async def ask(self, key: ApiKey, message: Message) -> Any:
        """Ask the active controller over the network, again and again until one answers as the leader."""
        peers = Peers("admin", software_version="1", timeout_s=5)
        async with asyncio.timeout(60):
            while True:
                active = await self.until_one_is_active()
                try:
                    endpoint = active.core.metadata.quorum.raft.quorum.endpoints[0]
                    response = await peers.ask(endpoint, key, message, timeout_s=10)
                except UnreachableError:
                    await asyncio.sleep(0.05)
                    continue
                again = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}
                if response.error_code not in again:
                    await peers.close()
                    return response
                await asyncio.sleep(0.05)

    async def add(self, key: ReplicaKey, *, port: int = PORT) -> ErrorCode:
        listener = add_raft_voter_request.Listener(name="CONTROLLER", host=f"controller{key.node_id}", port=port)
        message = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout_ms=8_000,
            voter_id=key.node_id,
            voter_directory_id=key.directory_id or b"",
            listeners=[listener],
        )
        return await self._change(ApiKey.ADD_RAFT_VOTER, message)

    async def remove(self, key: ReplicaKey) -> ErrorCode:
        message = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=key.node_id, voter_directory_id=key.directory_id or b""
        )
        return await self._change(ApiKey.REMOVE_RAFT_VOTER, message)

    async def _change(self, key: ApiKey, message: Message) -> ErrorCode:
        response = await self.admin.start(self.ask(key, message))
        return ErrorCode(response.error_code)

    async def until_accepted(self, key: ApiKey, message: Message) -> None:
        """Ask until there is no error."""
        async with asyncio.timeout(60):
            while (await self.admin.start(self.ask(key, message))).error_code:  # noqa: ASYNC110 others change it
                await asyncio.sleep(0.1)

    async def until_all_know(self, *keys: ReplicaKey) -> None:
        """Wait until the log of each controller that runs names these voters, and nothing else."""
        await until(
            lambda: all(
                [voter.key for voter in one.core.metadata.quorum.raft.quorum.voters] == list(keys)
                for one in self.all
                if one.process.is_alive
            )
        )


@simulated(seeds=range(5))
async def test_a_quorum_grows_from_one_to_three() -> None:
    quorum = DynamicQuorum(3, 1)
    await quorum.start()
    await quorum.write("alone", "50000")
    for node_id in (2, 3):
        assert await quorum.add(key_of(node_id)) is ErrorCode.NONE
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3))
    quorum.all[0].kill()
    await quorum.write("without the first", "50000")
    await quorum.all[0].start()
    await quorum.until_all_have({"alone": "50000", "without the first": "50000"})
    assert await quorum.add(key_of(2)) is ErrorCode.DUPLICATE_VOTER


@simulated(seeds=range(5))
async def test_a_quorum_shrinks_from_three_to_one() -> None:
    quorum = DynamicQuorum(3, 3)
    await quorum.start()
    await quorum.write("three", "50000")
    for node_id in (3, 2):
        assert await quorum.remove(key_of(node_id)) is ErrorCode.NONE
    await quorum.until_all_know(key_of(1))
    assert await quorum.remove(key_of(1)) is ErrorCode.INVALID_REQUEST
    quorum.all[1].kill()
    quorum.all[2].kill()
    await quorum.write("one", "50000")
    for one in quorum.all[1:]:
        await one.start()
    await quorum.until_all_have({"three": "50000", "one": "50000"})


@simulated(seeds=range(5))
async def test_a_leader_that_is_removed_hands_over_and_follows() -> None:
    quorum = DynamicQuorum(3, 3)
    await quorum.start()
    first = await quorum.until_one_is_active()
    await quorum.write("before", "50000")
    assert await quorum.remove(key_of(first.node_id)) is ErrorCode.NONE
    others = [one for one in quorum.all if one is not first]
    await quorum.until_one_is_active(among=others)
    await quorum.write("after", "50000")
    await quorum.until_all_have({"before": "50000", "after": "50000"})
    await quorum.until_all_know(*(key_of(one.node_id) for one in others))
    assert not first.is_active
    assert await quorum.remove(key_of(first.node_id)) is ErrorCode.VOTER_NOT_FOUND


@simulated(seeds=range(5))
async def test_a_voter_that_has_lost_its_directory_is_replaced() -> None:
    quorum = DynamicQuorum(3, 3)
    await quorum.start()
    await quorum.write("before", "50000")
    dead = quorum.all[2]
    dead.kill()
    dead.lose_directory()
    await dead.start()
    await until(lambda: dead.groups() == {"before": "50000"})
    assert await quorum.add(key_of(3, life=1)) is ErrorCode.DUPLICATE_VOTER
    assert await quorum.remove(key_of(3)) is ErrorCode.NONE
    assert await quorum.add(key_of(3, life=1)) is ErrorCode.NONE
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3, life=1))
    quorum.all[0].kill()
    await quorum.write("after", "50000")
    await until(lambda: dead.groups() == {"before": "50000", "after": "50000"})


@simulated(seeds=range(3))
async def test_a_controller_adds_itself_and_removes_its_lost_directory() -> None:
    quorum = DynamicQuorum(3, 2, auto_join=True)
    await quorum.start()
    await quorum.write("before", "50000")
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3))
    lost = quorum.all[2]
    lost.kill()
    lost.lose_directory()
    await lost.start()
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3, life=1))


@simulated(seeds=range(3))
async def test_a_new_voter_gets_its_voters_from_a_snapshot() -> None:
    quorum = DynamicQuorum(3, 1, settings={"metadata.log.max.record.bytes.between.snapshots": "5000"})
    await quorum.all[0].start()
    await quorum.all[1].start()
    assert await quorum.add(key_of(2)) is ErrorCode.NONE
    expected = {f"g{number}": str(50_000 + number) for number in range(120)}
    for name, value in expected.items():
        await quorum.write(name, value)
    await until(lambda: all(one.core.metadata.quorum.log.log_start_offset > 0 for one in quorum.all[:2]))
    late = quorum.all[2]
    await late.start()
    await quorum.until_all_have(expected)
    assert late.core.metadata.quorum.log.log_start_offset > 0
    await quorum.until_all_know(key_of(1), key_of(2))
    assert await quorum.add(key_of(3)) is ErrorCode.NONE
    for one in quorum.all:
        one.kill(power_cut=True)
    for one in quorum.all:
        await one.start()
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3))
    await quorum.write("after", "50000")
    await quorum.until_all_have(expected | {"after": "50000"})


@simulated(seeds=range(5))
async def test_the_log_follows_a_voter_to_another_port() -> None:
    quorum = DynamicQuorum(3, 3)
    await quorum.start()
    await quorum.write("before", "50000")
    for moved in quorum.all:
        moved.kill()
        moved.listen_on(PORT + 100)
        await moved.start()
        await until(
            lambda moved=moved: all(  # type: ignore[misc]  # mypy infers no lambda with defaults
                [one.port for one in known.endpoints] == [PORT + 100]
                for one in quorum.all
                if (known := one.core.metadata.quorum.raft.quorum.voters.get(moved.node_id)) is not None
            )
        )
    await quorum.write("after", "50000")
    await quorum.until_all_have({"before": "50000", "after": "50000"})


@simulated(seeds=range(3))
async def test_voters_of_the_configuration_become_those_of_the_log() -> None:
    quorum = DynamicQuorum(4, 0)
    static = VoterSet(Voter(ReplicaKey(node_id), (endpoint_of(node_id),)) for node_id in (1, 2, 3))
    for one in quorum.all:
        one._quorum = replace(one._quorum, voters=static)
    for one in quorum.all[:2]:
        await one.start()
    await quorum.write("static", "50000")
    upgrade = UpdateFeaturesRequest(
        timeout_ms=5_000,
        feature_updates=[
            update_features_request.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        ],
    )
    refused = await quorum.admin.start(quorum.ask(ApiKey.UPDATE_FEATURES, upgrade))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION, "the third voter has not said what it supports"
    assert "voter 3" in refused.error_message
    assert await quorum.add(key_of(4)) is ErrorCode.UNSUPPORTED_VERSION
    for one in quorum.all[2:]:
        await one.start()
    await quorum.until_accepted(ApiKey.UPDATE_FEATURES, upgrade)
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3))
    assert await quorum.add(key_of(4)) is ErrorCode.NONE
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3), key_of(4))
    for one in quorum.all:
        one.kill(power_cut=True)
    for one in quorum.all:
        await one.start()
    await quorum.until_all_know(key_of(1), key_of(2), key_of(3), key_of(4))
    await quorum.write("dynamic", "50000")
    topics = [TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])]
    described = await quorum.admin.start(quorum.ask(ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=topics)))
    (partition,) = described.topics[0].partitions
    assert sorted((one.replica_id, one.replica_directory_id) for one in partition.current_voters) == [
        (node_id, key_of(node_id).directory_id) for node_id in (1, 2, 3, 4)
    ]
