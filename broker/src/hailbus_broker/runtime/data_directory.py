"""Who owns the folder of all data, and what the broker does with its logs outside of the loop."""

from __future__ import annotations

import fcntl
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from hailbus_broker.log import LogDirectory, MetaProperties, PartitionLog, StorageError, TopicPartition, encode_uuid
from hailbus_broker.logging import get_logger
from hailbus_broker.records import RecordsError
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hailbus_broker.log import Disk, LogConfig, TailCache
    from hailbus_broker.protocol.schema import Uuid

log = get_logger()

METADATA_DIRECTORY: Final = "__cluster_metadata-0"
PARALLEL_COUNT: Final = 16


class DataDirectory:
    """A `LogDirectory` with its lock.

    Args:
        disk: Where it lies.
        path: Of the folder; made if it is missing.
        node_id: Whose it has to be.
        chance: For ids of a new one.
        tail_cache: Of the node.
    """

    def __init__(self, disk: Disk, path: str, *, node_id: int, chance: random.Random, tail_cache: TailCache) -> None:
        self.disk: Final = disk
        self.path: Final = str(Path(path).absolute())
        self._lock = self._take_lock()
        self._tail_cache = tail_cache
        self.names: Final = threading.Lock()
        """Held while a partition's directory is renamed, and by whoever renames files in one from another thread."""
        _raise_file_limit()
        new = MetaProperties(
            cluster_id=encode_uuid(UUID(bytes=chance.randbytes(16), version=4)),
            node_id=node_id,
            directory_id=UUID(bytes=chance.randbytes(16), version=4),
        )
        try:
            self.logs: Final = LogDirectory.open(self.disk, self.path, new_meta=new, tail_cache=tail_cache)
        except StorageError as error:
            os.close(self._lock)
            raise StartError(f"cannot use the data directory: {error}") from error

    @property
    def cluster_id(self) -> str:
        """Of the cluster that the directory belongs to."""
        return self.logs.meta.cluster_id

    @property
    def directory_id(self) -> Uuid:
        """Of the directory itself."""
        return self.logs.meta.directory_id.bytes

    def _take_lock(self) -> int:
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            descriptor = os.open(f"{self.path}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StartError(
                f"cannot use the data directory {self.path}: {error.strerror}; "
                "give --data-dir a folder that can be written"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StartError(
                f"the data directory {self.path} is in use by another process; stop it or give another --data-dir"
            ) from error
        return descriptor

    @property
    def metadata_path(self) -> str:
        """Folder of the metadata log."""
        return f"{self.path}/{METADATA_DIRECTORY}"

    def release(self) -> None:
        """Give the directory back without having used it."""
        os.close(self._lock)

    def open_metadata(self, config: LogConfig, *, log_start_offset: int, now_ms: int) -> PartitionLog:
        """Open the log of the cluster's metadata.

        Args:
            config: Of the log.
            log_start_offset: What a snapshot covers: below it nothing is needed.
            now_ms: Milliseconds since 1970 UTC.

        Raises:
            StartError: It is damaged, or begins after the snapshot ends.
        """
        try:
            found = PartitionLog.open(
                self.disk,
                self.metadata_path,
                config,
                now_ms=now_ms,
                clean=self.logs.was_clean,
                log_start_offset=log_start_offset,
            )
            found.sync()
        except (StorageError, RecordsError) as error:
            raise StartError(f"cannot read the cluster's metadata: {error}") from error
        if found.log_start_offset > log_start_offset:
            raise StartError(
                f"the metadata log in {self.metadata_path} begins at offset {found.log_start_offset}, and no snapshot "
                "holds what was before: restore the .checkpoint file from a backup"
            )
        found.advance_high_watermark(found.log_end_offset)
        return found

    def load(self, config_of: Callable[[str], LogConfig], *, now_ms: int) -> None:
        """Open all partitions; after a crash, recover them and make sure that what is told is on the disk.

        Raises:
            StartError: One of them is damaged.
        """
        try:
            with ThreadPoolExecutor(PARALLEL_COUNT) as threads:
                self.logs.load(config_of, now_ms=now_ms, for_each=threads.map)
                if not self.logs.was_clean:
                    list(threads.map(PartitionLog.sync, self.logs.logs.values()))
            for where, found in self.logs.logs.items():
                found.advance_high_watermark(found.log_end_offset)
                if found.recovery.truncated_bytes:
                    log.warning("torn_tail_cut", partition=str(where), truncated_bytes=found.recovery.truncated_bytes)
        except (StorageError, RecordsError) as error:
            raise StartError(f"cannot open the logs: {error}") from error

    def set_strays_aside(self, known: dict[tuple[str, int], Uuid]) -> None:
        """Rename partitions that the metadata does not have; not removed, in case the metadata was lost."""
        for where in list(self.logs.logs):
            topic_id = self.logs.topic_ids.get(where)
            expected = known.get((where.topic, where.partition))
            if expected is not None and (topic_id is None or topic_id.bytes == expected):
                continue
            del self.logs.logs[where]
            source = f"{self.path}/{where}"
            target = f"{source[:200]}.{os.urandom(16).hex()}-stray"
            self.disk.rename(source, target)
            log.warning("stray_partition_set_aside", partition=str(where), path=target)

    def host(
        self, topic: str, indexes: Sequence[int], topic_id: Uuid, config: LogConfig, *, now_ms: int
    ) -> list[PartitionLog]:
        """The logs of a topic's partitions, made if they are not there.

        Raises:
            StorageError: The machine failed.
        """
        logs = []
        for index in indexes:
            where = TopicPartition(topic, index)
            found = self.logs.logs.get(where)
            if found is None:
                found = self.logs.create(where, UUID(bytes=topic_id), config, now_ms=now_ms)
                found.advance_high_watermark(found.log_end_offset)
            elif where not in self.logs.topic_ids:
                self.logs.identify(where, UUID(bytes=topic_id))
            found.config = config
            logs.append(found)
        return logs

    def delete(self, topic: str, index: int) -> str:
        """Take a partition away; what is returned is a folder for `Disk.remove_tree`."""
        with self.names:
            return self.logs.delete(TopicPartition(topic, index), unique=os.urandom(16).hex())

    def close(self, metadata: PartitionLog, *, now_ms: int, failure: StorageError | None) -> list[StorageError]:
        """Close all logs and give the directory back.

        Args:
            metadata: The metadata's log.
            now_ms: Milliseconds since 1970 UTC.
            failure: Why the directory is offline: then nothing is written, and the next start looks at everything.

        Returns:
            What failed now.
        """
        errors = []
        if failure is None:
            try:
                metadata.close(now_ms=now_ms)
                errors = self.logs.close(now_ms=now_ms)
            except StorageError as error:
                errors = [error]
        os.close(self._lock)
        return errors


def _raise_file_limit() -> None:
    # One descriptor per open segment, one per connection.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
