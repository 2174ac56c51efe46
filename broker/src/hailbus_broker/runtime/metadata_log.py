"""The cluster's metadata as a log: what the controller decides is appended, and published once it is committed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.metadata.records import encode_record
from hailbus_broker.cluster.metadata.snapshot import SnapshotId, encode_snapshot
from hailbus_broker.log import Origin
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.lookups import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.controller import Controller
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.metadata_publisher import MetadataPublisher
    from hailbus_broker.runtime.metadata_snapshots import MetadataSnapshots
    from hailbus_broker.runtime.replica import LeaderReplica
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()


class MetadataLog:
    """Writes the controller's decisions.

    A decision is appended, replayed into the controller's own image at once, so that the next decision knows of it,
    and published to everything else when it is committed. The client that asked for it is answered after that.

    Args:
        replica: Of `__cluster_metadata`.
        controller: Whose decisions are written.
        publisher: Of the committed image.
        snapshots: On the disk.
        clock: For timestamps.
        threads: Where snapshots are written.
    """

    def __init__(
        self,
        replica: LeaderReplica,
        controller: Controller,
        publisher: MetadataPublisher,
        snapshots: MetadataSnapshots,
        *,
        clock: Clock,
        threads: Threads,
    ) -> None:
        self.replica: Final = replica
        self._controller: Final = controller
        self._publisher: Final = publisher
        self._snapshots: Final = snapshots
        self._clock: Final = clock
        self._threads: Final = threads
        self._loop: Final = asyncio.get_running_loop()
        self._nothing: Final[asyncio.Future[None]] = self._loop.create_future()
        self._nothing.set_result(None)
        self._last = self._nothing

    def write(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append records.

        Returns:
            Done when they are published. Without records, when everything before is: what the controller says may
            rest on decisions that are not committed yet.

        Raises:
            StorageError: The machine failed, or did before; nothing has changed then.
        """
        if not records:
            return self._last
        done: asyncio.Future[None] = self._loop.create_future()
        now_ms = self._clock.wall_ms()
        batch = build_records(records, now_ms=now_ms)
        result = self.replica.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR)
        end_offset = result.last_offset + 1
        self._controller.image.apply(records)
        self._last = done

        def publish(error: Exception | None) -> None:
            if error is None:
                self._publisher.publish(records, end_offset, partial(_finish, done))
                return
            # Nothing is written any more; what is asked for from now on is answered from what was committed.
            self._controller.image = self._publisher.image.copy()
            self._last = self._nothing
            if not done.done():
                done.set_exception(error)
                done.exception()  # not everybody waits for it

        self.replica.when_committed(end_offset, publish)
        return done

    async def snapshot(self) -> None:
        """Write down what the log adds up to, and let go of what was before.

        Raises:
            StorageError: The machine failed.
        """
        # A segment that is not whole, before one that is, would be damage to the next start.
        await self.replica.committed()
        await self.write([])
        records = self._publisher.image.to_records()
        covered = SnapshotId(end_offset=self._publisher.end_offset, leader_epoch=self.replica.leader_epoch)
        now_ms = self._clock.wall_ms()
        partition_log = self.replica.log
        partition_log.roll(now_ms=now_ms)
        # With this record the new segment and all that the snapshot covers are safe, before the old segments go.
        await self.write([NoOpRecord()])
        data = await self._threads.run(partial(encode_snapshot, records, timestamp=now_ms))
        await self._threads.run(partial(self._snapshots.write, covered, data))
        partition_log.delete_records(covered.end_offset)
        removal = await answer(self._threads, lambda reads: partition_log.start_retention(now_ms=now_ms, reads=reads))
        if removal is not None:
            await self._threads.run(removal.run)
        log.info("metadata_snapshot_written", end_offset=covered.end_offset, records=len(records), bytes=len(data))


def build_records(records: Sequence[Message], *, now_ms: int) -> bytearray:
    """Metadata records as one batch."""
    return build_batch([RecordToWrite(key=None, value=encode_record(record), timestamp=now_ms) for record in records])


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
