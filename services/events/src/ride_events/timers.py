"""Booking's own timers: a timeout is an event that is published later, not a sleep. Owner: booking."""

from datetime import datetime, timedelta
from typing import Literal

from hailbus import Event, Topic

BOOKING_TIMERS = Topic(
    "booking-timers.v1", partitions=6, retention=timedelta(days=7), description="Timeouts that have come due"
)


class TimerElapsed(Event, topic=BOOKING_TIMERS, key="subject_id", type="booking.timer_elapsed", version=1):
    """The time that `subject_id` (a quote or a ride) had for `kind` is over.

    `seq` is the subject's seq at which the timer was set.
    """

    subject_id: str
    kind: Literal["quote_expiry", "match_timeout", "no_show"]
    seq: int
    due_at: datetime
    simulated: bool = False


class RideOverdue(Event, topic=BOOKING_TIMERS, key="ride_id", type="booking.ride_overdue", version=1):
    """A ride has been in `state` for longer than it may: it has no partner, or the driver has not arrived or ended it.

    `seq` is the ride's seq at which it entered the state. `state` is `seeking_partner`, `matched` or `in_progress`;
    readers must expect more of them.
    """

    ride_id: str
    state: str
    seq: int
    due_at: datetime
    simulated: bool = False
