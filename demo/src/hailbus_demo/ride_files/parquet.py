"""Recorded rides in Parquet files, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailbus_demo.city.plan import to_ms
from hailbus_demo.ride_files.layouts import Columns

BATCH_ROWS = 8_192


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        return list(pq.read_schema(path).names)
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def times_rise(path: Path, column: str) -> bool:
    """Return whether a Parquet file is in order of its pickup times; reads this one column, a batch at a time."""
    last = None
    with pq.ParquetFile(path) as file:
        if not pa.types.is_timestamp(file.schema_arrow.field(column).type):
            return False
        for batch in file.iter_batches(8 * BATCH_ROWS, columns=[column]):
            times = batch.column(0).cast(pa.int64())
            if times.null_count:
                return False
            if len(times) and last is not None and times[0].as_py() < last:
                return False
            if len(times) > 1 and pc.any(pc.less(times[1:], times[:-1])).as_py():
                return False
            last = times[-1].as_py() if len(times) else last
    return True


def rows(
    path: Path, used: Columns, window: tuple[int | None, int | None] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield row number (from 1) and row. `window`, for a file in order: batches wholly before it are passed over."""
    columns = list(used.used())
    time = used.pickup_time
    first, until = window or (None, None)
    number = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            if window is not None and len(batch):
                at = batch.column(time)
                if first is not None and to_ms(at[-1].as_py()) < first:
                    number += len(batch)
                    continue
                if until is not None and to_ms(at[0].as_py()) >= until:
                    return
            for row in batch.to_pylist():
                number += 1
                yield number, row
