"""Who owns the folder of all data, and what the broker does with its logs outside of the loop."""

from __future__ import annotations

import os.path
import threading
from typing import TYPE_CHECKING, Final
from uuid import UUID

from hailbus_broker.log import (
    LogConfig,
    LogDirectory,
    MetaProperties,
    PartitionLog,
    StorageError,
    TopicPartition,
    draw_uuid,
    encode_uuid,
)
from hailbus_broker.log.log_directory import LOG_STARTS, META_PROPERTIES, METADATA_LOG, NO_BROKER_EPOCH
from hailbus_broker.logging import get_logger
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from hailbus_broker.log import Disk, TailCache
    from hailbus_broker.log.disk import DirectoryLock
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.threads import Threads

log = get_logger()

_MISREAD_CHARACTERS: Final = 2


class DataDirectory:
    """A `LogDirectory` with its lock.

    Args:
        disk: Where it lies.
        path: Of the folder; made if it is missing.
        node_id: The node that must own the directory.
        is_of_cluster: Whether the node belongs to a cluster with others: then the directory must be formatted already.
        rng: For ids of a new one.
        tail_cache: Of the node.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        node_id: int,
        rng: random.Random,
        tail_cache: TailCache,
        is_of_cluster: bool = False,
    ) -> None:
        self.disk: Final = disk
        self.path: Final = os.path.abspath(path)  # noqa: PTH100 - disks know paths as strings
        self._rng: Final = rng
        self._lock = self._take_lock()
        if is_of_cluster and not disk.exists(f"{self.path}/{META_PROPERTIES}"):
            self._lock.release()
            raise StartError(
                f"the data directory {self.path} is not formatted: run `hailbus-broker format --data-dir {self.path} "
                f"--cluster-id ID --set node.id={node_id}` with the cluster id of the other nodes"
            )
        self._tail_cache = tail_cache
        self.names: Final = threading.Lock()
        """Held while a partition's directory is renamed, and while another thread renames files in one."""
        new = MetaProperties(
            cluster_id=encode_uuid(draw_uuid(rng)),
            node_id=node_id,
            directory_id=draw_uuid(rng),
        )
        try:
            self.logs: Final = LogDirectory.open(self.disk, self.path, new_meta=new, tail_cache=tail_cache)
        except StorageError as error:
            self._lock.release()
            raise StartError(f"cannot use the data directory: {error}") from error

    @property
    def cluster_id(self) -> str:
        """Of the cluster that the directory belongs to."""
        return self.logs.meta.cluster_id

    @property
    def directory_id(self) -> Uuid:
        """Of the directory itself."""
        return self.logs.meta.directory_id.bytes

    @property
    def previous_broker_epoch(self) -> int:
        """Of the broker that used the directory before and stopped in order; -1 if there is none."""
        return self.logs.previous_broker_epoch

    def _take_lock(self) -> DirectoryLock:
        try:
            self.disk.make_directory(self.path)
            lock = self.disk.lock(self.path)
        except StorageError as error:
            raise StartError(
                f"cannot use the data directory {self.path}: {error}; give --data-dir a folder that can be written"
            ) from error
        if lock is None:
            raise StartError(
                f"the data directory {self.path} is in use by another process; stop it or give another --data-dir"
            )
        return lock

    @property
    def metadata_path(self) -> str:
        """Folder of the metadata log."""
        return f"{self.path}/{METADATA_LOG}"

    def release(self) -> None:
        """Give the directory back without having used it."""
        self._lock.release()

    def open_metadata(self, config: LogConfig, *, log_start_offset: int, now_ms: int) -> PartitionLog:
        """Open the log of the cluster's metadata; the quorum knows how much of it is committed.

        Args:
            config: Of the log.
            log_start_offset: What a snapshot covers: below it nothing is needed.
            now_ms: Milliseconds since 1970 UTC.

        Raises:
            StartError: It is damaged, begins after the snapshot ends, or is missing in a directory that had one.
        """
        try:
            found = self.logs.open_metadata(config, log_start_offset=log_start_offset, now_ms=now_ms)
            if not found.log_end_offset:
                self._check_is_new()
            found.sync()
        except (StorageError, RecordsError) as error:
            raise StartError(f"cannot read the cluster's metadata: {error}") from error
        if found.log_start_offset > log_start_offset:
            raise StartError(
                f"the metadata log in {self.metadata_path} begins at offset {found.log_start_offset}, and no snapshot "
                "holds what was before: restore the .checkpoint file from a backup"
            )
        _tell_recovery(str(METADATA_LOG), found)
        return found

    def _check_is_new(self) -> None:
        # The first records of the metadata are synced before the first partition is made.
        partitions = self.logs.partition_names()
        if partitions or self.logs.has_former_life:
            names = ", ".join(str(where) for where in partitions[:3]) or "checkpoints"
            raise StartError(
                f"the data directory {self.path} was in use (it holds {names}), but its metadata log "
                f"{METADATA_LOG} is missing or empty; restore that folder from a backup, "
                "or give --data-dir an empty folder to begin a new cluster"
            )

    def load(self, config_of: Callable[[str], LogConfig], threads: Threads, *, now_ms: int) -> None:
        """Open all partitions; after a crash, recover them and sync what they hold before anybody reads it.

        Raises:
            StartError: One of them is damaged.
        """
        try:
            self.logs.load(config_of, now_ms=now_ms, for_each=threads.map)
            if not self.logs.was_clean:
                list(threads.map(PartitionLog.sync, self.logs.logs.values()))
            self.logs.finish_recovery()
            for where, found in self.logs.logs.items():
                found.advance_high_watermark(self.logs.high_watermarks.get(where, 0))
                _tell_recovery(str(where), found)
            for name, error in self.logs.damaged_checkpoints.items():
                log.error(
                    "checkpoint_damaged",
                    error=str(error),
                    effect="deleted records may be readable again" if name == LOG_STARTS else "the logs are read again",
                )
        except (StorageError, RecordsError) as error:
            raise StartError(f"cannot open the logs: {error}") from error

    def restore_deleted(self, known: Mapping[tuple[str, int], Uuid]) -> None:
        """Take partitions back whose deletion did not last: a power cut took its record, and left the renamed folder.

        Raises:
            StartError: The machine failed.
        """
        try:
            for where, path in self.logs.restore_deleted(
                {TopicPartition(*where): UUID(bytes=topic_id) for where, topic_id in known.items()}
            ):
                log.warning("deleted_partition_restored", partition=str(where), path=path)
        except StorageError as error:
            raise StartError(f"cannot open the logs: {error}") from error

    def set_strays_aside(self, known: dict[tuple[str, int], Uuid]) -> None:
        """Rename partitions that the metadata does not have; not removed, in case the metadata was lost."""
        for where in list(self.logs.logs):
            topic_id = self.logs.topic_ids.get(where)
            expected = known.get((where.topic, where.partition))
            if expected is not None and (topic_id is None or topic_id.bytes == expected):
                continue
            if expected is not None and topic_id is not None and _is_misread(topic_id, UUID(bytes=expected)):
                log.error("topic_id_damaged", partition=str(where), path=f"{self.path}/{where}", restored=True)
                del self.logs.topic_ids[where]  # `host` writes it again
                continue
            self.logs.take_out(where)
            source = f"{self.path}/{where}"
            # The name of a folder has at most 255 bytes; its path may be longer.
            target = f"{self.path}/{str(where)[:200]}.{self._rng.randbytes(16).hex()}-stray"
            self.disk.rename(source, target)
            log.warning("stray_partition_set_aside", partition=str(where), path=target)

    def host(self, topic: str, indexes: Sequence[int], topic_id: Uuid, *, now_ms: int) -> list[PartitionLog]:
        """The logs of a topic's partitions at the start, made if a power cut took them.

        Raises:
            StorageError: The machine failed.
        """
        logs = []
        for index in indexes:
            where = TopicPartition(topic, index)
            found = self.logs.logs.get(where)
            if found is None:
                found = self.logs.create(where, UUID(bytes=topic_id), LogConfig(), now_ms=now_ms)
            elif where not in self.logs.topic_ids:
                self.logs.identify(where, UUID(bytes=topic_id))
            logs.append(found)
        return logs

    def make(
        self, topic: str, indexes: Sequence[int], topic_id: Uuid, config: LogConfig, *, now_ms: int
    ) -> list[PartitionLog | StorageError]:
        """Make the logs of new partitions, in any thread; give them to `add`.

        If one of them `is_noted`, write a checkpoint first.
        """
        made: list[PartitionLog | StorageError] = []
        for index in indexes:
            try:
                made.append(self.logs.make(TopicPartition(topic, index), UUID(bytes=topic_id), config, now_ms=now_ms))
            except StorageError as error:
                made.append(error)
        return made

    def is_noted(self, topic: str, index: int) -> bool:
        """Whether a checkpoint on the disk may name a partition."""
        return self.logs.is_noted(TopicPartition(topic, index))

    def add(self, topic: str, index: int, topic_id: Uuid, partition_log: PartitionLog) -> None:
        """Make a log part of the directory: checkpoints and compaction know of it from now on."""
        self.logs.add(TopicPartition(topic, index), UUID(bytes=topic_id), partition_log)

    def release_closed_segments(self) -> None:
        """Let go of the descriptors that nothing is written through."""
        for partition_log in self.logs.logs.values():
            partition_log.release_closed_segments()

    def take_out(self, topic: str, index: int) -> None:
        """Forget a partition that is deleted."""
        self.logs.take_out(TopicPartition(topic, index))

    def prepare_removal(self, topic: str, indexes: Sequence[int]) -> Callable[[], list[str]]:
        """What renames the directories of partitions that were taken out, in any thread.

        It returns the new paths, for `remove_folder`.
        """
        partitions = {TopicPartition(topic, index): self._rng.randbytes(16).hex() for index in indexes}

        def rename() -> list[str]:
            with self.names:
                return self.logs.rename_deleted(partitions)

        return rename

    def remove_folder(self, path: str) -> None:
        """Remove a directory that was renamed for it; in any thread.

        Raises:
            StorageError: The machine failed.
        """
        self.logs.remove_deleted(path)

    def close(
        self,
        metadata: PartitionLog,
        *,
        now_ms: int,
        failure: StorageError | None,
        broker_epoch: int = NO_BROKER_EPOCH,
    ) -> list[StorageError]:
        """Close all logs and give the directory back.

        Args:
            metadata: The metadata's log.
            now_ms: Milliseconds since 1970 UTC.
            failure: Why the directory is offline: then nothing is written, and the next start looks at everything.
            broker_epoch: Of this node as a broker of a cluster.

        Returns:
            What failed now.
        """
        errors = []
        if failure is None:
            try:
                metadata.close(now_ms=now_ms)
                errors = self.logs.close(now_ms=now_ms, broker_epoch=broker_epoch)
            except StorageError as error:
                errors = [error]
        self._lock.release()
        return errors


def _tell_recovery(partition: str, found: PartitionLog) -> None:
    """Log what opening a partition's log had to repair."""
    report = found.recovery
    for damage in report.damages:
        log.error(
            "log_damaged",
            partition=partition,
            path=damage.path,
            position=damage.position,
            damaged_bytes=damage.size_bytes,
            first_lost_offset=damage.first_offset,
            next_offset=damage.end_offset,
            set_aside=damage.set_aside_path,
            advice="the records between these offsets are lost, all others are served: check the disk",
        )
    if report.truncated_bytes:
        log.warning(
            "torn_tail_cut", partition=partition, truncated_bytes=report.truncated_bytes, set_aside=report.torn_paths
        )
    if report.rebuilt_epochs:
        log.error("leader_epochs_rebuilt", partition=partition, error=report.rebuilt_epochs)


def _is_misread(found: UUID, expected: UUID) -> bool:
    """Whether two topic ids differ so little that one is the other, damaged: in up to two characters of the file."""
    pairs = zip(encode_uuid(found), encode_uuid(expected), strict=True)
    return sum(one != other for one, other in pairs) <= _MISREAD_CHARACTERS
