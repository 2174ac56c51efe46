"""How commands show rows: a table for people, JSON lines for programs."""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from analytics_spark.verify.report import AGREES, LakeReport

__all__ = ["show_report", "show_rows", "show_table"]

_CELL_WIDTH = 60
_WIDE = 12
"""More columns than this are shown one below the other, without the null ones."""


def show_rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings; numbers to the right."""
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = [list(row) for row in rows]
    for index, heading in enumerate(headings):
        is_number = bool(listed) and all(isinstance(row[index], (int, float)) for row in listed)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in listed:
        table.add_row(*(_cell(value) for value in row))
    if not console.is_terminal:
        console.width = 240
    console.print(table, markup=False)


def show_table(table: Any, *, as_json: bool) -> None:
    """An Arrow table."""
    if as_json:
        for row in table.to_pylist():
            print(json.dumps(row, default=_json_value))
        return
    if len(table.column_names) > _WIDE:
        for number, row in enumerate(table.to_pylist(), 1):
            print(f"── row {number}")
            width = max(len(name) for name in row)
            for name, value in row.items():
                if value is not None:
                    print(f"  {name:<{width}}  {_cell(value, width=160)}")
        return
    show_rows(table.column_names, [[row[name] for name in table.column_names] for row in table.to_pylist()])


def show_report(report: LakeReport) -> None:
    """A verification: the partitions, then each line with its findings, then the verdict."""
    show_rows(
        (
            "topic",
            "partition",
            "log start",
            "end",
            "compared from",
            "log records",
            "lake records",
            "rows",
            "hidden",
            "",
        ),
        [
            (
                part.topic,
                part.partition,
                part.log_start if part.log_start is not None else "?",
                part.end if part.end is not None else "?",
                part.checked_from,
                part.log_records,
                part.lake_records,
                part.rows,
                part.hidden_offsets,
                "ok" if part.verdict == AGREES else part.detail,
            )
            for part in report.partitions
        ],
    )
    for line in report.lines:
        print(f"{line.name}: {line.verdict.replace('_', ' ')}: {line.detail}")
    for allowance in report.allowances:
        print(f"allowed: {allowance}")
    for problem in report.problems:
        print(f"PROBLEM {problem}")
    print(
        f"{'complete' if report.ok else 'NOT complete'}: {report.rows:,} rows in {len(report.partitions)} partitions, "
        f"{report.mode} comparison in {report.seconds:.1f} s"
    )


def _cell(value: object, *, width: int = _CELL_WIDTH) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = f"0x{value.hex()}"
    elif isinstance(value, (dict, list)):
        text = json.dumps(value, default=_json_value)
    elif isinstance(value, datetime):
        text = value.isoformat(sep=" ", timespec="milliseconds")
    else:
        text = str(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
