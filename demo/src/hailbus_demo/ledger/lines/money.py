"""Money: what was reserved, charged and given back, by the rules that booking follows.

A ride's fare is reserved once, when it is requested, at the quoted fare. A completed ride is charged once, the fare of
the way that was driven at the quote's multiplier; a ride that is cancelled or finds no driver is given back what was
reserved, once. Nothing else happens to money.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, BookingRide
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOK, BOOKING, ENDED, LOG, state_of
from hailbus_demo.ledger.log import LogAccount, LogReader, Step
from hailbus_demo.ledger.model import Findings, Judgement

BASE_MINOR: Final = 300
PER_KM_MINOR: Final = 134
PER_MINUTE_MINOR: Final = 40
MINIMUM_MINOR: Final = 800
"""The published price list, in cents."""

SETTLED_BY: Final = {"completed": "payment.captured", "cancelled": "payment.refunded", "unmatched": "payment.refunded"}
PAYMENT_STATE: Final = {"payment.captured": "captured", "payment.refunded": "refunded"}


def listed_fare(*, distance_m: int, duration_s: int, multiplier: float) -> int:
    """Return the fare by the price list in cents, rounded half up once, at the end."""
    metered = BASE_MINOR + Decimal(PER_KM_MINOR * distance_m) / 1000 + Decimal(PER_MINUTE_MINOR * duration_s) / 60
    fare = max(metered, Decimal(MINIMUM_MINOR)) * Decimal(str(multiplier))
    return int(fare.quantize(Decimal(1), rounding=ROUND_HALF_UP))


def _booking_log(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    reader, found = log.reader, Findings()
    charged = 0
    for ride_id in sorted(booking.rides.keys() | reader.payments.keys()):
        ride, steps = booking.rides.get(ride_id), reader.payments.get(ride_id, [])
        if ride is None:
            found.extend([reader.finding(f"money of ride {ride_id}, which is not in {BOOKING}", steps[0].row)])
            continue
        charged += _settled(found, reader, ride_id, ride, steps)
    return found.judge(
        f"{len(booking.rides):,} rides: each fare reserved once, {charged:,} charged once, the rest given back"
    )


def _settled(found: Findings, reader: LogReader, ride_id: str, ride: BookingRide, steps: list[Step]) -> bool:
    """Judge the money of one ride; return whether it was charged."""
    by_type: dict[str, list[Step]] = {}
    for step in steps:
        by_type.setdefault(step.type, []).append(step)
    due = SETTLED_BY.get(ride.state)
    expected = {"payment.authorised": ride.authorised_minor}
    if due is not None:
        expected[due] = ride.fare_minor if due == "payment.captured" else ride.authorised_minor
    for kind, amount in expected.items():
        told = by_type.pop(kind, [])
        if not told:
            found.add(
                f"ride {ride_id} is {ride.state}: {kind} of {amount} is due and not in {LOG}",
                topic="payments.v1",
                id=ride_id,
            )
        for extra in told[1:]:
            found.extend([reader.finding(f"ride {ride_id}: {kind} a second time", extra.row)])
        for step in told:
            said = step.data["amount"]["amount_minor"]
            if said != amount:
                what = f"ride {ride_id}: {kind} of {said} by {LOG}, {amount} by {BOOKING}"
                found.extend([reader.finding(what, step.row)])
    for kind, surplus in sorted(by_type.items()):
        for step in surplus:
            found.extend([reader.finding(f"ride {ride_id} is {ride.state}: {kind} must not be", step.row)])
    payment_ids = {step.data["payment_id"] for step in steps}
    if len(payment_ids) > 1:
        found.extend([reader.finding(f"ride {ride_id} has {len(payment_ids)} payments", steps[-1].row)])
    for step in steps:
        if step.data["rider_id"] != ride.rider_id:
            what = f"ride {ride_id}: the money is {step.data['rider_id']}'s by {LOG}, {ride.rider_id}'s by {BOOKING}"
            found.extend([reader.finding(what, step.row)])
    state = PAYMENT_STATE.get(due or "", "authorised")
    if ride.payment != state:
        found.add(f"ride {ride_id} is {ride.state} and its payment {ride.payment!r} by {BOOKING}", id=ride_id)
    return due == "payment.captured"


def _book_log(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    total = 0
    for ride_id, told in book.rides.items():
        steps = reader.payments.get(ride_id, [])
        quote = book.quotes.get(told.quote_id)
        for step in steps:
            said = int(step.data["amount"]["amount_minor"])
            if step.type == "payment.captured":
                total += said
            if (
                quote is not None
                and step.type in ("payment.authorised", "payment.refunded")
                and said != quote.fare_minor
            ):
                what = f"ride {ride_id}: {step.type} of {said} by {LOG}, quoted {quote.fare_minor} by {BOOK}"
                found.extend([reader.finding(what, step.row)])
            if step.type == "payment.captured" and told.state in ENDED and said != told.fare_minor:
                what = f"ride {ride_id}: charged {said} by {LOG}, {told.fare_minor} by {BOOK}"
                found.extend([reader.finding(what, step.row)])
        if told.state in ENDED and not any(step.type == SETTLED_BY[told.state] for step in steps):
            found.add(
                f"the rider was told that ride {ride_id} is {told.state}; {SETTLED_BY[told.state]} is not in {LOG}",
                topic="payments.v1",
                id=ride_id,
            )
        if told.state == "completed" and told.distance_m is not None and told.duration_s is not None:
            multiplier = told.multiplier if quote is None else quote.multiplier
            listed = listed_fare(distance_m=told.distance_m, duration_s=told.duration_s, multiplier=multiplier)
            if listed != told.fare_minor:
                what = (
                    f"ride {ride_id}: {told.distance_m} m and {told.duration_s} s at {multiplier} cost {listed} by the "
                    f"price list, {told.fare_minor} by {BOOK}"
                )
                found.add(what, id=ride_id)
    return found.judge(f"{total / 100:,.2f} were charged for {len(book.rides):,} rides, as quoted and told")


def _rides_payments(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    for ride_id in sorted(reader.rides.keys() | reader.payments.keys()):
        rides, payments = reader.rides.get(ride_id, []), reader.payments.get(ride_id, [])
        fares = {
            "payment.authorised": [s for s in rides if s.type == "ride.requested"],
            "payment.captured": [s for s in rides if s.type == "ride.completed"],
        }
        for kind, sources in fares.items():
            told = [step for step in payments if step.type == kind]
            for step in told:
                said = step.data["amount"]
                if not sources:
                    found.extend([reader.finding(f"ride {ride_id}: {kind}, and nothing in rides.v1 for it", step.row)])
                elif said != sources[0].data["fare"]:
                    what = (
                        f"ride {ride_id}: {kind} of {said['amount_minor']}, its {sources[0].type} says "
                        f"{sources[0].data['fare']['amount_minor']}"
                    )
                    found.extend([reader.finding(what, step.row)])
            if sources and not told and not accounts.so_far:
                found.extend([reader.finding(f"ride {ride_id}: {sources[0].type} without {kind}", sources[0].row)])
        state = state_of(rides)
        refunds = [step for step in payments if step.type == "payment.refunded"]
        if state in ("cancelled", "unmatched") and not refunds:
            last = max(rides, key=lambda step: step.seq)
            found.extend([reader.finding(f"ride {ride_id} is {state} and nothing was given back", last.row)])
        reserved = [step.data["amount"] for step in payments if step.type == "payment.authorised"]
        for step in refunds:
            if state not in ("cancelled", "unmatched"):
                found.extend([reader.finding(f"ride {ride_id} is {state} and was given money back", step.row)])
            if reserved and step.data["amount"] != reserved[0]:
                said, had = step.data["amount"]["amount_minor"], reserved[0]["amount_minor"]
                found.extend([reader.finding(f"ride {ride_id}: {said} given back of {had} reserved", step.row)])
    return found.judge(f"the money of {len(reader.payments):,} rides follows their events")


LINES: Final = (
    LineSpec(
        id="money-booking-log",
        name="each ride was charged once or given its money back",
        between=(BOOKING, "payments.v1 in the log"),
        needs=("booking", "log"),
        judge=_booking_log,
    ),
    LineSpec(
        id="money-book-log",
        name="riders were charged what they were told",
        between=(BOOK, "payments.v1 in the log"),
        needs=("book", "log"),
        judge=_book_log,
    ),
    LineSpec(
        id="money-rides-payments",
        name="the money follows the rides",
        between=("rides.v1 in the log", "payments.v1 in the log"),
        needs=("log",),
        judge=_rides_payments,
    ),
)
