"""The riders' book: what the simulator sent, and what it was told by HTTP answers.

Kept as JSON lines, and the positions of drivers as 8 bytes each in a file beside it, so that the ledger can compare the
book with the log and with booking after any crash, this process's own included.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from hailbus_demo.errors import UsageError
from hailbus_demo.ledger.accounts import BookAccount, BookAdvice, BookQuote, BookRide
from hailbus_demo.ledger.log import position_hash

ENDED: Final = frozenset({"completed", "cancelled", "unmatched"})


class Book:
    """What riders and drivers did and heard. Without a path it is kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self.rides: dict[str, BookRide] = {}
        self.quotes: dict[str, BookQuote] = {}
        self.advice: dict[str, BookAdvice] = {}
        self.positions: array[int] = array("Q")
        self.quotes_offered = 0
        self.quotes_left = 0
        self.recommendations_asked = 0
        self.recommendations_chosen = 0
        self.pooled: set[str] = set()
        """Rides that this run has seen in a pool, also if the pool ended later."""
        self.locations_sent = 0
        self.refusals: Counter[str] = Counter()
        self.torn = 0
        """Runs that began and did not end in order: what they were told last may be missing."""
        self._file: IO[str] | None = None
        self._positions_file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            positions = positions_path(path)
            if path.exists():
                self._load(path)
            if positions.exists():
                content = positions.read_bytes()
                self.positions.frombytes(content[: len(content) // 8 * 8])
            self._file = path.open("a", encoding="utf-8", buffering=1)
            self._positions_file = positions.open("ab", buffering=0)  # written before it is sent

    def _load(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the last line of a killed run may be torn
                continue
            match entry.pop("kind", None):
                case "ride":
                    name = entry.pop("ride_id")
                    self.rides[name] = BookRide(**entry)
                case "quote":
                    name = entry.pop("quote_id")
                    self.quotes[name] = BookQuote(**entry)
                case "advice":
                    name = entry.pop("recommendation_id")
                    self.advice[name] = BookAdvice(entry["rider_id"], tuple(entry["options"]), entry["chosen"])
                case "began":
                    self.torn += 1
                case "ended":
                    self.torn -= 1
                case other:
                    raise UsageError(
                        f"{path} holds a line of kind {other!r}, as no book of this version does: name another"
                    )

    def _write(self, kind: str, **entry: Any) -> None:  # Any: JSON
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, **entry}) + "\n")

    def begin(self) -> None:
        """Note that a run begins: until `end`, what it is told last may be missing."""
        self.torn += 1
        self._write("began")

    def end(self) -> None:
        """Note that a run ended in order: every request that it made was answered and noted."""
        self.torn -= 1
        self._write("ended")

    def note_ride(self, body: Mapping[str, Any]) -> None:
        """Note what booking answered of a ride; only the first and the last answer are written down."""
        ride_id = str(body["ride_id"])
        before = self.rides.get(ride_id)
        told = BookRide(
            state=str(body["state"]),
            seq=int(body["seq"]),
            quote_id=str(body["quote_id"]),
            rider_id=str(body["rider_id"]),
            driver_id=body["driver_id"],
            fare_minor=int(body["fare"]["amount_minor"]),
            multiplier=float(body["multiplier"]),
            distance_m=body["distance_m"],
            duration_s=body["duration_s"],
        )
        if body["pooled_with"] is not None:
            self.pooled.add(ride_id)
        if before == told:
            return
        assert before is None or before.state not in ENDED, f"ride {ride_id} had ended as {before} and is now {told}"
        self.rides[ride_id] = told
        if before is None or told.state in ENDED:
            self._write("ride", ride_id=ride_id, **told._asdict())

    def note_quote(self, body: Mapping[str, Any]) -> None:
        """Note a quote that was offered."""
        told = BookQuote(
            rider_id=str(body["rider_id"]),
            fare_minor=int(body["fare"]["amount_minor"]),
            multiplier=float(body["multiplier"]),
            surge_version=body["surge_version"],
            distance_m=int(body["distance_m"]),
            duration_s=int(body["duration_s"]),
        )
        self.quotes_offered += 1
        self.quotes[str(body["quote_id"])] = told
        self._write("quote", quote_id=str(body["quote_id"]), **told._asdict())

    def note_advice(self, rider_id: str, body: Mapping[str, Any]) -> None:
        """Note what the recommender served."""
        kinds = ("destinations", "pooled_rides", "pickup_spots")
        options = tuple(str(option["option_id"]) for kind in kinds for option in body[kind])
        self._note_advice(str(body["recommendation_id"]), BookAdvice(rider_id, options, None))

    def note_choice(self, recommendation_id: str, option_id: str) -> None:
        """Note that the recommender took a rider's choice."""
        self._note_advice(recommendation_id, self.advice[recommendation_id]._replace(chosen=option_id))

    def _note_advice(self, name: str, told: BookAdvice) -> None:
        self.advice[name] = told
        self._write("advice", recommendation_id=name, **told._asdict())

    def note_position(self, driver_id: str, lat: float, lng: float, at_ms: int) -> None:
        """Note that a driver's position is about to be sent."""
        hashed = position_hash(driver_id, lat, lng, at_ms)
        self.positions.append(hashed)
        if self._positions_file is not None:
            self._positions_file.write(array("Q", [hashed]).tobytes())

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._positions_file):
            if file is not None:
                file.close()
        self._file = self._positions_file = None

    def account(self) -> BookAccount:
        """Return a copy of the book as the ledger compares it: it may do so in a thread, while notes are made."""
        return BookAccount(
            rides=dict(self.rides),
            quotes=dict(self.quotes),
            advice=dict(self.advice),
            positions=self.positions[:],
            is_whole=self.torn == 0,
        )

    def counts(self) -> dict[str, int]:
        """Return requested, completed, cancelled, unmatched and in flight."""
        return count_states(ride.state for ride in self.rides.values())


def positions_path(path: Path) -> Path:
    """Return where the positions that belong to a book are."""
    return path.with_name(path.name + ".positions")


def count_states(states: Iterable[str]) -> dict[str, int]:
    """Return requested, completed, cancelled, unmatched and in flight of some states."""
    tally = Counter(state if state in ENDED else "in_flight" for state in states)
    return {
        "requested": sum(tally.values()),
        **{state: tally[state] for state in ("completed", "cancelled", "unmatched", "in_flight")},
    }
