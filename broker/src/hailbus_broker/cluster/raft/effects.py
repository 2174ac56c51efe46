"""What the quorum's state machine wants done. Its driver does one after the other, in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.election_state import ElectionState
    from hailbus_broker.cluster.raft.messages import Request, Response
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.records import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the election state, and go on with the next effect when it is on the disk."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; hand in its response, or its failure, with the same number.

    Attributes:
        number: Of the request.
        to: Node id of the receiver, negative for a bootstrap server whose id is not known.
        endpoint: Where it listens.
    """

    number: int
    to: int
    endpoint: Endpoint
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request that came in.

    A fetch is answered with records of the leader's log: if the epoch is another by now, it is not answered.

    Attributes:
        token: As it was given with the request.
    """

    token: object
    response: Response


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """A snapshot has arrived as a whole: replace the log by it, then call `snapshot_installed`."""

    snapshot: SnapshotId
    data: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """The high watermark has moved."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class Leads:
    """This node leads from now on. It decides as controller as soon as everything before `from_offset` is committed.

    Attributes:
        from_offset: Of the first record of the epoch.
    """

    epoch: LeaderEpoch
    from_offset: Offset


@dataclass(frozen=True, slots=True)
class Follows:
    """Another node leads, or nobody is known to.

    Attributes:
        leader_id: None for nobody.
    """

    epoch: LeaderEpoch
    leader_id: int | None


Effect: TypeAlias = Persist | Send | Reply | InstallSnapshot | Committed | Leads | Follows
