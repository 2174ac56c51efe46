"""One data directory: the logs of all partitions, what they were called, and how far they had come.

Its files are Apache Kafka's: `meta.properties`, a directory per partition with `partition.metadata` in it, the
checkpoints `recovery-point-offset-checkpoint`, `replication-offset-checkpoint` (high watermarks),
`log-start-offset-checkpoint` and `cleaner-offset-checkpoint`, and `.kafka_cleanshutdown`, which is there only while
the node is stopped in order.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from hailbus_broker.log.boots import Boots
from hailbus_broker.log.errors import InvalidCheckpointError, StorageError
from hailbus_broker.log.partition_log import PartitionLog
from hailbus_broker.log.tail_cache import TailCache
from hailbus_broker.log.uuids import decode_uuid, encode_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.log.sync import CheckpointFiles
    from hailbus_broker.records import Offset

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED_OFFSETS: Final = "cleaner-offset-checkpoint"
BOOTS: Final = "hailbus.boots"

_DELETED_DIRECTORY_SUFFIX: Final = "-delete"
_MAX_NAME_BYTES: Final = 255


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


METADATA_LOG: Final = TopicPartition("__cluster_metadata", 0)
CHECKPOINT_SLICE: Final = 100
"""A checkpoint notes so many logs before others have their turn; a log with new index entries takes 20 to 40 µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The owner of a directory.

    Attributes:
        cluster_id: Kafka's form: 22 characters of base64.
        node_id: Number of the node.
        directory_id: Tells this directory from others of the node.
    """

    cluster_id: str
    node_id: int
    directory_id: UUID


class PendingCheckpoint:
    """Checkpoints to be written, in any thread.

    Args:
        disk: Where they are written.
        tables: Offsets by partition, and the file for each; nobody else changes them.
        snapshots: Of the producers of logs.
        written: Called when the files have the tables.
    """

    __slots__ = ("_disk", "_snapshots", "_tables", "_written")

    def __init__(
        self,
        disk: Disk,
        tables: list[tuple[str, dict[TopicPartition, Offset]]],
        snapshots: list[CheckpointFiles],
        written: Callable[[], None],
    ) -> None:
        self._disk: Final = disk
        self._tables: Final = tables
        self._snapshots: Final = snapshots
        self._written: Final = written

    def run(self) -> None:
        """Write them.

        Raises:
            StorageError: The machine failed.
        """
        for path, table in self._tables:
            self._disk.write_whole(path, _format_offsets(table))
        self._written()
        for directory, snapshot, removed_paths in self._snapshots:
            if snapshot is not None and self._disk.exists(directory):  # else the partition was deleted meanwhile
                path, data = snapshot
                self._disk.remove(path)
                self._disk.open(path, create=True).append(data)
            for path in removed_paths:
                self._disk.remove(path)


class LogDirectory:
    """The partitions of one data directory. Made by `open`, filled by `load`.

    Attributes:
        path: Of the directory.
        meta: The directory's owner.
        was_clean: Whether the node that used it last stopped in order.
        previous_broker_epoch: Of that node, if it stopped in order as a broker of a cluster; else -1.
        rewrites_tails: Whether a process that did not stop in order has written to it since the machine started: the
            page cache may hold what a failed sync has left, marked as written.
        may_miss_sectors: Whether the machine has restarted since all logs were last known to be whole: any sector that
            was not synced may be missing.
        metadata_log: Its recovery point is checkpointed with those of the partitions; its owner sets it.
        logs: The partitions that are open.
        topic_ids: Of the partitions that are open.
        high_watermarks: As they were checkpointed.
        damaged_checkpoints: Checkpoints that could not be read, and why; what they said is not known.
        cleaned_offsets: Where compaction had come to, exclusive; changed by the one who compacts.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        meta: MetaProperties,
        *,
        was_clean: bool,
        previous_broker_epoch: int = NO_BROKER_EPOCH,
        boots: Boots,
        tail_cache: TailCache,
    ) -> None:
        self._disk: Final = disk
        self.path: Final = path
        self.meta: Final = meta
        self.was_clean: Final = was_clean
        self.previous_broker_epoch: Final = previous_broker_epoch
        self._boots: Final = boots
        self.rewrites_tails: Final = not was_clean and boots.is_cache_older
        self.may_miss_sectors: Final = not was_clean and boots.has_restarted
        self.metadata_log: PartitionLog | None = None
        self.tail_cache: Final = tail_cache
        self.logs: Final[dict[TopicPartition, PartitionLog]] = {}
        self.topic_ids: Final[dict[TopicPartition, UUID]] = {}
        self.damaged_checkpoints: Final[dict[str, InvalidCheckpointError]] = {}
        self._recovery_points = self._read_checkpoint(RECOVERY_POINTS)
        self.high_watermarks = self._read_checkpoint(HIGH_WATERMARKS)
        self._log_starts = self._read_checkpoint(LOG_STARTS)
        self.cleaned_offsets = self._read_checkpoint(CLEANED_OFFSETS)
        self._noted = self._named_in_tables()
        self.has_former_life: Final = was_clean or bool(self._recovery_points) or bool(self.damaged_checkpoints)
        """Whether a node has worked with the directory before, as far as the files directly in it say."""

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        try:
            return _read_offsets(self._disk, f"{self.path}/{name}")
        except InvalidCheckpointError as error:
            # Each one only saves work, but for the log starts: without them deleted records can be read again.
            self.damaged_checkpoints[name] = error
            return {}

    def _named_in_tables(self) -> set[TopicPartition]:
        return {*self._recovery_points, *self.high_watermarks, *self._log_starts, *self.cleaned_offsets}

    def is_noted(self, where: TopicPartition) -> bool:
        """Whether a checkpoint on the disk may name a partition."""
        return where in self._noted

    def partition_names(self) -> list[TopicPartition]:
        """The partitions that have a directory here, the metadata's apart."""
        found = [parse_partition_directory(name) for name in self._disk.list(self.path)]
        return [where for where in found if where is not None and where != METADATA_LOG]

    @classmethod
    def open(
        cls, disk: Disk, path: str, *, new_meta: MetaProperties, tail_cache: TailCache | None = None
    ) -> LogDirectory:
        """Open a data directory; a new one is made and gets `new_meta`, an old one keeps what it has.

        Raises:
            StorageError: The machine failed, or the directory belongs to another node.
        """
        disk.make_directory(path)
        meta_path = f"{path}/{META_PROPERTIES}"
        data = disk.read_bytes(meta_path)
        if data is None:
            meta = new_meta
            disk.write_whole(meta_path, _format_meta(meta))
        else:
            meta = _parse_meta(meta_path, data)
            if meta.node_id != new_meta.node_id:
                raise StorageError(
                    f"the data directory belongs to node {meta.node_id}, this is node {new_meta.node_id}: "
                    "start with that node id or another directory",
                    path=path,
                )
        boots = Boots(disk, f"{path}/{BOOTS}")
        boots.begin()
        mark = disk.read_bytes(f"{path}/{CLEAN_SHUTDOWN}")
        if mark is not None:
            disk.remove(f"{path}/{CLEAN_SHUTDOWN}")
            disk.sync_directory(path)
        return cls(
            disk,
            path,
            meta,
            was_clean=mark is not None,
            previous_broker_epoch=_read_broker_epoch(mark),
            boots=boots,
            tail_cache=tail_cache or TailCache(0),
        )

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        *,
        now_ms: int,
        for_each: Callable[[Callable[[TopicPartition], None], Iterable[TopicPartition]], Iterable[None]] = map,
    ) -> dict[TopicPartition, PartitionLog]:
        """Open the logs of all partitions that the directory has, and finish deletions that a stop interrupted.

        Args:
            config_of: The settings of a topic, by its name.
            now_ms: Milliseconds since 1970 UTC.
            for_each: Calls a function for each partition, as `map` does; that of a thread pool waits for many reads of
                the disk at once.

        Raises:
            StorageError: The machine failed.
            CorruptBatchError: What was synced is damaged.
        """
        found: list[TopicPartition] = []
        for name in self._disk.list(self.path):
            path = f"{self.path}/{name}"
            if name.endswith(_DELETED_DIRECTORY_SUFFIX):
                self.remove_deleted(path)
                continue
            where = parse_partition_directory(name)
            if where is not None and where != METADATA_LOG:
                found.append(where)
        for where in self._noted - {METADATA_LOG, *found}:
            self._forget_offsets(where)
        configs = {topic: config_of(topic) for topic in {where.topic for where in found}}

        def open_one(where: TopicPartition) -> None:
            self._load(where, configs[where.topic], now_ms)

        deque(for_each(open_one, found), maxlen=0)  # runs it, and raises what was raised
        if not self.was_clean:
            self._disk.sync_directory(self.path)  # for partitions whose first sync never came
        return self.logs

    def make(self, where: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> PartitionLog:
        """Make a partition's directory, with the id of its topic, and open its log; in any thread.

        The log belongs to the directory when `add` was called. Nothing is synced: the log's first sync makes it last,
        and what a crash takes before that was empty.

        If the partition `is_noted`, an earlier one had its name: write a checkpoint first. A node that starts after a
        crash would take the earlier one's offsets for the new one's.

        Raises:
            StorageError: The machine failed, or the partition is there with another topic id.
        """
        directory = f"{self.path}/{where}"
        self._disk.make_directory(directory)
        found = self._read_topic_id(directory)
        if found is not None and found != topic_id:
            raise StorageError(
                f"the directory belongs to topic id {encode_uuid(found)}, not {encode_uuid(topic_id)}", path=directory
            )
        if found is None:
            self._write_topic_id(directory, topic_id)
        log = self._open(where, config, now_ms)
        log.sync_first(f"{directory}/{PARTITION_METADATA}")
        return log

    def add(self, where: TopicPartition, topic_id: UUID, log: PartitionLog) -> None:
        """Make a log that `make` has opened part of the directory."""
        self.logs[where] = log
        self.topic_ids[where] = topic_id

    def create(self, where: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> PartitionLog:
        """Make a partition and add it, after a checkpoint if it needs one; see `make`."""
        if self.is_noted(where):
            self.prepare_checkpoint().run()
        log = self.make(where, topic_id, config, now_ms=now_ms)
        self.add(where, topic_id, log)
        return log

    def identify(self, where: TopicPartition, topic_id: UUID) -> None:
        """Write the topic id of an open partition again, after a crash or damage has taken it.

        Raises:
            StorageError: The machine failed.
        """
        directory = f"{self.path}/{where}"
        self._write_topic_id(directory, topic_id)
        self.logs[where].sync_first(f"{directory}/{PARTITION_METADATA}")
        self.topic_ids[where] = topic_id

    def _write_topic_id(self, directory: str, topic_id: UUID) -> None:
        path = f"{directory}/{PARTITION_METADATA}"
        self._disk.remove(path)  # one that a crash has cut off
        self._disk.open(path, create=True).append(f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode())

    def _open(self, where: TopicPartition, config: LogConfig, now_ms: int) -> PartitionLog:
        recovery_point = self._recovery_points.get(where, 0)
        return PartitionLog.open(
            self._disk,
            f"{self.path}/{where}",
            config,
            now_ms=now_ms,
            clean=self.was_clean,
            recovery_point=recovery_point,
            log_start_offset=self._log_starts.get(where, 0),
            tail_cache=self.tail_cache,
            torn_from=recovery_point if self.may_miss_sectors else None,
            rewrites_tail=self.rewrites_tails,
        )

    def open_metadata(self, config: LogConfig, *, log_start_offset: Offset, now_ms: int) -> PartitionLog:
        """Open the log of the cluster's metadata, all of which is checked after a crash.

        Raises:
            StorageError: The machine failed.
            CorruptBatchError: What was synced is damaged: its records build on each other.
        """
        torn_from = max(self._recovery_points.get(METADATA_LOG, 0), log_start_offset)
        self.metadata_log = PartitionLog.open(
            self._disk,
            f"{self.path}/{METADATA_LOG}",
            config,
            now_ms=now_ms,
            clean=self.was_clean,
            log_start_offset=log_start_offset,
            torn_from=torn_from if self.may_miss_sectors else None,
            rewrites_tail=self.rewrites_tails,
            refuses_damage=True,
        )
        return self.metadata_log

    def finish_recovery(self) -> None:
        """Note that all logs are repaired and synced.

        Raises:
            StorageError: The machine failed.
        """
        self._boots.finish()

    def _load(self, where: TopicPartition, config: LogConfig, now_ms: int) -> None:
        log = self._open(where, config, now_ms)
        self.logs[where] = log
        directory = f"{self.path}/{where}"
        topic_id = self._read_topic_id(directory)
        if topic_id is not None:
            self.topic_ids[where] = topic_id
            if not self.was_clean:
                log.sync_first(f"{directory}/{PARTITION_METADATA}")

    def _read_topic_id(self, directory: str) -> UUID | None:
        """The topic id of a partition directory; None when a crash or damage has taken it: `identify` restores it."""
        data = self._disk.read_bytes(f"{directory}/{PARTITION_METADATA}")
        if data is None:
            return None
        try:
            fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
            return decode_uuid(fields["topic_id"])
        except (ValueError, KeyError):
            return None

    def take_out(self, where: TopicPartition) -> None:
        """Forget a partition that is deleted; `rename_deleted` then frees its name."""
        self.logs.pop(where, None)
        self.topic_ids.pop(where, None)
        self._forget_offsets(where)

    def _forget_offsets(self, where: TopicPartition) -> None:
        for offsets in (self._recovery_points, self.high_watermarks, self._log_starts, self.cleaned_offsets):
            offsets.pop(where, None)

    def rename_deleted(self, partitions: Mapping[TopicPartition, str]) -> list[str]:
        """Rename the directories of partitions that were taken out; in any thread.

        Args:
            partitions: With a text each that no other deletion has, for example 32 hexadecimal digits.

        Returns:
            Paths of the renamed directories, to be given to `remove_deleted`.

        Raises:
            StorageError: The machine failed.
        """
        targets = []
        for where, unique in partitions.items():
            tail = f"-{where.partition}.{unique}{_DELETED_DIRECTORY_SUFFIX}"
            targets.append(f"{self.path}/{where.topic[: _MAX_NAME_BYTES - len(tail)]}{tail}")
            self._disk.rename(f"{self.path}/{where}", targets[-1])
        self._disk.sync_directory(self.path)
        return targets

    def remove_deleted(self, path: str) -> None:
        """Remove a directory that `rename_deleted` has renamed; in any thread.

        The id goes first, and for good: a directory of which a crash leaves a part is not restored.

        Raises:
            StorageError: The machine failed.
        """
        self._disk.remove(f"{path}/{PARTITION_METADATA}")
        self._disk.sync_directory(path)
        self._disk.remove_tree(path)

    def delete(self, where: TopicPartition, *, unique: str) -> str:
        """Take one partition out and rename its directory; see `rename_deleted`."""
        self.take_out(where)
        return self.rename_deleted({where: unique})[0]

    def restore_deleted(self, known: Mapping[TopicPartition, UUID]) -> list[tuple[TopicPartition, str]]:
        """Give partitions their names back that were being deleted, but whose topic is there. Call it before `load`.

        Only those of which nothing has been removed yet: without its first segments a log would look like one whose
        first records were deleted by retention.

        Args:
            known: The topic id of each partition that the metadata has.

        Returns:
            The partitions, and where each was found.

        Raises:
            StorageError: The machine failed.
        """
        by_id = {(topic_id, where.partition): where for where, topic_id in known.items()}
        restored = []
        for name in self._disk.list(self.path):
            if not name.endswith(_DELETED_DIRECTORY_SUFFIX):
                continue
            stem = name.removesuffix(_DELETED_DIRECTORY_SUFFIX).rpartition(".")[0]
            old, path = parse_partition_directory(stem), f"{self.path}/{name}"
            topic_id = self._read_topic_id(path)
            where = None if old is None or topic_id is None else by_id.get((topic_id, old.partition))
            if where is None:
                continue
            target = f"{self.path}/{where}"
            if self._disk.exists(target):
                if self._read_topic_id(target) == topic_id:
                    continue
                # of a topic that got the name after the deletion, and was taken back together with it
                self._disk.rename(target, f"{self.path}/{name.removesuffix(_DELETED_DIRECTORY_SUFFIX)}-stray")
            self._disk.rename(path, target)
            restored.append((where, path))
        if restored:
            self._disk.sync_directory(self.path)
        return restored

    def truncate(self, where: TopicPartition, offset: Offset) -> PendingCheckpoint:
        """Drop every batch of a partition that has a record at or after an offset.

        Returns:
            A checkpoint. `run` it in any thread, after one that is running, before the log takes batches again: the
            recovery point on the disk may lie above the new end, and a crash would take what follows as synced.

        Raises:
            StorageError: The machine failed.
            SwapRunningError: Compaction is renaming files.
        """
        self.logs[where].truncate_to(offset)
        if where in self.cleaned_offsets:
            self.cleaned_offsets[where] = min(self.cleaned_offsets[where], self.logs[where].log_end_offset)
        return self.prepare_checkpoint()

    def prepare_checkpoint(self) -> PendingCheckpoint:
        """Note how far all logs have come, without a pause; see `checkpoint_in_slices`."""
        slices = self.checkpoint_in_slices()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                found: PendingCheckpoint = end.value
                return found

    def checkpoint_in_slices(self) -> Generator[None, None, PendingCheckpoint]:
        """Note how far each log has come, to start faster after a crash and to keep the log starts.

        Call it every minute or so, and after `delete_records`, before that is answered. It yields where other work may
        run. What is noted of one log is of one moment. Start no other checkpoint, and truncate no log, before this one
        is written.

        Returns:
            A checkpoint, to be run in any thread.
        """
        recovery_points = self._recovery_points = {}
        high_watermarks = self.high_watermarks = {}
        log_starts = self._log_starts = {}
        snapshots = []
        for number, (where, log) in enumerate(list(self.logs.items()), 1):
            if self.logs.get(where) is log:  # else it was taken out meanwhile
                recovery_points[where] = log.synced_end_offset
                high_watermarks[where] = log.high_watermark
                if log.log_start_offset:
                    log_starts[where] = log.log_start_offset
                snapshot = log.prepare_checkpoint()
                if snapshot is not None:
                    snapshots.append(snapshot)
            if number % CHECKPOINT_SLICE == 0:
                yield
        if self.metadata_log is not None:
            recovery_points[METADATA_LOG] = self.metadata_log.synced_end_offset
        tables = [
            (RECOVERY_POINTS, recovery_points),
            (HIGH_WATERMARKS, high_watermarks),
            (LOG_STARTS, log_starts),
            (CLEANED_OFFSETS, self.cleaned_offsets),
        ]
        noted = self._named_in_tables()
        self._noted |= noted  # until it is written, the files have the names of the checkpoint before

        def written() -> None:
            self._noted = noted

        files = [(f"{self.path}/{name}", dict(table)) for name, table in tables]
        return PendingCheckpoint(self._disk, files, snapshots, written)

    def close(self, *, now_ms: int, broker_epoch: int = NO_BROKER_EPOCH) -> list[StorageError]:
        """Close all logs. Only when that worked for all of them is the stop a clean one.

        Args:
            now_ms: Milliseconds since 1970 UTC.
            broker_epoch: Of the broker that stops, by which the controller knows its next incarnation.

        Returns:
            What failed.
        """
        errors = []
        for log in self.logs.values():
            try:
                log.close(now_ms=now_ms)
            except StorageError as error:
                errors.append(error)
        try:
            self.prepare_checkpoint().run()
            if not errors:
                mark = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
                self._disk.write_whole(f"{self.path}/{CLEAN_SHUTDOWN}", mark.encode())
        except StorageError as error:
            errors.append(error)
        self.logs.clear()
        return errors


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Topic and partition of a directory's name, None for other names."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdigit():
        return None
    return TopicPartition(topic, int(number))


def read_meta(disk: Disk, path: str) -> MetaProperties | None:
    """Return the owner of a data directory; None if it is not formatted.

    Raises:
        StorageError: The file cannot be read.
    """
    data = disk.read_bytes(f"{path}/{META_PROPERTIES}")
    return None if data is None else _parse_meta(f"{path}/{META_PROPERTIES}", data)


def _read_broker_epoch(mark: bytes | None) -> int:
    """Return the broker epoch in the mark of a stop in order; what cannot be read is none."""
    try:
        return int(json.loads(mark or b"{}").get("brokerEpoch", NO_BROKER_EPOCH))
    except (ValueError, TypeError, AttributeError):
        return NO_BROKER_EPOCH


def _format_meta(meta: MetaProperties) -> bytes:
    lines = [
        f"cluster.id={meta.cluster_id}",
        f"directory.id={encode_uuid(meta.directory_id)}",
        f"node.id={meta.node_id}",
        "version=1",
    ]
    return ("\n".join(lines) + "\n").encode()


def _parse_meta(path: str, data: bytes) -> MetaProperties:
    try:
        lines = [line.strip() for line in data.decode().splitlines()]
        fields = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        if fields["version"] != "1":
            raise StorageError(f"version {fields['version']} of this file is not known, only 1", path=path)
        return MetaProperties(
            cluster_id=fields["cluster.id"],
            node_id=int(fields["node.id"]),
            directory_id=decode_uuid(fields["directory.id"]),
        )
    except (ValueError, KeyError) as error:
        raise StorageError(f"the file does not say whose directory it is ({error})", path=path) from error


def _format_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    lines: Iterable[str] = (f"{where.topic} {where.partition} {offset}" for where, offset in sorted(offsets.items()))
    return ("\n".join(["0", str(len(offsets)), *lines]) + "\n").encode()


def _read_offsets(disk: Disk, path: str) -> dict[TopicPartition, Offset]:
    data = disk.read_bytes(path)
    if data is None:
        return {}
    try:
        version, count, *lines = data.decode().splitlines()
        offsets = {}
        for line in lines:
            topic, partition, offset = line.split(" ")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        if version != "0" or int(count) != len(offsets):
            raise InvalidCheckpointError("not a checkpoint of version 0 with as many lines as it says", path=path)
    except ValueError as error:
        raise InvalidCheckpointError(f"not a checkpoint ({error})", path=path) from error
    return offsets
