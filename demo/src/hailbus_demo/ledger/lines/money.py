"""Money: what was reserved, charged, freed and paid back, and whether provider, payment, booking and the log agree.

A quote is the fare of booking's own distance and duration by the price list. That fare is reserved when the ride is
requested, and what it rises by afterwards, too. A completed ride is charged once, the fare of its last event. A ride
that was cancelled late, or whose rider did not come, is charged a fee out of what was reserved. Whatever was reserved
and not charged is freed. What the provider declines stays owed. Nothing else happens to money.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NamedTuple

from hailbus_demo.ledger.accounts import (
    Accounts,
    BookAccount,
    BookingAccount,
    BookQuote,
    Payment,
    PaymentAccount,
    ProviderAccount,
    Sums,
)
from hailbus_demo.ledger.lines.pooling import pooled_fare
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.lines.rides import BOOK, BOOKING, LOG, state_of
from hailbus_demo.ledger.log import LogAccount, LogReader, Step, milliseconds
from hailbus_demo.ledger.model import Findings, Judgement

PAID: Final = "payments.v1 in the log"
PROVIDER: Final = "the payment provider's books"
PAYMENT: Final = "payment's database"
BASE_MINOR: Final = 300
PER_KM_MINOR: Final = 134
PER_MINUTE_MINOR: Final = 40
MINIMUM_MINOR: Final = 800
TOLERANCE_PERCENT: Final = 25
TOLERANCE_MINOR: Final = 300
CEILING_PERCENT: Final = 200
"""The published price list, in cents: how far a ride may run over its quote, and what it may cost at most."""

CANCELLATION_FEE_MINOR: Final = 500
FREE_CANCELLATION_MS: Final = 120_000
NO_SHOW_FEE_MINOR: Final = 500
"""The published fees, in cents, and how long after a driver took the ride a rider may cancel for nothing."""

PRICED: Final = frozenset({"ride.requested", "ride.repriced", "ride.pooled", "ride.completed"})
MOVED_BY: Final = {
    "payment.authorised": "authorise",
    "payment.captured": "capture",
    "payment.released": "release",
    "payment.refunded": "refund",
}
"""Event type → the provider's kind of movement."""


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


class Told(NamedTuple):
    """What the events of a ride's payment come to, each event counted once."""

    sums: Sums
    owed: int
    seq: int
    state: str


def told_by(steps: Sequence[Step]) -> Told:
    """Add up the events of a ride's payment; `state` is what booking must show after them."""
    amounts: Counter[str] = Counter()
    owed = seq = 0
    state = "pending"
    for step in steps:
        amount = _amount(step)
        seq = max(seq, step.seq)
        amounts[step.type] += amount
        match step.type:
            case "payment.authorised":
                state = "authorised"
            case "payment.captured":
                state, owed = "captured", 0
            case "payment.released":
                state = state if amounts["payment.captured"] else "released"
            case "payment.refunded":
                state = "refunded"
            case "payment.failed":
                owed = int(step.data["owed"]["amount_minor"]) if step.data.get("owed") else owed
                state = "declined" if step.data["stage"] in ("authorise", "reauthorise") else state
        if owed:
            state = "due"
    return Told(Sums(*(amounts[kind] for kind in MOVED_BY)), owed, seq, state)


def due_of(rides: Sequence[Step], *, is_reserved: bool) -> tuple[str, int] | None:
    """Return for what a rider must be charged, and how much, by the ride's events; None before its end.

    Args:
        rides: The ride's events.
        is_reserved: Whether anything was reserved: a fee is waived where nothing was.
    """
    last = max(rides, key=lambda step: step.seq)
    if last.type == "ride.completed":
        return "fare", int(last.data["fare"]["amount_minor"])
    if last.type == "ride.cancelled" and is_reserved:
        said, matched_at = last.data, last.data.get("matched_at")
        if said["reason"] == "no_show" and said["stage"] == "arrived" and said["by"] != "rider":
            return "no_show_fee", NO_SHOW_FEE_MINOR
        waited_ms = 0 if matched_at is None else last.time_ms - milliseconds(matched_at)
        if said["by"] == "rider" and said["stage"] in ("matched", "arrived") and waited_ms > FREE_CANCELLATION_MS:
            return "cancellation_fee", CANCELLATION_FEE_MINOR
    return ("none", 0) if last.type in ("ride.cancelled", "ride.unmatched") else None


def _amount(step: Step) -> int:
    return int(step.data["amount"]["amount_minor"])


def _dollars(minor: int) -> str:
    return f"{minor / 100:,.2f}"


# ---------------- rides.v1 and payments.v1


def _rides_payments(accounts: Accounts) -> Judgement:
    log = accounts.log
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    charged = owed = 0
    for ride_id in sorted(reader.rides.keys() | reader.payments.keys()):
        rides, payments = reader.rides.get(ride_id, []), reader.payments.get(ride_id, [])
        told = told_by(payments)
        charged, owed = charged + told.sums.captured, owed + told.owed
        request = next((step for step in rides if step.type == "ride.requested"), None)
        if request is None:
            for step in payments:
                found.extend([reader.finding(f"ride {ride_id}: {step.type}, and nothing in rides.v1 for it", step.row)])
            continue
        if not payments:
            if not accounts.so_far:
                found.extend([reader.finding(f"ride {ride_id}: ride.requested and no event of a payment", request.row)])
            continue
        _judge_who(found, reader, ride_id, request, payments)
        _judge_fares(found, reader, ride_id, rides)
        _judge_amounts(found, reader, ride_id, rides, payments, told, so_far=accounts.so_far)
    later = f", {_dollars(owed)} are owed" if owed else ""
    return found.judge(
        f"the money of {len(reader.payments):,} rides follows their events: {_dollars(charged)} were charged{later}"
    )


def _judge_who(found: Findings, reader: LogReader, ride_id: str, request: Step, payments: Sequence[Step]) -> None:
    """Judge whose money it is, and whether the ride has one payment."""
    if (ids := len({step.data["payment_id"] for step in payments})) > 1:
        found.extend([reader.finding(f"ride {ride_id} has {ids} payments", payments[-1].row)])
    for step in payments:
        if step.data["rider_id"] != request.data["rider_id"]:
            what = (
                f"ride {ride_id}: the money is {step.data['rider_id']}'s, {request.data['rider_id']} requested the ride"
            )
            found.extend([reader.finding(what, step.row)])


def _priced(rides: Sequence[Step]) -> list[Step]:
    """Return the events that name the ride's price, in order, each once: an event may be in the log again."""
    first: dict[int, Step] = {}
    for step in rides:
        if step.type in PRICED:
            first.setdefault(step.seq, step)
    return [first[seq] for seq in sorted(first)]


def _fares(rides: Sequence[Step]) -> list[int]:
    return [int(step.data["fare"]["amount_minor"]) for step in _priced(rides)]


def _judge_fares(found: Findings, reader: LogReader, ride_id: str, rides: Sequence[Step]) -> None:
    """Judge whether a ride's last price is what it cost."""
    fares = _fares(rides)
    for last, step, fare in zip(fares, _priced(rides)[1:], fares[1:], strict=False):
        if step.type == "ride.completed" and fare != last:
            found.extend([reader.finding(f"ride {ride_id} cost {fare} at the end, {last} before", step.row)])


def _judge_amounts(
    found: Findings,
    reader: LogReader,
    ride_id: str,
    rides: Sequence[Step],
    payments: Sequence[Step],
    told: Told,
    *,
    so_far: bool,
) -> None:
    """Judge what was reserved, charged and freed by what happened to the ride."""
    sums, fares = told.sums, _fares(rides)
    asked = [step for step in payments if step.type in ("payment.authorised", "payment.failed")]
    if asked and _amount(asked[0]) != fares[0]:
        what = f"ride {ride_id}: {asked[0].type} of {_amount(asked[0])}, its ride.requested says {fares[0]}"
        found.extend([reader.finding(what, asked[0].row)])
    last = payments[-1].row
    if sums.authorised > max(fares):
        found.extend(
            [reader.finding(f"ride {ride_id}: {sums.authorised} reserved, its highest fare was {max(fares)}", last)]
        )
    if sums.captured + sums.released > sums.authorised or sums.refunded > sums.captured:
        found.extend([reader.finding(f"ride {ride_id}: more moved than there was: {sums}", last)])
    captured = [step for step in payments if step.type == "payment.captured"]
    for extra in captured[1:]:
        found.extend([reader.finding(f"ride {ride_id}: payment.captured a second time", extra.row)])
    due = due_of(rides, is_reserved=sums.authorised > 0)
    if due is None:
        for step in payments:
            if step.type in ("payment.captured", "payment.released", "payment.refunded"):
                what = f"ride {ride_id} is {state_of(list(rides))}: {step.type} must not be before its end"
                found.extend([reader.finding(what, step.row)])
        return
    kind, amount = due
    for step in captured:
        if step.data["kind"] != kind or _amount(step) != amount:
            said = f"{step.type} of {_amount(step)} for {step.data['kind']}"
            found.extend([reader.finding(f"ride {ride_id}: {said}, due is {amount} for {kind}", step.row)])
    if so_far:
        return
    ended = max(rides, key=lambda step: step.seq)
    if not captured and told.owed != amount:
        what = f"ride {ride_id}: {amount} is due for {kind}, nothing was charged and {told.owed} is owed"
        found.extend([reader.finding(what, ended.row)])
    held = sums.authorised - sums.captured - sums.released
    if held > 0 and not told.owed:
        found.extend([reader.finding(f"ride {ride_id} has ended and {held} is still reserved", ended.row)])


# ---------------- the provider and the log


def moved_by(provider: ProviderAccount) -> Sums:
    """Return all that the provider moved."""
    totals: Counter[str] = Counter()
    for movement in provider.movements:
        totals[movement.kind] += movement.amount
    return Sums(*(totals[kind] for kind in MOVED_BY.values()))


def _provider_log(accounts: Accounts) -> Judgement:
    log, provider = accounts.log, accounts.provider
    assert isinstance(log, LogAccount)
    assert isinstance(provider, ProviderAccount)
    reader, found = log.reader, Findings()
    moved: dict[str, Counter[tuple[str, int]]] = {}
    by_authorisation: dict[str, Counter[str]] = {}
    rides = {movement.authorisation_id: movement.reference for movement in provider.movements}
    for movement in provider.movements:
        moved.setdefault(movement.reference, Counter())[movement.kind, movement.amount] += 1
        by_authorisation.setdefault(movement.authorisation_id, Counter())[movement.kind] += movement.amount
        if movement.currency != "USD":
            found.add(f"ride {movement.reference}: the provider moved {movement.currency}", id=movement.reference)
    for name in sorted(by_authorisation.keys() | provider.authorisations.keys()):
        reference, sums = provider.authorisations.get(name) or (rides[name], Sums())
        listed = Sums(*(by_authorisation.get(name, Counter())[kind] for kind in MOVED_BY.values()))
        if sums != listed:
            what = f"authorisation {name} of ride {reference} holds {sums} by {PROVIDER}, its movements {listed}"
            found.add(what, id=reference)
    for ride_id in sorted(moved.keys() | reader.payments.keys()):
        steps = reader.payments.get(ride_id, [])
        said = Counter((MOVED_BY[step.type], _amount(step)) for step in steps if step.type in MOVED_BY)
        theirs = moved.get(ride_id, Counter())
        _judge_movements(
            found, reader, ride_id, steps, said - theirs, _not_on_its_way(accounts, ride_id, theirs - said)
        )
    sums = moved_by(provider)
    return found.judge(
        f"{len(provider.movements):,} movements, in dollars: {_dollars(sums.authorised)} authorised, "
        f"{_dollars(sums.captured)} captured, {_dollars(sums.released)} released, {_dollars(sums.refunded)} refunded"
    )


def _not_on_its_way(accounts: Accounts, ride_id: str, ahead: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """Return the provider's movements that payment cannot be about to publish: during the run one may be under way."""
    if accounts.so_far and isinstance(accounts.payment, PaymentAccount) and ahead.total() == 1:
        payment = accounts.payment.payments.get(ride_id)
        if payment is None or payment.step is not None:
            return Counter()
    return ahead


def _judge_movements(
    found: Findings,
    reader: LogReader,
    ride_id: str,
    steps: Sequence[Step],
    only_said: Counter[tuple[str, int]],
    only_moved: Counter[tuple[str, int]],
) -> None:
    for (kind, amount), count in sorted(only_said.items()):
        rows = [step.row for step in steps if MOVED_BY.get(step.type) == kind and _amount(step) == amount]
        what = f"ride {ride_id}: {kind} of {amount} is {count} times more often in {LOG} than in {PROVIDER}"
        found.extend([reader.finding(what, rows[-1])])
    for (kind, amount), count in sorted(only_moved.items()):
        what = f"ride {ride_id}: {kind} of {amount} is {count} times more often in {PROVIDER} than in {LOG}"
        found.add(what, topic="payments.v1", id=ride_id)


# ---------------- payment and the log


def _payment_log(accounts: Accounts) -> Judgement:
    log, payment = accounts.log, accounts.payment
    assert isinstance(log, LogAccount)
    assert isinstance(payment, PaymentAccount)
    reader, found = log.reader, Findings()
    states: Counter[str] = Counter()
    for ride_id in sorted(payment.payments.keys() | reader.payments.keys()):
        kept, steps = payment.payments.get(ride_id), reader.payments.get(ride_id, [])
        if kept is None:
            found.extend([reader.finding(f"ride {ride_id} has a payment by {LOG} and none by {PAYMENT}", steps[0].row)])
            continue
        states[kept.state.lower()] += 1
        _judge_kept(found, ride_id, kept, told_by(steps), so_far=accounts.so_far)
    shown = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    return found.judge(f"{len(payment.payments):,} payments have the amounts that were published: {shown or 'none'}")


def _judge_kept(found: Findings, ride_id: str, kept: Payment, told: Told, *, so_far: bool) -> None:
    ours, theirs = (kept.sums, kept.owed, kept.seq), (told.sums, told.owed, told.seq)
    for name, one, other in zip(("the money", "what is owed", "the last event"), ours, theirs, strict=True):
        # While the provider is asked again for what it declined, the log still says that it is owed.
        is_asked = so_far and kept.step is not None and name == "what is owed"
        if one != other and not is_asked:
            found.add(
                f"ride {ride_id}: {name} is {one} by {PAYMENT}, {other} by {LOG}", topic="payments.v1", id=ride_id
            )
    if kept.step is not None and not so_far:
        found.add(f"ride {ride_id}: the provider has not answered {kept.step}", topic="payments.v1", id=ride_id)


# ---------------- booking, riders, the log


def _booking_log(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    reader, found = log.reader, Findings()
    paid = 0
    for ride_id in sorted(booking.rides.keys() | reader.payments.keys()):
        ride, steps = booking.rides.get(ride_id), reader.payments.get(ride_id, [])
        if ride is None:
            found.extend([reader.finding(f"money of ride {ride_id}, which is not in {BOOKING}", steps[0].row)])
            continue
        paid += ride.paid_minor
        told = told_by(steps)
        ours = (ride.paid_minor, ride.owed_minor, ride.payment)
        theirs = (told.sums.captured - told.sums.refunded, told.owed, told.state)
        for name, one, other in zip(("paid", "owed", "its payment"), ours, theirs, strict=True):
            if one != other:
                what = f"ride {ride_id}: {name} is {one} by {BOOKING}, {other} by {LOG}"
                found.add(what, topic="payments.v1", id=ride_id)
    return found.judge(f"{len(booking.rides):,} rides: {_dollars(paid)} were paid, as payment published")


def _book_log(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    reader, found = log.reader, Findings()
    total = 0
    for ride_id, told in book.rides.items():
        steps = reader.payments.get(ride_id, [])
        quote = book.quotes.get(told.quote_id) or _offered(reader, told.quote_id)
        if quote is not None and steps and steps[0].seq == 1 and (said := _amount(steps[0])) != quote.fare_minor:
            what = f"ride {ride_id}: {steps[0].type} of {said} by {LOG}, quoted {quote.fare_minor} by {BOOK}"
            found.extend([reader.finding(what, steps[0].row)])
        captured = [step for step in steps if step.type == "payment.captured"]
        total += sum(map(_amount, captured))
        for step in captured:
            if told.state == "completed" and (said := _amount(step)) != told.fare_minor:
                what = f"ride {ride_id}: charged {said} by {LOG}, {told.fare_minor} by {BOOK}"
                found.extend([reader.finding(what, step.row)])
        if told.state == "completed" and not captured and not told_by(steps).owed and not accounts.so_far:
            what = f"the rider was told that ride {ride_id} is completed; nothing was charged or is owed by {LOG}"
            found.add(what, topic="payments.v1", id=ride_id)
        if told.state == "completed" and told.duration_s is not None and quote is not None:
            rides = reader.rides.get(ride_id, [])
            ended = [step for step in rides if step.type == "ride.completed"]
            overdue = any(step.data.get("reason") == "ride_timeout" for step in ended)
            # Of a ride that booking had to end, nobody knows how long it took: the quoted fare holds.
            due = quote.fare_minor if overdue else due_fare(quote, duration_s=told.duration_s)
            if (pooled := pooled_fare(rides)) is not None:
                due = pooled  # however long it took: the way to the partner's ends is no cost of the rider's
            if due != told.fare_minor:
                what = (
                    f"ride {ride_id}: quoted {quote.fare_minor} and {told.duration_s} s long, it costs {due} by the "
                    f"price list, {told.fare_minor} by {BOOK}"
                )
                found.add(what, id=ride_id)
    _judge_quotes(found, book.quotes.items())
    return found.judge(f"{_dollars(total)} were charged for {len(book.rides):,} rides, as quoted and told")


def _judge_quotes(found: Findings, quotes: Iterable[tuple[str, BookQuote]]) -> None:
    """Judge whether each quoted fare follows from its distance, its duration and its multiplier."""
    for quote_id, offered in quotes:
        way = {"distance_m": offered.distance_m, "duration_s": offered.duration_s}
        if (listed := listed_fare(**way, multiplier=offered.multiplier)) != offered.fare_minor:
            what = (
                f"quote {quote_id}: {offered.distance_m} m and {offered.duration_s} s at {offered.multiplier} cost "
                f"{listed} by the price list, {offered.fare_minor} by {BOOK}"
            )
            found.add(what, id=quote_id)


LINES: Final = (
    LineSpec(
        id="money-rides-payments",
        name="the money follows the rides",
        between=("rides.v1 in the log", PAID),
        needs=("log",),
        judge=_rides_payments,
    ),
    LineSpec(
        id="money-provider-log",
        name="the provider moved what payment published, to the cent",
        between=(PROVIDER, PAID),
        needs=("provider", "log"),
        judge=_provider_log,
    ),
    LineSpec(
        id="money-payment-log",
        name="payment holds what it published, and nothing is under way",
        between=(PAYMENT, PAID),
        needs=("payment", "log"),
        judge=_payment_log,
    ),
    LineSpec(
        id="money-booking-log",
        name="each ride shows what its rider paid and owes",
        between=(BOOKING, PAID),
        needs=("booking", "log"),
        judge=_booking_log,
    ),
    LineSpec(
        id="money-book-log",
        name="riders were charged what they were told",
        between=(BOOK, PAID),
        needs=("book", "log"),
        judge=_book_log,
    ),
)
