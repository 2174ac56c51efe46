"""Changes of the voters as messages of the protocol, in both directions (KIP-853)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    Leadership,
    RemoveVoterRequest,
    SupportedVersionsResponse,
    UpdateVoterRequest,
    VoterChangeResponse,
)
from hailbus_broker.cluster.raft.voters import KRAFT_VERSION, Endpoint, ReplicaKey
from hailbus_broker.protocol.definitions import (
    add_raft_voter_request,
    add_raft_voter_response,
    remove_raft_voter_request,
    remove_raft_voter_response,
    update_raft_voter_request,
    update_raft_voter_response,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.cluster.raft.messages import Response, VoterChangeRequest
    from hailbus_broker.protocol.definitions.api_versions_response import ApiVersionsResponse
    from hailbus_broker.protocol.schema import Message, Uuid


def encode_request(request: VoterChangeRequest) -> Message:
    """Return a request as a message of the protocol."""
    directory_id = request.voter.directory_id or ZERO_UUID
    match request:
        case AddVoterRequest():
            return add_raft_voter_request.AddRaftVoterRequest(
                cluster_id=request.cluster_id,
                timeout_ms=request.timeout_ms,
                voter_id=request.voter.node_id,
                voter_directory_id=directory_id,
                listeners=[
                    add_raft_voter_request.Listener(name=one.listener, host=one.host, port=one.port)
                    for one in request.endpoints
                ],
                ack_when_committed=request.ack_when_committed,
            )
        case RemoveVoterRequest():
            return remove_raft_voter_request.RemoveRaftVoterRequest(
                cluster_id=request.cluster_id, voter_id=request.voter.node_id, voter_directory_id=directory_id
            )
        case UpdateVoterRequest():
            low, high = request.kraft_versions
            return update_raft_voter_request.UpdateRaftVoterRequest(
                cluster_id=request.cluster_id,
                current_leader_epoch=request.leader_epoch,
                voter_id=request.voter.node_id,
                voter_directory_id=directory_id,
                listeners=[
                    update_raft_voter_request.Listener(name=one.listener, host=one.host, port=one.port)
                    for one in request.endpoints
                ],
                kraft_version_feature=update_raft_voter_request.KRaftVersionFeature(
                    min_supported_version=low, max_supported_version=high
                ),
            )


def decode_request(message: Message) -> VoterChangeRequest | None:
    """Return what a message asks for; None if it is about something else."""
    match message:
        case add_raft_voter_request.AddRaftVoterRequest():
            return AddVoterRequest(
                cluster_id=message.cluster_id,
                voter=_key(message.voter_id, message.voter_directory_id),
                endpoints=_endpoints(message.listeners),
                timeout_ms=message.timeout_ms,
                ack_when_committed=message.ack_when_committed,
            )
        case remove_raft_voter_request.RemoveRaftVoterRequest():
            return RemoveVoterRequest(
                cluster_id=message.cluster_id, voter=_key(message.voter_id, message.voter_directory_id)
            )
        case update_raft_voter_request.UpdateRaftVoterRequest():
            levels = message.kraft_version_feature
            return UpdateVoterRequest(
                cluster_id=message.cluster_id,
                leader_epoch=message.current_leader_epoch,
                voter=_key(message.voter_id, message.voter_directory_id),
                endpoints=_endpoints(message.listeners),
                kraft_versions=(levels.min_supported_version, levels.max_supported_version),
            )
        case _:
            return None


def encode_response(request: VoterChangeRequest, response: Response) -> Message:
    """Return the response to a request as a message of the protocol."""
    message = response.message if isinstance(response, VoterChangeResponse) else None
    match request:
        case AddVoterRequest():
            return add_raft_voter_response.AddRaftVoterResponse(error_code=response.error, error_message=message)
        case RemoveVoterRequest():
            return remove_raft_voter_response.RemoveRaftVoterResponse(error_code=response.error, error_message=message)
        case UpdateVoterRequest():
            answer = update_raft_voter_response.UpdateRaftVoterResponse(error_code=response.error)
            said = response.leadership
            if said.leader_id is not None and said.leader_endpoints:
                answer.current_leader = update_raft_voter_response.CurrentLeader(
                    leader_id=said.leader_id,
                    leader_epoch=said.leader_epoch,
                    host=said.leader_endpoints[0].host,
                    port=said.leader_endpoints[0].port,
                )
            return answer


def decode_response(message: Message) -> VoterChangeResponse | None:
    """Return what a response says; None if it answers something else."""
    match message:
        case add_raft_voter_response.AddRaftVoterResponse() | remove_raft_voter_response.RemoveRaftVoterResponse():
            return VoterChangeResponse(
                leadership=Leadership(leader_id=None, leader_epoch=-1),
                error=ErrorCode(message.error_code),
                message=message.error_message,
            )
        case update_raft_voter_response.UpdateRaftVoterResponse():
            leader = message.current_leader
            leadership = Leadership(leader_id=None, leader_epoch=leader.leader_epoch)
            if leader.leader_id >= 0:
                endpoint = Endpoint("", leader.host, leader.port)
                leadership = Leadership(
                    leader_id=leader.leader_id, leader_epoch=leader.leader_epoch, leader_endpoints=(endpoint,)
                )
            return VoterChangeResponse(leadership=leadership, error=ErrorCode(message.error_code))
        case _:
            return None


def supported_versions(message: ApiVersionsResponse) -> SupportedVersionsResponse:
    """Return which levels of `kraft.version` a node supports, by its answer to ApiVersions; 0 alone if it has none."""
    levels = {one.name: (one.min_version, one.max_version) for one in message.supported_features}
    return SupportedVersionsResponse(
        leadership=Leadership(leader_id=None, leader_epoch=-1),
        error=ErrorCode(message.error_code),
        kraft_versions=levels.get(KRAFT_VERSION, (0, 0)),
    )


def _key(node_id: int, directory_id: Uuid) -> ReplicaKey:
    return ReplicaKey(node_id, None if directory_id == ZERO_UUID else directory_id)


def _endpoints(listeners: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)
