"""The small parts of the quorum: what is committed, what the log says of voters, the file of the election state."""

from __future__ import annotations

import json
import random
import uuid

import pytest
from hailbus_broker.cluster.raft.effects import Send
from hailbus_broker.cluster.raft.election_state import ElectionState, ElectionStateError
from hailbus_broker.cluster.raft.leader import UNKNOWN, Leader
from hailbus_broker.cluster.raft.messages import BeginQuorumEpochRequest, LogPosition, Request, VoteRequest
from hailbus_broker.cluster.raft.quorum import Quorum
from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterHistory, VoterSet

from tests.property.broker.quorum import Disk, ModelLog

DIRECTORY = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8").bytes


def voters(*node_ids: int) -> VoterSet:
    return VoterSet(Voter(ReplicaKey(node_id), (Endpoint("CONTROLLER", "host", node_id),)) for node_id in node_ids)


def leader_of(*node_ids: int, from_offset: int = 0, local: int = 1) -> Leader:
    return Leader(ReplicaKey(local), 5, from_offset=from_offset, voters=voters(*node_ids), now_ms=0)


def fetch(leader: Leader, node_id: int, end_offset: int, now_ms: int = 10) -> None:
    leader.progress_of(ReplicaKey(node_id)).fetched(end_offset, 100, now_ms)


def test_a_majority_of_disks_commits() -> None:
    leader = leader_of(1, 2, 3, 4, 5)
    fetch(leader, 2, 7)
    assert leader.commit_offset(9) == UNKNOWN
    fetch(leader, 3, 5)
    assert leader.commit_offset(9) == 5
    assert leader.commit_offset(4) == 4, "what the leader has not synced does not count"


def test_an_epoch_commits_nothing_before_its_own_first_record() -> None:
    leader = leader_of(1, 2, 3, from_offset=6)
    fetch(leader, 2, 6)
    assert leader.commit_offset(9) == UNKNOWN
    fetch(leader, 2, 7)
    assert leader.commit_offset(9) == 7


def test_a_leader_that_does_not_vote_does_not_count() -> None:
    leader = leader_of(2, 3, local=1)
    fetch(leader, 2, 8)
    assert leader.commit_offset(9) == UNKNOWN
    fetch(leader, 3, 6)
    assert leader.commit_offset(9) == 6


def test_observers_do_not_count() -> None:
    leader = leader_of(1, 2, 3)
    fetch(leader, 4, 9)
    assert leader.commit_offset(9) == UNKNOWN


def test_a_voter_with_another_directory_is_an_observer() -> None:
    known = VoterSet([Voter(ReplicaKey(1, DIRECTORY), ()), Voter(ReplicaKey(2, DIRECTORY), ())])
    leader = Leader(ReplicaKey(1, DIRECTORY), 5, from_offset=0, voters=known, now_ms=0)
    leader.progress_of(ReplicaKey(2, bytes(15) + b"x")).fetched(9, 9, 10)
    assert leader.commit_offset(9) == UNKNOWN


def test_a_majority_is_heard_of_when_enough_have_fetched() -> None:
    leader = leader_of(1, 2, 3, 4, 5)
    for node_id, now_ms in ((2, 10), (3, 20), (4, 30), (5, 40)):
        fetch(leader, node_id, 0, now_ms)
    assert leader.heard_of_majority_ms() == 30


def test_the_best_successor_has_the_longest_log() -> None:
    leader = leader_of(1, 2, 3, 4)
    fetch(leader, 2, 3)
    fetch(leader, 4, 8)
    assert [key.node_id for key in leader.successors()] == [4, 2, 3]


def test_a_truncation_brings_the_voters_before_back() -> None:
    history = VoterHistory(voters(1))
    history.add_voters(10, voters(1, 2))
    history.add_voters(20, voters(1, 2, 3))
    assert history.current == voters(1, 2, 3)
    assert history.at(20) == (0, voters(1, 2))
    history.truncate_to(20)
    assert history.current == voters(1, 2)
    history.truncate_to(10)
    assert history.current == voters(1)


def test_a_snapshot_keeps_the_last_voters_before_it() -> None:
    history = VoterHistory(voters(1))
    for offset, node_ids in ((10, (1, 2)), (20, (1, 2, 3)), (30, (2, 3))):
        history.add_voters(offset, voters(*node_ids))
    history.add_level(5, 1)
    history.forget_before(25)
    assert history.at(25) == (1, voters(1, 2, 3))
    assert history.current == voters(2, 3)


@pytest.mark.parametrize(
    "state",
    [
        ElectionState(),
        ElectionState(epoch=7, leader_id=2),
        ElectionState(epoch=7, voted=ReplicaKey(3, DIRECTORY)),
        ElectionState(epoch=7, leader_id=3, voted=ReplicaKey(3, DIRECTORY)),
    ],
)
def test_the_election_state_survives_the_file(state: ElectionState) -> None:
    assert ElectionState.decode(state.encode(1, ())) == state


def test_the_election_state_is_written_as_apache_kafka_does() -> None:
    state = ElectionState(epoch=7, leader_id=3, voted=ReplicaKey(3, DIRECTORY))
    assert json.loads(state.encode(0, [3, 1])) == {
        "clusterId": "",
        "leaderId": 3,
        "leaderEpoch": 7,
        "votedId": 3,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 1}, {"voterId": 3}],
        "data_version": 0,
    }
    assert json.loads(state.encode(1, [3, 1])) == {
        "leaderId": 3,
        "leaderEpoch": 7,
        "votedId": 3,
        "votedDirectoryId": "a6e4EJ2tEdGAtADAT9QwyA",
        "data_version": 1,
    }
    assert ElectionState.decode(state.encode(0, [3, 1])).voted == ReplicaKey(3)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"data_version":2}', b'{"leaderId":1,"leaderEpoch":"x","votedId":1,"data_version":0}'],
)
def test_a_damaged_election_state_is_refused(data: bytes) -> None:
    with pytest.raises(ElectionStateError, match="quorum-state"):
        ElectionState.decode(data)


def test_a_node_that_does_not_answer_is_asked_after_a_longer_and_longer_pause() -> None:
    quorum = Quorum(
        replica=ReplicaKey(1),
        cluster_id="cluster",
        log=ModelLog(Disk()),
        state=ElectionState(),
        history=VoterHistory(voters(1, 2, 3)),
        settings=RaftSettings(retry_backoff_ms=20),
        chance=random.Random(0),
        endpoints=(),
        high_watermark=0,
        now_ms=0,
    )
    endpoint = Endpoint("CONTROLLER", "host", 2)

    def pauses(request: Request, count: int) -> list[int]:
        found, now_ms = [], 0
        for _ in range(count):
            assert quorum.send(2, endpoint, request)
            outstanding = quorum.requests.end(sent())
            assert outstanding is not None
            quorum.back_off_longer(outstanding, now_ms)
            (until_ms,) = quorum.requests.deadlines_ms()
            found.append(until_ms - now_ms)
            now_ms = until_ms
            quorum.requests.tick(now_ms)
        return found

    def sent() -> int:
        (effect,) = quorum.effects
        quorum.effects.clear()
        assert isinstance(effect, Send)
        return effect.number

    begin = BeginQuorumEpochRequest(
        cluster_id=None, leader_id=1, leader_epoch=3, voter=ReplicaKey(2), leader_endpoints=()
    )
    vote = VoteRequest(
        cluster_id=None,
        candidate=ReplicaKey(1),
        candidate_epoch=3,
        voter=ReplicaKey(2),
        log_end=LogPosition(0, 0),
        is_pre_vote=True,
    )
    assert pauses(begin, 8) == [20, 40, 80, 160, 320, 640, 640, 640]
    assert pauses(vote, 4) == [20, 40, 80, 80], "an election does not wait for long"
    assert quorum.send(2, endpoint, begin)
    answered = quorum.requests.end(sent())
    assert answered is not None
    quorum.requests.answered(answered)
    assert pauses(begin, 2) == [20, 40]
