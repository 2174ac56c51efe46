"""A driver: offline, free or busy with a ride."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from booking.domain.errors import DriverBusy, DriverOffline
from booking.domain.place import Place


class DriverStatus(StrEnum):
    """Whether a driver can take a ride."""

    OFFLINE = "offline"
    FREE = "free"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One driver. `seq` counts the driver's events from 1; positions are no such events.

    `heard_at` is when the driver did or reported something last. What booking or a rider does to the driver changes
    `updated_at` alone. `ride_id` is the ride, of two pooled ones the one that is picked up first while both are open.
    """

    driver_id: str
    status: DriverStatus
    position: Place | None
    seq: int
    updated_at: datetime
    heard_at: datetime
    simulated: bool
    ride_id: str | None = None

    def go_online(self, position: Place, *, at: datetime) -> "Driver":
        """Be ready for rides; only a move for who is online already."""
        if self.status is not DriverStatus.OFFLINE:
            return self.move(position, at=at)
        return replace(
            self,
            status=DriverStatus.FREE,
            position=position,
            seq=self.seq + 1,
            updated_at=max(at, self.updated_at),
            heard_at=max(at, self.heard_at),
        )

    def hear(self, *, at: datetime) -> "Driver":
        """Have given a sign of life; the driver itself when a later one is known."""
        return self if at <= self.heard_at else replace(self, heard_at=at)

    def move(self, position: Place, *, at: datetime) -> "Driver":
        """Be elsewhere; the driver itself when something newer is known: reports may overtake each other.

        Raises:
            DriverOffline: Who is offline has no position.
        """
        if self.status is DriverStatus.OFFLINE:
            raise DriverOffline(self.driver_id)
        if at < self.updated_at:
            return self
        return replace(self, position=position, updated_at=at, heard_at=max(at, self.heard_at))

    def take(self, ride_id: str, *, at: datetime) -> "Driver":
        """Take a ride."""
        assert self.status is DriverStatus.FREE, f"driver {self.driver_id} is {self.status} and got ride {ride_id}"
        return replace(
            self, status=DriverStatus.BUSY, ride_id=ride_id, seq=self.seq + 1, updated_at=max(at, self.updated_at)
        )

    def carry_on(self, ride_id: str, *, at: datetime) -> "Driver":
        """Stay busy with the other ride of a pool: this one is over for the driver."""
        assert self.status is DriverStatus.BUSY, f"driver {self.driver_id} is {self.status}, not busy"
        return replace(self, ride_id=ride_id, seq=self.seq + 1, updated_at=max(at, self.updated_at))

    def release(self, position: Place | None, *, at: datetime) -> "Driver":
        """Be free again, at `position` if the ride's end tells it."""
        assert self.status is DriverStatus.BUSY, f"driver {self.driver_id} is {self.status}, not busy"
        return replace(
            self,
            status=DriverStatus.FREE,
            ride_id=None,
            position=position or self.position,
            seq=self.seq + 1,
            updated_at=max(at, self.updated_at),
        )

    def go_offline(self, *, at: datetime) -> "Driver":
        """Take no more rides; nothing changes for who is offline already.

        Raises:
            DriverBusy: During a ride.
        """
        if self.status is DriverStatus.BUSY:
            raise DriverBusy(self.driver_id, self.ride_id)
        if self.status is DriverStatus.OFFLINE:
            return self
        return replace(
            self, status=DriverStatus.OFFLINE, position=None, seq=self.seq + 1, updated_at=max(at, self.updated_at)
        )
