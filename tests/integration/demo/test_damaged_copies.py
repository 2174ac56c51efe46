"""A damaged copy that a click wrote: the ledger knows it, its dead letters, and the mended letter that is replayed."""

import json

from tests.integration.demo.accounts import accounts_of, line, log_of
from tests.integration.demo.recorded import RecordedRun, data

GROUPS = ("payment-saga", "surge", "recommender", "event-logger")


async def test_each_group_has_set_it_aside(run: RecordedRun) -> None:
    copy = run.damage(run.find("ride.requested"))
    for group in GROUPS:
        run.set_aside(copy, by=group)
    accounts = await accounts_of(run)
    letters = line(accounts, "dead-letters")
    assert (letters.verdict, letters.detail) == (
        "agrees",
        "1 damaged event by a click, set aside 4 times; no other record was",
    )
    assert line(accounts, "log-repeats").detail == "no event is in the log twice"
    for name in ("log-offsets", "outbox-log", "journal-log", "order", *(f"inbox-{group}" for group in GROUPS)):
        assert line(accounts, name).verdict == "agrees", name


async def test_during_the_run_a_group_may_still_set_it_aside(run: RecordedRun) -> None:
    run.damage(run.find("ride.requested"))
    assert line(await accounts_of(run, so_far=True), "dead-letters").verdict == "agrees"
    assert line(await accounts_of(run), "dead-letters").verdict == "disagrees"


async def test_a_copy_that_no_click_wrote_is_found(run: RecordedRun) -> None:
    copy = run.damage(run.find("ride.requested"))
    run.set_aside(copy, by="surge")
    run.poison.clear()
    accounts = await accounts_of(run)
    assert line(accounts, "log-repeats").verdict == "disagrees"
    assert line(accounts, "dead-letters").verdict == "disagrees"


async def test_another_dead_letter_is_found_beside_it(run: RecordedRun) -> None:
    copy = run.damage(run.find("ride.requested"))
    for group in GROUPS:
        run.set_aside(copy, by=group)
    run.set_aside(run.find("ride.matched"), by="surge")
    (finding,) = line(await accounts_of(run), "dead-letters").findings
    assert (finding.topic, finding.offset) == ("rides.v1.surge-dlt", 1)


async def test_a_mended_letter_may_be_replayed_in_any_layout_and_its_marker_has_an_offset(run: RecordedRun) -> None:
    event = run.find("ride.requested")
    run.damage(event)
    before = log_of(await accounts_of(run)).partitions[event.topic, event.partition].next_offset
    run.replay(event, json.dumps(data(event), indent=2).encode())
    accounts = await accounts_of(run)
    assert log_of(accounts).partitions[event.topic, event.partition].gaps == [(before + 1, before + 2)]
    assert line(accounts, "log-offsets").verdict == "agrees"
    repeats = line(accounts, "log-repeats")
    assert (repeats.verdict, repeats.detail) == (
        "agrees",
        "no event is in the log twice; 1 mended dead letter replayed",
    )
    for name in ("outbox-log", "journal-log", "order"):
        assert line(accounts, name).verdict == "agrees", name


async def test_a_second_hole_needs_another_explanation(run: RecordedRun) -> None:
    event = run.find("ride.requested")
    run.replay(event, event.value or b"")
    run.append(event)
    run.records[event.topic, event.partition].append(None)
    offsets = line(await accounts_of(run), "log-offsets")
    assert offsets.verdict == "disagrees"
    assert "hold no record" in offsets.detail
