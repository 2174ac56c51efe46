"""What the leader answers to changes of the voters, and what becomes of them when it goes."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.raft.effects import Reply
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoterChangeResponse,
)
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, VoterSet
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.property.broker.quorum import CLUSTER_ID, Node, World

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.messages import VoterChangeRequest

NEW = ReplicaKey(9, b"new-directory---")
HERE = (Endpoint("CONTROLLER", "node", 9),)


def world_of(voters: int, *, observers: int = 0, is_dynamic: bool = True) -> World:
    """Nodes without faults, of which one leads and has committed a record of its epoch."""
    world = World(0, voters=voters, observers=observers, is_dynamic=is_dynamic)
    world.settings = RaftSettings()
    world.start()
    world.run_until(world.now_ms + 10_000)
    return world


def leader_of(world: World) -> Node:
    (leader,) = (node for node in world.running if node.raft and isinstance(node.raft.quorum.role, Leader))
    return leader


def answer(node: Node, request: VoterChangeRequest) -> VoterChangeResponse | None:
    """What a node answers at once; None if it answers later."""
    assert node.raft is not None
    token = -len(node.world.changes) - 1
    node.world.changes[token] = "change"
    node.raft.request(request, token, node.world.now_ms)
    effects = node.raft.take_effects()
    node.effects += effects
    node.carry_out()
    replies = [effect.response for effect in effects if isinstance(effect, Reply) and effect.token == token]
    assert all(isinstance(response, VoterChangeResponse) for response in replies)
    return replies[0] if replies else None  # type: ignore[return-value]  # checked above


def error_of(node: Node, request: VoterChangeRequest) -> ErrorCode | None:
    response = answer(node, request)
    return None if response is None else response.error


def add(
    voter: ReplicaKey = NEW,
    *,
    cluster_id: str | None = CLUSTER_ID,
    endpoints: tuple[Endpoint, ...] = HERE,
    timeout_ms: int = 3_000,
) -> AddVoterRequest:
    return AddVoterRequest(
        cluster_id=cluster_id, voter=voter, endpoints=endpoints, timeout_ms=timeout_ms, ack_when_committed=True
    )


def remove(voter: ReplicaKey, *, cluster_id: str | None = CLUSTER_ID) -> RemoveVoterRequest:
    return RemoveVoterRequest(cluster_id=cluster_id, voter=voter)


def update(
    voter: ReplicaKey,
    epoch: int,
    *,
    endpoints: tuple[Endpoint, ...] = HERE,
    levels: tuple[int, int] = (0, 1),
    cluster_id: str | None = CLUSTER_ID,
) -> UpdateVoterRequest:
    return UpdateVoterRequest(
        cluster_id=cluster_id, leader_epoch=epoch, voter=voter, endpoints=endpoints, kraft_versions=levels
    )


def text_of(key: ReplicaKey) -> str:
    assert key.directory_id is not None
    return urlsafe_b64encode(key.directory_id).decode().rstrip("=")


def test_a_request_that_cannot_be_gets_the_error_of_apache_kafka() -> None:
    world = world_of(3)
    leader = leader_of(world)
    other = next(node for node in world.running if node is not leader)
    assert leader.raft is not None
    epoch = leader.raft.quorum.epoch
    for request, error in (
        (add(cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (add(ReplicaKey(9)), ErrorCode.INVALID_REQUEST),
        (add(ReplicaKey(-1, b"x" * 16)), ErrorCode.INVALID_REQUEST),
        (add(endpoints=()), ErrorCode.INVALID_REQUEST),
        (add(endpoints=(Endpoint("PLAINTEXT", "node", 9),)), ErrorCode.INVALID_REQUEST),
        (add(other.key), ErrorCode.DUPLICATE_VOTER),
        (add(ReplicaKey(other.node_id, b"y" * 16)), ErrorCode.DUPLICATE_VOTER),
        (remove(NEW), ErrorCode.VOTER_NOT_FOUND),
        (remove(ReplicaKey(other.node_id, b"y" * 16)), ErrorCode.VOTER_NOT_FOUND),
        (remove(other.key, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (update(NEW, epoch), ErrorCode.VOTER_NOT_FOUND),
        (update(other.key, epoch - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (update(other.key, epoch + 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (update(other.key, epoch, levels=(0, 0)), ErrorCode.INVALID_REQUEST),
        (update(other.key, epoch, endpoints=()), ErrorCode.INVALID_REQUEST),
        (update(other.key, epoch, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
    ):
        assert error_of(leader, request) is error, request
    refused = answer(leader, remove(NEW))
    assert refused is not None
    named = ", ".join(f"{node.node_id} with directory id {text_of(node.key)}" for node in world.nodes.values())
    assert refused.message == f"Controller 9 with directory id {text_of(NEW)} is no voter; the voters are {named}."
    for request in (add(), remove(leader.key), update(leader.key, epoch)):
        assert error_of(other, request) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [voter.key for voter in leader.raft.quorum.voters] == [node.key for node in world.nodes.values()]


def test_voters_of_the_configuration_cannot_be_changed() -> None:
    world = world_of(3, is_dynamic=False)
    leader = leader_of(world)
    assert error_of(leader, add()) is ErrorCode.UNSUPPORTED_VERSION
    assert error_of(leader, remove(leader.key)) is ErrorCode.UNSUPPORTED_VERSION


def test_one_change_waits_for_the_other() -> None:
    world = world_of(3, observers=1)
    leader, new = leader_of(world), world.nodes[4]
    other = next(node for node in world.running if node not in {leader, new})
    assert error_of(leader, add(new.key, endpoints=new.endpoints)) is None
    assert error_of(leader, remove(other.key)) is ErrorCode.REQUEST_TIMED_OUT
    assert leader.raft is not None
    assert error_of(leader, update(other.key, leader.raft.quorum.epoch)) is ErrorCode.REQUEST_TIMED_OUT
    world.run_until(world.now_ms + 1_000)
    assert new.key in {voter.key for voter in leader.raft.quorum.voters}
    assert error_of(leader, remove(other.key)) is None


def test_an_epoch_without_a_committed_record_changes_no_voters() -> None:
    world = world_of(3)
    leader = leader_of(world)
    world.crash(leader, noticed=True)
    while not any(node.raft and isinstance(node.raft.quorum.role, Leader) for node in world.running):
        world.run_until(world.now_ms + 1)
    second = leader_of(world)
    assert second.raft is not None
    assert isinstance(second.raft.quorum.role, Leader)
    assert second.raft.quorum.high_watermark <= second.raft.quorum.role.from_offset
    assert error_of(second, remove(leader.key)) is ErrorCode.REQUEST_TIMED_OUT


def test_a_new_voter_that_does_not_come_is_given_up() -> None:
    world = world_of(1, observers=1)
    leader, new = leader_of(world), world.nodes[2]
    new.crash()
    world.changes[-1] = "add"
    assert leader.raft is not None
    leader.raft.request(add(new.key, endpoints=new.endpoints, timeout_ms=2_000), -1, world.now_ms)
    leader.carry_out()
    world.run_until(world.now_ms + 1_900)
    assert -1 in world.changes
    world.run_until(world.now_ms + 200)
    assert world.counts["add: REQUEST_TIMED_OUT"] == 1
    assert [voter.key for voter in leader.raft.quorum.voters] == [leader.key]
    new.start()
    world.run_until(world.now_ms + 5_000)
    assert [voter.key for voter in leader.raft.quorum.voters] == [leader.key], "what was given up must not come later"


def test_a_leader_that_removes_itself_is_elected_again_where_only_it_has_the_record() -> None:
    """Its log is longer than that of the only voter that is left, which therefore cannot win."""
    world = world_of(2)
    leader = leader_of(world)
    (other,) = (node for node in world.running if node is not leader)
    world.cuts = set(product(world.nodes, world.nodes))
    assert error_of(leader, remove(leader.key)) is None
    world.run_until(world.now_ms + 100)
    assert leader.disk.entries[-1][1] == VoterSet(voter for voter in world.voters if voter.key == other.key)
    world.crash(leader, noticed=False)
    world.cuts.clear()
    world.run_until(world.now_ms + 10_000)
    assert other.raft is not None
    assert not isinstance(other.raft.quorum.role, Leader), "its log is shorter"
    leader.start()
    world.run_until(world.now_ms + 10_000)
    assert isinstance(other.raft.quorum.role, Leader)
    assert [voter.key for voter in other.raft.quorum.voters] == [other.key]


@pytest.mark.parametrize(("described", "is_accepted"), [((0, 1), True), ((0, 0), False), (None, False)])
def test_the_level_rises_when_every_voter_supports_it(described: tuple[int, int] | None, is_accepted: bool) -> None:
    world = world_of(2, is_dynamic=False)
    leader = leader_of(world)
    (other,) = (node for node in world.running if node is not leader)
    assert leader.raft is not None
    role = leader.raft.quorum.role
    assert isinstance(role, Leader)
    assert role.described[other.node_id].key == other.key, "it has described itself"
    if described is None:
        role.described.clear()
    else:
        request = update(other.key, role.epoch, endpoints=other.endpoints, levels=described)
        assert error_of(leader, request) is ErrorCode.NONE
    before = leader.log.end
    if is_accepted:
        leader.raft.upgrade_kraft_version(1, world.now_ms, is_only_checked=True)
        assert leader.log.end == before, "a check writes nothing"
        leader.raft.upgrade_kraft_version(1, world.now_ms)
        leader.carry_out()
        world.run_until(world.now_ms + 1_000)
        assert other.raft is not None
        for raft in (leader.raft, other.raft):
            assert raft.quorum.history.kraft_version == 1
            assert [voter.key for voter in raft.quorum.voters] == [node.key for node in world.nodes.values()]
        with pytest.raises(ApiError, match="downgrade"):
            leader.raft.upgrade_kraft_version(0, world.now_ms)
    else:
        with pytest.raises(ApiError, match=f"voter {other.node_id}") as refused:
            leader.raft.upgrade_kraft_version(1, world.now_ms)
        assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
        assert leader.log.end == before


def test_a_broker_without_a_controller_listener_keeps_its_level() -> None:
    world = World(0, voters=1)
    node = world.nodes[1]
    node.endpoints = ()
    world.start()
    world.run_until(world.now_ms + 1_000)
    before = node.log.end
    assert node.raft is not None
    with pytest.raises(ApiError, match="no controller listener"):
        node.raft.upgrade_kraft_version(1, world.now_ms)
    assert node.log.end == before
