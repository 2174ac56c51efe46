"""What a benchmark measured, with everything that is needed to read it: command, machine, commit, date, load.

A benchmark prints its tables as they come and writes them with `--json FILE`. The files in `docs/figures` are such
files; `uv run derive-figures` makes the pages from them.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured quantity: for each column the values of all rounds, in `unit`."""

    what: str
    unit: str
    values: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> list[float]:
        """The median of each column."""
        return [statistics.median(column) for column in self.values]


@dataclass(slots=True, kw_only=True)
class Table:
    """Quantities measured under one condition, in one run."""

    title: str
    condition: str
    columns: tuple[str, ...]
    load: float
    rows: list[Row] = field(default_factory=list)


class Run:
    """One run of a benchmark."""

    def __init__(self, command: str, *, rounds: int) -> None:
        self.command = command
        self.rounds = rounds
        self.tables: list[Table] = []
        self.machine = f"{os.cpu_count()} cores, {_memory_gb()} GB, {platform.system()} {platform.machine()}"
        self.commit = _git("rev-parse", "--short=10", "HEAD")
        self.is_modified = bool(_git("status", "--porcelain", "--untracked-files=no"))
        self.python = platform.python_version()
        self.date = datetime.now(UTC).date().isoformat()
        print(f"command: {command}")
        print(f"machine: {self.machine}")
        print(f"commit:  {self.commit}{' with changes' if self.is_modified else ''}, CPython {self.python}", flush=True)

    def table(self, title: str, *, condition: str, columns: Sequence[str]) -> Table:
        """Begin a table. The machine's load at this moment is kept with it."""
        table = Table(title=title, condition=condition, columns=tuple(columns), load=round(os.getloadavg()[0], 1))
        self.tables.append(table)
        heading = f"{title} ({condition}; load {table.load})"
        print(f"\n{heading:<70} " + " ".join(f"{name:>12}" for name in columns), flush=True)
        return table

    def add(self, what: str, unit: str, *values: Sequence[float]) -> Row:
        """Add a quantity to the last table: for each column the values of all rounds."""
        row = Row(what=what, unit=unit, values=tuple(tuple(column) for column in values))
        self.tables[-1].rows.append(row)
        print(f"{what:<70} " + " ".join(f"{median:>12,.2f}" for median in row.medians) + f"  {unit}", flush=True)
        return row

    def write(self, path: Path) -> None:
        """Write the run as JSON."""
        head = {
            "command": self.command,
            "date": self.date,
            "commit": self.commit + ("+" if self.is_modified else ""),
            "machine": self.machine,
            "python": self.python,
            "rounds": self.rounds,
        }
        path.write_text(json.dumps({**head, "tables": [asdict(table) for table in self.tables]}, indent=1) + "\n")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used so far, user and system, all threads, those that have ended too."""
    # The clock of another process, as clock_getcpuclockid(3) makes its number: /proc counts in steps of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
