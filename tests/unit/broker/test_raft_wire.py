"""The quorum's messages on the wire: what one node says is what the other one hears."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.metadata.snapshot import SnapshotId
from hailbus_broker.cluster.raft import wire
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    Leadership,
    LogPosition,
    RemoveVoterRequest,
    Request,
    Response,
    SupportedVersionsResponse,
    UpdateVoterRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.api_versions_response import ApiVersionsResponse, SupportedFeatureKey
from hailbus_broker.protocol.definitions.vote_request import PartitionData, TopicData
from hailbus_broker.protocol.definitions.vote_request import VoteRequest as VoteMessage
from hailbus_broker.protocol.errors import ApiError, ErrorCode

ONE = ReplicaKey(1, b"one-directory---")
TWO = ReplicaKey(2, b"two-directory---")
HERE = (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
LED = Leadership(leader_id=2, leader_epoch=7, leader_endpoints=(Endpoint("", "127.0.0.1", 9093),))
NOBODY = Leadership(leader_id=None, leader_epoch=7)

VOTE = VoteRequest(
    cluster_id="c", candidate=ONE, candidate_epoch=7, voter=TWO, log_end=LogPosition(6, 50), is_pre_vote=True
)
BEGIN = BeginQuorumEpochRequest(cluster_id="c", leader_id=2, leader_epoch=7, voter=ONE, leader_endpoints=HERE)
END = EndQuorumEpochRequest(cluster_id=None, leader_id=2, leader_epoch=7, successors=(TWO, ONE), leader_endpoints=HERE)
FETCH = FetchRequest(
    cluster_id="c", replica=ONE, leader_epoch=7, end=LogPosition(6, 50), high_watermark=49, max_wait_ms=500
)
SNAPSHOT = FetchSnapshotRequest(cluster_id="c", replica=ONE, leader_epoch=7, snapshot=SnapshotId(40, 5), position=1_000)

ADD = AddVoterRequest(cluster_id="c", voter=ONE, endpoints=HERE, timeout_ms=5_000, ack_when_committed=False)
REMOVE = RemoveVoterRequest(cluster_id=None, voter=TWO)
UPDATE = UpdateVoterRequest(cluster_id="c", leader_epoch=7, voter=ONE, endpoints=HERE, kraft_versions=(0, 1))
UNKNOWN = Leadership(leader_id=None, leader_epoch=-1)


@pytest.mark.parametrize(
    "request_",
    [VOTE, BEGIN, END, FETCH, SNAPSHOT, ADD, REMOVE, UPDATE],
    ids=lambda request: type(request).__name__,
)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    message = wire.encode_request(request_)
    version = type(message).__versions__.last
    arrived = codec.decode(type(message), bytes(codec.encode(message, version)), version)
    assert wire.decode_request(arrived) == request_


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (VOTE, VoteResponse(leadership=LED, is_granted=True)),
        (VOTE, VoteResponse(leadership=NOBODY, error=ErrorCode.FENCED_LEADER_EPOCH)),
        (BEGIN, Response(leadership=LED)),
        (END, Response(leadership=NOBODY)),
        (FETCH, FetchResponse(leadership=LED, high_watermark=49, log_start_offset=40, records=b"batches")),
        (FETCH, FetchResponse(leadership=LED, high_watermark=49, diverging=LogPosition(5, 44))),
        (FETCH, FetchResponse(leadership=LED, high_watermark=49, snapshot=SnapshotId(40, 5))),
        (FETCH, FetchResponse(leadership=NOBODY, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
        (
            SNAPSHOT,
            FetchSnapshotResponse(leadership=LED, snapshot=SnapshotId(40, 5), size=3_000, position=1_000, data=b"part"),
        ),
        (ADD, VoterChangeResponse(leadership=UNKNOWN, error=ErrorCode.DUPLICATE_VOTER, message="it votes")),
        (REMOVE, VoterChangeResponse(leadership=UNKNOWN)),
        (UPDATE, VoterChangeResponse(leadership=LED, error=ErrorCode.REQUEST_TIMED_OUT)),
    ],
    ids=repr,
)
def test_a_response_arrives_as_it_was_sent(request_: Request, response: Response) -> None:
    message = wire.encode_response(request_, response)
    version = type(message).__versions__.last
    arrived = codec.decode(type(message), bytes(codec.encode(message, version)), version)
    assert wire.decode_response(arrived) == response


@pytest.mark.parametrize("request_", [VOTE, BEGIN, END, FETCH, SNAPSHOT], ids=lambda request: type(request).__name__)
def test_a_request_can_be_refused_as_a_whole(request_: Request) -> None:
    refused = Response(leadership=LED, request_error=ErrorCode.INCONSISTENT_CLUSTER_ID)
    decoded = wire.decode_response(wire.encode_response(request_, refused))
    assert decoded.request_error is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_vote_of_the_first_version_names_no_directories() -> None:
    message = wire.encode_request(VOTE)
    arrived = wire.decode_request(codec.decode(VoteMessage, bytes(codec.encode(message, 0)), 0))
    assert isinstance(arrived, VoteRequest)
    assert arrived.candidate == ReplicaKey(1)
    assert arrived.voter == ReplicaKey(-1)
    assert not arrived.is_pre_vote


@pytest.mark.parametrize(
    "topics",
    [
        [],
        [TopicData(topic_name="rides", partitions=[PartitionData()])],
        [TopicData(topic_name="__cluster_metadata", partitions=[])],
        [TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=1)])],
        [TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(), PartitionData()])],
    ],
)
def test_a_message_about_anything_else_is_refused(topics: list[TopicData]) -> None:
    with pytest.raises(ApiError, match="__cluster_metadata-0 alone"):
        wire.decode_request(VoteMessage(topics=topics))


@pytest.mark.parametrize(
    ("features", "levels"),
    [
        ([SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)], (0, 1)),
        ([SupportedFeatureKey(name="metadata.version", min_version=7, max_version=30)], (0, 0)),
    ],
)
def test_the_levels_that_a_new_voter_supports_are_those_of_its_features(
    features: list[SupportedFeatureKey], levels: tuple[int, int]
) -> None:
    message = ApiVersionsResponse(supported_features=features)
    arrived = codec.decode(ApiVersionsResponse, bytes(codec.encode(message, 4)), 4)
    assert wire.decode_response(arrived) == SupportedVersionsResponse(leadership=UNKNOWN, kraft_versions=levels)
