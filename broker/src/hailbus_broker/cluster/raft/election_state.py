"""What a replica must not forget about elections: the file `quorum-state`, as Apache Kafka writes it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS, ReplicaKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.records import LeaderEpoch

FILE_NAME: Final = "quorum-state"
_NOBODY: Final = -1
_NO_DIRECTORY: Final = bytes(16)


class ElectionStateError(ValueError):
    """The file is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """An epoch, who leads it, and who got this replica's vote in it.

    Attributes:
        epoch: 0 before the first election.
        leader_id: None while nobody is known to lead.
        voted: None when the replica has not voted in the epoch.
    """

    epoch: LeaderEpoch = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None

    def encode(self, kraft_version: int, voter_ids: Iterable[int]) -> bytes:
        """The file's content.

        Args:
            kraft_version: From level 1 on the directory of the vote is kept in place of the voters' ids.
            voter_ids: For level 0.
        """
        values: dict[str, Any] = {
            "leaderId": _NOBODY if self.leader_id is None else self.leader_id,
            "leaderEpoch": self.epoch,
            "votedId": _NOBODY if self.voted is None else self.voted.node_id,
        }
        if kraft_version >= DYNAMIC_VOTERS:
            values["votedDirectoryId"] = _encode(None if self.voted is None else self.voted.directory_id)
            values["data_version"] = 1
        else:
            values = {"clusterId": "", **values, "appliedOffset": 0}
            values["currentVoters"] = [{"voterId": node_id} for node_id in sorted(voter_ids)]
            values["data_version"] = 0
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> ElectionState:
        """Read the file.

        Raises:
            ElectionStateError: It is damaged, or newer than this code.
        """
        try:
            values = json.loads(data)
            version = values["data_version"]
            if version not in {0, 1}:
                raise ElectionStateError(f"{FILE_NAME} has data_version {version}; known are 0 and 1")
            leader_id, epoch, voted_id = int(values["leaderId"]), int(values["leaderEpoch"]), int(values["votedId"])
            directory_id = _decode(values["votedDirectoryId"]) if version == 1 else None
        except ElectionStateError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise ElectionStateError(f"{FILE_NAME} is damaged: {error!r}") from error
        return cls(
            epoch=epoch,
            leader_id=None if leader_id == _NOBODY else leader_id,
            voted=None if voted_id == _NOBODY else ReplicaKey(voted_id, directory_id),
        )


def _encode(directory_id: Uuid | None) -> str:
    return urlsafe_b64encode(directory_id or _NO_DIRECTORY).decode().rstrip("=")


def _decode(text: str) -> Uuid | None:
    found = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(found) != len(_NO_DIRECTORY):
        raise ValueError(f"{text!r} is no directory id")
    return None if found == _NO_DIRECTORY else found
