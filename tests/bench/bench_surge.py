"""CPU of the surge worker per event that it reads over the broker: decoded, counted, settled and recorded.

python tests/bench/bench_surge.py [--rounds 3] [--minutes 20] [--drivers 600] [--json FILE]

The events are those of a city in order: each driver reports every four seconds, and riders ask. They are in the topics
before the worker starts. Its CPU time is read when it has settled those of the first minute, and again when it has
settled all: what it costs to start is not in it, prices and forecasts are.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hailbus import ClusterAdmin, KafkaBus
from ride_events.drivers import DriverLocationReported
from surge.adapters.streams.service import SOURCES, declare

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.report import Run, cpu_s
from tests.integration.surge.conftest import Broker, Worker, low_port
from tests.integration.surge.test_worker import city_events, producer, tell

if TYPE_CHECKING:
    from tests.integration.surge.test_worker import Told

DEADLINE_S = 900


async def settled(admin: ClusterAdmin) -> int:
    """Records that the worker has acknowledged."""
    return sum((await admin.committed("surge")).values())


async def until_settled(admin: ClusterAdmin, count: int, worker: Worker) -> int:
    """Wait until so many are; return how many are then."""
    deadline = time.monotonic() + DEADLINE_S
    while (now := await settled(admin)) < count:
        if not worker.is_running or time.monotonic() > deadline:
            raise SystemExit(f"{now} of {count} records settled: {worker.log.read_text()[-2000:]}")
        await asyncio.sleep(0.2)
    return now


async def measure(told: list[Told], first: int) -> tuple[float, float]:
    """Return microseconds of CPU per event, and events per second."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder), low_port())
        broker.start()
        worker = Worker(Path(folder), broker.bootstrap)
        bus = KafkaBus(bootstrap_servers=broker.bootstrap, connect_timeout_s=30)
        admin = ClusterAdmin(bus, client_id="bench")
        try:
            await admin.provision([*SOURCES, *declare().topics])
            async with producer(broker.bootstrap) as client:
                await tell(client, told)
            worker.start()
            began_at = await until_settled(admin, first, worker)
            assert worker.process is not None
            began_s, spent_s = time.monotonic(), cpu_s(worker.process.pid)
            ended_at = await until_settled(admin, len(told), worker)
            took_s, spent_s = time.monotonic() - began_s, cpu_s(worker.process.pid) - spent_s
        finally:
            await admin.close()
            worker.kill()
            broker.kill()
    count = ended_at - began_at
    return spent_s / count * 1e6, count / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=20, help="of event time")
    parser.add_argument("--drivers", type=int, default=600)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    told = city_events(options.minutes, drivers=options.drivers)
    locations = sum(isinstance(one[0], DriverLocationReported) for one in told)
    command = f"python tests/bench/bench_surge.py --minutes {options.minutes} --drivers {options.drivers}"
    run = Run(f"{command} --rounds {options.rounds}", rounds=options.rounds)
    run.table(
        "surge over the broker",
        condition=f"{len(told):,} events, {locations:,} of them locations",
        columns=("surge",),
    )
    found = [asyncio.run(measure(told, len(told) // options.minutes)) for _ in range(options.rounds)]
    run.add("CPU of the worker", "µs/event", [cpu for cpu, _ in found])
    run.add("settled", "events/s", [rate for _, rate in found])
    if options.json:
        run.write(options.json)


if __name__ == "__main__":
    main()
