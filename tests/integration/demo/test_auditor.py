"""The auditor's process beside a real broker: it keeps up with the log and names what went wrong."""

import asyncio
from array import array

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.testing import ThreadedBroker
from hailbus_demo.auditor import Auditor, Round
from hailbus_demo.ledger.accounts import BookAccount, BookRide
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.ledger.model import Line
from ride_events import TOPICS

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
            broker_life=lambda: 1,
            take=seen.rounds.put_nowait,
        )
        auditor.start()
        try:
            await seen.line("log-offsets", "agrees")
            # What the riders are told in this process reaches the other one.
            rides[RIDE] = BookRide("requested", 1, "q", "rider", None, 800, "authorised", 1.0, None, None)
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
