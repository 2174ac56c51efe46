"""Facts and answers in SQLite or PostgreSQL."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from hailbus import Batch, Delivery, Event, Inbox
from hailbus.database import READ_ONLY
from pydantic_core import to_json
from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from recommender.app.city import MODEL, Option, Request
from recommender.app.facts import Closed, Fact, Journey, Opened
from recommender.app.serving import Served, Stored, UnavailableError

metadata = MetaData()
journeys = Table(
    "recommender_journey",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("rider_id", String(255), nullable=False),
    Column("pickup_cell", String(16), nullable=False),  # H3 res 11
    Column("pickup_zone", Integer),  # null outside the city
    Column("dropoff_cell", String(16), nullable=False),  # H3 res 9
    Column("dropoff_zone", Integer),
    Column("started_s", Float(53), nullable=False),
)
open_rides = Table(
    "recommender_open_ride",
    metadata,
    Column("ride_id", String(255), primary_key=True),
    Column("rider_id", String(255), nullable=False),
    Column("pickup_cell", String(16), nullable=False),
    Column("pickup_zone", Integer),
    Column("dropoff_cell", String(16), nullable=False),
    Column("dropoff_zone", Integer),
    Column("requested_s", Float(53), nullable=False),
)
Index("recommender_open_ride_requested", open_rides.c.requested_s)
answers = Table(
    "recommender_answer",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("recommendation_id", String(36), nullable=False, unique=True),
    Column("rider_id", String(255), nullable=False),
    Column("served_at", String(40), nullable=False),  # ISO 8601, UTC, event time
    Column("model", String(40), nullable=False),
    Column("request", Text, nullable=False),  # JSON: the values of a Request, in the order of its fields
    Column("options", Text, nullable=False),  # JSON: for each Option its values, in the order of its fields
    Column("simulated", Boolean, nullable=False),
    Column("chosen_option_id", String(40)),
)

_KEEP_OPEN_S: Final = 900.0
_CHUNK: Final = 5_000
_PRUNE_EVERY: Final = 10_000
_REQUEST_FIELDS: Final = tuple(field.name for field in fields(Request))
_OPTION_FIELDS: Final = tuple(field.name for field in fields(Option))
_REQUEST_VALUES: Final = attrgetter(*_REQUEST_FIELDS)
_OPTION_VALUES: Final = attrgetter(*_OPTION_FIELDS)


class Store:
    """The service's own database. Writers of this process take turns, so that none waits in the database.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        inbox: Of the service's consumer group.
        keep_answers: How many answers stay for `chosen`; older ones are removed.
    """

    def __init__(self, engine: AsyncEngine, inbox: Inbox, *, keep_answers: int = 200_000) -> None:
        self._engine = engine
        self._inbox = inbox
        self._keep_answers = keep_answers
        self._turn = asyncio.Lock()
        self._since_pruning = 0

    async def create_tables(self) -> None:
        """Create what is missing."""
        async with self._engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        await self._inbox.create_tables()

    async def facts(self, *, journeys_at_most: int) -> AsyncIterator[Fact]:
        """Yield the youngest journeys in the order in which they were learned, then the open rides."""
        async with self._engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            last = (await connection.execute(select(func.max(journeys.c.id)))).scalar() or 0
            position = last - journeys_at_most
            while True:
                chunk = select(journeys).where(journeys.c.id > position).order_by(journeys.c.id).limit(_CHUNK)
                rows = (await connection.execute(chunk)).all()
                for row in rows:
                    yield Journey(
                        rider_id=row.rider_id,
                        pickup_cell=row.pickup_cell,
                        pickup_zone=row.pickup_zone,
                        dropoff_cell=row.dropoff_cell,
                        dropoff_zone=row.dropoff_zone,
                        started_s=row.started_s,
                    )
                if len(rows) < _CHUNK:
                    break
                position = rows[-1].id
            for row in (await connection.execute(select(open_rides).order_by(open_rides.c.requested_s))).all():
                yield Opened(
                    ride_id=row.ride_id,
                    rider_id=row.rider_id,
                    pickup_cell=row.pickup_cell,
                    pickup_zone=row.pickup_zone,
                    dropoff_cell=row.dropoff_cell,
                    dropoff_zone=row.dropoff_zone,
                    requested_s=row.requested_s,
                )

    async def apply(self, batch: Batch[Event], facts_of: Callable[[Delivery[Event]], tuple[Fact, ...]]) -> list[Fact]:
        """Claim events and store their facts in one transaction; return the facts that are new, in order."""
        async with self._turn, self._engine.begin() as tx:
            claim = await batch.claim(tx)
            found = [fact for delivery in batch if delivery in claim for fact in facts_of(delivery)]
            await _write(tx, found)
            await claim.store()
        return found

    async def keep(self, served: Sequence[Served]) -> list[Served]:
        """Store answers; return those that hold, in the same order: one whose id is there already stays as it was."""
        rows = [
            {
                "recommendation_id": item.recommendation_id,
                "rider_id": item.request.rider_id,
                "served_at": item.request.at.astimezone(UTC).isoformat(),
                "model": MODEL,
                "request": to_json(_REQUEST_VALUES(item.request)).decode(),
                "options": to_json([_OPTION_VALUES(option) for option in item.options]).decode(),
                "simulated": item.request.simulated,
            }
            for item in served
        ]
        async with self._writing() as tx:
            storing = self._insert(answers).on_conflict_do_nothing().returning(answers.c.recommendation_id)
            new = set((await tx.execute(storing, rows)).scalars())
            holding: dict[str, Served] = {}
            for item in served:
                name = item.recommendation_id
                if name not in holding:
                    holding[name] = item if name in new else _answer((await tx.execute(_row_of(name))).one())
            self._since_pruning += len(rows)
            if self._since_pruning >= _PRUNE_EVERY:
                self._since_pruning = 0
                last = (await tx.execute(select(func.max(answers.c.number)))).scalar() or 0
                await tx.execute(delete(answers).where(answers.c.number <= last - self._keep_answers))
        return [holding[item.recommendation_id] for item in served]

    async def find(self, recommendation_id: str) -> Stored | None:
        """Return what is known of an answer."""
        row = await self._row(recommendation_id)
        if row is None:
            return None
        return Stored(
            recommendation_id=row.recommendation_id,
            rider_id=row.rider_id,
            served_at=datetime.fromisoformat(row.served_at),
            options=tuple((option.option_id, option.rank) for option in _options(row.options)),
            chosen_option_id=row.chosen_option_id,
            simulated=row.simulated,
        )

    async def answer(self, recommendation_id: str) -> Served | None:
        """Return an answer, whole."""
        row = await self._row(recommendation_id)
        return None if row is None else _answer(row)

    async def choose(self, recommendation_id: str, option_id: str) -> str:
        """Note the choice unless there is one; return the one that holds."""
        this = answers.c.recommendation_id == recommendation_id
        async with self._writing() as tx:
            await tx.execute(
                update(answers).where(this, answers.c.chosen_option_id.is_(None)).values(chosen_option_id=option_id)
            )
            return str((await tx.execute(select(answers.c.chosen_option_id).where(this))).scalar())

    async def _row(self, recommendation_id: str) -> Any:  # Any: SQLAlchemy's row, or None
        try:
            async with self._engine.connect() as connection:
                await connection.execution_options(**READ_ONLY)
                return (await connection.execute(_row_of(recommendation_id))).first()
        except (SQLAlchemyError, OSError) as error:
            raise UnavailableError("the database does not answer") from error

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._turn, self._engine.begin() as tx:
                yield tx
        except (SQLAlchemyError, OSError) as error:
            raise UnavailableError("the database does not answer") from error

    def _insert(self, table: Table) -> Any:  # Any: the dialects' inserts share `on_conflict_…` but no base class
        return (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert(table)


def _row_of(recommendation_id: str) -> Select[Any]:
    return select(answers).where(answers.c.recommendation_id == recommendation_id)


def _answer(row: Any) -> Served:  # Any: SQLAlchemy's row
    request = dict(zip(_REQUEST_FIELDS, json.loads(row.request), strict=True))
    return Served(
        recommendation_id=row.recommendation_id,
        request=Request(**{**request, "at": datetime.fromisoformat(request["at"])}),
        options=_options(row.options),
    )


def _options(text: str) -> tuple[Option, ...]:
    return tuple(Option(**dict(zip(_OPTION_FIELDS, values, strict=True))) for values in json.loads(text))


async def _write(tx: AsyncConnection, facts: Sequence[Fact]) -> None:
    """Store facts. Only the last word on each ride counts: opened and closed in one batch is closed."""
    learned = [asdict(fact) for fact in facts if isinstance(fact, Journey)]
    rides: dict[str, Opened | Closed] = {fact.ride_id: fact for fact in facts if not isinstance(fact, Journey)}
    opened = [asdict(fact) for fact in rides.values() if isinstance(fact, Opened)]
    if learned:
        await tx.execute(insert(journeys), learned)
    if rides:
        await tx.execute(delete(open_rides).where(open_rides.c.ride_id.in_(list(rides))))
    if opened:
        await tx.execute(insert(open_rides), opened)
        latest = max(ride["requested_s"] for ride in opened)
        await tx.execute(delete(open_rides).where(open_rides.c.requested_s < latest - _KEEP_OPEN_S))


__all__ = ["Store", "metadata"]
