"""Which files of a log have to be synced, how far it is synced, and the snapshots of its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.log.errors import StorageError
from hailbus_broker.log.producer_state import SNAPSHOT_SUFFIX
from hailbus_broker.log.segment import file_name

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Disk, File
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.records import Offset

_SNAPSHOT_EVERY_BYTES: Final = 1024 * 1024


class PendingSync:
    """A sync that has been started.

    `run` it in any thread, then give it to `PartitionLog.finish_sync` in the log's own.
    """

    __slots__ = ("_disk", "directories", "end_offset", "epochs", "files", "paths")

    def __init__(
        self,
        disk: Disk,
        files: tuple[File, ...],
        paths: tuple[str, ...],
        directories: tuple[str, ...],
        epochs: tuple[str, bytes] | None,
        end_offset: Offset,
    ) -> None:
        self._disk: Final = disk
        self.files: Final = files
        self.paths: Final = paths
        self.directories: Final = directories
        self.epochs: Final = epochs
        self.end_offset = end_offset

    def run(self) -> None:
        """Bring to stable storage what was written before the sync was started.

        Raises:
            StorageError: It failed; give it to `finish_sync` too.
        """
        for file in self.files:
            file.sync()
        for path in self.paths:
            self._disk.open(path).sync()
        if self.epochs is not None:
            self._disk.write_whole(*self.epochs)
        for directory in self.directories:
            self._disk.sync_directory(directory)


class CheckpointFiles(NamedTuple):
    """A producer snapshot to be written, if there is one, and others to be removed."""

    directory: str
    snapshot: tuple[str, bytes] | None
    removed_paths: tuple[str, ...]


class LogSync:
    """What of a log has been written and not synced.

    Attributes:
        dirty_files: Files that were written to. A dict in place of a set, in the order of the writes: two runs of a
            simulation sync in the same order.
        is_directory_dirty: Whether names of files have changed.
        are_epochs_dirty: Whether the leader epochs have changed since they were last written.
        synced_end_offset: Everything below it is on stable storage; the recovery point.
    """

    __slots__ = (
        "_checkpoint_bytes",
        "_first_directories",
        "_first_paths",
        "_mid_snapshots",
        "_running",
        "_snapshot_bytes",
        "_snapshot_offset",
        "_stale_snapshots",
        "_state",
        "_sync_failure",
        "are_epochs_dirty",
        "dirty_files",
        "is_directory_dirty",
        "synced_end_offset",
    )

    def __init__(self, state: LogState) -> None:
        self._state: Final = state
        self.dirty_files: Final[dict[File, None]] = {}
        self.is_directory_dirty = False
        self.are_epochs_dirty = False
        self.synced_end_offset: Offset = state.log_end_offset
        # What the first sync covers as well: it need not last before the log holds anything.
        self._first_directories: dict[str, None] = {}
        self._first_paths: dict[str, None] = {}
        self._running: Final[dict[PendingSync, None]] = {}
        self._sync_failure: StorageError | None = None
        self._snapshot_offset: Offset = -1
        self._mid_snapshots: set[Offset] = set()
        self._stale_snapshots: set[Offset] = set()
        self._snapshot_bytes = 0
        self._checkpoint_bytes = 0

    def opened_after_crash(self, recovery_point: Offset, *, rewrites_tail: bool) -> None:
        """Take what recovery has read as not synced.

        After SIGKILL the data is in the page cache, and not necessarily on the disk. The first sync writes it, and only
        then may anything be acknowledged that depends on it. If a sync has failed before, that sync would skip the
        pages that it could not write: they count as clean. Written again, they are dirty again.

        Raises:
            StorageError: The machine failed.
        """
        state = self._state
        self.sync_directories_first(state.directory)
        self.synced_end_offset = min(recovery_point, state.log_end_offset)
        state.appended_bytes = state.active.size_bytes  # so that the next checkpoint saves what was read now
        if self.synced_end_offset < state.log_end_offset:
            behind = state.segments_from(self.synced_end_offset)
            self.dirty_files.update((segment.file, None) for segment in behind)
            self.is_directory_dirty = True
            for segment in behind:
                if rewrites_tail:
                    segment.rewrite_from(self.synced_end_offset)
                if segment is not state.active:  # whose indexes are checked at the next start, until it is closed
                    self.dirty_files.update(dict.fromkeys(segment.finish_indexes()))
                    segment.release()

    def sync_directories_first(self, *directories: str) -> None:
        """Let the next sync include directories."""
        self._first_directories.update(dict.fromkeys(directories))

    def sync_first(self, path: str) -> None:
        """Let the next sync include a file that another part has written."""
        self._first_paths[path] = None

    def forget(self, file: File | None) -> None:
        """A file is no longer part of the log."""
        if file is not None:
            self.dirty_files.pop(file, None)

    @property
    def is_dirty(self) -> bool:
        """Whether something was written that has not been synced."""
        return bool(self.dirty_files) or self.is_directory_dirty or self.are_epochs_dirty

    @property
    def is_running(self) -> bool:
        """Whether a sync has been started and not finished."""
        return bool(self._running)

    def start(self) -> PendingSync | None:
        """Collect what has been written until now.

        Returns:
            What has to be run and then given to `finish`; None if everything is synced.
        """
        if not self.is_dirty:
            return None
        state = self._state
        epochs = state.leader_epochs
        pending = PendingSync(
            state.disk,
            tuple(self.dirty_files),
            tuple(self._first_paths),
            tuple(self._first_directories | ({state.directory: None} if self.is_directory_dirty else {})),
            (epochs.path, epochs.to_bytes()) if self.are_epochs_dirty else None,
            state.log_end_offset,
        )
        self.dirty_files.clear()
        self.is_directory_dirty = self.are_epochs_dirty = False
        self._first_paths, self._first_directories = {}, {}
        self._running[pending] = None
        return pending

    def retry(self, pending: PendingSync) -> None:
        """Take back a sync that failed because no file descriptor was free. The next sync covers it."""
        self._running.pop(pending, None)
        self.dirty_files.update(dict.fromkeys(pending.files))
        self._first_paths.update(dict.fromkeys(pending.paths))
        self._first_directories.update(dict.fromkeys(pending.directories))
        self.are_epochs_dirty |= pending.epochs is not None
        self.is_directory_dirty = True

    def finish(self, pending: PendingSync, error: StorageError | None = None) -> Offset:
        """Account for a sync that has been run.

        Args:
            pending: What `start` gave.
            error: What its `run` raised.

        Returns:
            The synced end offset: everything below it is on stable storage.

        Raises:
            StorageError: It failed, or one failed before. What the system did with the pages is unknown then, and
                trying again would report success for data that is lost: the log refuses appends until it is opened
                again.
        """
        self._running.pop(pending, None)
        if error is not None:
            self._state.failure = self._sync_failure = self._sync_failure or error
        if self._sync_failure is not None:
            raise self._sync_failure
        # A write that failed meanwhile ends the appends, but what was written before it is as safe as ever.
        self.synced_end_offset = max(self.synced_end_offset, min(pending.end_offset, self._state.log_end_offset))
        return self.synced_end_offset

    def sync(self) -> Offset:
        """Bring everything to stable storage, in this thread.

        Returns:
            The synced end offset.

        Raises:
            StorageError: It failed; see `finish`.
        """
        pending = self.start()
        if pending is not None:
            error = None
            try:
                pending.run()
            except StorageError as raised:
                error = raised
            self.finish(pending, error)
        elif self._sync_failure is not None:
            raise self._sync_failure
        return self.synced_end_offset

    def truncated(self, end_offset: Offset) -> None:
        """The log ends at an offset now. What a running sync covers above it is gone, and may come back as other data.

        A checkpoint that is being written may still write a snapshot from before: the next checkpoint removes it.
        """
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        for pending in self._running:
            pending.end_offset = min(pending.end_offset, end_offset)
        known = {self._snapshot_offset, *self._mid_snapshots}
        self._stale_snapshots.update(offset for offset in known if offset > end_offset)
        left = self._snapshots_on_disk()
        self._snapshot_offset = max(left, default=-1)
        self._mid_snapshots = set(left)
        self._checkpoint_bytes = -1

    def restarted(self, offset: Offset) -> None:
        """The log is empty and begins at an offset: there is nothing that would have to be synced."""
        for pending in self._running:
            pending.end_offset = offset
        self.synced_end_offset = offset
        self._snapshot_offset = -1
        self._mid_snapshots.clear()
        self._checkpoint_bytes = -1
        self.is_directory_dirty = True
        self.are_epochs_dirty = True  # a running sync may still write those from before

    # ---- snapshots of the producers

    def prepare_checkpoint(self) -> CheckpointFiles | None:
        """Write out the index entries that wait in memory, and give the producer state if much was appended since.

        Nothing of it has to be synced: it only saves reading after a crash, and is checked then.
        """
        state = self._state
        if state.failure is not None or state.appended_bytes == self._checkpoint_bytes:
            return None
        self._checkpoint_bytes = state.appended_bytes
        state.active.offset_index.flush()
        state.active.time_index.flush()
        stale, self._stale_snapshots = self._stale_snapshots, set()
        if not state.producers.producers or state.appended_bytes - self._snapshot_bytes < _SNAPSHOT_EVERY_BYTES:
            return CheckpointFiles(state.directory, None, self._paths_of(stale)) if stale else None
        self._snapshot_bytes = state.appended_bytes
        # The one before stays: the new one is of no use as long as the recovery point is below it.
        kept = {segment.base_offset for segment in state.segments} | {self._snapshot_offset}
        self._mid_snapshots.add(self._snapshot_offset)
        removed = self._mid_snapshots - kept
        self._mid_snapshots -= removed
        self._snapshot_offset = state.log_end_offset
        return CheckpointFiles(
            state.directory,
            (self._snapshot_path(state.log_end_offset), state.producers.to_snapshot()),
            self._paths_of((removed | stale) - {state.log_end_offset}),
        )

    def write_snapshot(self) -> None:
        """Write the producer state at the log end."""
        state = self._state
        path = self._snapshot_path(state.log_end_offset)
        state.disk.remove(path)
        file = state.disk.open(path, create=True)
        file.append(state.producers.to_snapshot())
        self.dirty_files[file] = None
        self.is_directory_dirty = True
        self._snapshot_offset = state.log_end_offset
        self._snapshot_bytes = state.appended_bytes

    def remove_snapshots(self) -> None:
        """Remove all: they belong to records that are gone."""
        for path in self._paths_of(set(self._snapshots_on_disk())):
            self._state.disk.remove(path)

    def remove_old_snapshots(self) -> None:
        """Keep the snapshots at segment starts and the newest."""
        kept = {segment.base_offset for segment in self._state.segments} | {self._snapshot_offset}
        for path in self._paths_of(set(self._snapshots_on_disk()) - kept):
            self._state.disk.remove(path)

    def _snapshots_on_disk(self) -> list[Offset]:
        names = self._state.disk.list(self._state.directory)
        return [int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if name.endswith(SNAPSHOT_SUFFIX)]

    def _paths_of(self, offsets: set[Offset]) -> tuple[str, ...]:
        return tuple(map(self._snapshot_path, sorted(offsets)))

    def _snapshot_path(self, offset: Offset) -> str:
        return f"{self._state.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
