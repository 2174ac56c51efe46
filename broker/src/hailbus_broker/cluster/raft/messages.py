"""What the nodes of the quorum say to each other. `wire` has the same as messages of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from hailbus_broker.cluster.metadata.snapshot import SnapshotId
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.records import LeaderEpoch, Offset

MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
"""Of the records, or the part of a snapshot, that a replica asks for at once."""


class LogPosition(NamedTuple):
    """Where a log ends; ordered as elections compare logs.

    Attributes:
        epoch: Of the last record, 0 for an empty log.
        end_offset: Exclusive.
    """

    epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote; with `is_pre_vote` only whether there would be one (KIP-996)."""

    cluster_id: str | None
    candidate: ReplicaKey
    candidate_epoch: LeaderEpoch
    voter: ReplicaKey
    log_end: LogPosition
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """The leader of an epoch makes itself known to a voter."""

    cluster_id: str | None
    leader_id: int
    leader_epoch: LeaderEpoch
    voter: ReplicaKey
    leader_endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """The leader of an epoch resigns.

    Attributes:
        successors: Who should be elected next, the best first.
    """

    cluster_id: str | None
    leader_id: int
    leader_epoch: LeaderEpoch
    successors: tuple[ReplicaKey, ...]
    leader_endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A replica asks for records behind the end of its own log.

    Attributes:
        end: Of its log, as far as that is on its disk.
        high_watermark: The last one that it knows, -1 for none (KIP-1166).
        max_wait_ms: How long the leader may wait for records.
    """

    cluster_id: str | None
    replica: ReplicaKey
    leader_epoch: LeaderEpoch
    end: LogPosition
    high_watermark: Offset
    max_wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A replica asks for a part of a snapshot."""

    cluster_id: str | None
    replica: ReplicaKey
    leader_epoch: LeaderEpoch
    snapshot: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequest:
    """Asks the leader for another voter.

    Attributes:
        timeout_ms: How long the leader may wait for the new voter to catch up, and for the commit.
        ack_when_committed: Whether the answer waits for the commit.
    """

    cluster_id: str | None
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    timeout_ms: int
    ack_when_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequest:
    """Asks the leader to remove a voter."""

    cluster_id: str | None
    voter: ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    """A voter describes itself to the leader.

    Attributes:
        kraft_versions: Lowest and highest level of `kraft.version` that it supports.
    """

    cluster_id: str | None
    leader_epoch: LeaderEpoch
    voter: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    kraft_versions: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersionsRequest:
    """The leader asks a new voter which levels of `kraft.version` it supports, by ApiVersions."""


VoterChangeRequest: TypeAlias = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest
PartitionRequest: TypeAlias = (
    VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | FetchSnapshotRequest
)
Request: TypeAlias = PartitionRequest | VoterChangeRequest | SupportedVersionsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What every response says.

    Attributes:
        leader_id: None when the sender knows no leader.
        leader_epoch: The sender's epoch.
        leader_endpoints: Where the leader listens, as far as the sender knows.
    """

    leader_id: int | None
    leader_epoch: LeaderEpoch
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What all responses have in common; by itself the answer to Begin- and EndQuorumEpoch.

    Attributes:
        request_error: An error about the request as a whole.
        error: An error about the metadata partition.
    """

    leadership: Leadership
    error: ErrorCode = ErrorCode.NONE
    request_error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(Response):
    """The vote, or the answer to the question before it."""

    is_granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(Response):
    """What the leader has for a replica: records, or one of the two ways to get there.

    Attributes:
        diverging: The logs differ behind this position at the latest: the replica truncates to it and asks again.
        snapshot: The records are gone, and this snapshot has what they added up to.
        records_from: The records begin at this offset; the leader's driver reads them when it sends the response.
        records: As they arrived.
    """

    high_watermark: Offset = -1
    log_start_offset: Offset = 0
    diverging: LogPosition | None = None
    snapshot: SnapshotId | None = None
    records_from: Offset | None = None
    records: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse(Response):
    """A part of a snapshot.

    Attributes:
        size: Of the whole, in bytes.
        data: As it arrived; the leader's driver reads it when it sends the response.
    """

    snapshot: SnapshotId
    size: int = 0
    position: int = 0
    data: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse(Response):
    """What became of a change of the voters.

    Attributes:
        message: Why it was refused.
    """

    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedVersionsResponse(Response):
    """The levels of `kraft.version` that a node supports."""

    kraft_versions: tuple[int, int] = (0, 0)
