"""The replicas of partitions that this node hosts: each is a leader, a follower, or offline."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, NotRequired, Protocol, TypeAlias, TypedDict, Unpack

from hailbus_broker.log import LogError, Origin, StorageError
from hailbus_broker.log.config import MAX_LONG
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.group_sync import LANES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hailbus_broker.log import AppendResult, PartitionLog, PendingSync
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.followers import Followers
    from hailbus_broker.runtime.group_sync import GroupSync

    Waiters: TypeAlias = deque[tuple[int, Callable[[Exception | None], None]]]

log: Any = get_logger()

NEVER_MS: Final = 2**63 - 1
_COORDINATOR: Final = Origin.COORDINATOR  # looked up for each append
RETRY_S: Final = 0.1
"""Pause before a sync is tried again for which there was no file descriptor."""


class Reader(Protocol):
    """A parked fetch."""

    def notify(self) -> None:
        """Something may have become readable."""
        ...


class Hosting(TypedDict):
    """What every replica with a log is made from; see `HostedReplica`."""

    topic: str
    topic_id: Uuid
    index: int
    leader_epoch: int
    log: PartitionLog
    sync: GroupSync
    report: Callable[[StorageError], None]
    flush_messages: NotRequired[int]
    flush_ms: NotRequired[int]


class HostedReplica:
    """A replica with a log that is written to, by clients or from its leader.

    Args:
        sync: Brings the log to the disk, together with others.
        report: Told when the machine failed.

    Attributes:
        flush_messages: Records after which the log is synced; with 1 nothing counts before it is on the disk.
        flush_ms: Time after which it is synced in any case.
        error: Why nothing is written any more: the data directory is offline, the partition was deleted, or this
            replica has another role now. What was committed before can be read on.
        is_deleted: Whether the partition is gone.
        stored_waiters: (offset, callback) in order of offsets; the callback gets None as soon as this replica has
            stored everything below the offset, or the error that the append ended in.
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
        "stored_waiters",
        "topic",
        "topic_id",
    )

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
        self.stored_waiters: Waiters = deque()
        self._sync = sync
        self._report = report

    def call_later(self, delay_s: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after a while."""
        return self._sync.call_later(delay_s, function)

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

    @property
    def stored_offset(self) -> int:
        """Everything below it counts as stored here: it is on the disk, unless the settings do not ask for that."""
        return self.log.synced_end_offset if self.flush_messages == 1 else self.log.log_end_offset

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

    def _advance(self, offset: int) -> None:
        """Everything below an offset is stored here."""
        if self.stored_waiters:
            _notify(self.stored_waiters, offset, None, self.name)

    def refuse(self, error: StorageError) -> None:
        """Take no more records, since the data directory is offline; a sync that runs may still end well."""
        if self.error is None:
            self.error = error

    def delete(self) -> None:
        """The partition is gone from this node."""
        self.is_deleted = True
        self._fail(TopicDeletedError(self.topic))

    def resign(self) -> None:
        """Another role begins here: what waits for this one waits in vain."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._fail(NotLeaderError(self.name))

    def _fail(self, error: Exception) -> None:
        # Nothing of what waits will ever be safe.
        self.error = error
        waiters, self.stored_waiters = self.stored_waiters, deque()
        _notify(waiters, MAX_LONG, error, self.name)


class LeaderReplica(HostedReplica):
    """A replica that leads its partition: it takes records, and knows who waits for its high watermark to move.

    Args:
        followers: The other replicas; None if there are none.

    Attributes:
        waiters: (offset, callback) in order of offsets; the callback gets None, or the error that the append ended in.
        readers: Parked fetches of clients.
        follower_readers: Parked fetches of followers, which read up to the log end.
        on_marker: Called after a marker was appended, with the producer's id and whether its transaction was committed.
        start_watchers: Called when the low watermark may have moved, or when this replica leads no more.
    """

    __slots__ = ("follower_readers", "followers", "on_marker", "readers", "start_watchers", "waiters")

    refusal: ClassVar = ErrorCode.NONE
    """The error code for clients that want to write or read here."""

    def __init__(self, *, followers: Followers | None = None, **hosting: Unpack[Hosting]) -> None:
        super().__init__(**hosting)
        self.waiters: Waiters = deque()
        self.readers: dict[int, Reader] = {}
        self.follower_readers: dict[int, Reader] = {}
        self.on_marker: Callable[[int, bool], None] | None = None
        self.start_watchers: dict[int, Callable[[], object]] = {}
        self.followers = followers

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
        if origin is _COORDINATOR and not self.has_min_isr:
            raise NotEnoughReplicasError(f"fewer replicas of {self.name} are in sync than min.insync.replicas says")
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
        if self.follower_readers:
            for reader in list(self.follower_readers.values()):
                reader.notify()
        return result

    def epoch_at(self, offset: int) -> int:
        """The leader epoch in which an offset was written, or is written next; -1 if it is not known."""
        return self.leader_epoch if offset >= self.log.log_end_offset else self.log.leader_epochs.epoch_at(offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch at or below the given one and its end offset, exclusive.

        (-1, -1) for one that has not begun (KIP-101). The log of a partition without followers knows an epoch from its
        first record on. Consumers ask for epochs without records, too.
        """
        log = self.log
        latest = log.leader_epochs.latest
        if not latest < leader_epoch <= self.leader_epoch:
            return log.end_offset_for_epoch(leader_epoch)
        if latest < 0 or leader_epoch == self.leader_epoch:
            return leader_epoch, log.log_end_offset
        return latest, log.log_end_offset

    def when_committed(self, end_offset: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back as soon as the high watermark has reached an offset (exclusive); at once if it has already."""
        if self.log.high_watermark >= end_offset:
            callback(None)
        elif self.error is not None:
            callback(self.error)
        else:
            self.waiters.append((end_offset, callback))

    def when_stored(self, end_offset: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back as soon as this replica has stored everything below an offset, whatever its followers have."""
        if self.followers is None:
            self.when_committed(end_offset, callback)
        elif self.stored_offset >= end_offset:
            callback(None)
        elif self.error is not None:
            callback(self.error)
        else:
            self.stored_waiters.append((end_offset, callback))

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

    # ------------------------------------------------------------------ followers

    @property
    def has_min_isr(self) -> bool:
        """Whether enough replicas are in sync for records that all of them must have (`min.insync.replicas`)."""
        return self.followers is None or self.followers.has_min_isr

    @property
    def knows_committed(self) -> bool:
        """Whether the high watermark covers what was committed before this leader; a new one may not know yet."""
        return self.followers is None or self.log.high_watermark >= self.followers.in_sync.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of all replicas whose brokers are alive; -1 while one is not known."""
        return self.log.log_start_offset if self.followers is None else self.followers.low_watermark(self.log)

    def fetched(self, node_id: int, broker_epoch: int, offset: int, log_start_offset: int = -1) -> bool:
        """A follower has asked for the records from an offset on, so it has stored all before it.

        Args:
            node_id: Of the follower.
            broker_epoch: It fetched with, -1 for unknown.
            offset: Where it wants to go on.
            log_start_offset: Where its log starts, -1 for unknown.

        Returns:
            Whether the node is a follower of this partition.
        """
        followers = self.followers
        if followers is None or not followers.fetched(node_id, broker_epoch, offset, self.log):
            return False
        if followers.in_sync.starts_at(node_id, log_start_offset):
            self._tell_start_watchers()
        if self.error is None:
            self._recount(followers)
        return True

    def follow_up(self, followers: Followers | None, leader_epoch: int) -> None:
        """The partition has other followers, or a new leader epoch, and this node leads it on."""
        self.followers = followers
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            if followers is not None:
                self.log.begin_leader_epoch(leader_epoch)
        self._advance(self.stored_offset)
        self.wake_readers()

    def _tell_start_watchers(self) -> None:
        for watcher in list(self.start_watchers.values()):
            watcher()

    @property
    def serves_racks(self) -> bool:
        """Whether consumers read from this partition's followers (KIP-392)."""
        return self.followers is not None and self.followers.serves_racks

    def recount(self) -> None:
        """Recompute the high watermark and the ISR, because the ISR, the settings or the time have changed."""
        self._tell_start_watchers()
        if self.followers is not None and self.error is None:
            self._recount(self.followers)

    def _recount(self, followers: Followers) -> None:
        offset = followers.committed_offset(self.stored_offset, self.log.log_end_offset)
        self._commit(offset)
        followers.propose(self, self.log)

    def _advance(self, offset: int) -> None:
        if self.error is not None and isinstance(self.error, NotLeaderError):
            return  # the log belongs to another role now
        if self.followers is not None:
            super()._advance(offset)
            offset = self.followers.committed_offset(offset, self.log.log_end_offset)
        # else one replica is all in-sync replicas: what it holds safely is committed
        if self.log.advance_high_watermark(offset) and (self.waiters or self.readers or self.serves_racks):
            self._announce(offset)

    def _commit(self, offset: int) -> None:
        if self.log.advance_high_watermark(offset):
            self._announce(offset)

    def _announce(self, offset: int) -> None:
        """Notify those who wait for what is committed now."""
        if self.waiters:
            _notify(self.waiters, offset, None, self.name)
        for reader in list(self.readers.values()):
            reader.notify()
        if self.serves_racks:
            for reader in list(self.follower_readers.values()):
                reader.notify()

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        waiters, self.waiters = self.waiters, deque()
        _notify(waiters, MAX_LONG, error, self.name)
        self._tell_start_watchers()
        self.wake_readers()

    def wake_readers(self) -> None:
        """Tell the parked fetches that something has changed."""
        for reader in [*self.readers.values(), *self.follower_readers.values()]:
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


class FollowerReplica(HostedReplica):
    """A replica whose leader is another broker: it takes what its fetcher brings.

    Attributes:
        leader_id: The broker that leads; -1 for none.
        leader_high_watermark: As the leader last said.
        leader_log_start_offset: As the leader last said.
        readers: Parked fetches of clients, which may read from a follower (KIP-392).
    """

    __slots__ = ("leader_high_watermark", "leader_id", "leader_log_start_offset", "readers")

    refusal: ClassVar = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(self, *, leader_id: int, **hosting: Unpack[Hosting]) -> None:
        super().__init__(**hosting)
        self.leader_id = leader_id
        self.leader_high_watermark = -1
        self.leader_log_start_offset = 0
        self.readers: dict[int, Reader] = {}

    def append(self, data: bytes | bytearray | memoryview, *, now_ms: int) -> None:
        """Write the leader's batches to the log; see `PartitionLog.append_as_follower`.

        Raises:
            LogError: The log refused them, or the machine failed.
            RecordsError: They are malformed.
        """
        if self.error is not None:
            raise StorageError(f"the partition takes no records: {self.error}", path=self.name)
        before = self.log.log_end_offset
        try:
            self.log.append_as_follower(data, now_ms=now_ms)
        except StorageError as error:
            self._report(error)
            raise
        if self.flush_messages == 1:
            self._sync.mark(self)
        else:
            self._unsynced_count += self.log.log_end_offset - before
            if self._unsynced_count >= self.flush_messages or self.flush_ms != NEVER_MS:
                self._flush_later()

    def when_stored(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back as soon as everything that was appended so far is stored here."""
        end_offset = self.log.log_end_offset
        if self.error is not None:
            callback(self.error)
        elif self.stored_offset >= end_offset:
            callback(None)
        else:
            self.stored_waiters.append((end_offset, callback))
            self._sync.mark(self)

    def commit(self, leader_high_watermark: int) -> None:
        """Take the leader's high watermark over, as far as this replica has the records."""
        self.leader_high_watermark = leader_high_watermark
        self._commit(self.stored_offset)

    def _commit(self, offset: int) -> None:
        if self.log.advance_high_watermark(min(self.leader_high_watermark, offset)):
            self.wake_readers()

    def follow_log_start(self) -> bool:
        """Begin the log where the leader's begins, as far as this replica knows that records are committed.

        Returns:
            Whether the log start has moved. It lasts when the caller has checkpointed it.
        """
        offset = min(self.leader_log_start_offset, self.log.high_watermark)
        if self.error is not None or offset <= self.log.log_start_offset:
            return False
        self.log.delete_records(offset)
        return True

    def _advance(self, offset: int) -> None:
        if self.error is None:
            self._commit(offset)
        super()._advance(offset)

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        self.wake_readers()

    def wake_readers(self) -> None:
        """Notify the parked fetches that something has changed."""
        for reader in list(self.readers.values()):
            reader.notify()


class RemoteReplica:
    """A partition that has no replica on this node."""

    __slots__ = ("index", "name", "topic", "topic_id")

    refusal: ClassVar = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(self, *, topic: str, topic_id: Uuid, index: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.name = f"{topic}-{index}"


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


Replica: TypeAlias = LeaderReplica | FollowerReplica | OfflineReplica | RemoteReplica


class TopicDeletedError(Exception):
    """The topic went away while somebody waited for it."""


class NotEnoughReplicasError(LogError):
    """Fewer replicas are in sync than records need that all of them must have."""

    error_name: ClassVar[str] = "NOT_ENOUGH_REPLICAS"


class NotLeaderError(Exception):
    """Another broker leads the partition now."""
