"""The simulated database: what was committed stays, what was not is gone, and each fault has its effect."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hailbus_broker.testing.simulation import World
from hailbus_devtools.simulate.guests.store import Store
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

NUMBERS = "SELECT number FROM numbers ORDER BY number"


def store_in(world: World) -> Store:
    store = Store(world, "test", world.note)
    store.create("CREATE TABLE numbers (number INTEGER)")
    return store


async def insert(engine: AsyncEngine, number: int, *, pause_s: float = 0.0) -> None:
    async with engine.begin() as tx:
        await tx.execute(text("INSERT INTO numbers VALUES (:number)"), {"number": number})
        await asyncio.sleep(pause_s)


async def numbers_in(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return [number for (number,) in await connection.execute(text(NUMBERS))]


def test_what_was_committed_survives_the_process_and_what_was_not_is_rolled_back() -> None:
    async def work(store: Store) -> None:
        engine = store.engine()
        await insert(engine, 1)
        await insert(engine, 2, pause_s=60)

    async def main(world: World) -> tuple[list[int], float]:
        store = store_in(world)
        process = world.process("service")
        process.start(work(store))
        await world.sleep(10)
        assert store.rows(NUMBERS) is None, "nobody sees what is not committed"
        process.kill()
        found = await numbers_in(store.engine())
        store.is_over = True
        return found, world.loop.now_s

    world = World(1)
    found, now_s = world.run(main)
    assert found == [1]
    assert now_s < 11, "the lock is free"
    assert world.notes["service killed in a transaction of its store"] == 1


def test_transactions_run_one_after_the_other() -> None:
    async def main(world: World) -> list[int]:
        store = store_in(world)
        engine = store.engine()
        first = asyncio.create_task(insert(engine, 1, pause_s=5))
        await world.sleep(1)
        second, cancelled = (asyncio.create_task(insert(engine, number)) for number in (2, 3))
        await world.sleep(1)
        cancelled.cancel()
        await asyncio.gather(first, second, cancelled, return_exceptions=True)
        return await numbers_in(engine)

    assert World(2).run(main) == [1, 2]


def test_nobody_reaches_a_store_that_is_away() -> None:
    async def main(world: World) -> list[int]:
        store = store_in(world)
        engine = store.engine()
        begun = asyncio.create_task(insert(engine, 1, pause_s=5))
        await world.sleep(1)
        store.is_away = True
        with pytest.raises(OperationalError, match="away"):
            await insert(engine, 2)
        with pytest.raises(OperationalError, match="away"):
            await begun
        store.is_away = False
        await insert(engine, 3)
        return await numbers_in(engine)

    assert World(3).run(main) == [3]


def test_a_commit_that_is_refused_is_rolled_back() -> None:
    async def main(world: World) -> list[int]:
        store = store_in(world)
        engine = store.engine()
        store.refused_share = 1.0
        with pytest.raises(OperationalError, match="disk"):
            await insert(engine, 1)
        assert await numbers_in(engine) == []
        store.refused_share = 0.0
        await insert(engine, 2)
        return await numbers_in(engine)

    assert World(4).run(main) == [2]


def test_a_commit_without_an_answer_has_happened_or_not() -> None:
    async def main(world: World) -> list[int]:
        store = store_in(world)
        engine = store.engine()
        store.silent_share = 1.0
        for number in range(20):
            with pytest.raises(OperationalError, match="away"):
                await insert(engine, number)
        store.silent_share = 0.0
        return await numbers_in(engine)

    world = World(5)
    found = world.run(main)
    assert 3 < len(found) < 17
    assert world.notes == Counter({"store commit of unknown outcome": 20})
