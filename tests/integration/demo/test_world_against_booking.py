"""The demo's riders and drivers against booking with authentication on: alone, and two who share a car."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import httpx
from booking.config import Settings
from booking.issue import make_keys
from booking.main import create_app
from hailbus.testing import MemoryBus
from hailbus_demo.city.plan import DriverStarts, DriverStops, Plan, RidePlan, to_ms
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


@dataclass
class Played:
    """What came of plans: booking's rides by the key of their plan, the riders' book, and statuses of answers.

    `free_at` is when each driver reported to be free, in event time.
    """

    rides: dict[str, dict[str, Any]]
    book: Book
    world: World
    statuses: set[int]
    free_at: Mapping[str, list[int]]

    def is_free(self, driver_id: str, first: str, end: str) -> bool:
        """Whether a driver reported to be free between two times; actions overtake each other by less than 40 s."""
        within = range(ms_of(first) + 40_000, ms_of(end) - 40_000)
        return any(at_ms in within for at_ms in self.free_at[driver_id])


class DriverApps:
    """Notes who reports to be free when."""

    def __init__(self) -> None:
        self.free_at: defaultdict[str, list[int]] = defaultdict(list)

    def report(
        self, driver_id: str, place: tuple[float, float], *, free: bool, ride_id: str | None, at_ms: int
    ) -> None:
        assert free == (ride_id is None), place
        if free:
            self.free_at[driver_id].append(at_ms)


class Matchmaker:
    """Recommends every other rider who would share, as the recommender does for riders who go the same way.

    `strangers` are rides that come first and whose riders never agree.
    """

    def __init__(self, *strangers: str) -> None:
        self.strangers = strangers
        self.world: World | None = None
        self.taken: list[str] = []

    async def ask(self, plan: RidePlan, at_ms: int, key: str) -> Any:
        raise AssertionError((plan, at_ms, key))

    async def chosen(self, served: Any, plan: RidePlan, ride_id: str, at_ms: int, key: str) -> str | None:
        raise AssertionError((served, plan, ride_id, at_ms, key))

    async def ask_for_partner(self, plan: RidePlan, at_ms: int, key: str) -> Any:
        assert self.world is not None
        others = [one.ride_id for one in self.world.rides.values() if one.plan.shares and one.plan.key != plan.key]
        rides = [*self.strangers, *others]
        options = [{"option_id": f"pooled_ride-{n}", "ride_id": ride_id} for n, ride_id in enumerate(rides, start=1)]
        return {"recommendation_id": key, "destinations": [], "pooled_rides": options, "pickup_spots": []}

    async def take(self, served: Any, option_id: str, ride_id: str, at_ms: int, key: str) -> bool:
        self.taken.append(ride_id)
        return True


async def played(folder: Path, plans: Sequence[Plan], *, advice: Matchmaker | None = None) -> Played:
    """Play plans against booking with authentication on."""
    signing, public = make_keys(folder / "keys")
    app = create_app(
        Settings(
            bootstrap_servers="memory:0",
            database_url=f"sqlite+aiosqlite:///{folder / 'b.db'}",
            clock="event",
            auth_keys=public,
            silent_after_s=3_600,
        ),
        bus=MemoryBus(),
    )
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://booking") as http,
    ):
        sent = InProcess(http)
        tokens = Tokens.read(signing, option="the test's")
        booking = SureClient(cast("HttpClient", sent), name="booking", deadline_s=60, tokens=tokens)
        stage, book = Stage(), Book()
        apps = DriverApps()
        world = World(stage=stage, booking=booking, book=book, run="r", advice=advice, locations=apps)
        if advice is not None:
            advice.world = world
        assert await world.adopt() == 0
        await world.play(iter(plans))
        await world.settle(past_ms=stage.now_ms + 60_000)
        await world.recheck()
        key_of = {plan.rider_id: plan.key for plan in plans if isinstance(plan, RidePlan)}
        rides = {key_of[ride["rider_id"]]: ride for ride in (await booking.get("/rides?limit=100"))["rides"]}
    return Played(rides=rides, book=book, world=world, statuses=sent.statuses, free_at=apps.free_at)


async def test_everybody_has_the_token_that_is_needed(tmp_path: Path) -> None:
    plans: list[Plan] = [
        *(DriverStarts(at_ms=EIGHT_MS, driver_id=f"d{number}", place=HERE) for number in range(2)),
        ride(1),
        ride(2, driver_cancels=1, driver_cancels_after_ms=2_000),
        ride(3, gives_up="requested", gives_up_after_ms=5_000),
        ride(4, accepts=False),
        DriverStops(at_ms=EIGHT_MS + 3_600_000, driver_id="d0"),
    ]
    done = await played(tmp_path, plans)
    assert done.statuses & {401, 403, 429} == set()
    assert sorted(one.state for one in done.book.rides.values()).count("completed") >= 1
    assert len(done.book.rides) == 3
    assert done.book.refusals.total() <= 2, done.book.refusals  # answers that crossed each other


def pair(**second: object) -> list[Plan]:
    """Two riders who would share, and as many free drivers; `second` is what the second one does otherwise."""
    return [
        *(DriverStarts(at_ms=EIGHT_MS, driver_id=f"d{number}", place=HERE) for number in range(2)),
        ride(1, shares=True),
        ride(2, **{"shares": True, **second}),
        *(DriverStops(at_ms=EIGHT_MS + 7_200_000, driver_id=f"d{number}") for number in range(2)),
    ]


def ms_of(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def agrees_with_booking(done: Played) -> bool:
    """Whether riders know how their rides ended, and no driver is left with one."""
    told = {ride_id: (one.state, one.seq, one.fare_minor) for ride_id, one in done.book.rides.items()}
    stored = {one["ride_id"]: (one["state"], one["seq"], one["fare"]["amount_minor"]) for one in done.rides.values()}
    assert told == stored
    return not any(driver.serving or driver.online for driver in done.world.drivers.values())


async def test_two_riders_who_would_share_have_one_driver_and_pay_less(tmp_path: Path) -> None:
    advice = Matchmaker()
    plans = pair(duration_s=1_200)
    done = await played(tmp_path, [*plans[:-2], ride(3), *plans[-2:]], advice=advice)
    first, second, alone = (done.rides[f"p{number}"] for number in (1, 2, 3))
    assert (first["pooled_with"], second["pooled_with"]) == (second["ride_id"], first["ride_id"])
    assert first["driver_id"] == second["driver_id"] != alone["driver_id"]
    assert {one["state"] for one in done.rides.values()} == {"completed"}
    assert first["fare"]["amount_minor"] == (alone["fare"]["amount_minor"] * 80 + 50) // 100
    steps = [first["started_at"], second["arrived_at"], second["started_at"], first["ended_at"]]
    assert steps == sorted(steps), "the second one is picked up on the first one's way"
    assert not done.is_free(first["driver_id"], first["matched_at"], second["ended_at"])
    assert done.world.drivers[first["driver_id"]].rides == 1, "the driver becomes free once"
    assert done.book.pooled == {first["ride_id"], second["ride_id"]}
    assert sorted(advice.taken) == sorted(done.book.pooled)
    assert done.book.recommendations_chosen == 2
    assert agrees_with_booking(done)
    assert not done.book.refusals


async def test_riders_find_each_other_behind_one_who_would_not_share(tmp_path: Path) -> None:
    done = await played(tmp_path, pair(), advice=Matchmaker("a-stranger-s-ride"))
    assert len(done.book.pooled) == 2
    assert agrees_with_booking(done)


async def test_riders_whose_rides_do_not_fit_go_alone(tmp_path: Path) -> None:
    done = await played(tmp_path, pair(passengers=4), advice=Matchmaker())
    assert {one["state"] for one in done.rides.values()} == {"completed"}
    assert {one["pooled_with"] for one in done.rides.values()} == {None}
    assert len({one["driver_id"] for one in done.rides.values()}) == 2
    assert set(done.book.refusals) == {"pool 409 cannot-pool"}
    assert not done.book.pooled
    assert agrees_with_booking(done)


async def test_a_rider_who_is_offered_nobody_gets_a_driver(tmp_path: Path) -> None:
    done = await played(tmp_path, pair(shares=False), advice=Matchmaker())
    assert {one["state"] for one in done.rides.values()} == {"completed"}
    waited, at_once = done.rides["p1"], done.rides["p2"]
    assert (waited["matched_at"] > waited["requested_at"], at_once["matched_at"]) == (True, at_once["requested_at"])
    assert agrees_with_booking(done)


async def test_the_other_rider_cancels_and_the_driver_goes_on(tmp_path: Path) -> None:
    done = await played(tmp_path, pair(gives_up="matched", gives_up_after_ms=10_000), advice=Matchmaker())
    stays, leaves = done.rides["p1"], done.rides["p2"]
    assert (stays["state"], leaves["state"]) == ("completed", "cancelled")
    assert stays["driver_id"] == leaves["driver_id"]
    assert stays["pooled_with"] is None or stays["started_at"] < leaves["ended_at"]
    assert not done.is_free(stays["driver_id"], stays["matched_at"], stays["ended_at"])
    assert len(done.book.pooled) == 2
    assert agrees_with_booking(done)


async def test_the_driver_leaves_one_ride_of_a_pool_and_both_riders_arrive(tmp_path: Path) -> None:
    plans = pair(driver_cancels=1, driver_cancels_after_ms=5_000)
    done = await played(tmp_path, plans, advice=Matchmaker())
    stays, is_left = done.rides["p1"], done.rides["p2"]
    assert {one["state"] for one in done.rides.values()} == {"completed"}
    assert stays["driver_id"] != is_left["driver_id"]
    assert is_left["redispatches"] == 1
    assert stays["fare"] == is_left["fare"], "neither shares a car any more"
    assert agrees_with_booking(done)


async def test_the_first_rider_of_a_pool_does_not_come(tmp_path: Path) -> None:
    plans = pair()
    plans[2] = ride(1, shares=True, gives_up="arrived", gives_up_after_ms=4_000)
    done = await played(tmp_path, plans, advice=Matchmaker())
    assert (done.rides["p1"]["state"], done.rides["p2"]["state"]) == ("cancelled", "completed")
    assert done.rides["p2"]["arrived_at"] >= done.rides["p1"]["ended_at"]
    assert agrees_with_booking(done)
