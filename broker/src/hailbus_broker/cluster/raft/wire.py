"""The quorum's messages as messages of the protocol, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.cluster.metadata.image import CLUSTER_METADATA_TOPIC
from hailbus_broker.cluster.metadata.snapshot import SnapshotId
from hailbus_broker.cluster.raft import messages as raft
from hailbus_broker.cluster.raft import voter_wire
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey
from hailbus_broker.protocol.definitions import (
    api_versions_response,
    begin_quorum_epoch_request,
    begin_quorum_epoch_response,
    end_quorum_epoch_request,
    end_quorum_epoch_response,
    fetch_request,
    fetch_response,
    fetch_snapshot_request,
    fetch_snapshot_response,
    vote_request,
    vote_response,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.protocol.schema import Message, Uuid

METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
"""The id of `__cluster_metadata` in every cluster."""
_NOBODY: Final = -1

T = TypeVar("T")


# ---------------------------------------------------------------------- requests


def encode_request(request: raft.Request) -> Message:
    """Return a request as a message of the protocol."""
    match request:
        case raft.AddVoterRequest() | raft.RemoveVoterRequest() | raft.UpdateVoterRequest():
            return voter_wire.encode_request(request)
        case raft.SupportedVersionsRequest():
            raise AssertionError("the driver asks this by ApiVersions")
        case raft.VoteRequest():
            return vote_request.VoteRequest(
                cluster_id=request.cluster_id,
                voter_id=request.voter.node_id,
                topics=[
                    vote_request.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            vote_request.PartitionData(
                                replica_epoch=request.candidate_epoch,
                                replica_id=request.candidate.node_id,
                                replica_directory_id=_or_zero(request.candidate.directory_id),
                                voter_directory_id=_or_zero(request.voter.directory_id),
                                last_offset_epoch=request.log_end.epoch,
                                last_offset=request.log_end.end_offset,
                                pre_vote=request.is_pre_vote,
                            )
                        ],
                    )
                ],
            )
        case raft.BeginQuorumEpochRequest():
            return begin_quorum_epoch_request.BeginQuorumEpochRequest(
                cluster_id=request.cluster_id,
                voter_id=request.voter.node_id,
                topics=[
                    begin_quorum_epoch_request.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            begin_quorum_epoch_request.PartitionData(
                                voter_directory_id=_or_zero(request.voter.directory_id),
                                leader_id=request.leader_id,
                                leader_epoch=request.leader_epoch,
                            )
                        ],
                    )
                ],
                leader_endpoints=_listeners(begin_quorum_epoch_request.LeaderEndpoint, request.leader_endpoints),
            )
        case raft.EndQuorumEpochRequest():
            return end_quorum_epoch_request.EndQuorumEpochRequest(
                cluster_id=request.cluster_id,
                topics=[
                    end_quorum_epoch_request.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            end_quorum_epoch_request.PartitionData(
                                leader_id=request.leader_id,
                                leader_epoch=request.leader_epoch,
                                preferred_successors=[key.node_id for key in request.successors],
                                preferred_candidates=[
                                    end_quorum_epoch_request.ReplicaInfo(
                                        candidate_id=key.node_id, candidate_directory_id=_or_zero(key.directory_id)
                                    )
                                    for key in request.successors
                                ],
                            )
                        ],
                    )
                ],
                leader_endpoints=_listeners(end_quorum_epoch_request.LeaderEndpoint, request.leader_endpoints),
            )
        case raft.FetchRequest():
            return fetch_request.FetchRequest(
                cluster_id=request.cluster_id,
                replica_id=request.replica.node_id,
                replica_state=fetch_request.ReplicaState(replica_id=request.replica.node_id),
                max_wait_ms=request.max_wait_ms,
                min_bytes=0,
                max_bytes=raft.MAX_FETCH_BYTES,
                topics=[
                    fetch_request.FetchTopic(
                        topic=CLUSTER_METADATA_TOPIC,
                        topic_id=METADATA_TOPIC_ID,
                        partitions=[
                            fetch_request.FetchPartition(
                                current_leader_epoch=request.leader_epoch,
                                fetch_offset=request.end.end_offset,
                                last_fetched_epoch=request.end.epoch,
                                replica_directory_id=_or_zero(request.replica.directory_id),
                                high_watermark=request.high_watermark,
                            )
                        ],
                    )
                ],
            )
        case raft.FetchSnapshotRequest():
            return fetch_snapshot_request.FetchSnapshotRequest(
                cluster_id=request.cluster_id,
                replica_id=request.replica.node_id,
                max_bytes=raft.MAX_FETCH_BYTES,
                topics=[
                    fetch_snapshot_request.TopicSnapshot(
                        name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            fetch_snapshot_request.PartitionSnapshot(
                                current_leader_epoch=request.leader_epoch,
                                snapshot_id=fetch_snapshot_request.SnapshotId(
                                    end_offset=request.snapshot.end_offset, epoch=request.snapshot.leader_epoch
                                ),
                                position=request.position,
                                replica_directory_id=_or_zero(request.replica.directory_id),
                            )
                        ],
                    )
                ],
            )


def decode_request(message: Message) -> raft.Request:
    """Return what a message of the protocol asks for.

    Raises:
        ApiError: INVALID_REQUEST: it is about something else than the metadata partition alone.
    """
    change = voter_wire.decode_request(message)
    if change is not None:
        return change
    match message:
        case vote_request.VoteRequest():
            vote = _only_partition(message.topics)
            return raft.VoteRequest(
                cluster_id=message.cluster_id,
                candidate=_key(vote.replica_id, vote.replica_directory_id),
                candidate_epoch=vote.replica_epoch,
                voter=_key(message.voter_id, vote.voter_directory_id),
                log_end=raft.LogPosition(vote.last_offset_epoch, vote.last_offset),
                is_pre_vote=vote.pre_vote,
            )
        case begin_quorum_epoch_request.BeginQuorumEpochRequest():
            begun = _only_partition(message.topics)
            return raft.BeginQuorumEpochRequest(
                cluster_id=message.cluster_id,
                leader_id=begun.leader_id,
                leader_epoch=begun.leader_epoch,
                voter=_key(message.voter_id, begun.voter_directory_id),
                leader_endpoints=_endpoints(message.leader_endpoints),
            )
        case end_quorum_epoch_request.EndQuorumEpochRequest():
            ended = _only_partition(message.topics)
            candidates = [_key(one.candidate_id, one.candidate_directory_id) for one in ended.preferred_candidates]
            return raft.EndQuorumEpochRequest(
                cluster_id=message.cluster_id,
                leader_id=ended.leader_id,
                leader_epoch=ended.leader_epoch,
                successors=tuple(candidates or [ReplicaKey(node_id) for node_id in ended.preferred_successors]),
                leader_endpoints=_endpoints(message.leader_endpoints),
            )
        case fetch_request.FetchRequest():
            fetched = _only_partition(message.topics)
            node_id = message.replica_state.replica_id if message.replica_id == _NOBODY else message.replica_id
            return raft.FetchRequest(
                cluster_id=message.cluster_id,
                replica=_key(node_id, fetched.replica_directory_id),
                leader_epoch=fetched.current_leader_epoch,
                end=raft.LogPosition(fetched.last_fetched_epoch, fetched.fetch_offset),
                high_watermark=fetched.high_watermark,
                max_wait_ms=message.max_wait_ms,
            )
        case fetch_snapshot_request.FetchSnapshotRequest():
            part = _only_partition(message.topics)
            return raft.FetchSnapshotRequest(
                cluster_id=message.cluster_id,
                replica=_key(message.replica_id, part.replica_directory_id),
                leader_epoch=part.current_leader_epoch,
                snapshot=SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch),
                position=part.position,
            )
        case _:
            raise AssertionError(f"{type(message).__name__} is no request of the quorum")


# ---------------------------------------------------------------------- responses


def encode_response(request: raft.Request, response: raft.Response) -> Message:
    """Return the response to a request as a message of the protocol."""
    said = response.leadership
    leader_id = _NOBODY if said.leader_id is None else said.leader_id
    if isinstance(request, raft.AddVoterRequest | raft.RemoveVoterRequest | raft.UpdateVoterRequest):
        return voter_wire.encode_response(request, response)
    assert not isinstance(request, raft.SupportedVersionsRequest), "the listener answers ApiVersions"
    if response.request_error is not ErrorCode.NONE:
        return _refusal(request, response.request_error)
    match request, response:
        case raft.VoteRequest(), raft.VoteResponse():
            return vote_response.VoteResponse(
                topics=[
                    vote_response.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            vote_response.PartitionData(
                                error_code=response.error,
                                leader_id=leader_id,
                                leader_epoch=said.leader_epoch,
                                vote_granted=response.is_granted,
                            )
                        ],
                    )
                ],
                node_endpoints=_nodes(vote_response.NodeEndpoint, said),
            )
        case raft.BeginQuorumEpochRequest(), _:
            return begin_quorum_epoch_response.BeginQuorumEpochResponse(
                topics=[
                    begin_quorum_epoch_response.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            begin_quorum_epoch_response.PartitionData(
                                error_code=response.error, leader_id=leader_id, leader_epoch=said.leader_epoch
                            )
                        ],
                    )
                ],
                node_endpoints=_nodes(begin_quorum_epoch_response.NodeEndpoint, said),
            )
        case raft.EndQuorumEpochRequest(), _:
            return end_quorum_epoch_response.EndQuorumEpochResponse(
                topics=[
                    end_quorum_epoch_response.TopicData(
                        topic_name=CLUSTER_METADATA_TOPIC,
                        partitions=[
                            end_quorum_epoch_response.PartitionData(
                                error_code=response.error, leader_id=leader_id, leader_epoch=said.leader_epoch
                            )
                        ],
                    )
                ],
                node_endpoints=_nodes(end_quorum_epoch_response.NodeEndpoint, said),
            )
        case raft.FetchRequest(), raft.FetchResponse():
            partition = fetch_response.PartitionData(
                error_code=response.error,
                high_watermark=response.high_watermark,
                log_start_offset=response.log_start_offset,
                current_leader=fetch_response.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=said.leader_epoch),
                records=response.records,
            )
            if response.diverging is not None:
                partition.diverging_epoch = fetch_response.EpochEndOffset(
                    epoch=response.diverging.epoch, end_offset=response.diverging.end_offset
                )
            if response.snapshot is not None:
                partition.snapshot_id = fetch_response.SnapshotId(
                    end_offset=response.snapshot.end_offset, epoch=response.snapshot.leader_epoch
                )
            return fetch_response.FetchResponse(
                responses=[
                    fetch_response.FetchableTopicResponse(
                        topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
                    )
                ],
                node_endpoints=_nodes(fetch_response.NodeEndpoint, said),
            )
        case raft.FetchSnapshotRequest(), raft.FetchSnapshotResponse():
            part = fetch_snapshot_response.PartitionSnapshot(
                error_code=response.error,
                snapshot_id=fetch_snapshot_response.SnapshotId(
                    end_offset=response.snapshot.end_offset, epoch=response.snapshot.leader_epoch
                ),
                current_leader=fetch_snapshot_response.LeaderIdAndEpoch(
                    leader_id=leader_id, leader_epoch=said.leader_epoch
                ),
                size=response.size,
                position=response.position,
                unaligned_records=response.data,
            )
            return fetch_snapshot_response.FetchSnapshotResponse(
                topics=[fetch_snapshot_response.TopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[part])],
                node_endpoints=_nodes(fetch_snapshot_response.NodeEndpoint, said),
            )
        case _:
            raise AssertionError(f"{type(response).__name__} answers no {type(request).__name__}")


def _refusal(request: raft.PartitionRequest, error: ErrorCode) -> Message:
    """Return a response that says of the request as a whole why it is not served."""
    match request:
        case raft.VoteRequest():
            return vote_response.VoteResponse(error_code=error)
        case raft.BeginQuorumEpochRequest():
            return begin_quorum_epoch_response.BeginQuorumEpochResponse(error_code=error)
        case raft.EndQuorumEpochRequest():
            return end_quorum_epoch_response.EndQuorumEpochResponse(error_code=error)
        case raft.FetchRequest():
            return fetch_response.FetchResponse(error_code=error)
        case raft.FetchSnapshotRequest():
            return fetch_snapshot_response.FetchSnapshotResponse(error_code=error)


def decode_response(message: Message) -> raft.Response:
    """Return what a response says. Nobody is known to lead, in epoch -1, where it refuses the request as a whole.

    Raises:
        ApiError: INVALID_REQUEST: it is about something else than the metadata partition alone.
    """
    change = voter_wire.decode_response(message)
    if change is not None:
        return change
    match message:
        case api_versions_response.ApiVersionsResponse():
            return voter_wire.supported_versions(message)
        case vote_response.VoteResponse():
            if message.error_code:
                return raft.VoteResponse(leadership=_UNKNOWN, request_error=ErrorCode(message.error_code))
            vote = _only_partition(message.topics)
            return raft.VoteResponse(
                leadership=_leadership(vote.leader_id, vote.leader_epoch, message.node_endpoints),
                error=ErrorCode(vote.error_code),
                is_granted=vote.vote_granted,
            )
        case (
            begin_quorum_epoch_response.BeginQuorumEpochResponse() | end_quorum_epoch_response.EndQuorumEpochResponse()
        ):
            if message.error_code:
                return raft.Response(leadership=_UNKNOWN, request_error=ErrorCode(message.error_code))
            topics: Sequence[Any] = message.topics
            epoch = _only_partition(topics)
            return raft.Response(
                leadership=_leadership(epoch.leader_id, epoch.leader_epoch, message.node_endpoints),
                error=ErrorCode(epoch.error_code),
            )
        case fetch_response.FetchResponse():
            if message.error_code:
                return raft.FetchResponse(leadership=_UNKNOWN, request_error=ErrorCode(message.error_code))
            fetched = _only_partition(message.responses)
            leader, diverging, snapshot = fetched.current_leader, fetched.diverging_epoch, fetched.snapshot_id
            return raft.FetchResponse(
                leadership=_leadership(leader.leader_id, leader.leader_epoch, message.node_endpoints),
                error=ErrorCode(fetched.error_code),
                high_watermark=fetched.high_watermark,
                log_start_offset=fetched.log_start_offset,
                diverging=(None if diverging.epoch < 0 else raft.LogPosition(diverging.epoch, diverging.end_offset)),
                snapshot=None if snapshot.epoch < 0 else SnapshotId(snapshot.end_offset, snapshot.epoch),
                records=fetched.records or b"",
            )
        case fetch_snapshot_response.FetchSnapshotResponse():
            if message.error_code:
                return raft.FetchSnapshotResponse(
                    leadership=_UNKNOWN, request_error=ErrorCode(message.error_code), snapshot=SnapshotId(-1, -1)
                )
            part = _only_partition(message.topics)
            return raft.FetchSnapshotResponse(
                leadership=_leadership(
                    part.current_leader.leader_id, part.current_leader.leader_epoch, message.node_endpoints
                ),
                error=ErrorCode(part.error_code),
                snapshot=SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch),
                size=part.size,
                position=part.position,
                data=part.unaligned_records,
            )
        case _:
            raise AssertionError(f"{type(message).__name__} is no response of the quorum")


# ---------------------------------------------------------------------- parts

_UNKNOWN: Final = raft.Leadership(leader_id=None, leader_epoch=-1)


def _or_zero(directory_id: Uuid | None) -> Uuid:
    return ZERO_UUID if directory_id is None else directory_id


def _key(node_id: int, directory_id: Uuid) -> ReplicaKey:
    return ReplicaKey(node_id, None if directory_id == ZERO_UUID else directory_id)


def _only_partition(topics: Sequence[Any]) -> Any:
    """Return the part of a message that is about the metadata partition, if there is no other."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic, partition = topics[0], topics[0].partitions[0]
        name = getattr(topic, "topic_name", None) or getattr(topic, "name", None) or getattr(topic, "topic", None)
        index = next(
            value
            for key in ("partition_index", "partition", "index")
            if (value := getattr(partition, key, None)) is not None
        )
        if index == 0 and (name == CLUSTER_METADATA_TOPIC or getattr(topic, "topic_id", None) == METADATA_TOPIC_ID):
            return partition
    raise ApiError(ErrorCode.INVALID_REQUEST, f"The message is not about {CLUSTER_METADATA_TOPIC}-0 alone.")


def _listeners(kind: type[T], endpoints: Iterable[Endpoint]) -> list[T]:
    return [kind(name=one.listener, host=one.host, port=one.port) for one in endpoints]  # type: ignore[call-arg]  # each kind has these fields


def _endpoints(listeners: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)


def _nodes(kind: type[T], said: raft.Leadership) -> list[T]:
    if said.leader_id is None:
        return []
    return [
        kind(node_id=said.leader_id, host=one.host, port=one.port)  # type: ignore[call-arg]  # each kind has these fields
        for one in said.leader_endpoints[:1]
    ]


def _leadership(leader_id: int, leader_epoch: int, nodes: Iterable[Any]) -> raft.Leadership:
    if leader_id == _NOBODY:
        return raft.Leadership(leader_id=None, leader_epoch=leader_epoch)
    endpoints = tuple(Endpoint("", one.host, one.port) for one in nodes if one.node_id == leader_id)
    return raft.Leadership(leader_id=leader_id, leader_epoch=leader_epoch, leader_endpoints=endpoints)
