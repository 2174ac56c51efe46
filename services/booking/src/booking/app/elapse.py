"""A timer has elapsed: a quote expires, a ride finds no partner or driver, somebody does not come or end a ride."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never

from ride_events.quotes import QuoteExpired

from booking.app.cancel_ride import NO_SHOW, end, redispatch, tell_unmatched
from booking.app.dispatch import seek_driver
from booking.app.drive import complete_overdue
from booking.app.pools import end_pool
from booking.app.ports import Needs, TimerKind, Work
from booking.domain.errors import NotFound
from booking.domain.ride import RideState

DRIVER_LATE: Final = "driver_late"
"""The reason by which booking takes a ride from a driver who does not arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapse:
    """The time that the subject had for `kind` is over. `seq` is the subject's seq when the timer was set."""

    kind: TimerKind
    subject_id: str
    seq: int
    due_at: datetime

    def needs(self) -> Needs:
        """The quote or the ride."""
        if self.kind == "quote_expiry":
            return Needs(quotes=(self.subject_id,))
        return Needs(rides=(self.subject_id,))

    def decide(self, work: Work) -> bool:
        """Make the transition; return False when the subject has moved on, and there is none to make."""
        try:
            match self.kind:
                case "quote_expiry":
                    return self._expire_quote(work)
                case "match_timeout":
                    return self._give_up(work)
                case "partner_wait":
                    return self._go_alone(work)
                case "no_show":
                    return self._no_show(work)
                case "pickup_timeout":
                    return self._driver_late(work)
                case "ride_timeout":
                    return self._ride_overdue(work)
                case _:
                    assert_never(self.kind)
        except NotFound:
            return False  # the timer outlived a database that was set up anew

    def _expire_quote(self, work: Work) -> bool:
        quote = work.quote(self.subject_id).expire()
        if quote is None:
            return False
        work.put_quote(quote)
        work.record(
            QuoteExpired(
                quote_id=quote.quote_id,
                seq=quote.seq,
                simulated=quote.simulated,
                rider_id=quote.rider_id,
                pickup_cell=quote.pickup.cell,
            ),
            aggregate=quote.quote_id,
            seq=quote.seq,
            at=quote.expires_at,
            story=quote.quote_id,
        )
        return True

    def _give_up(self, work: Work) -> bool:
        ride = work.ride(self.subject_id)
        # A later wait has a timer of its own.
        if not ride.waiting or ride.timer_seq != self.seq:
            return False
        ride = ride.give_up(reason="timeout", at=self.due_at)
        work.put_ride(ride)
        tell_unmatched(work, ride, "timeout")
        end_pool(work, ride)
        return True

    def _go_alone(self, work: Work) -> bool:
        ride = work.ride(self.subject_id)
        if not ride.seeks_partner or ride.timer_seq != self.seq:
            return False
        ride = ride.stop_seeking_partner()
        work.put_ride(ride)
        seek_driver(work, ride)
        return True

    def _no_show(self, work: Work) -> bool:
        ride = work.ride(self.subject_id)
        if ride.state is not RideState.ARRIVED or ride.timer_seq != self.seq:
            return False
        end(work, ride, by="system", reason=NO_SHOW)
        return True

    def _driver_late(self, work: Work) -> bool:
        ride = work.ride(self.subject_id)
        if ride.state is not RideState.MATCHED or ride.timer_seq != self.seq:
            return False
        assert ride.driver_id is not None, f"ride {ride.ride_id} is matched and has no driver"
        redispatch(work, ride, ride.driver_id, reason=DRIVER_LATE)
        return True

    def _ride_overdue(self, work: Work) -> bool:
        ride = work.ride(self.subject_id)
        if ride.state is not RideState.IN_PROGRESS or ride.timer_seq != self.seq:
            return False
        complete_overdue(work, ride)
        return True
