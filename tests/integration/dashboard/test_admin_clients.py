"""The clients by which the page asks the cluster are closed when it stops."""

import asyncio
import contextlib

import pytest
from dashboard.adapters.letters import Letters
from dashboard.adapters.nodes import Nodes
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryAdmin


class CountingBus(MemoryBus):
    """Counts the admin clients that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.was_opened = asyncio.Event()

    def admin(self, *, client_id: str) -> MemoryAdmin:
        bus, admin = self, super().admin(client_id=client_id)
        start, stop = admin.start, admin.stop

        async def counted_start() -> None:
            bus.open += 1
            bus.was_opened.set()
            await start()

        async def counted_stop() -> None:
            bus.open -= 1
            await stop()

        admin.start, admin.stop = counted_start, counted_stop  # type: ignore[method-assign]  # only to count
        return admin


@pytest.mark.parametrize("kind", ["nodes", "letters"])
async def test_a_loop_that_is_cancelled_leaves_no_client_open(kind: str) -> None:
    bus = CountingBus()
    loops = {"nodes": Nodes(bus).poll, "letters": Letters(bus).poll}
    polling = asyncio.create_task(loops[kind]())
    await asyncio.wait_for(bus.was_opened.wait(), 10)
    assert bus.open == 1
    polling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await polling
    assert bus.open == 0
