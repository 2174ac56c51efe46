"""The tray of faults: clicks are passed on to the launcher, and only those of the page itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from dashboard.config import Settings
from hailbus import ConfigurationError
from hailbus.settings import read_settings
from hailbus.testing import MemoryBus
from hailbus_demo.city.demand import Demand
from hailbus_demo.city.table import City
from hailbus_demo.tray.poison import PoisonBook
from hailbus_demo.tray.tray import FaultTray
from pydantic import SecretStr

from tests.integration.dashboard.city import page, story
from tests.integration.dashboard.test_api import until

OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


class Processes:
    """A supervisor whose processes stay away until the test lets them come back."""

    def __init__(self, *names: str) -> None:
        self.children: dict[str, Any] = {
            name: SimpleNamespace(state="ready", became_ready=asyncio.Event()) for name in names
        }
        self.killed: list[str] = []
        self.slow: list[str] = []
        self.come_back()

    def come_back(self) -> None:
        for child in self.children.values():
            child.became_ready.set()

    @contextmanager
    def suspended(self, name: str) -> Iterator[None]:
        self.slow.append(name)
        yield
        self.slow.remove(name)

    async def kill(self, name: str) -> None:
        self.killed.append(name)
        self.children[name].became_ready.clear()


class Cluster:
    """A watch that has always just looked."""

    def __init__(self) -> None:
        self.looks = 1e9  # later than any moment of the machine's clock
        self.groups = {"surge": SimpleNamespace(seconds=0.0)}

    @property
    def looked_at(self) -> float:
        self.looks += 1
        return self.looks


@asynccontextmanager
async def launcher() -> AsyncIterator[tuple[Processes, dict[str, Any]]]:
    """Yield the processes behind the demo's real desk, and the dashboard's settings for it."""
    async with desk() as (processes, settings, _):
        yield processes, settings


@asynccontextmanager
async def desk() -> AsyncIterator[tuple[Processes, dict[str, Any], FaultTray]]:
    """Yield the same with the tray itself."""
    processes = Processes("recommender", "surge", "booking", "event-logger", "broker", "payment", "payment-provider")
    tray = FaultTray(
        processes,  # type: ignore[arg-type]  # a fake
        say=lambda _: None,
        provider_url="http://127.0.0.1:9",
        bus=MemoryBus(),
        poison=PoisonBook(Path("no-folder/poison.jsonl")),
        demand=Demand(City()),
    )
    access = await tray.serve()
    tray.open(Cluster())  # type: ignore[arg-type]  # a fake
    try:
        yield processes, {"faults_url": access.url, "faults_token": SecretStr(access.token)}, tray
    finally:
        await tray.stop()


@asynccontextmanager
async def city(**values: Any) -> AsyncIterator[httpx.AsyncClient]:
    bus = MemoryBus()
    async with story(bus), page(bus, **values) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client


def fault_of(answer: httpx.Response, fault_id: str) -> dict[str, Any]:
    return next(fault for fault in answer.json()["faults"] if fault["id"] == fault_id)


async def test_a_click_is_passed_on_and_its_outcome_comes_back() -> None:
    async with launcher() as (processes, settings), city(**settings) as client:
        assert (await client.get("/api/state")).json()["faults"] is True
        listed = await client.get("/api/faults")
        assert listed.status_code == 200
        assert {fault["state"] for fault in listed.json()["faults"]} == {"idle"}
        assert fault_of(listed, "kill-surge")["label"] == "Kill surge"
        begun = await client.post("/api/faults/kill-surge", headers=OWN_PAGE)
        assert begun.status_code == 202
        assert fault_of(begun, "kill-surge")["state"] == "running"
        second = await client.post("/api/faults/kill-booking", headers=OWN_PAGE)
        assert second.status_code == 409
        assert second.json()["detail"] == "'Kill surge' still runs: wait until the city has recovered"
        assert processes.killed == ["surge"]
        processes.come_back()

        async def surge() -> dict[str, Any]:
            return fault_of(await client.get("/api/faults"), "kill-surge")

        ended = await until(surge, lambda fault: fault["state"] != "running")
        assert (ended["state"], ended["words"]) == ("recovered", "")
        unknown = await client.post("/api/faults/a%20b", headers=OWN_PAGE)
        assert unknown.status_code == 404


async def test_a_slow_handler_goes_on_when_the_rides_are_over() -> None:
    async with desk() as (processes, settings, tray), city(**settings) as client:
        begun = await client.post("/api/faults/slow-handler", headers=OWN_PAGE)
        assert (begun.status_code, processes.slow) == (202, ["event-logger"])

        async def slow() -> dict[str, Any]:
            return fault_of(await client.get("/api/faults"), "slow-handler")

        assert (await slow())["state"] == "running"
        tray.close()
        assert (await until(slow, lambda fault: fault["state"] != "running"))["state"] == "recovered"
        assert processes.slow == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://{host}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
        # A name of theirs that points at this machine makes their page one of the same origin.
        {"Sec-Fetch-Site": "same-origin", "Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"},
    ],
)
async def test_another_web_site_can_cause_no_fault(headers: dict[str, str]) -> None:
    async with launcher() as (processes, settings), city(**settings) as client:
        address = urlsplit(str(client.base_url))
        sent = {name: value.format(host=address.netloc, port=address.port) for name, value in headers.items()}
        refused = await client.post("/api/faults/kill-surge", headers=sent)
        assert refused.status_code == 403
        assert "other web sites must not" in refused.json()["detail"]
        assert processes.killed == []


async def test_the_load_is_set_by_the_page_itself_only_and_within_its_bounds() -> None:
    async with launcher() as (_, settings), city(**settings) as client:
        assert (await client.get("/api/faults")).json()["load"] == {"factor": 1.0, "least": 1.0, "most": 4.0}
        assert (await client.post("/api/load/2.5")).status_code == 403
        changed = await client.post("/api/load/2.5", headers=OWN_PAGE)
        assert (changed.status_code, changed.json()["load"]["factor"]) == (202, 2.5)
        refused = await client.post("/api/load/40", headers=OWN_PAGE)
        assert (refused.status_code, refused.json()["detail"]) == (409, "40.0 is no load: choose one from 1 to 4")
        assert (await client.post("/api/load/much", headers=OWN_PAGE)).status_code == 422
        assert (await client.post("/api/load/nan", headers=OWN_PAGE)).status_code == 409


async def test_a_browser_that_says_no_site_is_known_by_its_origin() -> None:
    async with launcher() as (processes, settings), city(**settings) as client:
        origin = {"Origin": str(client.base_url).rstrip("/")}
        assert (await client.post("/api/faults/kill-surge", headers=origin)).status_code == 202

        async def killed() -> list[str]:
            return processes.killed

        assert await until(killed, bool) == ["surge"]


async def test_without_a_launcher_there_is_no_tray() -> None:
    async with city() as client:
        assert (await client.get("/api/state")).json()["faults"] is False
        assert (await client.get("/api/faults")).status_code == 404
        assert (await client.post("/api/faults/kill-surge", headers=OWN_PAGE)).status_code == 404


async def test_a_launcher_that_is_gone_is_said() -> None:
    gone = {"faults_url": "http://127.0.0.1:9", "faults_token": SecretStr("t")}
    async with city(**gone) as client:
        answer = await client.get("/api/faults")
        assert answer.status_code == 503
        assert "the demo's launcher does not answer" in answer.json()["detail"]


async def test_a_dashboard_with_a_wrong_token_causes_nothing() -> None:
    async with launcher() as (processes, settings), city(**settings | {"faults_token": SecretStr("wrong")}) as client:
        assert (await client.post("/api/faults/kill-surge", headers=OWN_PAGE)).status_code == 401
        assert processes.killed == []


def test_address_and_token_go_together() -> None:
    needed = {"DASHBOARD_BOOTSTRAP_SERVERS": "127.0.0.1:9092"}
    with pytest.raises(ConfigurationError, match="faults_url and faults_token go together"):
        read_settings(Settings, needed | {"DASHBOARD_FAULTS_URL": "http://127.0.0.1:1"})
    both = {"DASHBOARD_FAULTS_URL": "http://127.0.0.1:1", "DASHBOARD_FAULTS_TOKEN": "secret"}
    assert read_settings(Settings, needed | both).faults_token == SecretStr("secret")
