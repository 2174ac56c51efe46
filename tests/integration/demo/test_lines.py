"""What the ledger's lines allow, and where they begin to disagree, over a recorded run whose accounts are changed."""

import asyncio
import json
from array import array
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h3
import pytest
from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.ledger import gather
from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, RecommenderAccount
from hailbus_demo.ledger.databases import count_due, read_booking, read_inbox
from hailbus_demo.ledger.gather import Gatherer, read_lake_report
from hailbus_demo.ledger.lines import LINES, pricing
from hailbus_demo.ledger.lines.log import RETENTION_MS
from hailbus_demo.ledger.log import LogAccount, LogReader, milliseconds
from hailbus_demo.ledger.model import Line
from ride_events.geo import ROLL_UP_RESOLUTION

from tests.integration.demo.faults.declared import NEW_ID
from tests.integration.demo.recorded import RecordedLog, RecordedRun, copy, data, header, unpack, with_data, with_header

FAR_MS = 10**15


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return unpack(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def run(clean: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    run = copy(clean, tmp_path)
    monkeypatch.setattr(gather, "KafkaLog", lambda _: RecordedLog(run))
    return run


async def accounts_of(run: RecordedRun, *, so_far: bool = False) -> Accounts:
    gatherer = Gatherer(run.sources("memory:1"))
    accounts = await gatherer.gather(so_far=so_far)
    await gatherer.close()
    return accounts


def line(accounts: Accounts, name: str) -> Line:
    found = next(spec for spec in LINES if spec.id == name).draw(accounts)
    assert found is not None
    return found


def log_of(accounts: Accounts) -> LogAccount:
    assert isinstance(accounts.log, LogAccount)
    return accounts.log


def booking_of(accounts: Accounts) -> BookingAccount:
    assert isinstance(accounts.booking, BookingAccount)
    return accounts.booking


def book_of(accounts: Accounts) -> BookAccount:
    assert isinstance(accounts.book, BookAccount)
    return accounts.book


SAID = {
    "rides-book-booking": "24 rides: 14 completed, 0 cancelled, 10 unmatched, 0 in flight",
    "rides-book-log": "24 rides end alike: 14 completed, 0 cancelled, 10 unmatched, 0 in flight",
    "rides-booking-log": "24 rides: 14 completed, 0 cancelled, 10 unmatched, 0 in flight",
    "order": "265 events stand in the order of their numbers, none is missing",
    "rides-ended": "no ride is under way",
    "quotes-book-log": "26 quotes were offered at the fare that the rider was shown",
    "money-booking-log": "24 rides: each fare reserved once, 14 charged once, the rest given back",
    "money-book-log": "214.81 were charged for 24 rides, as quoted and told",
    "money-rides-payments": "the money of 24 rides follows their events",
    "drivers-rides": "24 drivers took 14 rides, one at a time",
    "drivers-booking-log": "24 drivers, 0 of them with a ride",
    "outbox-log": "all 277 published events are in the log as they were written, and no other",
    "log-offsets": "499 records in 60 partitions, each offset once and each an event",
    "log-repeats": "no event is in the log twice",
    "groups-log": "4 groups committed the end of every partition",
    "dead-letters": "0 dead-letter topics are empty",
    "still": "nothing was published, committed or applied while the accounts were read",
    "inbox-booking": "66 events, each applied once",
    "inbox-surge": "263 events, each applied once",
    "inbox-recommender": "48 events, each applied once",
    "inbox-event-logger": "499 events, each applied once",
    "booking-timers": "12 timers have elapsed, and none is pending",
    "booking-multipliers": "6 cells have the multiplier that surge published last",
    "recommender-journeys": "14 completed rides were learned once each",
    "journal-log": "499 lines, one per event, with the bytes of the log",
    "surge-pickups": "24 requested rides were counted in 9 slots",
    "surge-prices": "6 cells have the price that surge holds, 0 of them above 1.0",
    "surge-demand": "54 updates state the demand that rides.v1 and quotes.v1 hold",
    "surge-repriced": "54 updates follow from the rides, quotes and drivers in the log",
    "forecasts": "115 forecasts, each cell and horizon once, none of the busy intervals without",
    "quotes-surge": "26 quotes honour what surge published, 0 of them above 1.0",
    "advice-book-log": "7 recommendations were served as published, 0 were taken",
    "advice-recommender-log": "7 recommendations were published as they were kept",
    "positions": "46 positions of 70 sent are in the log, none of them twice",
    "lake-bronze": "499 records have the checksum of the ledger's own reading",
    "lake-silver": "all rows agree",
    "lake-gold": "all rows agree",
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
    state(run, prices={cell: [1.1, 1.1, 1.1, milliseconds(data(last)["valid_until"])]})
    accounts, _ = await under_way(run)
    assert (
        line(accounts, "rides-book-booking").detail == "24 rides: 13 completed, 0 cancelled, 10 unmatched, 1 in flight"
    )
    assert line(accounts, "quotes-surge").detail == "26 quotes honour what surge published, 1 of them above 1.0"
    assert line(accounts, "surge-prices").detail == "6 cells have the price that surge holds, 1 of them above 1.0"
    booking = booking_of(accounts)
    ride_id, ride = next((one, ride) for one, ride in booking.rides.items() if ride.state == "matched")
    assert ride.driver_id is not None
    drivers = {**booking.drivers, ride.driver_id: booking.drivers[ride.driver_id]._replace(ride_id=ride_id)}
    held = line(replace(accounts, booking=replace(booking, drivers=drivers)), "drivers-booking-log")
    assert [one.what for one in held.findings if one.id == ride_id] == []
    advice = dict(book_of(accounts).advice)
    name, told_advice = next(iter(advice.items()))
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
    assert line(accounts, "advice-book-log").detail == "7 recommendations were served as published, 1 were taken"
    assert line(accounts, "advice-recommender-log").verdict == "agrees"


# ------------------------------------------------------------------------------------------ retention and compaction


def lose_first(run: RecordedRun, topic: str) -> str:
    """Have the log begin one record later; return the id of the event that is gone."""
    first = next(record for record in run.all(topic) if record.offset == 0)
    run.starts[first.topic, first.partition] = 1
    return header(first, "ce_id")


@pytest.mark.parametrize("name", ["outbox-log", "inbox-event-logger", "journal-log"])
async def test_what_retention_deleted_is_not_missing(run: RecordedRun, name: str) -> None:
    lose_first(run, "payments.v1")
    accounts = await accounts_of(run)
    inbox: Any = accounts.inboxes["event-logger"]
    last_ms = max(inbox.applied_ms) + RETENTION_MS["payments.v1"]
    assert line(replace(accounts, read_at_ms=last_ms), name).verdict == "agrees"
    early = line(replace(accounts, read_at_ms=min(inbox.applied_ms)), name)
    # The event logger's file has no times: its inbox judges by them.
    assert early.verdict == ("agrees" if name == "journal-log" else "disagrees")


async def test_an_event_expires_when_its_topic_has_kept_it_to_the_millisecond(run: RecordedRun) -> None:
    event_id = lose_first(run, "payments.v1")
    accounts = await accounts_of(run)
    for group, name in (("event-logger", "inbox-event-logger"), ("event-logger", "outbox-log")):
        inbox: Any = accounts.inboxes[group]
        at_ms = next(
            at
            for packed, at in zip(inbox.ids, inbox.applied_ms, strict=True)
            if packed.hex() == event_id.replace("-", "")
        )
        over_ms = at_ms + RETENTION_MS["payments.v1"]
        assert line(replace(accounts, read_at_ms=over_ms), name).verdict == "agrees"
        assert line(replace(accounts, read_at_ms=over_ms - 1), name).verdict == "disagrees"
    unread = replace(accounts, inboxes={}, read_at_ms=over_ms)
    assert line(unread, "outbox-log").verdict == "disagrees"  # nobody says when it was there


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


# ------------------------------------------------------------------------------------------ during the run


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
    # Booking charged the ride that the log has under way.
    assert line(accounts, "money-rides-payments").verdict == "disagrees"


async def test_during_the_run_a_charge_may_follow_its_ride(run: RecordedRun) -> None:
    run.take_out(run.find("payment.captured"))
    accounts = await accounts_of(run)
    assert line(accounts, "money-rides-payments").verdict == "disagrees"
    assert line(replace(accounts, so_far=True), "money-rides-payments").verdict == "agrees"


# ------------------------------------------------------------------------------------------ rides under way


async def under_way(run: RecordedRun) -> tuple[Accounts, str]:
    """Return accounts by all of which one ride is matched."""
    ride_id = data(run.find("ride.completed"))["ride_id"]
    seq = data(run.find("ride.matched", ride_id=ride_id))["seq"]
    for kind in ("ride.completed", "ride.started", "ride.driver_arrived"):
        run.take_out(run.find(kind, ride_id=ride_id))
    run.sql("booking", "UPDATE booking_rides SET state = 'matched', seq = ? WHERE ride_id = ?", seq, ride_id)
    lines = [one for one in run.book_lines() if one.get("ride_id") != ride_id or one["state"] == "matched"]
    run.write_book(lines)
    return await accounts_of(run), ride_id


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


# ------------------------------------------------------------------------------------------ accounts that are not whole


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


# ------------------------------------------------------------------------------------------ surge


def state(run: RecordedRun, **fields: Any) -> None:
    """Change fields of surge's state."""
    last = [record for record in run.all("surge-city-changelog") if record.key == b'"state"'][-1]
    run.append(last._replace(value=json.dumps({**data(last), **fields}).encode()))


async def test_rides_that_came_late_are_allowed_as_far_as_surge_counted_them(run: RecordedRun) -> None:
    slot = next(r for r in run.all("surge-slots-changelog") if data(r))
    cell = max(data(slot), key=lambda one: data(slot)[one])
    less = {**data(slot), cell: data(slot)[cell] - 1}
    run.append(slot._replace(value=json.dumps(less).encode()))
    assert line(await accounts_of(run), "surge-pickups").verdict == "disagrees"
    state(run, late_count=1)
    found = line(await accounts_of(run), "surge-pickups")
    assert found.verdict == "agrees"
    assert found.detail.endswith("; 1 facts came late")


async def test_late_facts_excuse_demand_that_is_too_small_and_never_too_large(run: RecordedRun) -> None:
    update = run.find("surge.updated", nth=3)
    demand = data(update)["demand"]
    for said, late, verdict in (
        (demand - 0.3, 0, "disagrees"),
        (demand - 0.3, 1, "agrees"),
        (demand + 0.3, 9, "disagrees"),
    ):
        run.put(with_data(update, demand=said))
        state(run, late_count=late)
        assert line(await accounts_of(run), "surge-demand").verdict == verdict


async def test_one_late_fact_excuses_as_many_updates_as_a_window_has_minutes(run: RecordedRun) -> None:
    state(run, late_count=1)
    updates = [record for record in run.all("surge.v1") if data(record)["demand"] > 0]
    for count, record in enumerate(updates[:6], start=1):
        run.put(with_data(record, demand=data(record)["demand"] - 0.3))
        assert line(await accounts_of(run), "surge-demand").verdict == ("agrees" if count <= 5 else "disagrees")


async def test_after_late_facts_a_busy_cell_without_any_price_is_found(run: RecordedRun) -> None:
    state(run, late_count=1)
    # Other prices than the events demand: nobody can tell, after late facts.
    run.put(with_data(run.find("surge.updated"), supply=9.0))
    assert line(await accounts_of(run), "surge-repriced").verdict == "agrees"
    loud = next(data(r)["cell"] for r in run.all("surge.v1") if data(r)["multiplier"] == 1.5)
    quiet = next(data(r)["cell"] for r in run.all("surge.v1") if data(r)["cell"] != loud)
    for cell, verdict in ((quiet, "agrees"), (loud, "disagrees")):
        for place in [place for place in run.records if place[0] == "surge.v1"]:
            run.records[place] = [r if r is None or data(r)["cell"] != cell else None for r in run.records[place]]
        found = line(await accounts_of(run), "surge-repriced")
        assert found.verdict == verdict
    assert f"cell {loud} had " in found.detail
    assert found.findings[0].id == loud


async def test_updates_of_a_compacted_topic_may_be_gone(run: RecordedRun) -> None:
    gone = run.find("surge.updated")
    offered = run.find("quote.offered", pickup_cell=data(gone)["cell"])
    run.put(with_data(offered, surge_version=data(gone)["surge_version"], multiplier=data(gone)["multiplier"]))
    assert line(await accounts_of(run), "quotes-surge").verdict == "agrees"
    run.hide(gone)
    accounts = await accounts_of(run)
    assert line(accounts, "quotes-surge").verdict == "agrees"
    assert line(accounts, "surge-repriced").verdict == "agrees"


async def test_a_price_of_one_needs_no_update(run: RecordedRun) -> None:
    cell = "882a100d25fffff"
    for multiplier, verdict in ((1.0, "agrees"), (1.1, "disagrees")):
        state(run, prices={cell: [multiplier, multiplier, multiplier, 1]})
        assert line(await accounts_of(run), "surge-prices").verdict == verdict


async def test_a_held_price_is_valid_as_long_as_it_was_published(run: RecordedRun) -> None:
    cells = {data(record)["cell"]: record for record in run.all("surge.v1")}
    cell, last = next(iter(cells.items()))
    run.put(with_data(last, multiplier=1.1))
    until_ms = milliseconds(data(last)["valid_until"])
    for more_ms, verdict in ((0, "agrees"), (1, "disagrees")):
        state(run, prices={cell: [1.1, 1.1, 1.1, until_ms + more_ms]})
        assert line(await accounts_of(run), "surge-prices").verdict == verdict


async def test_surge_must_close_a_minute_half_a_minute_after_its_end(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    closed = pricing.closed_until_ms(reader, "surge")
    assert closed is not None
    for topic in pricing.SOURCES:
        reader.newest_ms[topic] = closed
    for newest_ms, verdict in ((closed + 89_999, "agrees"), (closed + 90_000, "disagrees")):
        reader.newest_ms["rides.v1"] = newest_ms
        assert line(accounts, "surge-pickups").verdict == verdict
        assert line(replace(accounts, so_far=True), "surge-pickups").verdict == "agrees"
    reader.newest_ms.clear()
    assert pricing.expected_close_ms(reader) is None
    assert line(accounts, "surge-pickups").verdict == "agrees"


async def test_forecasts_are_due_after_ten_rides_in_half_an_hour_and_never_twice(run: RecordedRun) -> None:
    for place in [place for place in run.records if place[0] == "forecasts.v1"]:
        run.records[place] = []
    accounts = await accounts_of(run)
    whole = line(accounts, "forecasts")
    assert whole.verdict == "disagrees"
    reader = log_of(accounts).reader
    rides = list(reader.rides.items())
    for count in range(len(rides), 0, -1):
        reader.rides = dict(rides[:count])
        by_parent = busiest(reader)
        found = line(accounts, "forecasts")
        assert found.verdict == ("disagrees" if by_parent >= 10 else "agrees")


def busiest(reader: LogReader) -> int:
    """Return the most rides that were requested in half an hour in one cell of the next larger kind."""
    asked = [
        (steps[0].time_ms // 300_000, h3.cell_to_parent(steps[0].data["pickup_cell"], ROLL_UP_RESOLUTION))
        for steps in reader.rides.values()
    ]
    closed = pricing.closed_until_ms(reader, "surge") or 0
    return max(
        (
            sum(1 for slot, parent in asked if parent == mine and end - 6 < slot <= end)
            for end in {slot for slot, _ in asked}
            for _, mine in asked
            if (end + 1) * 300_000 <= closed
        ),
        default=0,
    )


# ------------------------------------------------------------------------------------------ reading


async def test_what_booking_owes_is_counted_by_its_clock(run: RecordedRun) -> None:
    url = run.urls()["booking"]
    assert await count_due(url) == 0
    ids = [row[0] for row in run.ask("booking", "SELECT id FROM hailbus_outbox ORDER BY position LIMIT 5")]
    now_us = round(milliseconds(run.ask("booking", "SELECT now FROM booking_clock")[0][0] + "+00:00") * 1000)
    for event_id, column, value in (
        (ids[0], "not_before", None),
        (ids[1], "not_before", now_us),
        (ids[2], "not_before", now_us + 1_000_000),
        (ids[3], "cancelled_at", 1),
        (ids[4], "failed_at", 1),
    ):
        run.sql("booking", f"UPDATE hailbus_outbox SET published_at = NULL, {column} = ? WHERE id = ?", value, event_id)
    assert await count_due(url) == 2
    states = {row.id: row.state for row in (await read_booking(url)).outbox}
    assert [states[one] for one in ids] == ["due", "due", "waiting", "cancelled", "failed"]
    run.sql("booking", "DELETE FROM booking_clock")  # the time of day, long after the recorded events
    assert await count_due(url) == 3
    run.sql("booking", "UPDATE hailbus_outbox SET not_before = ? WHERE id = ?", FAR_MS * 1_000, ids[2])
    assert await count_due(url) == 2


async def test_a_waiting_timer_is_told_of(run: RecordedRun) -> None:
    run.outbox(with_header(run.find("booking.timer_elapsed"), "ce_id", NEW_ID))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL, not_before = ? WHERE id = ?", 2**62, NEW_ID)
    found = line(await accounts_of(run), "outbox-log")
    assert found.verdict == "agrees"
    assert found.detail.endswith(", and no other; 1 wait for their time")


async def test_headers_of_bytes_are_compared(run: RecordedRun) -> None:
    ride = run.find("ride.matched")
    run.put(ride._replace(headers=[*ride.headers, ("bytes", b"\xff\x00")]))
    headers = [[name, (value or b"").decode()] for name, value in ride.headers]
    for text, verdict in (("/wA=", "agrees"), ("/wE=", "disagrees")):
        stored = json.dumps([*headers, ["bytes", {"base64": text}]])
        run.sql("booking", "UPDATE hailbus_outbox SET headers = ? WHERE id = ?", stored, header(ride, "ce_id"))
        assert line(await accounts_of(run), "outbox-log").verdict == verdict


async def test_a_database_that_cannot_be_named_is_a_wrong_argument() -> None:
    with pytest.raises(UsageError, match="--database: "):
        await read_inbox("mysql://nowhere", "surge")


def test_a_report_of_the_lake_is_an_object_with_lines() -> None:
    assert read_lake_report('{"lines": []}') == {"lines": []}
    for text in ("[]", '{"lines": 1}', '{"ok": true}', "lines", ""):
        with pytest.raises(ValueError, match=r"."):
            read_lake_report(text)


async def test_a_lake_that_is_not_there_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="`lake verify` ended with 2 and no report: lake: "):
        await asyncio.wait_for(gather.lake_report(tmp_path / "none", "127.0.0.1:1"), 120)


async def test_an_acknowledged_event_of_which_nobody_noted_the_place_is_missing(run: RecordedRun) -> None:
    lost = run.find("ride.matched", nth=2)
    run.outbox(with_header(lost, "ce_id", NEW_ID))
    run.sql(
        "booking", "UPDATE hailbus_outbox SET published_partition = NULL, published_offset = NULL WHERE id = ?", NEW_ID
    )
    run.starts["rides.v1", 0] = 1
    found = line(await accounts_of(run), "outbox-log")
    (named,) = [one for one in found.findings if one.id == NEW_ID]
    assert str(named) == f"ride.matched was deleted before its time: the log starts at 0 (rides.v1, id {NEW_ID})"


async def test_a_partition_that_comes_while_the_accounts_are_read_moved_from_nothing(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    bounds = RecordedLog.bounds

    def growing(self: RecordedLog, topics: Any) -> Any:
        nonlocal asked
        asked += 1
        starts, ends = bounds(self, topics)
        if asked == 1:
            del ends["rides.v1", 0]
        return starts, ends

    monkeypatch.setattr(RecordedLog, "bounds", growing)
    accounts = await accounts_of(run)
    assert accounts.moved == (f"rides.v1-0 went on from 0 to {len(run.records['rides.v1', 0])}",)
    asked = 0
    assert (await accounts_of(run, so_far=True)).moved == ()


async def test_a_group_that_commits_while_the_accounts_are_read_moved(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = RecordedLog.committed

    def moving(self: RecordedLog, groups: Any) -> Any:
        found = committed(self, groups)
        place = next(iter(run.committed["surge"]))
        run.committed["surge"][place] -= 1
        return found

    monkeypatch.setattr(RecordedLog, "committed", moving)
    assert (await accounts_of(run)).moved == ("group surge committed",)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"multiplier": 3.0}, None),
        ({"multiplier": 1.0}, None),
        ({"multiplier": 3.1}, "multiplier 3.1 is no tenth between 1.0 and 3.0"),
        ({"multiplier": 0.9}, "multiplier 0.9 is no tenth"),
        ({"multiplier": 1.05}, "multiplier 1.05 is no tenth"),
        ({"multiplier": 1.1000000001}, None),
        ({"supply": 0.0}, None),
        ({"supply": -0.5}, "supply -0.5 is below 0"),
    ],
)
async def test_what_an_update_of_surge_may_say(run: RecordedRun, fields: dict[str, float], words: str | None) -> None:
    run.put(with_data(run.find("surge.updated", nth=3), **fields))
    found = line(await accounts_of(run), "surge-demand")
    assert [words in one.what for one in found.findings if words is not None] == ([] if words is None else [True])
    assert found.verdict == ("agrees" if words is None else "disagrees")


@pytest.mark.parametrize("more_s", [1, 60])
async def test_the_version_the_window_and_the_time_of_an_update_belong_together(run: RecordedRun, more_s: int) -> None:
    update = run.find("surge.updated", nth=3)
    end_ms = milliseconds(data(update)["window_end"]) + more_s * 1000
    later = datetime.fromtimestamp(end_ms / 1000, UTC).isoformat()
    until = datetime.fromtimestamp(end_ms / 1000 + 300, UTC).isoformat()
    for change in (
        with_data(update, window_end=later, valid_until=until),
        with_header(update, "ce_time", later),
        with_data(update, surge_version=data(update)["surge_version"] + more_s),
        with_header(with_data(update, window_end=later, valid_until=until), "ce_time", later),
    ):
        run.put(change)
        found = line(await accounts_of(run), "surge-demand")
        assert "does not follow from the window's end" in found.detail


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"p10": 2.0, "p50": 2.0, "p90": 2.0}, None),
        ({"p10": 0.0, "p50": 0.0, "p90": 0.0}, None),
        ({"p10": 3.0, "p50": 2.0, "p90": 4.0}, "do not rise"),
        ({"p10": 1.0, "p50": 5.0, "p90": 4.0}, "do not rise"),
        ({"mean": 0.5}, None),
        ({"mean": 0.4999}, "its mean is 0.4999"),
        ({"horizon_min": 45}, "its horizon is 45 minutes"),
    ],
)
async def test_what_a_forecast_may_say(run: RecordedRun, fields: dict[str, float], words: str | None) -> None:
    run.put(with_data(run.find("demand.forecast_published", nth=3), **fields))
    found = line(await accounts_of(run), "forecasts")
    assert [words in one.what for one in found.findings if words is not None] == ([] if words is None else [True])
    assert found.verdict == ("agrees" if words is None else "disagrees")


async def test_a_forecast_follows_a_request_in_an_interval_that_has_ended(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    last_ms = max(milliseconds(step.data["issued_at"]) for step in reader.forecasts)
    first = min(reader.forecasts, key=lambda step: step.time_ms)
    for less_ms, verdict in ((0, "agrees"), (1, "disagrees")):
        reader.tables["surge-city-changelog"]["state"]["closed_until_ms"] = last_ms - less_ms
        assert line(accounts, "forecasts").verdict == verdict
    at = datetime.fromtimestamp(first.time_ms / 1000 - 300, UTC).isoformat()
    reader.forecasts[reader.forecasts.index(first)] = first._replace(
        time_ms=first.time_ms - 300_000, data={**first.data, "issued_at": at}
    )
    assert [one.what for one in line(accounts, "forecasts").findings if "requested there before" in one.what] == [
        f"cell {first.data['cell']}: no ride was requested there before"
    ]


# ------------------------------------------------------------------------------------------ several faults at once


async def test_every_ride_that_booking_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    without = replace(accounts, booking=replace(booking_of(accounts), rides={}, quotes={}, drivers={}, multipliers={}))
    counts = {
        "rides-book-booking": 24,
        "rides-booking-log": 24,
        "money-booking-log": 24,
        "drivers-booking-log": 24,
        "booking-timers": 12,
        "booking-multipliers": 6,
    }
    assert {name: len(line(without, name).findings) for name in counts} == counts


async def test_every_ride_and_recommendation_that_the_book_lacks_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    without = replace(accounts, book=replace(book_of(accounts), rides={}, quotes={}, advice={}, positions=array("Q")))
    counts = {
        "rides-book-booking": 24,
        "rides-book-log": 24,
        "quotes-book-log": 26,
        "advice-book-log": 7,
        "positions": 46,
    }
    assert {name: len(line(without, name).findings) for name in counts} == counts


async def test_every_trail_that_the_log_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    reader.rides, reader.quotes, reader.drivers, reader.cells, reader.served = {}, {}, {}, {}, {}
    state_of_surge = reader.tables["surge-city-changelog"]["state"]
    state_of_surge["prices"] = {cell: [2.0, 2.0, 2.0, 1] for cell in ("a", "b", "c")}
    counts = {
        "rides-book-log": 24,
        "rides-booking-log": 24,
        "drivers-booking-log": 24,
        "quotes-book-log": 26,
        "advice-book-log": 7,
        "advice-recommender-log": 7,
        "booking-multipliers": 6,
        "order": 24 + 26 + 24,
        "surge-prices": 3,
        "forecasts": 115,
    }
    assert {name: len(line(accounts, name).findings) for name in counts} == counts
    assert len(line(accounts, "money-rides-payments").findings) == 24 + 14 + 10


async def test_every_event_that_the_log_lost_is_named(run: RecordedRun) -> None:
    accounts = await accounts_of(run)
    reader = log_of(accounts).reader
    reader.rows = {}
    replaced = len(run.all("drivers.v1")) - 24  # of each of 24 drivers the newest must be there
    counts = {
        "outbox-log": 277 - replaced,
        "inbox-booking": 66,
        "inbox-surge": 263,
        "inbox-recommender": 48,
        "journal-log": 499,
    }
    assert {name: len(line(accounts, name).findings) for name in counts} == counts


async def test_every_event_that_nobody_applied_or_wrote_is_named(run: RecordedRun) -> None:
    for database in ("booking", "surge", "recommender", "logger"):
        run.sql(database, "DELETE FROM hailbus_inbox")
    run.sql("booking", "DELETE FROM hailbus_outbox")
    run.sql("recommender", "DELETE FROM recommender_journey")
    run.sql("recommender", "DELETE FROM recommender_answer")
    run.write_journal([])
    accounts = await accounts_of(run)
    counts = {
        "outbox-log": 277,
        "inbox-booking": 66,
        "inbox-surge": 263,
        "inbox-recommender": 48,
        "inbox-event-logger": 499,
        "journal-log": 499,
        "recommender-journeys": 14,
        "advice-recommender-log": 7,
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
        assert len(line(accounts, "quotes-surge").findings) == 26
    for quote_id, steps in quotes.items():
        quotes[quote_id] = steps[1:] or steps
    assert line(accounts, "quotes-surge").verdict == "agrees"


async def test_every_dead_letter_topic_is_named(run: RecordedRun) -> None:
    ride = run.find("ride.matched")
    for number in range(25):
        topic = f"t{number}-dlt"
        run.letters[topic] = [ride._replace(topic=topic, partition=0, offset=0)]
    assert len(line(await accounts_of(run), "dead-letters").findings) == 25
