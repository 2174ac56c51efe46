"""Apache Kafka's own tool reads and verifies the files that our log writes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hailbus_broker.log import CleanupPolicy, LogConfig, Origin, PartitionLog
from hailbus_broker.records import Compression, ControlType, RecordToWrite, build_batch, build_control_batch
from hailbus_broker.runtime.disk import RealDisk
from hailbus_devtools.tools import apache_kafka

from tests.servers import SHORT_LIVED_JVM

pytestmark = [pytest.mark.needs("apache kafka"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    """Apache Kafka's jars are in the cache."""
    subprocess.run([apache_kafka(), "fetch"], check=True, capture_output=True)


def dump(directory: Path, *options: str, is_compacted: bool = False) -> str:
    files = sorted(
        str(path)
        for path in directory.iterdir()
        if path.suffix in {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
        and not (path.suffix == ".txnindex" and "--index-sanity-check" in options)
    )
    done = subprocess.run(
        [str(apache_kafka()), "run", "dump-log", "--files", ",".join(files), *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | SHORT_LIVED_JVM,
    )
    assert done.returncode == 0, done.stderr
    # The tool finds every segment that does not begin at offset 0 "non-consecutive": it starts counting at -1. So it
    # finds a compacted one, where that is what compaction is for.
    gap = r"  \d+ is followed by \d+\n" if is_compacted else r"  -1 is followed by \d+\n"
    complaints = re.sub(rf"Non-consecutive offsets in .*\n(  -1 is followed by \d+\n)?({gap})*", "", done.stderr)
    assert "ismatch" not in done.stdout + complaints
    assert "out of order" not in (done.stdout + complaints).lower()
    assert "Non-consecutive" not in complaints
    assert "Exception" not in done.stdout + complaints
    return done.stdout


def fill(log: PartitionLog, *, batch_count: int) -> list[tuple[int, str]]:
    """Batches of every kind; what was written, by offset."""
    written = []
    sequences = {0: 0, 1: 0}
    for number in range(batch_count):
        producer = number % 4
        codec = list(Compression)[number % 5]
        records = [
            RecordToWrite(
                key=b"k%d" % (number % 7),
                value=b"v%d-%d" % (number, delta),
                timestamp=1000 * number - 1500 * delta,
                headers=(("h", b"x"),),
            )
            for delta in range(5)
        ]
        sequence = sequences.get(producer, -1)
        data = build_batch(
            records,
            compression=codec,
            producer_id=producer if producer in sequences else -1,
            producer_epoch=0 if producer in sequences else -1,
            base_sequence=sequence,
            is_transactional=producer == 1,
        )
        result = log.append(data, now_ms=10**12, leader_epoch=number // 100)
        written += [
            (result.base_offset + delta, record.value.decode()) for delta, record in enumerate(records) if record.value
        ]
        if producer in sequences:
            sequences[producer] += 5
        if number % 24 == 1:
            kind = ControlType.ABORT if number % 48 == 1 else ControlType.COMMIT
            marker = build_control_batch(
                kind, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp=1000 * number
            )
            log.append(marker, now_ms=10**12, leader_epoch=number // 100, origin=Origin.COORDINATOR)
    log.advance_high_watermark(log.sync())
    return written


def test_segments_indexes_and_snapshots(tmp_path: Path) -> None:
    directory = tmp_path / "rides-0"
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
    log = PartitionLog.open(RealDisk(), str(directory), config, now_ms=0, clean=False)
    written = fill(log, batch_count=200)
    log.close(now_ms=0)
    output = dump(directory, "--deep-iteration", "--print-data-log")
    found = [
        (int(offset), value)
        for offset, value in re.findall(r"^\| offset: (\d+) .* payload: (v\S+)", output, re.MULTILINE)
    ]
    assert found == written
    assert output.count("endTxnMarker: ABORT") == 5
    assert output.count("endTxnMarker: COMMIT") == 4
    assert re.search(r"version: 0 producerId: 1 firstOffset: 5 lastOffset: 10 lastStableOffset: 11", output)
    assert re.search(r"producerId: 0 producerEpoch: 0 .*lastSequence: 249|lastSeq(?:uence)?: 249", output)
    assert "passed sanity check" in dump(directory, "--index-sanity-check")


def test_compacted_segments(tmp_path: Path) -> None:
    directory = tmp_path / "accounts-0"
    config = LogConfig(
        segment_bytes=20_000, index_interval_bytes=500, cleanup_policy=frozenset({CleanupPolicy.COMPACT})
    )
    log = PartitionLog.open(RealDisk(), str(directory), config, now_ms=0, clean=False)
    fill(log, batch_count=200)
    end = build_control_batch(ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp=0)
    log.append(end, now_ms=0, origin=Origin.COORDINATOR)  # an open transaction would hold compaction back
    log.advance_high_watermark(log.sync())
    log.roll(now_ms=0)
    task = log.start_compaction(now_ms=0, first_dirty_offset=0)
    assert task is not None
    for _ in task.steps():
        pass
    assert log.finish_compaction(task)
    assert task.removed_record_count > 500
    log.close(now_ms=0)
    output = dump(directory, "--deep-iteration", "--print-data-log", is_compacted=True)
    keys = re.findall(r"^\| offset: \d+ .* key: (k\d)", output, re.MULTILINE)
    assert sorted(keys) == [f"k{number}" for number in range(7)]
    assert "passed sanity check" in dump(directory, "--index-sanity-check", is_compacted=True)
