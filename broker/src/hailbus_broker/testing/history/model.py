"""A history: what clients sent, read and committed, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from hailbus_broker.records import ControlType, read_control_type

if TYPE_CHECKING:
    from hailbus_broker.records import BatchView

MARKERS: Final[dict[ControlType, Literal["commit", "abort"]]] = {
    ControlType.COMMIT: "commit",
    ControlType.ABORT: "abort",
}
End: TypeAlias = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One send. `ok` has its offset; `fail` is known not to be in the log; `unknown` may be."""

    process: str
    partition: int
    value: int
    outcome: End
    offset: int | None = None
    transaction: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """One record that a consumer was given. Each `life` of it reads from where it was assigned on.

    A consumer with assigned partitions reads all of them without a gap. One that is subscribed may be moved between
    two polls, so that only within one `op` its records must follow each other.
    """

    process: str
    life: int
    partition: int
    offset: int
    value: int
    op: int = 0
    is_subscribed: bool = False
    transaction: int | None = None
    """The transaction that was open in the same process meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A partition as a list of what was appended: read from its start to where it ended when the reading began."""

    process: str
    partition: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a group's offset of a partition was set to, or found to be. `is_read` tells which."""

    group: str
    partition: int
    offset: int
    is_read: bool
    outcome: End = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One batch that the log holds at the end. `marker` is set if the batch ends a transaction."""

    partition: int
    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    marker: Literal["commit", "abort"] | None = None

    @classmethod
    def of(cls, partition: int, view: BatchView) -> Stored:
        """Return what the header of a batch says, and which marker it holds."""
        header = view.header
        control = read_control_type(view) if header.is_control else None
        return cls(
            partition=partition,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
            marker=None if control is None else MARKERS.get(control),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """What one response said of a partition. `asked_at` and `answered_at` number the events of the history."""

    place: tuple[str, int]
    asked_at: int
    answered_at: int
    log_start: int
    last_stable: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """A batch that was acknowledged by all in-sync replicas: from then on the high watermark is above `last_offset`."""

    place: tuple[str, int]
    last_offset: int
    answered_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A DeleteRecords that was acknowledged: what is below the offset must stay deleted."""

    place: tuple[str, int]
    offset: int
    answered_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What a member of a group was assigned in one generation."""

    group: str
    generation: int
    member: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLookup:
    """One response to ListOffsets: the first offset whose timestamp is at least `timestamp`; -1 is none."""

    op: int
    partition: int
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWrite:
    """A write to a compacted topic. A value of None is a tombstone. `fail` was aborted, or is known not to be there."""

    key: str
    value: int | None
    outcome: End
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRead:
    """A record that a reader of a compacted topic was given, in the order in which it read."""

    partition: int
    key: str
    value: int | None
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """A transaction of one producer: which partitions it may have written to, and in which it did for certain."""

    number: int
    producer_id: int
    partitions: frozenset[int]
    written: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """A producer id that a response gave to its owner: a transactional id, or one request without such an id."""

    owner: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that happened: sends in order per process, polls in order per process, how transactions ended."""

    sent: Sequence[Sent]
    polled: Sequence[Polled]
    final: Sequence[Polled]
    """What a last consumer read from the start of each partition to its end, with read_committed."""
    transactions: dict[int, End] = field(default_factory=dict)
    """`ok` is committed, `fail` aborted."""
    offsets: Sequence[Committed] = ()
    """Commits and reads of groups' offsets, in order per group and partition."""
    copied: Sequence[Polled] = ()
    """What was made of the records by copying them exactly once, read from start to end; values are the source's."""
    stored: Sequence[Stored] = ()
    """All batches of the log at the end, in order per partition."""
    handed: Sequence[Polled] = ()
    """What the members of a group that commits by itself were handed, in order of time over all of them."""
    lists: Sequence[Listed] = ()
    """Partitions that were read as a whole, in order per process."""
    uncommitted: Sequence[Polled] = ()
    """What consumers with read_uncommitted were given; never what the high watermark had not passed."""
    raw: Sequence[Polled] = ()
    """What a last consumer with read_uncommitted read from start to end."""
    again: Sequence[Polled] | None = None
    """As `final`, after one more power cut; None where there was none."""
    watermarks: Sequence[Watermark] = ()
    acked: Sequence[Acked] = ()
    """Acknowledgements, in order of time."""
    deleted: Sequence[Deleted] = ()
    owned: Sequence[Owned] = ()
    lookups: Sequence[TimeLookup] = ()
    key_writes: Sequence[KeyWrite] = ()
    """Writes to the compacted topic; those of a key in the order in which they were asked for."""
    key_reads: Mapping[str, Sequence[KeyRead]] = field(default_factory=dict)
    """What each reader of the compacted topic read, from its start to its end."""
    attempted: Sequence[Attempted] = ()
    """Transactions, so that their markers in `stored` can be counted."""
    identified: Sequence[Identified] = ()
    """Producer ids, in order of time."""
