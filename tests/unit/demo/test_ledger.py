"""The ledger's decisions: balanced when all agree, and each way to disagree is found and named."""

from collections import Counter

from hailbus_demo.ledger import checks
from hailbus_demo.ledger.model import Consumer, InboxContent, LogContent, OutboxContent, RideTrail, five

SURGE = Consumer(group="surge", database="surge", topics=("rides.v1", "driver-locations.v1"))


def log_of(*ids: str, kind: str = "ride.requested", source: str = "/booking") -> LogContent:
    return LogContent(
        ids={("rides.v1", kind): set(ids)},
        sources={("rides.v1", kind): Counter({source: len(ids)})},
        records=Counter({("rides.v1", 0): len(ids)}),
        starts={("rides.v1", 0): 0},
        ends={("rides.v1", 0): len(ids)},
    )


def inbox_of(*ids: str, seen: int | None = None, rows: int | None = None) -> InboxContent:
    return InboxContent(
        applied={"rides.v1": set(ids)},
        seen=Counter({"rides.v1": len(ids) if seen is None else seen}),
        rows=Counter({"rides.v1": len(ids) if rows is None else rows}),
    )


def test_accounts_that_agree() -> None:
    states = {"a": "completed", "b": "cancelled", "c": "unmatched", "d": "matched"}
    found = checks.rides_add_up({"replay": states, "booking": states, "log": {**states, "d": "in_flight"}})
    assert len(found) == 6
    assert all(check.ok for check in found)
    assert found[0].detail == "4 requested = 1 completed + 1 cancelled + 1 unmatched + 1 in flight"
    assert five(states)["in_flight"] == 1


def test_a_ride_that_only_one_account_knows() -> None:
    found = checks.rides_add_up({"replay": {"a": "completed"}, "log": {"a": "completed", "x": "completed"}})
    assert [check.ok for check in found] == [True, True, False]
    assert found[2].detail == "1 rides are known to the log only: x"


def test_a_ride_that_ended_differently() -> None:
    found = checks.rides_add_up({"booking": {"a": "completed"}, "log": {"a": "matched"}})
    assert found[2].ok is False
    assert found[2].detail == "1 rides ended differently, as a: completed by booking, in_flight by the log"


def test_trails() -> None:
    whole = RideTrail(seqs=[1, 2, 3], types=["ride.requested", "ride.matched", "ride.cancelled"])
    assert whole.state == "cancelled"
    assert checks.ride_trails(LogContent(rides={"a": whole})).ok
    gap = RideTrail(seqs=[1, 3], types=["ride.requested", "ride.matched"])
    assert checks.ride_trails(LogContent(rides={"a": gap})).detail.endswith("a: its events are numbered [1, 3]")
    twice = RideTrail(seqs=[1, 2, 3], types=["ride.requested", "ride.cancelled", "ride.completed"])
    assert checks.ride_trails(LogContent(rides={"a": twice})).detail.endswith("a: it ended 2 times")
    orphan = RideTrail(seqs=[1], types=["ride.matched"])
    assert checks.ride_trails(LogContent(rides={"a": orphan})).detail.endswith("a: it was never requested")


def outbox_check(outbox: OutboxContent, log: LogContent) -> tuple[bool | None, str]:
    found = checks.outbox_is_log("booking", outbox, log, source="/booking", exempt={"driver-locations.v1"})
    return found.ok, found.detail


def test_outbox_and_log_agree() -> None:
    outbox = OutboxContent(published={"rides.v1": {"1", "2"}}, waiting=3)
    assert outbox_check(outbox, log_of("1", "2")) == (
        True,
        "all 2 events are in the log, and no other; 3 wait for their time",
    )


def test_a_lost_an_invented_and_an_owed_event() -> None:
    outbox = OutboxContent(published={"rides.v1": {"1", "2"}}, owed=1, failed=1)
    ok, words = outbox_check(outbox, log_of("2", "3"))
    assert ok is False
    assert words == (
        "1 published events are not in the log: 1; 1 events in the log are not in the outbox: 3; "
        "1 events are due and not published; 1 events could not be published"
    )


def test_events_of_others_are_not_the_outboxs_business() -> None:
    outbox = OutboxContent(published={})
    assert outbox_check(outbox, log_of("9", source="/surge"))[0] is True


def test_what_the_broker_compacted_is_not_lost() -> None:
    log = log_of("2")
    log.ends["rides.v1", 0] = 2  # two offsets, one record left
    assert log.shortened == {"rides.v1"}
    assert outbox_check(OutboxContent(published={"rides.v1": {"1", "2"}}), log)[0] is True


def test_applied_once() -> None:
    found = checks.applied_once(SURGE, inbox_of("1", "2", seen=5), log_of("1", "2"), exempt=())
    assert found.ok
    assert found.detail == "all 2 events applied once (3 were seen again and passed over)"


def test_missing_surplus_twice_and_unseen() -> None:
    found = checks.applied_once(SURGE, inbox_of("2", "3", rows=3, seen=2), log_of("1", "2"), exempt=())
    assert found.ok is False
    assert found.detail == (
        "rides.v1: 1 events were not applied: 1; rides.v1: 1 applied events are not in the log: 3; "
        "1 events were applied twice; 1 events were applied without being seen"
    )


def test_a_group_is_asked_only_for_the_types_it_applies() -> None:
    picky = Consumer(group="p", database="p", topics=("rides.v1",), types=frozenset({"ride.completed"}))
    log = log_of("1", "2")
    log.ids["rides.v1", "ride.completed"] = {"3"}
    assert checks.expected_ids(picky, log) == {"rides.v1": {"3"}}
    assert checks.applied_once(picky, inbox_of("3"), log, exempt=()).ok


def test_at_most_once_topics_are_shown_not_judged() -> None:
    log = LogContent(ids={("driver-locations.v1", "driver.location_reported"): {"1"}})
    assert checks.applied_once(SURGE, InboxContent(), log, exempt={"driver-locations.v1"}).ok
    shown = checks.at_most_once("driver-locations.v1", sent=10, in_log=9, seen={"surge": 8})
    assert shown.ok is None
    assert shown.detail == "10 sent, 9 in the log, 8 seen by surge"


def test_broker_counts() -> None:
    log = log_of("1", "2")
    assert checks.broker_counts(log, compacted=()).ok
    log.ends["rides.v1", 0] = 3
    assert checks.broker_counts(log, compacted=()).detail == "rides.v1-0: 2 records in 3 offsets"
    assert checks.broker_counts(log, compacted={"rides.v1"}).ok


def test_late_readers_dead_letters_and_the_lake() -> None:
    assert checks.all_caught_up({"surge": 0}).ok
    assert checks.all_caught_up({"surge": 7, "lake": 0}).detail == "still behind at the deadline: surge by 7"
    assert checks.dead_letters({"rides.v1.surge-dlt": 0}).ok
    assert checks.dead_letters({"rides.v1.surge-dlt": 2}).detail == "2 in rides.v1.surge-dlt"
    assert checks.lake_is_log([], 5, 5, 1).ok
    bad = checks.lake_is_log(["a-0: x", "a-1: x", "a-2: x", "a-3: x"], 5, 6, 4)
    assert (bad.ok, bad.detail) == (False, "a-0: x; a-1: x; a-2: x and 1 more")


def test_records_that_came_meanwhile_are_not_judged() -> None:
    assert checks.nothing_moved({("a", 0): 1}, {("a", 0): 1}).ok
    assert checks.nothing_moved({("a", 0): 1}, {("a", 0): 4}).ok is None
