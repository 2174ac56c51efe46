"""What the city page reads of other services' events about rides."""

from dashboard.domain.rides import RideBook
from hailbus.testing.plugin import NeedsRecorder
from ride_events.rides import (
    RideCancelled,
    RideCompleted,
    RideDriverArrived,
    RideMatched,
    RideRedispatched,
    RideRepriced,
    RideRequested,
    RideStarted,
    RideUnmatched,
)

from tests.contract.examples import example

STEPS = (RideRequested, RideMatched, RideRedispatched, RideDriverArrived, RideRepriced, RideStarted)


def test_rides_move_on_and_end(needs: NeedsRecorder) -> None:
    for end in (RideCompleted, RideCancelled, RideUnmatched):
        book = RideBook()
        for seq, kind in enumerate((*STEPS, end), 1):
            event = example(kind).model_copy(update={"seq": seq})
            book.apply(needs("dashboard", event), seq * 1000)
        assert (book.counts.requested, len(book.open), book.counts.repeated) == (1, 0, 0)
        assert len(book.ended) == 1
