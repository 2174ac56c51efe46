"""Drives one coordinator shard: appends what it decides, replays it, and sends the answers once that is durable."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from hailbus_broker.log import BatchSetTooLargeError, BatchTooLargeError, LogError, Origin, StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, RecordsError, RecordToWrite, build_batch
from hailbus_broker.runtime.replay import replay_coordinator
from hailbus_broker.runtime.replica import NotEnoughReplicasError, NotLeaderError, TopicDeletedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hailbus_broker.coordinators.outcome import Outcome, Token
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica import LeaderReplica
    from hailbus_broker.runtime.threads import Threads

log: Any = get_logger()

RECORD_OVERHEAD_BYTES: Final = 32
"""More than a record takes in a batch beside its key and value: five varints, and the count of its headers."""

BATCH_OVERHEAD_BYTES: Final = 61

REPLIES_AT_ONCE: Final = 50
"""The end of a rebalance answers all members. Each answer is a call of the system, 50 µs."""

LOGGED_AT_ONCE: Final = 50
"""The removal of all members of a group logs a line for each. A line takes 20 to 40 µs."""


class DriverState(Enum):
    """What a driver does with requests."""

    LOADING = "loading"
    ACTIVE = "active"
    DAMAGED = "damaged"
    CLOSED = "closed"


_REFUSALS: Final = {
    DriverState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    DriverState.ACTIVE: ErrorCode.NONE,
    DriverState.DAMAGED: ErrorCode.NOT_COORDINATOR,
    DriverState.CLOSED: ErrorCode.NOT_COORDINATOR,
}


class Shard(Protocol):
    """What the shards of all coordinators have in common."""

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        ...

    def replay(self, key: bytes, value: bytes | None, *, now_ms: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record."""
        ...

    def replay_message(
        self, key: Message, value: Message | None, *, now_ms: int, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Apply a record that was decoded before."""
        ...

    def waiting(self) -> Iterable[Token[Any]]:
        """Return the tokens of all requests that wait for an answer."""
        ...


ShardT = TypeVar("ShardT", bound=Shard)


class ShardDriver(Generic[ShardT]):
    """One shard, its partition, and its timer, for as long as this node leads the partition.

    A driver that is closed stays closed: when the node leads the partition again, another driver loads it. So nothing
    that was decided under an earlier leadership can take effect or be acknowledged under a later one.

    Args:
        partition: Where the shard's records are.
        shard: What decides.
        clock: Where time comes from.

    Attributes:
        leader_epoch: Of the leadership that this driver works under.
        state: What happens to requests now.
        end_offset: Where the records of the shard's state end.
    """

    def __init__(self, partition: LeaderReplica, shard: ShardT, *, clock: Clock) -> None:
        self.partition: Final = partition
        self.shard: Final = shard
        self.clock: Final = clock
        self.leader_epoch = partition.leader_epoch
        self.state = DriverState.LOADING
        self.end_offset = partition.log.log_end_offset
        self._loop: Final = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None

    @property
    def refusal(self) -> ErrorCode:
        """The code for requests that cannot be decided now; NONE when they can."""
        return _REFUSALS[self.state]

    # ------------------------------------------------------------------ load and unload

    async def load(self, threads: Threads) -> None:
        """Replay the partition, and serve requests from then on unless it is damaged."""
        is_intact = await replay_coordinator(
            self.partition, self, threads=threads, clock=self.clock, is_wanted=self._is_loading
        )
        if self.state is not DriverState.LOADING:
            return
        if not is_intact:
            self.state = DriverState.DAMAGED
            return
        self.end_offset = self.partition.log.log_end_offset
        if self.partition.log.high_watermark < self.end_offset:
            self.partition.flush()  # appended under an earlier leadership, and perhaps not durable yet
        self.state = DriverState.ACTIVE
        self.activated()
        self.arm_timer()

    def _is_loading(self) -> bool:
        return self.state is DriverState.LOADING

    def activated(self) -> None:
        """Do what has waited for the end of the load."""

    def renew(self, leader_epoch: int) -> None:
        """Continue under a new epoch of the same leadership: the partition's records are still this node's."""
        self.leader_epoch = leader_epoch

    def unload(self) -> None:
        """Stop for good, since another node leads the partition now: what waits is answered NOT_COORDINATOR."""
        self.close()
        for token in list(self.shard.waiting()):
            self._respond_error(token, ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Stop for good, since the node stops."""
        self.state = DriverState.CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def replay_record(self, record: Record, batch: BatchView) -> None:
        """See `Replayed`."""
        raise NotImplementedError

    def replay_marker(self, batch: BatchView) -> None:
        """See `Replayed`."""
        raise NotImplementedError

    # ------------------------------------------------------------------ decisions

    def now_ms(self) -> int:
        """Return the time that the shard goes by."""
        raise NotImplementedError

    def tick(self) -> Iterator[Outcome]:
        """Decide about everything that is due: one outcome each, to be run before the next one is asked for."""
        raise NotImplementedError

    def run(self, outcome: Outcome) -> ErrorCode:
        """Write the records of an outcome and send its replies when they are durable; refuse both if that fails.

        Returns:
            NONE; or the code of the refusal, for a caller that answers by itself.
        """
        if self.state is not DriverState.ACTIVE:
            if outcome.request is not None:
                self._respond_error(outcome.request, self.refusal)
            return self.refusal
        try:
            code = self._write(outcome)
            if code:
                self._refuse(outcome, code)
                return code
            if self._has_to_wait(outcome):
                if self.partition.log.high_watermark >= self.end_offset:
                    self._send(outcome, None)
                else:
                    outcome.replies_parked()
                    self.partition.when_committed(self.end_offset, lambda error: self._release(outcome, error))
            self._log(outcome.log_events, 0)
            return ErrorCode.NONE
        finally:
            self.arm_timer()

    @staticmethod
    def _has_to_wait(outcome: Outcome) -> bool:
        """Whether something follows when the records are safe."""
        return bool(outcome.replies)

    def _write(self, outcome: Outcome) -> ErrorCode:
        """Append an outcome's records, install it and replay them; return the error code if nothing was written."""
        if not outcome.records and outcome.prepared is None:
            outcome.install()
            return ErrorCode.NONE
        try:
            encoded = [(record.encode_key(), record.encode_value()) for record in outcome.records]
        except Exception:
            # A bug: it must fail this request only.
            log.exception("coordinator_record_not_encoded", partition=self.partition.name)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            self._append(outcome, encoded)
        except StorageError as error:
            log.error("coordinator_append_failed", partition=self.partition.name, error=str(error))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except NotEnoughReplicasError as error:
            log.warning("coordinator_append_refused", partition=self.partition.name, error=str(error))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # as Apache Kafka says: clients try again
        except (LogError, RecordsError) as error:
            log.warning("coordinator_append_refused", partition=self.partition.name, error=str(error))
            # Apache Kafka's code: clients do not retry it.
            is_too_large = isinstance(error, (BatchTooLargeError, BatchSetTooLargeError))
            return ErrorCode.UNKNOWN_SERVER_ERROR if is_too_large else ErrorCode[error.error_name]
        return ErrorCode.NONE

    def _append(self, outcome: Outcome, encoded: list[tuple[bytes, bytes | None]]) -> None:
        wall_ms, now_ms = self.clock.wall_ms(), self.now_ms()
        producer_id, producer_epoch = outcome.producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        config = self.partition.log.config
        limit = min(config.max_message_bytes, config.segment_bytes)
        if outcome.prepared is not None:
            assert not encoded, f"{len(encoded)} records beside those that were prepared"
            batches = [outcome.prepared.batch]
        else:
            parts = [encoded] if outcome.is_atomic else _in_batches(encoded, limit)
            batches = [
                build_batch(
                    [RecordToWrite(key=key, value=value, timestamp=wall_ms) for key, value in part],
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    is_transactional=outcome.producer is not None,
                )
                for part in parts
            ]
        largest = max(map(len, batches))
        if largest > limit:  # checked before the first of them is written
            raise BatchTooLargeError(f"a batch of {largest} bytes is larger than the partition takes, {limit}")
        for batch in batches:
            result = self.partition.append(batch, now_ms=wall_ms, origin=Origin.COORDINATOR)
            self.end_offset = result.last_offset + 1
        outcome.install()
        for key, value in encoded:
            self.shard.replay(key, value, now_ms=now_ms, producer_id=producer_id)
        if outcome.prepared is not None:
            outcome.prepared.apply(producer_id)

    def _release(self, outcome: Outcome, error: Exception | None) -> None:
        self._send(outcome, error)
        outcome.replies_released(self.now_ms())
        self.arm_timer()

    def _send(self, outcome: Outcome, error: Exception | None) -> None:
        if error is not None or self.state is not DriverState.ACTIVE:
            has_lost = self.state is DriverState.CLOSED or isinstance(error, (NotLeaderError, TopicDeletedError))
            code = ErrorCode.NOT_COORDINATOR if has_lost else ErrorCode.COORDINATOR_NOT_AVAILABLE
            for token, _ in outcome.replies:
                self._respond_error(token, code)
            return
        self._reply(outcome.replies, 0)

    def _reply(self, replies: list[tuple[Token[Any], Message]], start: int) -> None:
        """Send the replies of an outcome from `start` on, some of them in each turn of the loop."""
        end = start + REPLIES_AT_ONCE
        for token, response in replies[start:end]:
            try:
                token.respond(response)
            except Exception:  # one failed reply must not hold back the others
                log.exception("coordinator_answer_failed", partition=self.partition.name)
                self._respond_error(token, ErrorCode.UNKNOWN_SERVER_ERROR)
        if end < len(replies):
            self._loop.call_soon(self._reply, replies, end)

    def _log(self, events: list[tuple[str, dict[str, Any]]], start: int) -> None:
        """Log what was decided from `start` on, some of it in each turn of the loop."""
        end = start + LOGGED_AT_ONCE
        for name, data in events[start:end]:
            log.info(name, **data)
        if end < len(events):
            self._loop.call_soon(self._log, events, end)

    def _refuse(self, outcome: Outcome, code: ErrorCode) -> None:
        """Answer the request whose decision could not be recorded; all others wait on, as before the decision."""
        if outcome.request is not None:
            self._respond_error(outcome.request, code)
        if outcome.on_refused is not None:
            follow_up = outcome.on_refused(code)
            if follow_up is not None:
                self.run(follow_up)

    def _respond_error(self, token: Token[Any], code: ErrorCode) -> None:
        try:
            token.respond_error(code)
        except Exception:
            log.exception("coordinator_answer_failed", partition=self.partition.name)

    async def committed(self) -> None:
        """Wait until everything that was written so far is durable.

        Raises:
            Exception: What the disk said.
        """
        await self.partition.committed()

    # ------------------------------------------------------------------ time

    def arm_timer(self) -> None:
        """Set the timer to the shard's next deadline."""
        if self.state is not DriverState.ACTIVE:
            return
        due = self.shard.next_deadline_ms()
        if due == self._timer_ms and self._timer is not None:
            return
        if self._timer is not None:
            if due is not None and self._timer_ms is not None and due >= self._timer_ms:
                return  # it fires too early and is set again then
            self._timer.cancel()
            self._timer = None
        self._timer_ms = due
        if due is not None:
            delay_s = max(0, due - self.now_ms()) / 1000
            self._timer = self._loop.call_later(delay_s, self.run_due)

    def run_due(self) -> None:
        """Run everything that is due, one outcome at a time, so that one failure does not stop the others."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_ms = None
        try:
            while not self._is_everything_done():
                pass
        finally:
            self.arm_timer()

    def _is_everything_done(self) -> bool:
        try:
            for outcome in self.tick():
                self.run(outcome)
        except Exception:
            # The shard has removed the timer that failed, so the loop continues with the next one.
            log.exception("coordinator_timer_failed", partition=self.partition.name)
            return False
        return True


def _in_batches(encoded: list[tuple[bytes, bytes | None]], max_bytes: int) -> list[list[tuple[bytes, bytes | None]]]:
    """Records cut into parts that each fit into a batch, but for one that does not fit by itself."""
    parts: list[list[tuple[bytes, bytes | None]]] = []
    size = 0
    for key, value in encoded:
        record_bytes = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if not parts or size + record_bytes > max_bytes:
            parts.append([])
            size = BATCH_OVERHEAD_BYTES
        parts[-1].append((key, value))
        size += record_bytes
    return parts
