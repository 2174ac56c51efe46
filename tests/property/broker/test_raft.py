"""Whatever network and disks do: one leader per epoch, no committed record lost, and progress once they heal."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from hailbus_broker.cluster.raft.effects import Reply
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import LogPosition, VoteRequest, VoteResponse
from hailbus_broker.cluster.raft.quorum import RaftError
from hailbus_broker.cluster.raft.roles import Follower
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import ReplicaKey
from hailbus_broker.protocol.errors import ErrorCode

from tests.property.broker.quorum import CLUSTER_ID, World


def disturb(world: World, chance: random.Random) -> None:
    """One fault, or the end of some."""
    nodes = list(world.nodes.values())
    node = chance.choice(nodes)
    if world.is_dynamic and chance.random() < 0.4:
        if chance.random() < 0.8:
            world.change_voters(node)
        else:
            world.lose_directory(node)
        return
    match chance.choice(
        (
            "crash",
            "crash leader",
            "start",
            "start",
            "cut",
            "one way",
            "mend",
            "loss",
            "slow",
            "disk",
            "snapshot",
            "suspect",
            "all suspect",
            "resign",
        )
    ):
        case "crash":
            if node.raft is not None:
                world.crash(node, noticed=chance.random() < 0.6)
        case "crash leader":
            leaders = [node for node in world.running if node.raft and node.raft.quorum.leader_id == node.node_id]
            if leaders:
                world.crash(leaders[0], noticed=chance.random() < 0.6)
        case "start":
            for stopped in nodes:
                if stopped.raft is None:
                    stopped.start()
        case "cut":
            group = set(chance.sample(sorted(world.nodes), k=len(nodes) // 2))
            world.cuts = {(a, b) for a, b in product(world.nodes, world.nodes) if (a in group) != (b in group)}
            world.counts["cut"] += 1
        case "one way":
            world.cuts.add((node.node_id, chance.choice(nodes).node_id))
        case "mend":
            world.cuts.clear()
            world.loss = 0.0
            world.slowness_ms = world.slow_disk_ms = 5
        case "loss":
            world.loss = chance.choice((0.05, 0.3))
        case "slow":
            world.slowness_ms = chance.choice((50, 400))
        case "disk":
            world.slow_disk_ms = chance.choice((50, 700))
        case "snapshot":
            if node.raft is not None:
                node.snapshot()
        case "suspect":
            if node.raft is not None and node.raft.quorum.leader_id is not None:
                node.raft.leader_refuses_connections(node.raft.quorum.leader_id, world.now_ms)
                node.carry_out()
        case "all suspect":
            for other in world.running:
                if other.raft is not None and other.raft.quorum.leader_id is not None:
                    other.raft.leader_refuses_connections(other.raft.quorum.leader_id, world.now_ms)
                    other.carry_out()
        case "resign":
            if node.raft is not None:
                node.raft.resign(world.now_ms)
                node.carry_out()


def run(seed: int, *, is_dynamic: bool = False) -> World:
    """Disturb a quorum for twenty seconds of its time, then let it recover."""
    chance = random.Random(seed)
    voters = chance.choice((1, 2, 3, 3, 3, 5))
    observers = chance.choice((0, 0, 1, 2)) if not is_dynamic else chance.choice((1, 2, 3))
    world = World(seed, voters=voters, observers=observers, is_dynamic=is_dynamic)
    world.start()
    end_ms = world.now_ms + 20_000
    while world.now_ms < end_ms:
        world.run_until(world.now_ms + chance.choice((3, 20, 100, 600)))
        if chance.random() < 0.7:
            world.write()
        else:
            disturb(world, chance)
    world.heal()
    world.check_end()
    return world


@pytest.mark.parametrize("first", range(0, 170, 34))
def test_nothing_that_is_committed_is_lost(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 34):
        try:
            world = run(seed)
        except (AssertionError, RaftError) as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(world.counts, acknowledged=len(world.acknowledged))
    for what in ("crash", "cut", "leader", "snapshot taken", "snapshot installed", "acknowledged"):
        assert counts[what] > 0, f"{what} was never reached, so nothing is shown about it: {counts}"


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_nothing_that_is_committed_is_lost_while_voters_come_and_go(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 25):
        try:
            world = run(seed, is_dynamic=True)
        except (AssertionError, RaftError) as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(world.counts, acknowledged=len(world.acknowledged))
    for what in (
        "acknowledged",
        "add: NONE",
        "add: REQUEST_TIMED_OUT",
        "remove: NONE",
        "remove leader: NONE",
        "directory lost",
        "snapshot installed",
        "voters committed",
    ):
        assert counts[what] > 0, f"{what} was never reached, so nothing is shown about it: {counts}"


def calm_world() -> World:
    """Three voters with the default settings, and a leader."""
    world = World(0, voters=3)
    world.settings = RaftSettings()
    world.start()
    return world


def time_until_led(world: World, *, without: int | None = None) -> int:
    """Milliseconds until another node leads."""
    began_ms = world.now_ms
    while not any(
        isinstance(node.raft.quorum.role, Leader) and node.node_id != without
        for node in world.running
        if node.raft is not None
    ):
        world.run_until(world.now_ms + 1)
        assert world.now_ms < began_ms + 20_000
    return world.now_ms - began_ms


def test_voters_that_start_together_elect_without_waiting_for_a_timeout() -> None:
    assert time_until_led(calm_world()) < RaftSettings().election_timeout_ms / 2


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_leader_that_refuses_connections_is_replaced_before_the_timeout(is_noticed: bool) -> None:
    world = calm_world()
    time_until_led(world)
    world.run_until(world.now_ms + 5_000)
    leader = next(node for node in world.running if node.raft and isinstance(node.raft.quorum.role, Leader))
    world.crash(leader, noticed=is_noticed)
    took_ms = time_until_led(world, without=leader.node_id)
    assert (took_ms < RaftSettings().suspicion_stagger_ms * 2) is is_noticed
    assert (took_ms > RaftSettings().fetch_timeout_ms / 2) is not is_noticed


def test_a_leader_that_is_suspected_wrongly_by_one_voter_goes_on() -> None:
    world = calm_world()
    time_until_led(world)
    world.run_until(world.now_ms + 5_000)
    leader = next(node for node in world.running if node.raft and isinstance(node.raft.quorum.role, Leader))
    other = next(node for node in world.running if node is not leader)
    assert leader.raft is not None
    assert other.raft is not None
    epoch = leader.raft.quorum.epoch
    other.raft.leader_refuses_connections(leader.node_id, world.now_ms)
    other.carry_out()
    world.run_until(world.now_ms + 10_000)
    assert (leader.raft.quorum.epoch, leader.raft.quorum.leader_id) == (epoch, leader.node_id)
    assert isinstance(other.raft.quorum.role, Follower)


def test_a_leader_that_resigns_is_followed_by_the_one_that_it_names() -> None:
    world = calm_world()
    time_until_led(world)
    world.run_until(world.now_ms + 5_000)
    leader = next(node for node in world.running if node.raft and isinstance(node.raft.quorum.role, Leader))
    assert leader.raft is not None
    leader.raft.resign(world.now_ms)
    leader.carry_out()
    assert time_until_led(world, without=leader.node_id) < RaftSettings().suspicion_stagger_ms


def test_a_leader_without_a_majority_resigns() -> None:
    world = calm_world()
    time_until_led(world)
    world.run_until(world.now_ms + 5_000)
    leader = next(node for node in world.running if node.raft and isinstance(node.raft.quorum.role, Leader))
    world.cuts = {
        (a, b) for a, b in product(world.nodes, world.nodes) if (a == leader.node_id) != (b == leader.node_id)
    }
    world.run_until(world.now_ms + 2 * RaftSettings().fetch_timeout_ms)
    assert leader.raft is not None
    assert not isinstance(leader.raft.quorum.role, Leader)


@pytest.mark.parametrize(
    ("voter", "error"),
    [
        (ReplicaKey(-1), ErrorCode.NONE),
        (ReplicaKey(2), ErrorCode.NONE),
        (ReplicaKey(2, bytes(15) + b"x"), ErrorCode.INVALID_VOTER_KEY),
        (ReplicaKey(3), ErrorCode.INVALID_VOTER_KEY),
    ],
)
def test_a_vote_that_is_meant_for_another_replica_is_refused(voter: ReplicaKey, error: ErrorCode) -> None:
    """The first version of the request does not say for whom it is."""
    node = World(0, voters=3).nodes[2]
    node.start()
    assert node.raft is not None
    request = VoteRequest(
        cluster_id=CLUSTER_ID,
        candidate=ReplicaKey(1),
        candidate_epoch=1,
        voter=voter,
        log_end=LogPosition(0, 0),
        is_pre_vote=False,
    )
    node.raft.request(request, 0, 0)
    (reply,) = (effect for effect in node.raft.take_effects() if isinstance(effect, Reply))
    assert isinstance(reply.response, VoteResponse)
    assert (reply.response.error, reply.response.is_granted) == (error, error is ErrorCode.NONE)
