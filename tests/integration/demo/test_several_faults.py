"""Every one of several faults is named: a line does not end at the first."""

from array import array
from dataclasses import replace

from tests.integration.demo.accounts import accounts_of, book_of, booking_of, line, log_of, surge_of
from tests.integration.demo.recorded import RecordedRun


async def test_every_ride_that_booking_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    without = replace(accounts, booking=replace(booking_of(accounts), rides={}, quotes={}, drivers={}, multipliers={}))
    counts = {
        "rides-book-booking": 24,
        "rides-booking-log": 24,
        "money-booking-log": 24,
        "drivers-booking-log": 24,
        "booking-timers": 13,
        "booking-multipliers": 6,
    }
    assert {name: len(line(without, name).findings) for name in counts} == counts


async def test_every_ride_and_recommendation_that_the_book_lacks_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    without = replace(accounts, book=replace(book_of(accounts), rides={}, quotes={}, advice={}, positions=array("Q")))
    counts = {
        "rides-book-booking": 24,
        "rides-book-log": 24,
        "quotes-book-log": 27,
        "advice-book-log": 9,
        "positions": 52,
    }
    assert {name: len(line(without, name).findings) for name in counts} == counts


async def test_every_trail_that_the_log_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    reader.rides, reader.quotes, reader.drivers, reader.cells, reader.served = {}, {}, {}, {}, {}
    surge = surge_of(accounts)
    prices = {cell: [2.0, 2.0, 2.0, 1] for cell in ("a", "b", "c")}
    accounts = replace(accounts, surge=replace(surge, state={**surge.state, "prices": prices}))
    counts = {
        "rides-book-log": 24,
        "rides-booking-log": 24,
        "drivers-booking-log": 24,
        "quotes-book-log": 27,
        "advice-book-log": 9,
        "advice-recommender-log": 10,
        "booking-multipliers": 6,
        "order": 24 + 27 + 24,
        "surge-prices": 3,
        "forecasts": 315,
    }
    assert {name: len(line(accounts, name).findings) for name in counts} == counts
    assert len(line(accounts, "money-rides-payments").findings) == 52


async def test_every_event_that_the_log_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    reader.rows = {}
    replaced = len(run.all("drivers.v1")) - 24  # of each of 24 drivers the newest must be there
    counts = {
        "outbox-log": 246 - replaced,
        "outbox-payment-log": 52,
        "inbox-booking": 119,
        "inbox-payment-saga": 52,
        "inbox-surge": 285,
        "inbox-recommender": 48,
        "journal-log": 857,
    }
    assert {name: len(line(accounts, name).findings) for name in counts} == counts


async def test_every_event_that_nobody_applied_or_wrote_is_named(run: RecordedRun) -> None:
    for database in ("booking", "payment", "surge", "recommender", "logger"):
        run.sql(database, "DELETE FROM hailbus_inbox")
    for database in ("booking", "payment"):
        run.sql(database, "DELETE FROM hailbus_outbox")
    run.sql("recommender", "DELETE FROM recommender_journey")
    run.sql("recommender", "DELETE FROM recommender_answer")
    run.write_journal([])
    accounts = await accounts_of(run)
    counts = {
        "outbox-log": 246,
        "outbox-payment-log": 52,
        "inbox-booking": 119,
        "inbox-payment-saga": 52,
        "inbox-surge": 285,
        "inbox-recommender": 48,
        "inbox-event-logger": 857,
        "journal-log": 857,
        "recommender-journeys": 16,
        "advice-recommender-log": 9,
    }
    assert {name: len(line(accounts, name).findings) for name in counts} == counts


async def test_every_ride_under_way_that_was_told_ahead_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    book, booking, reader = book_of(accounts), booking_of(accounts), log_of(accounts).reader
    for ride_id, steps in reader.rides.items():
        reader.rides[ride_id] = [step for step in steps if step.type == "ride.requested"]
    told = {one: ride._replace(state="requested", seq=2) for one, ride in book.rides.items()}
    stored = {one: ride._replace(state="requested", seq=1) for one, ride in booking.rides.items()}
    changed = replace(accounts, book=replace(book, rides=told), booking=replace(booking, rides=stored))
    counts = {"rides-book-booking": 24, "rides-book-log": 24, "rides-ended": 24}
    assert {name: len(line(changed, name).findings) for name in counts} == counts


async def test_every_quote_at_a_wrong_price_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    quotes = log_of(accounts).reader.quotes
    for version in (None, 7):
        for quote_id, (offered, *others) in quotes.items():
            told = {**offered.data, "multiplier": 2.0, "surge_version": version}
            quotes[quote_id] = [offered._replace(data=told), *others]
        assert len(line(accounts, "quotes-surge").findings) == 27
    for quote_id, steps in quotes.items():
        quotes[quote_id] = steps[1:] or steps
    assert line(accounts, "quotes-surge").verdict == "agrees"


async def test_every_dead_letter_topic_is_named(run: RecordedRun) -> None:
    ride = run.find("ride.matched")
    for number in range(25):
        topic = f"t{number}-dlt"
        run.letters[topic] = [ride._replace(topic=topic, partition=0, offset=0)]
    assert len(line(await accounts_of(run), "dead-letters").findings) == 25
