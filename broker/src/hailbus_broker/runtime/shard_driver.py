"""Drives one coordinator shard: appends what it decides, replays it, and sends the answers when that is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.log import LogError, Origin
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, RecordsError, RecordToWrite, build_batch

if TYPE_CHECKING:
    import asyncio

    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.runtime.partition import Partition

log: Any = get_logger()

BATCH_RECORDS: Final = 5_000
"""Records of one outcome that go into one batch: a bound for its size."""


class Shard(Protocol):
    """What the shards of all coordinators have in common."""

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        ...

    def tick(self, now_ms: int) -> Outcome:
        """Do what is due."""
        ...

    def replay(self, key: bytes, value: bytes | None, *, now_ms: int) -> None:
        """Take in a record."""
        ...


class ShardDriver:
    """One shard, its partition, and its timer.

    Args:
        node: That hosts them.
        partition: Where the shard's records are.
        shard: What decides.
    """

    def __init__(self, node: Node, partition: Partition, shard: Any) -> None:  # a Shard; subclasses know which
        self.node = node
        self.partition = partition
        self.shard = shard
        self.end_offset = partition.log.log_end_offset
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None

    def now_ms(self) -> int:
        """The time that the shard goes by."""
        raise NotImplementedError

    def run(self, outcome: Outcome) -> None:
        """Carry out what the shard decided."""
        if outcome.records:
            try:
                self._append(outcome)
            except (LogError, RecordsError) as error:
                log.error("coordinator_append_failed", partition=self.partition.name, error=str(error))
                self._refuse(outcome)
                return
        if self._has_to_wait(outcome):
            if self.partition.log.high_watermark >= self.end_offset:
                self._send(outcome, None)
            else:
                self.partition.when_committed(self.end_offset, lambda error: self._send(outcome, error))
        for name, data in outcome.facts:
            log.info(name, **data)
        self.arm()

    @staticmethod
    def _has_to_wait(outcome: Outcome) -> bool:
        """Whether something follows when the records are safe."""
        return bool(outcome.replies)

    def _append(self, outcome: Outcome) -> None:
        wall_ms, now_ms = self.node.clock.wall_ms(), self.now_ms()
        producer_id, producer_epoch = outcome.producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        # Only the offsets of a transaction know whose it is.
        keywords = {"producer_id": producer_id} if outcome.producer else {}
        encoded = [(record.encode_key(), record.encode_value()) for record in outcome.records]
        for start in range(0, len(encoded), BATCH_RECORDS):
            part = encoded[start : start + BATCH_RECORDS]
            batch = build_batch(
                [RecordToWrite(key=key, value=value, timestamp=wall_ms) for key, value in part],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                is_transactional=outcome.producer is not None,
            )
            result = self.partition.append(batch, now_ms=wall_ms, origin=Origin.COORDINATOR)
            self.end_offset = result.last_offset + 1
            for key, value in part:
                self.shard.replay(key, value, now_ms=now_ms, **keywords)

    def _send(self, outcome: Outcome, error: Exception | None) -> None:
        if error is not None:
            self._refuse(outcome)
            return
        for token, response in outcome.replies:
            token.respond(response)  # type: ignore[attr-defined]  # the coordinator does not look into tokens

    @staticmethod
    def _refuse(outcome: Outcome) -> None:
        for token, _ in outcome.replies:
            token.respond_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # type: ignore[attr-defined]  # as above

    async def safe(self) -> None:
        """Wait until everything that was written so far is safe.

        Raises:
            Exception: What the disk said.
        """
        await self.partition.committed()

    def arm(self) -> None:
        """Set the timer to the shard's next deadline."""
        due = self.shard.next_deadline_ms()
        if due == self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            if due is not None and self._timer_ms is not None and due >= self._timer_ms:
                return  # it rings too early and is set again then
            self._timer.cancel()
            self._timer = None
        self._timer_ms = due
        if due is not None:
            delay_s = max(0, due - self.now_ms()) / 1000
            self._timer = self.node.loop.call_later(delay_s, self.ring)

    def ring(self) -> None:
        """Let the shard do what is due."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_ms = None
        self.run(self.shard.tick(self.now_ms()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
