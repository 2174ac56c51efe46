"""Every place and every id has one owner, and a process decides only what its region owns."""

from pathlib import Path

import h3
import pytest
from booking.adapters.storage.database import ADVISORY_LOCK, lock_of
from booking.adapters.streams.service import group_of, is_of
from booking.app.cancel_ride import CancelRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.ownership import check_region
from booking.app.policy import Policy
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import UpdateDrivers
from booking.app.world import Elsewhere, World
from booking.config import Settings
from booking.domain.errors import CannotPool, DriverElsewhere, Misdirected, PaymentDue, RideOpen
from booking.domain.place import Place
from booking.domain.region import Realm, Region, Regions, RegionsError
from booking.regions_file import read_regions, realm_of
from hailbus import ConfigurationError
from ride_events import cell
from ride_events.payments import PAYMENTS
from ride_events.pricing import SURGE
from ride_events.timers import BOOKING_TIMERS

from tests.unit.booking.test_silence import START

MIDTOWN = Place(lat=40.75, lng=-73.98, cell=cell(40.75, -73.98))
BROOKLYN = Place(lat=40.65, lng=-73.95, cell=cell(40.65, -73.95))
MANHATTAN_CELL = h3.cell_to_parent(MIDTOWN.cell, 6)
MANHATTAN = Region(name="manhattan", address="http://127.0.0.1:1", cells=frozenset({MANHATTAN_CELL}))
OUTER = Region(name="outer", address="http://127.0.0.1:2", takes_rest=True)
REGIONS = Regions([MANHATTAN, OUTER])
HERE = Realm(own=MANHATTAN, regions=REGIONS)
THERE = Realm(own=OUTER, regions=REGIONS)


def world(realm: Realm | None = HERE) -> World:
    one = World(Policy(), realm)
    one.begin(START)
    return one


def test_a_place_is_of_the_region_whose_cell_holds_it() -> None:
    assert REGIONS.of_cell(MIDTOWN.cell) is MANHATTAN
    assert REGIONS.of_cell(BROOKLYN.cell) is OUTER


def test_the_whole_world_is_owned() -> None:
    for base in h3.get_res0_cells():
        assert REGIONS.of_cell(h3.cell_to_center_child(base, 8)) is OUTER
        assert REGIONS.of_cell(base) is OUTER  # an event may name a cell that is no place's


def test_an_id_is_of_the_region_that_made_it() -> None:
    assert REGIONS.of_id(HERE.new_id()) is MANHATTAN
    assert REGIONS.of_id(THERE.new_id()) is OUTER
    assert len(HERE.new_id()) <= 64


@pytest.mark.parametrize("key", ["5f0c9f8e-1d2b-4c3d-8e9f-000000000000", "bronx.1", "", ".", "manhattan"])
def test_an_id_of_no_region_is_the_rests(key: str) -> None:
    assert REGIONS.of_id(key) is OUTER


@pytest.mark.parametrize(
    ("regions", "reason"),
    [
        ([MANHATTAN], "none has `rest = true`"),
        ([OUTER, Region(name="more", address="", takes_rest=True)], "outer, more has `rest = true`"),
        ([OUTER, OUTER], "region outer is there twice"),
        ([OUTER, Region(name="Bronx", address="")], "region 'Bronx' is no name"),
        ([OUTER, Region(name="a.b", address="")], "region 'a.b' is no name"),
        ([OUTER, Region(name="x", address="", cells=frozenset({"nowhere"}))], "'nowhere' is no H3 cell"),
        ([OUTER, Region(name="x", address="", cells=frozenset({cell(40.75, -73.98, 9)}))], "of a resolution up to 8"),
        ([OUTER, MANHATTAN, Region(name="x", address="", cells=MANHATTAN.cells)], "is in the regions manhattan and x"),
        ([OUTER, MANHATTAN, Region(name="x", address="", cells=frozenset({MIDTOWN.cell}))], "of region manhattan"),
    ],
)
def test_regions_that_overlap_or_leave_a_gap_are_refused(regions: list[Region], reason: str) -> None:
    with pytest.raises(RegionsError, match=reason):
        Regions(regions)


@pytest.mark.parametrize(
    ("command", "owner"),
    [
        (OfferQuote(quote_id="q", rider_id="r", pickup=BROOKLYN, dropoff=MIDTOWN), "outer"),
        (OfferQuote(quote_id="q", rider_id="r", pickup=MIDTOWN, dropoff=BROOKLYN), None),
        (GoOnline(driver_id="d", position=BROOKLYN), "outer"),
        (GoOnline(driver_id="d", position=MIDTOWN), None),
        (RequestRide(ride_id="manhattan.1", quote_id="outer.1"), "outer"),
        (CancelRide(ride_id="outer.1", by="rider", reason="x"), "outer"),
        (CancelRide(ride_id="manhattan.1", by="rider", reason="x"), None),
        (PoolRide(ride_id="outer.1", partner_ride_id="outer.2"), "outer"),
        (PoolRide(ride_id="manhattan.1", partner_ride_id="outer.2"), None),
        (ReportLocation(driver_id="away", position=MIDTOWN), "outer"),
        (GoOffline(driver_id="away"), "outer"),
        (GoOffline(driver_id="nobody"), None),
        (UpdateDrivers(updates=[]), None),
    ],
)
def test_a_command_for_another_region_names_its_owner(command: Command[object], owner: str | None) -> None:
    one = world()
    one.learn_elsewhere(Elsewhere(drivers={"away": "outer"}))
    if owner is None:
        check_region(command, one)
        return
    with pytest.raises(Misdirected, match="belongs to region outer: send the request to http") as info:
        check_region(command, one)
    assert info.value.problem_members == {"owner": owner, "address": OUTER.address}


def test_one_process_for_everywhere_refuses_nothing() -> None:
    check_region(CancelRide(ride_id="outer.1", by="rider", reason="x"), world(None))


def test_rides_of_two_regions_share_no_car() -> None:
    one = world()
    OfferQuote(quote_id="manhattan.q", rider_id="r", pickup=MIDTOWN, dropoff=BROOKLYN).decide(one)
    RequestRide(ride_id="manhattan.1", quote_id="manhattan.q").decide(one)
    with pytest.raises(CannotPool, match="two regions"):
        PoolRide(ride_id="manhattan.1", partner_ride_id="outer.2").decide(one)


def test_a_driver_who_is_online_elsewhere_goes_offline_there_first() -> None:
    one = world()
    one.learn_elsewhere(Elsewhere(drivers={"d": "outer"}))
    with pytest.raises(DriverElsewhere, match="online in region outer"):
        GoOnline(driver_id="d", position=MIDTOWN).decide(one)


def test_the_number_of_a_drivers_events_continues_in_the_next_region() -> None:
    one = world()
    one.learn_elsewhere(Elsewhere(seqs={"d": 7}))
    assert GoOnline(driver_id="d", position=MIDTOWN).decide(one).seq == 8
    assert one.take_changes().outgoing[0].event.seq == 8  # type: ignore[attr-defined]  # a DriverWentOnline


def test_a_rider_with_an_open_ride_or_a_debt_elsewhere_gets_no_ride() -> None:
    one = world()
    OfferQuote(quote_id="manhattan.q", rider_id="r", pickup=MIDTOWN, dropoff=BROOKLYN).decide(one)
    wanted = RequestRide(ride_id="manhattan.1", quote_id="manhattan.q")
    one.learn_elsewhere(Elsewhere(rides={"r": "outer.1"}))
    with pytest.raises(RideOpen, match=r"outer\.1"):
        wanted.decide(one)
    one.learn_elsewhere(Elsewhere(debts={"r": ("outer.0", 1250)}))
    with pytest.raises(PaymentDue, match=r"12\.50 USD for ride outer\.0"):
        wanted.decide(one)
    one.learn_elsewhere(Elsewhere())
    assert wanted.decide(one).rider_id == "r"


def test_a_region_applies_the_events_of_its_own_rides() -> None:
    for topic in (PAYMENTS, BOOKING_TIMERS):
        assert [is_of(realm, topic.name, b"manhattan.1") for realm in (HERE, THERE)] == [True, False]
        assert [is_of(realm, topic.name, b"outer.1") for realm in (HERE, THERE)] == [False, True]
        assert [is_of(realm, topic.name, key) for key in (None, b"\xff") for realm in (HERE, THERE)] == [
            False,
            True,
        ] * 2
    assert [is_of(realm, SURGE.name, MIDTOWN.cell.encode()) for realm in (HERE, THERE)] == [True, False]
    assert (group_of(None), group_of(HERE), group_of(THERE)) == ("booking", "booking-manhattan", "booking-outer")


def test_each_region_has_a_lock_of_its_own() -> None:
    locks = {lock_of(None), lock_of("manhattan"), lock_of("outer")}
    assert len(locks) == 3
    assert lock_of(None) == ADVISORY_LOCK
    assert all(-(2**63) <= lock < 2**63 for lock in locks)


FILE = f"""
[manhattan]
address = "http://127.0.0.1:1"
cells = ["{MANHATTAN_CELL}"]

[outer]
address = "http://127.0.0.1:2"
rest = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "regions.toml"
    path.write_text(FILE)
    return path


def settings(file: Path | None, **more: object) -> Settings:
    given = {"bootstrap_servers": "b:1", "database_url": "postgresql://h/d", "regions": file, **more}
    return Settings.model_validate(given)


def test_the_file_says_what_the_regions_are(file: Path) -> None:
    assert list(read_regions(file).all) == [MANHATTAN, OUTER]
    realm = realm_of(settings(file, region="outer"))
    assert realm is not None
    assert realm.own == OUTER
    assert realm_of(settings(None)) is None


@pytest.mark.parametrize(
    ("text", "given", "reason"),
    [
        (FILE, {}, "BOOKING_REGION is not set: set both"),
        (FILE, {"region": "bronx"}, "BOOKING_REGION=bronx is not in .*, which has manhattan, outer"),
        (FILE, {"region": "outer", "database_url": "sqlite:///b.db"}, "BOOKING_REGION needs PostgreSQL"),
        ("x", {"region": "outer"}, "regions.toml: Expected"),
        ('[a]\naddress = "a:1"\nrest = true', {"region": "a"}, r"a\.address: String should match"),
        ('[a]\naddress = "http://a:1"\nrset = true', {"region": "a"}, r"a\.rset: Extra inputs"),
        ('[a]\naddress = "http://a:1"', {"region": "a"}, "none has `rest = true`"),
    ],
)
def test_wrong_regions_stop_the_start(file: Path, text: str, given: dict[str, str], reason: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        realm_of(settings(file, **given))


def test_regions_without_a_file_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="BOOKING_REGIONS is not set"):
        realm_of(settings(None, region="outer"))
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        realm_of(settings(tmp_path / "none.toml", region="outer"))
