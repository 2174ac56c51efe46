"""Compaction against a table that is kept beside the log: readers always see that table, wherever a crash comes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from operator import itemgetter

from hailbus_broker.log import ActiveProducer, CleanupPolicy, Isolation, LogConfig, Origin, PartitionLog, TailCache
from hailbus_broker.records import (
    BatchView,
    Compression,
    ControlType,
    RecordToWrite,
    build_batch,
    build_control_batch,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation import SimulatedCrashError
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import given, settings
from hypothesis import strategies as st

DIRECTORY = "data/accounts-0"
CONFIG = LogConfig(
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
    segment_bytes=500,
    index_interval_bytes=100,
    delete_retention_ms=1000,
)
NONE = Compression.NONE
KEYS = [b"a", b"bb", b"a key that is longer than sixteen bytes", b"another key longer than sixteen bytes"]


@dataclass(frozen=True)
class Write:
    """A batch of a producer: keys by number, None for a tombstone."""

    producer: int
    records: tuple[tuple[int, bytes | None], ...]
    is_transactional: bool
    codec: Compression


@dataclass(frozen=True)
class End:
    producer: int
    is_abort: bool


@dataclass(frozen=True)
class Compact:
    now_ms: int
    max_keys: int


@dataclass(frozen=True)
class Round:
    """Batches of some producers, the ends of their transactions, and then one round of compaction of all of it.

    The next round begins where this one ended, unless `from_start`: then the checkpoint of the last one is lost.
    """

    steps: tuple[Write | End, ...]
    pause_ms: int
    max_keys: int
    from_start: bool


writes = st.builds(
    Write,
    st.integers(0, 2),
    st.lists(
        st.tuples(st.integers(0, len(KEYS) - 1), st.one_of(st.none(), st.binary(min_size=1, max_size=30))),
        min_size=1,
        max_size=4,
    ).map(tuple),
    st.booleans(),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.ZSTD]),
)
steps = st.lists(
    st.one_of(
        writes,
        writes,
        writes,
        st.builds(End, st.integers(0, 2), st.booleans()),
        st.builds(Compact, st.integers(0, 5000), st.sampled_from([2, 3, 1000])),
    ),
    max_size=40,
)


def as_transaction(producer: int, records: list[tuple[int, bytes | None]], ends_with: str) -> list[Write | End]:
    """A transaction with one batch per record; `ends_with` "nothing" leaves it open."""
    sent: list[Write | End] = [Write(producer, (record,), is_transactional=True, codec=NONE) for record in records]
    return sent if ends_with == "nothing" else [*sent, End(producer, is_abort=ends_with == "abort")]


few_records = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, b"1", b"2"])), min_size=1, max_size=2)
rounds = st.lists(
    st.builds(
        Round,
        st.lists(
            st.one_of(
                st.builds(
                    as_transaction,
                    st.integers(0, 1),
                    few_records,
                    st.sampled_from(["commit", "commit", "abort", "abort", "nothing"]),
                ),
                st.builds(
                    lambda record: [Write(2, (record,), is_transactional=False, codec=NONE)],
                    few_records.map(itemgetter(-1)),
                ),
                st.builds(lambda producer: [End(producer, is_abort=False)], st.integers(0, 1)),
            ),
            min_size=1,
            max_size=3,
        ).map(lambda parts: tuple(step for part in parts for step in part)),
        st.sampled_from([0, CONFIG.delete_retention_ms - 1, CONFIG.delete_retention_ms]),
        st.sampled_from([1, 2, 1000, 1000]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=2,
    max_size=5,
)


class Run:
    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.pending: dict[int, list[int]] = {}
        self.aborted: set[int] = set()
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        self.cleaned = 0
        self.now_ms = 0
        self.log = self.reopen(clean=False)

    def reopen(self, *, clean: bool) -> PartitionLog:
        self.log = PartitionLog.open(
            self.disk, DIRECTORY, CONFIG, now_ms=0, clean=clean, tail_cache=TailCache(0), recovery_point=0
        )
        self.log.advance_high_watermark(self.log.sync())
        return self.log

    def write(self, step: Write) -> None:
        is_transactional = step.is_transactional or step.producer in self.open
        sequence = self.sequences.get(step.producer, 0)
        data = build_batch(
            [RecordToWrite(key=KEYS[key], value=value, timestamp=5) for key, value in step.records],
            compression=step.codec,
            producer_id=step.producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        base = self.log.append(data, now_ms=0).base_offset
        for delta, (key, value) in enumerate(step.records):
            self.written[base + delta] = (KEYS[key], value)
        self.sequences[step.producer] = sequence + len(step.records)
        if is_transactional:
            self.open.add(step.producer)
            self.pending.setdefault(step.producer, []).extend(range(base, base + len(step.records)))

    def end(self, producer: int, *, is_abort: bool) -> None:
        data = build_control_batch(
            ControlType.ABORT if is_abort else ControlType.COMMIT,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
        )
        self.log.append(data, now_ms=0, origin=Origin.COORDINATOR)
        self.open.discard(producer)
        ended = self.pending.pop(producer, [])
        if is_abort:
            self.aborted.update(ended)

    def compact(self, step: Compact) -> None:
        self.now_ms = max(self.now_ms, step.now_ms)
        task = self.log.start_compaction(
            now_ms=self.now_ms, first_dirty_offset=self.cleaned, max_keys=step.max_keys, is_forced=True
        )
        if task is None:
            return
        for _ in task.steps():
            pass
        assert self.log.finish_compaction(task)
        assert task.end_offset >= task.first_dirty_offset
        self.cleaned = task.end_offset

    def run_round(self, step: Round) -> None:
        for change in step.steps:
            self.apply(change)
        self.log.roll(now_ms=0)
        self.log.advance_high_watermark(self.log.sync())
        if step.from_start:
            self.cleaned = 0
        self.compact(Compact(self.now_ms + step.pause_ms, step.max_keys))

    def apply(self, step: Write | End | Compact | Round) -> None:
        match step:
            case Round():
                self.run_round(step)
            case Write():
                self.write(step)
            case End(producer, is_abort):
                self.end(producer, is_abort=is_abort)
            case Compact():
                self.compact(step)
        self.log.advance_high_watermark(self.log.sync())

    def expected_table(self) -> dict[bytes, bytes]:
        """What the steps add up to: what is committed below the first record of the oldest open transaction."""
        stable = min((offsets[0] for offsets in self.pending.values()), default=self.log.log_end_offset)
        table: dict[bytes, bytes] = {}
        for offset, (key, value) in sorted(self.written.items()):
            if offset >= stable:
                break
            if offset in self.aborted:
                continue
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        return table

    def table(self) -> dict[bytes, bytes]:
        """What a reader of committed records has in the end; checks each record on the way."""
        table: dict[bytes, bytes] = {}
        offset = self.log.log_start_offset
        previous = -1
        while True:
            result = self.log.read(offset, 1000, isolation=Isolation.READ_COMMITTED)
            if not result.length:
                return table
            assert result.aborted_transactions is not None
            for view in iterate_batches(result.to_bytes(), whole=False):
                view.check_crc()
                header = view.header
                is_aborted = header.is_transactional and any(
                    entry.producer_id == header.producer_id
                    and entry.first_offset <= header.base_offset <= entry.last_offset
                    for entry in result.aborted_transactions
                )
                for record in iterate_records(view):
                    assert record.offset > previous
                    previous = record.offset
                    if header.is_control or is_aborted:
                        continue
                    assert (record.key, record.value) == self.written[record.offset]
                    assert record.key is not None
                    if record.value is None:
                        table.pop(record.key, None)
                    else:
                        table[record.key] = record.value
                offset = header.next_offset


@settings(max_examples=250, deadline=None)
@given(script=steps)
def test_compaction_changes_no_table(script: list[Write | End | Compact]) -> None:
    run = Run(SimulatedDisk(random.Random(0)))
    for step in script:
        run.apply(step)
        assert run.table() == run.expected_table()
    check_and_finish(run)


@settings(max_examples=400, deadline=None)
@given(script=rounds)
def test_rounds_that_continue_one_another_change_no_table(script: list[Round]) -> None:
    run = Run(SimulatedDisk(random.Random(0)))
    for step in script:
        run.apply(step)
        assert run.table() == run.expected_table()
    check_and_finish(run)


def check_and_finish(run: Run) -> None:
    """Open the log again, then compact it until only the newest value of each key is left."""
    table, end = run.expected_table(), run.log.log_end_offset
    producers = run.log.producers()
    run.reopen(clean=False)
    assert run.log.log_end_offset == end
    assert run.table() == table
    assert what_must_last(run.log.producers()) == what_must_last(producers)
    # compacting everything twice, past all horizons, leaves at most one record per key below the active segment
    for producer in sorted(run.open):
        run.apply(End(producer, is_abort=True))
    table = run.expected_table()
    run.log.roll(now_ms=0)
    run.log.advance_high_watermark(run.log.sync())
    for _ in range(3):
        run.compact(Compact(run.now_ms + 5000, 1000))
        run.cleaned = 0
    assert run.table() == table
    kept = [
        record.key for view in all_batches(run.log) if not view.header.is_control for record in iterate_records(view)
    ]
    assert sorted(filter(None, kept)) == sorted(table)
    assert run.log.log_end_offset >= end


def what_must_last(entries: list[ActiveProducer]) -> list[ActiveProducer]:
    """Without what only a marker said that compaction has removed: as in Apache Kafka that is then forgotten."""
    return [entry._replace(last_timestamp=0, coordinator_epoch=0) for entry in entries if entry.last_sequence >= 0]


def all_batches(log: PartitionLog) -> list[BatchView]:
    found: list[BatchView] = []
    offset = log.log_start_offset
    while True:
        result = log.read(offset, 1 << 20, isolation=Isolation.LOG_END)
        if not result.length:
            return found
        found += iterate_batches(result.to_bytes())
        offset = found[-1].header.next_offset


@settings(max_examples=150, deadline=None)
@given(
    script=st.lists(st.one_of(writes, writes, st.builds(End, st.integers(0, 2), st.booleans())), max_size=25),
    crash_after=st.integers(0, 40),
    seed=st.integers(0, 1000),
    power=st.booleans(),
    max_keys=st.sampled_from([2, 1000]),
)
def test_a_crash_within_compaction_loses_nothing(
    script: list[Write | End], crash_after: int, seed: int, power: bool, max_keys: int
) -> None:
    disk = SimulatedDisk(random.Random(seed))
    run = Run(disk)
    for step in script:
        run.apply(step)
    run.log.roll(now_ms=0)
    run.log.advance_high_watermark(run.log.sync())
    table, end, open_transactions = run.table(), run.log.log_end_offset, set(run.open)
    disk.crash_at_step = disk.step_count + crash_after
    try:
        run.compact(Compact(100, max_keys))
        run.compact(Compact(5000, max_keys))
    except SimulatedCrashError:
        if power:
            disk.cut_power()
        else:
            disk.kill_process()
    disk.crash_at_step = None
    run.reopen(clean=False)
    assert run.log.log_end_offset == end
    assert {
        entry.producer_id for entry in run.log.producers() if entry.current_transaction_start_offset >= 0
    } == open_transactions
    assert run.table() == table
    run.cleaned = 0
    run.compact(Compact(10_000, 1000))
    assert run.table() == table
    names = disk.list(DIRECTORY)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_tombstones_and_markers_stay_for_their_time() -> None:
    run = Run(SimulatedDisk(random.Random(0)))
    run.log.config = replace(CONFIG, segment_bytes=10_000)
    run.apply(Write(0, ((0, b"1"), (1, b"2")), is_transactional=False, codec=Compression.NONE))
    run.apply(Write(0, ((0, None),), is_transactional=False, codec=Compression.NONE))
    run.apply(Write(1, ((1, b"9"),), is_transactional=True, codec=Compression.NONE))
    run.apply(End(1, is_abort=True))
    run.log.roll(now_ms=0)
    run.log.advance_high_watermark(run.log.sync())

    def round_at(now_ms: int) -> list[tuple[int, list[bytes | None]]]:
        run.cleaned = 0
        run.compact(Compact(now_ms, 1000))
        return [
            (view.header.base_offset, [record.value for record in iterate_records(view)])
            for view in all_batches(run.log)
            if not view.header.is_control
        ]

    def markers() -> int:
        return sum(bool(view.header.is_control and view.header.record_count) for view in all_batches(run.log))

    # the first round gives the tombstone 1000 ms; the aborted data goes at once, its producer's header stays
    assert round_at(0) == [(0, [b"2"]), (2, [None]), (3, [])]
    assert markers() == 1
    assert round_at(999) == [(0, [b"2"]), (2, [None]), (3, [])]
    assert round_at(1000) == [(0, [b"2"]), (2, []), (3, [])]
    assert run.table() == {b"bb": b"2"}


def test_a_key_deleted_after_an_aborted_transaction_stays_deleted() -> None:
    run = Run(SimulatedDisk(random.Random(0)))
    retention = CONFIG.delete_retention_ms
    abort = tuple(as_transaction(0, [(0, b"1")], "abort"))
    run.apply(Round(abort, pause_ms=0, max_keys=1000, from_start=False))
    commits = (*as_transaction(0, [(0, b"2")], "commit"), *as_transaction(0, [(0, None)], "commit"))
    run.apply(Round(commits, pause_ms=0, max_keys=1000, from_start=False))
    for _ in range(2):  # the first of these rounds removes the tombstone
        more = (Write(2, ((1, b"3"),), is_transactional=False, codec=NONE),)
        run.apply(Round(more, pause_ms=retention, max_keys=1000, from_start=False))
        assert run.table() == {KEYS[1]: b"3"}
