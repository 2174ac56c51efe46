"""Which leader epoch began where: `leader-epoch-checkpoint`.

Text: version 0, the number of entries, then one line per entry with epoch and start offset. With it a follower or a
consumer finds out where its history and the leader's part (KIP-101, KIP-320).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import InvalidCheckpointError

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.records import LeaderEpoch, Offset

FILE_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED_EPOCH: Final = -1
UNDEFINED_EPOCH_OFFSET: Final = -1
_VERSION: Final = 0


class LeaderEpochs:
    """Epochs and their start offsets, both growing."""

    __slots__ = ("_disk", "entries", "path")

    def __init__(self, disk: Disk, directory: str, entries: list[tuple[LeaderEpoch, Offset]]) -> None:
        self._disk: Final = disk
        self.path: Final = f"{directory}/{FILE_NAME}"
        self.entries = entries

    @classmethod
    def load(cls, disk: Disk, directory: str) -> LeaderEpochs:
        """Read the checkpoint of a partition directory; none at all is an empty one.

        Raises:
            InvalidCheckpointError: The file is not a checkpoint.
        """
        path = f"{directory}/{FILE_NAME}"
        data = disk.read_bytes(path)
        return cls(disk, directory, [] if data is None else parse_checkpoint(path, data))

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, -1 for none."""
        return self.entries[-1][0] if self.entries else UNDEFINED_EPOCH

    def assign(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that an epoch begins, unless it or a later one has. Lasting once it is saved.

        Returns:
            Whether it is new.
        """
        if leader_epoch <= self.latest:
            return False
        # an epoch that ends where it began has written nothing
        while self.entries and self.entries[-1][1] >= start_offset:
            self.entries.pop()
        self.entries.append((leader_epoch, start_offset))
        return True

    def end_offset_for(self, leader_epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch that is not larger than the given one, and the offset where it ends, exclusive.

        Returns:
            (-1, -1) when the epoch is unknown, as Kafka answers then.
        """
        if not self.entries or leader_epoch > self.latest or leader_epoch < 0:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if leader_epoch == self.latest:
            return leader_epoch, log_end_offset
        for position, (epoch, start_offset) in enumerate(self.entries):
            if epoch > leader_epoch:
                # before the first known epoch: the answer is where that one starts
                previous = leader_epoch if position == 0 else self.entries[position - 1][0]
                return previous, start_offset
        raise AssertionError(f"epoch {leader_epoch} is neither below nor at {self.latest}")

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which an offset was written, -1 if that is not known."""
        found = UNDEFINED_EPOCH
        for epoch, start_offset in self.entries:
            if start_offset > offset:
                break
            found = epoch
        return found

    def truncate_end(self, offset: Offset) -> bool:
        """Forget the epochs that begin at or after an offset."""
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[1] < offset]
        return len(self.entries) != before

    def forget_above(self, leader_epoch: LeaderEpoch) -> bool:
        """Forget the epochs above one."""
        before = len(self.entries)
        self.entries = [entry for entry in self.entries if entry[0] <= leader_epoch]
        return len(self.entries) != before

    def truncate_start(self, offset: Offset) -> bool:
        """Forget what lies before the log start; the epoch that reaches over it begins there now."""
        later = [entry for entry in self.entries if entry[1] > offset]
        epoch = self.epoch_at(offset)
        changed = later if epoch == UNDEFINED_EPOCH else [(epoch, offset), *later]
        if changed == self.entries:
            return False
        self.entries = changed
        return True

    def save(self) -> None:
        """Write the checkpoint so that it lasts."""
        self._disk.write_whole(self.path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The checkpoint's text."""
        lines = [str(_VERSION), str(len(self.entries)), *(f"{epoch} {offset}" for epoch, offset in self.entries)]
        return ("\n".join(lines) + "\n").encode()


def parse_checkpoint(path: str, data: bytes) -> list[tuple[int, int]]:
    """The lines of a checkpoint of number pairs.

    Raises:
        InvalidCheckpointError: It is not one.
    """
    try:
        version, count, *lines = data.decode().split("\n")
        entries = [(int(first), int(second)) for first, second in (line.split() for line in lines if line)]
        if int(version) != _VERSION or int(count) != len(entries):
            raise InvalidCheckpointError("not a checkpoint of version 0 with as many lines as it says", path=path)
        for before, after in pairwise(entries):
            if before[0] >= after[0] or before[1] >= after[1]:
                raise InvalidCheckpointError(f"epoch {after[0]} at {after[1]} does not follow {before}", path=path)
    except ValueError as error:
        raise InvalidCheckpointError(f"not a checkpoint ({error})", path=path) from error
    return entries
