"""What payment says of a ride's money: kept, shown, and with consequences for ride and rider."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from booking.adapters.streams.service import GROUP
from hailbus import Catalogue, ParkingLot, Publisher, Service
from hailbus.database import create_engine
from hailbus.sequence import Sequences
from hailbus.testing import MemoryBus
from ride_events import Money, payments
from ride_events.payments import (
    PaymentAuthorised,
    PaymentCaptured,
    PaymentEvent,
    PaymentFailed,
    PaymentRefunded,
    PaymentReleased,
)

from tests.integration.booking.conftest import PICKUP, Client, StartBooking
from tests.integration.conftest import eventually

FARE = Money(amount_minor=2_397)


def fact(event: type[PaymentEvent], ride: dict[str, Any], seq: int, **more: Any) -> PaymentEvent:
    names = {"ride_id": ride["ride_id"], "rider_id": ride["rider_id"], "payment_id": f"payment-of-{ride['ride_id']}"}
    return event(**{**names, "seq": seq, "amount": FARE, **more})


Say = Callable[[PaymentEvent], Awaitable[object]]


@pytest.fixture
async def say(bus: MemoryBus) -> AsyncIterator[Say]:
    """Publish what payment says."""
    payment = Service("payment", bus=bus)
    publisher: Publisher[PaymentEvent] = payment.publishes(Catalogue.of(payments))
    async with payment.running():
        yield publisher.publish


async def shows(booking: Client, ride: dict[str, Any], **fields: object) -> dict[str, Any]:
    """Wait until booking shows a ride with these fields."""
    found: dict[str, Any] = {}

    async def is_so() -> bool:
        found.update(await booking.get(f"/rides/{ride['ride_id']}"))
        return all(found[name] == value for name, value in fields.items())

    await eventually(is_so)
    return found


async def complete(booking: Client, ride: dict[str, Any]) -> None:
    steps = f"/rides/{ride['ride_id']}"
    for step in ("arrived", "start"):
        await booking.post(f"{steps}/{step}", {"driver_id": "d1"})
    await booking.post(f"{steps}/complete", {"driver_id": "d1", "distance_m": 10_000})


class Desk:
    """What `hailbus parked` sees and does."""

    def __init__(self, database_url: str) -> None:
        self.engine = create_engine(database_url)
        self.lot = ParkingLot(self.engine)

    async def waiting(self) -> dict[str, str]:
        """Parked keys, each with its reason."""
        return {key.key.decode(): key.reason for key in await self.lot.keys(GROUP)}

    async def shows(self, expected: dict[str, str]) -> None:
        async def so() -> bool:
            return await self.waiting() == expected

        await eventually(so)

    async def give_up(self, ride: dict[str, Any]) -> None:
        """Do what `hailbus parked release --accept-gap` does."""
        key = ride["ride_id"].encode()
        await Sequences(self.engine, GROUP).accept_gap("payments.v1", key)
        await self.lot.release(GROUP, "payments.v1", key)


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    desk = Desk(database_url)
    yield desk
    await desk.engine.dispose()


async def test_a_ride_shows_what_its_rider_paid_and_booking_publishes_no_payment(
    start_booking: StartBooking, say: Say
) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        assert (ride["payment"], ride["paid"], ride["owed"]) == (
            "pending",
            {"amount_minor": 0, "currency": "USD"},
            {"amount_minor": 0, "currency": "USD"},
        )
        await complete(booking, ride)
        assert booking.types("payments.v1") == []
        await say(fact(PaymentAuthorised, ride, 1))
        await shows(booking, ride, payment="authorised")
        await say(fact(PaymentCaptured, ride, 2, kind="fare"))
        before = await shows(booking, ride, payment="captured", paid=FARE.model_dump())
        assert (before["state"], before["seq"]) == ("completed", 5)
    async with start_booking() as booking:
        assert await booking.get(f"/rides/{ride['ride_id']}") == before


async def test_a_declined_card_ends_the_ride_and_frees_the_driver(start_booking: StartBooking, say: Say) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        await say(fact(PaymentFailed, ride, 1, reason="insufficient_funds", stage="authorise"))
        ended = await shows(booking, ride, state="cancelled")
        assert (ended["cancelled_by"], ended["reason"], ended["payment"]) == ("system", "payment_failed", "declined")
        assert (await booking.get("/drivers/d1"))["status"] == "free"
        refused = await booking.raw(f"/rides/{ride['ride_id']}/arrived", {"driver_id": "d1"})
        assert refused.json()["type"] == "/problems/wrong-state"


async def test_who_owes_money_is_refused_until_it_is_paid_and_after_a_restart(
    start_booking: StartBooking, say: Say
) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride(rider_id="r1")
        await complete(booking, ride)
        await say(fact(PaymentAuthorised, ride, 1))
        await say(fact(PaymentFailed, ride, 2, reason="card_expired", stage="capture", owed=FARE))
        await shows(booking, ride, payment="due", owed=FARE.model_dump())
    async with start_booking() as booking:
        quote = await booking.quote(rider_id="r1")
        refused = await booking.raw("/rides", {"quote_id": quote["quote_id"]}, key="again")
        problem = refused.json()
        assert (refused.status_code, problem["type"]) == (402, "/problems/payment-due")
        assert problem["detail"].startswith(f"rider r1 owes 23.97 USD for ride {ride['ride_id']}; pay that first")
        other = await booking.quote(rider_id="r2")
        await booking.post("/rides", {"quote_id": other["quote_id"]}, by=("rider", "r2"))
        await say(fact(PaymentCaptured, ride, 3, kind="fare"))
        await shows(booking, ride, payment="captured")
        await booking.post("/rides", {"quote_id": quote["quote_id"]}, key="now")
        # The answer under a key stays the answer.
        assert (await booking.raw("/rides", {"quote_id": quote["quote_id"]}, key="again")).status_code == 402


async def test_nonsense_parks_its_key_and_holds_up_nobody(
    start_booking: StartBooking, bus: MemoryBus, say: Say, desk: Desk
) -> None:
    async with start_booking() as booking:
        ride, other = await booking.ride(), await booking.ride()
        await say(fact(PaymentAuthorised, ride, 1, amount=Money(amount_minor=1, currency="EUR")))
        await say(fact(PaymentAuthorised, {"ride_id": "nobody's", "rider_id": "r"}, 1))
        await say(fact(PaymentAuthorised, {"ride_id": "unknown", "rider_id": "r"}, 1))
        await say(fact(PaymentAuthorised, other, 1))
        await shows(booking, other, payment="authorised")
        unknown = {
            "nobody's": "ride_id \"nobody's\" is no ride's id",
            "unknown": "there is no ride 'unknown'",
        }
        await desk.shows({ride["ride_id"]: "1 EUR is no amount of USD", **unknown})
        await shows(booking, ride, payment="pending")
        await say(fact(PaymentAuthorised, ride, 1))  # what is right comes under the same number
        await shows(booking, ride, payment="authorised")
        await desk.shows(unknown)
        assert not bus.records("payments.v1.booking-dlt")


async def test_an_event_that_is_missing_parks_its_payment_alone_until_it_comes(
    start_booking: StartBooking, say: Say, desk: Desk
) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        await complete(booking, ride)
        other = await booking.ride()
        await say(fact(PaymentAuthorised, ride, 1))
        await say(fact(PaymentReleased, ride, 3, reason="fare_was_lower"))
        await say(fact(PaymentAuthorised, other, 1))
        await shows(booking, other, payment="authorised")
        await desk.shows({ride["ride_id"]: "seq 3 came where 2 was due"})
        await shows(booking, ride, payment="authorised")
        assert "group booking has 1 parked keys" in (await booking.http.get("/readyz")).text
    async with start_booking() as booking:
        assert await booking.get(f"/rides/{ride['ride_id']}") == await shows(booking, ride, payment="authorised")
        await say(fact(PaymentCaptured, ride, 2, kind="fare"))
        await shows(booking, ride, payment="captured", paid=FARE.model_dump())
        await desk.shows({})


async def test_an_amount_under_a_number_that_was_applied_counts_once(
    start_booking: StartBooking, say: Say, desk: Desk
) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        await complete(booking, ride)
        captured = fact(PaymentCaptured, ride, 2, kind="fare")
        await say(captured)  # before its turn
        await say(fact(PaymentAuthorised, ride, 1))
        for _ in range(2):
            await say(captured)  # each under an id of its own
        await say(fact(PaymentReleased, ride, 3, reason="fare_was_lower"))
        await say(fact(PaymentRefunded, ride, 4, reason="complaint", amount=Money(amount_minor=97)))
        await shows(booking, ride, payment="refunded", paid=Money(amount_minor=2_300).model_dump())
        await desk.shows({})


async def test_an_event_that_never_comes_is_given_up_by_hand(start_booking: StartBooking, say: Say, desk: Desk) -> None:
    async with start_booking() as booking:
        await booking.post("/drivers/d1/online", {"position": PICKUP})
        ride = await booking.ride()
        await complete(booking, ride)
        await say(fact(PaymentCaptured, ride, 2, kind="fare"))
        await desk.shows({ride["ride_id"]: "seq 2 came where 1 was due"})
        await desk.give_up(ride)
        await shows(booking, ride, payment="captured", paid=FARE.model_dump())
        await desk.shows({})
        await say(fact(PaymentFailed, ride, 1, reason="card_expired", stage="authorise", owed=FARE))
        other = await booking.ride()
        await say(fact(PaymentAuthorised, other, 1))
        await shows(booking, other, payment="authorised")
        await shows(booking, ride, payment="captured", owed={"amount_minor": 0, "currency": "USD"})
