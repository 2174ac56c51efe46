"""The replay's own book: what it asked for and how each ride ended, as booking's answers told it.

Kept as JSON lines, one when a ride was booked and one when it ended, so that the ledger can compare it with the log and
with booking after any crash, this process's own included.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import IO

ENDED = frozenset({"completed", "cancelled", "unmatched"})


class Book:
    """Ride id → state. `ENDED` states are final; any other counts as in flight."""

    def __init__(self, path: Path | None = None) -> None:
        self.states: dict[str, str] = {}
        self.quotes_offered = 0
        self.quotes_left = 0
        self.recommendations_asked = 0
        self.recommendations_chosen = 0
        self.locations_sent = 0
        self.refusals: Counter[str] = Counter()
        self._file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self._load(path)
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def _load(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a killed run may be torn
                continue
            self.states[entry["ride_id"]] = entry["state"]

    def note(self, ride_id: str, state: str) -> None:
        """Note the state of a ride; only its first and its last are written down."""
        before = self.states.get(ride_id)
        if before == state:
            return
        assert before not in ENDED, f"ride {ride_id} had ended as {before} and is now {state}"
        self.states[ride_id] = state
        if self._file is not None and (before is None or state in ENDED):
            self._file.write(json.dumps({"ride_id": ride_id, "state": state}) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def counts(self) -> dict[str, int]:
        """Return requested, completed, cancelled, unmatched and in flight."""
        return count_states(self.states.values())


def count_states(states: object) -> dict[str, int]:
    """Return requested, completed, cancelled, unmatched and in flight of an iterable of states."""
    assert hasattr(states, "__iter__")
    tally = Counter(s if s in ENDED else "in_flight" for s in states)
    return {
        "requested": sum(tally.values()),
        **{s: tally[s] for s in ("completed", "cancelled", "unmatched", "in_flight")},
    }
