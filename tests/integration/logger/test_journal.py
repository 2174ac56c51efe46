"""The logger: every event in file and inbox once, whenever it is killed."""

import asyncio
import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from event_logger.journal import Journal
from event_logger.log_file import LogFile
from event_logger.main import GROUP, create_service
from hailbus import ConfigurationError, Context, Inbox, KafkaBus, Service
from hailbus.codec import encode, envelope_for
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from ride_events import LatLng
from ride_events.drivers import DriverLocationReported
from ride_events.timers import TimerElapsed
from sqlalchemy import text

from tests.integration.conftest import Broker, Process, eventually

pytestmark = pytest.mark.timeout(240)
NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = LatLng(lat=40.75, lng=-73.98)


def context(number: int) -> Context:
    event = TimerElapsed(subject_id=f"q{number}", kind="quote_expiry", seq=1, due_at=NOW)
    key, value, headers = encode(event, envelope_for(event, source="/booking", id=f"id-{number}", time=NOW))
    return Context(
        SimpleNamespace(
            topic="booking-timers.v1",
            partition=0,
            offset=number,
            timestamp=0,
            timestamp_type=0,
            key=key,
            value=value,
            headers=headers,
        )
    )


def ids(path: Path) -> list[str]:
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(line)["id"] for line in content.splitlines()]


class Opened:
    """A journal that is opened and left, as by a process that ends."""

    def __init__(self, database_url: str, path: Path) -> None:
        self.engine = create_engine(database_url)
        self.file = LogFile(path)
        self.journal = Journal(self.engine, Inbox(self.engine, GROUP), self.file)

    async def __aenter__(self) -> Journal:
        try:
            await self.journal.open()
        except BaseException:
            await self.__aexit__()
            raise
        return self.journal

    async def __aexit__(self, *_: object) -> None:
        self.file.close()
        await self.engine.dispose()


async def test_an_event_is_written_once_however_often_it_comes(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with Opened(database_url, path) as journal:
        assert await journal.write([context(1), context(2), context(1)]) == 2
        assert await journal.write([context(2), context(3)]) == 1
    async with Opened(database_url, path) as journal:
        assert await journal.write([context(1), context(2), context(3), context(4)]) == 1
        assert await journal.write([]) == 0
    assert ids(path) == ["id-1", "id-2", "id-3", "id-4"]
    engine = create_engine(database_url)
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT event_id, seen_count FROM hailbus_inbox ORDER BY 1"))).all()
    await engine.dispose()
    assert [tuple(row) for row in rows] == [("id-1", 3), ("id-2", 3), ("id-3", 2), ("id-4", 1)]


async def test_lines_that_were_never_committed_are_cut_off_whole_or_torn(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with Opened(database_url, path) as journal:
        await journal.write([context(1)])
    whole = path.read_bytes()
    for surplus in (whole, whole[:10], whole + whole[:-1]):
        path.write_bytes(whole + surplus)  # killed after the write, before the commit
        async with Opened(database_url, path) as journal:
            assert path.read_bytes() == whole
            assert await journal.write([context(1)]) == 0
    async with Opened(database_url, path) as journal:
        await journal.write([context(2)])
    assert ids(path) == ["id-1", "id-2"]


async def test_a_commit_that_fails_leaves_no_line(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e.jsonl"
    async with Opened(database_url, path) as journal:
        await journal.write([context(1)])
        append = LogFile.append

        def fails_after_writing(self: LogFile, lines: list[bytes]) -> int:
            append(self, lines)
            raise OSError("the machine failed")

        monkeypatch.setattr(LogFile, "append", fails_after_writing)
        with pytest.raises(OSError, match="the machine failed"):
            await journal.write([context(2)])
        monkeypatch.undo()
        assert len(path.read_bytes().splitlines()) == 2
        assert await journal.write([context(2)]) == 1  # the bus sends it again
    assert ids(path) == ["id-1", "id-2"]


async def test_a_file_is_taken_over_by_a_new_database(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    other = f"sqlite:///{tmp_path / 'other.db'}"
    async with Opened(other, path) as journal:
        await journal.write([context(number) for number in range(5)])
    path.write_bytes(path.read_bytes() + b'{"id": "torn')
    async with Opened(database_url, path) as journal:
        assert await journal.write([context(number) for number in range(7)]) == 2
    assert ids(path) == [f"id-{number}" for number in range(7)]


async def test_a_file_that_lost_lines_is_refused(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with Opened(database_url, path) as journal:
        await journal.write([context(1)])
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="lines were taken away"):
        async with Opened(database_url, path):
            pass


async def test_a_file_of_something_else_is_refused_and_left_alone(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"buy milk\n")
    with pytest.raises(ConfigurationError, match="line 1 is no line of the event log"):
        async with Opened(database_url, path):
            pass
    assert path.read_bytes() == b"buy milk\n"


def test_one_file_has_one_writer(tmp_path: Path) -> None:
    first = LogFile(tmp_path / "e.jsonl")
    with pytest.raises(ConfigurationError, match="another process writes"):
        LogFile(tmp_path / "e.jsonl")
    first.close()
    LogFile(tmp_path / "e.jsonl").close()


async def test_every_topic_of_the_language_is_logged(database_url: str, tmp_path: Path) -> None:
    bus = MemoryBus()
    path = tmp_path / "e.jsonl"
    async with Opened(database_url, path) as journal:
        service = create_service(bus, journal)
        driver = Service("driver-app", bus=bus)
        positions = driver.publishes(DriverLocationReported | TimerElapsed)
        async with service.running(), driver.running():
            for number in range(50):
                await positions.publish(
                    DriverLocationReported(driver_id=f"d{number}", position=HERE, cell=HERE.cell(), free=True)
                )
            await positions.publish(TimerElapsed(subject_id="q", kind="quote_expiry", seq=1, due_at=NOW))

            async def all_written() -> bool:
                return len(ids(path)) == 51

            await eventually(all_written)
            subscribed = {topic for subscriber in service.subscribers for topic in subscriber.topics}
    from ride_events import TOPICS

    assert subscribed == {topic.name for topic in TOPICS}


@pytest.mark.slow_with("sqlite")
async def test_killed_again_and_again_no_line_is_missing_and_none_is_there_twice(
    broker: Broker, database_url: str, tmp_path: Path
) -> None:
    chance = random.Random(11)
    path = tmp_path / "e.jsonl"
    logger = Process(
        "event-logger",
        tmp_path,
        {
            "LOGGER_BOOTSTRAP_SERVERS": broker.bootstrap,
            "LOGGER_DATABASE_URL": database_url,
            "LOGGER_FILE": str(path),
        },
    )
    source = Service("driver-app", bus=KafkaBus(bootstrap_servers=broker.bootstrap))
    positions = source.publishes(DriverLocationReported)
    total = 6_000
    sent: list[str] = []
    async with source.running():
        logger.start()

        async def publish() -> None:
            for start in range(0, total, 100):
                events = [
                    DriverLocationReported(driver_id=f"d{number % 37}", position=HERE, cell=HERE.cell(), free=True)
                    for number in range(start, start + 100)
                ]
                sent.extend(receipt.id for receipt in await positions.publish_many(events, time=NOW + timedelta(1)))
                await asyncio.sleep(0)

        publishing = asyncio.create_task(publish())
        for _ in range(4):
            size = path.stat().st_size if path.exists() else 0
            more = chance.randrange(1, 200_000)

            async def has_grown(target: int = size + more) -> bool:
                return path.exists() and (
                    path.stat().st_size >= target or (path.stat().st_size > 0 and publishing.done())
                )

            await eventually(has_grown, within_s=60)
            logger.kill()
            if chance.random() < 0.5:
                with path.open("ab") as file:  # as a torn write leaves it
                    file.write(b'{"id":"torn')
            logger.start()
        await publishing

        async def all_written() -> bool:
            with path.open("rb") as file:
                return sum(1 for _ in file) >= total

        await eventually(all_written, within_s=90)
    assert await asyncio.to_thread(logger.terminate) == 0
    counted = Counter(ids(path))
    assert set(counted.values()) == {1}
    assert set(counted) == set(sent)
    engine = create_engine(database_url)
    async with engine.connect() as connection:
        known = set((await connection.execute(text("SELECT event_id FROM hailbus_inbox"))).scalars())
    await engine.dispose()
    assert known == set(sent)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LOGGER_FIEL": "x"}, "unknown setting LOGGER_FIEL"),
        ({"LOGGER_FILE": "/proc/none/e.jsonl"}, "cannot be opened"),
        ({"LOGGER_DATABASE_URL": "oracle://x"}, "not supported"),
    ],
)
def test_what_is_set_wrongly_stops_the_start_with_one_sentence(
    environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    one = Process(
        "event-logger",
        tmp_path,
        {
            "LOGGER_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "LOGGER_DATABASE_URL": f"sqlite:///{tmp_path / 'l.db'}",
            "LOGGER_FILE": str(tmp_path / "e.jsonl"),
            **environment,
        },
    )
    one.start()
    assert one.wait() == 2
    last = one.log().splitlines()[-1]
    assert last.startswith("event-logger: ")
    assert expected in last
    assert "Traceback" not in one.log()
