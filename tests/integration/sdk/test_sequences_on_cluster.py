"""Numbered events over a real broker: what waits survives kills of the service and of the broker, on both databases."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from hailbus import Event, KafkaBus, ParkingLot, Service, Topic
from hailbus.database import READ_ONLY, create_engine
from sqlalchemy import text

Until = Callable[..., Awaitable[None]]


class OwnCluster(Protocol):
    bootstrap: str

    def start(self) -> None: ...
    def kill(self) -> None: ...


PROGRAM = """
import asyncio
from datetime import timedelta
from hailbus import *
from hailbus.database import create_engine
from sqlalchemy import text
engine = create_engine({database!r})
class Moved(Event, topic=Topic({topic!r}, partitions=2), key="trip_id", type="trip.moved"):
    trip_id: str
    seq: int
bus = KafkaBus(bootstrap_servers={bootstrap!r}, session_timeout_ms=6000, heartbeat_interval_ms=500)
svc = Service({group!r}, bus=bus)
@svc.on(Moved, delivery=EffectivelyOnce(
    inbox=Inbox(engine, {group!r}),
    then=ParkKey(lot=ParkingLot(engine), look_every=timedelta(milliseconds=100)),
    sequence="seq",
))
async def moved(event: Moved, ctx: Context) -> None:
    await ctx.tx.execute(text("INSERT INTO effects (trip, seq) VALUES (:k, :n)"), dict(k=event.trip_id, n=event.seq))
    if event.seq == 5:
        print("in 5", flush=True)
        await asyncio.sleep({pause})
asyncio.run(svc.run())
"""


@pytest.mark.slow_with("apache", "inhouse-sqlite")
async def test_what_waits_survives_kills_of_service_and_broker(
    own_cluster: OwnCluster, until: Until, database_url: str, tmp_path: Path
) -> None:
    topic = Topic(f"trips-{random.randrange(10**9)}", partitions=2)

    class Moved(Event, topic=topic, key="trip_id", type="trip.moved"):
        trip_id: str
        seq: int

    group = f"moves-{topic.name}"
    engine = create_engine(database_url)
    async with engine.begin() as tx:
        kind = "INTEGER PRIMARY KEY" if engine.dialect.name == "sqlite" else "BIGSERIAL PRIMARY KEY"
        await tx.execute(text(f"CREATE TABLE effects (number {kind}, trip TEXT, seq INTEGER)"))
    lot = ParkingLot(engine)
    await lot.create_tables()
    source = Service("source")
    pub = source.publishes(Moved)
    processes: list[asyncio.subprocess.Process] = []

    async def start(*, pause_s: float) -> asyncio.subprocess.Process:
        program = tmp_path / f"program{len(processes)}.py"
        program.write_text(
            PROGRAM.format(
                database=database_url, topic=topic.name, group=group, bootstrap=own_cluster.bootstrap, pause=pause_s
            )
        )
        process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
        processes.append(process)
        return process

    async def give(*numbers: int) -> None:
        await pub.publish_many([Moved(trip_id="a", seq=number) for number in numbers])

    async def waiting() -> list[int]:
        return [key.waiting_count for key in await lot.keys(group)]

    async def effects() -> list[Any]:
        async with engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)  # the killed process holds the write lock until then
            return list((await connection.execute(text("SELECT seq FROM effects ORDER BY number"))).scalars())

    try:
        async with source.running(KafkaBus(bootstrap_servers=own_cluster.bootstrap)):
            first = await start(pause_s=3600)
            await give(1, 4, 3)
            await until(lambda: _is(waiting, [2]), seconds=60)
            first.kill()
            await first.wait()

            second = await start(pause_s=3600)
            await give(2, 5)
            assert second.stdout is not None
            async with asyncio.timeout(60):
                assert await second.stdout.readline() == b"in 5\n"
            assert await effects() == [1, 2, 3, 4]
            await give(7)
            second.kill()  # in the middle of an effect
            await second.wait()
            await asyncio.to_thread(own_cluster.kill)
            await asyncio.to_thread(own_cluster.start)

            await start(pause_s=0)
            await until(lambda: _is(waiting, [1]), seconds=60)
            assert await effects() == [1, 2, 3, 4, 5]
            await give(6, 6, 2)
            await until(lambda: _is(effects, [1, 2, 3, 4, 5, 6, 7]), seconds=60)
            await until(lambda: _is(waiting, []), seconds=60)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    await engine.dispose()


async def _is(asked: Callable[[], Awaitable[list[Any]]], expected: list[Any]) -> bool:
    return await asked() == expected
