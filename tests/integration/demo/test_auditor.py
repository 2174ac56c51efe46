"""The auditor's process beside a real broker: it keeps up with the log and names what went wrong."""

import asyncio
import os
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo import acknowledged
from hailbus_demo.auditor import NICENESS, Auditor, Round
from hailbus_demo.ledger.accounts import BookAccount, BookRide
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.ledger.model import Line
from ride_events import TOPICS

from tests.integration.demo.faults.declared import Inject
from tests.integration.demo.faults.every import FAULTS
from tests.integration.demo.recorded import RecordedRun, unpack, with_header

RIDE = "00000000-0000-4000-8000-000000000001"


class Seen:
    """Keeps the rounds of an auditor."""

    def __init__(self) -> None:
        self.rounds: asyncio.Queue[Round] = asyncio.Queue()

    async def line(self, line_id: str, verdict: str, *, within_s: float = 240) -> Line:
        """Wait for a ledger in which a line has a verdict."""
        async with asyncio.timeout(within_s):
            while True:
                found = await self.rounds.get()
                for line in found.ledger.lines:
                    if line.id == line_id and line.verdict == verdict:
                        return line


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic.name, num_partitions=1) for topic in TOPICS]).values():
        made.result(30)


@pytest.mark.timeout(900)
async def test_a_record_that_is_no_event_turns_a_line_red_and_the_process_ends_when_told() -> None:
    with ThreadedBroker() as broker:
        await asyncio.to_thread(make_topics, broker.bootstrap)
        rides: dict[str, BookRide] = {}
        book = BookAccount(rides=rides, quotes={}, advice={}, positions=array("Q"), is_whole=True)
        seen = Seen()
        auditor = Auditor(
            Sources(bootstrap=broker.bootstrap, databases={}, consumers=(), book=lambda: book),
            serves=lambda: True,
            keeps_up=lambda: True,
            broker_life=lambda: (1,),
            take=seen.rounds.put_nowait,
        )
        auditor.start()
        try:
            await seen.line("log-offsets", "agrees")
            # What the riders are told in this process reaches the other one.
            rides[RIDE] = BookRide("requested", 1, "q", "rider", None, 800, 1.0, None, None)
            told = await seen.line("rides-book-log", "disagrees")
            assert RIDE in told.detail
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("rides.v1", b"no event", b"key")
            producer.flush(30)
            line = await seen.line("log-offsets", "disagrees")
            (finding,) = line.findings
            assert (finding.topic, finding.partition, finding.offset) == ("rides.v1", 0, 0)
        finally:
            await auditor.stop()
        assert auditor.pid is None


def injection(what: str) -> Inject:
    return next(fault.inject for fault in FAULTS if fault.what == what)


@pytest.mark.parametrize(
    ("what", "of"),
    [
        ("a fare is altered", "outbox-log"),
        ("a header is altered", "outbox-log"),
        ("the acknowledged tail of a partition is lost", "outbox-log"),
        ("a compacted topic lost the newest record of a key", "outbox-log"),
        ("an acknowledged event is in another partition", "outbox-log"),
        ("the acknowledged tail of the payments is lost", "outbox-payment-log"),
        ("a charge is altered", "outbox-payment-log"),
    ],
)
async def test_the_first_look_after_a_restart_finds_what_the_log_lost_or_changed(
    what: str, of: str, tmp_path: Path
) -> None:
    run = unpack(tmp_path)
    expected = injection(what)(run)
    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        lines = await acknowledged.compare(run.sources(broker.bootstrap))
    (line,) = [line for line in lines if line.verdict != "agrees"]
    assert line.id == of
    assert (expected.offset, expected.id) in {(found.offset, found.id) for found in line.findings}
    assert expected.what in line.detail


def nothing(run: RecordedRun) -> None:
    """Leave the run as it was recorded."""


def not_published_yet(run: RecordedRun) -> None:
    """Have booking commit an event that the relay has not sent."""
    run.outbox(with_header(run.find("ride.matched"), "ce_id", RIDE))
    run.sql("booking", "UPDATE hailbus_outbox SET published_at = NULL WHERE id = ?", RIDE)


def not_noted_yet(run: RecordedRun) -> None:
    """Have the relay send an event and not note it yet."""
    run.append(with_header(run.find("ride.matched"), "ce_id", RIDE))


@pytest.mark.parametrize("change", [nothing, not_published_yet, not_noted_yet])
async def test_the_first_look_names_nothing_that_a_moment_later_is_right(
    change: Callable[[RecordedRun], None], tmp_path: Path
) -> None:
    run = unpack(tmp_path)
    change(run)
    with ThreadedBroker() as broker:
        run.load(broker.bootstrap)
        lines = await acknowledged.compare(run.sources(broker.bootstrap))
    found = {line.id: (line.verdict, line.findings) for line in lines}
    assert found == {"outbox-log": ("agrees", ()), "outbox-payment-log": ("agrees", ())}


async def test_the_first_look_says_nothing_without_its_accounts(tmp_path: Path) -> None:
    run = unpack(tmp_path)
    assert await acknowledged.compare(replace(run.sources("127.0.0.1:1"), databases={})) == ()
    (tmp_path / "booking.sqlite").unlink()
    assert await acknowledged.compare(run.sources("127.0.0.1:1")) == ()


@pytest.mark.timeout(900)
async def test_an_auditor_that_begins_names_altered_bytes_before_it_has_read_everything(tmp_path: Path) -> None:
    run = unpack(tmp_path)
    expected = injection("a fare is altered")(run)
    with ThreadedBroker() as broker:
        await asyncio.to_thread(run.load, broker.bootstrap)
        seen = Seen()
        auditor = Auditor(
            run.sources(broker.bootstrap),
            serves=lambda: True,
            keeps_up=lambda: False,  # no calm second: a grace period would never end
            broker_life=lambda: (1,),
            take=seen.rounds.put_nowait,
        )
        auditor.start()
        try:
            async with asyncio.timeout(240):
                first, second = await seen.rounds.get(), await seen.rounds.get()
            assert auditor.pid is not None
            niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)
            assert os.getpriority(os.PRIO_PROCESS, auditor.pid) == niceness
        finally:
            await auditor.stop()
    assert first.is_partial
    assert [(found.offset, found.id) for found in first.ledger.lines[0].findings] == [(expected.offset, expected.id)]
    assert not second.is_partial
    red = {line.id for line in second.ledger.lines if line.verdict == "disagrees"}
    assert red == {"outbox-log"}
