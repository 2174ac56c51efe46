"""Whatever is appended and truncated: the log equals one that only ever received the batches that are left."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeAlias

from hailbus_broker.log import Isolation, LogConfig, Origin, PartitionLog, PendingSync, TailCache
from hailbus_broker.records import ControlType, RecordToWrite, build_batch, build_control_batch
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DIRECTORY = "data/rides-0"
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, retention_ms=-1)


@dataclass(frozen=True)
class Append:
    count: int
    timestamp: int


@dataclass(frozen=True)
class AppendFrom:
    producer: int
    is_transactional: bool


@dataclass(frozen=True)
class EndTransaction:
    producer: int
    control_type: ControlType


@dataclass(frozen=True)
class Truncate:
    share: float


@dataclass(frozen=True)
class AdvanceHighWatermark:
    share: float


@dataclass(frozen=True)
class Simple:
    name: str


Operation: TypeAlias = Append | AppendFrom | EndTransaction | Truncate | AdvanceHighWatermark | Simple
"""`share` is a place in the log, from its start (0) to its end (1)."""

operations = st.lists(
    st.one_of(
        st.builds(Append, st.integers(1, 4), st.integers(0, 1000)),
        st.builds(AppendFrom, st.integers(0, 2), st.booleans()),
        st.builds(EndTransaction, st.integers(0, 2), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
        st.builds(Truncate, st.floats(0, 1)),
        st.builds(AdvanceHighWatermark, st.floats(0, 1)),
        st.builds(Simple, st.sampled_from(["sync", "start sync", "finish sync", "roll", "epoch", "stop", "kill"])),
    ),
    max_size=40,
)


@dataclass(frozen=True)
class Stored:
    """A batch as it lies in the log."""

    base_offset: int
    end_offset: int
    data: bytes


class Run:
    """A log that is truncated, and the batches that should be left of it."""

    def __init__(self, cache_bytes: int) -> None:
        self.disk = SimulatedDisk(random.Random(0))
        self.cache_bytes = cache_bytes
        self.leader_epoch = 0
        self.left: list[Stored] = []
        self.recovery_point = 0
        self.lowest_end = 0
        self.pending: PendingSync | None = None
        self.is_restarted = False
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> PartitionLog:
        high_watermark = 0 if not hasattr(self, "log") else self.log.high_watermark
        self.pending = None
        self.log = PartitionLog.open(
            self.disk,
            DIRECTORY,
            CONFIG,
            now_ms=0,
            clean=clean,
            recovery_point=self.recovery_point,
            tail_cache=TailCache(self.cache_bytes),
        )
        self.log.advance_high_watermark(high_watermark)
        return self.log

    def place(self, share: float) -> int:
        return round(share * self.log.log_end_offset)

    def write(self, data: bytearray, origin: Origin) -> None:
        result = self.log.append(data, now_ms=0, leader_epoch=self.leader_epoch, origin=origin)
        self.left.append(Stored(result.base_offset, result.last_offset + 1, bytes(data)))

    def apply(self, operation: Operation) -> None:
        log = self.log
        producers = {entry.producer_id: entry for entry in log.producers()}
        match operation:
            case Append(count, timestamp):
                self.write(
                    build_batch([RecordToWrite(key=b"k", value=b"v" * 40, timestamp=timestamp)] * count), Origin.CLIENT
                )
            case AppendFrom(producer, is_transactional):
                known = producers.get(producer)
                is_open = known is not None and known.current_transaction_start_offset >= 0
                data = build_batch(
                    [RecordToWrite(key=b"k", value=b"p", timestamp=7)],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0 if known is None else known.last_sequence + 1,
                    is_transactional=is_transactional or is_open,
                )
                self.write(data, Origin.CLIENT)
            case EndTransaction(producer, control_type):
                data = build_control_batch(
                    control_type, producer_id=producer, producer_epoch=0, coordinator_epoch=3, timestamp=5
                )
                self.write(data, Origin.COORDINATOR)
            case Truncate(share):
                self.truncate(self.place(share))
            case AdvanceHighWatermark(share):
                log.advance_high_watermark(self.place(share))
            case Simple("epoch"):
                self.leader_epoch += 1
            case Simple("sync"):
                if self.pending is None:
                    assert log.sync() == log.log_end_offset
                    self.recovery_point = log.synced_end_offset
            case Simple("start sync"):
                self.pending = self.pending or log.start_sync()
                self.lowest_end = log.log_end_offset
            case Simple("finish sync"):
                if self.pending is not None:
                    self.pending.run()
                    assert log.finish_sync(self.pending) <= self.lowest_end
                    self.pending = None
                    self.recovery_point = log.synced_end_offset
            case Simple("roll"):
                log.roll(now_ms=0)
            case Simple("stop"):
                self.apply(Simple("finish sync"))  # a node waits for it before it closes its logs
                self.is_restarted = True
                log.close(now_ms=0)
                self.recovery_point = log.log_end_offset
                self.open(clean=True)
            case Simple("kill"):
                self.is_restarted = True
                self.disk.kill_process()
                self.open(clean=False)
            case _:
                raise AssertionError(operation)

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.left = [stored for stored in self.left if stored.end_offset <= offset]
        end = self.left[-1].end_offset if self.left else 0
        assert self.log.log_end_offset == end
        assert self.log.high_watermark <= end
        self.lowest_end = min(self.lowest_end, end)
        checkpoint = self.log.prepare_checkpoint()  # what `LogDirectory.truncate` asks for
        assert checkpoint is None or checkpoint.snapshot is None
        for path in () if checkpoint is None else checkpoint.removed_paths:
            self.disk.remove(path)
        self.recovery_point = min(self.recovery_point, self.log.synced_end_offset)

    def check(self) -> None:
        """Compare with a log that was given the batches that are left, and nothing else."""
        log = self.log
        other = PartitionLog.open(
            SimulatedDisk(random.Random(0)), DIRECTORY, CONFIG, now_ms=0, clean=False, tail_cache=TailCache(0)
        )
        for stored in self.left:
            other.append_as_follower(stored.data, now_ms=0)
        assert log.log_end_offset == other.log_end_offset
        assert log.leader_epochs.entries == other.leader_epochs.entries
        assert log.producers() == other.producers()
        end = log.log_end_offset
        for start in range(end + 1):
            assert log.aborted_transactions(start, end) == other.aborted_transactions(start, end)
            assert first_batch_at(log, start) == first_batch_at(other, start)
        assert log.max_timestamp() == other.max_timestamp()
        for timestamp in {0, 5, 7, 8, *range(0, 1001, 50)}:
            assert log.offset_for_timestamp(timestamp) == other.offset_for_timestamp(timestamp), timestamp
        if self.is_restarted:
            return  # as in Apache Kafka, a snapshot does not say which markers the high watermark has passed
        other.advance_high_watermark(log.high_watermark)
        for high_watermark in range(log.high_watermark, end + 1):
            log.advance_high_watermark(high_watermark)
            other.advance_high_watermark(high_watermark)
            assert log.last_stable_offset == other.last_stable_offset, high_watermark


def first_batch_at(log: PartitionLog, offset: int) -> bytes:
    """The batch that holds an offset, as a reader gets it."""
    return log.read(offset, 1, isolation=Isolation.LOG_END).to_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=operations, cache_bytes=st.sampled_from([0, 300, 10_000]))
def test_a_truncated_log_equals_one_that_never_had_the_rest(script: list[Operation], cache_bytes: int) -> None:
    run = Run(cache_bytes)
    for operation in script:
        run.apply(operation)
    run.check()
