"""What the ledger's lines allow, and where they begin to disagree, over a recorded run whose accounts are changed."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hailbus_demo.ledger.accounts import ProviderAccount, RecommenderAccount
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.lines.log import RETENTION_MS
from hailbus_demo.ledger.log import LogAccount, Step, milliseconds

from tests.integration.demo.accounts import (
    accounts_of,
    book_of,
    booking_of,
    line,
    log_of,
    payment_of,
    under_way,
)
from tests.integration.demo.faults.declared import NEW_ID
from tests.integration.demo.recorded import RecordedRun, data, header, with_data, with_header

FAR_MS = 10**15
SAID = {
    "rides-book-booking": "24 rides: 16 completed, 0 cancelled, 8 unmatched, 0 in flight",
    "rides-book-log": "24 rides end alike: 16 completed, 0 cancelled, 8 unmatched, 0 in flight",
    "rides-booking-log": "24 rides: 16 completed, 0 cancelled, 8 unmatched, 0 in flight",
    "order": "285 events are in the order of their sequence numbers, and none is missing",
    "rides-ended": "no ride is under way",
    "riders-rides": "24 riders requested 24 rides, one at a time",
    "quotes-book-log": "27 quotes were offered at the fare that the rider was shown",
    "rides-pooled": "0 rides were pooled, 0 of them turned back into single ones",
    "money-rides-payments": "the money of 24 rides follows their events: 312.52 were charged",
    "money-provider-log": "52 movements, in dollars: 398.99 authorised, 312.52 captured, 86.47 released, 0.00 refunded",
    "money-payment-log": "24 payments have the amounts that were published: 8 closed, 16 settled",
    "money-booking-log": "24 rides: 312.52 were paid, as payment published",
    "money-book-log": "312.52 were charged for 24 rides, as quoted and told",
    "drivers-rides": "24 drivers took 16 rides, one at a time or a pooled pair",
    "drivers-booking-log": "24 drivers, 0 of them with a ride",
    "outbox-log": "all 246 published events are in the log as they were written, and no other",
    "outbox-payment-log": "all 52 published events are in the log as they were written, and no other",
    "log-offsets": "857 records in 60 partitions, each offset once and each an event",
    "log-repeats": "no event is in the log twice",
    "groups-log": "5 groups committed the end of every partition",
    "dead-letters": "0 dead-letter topics are empty",
    "parked-keys": "no key is parked",
    "still": "nothing was published, committed or applied while the accounts were read",
    "inbox-booking": "119 events, each applied once",
    "inbox-payment-saga": "52 events, each applied once",
    "inbox-surge": "285 events, each applied once",
    "inbox-recommender": "48 events, each applied once",
    "inbox-event-logger": "857 events, each applied once",
    "booking-timers": "13 timers have elapsed, and none is pending",
    "booking-multipliers": "6 cells have the multiplier that surge published last",
    "recommender-journeys": "16 completed rides were learned once each",
    "journal-log": "857 lines, one per event, with the bytes of the log",
    "surge-pickups": "24 requested rides were counted in 16 slots",
    "surge-drivers": "14 free drivers were counted at the ends of 16 slots",
    "surge-prices": "6 cells have the price that surge holds, 0 of them above 1.0",
    "surge-demand": "54 updates state the demand that rides.v1 and quotes.v1 hold",
    "surge-repriced": "54 updates follow from the rides, quotes and drivers in the log",
    "forecasts": "315 forecasts, each cell and horizon once, none of the busy intervals without",
    "quotes-surge": "27 quotes honour what surge published, 0 of them above 1.0",
    "forecast-scores": "89 scores follow from forecasts and counts: off by 218, naively by 236",
    "advice-book-log": "9 recommendations were served as published, 1 were taken",
    "advice-recommender-log": "9 recommendations were published as they were kept",
    "positions": "52 positions of 76 sent are in the log, none of them twice",
    "lake-bronze": "857 records have the checksum of the ledger's own reading",
    "lake-silver": "all rows agree",
    "lake-gold": "all rows agree",
    "lake-money": "gold.payments has the provider's sums in cents: authorised 39899, captured 31252, released 8647",
}
"""What each line says of the recorded run."""


async def test_each_line_says_how_much_it_compared(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    assert {spec.id: line(accounts, spec.id).detail for spec in LINES} == SAID
    paid = run.ask("booking", "SELECT sum(fare_minor) FROM booking_rides WHERE state = 'completed'")[0][0]
    assert SAID["money-book-log"].startswith(f"{paid / 100} were charged")
    events = sum(len(run.all(topic)) for topic in ("rides.v1", "quotes.v1", "drivers.v1", "payments.v1"))
    assert SAID["order"].startswith(f"{events} events")


async def test_lines_count_what_is_out_of_the_ordinary(run: RecordedRun) -> None:
    for record in run.all("surge.v1")[:2]:
        offered = run.find("quote.offered", pickup_cell=data(record)["cell"])
        told = {"surge_version": data(record)["surge_version"], "multiplier": data(record)["multiplier"]}
        run.put(with_data(offered, **told))
    cell, last = next(iter({data(record)["cell"]: record for record in run.all("surge.v1")}.items()))
    run.put(with_data(last, multiplier=1.1))
    run.change_surge_state(prices={cell: [1.1, 1.1, 1.1, milliseconds(data(last)["valid_until"])]})
    accounts, _ = await under_way(run)
    assert (
        line(accounts, "rides-book-booking").detail == "24 rides: 15 completed, 0 cancelled, 8 unmatched, 1 in flight"
    )
    assert line(accounts, "quotes-surge").detail == "27 quotes honour what surge published, 1 of them above 1.0"
    assert line(accounts, "surge-prices").detail == "6 cells have the price that surge holds, 1 of them above 1.0"
    booking = booking_of(accounts)
    ride_id, ride = next((one, ride) for one, ride in booking.rides.items() if ride.state == "matched")
    assert ride.driver_id is not None
    drivers = {**booking.drivers, ride.driver_id: booking.drivers[ride.driver_id]._replace(ride_id=ride_id)}
    held = line(replace(accounts, booking=replace(booking, drivers=drivers)), "drivers-booking-log")
    assert [one.what for one in held.findings if one.id == ride_id] == []
    advice = dict(book_of(accounts).advice)
    name, told_advice = next((one, told) for one, told in advice.items() if told.chosen is None)
    option = told_advice.options[0]
    served = run.find("recommendation.served", recommendation_id=name)
    made = with_header(with_header(served, "ce_type", "recommendation.chosen"), "ce_id", NEW_ID)
    made = with_header(made, "ce_dataschema", "hailbus:recommendation.chosen/v1")
    rank = next(one["rank"] for one in data(served)["options"] if one["option_id"] == option)
    content = {"recommendation_id": name, "rider_id": told_advice.rider_id, "option_id": option, "rank": rank}
    run.append(made._replace(value=json.dumps(content).encode()))
    run.sql(
        "recommender", "UPDATE recommender_answer SET chosen_option_id = ? WHERE recommendation_id = ?", option, name
    )
    accounts = await accounts_of(run)
    book = replace(book_of(accounts), advice={**advice, name: told_advice._replace(chosen=option)})
    accounts = replace(accounts, book=book)
    assert line(accounts, "advice-book-log").detail == "9 recommendations were served as published, 2 were taken"
    assert line(accounts, "advice-recommender-log").verdict == "agrees"


async def test_a_ride_that_booking_had_to_end_costs_what_was_quoted(run: RecordedRun) -> None:
    completed = run.find("ride.completed")
    ride_id = data(completed)["ride_id"]
    accounts = await accounts_of(run)
    book = book_of(accounts)
    rides = {**book.rides, ride_id: book.rides[ride_id]._replace(duration_s=20_000)}
    accounts = replace(accounts, book=replace(book, rides=rides))
    (finding,) = line(accounts, "money-book-log").findings
    assert (finding.id, "20000 s long, it costs" in finding.what) == (ride_id, True)
    run.put(with_data(completed, reason="ride_timeout"))
    accounts = replace(accounts, log=(await accounts_of(run)).log)
    assert line(accounts, "money-book-log").verdict == "agrees"


@pytest.mark.parametrize(("early_ms", "verdict"), [(60_000, "disagrees"), (59_999, "agrees")])
async def test_requests_may_overtake_the_end_of_a_riders_last_ride_by_a_minute(
    run: RecordedRun, early_ms: int, verdict: str
) -> None:
    """Requests carry event times of their own: booking may see the end of a ride before an older request."""
    ended = run.find("ride.unmatched")
    end_ms = milliseconds(header(ended, "ce_time"))
    rider_id = data(run.find("ride.requested", ride_id=data(ended)["ride_id"]))["rider_id"]
    other = next(
        one
        for one in run.all("rides.v1")
        if header(one, "ce_type") == "ride.requested" and data(one)["ride_id"] != data(ended)["ride_id"]
    )
    time = datetime.fromtimestamp((end_ms - early_ms) / 1000, UTC).isoformat()
    run.put(with_header(with_data(other, rider_id=rider_id), "ce_time", time))
    assert line(await accounts_of(run), "riders-rides").verdict == verdict


def lose_first(run: RecordedRun, topic: str) -> str:
    """Have the log begin one record later; return the id of the event that is gone."""
    first = next(record for record in run.all(topic) if record.offset == 0)
    run.starts[first.topic, first.partition] = 1
    return header(first, "ce_id")


@pytest.mark.parametrize("name", ["outbox-log", "inbox-event-logger", "journal-log"])
async def test_what_retention_deleted_is_not_missing(run: RecordedRun, name: str) -> None:
    lose_first(run, "rides.v1")
    accounts = await accounts_of(run)
    inbox: Any = accounts.inboxes["event-logger"]
    last_ms = max(inbox.applied_ms) + RETENTION_MS["rides.v1"]
    assert line(replace(accounts, read_at_ms=last_ms), name).verdict == "agrees"
    early = line(replace(accounts, read_at_ms=min(inbox.applied_ms)), name)
    # The event logger's file has no times: its inbox judges by them.
    assert early.verdict == ("agrees" if name == "journal-log" else "disagrees")


async def test_an_event_expires_when_its_topic_has_kept_it_to_the_millisecond(run: RecordedRun) -> None:
    event_id = lose_first(run, "rides.v1")
    accounts = await accounts_of(run)
    for group, name in (("event-logger", "inbox-event-logger"), ("event-logger", "outbox-log")):
        # What was published is known from when somebody applied it first.
        inboxes: list[Any] = [accounts.inboxes[group]] if name.startswith("inbox") else list(accounts.inboxes.values())
        at_ms = min(
            at
            for inbox in inboxes
            for packed, at in zip(inbox.ids, inbox.applied_ms, strict=True)
            if packed.hex() == event_id.replace("-", "")
        )
        over_ms = at_ms + RETENTION_MS["rides.v1"]
        assert line(replace(accounts, read_at_ms=over_ms), name).verdict == "agrees"
        assert line(replace(accounts, read_at_ms=over_ms - 1), name).verdict == "disagrees"
    unread = replace(accounts, inboxes={}, read_at_ms=over_ms)
    assert line(unread, "outbox-log").verdict == "disagrees"  # nobody says when it was there


def test_topics_keep_their_events_as_long_as_they_declare() -> None:
    hours = {"driver-locations.v1": 1}
    days = {"quotes.v1": 7, "forecasts.v1": 7, "booking-timers.v1": 7, "recommendations.v1": 30}
    days |= {"rides.v1": 90, "payments.v1": 90, "bikes.v1": 90}
    expected = {name: count * 3_600_000 for name, count in hours.items()}
    expected |= {name: count * 86_400_000 for name, count in days.items()}
    assert {name: RETENTION_MS[name] for name in expected} == expected


async def test_booking_dates_its_events_itself_where_it_follows_the_time_of_day(run: RecordedRun) -> None:
    event_id = lose_first(run, "rides.v1")
    run.sql("booking", "DELETE FROM booking_clock")
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = 5000000 WHERE id = ?", event_id)
    accounts = await accounts_of(run)
    expired_ms = 5_000 + RETENTION_MS["rides.v1"]
    assert line(replace(accounts, read_at_ms=expired_ms), "outbox-log").verdict == "agrees"
    early = line(replace(accounts, read_at_ms=expired_ms - 1), "outbox-log")
    assert [one.id for one in early.findings] == [event_id]
    assert "was deleted before its time: the log starts at 1" in early.detail


async def test_a_topic_that_keeps_everything_may_not_begin_later(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_first(run, "rides.v1")
    accounts = await accounts_of(run)
    assert line(accounts, "log-offsets").verdict == "agrees"
    monkeypatch.delitem(RETENTION_MS, "rides.v1")
    found = line(accounts, "log-offsets")
    assert "the first offsets are gone and nothing may delete them (rides.v1-0)" in found.detail


async def test_a_partition_that_was_not_read_to_its_end_disagrees(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    log = log_of(accounts)
    place, end = next((place, end) for place, end in sorted(log.ends.items()) if end)
    longer = replace(log, ends={**log.ends, place: end + 1})
    found = line(replace(accounts, log=longer), "log-offsets")
    assert f"was read to {end} of {end + 1} ({place[0]}-{place[1]} offset {end + 1})" in found.detail


async def test_a_hole_in_a_compacted_topic_of_which_no_account_tells(run: RecordedRun) -> None:
    first = next(r for r in run.all("surge.v1") if r.offset == 0)
    run.hide(first)
    run.write_journal([])
    run.sql("booking", "DELETE FROM hailbus_outbox")
    found = line(await accounts_of(run), "log-offsets")
    place = f"surge.v1-{first.partition} offset"
    assert [str(one) for one in found.findings] == [
        f"the record is gone, and no account says what was there ({place} 0)",
        f"the record is gone, and no account says what was there ({place} 1)",
    ]


async def test_a_committed_end_that_holds_no_record_is_no_delay(run: RecordedRun) -> None:
    """Compaction and markers leave offsets at the end of a partition at which nothing can be read."""
    place, committed = next(iter(run.committed["booking"].items()))
    run.records[place] += [None, None]
    assert len(run.records[place]) == committed + 2
    assert line(await accounts_of(run), "groups-log").verdict == "agrees"
    run.committed["booking"][place] = committed - 1
    found = line(await accounts_of(run), "groups-log")
    assert f"group booking is 3 records behind the end {committed + 2}" in found.detail


async def test_a_group_that_committed_nothing_is_behind_by_all_that_is_there(run: RecordedRun) -> None:
    place, end = next(iter(run.committed["surge"].items()))
    del run.committed["surge"][place]
    run.starts[place] = 1
    found = line(await accounts_of(run), "groups-log")
    assert [str(one) for one in found.findings] == [
        f"group surge is {end - 1} records behind the end {end} ({place[0]}-{place[1]} offset 1, id surge)"
    ]


async def test_during_the_run_a_delay_is_shown(run: RecordedRun) -> None:
    place, end = next(iter(run.committed["surge"].items()))
    run.committed["surge"][place] = end - 2
    accounts = await accounts_of(run, so_far=True)
    found = line(accounts, "groups-log")
    assert (found.verdict, found.detail) == ("shown", "2 records are still to be read")
    run.committed["surge"][place] = end + 1
    assert line(await accounts_of(run, so_far=True), "groups-log").verdict == "disagrees"


async def test_during_the_run_rides_may_be_under_way(run: RecordedRun) -> None:
    run.take_out(run.find("ride.completed"))
    accounts = await accounts_of(run, so_far=True)
    ended = line(accounts, "rides-ended")
    assert (ended.verdict, ended.detail) == ("shown", "1 rides are under way: the run was not played to its end")


async def test_a_run_that_was_not_played_to_its_end_may_have_rides_under_way(run: RecordedRun) -> None:
    run.take_out(run.find("ride.completed"))
    accounts = await accounts_of(run)
    assert line(accounts, "rides-ended").verdict == "disagrees"
    for ended in (False, None):
        assert line(replace(accounts, ended=ended), "rides-ended").verdict == "shown"
    # The rider was charged for the ride that the log has under way.
    assert line(accounts, "money-rides-payments").verdict == "disagrees"


async def test_during_the_run_a_charge_may_follow_its_ride(run: RecordedRun) -> None:
    run.take_out(run.find("payment.captured"))
    accounts = await accounts_of(run)
    assert line(accounts, "money-rides-payments").verdict == "disagrees"
    assert line(replace(accounts, so_far=True), "money-rides-payments").verdict == "agrees"


async def test_during_the_run_the_provider_may_be_one_movement_ahead_while_payment_asks(run: RecordedRun) -> None:
    charge = run.find("payment.captured")
    run.take_out(charge)
    accounts = await accounts_of(run)
    payment = payment_of(accounts)
    ride_id = data(charge)["ride_id"]
    asking = {**payment.payments, ride_id: payment.payments[ride_id]._replace(step="capture")}
    unknown = {name: one for name, one in payment.payments.items() if name != ride_id}
    for so_far, payments, verdict in (
        (True, asking, "agrees"),
        (True, unknown, "agrees"),
        (True, payment.payments, "disagrees"),
        (False, asking, "disagrees"),
    ):
        changed = replace(accounts, so_far=so_far, payment=replace(payment, payments=payments))
        assert line(changed, "money-provider-log").verdict == verdict
    # Payment asks for one movement at a time.
    run.take_out(run.find("payment.authorised", ride_id=ride_id))
    two = replace(await accounts_of(run), so_far=True, payment=replace(payment, payments=asking))
    assert line(two, "money-provider-log").verdict == "disagrees"


async def test_during_the_run_a_declined_amount_is_owed_by_the_log_while_payment_asks_again(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    payment = payment_of(accounts)
    log = accounts.log
    assert isinstance(log, LogAccount)
    ride_id, kept = next(iter(payment.payments.items()))
    declined = {"stage": "capture", "amount": {"amount_minor": 800}, "owed": {"amount_minor": 800}}
    steps = log.reader.payments[ride_id]
    steps.append(steps[-1]._replace(type="payment.failed", seq=kept.seq + 1, data=declined))
    kept = kept._replace(seq=kept.seq + 1, owed=800)
    for so_far, changes, verdict in (
        (False, {}, "agrees"),
        (True, {"owed": 0, "step": "capture"}, "agrees"),
        (True, {"owed": 0}, "disagrees"),
        (False, {"owed": 0, "step": "capture"}, "disagrees"),
        (True, {"owed": 0, "step": "capture", "seq": kept.seq + 1}, "disagrees"),
    ):
        payments = {**payment.payments, ride_id: kept._replace(**changes)}
        changed = replace(accounts, so_far=so_far, payment=replace(payment, payments=payments))
        assert line(changed, "money-payment-log").verdict == verdict


async def test_an_authorisation_that_the_provider_lost_holds_nothing(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    provider = accounts.provider
    assert isinstance(provider, ProviderAccount)
    charge = next(movement for movement in provider.movements if movement.kind == "capture")
    name = charge.authorisation_id
    left = {one: held for one, held in provider.authorisations.items() if one != name}
    found = line(replace(accounts, provider=replace(provider, authorisations=left)), "money-provider-log")
    assert found.verdict == "disagrees"
    (what,) = [one.what for one in found.findings if name in one.what]
    assert what.startswith(f"authorisation {name} of ride {charge.reference} holds nothing by ")
    assert f"captured {charge.amount}" in what


async def test_a_ride_under_way_hides_no_other(run: RecordedRun) -> None:
    accounts, ride_id = await under_way(run)
    book = book_of(accounts)
    rides = {
        name: told if name == ride_id else told._replace(fare_minor=told.fare_minor + 1)
        for name, told in book.rides.items()
    }
    assert max(rides) != ride_id
    found = line(replace(accounts, book=replace(book, rides=rides)), "rides-book-booking")
    assert {finding.id for finding in found.findings} == rides.keys() - {ride_id}


async def test_a_driver_may_be_busy_with_a_ride_under_way(run: RecordedRun) -> None:
    accounts, ride_id = await under_way(run)
    booking = booking_of(accounts)
    driver_id = booking.rides[ride_id].driver_id
    assert driver_id is not None
    busy = {**booking.drivers, driver_id: booking.drivers[driver_id]._replace(status="busy", ride_id=ride_id)}
    found = line(replace(accounts, booking=replace(booking, drivers=busy)), "drivers-booking-log")
    assert not any("which has ended" in finding.what for finding in found.findings)
    assert next(one.what for one in found.findings if ride_id in one.what and "by booking" in one.what).startswith(
        f"driver {driver_id} is busy with ride {ride_id} after event "
    )


@pytest.mark.parametrize(
    ("state", "seq", "verdict"), [("matched", 0, "disagrees"), ("matched", 1, "agrees"), ("arrived", 0, "agrees")]
)
async def test_a_timer_that_elapsed_is_about_one_state_and_event(
    run: RecordedRun, state: str, seq: int, verdict: str
) -> None:
    accounts, ride_id = await under_way(run)
    booking = booking_of(accounts)
    ride = booking.rides[ride_id]
    reader = log_of(accounts).reader
    data_ = {"ride_id": ride_id, "state": state}
    reader.overdue.append(Step("booking.ride_overdue", reader.timers[0].row, (ride.timer_seq or 0) + seq, 0, data_))
    assert line(accounts, "booking-timers").verdict == verdict


async def test_booking_and_the_log_may_be_ahead_of_what_a_rider_was_told_of_a_ride_under_way(run: RecordedRun) -> None:
    accounts, ride_id = await under_way(run)
    book = book_of(accounts)
    told = book.rides[ride_id]
    assert (told.state, told.seq) == ("matched", booking_of(accounts).rides[ride_id].seq)
    for more, verdict in ((0, "agrees"), (-1, "agrees"), (1, "disagrees")):
        rides = {**book.rides, ride_id: told._replace(seq=told.seq + more)}
        changed = replace(accounts, book=replace(book, rides=rides))
        assert line(changed, "rides-book-booking").verdict == verdict
        assert line(changed, "rides-book-log").verdict == verdict


async def test_a_declined_card_may_end_a_ride_after_its_rider_looked_for_the_last_time(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    book, booking, reader = book_of(accounts), booking_of(accounts), log_of(accounts).reader
    ride_id = data(run.find("ride.unmatched"))["ride_id"]
    told, stored = book.rides[ride_id], booking.rides[ride_id]
    rides = {**book.rides, ride_id: told._replace(state="matched", seq=told.seq - 1)}
    *earlier, last = sorted(reader.rides[ride_id], key=lambda step: step.seq)
    asked = reader.payments[ride_id][0]
    for reason, payment, ended, by_booking, by_log in (
        ("payment_failed", "payment.failed", False, "agrees", "agrees"),
        ("payment_failed", "payment.failed", True, "disagrees", "disagrees"),
        ("payment_failed", "payment.authorised", False, "agrees", "disagrees"),
        ("no_show", "payment.failed", False, "disagrees", "disagrees"),
    ):
        reader.rides[ride_id] = [*earlier, last._replace(type="ride.cancelled", data={**last.data, "reason": reason})]
        reader.payments[ride_id] = [asked._replace(type=payment)]
        changed = replace(
            accounts,
            book=replace(book, rides=rides),
            booking=replace(
                booking, rides={**booking.rides, ride_id: stored._replace(state="cancelled", reason=reason)}
            ),
            ended=ended,
        )
        assert line(changed, "rides-book-booking").verdict == by_booking, (reason, payment, ended)
        assert line(changed, "rides-book-log").verdict == by_log, (reason, payment, ended)


async def test_a_ride_under_way_is_open_for_sharing_for_a_quarter_of_an_hour(run: RecordedRun) -> None:
    accounts, ride_id = await under_way(run)
    recommender = accounts.recommender
    assert isinstance(recommender, RecommenderAccount)
    rides = log_of(accounts).reader.rides
    newest_ms = max(step.time_ms for steps in rides.values() for step in steps if step.type == "ride.requested")
    requested, *others = rides[ride_id]
    assert requested.type == "ride.requested"
    for age_ms, is_due in ((0, True), (900_000, True), (901_000, False)):
        rides[ride_id] = [requested._replace(time_ms=newest_ms - age_ms), *others]
        named = [f"ride {ride_id} is under way and not open for sharing by the recommender"] if is_due else []
        found = line(accounts, "recommender-journeys")
        assert [one.what for one in found.findings if "not open" in one.what] == named
        holding = replace(accounts, recommender=replace(recommender, open_rides=frozenset({ride_id})))
        found = line(holding, "recommender-journeys")
        assert [one.what for one in found.findings if "open" in one.what] == []


async def test_a_book_that_is_torn_may_lack_what_the_log_has(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    book = book_of(accounts)
    for whole, verdict in ((True, "disagrees"), (False, "agrees")):
        lacking = replace(book, quotes=dict(list(book.quotes.items())[1:]), advice={}, is_whole=whole)
        changed = replace(accounts, book=lacking)
        assert line(changed, "quotes-book-log").verdict == verdict
        assert line(changed, "advice-book-log").verdict == verdict


async def test_answers_that_the_recommender_pruned_may_be_in_the_log(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    recommender = accounts.recommender
    assert isinstance(recommender, RecommenderAccount)
    assert not recommender.pruned
    for pruned, verdict in ((False, "disagrees"), (True, "agrees")):
        some = replace(recommender, answers=dict(list(recommender.answers.items())[1:]), pruned=pruned)
        assert line(replace(accounts, recommender=some), "advice-recommender-log").verdict == verdict
    run.sql("recommender", "DELETE FROM recommender_answer WHERE number = 1")
    pruned_account: Any = (await accounts_of(run)).recommender
    assert pruned_account.pruned
    run.sql("recommender", "DELETE FROM recommender_answer")
    empty: Any = (await accounts_of(run)).recommender
    assert not empty.pruned


async def test_repeats_are_shown_where_nobody_counted_restarts(run: RecordedRun) -> None:
    run.append(run.find("ride.matched"))
    accounts = await accounts_of(run)
    found = line(replace(accounts, restarted=None), "log-repeats")
    assert (found.verdict, found.detail) == (
        "shown",
        "1 by booking: nobody counted restarts, after which that is right",
    )
    for restarted, verdict in ((set(), "disagrees"), ({"surge"}, "disagrees"), ({"broker"}, "agrees")):
        assert line(replace(accounts, restarted=frozenset(restarted)), "log-repeats").verdict == verdict
    run.append(with_data(run.find("ride.matched"), eta_s=1))
    assert line(replace(await accounts_of(run), restarted=None), "log-repeats").verdict == "disagrees"


async def test_a_line_that_fails_is_not_checked(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    found = line(
        replace(accounts, inboxes={**accounts.inboxes, "surge": accounts.inboxes["booking"]}, consumers=()),
        "inbox-surge",
    )
    assert (found.verdict, found.detail) == ("not_checked", "not checked: the comparison failed: StopIteration: ")


async def test_events_that_are_delivered_again_and_passed_over_are_counted(run: RecordedRun) -> None:
    run.sql("surge", "UPDATE hailbus_inbox SET seen_count = 3 WHERE offset_ = 0 AND topic = 'rides.v1'")
    changed = sum(1 for place in run.records if place[0] == "rides.v1" and run.records[place])
    found = line(await accounts_of(run), "inbox-surge")
    assert found.verdict == "agrees"
    assert found.detail.endswith(f"; {2 * changed} were delivered again and passed over")


async def test_retention_excuses_nothing_at_the_first_offset_of_the_log(run: RecordedRun) -> None:
    """An event that booking, a consumer and the event logger name at the first offset, and that is not there."""
    first = next(record for record in run.all("rides.v1") if record.offset == 0)
    made = with_header(first, "ce_id", NEW_ID)
    run.outbox(made)
    values = (NEW_ID, first.topic, first.partition, first.offset)
    run.sql("logger", "INSERT INTO hailbus_inbox VALUES ('event-logger', '/booking', ?, ?, ?, ?, 1, 1)", *values)
    lines = run.journal_lines()
    mine = next(one for one in lines if f'"id":"{header(first, "ce_id")}"' in one)
    run.write_journal([*lines, mine.replace(header(first, "ce_id"), NEW_ID)])
    accounts = replace(await accounts_of(run), read_at_ms=FAR_MS)
    for name in ("outbox-log", "inbox-event-logger", "journal-log"):
        found = line(accounts, name)
        assert [one.id for one in found.findings] == [NEW_ID]
        assert found.findings[0].what.endswith("not in the log")


async def test_booking_alone_can_say_which_key_a_hole_held(run: RecordedRun) -> None:
    records = run.all("drivers.v1")
    newest = {record.key: record.offset for record in records}
    places = {(record.partition, record.offset): record for record in records}
    first = next(
        record
        for record in records
        if (other := places.get((record.partition, record.offset + 1))) is not None
        and newest[record.key] > record.offset + 1
        and newest[other.key] > record.offset + 1
    )
    run.hide(first)
    accounts = replace(await accounts_of(run), journal=None)
    assert line(accounts, "log-offsets").verdict == "agrees"
    outbox = [row for row in booking_of(accounts).outbox if row.topic != "drivers.v1"]
    without = replace(accounts, booking=replace(booking_of(accounts), outbox=outbox))
    assert "no account says what was there" in line(without, "log-offsets").detail


async def test_an_event_that_compaction_removed_hides_no_other(run: RecordedRun) -> None:
    gone = next(record for record in run.all("drivers.v1") if record.offset == 0)
    run.hide(gone)
    kept = next(record for record in run.all("rides.v1") if record.offset == 0)
    lines = run.journal_lines()
    [hidden] = [one for one in lines if f'"id":"{header(gone, "ce_id")}"' in one]
    [mine] = [one for one in lines if f'"id":"{header(kept, "ce_id")}"' in one]
    run.write_journal([hidden, mine.replace(header(kept, "ce_id"), NEW_ID), *(one for one in lines if one != hidden)])
    found = line(await accounts_of(run), "journal-log")
    assert [one.id for one in found.findings] == [NEW_ID]


async def test_a_ride_that_was_requested_again_costs_what_its_first_request_says(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    rides = log_of(accounts).reader.rides
    for ride_id, (requested, *others) in rides.items():
        again = requested._replace(data={**requested.data, "fare": {"amount_minor": 1, "currency": "USD"}})
        rides[ride_id] = [requested, again, *others]
    assert line(accounts, "money-rides-payments").verdict == "agrees"


async def test_a_hole_that_is_explained_hides_none_that_is_not(run: RecordedRun) -> None:
    records = run.all("drivers.v1")
    newest = {record.key: record.offset for record in records}
    places = {(record.partition, record.offset): record for record in records}
    replaced, last = next(
        (record, other)
        for record in records
        if (other := places.get((record.partition, record.offset + 1))) is not None
        and newest[record.key] > other.offset
        and newest[other.key] == other.offset
    )
    run.hide(replaced)
    found = line(await accounts_of(run), "log-offsets")
    assert [(one.partition, one.offset) for one in found.findings] == [(last.partition, last.offset)]
    assert "nothing newer of key" in found.findings[0].what


async def test_a_ride_that_ended_by_one_account_alone_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    book, booking = book_of(accounts), booking_of(accounts)
    ride_id, told = next((one, ride) for one, ride in sorted(book.rides.items()) if ride.state == "completed")
    stored = booking.rides[ride_id]
    assert told.seq == stored.seq
    open_by_booking = replace(booking, rides=dict(booking.rides) | {ride_id: stored._replace(state="matched")})
    open_by_book = replace(book, rides=dict(book.rides) | {ride_id: told._replace(state="matched")})
    for changed in (replace(accounts, booking=open_by_booking), replace(accounts, book=open_by_book)):
        assert [one.id for one in line(changed, "rides-book-booking").findings] == [ride_id]


async def test_a_ride_costs_what_its_quote_says_by_the_book_or_else_by_the_log(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    book = book_of(accounts)
    completed = {one for one, ride in book.rides.items() if ride.state == "completed"}
    longer = {one: ride._replace(duration_s=(ride.duration_s or 0) + 36_000) for one, ride in book.rides.items()}
    for quotes in (book.quotes, {}):
        as_told = replace(accounts, book=replace(book, quotes=quotes))
        assert line(as_told, "money-book-log").verdict == "agrees"
        found = line(replace(accounts, book=replace(book, quotes=quotes, rides=longer)), "money-book-log")
        assert {one.id for one in found.findings} == completed
