"""The dashboard's server on a bus in memory: state, stream, one ride, lag, ledger, and an absent broker."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import httpx
import pytest
from dashboard.adapters.http.app import STATIC
from dashboard.config import Settings
from hailbus import BrokerUnreachableError, ConfigurationError, Context, KafkaBus, Service
from hailbus.settings import read_settings
from hailbus.testing import MemoryBus
from pydantic import SecretStr
from ride_events.rides import RideRequested

from tests.integration.dashboard.city import HOT, BusOfThree, page, story
from tests.support import free_port


async def until(look: Callable[[], Awaitable[Any]], expected: Callable[[Any], bool], *, seconds: float = 15) -> Any:
    deadline = monotonic() + seconds
    while True:
        found = await look()
        if expected(found):
            return found
        assert monotonic() < deadline, f"still {found}"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def client_of(bus: Any, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with page(bus, **values) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client


async def get(client: httpx.AsyncClient, path: str) -> Any:
    response = await client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def test_state_tells_the_city_from_the_start_of_the_log() -> None:
    bus = MemoryBus()
    async with story(bus) as tell:
        await tell.price(2.0)
        await tell.drivers(3, busy=1)
        await tell.ride("one", until="completed")
        await tell.ride("two", until="riding")
        await tell.ride("three", until="cancelled")
        await tell.recommend()
        async with client_of(bus) as client:
            state = await until(
                lambda: get(client, "/api/state"), lambda found: found["recommendations"]["chosen"] == 1
            )
            ledger = state["ledger"]
            assert {
                name: ledger[name] for name in ("requested", "completed", "cancelled", "unmatched", "in_flight")
            } == {
                "requested": 3,
                "completed": 1,
                "cancelled": 1,
                "unmatched": 0,
                "in_flight": 1,
            }
            ((cell, multiplier, demand, supply, _),) = state["cells"]
            assert (cell, multiplier, demand, supply) == (HOT, 2.0, 12.5, 3.0)
            (ride,) = state["rides"]
            assert ride[:6] == ["two", "riding", 40.758, -73.9855, 40.6782, -73.9442]
            assert ride[7] - ride[6] == 1_800_000
            assert state["drivers"] == [3, 2]
            assert state["recommendations"]["recent"][0]["options"] == [{"name": "Crown Heights North", "score": 0.31}]
            assert state["broker"][0] == "up"


async def test_the_cluster_is_described_with_its_leaders_and_in_sync_replicas() -> None:
    bus = BusOfThree()
    async with story(bus) as tell, client_of(bus) as client:
        await tell.ride("one")

        def rides(found: Any) -> Any:
            return dict(found["cluster"]["topics"])["rides.v1"] if found["cluster"] else []

        found = await until(lambda: get(client, "/api/cluster"), lambda found: bool(rides(found)))
        assert rides(found)[:3] == [
            [0, 1, [1, 2, 3], [1, 2, 3]],
            [1, 2, [1, 2, 3], [1, 2, 3]],
            [2, 3, *[[1, 2, 3]] * 2],
        ]
        assert found["cluster"]["controller"] == 1
        assert [broker["address"] for broker in found["cluster"]["brokers"]] == [f"broker-{n}:9092" for n in (1, 2, 3)]
        assert found["age_s"] < 15
        bus.away = frozenset({1})
        found = await until(lambda: get(client, "/api/cluster"), lambda found: not found["cluster"]["brokers"][0]["up"])
        assert rides(found)[0] == [0, 2, [1, 2, 3], [2, 3]]
        assert found["cluster"]["controller"] == 2
        state = await get(client, "/api/state")
        assert state["cluster"] == found["cluster"]


async def test_one_broker_is_a_cluster_too() -> None:
    bus = MemoryBus()
    async with story(bus), client_of(bus) as client:
        found = await until(lambda: get(client, "/api/cluster"), lambda found: found["cluster"] is not None)
        (broker,) = found["cluster"]["brokers"]
        assert (broker["up"], broker["controller"], broker["replicas"]) == (True, True, broker["in_sync"])


async def test_the_stream_sends_everything_once_and_then_what_changed() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, client_of(bus) as client:
        await tell.ride("one", until="matched")
        await until(lambda: get(client, "/api/ledger"), lambda found: found["requested"] == 1)
        frames: list[tuple[str, dict[str, Any]]] = []
        async with client.stream("GET", "/api/stream") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            event = ""
            told = False
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    frames.append((event, json.loads(line.removeprefix("data: "))))
                    if not told:
                        told = True
                        await tell.ride("two", until="riding")
                        await tell.price(1.6)
                    if any(
                        ride[0] == "two" and ride[1] == "riding"
                        for _, frame in frames[1:]
                        for ride in frame.get("rides", ())
                    ) and any(frame.get("cells") for _, frame in frames[1:]):
                        break
        assert [name for name, _ in frames][:2] == ["whole", "delta"]
        assert [ride[0] for ride in frames[0][1]["rides"]] == ["one"]
        changed = {ride[0] for _, frame in frames[1:] for ride in frame.get("rides", ())}
        assert changed - {"one"} == {"two"}  # what changed just before a page came may be told to it twice


async def test_booking_is_asked_with_the_token_of_the_settings() -> None:
    asked: list[str | None] = []

    class Booking(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            known = asked[-1] == "Bearer operators-token"
            body = json.dumps({"state": "completed", "seq": 5, "rider_id": "r"} if known else {}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Booking) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        bus, url = MemoryBus(), f"http://127.0.0.1:{server.server_port}"
        async with story(bus) as tell:
            await tell.ride("one", until="completed")
            for token, expected in ((SecretStr("operators-token"), "completed"), (None, None)):
                async with client_of(bus, booking_url=url, booking_token=token) as client:
                    ledger = partial(get, client, "/api/ledger")
                    await until(ledger, lambda found: found["completed"] == 1)
                    says = (await get(client, "/api/rides/one"))["booking"]
                    assert says.get("state") == expected
        assert says == {"error": "booking answers 401"}
        assert asked == ["Bearer operators-token", None]
        server.shutdown()


async def test_a_rides_records_are_shown_as_they_were_written() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, client_of(bus) as client:
        await tell.ride("one", until="completed")
        await until(lambda: get(client, "/api/ledger"), lambda found: found["completed"] == 1)
        found = await until(lambda: get(client, "/api/rides/one"), lambda found: len(found["events"]) == 9)
        types = [event["type"] for event in found["events"]]
        assert types[:2] == ["quote.offered", "quote.accepted"]
        assert [name for name in types if name.startswith("ride.")] == [
            "ride.requested",
            "ride.matched",
            "ride.driver_arrived",
            "ride.started",
            "ride.completed",
        ]
        event = next(event for event in found["events"] if event["type"] == "ride.requested")
        record = next(
            record
            for record in bus.records("rides.v1")
            if ["ce_type", "ride.requested"] in [[n, v.decode()] for n, v in record.headers]
        )
        assert (event["topic"], event["partition"], event["offset"]) == ("rides.v1", record.partition, record.offset)
        assert event["headers"] == [[name, value.decode()] for name, value in record.headers]
        assert event["payload"] == json.loads(record.value or b"")
        assert event["key"] == "one"
        assert found["booking"] is None
        missing = await client.get("/api/rides/none")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


async def test_lag_is_told_in_records_and_seconds() -> None:
    bus = MemoryBus()
    gate = asyncio.Event()
    slow = Service("slow", bus=bus)

    async def wait(event: RideRequested, _ctx: Context) -> None:
        if event.ride_id != "first":
            await gate.wait()

    slow.on(RideRequested)(wait)
    async with story(bus) as tell, slow.running(), client_of(bus) as client:
        await tell.ride("first", until="requested")
        await until(lambda: get(client, "/api/lag"), lambda found: any(g["records"] == 0 for g in found["groups"]))
        for number in range(5):
            await tell.ride(f"ride-{number}", until="requested")
        behind = await until(
            lambda: get(client, "/api/lag"),
            lambda found: any(g["records"] == 5 and g["seconds"] > 1 and g["progress"] for g in found["groups"]),
        )
        (group,) = behind["groups"]
        assert group["group"] == "slow"
        assert [part for part in group["topics"] if part["lag"]] == [{"topic": "rides.v1", "lag": 5, "end": 6}]
        gate.set()
        done = await until(lambda: get(client, "/api/lag"), lambda found: found["groups"][0]["records"] == 0)
        assert done["groups"][0]["seconds"] == 0.0


async def test_nobody_is_disturbed() -> None:
    bus = MemoryBus()
    async with story(bus) as tell, client_of(bus) as client:
        await tell.ride("one")
        await until(lambda: get(client, "/api/ledger"), lambda found: found["requested"] == 1)
        assert await bus.admin(client_id="test").groups() == []


async def test_the_files_of_demo_and_lake_are_followed(tmp_path: Path) -> None:
    ledger, lake = tmp_path / "ledger.json", tmp_path / "progress.json"
    async with client_of(MemoryBus(), ledger_file=ledger, lake_file=lake) as client:
        state = await until(lambda: get(client, "/api/state"), lambda found: found["full"]["error"] is not None)
        assert state["full"] == {"expected": True, "error": "not written yet", "content": None}
        line = {"id": "rides", "name": "rides", "verdict": "agrees", "detail": "3 of 3"}
        ledger.write_text(
            json.dumps(
                {
                    "balanced": True,
                    "so_far": False,
                    "lines": [line],
                    "figures": {},
                    "processes": [{"name": "surge", "state": "restarting", "restarts": 1}],
                }
            )
        )
        lake.write_text(json.dumps({"state": "running", "rows": {"bronze": 9}, "lag_records": 2, "partitions": []}))
        state = await until(lambda: get(client, "/api/state"), lambda found: found["full"]["content"] is not None)
        assert state["full"]["content"]["lines"] == [line]
        assert (state["full"]["content"]["balanced"], state["full"]["content"]["so_far"]) == (True, False)
        assert "figures" not in state["full"]["content"]  # the page has no use for them
        assert state["health"]["chips"] == [["surge", "late", "restarting", "restarting, restarted 1×", 1]]
        assert "surge restarting" in [state["health"]["words"], *state["health"]["others"]]
        assert 0 <= state["ledger_age_s"] < 60
        state = await until(lambda: get(client, "/api/state"), lambda found: found["lake"]["progress"] is not None)
        assert state["lake"]["progress"]["rows"] == {"bronze": 9}
        ledger.write_text("{")
        state = await until(lambda: get(client, "/api/state"), lambda found: found["full"]["error"] is not None)
        assert state["full"]["error"].startswith("cannot be read")
        assert state["full"]["content"]["balanced"] is True


class FlakyBus(MemoryBus):
    """A bus whose broker can be away."""

    is_away = True

    def admin(self, *, client_id: str) -> Any:
        if self.is_away:
            raise BrokerUnreachableError(bootstrap="memory", waited_s=4.0)
        return super().admin(client_id=client_id)


async def test_an_absent_broker_is_said_and_its_return_noticed() -> None:
    bus = FlakyBus()
    async with client_of(bus) as client:
        assert (await client.get("/readyz")).status_code == 503
        state = await get(client, "/api/state")
        assert state["broker"][0] in {"connecting", "down"}
        bus.is_away = False
        await until(lambda: get(client, "/api/state"), lambda found: found["broker"][0] == "up")
        assert (await client.get("/readyz")).status_code == 200
        async with story(bus) as tell:
            await tell.ride("one")
            await until(lambda: get(client, "/api/ledger"), lambda found: found["requested"] == 1)
        bus.is_away = True
        lost = await until(lambda: get(client, "/api/lag"), lambda found: found["broker"] == "down")
        assert "memory" in lost["detail"]
        assert (await get(client, "/api/ledger"))["requested"] == 1


async def test_cells_have_shapes_and_names() -> None:
    async with client_of(MemoryBus()) as client:
        cells = {cell["id"]: cell for cell in await get(client, "/api/cells")}
        assert len(cells) == 1265
        assert (cells[HOT]["name"], cells[HOT]["borough"], len(cells[HOT]["boundary"])) == (
            "Midtown Center",
            "Manhattan",
            12,
        )


async def test_the_page_keeps_to_itself() -> None:
    async with client_of(MemoryBus()) as client:
        response = await client.get("/")
        assert response.status_code == 200
        assert "default-src 'self'" in response.headers["content-security-policy"]
        for name in sorted(file.name for file in STATIC.iterdir() if file.suffix != ".html"):
            text = (await client.get(f"/{name}")).text
            assert "https://" not in text
            assert text.replace("http://www.w3.org/", "").count("http://") == 0
        assert (await client.get("/nothing")).headers["content-type"] == "application/problem+json"


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown setting DASHBOARD_LEDGER;"):
        read_settings(Settings, {"DASHBOARD_LEDGER": "x"})


async def test_what_was_read_stays_when_the_broker_goes_away(tmp_path: Path) -> None:
    """On the real broker, killed with SIGKILL and started again on the same data and port."""
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    bus = KafkaBus(bootstrap_servers=bootstrap, connect_timeout_s=30)
    settings = {"DASHBOARD_BOOTSTRAP_SERVERS": bootstrap, "DASHBOARD_LISTEN": "127.0.0.1:0"}
    broker_command = ("hailbus-broker", "serve", "--listen", bootstrap, "--data-dir", str(tmp_path))
    broker, _ = await start(*broker_command)
    dashboard, address = await start("dashboard", **settings)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as client:
            async with story(bus) as tell:
                await tell.ride("one", until="riding")
            await until(lambda: get(client, "/api/ledger"), lambda found: found["in_flight"] == 1, seconds=60)
            broker.kill()
            await broker.wait()
            await until(lambda: get(client, "/api/lag"), lambda found: found["broker"] == "down", seconds=60)
            assert (await get(client, "/api/ledger"))["in_flight"] == 1
            broker, _ = await start(*broker_command)
            await until(lambda: get(client, "/api/lag"), lambda found: found["broker"] == "up", seconds=60)
            async with story(bus) as tell:
                await tell.ride("two", until="completed")
            found = await until(lambda: get(client, "/api/ledger"), lambda found: found["completed"] == 1, seconds=60)
            assert (found["requested"], found["in_flight"]) == (2, 1)
            dashboard.terminate()
            assert await asyncio.wait_for(dashboard.wait(), 30) == 0
    finally:
        for process in (dashboard, broker):
            if process.returncode is None:
                process.kill()
            await process.wait()


async def start(command: str, *arguments: str, **environment: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start one of the project's commands; return it and the address that it prints."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / command),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    return process, line.partition("=")[2]
