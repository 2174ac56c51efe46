"""The rows of the surge worker in SQLite and PostgreSQL."""

from collections.abc import AsyncIterator

import pytest
from hailbus.database import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from surge.adapters.storage.store import CITY, SLOTS, WINDOWS, Changes, Store
from surge.app.errors import WorkerError


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    store = Store(engine, "surge")
    await store.create_tables()
    return store


def changes(*put: tuple[str, str, dict[str, int]], drop: dict[str, list[str]] | None = None) -> Changes:
    made = Changes()
    for kind, name, content in put:
        made.put(kind, name, content)
    for kind, names in (drop or {}).items():
        made.drop(kind, names)
    return made


async def write(engine: AsyncEngine, store: Store, what: Changes) -> None:
    async with engine.begin() as transaction:
        await store.write(transaction, what)


async def test_rows_are_written_replaced_and_deleted(engine: AsyncEngine, store: Store) -> None:
    assert await store.take_over() == {WINDOWS: {}, CITY: {}, SLOTS: {}}
    await write(engine, store, changes((WINDOWS, "a", {"n": 1}), (WINDOWS, "b", {"n": 2}), (SLOTS, "7/drivers", {})))
    await write(engine, store, changes((WINDOWS, "b", {"n": 3}), (CITY, "state", {}), drop={WINDOWS: ["a", "none"]}))
    assert await Store(engine, "surge").take_over() == {
        WINDOWS: {"b": {"n": 3}},
        CITY: {"state": {}},
        SLOTS: {"7/drivers": {}},
    }


async def test_who_was_taken_over_writes_nothing_more(engine: AsyncEngine, store: Store) -> None:
    await store.take_over()
    await write(engine, store, changes((CITY, "state", {"n": 1})))
    other = Store(engine, "surge")
    await other.take_over()
    with pytest.raises(WorkerError, match="another worker has taken over the rows of 'surge'"):
        await write(engine, store, changes((CITY, "state", {"n": 2})))
    await write(engine, other, changes((SLOTS, "7", {"n": 3})))
    assert await other.take_over() == {WINDOWS: {}, CITY: {"state": {"n": 1}}, SLOTS: {"7": {"n": 3}}}


async def test_workers_of_two_groups_share_a_database(engine: AsyncEngine, store: Store) -> None:
    other = Store(engine, "surge-2")
    for each, number in ((store, 1), (other, 2)):
        await each.take_over()
        await write(engine, each, changes((CITY, "state", {"n": number})))
    await write(engine, store, changes(drop={CITY: ["state"]}))
    assert (await store.take_over())[CITY] == {}
    assert (await other.take_over())[CITY] == {"state": {"n": 2}}
