"""Rides, as riders, booking and the log tell them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, BookRide
from hailbus_demo.ledger.lines.registry import LineSpec
from hailbus_demo.ledger.log import LogAccount, LogReader, Step
from hailbus_demo.ledger.model import Findings, Judgement

BOOK: Final = "the riders' book"
BOOKING: Final = "booking's database"
LOG: Final = "the log"
ENDED: Final = frozenset({"completed", "cancelled", "unmatched"})
QUOTED: Final = ("rider", "fare", "multiplier", "surge version", "distance", "duration")
STATES: Final = frozenset({"requested", "matched", "arrived", "in_progress", "redispatched", *ENDED})

OVERTAKES_MS: Final = 60_000
"""By how much event times of requests may be out of order: a ride requested so long before another one's end is none
that booking allowed during it. The simulator's requests overtake each other by less than 20 s."""

TRANSITIONS: Final[Mapping[str, tuple[frozenset[str], str | None]]] = {
    "ride.requested": (frozenset({"none"}), "requested"),
    "ride.matched": (frozenset({"requested", "redispatched"}), "matched"),
    "ride.driver_arrived": (frozenset({"matched"}), "arrived"),
    "ride.started": (frozenset({"arrived"}), "in_progress"),
    "ride.completed": (frozenset({"in_progress"}), "completed"),
    "ride.cancelled": (frozenset({"requested", "matched", "arrived", "redispatched"}), "cancelled"),
    "ride.redispatched": (frozenset({"matched", "arrived"}), "redispatched"),
    "ride.unmatched": (frozenset({"requested", "redispatched", "matched", "arrived"}), "unmatched"),
    "ride.repriced": (STATES - ENDED, None),
    "ride.pooled": (frozenset({"requested"}), None),
}
"""Event type → the states that it may follow, and the state that it leads to (`None`: the same)."""


def state_of(steps: list[Step]) -> str:
    """Return the state that a ride's events lead to, whatever their order; see `ride_order` for that."""
    state = "none"
    for step in sorted(steps, key=lambda step: step.seq):
        state = TRANSITIONS.get(step.type, (frozenset(), None))[1] or state
    return state


def driver_of(steps: list[Step]) -> str | None:
    """Return the driver whom a ride's events leave it with."""
    driver: str | None = None
    for step in sorted(steps, key=lambda step: step.seq):
        if step.type == "ride.matched":
            driver = str(step.data["driver_id"])
        elif step.type in ("ride.redispatched", "ride.unmatched"):
            driver = None
    return driver


def fare_of(steps: list[Step]) -> int:
    """Return what a ride costs by its last event that names a fare."""
    fares = [step for step in steps if "fare" in step.data]
    return int(max(fares, key=lambda step: step.seq).data["fare"]["amount_minor"]) if fares else -1


def count_states(states: Iterator[str]) -> str:
    """Return how many rides are in which state, as text."""
    counted: dict[str, int] = {}
    for state in states:
        name = state if state in ENDED else "in flight"
        counted[name] = counted.get(name, 0) + 1
    order = ("completed", "cancelled", "unmatched", "in flight")
    return ", ".join(f"{counted.get(name, 0):,} {name}" for name in order)


def _ended_unseen(accounts: Accounts, told: BookRide, *, seq: int, reason: object) -> bool:
    """Whether a ride ended after its rider looked for the last time, because the card was declined.

    Nothing else ends a ride without riders or drivers once nobody plays them, since event time stands still.
    """
    return not accounts.ended and told.state not in ENDED and seq > told.seq and reason == "payment_failed"


def _book_booking(accounts: Accounts) -> Judgement:
    book, booking = accounts.book, accounts.booking
    assert isinstance(book, BookAccount)
    assert isinstance(booking, BookingAccount)
    found = Findings()
    for ride_id in sorted(book.rides.keys() | booking.rides.keys()):
        told, stored = book.rides.get(ride_id), booking.rides.get(ride_id)
        if told is None or stored is None:
            known, missing = (BOOK, BOOKING) if stored is None else (BOOKING, BOOK)
            found.add(f"ride {ride_id} is in {known} and not in {missing}", id=ride_id)
            continue
        for source, state in ((BOOK, told.state), (BOOKING, stored.state)):
            if state not in STATES:
                found.add(f"ride {ride_id} is {state!r} by {source}, which is no state of a ride", id=ride_id)
        if told.state not in ENDED and stored.state not in ENDED:
            if stored.seq < told.seq:
                found.add(
                    f"the rider was told event {told.seq} of ride {ride_id}, booking has {stored.seq}", id=ride_id
                )
            continue
        if stored.state == "cancelled" and _ended_unseen(accounts, told, seq=stored.seq, reason=stored.reason):
            continue
        _compare(
            found,
            ride_id,
            (told.state, told.seq, told.fare_minor, told.rider_id, told.quote_id),
            (stored.state, stored.seq, stored.fare_minor, stored.rider_id, stored.quote_id),
            ("state", "seq", "fare", "rider", "quote"),
            (BOOK, BOOKING),
        )
    return found.judge(f"{len(book.rides):,} rides: {count_states(ride.state for ride in book.rides.values())}")


def _compare(
    found: Findings,
    ride_id: str,
    ours: tuple[object, ...],
    theirs: tuple[object, ...],
    names: tuple[str, ...],
    sources: tuple[str, str],
) -> None:
    for name, one, other in zip(names, ours, theirs, strict=True):
        if one != other:
            found.add(f"ride {ride_id}: {name} is {one} by {sources[0]}, {other} by {sources[1]}", id=ride_id)


def _log_booking(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    rides = log.reader.rides
    found = Findings()
    for ride_id in sorted(rides.keys() | booking.rides.keys()):
        steps, stored = rides.get(ride_id), booking.rides.get(ride_id)
        if steps is None:
            found.add(f"ride {ride_id} is in {BOOKING} and no event of it is in {LOG}", topic="rides.v1", id=ride_id)
            continue
        last = max(steps, key=lambda step: step.seq)
        if stored is None:
            found.extend([log.reader.finding(f"ride {ride_id} is in {LOG} and not in {BOOKING}", steps[0].row)])
            continue
        request = next((step.data for step in steps if step.type == "ride.requested"), None)
        theirs = (
            state_of(steps),
            driver_of(steps),
            fare_of(steps),
            None if request is None else request["rider_id"],
            None if request is None else request["quote_id"],
        )
        ours = (stored.state, stored.driver_id, stored.fare_minor, stored.rider_id, stored.quote_id)
        for name, one, other in zip(("state", "driver", "fare", "rider", "quote"), ours, theirs, strict=True):
            if one != other:
                what = f"ride {ride_id}: {name} is {one} by {BOOKING}, {other} by {LOG}"
                found.extend([log.reader.finding(what, last.row)])
    states = count_states(ride.state for ride in booking.rides.values())
    return found.judge(f"{len(rides):,} rides: {states}")


def _book_log(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    rides = log.reader.rides
    found = Findings()
    for ride_id in sorted(book.rides.keys() | rides.keys()):
        told, steps = book.rides.get(ride_id), rides.get(ride_id)
        if steps is None:
            found.add(f"ride {ride_id} is in {BOOK} and no event of it is in {LOG}", topic="rides.v1", id=ride_id)
            continue
        last = max(steps, key=lambda step: step.seq)
        if told is None:
            found.extend([log.reader.finding(f"ride {ride_id} is in {LOG} and not in {BOOK}", steps[0].row)])
            continue
        state = state_of(steps)
        if told.state not in ENDED and state not in ENDED:
            if last.seq < told.seq:
                what = f"the rider was told event {told.seq} of ride {ride_id}, {LOG} ends with {last.seq}"
                found.extend([log.reader.finding(what, last.row)])
            continue
        is_declined = any(step.type == "payment.failed" for step in log.reader.payments.get(ride_id, []))
        if is_declined and _ended_unseen(accounts, told, seq=last.seq, reason=last.data.get("reason")):
            continue
        if (told.state, told.seq) != (state, last.seq):
            what = (
                f"ride {ride_id} is {told.state} after event {told.seq} by {BOOK}, "
                f"{state} after event {last.seq} by {LOG}"
            )
            found.extend([log.reader.finding(what, last.row)])
    return found.judge(f"{len(rides):,} rides end alike: {count_states(state_of(steps) for steps in rides.values())}")


def ride_order(log: LogReader, booking: BookingAccount) -> Judgement:
    """Judge the order of events within a key, as the log has them, by the numbers that booking gave them."""
    found = Findings()
    count = 0
    numbered: tuple[tuple[str, Mapping[str, list[Step]], Mapping[str, int]], ...] = (
        ("ride", log.rides, {key: ride.seq for key, ride in booking.rides.items()}),
        ("quote", log.quotes, {key: quote.seq for key, quote in booking.quotes.items()}),
        ("driver", log.drivers, {key: driver.seq for key, driver in booking.drivers.items()}),
    )
    for what, trails, last_seqs in numbered:
        for key, steps in trails.items():
            count += len(steps)
            _in_order(found, log, f"{what} {key}", steps, last_seqs.get(key), compacted=what == "driver")
        for key in last_seqs.keys() - trails.keys():
            found.add(f"{what} {key} has {last_seqs[key]} events by {BOOKING}, none is in {LOG}", id=key)
    for ride_id, steps in log.payments.items():
        count += len(steps)
        stored = booking.rides.get(ride_id)
        heard = None if stored is None else stored.payment_seq
        _in_order(found, log, f"payment of ride {ride_id}", steps, heard, compacted=False)
    for ride_id, steps in log.rides.items():
        state = "none"
        for step in sorted(steps, key=lambda step: step.seq):
            after, leads_to = TRANSITIONS.get(step.type, (frozenset(), None))
            if state not in after:
                what = f"ride {ride_id}: {step.type} follows the state {state!r}"
                found.extend([log.finding(what, step.row)])
            state = leads_to or state
    return found.judge(f"{count:,} events are in the order of their sequence numbers, and none is missing")


def _in_order(
    found: Findings, log: LogReader, what: str, steps: list[Step], last_seq: int | None, *, compacted: bool
) -> None:
    before = 0
    partition = log.place_of(steps[0].row).partition
    for step in steps:
        if log.place_of(step.row).partition != partition:
            found.extend([log.finding(f"{what}: its events are in several partitions", step.row)])
        if step.seq <= before:
            found.extend([log.finding(f"{what}: event {step.seq} stands after event {before}", step.row)])
        elif step.seq != before + 1 and not compacted:
            found.extend([log.finding(f"{what}: event {step.seq} follows event {before}", step.row)])
        before = max(before, step.seq)
    if last_seq is not None and before != last_seq:
        found.extend([log.finding(f"{what}: {BOOKING} has {last_seq} events, {LOG} ends with {before}", steps[-1].row)])


def _order(accounts: Accounts) -> Judgement:
    assert isinstance(accounts.log, LogAccount)
    assert isinstance(accounts.booking, BookingAccount)
    return ride_order(accounts.log.reader, accounts.booking)


def _ended(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    found = Findings()
    open_rides = 0
    for ride_id, steps in log.reader.rides.items():
        state = state_of(steps)
        told = book.rides.get(ride_id)
        if state in ENDED and (told is None or told.state in ENDED):
            continue
        open_rides += 1
        if accounts.ended and not accounts.so_far:
            last = max(steps, key=lambda step: step.seq)
            said = "unknown" if told is None else told.state
            what = f"ride {ride_id} is under way after the end: {state} by {LOG}, {said} by {BOOK}"
            found.extend([log.reader.finding(what, last.row)])
    if accounts.ended and not accounts.so_far:
        return found.judge("no ride is under way")
    return Judgement(agreement=f"{open_rides:,} rides are under way: the run was not played to its end", shown=True)


def _one_ride(accounts: Accounts) -> Judgement:
    log, booking = accounts.log, accounts.booking
    assert isinstance(log, LogAccount)
    assert isinstance(booking, BookingAccount)
    found = Findings()
    open_ride: dict[str, str] = {}
    for ride_id, stored in sorted(booking.rides.items()):
        if stored.state not in ENDED and (other := open_ride.setdefault(stored.rider_id, ride_id)) != ride_id:
            found.add(f"rider {stored.rider_id} has rides {other} and {ride_id} by {BOOKING}", id=ride_id)
    by_rider: dict[str, list[tuple[int, float, str, Step]]] = {}
    for ride_id, steps in log.reader.rides.items():
        request = next((step for step in steps if step.type == "ride.requested"), None)
        if request is None:
            continue  # `order` finds it
        ends_ms = max(step.time_ms for step in steps) if state_of(steps) in ENDED else math.inf
        by_rider.setdefault(str(request.data["rider_id"]), []).append((request.time_ms, ends_ms, ride_id, request))
    for rider_id, rides in by_rider.items():
        last, last_ends_ms = "", -math.inf
        for requested_ms, ends_ms, ride_id, request in sorted(rides, key=lambda ride: ride[:3]):
            if requested_ms + OVERTAKES_MS <= last_ends_ms:
                what = f"rider {rider_id} requested ride {ride_id} during ride {last}"
                found.extend([log.reader.finding(what, request.row)])
            if ends_ms >= last_ends_ms:
                last, last_ends_ms = ride_id, ends_ms
    return found.judge(f"{len(by_rider):,} riders requested {len(log.reader.rides):,} rides, one at a time")


def _quotes(accounts: Accounts) -> Judgement:
    book, log = accounts.book, accounts.log
    assert isinstance(book, BookAccount)
    assert isinstance(log, LogAccount)
    offered = {quote_id: steps[0] for quote_id, steps in log.reader.quotes.items() if steps[0].type == "quote.offered"}
    found = Findings()
    for quote_id, told in book.quotes.items():
        step = offered.get(quote_id)
        if step is None:
            found.add(f"quote {quote_id} is in {BOOK} and was not offered by {LOG}", topic="quotes.v1", id=quote_id)
            continue
        theirs = (
            step.data["rider_id"],
            step.data["fare"]["amount_minor"],
            step.data["multiplier"],
            step.data["surge_version"],
            int(step.data["distance_m"]),
            int(step.data["duration_s"]),
        )
        for name, one, other in zip(QUOTED, told, theirs, strict=True):
            if one != other:
                what = f"quote {quote_id}: {name} is {one} by {BOOK}, {other} by {LOG}"
                found.extend([log.reader.finding(what, step.row)])
    if book.is_whole:
        for quote_id in sorted(offered.keys() - book.quotes.keys()):
            what = f"quote {quote_id} is in {LOG} and not in {BOOK}"
            found.extend([log.reader.finding(what, offered[quote_id].row)])
    return found.judge(f"{len(book.quotes):,} quotes were offered at the fare that the rider was shown")


LINES: Final = (
    LineSpec(
        id="rides-book-booking",
        name="every ride ended as its rider was told",
        between=(BOOK, BOOKING),
        needs=("book", "booking"),
        judge=_book_booking,
    ),
    LineSpec(
        id="rides-book-log",
        name="the log tells every ride as its rider was told",
        between=(BOOK, LOG),
        needs=("book", "log"),
        judge=_book_log,
    ),
    LineSpec(
        id="rides-booking-log",
        name="the log tells every ride as booking stores it",
        between=(BOOKING, LOG),
        needs=("booking", "log"),
        judge=_log_booking,
    ),
    LineSpec(
        id="order",
        name="the events of each key stand in their order",
        between=(LOG, BOOKING),
        needs=("log", "booking"),
        judge=_order,
    ),
    LineSpec(
        id="rides-ended",
        name="no ride is left under way",
        between=(LOG, BOOK),
        needs=("log", "book"),
        judge=_ended,
    ),
    LineSpec(
        id="riders-rides",
        name="no rider has two rides at once",
        between=(LOG, BOOKING),
        needs=("log", "booking"),
        judge=_one_ride,
    ),
    LineSpec(
        id="quotes-book-log",
        name="quotes were offered as riders were shown",
        between=(BOOK, LOG),
        needs=("book", "log"),
        judge=_quotes,
    ),
)
