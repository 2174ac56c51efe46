"""The snapshots of the metadata log on the disk: the newest is read at the start, older ones go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.records import UnknownRecordError
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, decode_snapshot
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from hailbus_broker.log import Disk
    from hailbus_broker.protocol.schema import Message


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
        path = f"{self._directory}/{snapshot.file_name}"
        try:
            return decode_snapshot(self._disk.read_bytes(path) or b"")
        except UnknownRecordError as error:
            raise StartError(f"cannot use the metadata snapshot {path}: {error}") from error
        except (RecordsError, ProtocolError) as error:
            raise StartError(f"the metadata snapshot {path} is damaged: {error}; restore it from a backup") from error

    def write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Put a snapshot on the disk, and remove those that it makes needless; in any thread.

        Raises:
            StorageError: The machine failed.
        """
        self._disk.write_whole(f"{self._directory}/{snapshot.file_name}", data)
        for other in self._all():
            if other < snapshot:
                self._disk.remove(f"{self._directory}/{other.file_name}")
