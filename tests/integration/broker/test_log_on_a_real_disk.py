"""The log in a process that is killed, and on a disk that is full."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from errno import EFBIG
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.log import Isolation, LogConfig, PartitionLog, StorageError
from hailbus_broker.records import iterate_batches, iterate_records
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.testing.broker import UnsyncedDisk

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys
from hailbus_broker.log import LogConfig, PartitionLog, StorageError
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.disk import RealDisk

config = LogConfig(segment_bytes=200_000, index_interval_bytes=1000)
log = PartitionLog.open(RealDisk(), sys.argv[1], config, now_ms=0, clean=False, recovery_point=int(sys.argv[2]))
sequence = log.producers()[0].last_sequence + 1 if log.producers() else 0
while True:
    for _ in range(7):
        records = [RecordToWrite(key=b"k", value=b"%d" % (log.log_end_offset + n) * 40, timestamp=0) for n in range(3)]
        batch = build_batch(records, producer_id=5, producer_epoch=0, base_sequence=sequence)
        try:
            log.append(batch, now_ms=0)
        except StorageError as error:
            print("failed", error.errno, log.log_end_offset, flush=True)
            sys.exit(3)
        sequence += 3
    print(log.sync(), flush=True)
"""


def check_whole(log: PartitionLog, acked: int) -> None:
    assert acked <= log.log_end_offset
    offset = 0
    while offset < log.log_end_offset:
        for view in iterate_batches(log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes(), whole=False):
            view.check_crc()
            for record in iterate_records(view):
                assert (record.offset, record.value) == (offset, b"%d" % offset * 40)
                offset += 1
    assert [producer.last_sequence for producer in log.producers()] == ([log.log_end_offset - 1] if offset else [])


def test_a_killed_process_loses_nothing_that_it_had_synced(tmp_path: Path) -> None:
    chance = random.Random(5)
    directory = str(tmp_path / "rides-0")
    recovery_point = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, directory, str(recovery_point)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            acked = 0
            for _ in range(chance.randint(1, 60)):
                acked = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split("\n")[:-1]  # what it still could say
            acked = int(rest[-1]) if rest else acked
        log = PartitionLog.open(
            RealDisk(), directory, LogConfig(), now_ms=0, clean=False, recovery_point=recovery_point
        )
        check_whole(log, acked)
        recovery_point = log.sync()
    assert recovery_point > 100


def test_a_full_disk_ends_appends_and_keeps_what_was_acked(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for a full disk: the system writes a part and then refuses."""
    resource = pytest.importorskip("resource", reason="file size limits are POSIX")
    directory = str(tmp_path / "rides-0")
    done = subprocess.run(
        [sys.executable, "-c", WRITER, directory, "0"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 3, done.stderr
    *acks, failure = done.stdout.splitlines()
    assert failure.split()[:2] == ["failed", str(EFBIG)]
    assert (tmp_path / "rides-0" / "00000000000000000000.log").stat().st_size <= 100_000
    log = PartitionLog.open(RealDisk(), directory, LogConfig(), now_ms=0, clean=False)
    assert log.recovery.truncated_bytes == 0  # the part of a batch was taken back at once
    assert log.log_end_offset == int(failure.split()[2])
    check_whole(log, int(acks[-1]))


@pytest.mark.parametrize("disk", [RealDisk(), UnsyncedDisk()], ids=["real", "unsynced"])
def test_errors_of_the_system_name_the_file_and_what_was_tried(tmp_path: Path, disk: RealDisk) -> None:
    with pytest.raises(StorageError, match=r"cannot open \(No such file or directory\): .*missing"):
        disk.open(str(tmp_path / "missing"))
    assert disk.read_bytes(str(tmp_path / "missing")) is None
    assert disk.list(str(tmp_path / "missing")) == []
    with pytest.raises(StorageError, match=r"cannot write \(No such file or directory\): .*state"):
        disk.write_whole(str(tmp_path / "missing" / "state"), b"x")
    disk.remove(str(tmp_path / "missing"))


def test_a_removed_file_stays_readable_and_its_descriptor_is_given_back(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append(b"hello")
    file.append_all([b" ", bytearray(b"wor"), memoryview(b"ld")])
    disk.remove(str(tmp_path / "a"))
    assert file.read(0, 100) == b"hello world"
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
