"""A database in memory for the property tests of booking: what is flushed, what a restart loads, and its timers."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from booking.app.elapse import Elapse
from booking.app.policy import Policy
from booking.app.ports import Command, Multiplier, Outgoing
from booking.app.world import CITY, Changes, World
from booking.domain.driver import Driver, DriverStatus
from booking.domain.place import Place
from booking.domain.quote import Quote
from booking.domain.ride import TERMINAL, Ride
from booking.domain.roads import Roads
from ride_events.timers import RideOverdue, TimerElapsed

START = datetime(2014, 5, 1, 8, tzinfo=UTC)
CELLS = ("882a100d29fffff", "882a100d2bfffff", "882a1072d7fffff", "882a104a27fffff")
PLACES = tuple(Place(lat=40.7 + number / 50, lng=-74.0, cell=cell) for number, cell in enumerate(CELLS))


@dataclass
class Stored:
    """What a database would hold."""

    quotes: dict[str, Quote] = field(default_factory=dict)
    rides: dict[str, Ride] = field(default_factory=dict)
    drivers: dict[str, Driver] = field(default_factory=dict)
    multipliers: dict[str, Multiplier] = field(default_factory=dict)
    roads: dict[str, Roads] = field(default_factory=dict)
    outgoing: list[Outgoing] = field(default_factory=list)
    timers: dict[str, Outgoing] = field(default_factory=dict)

    def flush(self, changes: Changes) -> None:
        self.quotes.update(changes.quotes)
        self.rides.update(changes.rides)
        self.drivers.update(changes.drivers)
        self.multipliers.update(changes.multipliers)
        self.roads.update(changes.roads)
        for schedule_id in changes.cancelled:
            self.timers.pop(schedule_id, None)
        self.timers.update(changes.timers)
        self.outgoing.extend(changes.outgoing)

    def load(self) -> World:
        """A world after a restart: only what is open is read at once."""
        world = World(Policy())
        for multiplier in self.multipliers.values():
            world.learn(multiplier)
        if CITY in self.roads:
            world.learn(self.roads[CITY])
        for driver in self.drivers.values():
            if driver.status is not DriverStatus.OFFLINE:
                world.learn(driver)
        for ride in self.rides.values():
            if ride.state not in TERMINAL or ride.payment.owed_minor:
                world.learn(ride)
        return world


def prepare(world: World, stored: Stored, command: Command[object]) -> None:
    """What the writer does before a command decides."""
    missing = world.missing(command.needs())
    for quote_id in missing.quotes:
        if quote_id in stored.quotes:
            world.learn(stored.quotes[quote_id])
    for ride_id in missing.rides:
        if ride_id in stored.rides:
            world.learn(stored.rides[ride_id])
    for driver_id in missing.drivers:
        if driver_id in stored.drivers:
            world.learn(stored.drivers[driver_id])


def elapsed(timer: Outgoing) -> Elapse:
    """The command that booking makes of a timer's event."""
    event = timer.event
    if isinstance(event, RideOverdue):
        kind_of = {"seeking_partner": "partner_wait", "matched": "pickup_timeout", "in_progress": "ride_timeout"}
        # Any: mypy takes a dictionary's value for any text
        overdue: Any = kind_of[event.state]
        return Elapse(kind=overdue, subject_id=event.ride_id, seq=event.seq, due_at=event.due_at)
    assert isinstance(event, TimerElapsed)
    return Elapse(kind=event.kind, subject_id=event.subject_id, seq=event.seq, due_at=event.due_at)
