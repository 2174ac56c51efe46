"""How the ledger reads databases, reports and moments."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.ledger import gather
from hailbus_demo.ledger.databases import (
    count_due,
    count_under_way,
    read_booking,
    read_inbox,
    read_journal,
    read_payment,
)
from hailbus_demo.ledger.gather import read_lake_report
from hailbus_demo.ledger.log import milliseconds

from tests.integration.demo.accounts import accounts_of, line
from tests.integration.demo.faults.declared import NEW_ID
from tests.integration.demo.recorded import RecordedLog, RecordedRun, header, with_header

FAR_MS = 10**15


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


async def test_a_card_that_is_charged_again_soon_is_a_payment_under_way(run: RecordedRun) -> None:
    url = run.urls()["payment"]
    assert await count_under_way(url) == 0
    ids = [row[0] for row in run.ask("payment", "SELECT id FROM hailbus_outbox ORDER BY position LIMIT 3")]
    now_us = time.time_ns() // 1_000
    for event_id, wait_s in zip(ids, (0, 20, 3_600), strict=True):
        not_before = now_us + wait_s * 1_000_000
        run.sql(
            "payment",
            "UPDATE hailbus_outbox SET published_at = NULL, not_before = ? WHERE id = ?",
            not_before,
            event_id,
        )
    assert await count_under_way(url) == 2
    run.sql(
        "payment", "UPDATE hailbus_state SET state = 'Capturing' WHERE rowid = (SELECT min(rowid) FROM hailbus_state)"
    )
    assert await count_under_way(url) == 3


@pytest.mark.parametrize(
    ("due", "captured", "refused", "owed"),
    [(800, 0, "card_declined", 800), (800, 500, "card_declined", 300), (500, 800, "card_declined", 0)],
)
async def test_what_was_due_refused_and_not_captured_is_owed(
    run: RecordedRun, due: int, captured: int, refused: str, owed: int
) -> None:
    instance, text = run.ask("payment", "SELECT instance, data FROM hailbus_state WHERE machine = 'saga' LIMIT 1")[0]
    state = json.loads(text)
    before = (await read_payment(run.urls()["payment"])).payments[instance]
    assert (before.owed, before.step) == (0, None)
    state["payment"] |= {"ending": {"kind": "fare", "due_minor": due, "reason": ""}, "captured_minor": captured}
    for reason, expected in ((None, 0), (refused, owed)):
        state["payment"]["refused"] = reason
        run.sql("payment", "UPDATE hailbus_state SET data = ? WHERE instance = ?", json.dumps(state), instance)
        assert (await read_payment(run.urls()["payment"])).payments[instance].owed == expected


async def test_a_database_that_cannot_be_read_is_named_without_its_password() -> None:
    with pytest.raises(RunFailedError, match=r"//ledger:\*\*\*@127\.0\.0\.1:1/booking cannot be read: ") as failed:
        await read_booking("postgresql+asyncpg://ledger:s3cret@127.0.0.1:1/booking")
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(("name", "reason"), [(".", "Is a directory"), ("none", "No such file or directory")])
def test_a_file_of_the_event_logger_that_cannot_be_read_is_no_account(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    with pytest.raises(RunFailedError) as failed:
        read_journal(path)
    assert str(failed.value) == f"{path} cannot be read: {reason}"


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
