"""The store: one request, one transaction, with its answer under its idempotency key and its events in the outbox."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from hailbus import ClockNotSetError, Outbox, Publisher, event_info
from hailbus.clock import ServiceClock, micros
from hailbus.database import READ_ONLY
from hailbus.idempotency import Answer, AnswerBook, StoredAnswer
from ride_events.bikes import BikeReservationLapsed, BikeReserved, BikeReturned, BikeUnlocked
from sqlalchemy import RowMapping, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bike.adapters.storage import tables
from bike.app.facts import derived_id
from bike.app.ports import BikeFact, Policy, Work
from bike.domain.errors import NotFound, Refusal
from bike.domain.hire import Bike, Hire, HireState, Place

LAPSE_GRACE: Final = timedelta(seconds=2)
"""A lapse is published this long after it happened: an unlock that came just in time is committed by then."""

Present = Callable[[Bike | Hire | datetime | Refusal, datetime], tuple[int, bytes]]
"""Makes status and JSON of a result or a refusal, as of a moment."""


class Store:
    """Runs use cases in transactions. All of one process take turns: the clock moves between them, never inside."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        outbox: Outbox,
        publisher: Publisher[BikeReserved | BikeUnlocked | BikeReturned | BikeReservationLapsed],
        clock: ServiceClock,
        policy: Policy,
        answers: AnswerBook,
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._publisher = publisher
        self._clock = clock
        self._policy = policy
        self._answers = answers

    async def open(self) -> None:
        """Create what is missing, and set an event clock to where it was."""
        await self._outbox.create_tables()
        await self._answers.create_tables()
        async with self._engine.begin() as connection:
            await connection.run_sync(tables.metadata.create_all)
            stored = await connection.scalar(select(tables.clock.c.now).where(tables.clock.c.name == "event"))
        if stored is not None:
            self._clock.observe(tables.moment(stored))

    async def once(
        self,
        use_case: Callable[[Work], Awaitable[Bike | Hire | datetime]],
        *,
        key: str,
        fingerprint: str,
        at: datetime | None,
        present: Present,
    ) -> Answer:
        """Do a use case once per key; a refusal is an answer, too, and leaves nothing else behind.

        Raises:
            KeyReusedError: The key was used for another request.
            ClockNotSetError: `at` is None and the event clock has seen nothing.
        """
        async with self._outbox.turn, self._engine.begin() as connection:
            known = (await self._answers.find(connection, [key])).get(key)
            if known is not None:
                return known.replay(fingerprint)
            if at is None and not self._clock.is_set:
                raise ClockNotSetError
            now = at if at is not None else self._clock.now()
            work = _Transaction(connection, self._outbox, self._publisher, policy=self._policy, now=now)
            try:
                async with connection.begin_nested():
                    status, body = present(await use_case(work), now)
            except Refusal as refusal:
                status, body = present(refusal, now)
            stored = StoredAnswer(key=key, fingerprint=fingerprint, status=status, body=body)
            await self._answers.add(connection, [stored])
            if self._clock.name == "event" and now > self._clock.now():
                await connection.execute(_upsert(connection, tables.clock), {"name": "event", "now": micros(now)})
        if self._clock.observe(now):
            self._outbox.wake()
        return stored.answer()

    async def bike(self, bike_id: str) -> tuple[Bike, Hire | None]:
        """Return a bike with the hire that has or had it last, or raise `NotFound`."""
        async with self._reading() as connection:
            bike = await _bike(connection, bike_id)
            return bike, await _hire(connection, bike.hire_id) if bike.hire_id else None

    async def hire(self, hire_id: str) -> Hire:
        """Return a hire, or raise `NotFound`."""
        async with self._reading() as connection:
            return await _hire(connection, hire_id)

    async def bikes(self, *, limit: int, after: str | None) -> list[tuple[Bike, Hire | None]]:
        """Return bikes by id, from behind the id `after`, with the hires that have them."""
        table = tables.bikes
        query = select(table).order_by(table.c.bike_id).limit(limit)
        if after is not None:
            query = query.where(table.c.bike_id > after)
        async with self._reading() as connection:
            found = [_bike_of(row) for row in (await connection.execute(query)).mappings()]
            hire_ids: Sequence[str] = [bike.hire_id for bike in found if bike.hire_id is not None]
            rows = await connection.execute(select(tables.hires).where(tables.hires.c.hire_id.in_(hire_ids)))
            holders = {row["hire_id"]: _hire_of(row) for row in rows.mappings()}
        return [(bike, holders.get(bike.hire_id) if bike.hire_id else None) for bike in found]

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            yield connection


class _Transaction:
    """The `Work` of one request."""

    def __init__(
        self,
        connection: AsyncConnection,
        outbox: Outbox,
        publisher: Publisher[BikeReserved | BikeUnlocked | BikeReturned | BikeReservationLapsed],
        *,
        policy: Policy,
        now: datetime,
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._publisher = publisher
        self.policy = policy
        self.now = now

    async def bike(self, bike_id: str) -> Bike:
        return await _bike(self._connection, bike_id, for_update=True)

    async def hire(self, hire_id: str) -> Hire:
        return await _hire(self._connection, hire_id, for_update=True)

    async def put_bike(self, bike: Bike) -> None:
        row = {
            "bike_id": bike.bike_id,
            "lat": bike.place.lat,
            "lng": bike.place.lng,
            "cell": bike.place.cell,
            "hire_id": bike.hire_id,
        }
        await self._connection.execute(_upsert(self._connection, tables.bikes), row)

    async def put_hire(self, hire: Hire) -> None:
        await self._connection.execute(_upsert(self._connection, tables.hires), _hire_row(hire))

    async def record(self, fact: BikeFact, *, at: datetime) -> None:
        await self._publisher.publish(
            fact, id=derived_id(fact.hire_id, fact.seq, event_info(fact).type), time=at, tx=self._connection
        )

    async def schedule(self, fact: BikeFact, *, at: datetime) -> None:
        await self._publisher.publish(
            fact,
            id=derived_id(fact.hire_id, fact.seq, event_info(fact).type),
            time=at,
            tx=self._connection,
            not_before=at + LAPSE_GRACE,
            schedule_id=fact.hire_id,
        )

    async def withdraw(self, hire_id: str) -> bool:
        return await self._outbox.cancel(self._connection, hire_id) > 0


def _upsert(connection: AsyncConnection, table: Table) -> Any:  # Any: the two dialects' inserts share no public class
    postgres = connection.dialect.name == "postgresql"
    statement = postgresql.insert(table) if postgres else sqlite.insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key},
    )


async def _bike(connection: AsyncConnection, bike_id: str, *, for_update: bool = False) -> Bike:
    query = select(tables.bikes).where(tables.bikes.c.bike_id == bike_id)
    row = (await connection.execute(query.with_for_update() if for_update else query)).mappings().first()
    if row is None:
        raise NotFound("bike", bike_id)
    return _bike_of(row)


def _bike_of(row: RowMapping) -> Bike:
    return Bike(
        bike_id=row["bike_id"],
        place=Place(lat=row["lat"], lng=row["lng"], cell=row["cell"]),
        hire_id=row["hire_id"],
    )


async def _hire(connection: AsyncConnection, hire_id: str, *, for_update: bool = False) -> Hire:
    query = select(tables.hires).where(tables.hires.c.hire_id == hire_id)
    row = (await connection.execute(query.with_for_update() if for_update else query)).mappings().first()
    if row is None:
        raise NotFound("hire", hire_id)
    return _hire_of(row)


def _hire_row(hire: Hire) -> dict[str, object]:
    return {
        "hire_id": hire.hire_id,
        "bike_id": hire.bike_id,
        "rider_id": hire.rider_id,
        "state": hire.state.value,
        "seq": hire.seq,
        "pickup_lat": hire.pickup.lat,
        "pickup_lng": hire.pickup.lng,
        "pickup_cell": hire.pickup.cell,
        "reserved_at": micros(hire.reserved_at),
        "expires_at": micros(hire.expires_at),
        "started_at": micros(hire.started_at) if hire.started_at else None,
        "returned_at": micros(hire.returned_at) if hire.returned_at else None,
        "dropoff_lat": hire.dropoff.lat if hire.dropoff else None,
        "dropoff_lng": hire.dropoff.lng if hire.dropoff else None,
        "dropoff_cell": hire.dropoff.cell if hire.dropoff else None,
        "distance_m": hire.distance_m,
        "fare_minor": hire.fare_minor,
        "simulated": hire.simulated,
    }


def _hire_of(row: RowMapping) -> Hire:
    dropoff = row["dropoff_cell"]
    return Hire(
        hire_id=row["hire_id"],
        bike_id=row["bike_id"],
        rider_id=row["rider_id"],
        state=HireState(row["state"]),
        seq=row["seq"],
        pickup=Place(lat=row["pickup_lat"], lng=row["pickup_lng"], cell=row["pickup_cell"]),
        reserved_at=tables.moment(row["reserved_at"]),
        expires_at=tables.moment(row["expires_at"]),
        started_at=tables.moment(row["started_at"]) if row["started_at"] is not None else None,
        returned_at=tables.moment(row["returned_at"]) if row["returned_at"] is not None else None,
        dropoff=Place(lat=row["dropoff_lat"], lng=row["dropoff_lng"], cell=dropoff) if dropoff is not None else None,
        distance_m=row["distance_m"],
        fare_minor=row["fare_minor"],
        simulated=row["simulated"],
    )
