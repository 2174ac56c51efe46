"""What booking makes of the events of a payment."""

import itertools
from typing import Any, Literal

import pytest
from booking.app.apply_payment import ApplyPayment
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOnline
from booking.app.offer_quote import OfferQuote
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.domain.driver import DriverStatus
from booking.domain.errors import NotFound, PaymentDue
from booking.domain.payment import NOTHING_HEARD, PaymentNews, PaymentState, RidePayment
from booking.domain.ride import Ride, RideState

from tests.unit.booking.test_timeouts import HERE, THERE, City

Told = tuple[Any, ...]  # Any: kind and amount, then the stage that failed and what is owed


def news(
    seq: int,
    kind: Literal["authorised", "captured", "failed", "released", "refunded"],
    amount_minor: int,
    stage: str = "",
    owed_minor: int | None = None,
) -> PaymentNews:
    return PaymentNews(kind=kind, seq=seq, amount_minor=amount_minor, stage=stage, owed_minor=owed_minor)


def after(*told: Told) -> RidePayment:
    payment = NOTHING_HEARD
    for seq, one in enumerate(told, 1):
        payment = payment.heard(news(seq, *one))
    return payment


@pytest.mark.parametrize(
    ("told", "state", "paid_minor", "owed_minor"),
    [
        ([], PaymentState.PENDING, 0, 0),
        ([("authorised", 900)], PaymentState.AUTHORISED, 0, 0),
        ([("failed", 900, "authorise")], PaymentState.DECLINED, 0, 0),
        ([("authorised", 900), ("released", 900)], PaymentState.RELEASED, 0, 0),
        ([("authorised", 900), ("captured", 900)], PaymentState.CAPTURED, 900, 0),
        ([("authorised", 900), ("captured", 500), ("released", 400)], PaymentState.CAPTURED, 500, 0),
        ([("authorised", 900), ("captured", 900), ("refunded", 200)], PaymentState.REFUNDED, 700, 0),
        ([("authorised", 900), ("captured", 900), ("failed", 950, "refund")], PaymentState.CAPTURED, 900, 0),
        ([("authorised", 900), ("failed", 900, "capture", 900)], PaymentState.DUE, 0, 900),
        ([("failed", 900, "authorise", 900), ("authorised", 900)], PaymentState.DUE, 0, 900),
        ([("failed", 900, "authorise", 900), ("authorised", 900), ("captured", 900)], PaymentState.CAPTURED, 900, 0),
    ],
)
def test_the_last_event_says_where_the_money_is(
    told: list[Told], state: PaymentState, paid_minor: int, owed_minor: int
) -> None:
    payment = after(*told)
    assert (payment.state, payment.paid_minor, payment.owed_minor) == (state, paid_minor, owed_minor)
    assert payment.seq == len(told)


class Paying(City):
    """A city in which payment speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.do(GoOnline(driver_id="d1", position=HERE))
        self.seqs = itertools.count(1)

    def pay(self, *told: Told, ride_id: str = "ride") -> None:
        for one in told:
            self.do(ApplyPayment(ride_id=ride_id, news=news(next(self.seqs), *one)), 60)

    def again(self) -> None:
        self.do(OfferQuote(quote_id="q2", rider_id="r1", pickup=HERE, dropoff=THERE), 3_600)
        self.do(RequestRide(ride_id="another", quote_id="q2"), 3_600)


@pytest.mark.parametrize("stage", ["authorise", "reauthorise"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_declined_authorisation_ends_a_ride_before_its_rider_boards(steps: int, stage: str) -> None:
    city = Paying()
    ride = city.ride()
    driven: list[Command[Ride]] = [
        ReportArrival(ride_id=ride.ride_id, driver_id="d1"),
        StartRide(ride_id=ride.ride_id, driver_id="d1"),
    ]
    for step in driven[:steps]:
        city.do(step, 30)
    city.pay(("failed", 900, stage), ride_id=ride.ride_id)
    ride = city.world.ride(ride.ride_id)
    assert ride.payment.state is PaymentState.DECLINED
    driver = city.world.driver("d1")
    assert driver is not None
    if steps < 2:
        assert (ride.state, ride.cancelled_by, ride.reason) == (RideState.CANCELLED, "system", "payment_failed")
        assert (driver.status, city.timers) == (DriverStatus.FREE, {})
        city.again()  # nothing is owed
    else:
        assert (ride.state, driver.status) == (RideState.IN_PROGRESS, DriverStatus.BUSY)


def test_a_rider_who_owes_money_gets_no_ride_until_it_is_paid() -> None:
    city = Paying()
    ride = city.ride()
    for step in (
        ReportArrival(ride_id=ride.ride_id, driver_id="d1"),
        StartRide(ride_id=ride.ride_id, driver_id="d1"),
        CompleteRide(ride_id=ride.ride_id, driver_id="d1", distance_m=1_000),
    ):
        city.do(step, 30)
    city.pay(("authorised", 900), ("failed", 900, "capture", 900), ride_id=ride.ride_id)
    with pytest.raises(PaymentDue, match=r"rider r1 owes 9.00 USD for ride .*; pay that first"):
        city.again()
    city.world.undo()
    city.pay(("captured", 900), ride_id=ride.ride_id)
    city.do(RequestRide(ride_id="another", quote_id="q2"), 3_600)


def test_money_of_a_ride_that_nobody_knows_is_refused() -> None:
    with pytest.raises(NotFound):
        Paying().pay(("authorised", 900))
