"""The rows that a city is rebuilt from, in SQLite or PostgreSQL, beside the inbox of the events that changed them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import from_json, to_json
from sqlalchemy import BigInteger, Column, MetaData, String, Table, Text, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from surge.app.city import Row
from surge.app.errors import WorkerError

metadata = MetaData()
rows = Table(
    "surge_row",
    metadata,
    Column("worker", String(100), primary_key=True),  # the consumer group
    Column("kind", String(16), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("content", Text, nullable=False),  # JSON
    sqlite_with_rowid=False,
)
owners = Table(
    "surge_owner",
    metadata,
    Column("worker", String(100), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)

WINDOWS: Final = "windows"
CITY: Final = "city"
SLOTS: Final = "slots"


@dataclass(slots=True)
class Changes:
    """Rows to write and to delete in one transaction: kind and name → content, None to delete."""

    rows: dict[tuple[str, str], Row | None] = field(default_factory=dict)

    def put(self, kind: str, name: str, content: Row) -> None:
        """Write a row."""
        self.rows[kind, name] = content

    def drop(self, kind: str, names: Iterable[str]) -> None:
        """Delete rows."""
        self.rows.update({(kind, name): None for name in names})


class Store:
    """All rows of one worker. Only the process that has called `take_over` last may write.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        worker: Whose rows they are: the consumer group.
    """

    def __init__(self, engine: AsyncEngine, worker: str) -> None:
        self._engine = engine
        self._worker = worker
        self._epoch: int | None = None
        made = self._insert(rows)
        self._upsert = made.on_conflict_do_update(
            index_elements=["worker", "kind", "name"], set_={"content": made.excluded.content}
        )
        mine = rows.c.worker == worker
        self._delete = delete(rows).where(
            mine, rows.c.kind == bindparam("old_kind"), rows.c.name == bindparam("old_name")
        )
        self._owned = (
            update(owners)
            .where(owners.c.worker == worker, owners.c.epoch == bindparam("mine"))
            .values(epoch=owners.c.epoch)
        )

    async def create_tables(self) -> None:
        """Create what is missing."""
        async with self._engine.begin() as connection:
            await connection.run_sync(metadata.create_all)

    async def take_over(self) -> Mapping[str, Mapping[str, Row]]:
        """Fence every process that has written before, and return the rows that it left: kind → name → content."""
        async with self._engine.begin() as connection:
            bumped = (
                self._insert(owners)
                .values(worker=self._worker, epoch=1)
                .on_conflict_do_update(index_elements=["worker"], set_={"epoch": owners.c.epoch + 1})
            )
            self._epoch = (await connection.execute(bumped.returning(owners.c.epoch))).scalar_one()
            mine = select(rows.c.kind, rows.c.name, rows.c.content).where(rows.c.worker == self._worker)
            found: dict[str, dict[str, Row]] = {WINDOWS: {}, CITY: {}, SLOTS: {}}
            for kind, name, content in (await connection.execute(mine)).all():
                found[kind][name] = from_json(content)
        return found

    async def write(self, connection: AsyncConnection, changes: Changes) -> None:
        """Write rows in the caller's transaction.

        Raises:
            WorkerError: Another process has taken over; roll the transaction back.
        """
        if (await connection.execute(self._owned, {"mine": self._epoch})).rowcount != 1:
            raise WorkerError(
                f"another worker has taken over the rows of {self._worker!r}; "
                "a city is priced by one worker: stop the other one, or this one for good"
            )
        put = [
            {"worker": self._worker, "kind": kind, "name": name, "content": to_json(content).decode()}
            for (kind, name), content in changes.rows.items()
            if content is not None
        ]
        if put:
            await connection.execute(self._upsert, put)
        gone = [
            {"old_kind": kind, "old_name": name} for (kind, name), content in changes.rows.items() if content is None
        ]
        if gone:
            await connection.execute(self._delete, gone)

    def _insert(self, table: Table) -> Any:  # Any: the dialects' inserts share `on_conflict_…` but no base class
        return (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert(table)
