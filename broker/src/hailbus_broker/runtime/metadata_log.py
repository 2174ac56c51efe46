"""The cluster's metadata on this node: what the controller decides is appended, and published once it is committed."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hailbus_broker.cluster.metadata.reading import MetadataReader, decode_batch
from hailbus_broker.cluster.metadata.records import encode_record
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.log import Isolation
from hailbus_broker.log.config import MAX_LONG
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.abort_transaction_record import AbortTransactionRecord
from hailbus_broker.protocol.definitions.begin_transaction_record import BeginTransactionRecord
from hailbus_broker.protocol.definitions.end_transaction_record import EndTransactionRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.records import RecordsError, RecordToWrite, build_batch, iterate_batches
from hailbus_broker.runtime.lookups import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hailbus_broker.cluster.controller import Controller, Decision
    from hailbus_broker.cluster.metadata.reading import DecodedBatch
    from hailbus_broker.log import StorageError
    from hailbus_broker.log.results import ReadResult
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import LeaderEpoch, Offset
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.metadata_publisher import MetadataPublisher
    from hailbus_broker.runtime.metadata_quorum import MetadataQuorum
    from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

T = TypeVar("T")

_TRANSACTION_RECORDS: Final = (AbortTransactionRecord, BeginTransactionRecord, EndTransactionRecord)

DRAFTS: Final = 3
"""So often a thread makes a decision that others overtake; after that the loop makes it."""
READ_BYTES: Final = 1024 * 1024
"""Records of other nodes are read and published in pieces of this size."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Records that this node has appended, and that are not published yet."""

    start_offset: Offset
    end_offset: Offset
    records: Sequence[Message]
    done: asyncio.Future[None]


class MetadataLog:
    """Writes the controller's decisions, and publishes what is committed, from this node or from another.

    While this node leads, a decision is appended, replayed into the controller's own image at once, so that the next
    decision knows of it, and published to everything else when it is committed. The client that asked for it is
    answered after that.

    Args:
        quorum: The replica of the log; give it this object as its listener.
        controller: Whose decisions are written.
        publisher: Of the committed image.
        snapshots: On the disk.
        clock: For timestamps.
        threads: Where snapshots are written.
        stop: Called with a reason when the log cannot be read on: the node must not act on half of it.
        bootstrap: Levels of features that a new cluster begins with; None if somebody else writes them.

    Attributes:
        is_active: Whether this node's controller decides: it leads, and knows all that was committed before.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        controller: Controller,
        publisher: MetadataPublisher,
        snapshots: MetadataSnapshots,
        *,
        clock: Clock,
        threads: Threads,
        stop: Callable[[Exception], None],
        bootstrap: Mapping[str, int] | None = None,
    ) -> None:
        self.quorum: Final = quorum
        self.is_active = False
        self._controller: Final = controller
        self._publisher: Final = publisher
        self._snapshots: Final = snapshots
        self._clock: Final = clock
        self._threads: Final = threads
        self._stop: Final = stop
        self._bootstrap: Final = bootstrap
        self._loop: Final = asyncio.get_running_loop()
        self._nothing: Final[asyncio.Future[None]] = self._loop.create_future()
        self._nothing.set_result(None)
        self._last = self._nothing
        self._writes: Final[deque[_Write]] = deque()
        self._reader = MetadataReader(publisher.end_offset)
        self._high_watermark = publisher.end_offset
        self._reading: asyncio.Task[None] | None = None
        self._activation: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------------ the controller's decisions

    @property
    def next_offset(self) -> Offset:
        """Where the next record is appended."""
        return self.quorum.log.log_end_offset

    def write(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append records.

        Returns:
            Done when they are published. Without records, when everything before is: what the controller says may
            rest on decisions that are not committed yet.

        Raises:
            ApiError: NOT_CONTROLLER: another node decides.
            StorageError: The machine failed, or did before; nothing has changed then.
        """
        if not records:
            return _of_one_caller(self._last)
        if not self.is_active:
            raise _not_active()
        self._last = self._append(records)
        self._controller.image.apply(records)
        return _of_one_caller(self._last)

    async def decide_in_thread(
        self, decide: Callable[[Controller], tuple[T, Sequence[Message]]], check: Callable[[Sequence[Message]], object]
    ) -> tuple[T, asyncio.Future[None]]:
        """Let a thread make a large decision on a copy of the controller's image; it takes effect in one turn.

        The copy becomes the controller's image, unless another decision was made meanwhile. Then this one is made
        again, the last time in the loop.

        Args:
            decide: Returns a result and the records to write.
            check: Called with the records before they are written; raises an ApiError to refuse them.

        Returns:
            The result, and what `write` returns.

        Raises:
            ApiError: As `write`; or what `decide` or `check` raises.
            StorageError: As `write`.
        """
        for _ in range(DRAFTS):
            if not self.is_active:
                raise _not_active()
            before = self._controller.image
            version, draft = before.version, self._controller.on(before.copy())
            result, records, batch = await self._threads.run(partial(_drafted, draft, decide, self._clock.wall_ms()))
            if self.is_active and self._controller.image is before and before.version == version:
                check(records)
                if batch is not None:
                    self._last = self._append(records, batch)
                    if self._controller.image is before:  # else the leadership ended within the append
                        self._controller.image = draft.image
                return result, _of_one_caller(self._last)
        result, records = decide(self._controller)
        check(records)
        return result, self.write(records)

    def _append(self, records: Sequence[Message], batch: bytearray | None = None) -> asyncio.Future[None]:
        start_offset = self.next_offset
        done: asyncio.Future[None] = self._loop.create_future()
        # It may be committed before `append` returns.
        self._writes.append(_Write(start_offset, start_offset + len(records), records, done))
        try:
            self.quorum.append(build_records(records, now_ms=self._clock.wall_ms()) if batch is None else batch)
        except BaseException:
            if self._writes and self._writes[-1].done is done:
                self._writes.pop()
            raise
        return done

    def upgrade_kraft_version(self, level: int) -> asyncio.Future[None]:
        """Append a level of `kraft.version`, and the voters with it.

        Returns:
            Done when they are published.

        Raises:
            ApiError: INVALID_UPDATE_VERSION, with the reason; NOT_CONTROLLER: another node decides.
            StorageError: The machine failed, or did before.
        """
        if not self.is_active:
            raise _not_active()
        start_offset = self.next_offset
        self.quorum.upgrade_kraft_version(level)
        end_offset = self.next_offset
        if end_offset > start_offset:
            self._last = self._loop.create_future()
            self._writes.append(_Write(start_offset, end_offset, (), self._last))
        return _of_one_caller(self._last)

    async def decide(self, decide: Callable[[], Decision[T]]) -> T:
        """Have the controller decide, and return its response when the decision is published.

        Raises:
            ApiError: NOT_CONTROLLER: another node decides; or what the controller refuses.
            StorageError: The machine failed, or did before.
        """
        if not self.is_active:
            raise _not_active()
        decision = decide()
        await self.write(decision.records)
        return decision.response

    async def until_active(self) -> None:
        """Wait until this node's controller decides.

        Raises:
            Exception: Why it will not, as far as this is known.
        """
        await asyncio.shield(self._activation)

    def refuse(self, error: StorageError) -> None:
        """The data directory is offline."""
        self.quorum.refuse(error)
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Nothing is written any more: what is asked for from now on is answered from what was committed."""
        self.is_active = False
        before, self._activation = self._activation, self._loop.create_future()
        if not before.done():
            before.set_exception(error)
            before.exception()  # not everybody waits for it
        self._controller.image = self._publisher.image.copy()
        self._last = self._nothing
        writes = list(self._writes)
        self._writes.clear()
        for write in writes:
            if not write.done.done():
                write.done.set_exception(error)
                write.done.exception()  # not everybody waits for it

    # ------------------------------------------------------------------ what the quorum says

    def leads(self, epoch: LeaderEpoch, from_offset: Offset) -> None:
        """See `QuorumListener`: the controller decides when the first record of the epoch is committed."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.add_done_callback(partial(self._activate, epoch))
        self._writes.append(_Write(from_offset, from_offset + 1, (), done))

    def _activate(self, epoch: LeaderEpoch, published: asyncio.Future[None]) -> None:
        if published.cancelled() or published.exception() is not None:
            return
        if not self.quorum.is_leader or self.quorum.epoch != epoch:
            return
        self._controller.image = self._publisher.image.copy()
        self.is_active = True
        if not self._activation.done():
            self._activation.set_result(None)
        log.info("controller_active", epoch=epoch)
        image = self._publisher.image
        is_new = not (image.features or image.brokers or image.topics)
        first = self._controller.activate(
            next_offset=self.next_offset,
            now_ms=self._clock.now_ms(),
            has_open_transaction=self._reader.transactions.is_open,
            bootstrap=self._bootstrap if is_new else None,
        )
        if first:
            self._last = self._append(first)
            self._controller.image.apply(record for record in first if not isinstance(record, _TRANSACTION_RECORDS))

    def follows(self, leader_id: int | None) -> None:
        """See `QuorumListener`: what is not committed may be, or not; those who wait ask the new leader."""
        if self.is_active or self._writes:
            self._fail(ApiError(ErrorCode.NOT_CONTROLLER, f"Another controller is active: {leader_id}."))

    def committed(self, high_watermark: Offset) -> None:
        """See `QuorumListener`."""
        self._high_watermark = high_watermark
        self._publish_own()

    def loaded(self, snapshot: SnapshotId) -> None:
        """See `QuorumListener`."""
        records = self._snapshots.read(snapshot)
        self._reader = MetadataReader(snapshot.end_offset)
        self._high_watermark = snapshot.end_offset
        self._publisher.publish(records, snapshot.end_offset, lambda: None, is_snapshot=True)

    def _publish_own(self) -> None:
        """Publish what this node has written, and have a task read what others have."""
        while self._writes and self._writes[0].start_offset == self._reader.next_offset:
            write = self._writes[0]
            if write.end_offset > self._high_watermark:
                return
            self._writes.popleft()
            self._publish(self._reader.take(write.records, write.end_offset), partial(_finish, write.done))
        if self._reader.next_offset < self._high_watermark and self._reading is None:
            self._reading = self._loop.create_task(self._read_others(), name="metadata-reader")
            self._reading.add_done_callback(self._read)

    def _publish(self, records: Sequence[Message], done: Callable[[], object] = lambda: None) -> None:
        self._publisher.publish(records, self._reader.snapshot_offset, done)

    def _read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._fail(error)
            self._stop(error)
            return
        self._publish_own()

    async def _read_others(self) -> None:
        """Publish what is committed from the log, up to the first record that this node has written."""
        while True:
            reader = self._reader
            limit = min(self._writes[0].start_offset if self._writes else MAX_LONG, self._high_watermark)
            if reader.next_offset >= limit:
                return
            found = self.quorum.log.read(reader.next_offset, READ_BYTES, isolation=Isolation.LOG_END)
            start_offset = reader.next_offset
            batches = await self._threads.run(partial(self._decode, found, start_offset, limit))
            if self._reader is not reader:
                continue  # a snapshot has come meanwhile
            for batch in batches:
                self._publish(reader.take_decoded(batch))
            if reader.next_offset == start_offset:
                raise RecordsError(f"what lies at offset {start_offset} of the metadata log is no batch")

    def _decode(self, found: ReadResult, start_offset: Offset, limit: Offset) -> list[DecodedBatch]:
        """Decode the batches that end at `limit` or before. Runs in a thread: thousands of records take long."""
        batches = []
        for batch in iterate_batches(found.to_bytes(), whole=False):
            if batch.header.next_offset > limit:
                break
            batch.check_crc(path=self.quorum.log.directory)
            batches.append(decode_batch(batch, start_offset=start_offset))
        return batches

    async def close(self) -> None:
        """Publish no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # ------------------------------------------------------------------ snapshots

    async def snapshot(self) -> None:
        """Write down what the log adds up to, and let go of what was before.

        Raises:
            StorageError: The machine failed.
        """
        partition_log = self.quorum.log
        # A segment that is not whole, before one that is, would be damage to the next start.
        await self.quorum.sync()
        now_ms = self._clock.wall_ms()
        partition_log.roll(now_ms=now_ms)
        image = self._publisher.image.copy()  # the publisher changes its own meanwhile
        end_offset = self._publisher.end_offset
        covered = SnapshotId(end_offset, max(partition_log.leader_epochs.epoch_at(end_offset - 1), 0))
        quorum = control_records.quorum_state(*self.quorum.raft.quorum.history.at(end_offset))
        records = await self._threads.run(image.to_records)
        data = await self._threads.run(
            partial(encode_snapshot, records, timestamp=now_ms, now_ms=now_ms, quorum=quorum)
        )
        await self._threads.run(partial(self._snapshots.write, covered, data))
        self.quorum.snapshot_written(covered)
        # The new segment is safe before the old ones go.
        await self.quorum.sync()
        partition_log.delete_records(covered.end_offset)
        removal = await answer(self._threads, lambda reads: partition_log.start_retention(now_ms=now_ms, reads=reads))
        if removal is not None:
            await self._threads.run(removal.run)
        log.info("metadata_snapshot_written", end_offset=covered.end_offset, records=len(records), bytes=len(data))


def _not_active() -> ApiError:
    return ApiError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")


def _drafted(
    draft: Controller, decide: Callable[[Controller], tuple[T, Sequence[Message]]], now_ms: int
) -> tuple[T, Sequence[Message], bytearray | None]:
    """Decide, apply the records to the draft's image, and return the result, the records and their batch."""
    result, records = decide(draft)
    if not records:
        return result, records, None
    draft.image.apply(records)
    return result, records, build_records(records, now_ms=now_ms)


def build_records(records: Sequence[Message], *, now_ms: int) -> bytearray:
    """Metadata records as one batch."""
    return build_batch([RecordToWrite(key=None, value=encode_record(record), timestamp=now_ms) for record in records])


def _of_one_caller(done: asyncio.Future[None]) -> asyncio.Future[None]:
    """Return a future that completes when the given one does; cancelling it leaves the given one alone.

    A task that is cancelled cancels the future that it waits for. Decisions without records wait for the same one.
    """
    if done.done():
        return done
    mine = asyncio.shield(done)
    mine.add_done_callback(_retrieve)
    return mine


def _retrieve(done: asyncio.Future[None]) -> None:
    """Read the exception of a future that not every caller waits for: otherwise asyncio logs it."""
    if not done.cancelled():
        done.exception()


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
