"""`--regions`: parts of the city with about as many riders each, and the processes that serve them."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from booking.regions_file import read_regions
from hailbus.testing import MemoryBus
from hailbus_demo import postgresql
from hailbus_demo.city.demand import Demand
from hailbus_demo.city.table import City, city_table
from hailbus_demo.errors import UsageError
from hailbus_demo.postgresql import find_postgresql
from hailbus_demo.regions import is_booking, region_at, split_city, write_regions
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.world import DriverState, World
from hailbus_demo.services import Ports, consumers_of, service_specs
from hailbus_demo.supervise.state import DataDir
from hailbus_demo.tray.poison import PoisonBook
from hailbus_demo.tray.tray import FaultTray

BATTERY, HARLEM = (40.70, -74.01), (40.81, -73.95)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_regions_have_about_as_many_pickups_each(count: int, tmp_path: Path) -> None:
    areas = split_city(count)
    file = tmp_path / "regions.toml"
    write_regions(file, areas, {area.name: f"http://127.0.0.1:{i}" for i, area in enumerate(areas, start=1)})
    regions = read_regions(file)  # as booking and the router do
    assert [region.name for region in regions.all] == [area.name for area in areas]
    pickups = dict.fromkeys((area.name for area in areas), 0.0)
    table = city_table()
    for cell, hours in table.pickups.items():
        pickups[regions.of_cell(cell).name] += sum(hours)
    fair = sum(pickups.values()) / count
    assert all(0.8 * fair < found < 1.2 * fair for found in pickups.values()), pickups
    for zone in table.zones.values():
        assert all(
            (regions.of_cell(cell).name == area.name) == (cell in area.cells)
            for area in areas
            if area.cells is not None
            for cell in zone.cells
        )


def test_the_border_runs_from_west_to_east() -> None:
    areas = split_city(2)
    assert (region_at(BATTERY, areas), region_at(HARLEM, areas)) == ("south", "north")
    assert region_at((0.0, 0.0), areas) == "north"  # the rest of the world
    assert split_city(1) == ()
    assert region_at(BATTERY, ()) == ""


def specs(**ports: Any) -> dict[str, dict[str, str]]:
    where = Ports(broker=1, booking=2, recommender=3, dashboard=4, payment=5, payment_provider=6, registry=7, **ports)
    first, others = service_specs(
        DataDir(Path("data")),
        bootstrap="127.0.0.1:1",
        bus=MemoryBus(),
        ports=where,
        silent_after_s=30,
        booking_database="postgresql://x" if ports else None,
    )
    return {spec.name: dict(spec.env) for spec in (*first, *others)}


def test_each_region_has_a_process_and_the_router_has_booking_s_address() -> None:
    found = specs(postgresql=7, regions={"south": 8, "north": 9})
    assert "booking" not in found
    for region, port in (("south", 8), ("north", 9)):
        env = found[f"booking-{region}"]
        assert (env["BOOKING_REGION"], env["BOOKING_LISTEN"]) == (region, f"127.0.0.1:{port}")
        assert env["BOOKING_DATABASE_URL"] == "postgresql://x"
        assert env["BOOKING_REGIONS"] == found["booking-router"]["ROUTER_REGIONS"]
    assert found["booking-router"]["ROUTER_LISTEN"] == "127.0.0.1:2"
    assert found["dashboard"]["DASHBOARD_BOOKING_URL"] == "http://127.0.0.1:2"
    assert [name for name in found if is_booking(name)] == ["booking-south", "booking-north"]


def test_without_regions_booking_is_one_process_on_sqlite() -> None:
    found = specs()
    assert "booking-router" not in found
    assert not found["booking"].keys() & {"BOOKING_REGION", "BOOKING_REGIONS"}
    assert found["booking"]["BOOKING_DATABASE_URL"].startswith("sqlite")


def test_each_region_is_a_group_of_the_same_consumer() -> None:
    groups = {group for consumer in consumers_of(["south", "north"]) for group in consumer.read_by}
    assert groups == {"booking-south", "booking-north", "payment-saga", "surge", "recommender", "event-logger"}


async def test_each_region_and_the_router_can_be_killed_by_a_click() -> None:
    class Nobody:
        children: Mapping[str, Any] = MappingProxyType({})

    tray = FaultTray(
        Nobody(),  # type: ignore[arg-type]  # a fake
        say=lambda _: None,
        provider_url="http://provider",
        bus=MemoryBus(),
        poison=PoisonBook(Path("no-folder/poison.jsonl")),
        demand=Demand(City()),
        regions=["south", "north"],
    )
    ids = [fault["id"] for fault in tray.desk.as_json(now_s=0)["faults"]]
    kills = ["kill-booking-south", "kill-booking-north", "kill-booking-router"]
    others = ["slow-handler", "provider-outage", "registry-down", "duplicate-storm", "poison-event", "demand-shock"]
    assert ids == ["kill-recommender", "kill-surge", *kills, *others]


def test_where_postgresql_is_not_installed_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgresql, "DEBIAN", tmp_path)
    with pytest.raises(UsageError, match="--regions needs PostgreSQL, and its programs initdb and postgres are not"):
        find_postgresql(DataDir(tmp_path))


def test_root_has_postgresql_s_own_user_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert find_postgresql(DataDir(tmp_path)).user is None
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwall", list)
    with pytest.raises(UsageError, match="there is no user postgres: run the demo as another user"):
        find_postgresql(DataDir(tmp_path))


class Booking:
    """Takes updates as they come."""

    def __init__(self) -> None:
        self.updates: list[Any] = []

    async def post(self, _path: str, body: Any, **_more: Any) -> tuple[int, Any]:
        self.updates += body["updates"]
        return 200, {"results": [{"status": 200, "body": {}} for _ in body["updates"]]}


async def test_a_driver_beyond_the_border_drives_back_to_riders_of_the_own_region() -> None:
    areas, booking = split_city(2), Booking()
    world = World(
        stage=Stage(speed=None, limit=1),
        booking=booking,  # type: ignore[arg-type]  # a fake
        book=Book(),
        run="r",
        region_of=lambda place: region_at(place, areas),
    )
    world._recent_pickups = [HARLEM] * 20 + [BATTERY]  # where riders were seen
    driver = DriverState(driver_id="d", place=HARLEM, online=True, region="south")
    for number in range(5):
        driver.rides = number
        await world._move(driver, number, Random(number), 1000)
        place = booking.updates[-1]["position"]
        assert abs(place["lat"] - BATTERY[0]) < 0.05
    world._recent_pickups = [HARLEM]
    await world._move(driver, driver.rides, Random(1), 1000)
    assert len(booking.updates) == 5
