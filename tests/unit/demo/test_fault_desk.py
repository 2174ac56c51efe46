"""Which fault may begin, and when the city counts as recovered."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hailbus import Service
from hailbus.testing import MemoryBus
from hailbus_demo.city.demand import Demand
from hailbus_demo.city.table import City
from hailbus_demo.errors import RunFailedError
from hailbus_demo.tray import desk as desk_module
from hailbus_demo.tray import tray as tray_module
from hailbus_demo.tray.desk import (
    GIVES_UP_AFTER_S,
    LAG_BOUND_S,
    TRANSITIONS,
    Event,
    FaultDesk,
    FaultRefusedError,
    Look,
    Offer,
    State,
    UnknownFaultError,
)
from hailbus_demo.tray.poison import PoisonBook
from hailbus_demo.tray.server import FaultServer
from hailbus_demo.tray.tray import CROWD, FaultTray
from ride_events.rides import RIDES, RideUnmatched

from tests.unit.demo.test_demand import ride

CELL = "882a100d63fffff"
SURGE = Offer(id="kill-surge", label="Kill surge", expected="it catches up", processes=("surge",))
BOOKING = Offer(id="kill-booking", label="Kill booking", expected="none is lost", processes=("booking",))


def look(at_s: float, *, away: dict[str, str] | None = None, surge_s: float = 0.0) -> Look:
    return Look(at_s=at_s, away=away or {}, behind_s={"surge": surge_s, "booking": 0.0})


def opened() -> FaultDesk:
    desk = FaultDesk([SURGE, BOOKING])
    desk.open()
    return desk


def shown(desk: FaultDesk, fault_id: str = "kill-surge", *, now_s: float = 0.0) -> dict[str, Any]:
    return next(fault for fault in desk.as_json(now_s=now_s)["faults"] if fault["id"] == fault_id)


def killed(*, at_s: float = 10.0) -> FaultDesk:
    """Return a desk whose surge was just killed."""
    desk = opened()
    desk.begin("kill-surge", look(at_s - 0.5), now_s=at_s)
    desk.done(now_s=at_s)
    return desk


def test_faults_run_one_at_a_time() -> None:
    desk = killed()
    with pytest.raises(FaultRefusedError, match=r"'Kill surge' still runs: wait until the city has recovered"):
        desk.begin("kill-booking", look(11), now_s=11)
    assert shown(desk, "kill-booking")["state"] == "idle"


def test_a_fault_that_nobody_offers_is_refused() -> None:
    with pytest.raises(UnknownFaultError, match="choose one of kill-surge, kill-booking"):
        opened().begin("kill-everything", look(1), now_s=1)


def test_a_process_that_is_away_is_not_killed() -> None:
    with pytest.raises(FaultRefusedError, match="surge is restarting: wait until it serves"):
        opened().begin("kill-surge", look(1, away={"surge": "restarting"}), now_s=1)


def test_no_fault_begins_before_and_after_the_rides() -> None:
    desk = FaultDesk([SURGE])
    with pytest.raises(FaultRefusedError, match="still starting"):
        desk.begin("kill-surge", look(1), now_s=1)
    desk.open()
    desk.close("the rides are over")
    assert desk.as_json(now_s=1)["closed"] == "the rides are over"
    with pytest.raises(FaultRefusedError, match="the rides are over"):
        desk.begin("kill-surge", look(1), now_s=1)


def test_a_killed_process_recovers_once_it_serves_and_has_applied_what_came_meanwhile() -> None:
    desk = killed(at_s=10.0)
    desk.judge(look(10.5, away={"surge": "restarting"}), now_s=10.6)
    assert shown(desk)["words"] == "surge is restarting"
    desk.judge(look(11.5), now_s=12.0)  # that look is older than the return
    desk.judge(look(12.5), now_s=12.6)  # this one says what has to be applied
    assert shown(desk)["state"] == "running"
    desk.judge(look(13.5, surge_s=1.5), now_s=13.6)  # a record of 12.0 is still unread
    assert shown(desk, now_s=13.6)["words"] == "surge is 2 s behind"
    assert shown(desk, now_s=13.6)["running_s"] == pytest.approx(3.6)
    desk.judge(look(14.5, surge_s=1.0), now_s=14.6)
    assert shown(desk)["state"] == "recovered"
    assert shown(desk)["took_s"] == pytest.approx(4.5)


def test_a_group_that_is_far_behind_has_not_recovered_though_it_reads() -> None:
    desk = killed(at_s=10.0)
    for at_s in (11.0, 12.0, 13.0):
        desk.judge(look(at_s), now_s=at_s + 0.1) if at_s == 11.0 else desk.judge(
            look(at_s, surge_s=1.0), now_s=at_s + 0.1
        )
    for at_s in (30.0, 40.0):  # what is unread came after the mark, but too long ago
        desk.judge(look(at_s, surge_s=LAG_BOUND_S), now_s=at_s)
        assert shown(desk)["state"] == "running"
    desk.judge(look(41.0, surge_s=LAG_BOUND_S - 1), now_s=41.0)
    assert shown(desk)["state"] == "recovered"


def test_time_alone_recovers_nothing() -> None:
    desk = killed(at_s=10.0)
    desk.judge(look(12.0), now_s=11.0)
    desk.judge(look(12.0), now_s=13.0)
    for now_s in (14.0, 40.0, 100.0):  # the cluster is silent: there is no later look
        desk.judge(look(12.0), now_s=now_s)
    assert shown(desk)["state"] == "running"
    assert shown(desk)["words"] == "the cluster does not answer"


def test_a_second_crash_begins_the_waiting_anew() -> None:
    desk = killed(at_s=10.0)
    desk.judge(look(10.5), now_s=11.0)
    desk.judge(look(11.5), now_s=11.6)
    desk.judge(look(12.5, away={"surge": "restarting"}), now_s=12.6)
    desk.judge(look(13.5), now_s=13.6)
    assert shown(desk)["state"] == "running"
    desk.judge(look(14.5), now_s=14.6)
    desk.judge(look(15.5), now_s=15.6)
    assert shown(desk)["state"] == "recovered"


def test_an_outage_that_goes_on_is_no_recovery() -> None:
    desk = opened()
    desk.begin("kill-surge", look(9.5), now_s=10.0)
    for at_s in (11.0, 12.0, 13.0):
        desk.judge(look(at_s), now_s=at_s)
    assert shown(desk)["state"] == "running"


def test_a_process_that_does_not_come_back_is_told() -> None:
    desk = killed(at_s=10.0)
    desk.judge(look(11.0, away={"surge": "failed"}), now_s=12.0)
    assert shown(desk)["state"] == "failed"
    assert shown(desk)["words"] == "surge does not come back"


def test_a_city_that_does_not_recover_fails_with_what_is_wrong_and_may_be_tried_again() -> None:
    desk = killed(at_s=10.0)
    desk.judge(look(11.0, away={"surge": "restarting"}), now_s=10.0 + GIVES_UP_AFTER_S)
    assert (shown(desk)["state"], shown(desk)["words"]) == ("failed", "surge is restarting")
    assert shown(desk)["took_s"] == GIVES_UP_AFTER_S
    desk.begin("kill-booking", look(300), now_s=300)
    desk.done(now_s=300)
    for at_s in (301.0, 302.0, 303.0):
        desk.judge(look(at_s), now_s=at_s)
    assert shown(desk, "kill-booking")["state"] == "recovered"
    desk.begin("kill-surge", look(304), now_s=304)
    assert shown(desk, now_s=305)["running_s"] == 1.0


def test_the_table_of_transitions_is_the_one_that_is_described() -> None:
    text = desk_module.__doc__ or ""
    rows = re.findall(r"^\| ([a-z, ]+) \| ([a-z]+) \| ([a-z]+) \|$", text, re.MULTILINE)
    described = {(state, event): target for states, event, target in rows for state in states.split(", ")}
    assert described == TRANSITIONS
    assert {state for state, _ in TRANSITIONS} == set(get_args(State))
    assert {event for _, event in TRANSITIONS} == set(get_args(Event))


# ---------------------------------------------------------------- with processes that are none


class Processes:
    """A supervisor whose processes come back when the test says so."""

    def __init__(self, *names: str) -> None:
        self.children: dict[str, Any] = {name: SimpleNamespace(state="ready") for name in names}
        for name in names:
            self.children[name].became_ready = asyncio.Event()
            self.children[name].became_ready.set()
        self.killed: list[str] = []

    async def kill(self, name: str) -> None:
        self.killed.append(name)
        self.children[name].became_ready.clear()

    async def stop(self, name: str) -> None:
        self.children[name].state = "stopped"
        self.children[name].became_ready.clear()

    async def start_again(self, name: str) -> None:
        assert self.children[name].state == "stopped"
        self.children[name].state = "starting"

    def serve(self, name: str) -> None:
        """Let a process serve."""
        self.children[name].state = "ready"
        self.children[name].became_ready.set()

    async def wait_ready(self, *names: str) -> None:
        for name in names:
            await self.children[name].became_ready.wait()


class Cluster:
    """A watch that has always just looked."""

    def __init__(self) -> None:
        self.looks = 1e9  # later than any moment of the machine's clock
        self.groups = {"surge": SimpleNamespace(seconds=0.0)}

    @property
    def looked_at(self) -> float:
        self.looks += 1
        return self.looks


NAMES = ("recommender", "surge", "booking", "broker", "payment", "payment-provider", "registry")


@pytest.fixture
def processes() -> Processes:
    return Processes(*NAMES)


def tray_of(processes: Processes, said: list[str], *, bus: MemoryBus | None = None, brokers: Any = None) -> FaultTray:
    return FaultTray(
        processes,  # type: ignore[arg-type]  # a fake
        say=said.append,
        provider_url="http://provider",
        bus=bus or MemoryBus(),
        poison=PoisonBook(Path("no-folder/poison.jsonl")),
        demand=Demand(City()),
        brokers=brokers,
    )


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tray(processes: Processes, said: list[str], monkeypatch: pytest.MonkeyPatch) -> FaultTray:
    monkeypatch.setattr(tray_module, "LOOK_EVERY_S", 0)
    tray = tray_of(processes, said)
    tray.open(Cluster())  # type: ignore[arg-type]  # a fake
    return tray


def state_of(tray: FaultTray, fault_id: str) -> str:
    return str(shown(tray.desk, fault_id)["state"])


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_kill_runs_until_its_process_serves_again(
    tray: FaultTray, processes: Processes, said: list[str]
) -> None:
    tray.begin("kill-surge")
    await turns()
    assert processes.killed == ["surge"]
    assert state_of(tray, "kill-surge") == "running"
    with pytest.raises(FaultRefusedError):
        tray.begin("kill-booking")
    processes.children["surge"].became_ready.set()
    await turns()
    assert state_of(tray, "kill-surge") == "recovered"
    assert said[0] == "fault: Kill surge, by a click on the page"
    assert said[1].startswith("fault: Kill surge: recovered after ")
    tray.begin("kill-booking")
    await tray.stop()


async def test_a_run_that_ends_before_the_city_has_recovered_is_told(tray: FaultTray) -> None:
    tray.begin("kill-surge")
    await turns()
    await tray.end()
    surge = shown(tray.desk, "kill-surge")
    assert (surge["state"], surge["words"]) == ("failed", "the run ended before the city had recovered")


async def test_without_a_fault_that_runs_the_end_of_the_rides_waits_for_nobody(
    tray: FaultTray, processes: Processes
) -> None:
    processes.children["surge"].became_ready.clear()
    async with asyncio.timeout(5):
        await tray.finish()


async def test_the_lake_is_not_waited_for(tray: FaultTray, processes: Processes) -> None:
    processes.children["lake"] = SimpleNamespace(state="starting", became_ready=asyncio.Event())
    tray.begin("kill-surge")
    await turns()
    processes.children["surge"].became_ready.set()
    await turns()
    assert state_of(tray, "kill-surge") == "recovered"
    await tray.finish()


async def test_the_end_of_the_rides_ends_an_outage_and_waits_for_it(
    tray: FaultTray, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages: list[str] = []

    async def set_outage(_url: str, outage: str) -> None:
        outages.append(outage)

    monkeypatch.setattr(tray_module, "set_outage", set_outage)
    tray.begin("provider-outage")
    await turns()
    assert outages == ["refuse"]
    assert state_of(tray, "provider-outage") == "running"
    tray.close()
    await tray.finish()
    assert outages == ["refuse", "none"]
    with pytest.raises(FaultRefusedError, match="the rides are over"):
        tray.begin("kill-surge")
    await tray.stop()


@pytest.mark.parametrize(
    ("error", "words"),
    [(RunFailedError("the provider refused"), "the provider refused"), (OSError("odd"), "it could not be done: OSErr")],
)
async def test_a_fault_that_cannot_be_caused_is_told(
    tray: FaultTray, said: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    async def set_outage(_url: str, _outage: str) -> None:
        raise error

    monkeypatch.setattr(tray_module, "set_outage", set_outage)
    tray.begin("provider-outage")
    await turns()
    assert state_of(tray, "provider-outage") == "failed"
    assert str(shown(tray.desk, "provider-outage")["words"]).startswith(words)
    assert f"not recovered, {words}" in said[-1]


async def test_the_registry_is_away_until_payment_has_started_without_it(
    tray: FaultTray, processes: Processes, said: list[str]
) -> None:
    tray.begin("registry-down")
    await turns()
    assert processes.killed == ["payment"]
    tray.close()  # the end of the rides ends the ten seconds, but payment must still come back by itself
    await turns()
    assert processes.children["registry"].state == "stopped"
    processes.serve("payment")
    await turns()
    assert "fault: payment is back though no schema registry answers" in said
    assert processes.children["registry"].state == "starting"
    assert state_of(tray, "registry-down") == "running"
    processes.serve("registry")
    await turns()
    assert state_of(tray, "registry-down") == "recovered"
    await tray.stop()


async def test_the_registry_comes_back_though_payment_does_not(
    tray: FaultTray, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_ready(*names: str) -> None:
        raise RunFailedError(f"{names[0]} was not ready within 60 s")

    monkeypatch.setattr(processes, "wait_ready", wait_ready)
    tray.begin("registry-down")
    await turns()
    tray.close()
    await turns()
    assert processes.children["registry"].state == "starting"
    found = shown(tray.desk, "registry-down")
    assert (found["state"], found["words"]) == ("failed", "payment was not ready within 60 s")
    await tray.stop()


async def test_a_cluster_offers_its_leader_in_place_of_the_broker(said: list[str]) -> None:
    processes = Processes("recommender", "surge", "booking", "broker-1", "broker-2", "broker-3")

    class Roles:
        async def find(self, role: str) -> str:
            assert role == "leader of rides.v1-0"
            return "broker-2"

    tray = tray_of(processes, said, brokers=Roles())
    tray.open(Cluster())  # type: ignore[arg-type]  # a fake
    ids = [fault["id"] for fault in tray.desk.as_json(now_s=0)["faults"]]
    assert "kill-leader" in ids
    assert "kill-broker" not in ids
    tray.begin("kill-leader")
    await turns()
    assert processes.killed == ["broker-2"]
    await tray.stop()


async def test_on_another_cluster_no_broker_is_killed(said: list[str]) -> None:
    processes = Processes("recommender", "surge", "booking")
    tray = tray_of(processes, said)
    ids = [fault["id"] for fault in tray.desk.as_json(now_s=0)["faults"]]
    assert ids == [
        *("kill-recommender", "kill-surge", "kill-booking"),
        *("slow-handler", "provider-outage", "registry-down", "duplicate-storm", "poison-event", "demand-shock"),
    ]


async def test_a_storm_writes_the_records_of_the_last_minute_once_more(
    processes: Processes, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tray_module, "LOOK_EVERY_S", 0)
    bus = MemoryBus()
    svc = Service("booking")
    pub = svc.publishes(RideUnmatched)
    async with bus.run(svc):
        for number in range(3):
            gone = RideUnmatched(ride_id=f"r{number}", seq=2, rider_id="r", pickup_cell=CELL, reason="timeout")
            await pub.publish(gone)
    tray = tray_of(processes, said, bus=bus)
    tray.open(Cluster())  # type: ignore[arg-type]  # a fake
    tray.begin("duplicate-storm")
    await tray._deed_over.wait()
    await turns()
    assert state_of(tray, "duplicate-storm") == "recovered"
    found = Counter((record.partition, record.key, record.value, record.headers) for record in bus.records(RIDES))
    assert len(found) == 3
    assert set(found.values()) == {2}
    assert tray.has_repeated
    assert "fault: 3 records of rides.v1 came a second time" in said
    await tray.stop()


async def test_a_crowd_is_over_when_its_riders_are_planned(tray: FaultTray) -> None:
    tray.begin("demand-shock")
    await turns()
    assert state_of(tray, "demand-shock") == "running"
    plans = tray._demand.added_to(iter([ride(1), ride(2)]))
    assert len(list(plans)) == 2 + CROWD
    await turns()
    assert state_of(tray, "demand-shock") == "recovered"
    await tray.stop()


async def test_the_load_can_be_changed_while_the_city_runs(tray: FaultTray, said: list[str]) -> None:
    status, body = tray.server.answer("POST", "/load/1.5", f"Bearer {tray.server.token}")
    assert (status, body["load"]["factor"]) == (202, 1.5)
    assert said == ["load: 1.5 riders for each of the plan, by the slider on the page"]
    for word in ("0.5", "4.1", "nan", "inf"):
        assert tray.server.answer("POST", f"/load/{word}", f"Bearer {tray.server.token}")[0] == 409, word
    tray.close()
    status, body = tray.server.answer("POST", "/load/2", f"Bearer {tray.server.token}")
    assert (status, body["detail"]) == (409, "the rides are over: faults are possible only while the city runs")
    assert tray._demand.factor == 1.5


# ---------------------------------------------------------------- what the launcher answers


def test_only_the_holder_of_the_token_gets_an_answer(tray: FaultTray) -> None:
    for authorization in ("", "Bearer", "Bearer wrong", tray.server.token, "Bearer \u00fc"):
        for method, path in (("GET", "/faults"), ("POST", "/faults/kill-surge")):
            assert tray.server.answer(method, path, authorization)[0] == 401
    assert tray.server.answer("GET", "/faults", f"Bearer {tray.server.token}")[0] == 200
    assert state_of(tray, "kill-surge") == "idle"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/faults/", 404),
        ("POST", "/faults/nothing", 404),
        ("GET", "/faults/kill-surge", 405),
        ("POST", "/faults", 405),
        ("POST", "/load", 404),
        ("POST", "/load/much", 404),
        ("GET", "/load/2", 405),
    ],
)
def test_what_is_mistyped_is_refused(tray: FaultTray, method: str, path: str, status: int) -> None:
    found, body = tray.server.answer(method, path, f"Bearer {tray.server.token}")
    assert (found, body["status"]) == (status, status)
    assert body["detail"]


def test_a_second_fault_gets_409_with_a_sentence() -> None:
    desk = killed()
    server = FaultServer(
        show=lambda: desk.as_json(now_s=11), begin=lambda name: void(desk.begin(name, look(11), now_s=11)), load=void
    )
    status, body = server.answer("POST", "/faults/kill-booking", f"Bearer {server.token}")
    assert status == 409
    assert body["detail"] == "'Kill surge' still runs: wait until the city has recovered"


def void(_: object) -> None:
    """Drop a value."""
