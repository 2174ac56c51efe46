"""The snapshots of the metadata log on the disk: the newest is read at the start, older ones go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from hailbus_broker.cluster.metadata.records import UnknownRecordError
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, decode_snapshot
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import RecordsError, iterate_batches
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hailbus_broker.cluster.raft.voters import VoterSet
    from hailbus_broker.log import Disk
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import Offset

T = TypeVar("T")


class MetadataSnapshots:
    """Snapshots beside the segments of the metadata log.

    Args:
        disk: Where they are.
        directory: Of the metadata log.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk: Final = disk
        self._directory: Final = directory

    def newest(self) -> SnapshotId | None:
        """What the newest one covers."""
        return max(self._all(), default=None)

    def _all(self) -> list[SnapshotId]:
        return [found for name in self._disk.list(self._directory) if (found := SnapshotId.parse(name)) is not None]

    def read(self, snapshot: SnapshotId) -> list[Message]:
        """Its records.

        Raises:
            StartError: It is damaged, or has records that this broker does not know.
        """
        return self._decoded(snapshot, decode_snapshot)

    def changes(self, snapshot: SnapshotId) -> Sequence[tuple[Offset, VoterSet | int]]:
        """Its voters, and levels of `kraft.version`.

        Raises:
            StartError: It is damaged.
        """
        return self._decoded(snapshot, partial(_changes, snapshot))

    def _decoded(self, snapshot: SnapshotId, decode: Callable[[bytes], T]) -> T:
        path = f"{self._directory}/{snapshot.file_name}"
        try:
            return decode(self._disk.read_bytes(path) or b"")
        except UnknownRecordError as error:
            raise StartError(f"cannot use the metadata snapshot {path}: {error}") from error
        except (RecordsError, ProtocolError) as error:
            raise StartError(f"the metadata snapshot {path} is damaged: {error}; restore it from a backup") from error

    def install(self, snapshot: SnapshotId, data: bytes) -> Sequence[tuple[Offset, VoterSet | int]]:
        """Write a snapshot of the leader, in any thread.

        Returns:
            The voters, and levels of `kraft.version`, that are in it.

        Raises:
            RecordsError: It is damaged.
            ProtocolError: A record in it is none that this node knows.
            StorageError: The machine failed.
        """
        decode_snapshot(data)
        changes = _changes(snapshot, data)
        self.write(snapshot, data)
        return changes

    def read_part(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        """Read a part of a snapshot, in any thread.

        Returns:
            The size of the whole, in bytes, and the part.

        Raises:
            StorageError: It is gone, or the machine failed.
        """
        file = self._disk.open(f"{self._directory}/{snapshot.file_name}")
        return file.size(), file.read(max(position, 0), max_bytes)

    def write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Put a snapshot on the disk, and remove those that it makes needless; in any thread.

        Raises:
            StorageError: The machine failed.
        """
        self._disk.write_whole(f"{self._directory}/{snapshot.file_name}", data)
        for other in self._all():
            if other < snapshot:
                self._disk.remove(f"{self._directory}/{other.file_name}")


def _changes(snapshot: SnapshotId, data: bytes) -> Sequence[tuple[Offset, VoterSet | int]]:
    """Return what a snapshot says of the quorum, as if its last record said so: no truncation reaches below its end."""
    found = control_records.read_changes(iterate_batches(data))
    return [(snapshot.end_offset - 1, change) for _, change in found]
