"""The demo's riders, drivers and gateways against booking with authentication on: each has the token that it needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import httpx
from booking.config import Settings
from booking.issue import make_keys
from booking.main import create_app
from hailbus.testing import MemoryBus
from hailbus_demo.city.plan import DriverStarts, DriverStops, Plan, RidePlan
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.http import Answer, HttpClient
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import SureClient
from hailbus_demo.replay.tokens import Tokens
from hailbus_demo.replay.world import World

EIGHT_MS = 1_398_931_200_000
HERE, THERE = (40.75, -73.98), (40.70, -74.0)


class InProcess:
    """Sends the demo's requests to the application."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.statuses: set[int] = set()

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = {**(headers or {}), "Content-Type": "application/json"}
        response = await self.http.request(method, path, content=body, headers=sent)
        self.statuses.add(response.status_code)
        return Answer(status=response.status_code, body=response.content)


def ride(number: int, **more: object) -> RidePlan:
    plan = {
        "key": f"p{number}",
        "asks_at_ms": EIGHT_MS + 10_000 * number,
        "rider_id": f"rider-{number}",
        "pickup": HERE,
        "dropoff": THERE,
        "passengers": 1,
        "distance_m": 7_000,
        "duration_s": 900,
        "fleet": "",
        "asks_recommender": False,
        "shares": False,
        "accepts": True,
        "accepts_after_ms": 1_000,
        "max_multiplier": 9.0,
        "gives_up": None,
        "gives_up_after_ms": 0,
        "driver_cancels": 0,
        "driver_cancels_after_ms": 0,
        "boards_after_ms": 5_000,
        "simulated": True,
        **more,
    }
    return RidePlan(**plan)  # type: ignore[arg-type]  # a dict of several kinds


async def test_everybody_has_the_token_that_is_needed(tmp_path: Path) -> None:
    signing, public = make_keys(tmp_path / "keys")
    app = create_app(
        Settings(
            bootstrap_servers="memory:0",
            database_url=f"sqlite+aiosqlite:///{tmp_path / 'b.db'}",
            clock="event",
            auth_keys=public,
        ),
        bus=MemoryBus(),
    )
    plans: list[Plan] = [
        *(DriverStarts(at_ms=EIGHT_MS, driver_id=f"d{number}", place=HERE) for number in range(2)),
        ride(1),
        ride(2, driver_cancels=1, driver_cancels_after_ms=2_000),
        ride(3, gives_up="requested", gives_up_after_ms=5_000),
        ride(4, accepts=False),
        DriverStops(at_ms=EIGHT_MS + 3_600_000, driver_id="d0"),
    ]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://booking") as http,
    ):
        sent = InProcess(http)
        tokens = Tokens.read(signing, option="the test's")
        booking = SureClient(cast("HttpClient", sent), name="booking", deadline_s=60, tokens=tokens)
        stage, book = Stage(), Book()
        world = World(stage=stage, booking=booking, book=book, run="r")
        assert await world.adopt() == 0
        await world.play(iter(plans))
        await world.settle(past_ms=stage.now_ms + 60_000)
        await world.recheck()
    assert sent.statuses & {401, 403, 429} == set()
    assert sorted(one.state for one in book.rides.values()).count("completed") >= 1
    assert len(book.rides) == 3
    assert book.refusals.total() <= 2, book.refusals  # answers that crossed each other
