"""The ride's state machine: one transition table that the code runs on, a test walks and the README prints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal

from booking.domain.errors import NotYourRide, RidePooled, WrongState
from booking.domain.payment import NOTHING_HEARD, RidePayment
from booking.domain.place import Place


class RideState(StrEnum):
    """Where a ride is in its life."""

    REQUESTED = "requested"
    MATCHED = "matched"
    ARRIVED = "arrived"
    IN_PROGRESS = "in_progress"
    REDISPATCHED = "redispatched"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    UNMATCHED = "unmatched"


class Step(StrEnum):
    """What can happen to a ride."""

    MATCH = "be_matched"
    ARRIVE = "have_its_driver_arrive"
    START = "start"
    COMPLETE = "be_completed"
    CANCEL = "be_cancelled"
    REDISPATCH = "be_redispatched"
    GIVE_UP = "be_given_up"
    REPRICE = "be_repriced"
    POOL = "be_pooled"


_S = RideState
TRANSITIONS: Final[Mapping[tuple[RideState, Step], RideState]] = MappingProxyType(
    {
        (_S.REQUESTED, Step.MATCH): _S.MATCHED,
        (_S.REDISPATCHED, Step.MATCH): _S.MATCHED,
        (_S.MATCHED, Step.ARRIVE): _S.ARRIVED,
        (_S.ARRIVED, Step.START): _S.IN_PROGRESS,
        (_S.IN_PROGRESS, Step.COMPLETE): _S.COMPLETED,
        (_S.REQUESTED, Step.CANCEL): _S.CANCELLED,
        (_S.MATCHED, Step.CANCEL): _S.CANCELLED,
        (_S.ARRIVED, Step.CANCEL): _S.CANCELLED,
        # A rider who waits for the second driver waits as after the request, and may leave as then.
        (_S.REDISPATCHED, Step.CANCEL): _S.CANCELLED,
        (_S.MATCHED, Step.REDISPATCH): _S.REDISPATCHED,
        (_S.ARRIVED, Step.REDISPATCH): _S.REDISPATCHED,
        # By timeout while waiting, by the limit of redispatches when a driver cancels.
        (_S.REQUESTED, Step.GIVE_UP): _S.UNMATCHED,
        (_S.REDISPATCHED, Step.GIVE_UP): _S.UNMATCHED,
        (_S.MATCHED, Step.GIVE_UP): _S.UNMATCHED,
        (_S.ARRIVED, Step.GIVE_UP): _S.UNMATCHED,
        # A new destination, or a ride that took much longer, changes the fare and not the state.
        (_S.REQUESTED, Step.REPRICE): _S.REQUESTED,
        (_S.REDISPATCHED, Step.REPRICE): _S.REDISPATCHED,
        (_S.MATCHED, Step.REPRICE): _S.MATCHED,
        (_S.ARRIVED, Step.REPRICE): _S.ARRIVED,
        (_S.IN_PROGRESS, Step.REPRICE): _S.IN_PROGRESS,
        # Two rides that wait for their first driver can share one.
        (_S.REQUESTED, Step.POOL): _S.REQUESTED,
    }
)
WAITING: Final = frozenset({_S.REQUESTED, _S.REDISPATCHED})
WITH_DRIVER: Final = frozenset({_S.MATCHED, _S.ARRIVED, _S.IN_PROGRESS})
TERMINAL: Final = frozenset({_S.COMPLETED, _S.CANCELLED, _S.UNMATCHED})
Stage = Literal["requested", "matched", "arrived"]
Party = Literal["rider", "driver", "system"]
REDISPATCH_LIMIT: Final = "redispatch_limit"
"""The reason by which booking gives a ride up that too many drivers have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ride:
    """One ride.

    Attributes:
        seq: Counts the ride's events from 1.
        timer_seq: The seq at which the ride entered the present state: the timer of that state carries the same.
        route_m: The way by street that the fare is for, as booking estimates it.
        declined: The drivers who had the ride and left it, or were too late for it.
        fare_minor: What the ride costs as things stand.
        payment: What payment said of the ride's money. It is no step of the ride: `seq` does not count it.
        distance_m: What the driver's odometer said at the end. It decides no price.
        duration_s: From start to end, by booking's clock.
        pool_wish: The ride that the rider would share a car with. It counts while both rides wait for their first
            driver, and is no step of the ride.
        pooled_with: The ride that this one shares its driver with. A ride that ended as part of a pool keeps it, and so
            does one whose rider was on board when the other left.
        single_fare_minor: What the ride costs without the pool, if it has one.
        seeks_partner: Whether the ride waits for a partner before a driver is looked for. The end of that wait is no
            step of the ride.
    """

    ride_id: str
    quote_id: str
    rider_id: str
    pickup: Place
    dropoff: Place
    passengers: int
    route_m: int
    fare_minor: int
    multiplier: float
    surge_version: int | None
    requested_at: datetime
    updated_at: datetime
    simulated: bool
    state: RideState = RideState.REQUESTED
    seq: int = 1
    timer_seq: int = 1
    payment: RidePayment = NOTHING_HEARD
    driver_id: str | None = None
    eta_s: int | None = None
    declined: tuple[str, ...] = ()
    matched_at: datetime | None = None
    arrived_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    distance_m: int | None = None
    duration_s: int | None = None
    cancelled_by: Party | None = None
    reason: str | None = None
    pool_wish: str | None = None
    pooled_with: str | None = None
    single_fare_minor: int | None = None
    seeks_partner: bool = False

    @property
    def waiting(self) -> bool:
        """Whether a driver is being looked for."""
        return self.state in WAITING and not self.seeks_partner

    @property
    def stage(self) -> Stage:
        """The state as a cancellation names it: one who waits again waits as after the request."""
        match self.state:
            case RideState.MATCHED:
                return "matched"
            case RideState.ARRIVED:
                return "arrived"
            case _:
                return "requested"

    @property
    def redispatches(self) -> int:
        """How often another driver was looked for. The last driver of a ride that was given up had no successor."""
        was_given_up = self.state is RideState.UNMATCHED and self.reason == REDISPATCH_LIMIT
        return len(self.declined) - was_given_up

    def _take(self, step: Step, at: datetime, **changes: Any) -> "Ride":  # Any: dataclasses.replace is as loose
        after = TRANSITIONS.get((self.state, step))
        if after is None:
            raise WrongState(self.ride_id, self.state, step)
        # Requests may overtake each other on the way; a ride's own events never go back in time.
        at = max(at, self.updated_at)
        for name, value in changes.items():
            if value is _NOW:
                changes[name] = at
        return replace(self, state=after, seq=self.seq + 1, updated_at=at, **changes)

    def _left_by(self) -> tuple[str, ...]:
        """Return the drivers who had the ride, once the present one has left it."""
        return self.declined if self.driver_id is None else (*self.declined, self.driver_id)

    def by_driver(self, driver_id: str) -> "Ride":
        """Return the ride itself when it is with this driver.

        Raises:
            NotYourRide: It is not.
        """
        if self.driver_id != driver_id:
            raise NotYourRide(self.ride_id, driver_id)
        return self

    def match(self, driver_id: str, *, eta_s: int, at: datetime) -> "Ride":
        """A driver takes the ride. This and all steps below raise `WrongState` where the table has no way."""
        return self._take(Step.MATCH, at, driver_id=driver_id, eta_s=eta_s, matched_at=_NOW, timer_seq=self.seq + 1)

    def arrive(self, *, at: datetime) -> "Ride":
        """The driver waits at the pickup."""
        return self._take(Step.ARRIVE, at, arrived_at=_NOW, timer_seq=self.seq + 1)

    def start(self, *, at: datetime) -> "Ride":
        """The rider is on board."""
        return self._take(Step.START, at, started_at=_NOW, timer_seq=self.seq + 1)

    def driven_s(self, *, at: datetime) -> int:
        """Return how long the rider has been on board, in whole seconds; 0 before the start."""
        return 0 if self.started_at is None else int((max(at, self.updated_at) - self.started_at).total_seconds())

    def complete(self, *, distance_m: int, at: datetime, reason: str | None = None) -> "Ride":
        """The rider has reached the destination and owes the fare; `reason` says why booking ended the ride."""
        return self._take(
            Step.COMPLETE,
            at,
            distance_m=distance_m,
            duration_s=self.driven_s(at=at),
            ended_at=_NOW,
            reason=reason,
        )

    def cancel(self, *, by: Party, reason: str, at: datetime) -> "Ride":
        """The ride ends before its start."""
        return self._take(Step.CANCEL, at, cancelled_by=by, reason=reason, ended_at=_NOW, seeks_partner=False)

    def redispatch(self, *, at: datetime) -> "Ride":
        """The driver cancelled: look for another one, never the same."""
        return self._take(
            Step.REDISPATCH,
            at,
            timer_seq=self.seq + 1,
            driver_id=None,
            eta_s=None,
            matched_at=None,
            arrived_at=None,
            declined=self._left_by(),
        )

    def give_up(self, *, reason: Literal["timeout", "redispatch_limit"], at: datetime) -> "Ride":
        """No driver was found, or the last one who may be tried has left."""
        return self._take(Step.GIVE_UP, at, driver_id=None, reason=reason, ended_at=_NOW, declined=self._left_by())

    def reprice(self, *, dropoff: Place, route_m: int, fare_minor: int, at: datetime) -> "Ride":
        """The ride goes elsewhere or took much longer."""
        return self._take(Step.REPRICE, at, dropoff=dropoff, route_m=route_m, fare_minor=fare_minor)

    def wish_pool(self, partner_ride_id: str) -> "Ride":
        """The rider would share a car with the rider of another ride. The ride's events do not count it.

        Raises:
            RidePooled: The ride is pooled already.
        """
        if (self.state, Step.POOL) not in TRANSITIONS:
            raise WrongState(self.ride_id, self.state, Step.POOL)
        if self.pooled_with is not None:
            raise RidePooled(self.ride_id, self.pooled_with)
        return replace(self, pool_wish=partner_ride_id)

    def pool(self, partner_ride_id: str, *, fare_minor: int, at: datetime) -> "Ride":
        """The ride shares its driver with another one, at a lower fare."""
        return self._take(
            Step.POOL,
            at,
            pool_wish=None,
            pooled_with=partner_ride_id,
            single_fare_minor=self.fare_minor,
            fare_minor=fare_minor,
            seeks_partner=False,
        )

    def stop_seeking_partner(self) -> "Ride":
        """Wait for a driver from now on."""
        return replace(self, seeks_partner=False)

    def leave_pool(self, *, at: datetime) -> "Ride":
        """Leave the pool: the fare is again the one from before it."""
        assert self.single_fare_minor is not None, f"ride {self.ride_id} is not pooled"
        return self._take(Step.REPRICE, at, pooled_with=None, single_fare_minor=None, fare_minor=self.single_fare_minor)


_NOW: Final = object()
"""Stands for the moment of the transition, which `_take` knows."""
