"""Who votes: the voters of the quorum, their addresses, and how the set changes along the log (KIP-853)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.records import Offset

T = TypeVar("T")

KRAFT_VERSION: Final = "kraft.version"
DYNAMIC_VOTERS: Final = 1
"""The level of `kraft.version` from which the log says who votes; below it the configuration does."""
SUPPORTED_LEVELS: Final = (0, DYNAMIC_VOTERS)
"""Lowest and highest level of `kraft.version` that this code knows."""


class ReplicaKey(NamedTuple):
    """A replica of the metadata log.

    Attributes:
        node_id: Of the node.
        directory_id: Of its metadata directory; None where the sender does not know it, or is too old to say.
    """

    node_id: int
    directory_id: Uuid | None = None

    def __str__(self) -> str:
        if self.directory_id is None:
            return str(self.node_id)
        return f"{self.node_id} with directory id {urlsafe_b64encode(self.directory_id).decode().rstrip('=')}"

    def matches(self, other: ReplicaKey) -> bool:
        """Whether both may be the same replica: a directory that one side does not know says nothing."""
        if self.node_id != other.node_id:
            return False
        return self.directory_id is None or other.directory_id is None or self.directory_id == other.directory_id


class Endpoint(NamedTuple):
    """An address that a controller listens on."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter.

    Attributes:
        key: The replica.
        endpoints: Where it listens, the first of which other nodes dial.
        kraft_versions: Lowest and highest level of `kraft.version` that it supports.
    """

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...]
    kraft_versions: tuple[int, int] = SUPPORTED_LEVELS

    def supports(self, level: int) -> bool:
        """Whether the voter supports a level of `kraft.version`."""
        return self.kraft_versions[0] <= level <= self.kraft_versions[1]


class VoterSet:
    """The voters at one point of the log. Never changes."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters: Final[Mapping[int, Voter]] = {
            voter.key.node_id: voter for voter in sorted(voters, key=lambda voter: voter.key.node_id)
        }

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __len__(self) -> int:
        return len(self._voters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __str__(self) -> str:
        return ", ".join(str(voter.key) for voter in self)

    def __repr__(self) -> str:
        return f"VoterSet({list(self._voters.values())!r})"

    @property
    def ids(self) -> Collection[int]:
        """Their node ids, ascending."""
        return self._voters.keys()

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self._voters) // 2 + 1

    def get(self, node_id: int) -> Voter | None:
        """The voter with a node id."""
        return self._voters.get(node_id)

    def has(self, replica: ReplicaKey) -> bool:
        """Whether a replica votes."""
        found = self._voters.get(replica.node_id)
        return found is not None and found.key.matches(replica)

    def is_only(self, replica: ReplicaKey) -> bool:
        """Whether a replica is the only voter."""
        return len(self._voters) == 1 and self.has(replica)

    def replaced(self, voter: Voter) -> VoterSet:
        """The same voters, but this one as it is now."""
        return VoterSet([*(one for one in self if one.key.node_id != voter.key.node_id), voter])


class VoterHistory:
    """The sets of voters that the log holds, by the offset of their record.

    A set counts from the moment its record is appended, committed or not, so a truncation brings back the set before.

    Args:
        configured: The voters that hold before the first record: those of the configuration, or none.
    """

    def __init__(self, configured: VoterSet) -> None:
        self._configured: Final = configured
        self._sets: list[tuple[Offset, VoterSet]] = []
        self._levels: list[tuple[Offset, int]] = []

    @property
    def current(self) -> VoterSet:
        """The voters by whom elections and commits are decided now."""
        return self._sets[-1][1] if self._sets else self._configured

    @property
    def kraft_version(self) -> int:
        """The finalised level of `kraft.version`."""
        return self._levels[-1][1] if self._levels else 0

    @property
    def voters_offset(self) -> Offset:
        """Of the record that names the voters; -1 if the configuration does, or what `format` has written."""
        return self._sets[-1][0] if self._sets else -1

    def was_voter(self, replica: ReplicaKey, high_watermark: Offset) -> bool:
        """Whether a replica votes by the record with voters before the last one, which is not known to be committed."""
        if self.voters_offset < high_watermark:
            return False
        before = self._sets[-2][1] if len(self._sets) > 1 else self._configured
        return before.has(replica)

    def at(self, offset: Offset) -> tuple[int, VoterSet | None]:
        """The level and the voters that records before an offset say; for a snapshot that ends there."""
        level = next((level for position, level in reversed(self._levels) if position < offset), 0)
        voters = next((voters for position, voters in reversed(self._sets) if position < offset), None)
        return level, voters

    def add_voters(self, offset: Offset, voters: VoterSet) -> None:
        """A record with voters was appended."""
        self._sets.append((offset, voters))

    def add_level(self, offset: Offset, level: int) -> None:
        """A record with a level of `kraft.version` was appended."""
        self._levels.append((offset, level))

    def learn(self, changes: Iterable[tuple[Offset, VoterSet | int]]) -> None:
        """Records with voters, or with levels of `kraft.version`, were appended."""
        for offset, change in changes:
            if isinstance(change, VoterSet):
                self.add_voters(offset, change)
            else:
                self.add_level(offset, change)

    def truncate_to(self, end_offset: Offset) -> None:
        """The log was cut: it ends before this offset."""
        self._sets = [entry for entry in self._sets if entry[0] < end_offset]
        self._levels = [entry for entry in self._levels if entry[0] < end_offset]

    def forget_before(self, start_offset: Offset) -> None:
        """The log begins at this offset now: of what is older only the last entries are needed."""
        self._sets = _last_before(self._sets, start_offset)
        self._levels = _last_before(self._levels, start_offset)

    def clear(self) -> None:
        """The whole log was replaced by a snapshot, whose records follow."""
        self._sets.clear()
        self._levels.clear()


def _last_before(entries: list[tuple[Offset, T]], start_offset: Offset) -> list[tuple[Offset, T]]:
    before = [entry for entry in entries if entry[0] < start_offset]
    return before[-1:] + entries[len(before) :]
