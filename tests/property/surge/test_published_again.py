"""What surge publishes again after a crash says the same, though events came meanwhile that were late before."""

import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from surge.adapters.storage.store import CITY, SLOTS, WINDOWS, Changes
from surge.adapters.streams.records import forecast_events, price_event
from surge.adapters.streams.service import create_service
from surge.adapters.streams.worker import SurgeWorker, answers
from surge.app.city import City
from surge.app.decided import Decided
from surge.config import Settings
from surge.domain.windows import MINUTE_MS, Fact

from tests.property.surge.test_city import RULES, START_MS, facts

MINUTES = 12


class CrashError(Exception):
    """The process ends here."""


class World:
    """What survives: rows as JSON, and published events in the order in which the broker took them."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.folder = chance, folder
        self.rows: dict[tuple[str, str], str] = {}
        self.published: dict[str, list[str]] = {}

    @property
    def decided(self) -> Decided:
        state = self.rows.get((CITY, "state"))
        return Decided.of(json.loads(state)["decided"] if state is not None else None)


class Database:
    """Engine and store of one process, which may crash before a commit or right after it."""

    def __init__(self, world: World, *, is_doomed: bool) -> None:
        self.world, self.is_doomed = world, is_doomed

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[list[Changes]]:
        written: list[Changes] = []
        yield written
        dies = self.is_doomed and self.world.chance.random() < 0.15
        if not dies or self.world.chance.random() < 0.5:
            for changes in written:
                for name, content in changes.rows.items():
                    if content is None:
                        self.world.rows.pop(name, None)
                    else:
                        self.world.rows[name] = json.dumps(content)
        if dies:
            raise CrashError

    async def write(self, transaction: list[Changes], changes: Changes) -> None:
        transaction.append(changes)

    async def take_over(self) -> Mapping[str, Mapping[str, Any]]:
        found: dict[str, dict[str, Any]] = {WINDOWS: {}, CITY: {}, SLOTS: {}}
        for (kind, name), content in self.world.rows.items():
            found[kind][name] = json.loads(content)
        return found


class Worker(SurgeWorker):
    """A worker without a bus, whose publishing may crash when any of its events are published."""

    def __init__(self, world: World, *, is_doomed: bool) -> None:
        database: Any = Database(world, is_doomed=is_doomed)
        service, publisher = create_service()
        super().__init__(
            Settings(bootstrap_servers="none:0", clock="event", state_dir=world.folder),
            service=service,
            answers=publisher,
            engine=database,
            store=database,
            admin=None,  # type: ignore[arg-type]  # nobody asks for the lag
        )
        self._city = City(rules=RULES, least_counts=0.0)
        self.world, self.is_doomed = world, is_doomed
        self.watermark_ms = 0

    async def _event_time(self) -> int:
        return self.watermark_ms

    async def _publish(self, decided: Decided) -> None:
        """All events are taken, or the process dies after any of them: brokers take them independently."""
        chance = self.world.chance
        dies = self.is_doomed and chance.random() < 0.15
        for answer in answers(decided):
            if not dies or chance.random() < 0.5:
                self.world.published.setdefault(answer.id, []).append(answer.event.model_dump_json())
        if dies:
            raise CrashError

    async def hear(self, told: Iterable[Fact]) -> None:
        """Count facts, and commit their rows."""
        await self._load()
        for fact in told:
            self._city.apply(fact)
        async with self._engine.begin() as transaction:
            await self._write_rows(transaction)
        self._uncommitted = Changes()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
async def test_an_id_never_has_two_contents_and_nothing_that_was_decided_is_missing(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as folder:
        await crash_again_and_again(seed, World(chance, Path(folder)))


async def crash_again_and_again(seed: int, world: World) -> None:
    chance = world.chance
    told = facts(seed, MINUTES)
    # A partition whose leader is away for a while: its facts come after their minutes have been closed.
    late = [fact for fact in told if chance.random() < 0.2]
    prompt = [fact for fact in told if fact not in late]
    worker = Worker(world, is_doomed=True)
    for minute in range(1, MINUTES + 1):
        now_ms = START_MS + minute * MINUTE_MS
        while True:
            heard = [fact for fact in prompt if fact.at_ms < now_ms]
            if chance.random() < 0.3:
                heard += [fact for fact in late if fact.at_ms < now_ms]
            try:
                worker.watermark_ms = now_ms
                await worker.hear(heard)
                await worker._close_minutes()
            except CrashError:
                worker = Worker(world, is_doomed=True)
            else:
                break
    decided = world.decided
    last = Worker(world, is_doomed=False)
    await last._load()
    await last._finish_closing()
    for event_id, contents in world.published.items():
        assert len(set(contents)) == 1, f"{event_id} has {len(set(contents))} contents (seed {seed})"
    events = [price_event(price) for price in decided.prices]
    wanted = {event.id for event in events} | {event.id for event in forecast_events(decided.demand, decided.supply)}
    assert wanted <= world.published.keys()
