"""A second producer joins: nobody's code changes, and one who should care needs one line of configuration."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import bike.config
import bike.main
import httpx
import pytest
import recommender.config
import recommender.main
from event_logger.journal import Journal
from event_logger.log_file import LogFile
from event_logger.main import GROUP, create_service
from hailbus import Inbox
from hailbus.database import create_engine
from hailbus.settings import read_settings
from hailbus.testing import MemoryBus

from tests.integration.conftest import eventually

ROOT = Path(__file__).resolve().parents[3]
HARLEM = {"lat": 40.8045, "lng": -73.9391}
MIDTOWN = {"lat": 40.7580, "lng": -73.9855}


def test_no_consumer_has_heard_of_bikes() -> None:
    consumers = [ROOT / "services" / name / "src" for name in ("booking", "surge", "recommender", "logger")]
    consumers += [ROOT / "services" / "dashboard" / "src", ROOT / "analytics_spark" / "src"]
    sources = [path for folder in consumers for path in folder.rglob("*.py")]
    assert len(sources) > 50
    assert [path for path in sources if "bike" in path.read_text().lower()] == []


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [({}, 0), ({"RECOMMENDER_SOURCES": "ride.completed,bike.returned"}, 1)],
    ids=["not told", "told by one line"],
)
async def test_the_recommender_learns_from_bikes_when_it_is_told_to(
    configuration: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryBus()
    monkeypatch.setenv("RECOMMENDER_BOOTSTRAP_SERVERS", "memory:0")
    monkeypatch.setenv("RECOMMENDER_DATABASE_URL", f"sqlite:///{tmp_path / 'r.db'}")
    for name, value in configuration.items():
        monkeypatch.setenv(name, value)
    bikes = bike.main.create_app(
        bike.config.Settings(bootstrap_servers="memory:0", database_url=f"sqlite:///{tmp_path / 'b.db'}"), bus=bus
    )
    learner = recommender.main.create_app(read_settings(recommender.config.Settings), bus=bus)
    engine = create_engine(f"sqlite:///{tmp_path / 'l.db'}")
    lines = LogFile(tmp_path / "e.jsonl")
    journal = Journal(engine, Inbox(engine, GROUP), lines)
    await journal.open()
    async with AsyncExitStack() as stack:
        for app in (bikes, learner):
            await stack.enter_async_context(app.router.lifespan_context(app))
        await stack.enter_async_context(create_service(bus, journal).running())

        async def client(app: Any) -> httpx.AsyncClient:
            return await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
            )

        rider, asker = await client(bikes), await client(learner)

        async def post(path: str, body: object, key: str) -> Any:
            response = await rider.post(path, json=body, headers={"Idempotency-Key": key})
            assert response.status_code in {200, 201}, response.text
            return response.json()

        await post("/bikes", {"bike_id": "b1", "place": HARLEM}, "1")
        hire = await post("/hires", {"bike_id": "b1", "rider_id": "r1"}, "2")
        await post(f"/hires/{hire['hire_id']}/unlock", {}, "3")
        await post(f"/hires/{hire['hire_id']}/return", {"place": MIDTOWN, "distance_m": 8_000}, "4")

        async def logged() -> bool:  # the logger takes every topic of the language: the new one, too, as it is
            return journal.written_count == 3

        async def all_read() -> bool:
            return bus.lag("recommender") == 0

        await eventually(logged)
        await eventually(all_read)

        async def learned() -> bool:
            return bool((await asker.get("/model")).json()["journeys"] == expected)

        await eventually(learned)
        topics = {partition.topic for partition in bus.committed("recommender")}
        assert ("bikes.v1" in topics) == bool(expected)
    lines.close()
    await engine.dispose()
