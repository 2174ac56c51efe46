"""The data directory: what runs leave in it, who may use it, and whether a new run may continue from it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from hailbus_demo.errors import UsageError

FORMAT = 4
"""Grows when what a run leaves cannot be continued by a newer version."""
MARKER = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What is remembered between runs. `clock_ms` is the event time that the city has reached, `None` before any ride.

    `cluster` is "in-house", or the address and cluster id of somebody else's.
    """

    cluster: str
    run: int
    clock_ms: int | None
    format: int = FORMAT
    clean: bool = False


@dataclass(frozen=True, slots=True)
class DataDir:
    """Paths below the data directory."""

    root: Path

    @property
    def broker(self) -> Path:
        """The in-house broker's log."""
        return self.root / "broker"

    @property
    def lake(self) -> Path:
        """The lake: warehouse, catalogue, checkpoints."""
        return self.root / "lake"

    @property
    def databases(self) -> Path:
        """SQLite files of the services."""
        return self.root / "db"

    @property
    def postgresql(self) -> Path:
        """The PostgreSQL server that regions of booking share."""
        return self.root / "postgresql"

    @property
    def regions(self) -> Path:
        """The file of booking's regions."""
        return self.root / "regions.toml"

    @property
    def logs(self) -> Path:
        """What the processes wrote."""
        return self.root / "logs"

    @property
    def keys(self) -> Path:
        """The keys of this run: booking gets the public one, riders and drivers sign with the other."""
        return self.root / "keys"

    @property
    def book(self) -> Path:
        """The replay's book."""
        return self.root / "book.jsonl"

    @property
    def journal(self) -> Path:
        """The event logger's file."""
        return self.root / "audit.jsonl"

    @property
    def rejects(self) -> Path:
        """Rows of ride files that could not be rides."""
        return self.root / "rejects.csv"

    @property
    def poison(self) -> Path:
        """The damaged copies of events that clicks wrote."""
        return self.root / "poison.jsonl"

    @property
    def ledger(self) -> Path:
        """The ledger, live and final."""
        return self.root / "ledger.json"

    def database_url(self, name: str) -> str:
        """Return the URL of a service's SQLite database."""
        return f"sqlite+aiosqlite:///{(self.databases / f'{name}.sqlite').absolute()}"

    def lock(self) -> IO[str]:
        """Take the directory for this run; closing the result (or dying) gives it back.

        Raises:
            UsageError: Another run has it, or it cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "lock").open("a+")
        except OSError as error:
            raise UsageError(
                f"{self.root} cannot be written ({error.strerror}): give another directory by --data-dir"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise UsageError(
                f"another demo runs in {self.root}: stop it, or give this one its own directory by --data-dir"
            ) from None
        return file

    def wipe(self) -> None:
        """Remove everything that runs left, and nothing else.

        Raises:
            UsageError: The directory holds something, but none of it was left by a run.
        """
        names = {p.name for p in self.root.iterdir()} - {"lock"}
        if names and not names & {MARKER, "logs", "broker", "db"}:
            shown = ", ".join(sorted(names)[:3])
            raise UsageError(f"{self.root} is no data directory of a run (it holds {shown}): nothing was removed")
        for name in (
            MARKER,
            "broker",
            "lake",
            "db",
            "postgresql",
            "regions.toml",
            "logs",
            "surge",
            "keys",
            "book.jsonl",
            "book.jsonl.positions",
            "rejects.csv",
            "poison.jsonl",
            "ledger.json",
            "audit.jsonl",
        ):
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def load(self) -> RunState | None:
        """Return what the last run left, `None` if there was none.

        Raises:
            UsageError: It cannot be continued.
        """
        path = self.root / MARKER
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            state = RunState(**fields)
        except FileNotFoundError:
            left = [name for name in ("broker", "db", "lake") if (self.root / name).exists()]
            if left:
                raise UsageError(
                    f"{self.root} holds {', '.join(left)} but no {MARKER}: start anew with --fresh, or give another "
                    "--data-dir"
                ) from None
            return None
        except (ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be read ({error}): start anew with --fresh") from error
        if state.format != FORMAT:
            raise UsageError(
                f"{self.root} was left by another version (format {state.format}, not {FORMAT}): start anew with "
                "--fresh"
            )
        return state

    def save(self, state: RunState) -> None:
        """Write what the next run should know, all or nothing."""
        write_whole(self.root / MARKER, json.dumps(asdict(state), indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
