"""What the use cases need of the world."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from ride_events.bikes import BikeReservationLapsed, BikeReserved, BikeReturned, BikeUnlocked

from bike.domain.hire import Bike, Hire, Tariff

BikeFact = BikeReserved | BikeUnlocked | BikeReturned | BikeReservationLapsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long a reservation holds, and what a hire costs."""

    reservation_ttl: timedelta = timedelta(minutes=10)
    tariff: Tariff = field(default_factory=Tariff)


class Work(Protocol):
    """One transaction: what is put and recorded comes true together, or not at all."""

    @property
    def policy(self) -> Policy:
        """The numbers to decide by."""
        ...

    @property
    def now(self) -> datetime:
        """When the request happens (event time)."""
        ...

    async def bike(self, bike_id: str) -> Bike:
        """Return a bike, or raise `NotFound`."""
        ...

    async def hire(self, hire_id: str) -> Hire:
        """Return a hire, or raise `NotFound`."""
        ...

    async def put_bike(self, bike: Bike) -> None:
        """Keep a new or changed bike."""
        ...

    async def put_hire(self, hire: Hire) -> None:
        """Keep a new or changed hire."""
        ...

    async def record(self, fact: BikeFact, *, at: datetime) -> None:
        """Publish a fact with the change."""
        ...

    async def schedule(self, fact: BikeFact, *, at: datetime) -> None:
        """Publish a fact when its time has come, unless it is withdrawn before."""
        ...

    async def withdraw(self, hire_id: str) -> bool:
        """Take a scheduled fact of a hire back; return False when it is out already."""
        ...
