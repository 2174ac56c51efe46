"""What the service keeps of events: enough to rebuild its models, and no more."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """A completed ride, or what else moves people. Cells: pickup res 11, drop-off res 9. Seconds on the wall clock.

    Zones are those of the exact places, which a cell does not tell: `None` outside the city.
    """

    rider_id: str
    pickup_cell: str
    pickup_zone: int | None
    dropoff_cell: str
    dropoff_zone: int | None
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A ride that others may share from now on. Cells are res 9; zones are of the exact places, as in `Journey`."""

    ride_id: str
    rider_id: str
    pickup_cell: str
    pickup_zone: int | None
    dropoff_cell: str
    dropoff_zone: int | None
    requested_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A ride that nobody can share any more."""

    ride_id: str


Fact = Journey | Opened | Closed

__all__ = ["Closed", "Fact", "Journey", "Opened"]
