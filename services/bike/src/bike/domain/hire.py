"""A hire: reserved, then unlocked, then returned; or the reservation lapses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from bike.domain.errors import BikeTaken, WrongState


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A point in WGS-84 degrees and the H3 cell (resolution 8) that holds it."""

    lat: float
    lng: float
    cell: str


class HireState(StrEnum):
    """Where a hire is in its life."""

    RESERVED = "reserved"
    IN_USE = "in_use"
    RETURNED = "returned"
    LAPSED = "lapsed"


class Step(StrEnum):
    """What can happen to a hire."""

    UNLOCK = "unlocked"
    RETURN = "returned"
    LAPSE = "lapsed"


TRANSITIONS: Final[Mapping[tuple[HireState, Step], HireState]] = MappingProxyType(
    {
        (HireState.RESERVED, Step.UNLOCK): HireState.IN_USE,
        (HireState.RESERVED, Step.LAPSE): HireState.LAPSED,
        (HireState.IN_USE, Step.RETURN): HireState.RETURNED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Prices in minor units (cents): to unlock, and for each minute begun."""

    unlock_minor: int = 100
    per_minute_minor: int = 25

    def fare_minor(self, duration_s: int) -> int:
        """Return what a hire costs."""
        return self.unlock_minor + self.per_minute_minor * -(-duration_s // 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hire:
    """One hire. `seq` counts its events from 1.

    A reservation lapses by the clock alone: `as_of` shows it, and its event was scheduled when it was made.
    """

    hire_id: str
    bike_id: str
    rider_id: str
    state: HireState
    seq: int
    pickup: Place
    reserved_at: datetime
    expires_at: datetime
    simulated: bool
    started_at: datetime | None = None
    returned_at: datetime | None = None
    dropoff: Place | None = None
    distance_m: int | None = None
    fare_minor: int | None = None

    @property
    def duration_s(self) -> int | None:
        """How long the bike was in use, in whole seconds."""
        if self.started_at is None or self.returned_at is None:
            return None
        return round((self.returned_at - self.started_at).total_seconds())

    def as_of(self, now: datetime) -> "Hire":
        """Return the hire as it is at a moment: a reservation may have lapsed."""
        if self.state is HireState.RESERVED and now >= self.expires_at:
            return replace(self, state=TRANSITIONS[self.state, Step.LAPSE], seq=self.seq + 1)
        return self

    def unlock(self, *, at: datetime) -> "Hire":
        """Begin the hire, or raise `WrongState`."""
        at = max(at, self.reserved_at)
        return replace(self.as_of(at), state=self._after(Step.UNLOCK, at), seq=self.seq + 1, started_at=at)

    def bring_back(self, place: Place, *, distance_m: int, tariff: Tariff, at: datetime) -> "Hire":
        """End the hire, or raise `WrongState`."""
        after = self._after(Step.RETURN, at)
        assert self.started_at is not None
        at = max(at, self.started_at)
        return replace(
            self,
            state=after,
            seq=self.seq + 1,
            returned_at=at,
            dropoff=place,
            distance_m=distance_m,
            fare_minor=tariff.fare_minor(round((at - self.started_at).total_seconds())),
        )

    def _after(self, step: Step, at: datetime) -> HireState:
        state = self.as_of(at).state
        after = TRANSITIONS.get((state, step))
        if after is None:
            raise WrongState(self.hire_id, state, step)
        return after


@dataclass(frozen=True, slots=True, kw_only=True)
class Bike:
    """One bike: where it stands, and the hire that has it."""

    bike_id: str
    place: Place
    hire_id: str | None = None

    def give_to(self, hire_id: str, *, holder: Hire | None, now: datetime) -> "Bike":
        """Reserve the bike for a hire, or raise `BikeTaken` while another one has it."""
        if holder is not None and holder.as_of(now).state in {HireState.RESERVED, HireState.IN_USE}:
            raise BikeTaken(self.bike_id)
        return replace(self, hire_id=hire_id)

    def stand_at(self, place: Place) -> "Bike":
        """Return the bike, free, at a place."""
        return replace(self, place=place, hire_id=None)
