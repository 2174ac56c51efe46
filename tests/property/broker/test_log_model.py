"""The log against a plain list, on a disk that crashes at any write, forgets what was not synced and tears the rest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hailbus_broker.log import Isolation, LogConfig, Origin, PartitionLog, TailCache
from hailbus_broker.records import (
    ControlType,
    Record,
    RecordToWrite,
    build_batch,
    build_control_batch,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation import SimulatedCrashError
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = "data/rides-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, retention_bytes=1500, retention_ms=-1)


@dataclass(frozen=True)
class Append:
    values: tuple[bytes, ...]
    timestamp: int


@dataclass(frozen=True)
class AppendFrom:
    producer: int
    is_transactional: bool
    repeats: bool


@dataclass(frozen=True)
class EndTransaction:
    producer: int
    control_type: ControlType


@dataclass(frozen=True)
class Simple:
    name: str


Operation: TypeAlias = Append | AppendFrom | EndTransaction | Simple

operations = st.lists(
    st.one_of(
        st.builds(Append, st.lists(st.binary(max_size=60), min_size=1, max_size=4).map(tuple), st.integers(0, 1000)),
        st.builds(AppendFrom, st.integers(0, 2), st.booleans(), st.booleans()),
        st.builds(EndTransaction, st.integers(0, 2), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
        st.builds(Simple, st.sampled_from(["sync", "sync", "roll", "retain", "delete", "stop", "checkpoint"])),
    ),
    max_size=30,
)


@dataclass
class Model:
    """What the log should hold; a list of batches, each a list of records without their offsets' meaning."""

    records: list[Record | None] = field(default_factory=list)  # None is a marker; the index is the offset
    batch_ends: list[int] = field(default_factory=lambda: [0])
    synced: int = 0
    recovery_point: int = 0
    start: int = 0
    allowed_starts: set[int] = field(default_factory=lambda: {0})
    checkpointed_start: int = 0
    sequences: dict[int, int] = field(default_factory=dict)  # next sequence of a producer
    sequence_history: list[tuple[int, dict[int, int]]] = field(default_factory=lambda: [(0, {})])
    open_since: dict[int, int] = field(default_factory=dict)
    open_history: list[tuple[int, dict[int, int]]] = field(default_factory=lambda: [(0, {})])
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first offset, marker

    def note(self) -> None:
        end = len(self.records)
        self.batch_ends.append(end)
        self.sequence_history.append((end, dict(self.sequences)))
        self.open_history.append((end, dict(self.open_since)))

    def cut_to(self, end: int) -> None:
        assert end in self.batch_ends
        del self.records[end:]
        self.batch_ends = [known for known in self.batch_ends if known <= end]
        self.sequence_history = [known for known in self.sequence_history if known[0] <= end]
        self.sequences = dict(self.sequence_history[-1][1])
        self.open_history = [known for known in self.open_history if known[0] <= end]
        self.open_since = dict(self.open_history[-1][1])
        self.aborted = [known for known in self.aborted if known[2] < end]


class Run:
    """A log and the model beside it."""

    def __init__(self, disk: SimulatedDisk, cache_bytes: int) -> None:
        self.disk = disk
        self.cache_bytes = cache_bytes
        self.model = Model()
        self.log: PartitionLog | None = None
        self.clean = False

    def open(self, torn_from: int | None = None) -> PartitionLog:
        self.log = PartitionLog.open(
            self.disk,
            DIRECTORY,
            CONFIG,
            now_ms=0,
            clean=self.clean,
            recovery_point=self.model.recovery_point,
            log_start_offset=self.model.checkpointed_start,
            tail_cache=TailCache(self.cache_bytes),
            torn_from=torn_from,
        )
        return self.log

    def apply(self, operation: Operation) -> None:
        log, model = self.log, self.model
        assert log is not None
        match operation:
            case Append(values, timestamp):
                records = [RecordToWrite(key=b"k", value=value, timestamp=timestamp) for value in values]
                base = len(model.records)
                self.write(
                    [
                        Record(offset=base + delta, timestamp=timestamp, key=b"k", value=value)
                        for delta, value in enumerate(values)
                    ]
                )
                result = log.append(build_batch(records), now_ms=0)
                assert (result.base_offset, result.last_offset) == (base, base + len(values) - 1)
            case AppendFrom(producer, is_transactional, repeats):
                self.append_from(producer, is_transactional=is_transactional, repeats=repeats)
            case EndTransaction(producer, control_type):
                base = len(model.records)
                if control_type is ControlType.ABORT and producer in model.open_since:
                    model.aborted.append((producer, model.open_since[producer], base))
                model.open_since.pop(producer, None)
                self.write([None])
                data = build_control_batch(
                    control_type, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
                )
                assert log.append(data, now_ms=0, origin=Origin.COORDINATOR).base_offset == base
            case Simple("sync"):
                model.synced = log.sync()
                assert model.synced == len(model.records)
                log.advance_high_watermark(model.synced)
            case Simple("checkpoint"):
                model.recovery_point = log.synced_end_offset
                model.checkpointed_start = log.log_start_offset
            case Simple("roll"):
                log.roll(now_ms=0)
            case Simple("delete"):
                # the log start lasts when it is checkpointed; retention may act on it before
                offset = (log.high_watermark + log.log_start_offset) // 2
                model.allowed_starts.add(offset)
                model.checkpointed_start = offset
                model.start = log.delete_records(offset)
            case Simple("retain"):
                log.apply_retention(now_ms=0)
                model.start = log.log_start_offset
            case Simple("stop"):
                log.close(now_ms=0)
                self.clean = True
                model.synced = model.recovery_point = len(model.records)
                model.checkpointed_start = log.log_start_offset
                self.open()
                self.clean = False
                assert log.log_end_offset == len(model.records)
                self.check()
                assert self.log is not None
                self.log.advance_high_watermark(model.synced)
            case _:
                raise AssertionError(operation)

    def append_from(self, producer: int, *, is_transactional: bool, repeats: bool) -> None:
        log, model = self.log, self.model
        assert log is not None
        sequence = model.sequences.get(producer, 0)
        is_transactional = is_transactional or producer in model.open_since
        if repeats and sequence > 0 and not is_transactional:
            again = build_batch(
                [RecordToWrite(key=b"k", value=b"p", timestamp=7)],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence - 1,
            )
            result = log.append(again, now_ms=0)
            assert result.is_duplicate
            return
        base = len(model.records)
        model.sequences[producer] = sequence + 1
        if is_transactional:
            model.open_since.setdefault(producer, base)
        self.write([Record(offset=base, timestamp=7, key=b"k", value=b"p")])
        data = build_batch(
            [RecordToWrite(key=b"k", value=b"p", timestamp=7)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        assert log.append(data, now_ms=0).base_offset == base

    def write(self, records: list[Record | None]) -> None:
        """Noted before it is done: a write that a crash interrupts may have happened."""
        self.model.records += records
        self.model.note()

    def check(self) -> None:
        """The log is the model's records from its start on."""
        log, model = self.log, self.model
        assert log is not None
        assert log.log_end_offset == len(model.records)
        start = log.log_start_offset
        found = dict(records_from(log, start))
        assert sorted(found) == list(range(start, len(model.records)))
        for offset, record in found.items():
            assert record == model.records[offset], offset
        assert {
            producer.producer_id: producer.last_sequence + 1
            for producer in log.producers()
            if producer.last_sequence >= 0
        } == {producer: sequence for producer, sequence in model.sequences.items() if sequence}
        assert {
            producer.producer_id: producer.current_transaction_start_offset
            for producer in log.producers()
            if producer.current_transaction_start_offset >= 0
        } == model.open_since
        expected = sorted((first, last, producer) for producer, first, last in model.aborted if last >= start)
        aborted = log.aborted_transactions(start, log.log_end_offset)
        assert sorted((entry.first_offset, entry.last_offset, entry.producer_id) for entry in aborted) == expected
        # each offset can be read on its own, whatever the indexes look like
        for offset in range(start, len(model.records)):
            assert next(records_from(log, offset))[0] == offset


def records_from(log: PartitionLog, offset: int) -> Iterator[tuple[int, Record | None]]:
    while True:
        result = log.read(offset, 300, isolation=Isolation.LOG_END)
        if not result.length:
            return
        before = offset
        for view in iterate_batches(result.to_bytes(), whole=False):
            view.check_crc()
            for record in iterate_records(view):
                if record.offset >= offset:
                    yield record.offset, None if view.header.is_control else record
            offset = view.header.next_offset
        assert offset > before


def run_until_crash(
    script: list[Operation], crash_at_step: int | None, seed: int, cache_bytes: int, *, power: bool
) -> SimulatedDisk:
    """Run a script up to a crash, recover, compare with the model, and go on."""
    disk = SimulatedDisk(random.Random(seed), crash_at_step=crash_at_step)
    run = Run(disk, cache_bytes)
    model = run.model
    try:
        run.open()
        for operation in script:
            run.apply(operation)
        run.check()
    except SimulatedCrashError:
        acked = model.synced if run.log is None else max(run.log.synced_end_offset, model.synced)
        if power:
            disk.cut_power()
        else:
            disk.kill_process()
        run.clean = False
        log = run.open(torn_from=model.recovery_point if power else None)
        assert acked <= log.log_end_offset <= len(model.records), (acked, log.log_end_offset)
        model.cut_to(log.log_end_offset)
        assert log.log_start_offset <= log.log_end_offset
        assert not log.recovery.damages, "a crash is not taken for damage"
        run.check()
        # and it works on
        log.advance_high_watermark(log.sync())
        model.synced = log.synced_end_offset
        run.apply(Append((b"after",), 5))
        run.apply(AppendFrom(0, is_transactional=False, repeats=False))
        run.apply(Simple("sync"))
        run.apply(Simple("stop"))
        run.check()
    return disk


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=operations,
    crash_at_step=st.one_of(st.none(), st.integers(0, 120)),
    seed=st.integers(0, 2**32),
    cache_bytes=st.sampled_from([0, 300, 10_000]),
    power=st.booleans(),
)
def test_the_log_holds_everything_synced_and_of_the_rest_what_arrived(
    script: list[Operation], crash_at_step: int | None, seed: int, cache_bytes: int, power: bool
) -> None:
    run_until_crash(script, crash_at_step, seed, cache_bytes, power=power)


SCENARIO: list[Operation] = [
    Append((b"a" * 50, b"b" * 50), 1),
    AppendFrom(0, is_transactional=True, repeats=False),
    AppendFrom(1, is_transactional=False, repeats=False),
    Simple("sync"),
    Append((b"c" * 60,) * 4, 5),
    EndTransaction(0, ControlType.ABORT),
    AppendFrom(1, is_transactional=False, repeats=True),
    Simple("checkpoint"),
    Append((b"d" * 60,) * 4, 3),
    Simple("sync"),
    AppendFrom(2, is_transactional=True, repeats=False),
    Append((b"e" * 60,) * 4, 9),
    Simple("delete"),
    Simple("retain"),
    Simple("stop"),
    EndTransaction(2, ControlType.ABORT),
    Append((b"f" * 60,) * 4, 2),
    Simple("roll"),
    Append((b"g" * 60,) * 4, 11),
    Append((b"h" * 60,) * 4, 11),
    Append((b"i" * 60,) * 4, 11),
    Simple("sync"),
    Simple("retain"),
    Append((b"j",), 20),
]


def test_every_crash_point_of_a_scenario() -> None:
    steps = run_until_crash(SCENARIO, None, 0, 1000, power=False).step_count
    assert steps > 60
    for crash_at_step in range(steps):
        for seed in range(4):
            run_until_crash(SCENARIO, crash_at_step, seed, 0, power=seed > 0)
