"""Virtual time does not overtake statements that run in SQLite's thread."""

import asyncio
import threading

from hailbus.database import create_engine
from hailbus.testing.virtual import run_virtual
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine


class Gate:
    """An engine whose SQL function `gate()` waits in the thread until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.left = False
        self.engine: AsyncEngine = create_engine("sqlite://")
        event.listen(self.engine.sync_engine, "connect", self._add_function)

    def _add_function(self, connection: object, _record: object) -> None:
        connection.run_async(self._create)  # type: ignore[attr-defined]  # SQLAlchemy's adapter

    async def _create(self, connection: object) -> None:
        await connection.create_function("gate", 0, self._wait)  # type: ignore[attr-defined]  # aiosqlite's

    def _wait(self) -> int:
        assert self.opened.wait(30)
        self.left = True
        return 1

    async def run(self) -> None:
        async with self.engine.connect() as connection:
            await connection.execute(text("SELECT gate()"))


def test_virtual_time_does_not_overtake_a_statement() -> None:
    async def main() -> None:
        gate = Gate()
        opener = threading.Timer(0.6, gate.opened.set)  # longer than other threads are waited for
        opener.start()
        async with asyncio.timeout(1.0):
            await gate.run()
        assert gate.left
        await gate.engine.dispose()

    run_virtual(main())
