"""What surge publishes again after a crash says the same, though events came meanwhile that were late before."""

import json
import random
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ride_events.pricing import FORECASTS, SURGE
from surge.adapters.streams.records import forecast_events, price_event
from surge.adapters.streams.worker import SurgeWorker, by_slot
from surge.app.city import City
from surge.app.decided import Decided
from surge.domain.forecast import UTC_CALENDAR
from surge.domain.windows import MINUTE_MS, Fact

from tests.property.surge.test_city import RULES, START_MS, facts

MINUTES = 12


class CrashError(Exception):
    """The process ends here."""


class Log:
    """What survives: rows of the tables and published events, in the order in which the broker took them."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.folder = chance, folder
        self.tables: dict[str, dict[str, str]] = {"windows": {}, "state": {}, "slots": {}}
        self.published: dict[str, list[bytes | None]] = {}

    def table(self, name: str) -> dict[str, Any]:
        return {key: json.loads(row) for key, row in self.tables[name].items()}


class Worker(SurgeWorker):
    """A worker without faust: its writes are on their way until `_written`, where it may crash with some of them."""

    def __init__(self, log: Log, *, is_doomed: bool) -> None:
        self.log, self.is_doomed = log, is_doomed
        self._settings: Any = SimpleNamespace(clock="event", state_dir=log.folder)
        self._windows, self._state, self._slots = (log.table(name) for name in ("windows", "state", "slots"))
        self._slots_kept = deque()
        self._calendar = UTC_CALENDAR
        self._city = City(rules=RULES, least_counts=0.0)
        self._restore_city(*by_slot(self._slots))
        self.watermark_ms = 0
        self.is_resumed = False
        self._watermark: Any = SimpleNamespace(current=lambda **_: self.watermark_ms)
        self.on_their_way: list[tuple[str, bytes | None]] = []

    def _monotonic_ms(self) -> int:
        return 0

    def _behind(self) -> list[str]:
        return []

    async def _publish(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]
    ) -> None:
        assert topic in {SURGE.name, FORECASTS.name}
        self.on_their_way.append((dict(headers)["ce_id"].decode(), value))

    async def _written(self) -> None:
        """All writes are taken, or the process dies after any of them: brokers take them independently."""
        chance = self.log.chance
        dies = self.is_doomed and chance.random() < 0.15
        for event_id, value in self.on_their_way:
            if not dies or chance.random() < 0.5:
                self.log.published.setdefault(event_id, []).append(value)
        self.on_their_way.clear()
        for name, table in (("windows", self._windows), ("state", self._state), ("slots", self._slots)):
            before = self.log.tables[name]
            now = {key: json.dumps(row) for key, row in table.items()}
            for key in before.keys() | now.keys():
                if before.get(key) != now.get(key) and (not dies or chance.random() < 0.5):
                    if key in now:
                        before[key] = now[key]
                    else:
                        del before[key]
        if dies:
            raise CrashError

    @property
    def decided(self) -> Decided:
        return Decided.of((self._state.get("state") or {}).get("decided"))

    async def resume(self) -> None:
        await self._publish_decided(self.decided)
        self.is_resumed = True

    async def hear(self, told: list[Fact]) -> None:
        for fact in told:
            self._city.apply(fact)
        for key, row in self._city.changed_rows().items():
            self._windows[key] = row
        await self._written()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
async def test_an_id_never_has_two_contents_and_nothing_that_was_decided_is_missing(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as folder:
        await crash_again_and_again(seed, Log(chance, Path(folder)))


async def crash_again_and_again(seed: int, log: Log) -> None:
    chance = log.chance
    told = facts(seed, MINUTES)
    # A partition whose leader is away for a while: its facts come after their minutes have been closed.
    late = [fact for fact in told if chance.random() < 0.2]
    prompt = [fact for fact in told if fact not in late]
    worker = Worker(log, is_doomed=True)
    for minute in range(1, MINUTES + 1):
        now_ms = START_MS + minute * MINUTE_MS
        while True:
            heard = [fact for fact in prompt if fact.at_ms < now_ms]
            if chance.random() < 0.3:
                heard += [fact for fact in late if fact.at_ms < now_ms]
            try:
                if not worker.is_resumed:
                    await worker.resume()
                worker.watermark_ms = now_ms
                await worker.hear(heard)
                await worker._close_minutes()
            except CrashError:
                worker = Worker(log, is_doomed=True)
            else:
                break
    last = Worker(log, is_doomed=False)
    await last.resume()
    for event_id, contents in log.published.items():
        assert len(set(contents)) == 1, f"{event_id} has {len(set(contents))} contents (seed {seed})"
    events = [price_event(price) for price in last.decided.prices]
    events += forecast_events(last.decided.demand, last.decided.supply)
    assert {dict(event.headers)["ce_id"].decode() for event in events} <= log.published.keys()
