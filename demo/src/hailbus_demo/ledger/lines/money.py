"""Money: what was reserved, charged and given back, by the rules that booking follows.

A quote is the fare of booking's own distance and duration by the price list. That fare is reserved when the ride is
requested. A completed ride is charged once, the quoted fare; one that took much longer is priced anew within bounds,
and what the fare rose by is reserved, too. A ride that is cancelled or finds no driver is given back what was
reserved, once. Nothing else happens to money.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, BookingRide, BookQuote
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOK, BOOKING, ENDED, LOG, state_of
from hailbus_demo.ledger.log import LogAccount, LogReader, Step
from hailbus_demo.ledger.model import Findings, Judgement

BASE_MINOR: Final = 300
PER_KM_MINOR: Final = 134
PER_MINUTE_MINOR: Final = 40
MINIMUM_MINOR: Final = 800
TOLERANCE_PERCENT: Final = 25
TOLERANCE_MINOR: Final = 300
CEILING_PERCENT: Final = 200
"""The published price list, in cents: how far a ride may run over its quote, and what it may cost at most."""

SETTLED_BY: Final = {"completed": "payment.captured", "cancelled": "payment.refunded", "unmatched": "payment.refunded"}
PRICED: Final = frozenset({"ride.requested", "ride.repriced", "ride.completed"})
PAYMENT_STATE: Final = {"payment.captured": "captured", "payment.refunded": "refunded"}


def listed_fare(*, distance_m: int, duration_s: int, multiplier: float) -> int:
    """Return the fare by the price list in cents, rounded half up once, at the end."""
    metered = BASE_MINOR + Decimal(PER_KM_MINOR * distance_m) / 1000 + Decimal(PER_MINUTE_MINOR * duration_s) / 60
    fare = max(metered, Decimal(MINIMUM_MINOR)) * Decimal(str(multiplier))
    return int(fare.quantize(Decimal(1), rounding=ROUND_HALF_UP))


def due_fare(quote: BookQuote, *, duration_s: int) -> int:
    """Return what a ride that took so long costs by the published rules, in cents."""
    metered = listed_fare(distance_m=quote.distance_m, duration_s=duration_s, multiplier=quote.multiplier)
    if metered - quote.fare_minor <= max(TOLERANCE_MINOR, quote.fare_minor * TOLERANCE_PERCENT // 100):
        return quote.fare_minor
    return min(metered, quote.fare_minor * CEILING_PERCENT // 100)


def _offered(reader: LogReader, quote_id: str) -> BookQuote | None:
    """Return a quote by the log: the rider may have been shown it in a run before this book."""
    for step in reader.quotes.get(quote_id, []):
        if step.type == "quote.offered":
            return BookQuote(
                rider_id=step.data["rider_id"],
                fare_minor=int(step.data["fare"]["amount_minor"]),
                multiplier=float(step.data["multiplier"]),
                surge_version=step.data["surge_version"],
                distance_m=int(step.data["distance_m"]),
                duration_s=int(step.data["duration_s"]),
            )
    return None


def _amount(step: Step) -> int:
    return int(step.data["amount"]["amount_minor"])


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
    reserved = by_type.pop("payment.authorised", [])
    if (total := sum(map(_amount, reserved))) != ride.authorised_minor:
        steps_said = f"{total} is reserved by {LOG} in {len(reserved)} steps"
        what = f"ride {ride_id}: {steps_said}, {ride.authorised_minor} by {BOOKING}"
        found.add(what, topic="payments.v1", id=ride_id)
    expected = {}
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
            said = _amount(step)
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
        quote = book.quotes.get(told.quote_id) or _offered(reader, told.quote_id)
        for step in steps:
            said = _amount(step)
            if step.type == "payment.captured":
                total += said
            if quote is not None and said != quote.fare_minor and (step.type == "payment.refunded" or step.seq == 1):
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
        if told.state == "completed" and told.duration_s is not None and quote is not None:
            ended = [step for step in reader.rides.get(ride_id, []) if step.type == "ride.completed"]
            overdue = any(step.data.get("reason") == "ride_timeout" for step in ended)
            # Of a ride that booking had to end, nobody knows how long it took: the quoted fare holds.
            due = quote.fare_minor if overdue else due_fare(quote, duration_s=told.duration_s)
            if due != told.fare_minor:
                what = (
                    f"ride {ride_id}: quoted {quote.fare_minor} and {told.duration_s} s long, it costs {due} by the "
                    f"price list, {told.fare_minor} by {BOOK}"
                )
                found.add(what, id=ride_id)
    for quote_id, offered in book.quotes.items():
        way = {"distance_m": offered.distance_m, "duration_s": offered.duration_s}
        if (listed := listed_fare(**way, multiplier=offered.multiplier)) != offered.fare_minor:
            what = (
                f"quote {quote_id}: {offered.distance_m} m and {offered.duration_s} s at {offered.multiplier} cost "
                f"{listed} by the price list, {offered.fare_minor} by {BOOK}"
            )
            found.add(what, id=quote_id)
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
        reserved = [step for step in payments if step.type == "payment.authorised"]
        for kind, sources in fares.items():
            # Later authorisations are of what the fare rose by: their sum is compared below.
            told = reserved[:1] if kind == "payment.authorised" else [step for step in payments if step.type == kind]
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
        total = sum(map(_amount, reserved))
        for step in refunds:
            if state not in ("cancelled", "unmatched"):
                found.extend([reader.finding(f"ride {ride_id} is {state} and was given money back", step.row)])
            if reserved and _amount(step) != total:
                what = f"ride {ride_id}: {_amount(step)} given back of {total} reserved"
                found.extend([reader.finding(what, step.row)])
        if any(step.type == "payment.captured" for step in payments):  # then all before it has been read
            _judge_prices(found, reader, ride_id, rides, reserved)
    return found.judge(f"the money of {len(reader.payments):,} rides follows their events")


def _judge_prices(
    found: Findings, reader: LogReader, ride_id: str, rides: Sequence[Step], reserved: Sequence[Step]
) -> None:
    """Judge whether a ride's last price is what it cost, and whether its highest one was reserved."""
    first: dict[int, Step] = {}  # an event may be in the log again
    for step in rides:
        if step.type in PRICED:
            first.setdefault(step.seq, step)
    priced = [first[seq] for seq in sorted(first)]
    fares = [int(step.data["fare"]["amount_minor"]) for step in priced]
    for last, step, fare in zip(fares, priced[1:], fares[1:], strict=False):
        if step.type == "ride.completed" and fare != last:
            found.extend([reader.finding(f"ride {ride_id} cost {fare} at the end, {last} before", step.row)])
    total = sum(map(_amount, reserved))
    if reserved and fares and total != max(fares):
        what = f"ride {ride_id}: {total} reserved, its highest fare was {max(fares)}"
        found.extend([reader.finding(what, reserved[-1].row)])


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
