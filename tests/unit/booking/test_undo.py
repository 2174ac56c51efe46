"""A refused command leaves no trace, alone or as a part of a larger one."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from booking.app.drivers import GoOnline
from booking.app.policy import Policy
from booking.app.ports import Multiplier, Needs, Work
from booking.app.request_ride import RequestRide
from booking.app.world import World
from booking.domain.errors import DriverOffline, Refusal
from booking.domain.place import Place
from booking.domain.quote import Quote

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")


class Does:
    """Whatever a test wants, and then perhaps a refusal."""

    def __init__(self, *actions: Callable[[Work], object], refuse: bool) -> None:
        self._actions = actions
        self._refuse = refuse

    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> str:
        for action in self._actions:
            action(work)
        if self._refuse:
            raise DriverOffline("d")
        return "done"


def world() -> World:
    """One with a waiting ride, a free driver far away, and their timers and events not flushed yet."""
    one = World(Policy(match_rings=0))
    one.learn(
        Quote(
            quote_id="q",
            rider_id="r",
            pickup=HERE,
            dropoff=HERE,
            passengers=1,
            distance_m=1,
            duration_s=1,
            fare_minor=800,
            multiplier=1.0,
            surge_version=None,
            offered_at=NOW,
            expires_at=NOW + timedelta(minutes=2),
            simulated=False,
        )
    )
    one.begin(NOW)
    RequestRide(ride_id="ride", quote_id="q").decide(one)
    return one


def everything(one: World) -> tuple[object, ...]:
    """What a world holds; taking the changes ends it."""
    held = (one.counts(), one.ride("ride"), one.driver("d"), one.multiplier(HERE.cell))
    changes = one.take_changes()
    return (
        *held,
        changes.rides,
        changes.drivers,
        changes.multipliers,
        [item.id for item in changes.outgoing],
        sorted(changes.timers),
        sorted(changes.cancelled),
        len(changes.reports),
    )


ACTIONS: tuple[Callable[[Work], object], ...] = (
    # Takes the waiting ride: changes ride and driver, records events, and cancels a timer that is not flushed.
    GoOnline(driver_id="d", position=HERE).decide,
    lambda work: work.put_multiplier(
        Multiplier(cell=HERE.cell, multiplier=2.0, version=1, valid_until=NOW + timedelta(minutes=1))
    ),
    lambda work: work.set_timer("no_show", "ride", 9, NOW, simulated=False),
    lambda work: work.cancel_timer("no_show", "another"),
)


def test_undo_takes_everything_back() -> None:
    expected = everything(world())
    one = world()
    one.begin(NOW + timedelta(seconds=1))
    with pytest.raises(Refusal):
        Does(*ACTIONS, refuse=True).decide(one)
    one.undo()
    assert everything(one) == expected


def test_a_refused_part_takes_back_itself_only() -> None:
    one, other = world(), world()
    one.begin(NOW + timedelta(seconds=1))
    other.begin(NOW + timedelta(seconds=1))
    ACTIONS[1](one)
    ACTIONS[1](other)
    result = one.attempt(Does(ACTIONS[0], ACTIONS[2], refuse=True), now=NOW + timedelta(seconds=9))
    assert isinstance(result, DriverOffline)
    assert one.now == NOW + timedelta(seconds=1)
    assert one.attempt(Does(ACTIONS[3], refuse=False), now=NOW) == "done"
    ACTIONS[3](other)
    assert everything(one) == everything(other)


def test_a_timer_that_was_never_flushed_is_cancelled_in_memory() -> None:
    one = world()
    one.begin(NOW)
    one.cancel_timer("match_timeout", "ride")
    changes = one.take_changes()
    assert changes.timers == {}
    assert sorted(changes.cancelled) == ["quote_expiry:q"]
