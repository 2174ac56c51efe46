"""Many drivers' updates in one request, as a fleet gateway sends them: each succeeds or is refused alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from booking.app.cancel_ride import CancelRide
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.ports import Command, Needs, Work
from booking.domain.driver import Driver
from booking.domain.errors import Refusal
from booking.domain.ride import Ride

Update = GoOnline | GoOffline | ReportLocation | ReportArrival | StartRide | CompleteRide | CancelRide


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDrivers:
    """Updates in order, each with its own time or that of the request."""

    updates: Sequence[tuple[Command[Driver | Ride], datetime | None]]

    def needs(self) -> Needs:
        """All that the updates need."""
        needs = [update.needs() for update, _ in self.updates]
        return Needs(
            rides=tuple(key for need in needs for key in need.rides),
            drivers=tuple(key for need in needs for key in need.drivers),
            online=tuple(key for need in needs for key in need.online),
        )

    def decide(self, work: Work) -> list[Driver | Ride | Refusal]:
        """Do each; return a result or a refusal for each."""
        return [work.attempt(update, now=at or work.now) for update, at in self.updates]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveClock:
    """Advance the clock, and do nothing else."""

    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def decide(self, work: Work) -> datetime:
        """Return the time."""
        return work.now
