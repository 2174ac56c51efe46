"""The right of one process to write a database, or one region's part of it."""

import fcntl
import hashlib
from pathlib import Path
from typing import IO

from hailbus import ConfigurationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

ADVISORY_LOCK = 0x626F6F6B696E67  # "booking"


class DatabaseTakenError(ConfigurationError):
    """Another process writes this database."""


class Ownership:
    """An advisory lock on PostgreSQL, a lock file beside SQLite's database.

    Both end with the process, however it ends. On PostgreSQL the lock lives in the writer's own connection, so a writer
    that lost its connection has lost the lock, and must claim it again before it writes.
    """

    def __init__(self, engine: AsyncEngine, region: str | None = None) -> None:
        self._engine = engine
        self._region = region
        self._file: IO[bytes] | None = None

    async def claim(self, connection: AsyncConnection) -> None:
        """Claim it for the life of the connection (PostgreSQL) or of the process (SQLite).

        Raises:
            DatabaseTakenError: Another process has it.
        """
        if self._engine.dialect.name == "postgresql":
            got = await connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": lock_of(self._region)})
            await connection.commit()
            if not got:
                raise DatabaseTakenError(self._sentence())
            return
        if self._file is None:
            lock = Path(f"{self._engine.url.database}.lock").open("ab")  # noqa: ASYNC230, SIM115 once, and held
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                raise DatabaseTakenError(self._sentence()) from error
            self._file = lock

    async def leave(self, connection: AsyncConnection) -> None:
        """End the connection together with its lock: back in the pool, its session would keep it.

        Works on a broken connection as well; PostgreSQL then keeps the lock until it notices that the session is gone.
        """
        try:
            if self._engine.dialect.name == "postgresql":
                await connection.execute(text("SELECT pg_advisory_unlock_all()"))
                await connection.commit()
        finally:
            await connection.invalidate()
            await connection.close()

    def release(self) -> None:
        """Give up the lock file; PostgreSQL's lock ends with the connection."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sentence(self) -> str:
        place = self._engine.url.render_as_string(hide_password=True)
        if self._region is not None:
            return f"another process serves region {self._region} in {place}; stop it, or set another BOOKING_REGION"
        return f"another process writes {place}; stop it, or give this one a database of its own"


def lock_of(region: str | None) -> int:
    """Return the number of the advisory lock: one for a database, or one for each region in it."""
    if region is None:
        return ADVISORY_LOCK
    digest = hashlib.sha256(f"booking region {region}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
