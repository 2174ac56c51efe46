"""What the invariants of a cluster look for in one log: what is committed, what was truncated, markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hailbus_broker.log import Isolation
from hailbus_broker.records import iterate_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.log import PartitionLog
    from hailbus_broker.testing.simulation.cluster import SimulatedNode

READ_BYTES: Final = 1 << 20


class Committed(NamedTuple):
    """A committed batch."""

    next_offset: int
    leader_epoch: int
    crc: int


class MetadataEnd(NamedTuple):
    """What a node had synced of the metadata at the look before: the end offset, and the epoch of the last record."""

    offset: int = 0
    leader_epoch: int = -1

    @classmethod
    def of(cls, log: PartitionLog) -> MetadataEnd:
        """Return what a log has synced now."""
        end = log.synced_end_offset
        return cls(end, log.leader_epochs.epoch_at(end - 1))

    def is_gone(self, log: PartitionLog) -> bool:
        """Return whether records below it were truncated since, even if others have taken their place."""
        if self.offset <= log.log_start_offset:  # nothing was there, or a snapshot has replaced it
            return False
        return log.end_offset_for_epoch(self.leader_epoch)[1] < self.offset


class CommittedLog:
    """The batches of one log that some node knows as committed.

    Args:
        name: Of the log.
        fail: Told what must not be.
    """

    def __init__(self, name: str, fail: Callable[[str], object]) -> None:
        self.name: Final = name
        self.end_offset = 0
        self._fail: Final = fail
        self._batches: Final[dict[int, Committed]] = {}
        self._cursors: Final[dict[str, int]] = {}

    def skip_to(self, offset: int) -> None:
        """Take over what is committed up to an offset without having seen it."""
        self.end_offset = max(self.end_offset, offset)

    def read(self, node: SimulatedNode, log: PartitionLog, high_watermark: int) -> Iterator[Any]:
        """Compare what a node has committed since the last call, and return the batches that are new to all."""
        who = node.process.name
        cursor = max(self._cursors.get(who, 0), log.log_start_offset)
        while cursor < high_watermark:
            data = log.read(cursor, READ_BYTES, isolation=Isolation.LOG_END).to_bytes()
            before = cursor
            for batch in iterate_batches(data, whole=False):
                header = batch.header
                if header.next_offset > high_watermark:
                    break
                if header.next_offset <= cursor:
                    continue
                cursor = header.next_offset
                found = Committed(header.next_offset, header.leader_epoch, header.crc)
                known = self._batches.get(header.base_offset)
                if known is None and header.base_offset >= self.end_offset:
                    self._batches[header.base_offset] = found
                    self.end_offset = header.next_offset
                    yield batch
                elif known is not None and known != found:
                    self._fail(f"{self.name} at {header.base_offset}: {who} has {found}, {known} was committed")
            if cursor == before:
                break  # the high watermark lies within a batch
        self._cursors[who] = cursor


def end_of_marker(log: PartitionLog, producer_id: int, offset: int) -> int | None:
    """Return where the first marker of a producer behind an offset ends; None if there is none."""
    while offset < log.log_end_offset:
        data = log.read(offset, READ_BYTES, isolation=Isolation.LOG_END).to_bytes()
        before = offset
        for batch in iterate_batches(data, whole=False):
            header = batch.header
            offset = header.next_offset
            if header.is_control and header.producer_id == producer_id:
                return offset
        if offset == before:
            break
    return None
