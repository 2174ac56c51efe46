"""Many drivers' updates, each for its own region: plain state, no I/O.

The updates of one driver stay in order. They are sent in rounds: a round holds, for each driver, the next updates that
one region owns. Who owns a ride and the place where a driver goes online is known; where a driver is online is not, so
a position and `offline` are sent to a region that may refuse them with 421. They go into the next round then, to the
owner that the region named, and later updates of the driver wait for them.

A repeated request is divided in the same way, because a region gives the same answer to the same key again. The parts
of the first round have the client's key, later ones keys that are derived from it: a region sees each key once.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from booking.domain.region import Region, Regions
from booking.router.routes import Update, knows_owner, region_of_update

MISDIRECTED: Final = 421
Result = Mapping[str, Any]  # Any: JSON of booking


@dataclass(frozen=True, slots=True)
class Part:
    """Updates for one region in one round: their places in the request, in order."""

    region: Region
    places: Sequence[int]


class Batch:
    """One request with many updates.

    Args:
        updates: What the client sent.
        regions: Who owns what.
    """

    def __init__(self, updates: Sequence[Update], regions: Regions) -> None:
        self.updates = updates
        self.results: list[Result | None] = [None] * len(updates)
        self.round = 0
        self._regions = regions
        self._owners = [region_of_update(update, regions) for update in updates]
        self._was_told = [False] * len(updates)
        """Whether a region has named the owner: it is followed once."""
        self._is_known = [knows_owner(update) for update in updates]
        self._pending = list(range(len(updates)))

    @property
    def is_done(self) -> bool:
        """Whether every update has its result."""
        return not self._pending

    def parts(self) -> Sequence[Part]:
        """Return what is to be sent in this round; the parts are independent of each other."""
        found: dict[str, list[int]] = {}
        of_driver: dict[str, Region] = {}
        unsure: set[str] = set()
        blocked: set[str] = set()
        for place in self._pending:
            driver, owner = self.updates[place]["driver_id"], self._owners[place]
            is_sure = self._is_known[place] or self._was_told[place]
            if driver in blocked or of_driver.setdefault(driver, owner) is not owner or (driver in unsure and is_sure):
                blocked.add(driver)  # its later updates wait for this one
                continue
            if not is_sure:
                unsure.add(driver)
            found.setdefault(owner.name, []).append(place)
        return [Part(self._owners[places[0]], places) for places in found.values()]

    def take(self, answers: Sequence[tuple[Part, Sequence[Result]]]) -> None:
        """Take the answers to the parts of this round, and begin the next one."""
        for part, results in answers:
            for place, result in zip(part.places, results, strict=True):
                owner = self._named_by(result)
                if owner is None or owner is part.region or self._was_told[place]:
                    self.results[place] = result
                else:
                    self._owners[place], self._was_told[place] = owner, True
        self._pending = [place for place in self._pending if self.results[place] is None]
        self.round += 1

    def _named_by(self, result: Result) -> Region | None:
        if result["status"] != MISDIRECTED:
            return None
        return self._regions.named(str(result["body"].get("owner")))


def key_of_round(key: str, number: int) -> str:
    """Return the idempotency key of a round: the client's own in the first one."""
    if number == 0:
        return key
    return f"round-{number}:{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()}"


__all__ = ["MISDIRECTED", "Batch", "Part", "Result", "key_of_round"]
