"""What the dashboard's server costs at a rate of events, with a page open: seconds of CPU per second.

    python -m tests.bench.dashboard.bench_dashboard --events 1000 --seconds 60

Starts the in-house broker and the dashboard as processes of their own, tells rides and drivers' positions (seven of ten
events), and reads the stream as a page would.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

from hailbus import KafkaBus, Service
from ride_events import CATALOGUE, LatLng
from ride_events.drivers import DriverLocationReported
from ride_events.zones import land_cells

from tests.bench.report import cpu_s
from tests.integration.dashboard.city import Story

BIN = Path(sys.executable).parent
BEGIN = datetime(2014, 5, 1, 8, 0, tzinfo=UTC)
TICK_S = 0.25


class Kept:
    """A publisher that keeps what is told, to send it at the wanted rate."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def publish(self, event: Any, **_: Any) -> None:
        self.events.append(event)


async def events(random: Random) -> list[Any]:
    """Return a ride's events and seven drivers' positions for each three of them."""
    kept = Kept()
    tell = Story(publisher=kept)  # type: ignore[arg-type]  # it publishes, which is all that is asked of it
    start, end = (LatLng(lat=40.65 + random.random() * 0.2, lng=-74.02 + random.random() * 0.2) for _ in range(2))
    await tell.ride(f"ride-{random.randrange(10**9)}", until="completed", start=start, end=end)
    cells = land_cells(8)
    for _ in range(len(kept.events) * 7 // 3):
        place = LatLng(lat=40.65 + random.random() * 0.2, lng=-74.02 + random.random() * 0.2)
        kept.events.append(
            DriverLocationReported(
                driver_id=f"driver-{random.randrange(2000)}", position=place, cell=random.choice(cells), free=True
            )
        )
    return kept.events


async def start(*command: str, **environment: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        str(BIN / command[0]),
        *command[1:],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    return process, line.split("=", 1)[1]


def megabytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def read_state(url: str) -> Any:
    with urlopen(f"{url}/api/state", timeout=30) as response:  # noqa: S310 our own process
        return json.load(response)


def read_stream(url: str, until: float) -> int:
    read = 0
    with urlopen(f"{url}/api/stream", timeout=30) as stream:  # noqa: S310 our own process
        while time.monotonic() < until:
            read += len(stream.readline())
    return read


async def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    random = Random(1)
    with tempfile.TemporaryDirectory() as folder:
        broker, bootstrap = await start("hailbus-broker", "serve", "--listen", "127.0.0.1:0", "--data-dir", folder)
        dashboard, address = await start(
            "dashboard", DASHBOARD_BOOTSTRAP_SERVERS=bootstrap, DASHBOARD_LISTEN="127.0.0.1:0"
        )
        try:
            service = Service("booking", bus=KafkaBus(bootstrap_servers=bootstrap), catalogue=CATALOGUE)
            publisher = service.publishes(CATALOGUE)
            async with service.running():
                told = [await events(random) for _ in range(options.events * options.seconds // 20 + 1)]
                # A hundred rides at a time are under way, each a few seconds long.
                groups = (told[index : index + 100] for index in range(0, len(told), 100))
                queue = (event for group in groups for turn in zip_longest(*group) for event in turn if event)
                until = time.monotonic() + options.seconds
                page = asyncio.ensure_future(asyncio.to_thread(read_stream, f"http://{address}", until))
                began, before = time.monotonic(), cpu_s(dashboard.pid)
                sent = 0
                while time.monotonic() < until:
                    due = int((time.monotonic() - began) * options.events)
                    batch = [event for _, event in zip(range(due - sent), queue, strict=False)]
                    sent += len(batch)
                    await publisher.publish_many(batch, time=BEGIN + timedelta(seconds=60 * (time.monotonic() - began)))
                    await asyncio.sleep(TICK_S)
                took = time.monotonic() - began
                used = cpu_s(dashboard.pid) - before
                state = await asyncio.to_thread(read_state, f"http://{address}")
                print(
                    f"{sent / took:,.0f} events/s for {took:.0f} s, {state['records']:,} of {sent:,} read at its end:"
                )
                print(f"{used / took:.1%} of a core, {megabytes(dashboard.pid)} MB")
                print(f"{(await page) / took / 1024:.0f} KB/s to the page")
        finally:
            for process in (dashboard, broker):
                process.terminate()
                await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
