"""Faults of money: of payment and its database, of the provider's books, and of what booking shows."""

from __future__ import annotations

import json
from typing import Any, Final

from hailbus_demo.ledger.log import LogRecord
from hailbus_demo.ledger.model import Finding

from tests.integration.demo.faults.declared import NEW_ID, Faults, at, everywhere, ride_in
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAULTS: Final = Faults()


def usd(amount_minor: int) -> dict[str, Any]:
    return {"amount_minor": amount_minor, "currency": "USD"}


def said(record: LogRecord) -> int:
    return int(data(record)["amount"]["amount_minor"])


def again(run: RecordedRun, record: LogRecord, **fields: Any) -> LogRecord:
    """Have payment publish one more event like a record, with an id of its own; return its record."""
    made = run.append(with_header(with_data(record, **fields), "ce_id", NEW_ID))
    run.outbox(made)
    return made


def of_another_ride(run: RecordedRun) -> LogRecord:
    """Have payment publish a charge of a ride that there is not; return its record."""
    paid = run.find("payment.captured")
    made = with_header(with_data(paid, ride_id=NEW_ID)._replace(key=NEW_ID.encode()), "ce_id", NEW_ID)
    made = run.append(with_header(made, "ce_subject", NEW_ID))
    run.outbox(made)
    return made


@FAULTS.declare("payment", "a ride is charged a second time under an id of its own", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    return at(again(run, paid, seq=3), f"ride {ride_id}: payment.captured a second time")


@FAULTS.declare("payment", "a rider is charged another fare than the ride's", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, amount=usd(191_900)))
    return at(paid, f"ride {ride_id}: payment.captured of 191900 for fare, due is")


@FAULTS.declare("payment", "a rider is charged a fee for a ride that was completed", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, kind="no_show_fee"))
    return at(paid, f"ride {ride_id}: payment.captured of {said(paid)} for no_show_fee, due is {said(paid)} for fare")


@FAULTS.declare("payment", "what was reserved for a ride without a driver is not freed", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, freed = ride_in(run, "unmatched")
    run.sql("payment", "DELETE FROM hailbus_outbox WHERE id = ?", header(freed, "ce_id"))
    run.take_out(freed)
    ended = run.find("ride.unmatched", ride_id=ride_id)
    return at(ended, f"ride {ride_id} has ended and {said(freed)} is still reserved")


@FAULTS.declare("payment", "less is freed than was reserved", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, freed = ride_in(run, "unmatched")
    everywhere(run, with_data(freed, amount=usd(5)))
    ended = run.find("ride.unmatched", ride_id=ride_id)
    return at(ended, f"ride {ride_id} has ended and {said(freed) - 5} is still reserved")


@FAULTS.declare("payment", "more is freed than was reserved", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, freed = ride_in(run, "unmatched")
    everywhere(run, with_data(freed, amount=usd(said(freed) + 1)))
    return at(freed, f"ride {ride_id}: more moved than there was")


@FAULTS.declare("payment", "more is reserved than the ride ever cost", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    reserved = run.find("payment.authorised", ride_id=ride_id)
    made = again(run, reserved, seq=data(paid)["seq"] + 1)
    return at(made, f"ride {ride_id}: {said(paid) + said(reserved)} reserved, its highest fare was {said(paid)}")


@FAULTS.declare("payment", "a ride is charged before its end", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.take_out(run.find("ride.completed", ride_id=ride_id))
    return at(paid, f"ride {ride_id} is in_progress: payment.captured must not be before its end")


@FAULTS.declare("payment", "money is taken for a ride that was never requested", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    return at(of_another_ride(run), f"ride {NEW_ID}: payment.captured, and nothing in rides.v1 for it")


@FAULTS.declare("payment", "money is taken for a ride that booking does not know", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    return at(of_another_ride(run), f"money of ride {NEW_ID}, which is not in booking's database")


@FAULTS.declare("payment", "a ride is charged under another payment than it was authorised", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, payment_id="another"))
    return at(paid, f"ride {ride_id} has 2 payments")


@FAULTS.declare("payment", "another rider pays", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, rider_id="another"))
    return at(paid, f"ride {ride_id}: the money is another's")


@FAULTS.declare("payment", "another amount is charged than booking shows", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, amount=usd(said(paid) + 1)))
    what = f"ride {ride_id}: paid is {said(paid)} by booking's database, {said(paid) + 1} by the log"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("payment", "another amount is reserved than the rider was quoted", "money-book-log")
def _(run: RecordedRun) -> Finding:
    reserved = run.find("payment.authorised")
    told = data(reserved)
    everywhere(run, with_data(reserved, amount=usd(said(reserved) + 1)))
    return at(reserved, f"ride {told['ride_id']}: payment.authorised of {said(reserved) + 1} by the log, quoted")


@FAULTS.declare("payment", "another amount is reserved than the ride's fare", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    reserved = run.find("payment.authorised")
    ride_id = data(reserved)["ride_id"]
    everywhere(run, with_data(reserved, amount=usd(said(reserved) - 1)))
    what = f"ride {ride_id}: payment.authorised of {said(reserved) - 1}, its ride.requested says {said(reserved)}"
    return at(reserved, what)


@FAULTS.declare("payment", "a refund is published that the provider did not make", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    made = with_header(with_data(paid, seq=3, reason="late"), "ce_type", "payment.refunded")
    made = with_header(with_header(made, "ce_dataschema", "hailbus:payment.refunded/v1"), "ce_id", NEW_ID)
    made = run.append(made)
    run.outbox(made)
    what = f"ride {ride_id}: refund of {said(paid)} is 1 times more often in the log than in the payment provider's"
    return at(made, what)


@FAULTS.declare("booking and payment", "a rider is charged more than was told", "money-book-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    everywhere(run, with_data(paid, amount=usd(191_900)))
    everywhere(run, with_data(run.find("ride.completed", ride_id=ride_id), fare=usd(191_900)))
    run.sql("booking", "UPDATE booking_rides SET fare_minor = 191900 WHERE ride_id = ?", ride_id)
    return at(paid, f"ride {ride_id}: charged 191900 by the log")


@FAULTS.declare(
    "booking and payment", "a ride is charged another price than it had before its end", "money-rides-payments"
)
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    completed = run.find("ride.completed", ride_id=ride_id)
    before = data(completed)["fare"]["amount_minor"]
    everywhere(run, with_data(paid, amount=usd(before - 1)))
    everywhere(run, with_data(completed, fare=usd(before - 1)))
    return at(completed, f"ride {ride_id} cost {before - 1} at the end, {before} before")


# ---------------------------------------------------------------- the log


@FAULTS.declare("the log", "the charge that a rider was told of is missing", "money-book-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.take_out(paid)
    what = f"the rider was told that ride {ride_id} is completed; nothing was charged or is owed by the log"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("the log", "the charge of a completed ride is missing", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.take_out(paid)
    what = f"ride {ride_id}: {said(paid)} is due for fare, nothing was charged and 0 is owed"
    return at(run.find("ride.completed", ride_id=ride_id), what)


@FAULTS.declare("the log", "a ride has no payment", "money-rides-payments")
def _(run: RecordedRun) -> Finding:
    ride_id, freed = ride_in(run, "unmatched")
    run.take_out(freed)
    run.take_out(run.find("payment.authorised", ride_id=ride_id))
    return at(run.find("ride.requested", ride_id=ride_id), f"ride {ride_id}: ride.requested and no event of a payment")


@FAULTS.declare("the log", "a charge that the provider made is missing", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.take_out(paid)
    what = f"ride {ride_id}: capture of {said(paid)} is 1 times more often in the payment provider's books"
    return Finding(what=what, topic="payments.v1", id=ride_id)


# ---------------------------------------------------------------- booking's database


@FAULTS.declare("booking's database", "a ride shows another payment than was published", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("booking", "UPDATE booking_rides SET payment = 'authorised' WHERE ride_id = ?", ride_id)
    what = f"ride {ride_id}: its payment is authorised by booking's database, captured by the log"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("booking's database", "a rider owes money that was paid", "money-booking-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("booking", "UPDATE booking_rides SET owed_minor = 800 WHERE ride_id = ?", ride_id)
    what = f"ride {ride_id}: owed is 800 by booking's database, 0 by the log"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("booking's database", "an event of a payment was not applied to its ride", "order")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.sql("booking", "UPDATE booking_rides SET payment_seq = 1 WHERE ride_id = ?", ride_id)
    return at(
        paid, f"payment of ride {ride_id}: booking's database has 1 events, the log ends with {data(paid)['seq']}"
    )


# ---------------------------------------------------------------- payment's database and outbox


@FAULTS.declare("payment's database", "a payment is lost", "money-payment-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("payment", "DELETE FROM hailbus_state WHERE instance = ?", ride_id)
    reserved = run.find("payment.authorised", ride_id=ride_id)
    return at(reserved, f"ride {ride_id} has a payment by the log and none by payment's database")


@FAULTS.declare("payment's database", "a payment holds another amount", "money-payment-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    _change(run, ride_id, "$.payment.captured_minor", said(paid) - 1)
    what = f"ride {ride_id}: the money is authorised {said(paid)}, captured {said(paid) - 1} by payment's database"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("payment's database", "a payment has more events than the log", "money-payment-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    last = data(paid)["seq"]
    _change(run, ride_id, "$.payment.seq", last + 1)
    what = f"ride {ride_id}: the last event is {last + 1} by payment's database, {last} by the log"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("payment's database", "the provider is still being asked after the end", "money-payment-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    _change(run, ride_id, "$.payment.step", {"number": 3, "kind": "release", "amount_minor": 1, "reason": ""})
    what = f"ride {ride_id}: the provider has not answered release"
    return Finding(what=what, topic="payments.v1", id=ride_id)


def _change(run: RecordedRun, ride_id: str, path: str, value: object) -> None:
    statement = "UPDATE hailbus_state SET data = json_set(data, ?, json(?)) WHERE instance = ?"
    assert run.sql("payment", statement, path, json.dumps(value), ride_id) == 1


@FAULTS.declare("payment's outbox", "a published event is lost", "outbox-payment-log")
def _(run: RecordedRun) -> Finding:
    paid = run.find("payment.captured")
    run.sql("payment", "DELETE FROM hailbus_outbox WHERE id = ?", header(paid, "ce_id"))
    return at(paid, "payment.captured is in the log and not in payment's outbox")


@FAULTS.declare("payment's outbox", "an event is due and was not published", "outbox-payment-log")
def _(run: RecordedRun) -> Finding:
    run.outbox(with_header(run.find("payment.captured"), "ce_id", NEW_ID))
    run.sql("payment", "UPDATE hailbus_outbox SET published_at = NULL WHERE id = ?", NEW_ID)
    return Finding(what="payment.captured is due and not published", topic="payments.v1", id=NEW_ID)


# ---------------------------------------------------------------- the provider's books

_MOVEMENT: Final = "reference = ? AND kind = 'capture'"


@FAULTS.declare("the provider's books", "a rider is charged twice", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    columns = "authorisation_id, reference, kind, amount_minor, currency"
    run.sql(
        "provider",
        f"INSERT INTO provider_transactions ({columns}, key, at) SELECT {columns}, 'another', at "
        f"FROM provider_transactions WHERE {_MOVEMENT}",
        ride_id,
    )
    run.sql(
        "provider",
        "UPDATE provider_authorisations SET captured_minor = 2 * captured_minor WHERE reference = ?",
        ride_id,
    )
    what = f"ride {ride_id}: capture of {said(paid)} is 1 times more often in the payment provider's books than in the"
    return Finding(what=what, topic="payments.v1", id=ride_id)


@FAULTS.declare("the provider's books", "a rider is charged another amount than was published", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, paid = ride_in(run, "completed")
    run.sql("provider", f"UPDATE provider_transactions SET amount_minor = amount_minor - 1 WHERE {_MOVEMENT}", ride_id)
    run.sql(
        "provider",
        "UPDATE provider_authorisations SET captured_minor = captured_minor - 1 WHERE reference = ?",
        ride_id,
    )
    return at(paid, f"ride {ride_id}: capture of {said(paid)} is 1 times more often in the log")


@FAULTS.declare("the provider's books", "an authorisation holds other sums than its movements", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("provider", "UPDATE provider_authorisations SET refunded_minor = 7 WHERE reference = ?", ride_id)
    return Finding(what=f"of ride {ride_id} holds authorised", id=ride_id)


@FAULTS.declare("the provider's books", "a rider is charged in another currency", "money-provider-log")
def _(run: RecordedRun) -> Finding:
    ride_id, _ = ride_in(run, "completed")
    run.sql("provider", f"UPDATE provider_transactions SET currency = 'EUR' WHERE {_MOVEMENT}", ride_id)
    return Finding(what=f"ride {ride_id}: the provider moved EUR", id=ride_id)
