"""The replicas of partitions that this node hosts: each is a leader, a follower, or offline."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from hailbus_broker.log import Origin, StorageError
from hailbus_broker.log.config import MAX_LONG
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.group_sync import LANES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hailbus_broker.log import AppendResult, PartitionLog, PendingSync
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.group_sync import GroupSync

    Waiters: TypeAlias = deque[tuple[int, Callable[[Exception | None], None]]]

log: Any = get_logger()

NEVER_MS: Final = 2**63 - 1
RETRY_S: Final = 0.1
"""Pause before a sync is tried again for which there was no file descriptor."""


class Reader(Protocol):
    """A parked fetch."""

    def notify(self) -> None:
        """Something may have become readable."""
        ...


class LeaderReplica:
    """A replica that leads its partition: it takes records, and knows who waits for its high watermark to move.

    Args:
        sync: Brings the log to the disk, together with others.
        report: Told when the machine failed.

    Attributes:
        flush_messages: Records after which the log is synced; with 1 the high watermark waits for the disk.
        flush_ms: Time after which it is synced in any case.
        error: Why nothing is written any more: the data directory is offline, or the partition was deleted. What was
            committed before can be read on.
        is_deleted: Whether the topic is gone.
        waiters: (offset, callback) in order of offsets; the callback gets None, or the error that the append ended in.
        readers: Parked fetches.
        on_marker: Called after a marker was appended, with the producer's id and whether its transaction was committed.
    """

    __slots__ = (
        "_flush_timer",
        "_report",
        "_sync",
        "_unsynced_count",
        "error",
        "flush_messages",
        "flush_ms",
        "index",
        "is_deleted",
        "lane",
        "leader_epoch",
        "log",
        "name",
        "on_marker",
        "readers",
        "topic",
        "topic_id",
        "waiters",
    )

    refusal: ClassVar = ErrorCode.NONE
    """The error code for clients that want to write or read here."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: Uuid,
        index: int,
        leader_epoch: int,
        log: PartitionLog,
        sync: GroupSync,
        report: Callable[[StorageError], None],
        flush_messages: int = 1,
        flush_ms: int = NEVER_MS,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.name = f"{topic}-{index}"
        self.leader_epoch = leader_epoch
        self.log = log
        self.flush_messages = flush_messages
        self.flush_ms = flush_ms
        self._unsynced_count = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self.lane = sum(self.name.encode()) % LANES
        self.error: Exception | None = None
        self.is_deleted = False
        self.waiters: Waiters = deque()
        self.readers: dict[int, Reader] = {}
        self.on_marker: Callable[[int, bool], None] | None = None
        self._sync = sync
        self._report = report

    def append(
        self,
        data: bytes | bytearray | memoryview,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        is_verified: bool = True,
        must_begin_at_zero: bool = False,
        must_marker_be_newer: bool = False,
        is_retry: bool = False,
    ) -> AppendResult:
        """Write batches to the log, as `PartitionLog.append` does.

        Call `when_committed` to be notified once the records are durable.

        Raises:
            LogError: The log refused them, or the machine failed.
            RecordsError: They are malformed.
        """
        if self.error is not None:
            raise StorageError(f"the partition takes no records: {self.error}", path=self.name)
        try:
            result = self.log.append(
                data,
                now_ms=now_ms,
                leader_epoch=self.leader_epoch,
                origin=origin,
                is_verified=is_verified,
                must_begin_at_zero=must_begin_at_zero,
                must_marker_be_newer=must_marker_be_newer,
            )
        except StorageError as error:
            self._report(error)
            if is_retry or not error.is_out_of_descriptors:
                raise
            # Nothing was written, and the report has closed files that nothing is written to.
            return self.append(
                data,
                now_ms=now_ms,
                origin=origin,
                is_verified=is_verified,
                must_begin_at_zero=must_begin_at_zero,
                must_marker_be_newer=must_marker_be_newer,
                is_retry=True,
            )
        if self.flush_messages == 1:
            self._sync.mark(self)
        else:
            end_offset = result.last_offset + 1
            self._advance(end_offset)
            self._unsynced_count += end_offset - result.base_offset
            if self._unsynced_count >= self.flush_messages or self.flush_ms != NEVER_MS:
                self._flush_later()
        return result

    def _flush_later(self) -> None:
        """Records were acknowledged and not synced: see to it that they are, when the settings say so."""
        if self._unsynced_count >= self.flush_messages:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = self._sync.call_later(self.flush_ms / 1000, self.flush)

    def flush(self) -> None:
        """Sync in the next round."""
        self._unsynced_count = 0
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if not self.is_deleted:
            self._sync.mark(self)

    def when_committed(self, end_offset: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back as soon as the high watermark has reached an offset (exclusive); at once if it has already."""
        if self.log.high_watermark >= end_offset:
            callback(None)
        elif self.error is not None:
            callback(self.error)
        else:
            self.waiters.append((end_offset, callback))

    async def committed(self) -> None:
        """Wait until everything that was written so far is safe.

        Raises:
            Exception: What the disk said.
        """
        done: asyncio.Future[None] = self._sync.new_future()

        def finish(error: Exception | None) -> None:
            if not done.cancelled():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

        self.when_committed(self.log.log_end_offset, finish)
        await done

    def synced(self, pending: PendingSync | None, error: StorageError | None = None) -> None:
        """A sync has ended: what it covered is safe, or the partition goes offline."""
        if pending is None:
            self._advance(self.log.synced_end_offset)
            return
        if error is not None and error.is_out_of_descriptors:
            self.log.retry_sync(pending)
            self._report(error)
            self._sync.call_later(RETRY_S, self.flush)
            return
        try:
            end = self.log.finish_sync(pending, error)
        except StorageError as failure:
            self._fail(failure)
            if not self.is_deleted:  # else there is nothing left to sync
                self._report(failure)
            return
        self._advance(end)

    def refuse(self, error: StorageError) -> None:
        """Take no more records, since the data directory is offline; a sync that runs may still end well."""
        if self.error is None:
            self.error = error

    def delete(self) -> None:
        """The topic is gone."""
        self.is_deleted = True
        self._fail(TopicDeletedError(self.topic))

    def resign(self) -> None:
        """Another broker leads from now on: what was not committed here may never be."""
        self._fail(NotLeaderError(self.name))

    def _fail(self, error: Exception) -> None:
        # Nothing of what waits will ever be safe.
        self.error = error
        waiters, self.waiters = self.waiters, deque()
        _notify(waiters, MAX_LONG, error, self.name)
        self.wake_readers()

    def _advance(self, offset: int) -> None:
        # One replica is all in-sync replicas: what it holds safely is committed.
        if not self.log.advance_high_watermark(offset):
            return
        if self.waiters:
            _notify(self.waiters, offset, None, self.name)
        if self.readers:
            self.wake_readers()

    def wake_readers(self) -> None:
        """Tell the parked fetches that something has changed."""
        for reader in list(self.readers.values()):
            reader.notify()


def _notify(waiters: Waiters, offset: int, error: Exception | None, name: str) -> None:
    """Call back all that wait for an offset or one before it, in order."""
    while waiters and waiters[0][0] <= offset:
        callback = waiters.popleft()[1]
        try:
            callback(error)
        except Exception:
            # It must not keep those behind it: appends that come later would overtake them.
            log.exception("commit_callback_failed", partition=name)


class FollowerReplica:
    """A replica whose leader is another broker.

    Attributes:
        leader_id: The broker that leads; -1 for none.
    """

    __slots__ = ("index", "leader_epoch", "leader_id", "log", "name", "topic", "topic_id")

    refusal: ClassVar = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(
        self, *, topic: str, topic_id: Uuid, index: int, leader_id: int, leader_epoch: int, log: PartitionLog
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.name = f"{topic}-{index}"
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.log = log


class OfflineReplica:
    """A replica that has no log, since that could not be made."""

    __slots__ = ("error", "index", "name", "topic", "topic_id")

    refusal: ClassVar = ErrorCode.KAFKA_STORAGE_ERROR

    def __init__(self, *, topic: str, topic_id: Uuid, index: int, error: StorageError) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.name = f"{topic}-{index}"
        self.error = error


Replica: TypeAlias = LeaderReplica | FollowerReplica | OfflineReplica


class TopicDeletedError(Exception):
    """The topic went away while somebody waited for it."""


class NotLeaderError(Exception):
    """Another broker leads the partition now."""
