"""What one append to and one read from a partition's log cost, without the disk: `python tests/bench/bench_log.py`.

Prints microseconds, the lowest of 40 rounds, for batches of 16 records of 1,000 bytes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c
from hailbus_broker.log import LogConfig, PartitionLog, TailCache
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.disk import RealDisk

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 40
CALLS = 50


def lowest_us(call: Callable[[], object]) -> float:
    """The fastest round's time for one call."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def batches(*, producer_id: int = -1) -> list[bytearray]:
    records = [RecordToWrite(key=None, value=os.urandom(1000), timestamp=1)] * 16
    first = 0 if producer_id >= 0 else -1
    return [
        build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=number * 16 if first == 0 else -1,
        )
        for number in range(ROUNDS * CALLS)
    ]


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    load = os.getloadavg()[0]
    print(
        f"commit {commit}, Python {platform.python_version()}, {os.cpu_count()} processors, load {load:.1f}, "
        f"{platform.machine()}"
    )
    with tempfile.TemporaryDirectory() as directory:
        disk = RealDisk()
        # the default batches of a producer, and the disk's part of it on its own
        file = disk.open(f"{directory}/plain", create=True)
        data = bytes(batches()[0])
        figures = {
            "crc of 16 KiB": lowest_us(lambda: crc32c(memoryview(data)[21:])),
            "write of 16 KiB": lowest_us(lambda: file.append(data)),
        }
        for name, producer_id in (("append", -1), ("append, idempotent producer", 7)):
            log = PartitionLog.open(
                disk, f"{directory}/{producer_id}", LogConfig(), now_ms=0, clean=False, tail_cache=TailCache()
            )
            waiting = iter(batches(producer_id=producer_id))
            figures[f"{name}, with crc and write"] = lowest_us(
                lambda log=log, waiting=waiting: log.append(next(waiting), now_ms=1)  # type: ignore[misc]  # mypy infers no lambda with defaults
            )
        log.advance_high_watermark(log.log_end_offset)
        end = log.log_end_offset
        figures["read the newest batch, from memory"] = lowest_us(lambda: log.read(end - 16, 1 << 20))
        figures["read 10 batches, 500 back, from memory"] = lowest_us(lambda: log.read(end - 16 * 500, 163_840))
        figures["read 1 MiB, as a slice of the file"] = lowest_us(lambda: log.read(16, 1 << 20))
    for name, microseconds in figures.items():
        print(f"{name:45} {microseconds:8.1f} us")


if __name__ == "__main__":
    main()
