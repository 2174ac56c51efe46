"""A service prunes its stores at intervals, and continues after a round that fails."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from hailbus import ClockNotSetError, ConfigurationError, Service
from hailbus.testing import MemoryBus

WEEK = timedelta(days=7)


class Store:
    """Counts its rounds, and meets what the test says."""

    def __init__(self, *found: int | Exception) -> None:
        self.found = list(found)
        self.kept: list[tuple[float, timedelta]] = []

    async def prune(self, keep: timedelta) -> int:
        self.kept.append((asyncio.get_running_loop().time(), keep))
        found = self.found.pop(0) if self.found else 0
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.usefixtures("virtual_time")
async def test_each_store_is_pruned_at_its_interval_until_the_service_stops() -> None:
    service = Service("till", bus=MemoryBus())
    often, seldom = Store(), Store()
    service.prunes(often, keep=WEEK, every=timedelta(minutes=1))
    service.prunes(seldom, keep=2 * WEEK, every=timedelta(minutes=2))
    began_s = asyncio.get_running_loop().time()
    async with service.running():
        await asyncio.sleep(250)
    await asyncio.sleep(1_000)
    assert [(round(at_s - began_s), keep) for at_s, keep in often.kept] == [(60 * i, WEEK) for i in (1, 2, 3, 4)]
    assert [(round(at_s - began_s), keep) for at_s, keep in seldom.kept] == [(120, 2 * WEEK), (240, 2 * WEEK)]


@pytest.mark.usefixtures("virtual_time")
async def test_a_round_that_fails_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    service = Service("till", bus=MemoryBus())
    store = Store(ClockNotSetError(), OSError("away"), OSError("away"), 7, OSError("away"), 0)
    service.prunes(store, keep=WEEK, every=timedelta(minutes=1))
    with caplog.at_level(logging.INFO, "hailbus.pruning"):
        async with service.running():
            await asyncio.sleep(400)
    failed = "prune_failed: Store, tried again every 0:01:00: OSError('away')"
    assert caplog.messages == [failed, "pruned: 7 rows of Store", failed]
    assert not store.found


@pytest.mark.parametrize("name", ["keep", "every"])
def test_durations_are_above_zero(name: str) -> None:
    durations = {"keep": WEEK, "every": WEEK, name: timedelta(0)}
    with pytest.raises(ConfigurationError, match=rf"prunes\({name}=.*above zero"):
        Service("till").prunes(Store(), **durations)
